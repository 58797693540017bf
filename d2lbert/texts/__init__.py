"""Texts below the pages: their files, their words, their numbers."""
