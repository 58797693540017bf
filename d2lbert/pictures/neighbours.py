"""For each token of a text the nearest ones of a sample, layer by layer."""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.pictures.activations import vectors_by_layer

#: Neighbours that are kept of each token and layer.
TOP = 6


class Place(NamedTuple):
    """A token of the sample: its sentence, and where it is there."""

    sentence: int
    begin: int      # in characters; (0, 0) of special tokens
    end: int


class Near(NamedTuple):
    """The nearest places of a token in a layer, nearest first."""

    places: Any     # numbers of `Place`s
    cosines: Any


def neighbours_of(net, tokenizer, texts, sentences, top=TOP):
    """The nearest tokens of the sample to those of texts.

    texts: `Encoded`s; sentences: strings. Returns a list of `Place`s, and
    for each text a list of layers, the embeddings first, each a list of its
    T tokens, each a pair of `Near`: among all tokens of its kind, and among
    those that are the same token. Special tokens are near to the same
    special token alone, all others to all but those. Nearness is the cosine
    of the vectors of that layer.
    """
    room = min(net.encoder.max_len, 128)
    encoded = tokenizer.encode_batch(list(sentences), max_len=room)
    places = [Place(s, *span) for s, one in enumerate(encoded)
              for span in one.offsets]
    ids = onp.concatenate([one.ids for one in encoded])
    special = onp.concatenate([[word is None for word in one.words]
                               for one in encoded])
    first = len(texts)
    found = [[] for _ in texts]
    for rows in vectors_by_layer(net, [*texts, *encoded], tokenizer.pad_id):
        sample = _unit(onp.concatenate(rows[first:]))
        for k, text in enumerate(texts):
            cosines = _unit(rows[k]) @ sample.T         # (T, tokens)
            layer = []
            for t, idx in enumerate(text.ids):
                same = ids == idx
                kind = same if text.words[t] is None else ~special
                layer.append((_nearest(cosines[t], kind, top),
                              _nearest(cosines[t], same & kind, top)))
            found[k].append(layer)
    return places, found


def _unit(X):
    lengths = onp.sqrt((X * X).sum(axis=1, keepdims=True))
    return X / onp.maximum(lengths, 1e-12)


def _nearest(cosines, allowed, top):
    places = onp.flatnonzero(allowed)
    those = cosines[places]
    if len(places) > top:
        best = onp.argpartition(-those, top - 1)[:top]
        # Of equal ones the first in the text
        best = best[onp.lexsort((places[best], -those[best]))]
    else:
        best = onp.lexsort((places, -those))
    return Near(places[best].tolist(), those[best].tolist())
