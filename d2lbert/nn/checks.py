"""Check the inputs of a net, and move them between host and device.

A host array is a NumPy array. A device array is an MXNet array, on a CPU or on
a GPU. A shard is the part of a batch that one device computes.
"""
import ctypes

import numpy as onp

from d2lbert.machine.backend import mx, np


def on_device(X, ctx=None, dtype=None):
    """Return X, a host or device array, as a device array.

    A device array stays on its device, whatever ctx is. A host array is copied
    to ctx; None: MXNet's current device. dtype: the type of the result; None:
    the type of X.

    A copy to a CPU does not wait for other operators. MXNet's `np.array` would
    wait for all earlier operators, and MXNet's threads would then be idle
    while Python prepares the next operators.
    """
    if isinstance(X, np.ndarray):
        return X if dtype is None else X.astype(dtype, copy=False)
    X, ctx = onp.asarray(X), ctx or mx.current_context()
    dtype = onp.dtype(dtype or X.dtype)
    # `memmove` below copies only numbers (integers, floats, booleans) to a CPU
    if ctx.device_type != 'cpu' or not X.size or dtype.kind not in 'iufb':
        return np.array(X, dtype=dtype, ctx=ctx)
    X = onp.asarray(X, dtype, order='C')
    # No operator uses the new memory yet, so writing to it needs no waiting
    array, address = np.empty(X.shape, dtype, ctx=ctx), ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(
        array.handle, ctypes.byref(address)))
    ctypes.memmove(address, X.ctypes.data, X.nbytes)
    return array


def host(X):
    """Return X, a host or device array, as a host array."""
    return X.asnumpy() if isinstance(X, np.ndarray) else onp.asarray(X)


def _host_or_none(X):
    """X as a host array, or None if X is on a GPU."""
    if isinstance(X, np.ndarray):
        return X.asnumpy() if X.ctx.device_type == 'cpu' else None
    return onp.asarray(X)


def check_whole(X, name):
    """Raise ValueError if an element of X has a fraction or is NaN.

    MXNet would convert such an element to an integer without an error. Floats
    such as 3.0 are accepted: the book's valid_lens, for example, are floats.
    Arrays on a GPU are not checked. name: the name of an element in the
    message.
    """
    X = _host_or_none(X)
    if X is not None and X.dtype.kind == 'f':
        invalid = X[~(X == onp.floor(X))]       # NaN is not equal to itself
        if invalid.size:
            raise ValueError(f'{name} {invalid[0]} is not a whole number')


def check_ids(ids, bound, name):
    """Raise ValueError unless all ids are whole numbers from 0 to bound - 1.

    An empty array raises ValueError, too. Arrays on a GPU are not checked.
    name: the name of an id in the message.
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
    """Check tokens (B, T); return them, as a host array unless on a GPU.

    Raises ValueError for another shape, for B or T of 0, if T is more than
    `max_len`, or if `check_ids` refuses the ids. MXNet would clip an id that
    is out of range without an error.
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
    return host_unless_gpu(tokens)


def host_unless_gpu(X):
    """X as a host array, or X itself if X is on a GPU.

    X stays on a GPU, since a copy would wait for the GPU.
    """
    host_X = _host_or_none(X)
    return X if host_X is None else host_X


def number_of_blocks(num_layers, num_blks):
    """The number of blocks; exactly one of the two arguments must give it."""
    if (num_layers is None) == (num_blks is None):
        raise TypeError('give the number of blocks once, as num_layers or as '
                        f'num_blks, not {num_layers} and {num_blks}')
    return num_blks if num_layers is None else num_layers


def check_labels(net, vocab_size, mlm_Y, nsp_y):
    """Raise ValueError unless a net has a score for each label.

    vocab_size: the size of the vocabulary, which must be equal to the net's.
    mlm_Y: token ids. nsp_y: 0 or 1 for each pair. Labels on a GPU are not
    checked.
    """
    # The net of a user may lack `encoder.vocab_size` or `nsp`. The defaults of
    # `getattr` then make the check of the missing attribute pass
    net_vocab_size = getattr(getattr(net, 'encoder', None), 'vocab_size',
                             vocab_size)
    if vocab_size != net_vocab_size:
        raise ValueError(f'vocab_size is {vocab_size}, but the net has a '
                         f'vocabulary of {net_vocab_size}')
    if getattr(net, 'nsp', net) is None:
        raise ValueError('this net has no head for next sentences: use a net '
                         "with the heads pooler, mlm and nsp, as BERT's, or "
                         'train this net on masked words alone')
    check_ids(mlm_Y, vocab_size, 'label')
    check_ids(nsp_y, 2, 'nsp_y')


def predicts_real_tokens(shard):
    """True if a shard has predictions, all of them at real tokens.

    A real token is not padding. shard: a `texts.examples.Batch`. Its
    predictions of weight 0 only pad `pred_positions_X`, and are ignored.
    Raises ValueError for a position that `check_whole` refuses.
    """
    check_whole(shard.pred_positions_X, 'prediction position')
    # Masked token s is prediction p[s] of sequence b[s]
    b, p = onp.nonzero(host(shard.mlm_weights_X))
    positions = host(shard.pred_positions_X)[b, p]
    lens = host(shard.valid_lens_x).reshape(-1)[b]
    is_real = (positions >= 0) & (positions < lens)
    return len(is_real) > 0 and bool(is_real.all())
