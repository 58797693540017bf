"""Pretraining examples of BERT, drawn from a numbered text as columns.

Two sentences make a pair, some of its tokens are masked, and the examples
are rows of NumPy arrays. C++ draws them where it is compiled; the functions
`_draw_pairs` and `_mask_plainly` do the same from the same random numbers.
Both give the examples of the book's page "The Dataset for Pretraining BERT".

Seeds are hashes of what they are for, and do not depend on earlier draws.

B batch, N examples, T tokens (max_len), P predictions (15% of T).
"""
import hashlib
import random
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.kernels import draw
from d2lbert.text import CLS, SEP


def truncate_pair(first_lens, second_lens, room, odd_to_first):
    """Lengths of two texts after longest-first truncation.

    The longer text loses tokens until both are equally long, then both lose
    in turn until `room` tokens are left. odd_to_first: True if the first
    text keeps the odd token where both were truncated. Takes two ints, or two
    arrays (N,), and returns two of the same kind.
    """
    half = room // 2 + room % 2 * odd_to_first
    return (onp.minimum(first_lens, onp.maximum(half, room - second_lens)),
            onp.minimum(second_lens, onp.maximum(room - half,
                                                 room - first_lens)))


def pad_rows(rows, pad_id=0):
    """Token ids as rows, padded on the right: (N, T) int32.

    rows: N lists or arrays of ids; T is the length of the longest.
    """
    padded = onp.full((len(rows), max(map(len, rows))), pad_id, 'int32')
    for row, ids in zip(padded, rows):
        row[:len(ids)] = ids
    return padded


