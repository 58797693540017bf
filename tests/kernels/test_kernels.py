"""The operators in C++ against float64 NumPy."""

import itertools
import math
import os
import pathlib
import platform
import subprocess
import sys
import textwrap

import numpy
import operators
import pytest
from oracles import (
    ACTS,
    array,
    attention,
    check,
    close,
    gradients,
    ints,
    np_attention,
    np_norm,
    plain,
    with_plain,
)

from d2lbert import kernels
from d2lbert.kernels import build, ops
from d2lbert.kernels.fused import _guarded, call
from d2lbert.machine import hardware
from d2lbert.machine.backend import autograd, gluon, mx, np


def np_ce(logits, labels):
    top = logits.max(1, keepdims=True)
    sums = numpy.log(numpy.exp(logits - top).sum(1)) + top[:, 0]
    return sums - logits[numpy.arange(len(labels)), labels]


# values and gradients

DENSE = [(1, 1, 1), (1, 40, 3), (30, 1, 17), (37, 19, 23), (130, 128, 96),
         (57, 300, 1000), (300, 33, 70), (240, 520, 510)]


@pytest.mark.parametrize('act', ACTS)
@pytest.mark.parametrize('R, K, N', DENSE)
def test_dense_is_the_float64_product(fused, draw, R, K, N, act):
    values = [draw(R, K), draw(N, K) / math.sqrt(K), draw(N)]
    if act == 'relu':  # a difference across the kink is no gradient
        with_plain(lambda m: lambda X, W, b: m.dense(X, W, b, act=act),
                   values)
    else:
        check(lambda X, W, b: ACTS[act](X @ W.T + b),
              lambda X, W, b: fused.dense(X, W, b, act=act), values)


@pytest.mark.parametrize('act', ['none', 'tanh'])
@pytest.mark.parametrize('K', [2100, 3072])
def test_long_sums_of_dense_are_the_float64_product(fused, draw, K, act):
    # More rows, and longer ones, than are summed at a time; of 3072 numbers,
    # they are copied before they are read
    N = 130
    check(lambda X, W, b: ACTS[act](X @ W.T + b),
          lambda X, W, b: fused.dense(X, W, b, act=act),
          [draw(1050, K), draw(N, K) / math.sqrt(K), draw(N)])


def same_bits(got, wanted):
    numpy.testing.assert_array_equal(got.asnumpy().view('int32'),
                                     wanted.view('int32'))


@pytest.mark.parametrize('act', ['none', 'tanh', 'gelu', 'gelu_new'])
@pytest.mark.parametrize('K, N', [(40, 1), (40, 17), (33, 70), (64, 96),
                                  (2100, 35)])
def test_a_row_of_dense_does_not_depend_on_their_number(fused, draw, K, N,
                                                        act):
    # All heights of a tile, and all widths of its last vector: a machine
    # that multiplies and adds at once has to do so in each
    X, W, b = draw(75, K), array(draw(N, K)), array(draw(N))
    for precision in ['fp32'] + ['bf16'] * kernels.bf16_supported():
        def rows(first, last, precision=precision):
            return fused.dense(array(X[first:last]), W, b, act=act,
                               precision=precision)
        every = rows(0, 75).asnumpy()
        for m in range(1, 31):
            same_bits(rows(0, m), every[:m])
            same_bits(rows(75 - m, 75), every[75 - m:])


@pytest.mark.parametrize('H', [16, 21, 70])
def test_a_row_of_add_norm_does_not_depend_on_their_number(fused, draw, H):
    X, Y, gamma, beta = draw(90, H), draw(90, H), draw(H), draw(H)
    every = fused.add_norm(*map(array, (X, Y, gamma, beta))).asnumpy()
    for m in (1, 2, 7, 50):
        same_bits(fused.add_norm(array(X[-m:]), array(Y[-m:]), array(gamma),
                                 array(beta)), every[-m:])


@pytest.mark.parametrize('H', [6, 20, 64])
def test_a_sequence_of_attention_does_not_depend_on_others(fused, draw, H):
    lens = numpy.random.RandomState(1).permutation(40) + 1
    offsets = numpy.cumsum([0, *lens])
    QKV = draw(offsets[-1], 3 * H)
    for precision in ['fp32'] + ['bf16'] * kernels.bf16_supported():
        def attend(first, last, ends, precision=precision):
            lens = numpy.diff(ends)
            return fused.attention_qkv(array(QKV[first:last]), ints(ends),
                                       ints(lens), 2, precision=precision)
        every = attend(0, offsets[-1], offsets).asnumpy()
        for first, last in zip(offsets, offsets[1:]):
            same_bits(attend(first, last, [0, last - first]),
                      every[first:last])


def test_dense_takes_more_axes_and_no_bias(fused, draw):
    check(lambda X, W: X @ W.T, lambda X, W: fused.dense(X, W),
          [draw(2, 3, 5), draw(7, 5)])


@pytest.mark.parametrize('act', ['none', 'gelu'])
@pytest.mark.parametrize('R, K, N', [(70, 33, 50), (40, 600, 450)])
def test_frozen_weights_change_no_other_gradient(fused, draw, R, K, N, act):
    up, values = array(draw(R, N)), [draw(R, K), draw(N, K), draw(N)]
    found = []
    for frozen in (False, True):
        X, W, b = map(array, values)
        for learnt in (X, b) if frozen else (X, W, b):
            learnt.attach_grad()
        with autograd.record():
            Y = fused.dense(X, W, b, act=act, grad_req=(
                'null' if frozen else 'write', 'write'))
        Y.backward(up)
        found.append((X.grad.asnumpy(), b.grad.asnumpy()))
    for learnt, frozen in zip(*found):
        numpy.testing.assert_array_equal(frozen, learnt)
        assert frozen.any()


def test_frozen_weights_with_a_gradient_array_get_their_gradient(fused, draw):
    X, W, up = draw(9, 5), array(draw(7, 5)), draw(9, 7)
    W.attach_grad()
    with autograd.record():
        Y = fused.dense(array(X), W, grad_req='null')
    Y.backward(array(up))
    close(W.grad, up.T @ X)


def test_sources_of_frozen_weights_get_zero_gradients(fused, draw):
    # They are not computed, but never uninitialized memory
    X, *sources = map(array, [draw(9, 5), draw(7, 5), draw(4, 5)])
    for source in (X, *sources):
        source.attach_grad()
    for apply in (lambda W, V: fused.dense(X, W, grad_req='null'),
                  lambda W, V: fused.joined_dense(X, (W, V),
                                                  grad_req='null')):
        with autograd.record():
            Y = apply(*(source * 2 for source in sources))
        Y.backward()
        assert X.grad.asnumpy().any()
        assert not any(source.grad.asnumpy().any() for source in sources)


