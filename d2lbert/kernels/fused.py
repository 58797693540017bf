"""The operators in C++, for float32 arrays on a CPU, and for symbols.

`ops` says what each does, and chooses between these and their twins in
`plain`.
"""

import ctypes
import functools
import itertools
import sys

from d2lbert import kernels
from d2lbert.kernels import halves
from d2lbert.machine.backend import autograd, mx, np, npx

__all__ = ['adam', 'add_norm', 'attention', 'attention_qkv', 'dense',
           'divergence', 'embed', 'feed_forward', 'joined_dense', 'layer_norm',
           'self_attention', 'softmax_ce', 'take_rows', 'vocab_ce']

_PARTS = sys.modules[__name__]
_uses = itertools.count()
_ones = {}  # by context

# What attributes are in C++ where they are not given: each that is takes
# microseconds, whenever an operator is called
_DEFAULTS = dict(act='none', precision='fp32', bias=1, causal=0, frozen=0,
                 lists=1, p=0, parts=1, weights_p=0)


def _symbolic(array):
    return isinstance(array, mx.symbol.Symbol)


def _call(name, arrays, **attrs):
    """All outputs of an operator, as a list."""
    attrs = {key: value for key, value in attrs.items()
             if value != _DEFAULTS.get(key)}
    if _symbolic(arrays[0]):
        outputs = getattr(mx.sym, name)(
            *[array.as_nd_ndarray() for array in arrays], **attrs)
        return [output.as_np_ndarray() for output in outputs]
    # What `mx.nd` would do, but for a copy of each array's handle
    return mx.nd.register._imperative_invoke(
        _handle(name), arrays, list(attrs), list(attrs.values()), None, True,
        True)


@functools.lru_cache(maxsize=None)
def _handle(name):
    """MXNet's number of an operator."""
    handle = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.NNGetOpHandle(
        name.encode(), ctypes.byref(handle)))
    return handle.value


def _guarded(array):
    """The array behind an identity, if its gradient may be added to.

    An extension operator writes its gradients whatever the request, so
    between it and an array with grad_req='add' there has to be an operator
    that knows how to add.
    """
    if _symbolic(array):
        # Many uses of one array are added up in place, whatever the array;
        # the attribute keeps their identities from being merged into one.
        return mx.sym.identity(
            array.as_nd_ndarray(),
            attr={'__use__': str(next(_uses))}).as_np_ndarray()
    if autograd.is_recording() and array.grad is not None:
        # A reshape is a view: only its gradient costs a copy.
        return array.as_nd_ndarray().reshape(array.shape).as_np_ndarray()
    return array


def detached(array):
    """The same values, without a gradient."""
    if _symbolic(array):
        return mx.sym.BlockGrad(array.as_nd_ndarray()).as_np_ndarray()
    return array.detach()


def _parameters(grad_req, *arrays):
    """The arrays, behind an identity where a gradient may be added to."""
    return [_guarded(array) if req == 'add' or _symbolic(array) else array
            for array, req in zip(arrays, _requests(grad_req, len(arrays)))]


def _requests(grad_req, count):
    return [grad_req] * count if isinstance(grad_req, str) else grad_req


def _frozen(grad_req, *arrays):
    """Whether a gradient is to come, and nobody wants that of any of these.

    A graph says nothing of it: it may be kept for longer than that holds.
    """
    requests = _requests(grad_req, len(arrays))
    return int(not _symbolic(arrays[0]) and autograd.is_recording() and all(
        request == 'null' and array.grad is None
        for array, request in zip(arrays, requests)))


def _noise(like, p):
    """Rate and noise: 64 random bits from the framework's own dropout.

    They obey its seed, and as they are all ones in prediction, a graph
    traced once drops in training alone.
    """
    if not p:
        return 0, []
    if _symbolic(like):
        return p, [mx.sym.npx.dropout(mx.sym.np.ones((64,)), p=0.5)]
    if not autograd.is_training():
        return 0, []
    if like.ctx not in _ones:
        _ones[like.ctx] = np.ones((64,), ctx=like.ctx)
    with autograd.pause():
        return p, [npx.dropout(_ones[like.ctx], p=0.5, mode='always')]


