"""Call the operators in C++, which take float32 arrays on a CPU.

Each public function, except `call`, has the name and the arguments of the
function in `ops` that calls it. `ops` explains the arguments, and
`ops.operator` sets their defaults.
"""
import ctypes
import functools
import itertools

from d2lbert import kernels
from d2lbert.machine.backend import autograd, mx, np, npx

_ones = {}  # {device: an array of 64 ones}

# Defaults of attributes in C++. `call` leaves out attributes with these
# values, since passing an attribute takes microseconds
_DEFAULTS = dict(act='none', precision='fp32', bias=1, causal=0, frozen=0,
                 lists=1, p=0, parts=1, weights_p=0)

#: Bytes of the largest weight gradient that fits into a thread's cache.
MAX_CACHED_BYTES = 1 << 20

# The statuses that d2lbert_adam returns (adam.cc)
_DONE, _UNSUPPORTED, _MXNET_FAILED, _NO_MEMORY = range(4)


def call(name, arrays, **attrs):
    """Call the operator d2lbert_`name`; returns the list of its outputs."""
    attrs = {key: value for key, value in attrs.items()
             if value != _DEFAULTS.get(key)}
    # The operator's function in `mx.nd` is slower: it copies arrays' handles.
    # The last arguments: out, is_np_op and output_is_list
    return mx.nd.register._imperative_invoke(
        _handle(f'd2lbert_{name}'), arrays, list(attrs), list(attrs.values()),
        None, True, True)


@functools.lru_cache(maxsize=None)
def _handle(name):
    """MXNet's handle of an operator by its full name."""
    handle = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.NNGetOpHandle(
        name.encode(), ctypes.byref(handle)))
    return handle.value


def _guarded(array):
    """Return the array, or a view if it has `grad` and gradients are recorded.

    An extension operator overwrites the gradients of its inputs, also with
    grad_req='add'. A view has a gradient of its own, which MXNet's reshape
    adds to the gradient of the array.
    """
    if autograd.is_recording() and array.grad is not None:
        # A reshape to the same shape costs a copy only in the backward pass
        return array.as_nd_ndarray().reshape(array.shape).as_np_ndarray()
    return array


def _parameters(grad_req, *arrays):
    """A list of the arrays, each `_guarded` if its request is 'add'."""
    requests = _requests(grad_req, len(arrays))
    return [_guarded(array) if request == 'add' else array
            for array, request in zip(arrays, requests)]


def _requests(grad_req, count):
    """grad_req as a sequence; a string is repeated `count` times."""
    return [grad_req] * count if isinstance(grad_req, str) else grad_req


def _are_frozen(grad_req, *arrays):
    """True if gradients are recorded, but none of these arrays needs one.

    grad_req may have further requests, after the requests of these arrays.
    """
    requests = _requests(grad_req, len(arrays))
    return autograd.is_recording() and all(
        request == 'null' and array.grad is None
        for array, request in zip(arrays, requests))


def _dropout(X, p):
    """(rate, noise) for an operator with dropout of rate p, on X's device.

    noise: a list with the input that seeds dropout. It is MXNet's own dropout
    of 64 ones, so it depends on MXNet's seed. If p is 0, or outside of
    training, the rate is 0 and the list is empty.
    """
    if not p or not autograd.is_training():
        return 0, []
    if X.ctx not in _ones:
        _ones[X.ctx] = np.ones((64,), ctx=X.ctx)
    with autograd.pause():
        return p, [npx.dropout(_ones[X.ctx], p=0.5, mode='always')]


def dense(X, W, b, units, act, precision, grad_req):
    """`ops.dense`, with its activation in the same operator."""
    attrs = {}
    if act.startswith('gelu'):
        # With grad=1, the operator stores the argument of GELU, which the
        # gradient needs
        attrs['grad'] = int(autograd.is_recording())
    return _product(X, [W], [] if b is None else [b], precision, grad_req,
                    act=act, **attrs)


def joined_dense(X, weights, biases, precision, grad_req):
    """`ops.joined_dense` as one matrix product, which reads X once."""
    return _product(X, weights, biases, precision, grad_req)


def _product(X, weights, biases, precision, grad_req, **attrs):
    """`ops.joined_dense` with an activation; attrs: `act` and `grad`."""
    are_frozen = _are_frozen(grad_req, *weights)
    if are_frozen:
        # The operator then leaves the gradients of the weights unwritten, so
        # the weights must not be part of the recorded graph
        weights = [weight.detach() for weight in weights]
    return call('dense', [
        _guarded(X), *_parameters(grad_req, *weights, *biases)],
        precision=precision, bias=int(bool(biases)), parts=len(weights),
        frozen=int(are_frozen), **attrs)[0]


def layer_norm(X, gamma, beta, eps, grad_req):
    return call('add_norm',
                [_guarded(X), *_parameters(grad_req, gamma, beta)],
                eps=eps, adds=0)[0]     # there is no Y to add


def add_norm(X, Y, gamma, beta, p, eps, grad_req):
    """`ops.add_norm`; the backward pass computes X + dropout(Y) again."""
    p, noise = _dropout(X, p)
    return call('add_norm',
                [_guarded(X), _guarded(Y),
                 *_parameters(grad_req, gamma, beta), *noise],
                p=p, eps=eps)[0]


def attention_qkv(QKV, offsets, lens, num_heads, p, precision, common_length,
                  causal):
    """`ops.attention_qkv`; the scores are never stored as an array."""
    p, noise = _dropout(QKV, p)
    return call('attention_qkv', [_guarded(QKV), offsets, lens, *noise],
                num_heads=num_heads, p=p, precision=precision,
                causal=int(causal))[0]