def test_joined_weights_are_frozen_where_all_are(fused, draw):
    parts = [draw(7, 5), draw(4, 5)]
    for requests in itertools.product(['null', 'write'], repeat=2):
        X, *weights = map(array, [draw(9, 5), *parts])
        for weight, request in zip(weights, requests):
            if request == 'write':
                weight.attach_grad()
        X.attach_grad()
        with autograd.record():
            Y = fused.joined_dense(X, weights, grad_req=requests)
        up = draw(*Y.shape)
        Y.backward(array(up))
        numpy.testing.assert_allclose(
            X.grad.asnumpy(), up @ numpy.concatenate(parts), atol=1e-5)
        for weight, begin in zip(weights, (0, 7)):
            if weight.grad is not None:
                wanted = up.T[begin:begin + len(weight)] @ X.asnumpy()
                numpy.testing.assert_allclose(weight.grad.asnumpy(), wanted,
                                              atol=1e-5)


def test_every_activation_is_accurate_over_its_range(fused):
    z = numpy.concatenate([numpy.linspace(-30, 30, 4001),
                           numpy.linspace(-1e-3, 1e-3, 101)])
    X = array(z[:, None].astype('float32'))
    exact = X.asnumpy().astype('float64')
    for act in ('tanh', 'gelu', 'gelu_new'):
        got = fused.dense(X, np.ones((1, 1)), act=act).asnumpy()
        wanted = ACTS[act](exact)
        assert numpy.abs(got - wanted).max() < 2e-6
        near = numpy.abs(exact) < 1
        error = numpy.abs(got - wanted)[near]
        assert (error <= 1e-6 * numpy.abs(wanted)[near] + 1e-12).all()
        if act == 'gelu':   # what is left of a large z has digits of its own
            left = (exact < -1) & (exact > -6)
            error = numpy.abs(got - wanted)[left]
            assert (error < 1e-3 * numpy.abs(wanted)[left]).all()


@pytest.mark.parametrize('shape', [(1, 1), (17, 3), (2, 5, 16), (9, 100),
                                   (700, 128)])
def test_add_norm_is_the_float64_layer_norm(fused, draw, shape):
    H = shape[-1]
    values = [draw(*shape), draw(*shape), draw(H), draw(H)]
    check(np_norm, fused.add_norm, values, tolerance=5e-5)
    check(lambda *v: np_norm(*v, eps=1e-2),
          lambda *v: fused.add_norm(*v, eps=1e-2), values)
    X, _, *scales = values
    check(lambda X, *v: np_norm(X, 0 * X, *v), fused.layer_norm,
          [X, *scales], tolerance=5e-5)


PADDED = [(1, [1], 1, 1), (5, [5, 0, 1, 3], 12, 3), (64, [64, 30], 128, 2),
          (20, [20, 7], 7, 1), (150, [130, 40], 40, 2), (33, [33], 6, 2)]


@pytest.mark.parametrize('T, lens, H, N', PADDED)
def test_attention_on_padded_rows_is_the_float64_one(fused, draw, T, lens, H,
                                                     N):
    offsets = numpy.arange(0, len(lens) * T + 1, T)
    R = offsets[-1]
    check(lambda Q, K, V: np_attention(Q, K, V, offsets, lens, N),
          lambda Q, K, V: attention(fused, Q, K, V, ints(offsets), ints(lens),
                                    N),
          [draw(R, H), draw(R, H), draw(R, H)])


@pytest.mark.parametrize('lens, H, N', [([3], 1, 1), ([7, 1, 30, 2], 10, 2),
                                        ([64, 17, 50], 64, 2)])
def test_attention_on_packed_rows_is_the_float64_one(fused, draw, lens, H, N):
    offsets = numpy.cumsum([0] + lens)
    R = offsets[-1]

    def reference(QKV):
        return np_attention(*numpy.split(QKV, 3, 1), offsets, lens, N)

    check(reference, lambda QKV: fused.attention_qkv(
        QKV, ints(offsets), ints(lens), N), [draw(R, 3 * H)])


@pytest.mark.parametrize('rows, lens, H, N', [
    ([3], [3], 1, 1), ([7, 1, 30, 2], [5, 1, 30, 0], 10, 2),
    ([150, 17, 70], [150, 3, 64], 64, 2)])
def test_causal_attention_is_the_float64_one(fused, draw, rows, lens, H, N):
    offsets = numpy.cumsum([0, *rows])
    R, arguments = offsets[-1], (ints(offsets), ints(lens), N)

    def reference(Q, K, V):
        return np_attention(Q, K, V, offsets, lens, N, causal=True)
    values = [draw(R, H) for _ in range(3)]
    check(reference, lambda Q, K, V: attention(
        fused, Q, K, V, *arguments, causal=True), values)


def test_a_sequence_of_two_thousand_rows_needs_no_square_matrix(fused, draw):
    lens, H = [2000, 3], 16
    offsets = numpy.cumsum([0] + lens)
    check(lambda Q, K, V: np_attention(Q, K, V, offsets, lens, 1),
          lambda Q, K, V: attention(fused, Q, K, V, ints(offsets), ints(lens),
                                    1),
          [draw(2003, H), draw(2003, H), draw(2003, H)])


@pytest.mark.parametrize('sign', [1, -1])
def test_scores_beyond_the_range_of_exp_keep_their_weights(fused, draw, sign):
    lens, H = [40, 3], 8
    offsets = numpy.cumsum([0] + lens)
    Q, K, V = (draw(43, H) for _ in range(3))
    # Scores near 200 or -200, far beyond 88, the limit of e^x. The weights
    # depend on their small differences
    Q[:, 0], K[:, 0] = 24, sign * 24
    values = [Q, K, V]
    scores = Q @ K.T / math.sqrt(H)
    assert (sign * scores).min() > 100 and numpy.ptp(scores) > 5

    def reference(Q, K, V):
        return np_attention(Q, K, V, offsets, lens, 1)

    arguments = ints(offsets), ints(lens), 1
    check(reference, lambda Q, K, V: attention(fused, Q, K, V, *arguments),
          values, 5e-4)


