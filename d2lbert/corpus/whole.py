"""Rows of a text without masks, for a model that reads from left to right.

N rows, T tokens (max_len).
"""
from typing import Any, NamedTuple

from d2lbert.corpus.spans import SINGLE_TOKENS, mask_spans


class Whole(NamedTuple):
    """Rows without masks, as one step needs them."""

    tokens_X: Any           # (N, T) int32
    valid_lens_x: Any       # (N,) float32, how many of T are no padding


class WholeRows(NamedTuple):
    """Rows with all of their words, with the interface of `spans.Spans`."""

    def drawn(self, corpus, rows, parts, max_len, rng, mask_share):
        """Rows of parts of a text, `Whole`; see `spans.mask_spans`."""
        return Whole(*mask_spans(corpus, rows, parts, SINGLE_TOKENS, max_len,
                                 rng, 0)[:2])


WHOLE = WholeRows()
