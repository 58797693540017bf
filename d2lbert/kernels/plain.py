"""The operators in MXNet's own, for any device, type and for symbols.

`ops` says what each does, and chooses between these and their twins in
`fused`.
"""

import functools
import math
import sys

import numpy

from d2lbert.kernels import halves
from d2lbert.kernels.fused import detached
from d2lbert.machine.backend import mx, np, npx

__all__ = ['activation', 'adam', 'add_norm', 'attention', 'attention_qkv',
           'dense', 'divergence', 'embed', 'feed_forward', 'joined_dense',
           'layer_norm', 'self_attention', 'softmax_ce', 'take_rows',
           'vocab_ce']


def _modules(array):
    if isinstance(array, mx.symbol.Symbol):
        return mx.sym.np, mx.sym.npx
    return np, npx


def _fp32(precision):
    if precision != 'fp32':
        raise ValueError(f'precision {precision!r} needs the fused CPU '
                         f'operators, which are not in use here: choose '
                         f"'fp32'")


def _requests(grad_req, count):
    """What each parameter wants of its gradient, 'add' being 'write'."""
    if isinstance(grad_req, str):
        grad_req = [grad_req] * count
    return tuple(req.replace('add', 'write') for req in grad_req)


def dense(X, W, b=None, units=None, act='none', precision='fp32',
          grad_req='add'):
    """act(X W^T + b); a symbol needs units."""
    _fp32(precision)
    _, npx = _modules(X)
    # Where nobody asks for the gradient of W, MXNet gives b one of zero
    apart = b is not None and _requests(grad_req, 2) == ('null', 'write')
    bias = [] if b is None or apart else [b]
    Y = npx.fully_connected(X, W, *bias, no_bias=not bias, flatten=False,
                            num_hidden=units or W.shape[0])
    if apart:
        Y = Y + b
    if act == 'none':
        return Y
    return activation(Y, act)


def joined_dense(X, weights, biases=(), precision='fp32', grad_req='add'):
    """X times several weights as times one."""
    wanted = set(_requests(grad_req, len(weights) + len(biases))
                 [:len(weights)])
    return dense(X, np.concatenate(weights),
                 np.concatenate(biases) if biases else None,
                 precision=precision,
                 grad_req=('null' if wanted == {'null'} else 'write', 'write'))


def activation(Y, act):
    """act(Y)."""
    _, npx = _modules(Y)
    if act == 'gelu':
        return npx.leaky_relu(Y, act_type='gelu')
    if act == 'gelu_new':
        bent = math.sqrt(2 / math.pi) * (Y + 0.044715 * Y * Y * Y)
        return 0.5 * Y * (1 + npx.activation(bent, act_type='tanh'))
    return npx.activation(Y, act_type=act)


def layer_norm(X, gamma, beta, eps=1e-5, grad_req='add'):
    """LayerNorm(X) over the last axis."""
    _, npx = _modules(X)
    return npx.layer_norm(X, gamma, beta, axis=-1, eps=eps)


def add_norm(X, Y, gamma, beta, p=0, eps=1e-5, grad_req='add'):
    """LayerNorm(X + dropout(Y)) over the last axis."""
    _, npx = _modules(X)
    dropped = npx.dropout(Y, p=p) if p else Y
    return layer_norm(X + dropped, gamma, beta, eps)


def attention(Q, K, V, offsets, lens, num_heads, p=0, precision='fp32',
              length=None, causal=False):
    """Attention by masking; without length the offsets are read on the host.
    """
    _fp32(precision)
    if length is not None:
        return _padded(Q, K, V, lens, num_heads, p, length, causal)
    if isinstance(Q, mx.symbol.Symbol):
        raise ValueError('attention in a symbol needs length, the number of '
                         'rows that every sequence has')
    bounds = offsets.asnumpy()
    counts = numpy.diff(bounds)
    length = max(int(counts.max()), 1)
    # Rows of the padded layout; short sequences repeat some row, unseen.
    columns = numpy.arange(length)
    spread = numpy.minimum(bounds[:-1, None] + columns, len(Q) - 1)
    spread = np.array(spread, dtype='int32', ctx=Q.ctx)
    owned = numpy.flatnonzero(columns < counts[:, None])
    owned = np.array(owned, dtype='int32', ctx=Q.ctx)
    Q, K, V = (np.take(X, spread.reshape(-1), axis=0) for X in (Q, K, V))
    return np.take(_padded(Q, K, V, lens, num_heads, p, length, causal),
                   owned, axis=0)