def test_rows_without_keys_are_zero_and_never_nan(fused, draw):
    X = array(draw(6, 4))
    X.attach_grad()
    with autograd.record():
        Y = attention(fused, X, X, X, ints([1, 3, 5]), ints([0, 2]), 2)
    Y.backward()
    assert (Y.asnumpy()[[0, 1, 2, 5]] == 0).all()
    assert (Y.asnumpy()[[3, 4]] != 0).all()
    assert (X.grad.asnumpy()[[0, 1, 2, 5]] == 0).all()
    assert numpy.isfinite(X.grad.asnumpy()).all()


@pytest.mark.parametrize('R, V, L, H', [(1, 1, 1, 1), (333, 50, 20, 19),
                                        (64, 1000, 64, 128)])
def test_embed_is_the_sum_of_three_rows(fused, draw, R, V, L, H):
    rng = numpy.random.RandomState(3)
    t, s, p = (rng.randint(0, n, R) for n in (V, 2, L))
    check(lambda A, B, C: A[t] + B[s] + C[p],
          lambda A, B, C: fused.embed(ints(t), ints(s), ints(p), A, B, C),
          [draw(V, H), draw(2, H), draw(L, H)])


def test_no_row_of_a_long_table_is_summed_by_two_threads(fused):
    # More rows than 64 for each thread: the table is shared out by rows.
    # Threads that disturb each other do so only while both are at work, so
    # every row is drawn often, and all of it is done again
    V, R, H = 200 * hardware.physical_cores(), 400000, 2
    rng = numpy.random.RandomState(5)
    rows, up = rng.permutation(R) % V, rng.randint(-9, 10, (R, H))
    wanted = numpy.stack([numpy.bincount(rows, column, V)
                          for column in up.T], 1)
    table, rows, up = np.zeros((V, H)), ints(rows), array(up.astype('float32'))
    table.attach_grad()
    for _ in range(10):
        with autograd.record():
            Y = fused.embed(rows, rows * 0, rows * 0, table, np.zeros((1, H)),
                            np.zeros((1, H)), grad_req='write')
        Y.backward(up)
        # Sums of small whole numbers are exact
        assert (table.grad.asnumpy() == wanted).all()


@pytest.mark.parametrize('R, H, sizes', [(9, 5, [4]), (40, 33, [60, 1, 0]),
                                         (900, 70, [300, 30])])
def test_rows_are_taken_and_their_gradients_added(fused, draw, R, H, sizes):
    # Some rows several times, in one list and in several
    rng = numpy.random.RandomState(3)
    lists = [rng.randint(0, R, size) for size in sizes]

    def rows(X):
        return numpy.concatenate([X[places] for places in lists])
    check(rows, lambda X: np.concatenate(
        fused.take_rows(X, *map(ints, lists))), [draw(R, H)])


@pytest.mark.parametrize('sizes', [(3, 4, 5), (4, 3, 4), (4, 4, 5)])
def test_tables_of_different_widths_are_refused(fused, sizes):
    with pytest.raises(mx.base.MXNetError, match='[Ss]hape'):
        fused.embed(ints([0]), ints([0]), ints([0]),
                    *(np.ones((2, size)) for size in sizes)).asnumpy()


@pytest.mark.parametrize('R, K, N', [(0, 4, 5), (0, 450, 600), (3, 0, 5)])
def test_dense_over_nothing_is_the_bias_and_its_gradients_zero(fused, R, K, N):
    X, W, b = np.ones((R, K)), np.ones((N, K)), np.ones(N)
    for x in (X, W, b):
        x.attach_grad()
    with autograd.record():
        Y = fused.dense(X, W, b, grad_req='write')
    for x in (W, b):
        x.grad[:] = 7
    Y.backward()
    assert Y.shape == (R, N) and (Y.asnumpy() == 1).all()
    assert (W.grad.asnumpy() == 0).all() and (b.grad.asnumpy() == R).all()


def test_vocab_ce_of_no_rows_is_zero_and_so_are_its_gradients(fused):
    X, W, b = np.ones((0, 4)), np.ones((9, 4)), np.ones(9)
    for x in (W, b):
        x.attach_grad()
        x.grad[:] = 7
    with autograd.record():
        loss = fused.vocab_ce(X, W, b, ints([]), np.ones(0),
                              grad_req='write')
    loss.backward()
    assert loss.item() == 0
    assert (W.grad.asnumpy() == 0).all() and (b.grad.asnumpy() == 0).all()


def test_an_index_out_of_range_touches_only_the_table(fused, draw):
    tables = [array(draw(4, 3)), array(draw(2, 3)), array(draw(5, 3))]
    for table in tables:
        table.attach_grad()
    with autograd.record():
        Y = fused.embed(ints([-7, 1 << 30]), ints([0, 0]), ints([0, 0]),
                        *tables)
    Y.backward()
    wanted = [tables[0].asnumpy()[i] + tables[1].asnumpy()[0]
              + tables[2].asnumpy()[0] for i in (0, 3)]
    close(Y, wanted)
    assert tables[0].grad.asnumpy().sum(1).tolist() == [3, 0, 0, 3]
    with autograd.record():
        Y, = fused.take_rows(tables[0], ints([-7, 1 << 30]))
    Y.backward()
    close(Y, tables[0].asnumpy()[[0, 3]])
    assert tables[0].grad.asnumpy().sum(1).tolist() == [3, 0, 0, 3]


@pytest.mark.parametrize('M, H, V', [(1, 1, 1), (5, 7, 33), (300, 20, 700),
                                     (520, 8, 500), (3, 40, 5000)])
@pytest.mark.parametrize('scale', [1, 60])
def test_vocab_ce_is_the_float64_loss(fused, draw, M, H, V, scale):
    labels = numpy.random.RandomState(4).randint(0, V, M)
    values = [draw(M, H) * scale, draw(V, H), draw(V), draw(M)]

    def reference(X, W, b, w):
        return (np_ce(X @ W.T + b, labels) * w).sum().reshape(1)

    # Large logits: the running maximum has to move between blocks.
    check(reference, lambda X, W, b, w: fused.vocab_ce(
        X, W, b, ints(labels), w), values,
        tolerance=2e-5 if scale == 1 else 2e-4)
    X, W, b, w = (array(value) for value in values)
    loss, rows = call('vocab_ce', [X, W, b, ints(labels), w], grad=0)[:2]
    exact = [value.astype('float64') for value in values]
    close(rows, np_ce(exact[0] @ exact[1].T + exact[2], labels))
    close(loss, reference(*exact), 1e-4)


