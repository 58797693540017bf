"""BART's noise: rows of a text that a model learns to restore.

Lewis et al. 2020, section 2.2. N rows, S tokens of the noisy rows, T tokens
of the original rows, both at most max_len.
"""
import math
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.corpus.spans import (
    SINGLE_TOKENS,
    WHOLE_WORDS,
    SpanMasking,
    mask_spans,
)
from d2lbert.texts.numbered_text import NumberedText, concat_ranges

#: The mean and the maximal length of a span, in words.
MEAN, LONGEST = 3, 10


def poisson(mean, longest):
    """Poisson probabilities of lengths 0 to `longest`, scaled to sum 1."""
    probs = [mean ** k / math.factorial(k) for k in range(longest + 1)]
    return tuple(prob / sum(probs) for prob in probs)


LENGTH_PROBS = poisson(MEAN, LONGEST)

#: Spans of at least one whole word. Each is replaced by one <mask>; masks for
#: spans of no word are inserted separately.
INFILLING = SpanMasking(
    tuple(prob / sum(LENGTH_PROBS[1:]) for prob in LENGTH_PROBS[1:]),
    apart=True, whole_words=True)


class NoisyRows(NamedTuple):
    """Noisy rows and the original ones."""

    tokens_X: Any           # (N, S) int32, noisy
    valid_lens_x: Any       # (N,) float32, the number of real tokens of S
    targets_Y: Any          # (N, T) int32, original
    target_lens_y: Any      # (N,) float32


class Noise(NamedTuple):
    """BART noise settings, with the interface of `SpanMasking`.

    kinds: 'sentences' (shuffle them), one of 'masking' (<mask> for a token),
    'deletion' and 'infilling' (one <mask> for a span of words, or for no
    word), or both. whole_words: mask and delete all pieces of a word or
    none.
    """

    kinds: tuple = ('infilling', 'sentences')
    whole_words: bool = False

    def drawn(self, text, rows, parts, max_len, rng, mask_share):
        """`NoisyRows` of a `NumberedText`; see `spans.mask_spans`.

        mask_share of the tokens are masked, deleted, or within spans. Masks
        for spans of no word are added to these.
        """
        clean = mask_spans(text, rows, parts, SINGLE_TOKENS, max_len, rng, 0)
        # NumPy promises never to change this generator's numbers
        numbers = onp.random.RandomState(
            [rng.getrandbits(32) for _ in range(8)])
        if 'sentences' in self.kinds:
            text, parts = _shuffled_sentences(text, parts, numbers)
        spans = WHOLE_WORDS if self.whole_words else SINGLE_TOKENS
        if 'infilling' in self.kinds:
            spans = INFILLING
        share = 0 if self.kinds == ('sentences',) else mask_share
        masked = mask_spans(text, rows, parts, spans, max_len, rng, share)
        return NoisyRows(*self._noisy(masked, text.vocab, numbers),
                         clean.tokens_X, clean.valid_lens_x)

    def _noisy(self, masked, vocab, numbers):
        """Noisy tokens (N, S) and lengths (N,) of `MaskedRows`."""
        pad, mask = vocab[vocab.special.pad], vocab[vocab.special.mask]
        tokens, left, is_masked = _restored(masked)
        N, T = tokens.shape
        columns = onp.broadcast_to(onp.arange(T), (N, T))
        is_first = left + 1 == columns      # of its span
        kept = columns < masked.valid_lens_x[:, None]
        if 'deletion' in self.kinds:
            kept &= ~is_masked
        elif 'infilling' in self.kinds:
            kept &= ~is_masked | is_first
        tokens = onp.where(is_masked, mask, tokens)
        row, column = onp.nonzero(kept)
        ids = tokens[row, column]
        if 'infilling' in self.kinds:
            num_spans = (is_masked & is_first).sum(axis=1)
            new_row, before = _empty_spans(num_spans, kept.sum(axis=1), T,
                                           numbers)
            # A new mask comes after all tokens before its position
            order = onp.lexsort((
                onp.concatenate([onp.ones(len(row)),
                                 onp.zeros(len(new_row))]),
                onp.concatenate([onp.cumsum(kept, axis=1)[row, column] - 1,
                                 before]),
                onp.concatenate([row, new_row])))
            row = onp.concatenate([row, new_row])[order]
            ids = onp.concatenate([ids, onp.full(len(new_row), mask)])[order]
        lens = onp.bincount(row, minlength=N)
        filled = onp.full((N, T), pad, 'int32')
        filled[onp.arange(T) < lens[:, None]] = ids
        return filled, lens.astype('float32')


def _restored(masked):
    """(tokens, left, is_masked) of `MaskedRows`, each (N, T).

    tokens: the original ones; left: for masked tokens the position before
    their span, -2 elsewhere.
    """
    tokens = masked.tokens_X.copy()
    left = onp.full(tokens.shape, -2)
    row, k = onp.nonzero(masked.mlm_weights_X)
    column = masked.pred_positions_X[row, k]
    tokens[row, column] = masked.mlm_Y[row, k]
    left[row, column] = masked.left_X[row, k]
    return tokens, left, left >= -1


def _empty_spans(num_spans, lens, max_len, numbers):
    """Insertion points of spans of no word: their rows, the token after each.

    num_spans (N,): the number of other spans; lens (N,): the number of
    tokens so far. No span is inserted before the first token.
    """
    # The number of spans of length 0 until num_spans others were drawn
    counts = onp.zeros(len(num_spans), 'int64')
    some = num_spans > 0
    counts[some] = numbers.negative_binomial(num_spans[some],
                                             1 - LENGTH_PROBS[0])
    counts = onp.minimum(counts, max_len - lens)
    rows = onp.repeat(onp.arange(len(counts)), counts)
    before = 1 + (numbers.random_sample(len(rows))
                  * (lens[rows] - 1)).astype('int64')
    return rows, before


def _shuffled_sentences(text, parts, numbers):
    """(text, parts) with the sentences of each part shuffled."""
    types, moved = text.gathered(parts)
    lengths = parts[:, 1] - parts[:, 0]
    ends = onp.cumsum(lengths)
    part = onp.repeat(onp.arange(len(parts)), lengths)
    sentence = onp.searchsorted(
        text.sentences, concat_ranges(parts[:, 0], lengths), 'right')
    begins = onp.ones(len(part), bool)
    begins[1:] = (onp.diff(part) != 0) | (onp.diff(sentence) != 0)
    keys = numbers.random_sample(int(begins.sum()))
    # lexsort keeps words with one key in their order
    order = onp.lexsort((keys[onp.cumsum(begins) - 1], part))
    words = concat_ranges(moved[:, 0], lengths)
    return (NumberedText(types[words[order]], text.numbers, None, None,
                         text.vocab), onp.stack([ends - lengths, ends], 1))
