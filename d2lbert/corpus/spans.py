"""Rows of one text with masked tokens: single ones, words, or spans.

N rows, T tokens (max_len), P predictions, V vocabulary.
"""
import bisect
import itertools
import random
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.kernels import draw
from d2lbert.texts.examples import MASK_SHARE

# In a text of word pieces a span has at most this many tokens more than
# words; words of more pieces are never masked
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
        if flags is None:       # a text of words may contain <cls>
            flags = onp.zeros(len(vocab), 'uint8')
            flags[vocab[vocab.special]] = draw.FIXED
        return flags if self.whole_words else flags & draw.FIXED

    def drawn(self, corpus, rows, parts, max_len, rng, mask_share):
        """`mask_spans` with this masking."""
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
    # The last span of a row may begin just below the share
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
    longest, missing = len(cumulative), 0       # millionths of a token
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
    if apart:
        first -= first > 0 and units[first - 1][1] == units[first][0]
        last += (last + 1 < len(units)
                 and units[last][1] == units[last + 1][0])
    for k in range(first, last + 1):
        free[k] = 0
    for k in range(first):
        free[k] = min(free[k], first - k)
    return span
