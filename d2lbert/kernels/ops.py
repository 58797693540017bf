"""Declare the operators of all models, each of them once.

The docstring of a function is the contract of an operator. The body of the
function, the definition, computes the operator by MXNet's own operators, for
every device and type. `fused` has a function of the same name, which runs C++
code. That function is called instead for float32 arrays on a CPU, if the
compiled library is loaded. Without dropout, the two functions return the same
values, except for rounding. README.md explains how to add an operator.

Indices, lengths and offsets are int32. For `fused`, all other arrays are
float32. precision is 'fp32' or 'bf16'. With 'bf16' matrix products round their
operands to bfloat16 and sum in float32; only `fused` can do this. grad_req is
Gluon's request for the gradients of all parameters, or a tuple with a request
for each. By 'write' or 'null' the caller promises not to accumulate gradients,
which saves a copy.

B: sequences. R: rows, which are the tokens of all sequences. H: hidden units.
N: attention heads. V: size of the vocabulary. Other letters are any sizes.
"""
import functools
import inspect
import math
from typing import Any, NamedTuple

import numpy

from d2lbert import kernels
from d2lbert.kernels import fused
from d2lbert.machine.backend import mx, np, npx


def operator(dispatch_on):
    """Return a decorator that turns a definition into an operator.

    dispatch_on: the name of a positional argument, an array or a list of
    arrays. Its type and device decide whether the operator calls the function
    in `fused` or the definition. Both must have the same arguments; the
    function in `fused` gets the defaults of the definition. It may return
    NotImplemented, for example if the definition is faster. Then the
    definition is called.
    """
    def declare(definition):
        names = list(inspect.signature(definition).parameters)
        compiled = getattr(fused, definition.__name__)
        if list(inspect.signature(compiled).parameters) != names:
            raise TypeError(f'the arguments of fused.{definition.__name__} '
                            f'must be {", ".join(names)}')
        compiled.__defaults__ = definition.__defaults__
        index = names.index(dispatch_on)

        @functools.wraps(definition)
        def apply(*args, **kwargs):
            arrays = args[index]
            if not isinstance(arrays, (list, tuple)):
                arrays = arrays,
            if kernels.enabled(*arrays):
                output = compiled(*args, **kwargs)
                if output is not NotImplemented:
                    return output
            return definition(*args, **kwargs)
        return apply
    return declare


def _npx_of(X):
    """MXNet's npx for an array, or for a symbol of a hybridized layer."""
    return mx.sym.npx if isinstance(X, mx.symbol.Symbol) else npx


def _check_fp32(precision):
    if precision != 'fp32':
        raise ValueError(f'precision {precision!r} needs the fused CPU '
                         'operators, which are not in use for these arrays: '
                         "choose 'fp32'")


def check_precision(precision):
    """Raise ValueError unless this process can compute the precision."""
    if precision == 'fp32':
        return
    if precision != 'bf16':
        raise ValueError("precision must be 'fp32' or 'bf16', "
                         f'not {precision!r}')
    if not kernels.load():
        raise ValueError("precision='bf16' needs the fused operators, which "
                         f'are not loaded: {kernels.state().reason}')
    if not kernels.bf16_supported():
        raise ValueError("precision='bf16' needs a CPU with AVX-512 BF16 "
                         "instructions, which this one lacks: use 'fp32'")


# Dense layers

@operator('X')
def dense(X, W, b=None, units=None, act='none', precision='fp32',
          grad_req='add'):
    """act(X W^T + b).

    X (..., K), W (units, K), b (units,) or None; returns (..., units).
    X, W and b may be symbols. units: needed only if W is a symbol. act:
    'relu', 'tanh', 'gelu', 'gelu_new' or 'none'.
    """
    _check_fp32(precision)
    # If W needs no gradient, fully_connected gives b a gradient of zero
    adds_bias_later = (b is not None
                       and _without_add(grad_req, 2) == ('null', 'write'))
    bias = [] if b is None or adds_bias_later else [b]
    Y = _npx_of(X).fully_connected(
        X, W, *bias, no_bias=not bias, flatten=False,
        num_hidden=units or W.shape[0])
    if adds_bias_later:
        Y = Y + b
    return Y if act == 'none' else activation(Y, act)


