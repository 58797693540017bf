"""Check the inputs of a net, and move them between host and device.

A host array is a NumPy array. A device array is an MXNet array, on a CPU or on
a GPU. The functions check_* do not read arrays on a GPU, since that would wait
for the GPU; `name` is the name of an element in their messages.
"""
import ctypes

import numpy as onp

from d2lbert.machine.backend import mx, np


def on_device(X, ctx=None, dtype=None):
    """Return X as a device array, converted to dtype if given.

    A device array stays on its device. A host array is copied to ctx, by
    default MXNet's current device.
    """
    if isinstance(X, mx.nd.NDArray):
        X = X.as_np_ndarray()
        return X if dtype is None else X.astype(dtype, copy=False)
    X, ctx = onp.asarray(X), ctx or mx.current_context()
    dtype = onp.dtype(dtype or X.dtype)
    can_memmove = ctx.device_type == 'cpu' and X.size and dtype.kind in 'iufb'
    if not can_memmove:
        return np.array(X, dtype=dtype, ctx=ctx)
    # MXNet's `np.array` would wait for all earlier operators. MXNet's threads
    # would then be idle while Python prepares the next operators
    X = onp.asarray(X, dtype, order='C')
    # No operator uses the new memory yet, so writing to it needs no waiting
    array, address = np.empty(X.shape, dtype, ctx=ctx), ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(
        array.handle, ctypes.byref(address)))
    ctypes.memmove(address, X.ctypes.data, X.nbytes)
    return array


def host(X):
    """Return X, a host or device array, as a host array."""
    return X.asnumpy() if isinstance(X, mx.nd.NDArray) else onp.asarray(X)


def _host_or_none(X):
    if isinstance(X, mx.nd.NDArray):
        return X.asnumpy() if X.ctx.device_type == 'cpu' else None
    return onp.asarray(X)


def check_whole(X, name):
    """Raise ValueError if an element of X has a fraction, or is not finite.

    MXNet would convert it to an integer without an error. Floats such as 3.0
    are accepted, since the book's valid_lens are floats.
    """
    X = _host_or_none(X)
    if X is not None and X.dtype.kind == 'f':
        invalid = X[(X != onp.floor(X)) | ~onp.isfinite(X)]
        if invalid.size:
            raise ValueError(f'{name} {invalid[0]} is not a whole number')


def check_lens(valid_lens, tokens):
    """Raise ValueError unless valid_lens fit tokens (B, T).

    They must be whole numbers, (B,) or (B, T).
    """
    check_whole(valid_lens, 'valid length')
    shape, tokens_shape = onp.shape(valid_lens), onp.shape(tokens)
    if shape not in (tokens_shape[:1], tokens_shape):
        raise ValueError(f'valid_lens {shape} do not fit tokens '
                         f'{tokens_shape}: give one number for each '
                         'sequence')


def check_ids(ids, bound, name):
    """Raise ValueError unless all ids are whole numbers from 0 to bound - 1.

    MXNet would clip an id that is out of range without an error. An empty
    array raises ValueError, too.
    """
    ids = _host_or_none(ids)
    if ids is None:
        return
    if not ids.size:
        raise ValueError(f'at least one {name} is needed, not an array of '
                         f'shape {ids.shape}')
    check_whole(ids, name)
    low, high = ids.min(), ids.max()
    if low < 0 or high >= bound:
        raise ValueError(f'{name} {low if low < 0 else high} is out of '
                         f'range: it must be 0 to {bound - 1}')


def check_tokens(tokens, vocab_size, max_len):
    """Check tokens (B, T); return them, as a host array unless on a GPU."""
    shape = onp.shape(tokens)
    if len(shape) != 2 or 0 in shape:
        raise ValueError('tokens must be a batch of at least one row and '
                         f'one column, (B, T), not of shape {shape}')
    if shape[1] > max_len:
        raise ValueError(f'{shape[1]} tokens are more than the {max_len} '
                         'positions of this model: raise max_len or cut the '
                         'sequences')
    check_ids(tokens, vocab_size, 'token')
    return host_unless_gpu(tokens)


def host_unless_gpu(X):
    """X as a host array, or X itself if X is on a GPU."""
    host_X = _host_or_none(X)
    return X if host_X is None else host_X


def number_of_blocks(num_layers, num_blks):
    """The number of blocks; exactly one of the two arguments must give it."""
    if (num_layers is None) == (num_blks is None):
        raise TypeError('give the number of blocks once, as num_layers or as '
                        f'num_blks, not {num_layers} and {num_blks}')
    return num_blks if num_layers is None else num_layers


def check_labels(net, vocab_size, mlm_Y, nsp_y):
    """Raise ValueError unless a net has a score for each label."""
    # A user's net may lack `encoder.vocab_size` or `nsp`: skip that check
    net_vocab_size = getattr(getattr(net, 'encoder', None), 'vocab_size',
                             vocab_size)
    if vocab_size != net_vocab_size:
        raise ValueError(f'vocab_size is {vocab_size}, but the net has a '
                         f'vocabulary of {net_vocab_size}')
    if hasattr(net, 'nsp') and net.nsp is None:
        raise ValueError('this net has no head for next sentences: use a net '
                         "with the heads pooler, mlm and nsp, as BERT's, or "
                         'train this net on masked words alone')
    check_ids(mlm_Y, vocab_size, 'label')
    check_ids(nsp_y, 2, 'nsp_y')


def predicts_real_tokens(shard):
    """True if a shard has predictions, all of them at real tokens.

    shard: a `texts.examples.Batch` of one device. Predictions of weight 0 are
    padding, and ignored. Returns False for fields of other shapes than those
    of `Batch`. Raises ValueError for a position with a fraction.
    """
    check_whole(shard.pred_positions_X, 'prediction position')
    shape = onp.shape(shard.pred_positions_X)
    if not (onp.shape(shard.mlm_weights_X) == onp.shape(shard.mlm_Y) == shape
            and onp.shape(shard.nsp_y) == shape[:1]
            and onp.shape(shard.valid_lens_x)[:1] == shape[:1]):
        return False
    sequences, slots = onp.nonzero(host(shard.mlm_weights_X))
    positions = host(shard.pred_positions_X)[sequences, slots]
    lens = host(shard.valid_lens_x).reshape(-1)[sequences]
    is_real = (positions >= 0) & (positions < lens)
    return len(is_real) > 0 and bool(is_real.all())