def test_a_loss_whose_weights_are_zero_has_no_gradient(fused, draw):
    X, W, b = array(draw(6, 5)), array(draw(9, 5)), array(draw(9))
    for x in (X, W, b):
        x.attach_grad()
    with autograd.record():
        loss = fused.vocab_ce(X, W, b, ints([1] * 6), np.zeros(6))
    loss.backward()
    assert loss.item() == 0
    for x in (X, W, b):
        assert (x.grad.asnumpy() == 0).all()


REFUSED = {
    'an activation that there is not': (
        lambda m: m.dense(np.ones((2, 3)), np.ones((4, 3)), act='sigmoid'),
        'act must be'),
    'words of a vocabulary of none': (
        lambda m: m.vocab_ce(np.ones((2, 3)), np.zeros((0, 3)),
                             np.zeros(0), ints([0, 0]), np.ones(2)),
        'at least one word'),
    'one of no classes': (
        lambda m: m.softmax_ce(np.zeros((2, 0)), ints([0, 0]), np.ones(2)),
        'at least one class'),
    'rows of an empty table': (
        lambda m: m.embed(*[ints([0])] * 3, np.ones((5, 8)),
                          np.zeros((0, 8)), np.ones((5, 8))),
        'at least one row'),
    'rows of a vector': (
        lambda m: m.embed(*[ints([0])] * 3, np.ones((5, 8)),
                          np.ones(8), np.ones((5, 8))),
        'tables'),
    'places in nothing': (
        lambda m: m.take_rows(np.zeros((0, 8)), ints([0]))[0],
        'no rows to take'),
    'sequences that overlap': (
        lambda m: m.attention_qkv(np.ones((8, 12)), ints([0, 5, 3, 8]),
                                  ints([5, 0, 5]), 2),
        'offsets that never decrease'),
}


@pytest.mark.parametrize('what', REFUSED)
def test_inputs_that_point_outside_of_arrays_are_refused(fused, what):
    call, reason = REFUSED[what]
    with pytest.raises(mx.base.MXNetError, match=reason):
        call(fused).asnumpy()


def test_gelu_without_its_argument_has_no_gradient(fused):
    X = np.ones((2, 3))
    X.attach_grad()
    with autograd.record():
        Y, = call('dense', [X, np.ones((4, 3))], act='gelu', bias=0, grad=0)
    with pytest.raises(mx.base.MXNetError, match='keeps nothing'):
        Y.backward()
        X.grad.asnumpy()


def test_a_loss_without_saved_results_has_no_gradient(fused, draw):
    X = array(draw(6, 5))
    X.attach_grad()
    with autograd.record():
        loss = call('vocab_ce', [X, array(draw(9, 5)), array(draw(9)),
                                 ints([1] * 6), np.ones(6)], grad=0)[0]
    with pytest.raises(mx.base.MXNetError, match='keeps no gradients'):
        loss.backward()
        X.grad.asnumpy()


@pytest.mark.parametrize('M, V', [(1, 1), (64, 2), (5, 33), (40, 1000)])
def test_softmax_ce_is_the_float64_loss(fused, draw, M, V):
    labels = numpy.random.RandomState(4).randint(0, V, M)
    check(lambda X, w: np_ce(X, labels) * w,
          lambda X, w: fused.softmax_ce(X, ints(labels), w),
          [draw(M, V) * 5, draw(M)])


def test_few_classes_are_as_exact_as_float32_can_be(fused, draw):
    logits = (draw(300, 2) * 5).astype('float32')
    labels = numpy.random.RandomState(4).randint(0, 2, 300)
    rows = fused.softmax_ce(array(logits), ints(labels), np.ones(300))
    numpy.testing.assert_allclose(
        rows.asnumpy(), np_ce(logits.astype('float64'), labels), rtol=1e-7,
        atol=1e-12)


def np_divergence(X, Y, T):
    log_q, log_p = (Z / T - numpy.log(numpy.exp(Z / T).sum(
        1, keepdims=True)) for Z in (X, Y))
    return (numpy.exp(log_p) * (log_p - log_q)).sum(1)


@pytest.mark.parametrize('M, V, T', [(1, 1, 1), (5, 33, 2), (40, 1000, 0.7)])
def test_divergence_is_the_float64_one(fused, draw, M, V, T):
    taught = draw(M, V) * 3
    check(lambda X: np_divergence(X, taught.astype('float64'), T),
          lambda X: fused.divergence(X, array(taught), T), [draw(M, V) * 3])


def test_a_teacher_gets_no_gradient_and_nan_spreads(fused, draw):
    for kind in (fused, plain):
        X, Y = array(draw(3, 20)), array(draw(3, 20))
        X[1, 4] = numpy.nan
        Y.attach_grad()
        X.attach_grad()
        with autograd.record():
            rows = kind.divergence(X, Y, 2.0)
        rows.backward()
        assert numpy.isnan(rows.asnumpy()).tolist() == [False, True, False]
        assert not Y.grad.asnumpy().any()
    # Softmax ignores a large common difference
    far = array(numpy.round(draw(2, 50) * 1e4))
    close(fused.divergence(far, far + 64, 2.0), numpy.zeros(2), 1e-5)


def test_infinite_and_missing_logits_keep_their_meaning(fused):
    inf, nan = numpy.inf, numpy.nan
    logits = array(numpy.array([[-inf, 0, 1], [0, nan, 1], [500, -500, 0],
                                [-1e30, -1e30, -inf]], 'float32'))
    logits.attach_grad()
    with autograd.record():
        rows = fused.softmax_ce(logits, ints([1, 0, 0, 0]), np.ones(4))
    rows.backward()
    wanted = [math.log(1 + math.e), nan, 0, math.log(2)]
    numpy.testing.assert_allclose(rows.asnumpy(), wanted, rtol=1e-6)
    assert logits.grad.asnumpy()[0, 0] == 0
    assert numpy.isnan(logits.grad.asnumpy()[1]).all()
    z = array(numpy.array([[inf], [-inf], [nan]], 'float32'))
    for act in ('relu', 'tanh', 'gelu', 'gelu_new'):
        got = fused.dense(z, np.ones((1, 1)), act=act).asnumpy()[:, 0]
        assert numpy.isnan(got[2])
        assert got[0] == (1 if act == 'tanh' else inf)