def _without_add(grad_req, count):
    """A tuple: the requests of `count` parameters, 'add' replaced by 'write'.

    Definitions need no 'add': MXNet's own operators accumulate gradients.
    """
    if isinstance(grad_req, str):
        grad_req = [grad_req] * count
    return tuple(req.replace('add', 'write') for req in grad_req)


@operator('X')
def joined_dense(X, weights, biases=(), precision='fp32', grad_req='add'):
    """The outputs of `dense` for several weights, concatenated.

    X (..., K). weights: a list of arrays (units, K). biases: a list of arrays
    (units,), or () for none. A tuple grad_req has the requests of the weights
    first, then the requests of the biases. Returns (..., sum of all units).
    """
    requests = _without_add(grad_req, len(weights) + len(biases))
    weights_are_frozen = set(requests[:len(weights)]) == {'null'}
    return dense(
        X, np.concatenate(weights), np.concatenate(biases) if biases else None,
        precision=precision,
        grad_req=('null' if weights_are_frozen else 'write', 'write'))


def activation(X, act):
    """Return act(X) for an array or symbol X (...).

    act: as for `dense`, except 'none'.
    """
    npx = _npx_of(X)
    if act == 'gelu':
        return npx.leaky_relu(X, act_type='gelu')
    if act == 'gelu_new':
        inner = math.sqrt(2 / math.pi) * (X + 0.044715 * X * X * X)
        return 0.5 * X * (1 + npx.activation(inner, act_type='tanh'))
    return npx.activation(X, act_type=act)


# Layer normalization

@operator('X')
def layer_norm(X, gamma, beta, eps=1e-5, grad_req='add'):
    """LayerNorm(X) over the last axis.

    X (..., H), gamma (H,) and beta (H,), which may be symbols. Returns
    (..., H).
    """
    return _npx_of(X).layer_norm(X, gamma, beta, axis=-1, eps=eps)


@operator('X')
def add_norm(X, Y, gamma, beta, p=0, eps=1e-5, grad_req='add'):
    """LayerNorm(X + dropout(Y)) over the last axis.

    X and Y (..., H); gamma and beta (H,); p: dropout rate; returns (..., H).
    """
    return layer_norm(X + (npx.dropout(Y, p=p) if p else Y), gamma, beta, eps)


# Attention

@operator('QKV')
def attention_qkv(QKV, offsets, lens, num_heads, p=0, precision='fp32',
                  common_length=None, causal=False):
    """Self-attention within each of several sequences, without padding.

    QKV (R, 3H): the queries, keys and values of a token in one row. offsets
    (B + 1,): sequence b has the rows offsets[b] to offsets[b + 1] - 1. lens
    (B,): all rows of a sequence are queries, and the first lens[b] are keys.
    p: dropout rate of the attention weights. common_length: the number of rows
    of every sequence, or None if they differ. causal: True if a query attends
    to no key after its own position. Returns (R, H), the heads joined; a row
    of a sequence without keys is zero.
    """
    _check_fp32(precision)
    if common_length is not None:
        return _attend_padded(QKV, lens, num_heads, p, common_length, causal)
    offsets = offsets.asnumpy()
    row_counts = numpy.diff(offsets)    # of each sequence
    T = max(int(row_counts.max()), 1)
    positions = numpy.arange(T)
    # (B, T): the rows of QKV, padded. Padding may be any row: it is no key,
    # since it is after the first lens[b] rows
    padded_rows = numpy.minimum(offsets[:-1, None] + positions, len(QKV) - 1)
    padded_rows = np.array(padded_rows, dtype='int32', ctx=QKV.ctx)
    unpadded = numpy.flatnonzero(positions < row_counts[:, None])
    unpadded = np.array(unpadded, dtype='int32', ctx=QKV.ctx)
    Y = _attend_padded(np.take(QKV, padded_rows.reshape(-1), axis=0), lens,
                       num_heads, p, T, causal)
    return np.take(Y, unpadded, axis=0)


