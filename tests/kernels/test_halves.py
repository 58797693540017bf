"""Halves of an encoder's block as one operator each."""
import math

import numpy
import pytest
from oracles import (
    ACTS,
    array,
    check,
    close,
    gradients,
    ints,
    np_attention,
    np_norm,
    plain,
)

from d2lbert import kernels
from d2lbert.kernels import fused as compiled
from d2lbert.kernels.ops import Norm, Rows
from d2lbert.machine.backend import autograd, mx, np


def agree(one, other, values, tolerance=2e-5):
    """Values and gradients of two functions are the same to rounding."""
    found = [gradients(function, values) for function in (one, other)]
    for got, wanted in zip(*found):
        if numpy.abs(wanted).max(initial=0) > 1e-4:
            close(got, wanted, tolerance)
        else:   # zero up to rounding, as for the bias of keys
            assert numpy.abs(got).max(initial=0) < 1e-4


def np_feed(act, eps=1e-5):
    def reference(X, W1, b1, W2, b2, gamma, beta):
        return np_norm(X, ACTS[act](X @ W1.T + b1) @ W2.T + b2, gamma, beta,
                       eps)
    return reference


def feed(m, act, p=0, eps=1e-5, **options):
    """The half as a function of seven arrays."""
    def function(X, W1, b1, W2, b2, gamma, beta):
        return m.feed_forward(X, (W1, W2), (b1, b2),
                              Norm(gamma, beta, p, eps), act, **options)
    return function


def feed_values(draw, R, H, F):
    return [draw(R, H), draw(F, H) / math.sqrt(H), draw(F),
            draw(H, F) / math.sqrt(F), draw(H), draw(H), draw(H)]


FEED = [(1, 1, 1), (3, 5, 40), (30, 17, 1), (37, 19, 23), (130, 128, 96),
        (700, 33, 70)]


@pytest.mark.parametrize('act', sorted({*ACTS} - {'relu'}))
@pytest.mark.parametrize('R, H, F', FEED)
def test_feed_forward_is_its_float64_equation(fused, draw, R, H, F, act):
    if H == 1:
        pytest.skip('LayerNorm of one number is its bias')
    check(np_feed(act), feed(fused, act), feed_values(draw, R, H, F), 1e-4)


@pytest.mark.parametrize('R, H, F', FEED)
@pytest.mark.parametrize('act', ACTS)
def test_feed_forward_equals_its_parts(fused, draw, R, H, F, act):
    agree(feed(fused, act, eps=1e-2), feed(plain, act, eps=1e-2),
          feed_values(draw, R, H, F), 5e-5)


def attend(m, offsets, lens, heads, biased=True, weights_p=0, p=0, eps=1e-5,
           **options):
    """The other half as a function of 11 arrays, or of 7 without biases."""
    options['grad_req'] = ('add',) * (10 if biased else 6)

    def function(X, *parameters):
        *rest, gamma, beta = parameters
        return m.self_attention(
            X, rest[:4], rest[4:], Norm(gamma, beta, p, eps),
            Rows(ints(offsets), ints(lens)), heads, weights_p, **options)
    return function


def attend_values(draw, R, H, biased=True):
    return [draw(R, H), *(draw(H, H) / math.sqrt(H) for _ in range(4)),
            *(draw(H) for _ in range(4 * biased)), draw(H), draw(H)]


def np_attend(offsets, lens, heads, factors=None, causal=False):
    def reference(X, *parameters):
        *rest, gamma, beta = parameters
        biases = [0] * 4 if len(rest) == 4 else rest[4:]
        Q, K, V = (X @ W.T + b for W, b in zip(rest[:3], biases))
        Y = np_attention(Q, K, V, offsets, lens, heads, factors, causal)
        return np_norm(X, Y @ rest[3].T + biases[3], gamma, beta)
    return reference


# Rows of each sequence, how many of them are keys, hiddens, heads
ATTEND = [([1], [1], 2, 1), ([3, 1, 30, 2], [3, 1, 17, 0], 10, 2),
          ([64, 17, 50, 0, 2], [64, 17, 50, 0, 2], 64, 2),
          ([33] * 30, [*range(4, 34)], 20, 5), ([300, 2], [290, 1], 48, 3)]


@pytest.mark.parametrize('biased, causal', [(True, False), (False, False),
                                            (True, True)])
