"""Many texts to vectors, some of them through the net at a time.

T tokens of a text with <cls> and each <sep>, H hiddens.
"""
from typing import Any, NamedTuple, Optional

import numpy as onp

from d2lbert.bert import get_tokens_and_segments
from d2lbert.machine.backend import autograd, np
from d2lbert.packing import at_real_places

#: Texts, and padded tokens, that go through the net at once.
TEXTS, TOKENS = 64, 1 << 12

#: What makes one vector of a text's (T, H).
POOLS = {'cls': lambda vectors: vectors[0],
         'mean': lambda vectors: vectors.mean(axis=0)}


class Text(NamedTuple):
    """A text on its way through the net, and where it comes from."""

    name: str       # of the argument, or of a line of a file
    tokens_a: list
    tokens_b: Optional[list] = None


class Encoding(NamedTuple):
    """What the net makes of a text."""

    tokens: list        # T of them, with <cls> and <sep>
    vectors: Any        # (T, H) float32, on the host


def encode_texts(net, texts):
    """The `Encoding` of each `Text` of an iterable of lists of them.

    The texts of a list go through the net some at a time, padded to the
    longest; a list of none is passed over.
    """
    for waiting in texts:
        while waiting:
            count, longest = 0, 0
            for text in waiting[:TEXTS]:
                longest = max(longest, _length(net, text))
                if count and (count + 1) * longest > TOKENS:
                    break
                count += 1
            yield from _encode(net, waiting[:count])
            waiting = waiting[count:]


def _length(net, text):
    """The number T of a text's tokens, once it is known to fit."""
    for tokens in text[1:]:
        if tokens == []:
            raise ValueError(f'{text.name} is empty: give at least one word')
    T = len(_inputs(net, text)[0])
    if T > net.encoder.max_len:
        raise ValueError(f'{text.name}: {T} tokens are more than the '
                         f'{net.encoder.max_len} positions of this model: '
                         'cut the text')
    return T


def _inputs(net, text):
    _, _, cls, sep = net.vocab.special
    return get_tokens_and_segments(*text[1:], cls, sep)


def _encode(net, texts):
    inputs = [_inputs(net, text) for text in texts]
    lens = [len(tokens) for tokens, _ in inputs]
    ids = onp.full((len(texts), max(lens)), net.vocab[net.vocab.special.pad],
                   'int32')
    segments = onp.zeros_like(ids)
    for b, (tokens, of_tokens) in enumerate(inputs):
        ids[b, :lens[b]], segments[b, :lens[b]] = net.vocab[tokens], of_tokens
    with autograd.pause():
        encoded, begins, _ = at_real_places(
            net, np.array(ids, dtype='int32'),
            np.array(segments, dtype='int32'),
            np.array(lens, dtype='float32'))
    encoded = encoded.asnumpy()
    for (tokens, _), begin, T in zip(inputs, begins, lens):
        yield Encoding(tokens, encoded[begin:begin + T])
