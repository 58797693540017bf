"""Texts of any size: read, cut, numbered, stored, drawn from."""
