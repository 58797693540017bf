"""The operators in C++, for float32 arrays on a CPU.

`ops` declares them. Each function here has the arguments of the function of
the same name in `ops`, which gives it their defaults.
"""
import ctypes
import functools

from d2lbert import kernels
from d2lbert.machine.backend import autograd, mx, np, npx

_ones = {}  # context: an array of 64 ones

# Attributes whose value is the default of the C++ code are left out: each
# one that is passed costs microseconds in every call
_DEFAULTS = dict(act='none', precision='fp32', bias=1, causal=0, frozen=0,
                 lists=1, p=0, parts=1, weights_p=0)

#: Bytes of the largest weight gradient that a thread keeps in its cache.
CACHED_BYTES = 1 << 20


def call(name, arrays, **attrs):
    """Call an operator of the library; returns all its outputs as a list."""
    attrs = {key: value for key, value in attrs.items()
             if value != _DEFAULTS.get(key)}
    # Like a function of `mx.nd`, which would copy the handle of each array
    return mx.nd.register._imperative_invoke(
        _handle(f'd2lbert_{name}'), arrays, list(attrs), list(attrs.values()),
        None, True, True)


@functools.lru_cache(maxsize=None)
def _handle(name):
    """MXNet's handle of an operator."""
    handle = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.NNGetOpHandle(
        name.encode(), ctypes.byref(handle)))
    return handle.value


def _guarded(array):
    """Return the array, after an identity if its gradient may accumulate.

    An operator of an extension overwrites gradients, whatever their grad_req
    is. An operator of MXNet between this operator and the array adds them.
    """
    if autograd.is_recording() and array.grad is not None:
        # A reshape is a view: only its gradient costs a copy
        return array.as_nd_ndarray().reshape(array.shape).as_np_ndarray()
    return array


def _parameters(grad_req, *arrays):
    """The arrays, each `_guarded` if its request is 'add'."""
    return [_guarded(array) if req == 'add' else array
            for array, req in zip(arrays, _requests(grad_req, len(arrays)))]


def _requests(grad_req, count):
    return [grad_req] * count if isinstance(grad_req, str) else grad_req


def _are_frozen(grad_req, *arrays):
    """True if gradients are recorded, but no array needs a gradient."""
    requests = _requests(grad_req, len(arrays))
    return autograd.is_recording() and all(
        request == 'null' and array.grad is None
        for array, request in zip(arrays, requests))


def _dropout(like, p):
    """The dropout rate, and 64 random bits as a list of one array, or [].

    MXNet's own dropout draws the bits, so that MXNet's seed decides them.
    """
    if not p or not autograd.is_training():
        return 0, []
    if like.ctx not in _ones:
        _ones[like.ctx] = np.ones((64,), ctx=like.ctx)
    with autograd.pause():
        return p, [npx.dropout(_ones[like.ctx], p=0.5, mode='always')]


def dense(X, W, b, units, act, precision, grad_req):
    """`ops.dense`; the gradient of the activation is part of it."""
    attrs = {}
    if act.startswith('gelu'):
        attrs['grad'] = int(autograd.is_recording())
    return _product(X, [W], [] if b is None else [b], precision, grad_req,
                    act=act, **attrs)


def joined_dense(X, weights, biases, precision, grad_req):
    """`ops.joined_dense`; one matrix product reads X once."""
    return _product(X, weights, biases, precision, grad_req)


def _product(X, weights, biases, precision, grad_req, **attrs):
    frozen = _are_frozen(grad_req, *weights)
    if frozen:      # the operator does not write the gradient of weights
        weights = [weight.detach() for weight in weights]
    return call('dense', [
        _guarded(X), *_parameters(grad_req, *weights, *biases)],
        precision=precision, bias=int(bool(biases)), parts=len(weights),
        frozen=int(frozen), **attrs)[0]


def layer_norm(X, gamma, beta, eps, grad_req):
    """`ops.layer_norm`."""
    return call('add_norm',
                [_guarded(X), *_parameters(grad_req, gamma, beta)],
                eps=eps, adds=0)[0]


def add_norm(X, Y, gamma, beta, p, eps, grad_req):
    """`ops.add_norm`; the sum is computed again for the gradient."""
    p, noise = _dropout(X, p)
    return call('add_norm',
                [_guarded(X), _guarded(Y),
                 *_parameters(grad_req, gamma, beta), *noise], p=p, eps=eps)[0]


def attention_qkv(QKV, offsets, lens, num_heads, p, precision, length, causal):
    """`ops.attention_qkv`; the scores are never stored."""
    p, noise = _dropout(QKV, p)
    return call('attention_qkv', [_guarded(QKV), offsets, lens, *noise],
                num_heads=num_heads, p=p, precision=precision,
                causal=int(causal))[0]


