"""Oracles of the operators: float64 NumPy, and their definitions."""
import math
from unittest import mock

import numpy

from d2lbert import kernels
from d2lbert.kernels import ops
from d2lbert.machine.backend import autograd, mx, np

erf = numpy.vectorize(math.erf)


class Definitions:
    """The operators by their definitions, without any C++."""

    def __getattr__(self, name):
        def defined(*args, **kwargs):
            with mock.patch.object(kernels, 'enabled', lambda *arrays: False):
                return getattr(ops, name)(*args, **kwargs)
        return defined


plain = Definitions()


def attention(module, Q, K, V, *args, **kwargs):
    """`attention_qkv` of a module for queries, keys and values (R, H)."""
    return module.attention_qkv(np.concatenate([Q, K, V], 1), *args, **kwargs)


def array(values, ctx=None):
    values = numpy.asarray(values)
    return np.array(values, dtype=values.dtype, ctx=ctx or mx.cpu())


def ints(values):
    return array(numpy.asarray(values, dtype='int32'))


def close(got, wanted, tolerance=2e-5):
    """Require equality up to rounding, relative to the largest entry."""
    got = got.asnumpy() if hasattr(got, 'asnumpy') else got
    wanted = numpy.asarray(wanted)
    assert got.shape == wanted.shape
    scale = max(numpy.abs(wanted).max(), 1e-2)
    assert numpy.abs(got - wanted).max() <= tolerance * scale


def check(reference, function, values, tolerance=2e-5):
    """Compare value and gradients of function(*arrays) with float64.

    The oracle of a gradient is the central difference of the float64
    reference along random directions, for one array at a time.
    """
    y, *grads = gradients(function, values)
    rng = numpy.random.RandomState(6)
    upstream = rng.randn(*y.shape).astype('float32')    # as `gradients` has it
    exact = [value.astype('float64') for value in values]
    close(y, reference(*exact), tolerance)
    for i, gradient in enumerate(grads):
        gradient = gradient.astype('float64')
        for _ in range(2):
            direction = rng.randn(*gradient.shape)
            step, ends = 1e-5, []
            for sign in (1, -1):
                moved = list(exact)
                moved[i] = exact[i] + sign * step * direction
                ends.append((upstream * reference(*moved)).sum())
            slope = (ends[0] - ends[1]) / (2 * step)
            size = numpy.linalg.norm(gradient) * 3 + 1e-2
            assert abs((gradient * direction).sum() - slope) <= (
                4 * tolerance * size)


def gradients(function, values):
    arrays = [array(value) for value in values]
    for x in arrays:
        x.attach_grad()
    with autograd.record():
        y = function(*arrays)
    rng = numpy.random.RandomState(6)
    y.backward(array(rng.randn(*y.shape).astype('float32')))
    return [y.asnumpy()] + [x.grad.asnumpy() for x in arrays]


def with_plain(function, values, tolerance=2e-5):
    """Compare an operator with its definition, gradients included."""
    for got, wanted in zip(gradients(function(ops), values),
                           gradients(function(plain), values)):
        close(got, wanted, tolerance)


# float64 references

ACTS = {'none': lambda z: z, 'relu': lambda z: numpy.maximum(z, 0),
        'tanh': numpy.tanh,
        'gelu': lambda z: z * (1 + erf(z / math.sqrt(2))) / 2,
        'gelu_new': lambda z: z / 2 * (1 + numpy.tanh(
            math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))}


def np_norm(X, Y, gamma, beta, eps=1e-5):
    Z = X + Y
    Z = Z - Z.mean(-1, keepdims=True)
    return Z / numpy.sqrt((Z**2).mean(-1, keepdims=True) + eps) * gamma + beta


def np_attention(Q, K, V, offsets, lens, heads, factors=None, causal=False):
    """Attention in float64.

    factors (R, heads, longest): the dropout factors of the weights. causal:
    a query attends to no key after its own position.
    """
    out = numpy.zeros_like(Q)
    size = Q.shape[1] // heads
    for first, last, n in zip(offsets, offsets[1:], lens):
        for h in range(heads if n else 0):
            columns = slice(h * size, (h + 1) * size)
            q = Q[first:last, columns]
            scores = q @ K[first:first + n, columns].T / math.sqrt(size)
            if causal:
                scores[numpy.arange(n) > numpy.arange(len(q))[:, None]] = (
                    -numpy.inf)
            e = numpy.exp(scores - scores.max(1, keepdims=True))
            weights = e / e.sum(1, keepdims=True)
            if factors is not None:
                weights = weights * factors[first:last, h, :n]
            out[first:last, columns] = weights @ V[first:first + n, columns]
    return out