@pytest.mark.parametrize('rows, lens, H, N', ATTEND)
def test_self_attention_is_its_float64_equation(fused, draw, rows, lens, H,
                                                N, biased, causal):
    offsets = numpy.cumsum([0, *rows])
    values = attend_values(draw, offsets[-1], H, biased)
    reference = np_attend(offsets, lens, N, causal=causal)
    function = attend(fused, offsets, lens, N, biased, causal=causal)
    if not biased:
        check(reference, function, values, 1e-4)
        return
    # The bias of keys adds the same number to all scores of a row. Its
    # gradient is zero up to rounding, without a slope to compare
    bias = values.pop(6)
    check(lambda *some: reference(*some[:6], bias, *some[6:]),
          lambda *some: function(*some[:6], array(bias), *some[6:]), values,
          1e-4)


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('rows, lens, H, N', ATTEND)
def test_self_attention_equals_its_parts(fused, draw, rows, lens, H, N,
                                         causal):
    offsets = numpy.cumsum([0, *rows])
    agree(attend(fused, offsets, lens, N, eps=1e-2, causal=causal),
          attend(plain, offsets, lens, N, eps=1e-2, causal=causal),
          attend_values(draw, offsets[-1], H), 5e-5)


class Apart:
    """The halves made of the operators for their parts, whatever their size.
    """

    def __init__(self, fused):
        for name in ('feed_forward', 'self_attention'):
            setattr(self, name, getattr(fused, name).__wrapped__)


def seeded(function):
    def run(*arrays):
        mx.random.seed(12)
        return function(*arrays)
    return run


@pytest.mark.parametrize('p', [0.0, 0.4])
def test_feed_forward_drops_what_its_parts_drop(fused, draw, p):
    agree(seeded(feed(fused, 'relu', p=p)),
          seeded(feed(Apart(fused), 'relu', p=p)),
          feed_values(draw, 90, 40, 50))


@pytest.mark.parametrize('weights_p, p', [(0.3, 0.0), (0.0, 0.3), (0.2, 0.4)])
def test_self_attention_drops_what_its_parts_drop(fused, draw, weights_p, p):
    agree(*(seeded(attend(m, [0, 40, 47, 60], [35, 7, 13], 2,
                          weights_p=weights_p, p=p))
            for m in (fused, Apart(fused))), attend_values(draw, 60, 40))


def test_halves_in_bf16_equal_their_parts(bf16, fused, draw):
    offsets, lens = [0, 40, 47, 60], [35, 7, 13]
    for half, values in (
            (lambda m: feed(m, 'gelu', precision='bf16'),
             feed_values(draw, 90, 41, 53)),
            (lambda m: attend(m, offsets, lens, 2, precision='bf16'),
             attend_values(draw, 60, 40))):
        # A number near the middle of two bfloat16 may round either way
        agree(half(fused), half(Apart(fused)), values, 1e-2)


def test_inference_saves_nothing_and_gives_the_same(fused, draw):
    offsets, lens = [0, 40, 47, 60], [35, 7, 13]
    for half, values in (
            (feed(fused, 'gelu', p=0.5), feed_values(draw, 90, 41, 53)),
            (attend(fused, offsets, lens, 2, p=0.5, weights_p=0.5),
             attend_values(draw, 60, 40))):
        arrays = [*map(array, values)]
        calm = half(*arrays).asnumpy()
        with autograd.record(train_mode=False):
            assert (half(*arrays).asnumpy() == calm).all()


def test_gradients_of_halves_accumulate(fused, draw):
    offsets, lens = [0, 40, 47, 60], [35, 7, 13]
    for half, values in (
            (feed(fused, 'tanh'), feed_values(draw, 90, 41, 53)),
            (attend(fused, offsets, lens, 2), attend_values(draw, 60, 40))):
        once = gradients(half, values)
        arrays = [*map(array, values)]
        for x in arrays:
            x.attach_grad('add')
        up = numpy.random.RandomState(6).randn(*values[0].shape)
        for _ in range(2):
            with autograd.record():
                Y = half(*arrays)
            Y.backward(array(up.astype('float32')))
        for x, wanted in zip(arrays, once[1:]):
            close(x.grad, 2 * wanted)


@pytest.mark.parametrize('missing', range(7))
def test_an_unneeded_gradient_changes_no_other(fused, draw, missing):
    values, half = feed_values(draw, 90, 41, 53), feed(fused, 'gelu')
    wanted = gradients(half, values)[1:]
    arrays = [*map(array, values)]
    for k, x in enumerate(arrays):
        if k != missing:
            x.attach_grad()
    with autograd.record():
        Y = half(*arrays)
    up = numpy.random.RandomState(6).randn(*Y.shape)
    Y.backward(array(up.astype('float32')))
    for k, (x, gradient) in enumerate(zip(arrays, wanted)):
        if k != missing:
            assert (x.grad.asnumpy() == gradient).all()


def test_a_row_does_not_depend_on_their_number(fused, draw):
    values = feed_values(draw, 290, 40, 70)
    X, parameters = values[0], [*map(array, values[1:])]
    for precision in ['fp32'] + ['bf16'] * kernels.bf16_supported():
        half = feed(fused, 'gelu', precision=precision)
        every = half(array(X), *parameters).asnumpy()
        for m in (1, 2, 13, 15, 200):
            got = half(array(X[-m:]), *parameters).asnumpy()
            assert (got == every[-m:]).all()


