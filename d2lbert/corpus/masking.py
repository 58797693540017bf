"""Rows of one text with masked tokens: single ones, words, or spans.

`Noise` is BART's noise (Lewis et al. 2020, section 2.2): rows that a model
learns to restore. `WHOLE` masks no token, for a model that reads from left to
right.

N rows, T tokens (max_len), P predictions, V vocabulary. Noisy rows have S
tokens, at most max_len.
"""
import bisect
import itertools
import math
import random
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.kernels import draw
from d2lbert.texts.examples import MASK_SHARE
from d2lbert.texts.numbered_text import NumberedText, concat_ranges

# In a text of word pieces, a span has at most this many tokens more than the
# longest span has words. A word of even more pieces is never masked
MORE_PIECES = 20

# Shares are counted in millionths, since sums of integers are exact
MILLION = 10 ** 6


class MaskedRows(NamedTuple):
    """Rows of one text with masked tokens: N of a chunk, or a batch of B."""

    tokens_X: Any          # (N, T) int32
    valid_lens_x: Any      # (N,) float32, the number of real tokens
    pred_positions_X: Any  # (N, P) int32, 0 pads
    mlm_weights_X: Any     # (N, P) float32, 0 keeps padding out of the loss
    mlm_Y: Any             # (N, P) int32, the original tokens
    left_X: Any            # (N, P) int32, the position before the span
    right_X: Any           # (N, P) int32, the position after the span


class SpanMasking(NamedTuple):
    """The tokens that are masked together, and replaced together."""

    length_probs: tuple     # the probability of spans of 1, 2, ... words
    apart: bool             # True if two spans must not touch
    whole_words: bool       # True if words are counted, not tokens

    def max_tokens(self, vocab):
        """The largest number of tokens of a span."""
        pieces = self.whole_words and vocab.begins_word is not None
        return len(self.length_probs) + MORE_PIECES * pieces

    def mask_flags(self, vocab):
        """The flags of each token of a `Vocab` for `draw.spans`: (V,)."""
        flags = vocab.mask_flags
        if flags is None:       # <cls> can be a word of the text
            flags = onp.zeros(len(vocab), 'uint8')
            flags[vocab[vocab.special]] = draw.FIXED
        return flags if self.whole_words else flags & draw.FIXED

    def drawn(self, corpus, rows, parts, max_len, rng, mask_share):
        """The `MaskedRows` of `mask_spans` with this masking."""
        return mask_spans(corpus, rows, parts, self, max_len, rng,
                          mask_share)


def geometric(p, longest):
    """Geometric probabilities of lengths 1 to `longest`, scaled to sum 1."""
    probs = [p * (1 - p) ** k for k in range(longest)]
    return tuple(prob / sum(probs) for prob in probs)


#: Single tokens, as in BERT and RoBERTa, or all pieces of a word.
SINGLE_TOKENS = SpanMasking((1.0,), apart=False, whole_words=False)
WHOLE_WORDS = SpanMasking((1.0,), apart=False, whole_words=True)

#: SpanBERT's spans (Joshi et al. 2020, section 3.1), 3.8 words on average.
SPANBERT = SpanMasking(geometric(0.2, 10), apart=True, whole_words=True)


def mask_spans(text, rows, parts, spans, max_len, rng=random,
               mask_share=MASK_SHARE):
    """`MaskedRows` of a `NumberedText`.

    rows, parts: as `full_sentences` returns them; spans: a `SpanMasking`.

    mask_share of all tokens are masked, in spans of tokens or of whole
    words. The length of a span is drawn first, then its position among the
    free ones of that length. If none is free, one word less is tried. Of the
    spans, 80 % become <mask>, 10 % random tokens, and 10 % stay. A span is
    never shortened to reach the share: the next row masks fewer
    tokens instead, so that span lengths follow their probabilities.
    """
    vocab, share = text.vocab, round(mask_share * MILLION)
    special, flags = vocab[vocab.special], spans.mask_flags(vocab)
    choices = vocab.replacement_ids
    if choices is None:
        choices = onp.arange(len(vocab), dtype='int32')
    columns = _empty_columns(len(rows) - 1, max_len, share,
                             spans.max_tokens(vocab), special[0])
    types, parts = text.gathered(parts)
    if draw.can_draw(rng):
        draw.spans(rows, parts, types, text.numbers, (*special, len(vocab)),
                   flags, choices,
                   list(itertools.accumulate(spans.length_probs)),
                   spans.max_tokens(vocab), spans.apart, share, columns, rng)
    else:
        _mask_plainly(columns, rows.tolist(), parts.tolist(),
                      text.numbers[types], special, flags, choices.tolist(),
                      spans, spans.max_tokens(vocab), share, rng)
    return columns


