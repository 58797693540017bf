"""This package splits texts of any size into words, and draws batches."""
