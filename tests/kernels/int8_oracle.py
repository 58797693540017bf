"""The eight-bit encoder in NumPy, and nets whose numbers need no generator.

`encode` follows the definition in int8.h operation by operation, so it gives
the same bits; with dtype float64 and quantized=False it is the net itself.
"""
import hashlib
import math

import numpy

GELU = [-1.28937336e-05, 4.39067117e-05, 0.000170603598, -0.000989309396,
        0.000643775449, 0.00609582756, -0.0216314644, 0.0357415527,
        -0.0317103453, 0.0122209834]
GELU_NEW = [-1.16602278e-05, 3.90460082e-05, 0.00016097496, -0.000932821655,
            0.000646985252, 0.00586810103, -0.021506343, 0.0360951237,
            -0.0319687091, 0.012087564]
EXP = [0.0082976548, 0.0419153832, 0.166675746, 0.499988943, 0.999999702,
       1.00000012]
F = numpy.float32


def polynomial(coefficients, x):
    total = numpy.full_like(x, F(coefficients[0]))
    for c in coefficients[1:]:
        total = total * x + F(c)
    return total


def exponential(x):
    if x.dtype != F:
        return numpy.exp(x)
    y = numpy.where(F(-87) > x, F(-87), x)
    shifted = y * F(1.44269504) + F(12582912)
    n = shifted - F(12582912)
    r = y - n * F(0.693359375)
    r = r + n * F(2.12194440e-4)
    found = polynomial(EXP, r) * numpy.ldexp(F(1), numpy.nan_to_num(n).astype(
        'int32'))
    return numpy.where(x < F(-86.6), F(0), found)


def activate(act, z):
    if act == 'none':
        return z
    if act == 'relu':
        return numpy.where(0 > z, z.dtype.type(0), z)
    if z.dtype == F:
        a = numpy.minimum(abs(z), F(4.5))
        q = polynomial(GELU if act == 'gelu' else GELU_NEW, a - F(2.25))
        return numpy.where(0 > z, F(0), z) - q * a
    if act == 'gelu':
        return z * (1 + numpy.vectorize(math.erf)(
            z / math.sqrt(2))) / 2
    return z * (1 + numpy.tanh(numpy.sqrt(2 / numpy.pi) * (
        z + 0.044715 * z ** 3))) / 2


def added_up(X):
    """The sums of rows X (R, H) in 16 lanes, which are folded in halves."""
    if X.dtype != F:
        return X.sum(axis=1)
    R, H = X.shape
    X = numpy.pad(X, ((0, 0), (0, -H % 16))).reshape(R, -1, 16)
    lanes = numpy.zeros((R, 16), F)
    for k in range(X.shape[1]):
        lanes = lanes + X[:, k]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def layer_norm(X, gamma, beta, epsilon):
    H = X.dtype.type(X.shape[1])
    off = X - (added_up(X) / H)[:, None]
    variance = added_up(off * off) / H
    scale = X.dtype.type(1) / numpy.sqrt(variance + X.dtype.type(epsilon))
    return off * scale[:, None] * gamma + beta


def quantize(X):
    """Rows X (R, K) float32 as whole numbers and scales (R,)."""
    top = abs(X).max(axis=1)
    some = numpy.where(top < F(1e-30), F(1), top)
    to = numpy.where(top < F(1e-30), F(0), F(127) / some)
    scale = numpy.where(top < F(1e-30), F(0), top / F(127))
    return numpy.rint(X * to[:, None]).astype('int64'), scale.astype(F)


def dense(X, W, bias, act='none', few=0, factor=1):
    """act(X Wᵀ + bias), the first few outputs before it times a factor."""
    times = numpy.ones(len(W), X.dtype)
    times[:few] = factor
    bias = (numpy.zeros(len(W), X.dtype) if bias is None
            else bias.astype(X.dtype) * times)
    if X.dtype != F:
        return activate(act, X @ W.T.astype(X.dtype) * times + bias)
    (q, scale), (w, by_column) = quantize(X), quantize(W)
    sums = (q @ w.T).astype(F)
    return activate(act, sums * (scale[:, None] * (by_column * times)) + bias)


def attention(QKV, num_heads):
    """Attention among the rows of one sequence (T, 3H), scaled before."""
    T, H = QKV.shape[0], QKV.shape[1] // 3
    D, found = H // num_heads, numpy.zeros((T, H), QKV.dtype)
    for n in range(num_heads):
        Q, K, V = (QKV[:, i * H + n * D:i * H + n * D + D] for i in range(3))
        scores = numpy.zeros((T, T), QKV.dtype)         # (keys, queries)
        for d in range(D):
            scores = scores + K[:, d, None] * Q[:, d]
        weights = exponential(scores - scores.max(axis=0))
        total = numpy.zeros(T, QKV.dtype)
        sums = numpy.zeros((T, D), QKV.dtype)
        for j in range(T):
            total = total + weights[j]
            sums = sums + weights[j, :, None] * V[j]
        found[:, n * D:n * D + D] = (1 / total)[:, None] * sums
    return found


