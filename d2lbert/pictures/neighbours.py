"""The nearest tokens of a sample for each token of a text, by layer."""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.pictures.activations import vectors_by_layer

#: Neighbours that are kept for each token and layer.
TOP = 6

#: Tokens of a sample sentence at most.
LENGTH = 128


class SampleToken(NamedTuple):
    """A token of the sample."""

    sentence: int   # index of its sentence
    begin: int      # its characters there; (0, 0) for special tokens
    end: int


class Neighbours(NamedTuple):
    """The nearest sample tokens of a token in a layer, nearest first."""

    indices: Any    # in the list of `SampleToken`s
    cosines: Any


def neighbours_of(net, tokenizer, texts, sentences, top=TOP):
    """Find the nearest sample tokens of every token of some texts.

    texts: a list of `Encoded`; sentences: the sample, a list of strings.
    Returns (sample tokens, found). found[k][l][t] belongs to token t of text
    k in layer l, 0 for the embeddings. It is a pair of `Neighbours`: among
    all sample tokens, and among occurrences of the same token. The measure
    is the cosine similarity in that layer. A special token is only compared
    to the same special token, all others only to tokens that are not
    special.
    """
    encoded = tokenizer.encode_batch(
        list(sentences), max_len=min(net.encoder.max_len, LENGTH))
    sample_tokens = [SampleToken(s, *span) for s, one in enumerate(encoded)
                     for span in one.offsets]
    ids = onp.concatenate([one.ids for one in encoded])
    special = onp.concatenate([[word is None for word in one.words]
                               for one in encoded])
    first = len(texts)
    found = [[] for _ in texts]
    for rows in vectors_by_layer(net, [*texts, *encoded], tokenizer.pad_id):
        sample = _unit(onp.concatenate(rows[first:]))
        for k, text in enumerate(texts):
            cosines = _unit(rows[k]) @ sample.T         # (T, sample tokens)
            layer = []
            for t, idx in enumerate(text.ids):
                same = ids == idx
                kind = same if text.words[t] is None else ~special
                layer.append((_nearest(cosines[t], kind, top),
                              _nearest(cosines[t], same & kind, top)))
            found[k].append(layer)
    return sample_tokens, found


def _unit(X):
    """The rows of X (n, H), scaled to length one."""
    lengths = onp.sqrt((X * X).sum(axis=1, keepdims=True))
    return X / onp.maximum(lengths, 1e-12)


def _nearest(cosines, allowed, top):
    indices = onp.flatnonzero(allowed)
    allowed_cosines = cosines[indices]
    if len(indices) > top:
        best = onp.argpartition(-allowed_cosines, top - 1)[:top]
        # Of equal cosines the first in the text
        best = best[onp.lexsort((indices[best], -allowed_cosines[best]))]
    else:
        best = onp.lexsort((indices, -allowed_cosines))
    return Neighbours(indices[best].tolist(), allowed_cosines[best].tolist())
