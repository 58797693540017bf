"""This module fills rows with a text, and masks tokens, words or spans.

`Noise` is BART's noise (Lewis et al. 2020, section 2.2); a model learns to
restore the original rows. `NO_MASKS` masks no token, for a model that reads
from left to right.

A token is a word or a word piece. A row joins parts of a text. A part is a
range (begin, end) of the text's tokens. A span is one or more consecutive
tokens or words of a row, which are masked together.

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

# If spans of up to n whole words are drawn, a span is limited to
# n + MORE_PIECES pieces. So a word of more pieces is never masked
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
    separate: bool          # True if two spans must not touch
    whole_words: bool       # True if a unit is a word; False: a token

    def max_tokens(self, vocab):
        """The largest number of tokens of a span."""
        max_units = len(self.length_probs)
        if self.whole_words and vocab.begins_word is not None:
            return max_units + MORE_PIECES      # words may have pieces
        return max_units

    def mask_flags(self, vocab):
        """The flags of each token of a `Vocab`, for `draw`: (V,) uint8.

        FIXED: the token is never masked; GOES_ON: it continues a word.
        """
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

    mask_share of all tokens are masked, in spans of tokens or of whole
    words. The length of a span is drawn first, then its position among the
    free positions for that length. If no position is free, the length is
    reduced until a position is free. Of the spans, 80 % get <mask> for each
    token, 10 % get a random token for each, and 10 % stay. If the last span of
    a row exceeds the share, it is not shortened, so that span lengths follow
    length_probs. Instead, the next row masks fewer tokens.
    """
    vocab, mask_millionths = text.vocab, round(mask_share * MILLION)
    special_ids, flags = vocab[vocab.special], masking.mask_flags(vocab)
    max_tokens = masking.max_tokens(vocab)
    replacements = vocab.replacement_ids
    if replacements is None:
        replacements = onp.arange(len(vocab), dtype='int32')
    columns = _empty_columns(len(rows) - 1, max_len, mask_millionths,
                             max_tokens, special_ids[0])
    # types: as in `NumberedText`. Now the parts are ranges of `types`
    types, parts = text.gather(parts)
    # Each of the two functions fills `columns`
    if draw.can_draw(rng):
        draw.mask_spans(
            rows, parts, types, text.numbers, (*special_ids, len(vocab)),
            flags, replacements,
            list(itertools.accumulate(masking.length_probs)), max_tokens,
            masking.separate, mask_millionths, columns, rng)
    else:
        _mask_plainly(columns, rows.tolist(), parts.tolist(),
                      text.numbers[types], special_ids, flags,
                      replacements.tolist(), masking, max_tokens,
                      mask_millionths, rng)
    return columns


