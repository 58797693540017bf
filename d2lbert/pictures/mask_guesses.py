"""What a model guesses for each token of a text, were it hidden."""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.pretrained.fill_mask import Guess, likeliest, shares_at
from d2lbert.progress import bar

#: Guesses that are kept of each place.
TOP = 10

#: Tokens that go through the net together.
TOKENS = 1 << 13


class Hidden(NamedTuple):
    """A token that was hidden from the model."""

    guesses: Any        # TOP of `Guess`, the likeliest first
    own: Guess          # the token that stands there
    rank: int           # how many tokens come before it, and one


def guesses_of(net, tokenizer, encoded, top=TOP):
    """A `Hidden` for each token of an `Encoded`, None of special ones.

    What `fill_mask` says of the text with that token as its only mask.
    """
    T, vocabulary = len(encoded.ids), len(tokenizer)
    places = [t for t in range(T) if encoded.words[t] is not None]
    found = [None] * T
    step = max(1, TOKENS // T)
    with bar(len(places), 'guessing', 'tokens', quiet=T < 40) as shown:
        for first in range(0, len(places), step):
            some = onp.array(places[first:first + step])
            rows = onp.arange(len(some))
            ids = onp.tile(onp.array(encoded.ids, 'int32'), (len(some), 1))
            ids[rows, some] = tokenizer.mask_id
            segments = onp.tile(onp.array(encoded.segments, 'int32'),
                                (len(some), 1))
            shares = shares_at(net, ids, segments, rows, some)
            own = onp.array(encoded.ids)[some]
            ranks = 1 + (shares[:, :vocabulary] > shares[rows, own][:, None]
                         ).sum(axis=1)
            for k, guesses in enumerate(likeliest(shares, tokenizer, top)):
                found[some[k]] = Hidden(
                    guesses, Guess(tokenizer.idx_to_token[own[k]],
                                   float(shares[k, own[k]])), int(ranks[k]))
            shown.update(len(some))
    return found
