"""This module makes vocabularies from tokenizers. V: the number of tokens."""
import functools
from pathlib import Path

import numpy as onp

from d2lbert.kernels.draw import FIXED, GOES_ON
from d2lbert.pretrained.tokenizers import word_pieces
from d2lbert.pretrained.tokenizers.tokenizer import (
    CONFIG,
    TOKENIZER,
    VOCAB,
    WordPiece,
)
from d2lbert.text import UNK, Special, Vocab


class TokenVocab(Vocab):
    """The tokens of any tokenizer and their ids, as a `Vocab`."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self._token_freqs = []      # unknown
        self.idx_to_token = tokenizer.idx_to_token
        self.token_to_idx = tokenizer.token_to_idx
        self.special = Special(*(tokenizer.special.get(role) for role in (
            'pad', 'mask', 'cls', 'sep')))
        self.never_masked = frozenset(tokenizer.special.values())

    @property
    def unk(self):
        """The id of the unknown token."""
        return self.tokenizer.unk_id


class PieceVocab(TokenVocab):
    """The pieces of a `WordPiece` and their ids, to pretrain with.

    Special tokens, including [UNK], are never masked and never replace
    another token. Raises ValueError for a tokenizer without word pieces or
    without a mask token.
    """

    files = VOCAB, TOKENIZER, CONFIG

    def __init__(self, tokenizer, name='the tokenizer'):
        """name: the tokenizer's name in errors."""
        if not tokenizer.has_word_pieces or tokenizer.mask_id is None:
            raise ValueError(
                f'{name} has no word pieces, or no mask token: give the '
                'tokenizer of a BERT')
        super().__init__(tokenizer)

    @classmethod
    def load(cls, path):
        """Load the pieces; path: as for `WordPiece.load`."""
        return cls(WordPiece.load(path), path)

    def save(self, path):
        """Write the tokenizer's files to the folder of `path`, a vocab.txt."""
        self.tokenizer.save(Path(path).parent)

    @functools.cached_property
    def begins_word(self):
        """(V,) bool: False for pieces that continue a word."""
        return ~onp.array([word_pieces.continues_word(token)
                           for token in self.idx_to_token])

    @functools.cached_property
    def mask_flags(self):
        """Flags of the tokens for `kernels.draw.mask_pairs`: (V,) uint8."""
        flags = onp.where(self.begins_word, 0, GOES_ON).astype('uint8')
        flags[self.tokenizer.special_ids] = FIXED
        return flags

    @functools.cached_property
    def replacement_ids(self):
        """The ids of all pieces except special tokens: int32."""
        return onp.flatnonzero(self.mask_flags != FIXED).astype('int32')

    @functools.cached_property
    def replacements(self):
        """All pieces except special tokens: a list of str."""
        return self.to_tokens(self.replacement_ids.tolist())

    def cutter(self):
        """A `word_pieces.WordCutter` that splits words into these pieces."""
        # <unk> is WikiText's token for omitted words
        return word_pieces.WordCutter(self.tokenizer.tokenizer,
                                      {UNK: [self.unk]})


def same_pieces(vocab, other):
    """True if two `PieceVocab`s give every word the same ids."""
    return vocab.tokenizer.description() == other.tokenizer.description()