def test_fused_and_plain_agree(fused, draw):
    t, s, p = ints([1, 3, 3, 0]), ints([0, 1, 1, 0]), ints([0, 1, 2, 2])
    with_plain(lambda m: lambda *W: m.embed(t, s, p, *W),
               [draw(4, 5), draw(2, 5), draw(3, 5)])
    with_plain(lambda m: m.add_norm,
               [draw(8, 21), draw(8, 21), draw(21), draw(21)])
    offsets, lens = ints([0, 6, 12, 18]), ints([6, 0, 4])
    for length in (None, 6):
        with_plain(lambda m: lambda QKV: m.attention_qkv(
            QKV, offsets, lens, 2, common_length=length), [draw(18, 30)])
        with_plain(lambda m: lambda QKV: m.attention_qkv(
            QKV, offsets, lens, 2, common_length=length, causal=True),
            [draw(18, 30)])
    ragged = ints([0, 5, 6, 18])
    with_plain(lambda m: lambda Q, K, V: attention(
        m, Q, K, V, ragged, ints([5, 1, 12]), 2),
        [draw(18, 10), draw(18, 10), draw(18, 10)])
    labels = ints([3, 0, 8, 8])
    with_plain(lambda m: lambda X, W, b, w: m.vocab_ce(
        X, W, b, labels, w), [draw(4, 5), draw(9, 5), draw(9), draw(4)])
    with_plain(lambda m: lambda X, w: m.softmax_ce(X, labels, w),
               [draw(4, 9), draw(4)])
    taught = array(draw(4, 9))
    with_plain(lambda m: lambda X: m.divergence(X, taught, 2.0),
               [draw(4, 9)])


@pytest.mark.parametrize('R, K, units', [
    (7, 5, (3,)), (40, 33, (16, 1, 50)), (20, 300, (400, 400, 400))],
    ids=str)
@pytest.mark.parametrize('biased', [True, False])
def test_joined_weights_equal_one_weight(fused, draw, R, K, units, biased):
    n = len(units)

    def joined(m):
        return lambda X, *Wb: m.joined_dense(X, Wb[:n], Wb[n:])
    values = [draw(R, K), *(draw(N, K) / K ** 0.5 for N in units),
              *(draw(N) for N in units if biased)]

    def reference(X, *Wb):
        b = numpy.concatenate(Wb[n:]) if biased else 0
        return X @ numpy.concatenate(Wb[:n]).T + b
    check(reference, joined(fused), values)
    with_plain(joined, values)


@pytest.mark.parametrize('module', [ops, plain], ids=['fused', 'plain'])
@pytest.mark.parametrize('frozen', [(), (0,), (1, 3), (0, 1), (2, 3),
                                    (0, 1, 2)], ids=str)
def test_parts_of_joined_weights_can_be_frozen(fused, draw, module, frozen):
    values = [draw(6, 5), draw(3, 5), draw(4, 5), draw(3), draw(4)]
    expected = gradients(lambda X, W, V, b, c: module.joined_dense(
        X, (W, V), (b, c)), values)
    X, *parameters = map(array, values)
    X.attach_grad()
    requests = ['null' if k in frozen else 'add' for k in range(4)]
    for parameter, request in zip(parameters, requests):
        if request == 'add':
            parameter.attach_grad('add')
    rng = numpy.random.RandomState(6)
    up = array(rng.randn(6, 7).astype('float32'))
    for _ in range(2):
        with autograd.record():
            Y = module.joined_dense(X, parameters[:2], parameters[2:],
                                    grad_req=tuple(requests))
        Y.backward(up)
    close(Y, expected[0])
    close(X.grad, expected[1])
    for k, (parameter, wanted) in enumerate(zip(parameters, expected[2:])):
        if k not in frozen:
            close(parameter.grad, 2 * wanted)


def test_only_the_first_array_gets_a_gradient(fused, draw):
    X, Y = array(draw(3, 4)), array(draw(7))
    X.attach_grad()
    with autograd.record():
        found, = call('first', [X * 2, Y], inputs=2)
        total = (found * found).sum()
    total.backward()
    assert found.shape == (3, 4)
    close(found, 2 * X.asnumpy())
    close(X.grad, 8 * X.asnumpy())


def test_slices_that_start_anywhere_are_fine(fused, draw):
    X, W = array(draw(9, 5)), array(draw(8, 5))
    close(fused.dense(X[3:], W[1:]), X.asnumpy()[3:] @ W.asnumpy()[1:].T)
    Y = array(draw(9, 5))
    close(fused.add_norm(X[1:], Y[1:], np.ones(5), np.zeros(5)),
          np_norm(X.asnumpy()[1:], Y.asnumpy()[1:], 1, 0))


@pytest.mark.parametrize('R, K, N', [(1, 1, 1), (37, 19, 23), (90, 128, 70),
                                     (515, 2051, 130)])
def test_bf16_rounds_only_the_operands(bf16, draw, R, K, N):
    def rounded(x):
        bits = numpy.ascontiguousarray(x, 'float32').view('uint32')
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000
        return bits.astype('uint32').view('float32')

    X, W, b = draw(R, K), draw(N, K), draw(N)
    Y, dX, dW, db = gradients(
        lambda X, W, b: ops.dense(X, W, b, precision='bf16'), [X, W, b])
    close(Y, rounded(X).astype('float64') @ rounded(W).T + b, 1e-5)
    up = numpy.random.RandomState(6).randn(R, N).astype('float32')
    close(dX, rounded(up).astype('float64') @ rounded(W), 1e-5)
    close(dW, rounded(up).T.astype('float64') @ rounded(X), 1e-5)
    close(db, up.sum(0), 1e-5)


def test_bf16_stays_near_fp32(bf16, draw):
    offsets, lens = ints([0, 33, 40]), ints([33, 7])
    labels = ints(numpy.arange(40) * 7)
    for function, values in (
            (lambda precision: lambda Q, K, V: attention(
                ops, Q, K, V, offsets, lens, 2, precision=precision),
             [draw(40, 70), draw(40, 70), draw(40, 70)]),
            (lambda precision: lambda X, W, b: ops.vocab_ce(
                X, W, b, labels, np.ones(40), precision=precision),
             [draw(40, 33), draw(301, 33), draw(301)])):
        for half, full in zip(gradients(function('bf16'), values),
                              gradients(function('fp32'), values)):
            close(half, full, 2e-2)


def test_plain_refuses_bf16(draw):
    X = array(draw(2, 2))
    with pytest.raises(ValueError, match='fused'):
        plain.dense(X, X, precision='bf16')


# dropout

def norm_factors(p, shape):
    """The dropout factors of add_norm, from the ratio of two gradients."""
    X, Y = array(numpy.ones(shape, 'float32')), np.ones(shape)
    X, Y = X * np.arange(shape[1]), Y + np.arange(shape[0])[:, None]
    X.attach_grad()
    Y.attach_grad()
    with autograd.record():
        Z = ops.add_norm(X, Y, np.ones(shape[1]), np.zeros(shape[1]), p=p)
    up = numpy.random.RandomState(1).randn(*shape).astype('float32')
    Z.backward(array(up))
    return Y.grad.asnumpy() / X.grad.asnumpy()


