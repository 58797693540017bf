"""BERT and its relatives as released: sizes, tokenizers, folders in and out.
"""
