"""Encode tokens by a BERT encoder with 8-bit weights, in C++ (int8.cc).

All arrays are NumPy's. N, K: outputs and inputs of a dense layer. B:
sequences. R: rows, one for each token of all sequences. H: elements of the
vector of a token. E: elements of an embedding. F: hidden units of the
feed-forward network. V, S, T: tokens, segments and positions that have
embeddings.
"""
import ctypes
import weakref

import numpy as onp

from d2lbert.kernels import Library, products

#: Activation functions, in the order of `Act` in int8.h.
ACTS = 'none', 'relu', 'gelu', 'gelu_new'

#: Values of `rows` in `Encoder.encode`, in the order of `OutputRows` in
#: int8.cc.
ROWS = 'all', 'first', 'mean'


def _open_library(path):
    """Open the library and declare the types of its functions."""
    library = ctypes.CDLL(str(path))

    def array(dtype):
        return onp.ctypeslib.ndpointer(dtype, flags='C_CONTIGUOUS')

    # The type of an array that may be None is `pointer`
    f32s, i8s, i32s, i64s = map(array, ('float32', 'int8', 'int32', 'int64'))
    i64, double, pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
    c_int = ctypes.c_int
    library.int8_product.restype = ctypes.c_char_p
    for name, *argtypes in (
            ('quantize', f32s, i64, i64, i8s, f32s),
            ('apply', i64, i64, i64, f32s, i8s, f32s, pointer, c_int, f32s),
            ('new', i64s, double, i8s, f32s, double, pointer, f32s,
             ctypes.POINTER(pointer)),
            ('put_dense', pointer, i64, i64, i64, i8s, f32s, pointer),
            ('put_norm', pointer, i64, f32s, f32s),
            ('encode', pointer, i64, i64s, i32s, i32s, i64, i32s, double,
             c_int, f32s),
            ('free', pointer)):
        function = getattr(library, f'int8_{name}')
        function.argtypes = argtypes
        if name in ('quantize', 'free'):
            function.restype = None
        else:
            function.restype, function.errcheck = c_int, _check
    _choose_tiles(library)
    return library


def _choose_tiles(library):
    """Use AMX tiles if they are available, unless D2LBERT_AMX is off."""
    policy = products.mode()
    uses_tiles = library.int8_use_tiles(policy != 'off')
    if policy == 'require' and not uses_tiles:
        raise ValueError('D2LBERT_AMX is require, but AMX cannot multiply '
                         '8-bit integers here: unset it')


def _check(status, function, arguments):
    """Raise an exception unless a `Status` (bounds_check.h) is kDone."""
    if status == 1:     # kNoMemory
        raise MemoryError('no memory left for an encoder with 8-bit weights')
    if status:          # kOutside
        raise ValueError('the encoder lacks a token, a segment or a block, or '
                         'a sequence is empty or too long')
    return status


# Without fused multiply-add, all processors round alike
INT8 = Library('int8', ['int8.cc', 'amx_permission.cc'], _open_library,
               what='the eight-bit encoder', options=('-ffp-contract=off',))


def library():
    """The opened library, or None if it is not available (`Library.get`)."""
    return INT8.get()


def product():
    """The name of the instructions that multiply; None without the library."""
    compiled = library()
    return compiled and compiled.int8_product().decode()


def quantize(W):
    """Quantize weights W (N, K), with a scale for each output.

    Returns integers q (N, K) int8 from -127 to 127, and scale (N,) float32,
    so that W is approximately q * scale[:, None].
    """
    W = onp.ascontiguousarray(W, 'float32')
    q, scale = onp.empty(W.shape, 'int8'), onp.empty(len(W), 'float32')
    library().int8_quantize(W, *W.shape, q, scale)
    return q, scale


def _address(array):
    """A ctypes argument for an array that may be None."""
    return None if array is None else array.ctypes.data