def test_a_sequence_does_not_depend_on_others(fused, draw):
    rows = numpy.random.RandomState(1).permutation(40) + 1
    offsets = numpy.cumsum([0, *rows])
    values = attend_values(draw, offsets[-1], 20)
    X, parameters = values[0], [*map(array, values[1:])]
    for precision in ['fp32'] + ['bf16'] * kernels.bf16_supported():
        every = attend(fused, offsets, rows, 2, precision=precision)(
            array(X), *parameters).asnumpy()
        for first, last in zip(offsets, offsets[1:]):
            one = attend(fused, [0, last - first], [last - first], 2,
                         precision=precision)
            got = one(array(X[first:last]), *parameters).asnumpy()
            assert (got == every[first:last]).all()


@pytest.mark.parametrize('offsets', [[1, 40, 60], [0, 40, 59], [0, 60, 40]],
                         ids=str)
def test_rows_of_no_sequence_are_refused(fused, draw, monkeypatch, offsets):
    # By the operator that does all at once, whatever this processor prefers
    monkeypatch.setattr(compiled, '_is_faster_as_one', lambda *arguments: True)
    half = attend(fused, offsets, [20, 20], 2)
    with pytest.raises(mx.base.MXNetError, match='from 0 to 60'):
        half(*map(array, attend_values(draw, 60, 40))).asnumpy()


def test_empty_inputs_give_empty_outputs(fused, draw):
    for half, values in ((feed(fused, 'relu'), feed_values(draw, 0, 8, 9)),
                         (attend(fused, [0, 0], [0], 2),
                          attend_values(draw, 0, 8))):
        for got, value in zip(gradients(half, values)[1:], values):
            assert got.shape == value.shape and not got.any()


def test_parts_replace_a_half_where_they_are_faster(fused, draw, monkeypatch):
    called = []

    def call(name, arrays, **attrs):
        called.append(name)
        return arrays
    monkeypatch.setattr(compiled, 'call', call)

    def taken(H, F, requests=('write',) * 6, shape=None, recording=True):
        called.clear()
        values = [*map(array, feed_values(draw, 6, H, F))]
        X = values[0] if shape is None else values[0].reshape(*shape)
        with autograd.record() if recording else autograd.pause():
            fused.feed_forward(X, values[1:4:2], values[2:5:2],
                               Norm(*values[5:]), 'relu', grad_req=requests)
        return called
    frozen = ('null', *('write',) * 5)
    parts = ['dense', 'dense', 'add_norm']
    if kernels.OPERATORS.get().d2lbert_goes_by_tiles(0, 64):
        pytest.skip('on this processor tiles do it, a product at a time')
    assert taken(64, 100) == ['feed_forward']
    assert taken(64, 100, frozen, recording=False) == ['feed_forward']
    assert taken(64, 100, frozen) == parts
    assert taken(64, 100, shape=(2, 3, 64)) == parts
    assert taken(600, 450) == parts


def test_a_half_without_saved_results_has_no_gradient(fused, draw):
    arrays = [*map(array, feed_values(draw, 9, 8, 7))]
    arrays[0].attach_grad()
    with autograd.record():
        Y, = compiled.call('feed_forward', arrays, act='relu', grad=0)
    with pytest.raises(mx.base.MXNetError, match='grad=0 has no gradient'):
        Y.backward()
        arrays[0].grad.asnumpy()


def test_a_half_refuses_an_activation_that_there_is_not(fused, draw):
    arrays = [*map(array, feed_values(draw, 9, 8, 7))]
    with pytest.raises(mx.base.MXNetError, match='act must be .* sigmoid'):
        compiled.call('feed_forward', arrays, act='sigmoid', grad=0)


def test_saved_results_belong_to_one_call(fused, draw):
    # Two calls before any gradient, and a gradient asked for twice
    values = feed_values(draw, 50, 24, 30)
    half = feed(fused, 'gelu')
    X, Z = array(values[0]), array(values[0] * 2 + 1)
    parameters = [*map(array, values[1:])]
    alone = []
    for x in (X, Z):
        x.attach_grad()
        with autograd.record():
            Y = half(x, *parameters)
        Y.backward()
        alone.append(x.grad.asnumpy())
    with autograd.record():
        first, second = half(X, *parameters), half(Z, *parameters)
    second.backward(retain_graph=True)
    first.backward(retain_graph=True)
    # Freed memory would be overwritten here
    np.ones((50, 30)).wait_to_read()
    second.backward()
    for x, wanted in zip((X, Z), alone):
        assert (x.grad.asnumpy() == wanted).all()
