"""Labelled tasks: their files, their columns, their submissions."""
