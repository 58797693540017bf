"""Draw pretraining examples and mask their tokens in C++.

If `can_draw` returns False, callers run a loop in Python instead, with the
same results to the bit.

A text is an array of word types: equal words share a number, their type.
`type_ids` has the vocabulary index of each type.

N: the number of examples, each a row of T tokens with padding. V: the number
of tokens in the vocabulary.
"""
import contextlib
import ctypes
import random

import numpy as onp

from d2lbert.kernels import Library


def _open_library(path):
    """Open the library at `path` and declare its functions to ctypes.

    `cut.py` calls the functions that are listed before `draw_order`.
    """
    library = ctypes.CDLL(str(path))

    def array(dtype):
        return onp.ctypeslib.ndpointer(dtype, flags='C_CONTIGUOUS')

    # A plural, such as i32s, is a contiguous array
    f32s, f64s, u8s, u32s, i32s, i64s = map(array, (
        'float32', 'float64', 'uint8', 'uint32', 'int32', 'int64'))
    c_int, i32, i64 = ctypes.c_int, ctypes.c_int32, ctypes.c_int64
    pointer, chars = ctypes.c_void_p, ctypes.c_char_p
    out_pointer, out_i64 = ctypes.POINTER(pointer), ctypes.POINTER(i64)
    for name, *argument_types in (
            ('text_new', out_pointer),
            ('text_cut', pointer, chars, i64, c_int, c_int, i64, i64s),
            ('text_non_ascii', pointer, u8s, i64),
            ('text_rename', pointer, chars, i64, i64s),
            ('text_copy', pointer, i32s, i64s, i64s, i64s, u8s, i64s),
            ('text_free', pointer),
            ('names_new', out_pointer),
            ('names_add', pointer, chars, i64, pointer, i64, i32s, i64, i64s),
            ('names_copy', pointer, i64, pointer, out_i64),
            ('names_free', pointer),
            ('count_types', i32s, i64, pointer, i64, i64s),
            ('look_up', pointer, i64, i64, i32s, i64, pointer),
            ('spread', pointer, i64, i64, i64s, i32s, i64, i32s, i64, i64s,
             i64, pointer, i64),
            ('first_places', pointer, i64, i64, i64, i64, i64s, i64s, i64s),
            ('pieces_new', chars, i64, i32s, i64, chars, i64, i32s, i64, i32,
             i64, c_int, out_pointer),
            ('pieces_cut', pointer, chars, i64, i32s, i64, i32s, out_i64),
            ('pieces_free', pointer),
            ('draw_order', u32s, i64, i32s),
            ('draw_pairs', u32s, i64, i32s, i64, i64, i64s, i64, i64s, i64,
             i64, c_int, i64s, u8s, i64, out_i64),
            ('draw_masks', u32s, i64, i64s, pointer, i64, i64, i32s, i64, i32s,
             i32s, i64, i64, i32s, i32s, f32s, i32s, f32s, i32s, pointer, i64,
             pointer, i64, c_int),
            ('draw_spans', u32s, i64, i64s, i64s, i64, pointer, i64, i64, i32s,
             i64, i32s, u8s, i64, i32s, i64, f64s, i64, i64, i64, i64, i64,
             i64, i32s, f32s, i32s, f32s, i32s, i32s, i32s)):
        function = getattr(library, name)
        function.argtypes = argument_types
        is_void = name.endswith('_free') or name == 'draw_order'
        function.restype = None if is_void else c_int
        if not is_void:
            function.errcheck = _check_status
    return library


def _check_status(status, function, arguments):
    """Raise the exception for a status of bounds_check.h, or return 0."""
    if status == 1:     # kNoMemory
        raise MemoryError('no memory left for the words of a text')
    if status:          # kOutside
        raise ValueError(
            'an index of a text points outside of its tables, so its files '
            'are damaged: if they are in the cache, d2lbert cache --clear '
            '--kind corpora removes them')
    return status


#: Bits that describe a token of the vocabulary. FIXED: the token is never
#: masked. GOES_ON: the token continues the word of the token before it.
FIXED, GOES_ON = 1, 2

DRAW = Library('draw', ['draw.cc', 'spans.cc', 'cut.cc', 'types.cc',
                        'pieces.cc'], _open_library,
               what='the C++ loops over texts')


def library():
    """The compiled library, or None if Python must do the work."""
    return DRAW.get()


def can_draw(rng):
    """True if the library is available and can draw the numbers of `rng`.

    rng: the module `random`, or a generator. A subclass of random.Random may
    draw other numbers than C++.
    """
    return ((rng is random or type(rng) is random.Random)
            and library() is not None)


def shuffle_paragraphs(order, rng):
    """Do rng.shuffle(order); order: (paragraphs,) int32."""
    with _state_of(rng) as state:
        library().draw_order(state, len(order), order)


