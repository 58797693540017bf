"""Predict the likeliest tokens at the masks of a text.

B: texts. T: tokens of a text. M: masks. V: scores for a mask, one for each
token of the vocabulary and perhaps more.
"""
from typing import Any, List, NamedTuple

import numpy as onp

from d2lbert.machine.arguments import check_model, check_sizes
from d2lbert.machine.backend import autograd
from d2lbert.nn import packed
from d2lbert.nn.checks import on_device
from d2lbert.pretrained.encoding import Encoding, Text
from d2lbert.pretrained.tokenizers.encoded import UnknownWords
from d2lbert.pretrained.tokenizers.tokenizer import as_tokenizer


class Guess(NamedTuple):
    """A token and its probability, by a softmax of all scores of the head."""

    token: str
    probability: float


def has_mask_head(net):
    """True if a net has a trained head for masked words.

    The head of a causal net predicts next words instead.
    """
    return (net.mlm is not None and not net.config.get('causal')
            and not net.has_random('mlm'))


def fill_mask(net: Any, tokenizer: Any, text: str, top: int = 5
              ) -> List[List[Guess]]:
    """The `top` likeliest tokens at each mask of a text.

    Returns a list with one list of `Guess` for each mask, the likeliest
    first. Masks are predicted independently of each other. Raises ValueError
    for a text without a mask or with more tokens than the net has positions,
    and for a model without a mask token or a trained head for masked words.
    Words outside the vocabulary cause a warning.
    """
    tokenizer = as_tokenizer(tokenizer)
    check_model(net, tokenizer)
    check_sizes(top=top)
    if tokenizer.mask_id is None:
        raise ValueError('this tokenizer has no mask token, so that no word '
                         'can be masked: load a model with one')
    if not has_mask_head(net):
        reason = ('since it predicts next words' if net.config.get('causal')
                  else 'so its guesses would be random')
        raise ValueError('this model has no trained head for masked words, '
                         f'{reason}: choose a model that was pretrained with '
                         'masked words')
    encoded = tokenizer.encode(text)
    ids = onp.array([encoded.ids], dtype='int32')
    if ids.shape[1] > net.encoder.max_len:
        raise ValueError(f'the text has {ids.shape[1]} tokens, but this '
                         f'model only {net.encoder.max_len} positions: '
                         'shorten it')
    mask_positions, = onp.nonzero(ids[0] == tokenizer.mask_id)
    if not len(mask_positions):
        mask = tokenizer.idx_to_token[tokenizer.mask_id]
        raise ValueError(f'the text has no {mask}: write {mask} where a word '
                         'is to be guessed')
    unknown_words = UnknownWords(tokenizer)
    unknown_words.count(Encoding(Text('text', text), encoded, None))
    unknown_words.warn()
    probabilities = probabilities_at(
        net, ids, segments=onp.zeros_like(ids),
        text_of_mask=onp.zeros_like(mask_positions), positions=mask_positions)
    return likeliest(probabilities, tokenizer, int(top))


def probabilities_at(net, ids, segments, text_of_mask, positions):
    """Probabilities of all tokens at M masks: (M, V) float64.

    ids, segments (B, T) int32: texts of equal length. Mask m is at position
    positions[m] of text text_of_mask[m], both (M,). All arrays are on the
    host.
    """
    with autograd.pause():
        output = packed.encode(net, ids, segments,
                               onp.full(len(ids), ids.shape[1]))
        X = output.X        # (B*T, H)
        rows = on_device(output.begins[text_of_mask] + positions, X.ctx,
                         'int32')
        scores = net.mlm.mlp(X.take(rows, axis=0))      # (M, V)
    scores = scores.asnumpy().astype('float64')
    probabilities = onp.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return probabilities


def likeliest(probabilities, tokenizer, top):
    """The `top` likeliest `Guess`es of each row of probabilities (M, V)."""
    # Columns from len(tokenizer) on belong to no token
    orders = onp.argsort(-probabilities[:, :len(tokenizer)], axis=1,
                         kind='stable')
    return [[Guess(tokenizer.idx_to_token[idx], float(row[idx]))
             for idx in order[:top]]
            for row, order in zip(probabilities, orders)]
