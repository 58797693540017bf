"""Pooling: one vector of a text from its token vectors (T, H)."""
from typing import NamedTuple, Optional

import numpy as onp


def _weighted(X):
    weights = onp.arange(1, len(X) + 1, dtype=X.dtype)[:, None]
    return (X * weights).sum(axis=0) / weights.sum()


#: Functions from (T, H) to (H,), by their names in sentence-transformers. Of
#: a mean, rows are added from first to last, as int8.cc does it.
POOLS = {'cls': lambda X: X[0],
         'mean': lambda X: X.sum(axis=0) / len(X),
         'max': lambda X: X.max(axis=0),
         'mean_sqrt_len_tokens': lambda X: X.sum(axis=0) / len(X) ** 0.5,
         'weightedmean': _weighted,
         'lasttoken': lambda X: X[-1]}


class Pooling(NamedTuple):
    """The settings by which token vectors become one vector of a text.

    `load_pooling` reads them from a folder of sentence-transformers, into
    the attribute `pooling` of its tokenizer.
    """

    modes: tuple = ('mean',)        # names in POOLS; several are joined
    normalize: bool = False         # scale vectors to length 1
    max_len: Optional[int] = None   # most tokens of a text; None: no limit
    prompt: str = ''                # put before each text
    lowercase: bool = False         # lower-case texts before tokenizing
    refusal: str = ''               # why the folder's pooling is unsupported
    files: Optional[dict] = None    # {name: JSON} of the folder

    def __call__(self, X):
        """Pool token vectors X (T, H): (len(modes)*H,) float32."""
        vectors = [POOLS[mode](X) for mode in self.modes]
        return self.scaled(onp.concatenate(vectors)[None])[0]

    def scaled(self, vectors):
        """Pooled vectors (N, H) with lengths of 1 if required, float32."""
        if self.normalize:
            exact = vectors.astype('float64')
            # One number after another: a dot product's order is the CPU's
            squares = (exact * exact).cumsum(axis=1)[:, -1:]
            vectors = exact / onp.maximum(onp.sqrt(squares), 1e-12)
        return onp.array(vectors, dtype='float32')

    def prepared(self, text):
        """The text with its prompt, lower-cased if required."""
        text = self.prompt + text
        return text.lower() if self.lowercase else text


def chosen_pooling(tokenizer, pooling, normalize):
    """The `Pooling` or None, and the function that prepares a text."""
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


def cosines(X, Y):
    """Cosine similarities of vectors X (N, H) and Y (M, H): (N, M) float32.

    A vector of zeros has similarity 0 to all.
    """
    def unit(X):
        X = onp.asarray(X, 'float64')
        lengths = onp.sqrt((X * X).sum(axis=1, keepdims=True))
        return X / onp.where(lengths, lengths, 1)
    return (unit(X) @ unit(Y).T).astype('float32')
