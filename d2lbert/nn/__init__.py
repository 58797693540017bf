"""Code that the book's pages build on: input checks, layers, packed rows."""
