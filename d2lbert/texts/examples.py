"""This module draws pretraining examples of BERT from a numbered text.

Two sentences make a pair, and some tokens of the pair are masked. Pair i is
row i of each array in a `Batch`; these arrays are called columns. C++ or, if
`kernels.draw.can_draw` returns False, Python draws and masks the pairs. Both
draw the same random numbers, and give the examples of the book's page "The
Dataset for Pretraining BERT".

B: the number of examples of a batch. N: the number of examples of a data set.
T: the number of tokens of a row, max_len. P: the maximal number of masked
tokens of a row, `num_predictions(T, mask_share)`.
"""
import hashlib
import numbers
import random
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.kernels import draw
from d2lbert.text import CLS, SEP


def truncate_pair(first_lens, second_lens, max_tokens, odd_to_first):
    """The lengths of two texts after longest-first truncation.

    The longer text loses tokens until both are equally long. Then both lose
    tokens in turn until they have max_tokens in all. first_lens, second_lens:
    ints, or arrays (N,) for N pairs. If both texts lose tokens and max_tokens
    is odd, one text keeps one token more: the first text if odd_to_first.
    """
    # The lengths if both texts lose tokens
    first_half = max_tokens // 2 + max_tokens % 2 * odd_to_first
    second_half = max_tokens - first_half
    # A text may be longer than its half if the other text is shorter
    return (onp.minimum(first_lens,
                        onp.maximum(first_half, max_tokens - second_lens)),
            onp.minimum(second_lens,
                        onp.maximum(second_half, max_tokens - first_lens)))


def pad_rows(rows, pad_id=0):
    """Pad lists or arrays of ids on the right: (rows, longest row) int32."""
    padded = onp.full((len(rows), max(map(len, rows))), pad_id, 'int32')
    for row, ids in zip(padded, rows):
        row[:len(ids)] = ids
    return padded


def derive_seed(*purpose):
    """A seed of 31 bits, a hash of the arguments."""
    digest = hashlib.blake2b(repr(purpose).encode(), digest_size=4).digest()
    return int.from_bytes(digest, 'little') >> 1


def derive_bytes(*purpose):
    """A seed of 32 bytes, a hash of the arguments."""
    return hashlib.sha256(repr(purpose).encode()).digest()


def derive_shuffler(*purpose):
    """A RandomState seeded by `derive_bytes` of the arguments.

    NumPy promises that a RandomState draws the same numbers in all versions.
    """
    return onp.random.RandomState(
        onp.frombuffer(derive_bytes(*purpose), '<u4').astype('uint32'))


#: The share of a pair's tokens that are masked.
MASK_SHARE = 0.15


class Batch(NamedTuple):
    """The examples of a batch or of a data set (N in place of B)."""

    tokens_X: Any          # (B, T) int32
    segments_X: Any        # (B, T) int32, 0 or 1
    valid_lens_x: Any      # (B,) float32, the number of real tokens
    pred_positions_X: Any  # (B, P) int32, 0 for padding
    mlm_weights_X: Any     # (B, P) float32, 0 keeps padding out of the loss
    mlm_Y: Any             # (B, P) int32, the original tokens
    nsp_y: Any             # (B,) float32, 1 if the second sentence follows


def _check_integer(name, value):
    if not isinstance(value, numbers.Integral):
        raise TypeError(f'{name} must be an integer, not {value!r}')


def check_batch_size(batch_size):
    """Raise ValueError if a batch would have no example."""
    _check_integer('batch_size', batch_size)
    if batch_size < 1:
        raise ValueError(f'batch_size={batch_size}: a batch holds at least '
                         '1 example')


def check_max_len(max_len):
    """Raise ValueError if rows would be too short for two sentences."""
    _check_integer('max_len', max_len)
    if max_len < 5:
        raise ValueError(f'max_len={max_len}: <cls>, a word, <sep>, a word '
                         'and <sep> need at least 5')


def no_pair_message(max_len):
    """The error message for a text of which no pair fits into max_len."""
    return (f'not one pair of sentences fits max_len={max_len} with {CLS} '
            f'and two {SEP}: raise max_len')


def num_predictions(num_tokens, mask_share=MASK_SHARE):
    """The number of tokens to mask among num_tokens, at least 1."""
    return max(1, round(num_tokens * mask_share))


def empty_columns(num_examples, max_len, pad, mask_share=MASK_SHARE):
    """A `Batch` of NumPy arrays, all padding. pad: the id of <pad>."""
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
    """Draw the examples of a `NumberedText`: a `Batch` of NumPy arrays.

    order (paragraphs,) int32: indices of all paragraphs, shuffled as in the
    book. The pairs are drawn from the paragraphs order[first:last]. Each
    sentence except the last of its paragraph makes a pair with the next
    sentence or, in half of the cases, with a random sentence of a random
    paragraph of the whole text. Pairs longer than max_len are dropped.

    rng: `random` or a random.Random. If the arguments after rng have their
    defaults, the final state of rng is the same as after the book's code.
    whole_words: mask all pieces of a word or none. swap: swap the two
    sentences in place of drawing a random sentence, for sentence order
    prediction (Lan et al. 2020, section 3.1).
    """
    draw_pairs = draw.draw_pairs if draw.can_draw(rng) else _draw_pairs
    spans, is_next = draw_pairs(
        order, first, len(order) if last is None else last, text.paragraphs,
        text.sentences, max_len, rng, swap)
    return mask_pairs(text, spans, is_next, max_len, rng, mask_share,
                      whole_words)


