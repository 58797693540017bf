"""Labelled tasks: their files, and the readers of their formats."""
