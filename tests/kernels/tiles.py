"""Operators by AMX tiles, emulated, and the same by vectors.

    python tiles.py OUT.npz

computes both in a process whose CXX defines D2LBERT_AMX_EMULATED and whose
D2LBERT_AMX is `require`; test_amx.py compares them. In OUT.npz the arrays
are named case/product/i, with products plain, split (fp32) and tiles (bf16).
"""
import concurrent.futures
import ctypes
import os
import sys

import numpy as onp

from d2lbert import kernels
from d2lbert.kernels import fused, ops, products
from d2lbert.machine.backend import autograd, np, npx

PLAIN, SPLIT, TILES = (products.NAMES.index(name)
                       for name in ('plain', 'split', 'tiles'))
TINY, HUGE = onp.float32(1e-40), onp.finfo('float32').max
#: Rows that tiles cannot compute; each replaces another row
STRANGE = {
    'inf': lambda x: onp.where(onp.arange(x.size) == 2, onp.inf, x),
    'nan': lambda x: onp.where(onp.arange(x.size) == 1, onp.nan, x),
    'denormal': lambda x: x * TINY,
    'one denormal': lambda x: onp.where(onp.arange(x.size) == 3, TINY, 0),
    'a denormal among others': lambda x: onp.where(
        onp.arange(x.size) == 3, TINY, x),
    'the largest': lambda x: onp.where(
        onp.arange(x.size) == 4, HUGE, 0) * onp.sign(x),
    'large': lambda x: x * 1e37,
    'tiny': lambda x: x * 1e-30,
}
R, K, N = 41, 37, 50        # rows, inputs, outputs


def normal(*shape, seed=0):
    return onp.random.RandomState(seed).normal(size=shape).astype('float32')


def with_rows(x, names):
    """x with unusual rows 3, 6, 9, ..."""
    x = x.copy()
    for i, name in enumerate(names):
        x[3 + 3 * i] = STRANGE[name](x[3 + 3 * i]).astype('float32')
    return x


def gradients(function, values, up=None):
    """[value, gradient of each argument] as NumPy arrays."""
    arrays = [np.array(value, dtype=value.dtype) for value in values]
    for x in arrays:
        x.attach_grad()
    with autograd.record():
        y = function(*arrays)
    y.backward(np.array(normal(*y.shape, seed=9) if up is None else up,
                        dtype='float32'))
    return [y.asnumpy()] + [x.grad.asnumpy() for x in arrays]


def ints(values):
    return np.array(onp.asarray(values, 'int32'), dtype='int32')