def dense(X, q, scale, bias=None, act='none'):
    """Return act(X Wᵀ + bias), (R, N) float32, for W = q * scale[:, None].

    X (R, K) is quantized before the product, with a scale for each row. q and
    scale: from `quantize`. bias (N,) float32 or None. act: one of `ACTS`.
    """
    X = onp.ascontiguousarray(X, 'float32')
    Y = onp.empty((len(X), len(q)), 'float32')
    library().int8_apply(len(X), *q.shape, X, q, scale, _address(bias),
                         ACTS.index(act), Y)
    return Y


class Encoder:
    """An encoder of quantized layers.

    A dense layer is a tuple (q, scale, bias or None), with q and scale by
    `quantize`. A LayerNorm is a tuple (gamma, beta). Arrays are contiguous,
    and all except q are float32.

    tables: the embeddings of tokens, a tuple (q (V, E), scale (V,)); of
    segments, (S, E) or None; and of positions, (T, E). norm: the LayerNorm of
    the embeddings, or None. projection: a dense layer from E to H, or None.
    blocks: for each block, four dense layers (queries, keys and values in one
    layer; output of attention; two layers of the feed-forward network) and two
    LayerNorms (after attention; after the feed-forward network). act: one of
    `ACTS`. epsilon: of each LayerNorm. factor: multiplies the embeddings of
    tokens.
    """

    def __init__(self, tables, norm, projection, blocks, num_heads, act,
                 epsilon, factor=1.0):
        self._library = compiled = library()
        (tokens, scale), segments, positions = tables
        self._tables = tables       # kept, since C++ reads these arrays
        (_, attention_output, ffn1, _), _ = blocks[0]
        E, H, F = tokens.shape[1], len(attention_output[0]), len(ffn1[0])
        sizes = onp.array([     # the fields of `Sizes` in int8.cc
            len(tokens), 0 if segments is None else len(segments),
            len(positions), E, H, F, num_heads, len(blocks),
            ACTS.index(act)], 'int64')
        handle = ctypes.c_void_p()
        compiled.int8_new(sizes, epsilon, tokens, scale, factor,
                          _address(segments), positions,
                          ctypes.byref(handle))
        self._handle, self._num_hiddens = handle, H
        free = weakref.finalize(self, compiled.int8_free, handle)
        # At the end of the process, another thread may still use the handle
        free.atexit = False
        for b, (layers, norms) in enumerate(blocks):
            for i, layer in enumerate(layers):
                self._put_dense(4 * b + i, *layer)
            for i, gamma_beta in enumerate(norms):
                compiled.int8_put_norm(handle, 2 * b + i, *gamma_beta)
        if norm is not None:
            compiled.int8_put_norm(handle, 2 * len(blocks), *norm)
        if projection is not None:
            self._put_dense(4 * len(blocks), *projection)
        # Multiplications in a block's dense layers, for a row
        self._block_products = 4. * H * H + 2. * H * F

    def _put_dense(self, index, q, scale, bias):
        """Set a dense layer; index: see int8_put_dense in int8.cc."""
        self._library.int8_put_dense(self._handle, index, *q.shape, q, scale,
                                     _address(bias))

    def encode(self, offsets, ids, segments, order, rows='all'):
        """Return vectors of tokens, or one vector of each sequence, float32.

        offsets (B + 1,) int64: the first row of each sequence, then R. ids and
        segments (R,) int32; an encoder without embeddings of segments ignores
        `segments`. order (any length) int32: the indices of the blocks to
        apply. rows: 'all' returns the vectors of all tokens (R, H), 'first'
        the vector of each first token (B, H), 'mean' the mean vector of each
        sequence (B, H). Raises ValueError for ids or segments of another
        length, no sequence, a sequence that is empty or too long, and a token,
        a segment or a block that the encoder does not have.
        """
        if len(ids) != offsets[-1] or len(segments) != len(ids):
            raise ValueError(f'{len(ids)} ids and {len(segments)} segments, '
                             f'but {offsets[-1]} rows')
        B = len(offsets) - 1
        out = onp.empty((len(ids) if rows == 'all' else B,
                         self._num_hiddens), 'float32')
        # Without blocks, assume the multiplications of one block
        row_products = self._block_products * max(len(order), 1)
        self._library.int8_encode(
            self._handle, B, offsets, ids, segments, len(order), order,
            row_products, ROWS.index(rows), out)
        return out
