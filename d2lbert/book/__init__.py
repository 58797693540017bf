"""Read and run the book's own notebooks and sources, and compare outputs."""