def _empty_columns(num_rows, max_len, mask_millionths, max_tokens, pad):
    """`MaskedRows` that contain only padding.

    max_tokens: the maximal number of tokens of a span. pad: the id of <pad>.
    """
    # Before its last span a row has fewer masked tokens than its share: at
    # most ceil(share) - 1. The first and the last token of a row are never
    # masked
    num_preds = min(max_len - 2,
                    -(-mask_millionths * max_len // MILLION) - 1 + max_tokens)
    shape_P = num_rows, num_preds
    return MaskedRows(
        tokens_X=onp.full((num_rows, max_len), pad, 'int32'),
        valid_lens_x=onp.zeros(num_rows, 'float32'),
        pred_positions_X=onp.zeros(shape_P, 'int32'),
        mlm_weights_X=onp.zeros(shape_P, 'float32'),
        mlm_Y=onp.zeros(shape_P, 'int32'), left_X=onp.zeros(shape_P, 'int32'),
        right_X=onp.zeros(shape_P, 'int32'))


# `draw.mask_spans` in Python, for random generators that C++ cannot replace,
# or without a compiler

def _mask_plainly(columns, rows, parts, ids, special_ids, flags, replacements,
                  masking, max_tokens, mask_millionths, rng):
    """Mask spans and fill `columns`, a `MaskedRows`.

    rows, parts: lists, as for `mask_spans`, but parts are ranges of `ids`, the
    vocabulary numbers of tokens. special_ids: the ids of <pad>, <mask>, <cls>
    and <sep>. flags (V,): as `SpanMasking.mask_flags` returns them.
    replacements: the tokens from which random tokens are drawn. masking: a
    `SpanMasking`. max_tokens: the maximal number of tokens of a span.
    """
    _, mask, cls, sep = special_ids
    length_cdf = list(itertools.accumulate(masking.length_probs))
    max_length = len(length_cdf)
    # The number of tokens still to mask, in millionths. It is below 0 if a row
    # has masked too many tokens; then the next row masks fewer
    missing = 0
    for row, (first_part, end_part) in enumerate(zip(rows, rows[1:])):
        tokens = [cls]
        for begin, end in parts[first_part:end_part]:
            tokens += [*ids[begin:end].tolist(), sep]
        # For each masked token of the row, its entries in columns[2:]
        preds = []
        units = _units(tokens, flags)
        # As for `_take_span`; at first all units are free
        num_free = [_num_adjacent(units, k, max_length)
                    for k in range(len(units))]
        missing += mask_millionths * len(tokens)
        while missing > 0:
            length = 1
            if max_length > 1:      # otherwise the length is not drawn
                # The last entry of length_cdf is left out, as rounding may
                # have made it less than 1
                length = 1 + bisect.bisect_right(length_cdf, rng.random(), 0,
                                                 max_length - 1)
            span = _take_span(units, num_free, length, max_tokens,
                              masking.separate, rng)
            if span is None:
                # No span fits. The next row does not make up for this row
                missing = 0
                break
            begin, end = span
            missing -= MILLION * (end - begin)
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
        # The fields of `MaskedRows` from pred_positions_X on
        for column, values in zip(columns[2:], zip(*sorted(preds))):
            column[row, :len(preds)] = values


def _units(tokens, flags):
    """[(begin, end)] of each word or token of a row that may be masked.

    tokens: the row, a list; flags (V,): as for `_mask_plainly`.
    """
    units = []
    for i, flag in enumerate(flags[tokens].tolist()):
        if flag & draw.FIXED:
            continue
        # A piece that continues a word, but follows a fixed token, begins a
        # unit
        if flag & draw.GOES_ON and units and units[-1][1] == i:
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


def _take_span(units, num_free, drawn_length, max_tokens, separate, rng):
    """Take a random free span of drawn_length units, or of fewer if none fits.

    num_free: for each unit the number of adjacent free units from this unit
    on, at most the maximal length of a span; 0 if the unit itself is not free.
    This function updates the list. Returns the (begin, end) of the span's
    tokens, or None if no span fits.
    """
    for length in range(drawn_length, 0, -1):
        fitting = [k for k in range(len(units)) if num_free[k] >= length
                   and units[k + length - 1][1] - units[k][0] <= max_tokens]
        if fitting:
            break
    else:
        return None
    first = fitting[rng.randrange(len(fitting))]
    last = first + length - 1
    span = units[first][0], units[last][1]
    # Units `first` to `last` will not be free any more: the units of the span
    # and, for separate spans, the units that touch it
    if separate:
        if first > 0 and units[first - 1][1] == units[first][0]:
            first -= 1
        if last + 1 < len(units) and units[last][1] == units[last + 1][0]:
            last += 1
    for k in range(first, last + 1):
        num_free[k] = 0
    for k in range(first):      # free units from k on now end before `first`
        num_free[k] = min(num_free[k], first - k)
    return span


class UnmaskedRows(NamedTuple):
    """Rows without masks: all rows of a chunk of a text, or a batch."""

    tokens_X: Any           # (N, T) int32
    valid_lens_x: Any       # (N,) float32, the number of real tokens


class NoMasks(NamedTuple):
    """Settings to mask no token, with `draw_rows` like `SpanMasking`."""

    def draw_rows(self, text, rows, parts, max_len, rng, mask_share):
        """The `UnmaskedRows` of a text; arguments as for `mask_spans`.

        mask_share is not used.
        """
        unmasked = mask_spans(text, rows, parts, SINGLE_TOKENS, max_len, rng,
                              mask_share=0)
        return UnmaskedRows(unmasked.tokens_X, unmasked.valid_lens_x)


NO_MASKS = NoMasks()


#: The lengths of BART's spans, in words, have a Poisson distribution with this
#: mean. Here longer spans than MAX_LENGTH are never drawn.
MEAN_LENGTH, MAX_LENGTH = 3, 10


def poisson(mean, max_length):
    """Poisson probabilities of lengths 0 to max_length, scaled to sum 1."""
    probs = [mean ** k / math.factorial(k) for k in range(max_length + 1)]
    return tuple(prob / sum(probs) for prob in probs)


#: The probabilities of BART's spans of 0, 1, ... words.
POISSON_PROBS = poisson(MEAN_LENGTH, MAX_LENGTH)

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
        original = mask_spans(text, rows, parts, SINGLE_TOKENS, max_len, rng,
                              mask_share=0)
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
                         original.tokens_X, original.valid_lens_x)

    def _add_noise(self, masked, vocab, noise_rng):
        """Noisy tokens (N, S) and lengths (N,), from `MaskedRows`.

        Only the positions of the masked tokens are used, not the random
        tokens. Each masked token becomes <mask>, or is deleted.
        """
        pad, mask = vocab[vocab.special.pad], vocab[vocab.special.mask]
        tokens, left, is_masked = _restore_tokens(masked)
        N, T = tokens.shape
        positions = onp.broadcast_to(onp.arange(T), (N, T))
        is_first = left + 1 == positions    # True for a span's first token
        kept = positions < masked.valid_lens_x[:, None]
        if 'deletion' in self.kinds:
            kept &= ~is_masked
        elif 'infilling' in self.kinds:
            kept &= ~is_masked | is_first
        tokens = onp.where(is_masked, mask, tokens)
        row, position = onp.nonzero(kept)
        ids = tokens[row, position]
        if 'infilling' in self.kinds:
            num_spans = (is_masked & is_first).sum(axis=1)
            new_row, next_token = _draw_empty_spans(
                num_spans, kept.sum(axis=1), T, noise_rng)
            num_new = len(new_row)
            # The position of each kept token among the kept tokens of its row
            kept_position = onp.cumsum(kept, axis=1)[row, position] - 1
            is_kept = onp.concatenate([onp.ones(len(row)), onp.zeros(num_new)])
            sort_position = onp.concatenate([kept_position, next_token])
            row = onp.concatenate([row, new_row])
            # Sort by row, then by position, a new mask before the kept token
            order = onp.lexsort((is_kept, sort_position, row))
            row = row[order]
            ids = onp.concatenate([ids, onp.full(num_new, mask)])[order]
        lens = onp.bincount(row, minlength=N)
        noisy = onp.full((N, T), pad, 'int32')
        noisy[onp.arange(T) < lens[:, None]] = ids
        return noisy, lens.astype('float32')


def _restore_tokens(masked):
    """(tokens, left, is_masked) of `MaskedRows`, each (N, T).

    tokens: the original tokens. left: for a masked token the position before
    its span, otherwise -2, so that left + 1 is not a position. is_masked: True
    for a masked token.
    """
    tokens = masked.tokens_X.copy()
    left = onp.full(tokens.shape, -2)
    row, k = onp.nonzero(masked.mlm_weights_X)
    position = masked.pred_positions_X[row, k]
    tokens[row, position] = masked.mlm_Y[row, k]
    left[row, position] = masked.left_X[row, k]
    return tokens, left, left != -2


def _draw_empty_spans(num_spans, lens, max_len, noise_rng):
    """Draw insertion points of spans of length 0: (rows, next_tokens).

    Span k is inserted in row rows[k], before token next_tokens[k], which is
    never the first token. num_spans (N,): the number of non-empty spans in
    each row; lens (N,): the number of tokens of each row before the insertion.
    """
    # counts: the number of spans of length 0 in each row. If lengths are drawn
    # until num_spans of them are not 0, the number of zeros has a negative
    # binomial distribution
    counts = onp.zeros(len(num_spans), 'int64')
    has_spans = num_spans > 0
    counts[has_spans] = noise_rng.negative_binomial(num_spans[has_spans],
                                                    1 - POISSON_PROBS[0])
    counts = onp.minimum(counts, max_len - lens)    # the room in each row
    rows = onp.repeat(onp.arange(len(counts)), counts)
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
    # True for a token at which a part or a sentence begins
    is_first = onp.ones(len(part), bool)
    is_first[1:] = (onp.diff(part) != 0) | (onp.diff(sentence) != 0)
    # Sort by a random key for each sentence. Its tokens have equal keys, and
    # lexsort keeps their order
    keys = noise_rng.random_sample(int(is_first.sum()))
    order = onp.lexsort((keys[onp.cumsum(is_first) - 1], part))
    indices = concat_ranges(type_ranges[:, 0], lengths)     # into `types`
    return (NumberedText(types[indices[order]], text.numbers, None, None,
                         text.vocab), onp.stack([ends - lengths, ends], 1))