def derive_seed(*what):
    """A seed of 31 bits, a hash of the arguments."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=4).digest()
    return int.from_bytes(digest, 'little') >> 1


def derive_bits(*what):
    """32 random bytes, a hash of the arguments."""
    return hashlib.sha256(repr(what).encode()).digest()


def derive_shuffler(*what):
    """A RandomState seeded by 256 bits, a hash of the arguments.

    NumPy promises never to change the numbers of this generator.
    """
    return onp.random.RandomState(
        onp.frombuffer(derive_bits(*what), '<u4').astype('uint32'))


#: The share of a pair's tokens that are masked.
MASK_SHARE = 0.15


class Batch(NamedTuple):
    """The fields of a training step, or the columns of a data set (B = N)."""

    tokens_X: Any          # (B, T) int32
    segments_X: Any        # (B, T) int32, 0 or 1
    valid_lens_x: Any      # (B,) float32, the number of real tokens
    pred_positions_X: Any  # (B, P) int32, 0 pads
    mlm_weights_X: Any     # (B, P) float32, 0 keeps padding out of the loss
    mlm_Y: Any             # (B, P) int32, the original tokens
    nsp_y: Any             # (B,) float32, 1 if the second sentence follows


def check_batch_size(batch_size):
    """Raise ValueError for a batch without an example."""
    if batch_size < 1:
        raise ValueError(f'batch_size={batch_size}: a batch holds at least '
                         '1 example')


def check_max_len(max_len):
    """Raise ValueError for rows that are too short for two sentences."""
    if max_len < 5:
        raise ValueError(f'max_len={max_len}: <cls>, a word, <sep>, a word '
                         'and <sep> need at least 5')


def no_pair_message(max_len):
    """The error message for a text that gives no example."""
    return (f'not one pair of sentences fits max_len={max_len} with {CLS} '
            f'and two {SEP}: raise max_len')


def num_predictions(num_tokens, mask_share=MASK_SHARE):
    """The number of tokens to mask; a half is rounded to even."""
    return max(1, round(num_tokens * mask_share))


def empty_columns(num_examples, max_len, pad, mask_share=MASK_SHARE):
    """Columns of padding, a `Batch` of NumPy arrays; pad: a token number."""
    shape_T = num_examples, max_len
    shape_P = num_examples, num_predictions(max_len, mask_share)
    return Batch(onp.full(shape_T, pad, 'int32'),
                 onp.zeros(shape_T, 'int32'),
                 onp.zeros(num_examples, 'float32'),
                 onp.zeros(shape_P, 'int32'),
                 onp.zeros(shape_P, 'float32'),
                 onp.zeros(shape_P, 'int32'),
                 onp.zeros(num_examples, 'float32'))


def draw_examples(text, order, max_len, rng=random, mask_share=MASK_SHARE,
                  first=0, last=None, whole_words=False, swap=False):
    """The examples of a `NumberedText`: a `Batch` of NumPy columns.

    order (paragraphs,) int32: the paragraphs, shuffled as in the book. Each
    sentence of the paragraphs order[first:last] makes a pair with the next
    one, or with a random sentence of the whole text. Pairs longer than
    max_len are dropped.

    rng: `random` or a random.Random; it ends in the state in which the
    book's code leaves it. whole_words: mask all pieces of a word or none.
    swap: swap the two sentences in place of drawing a random one. This is
    sentence order prediction, Lan et al. 2020, section 3.1.
    """
    draw_pairs = draw.pairs if draw.can_draw(rng) else _draw_pairs
    spans, is_next = draw_pairs(
        order, first, len(order) if last is None else last, text.paragraphs,
        text.sentences, max_len, rng, swap)
    return mask_pairs(text, spans, is_next, max_len, rng, mask_share,
                      whole_words)


def mask_pairs(text, spans, is_next, max_len, rng=random,
               mask_share=MASK_SHARE, whole_words=False):
    """Mask tokens of pairs; the rest as for `draw_examples`.

    spans (N, 4) int64: the begin and end of the first text's words, then of
    the second's. With <cls> and two <sep> a pair has at most max_len tokens.
    is_next (N,).
    """
    vocab = text.vocab
    pad, mask, cls, sep = vocab[vocab.special]
    columns = empty_columns(len(spans), max_len, pad, mask_share)
    num_preds = onp.array([num_predictions(n, mask_share)
                           for n in range(max_len + 1)], 'int32')
    types, spans = text.gathered(spans)
    arguments = (spans, types, text.numbers,
                 (pad, mask, cls, sep, len(vocab)), num_preds, columns[:6],
                 rng, vocab.mask_flags, vocab.replacement_ids, whole_words)
    (draw.masks if draw.can_draw(rng) else _mask_plainly)(*arguments)
    columns.nsp_y[:] = is_next
    return columns


# In plain Python, for other generators, and without a compiler

def _draw_pairs(order, first, last, paragraphs, sentences, max_len, rng,
                swap):
    """`draw.pairs` in Python."""
    spans, is_next = [], []
    for q in order[first:last].tolist():
        for s in range(paragraphs[q], paragraphs[q + 1] - 1):
            pair = s, s + 1
            follows = rng.random() < 0.5
            if not follows:
                pair = (s + 1, s) if swap else (s, _random_sentence(
                    order, paragraphs, rng))
            span = [int(sentences[k + end]) for k in pair for end in (0, 1)]
            # <cls> and two <sep> need room, too
            if span[1] - span[0] + span[3] - span[2] + 3 <= max_len:
                spans.append(span)
                is_next.append(follows)
    return (onp.array(spans, 'int64').reshape(-1, 4),
            onp.array(is_next, 'uint8'))


def _random_sentence(order, paragraphs, rng):
    # Draws as the page's rng.choice(rng.choice(paragraphs)) does
    q = order[rng.choice(range(len(order)))]
    return rng.choice(range(paragraphs[q], paragraphs[q + 1]))


def _mask_plainly(spans, types, numbers, specials, num_preds, columns, rng,
                  flags, choices, whole_words):
    """`draw.masks` in Python."""
    _, mask, cls, sep, vocab_size = specials
    if flags is None:
        flags = onp.zeros(vocab_size, 'uint8')
        flags[[cls, sep]] = draw.FIXED
    choices = range(vocab_size) if choices is None else choices.tolist()
    (tokens_X, segments_X, valid_lens_x, pred_positions_X, mlm_weights_X,
     mlm_Y) = columns
    for row, (begin_a, end_a, begin_b, end_b) in enumerate(spans.tolist()):
        tokens = [cls, *numbers[types[begin_a:end_a]].tolist(), sep,
                  *numbers[types[begin_b:end_b]].tolist(), sep]
        count = len(tokens)
        segments_X[row, 2 + end_a - begin_a:count] = 1
        valid_lens_x[row] = count
        positions = _positions_to_mask(flags[tokens].tolist(),
                                       num_preds[count], whole_words, rng)
        labels = dict(sorted((k, tokens[k]) for k in positions))
        for k in positions:
            if rng.random() < 0.8:
                tokens[k] = mask
            elif rng.random() >= 0.5:
                tokens[k] = rng.choice(choices)
        tokens_X[row, :count] = tokens
        pred_positions_X[row, :len(labels)] = list(labels)
        mlm_weights_X[row, :len(labels)] = 1
        mlm_Y[row, :len(labels)] = list(labels.values())


def _positions_to_mask(flags, num_preds, whole_words, rng):
    """At most num_preds random positions of a row that may be masked.

    flags: for each token 0, draw.FIXED or draw.GOES_ON. whole_words: choose
    all pieces of random words. A word with more pieces than may still be
    masked is skipped, and the next one is tried, as in the published BERT.
    """
    words = []
    for k, flag in enumerate(flags):
        if flag & draw.FIXED:
            continue
        if (whole_words and flag & draw.GOES_ON and words
                and words[-1][-1] == k - 1):
            words[-1].append(k)
        else:
            words.append([k])
    rng.shuffle(words)
    positions = []
    for word in words:
        if len(positions) + len(word) <= num_preds:
            positions += word
    return positions
