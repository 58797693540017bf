"""Checks of the inputs of a net: device, range, whole numbers.

The host means NumPy; a device means MXNet, on a CPU or on a GPU.
"""
import ctypes

import numpy as onp

from d2lbert.machine.backend import mx, np


def on_device(X, ctx=None, dtype=None):
    """Return X, an array of the host or of a device, as a device array.

    A device array stays on its device. A host array is copied to ctx (None
    is MXNet's current device) at once. MXNet's own `np.array` would wait for
    all earlier operators, and the devices would be idle while Python prepares
    the next ones.
    """
    if isinstance(X, np.ndarray):
        return X if dtype is None else X.astype(dtype, copy=False)
    X, ctx = onp.asarray(X), ctx or mx.current_context()
    dtype = onp.dtype(dtype or X.dtype)
    if ctx.device_type != 'cpu' or not X.size or dtype.kind not in 'iufb':
        return np.array(X, dtype=dtype, ctx=ctx)
    X = onp.asarray(X, dtype, order='C')
    # No operator uses this memory yet, so it may be written without waiting
    array, memory = np.empty(X.shape, dtype, ctx=ctx), ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(
        array.handle, ctypes.byref(memory)))
    ctypes.memmove(memory, X.ctypes.data, X.nbytes)
    return array


def host(X):
    """Return X, an array of the host or of a device, as a host array."""
    return X.asnumpy() if isinstance(X, np.ndarray) else onp.asarray(X)


def _on_host(X):
    """X as a host array, or None if it is on a GPU."""
    if isinstance(X, np.ndarray):
        return X.asnumpy() if X.ctx.device_type == 'cpu' else None
    return onp.asarray(X)


def check_whole(X, name):
    """Raise ValueError for a number that is not whole.

    Floats with whole values are accepted, since some of the book's arrays
    hold them. MXNet would truncate other floats, and NaN, without an error.
    Arrays on a GPU are not read.
    """
    X = _on_host(X)
    if X is not None and X.dtype.kind == 'f':
        broken = X[~(X == onp.floor(X))]        # NaN is not equal to itself
        if broken.size:
            raise ValueError(f'{name} {broken[0]} is not a whole number')


def check_ids(ids, bound, name):
    """Raise ValueError for ids that are not whole numbers below bound.

    Arrays on a GPU are not read.
    """
    ids = _on_host(ids)
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
    """Return tokens (B, T) after checking them; on the host unless on a GPU.

    Raises ValueError for an empty batch, for more tokens than `max_len`, and
    for ids out of range, which MXNet would clip without an error.
    """
    shape = onp.shape(tokens)
    if len(shape) != 2 or 0 in shape:
        raise ValueError('tokens must be a batch of at least one row and '
                         f'one column, (B, T), not of shape {shape}')
    if shape[1] > max_len:
        raise ValueError(f'{shape[1]} tokens are more than the {max_len} '
                         'positions of this model: raise max_len or cut the '
                         'sequences')
    check_ids(tokens, vocab_size, 'token')
    return cheap_host(tokens)


def cheap_host(X):
    """X as a host array, or X itself if it is on a GPU."""
    found = _on_host(X)
    return X if found is None else found


def number_of_blocks(num_layers, num_blks):
    """The number of blocks, given once by either name."""
    if (num_layers is None) == (num_blks is None):
        raise TypeError('give the number of blocks once, as num_layers or as '
                        f'num_blks, not {num_layers} and {num_blks}')
    return num_blks if num_layers is None else num_layers


def check_labels(net, vocab_size, mlm_Y, nsp_y):
    """Raise ValueError for labels without a score, or a net without NSP."""
    own_size = getattr(getattr(net, 'encoder', None), 'vocab_size',
                       vocab_size)
    if vocab_size != own_size:
        raise ValueError(f'vocab_size is {vocab_size}, but the net has a '
                         f'vocabulary of {own_size}')
    if getattr(net, 'nsp', net) is None:
        raise ValueError('this net has no head for next sentences: give one '
                         "whose heads are pooler, mlm and nsp, as BERT's, or "
                         'train it for hidden words alone')
    check_ids(mlm_Y, vocab_size, 'label')
    check_ids(nsp_y, 2, 'nsp_y')


def are_real(shard):
    """True if a shard has predictions, all of them at real tokens.

    A prediction of weight 0 is padding and is ignored.
    """
    check_whole(shard.pred_positions_X, 'prediction position')
    b, p = onp.nonzero(host(shard.mlm_weights_X))
    positions = host(shard.pred_positions_X)[b, p]
    lens = host(shard.valid_lens_x).reshape(-1)[b]
    return bool(len(b)) and bool(((positions >= 0) & (positions < lens)).all())
