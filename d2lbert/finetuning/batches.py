"""Encoded examples, and batches of them, optionally sorted by length.

B examples, T tokens of the longest example.
"""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.texts.examples import derive_seed, pad_rows

#: Maximum numbers of examples and of tokens in a batch for scoring.
TEXTS, TOKENS = 64, 1 << 12


class Inputs(NamedTuple):
    """Encoded examples; each window of a long text is an example."""

    tokens: list        # (T,) int32 each; for C choices (C, T), padded
    segments: list      # the same
    labels: Any         # an array each: (), (T,) or (2,), see `heads`; None
    notes: Any = None   # extra data of the task kind
    choice_lens: Any = None     # for choices: (C,) int32 each

    @property
    def lens(self):
        """The number of tokens of each example, (N,)."""
        return onp.array([one.size for one in self.tokens], dtype='int64')


class Batch(NamedTuple):
    """A padded batch on the host."""

    tokens_X: Any       # (B, T) int32; for choices (B, C, T)
    segments_X: Any     # the same
    valid_lens_x: Any   # (B,) int32; for choices (B, C)
    labels_Y: Any       # (B,), (B, T) or (B, 2)

    @property
    def lens(self):
        """The number of real tokens of each example, (B,)."""
        return self.valid_lens_x


def inputs_of(encoded, labels=None, notes=None):
    """The `Inputs` of tokenizer outputs, with or without labels."""
    return Inputs([onp.array(one.ids, dtype='int32') for one in encoded],
                  [onp.array(one.segments, dtype='int32') for one in encoded],
                  labels, notes)


def choices_of(encoded, count, labels=None):
    """The `Inputs` of examples with `count` consecutive texts each."""
    each = [encoded[k:k + count] for k in range(0, len(encoded), count)]

    def padded(columns):
        found = onp.zeros((count, max(map(len, columns))), 'int32')
        for row, column in zip(found, columns):
            row[:len(column)] = column
        return found
    return Inputs([padded([one.ids for one in some]) for some in each],
                  [padded([one.segments for one in some]) for some in each],
                  labels, None, [onp.array([len(one.ids) for one in some],
                                           'int32') for some in each])


def batch_of(inputs, chosen):
    """The `Batch` of the examples with these indices."""
    if inputs.choice_lens is not None:
        return _batch_of_choices(inputs, chosen)
    lens = onp.array([len(inputs.tokens[k]) for k in chosen], dtype='int32')
    # Padding is never read; token 0 is in every vocabulary
    tokens = pad_rows([inputs.tokens[k] for k in chosen])
    segments = pad_rows([inputs.segments[k] for k in chosen])
    labels = None
    if inputs.labels is not None:
        labels = [inputs.labels[k] for k in chosen]
        if onp.ndim(labels[0]) and len({len(some) for some in labels}) > 1:
            labels = [onp.pad(some, (0, tokens.shape[1] - len(some)),
                              constant_values=-1) for some in labels]
        labels = onp.array(labels)
    return Batch(tokens, segments, lens, labels)


def _batch_of_choices(inputs, chosen):
    T = max(inputs.tokens[k].shape[1] for k in chosen)

    def side_by_side(columns):
        return onp.stack([onp.pad(columns[k], (
            (0, 0), (0, T - columns[k].shape[1]))) for k in chosen])
    return Batch(side_by_side(inputs.tokens), side_by_side(inputs.segments),
                 onp.stack([inputs.choice_lens[k] for k in chosen]),
                 None if inputs.labels is None
                 else onp.array([inputs.labels[k] for k in chosen]))


def epoch_of(lens, batch_size, bucket, *seed):
    """The batches of an epoch, each an array of example indices.

    Every example is in one batch. Examples are shuffled, then sorted by
    length within each group of `bucket` batches, then cut into batches. The
    last batch may be smaller. Finally the batches are shuffled. `seed`
    determines the result.
    """
    rng = onp.random.RandomState(derive_seed('epoch', *seed))
    order = rng.permutation(len(lens))
    batches = []
    for begin in range(0, len(order), bucket * batch_size):
        some = order[begin:begin + bucket * batch_size]
        if bucket > 1:
            some = some[onp.argsort(lens[some], kind='stable')]
        batches += [some[k:k + batch_size]
                    for k in range(0, len(some), batch_size)]
    return [batches[k] for k in rng.permutation(len(batches))]


def to_score(lens):
    """Yield arrays of example indices for scoring, sorted by length."""
    order, begin = onp.argsort(lens, kind='stable'), 0
    while begin < len(order):
        count = onp.searchsorted(
            onp.cumsum(lens[order[begin:begin + TEXTS]]), TOKENS, 'right')
        yield order[begin:begin + max(1, int(count))]
        begin += max(1, int(count))
