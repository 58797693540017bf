"""Below the pages: checked inputs, layers, rows without padding."""