def cases():
    """{name: function of a precision that gives a list of arrays}."""
    found = {}
    X, W, b = normal(R, K), normal(N, K, seed=1), normal(N, seed=2)

    def dense(X, W, b, act='none', up=None):
        return lambda precision: gradients(
            lambda X, W, b: ops.dense(X, W, b, act=act, precision=precision,
                                      grad_req='write'), [X, W, b], up)
    names = list(STRANGE)
    found['dense'] = dense(X, W, b)
    found['dense rows'] = dense(with_rows(X, names), W, b)
    found['dense gelu'] = dense(X, W, b, 'gelu')
    found['dense gelu rows'] = dense(with_rows(X, names), W, b, 'gelu')
    found['dense up'] = dense(X, W, b, up=with_rows(normal(R, N, seed=9),
                                                    names))
    for name in names:
        found[f'dense row {name}'] = dense(with_rows(X, [name]), W, b)
        found[f'dense weights {name}'] = dense(X, with_rows(W, [name]), b)
    found['dense bias'] = dense(X * TINY, W, b * TINY)
    # By columns, with weights of more than a megabyte
    wide, large = normal(20, 450), normal(600, 450, seed=1) / 20
    for name in ('inf', 'denormal'):
        found[f'dense large {name}'] = dense(
            with_rows(wide, [name]), large, normal(600, seed=2), 'tanh')
    M, H, V = 270, 20, 700
    hidden, words = normal(M, H), normal(V, H, seed=1)
    bias, weights = normal(V, seed=2), normal(M, seed=3)
    labels = ints(onp.random.RandomState(4).randint(0, V, M))

    def vocab(X, W, b, w):
        def function(precision):
            rows = fused.call('vocab_ce', [
                *map(np.array, (X, W, b)), labels, np.array(w)], grad=0,
                precision=precision)[1]
            return [rows.asnumpy()] + gradients(
                lambda X, W, b: ops.vocab_ce(
                    X, W, b, labels, np.array(w), precision=precision,
                    grad_req='write'), [X, W, b])
        return function
    found['vocab'] = vocab(hidden, words, bias, weights)
    finite = ['denormal', 'one denormal', 'tiny']
    found['vocab rows'] = vocab(with_rows(hidden, finite), words, bias,
                                weights)
    # For each thread more words than are packed at a time
    found['vocab many words'] = vocab(hidden, normal(1700, H, seed=1),
                                      normal(1700, seed=2), weights)
    found['vocab large logits'] = vocab(hidden * 60, words, bias, weights)
    for name in ('inf', 'nan', 'the largest'):
        found[f'vocab row {name}'] = vocab(with_rows(hidden, [name]), words,
                                           bias, weights)
    found['vocab weights'] = vocab(hidden, with_rows(words, finite), bias,
                                   weights)
    few = weights.copy()
    few[:4] = TINY, HUGE, 0, 1
    found['vocab counts'] = vocab(hidden, words, bias, few)
    masked = bias.copy()
    masked[::7] = -onp.inf
    found['vocab bias'] = vocab(hidden, words, masked, weights)
    offsets, lens = ints([0, 33, 40, 170]), ints([33, 7, 130])
    rows, heads = 170, 2
    QKV = normal(rows, 60)

    def attention(QKV, up=None):
        return lambda precision: gradients(
            lambda QKV: ops.attention_qkv(QKV, offsets, lens, heads,
                                          precision=precision), [QKV], up)
    found['attention'] = attention(QKV)
    found['attention causal'] = lambda precision: gradients(
        lambda QKV: ops.attention_qkv(QKV, offsets, lens, heads,
                                      precision=precision, causal=True),
        [QKV])
    for name in names:
        strange = QKV.copy()        # in the second sequence's first head
        for column in (0, 20, 40):
            strange[35, column:column + 10] = STRANGE[name](
                strange[35, column:column + 10])
        found[f'attention {name}'] = attention(strange)
        up = normal(rows, 20, seed=9)
        up[35] = STRANGE[name](up[35])
        found[f'attention up {name}'] = attention(QKV, up)
    # The products with the gradients of scores are near the least numbers
    small = QKV * onp.repeat(onp.float32([1, 2. ** -58, 1]), 20)

    def parts(precision):
        y, d_QKV = attention(small, normal(rows, 20, seed=9) * 2. ** -58)(
            precision)
        return [y, *onp.split(d_QKV, 3, axis=1)]
    found['attention small products'] = parts
    for k in (128, 768):
        for kind, spread in (('normal', 0), ('spread', 20)):
            def spread_out(x, seed, spread=spread):
                powers = onp.random.RandomState(seed).uniform(
                    -spread, spread, x.shape)
                return (x * 2 ** powers).astype('float32')
            found[f'accuracy {kind} {k}'] = dense(
                spread_out(normal(96, k), 5),
                spread_out(normal(64, k, seed=1), 6),
                onp.zeros(64, 'float32'),
                up=spread_out(normal(96, 64, seed=9), 7))
    return found


def trials(library):
    """Compute a product in many threads, and in processes that fork."""
    X, W = normal(70, 50), normal(40, 50, seed=1)

    def multiply(_=None):
        Y = onp.zeros((70, 40), 'float32')
        for name in ('tiles', 'split'):
            assert products.time_product(library, name, X, W, Y) < 100
        return Y
    wanted = multiply()
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        threads = list(pool.map(multiply, range(20)))
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, multiply().tobytes())
        os._exit(library.d2lbert_threads_on())
    os.close(write)
    with open(read, 'rb') as pipe:
        forked = onp.frombuffer(pipe.read(), 'float32').reshape(70, 40)
    assert os.waitpid(child, 0)[1] == 0
    return [wanted, forked, *threads]


def main(path):
    npx.set_np()
    assert kernels.load(), kernels.state().reason
    library = kernels.OPERATORS.get()
    assert products.chosen()[:2] == ('split', 'tiles')
    library.d2lbert_dots.restype = ctypes.c_long
    found = {f'threads/both/{i}': Y for i, Y in enumerate(trials(library))}
    before = library.d2lbert_dots()
    for name, function in cases().items():
        for product, precision in (('split', 'fp32'), ('tiles', 'bf16'),
                                   ('plain', 'fp32')):
            for i, x in enumerate(function(precision)
                                  if product != 'plain' else ()):
                found[f'{name}/{product}/{i}'] = x
            if product == 'plain':
                library.d2lbert_choose(PLAIN, PLAIN)
                before = library.d2lbert_dots()
                for i, x in enumerate(function(precision)):
                    found[f'{name}/plain/{i}'] = x
                assert library.d2lbert_dots() == before
                library.d2lbert_choose(SPLIT, TILES)
            else:
                npx.waitall()
                now = library.d2lbert_dots()
                found[f'{name}/{product}/dots'] = onp.array(now - before)
                before = now
    assert library.d2lbert_threads_on() == 0
    onp.savez(path, **found)


if __name__ == '__main__':
    main(*sys.argv[1:])
