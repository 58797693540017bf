"""Released BERT models and relatives: sizes, tokenizers, checkpoint folders.
"""