@pytest.mark.parametrize('p', [0.1, 0.5])
def test_dropout_has_its_rate_and_no_memory(fused, p):
    mx.random.seed(11)
    factors = norm_factors(p, (2000, 600))
    kept = numpy.abs(factors) > 1e-9
    numpy.testing.assert_allclose(factors[kept], 1 / (1 - p), rtol=1e-3)
    deviation = math.sqrt(p * (1 - p) / kept.size)
    assert abs(kept.mean() - (1 - p)) < 4 * deviation
    centred = kept - (1 - p)
    # Neighbours in a row, in a column, and the rates of rows and columns.
    for a, b in ((centred[:, 1:], centred[:, :-1]),
                 (centred[1:], centred[:-1])):
        assert abs((a * b).mean()) < 5 * p * (1 - p) / math.sqrt(a.size)
    for axis, n in ((0, 2000), (1, 600)):
        spread = centred.mean(axis).var() * n / (p * (1 - p))
        assert abs(spread - 1) < 0.25


def test_add_norm_with_dropout_uses_one_mask_both_ways(fused, draw):
    shape = (40, 21)
    mx.random.seed(3)
    factors = norm_factors(0.3, shape)
    factors = numpy.where(numpy.abs(factors) > 1e-6, 1 / 0.7, 0)

    def function(X, Y, gamma, beta):
        mx.random.seed(3)
        return ops.add_norm(X, Y, gamma, beta, p=0.3)

    check(lambda X, Y, gamma, beta: np_norm(X, factors * Y, gamma, beta),
          function, [draw(*shape), draw(*shape), draw(21), draw(21)], 5e-5)


def attention_factors(p, lens, N):
    """The dropout factors of attention.

    V is the identity, and Q and K are zero, so all weights are equal.
    """
    offsets, size = numpy.cumsum([0] + lens), max(lens)
    V = numpy.concatenate([numpy.eye(size)[:n] for n in lens])
    V = array(numpy.tile(V, (1, N)).astype('float32'))
    with autograd.train_mode():
        out = attention(ops, np.zeros_like(V), np.zeros_like(V), V,
                        ints(offsets), ints(lens), N, p=p)
    counts = numpy.repeat(lens, lens)
    return out.asnumpy().reshape(-1, N, size) * counts[:, None, None]


def test_attention_with_dropout_uses_one_mask_both_ways(fused, draw):
    lens, N, H = [150, 7, 20], 2, 10
    offsets = numpy.cumsum([0] + lens)
    mx.random.seed(4)
    factors = attention_factors(0.25, lens, N)
    within = numpy.concatenate(
        [factors[offsets[b]:offsets[b + 1], :, :n].ravel()
         for b, n in enumerate(lens)])
    kept = within > 0
    numpy.testing.assert_allclose(within[kept], 1 / 0.75, rtol=1e-5)
    assert abs(kept.mean() - 0.75) < 4 * math.sqrt(0.1875 / kept.size)

    def function(Q, K, V):
        mx.random.seed(4)
        return attention(ops, Q, K, V, ints(offsets), ints(lens), N, p=0.25)

    check(lambda Q, K, V: np_attention(Q, K, V, offsets, lens, N, factors),
          function, [draw(177, H), draw(177, H), draw(177, H)], 5e-5)


def test_a_seed_repeats_the_mask_and_a_call_changes_it(fused):
    mx.random.seed(21)
    first, second = norm_factors(0.5, (9, 50)), norm_factors(0.5, (9, 50))
    mx.random.seed(21)
    again = norm_factors(0.5, (9, 50))
    mx.random.seed(22)
    other = norm_factors(0.5, (9, 50))
    assert (first == again).all()
    assert (first != second).any() and (first != other).any()


def test_prediction_drops_nothing(fused, draw):
    X, Y, gamma, beta = (array(draw(*s)) for s in ((8, 9), (8, 9), (9,),
                                                   (9,)))
    exact = np_norm(*[x.asnumpy() for x in (X, Y, gamma, beta)])
    close(ops.add_norm(X, Y, gamma, beta, p=0.5), exact)
    with autograd.record(train_mode=False):
        close(ops.add_norm(X, Y, gamma, beta, p=0.5), exact)
    with autograd.record(), autograd.predict_mode():
        close(ops.add_norm(X, Y, gamma, beta, p=0.5), exact)


# under Gluon

class Block(gluon.nn.HybridBlock):
    """Every operator once, `dense` twice with one weight."""

    def __init__(self, kind, p=0.0):
        super().__init__()
        self.kind, self.p = kind, p
        get = self.params.get
        self.table = get('table', shape=(11, 6), init='normal')
        self.side = get('side', shape=(2, 6), init='normal')
        self.place = get('place', shape=(8, 6), init='normal')
        self.qkv = get('qkv', shape=(18, 6), init='normal')
        self.W = get('W', shape=(6, 6), init='normal')
        self.b = get('b', shape=(6,), init='normal')
        self.gamma = get('gamma', shape=(6,), init='ones')
        self.beta = get('beta', shape=(6,), init='zeros')
        self.bias = get('bias', shape=(11,), init='normal')

    def hybrid_forward(self, F, X, tokens, offsets, lens, labels, weights,
                       table, side, place, qkv, W, b, gamma, beta, bias):
        kind = self.kind
        zeros = tokens * 0
        E = X + kind.embed(tokens, zeros, zeros, table, side, place)
        A = kind.attention_qkv(kind.dense(E, qkv), offsets, lens, 2, p=self.p,
                               common_length=4)
        A = kind.dense(A, W, b, act='gelu')
        A = kind.dense(A, W, b, act='relu')
        Y = kind.add_norm(E, A, gamma, beta, p=self.p)
        loss = kind.vocab_ce(Y, table, bias, labels, weights)
        return loss + kind.softmax_ce(Y, labels * 0, weights).sum()


def block_inputs(ctx=None):
    rng = numpy.random.RandomState(8)
    values = [rng.randn(12, 6).astype('float32'),
              rng.randint(0, 11, 12).astype('int32'),
              numpy.array([0, 4, 8, 12], 'int32'),
              numpy.array([4, 2, 0], 'int32'),
              rng.randint(0, 11, 12).astype('int32'),
              rng.rand(12).astype('float32')]
    return [array(value, ctx) for value in values]