def mask_pairs(text, spans, is_next, max_len, rng=random,
               mask_share=MASK_SHARE, whole_words=False):
    """Fill rows with pairs and mask tokens: a `Batch` of NumPy arrays.

    spans (N, 4) int64: the begin and end of the words of the first text, then
    of the second text. With <cls> and two <sep> a pair has at most max_len
    tokens. is_next (N,): 1 or True if the second text follows. The other
    arguments are as for `draw_examples`.
    """
    vocab = text.vocab
    pad, mask, cls, sep = vocab[vocab.special]
    columns = empty_columns(len(spans), max_len, pad, mask_share)
    num_preds = onp.array([num_predictions(n, mask_share)
                           for n in range(max_len + 1)], 'int32')
    types, spans = text.gather(spans)   # the new spans are ranges of `types`
    fill_columns = draw.mask_pairs if draw.can_draw(rng) else _mask_pairs
    fill_columns(spans, types, text.numbers, (pad, mask, cls, sep, len(vocab)),
                 num_preds, columns[:-1], rng, vocab.mask_flags,
                 vocab.replacement_ids, whole_words)
    columns.nsp_y[:] = is_next
    return columns


# `draw.draw_pairs` and `draw.mask_pairs` in Python, with their arguments, for
# random generators that C++ cannot replace, or without a compiler

def _draw_pairs(order, first, last, paragraph_offsets, sentence_offsets,
                max_len, rng, swap):
    spans, is_next = [], []
    for q in order[first:last].tolist():
        for s in range(paragraph_offsets[q], paragraph_offsets[q + 1] - 1):
            a, b = s, s + 1     # the two sentences of the pair
            follows = rng.random() < 0.5
            if not follows and swap:
                a, b = b, a
            elif not follows:
                b = _random_sentence(order, paragraph_offsets, rng)
            span = [int(sentence_offsets[k]) for k in (a, a + 1, b, b + 1)]
            begin_a, end_a, begin_b, end_b = span
            # The words of both sentences, and 3 for <cls> and two <sep>
            if end_a - begin_a + end_b - begin_b + 3 <= max_len:
                spans.append(span)
                is_next.append(follows)
    return (onp.array(spans, 'int64').reshape(-1, 4),
            onp.array(is_next, 'uint8'))


def _random_sentence(order, paragraph_offsets, rng):
    # Draws the same numbers as the page's rng.choice(rng.choice(paragraphs))
    q = order[rng.choice(range(len(order)))]
    return rng.choice(range(paragraph_offsets[q], paragraph_offsets[q + 1]))


def _mask_pairs(pair_spans, word_types, type_ids, specials, num_preds,
                columns, rng, flags, replacements, whole_words):
    _, mask, cls, sep, vocab_size = specials
    if flags is None:
        flags = onp.zeros(vocab_size, 'uint8')
        flags[[cls, sep]] = draw.FIXED
    replacements = (range(vocab_size) if replacements is None
                    else replacements.tolist())
    (tokens_X, segments_X, valid_lens_x, pred_positions_X, mlm_weights_X,
     mlm_Y) = columns
    for row, (begin_a, end_a, begin_b, end_b) in enumerate(
            pair_spans.tolist()):
        tokens = [cls, *type_ids[word_types[begin_a:end_a]].tolist(), sep,
                  *type_ids[word_types[begin_b:end_b]].tolist(), sep]
        length = len(tokens)
        # The first segment has <cls>, the first text and a <sep>
        segments_X[row, 2 + end_a - begin_a:length] = 1
        valid_lens_x[row] = length
        positions = _draw_positions(flags[tokens].tolist(), num_preds[length],
                                    whole_words, rng)
        # {masked position: original token}
        labels = dict(sorted((k, tokens[k]) for k in positions))
        # 80% become <mask>, 10% a random token, and 10% stay as they are
        for k in positions:
            if rng.random() < 0.8:
                tokens[k] = mask
            elif rng.random() >= 0.5:
                tokens[k] = rng.choice(replacements)
        tokens_X[row, :length] = tokens
        pred_positions_X[row, :len(labels)] = list(labels)
        mlm_weights_X[row, :len(labels)] = 1
        mlm_Y[row, :len(labels)] = list(labels.values())


def _draw_positions(token_flags, max_positions, whole_words, rng):
    """Draw at most max_positions positions of a row to mask: a list.

    token_flags: draw.FIXED and draw.GOES_ON of each token. whole_words: draw
    words, and mask all their pieces. A word with more pieces than may still be
    masked is skipped, and the next word is tried, as in the published BERT.
    """
    # The positions of each word's tokens; without whole_words, each token
    # counts as a word
    words = []
    for k, flag in enumerate(token_flags):
        if flag & draw.FIXED:
            continue
        follows_word = words and words[-1][-1] == k - 1
        if whole_words and flag & draw.GOES_ON and follows_word:
            words[-1].append(k)
        else:
            words.append([k])
    rng.shuffle(words)
    positions = []
    for word in words:
        if len(positions) + len(word) <= max_positions:
            positions += word
    return positions