def dense(X, W, b=None, units=None, act='none', precision='fp32',
          grad_req='add'):
    """act(X W^T + b)."""
    attrs = {} if units is None else {'units': units}
    if act.startswith('gelu') and not _symbolic(X):
        attrs['grad'] = int(autograd.is_recording())
    return joined_dense(X, [W], [] if b is None else [b], precision,
                        grad_req, act=act, **attrs)


def joined_dense(X, weights, biases=(), precision='fp32', grad_req='add',
                 **attrs):
    """X times several weights as times one; attrs: what `dense` adds."""
    frozen = _frozen(grad_req, *weights)
    if frozen:      # the operator leaves its gradient as memory was
        weights = [*map(detached, weights)]
    return _call('d2lbert_dense', [
        _guarded(X), *_parameters(grad_req, *weights, *biases)],
        precision=precision, bias=int(bool(biases)), parts=len(weights),
        frozen=frozen, **attrs)[0]


def add_norm(X, Y, gamma, beta, p=0, eps=1e-5, grad_req='add'):
    """LayerNorm(X + dropout(Y)) over the last axis."""
    p, noise = _noise(X, p)
    return _call('d2lbert_add_norm',
                 [_guarded(X), _guarded(Y),
                  *_parameters(grad_req, gamma, beta), *noise],
                 p=p, eps=eps)[0]


def _in_cache(X, size, precision, grad_req):
    """Whether half of a block is best done at once, as the two below do it.

    size: of its largest weight, whose gradient each thread has for itself, in
    cache if it is small. Tiles take more rows at a time than stay there, and
    frozen weights are spared their gradients where each product is alone.
    """
    return (not _symbolic(X) and X.ndim == 2 and 4 * size <= 1 << 20
            and not (autograd.is_recording() and 'null' in grad_req)
            and not kernels.OPERATORS.get().d2lbert_goes_by_tiles(
                int(precision == 'bf16'), ctypes.c_long(X.shape[1])))


def feed_forward(X, weights, biases, gamma, beta, act, p=0, eps=1e-5,
                 precision='fp32', grad_req=('add',) * 6):
    """LayerNorm(X + dropout(W2 act(W1 X + b1) + b2))."""
    if not _in_cache(X, weights[0].size, precision, grad_req):
        return halves.feed_forward(_PARTS, X, weights, biases, gamma, beta,
                                   act, p, eps, precision, grad_req)
    p, noise = _noise(X, p)
    (W1, W2), (b1, b2) = weights, biases
    return _call('d2lbert_feed_forward', [
        _guarded(X), *_parameters(grad_req, W1, b1, W2, b2, gamma, beta),
        *noise], act=act, p=p, eps=eps, precision=precision,
        grad=int(autograd.is_recording()))[0]


def self_attention(X, weights, biases, gamma, beta, offsets, lens, num_heads,
                   weights_p=0, p=0, eps=1e-5, precision='fp32',
                   grad_req=('add',) * 10, length=None, causal=False):
    """LayerNorm(X + dropout(Wo attention(X) + bo)) within sequences."""
    if not _in_cache(X, 3 * weights[0].size, precision, grad_req):
        return halves.self_attention(
            _PARTS, X, weights, biases, gamma, beta, offsets, lens, num_heads,
            weights_p, p, eps, precision, grad_req, length, causal)
    weights_p, weights_noise = _noise(X, weights_p)
    p, noise = _noise(X, p)
    return _call('d2lbert_self_attention', [
        _guarded(X), *_parameters(grad_req, *weights, *biases, gamma, beta),
        offsets, lens, *weights_noise, *noise], num_heads=num_heads,
        weights_p=weights_p, p=p, eps=eps, precision=precision,
        bias=int(bool(biases)), causal=int(causal),
        grad=int(autograd.is_recording()))[0]


def layer_norm(X, gamma, beta, eps=1e-5, grad_req='add'):
    """LayerNorm(X) over the last axis."""
    return _call('d2lbert_add_norm',
                 [_guarded(X), *_parameters(grad_req, gamma, beta)],
                 eps=eps, adds=0)[0]