def twins(**options):
    """A block of fused and one of plain operators with equal parameters."""
    blocks = [Block(ops), Block(plain)]
    for block in blocks:
        block.initialize(ctx=options.get('ctx', mx.cpu()))
    for a, b in zip(blocks[0].collect_params().values(),
                    blocks[1].collect_params().values()):
        values = numpy.random.RandomState(a.shape[0]).randn(*a.shape)
        for parameter in (a, b):
            parameter.set_data(np.array(values.astype('float32')))
            parameter.grad_req = options.get('grad_req', 'write')
    return blocks


def block_gradients(block, X, *rest):
    return [X.grad.asnumpy()] + [
        p.grad(X.ctx).asnumpy() for p in block.collect_params().values()]


@pytest.mark.parametrize('grad_req', ['write', 'add'])
def test_a_block_accumulates_as_plain_operators_do(fused, grad_req):
    results = []
    for block in twins(grad_req=grad_req):
        inputs = block_inputs()
        inputs[0].attach_grad(grad_req)
        for _ in range(3):
            with autograd.record():
                loss = block(*inputs)
            loss.backward()
        results.append([loss.asnumpy()] + block_gradients(block, *inputs))
    for got, wanted in zip(*results):
        close(got, wanted, 1e-4)


def test_two_devices_at_once_give_what_each_gives_alone(fused):
    contexts = [mx.cpu(0), mx.cpu(1)]
    block, _ = twins(ctx=contexts)
    inputs = [block_inputs(ctx) for ctx in contexts]
    for one in inputs:
        one[0].attach_grad()
    for _ in range(4):
        with autograd.record():
            losses = [block(*one) for one in inputs]
        autograd.backward(losses)
    first, second = (block_gradients(block, *one) for one in inputs)
    for a, b in zip(first, second):
        assert (a == b).all() and numpy.abs(a).max() > 0


def test_a_block_drops_in_training_and_not_in_prediction(fused):
    mx.random.seed(2)   # weights with which not all of what drops is zero
    block = Block(ops, p=0.5)
    block.initialize()
    inputs = block_inputs()

    def train():
        with autograd.record():
            return block(*inputs).item()

    calm = block(*inputs).item()
    assert train() != train()
    assert block(*inputs).item() == calm
    with autograd.record(), autograd.pause():
        assert block(*inputs).item() == calm
    mx.random.seed(1)
    first = train()
    mx.random.seed(1)
    assert train() == first


def test_a_parameter_used_many_times_sums_its_gradients(fused, draw):
    def many(X, W):
        for _ in range(12):
            X = fused.dense(X, W)
        return X
    X, W = draw(4, 5), draw(5, 5) / 2

    def reference(X, W):
        for _ in range(12):
            X = X @ W.T
        return X

    check(reference, many, [X, W], 1e-4)


