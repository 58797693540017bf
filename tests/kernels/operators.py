"""Run every operator on enough work for a team of threads.

    python operators.py TEAM.so OUT.npz

computes all operators in teams that are smaller than requested. The process
needs OMP_THREAD_LIMIT=`LIMIT` and MXNET_ENGINE_TYPE=NaiveEngine: operators run
in this thread then, whose settings change here. TEAM.so has `received`, the
size of the largest team.
"""
import ctypes
import sys

import numpy as onp

from d2lbert import kernels
from d2lbert.kernels import ops
from d2lbert.machine.backend import autograd, np, npx

LIMIT = 5


def _array(values):
    return np.array(values, dtype=values.dtype)


def _ints(values):
    return _array(onp.asarray(values, dtype='int32'))


def cases(precision='fp32'):
    """{name: (function of the module of operators, arguments)}."""
    rng = onp.random.RandomState(7)

    def draw(*shape):
        return rng.normal(size=shape).astype('float32')

    def dense(act):
        return lambda m: lambda X, W, b: m.dense(X, W, b, act=act,
                                                 precision=precision)
    found = {}
    # By rows, and by columns (weights above a megabyte); with more rows than
    # threads, and with fewer
    for act, R, K, N in (('none', 40, 33, 50), ('tanh', 700, 33, 50),
                         ('relu', 3, 130, 150), ('none', 20, 450, 600),
                         ('gelu', 300, 450, 600), ('tanh', 2, 450, 600),
                         ('gelu_new', 300, 33, 50)):
        found[f'dense {act} {R} x {K} x {N}'] = dense(act), [
            draw(R, K), draw(N, K) / K**0.5, draw(N)]
    found['joined_dense'] = (
        lambda m: lambda X, *W: m.joined_dense(X, W, precision=precision),
        [draw(300, 33), draw(40, 33), draw(60, 33)])
    lens = [30, 7, 23]
    offsets, lens = _ints(onp.cumsum([0] + lens)), _ints(lens)
    found['attention_qkv'] = (
        lambda m: lambda QKV: m.attention_qkv(QKV, offsets, lens, 2,
                                              precision=precision),
        [draw(60, 60)])
    found['attention_qkv causal'] = (
        lambda m: lambda QKV: m.attention_qkv(QKV, offsets, lens, 2,
                                              precision=precision,
                                              causal=True),
        [draw(60, 60)])
    for act, R, H, F in (('relu', 700, 33, 50), ('gelu', 40, 20, 90)):
        found[f'feed_forward {act} {R}'] = (
            lambda m, act=act: lambda X, W1, b1, W2, b2, gamma, beta:
            m.feed_forward(X, (W1, W2), (b1, b2),
                           ops.Norm(gamma, beta, eps=1e-2), act, precision),
            [draw(R, H), draw(F, H) / H**0.5, draw(F), draw(H, F) / F**0.5,
             draw(H), draw(H), draw(H)])
    many = onp.array([30, 7, 23] * 15)
    starts, many = _ints(onp.cumsum([0, *many])), _ints(many)
    # The gradient of the bias of keys is zero, up to rounding
    keys = _array(draw(20))
    for name, ends, each in (('many', starts, many), ('few', offsets, lens)):
        found[f'self_attention {name}'] = (
            lambda m, ends=ends, each=each: lambda X, W, V, U, T, b, c, d, *n:
            m.self_attention(X, (W, V, U, T), (b, keys, c, d),
                             ops.Norm(*n, eps=1e-2), ops.Rows(ends, each), 2,
                             precision=precision),
            [draw(int(ends[-1]), 20),
             *(draw(20, 20) / 20**0.5 for _ in range(4)),
             *(draw(20) for _ in range(5))])
    for M, V in ((300, 3000), (2, 3000), (300, 40)):
        labels = _ints(rng.randint(0, V, M))
        found[f'vocab_ce {M} x {V}'] = (
            lambda m, labels=labels: lambda X, W, b, w: m.vocab_ce(
                X, W, b, labels, w, precision=precision),
            [draw(M, 20), draw(V, 20), draw(V), draw(M)])
    if precision != 'fp32':
        return found
    for R, H in ((100, 70), (3, 2000)):
        found[f'add_norm {R} x {H}'] = lambda m: m.add_norm, [
            draw(R, H), draw(R, H), draw(H), draw(H)]
    found['layer_norm'] = lambda m: m.layer_norm, [
        draw(100, 70), draw(70), draw(70)]
    # Threads divide a long table by rows and a short one by columns. Every
    # row is used, so that an error at a border is seen
    places = [_ints(rng.permutation(3000) % n) for n in (1500, 2, 50)]
    found['embed'] = (
        lambda m: lambda *tables: m.embed(*places, *tables),
        [draw(1500, 21), draw(2, 21), draw(50, 21)])
    lists = [_ints(rng.randint(0, 300, size)) for size in (700, 40)]
    found['take_rows'] = (
        lambda m: lambda X: np.concatenate(m.take_rows(X, *lists)),
        [draw(300, 70)])
    for V in (500, 2):
        labels = _ints(rng.randint(0, V, 70))
        found[f'softmax_ce {V}'] = (
            lambda m, labels=labels: lambda X, w: m.softmax_ce(X, labels, w),
            [draw(70, V), draw(70)])
    taught = np.array(draw(70, 500))
    found['divergence'] = (
        lambda m: lambda X: m.divergence(X, taught, 2.0), [draw(70, 500)])
    return found


def results(module, precision='fp32'):
    """{name: [value, gradient of each argument]} as NumPy arrays."""
    found = {}
    for name, (function, values) in cases(precision).items():
        arrays = [_array(value) for value in values]
        for X in arrays:
            X.attach_grad()
        with autograd.record():
            Y = function(module)(*arrays)
        up = onp.random.RandomState(6).normal(size=Y.shape)
        Y.backward(np.array(up.astype('float32')))
        found[name] = [Y.asnumpy()] + [X.grad.asnumpy() for X in arrays]
    return found


def teams():
    """Change the settings of this thread; yield (name, size of the team)."""
    openmp = ctypes.CDLL('libgomp.so.1')
    yield f'{LIMIT} of {LIMIT}', LIMIT
    openmp.omp_set_num_threads(16)
    yield f'{LIMIT} of 16', LIMIT
    yield f'{LIMIT} of 16, again', LIMIT
    openmp.omp_set_dynamic(1)
    yield 'dynamic', None       # depends on idle CPUs
    openmp.omp_set_max_active_levels(0)
    yield '1 of 16', 1


def main(library, path):
    npx.set_np()
    assert kernels.load(), kernels.state().reason
    received = ctypes.CDLL(library).received
    precisions = ['fp32'] + ['bf16'] * kernels.bf16_supported()
    found = {}
    for team, size in teams():
        assert size in (None, received()), f'{received()} came for {team}'
        for precision in precisions:
            for name, arrays in results(ops, precision).items():
                for i, X in enumerate(arrays):
                    found[f'{team}/{precision}/{name}/{i}'] = X
    onp.savez(path, **found)


if __name__ == '__main__':
    main(*sys.argv[1:])
