"""A BERT encoder at eight bits in C++ (int8.cc), on NumPy arrays.

A dense layer has N outputs and K inputs. B sequences have R rows, one for each
token, one sequence after the other. H hiddens, E the width of embeddings.
"""
import ctypes
import weakref

import numpy as onp

from d2lbert.kernels import Library

#: Activations, in the order of `Act` in int8.h.
ACTS = 'none', 'relu', 'gelu', 'gelu_new'

#: The output for a sequence: all rows, the first, or the mean of all rows. In
#: the order of `Rows` in int8.cc.
ROWS = 'all', 'first', 'mean'


def _opened(path):
    library = ctypes.CDLL(str(path))

    def array(dtype):
        return onp.ctypeslib.ndpointer(dtype, flags='C_CONTIGUOUS')

    f32, i8, i32 = array('float32'), array('int8'), array('int32')
    i64, number, pointer = array('int64'), ctypes.c_int64, ctypes.c_void_p
    flag, real = ctypes.c_int, ctypes.c_double
    library.int8_product.restype = ctypes.c_char_p
    for name, *argtypes in (
            ('quantize', f32, number, number, i8, f32),
            ('apply', number, number, number, f32, i8, f32, pointer, flag,
             f32),
            ('new', i64, real, i8, f32, real, pointer, f32,
             ctypes.POINTER(pointer)),
            ('put_dense', pointer, number, number, number, i8, f32, pointer),
            ('put_norm', pointer, number, f32, f32),
            ('encode', pointer, number, i64, i32, i32, number, i32, real,
             flag, f32),
            ('free', pointer)):
        function = getattr(library, f'int8_{name}')
        function.argtypes = argtypes
        if name in ('quantize', 'free'):
            function.restype = None
        else:
            function.restype, function.errcheck = flag, _check
    return library


def _check(status, function, arguments):
    """Raise the exception for a Status of door.h other than 0."""
    if status == 1:
        raise MemoryError('no memory left for an encoder at eight bits')
    if status:
        raise ValueError('a token, a segment or a length is outside of what '
                         'the encoder has')
    return status


# Without fused multiply-add, all processors round alike
INT8 = Library('int8', ['int8.cc'], _opened, what='the eight-bit encoder',
               options=('-ffp-contract=off',))


def library():
    """The compiled library; None without a compiler or with kernels off."""
    return INT8.get()


def product():
    """The instructions that multiply, in words; None without a library."""
    compiled = library()
    return compiled and compiled.int8_product().decode()


def quantize(W):
    """Quantize weights W (N, K) float32, with a scale for each output.

    Returns whole numbers q (N, K) int8 from -127 to 127 and scales (N,)
    float32: W is about q * scales[:, None].
    """
    W = onp.ascontiguousarray(W, 'float32')
    q, scale = onp.empty(W.shape, 'int8'), onp.empty(len(W), 'float32')
    library().int8_quantize(W, *W.shape, q, scale)
    return q, scale


def _address(array):
    return None if array is None else array.ctypes.data


def dense(X, q, scale, bias=None, act='none'):
    """act(X Wᵀ + bias) for W = q * scale[:, None], (R, N) float32.

    X (R, K); q, scale: as `quantize` returns them. Each row of X is quantized
    in the same way.
    """
    X = onp.ascontiguousarray(X, 'float32')
    Y = onp.empty((len(X), len(q)), 'float32')
    library().int8_apply(len(X), *q.shape, X, q, scale, _address(bias),
                         ACTS.index(act), Y)
    return Y


class Encoder:
    """An encoder in C++, built from quantized layers.

    A dense layer is a tuple (q, scale, bias), with q and scale as `quantize`
    returns them; bias may be None. A LayerNorm is a tuple (gamma, beta).
    tables: contiguous arrays of embeddings. They are those of tokens, as (q
    (V, E), scale); of segments, (S, E) or None; and of positions, (T, E).
    norm: the LayerNorm of the embeddings, or None. projection: a dense layer
    from E to H, or None. blocks: for each block a list of four dense layers
    and a list of two LayerNorms. The layers are queries, keys and values in
    one; the output of attention; and the two layers of the feed-forward
    network. factor: multiplies the embeddings of tokens.
    """

    def __init__(self, tables, norm, projection, blocks, num_heads, act,
                 epsilon, factor=1.0):
        self._library = compiled = library()
        (tokens, scale), segments, positions = tables
        self._tables = tables       # kept, since C++ reads these arrays
        E, H = tokens.shape[1], len(blocks[0][0][1][0])
        F = len(blocks[0][0][2][0])
        sizes = onp.array([
            len(tokens), 0 if segments is None else len(segments),
            len(positions), E, H, F, num_heads, len(blocks),
            ACTS.index(act)], 'int64')
        handle = ctypes.c_void_p()
        compiled.int8_new(sizes, epsilon, tokens, scale, factor,
                          _address(segments), positions,
                          ctypes.byref(handle))
        self._handle, self._num_hiddens = handle, H
        weakref.finalize(self, compiled.int8_free, handle)
        for b, (layers, norms) in enumerate(blocks):
            for i, layer in enumerate(layers):
                self._put_dense(4 * b + i, *layer)
            for i, one in enumerate(norms):
                compiled.int8_put_norm(handle, 2 * b + i, *one)
        if norm is not None:
            compiled.int8_put_norm(handle, 2 * len(blocks), *norm)
        if projection is not None:
            self._put_dense(4 * len(blocks), *projection)
        # Multiplications of a row by one layer
        self._products = 4. * H * H + 2. * H * F

    def _put_dense(self, which, q, scale, bias):
        self._library.int8_put_dense(self._handle, which, *q.shape, q, scale,
                                     _address(bias))

    def encode(self, offsets, ids, segments, order, rows='all'):
        """Return vectors of tokens, or one vector of each sequence, float32.

        offsets (B + 1,) int64: the first row of each sequence, and R. ids,
        segments (R,) int32: of each token. order (layers,) int32: the blocks
        to apply. rows: one of `ROWS`. 'all' returns (R, H); 'first' and 'mean'
        return (B, H). Raises ValueError for an index that the encoder does
        not have.
        """
        if len(ids) != offsets[-1] or len(segments) != len(ids):
            raise ValueError(f'{len(ids)} ids and {len(segments)} segments, '
                             f'but {offsets[-1]} rows')
        B = len(offsets) - 1
        out = onp.empty((len(ids) if rows == 'all' else B,
                         self._num_hiddens), 'float32')
        self._library.int8_encode(
            self._handle, B, offsets, ids, segments, len(order), order,
            self._products * max(len(order), 1), ROWS.index(rows), out)
        return out