def encode(net, offsets, ids, segments, layers=None, dtype=F):
    """What `int8.Encoder` gives of a `Net`; without rounding if float64."""
    def values(*arrays):
        return [None if a is None else a.astype(dtype) for a in arrays]
    words, kinds, places = values(*net.tables)
    lens = numpy.diff(offsets)
    at = numpy.concatenate([numpy.arange(n) for n in lens])
    X = words[ids] * dtype(net.factor)
    if kinds is not None:
        X = X + kinds[segments]
    X = X + places[at]
    if net.norm is not None:
        X = layer_norm(X, *values(*net.norm), net.epsilon)
    if net.projection is not None:
        X = dense(X, *net.projection)
    factor = dtype(1) / numpy.sqrt(dtype(X.shape[1] // net.num_heads))
    for k in net.order[:layers]:
        (qkv, out, inner, outer), (norm1, norm2) = net.blocks[k]
        QKV = dense(X, *qkv, few=X.shape[1], factor=factor)
        Y = numpy.concatenate([attention(QKV[a:b], net.num_heads)
                               for a, b in zip(offsets, offsets[1:])])
        X = layer_norm(X + dense(Y, *out), *values(*norm1), net.epsilon)
        Y = dense(dense(X, *inner, net.act), *outer)
        X = layer_norm(X + Y, *values(*norm2), net.epsilon)
    return X


# Numbers that any language makes alike

def numbers(count, seed, scale):
    """Even in (-scale, scale), a power of two; arm_int8.cc has the same."""
    x = numpy.arange(count, dtype='uint32') + numpy.uint32(seed * 7919)
    for factor in (0x9e3779b1, 0x85ebca77, 0xc2b2ae3d):
        x = x * numpy.uint32(factor)
        x = x ^ (x >> numpy.uint32(15))
    return ((x >> numpy.uint32(8)).astype('int64') - (1 << 23)).astype(F) * F(
        scale / (1 << 23))


class Net:
    """An encoder's arrays, as `int8.Encoder` takes them, unquantized."""

    def __init__(self, V=97, S=2, positions=90, E=None, H=72, F_=136,
                 num_heads=6, blocks=2, act='gelu', order=None, bias=True,
                 norm=True, scale=0.25, epsilon=1e-12, factor=1.):
        self._seed = 0
        embedded = E or H
        self.num_heads, self.act, self.epsilon = num_heads, act, epsilon
        self.order = list(range(blocks)) if order is None else order
        q, by_token = quantize(self.draw(1, V, embedded))
        self.words, self.factor = (q.astype('int8'), by_token), factor
        self.tables = [q.astype(F) * by_token[:, None],
                       self.draw(1, S, embedded) if S else None,
                       self.draw(1, positions, embedded)]
        self.norm = self.layer_norm(embedded) if norm else None
        self.projection = self.dense(H, E, scale, bias) if E else None
        self.blocks = [([self.dense(3 * H, H, scale, bias),
                         self.dense(H, H, scale, bias),
                         self.dense(F_, H, scale, bias),
                         self.dense(H, F_, scale, bias)],
                        [self.layer_norm(H), self.layer_norm(H)])
                       for _ in range(blocks)]

    def draw(self, scale, *shape):
        self._seed += 1
        return numbers(int(numpy.prod(shape)), self._seed, scale).reshape(
            shape)

    def dense(self, N, K, scale, bias):
        return self.draw(scale, N, K), self.draw(.5, N) if bias else None

    def layer_norm(self, n):
        return 1 + self.draw(.25, n), self.draw(.25, n)

    def encoder(self, int8):
        def quantized(layer):
            W, bias = layer
            return (*int8.quantize(W), bias)
        return int8.Encoder(
            (self.words, *self.tables[1:]), self.norm,
            self.projection and quantized(self.projection),
            [(list(map(quantized, layers)), norms)
             for layers, norms in self.blocks],
            self.num_heads, self.act, self.epsilon, self.factor)

    def texts(self, *lens):
        """offsets, ids and segments of sequences of these lengths."""
        offsets = numpy.concatenate([[0], numpy.cumsum(lens)]).astype('int64')
        words, kinds = (numpy.floor(
            (numbers(int(offsets[-1]), seed, 1) + 1) / 2 * size).astype(
                'int32') for seed, size in (
                    (1001, len(self.tables[0])),
                    (1002, 1 if self.tables[1] is None
                     else len(self.tables[1]))))
        return offsets, words, kinds


def digest(X):
    return hashlib.sha256(numpy.ascontiguousarray(X, '<f4').tobytes()
                          ).hexdigest()[:16]
