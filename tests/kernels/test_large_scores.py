"""Softmaxes of large scores against MXNet's own operators in float64.

All scores are whole numbers that float32 and bfloat16 products give exactly,
so any error is an error of the softmax or of its gradient. Keys and words
come in pairs, so that there are ties, and gradients that are not zero, where
even neighbouring scores are far apart.
"""
import numpy
import pytest
from oracles import array, attention, ints, plain

from d2lbert.kernels import ops
from d2lbert.machine.backend import autograd

# (first column of the queries, factor of the others); a head of 16 numbers
# divides scores by 4
SIZES = {'1e2': (2**9, 1), '1e3': (2**12, 1), '1e4': (2**15, 1),
         '1e6': (2**22, 1), '1e8': (2**29, 64)}
HEADS, WIDTH = 2, 16
H = HEADS * WIDTH
FIRST = [head * WIDTH for head in range(HEADS)]     # the large columns
COLUMNS = slice(None), FIRST


@pytest.fixture(params=['fp32', 'bf16'])
def precision(request):
    if request.param == 'bf16':
        request.getfixturevalue('bf16')
    return request.param


@pytest.fixture(params=SIZES)
def size(request):
    return SIZES[request.param]


def small(*shape, pairs=True):
    """Whole numbers from -2 to 2; pairs: each row twice."""
    rows = numpy.random.RandomState(3).randint(-2, 3, shape)
    if pairs:
        rows[1::2] = rows[::2]
    return rows.astype('float32')


def gradients(function, values, dtype):
    """Value and gradients, as float64 NumPy arrays."""
    arrays = [array(value.astype(dtype)) for value in values]
    for x in arrays:
        x.attach_grad()
    with autograd.record():
        y = function(*arrays)
    up = numpy.random.RandomState(6).randn(*y.shape).astype('float32')
    y.backward(array(up.astype(dtype)))
    return [a.asnumpy().astype('float64')
            for a in [y, *(x.grad for x in arrays)]]


def near(got, wanted, tolerance):
    assert numpy.linalg.norm(got - wanted) <= (
        tolerance * numpy.linalg.norm(wanted))


def check(function, values, precision, zero={}, large={}):
    """Compare value and gradients, each by its norm.

    function(module, precision) returns the operator. zero, large: {position
    in value and gradients: index}. Entries of `zero` are zero up to the
    rounding of large numbers, and are not compared. Entries of `large` are
    compared separately.
    """
    wanted = gradients(function(plain, 'fp32'), values, 'float64')
    got = gradients(function(None, precision), values, 'float32')
    tolerance = 2e-5 if precision == 'fp32' else 3e-2
    for place, (one, other) in enumerate(zip(got, wanted)):
        if place in large:
            near(one[large[place]], other[large[place]], tolerance)
            one[large[place]] = other[large[place]] = 0
        if place in zero:
            one[zero[place]] = other[zero[place]] = 0
        near(one, other, tolerance)


def sequences():
    lens = [30, 8, 24]
    return ints(numpy.cumsum([0, *lens])), ints([30, 6, 24]), sum(lens)


def queries_and_keys(size):
    offsets, lens, R = sequences()
    Q, K = small(R, H, pairs=False) * size[1], small(R, H)
    Q[:, FIRST], K[:, FIRST] = size[0], 1
    V = numpy.random.RandomState(4).randn(R, H).astype('float32')
    return offsets, lens, Q, K, V


@pytest.mark.parametrize('sign', [1, -1])
def test_attention_and_its_gradient(fused, size, precision, sign):
    offsets, lens, Q, K, V = queries_and_keys(size)
    Q[:, FIRST] *= sign
    check(lambda m, p: lambda Q, K, V: attention(
        m or fused, Q, K, V, offsets, lens, HEADS, precision=p), [Q, K, V],
        precision, {1: COLUMNS}, {2: COLUMNS})


def test_half_a_block_and_its_gradient(fused, size, precision):
    offsets, lens, R = sequences()
    rng = numpy.random.RandomState(5)
    X = small(R, H)
    X[:, 0] = 1
    # Queries and keys are columns of X in another order
    Wq, Wk = (numpy.eye(H, dtype='float32')[rng.permutation(H)]
              for _ in range(2))
    for W in (Wq, Wk):
        W[:, 0] = 0
        W[FIRST] = 0
    Wq *= size[1]
    Wq[FIRST, 0], Wk[FIRST, 0] = size[0], 1
    others = [rng.randn(H, H).astype('float32') / 6 for _ in range(2)]
    gamma, beta = rng.randn(2, H).astype('float32')
    check(lambda m, p: lambda X, *W: (m or fused).self_attention(
        X, W[:4], (), ops.Norm(*W[4:], eps=1e-2), ops.Rows(offsets, lens),
        HEADS, precision=p), [X, Wq, Wk, *others, gamma, beta], precision,
        {1: (slice(None), 0), 2: FIRST}, {3: FIRST})


def vocabulary(size, M=70, V=300, H=16):
    X, W = small(M, H, pairs=False) * size[1], small(V, H)
    X[:, 0], W[:, 0] = size[0], 1
    rng = numpy.random.RandomState(8)
    return X, W, ints(rng.randint(0, V, M)), rng.rand(M).astype('float32')


def test_a_vocabulary_and_its_gradient(fused, size, precision):
    X, W, labels, weights = vocabulary(size)
    b = numpy.zeros(len(W), 'float32')
    check(lambda m, p: lambda X, W, b, w: (m or fused).vocab_ce(
        X, W, b, labels, w, precision=p), [X, W, b, weights], precision,
        {1: (slice(None), 0)}, {2: (slice(None), 0)})


@pytest.mark.parametrize('V', [300, 6])
def test_logits_and_their_gradient(fused, size, V):
    X, W, labels, weights = vocabulary(size, V=V)
    check(lambda m, p: lambda Z, w: (m or fused).softmax_ce(Z, labels, w),
          [X @ W.T, weights], 'fp32')


@pytest.mark.parametrize('temperature', [1.0, 2.0, 3.0])
def test_a_divergence_and_its_gradient(fused, size, temperature):
    X, W, *_ = vocabulary(size)
    taught = X @ W.T + numpy.random.RandomState(9).randint(
        -2, 3, (len(X), len(W))).astype('float32') * size[1]
    check(lambda m, p: lambda Z: (m or fused).divergence(
        Z, array(taught.astype(Z.dtype)), temperature), [X @ W.T], 'fp32')
