"""This module fills rows with a text, and masks tokens, words or spans.

`Noise` is BART's noise (Lewis et al. 2020, section 2.2); a model learns to
restore the original rows. `NO_MASKS` masks no token, for a model that reads
from left to right.

A token is a word or a word piece. A row joins parts, ranges (begin, end) of
the text's tokens. A span is one or more consecutive tokens or words of a row,
which are masked together.

N: the number of rows. T and S: the lengths of original and of noisy rows, both
max_len. P: the maximal number of masked tokens of a row. V: the size of the
vocabulary. M: the number of parts in all rows.
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

# A span of up to n whole words has at most n + MORE_PIECES pieces. A word of
# more pieces is never masked
MORE_PIECES = 20

# Shares are counted in millionths, since sums of integers are exact
MILLION = 10 ** 6


class MaskedRows(NamedTuple):
    """Rows with masked tokens: all rows of a chunk of a text, or a batch."""

    tokens_X: Any          # (N, T) int32
    valid_lens_x: Any      # (N,) float32, the number of real tokens
    pred_positions_X: Any  # (N, P) int32, 0 pads
    mlm_weights_X: Any     # (N, P) float32, 0 keeps padding out of the loss
    mlm_Y: Any             # (N, P) int32, the original tokens
    left_X: Any            # (N, P) int32, the position before the span
    right_X: Any           # (N, P) int32, the position after the span


class SpanMasking(NamedTuple):
    """Settings of span masking. A unit of a span is a word or a token."""

    length_probs: tuple     # the probabilities of spans of 1, 2, ... units
    separate: bool          # two spans must not touch
    whole_words: bool       # units are words

    def max_tokens(self, vocab):
        """The largest number of tokens of a span."""
        max_units = len(self.length_probs)
        has_pieces = vocab.begins_word is not None
        if self.whole_words and has_pieces:
            return max_units + MORE_PIECES
        return max_units

    def mask_flags(self, vocab):
        """The bits of each token, draw.FIXED and draw.GOES_ON: (V,) uint8."""
        flags = vocab.mask_flags
        if flags is None:
            # Not only <cls> and <sep>: any special token may be a word of
            # the text
            flags = onp.zeros(len(vocab), 'uint8')
            flags[vocab[vocab.special]] = draw.FIXED
        # Without GOES_ON each token is a unit
        return flags if self.whole_words else flags & draw.FIXED

    def draw_rows(self, text, rows, parts, max_len, rng, mask_share):
        """The `MaskedRows` of `mask_spans` with these settings."""
        return mask_spans(text, rows, parts, self, max_len, rng, mask_share)


def geometric(p, max_length):
    """Geometric probabilities of lengths 1 to max_length, scaled to sum 1."""
    probs = [p * (1 - p) ** k for k in range(max_length)]
    return tuple(prob / sum(probs) for prob in probs)


#: Spans of single tokens, as in BERT and RoBERTa.
SINGLE_TOKENS = SpanMasking((1.0,), separate=False, whole_words=False)
#: Spans of single words.
WHOLE_WORDS = SpanMasking((1.0,), separate=False, whole_words=True)

#: SpanBERT's spans (Joshi et al. 2020, section 3.1), 3.8 words on average.
SPANBERT = SpanMasking(geometric(0.2, 10), separate=True, whole_words=True)


def mask_spans(text, rows, parts, masking, max_len, rng=random,
               mask_share=MASK_SHARE):
    """Fill rows with parts of a `NumberedText` and mask them: `MaskedRows`.

    rows (N + 1,) and parts (M, 2) int64: row k consists of parts rows[k] to
    rows[k + 1] - 1, as `stored_text.full_sentences` returns them. masking: a
    `SpanMasking`. rng: `random` or a random.Random.

    mask_share of all tokens are masked. The length of a span is drawn first,
    then its position among the free positions for that length. If there is
    none, shorter lengths are tried. Of the spans, 80 % get <mask> for each
    token, 10 % get a random token for each, and 10 % stay. If the last span of
    a row exceeds the share, it is not shortened, so that span lengths follow
    length_probs. Instead, the next row masks fewer tokens.
    """
    vocab = text.vocab
    special_ids = vocab[vocab.special]
    max_tokens = masking.max_tokens(vocab)
    mask_millionths = round(mask_share * MILLION)
    replacements = vocab.replacement_ids
    if replacements is None:
        replacements = onp.arange(len(vocab), dtype='int32')
    columns = _empty_columns(len(rows) - 1, max_len, mask_millionths,
                             max_tokens, special_ids[0])
    types, parts = text.gather(parts)   # the new parts are ranges of `types`
    fill_columns = draw.mask_spans if draw.can_draw(rng) else _mask_spans
    fill_columns(rows, parts, types, text.numbers, (*special_ids, len(vocab)),
                 masking.mask_flags(vocab), replacements,
                 list(itertools.accumulate(masking.length_probs)), max_tokens,
                 masking.separate, mask_millionths, columns, rng)
    return columns


def _empty_columns(num_rows, max_len, mask_millionths, max_tokens, pad):
    # Before its last span a row has fewer masked tokens than its share
    before_last_span = -(-mask_millionths * max_len // MILLION) - 1
    # The first and the last token of a row are never masked
    num_preds = min(max_len - 2, before_last_span + max_tokens)
    shape_P = num_rows, num_preds
    return MaskedRows(
        tokens_X=onp.full((num_rows, max_len), pad, 'int32'),
        valid_lens_x=onp.zeros(num_rows, 'float32'),
        pred_positions_X=onp.zeros(shape_P, 'int32'),
        mlm_weights_X=onp.zeros(shape_P, 'float32'),
        mlm_Y=onp.zeros(shape_P, 'int32'), left_X=onp.zeros(shape_P, 'int32'),
        right_X=onp.zeros(shape_P, 'int32'))


# `draw.mask_spans` in Python, with its arguments, for random generators that
# C++ cannot replace, or without a compiler

def _mask_spans(row_offsets, parts, word_types, type_ids, specials, flags,
                replacements, length_cdf, max_tokens, separate_spans,
                mask_millionths, columns, rng):
    _, mask, cls, sep, _ = specials
    rows, parts = row_offsets.tolist(), parts.tolist()
    ids, replacements = type_ids[word_types], replacements.tolist()
    max_length = len(length_cdf)
    # The number of tokens still to mask, in millionths. It is below 0 if a row
    # has masked too many tokens; then the next row masks fewer
    owed = 0
    for row, (first_part, end_part) in enumerate(zip(rows, rows[1:])):
        tokens = [cls]
        for begin, end in parts[first_part:end_part]:
            tokens += [*ids[begin:end].tolist(), sep]
        # For each masked token, its fields of `MaskedRows` from the third on
        preds = []
        units = _units(tokens, flags)
        max_span_units = [_num_adjacent(units, k, max_length)
                          for k in range(len(units))]
        owed += mask_millionths * len(tokens)
        while owed > 0:
            length = 1
            if max_length > 1:      # otherwise the length is not drawn
                # The last entry of length_cdf is left out, as rounding may
                # have made it less than 1
                length = 1 + bisect.bisect_right(length_cdf, rng.random(), 0,
                                                 max_length - 1)
            span = _take_span(units, max_span_units, length, max_tokens,
                              separate_spans, rng)
            if span is None:
                owed = 0    # the next row does not make up for this row
                break
            begin, end = span
            owed -= MILLION * (end - begin)
            gets_mask = rng.random() < 0.8
            gets_random = not gets_mask and rng.random() >= 0.5
            for i in range(begin, end):
                preds.append((i, 1, tokens[i], begin - 1, end))
                if gets_mask:
                    tokens[i] = mask
                elif gets_random:
                    tokens[i] = rng.choice(replacements)
        columns.tokens_X[row, :len(tokens)] = tokens
        columns.valid_lens_x[row] = len(tokens)
        for column, values in zip(columns[2:], zip(*sorted(preds))):
            column[row, :len(preds)] = values


def _units(tokens, flags):
    """[(begin, end)] of each word or token of a row that may be masked."""
    units = []
    for i, flag in enumerate(flags[tokens].tolist()):
        if flag & draw.FIXED:
            continue
        follows_unit = units and units[-1][1] == i
        if flag & draw.GOES_ON and follows_unit:
            units[-1] = units[-1][0], i + 1
        else:
            units.append((i, i + 1))
    return units


def _num_adjacent(units, k, max_length):
    """The number of adjacent units from unit k on, at most max_length."""
    count = 1
    while (count < max_length and k + count < len(units)
           and units[k + count - 1][1] == units[k + count][0]):
        count += 1
    return count


def _take_span(units, max_span_units, drawn_length, max_tokens, separate,
               rng):
    """Take a random free span of drawn_length units, or of fewer if none fits.

    max_span_units: for each unit, the largest number of units of a free span
    that begins with it, whatever max_tokens is. This function updates the
    list. Returns the (begin, end) of the span's tokens, or None if none fits.
    """
    for length in range(drawn_length, 0, -1):
        fitting = [k for k in range(len(units)) if max_span_units[k] >= length
                   and units[k + length - 1][1] - units[k][0] <= max_tokens]
        if fitting:
            break
    else:
        return None
    first = fitting[rng.randrange(len(fitting))]
    last = first + length - 1
    span = units[first][0], units[last][1]
    if separate:    # exclude the units that touch the span, too
        if first > 0 and units[first - 1][1] == units[first][0]:
            first -= 1
        if last + 1 < len(units) and units[last][1] == units[last + 1][0]:
            last += 1
    for k in range(first, last + 1):
        max_span_units[k] = 0
    for k in range(first):
        max_span_units[k] = min(max_span_units[k], first - k)
    return span


class UnmaskedRows(NamedTuple):
    """Rows without masks: all rows of a chunk of a text, or a batch."""

    tokens_X: Any           # (N, T) int32
    valid_lens_x: Any       # (N,) float32, the number of real tokens


class NoMasks(NamedTuple):
    """Settings to mask no token, with `draw_rows` like `SpanMasking`."""

    def draw_rows(self, text, rows, parts, max_len, rng, mask_share):
        """The `UnmaskedRows` of a text; mask_share is ignored."""
        unmasked = mask_spans(text, rows, parts, SINGLE_TOKENS, max_len, rng,
                              mask_share=0)
        return UnmaskedRows(unmasked.tokens_X, unmasked.valid_lens_x)


NO_MASKS = NoMasks()


def poisson(mean, max_length):
    """Poisson probabilities of lengths 0 to max_length, scaled to sum 1."""
    probs = [mean ** k / math.factorial(k) for k in range(max_length + 1)]
    return tuple(prob / sum(probs) for prob in probs)


#: The probabilities of BART's spans of 0, 1, ... words, here of at most 10.
POISSON_PROBS = poisson(mean=3, max_length=10)

#: BART's spans of at least one word. `Noise` replaces each by one <mask>, and
#: inserts masks for spans of length 0 (see `_draw_empty_spans`).
INFILLING = SpanMasking(
    tuple(prob / sum(POISSON_PROBS[1:]) for prob in POISSON_PROBS[1:]),
    separate=True, whole_words=True)


class NoisyRows(NamedTuple):
    """Noisy rows and the original rows."""

    tokens_X: Any           # (N, S) int32, noisy
    valid_lens_x: Any       # (N,) float32, the number of real noisy tokens
    targets_Y: Any          # (N, T) int32, original
    target_lens_y: Any      # (N,) float32, the number of real original tokens


class Noise(NamedTuple):
    """BART noise settings, with `draw_rows` like `SpanMasking`.

    kinds: 'sentences' shuffles the sentences of each part. Besides, kinds has
    at most one of 'masking' (<mask> for a token), 'deletion' (of tokens) and
    'infilling' (one <mask> for a span of zero or more words). whole_words:
    mask and delete all pieces of a word or none, as infilling always does.
    """

    kinds: tuple = ('infilling', 'sentences')
    whole_words: bool = False

    def draw_rows(self, text, rows, parts, max_len, rng, mask_share):
        """The `NoisyRows` of a text; arguments as for `mask_spans`.

        mask_share of the tokens are masked, deleted, or within spans. Masks
        for spans of length 0 do not count in this share.
        """
        original = NO_MASKS.draw_rows(text, rows, parts, max_len, rng, 0)
        # NumPy promises that a RandomState will always draw the same numbers
        noise_rng = onp.random.RandomState(
            [rng.getrandbits(32) for _ in range(8)])
        if 'sentences' in self.kinds:
            text, parts = _shuffle_sentences(text, parts, noise_rng)
        masking = WHOLE_WORDS if self.whole_words else SINGLE_TOKENS
        if 'infilling' in self.kinds:
            masking = INFILLING
        share = 0 if self.kinds == ('sentences',) else mask_share
        masked = mask_spans(text, rows, parts, masking, max_len, rng, share)
        return NoisyRows(*self._add_noise(masked, text.vocab, noise_rng),
                         *original)

    def _add_noise(self, masked, vocab, noise_rng):
        """Noisy tokens (N, S) and lengths (N,), from `MaskedRows`.

        Each masked token becomes <mask> or is deleted, whatever token `masked`
        has in its place.
        """
        pad, mask = vocab[vocab.special.pad], vocab[vocab.special.mask]
        tokens, is_masked, is_first = _restore_tokens(masked)
        N, T = tokens.shape
        kept = onp.arange(T) < masked.valid_lens_x[:, None]
        if 'deletion' in self.kinds:
            kept &= ~is_masked
        elif 'infilling' in self.kinds:
            kept &= ~is_masked | is_first
        ids = onp.where(is_masked, mask, tokens)[kept]
        lens = kept.sum(axis=1)
        if 'infilling' in self.kinds:
            rows, next_tokens = _draw_empty_spans(is_first.sum(axis=1), lens,
                                                  T, noise_rng)
            row_begins = onp.cumsum(lens) - lens
            ids = onp.insert(ids, row_begins[rows] + next_tokens, mask)
            lens += onp.bincount(rows, minlength=N)
        noisy = onp.full((N, T), pad, 'int32')
        noisy[onp.arange(T) < lens[:, None]] = ids
        return noisy, lens.astype('float32')


def _restore_tokens(masked):
    """(original tokens, is_masked, is_first) of `MaskedRows`, each (N, T).

    is_first: True for the first token of a masked span.
    """
    tokens = masked.tokens_X.copy()
    is_masked, is_first = onp.zeros((2, *tokens.shape), bool)
    row, k = onp.nonzero(masked.mlm_weights_X)
    position = masked.pred_positions_X[row, k]
    tokens[row, position] = masked.mlm_Y[row, k]
    is_masked[row, position] = True
    is_first[row, masked.left_X[row, k] + 1] = True
    return tokens, is_masked, is_first


def _draw_empty_spans(num_spans, lens, max_len, noise_rng):
    """Draw insertion points of spans of length 0: (rows, next_tokens).

    Span k is inserted in row rows[k], before token next_tokens[k], which is
    never the first token. num_spans (N,): the number of non-empty spans in
    each row; lens (N,): the number of tokens of each row before the insertion.
    """
    # If lengths are drawn until num_spans of them are not 0, the number of
    # zeros has a negative binomial distribution
    num_empty = onp.zeros(len(num_spans), 'int64')
    has_spans = num_spans > 0
    num_empty[has_spans] = noise_rng.negative_binomial(num_spans[has_spans],
                                                       1 - POISSON_PROBS[0])
    num_empty = onp.minimum(num_empty, max_len - lens)
    rows = onp.repeat(onp.arange(len(num_empty)), num_empty)
    next_tokens = 1 + (noise_rng.random_sample(len(rows))
                       * (lens[rows] - 1)).astype('int64')
    return rows, next_tokens


def _shuffle_sentences(text, parts, noise_rng):
    """Shuffle the sentences within each part of a `NumberedText`.

    parts (M, 2) int64: ranges of the text's tokens. Returns (text, parts): a
    new text of all parts, and the range of each part in it. The new text has
    no offsets of sentences and paragraphs, since only its words are used.
    """
    types, type_ranges = text.gather(parts)
    lengths = parts[:, 1] - parts[:, 0]
    ends = onp.cumsum(lengths)
    # The part and the sentence of each token
    part = onp.repeat(onp.arange(len(parts)), lengths)
    sentence = onp.searchsorted(
        text.sentences, concat_ranges(parts[:, 0], lengths), 'right')
    begins_sentence = onp.ones(len(part), bool)
    begins_sentence[1:] = (onp.diff(part) != 0) | (onp.diff(sentence) != 0)
    # Tokens of a sentence have equal keys, and lexsort keeps their order
    keys = noise_rng.random_sample(int(begins_sentence.sum()))
    order = onp.lexsort((keys[onp.cumsum(begins_sentence) - 1], part))
    indices = concat_ranges(type_ranges[:, 0], lengths)     # into `types`
    return (NumberedText(types[indices[order]], text.numbers, None, None,
                         text.vocab), onp.stack([ends - lengths, ends], 1))
