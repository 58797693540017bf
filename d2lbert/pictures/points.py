"""The vectors of one word in many sentences, as points of a plane."""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.pictures.inside import vectors_by_layer


class SensePoints(NamedTuple):
    """Where a word lies in each of n sentences, by layer."""

    word: str
    points: Any     # (L + 1, n, 2) float64, the embeddings first
    texts: list     # n sentences
    spans: list     # n (begin, end) of the word in its sentence
    senses: Any     # n names, or None where none are known


def sense_points(net, tokenizer, word, sentences, senses=None):
    """The `SensePoints` of a word: of its first use in each sentence.

    The vector of a use is the mean of its pieces'; the two dimensions are
    the principal components of each layer, turned so that a layer looks
    like the one before it. senses: a name for each sentence, or None.
    Sentences without the word are left out. Raises ValueError where fewer
    than three have it.
    """
    sentences = list(sentences)
    encoded = tokenizer.encode_batch(
        sentences, max_len=min(net.encoder.max_len, 128))
    uses = []               # (sentence, tokens, span)
    for k, (sentence, one) in enumerate(zip(sentences, encoded)):
        span = _first_use(word, sentence)
        tokens = [] if span is None else [
            t for t, (begin, end) in enumerate(one.offsets)
            if one.words[t] is not None and begin < span[1]
            and end > span[0]]
        if tokens:
            uses.append((k, tokens, span))
    if len(uses) < 3:
        raise ValueError(f'{word!r} stands in {len(uses)} of the sentences: '
                         'three are the fewest that make a picture')
    layers = []
    for rows in vectors_by_layer(net, [encoded[k] for k, _, _ in uses],
                                 tokenizer.pad_id):
        X = onp.stack([X[tokens].mean(axis=0) for X, (_, tokens, _)
                       in zip(rows, uses)])
        layers.append(_like(_plane(X), layers[-1] if layers else None))
    kept = [k for k, _, _ in uses]
    return SensePoints(word, onp.stack(layers),
                       [sentences[k] for k in kept],
                       [span for _, _, span in uses],
                       senses and [senses[k] for k in kept])


def _first_use(word, sentence):
    """Where a word first stands in a sentence, apart from others, or None."""
    at = -1
    while True:
        at = sentence.lower().find(word.lower(), at + 1)
        if at < 0:
            return None
        end = at + len(word)
        if not (sentence[at - 1:at].isalnum() or sentence[end:end + 1]
                .isalnum()):
            return at, end


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
