"""The operators of the models. Each one is declared here, once.

The docstring of a function here is the contract of an operator. Its body
defines the operator by MXNet's own operators, for every device and type.
`fused` has a function of the same name, which runs C++ code. That function is
called instead for float32 arrays on a CPU, if the compiled library is loaded.
Both return the same values, except for rounding. No other module chooses
between them.

To add an operator: write its C++ file and name it in `kernels.SOURCES`, then
write its definition here and its call in `fused`. README.md has the details.

Matrices are float32; indices, lengths and offsets are int32. precision is
'fp32' or 'bf16'. With 'bf16' matrix products round their operands to bfloat16
and sum in float32; only `fused` can do this. grad_req is one request for all
parameters or a tuple with one for each. 'write' and 'null' promise that the
gradient is not accumulated, which saves a copy of it.

B sequences, R rows, H hiddens, N heads, V words of a vocabulary.
"""
import functools
import inspect
import math
from typing import Any, NamedTuple

import numpy

from d2lbert import kernels
from d2lbert.kernels import fused
from d2lbert.machine.backend import mx, np, npx


def operator(argument):
    """Declare an operator by its definition; returns the operator.

    argument: the name of a positional argument, an array or a list of
    arrays. Its type and device choose between the function in `fused` and
    the definition. The function in `fused` has the arguments of the
    definition, and gets their defaults from here. It returns NotImplemented
    if the definition, made of other operators, is faster.
    """
    def declare(definition):
        parameters = list(inspect.signature(definition).parameters)
        compiled = getattr(fused, definition.__name__)
        if list(inspect.signature(compiled).parameters) != parameters:
            raise TypeError(f'the arguments of fused.{definition.__name__} '
                            f'must be {", ".join(parameters)}')
        compiled.__defaults__ = definition.__defaults__
        place = parameters.index(argument)

        @functools.wraps(definition)
        def apply(*args, **kwargs):
            arrays = args[place]
            if not isinstance(arrays, (list, tuple)):
                arrays = arrays,
            if kernels.enabled(*arrays):
                output = compiled(*args, **kwargs)
                if output is not NotImplemented:
                    return output
            return definition(*args, **kwargs)
        return apply
    return declare


def _namespaces(array):
    """MXNet's np and npx for arrays, or for symbols of a hybridized layer."""
    if isinstance(array, mx.symbol.Symbol):
        return mx.sym.np, mx.sym.npx
    return np, npx


def _check_fp32(precision):
    if precision != 'fp32':
        raise ValueError(f'precision {precision!r} needs the fused CPU '
                         f'operators, which are not in use here: choose '
                         f"'fp32'")


def check_precision(precision):
    """Raise ValueError for an unknown precision, or one this machine lacks."""
    if precision == 'fp32':
        return
    if precision != 'bf16':
        raise ValueError("precision must be 'fp32' or 'bf16', "
                         f'not {precision!r}')
    if not kernels.load():
        raise ValueError("precision='bf16' needs the fused operators, which "
                         f'are not there: {kernels.state().reason}')
    if not kernels.bf16_supported():
        raise ValueError("precision='bf16' needs a CPU with AVX-512 BF16 "
                         "instructions, which this one lacks: use 'fp32'")


# Dense layers

@operator('X')
def dense(X, W, b=None, units=None, act='none', precision='fp32',
          grad_req='add'):
    """act(X W^T + b), where act is none, relu, tanh, gelu or gelu_new.

    X (..., K), W (units, K), b (units,) or None; returns (..., units).
    units: needed for symbols only. X, W and b may be symbols.
    """
    _check_fp32(precision)
    _, npx = _namespaces(X)
    # If W needs no gradient, FullyConnected gives b a gradient of zero
    apart = b is not None and _requests(grad_req, 2) == ('null', 'write')
    bias = [] if b is None or apart else [b]
    Y = npx.fully_connected(X, W, *bias, no_bias=not bias, flatten=False,
                            num_hidden=units or W.shape[0])
    if apart:
        Y = Y + b
    return Y if act == 'none' else activation(Y, act)


def _requests(grad_req, count):
    """The request of each parameter, with 'write' in place of 'add'.

    In a definition MXNet's own operators add up gradients.
    """
    if isinstance(grad_req, str):
        grad_req = [grad_req] * count
    return tuple(req.replace('add', 'write') for req in grad_req)


@operator('X')
def joined_dense(X, weights, biases=(), precision='fp32', grad_req='add'):
    """The outputs of `dense` for several weights, side by side.

    X (..., K), weights (units, K) each, biases (units,) each, or none.
    grad_req: a tuple has the requests of the weights first. Returns
    (..., sum of units).
    """
    of_weights = set(_requests(grad_req, len(weights) + len(biases))
                     [:len(weights)])
    return dense(
        X, np.concatenate(weights), np.concatenate(biases) if biases else None,
        precision=precision,
        grad_req=('null' if of_weights == {'null'} else 'write', 'write'))


