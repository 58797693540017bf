"""Words hidden in rows of one text: one by one, or in spans.

N rows, T tokens (max_len), P predictions, V vocabulary.
"""
import bisect
import itertools
import random
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.bert_dataset import MASK_SHARE
from d2lbert.kernels import draw

# Where words come in pieces, a span has so many tokens more than words, at
# most; words of more pieces than that are never hidden
MORE_PIECES = 20

# Shares are counted in millionths: sums of whole numbers are exact
MILLION = 10 ** 6


class Masked(NamedTuple):
    """What one step needs of rows of one text (N of them, or B in a batch).
    """

    tokens_X: Any          # (N, T) int32
    valid_lens_x: Any      # (N,) float32, how many of T are no padding
    pred_positions_X: Any  # (N, P) int32, 0 pads
    mlm_weights_X: Any     # (N, P) float32, 0 keeps padding out of the loss
    mlm_Y: Any             # (N, P) int32, the words that were there
    left_X: Any            # (N, P) int32, the place before each one's span
    right_X: Any           # (N, P) int32, the place behind it


class Spans(NamedTuple):
    """What is hidden together, and replaced together."""

    law: tuple              # the share of spans of 1, 2, ... words
    apart: bool             # whether something must stay between two spans
    whole: bool             # whether what is counted are words, not tokens

    def most(self, vocab):
        """How many tokens a span can have."""
        pieces = self.whole and vocab.begins_word is not None
        return len(self.law) + MORE_PIECES * pieces

    def kinds(self, vocab):
        """What each token of a `Vocab` is, as `draw.masks` takes it: (V,).
        """
        kinds = vocab.kinds
        if kinds is None:       # words, of which <cls> may be one
            kinds = onp.zeros(len(vocab), 'uint8')
            kinds[vocab[vocab.special]] = draw.FIXED
        return kinds if self.whole else kinds & draw.FIXED

    def drawn(self, corpus, rows, parts, max_len, rng, mask_share):
        """Rows of parts of a text with words hidden: `hide_spans`."""
        return hide_spans(corpus, rows, parts, self, max_len, rng,
                          mask_share)


def geometric(p, longest):
    """The geometric law cut at `longest`, and scaled to sum to 1: a tuple."""
    law = [p * (1 - p) ** k for k in range(longest)]
    return tuple(share / sum(law) for share in law)


#: Each token by itself, as in BERT and RoBERTa; or all pieces of a word.
TOKENS = Spans((1.0,), apart=False, whole=False)
WORDS = Spans((1.0,), apart=False, whole=True)

#: SpanBERT's (Joshi et al. 2020, section 3.1): 3.8 words in the mean.
SPANS = Spans(geometric(0.2, 10), apart=True, whole=True)


def hide_spans(corpus, rows, parts, spans, max_len, rng=random,
               mask_share=MASK_SHARE):
    """Rows of parts of a text with some of their words hidden: `Masked`.

    rows, parts: as `sentences.full_sentences` gives them; spans: a `Spans`.

    mask_share of all tokens are hidden, in spans of tokens or of whole
    words: the length of each is drawn by its law, then its place, among all
    where so many in a row are neither hidden nor special (where there is
    none, for one less). Of the spans, 80 % become <mask>, 10 % random
    tokens, and 10 % stay. No span is cut to come out even: what a row hides
    beyond its share is owed to the next one, so that lengths obey the law.
    """
    vocab, share = corpus.vocab, round(mask_share * MILLION)
    special, kinds = vocab[vocab.special], spans.kinds(vocab)
    choices = vocab.replacement_ids
    if choices is None:
        choices = onp.arange(len(vocab), dtype='int32')
    columns = _empty_columns(len(rows) - 1, max_len, share,
                             spans.most(vocab), special[0])
    types, parts = corpus.gathered(parts)
    if not draw.can_draw(rng):
        _hide(columns, rows.tolist(), parts.tolist(), corpus.numbers[types],
              special, kinds, choices.tolist(), spans, spans.most(vocab),
              share, rng)
        return columns
    draw.spans(rows, parts, types, corpus.numbers, (*special, len(vocab)),
               kinds, choices, list(itertools.accumulate(spans.law)),
               spans.most(vocab), spans.apart, share, columns, rng)
    return columns


def _empty_columns(num_rows, max_len, share, most, pad):
    # A row begins another span while its share is not reached
    num_preds = min(max_len - 2, -(-share * max_len // MILLION) - 1 + most)
    shape_P = num_rows, num_preds
    return Masked(onp.full((num_rows, max_len), pad, 'int32'),
                  onp.zeros(num_rows, 'float32'), onp.zeros(shape_P, 'int32'),
                  onp.zeros(shape_P, 'float32'),
                  *(onp.zeros(shape_P, 'int32') for _ in range(3)))


# The twin of spans.cc

def _hide(columns, rows, parts, ids, special, kinds, choices, spans, most,
          share, rng):
    """Fill the columns; ids: the numbers of the words in `parts`."""
    _, mask, cls, sep = special
    law, owed = list(itertools.accumulate(spans.law)), 0
    for row, (first, last) in enumerate(zip(rows, rows[1:])):
        tokens = [cls]
        for begin, end in parts[first:last]:
            tokens += [*ids[begin:end].tolist(), sep]
        units, preds = _units(tokens, kinds), []
        free = [_run(units, k, len(law)) for k in range(len(units))]
        owed += share * len(tokens)
        while owed > 0:
            wanted = 1
            if len(law) > 1:
                wanted = 1 + bisect.bisect_right(law, rng.random(), 0,
                                                 len(law) - 1)
            span = _take(units, free, wanted, most, spans.apart, rng)
            if span is None:
                owed = 0
                break
            begin, end = span
            owed -= MILLION * (end - begin)
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


def _units(tokens, kinds):
    """Where words begin and end in a row, a list of pairs."""
    units = []
    for i, kind in enumerate(kinds[tokens].tolist()):
        if kind & draw.FIXED:
            continue
        if kind & draw.GOES_ON and units and units[-1][1] == i:
            units[-1] = units[-1][0], i + 1
        else:
            units.append((i, i + 1))
    return units


def _run(units, k, longest):
    """How many words from k on stand next to each other, at most longest."""
    count = 1
    while (count < longest and k + count < len(units)
           and units[k + count - 1][1] == units[k + count][0]):
        count += 1
    return count


def _take(units, free, wanted, most, apart, rng):
    """A random span of `wanted` words, or of as many as there are; or None.
    """
    for length in range(wanted, 0, -1):
        fitting = [k for k in range(len(units)) if free[k] >= length
                   and units[k + length - 1][1] - units[k][0] <= most]
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
