"""Rows of a text made noisy, for a model that restores them: BART's.

Lewis et al. 2020, section 2.2. N rows, S tokens of the noisy rows and T of
those that were there, both at most max_len.
"""
import math
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.corpus.spans import TOKENS, WORDS, Spans, hide_spans
from d2lbert.texts.numbered_text import Corpus, stretched

#: The mean length of a span in words, and the longest that is drawn.
MEAN, LONGEST = 3, 10


def poisson(mean, longest):
    """Poisson's law cut at `longest`, and scaled to sum to 1: a tuple.

    Entry k is the share of length k, from 0 on.
    """
    law = [mean ** k / math.factorial(k) for k in range(longest + 1)]
    return tuple(share / sum(law) for share in law)


LAW = poisson(MEAN, LONGEST)

#: Spans of whole words that one <mask> stands for; those of no word come in
#: between.
INFILLED = Spans(tuple(share / sum(LAW[1:]) for share in LAW[1:]),
                 apart=True, whole=True)


class Noised(NamedTuple):
    """What one step needs of noisy rows."""

    tokens_X: Any           # (N, S) int32, what is read
    valid_lens_x: Any       # (N,) float32, how many of S are no padding
    targets_Y: Any          # (N, T) int32, what was there
    target_lens_y: Any      # (N,) float32


class Noise(NamedTuple):
    """What is done to rows; stands where a `Spans` could.

    kinds: 'sentences', which come in another order, and one of 'masking'
    (<mask> in the place of a token), 'deletion' and 'infilling' (one <mask>
    in the place of a span of words, or of none), or only one of these two.
    whole_words: mask and delete all pieces of a word or none.
    """

    kinds: tuple = ('infilling', 'sentences')
    whole_words: bool = False

    def drawn(self, corpus, rows, parts, max_len, rng, mask_share):
        """Rows of parts of a text, `Noised`; see `spans.hide_spans`.

        mask_share of the tokens are masked, deleted, or within spans; the
        <mask> of a span of no word comes on top.
        """
        clean = hide_spans(corpus, rows, parts, TOKENS, max_len, rng, 0)
        # NumPy promises never to change this generator's numbers
        numbers = onp.random.RandomState(
            [rng.getrandbits(32) for _ in range(8)])
        if 'sentences' in self.kinds:
            corpus, parts = _reordered(corpus, parts, numbers)
        spans = WORDS if self.whole_words else TOKENS
        if 'infilling' in self.kinds:
            spans = INFILLED
        share = 0 if self.kinds == ('sentences',) else mask_share
        noisy = hide_spans(corpus, rows, parts, spans, max_len, rng, share)
        return Noised(*self._read(noisy, corpus.vocab.special, corpus.vocab,
                                  numbers),
                      clean.tokens_X, clean.valid_lens_x)

    def _read(self, noisy, special, vocab, numbers):
        """What is read of `Masked` rows: tokens (N, S) and lengths (N,)."""
        pad, mask = vocab[special.pad], vocab[special.mask]
        tokens, left, hidden = _restored(noisy)
        N, T = tokens.shape
        places = onp.broadcast_to(onp.arange(T), (N, T))
        kept = places < noisy.valid_lens_x[:, None]
        if 'deletion' in self.kinds:
            kept &= ~hidden
        elif 'infilling' in self.kinds:
            kept &= ~hidden | (left + 1 == places)
        tokens = onp.where(hidden, mask, tokens)
        row, place = onp.nonzero(kept)
        ids = tokens[row, place]
        if 'infilling' in self.kinds:
            num_spans = (hidden & (left + 1 == places)).sum(axis=1)
            new_row, before = _of_no_word(num_spans, kept.sum(axis=1), T,
                                          numbers)
            # Behind all tokens that stand before
            order = onp.lexsort((
                onp.concatenate([onp.ones(len(row)),
                                 onp.zeros(len(new_row))]),
                onp.concatenate([onp.cumsum(kept, axis=1)[row, place] - 1,
                                 before]),
                onp.concatenate([row, new_row])))
            row = onp.concatenate([row, new_row])[order]
            ids = onp.concatenate([ids, onp.full(len(new_row), mask)])[order]
        lens = onp.bincount(row, minlength=N)
        filled = onp.full((N, T), pad, 'int32')
        filled[onp.arange(T) < lens[:, None]] = ids
        return filled, lens.astype('float32')


def _restored(noisy):
    """Tokens (N, T) of `Masked` rows as they were, and where some are hidden.

    Of these `left` (N, T) is the place before their span; -2 elsewhere.
    """
    tokens = noisy.tokens_X.copy()
    left = onp.full(tokens.shape, -2)
    row, k = onp.nonzero(noisy.mlm_weights_X)
    place = noisy.pred_positions_X[row, k]
    tokens[row, place] = noisy.mlm_Y[row, k]
    left[row, place] = noisy.left_X[row, k]
    return tokens, left, left >= -1


def _of_no_word(num_spans, lens, most, numbers):
    """Where spans of no word stand: their rows, and before which token.

    num_spans (N,): the other spans; lens (N,): tokens so far, at most `most`
    with those that come. The first token has none before it.
    """
    # So many of length 0 are drawn before num_spans others are
    counts = onp.zeros(len(num_spans), 'int64')
    some = num_spans > 0
    counts[some] = numbers.negative_binomial(num_spans[some], 1 - LAW[0])
    counts = onp.minimum(counts, most - lens)
    rows = onp.repeat(onp.arange(len(counts)), counts)
    before = 1 + (numbers.random_sample(len(rows))
                  * (lens[rows] - 1)).astype('int64')
    return rows, before


def _reordered(corpus, parts, numbers):
    """A corpus, and the same parts of it, with their sentences shuffled.

    Each part keeps its sentences, and each of them its words.
    """
    types, moved = corpus.gathered(parts)
    lengths = parts[:, 1] - parts[:, 0]
    ends = onp.cumsum(lengths)
    part = onp.repeat(onp.arange(len(parts)), lengths)
    sentence = onp.searchsorted(
        corpus.sentences, stretched(parts[:, 0], lengths), 'right')
    begins = onp.ones(len(part), bool)
    begins[1:] = (onp.diff(part) != 0) | (onp.diff(sentence) != 0)
    keys = numbers.random_sample(int(begins.sum()))
    # lexsort keeps words with one key in their order
    order = onp.lexsort((keys[onp.cumsum(begins) - 1], part))
    words = stretched(moved[:, 0], lengths)
    return (Corpus(types[words[order]], corpus.numbers, None, None,
                   corpus.vocab), onp.stack([ends - lengths, ends], 1))
