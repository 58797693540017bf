"""The vectors of one word in many sentences, as points of a plane."""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.pictures.activations import vectors_by_layer

#: Tokens of a sentence that are looked at, at most.
LENGTH = 128


class SensePoints(NamedTuple):
    """Where a word lies in each of n uses, by layer."""

    word: str
    points: Any     # (L + 1, n, 2) float64, the embeddings first
    uses: list      # n `samples.Use`s


def sense_points(net, tokenizer, word, uses):
    """The `SensePoints` of a word's `samples.Use`s.

    The two dimensions are the principal components of each layer, turned so
    that a layer looks like the one before it. Uses that no token is left of
    are left out. Raises ValueError where fewer than three stay.
    """
    uses, layers = vectors_of(net, tokenizer, uses)
    if len(uses) < 3:
        raise ValueError(f'{word!r} stands in {len(uses)} of the sentences: '
                         'three are the fewest that make a picture')
    found = []
    for X in layers:
        found.append(_like(_plane(X), found[-1] if found else None))
    return SensePoints(word, onp.stack(found), uses)


def vectors_of(net, tokenizer, uses):
    """The vectors of words in sentences, `samples.Use`s, a layer at a time.

    That of a use is the mean of its pieces'. Returns the n uses of which
    there are some (a sentence may be too long), and what yields for each of
    L + 1 layers, the embeddings first, (n, H) float32.
    """
    sentences = list(dict.fromkeys(use.sentence for use in uses))
    encoded = tokenizer.encode_batch(
        sentences, max_len=min(net.encoder.max_len, LENGTH))
    row_of = {sentence: k for k, sentence in enumerate(sentences)}
    kept, places = [], []
    for use in uses:
        one = encoded[row_of[use.sentence]]
        tokens = [t for t, (begin, end) in enumerate(one.offsets)
                  if one.words[t] is not None and begin < use.end
                  and end > use.begin]
        if tokens:
            kept.append(use)
            places.append((row_of[use.sentence], tokens))
    return kept, (
        onp.stack([rows[k][tokens].mean(axis=0) for k, tokens in places])
        for rows in vectors_by_layer(net, encoded, tokenizer.pad_id))


def _plane(X):
    """X (n, H) along its two principal components, (n, 2)."""
    X = X.astype('float64') - X.mean(axis=0)
    U, S, _ = onp.linalg.svd(X, full_matrices=False)
    return (U * S)[:, :2]


def _like(Y, before):
    """Y (n, 2) turned, and mirrored, to be most like the layer before."""
    if before is None:
        return Y
    U, _, V = onp.linalg.svd(Y.T @ before)
    return Y @ U @ V
