"""Labelled tasks: their files, columns and submissions."""
