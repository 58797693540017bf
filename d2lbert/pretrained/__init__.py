"""BERT as released: sizes, word pieces, folders in and out."""