def activation(X, act):
    """Apply an activation of `dense` to an array or a symbol X (...)."""
    _, npx = _namespaces(X)
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

    X (..., H), gamma and beta (H,); returns (..., H). All may be symbols.
    """
    _, npx = _namespaces(X)
    return npx.layer_norm(X, gamma, beta, axis=-1, eps=eps)


@operator('X')
def add_norm(X, Y, gamma, beta, p=0, eps=1e-5, grad_req='add'):
    """LayerNorm(X + dropout(Y)) over the last axis.

    X and Y (..., H); gamma and beta (H,); p: dropout rate; returns (..., H).
    """
    return layer_norm(X + (npx.dropout(Y, p=p) if p else Y), gamma, beta, eps)


# Attention

@operator('QKV')
def attention_qkv(QKV, offsets, lens, num_heads, p=0, precision='fp32',
                  length=None, causal=False):
    """Softmax attention within sequences whose rows follow each other.

    QKV (R, 3H) holds queries, keys and values side by side. Sequence b has
    rows offsets[b] to offsets[b + 1], with offsets (B + 1,). All its rows are
    queries; the first lens[b] of them are keys, with lens (B,). p: dropout
    rate of the attention weights. length: the number of rows of every
    sequence, or None if they differ. causal: a query attends to no key after
    its own position. Returns (R, H), the heads joined; a row of a sequence
    without keys is zero.
    """
    _check_fp32(precision)
    if length is not None:
        return _attend_padded(QKV, lens, num_heads, p, length, causal)
    bounds = offsets.asnumpy()
    counts = numpy.diff(bounds)
    length = max(int(counts.max()), 1)
    # Indices of rows in the padded layout. Padding repeats some row, which
    # is masked
    columns = numpy.arange(length)
    spread = numpy.minimum(bounds[:-1, None] + columns, len(QKV) - 1)
    spread = np.array(spread, dtype='int32', ctx=QKV.ctx)
    real = numpy.flatnonzero(columns < counts[:, None])
    real = np.array(real, dtype='int32', ctx=QKV.ctx)
    return np.take(
        _attend_padded(np.take(QKV, spread.reshape(-1), axis=0), lens,
                       num_heads, p, length, causal), real, axis=0)


def _attend_padded(QKV, lens, num_heads, p, length, causal):
    """`attention_qkv` where all sequences have `length` rows."""
    def split_heads(X):     # (B*T, H) to (B*N, T, H/N)
        X = X.reshape(-1, length, num_heads, X.shape[-1] // num_heads)
        X = np.swapaxes(X, 1, 2)
        return X.reshape(-1, length, X.shape[-1])

    Q, K, V = map(split_heads, np.split(QKV, 3, axis=-1))
    # Gradients of a division by a number and by an array differ in bits
    root = np.full((1,), math.sqrt(Q.shape[-1]), dtype=Q.dtype, ctx=Q.ctx)
    scores = npx.batch_dot(Q / root, K, transpose_b=True)
    positions = np.arange(length, ctx=Q.ctx)
    seen = positions.reshape(1, 1, -1) < np.repeat(
        lens.astype('float32'), num_heads).reshape(-1, 1, 1)
    seen = seen.astype('float32')   # (B*N, 1, K)
    if causal:
        seen = seen * (positions.reshape(1, 1, -1) <= positions.reshape(
            1, -1, 1)).astype('float32')
    scores = scores * seen - 1e9 * (1 - seen)
    weights = npx.softmax(scores, axis=-1) * seen  # no keys, no weight
    if p:
        weights = npx.dropout(weights, p=p)
    Y = npx.batch_dot(weights, V).reshape(-1, num_heads, length, V.shape[-1])
    return np.swapaxes(Y, 1, 2).reshape(len(QKV), -1)


# The two halves of an encoder block

class Norm(NamedTuple):
    """The arguments of `add_norm` besides the two terms of the sum."""

    gamma: Any      # (H,)
    beta: Any       # (H,)
    p: float = 0    # dropout rate of the second term
    eps: float = 1e-5


class Rows(NamedTuple):
    """The places of B sequences in an (R, H) array of token rows.

    Sequence b owns rows offsets[b] to offsets[b+1]. Its first lens[b] rows
    are keys of its attention. `length` is the number of rows of each
    sequence, or None where sequences differ in it.
    """

    offsets: Any        # (B+1,) int32
    lens: Any           # (B,) int32
    length: Any = None


@operator('X')
def self_attention(X, weights, biases, norm, rows, num_heads, p=0,
                   precision='fp32', grad_req=('add',) * 10, causal=False):
    """LayerNorm(X + dropout(Wo attention(X) + bo)).

    X (R, H); weights (H, H) and biases (H,) of queries, keys, values and
    output; biases may be (). norm: a `Norm`; rows: `Rows`. p: dropout rate of
    the attention weights. grad_req: a tuple for weights, biases, gamma and
    beta. causal is as for `attention_qkv`. Returns (R, H).
    """
    of_weights, of_biases = grad_req[:4], grad_req[4:-2]
    QKV = joined_dense(X, weights[:3], biases[:3], precision,
                       of_weights[:3] + of_biases[:3])
    Y = attention_qkv(QKV, rows.offsets, rows.lens, num_heads, p, precision,
                      rows.length, causal)
    Y = dense(Y, weights[3], *biases[3:], precision=precision,
              grad_req=of_weights[3:] + of_biases[3:])
    return add_norm(X, Y, *norm, grad_req[-2:])


@operator('X')
def feed_forward(X, weights, biases, norm, act, precision='fp32',
                 grad_req=('add',) * 6):
    """LayerNorm(X + dropout(W2 act(W1 X + b1) + b2)).

    X (R, H); weights (F, H) and (H, F), biases (F,) and (H,); norm: a `Norm`.
    grad_req: a tuple for W1, b1, W2, b2, gamma and beta. act is as for
    `dense`. Returns (R, H).
    """
    Y = dense(X, weights[0], biases[0], None, act, precision, grad_req[:2])
    Y = dense(Y, weights[1], biases[1], precision=precision,
              grad_req=grad_req[2:4])
    return add_norm(X, Y, *norm, grad_req[4:])


# Rows of tables

@operator('W_tok')
def embed(tokens, segments, positions, W_tok, W_seg, W_pos, grad_req='add'):
    """W_tok[tokens] + W_seg[segments] + W_pos[positions].

    tokens, segments and positions (...) int32, tables (rows, H); returns
    (..., H). Indices out of range are clipped: check them before.
    """
    return (np.take(W_tok, tokens, axis=0)
            + np.take(W_seg, segments, axis=0)
            + np.take(W_pos, positions, axis=0))


@operator('X')
def take_rows(X, *lists):
    """Select rows of X (R, H) by several lists of row indices (S,).

    Returns an array (S, H) for each list. With one operator for all lists, X
    gets one gradient instead of one for each list. Indices out of range are
    clipped: check them before.
    """
    return [np.take(X, rows, axis=0) for rows in lists]


# Losses

@operator('X')
def vocab_ce(X, W, b, labels, weights, precision='fp32', grad_req='add'):
    """Cross-entropy of X W^T + b, summed over rows by their weights: (1,).

    X (M, H), W (V, H), b (V,), labels (M,) int32, weights (M,).
    """
    _check_fp32(precision)
    logits = dense(X, W, b, grad_req=grad_req)
    rows = -npx.pick(npx.log_softmax(logits, axis=-1), labels, axis=-1)
    return np.sum(rows * weights).reshape(1)


@operator('logits')
def softmax_ce(logits, labels, weights):
    """Cross-entropy of each row of logits (M, V), times its weight: (M,).

    labels (M,) int32, weights (M,).
    """
    return -npx.pick(npx.log_softmax(logits, axis=-1), labels,
                     axis=-1) * weights


@operator('scores')
def divergence(scores, taught, temperature):
    """KL(softmax(taught / T) || softmax(scores / T)) of each row: (M,).

    scores and taught (M, V). Only scores gets a gradient.
    """
    log_p = npx.log_softmax(taught.detach() / temperature, axis=-1)
    log_q = npx.log_softmax(scores / temperature, axis=-1)
    return np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)


# The optimizer

@operator('weights')
def adam(weights, grads, means, variances, rates, decays, beta1, beta2,
         epsilon, rescale=1.0, clip=0.0, ahead=False):
    """Update weights and running means in place by a step of Adam.

    The first four arguments are lists with an entry for each parameter: the
    weight, its gradient, and the running means of gradients and of their
    squares. All four have one shape, and are arrays of MXNet's older type.
    rates: learning rates, bias correction included. decays: the share that
    each weight loses. Gradients are multiplied by `rescale`. If their global
    norm is then above `clip`, they are scaled down to it; 0 means no limit.
    ahead: True if no prediction reads the weights at the moment. Otherwise
    the call waits for predictions to end.
    """
    if clip:
        # max returns its first argument if the second is NaN: no clipping
        rescale /= max(1.0, abs(rescale) * _norm(grads) / clip)
    for weight, grad, mean, variance, rate, decay in zip(
            weights, grads, means, variances, rates, decays):
        if decay:
            weight *= 1 - decay
        # The optimizer multiplies as it reads: no pass over the gradients
        mx.nd.adam_update(weight, grad, mean, variance, out=weight, lr=rate,
                          beta1=beta1, beta2=beta2, epsilon=epsilon,
                          rescale_grad=rescale, wd=0.0)


def _norm(arrays):
    """The common norm of all arrays, a float."""
    flat = [array.reshape(-1) for array in arrays]
    if arrays[0].ctx.device_type != 'gpu':
        # NumPy's dot product takes half as long as MXNet's
        flat = [array.asnumpy() for array in flat]
        return math.sqrt(sum(float(array.dot(array)) for array in flat))
    return math.sqrt(float(sum(mx.nd.dot(array, array) for array in flat)
                           .asscalar()))
