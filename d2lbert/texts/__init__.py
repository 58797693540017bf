"""Texts below the pages: files, words, numbers, rows and examples."""
