"""The tokenizers: word pieces, byte pair encodings and whole words."""