def _attend_padded(QKV, lens, num_heads, p, T, causal):
    """`attention_qkv` of B sequences with T rows each; QKV is (B*T, 3H)."""
    def split_heads(X):     # (B*T, H) to (B*N, T, H/N)
        X = X.reshape(-1, T, num_heads, X.shape[-1] // num_heads)
        X = np.swapaxes(X, 1, 2)
        return X.reshape(-1, T, X.shape[-1])

    Q, K, V = map(split_heads, np.split(QKV, 3, axis=-1))
    # An array, since dividing by a number would change bits of the gradient
    root = np.full((1,), math.sqrt(Q.shape[-1]), dtype=Q.dtype, ctx=Q.ctx)
    scores = npx.batch_dot(Q / root, K, transpose_b=True)
    positions = np.arange(T, ctx=Q.ctx)
    # (B*N, 1, T): 1 for keys, else 0
    is_key = positions.reshape(1, 1, -1) < np.repeat(
        lens.astype('float32'), num_heads).reshape(-1, 1, 1)
    is_key = is_key.astype('float32')
    if causal:
        # (B*N, T, T): for each query, 0 after its own position
        is_key = is_key * (positions.reshape(1, 1, -1) <= positions.reshape(
            1, -1, 1)).astype('float32')
    # A score of -1e9 has the weight 0, unless the query has no key
    scores = scores * is_key - 1e9 * (1 - is_key)
    weights = npx.softmax(scores, axis=-1) * is_key  # 0 without keys
    if p:
        weights = npx.dropout(weights, p=p)
    Y = npx.batch_dot(weights, V).reshape(-1, num_heads, T, V.shape[-1])
    return np.swapaxes(Y, 1, 2).reshape(len(QKV), -1)


# The two halves of an encoder block

class Norm(NamedTuple):
    """The arguments of `add_norm` from gamma to eps."""

    gamma: Any      # (H,)
    beta: Any       # (H,)
    p: float = 0    # dropout rate of Y
    eps: float = 1e-5


class Rows(NamedTuple):
    """The rows of each of B sequences in an array (R, H).

    The fields are arguments of `attention_qkv`.
    """

    offsets: Any                # (B + 1,) int32
    lens: Any                   # (B,) int32
    common_length: Any = None   # int, or None if the row counts differ


@operator('X')
def self_attention(X, weights, biases, norm, rows, num_heads, p=0,
                   precision='fp32', grad_req=('add',) * 10, causal=False):
    """LayerNorm(X + dropout(W_o attention(X) + b_o)).

    X (R, H). weights (H, H) and biases (H,): lists for queries, keys, values
    and output; biases may be (). norm: a `Norm`; norm.p is the rate of the
    dropout above. rows: a `Rows`. p, causal: as for `attention_qkv`. grad_req:
    a tuple with the requests of weights, biases, gamma and beta. Returns
    (R, H).
    """
    weight_requests, bias_requests = grad_req[:4], grad_req[4:-2]
    QKV = joined_dense(X, weights[:3], biases[:3], precision,
                       weight_requests[:3] + bias_requests[:3])
    Y = attention_qkv(QKV, rows.offsets, rows.lens, num_heads, p, precision,
                      rows.common_length, causal)
    Y = dense(Y, weights[3], *biases[3:], precision=precision,
              grad_req=weight_requests[3:] + bias_requests[3:])
    return add_norm(X, Y, *norm, grad_req[-2:])


@operator('X')
def feed_forward(X, weights, biases, norm, act, precision='fp32',
                 grad_req=('add',) * 6):
    """LayerNorm(X + dropout(W2 act(W1 X + b1) + b2)).

    X (R, H). weights: W1 (F, H) and W2 (H, F). biases: b1 (F,) and b2 (H,).
    norm: a `Norm`; norm.p is the rate of the dropout above. act: as for
    `dense`. grad_req: a tuple with the requests of W1, b1, W2, b2, gamma and
    beta. Returns (R, H).
    """
    Y = dense(X, weights[0], biases[0], None, act, precision, grad_req[:2])
    Y = dense(Y, weights[1], biases[1], precision=precision,
              grad_req=grad_req[2:4])
    return add_norm(X, Y, *norm, grad_req[4:])


# Rows of tables

@operator('W_tok')
def embed(tokens, segments, positions, W_tok, W_seg, W_pos, grad_req='add'):
    """W_tok[tokens] + W_seg[segments] + W_pos[positions].

    tokens, segments and positions (...) int32. W_tok (V, H). W_seg has a
    row for each segment, and W_pos for each position. Returns (..., H).
    Indices out of range are clipped: check them first.
    """
    return (np.take(W_tok, tokens, axis=0)
            + np.take(W_seg, segments, axis=0)
            + np.take(W_pos, positions, axis=0))


@operator('X')
def take_rows(X, *indices):
    """Select rows of X (R, H) by one or more arrays of row indices.

    Returns a list: for each array (S,) int32, an array (S, H). In C++, one
    call for all arrays gives X one gradient, so MXNet has none to add. Indices
    out of range are clipped: check them first.
    """
    return [np.take(X, rows, axis=0) for rows in indices]


# Losses

@operator('X')
def vocab_ce(X, W, b, labels, weights, precision='fp32', grad_req='add'):
    """The weighted sum of the cross-entropies of logits X W^T + b: (1,).

    X (M, H), W (V, H) and b (V,). labels (M,) int32 and weights (M,): the
    label and the weight of each row of X.
    """
    _check_fp32(precision)
    logits = dense(X, W, b, grad_req=grad_req)
    losses = -npx.pick(npx.log_softmax(logits, axis=-1), labels, axis=-1)
    return np.sum(losses * weights).reshape(1)


@operator('logits')
def softmax_ce(logits, labels, weights):
    """Cross-entropy of each row of logits (M, C), times its weight: (M,).

    labels (M,) int32, weights (M,).
    """
    return -npx.pick(npx.log_softmax(logits, axis=-1), labels,
                     axis=-1) * weights


@operator('scores')
def divergence(scores, teacher_scores, temperature):
    """KL(softmax(teacher_scores / T) || softmax(scores / T)) by row: (M,).

    scores (M, V), of a student; teacher_scores (M, V). T is the temperature.
    Only `scores` gets a gradient.
    """
    log_p = npx.log_softmax(teacher_scores.detach() / temperature, axis=-1)
    log_q = npx.log_softmax(scores / temperature, axis=-1)
    return np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)


