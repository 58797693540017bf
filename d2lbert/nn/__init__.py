"""Code below the book's pages: input checks, layers, packed rows."""