def _empty_columns(num_rows, max_len, share, max_tokens, pad):
    # The last span may begin one token below the share. The first and the
    # last token of a row are never masked
    num_preds = min(max_len - 2,
                    -(-share * max_len // MILLION) - 1 + max_tokens)
    shape_P = num_rows, num_preds
    return MaskedRows(
        onp.full((num_rows, max_len), pad, 'int32'),
        onp.zeros(num_rows, 'float32'), onp.zeros(shape_P, 'int32'),
        onp.zeros(shape_P, 'float32'),
        *(onp.zeros(shape_P, 'int32') for _ in range(3)))


# In plain Python, for other generators, and without a compiler

def _mask_plainly(columns, rows, parts, ids, special, flags, choices, spans,
                  max_tokens, share, rng):
    """`draw.spans` in Python.

    ids: the numbers of the words in `parts`.
    """
    _, mask, cls, sep = special
    cumulative = list(itertools.accumulate(spans.length_probs))
    # missing: the tokens still to mask, in millionths; an excess is negative
    # and is carried over to the next row
    longest, missing = len(cumulative), 0
    for row, (first, last) in enumerate(zip(rows, rows[1:])):
        tokens = [cls]
        for begin, end in parts[first:last]:
            tokens += [*ids[begin:end].tolist(), sep]
        units, preds = _units(tokens, flags), []
        free = [_run(units, k, longest) for k in range(len(units))]
        missing += share * len(tokens)
        while missing > 0:
            wanted = 1
            if longest > 1:
                wanted = 1 + bisect.bisect_right(cumulative, rng.random(), 0,
                                                 longest - 1)
            span = _take(units, free, wanted, max_tokens, spans.apart,
                         rng)
            if span is None:
                missing = 0
                break
            begin, end = span
            missing -= MILLION * (end - begin)
            is_masked = rng.random() < 0.8
            is_random = not is_masked and rng.random() >= 0.5
            for i in range(begin, end):
                preds.append((i, 1, tokens[i], begin - 1, end))
                if is_masked:
                    tokens[i] = mask
                elif is_random:
                    tokens[i] = rng.choice(choices)
        columns.tokens_X[row, :len(tokens)] = tokens
        columns.valid_lens_x[row] = len(tokens)
        for column, values in zip(columns[2:], zip(*sorted(preds))):
            column[row, :len(preds)] = values


def _units(tokens, flags):
    """(begin, end) of each word of a row that may be masked, a list."""
    units = []
    for i, flag in enumerate(flags[tokens].tolist()):
        if flag & draw.FIXED:
            continue
        if flag & draw.GOES_ON and units and units[-1][1] == i:
            units[-1] = units[-1][0], i + 1
        else:
            units.append((i, i + 1))
    return units


def _run(units, k, longest):
    """The number of adjacent words from word k on, at most `longest`."""
    count = 1
    while (count < longest and k + count < len(units)
           and units[k + count - 1][1] == units[k + count][0]):
        count += 1
    return count


def _take(units, free, wanted, max_tokens, apart, rng):
    """A random free span of `wanted` words or of fewer: (begin, end).

    free: for each word the number of free words from it on; updated. None
    if no word is free.
    """
    for length in range(wanted, 0, -1):
        fitting = [k for k in range(len(units)) if free[k] >= length
                   and units[k + length - 1][1] - units[k][0] <= max_tokens]
        if fitting:
            break
    else:
        return None
    first = fitting[rng.randrange(len(fitting))]
    last = first + length - 1
    span = units[first][0], units[last][1]
    if apart:       # words that touch the span are no longer free
        first -= first > 0 and units[first - 1][1] == units[first][0]
        last += (last + 1 < len(units)
                 and units[last][1] == units[last + 1][0])
    for k in range(first, last + 1):
        free[k] = 0
    for k in range(first):
        free[k] = min(free[k], first - k)
    return span


class Whole(NamedTuple):
    """Rows without masks, as one step needs them."""

    tokens_X: Any           # (N, T) int32
    valid_lens_x: Any       # (N,) float32, number of real tokens of T


class WholeRows(NamedTuple):
    """Rows with all of their words, with the interface of `SpanMasking`."""

    def drawn(self, corpus, rows, parts, max_len, rng, mask_share):
        """The `Whole` rows of a text; see `mask_spans`. No token is masked."""
        return Whole(*mask_spans(corpus, rows, parts, SINGLE_TOKENS, max_len,
                                 rng, 0)[:2])


WHOLE = WholeRows()


#: BART's span lengths in words: the mean of the Poisson distribution, and the
#: maximum.
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

    kinds: 'sentences' (shuffle sentences) and at most one of 'masking'
    (<mask> for a token), 'deletion' (of tokens) and 'infilling' (one <mask>
    for a span of words, or for no word). whole_words: mask and delete all
    pieces of a word or none.
    """

    kinds: tuple = ('infilling', 'sentences')
    whole_words: bool = False

    def drawn(self, text, rows, parts, max_len, rng, mask_share):
        """`NoisyRows` of a `NumberedText`; see `mask_spans`.

        mask_share of the tokens are masked, deleted, or within spans. Masks
        for spans of no word are added to these.
        """
        clean = mask_spans(text, rows, parts, SINGLE_TOKENS, max_len, rng, 0)
        # NumPy promises never to change this generator's numbers
        shuffler = onp.random.RandomState(
            [rng.getrandbits(32) for _ in range(8)])
        if 'sentences' in self.kinds:
            text, parts = _shuffled_sentences(text, parts, shuffler)
        spans = WHOLE_WORDS if self.whole_words else SINGLE_TOKENS
        if 'infilling' in self.kinds:
            spans = INFILLING
        share = 0 if self.kinds == ('sentences',) else mask_share
        masked = mask_spans(text, rows, parts, spans, max_len, rng, share)
        return NoisyRows(*self._noisy(masked, text.vocab, shuffler),
                         clean.tokens_X, clean.valid_lens_x)

    def _noisy(self, masked, vocab, shuffler):
        """Noisy tokens (N, S) and lengths (N,) of `MaskedRows`."""
        pad, mask = vocab[vocab.special.pad], vocab[vocab.special.mask]
        tokens, left, is_masked = _restored(masked)
        N, T = tokens.shape
        columns = onp.broadcast_to(onp.arange(T), (N, T))
        is_first = left + 1 == columns      # the first token of a span
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
                                           shuffler)
            # Sort by row and position, new masks before tokens
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


def _empty_spans(num_spans, lens, max_len, shuffler):
    """Insertion points of spans of no word: (rows, before).

    Span k is inserted in row rows[k], before token before[k]. This is never
    the first token. num_spans (N,): the number of other spans; lens (N,): the
    number of tokens without the new ones.
    """
    # The number of spans of length 0 until num_spans others were drawn
    counts = onp.zeros(len(num_spans), 'int64')
    some = num_spans > 0
    counts[some] = shuffler.negative_binomial(num_spans[some],
                                              1 - LENGTH_PROBS[0])
    counts = onp.minimum(counts, max_len - lens)
    rows = onp.repeat(onp.arange(len(counts)), counts)
    before = 1 + (shuffler.random_sample(len(rows))
                  * (lens[rows] - 1)).astype('int64')
    return rows, before


def _shuffled_sentences(text, parts, shuffler):
    """(text, parts) with the sentences of each part shuffled."""
    types, moved = text.gathered(parts)
    lengths = parts[:, 1] - parts[:, 0]
    ends = onp.cumsum(lengths)
    part = onp.repeat(onp.arange(len(parts)), lengths)
    sentence = onp.searchsorted(
        text.sentences, concat_ranges(parts[:, 0], lengths), 'right')
    begins = onp.ones(len(part), bool)
    begins[1:] = (onp.diff(part) != 0) | (onp.diff(sentence) != 0)
    keys = shuffler.random_sample(int(begins.sum()))
    # lexsort keeps words with one key in their order
    order = onp.lexsort((keys[onp.cumsum(begins) - 1], part))
    words = concat_ranges(moved[:, 0], lengths)
    return (NumberedText(types[words[order]], text.numbers, None, None,
                         text.vocab), onp.stack([ends - lengths, ends], 1))