def self_attention(X, weights, biases, norm, rows, num_heads, p, precision,
                   grad_req, causal):
    """`ops.self_attention` as one operator, a few sequences at a time."""
    if not _fits_cache(X, 3 * weights[0].size, precision, grad_req):
        return NotImplemented
    weights_p, weights_noise = _dropout(X, p)
    p, noise = _dropout(X, norm.p)
    return call('self_attention', [
        _guarded(X), *_parameters(grad_req, *weights, *biases, norm.gamma,
                                  norm.beta),
        rows.offsets, rows.lens, *weights_noise, *noise],
        num_heads=num_heads, weights_p=weights_p, p=p, eps=norm.eps,
        precision=precision, bias=int(bool(biases)), causal=int(causal),
        grad=int(autograd.is_recording()))[0]


def feed_forward(X, weights, biases, norm, act, precision, grad_req):
    """`ops.feed_forward` as one operator, a few rows at a time."""
    if not _fits_cache(X, weights[0].size, precision, grad_req):
        return NotImplemented
    p, noise = _dropout(X, norm.p)
    (W1, W2), (b1, b2) = weights, biases
    return call('feed_forward', [
        _guarded(X), *_parameters(grad_req, W1, b1, W2, b2, norm.gamma,
                                  norm.beta),
        *noise], act=act, p=p, eps=norm.eps, precision=precision,
        grad=int(autograd.is_recording()))[0]


def _fits_cache(X, size, precision, grad_req):
    """True if half a block is faster as one operator than as several.

    size: the size of the largest weight. Each thread needs a copy of its
    gradient in cache. Several operators are faster in two other cases: AMX
    tiles need more rows at a time than the cache holds, and gradients of
    frozen weights can be left out.
    """
    return (X.ndim == 2 and 4 * size <= CACHED_BYTES
            and not (autograd.is_recording() and 'null' in grad_req)
            and not kernels.OPERATORS.get().d2lbert_goes_by_tiles(
                int(precision == 'bf16'), ctypes.c_long(X.shape[1])))


def embed(tokens, segments, positions, W_tok, W_seg, W_pos, grad_req):
    """`ops.embed`."""
    return call('embed', [tokens, segments, positions,
                          *_parameters(grad_req, W_tok, W_seg, W_pos)])[0]


def take_rows(X, *lists):
    """`ops.take_rows`."""
    return call('rows', [_guarded(X), *lists], lists=len(lists))


def vocab_ce(X, W, b, labels, weights, precision, grad_req):
    """`ops.vocab_ce`; logits are never stored.

    While gradients are recorded, the forward pass computes them, too.
    """
    grad = autograd.is_recording()
    outputs = call(
        'vocab_ce',
        [_guarded(X), *_parameters(grad_req, W, b), labels, _guarded(weights)],
        grad=int(grad), precision=precision)
    return call('first', outputs, inputs=len(outputs))[0] if grad else (
        outputs[0])


def softmax_ce(logits, labels, weights):
    """`ops.softmax_ce`."""
    return call('softmax_ce',
                [_guarded(logits), labels, _guarded(weights)])[0]


def divergence(scores, taught, temperature):
    """`ops.divergence`; no softmax is ever stored."""
    return call('divergence', [_guarded(scores), taught.detach()],
                temperature=temperature)[0]


def adam(weights, grads, means, variances, rates, decays, beta1, beta2,
         epsilon, rescale, clip, ahead):
    """`ops.adam` in one pass, queued in MXNet's engine."""
    if not ahead:
        # In a prediction, Convolution and FullyConnected reorder weights for
        # oneDNN, which moves their memory: wait until predictions have ended
        for weight in weights:
            mx.base.check_call(
                mx.base._LIB.MXNDArrayWaitToWrite(weight.handle))
    handles = [array.handle for arrays in zip(weights, grads, means,
                                              variances) for array in arrays]
    count, double = len(weights), ctypes.c_double
    failed = kernels.OPERATORS.get().d2lbert_adam(
        _ndarray_functions(), ctypes.c_long(count),
        (ctypes.c_void_p * len(handles))(*handles), (double * count)(*rates),
        (double * count)(*decays), *map(double, (beta1, beta2, epsilon,
                                                 rescale, clip)))
    if failed == 2:
        mx.base.check_call(failed)      # raises MXNet's own error
    if failed == 3:
        raise MemoryError('no memory left for a step of Adam')
    if failed:
        raise ValueError('each weight must come once; a weight, its gradient '
                         'and its two running means must be dense arrays of '
                         'one size and float32 on a CPU')


@functools.lru_cache(maxsize=None)
def _ndarray_functions():
    """Addresses of MXNet's functions, in the order of `Arrays` in adam.cc."""
    library = mx.base._LIB
    functions = [getattr(library, f'MX{name}') for name in (
        'NDArrayWaitToRead', 'NDArrayGetContext', 'NDArrayGetDType',
        'NDArrayGetStorageType', 'NDArrayGetShapeEx', 'NDArrayGetData',
        'ShallowCopyNDArray', 'NDArrayFree', 'EnginePushSyncND')]
    return (ctypes.c_void_p * len(functions))(*[
        ctypes.cast(function, ctypes.c_void_p) for function in functions])
