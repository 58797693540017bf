"""This package reads text files, numbers words and draws examples."""
