"""Tokenizers: word pieces, byte pair encodings, whole words."""
