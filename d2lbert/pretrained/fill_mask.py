"""What a net guesses behind the masks of a text: a look inside at once."""
from typing import NamedTuple

import numpy as onp

from d2lbert.machine.arguments import check_model
from d2lbert.machine.backend import autograd
from d2lbert.nn import packed
from d2lbert.nn.checks import on_device


class Guess(NamedTuple):
    """A token and its probability, out of the whole vocabulary."""

    token: str
    probability: float


def has_mask_head(net):
    """True if a net has a head for masked words that is not random.

    The head of a net that reads from left to right predicts next words.
    """
    return (net.mlm is not None and not net.config.get('causal')
            and 'mlm' not in net.random_heads
            and not (net.pretrained is not None
                     and net.pretrained.lacking('mlm')))


def fill_mask(net, tokenizer, text, top=5):
    """The `top` likeliest tokens at each mask of a text.

    Returns a list with one list of `Guess` for each mask, in the order of
    the text, the likeliest first. The masks are guessed at once, each
    without knowing of the others. Raises ValueError for a text without a
    mask, for one of more tokens than the net has positions, and for a net
    without a head for masked words, or with a random one.
    """
    check_model(net, tokenizer)
    if int(top) != top or top < 1:
        raise ValueError('top must be a whole number of at least 1, not '
                         f'{top!r}')
    if tokenizer.mask_id is None:
        raise ValueError('this tokenizer has no mask token: there is nothing '
                         'to fill')
    if not has_mask_head(net):
        raise ValueError('this model has no trained head for masked words, '
                         'so its guesses would be random: take one that was '
                         'pretrained with masked words')
    ids = onp.array([tokenizer.encode(text).ids], dtype='int32')
    if ids.shape[1] > net.encoder.max_len:
        raise ValueError(f'the text has {ids.shape[1]} tokens, and this '
                         f'model only {net.encoder.max_len} positions: cut '
                         'it')
    places, = onp.nonzero(ids[0] == tokenizer.mask_id)
    if not len(places):
        mask = tokenizer.idx_to_token[tokenizer.mask_id]
        raise ValueError(f'the text has no {mask}: write {mask} where a word '
                         'is to be guessed')
    shares = shares_at(net, ids, onp.zeros_like(ids),
                       onp.zeros_like(places), places)
    return likeliest(shares, tokenizer, int(top))


def shares_at(net, ids, segments, rows, places):
    """The share of each token at places in rows of a batch: (M, V) float64.

    ids, segments (B, T) int32 without padding, rows and places (M,), all on
    the host. Those of a row do not depend on what else is in the batch.
    """
    with autograd.pause():
        encoded = packed.encode(net, ids, segments,
                                onp.full(len(ids), ids.shape[1]))
        X = encoded.X
        rows = on_device(encoded.begins[rows] + places, X.ctx, 'int32')
        scores = net.mlm.mlp(X.take(rows, axis=0))      # (M, V)
    scores = scores.asnumpy().astype('float64')
    shares = onp.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def likeliest(shares, tokenizer, top):
    """The `top` best `Guess`es of each row of shares (M, V)."""
    # A net may have more numbers of tokens than there are tokens
    best = onp.argsort(-shares[:, :len(tokenizer)], axis=1, kind='stable')
    return [[Guess(tokenizer.idx_to_token[idx], float(of[idx]))
             for idx in order[:top]]
            for of, order in zip(shares, best)]
