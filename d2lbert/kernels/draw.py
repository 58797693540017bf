"""Draw examples from numbered words, by draw.cc and spans.cc.

Each function gives the same bits as the Python code of its caller, which does
the work if `library` returns None.

N pairs, T tokens (max_len), P predictions.
"""
import contextlib
import ctypes
import random

import numpy as onp

from d2lbert.kernels import Library


def _opened(path):
    library = ctypes.CDLL(str(path))

    def array(dtype):
        return onp.ctypeslib.ndpointer(dtype, flags='C_CONTIGUOUS')

    i32, i64, f32 = array('int32'), array('int64'), array('float32')
    f64 = array('float64')
    u8, u32 = array('uint8'), array('uint32')
    number, pointer, text = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
    flag, place = ctypes.c_int, ctypes.POINTER(pointer)
    count = ctypes.POINTER(number)
    for name, *argtypes in (
            ('text_new', place),
            ('text_cut', pointer, text, number, flag, flag, number, i64),
            ('text_foreign', pointer, u8, number),
            ('text_rename', pointer, text, number, i64),
            ('text_copy', pointer, i32, i64, i64, i64, u8, i64),
            ('text_free', pointer),
            ('names_new', place),
            ('names_add', pointer, text, number, pointer, number, i32,
             number, i64),
            ('names_copy', pointer, number, pointer, count),
            ('names_free', pointer),
            ('count_types', i32, number, pointer, number, i64),
            ('look_up', pointer, number, number, i32, number, pointer),
            ('spread', pointer, number, number, i64, i32, number, i32,
             number, i64, number, pointer, number),
            ('first_places', pointer, number, number, number, number, i64,
             i64, i64),
            ('pieces_new', text, number, i32, number, text, number, i32,
             number, ctypes.c_int32, number, flag, place),
            ('pieces_cut', pointer, text, number, i32, number, i32, count),
            ('pieces_free', pointer),
            ('draw_order', u32, number, i32),
            ('draw_pairs', u32, number, i32, number, number, i64, number,
             i64, number, number, flag, i64, u8, number, count),
            ('draw_masks', u32, number, i64, pointer, number, number, i32,
             number, i32, i32, number, number, i32, i32, f32, i32, f32, i32,
             pointer, number, pointer, number, flag),
            ('draw_spans', u32, number, i64, i64, number, pointer, number,
             number, i32, number, i32, u8, number, i32, number, f64, number,
             number, number, number, number, number, i32, f32, i32, f32, i32,
             i32, i32)):
        function = getattr(library, name)
        function.argtypes = argtypes
        if name.endswith('_free') or name == 'draw_order':
            function.restype = None
        else:
            function.restype = flag
            function.errcheck = _check
    return library


def _check(status, function, arguments):
    """Raise the exception for a Status of door.h other than 0."""
    if status == 1:
        raise MemoryError('no memory left for the words of a text')
    if status:
        raise ValueError(
            'a number of a text points outside of its tables: its files are '
            'damaged; if they are in the cache, d2lbert cache --clear --kind '
            'corpora removes them')
    return status


#: Bits of `kinds` in `masks`.
FIXED, GOES_ON = 1, 2

DRAW = Library('draw', ['draw.cc', 'spans.cc', 'cut.cc', 'types.cc',
                        'pieces.cc'], _opened,
               what='the C++ loops over texts')


def library():
    """The compiled library, or None if Python must do the work."""
    return DRAW.get()


def can_draw(rng):
    """True if the C++ code can draw with the state of `rng`.

    The C++ code only knows the state of CPython's own generator.
    """
    return ((rng is random or type(rng) is random.Random)
            and library() is not None)


def shuffle(order, rng):
    """rng.shuffle(order) for order (paragraphs,) int32."""
    with _state_of(rng) as state:
        library().draw_order(state, len(order), order)


