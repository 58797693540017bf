"""Released BERT models and relatives: families, tokenizers, folders, vectors.
"""
