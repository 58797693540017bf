"""The book's own files: read them, run them, compare their outputs."""