def test_shapes_are_inferred_through_deferred_parameters(fused, draw):
    class Late(gluon.nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.W = self.params.get('W', shape=(4, -1),
                                     allow_deferred_init=True)
            self.b = self.params.get('b', shape=(4,))

        def hybrid_forward(self, F, X, W, b):
            return ops.dense(X, W, b, units=4)

    for hybrid in (False, True):
        block = Late()
        block.initialize()
        if hybrid:
            block.hybridize()
        assert block(array(draw(3, 7))).shape == (3, 4)
        assert block.W.shape == (4, 7)


def test_a_seeded_run_repeats_to_the_last_bit(fused):
    def run():
        mx.random.seed(2)
        block = Block(ops, p=0.3)
        block.initialize()
        inputs = block_inputs()
        inputs[0].attach_grad()
        with autograd.record():
            loss = block(*inputs)
        loss.backward()
        return [loss.asnumpy()] + block_gradients(block, *inputs)

    for a, b in zip(run(), run()):
        assert (a == b).all()


def python(code, **environment):
    """Runs a script in a fresh process: its exit code, output, errors."""
    root = str(pathlib.Path(kernels.__file__).resolve().parents[2])
    path = os.pathsep.join([root, os.environ.get('PYTHONPATH', '')])
    done = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(code)],
        env={**os.environ, 'PYTHONPATH': path, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_mask_does_not_depend_on_the_number_of_threads(fused):
    code = '''
        from d2lbert.machine.backend import autograd, mx, np, npx
        npx.set_np()
        from d2lbert import kernels
        from d2lbert.kernels import ops
        assert kernels.load()
        mx.random.seed(5)
        V = np.tile(np.eye(100), (20, 1))
        with autograd.train_mode():
            A = ops.attention_qkv(
                np.concatenate([V * 0, V * 0, V], 1),
                np.arange(0, 2001, 100).astype('int32'),
                np.full((20,), 100, dtype='int32'), 1, p=0.5)
            B = ops.add_norm(V, V + 1, np.ones(100), np.zeros(100), p=0.5)
        import hashlib
        for X in A, B:
            print(hashlib.sha256(X.asnumpy().tobytes()).hexdigest())
    '''
    one, three = (python(code, OMP_NUM_THREADS=n, MXNET_OMP_MAX_THREADS=n)
                  for n in ('1', '3'))
    assert one[0] == three[0] == 0, one[2] + three[2]
    assert one[1] == three[1] and len(one[1].split()) == 2


@pytest.fixture(scope='module')
def small_teams(fused, tmp_path_factory):
    """{team: {precision/operator/i: array}} where fewer threads come."""
    folder = tmp_path_factory.mktemp('teams')
    (folder / 'team.cc').write_text(textwrap.dedent('''
        #include <omp.h>
        extern "C" int received() {
          int size = 0;
        #pragma omp parallel num_threads(omp_get_max_threads())
        #pragma omp single
          size = omp_get_num_threads();
          return size;
        }
    '''))
    done = subprocess.run(
        [sys.executable, operators.__file__,
         str(build.library('team', [folder / 'team.cc'])),
         str(folder / 'results.npz')],
        env={**os.environ, 'MXNET_ENGINE_TYPE': 'NaiveEngine',
             'OMP_NUM_THREADS': str(operators.LIMIT),
             'OMP_THREAD_LIMIT': str(operators.LIMIT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    found = {}
    with numpy.load(str(folder / 'results.npz')) as arrays:
        for key in arrays.files:
            team, name = key.split('/', 1)
            found.setdefault(team, {})[name] = arrays[key]
    return found


def test_a_team_smaller_than_asked_for_computes_the_same(small_teams):
    wanted = {'fp32': operators.results(plain)}
    if kernels.bf16_supported():
        wanted['bf16'] = operators.results(ops, 'bf16')
    assert len(small_teams) == 5
    for found in small_teams.values():
        seen = {tuple(name.split('/')[:2]) for name in found}
        assert seen == {(precision, operator) for precision in wanted
                        for operator in wanted[precision]}
        for name, got in found.items():
            precision, operator, i = name.split('/')
            close(got, wanted[precision][operator][int(i)],
                  5e-5 if precision == 'fp32' else 5e-3)


def test_a_team_of_one_size_gives_the_same_bits(small_teams):
    once, again = (small_teams[f'5 of 16{words}']
                   for words in ('', ', again'))
    for name, got in once.items():
        assert (got == again[name]).all(), name


def test_numbers_are_read_where_the_locale_writes_a_comma(fused, tmp_path):
    try:
        subprocess.run(['localedef', '-i', 'de_DE', '-f', 'UTF-8',
                        str(tmp_path / 'de_DE.UTF-8')], check=True,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f'no locale with a decimal comma can be made: {error}')
    code = '''
        import locale
        locale.setlocale(locale.LC_ALL, '')
        assert locale.localeconv()['decimal_point'] == ','
        from d2lbert.machine.backend import autograd, np, npx
        npx.set_np()
        from d2lbert import kernels
        from d2lbert.kernels import ops
        assert kernels.load()
        X, gamma, beta = np.array([[1., 3.]]), np.ones(2), np.zeros(2)
        print(*ops.add_norm(X, X * 0, gamma, beta, eps=0.5625)[0])
        with autograd.train_mode():
            Y = ops.add_norm(np.arange(4000).reshape(1, -1) * 0,
                             np.ones((1, 4000)), np.ones(4000),
                             np.zeros(4000), p=0.25, eps=1e-5)
        print(float((Y > 0).mean()))
    '''
    status, out, err = python(code, LOCPATH=str(tmp_path),
                              LC_ALL='de_DE.UTF-8')
    assert status == 0, err
    norm, kept = out.splitlines()
    assert norm == '-0.8 0.8'
    assert abs(float(kept) - 0.75) < 0.05


# policy

def test_off_loads_nothing():
    code = '''
        from d2lbert import kernels
        assert not kernels.load() and not kernels.enabled()
        print(kernels.state().reason)
    '''
    status, out, err = python(code, D2LBERT_KERNELS='off')
    assert (status, out.strip()) == (0, 'D2LBERT_KERNELS is off'), err


def test_without_a_compiler_one_line_is_printed_once(tmp_path):
    code = '''
        from d2lbert import kernels
        assert kernels.state().reason == 'not needed yet'
        assert not kernels.load() and not kernels.load()
        assert not kernels.enabled() and not kernels.bf16_supported()
        assert 'no-such-compiler' in kernels.state().reason
    '''
    status, _, err = python(code, D2LBERT_KERNELS='auto',
                            CXX='no-such-compiler',
                            D2LBERT_CACHE=str(tmp_path))
    assert status == 0, err
    lines = [line for line in err.splitlines() if 'd2lbert' in line]
    assert len(lines) == 1 and 'no-such-compiler' in lines[0]


def test_required_operators_that_cannot_be_built_are_an_error(tmp_path):
    code = '''
        from d2lbert import kernels
        try:
            kernels.load()
        except kernels.BuildError as error:
            print(error)
    '''
    status, out, err = python(code, D2LBERT_KERNELS='require',
                              CXX='no-such-compiler',
                              D2LBERT_CACHE=str(tmp_path))
    assert status == 0 and 'no-such-compiler' in out, err


def test_an_unknown_policy_is_refused(monkeypatch):
    monkeypatch.setenv('D2LBERT_KERNELS', 'maybe')
    with pytest.raises(ValueError, match="'maybe'.*auto, off or require"):
        kernels.enabled()


def test_an_operator_stands_before_arrays_with_gradients_alone():
    plain, learnt = np.ones((2, 3)), np.ones((2, 3))
    learnt.attach_grad()
    assert _guarded(learnt) is learnt
    with autograd.record():
        assert _guarded(plain) is plain
        assert _guarded(learnt) is not learnt


def test_only_float_and_int_arrays_on_a_cpu_are_taken(fused):
    assert kernels.enabled(np.ones(2), ints([1]))
    assert not kernels.enabled(np.ones(2, dtype='float64'))
    assert not kernels.enabled(numpy.ones(2, 'float32'))


@pytest.mark.slow
@pytest.mark.parametrize('cpu', ['native', 'haswell', 'x86-64'])
def test_the_sanitizers_find_nothing(compiler, tmp_path, cpu):
    if cpu != 'native' and platform.machine() != 'x86_64':
        pytest.skip(f'{cpu} is another kind of processor')
    gcc = build.compiler()[0]
    libraries = [subprocess.run(
        [*gcc, f'-print-file-name={name}'], check=True,
        stdout=subprocess.PIPE).stdout.decode().strip()
        for name in ('libasan.so', 'libubsan.so')]
    if not all(map(os.path.isabs, libraries)):
        pytest.skip('the compiler has no sanitizers')
    # A compiler that processes started by the tests find as well
    cxx = tmp_path / 'sanitizing'
    cxx.write_text('#!/bin/sh\nunset LD_PRELOAD\n'
                   f'exec {" ".join(gcc)} "$@" -O1 -g1 -march={cpu} '
                   '-fsanitize=address,undefined -fno-sanitize-recover=all')
    cxx.chmod(0o755)
    here = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider',
         '--capture=sys', __file__,      # so that reports are seen
         # The compiler's -march comes after the set that this test chooses
         '-k', 'not test_the_set_that_multiplies',
         *(os.path.join(here, f'test_{name}.py')
           for name in ('halves', 'large_scores', 'bounds_check', 'int8')),
         os.path.join(os.path.dirname(here), 'test_bert_dataset.py')],
        env={**os.environ, 'CXX': str(cxx), 'OMP_NUM_THREADS': '3',
             'D2LBERT_CACHE': str(tmp_path / 'cache'),
             'LD_PRELOAD': ' '.join(libraries),
             # CPython and MXNet keep what they have until the end
             'ASAN_OPTIONS': 'detect_leaks=0',
             'UBSAN_OPTIONS': 'print_stacktrace=1'},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = done.stdout.decode(errors='replace')
    assert done.returncode == 0, said
    library, = (tmp_path / 'cache' / 'kernels').glob('ops-*.so')
    assert b'__asan_report' in library.read_bytes()