# The optimizer

@operator('weights')
def adam(weights, grads, means, variances, rates, decays, beta1, beta2,
         epsilon, rescale=1.0, clip=0.0, ahead=False):
    """Update weights and running means in place by a step of Adam.

    The first six arguments are lists with an entry for each parameter.
    weights, grads, means, variances: `mx.nd.NDArray`s of the parameter's
    shape; the last two are running means of gradients and of their squares.
    rates: learning rates with bias correction. decays: the share of a weight
    that weight decay subtracts. Gradients are multiplied by `rescale`, then
    scaled down to a global norm of at most `clip`; clip=0 means no limit.
    ahead (only for `fused`): False waits until all pending operations on the
    weights have ended. True waits only for the previous update; the caller
    ensures that no prediction is pending.
    """
    if clip:
        global_norm = abs(rescale) * _global_norm(grads)
        # If the norm is NaN, max returns 1.0, and nothing is clipped
        rescale /= max(1.0, global_norm / clip)
    for weight, grad, mean, variance, rate, decay in zip(
            weights, grads, means, variances, rates, decays):
        if decay:
            weight *= 1 - decay
        # adam_update multiplies by rescale, which saves a pass over gradients
        mx.nd.adam_update(weight, grad, mean, variance, out=weight, lr=rate,
                          beta1=beta1, beta2=beta2, epsilon=epsilon,
                          rescale_grad=rescale, wd=0.0)


def _global_norm(arrays):
    vectors = [array.reshape(-1) for array in arrays]
    if arrays[0].ctx.device_type == 'gpu':
        total = sum(mx.nd.dot(vector, vector) for vector in vectors)
        return math.sqrt(float(total.asscalar()))
    # NumPy's dot product takes half as long as MXNet's
    vectors = [vector.asnumpy() for vector in vectors]
    return math.sqrt(sum(float(vector.dot(vector)) for vector in vectors))