def _padded(Q, K, V, lens, num_heads, p, length, causal):
    np, npx = _modules(Q)

    def split_heads(X):  # (B*T, H) to (B*N, T, H/N)
        X = npx.reshape(X, (-6, -1, length, -2))
        X = npx.reshape(X, (-2, -2, -6, num_heads, -1))
        return npx.reshape(np.swapaxes(X, 1, 2), (-5, -2, -2))

    Q, K, V = split_heads(Q), split_heads(K), split_heads(V)
    # The scale of sqrt(H/N) without a shape: ones' product with themselves.
    size = np.sum(np.ones_like(Q), axis=-1, keepdims=True)
    scores = npx.batch_dot(Q / np.sqrt(size), K, transpose_b=True)
    seen = np.arange(length).reshape(1, 1, -1) < np.repeat(
        lens.astype('float32'), num_heads).reshape(-1, 1, 1)
    seen = seen.astype('float32')   # (B*N, 1, K)
    if causal:
        places = np.arange(length)
        seen = seen * (places.reshape(1, 1, -1) <= places.reshape(
            1, -1, 1)).astype('float32')
    scores = scores * seen - 1e9 * (1 - seen)
    weights = npx.softmax(scores, axis=-1) * seen  # no keys, no weight
    if p:
        weights = npx.dropout(weights, p=p)
    joined = npx.reshape(npx.batch_dot(weights, V),
                         (-6, -1, num_heads, -2, -2))
    return npx.reshape(np.swapaxes(joined, 1, 2), (-5, -5))


def attention_qkv(QKV, offsets, lens, num_heads, p=0, precision='fp32',
                  length=None, causal=False):
    """`attention` with Q, K and V side by side."""
    np, _ = _modules(QKV)
    Q, K, V = np.split(QKV, 3, axis=-1)
    return attention(Q, K, V, offsets, lens, num_heads, p, precision, length,
                     causal)


feed_forward = functools.partial(halves.feed_forward, sys.modules[__name__])
self_attention = functools.partial(halves.self_attention,
                                   sys.modules[__name__])


def embed(tokens, segments, positions, W_tok, W_seg, W_pos, grad_req='add'):
    """W_tok[tokens] + W_seg[segments] + W_pos[positions]."""
    np, _ = _modules(tokens)
    return (np.take(W_tok, tokens, axis=0)
            + np.take(W_seg, segments, axis=0)
            + np.take(W_pos, positions, axis=0))


def take_rows(X, *lists):
    """Rows of X at several lists of places."""
    np, _ = _modules(X)
    return [np.take(X, places, axis=0) for places in lists]


def vocab_ce(X, W, b, labels, weights, grad=None, precision='fp32',
             grad_req='add'):
    """Cross-entropy of X W^T + b."""
    _fp32(precision)
    np, npx = _modules(X)
    if isinstance(X, mx.symbol.Symbol):
        logits = np.dot(X, W.T) + b
    else:
        logits = dense(X, W, b, grad_req=grad_req)
    rows = -npx.pick(npx.log_softmax(logits, axis=-1), labels, axis=-1)
    loss = np.sum(rows * weights).reshape(1)
    return loss, detached(rows)


def softmax_ce(logits, labels, weights):
    """Each row's weighted cross-entropy."""
    _, npx = _modules(logits)
    return -npx.pick(npx.log_softmax(logits, axis=-1), labels,
                     axis=-1) * weights


def divergence(scores, taught, temperature):
    """Each row's divergence."""
    np, npx = _modules(scores)
    log_p = npx.log_softmax(detached(taught) / temperature, axis=-1)
    log_q = npx.log_softmax(scores / temperature, axis=-1)
    return np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)


def _norm(arrays):
    """The common norm of all arrays, a float."""
    flat = [array.reshape(-1) for array in arrays]
    if arrays[0].ctx.device_type != 'gpu':
        # NumPy's dot product takes half as long as MXNet's
        flat = [array.asnumpy() for array in flat]
        return math.sqrt(sum(float(array.dot(array)) for array in flat))
    return math.sqrt(float(sum(mx.nd.dot(array, array) for array in flat)
                           .asscalar()))


def adam(weights, grads, means, variances, rates, decays, beta1, beta2,
         epsilon, rescale=1.0, clip=0.0, ahead=False):
    """Steps of Adam, an array after the other."""
    if clip:
        # Not clipped by NaN, which max leaves out as its second argument
        rescale /= max(1.0, abs(rescale) * _norm(grads) / clip)
    for weight, grad, mean, variance, rate, decay in zip(
            weights, grads, means, variances, rates, decays):
        if decay:
            weight *= 1 - decay
        # The optimizer multiplies as it reads: no pass over the gradients
        mx.nd.adam_update(weight, grad, mean, variance, out=weight, lr=rate,
                          beta1=beta1, beta2=beta2, epsilon=epsilon,
                          rescale_grad=rescale, wd=0.0)
