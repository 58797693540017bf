"""Tokenizers: word pieces, byte pairs, whole words."""