def self_attention(X, weights, biases, norm, rows, num_heads, p, precision,
                   grad_req, causal):
    """`ops.self_attention` as one operator, a few sequences at a time."""
    # The largest weight joins the weights of queries, keys and values
    if not _is_faster_as_one(X, 3 * weights[0].size, precision, grad_req):
        return NotImplemented
    attention_p, attention_noise = _dropout(X, p)
    output_p, output_noise = _dropout(X, norm.p)
    return call('self_attention', [
        _guarded(X), *_parameters(grad_req, *weights, *biases, norm.gamma,
                                  norm.beta),
        rows.offsets, rows.lens, *attention_noise, *output_noise],
        num_heads=num_heads, weights_p=attention_p, p=output_p, eps=norm.eps,
        precision=precision, bias=int(bool(biases)), causal=int(causal),
        grad=int(autograd.is_recording()))[0]


def feed_forward(X, weights, biases, norm, act, precision, grad_req):
    """`ops.feed_forward` as one operator, a few rows at a time."""
    if not _is_faster_as_one(X, weights[0].size, precision, grad_req):
        return NotImplemented
    p, noise = _dropout(X, norm.p)
    (W1, W2), (b1, b2) = weights, biases
    return call('feed_forward', [
        _guarded(X), *_parameters(grad_req, W1, b1, W2, b2, norm.gamma,
                                  norm.beta),
        *noise], act=act, p=p, eps=norm.eps, precision=precision,
        grad=int(autograd.is_recording()))[0]


def _is_faster_as_one(X, max_weight_size, precision, grad_req):
    """True if one operator can compute half a block, and is the fastest way.

    Several operators are faster in three cases:

    - The gradient of the largest weight does not fit into the cache of a
      thread. Each thread sums it over its rows.
    - A parameter is frozen. An operator for each product can leave out its
      gradient.
    - AMX tiles compute the products, which need more rows at a time than fit
      into cache.
    """
    fits_cache = 4 * max_weight_size <= MAX_CACHED_BYTES
    has_frozen = autograd.is_recording() and 'null' in grad_req
    if X.ndim != 2 or not fits_cache or has_frozen:
        return False
    uses_tiles = kernels.OPERATORS.get().d2lbert_goes_by_tiles(
        int(precision == 'bf16'), ctypes.c_long(X.shape[1]))
    return not uses_tiles


def embed(tokens, segments, positions, W_tok, W_seg, W_pos, grad_req):
    return call('embed', [tokens, segments, positions,
                          *_parameters(grad_req, W_tok, W_seg, W_pos)])[0]


def take_rows(X, *indices):
    return call('rows', [_guarded(X), *indices], lists=len(indices))


def vocab_ce(X, W, b, labels, weights, precision, grad_req):
    """`ops.vocab_ce`; the logits are never stored as an array.

    If gradients are recorded, the forward pass also computes the gradients.
    """
    is_recording = autograd.is_recording()
    outputs = call(
        'vocab_ce',
        [_guarded(X), *_parameters(grad_req, W, b), labels, _guarded(weights)],
        grad=int(is_recording), precision=precision)
    if not is_recording:
        return outputs[0]
    # Without `first`, MXNet would fill the gradients of the outputs after the
    # loss with zeros
    return call('first', outputs, inputs=len(outputs))[0]


def softmax_ce(logits, labels, weights):
    return call('softmax_ce',
                [_guarded(logits), labels, _guarded(weights)])[0]


def divergence(scores, teacher_scores, temperature):
    """`ops.divergence`; the probabilities are never stored as an array."""
    return call('divergence', [_guarded(scores), teacher_scores.detach()],
                temperature=temperature)[0]


def adam(weights, grads, means, variances, rates, decays, beta1, beta2,
         epsilon, rescale, clip, ahead):
    """`ops.adam` in one call, which queues the step in MXNet's engine."""
    if not ahead:
        # d2lbert_adam stores the addresses of the weights, but in a pending
        # prediction MXNet's Convolution or FullyConnected may move a weight to
        # other memory, in a layout of oneDNN
        for weight in weights:
            mx.base.check_call(
                mx.base._LIB.MXNDArrayWaitToWrite(weight.handle))
    parameters = zip(weights, grads, means, variances)
    handles = [array.handle
               for array in itertools.chain.from_iterable(parameters)]
    count, double = len(weights), ctypes.c_double
    status = kernels.OPERATORS.get().d2lbert_adam(
        _ndarray_functions(), ctypes.c_long(count),
        (ctypes.c_void_p * len(handles))(*handles), (double * count)(*rates),
        (double * count)(*decays), *map(double, (beta1, beta2, epsilon,
                                                 rescale, clip)))
    if status == _MXNET_FAILED:
        mx.base.check_call(status)      # raises MXNet's own error
    if status == _NO_MEMORY:
        raise MemoryError('no memory left for a step of Adam')
    if status != _DONE:
        raise ValueError(
            'weights and running means must be different arrays; a weight, '
            'its gradient and its two running means must be dense float32 '
            'arrays of one size on a CPU')


@functools.lru_cache(maxsize=None)
def _ndarray_functions():
    """Addresses of MXNet functions, in the order of `MXNetFunctions`."""
    library = mx.base._LIB
    functions = [getattr(library, f'MX{name}') for name in (
        'NDArrayWaitToRead', 'NDArrayGetContext', 'NDArrayGetDType',
        'NDArrayGetStorageType', 'NDArrayGetShapeEx', 'NDArrayGetData',
        'ShallowCopyNDArray', 'NDArrayFree', 'EnginePushSyncND')]
    return (ctypes.c_void_p * len(functions))(*[
        ctypes.cast(function, ctypes.c_void_p) for function in functions])
