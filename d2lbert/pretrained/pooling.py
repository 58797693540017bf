"""One vector of the vectors of a text's tokens (T, H)."""
import math
from typing import NamedTuple, Optional

import numpy as onp


def _weighted(X):
    weights = onp.arange(1, len(X) + 1, dtype=X.dtype)[:, None]
    return (X * weights).sum(axis=0) / weights.sum()


#: What makes one vector of a text's (T, H), by the names that folders of
#: sentence-transformers use.
POOLS = {'cls': lambda X: X[0],
         'mean': lambda X: X.sum(axis=0) / len(X),
         'max': lambda X: X.max(axis=0),
         'mean_sqrt_len_tokens': lambda X: X.sum(axis=0) / len(X) ** 0.5,
         'weightedmean': _weighted,
         'lasttoken': lambda X: X[-1]}


class Pooling(NamedTuple):
    """How a model makes one vector of a text.

    `pretrained.load_pooling` reads one; a tokenizer's `pooling` is what its
    folder says.
    """

    modes: tuple = ('mean',)        # of POOLS; several are joined
    normalize: bool = False         # to a length of 1
    max_len: Optional[int] = None   # tokens of a text, None: not said
    prompt: str = ''                # what stands before each text
    lowercase: bool = False         # before the tokenizer sees it
    refusal: str = ''               # why this is not what the folder says
    files: Optional[dict] = None    # {name: JSON} of the folder that says so

    def __call__(self, X):
        """The vector of a text's X (T, H): (H,) for each of the modes."""
        vectors = [POOLS[mode](X) for mode in self.modes]
        vector = onp.concatenate(vectors) if len(vectors) > 1 else vectors[0]
        if self.normalize:
            exact = vector.astype('float64')
            # One number after another: a dot product's order is the CPU's
            length = math.sqrt((exact * exact).cumsum()[-1])
            vector = exact / max(length, 1e-12)
        return onp.array(vector, dtype='float32')

    def prepared(self, text):
        """The text as the tokenizer takes it."""
        text = self.prompt + text
        return text.lower() if self.lowercase else text


def chosen_pooling(tokenizer, pooling, normalize):
    """A `Pooling` or None, and what prepares a text."""
    own = tokenizer.pooling or Pooling()
    if pooling is None:
        if normalize:
            raise ValueError('normalize=True is for one vector a text, which '
                             'pooling=None does not make')
        return None, own.prepared
    chosen = own
    if pooling == 'own':
        if own.refusal:
            raise ValueError(own.refusal)
    else:
        if pooling not in POOLS:
            raise ValueError(f'pooling must be own, {", ".join(POOLS)} or '
                             f'None, not {pooling!r}')
        chosen = own._replace(modes=(pooling,), normalize=False)
    if normalize is not None:
        chosen = chosen._replace(normalize=normalize)
    return chosen, own.prepared