def pairs(order, first, last, paragraphs, sentences, max_len, rng,
          swap=False):
    """Draw pairs of sentences of paragraphs order[first:last].

    In half of the cases a random sentence of all paragraphs replaces the
    second sentence; with `swap`, the two sentences change places instead.
    Pairs of more than max_len tokens are left out. Returns spans (N, 4)
    int64, the begin and end of the words of both sentences, and is_next (N,)
    uint8.
    """
    read, num_pairs = order[first:last], ctypes.c_int64()
    most = int((paragraphs[read + 1] - paragraphs[read] - 1).sum())
    most = max(0, min(most, len(read) * len(sentences)))
    spans, is_next = onp.empty((most, 4), 'int64'), onp.empty(most, 'uint8')
    with _state_of(rng) as state:
        library().draw_pairs(
            state, len(order), order, first, last, paragraphs,
            len(paragraphs) - 1, sentences, len(sentences) - 1, max_len, swap,
            spans, is_next, most, num_pairs)
    return spans[:num_pairs.value], is_next[:num_pairs.value]


def masks(spans, types, numbers, specials, num_preds, columns, rng,
          kinds=None, choices=None, whole_words=False):
    """Fill padded rows with pairs of spans of words, and mask some tokens.

    spans: (N, 4) int64, indices into types, which is uint16 or int32.
    numbers: (number of types,) int32, the vocabulary index of each type.
    specials: (pad, mask, cls, sep, size of the vocabulary). num_preds:
    (T + 1,) int32: of n tokens, num_preds[n] are masked. columns: the arrays
    to fill, which are tokens, segments, valid lengths, positions, weights and
    labels. kinds: None, or uint8 for each token of the vocabulary: FIXED if
    it is never masked, GOES_ON if it continues a word. choices: int32, the
    tokens that may replace others, or None for all. whole_words: mask all
    pieces of a word or none.
    """
    types = onp.ascontiguousarray(types)
    with _state_of(rng) as state:
        library().draw_masks(
            state, len(spans), onp.ascontiguousarray(spans),
            types.ctypes.data, types.itemsize, len(types), numbers,
            len(numbers), onp.array(specials, 'int32'), num_preds,
            columns[0].shape[1], columns[3].shape[1], *columns,
            *_address(kinds, 'uint8'), *_address(choices, 'int32'),
            whole_words)


def spans(rows, parts, types, numbers, specials, kinds, choices, law, most,
          apart, share, columns, rng):
    """Fill padded rows with parts of a text, and mask spans of words.

    rows (N + 1,) and parts (M, 2) int64: row k consists of parts rows[k] to
    rows[k + 1] - 1, and a part is the begin and end of some words. types,
    numbers, specials, kinds, choices: as for `masks`. law: (longest,)
    float64, the cumulative distribution of the number of words in a span.
    most: the maximal number of tokens of a span. apart: spans must not touch.
    share: the number of masked tokens in a million. columns: the arrays of
    `corpus.masking.MaskedRows`, to be filled.
    """
    types = onp.ascontiguousarray(types)
    with _state_of(rng) as state:
        library().draw_spans(
            state, len(rows) - 1, rows, onp.ascontiguousarray(parts),
            len(parts), types.ctypes.data, types.itemsize, len(types),
            numbers, len(numbers), onp.array(specials, 'int32'), kinds,
            len(kinds), choices, len(choices), onp.array(law, 'float64'),
            len(law), most, apart, share, columns[0].shape[1],
            columns[2].shape[1], *columns)


def _address(array, dtype):
    """The address and length of an array of a dtype, or (None, 0)."""
    if array is None:
        return None, 0
    assert array.dtype == dtype and array.flags.c_contiguous
    return array.ctypes.data, len(array)


@contextlib.contextmanager
def _state_of(rng):
    """Yield the state of a generator, (625,) uint32, for C++ to change.

    After the block `rng` has the changed state.
    """
    version, state, gauss_next = rng.getstate()
    state = onp.array(state, 'uint32')
    yield state
    rng.setstate((version, tuple(state.tolist()), gauss_next))
