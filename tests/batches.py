"""Made-up batches for the tests."""
import numpy as onp

from d2lbert.bert_dataset import Batch


def random_batch(rng, lens, weights, T, V):
    """A `Batch` on the host with these lengths (B,) and weights (B, P)."""
    B, P = weights.shape
    positions = onp.array([rng.choice(n, P, False) for n in lens])
    return Batch(rng.randint(0, V, (B, T)).astype('int32'),
                 rng.randint(0, 2, (B, T)).astype('int32'),
                 lens.astype('float32'),
                 onp.where(weights, positions, 0).astype('int32'),
                 weights.astype('float32'),
                 rng.randint(0, V, (B, P)).astype('int32'),
                 rng.randint(0, 2, B).astype('float32'))