def attention(Q, K, V, offsets, lens, num_heads, p=0, precision='fp32',
              length=None, causal=False):
    """Softmax attention within sequences; the scores are never stored."""
    p, noise = _noise(Q, p)
    return _call('d2lbert_attention',
                 [_guarded(Q), _guarded(K), _guarded(V), offsets, lens,
                  *noise],
                 num_heads=num_heads, p=p, precision=precision,
                 causal=int(causal))[0]


def attention_qkv(QKV, offsets, lens, num_heads, p=0, precision='fp32',
                  length=None, causal=False):
    """`attention` with Q, K and V side by side."""
    p, noise = _noise(QKV, p)
    return _call('d2lbert_attention_qkv',
                 [_guarded(QKV), offsets, lens, *noise],
                 num_heads=num_heads, p=p, precision=precision,
                 causal=int(causal))[0]


def embed(tokens, segments, positions, W_tok, W_seg, W_pos, grad_req='add'):
    """The sum of three rows."""
    return _call('d2lbert_embed',
                 [tokens, segments, positions,
                  *_parameters(grad_req, W_tok, W_seg, W_pos)])[0]


def take_rows(X, *lists):
    """Rows of X at several lists of places."""
    return _call('d2lbert_rows', [_guarded(X), *lists], lists=len(lists))


def vocab_ce(X, W, b, labels, weights, grad=None, precision='fp32',
             grad_req='add'):
    """Cross-entropy of X W^T + b, whose scores are never stored.

    grad: whether gradients are computed, in the same pass; None means while
    recording (a symbol: always).
    """
    if grad is None:
        grad = _symbolic(X) or autograd.is_recording()
    found = _call(
        'd2lbert_vocab_ce',
        [_guarded(X), *_parameters(grad_req, W, b), labels, _guarded(weights)],
        grad=int(grad), precision=precision)
    loss, rows = found[0], detached(found[1])
    if grad:
        loss, = _call('d2lbert_first', found, inputs=len(found))
    return loss, rows


def softmax_ce(logits, labels, weights):
    """Each row's weighted cross-entropy."""
    return _call('d2lbert_softmax_ce',
                 [_guarded(logits), labels, _guarded(weights)])[0]


def divergence(scores, taught, temperature):
    """Each row's divergence, of which no softmax is ever stored."""
    return _call('d2lbert_divergence', [_guarded(scores), detached(taught)],
                 temperature=temperature)[0]


@functools.lru_cache(maxsize=None)
def _about_arrays():
    """Where those functions of MXNet's lie that `Arrays` of adam.cc names."""
    library = mx.base._LIB
    functions = [getattr(library, f'MX{name}') for name in (
        'NDArrayWaitToRead', 'NDArrayGetContext', 'NDArrayGetDType',
        'NDArrayGetStorageType', 'NDArrayGetShapeEx', 'NDArrayGetData',
        'ShallowCopyNDArray', 'NDArrayFree', 'EnginePushSyncND')]
    return (ctypes.c_void_p * len(functions))(*[
        ctypes.cast(function, ctypes.c_void_p) for function in functions])


def adam(weights, grads, means, variances, rates, decays, beta1, beta2,
         epsilon, rescale=1.0, clip=0.0, ahead=False):
    """Steps of Adam in one pass, which MXNet's engine takes in its turn."""
    if not ahead:
        # Convolution and FullyConnected turn the weights of a prediction to
        # an order of oneDNN's while they read them, and their memory moves
        for weight in weights:
            mx.base.check_call(
                mx.base._LIB.MXNDArrayWaitToWrite(weight.handle))
    handles = [array.handle for arrays in zip(weights, grads, means,
                                              variances) for array in arrays]
    count, double = len(weights), ctypes.c_double
    failed = kernels.OPERATORS.get().d2lbert_adam(
        _about_arrays(), ctypes.c_long(count),
        (ctypes.c_void_p * len(handles))(*handles), (double * count)(*rates),
        (double * count)(*decays), *map(double, (beta1, beta2, epsilon,
                                                 rescale, clip)))
    if failed == 2:
        mx.base.check_call(failed)      # raises what MXNet says
    if failed == 3:
        raise MemoryError('no memory left for a step of Adam')
    if failed:
        raise ValueError('each weight must come once, and it, its gradient '
                         'and its two means be float32 on a CPU, dense, and '
                         'of one size')