def draw_pairs(order, first, last, paragraph_offsets, sentence_offsets,
               max_len, rng, swap=False):
    """Draw pairs of sentences from the paragraphs order[first:last].

    order (paragraphs,) int32: indices of paragraphs. Paragraph q begins with
    sentence paragraph_offsets[q] and ends before paragraph_offsets[q + 1].
    Sentence s begins with word sentence_offsets[s] and ends before
    sentence_offsets[s + 1]. Both arrays of offsets are int64.

    Each sentence is paired with the next sentence of its paragraph. In half of
    the cases, a random sentence of a random paragraph of `order` replaces the
    second sentence or, with `swap`, the two sentences are swapped. Pairs of
    more than max_len tokens, <cls> and two <sep> included, are left out.
    Returns pair_spans (N, 4) int64, the begin and end of the words of both
    sentences, and is_next (N,) uint8, 1 for an unchanged pair.
    """
    chosen, num_pairs = order[first:last], ctypes.c_int64()
    # Each sentence begins a pair, except the last sentence of a paragraph
    sentence_counts = paragraph_offsets[chosen + 1] - paragraph_offsets[chosen]
    max_pairs = int((sentence_counts - 1).sum())
    # Damaged offsets can make the sum negative or huge. A paragraph has fewer
    # pairs than sentence_offsets has entries
    max_pairs = max(0, min(max_pairs, len(chosen) * len(sentence_offsets)))
    pair_spans = onp.empty((max_pairs, 4), 'int64')
    is_next = onp.empty(max_pairs, 'uint8')
    with _state_of(rng) as state:
        library().draw_pairs(
            state, len(order), order, first, last, paragraph_offsets,
            len(paragraph_offsets) - 1, sentence_offsets,
            len(sentence_offsets) - 1, max_len, swap, pair_spans, is_next,
            max_pairs, num_pairs)
    return pair_spans[:num_pairs.value], is_next[:num_pairs.value]


def mask_pairs(pair_spans, word_types, type_ids, specials, num_preds, columns,
               rng, flags=None, replacements=None, whole_words=False):
    """Write pairs of sentences into padded rows, and mask some tokens.

    pair_spans (N, 4) int64: as `draw_pairs` returns it. word_types (words,)
    uint16 or int32: the text. type_ids (types,) int32. specials: the indices
    of <pad>, <mask>, <cls> and <sep>, then V. num_preds (T + 1,) int32: of a
    row with n tokens, at most num_preds[n] are masked. columns: the arrays to
    fill, the first six fields of a `texts.examples.Batch`. flags (V,) uint8:
    the bits FIXED and GOES_ON; None if only <cls> and <sep> are FIXED.
    replacements int32: the tokens from which random tokens are drawn; None
    for the whole vocabulary. whole_words: mask all pieces of a word or none;
    needs flags.
    """
    word_types = onp.ascontiguousarray(word_types)
    T, max_preds = columns[0].shape[1], columns[3].shape[1]
    with _state_of(rng) as state:
        library().draw_masks(
            state, len(pair_spans), onp.ascontiguousarray(pair_spans),
            word_types.ctypes.data, word_types.itemsize, len(word_types),
            type_ids, len(type_ids), onp.array(specials, 'int32'), num_preds,
            T, max_preds, *columns,
            *_address_and_length(flags, 'uint8'),
            *_address_and_length(replacements, 'int32'), whole_words)


def mask_spans(row_offsets, parts, word_types, type_ids, specials, flags,
               replacements, length_cdf, max_tokens, separate_spans,
               mask_millionths, columns, rng):
    """Write parts of a text into padded rows, and mask spans of words.

    row_offsets (N + 1,) int64: row k holds the parts from row_offsets[k] to
    row_offsets[k + 1] - 1. parts (all parts, 2) int64: the begin and end of
    the words of each part. word_types, type_ids, specials, flags and
    replacements are as for `mask_pairs`, but must not be None.

    length_cdf: a sequence; length_cdf[i] is the probability that a span is
    drawn with at most i + 1 words. If no span of the drawn length fits,
    shorter lengths are tried. max_tokens: the largest number of tokens of a
    span. separate_spans: True if two spans must not touch. mask_millionths:
    tokens to mask per million. columns: the arrays to fill, a
    `corpus.masking.MaskedRows`.
    """
    word_types = onp.ascontiguousarray(word_types)
    T, max_preds = columns[0].shape[1], columns[2].shape[1]
    with _state_of(rng) as state:
        library().draw_spans(
            state, len(row_offsets) - 1, row_offsets,
            onp.ascontiguousarray(parts), len(parts), word_types.ctypes.data,
            word_types.itemsize, len(word_types), type_ids, len(type_ids),
            onp.array(specials, 'int32'), flags, len(flags), replacements,
            len(replacements), onp.array(length_cdf, 'float64'),
            len(length_cdf), max_tokens, separate_spans, mask_millionths,
            T, max_preds, *columns)


def _address_and_length(array, dtype):
    """(address, length) of a contiguous array, or (None, 0) for None.

    The array types of `_open_library` reject None.
    """
    if array is None:
        return None, 0
    assert array.dtype == dtype and array.flags.c_contiguous
    return array.ctypes.data, len(array)


@contextlib.contextmanager
def _state_of(rng):
    """Yield the state of `rng`, (625,) uint32, for C++ to change.

    `rng` gets the changed state unless the `with` block raises an exception.
    """
    version, numbers, gauss_next = rng.getstate()
    state = onp.array(numbers, 'uint32')
    yield state
    rng.setstate((version, tuple(state.tolist()), gauss_next))
