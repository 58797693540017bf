"""Labelled tasks: their files and columns."""
