"""Cut texts into words and word pieces in C++: cut.cc, types.cc, pieces.cc.

Callers check that `draw.library()`, which has this code, is not None, and
otherwise compute the same result in Python. The C++ code runs without the GIL.

Equal words have the same number, their type. Types begin at 0, in the order of
the words' first occurrences in a text.
"""
import ctypes
import weakref

import numpy as onp

from d2lbert.kernels import draw
from d2lbert.machine.workers import interruptible

#: Values of `line_kind`. PARAGRAPHS: a line is a paragraph. WIKI: a line is a
#: paragraph or a heading of WikiText; the first and last line are not cut, and
#: only decide whether the lines beside them are titles. PARTS: a line is a
#: part of a paragraph; blank lines end paragraphs.
PARAGRAPHS, WIKI, PARTS = range(3)

#: The number of unused entries at the end of a table for `spread`, which
#: copies this many entries at a time (kEntriesPerCopy in types.cc).
SPARE = 4

#: Signals are handled during the cut of a text of this size (0.1 s) or more.
LONG_BYTES = 1 << 25

NO_LIMIT = (1 << 63) - 1    # of max_paragraph_bytes


class TextMemory:
    """Memory that calls of `text` reuse. Not thread-safe.

    Requesting memory in each call would take most of the time of the call.
    """

    def __init__(self):
        self.library = draw.library()
        self.handle = _new_handle(self, self.library, 'text')


def text(data, line_kind, lower=True, max_paragraph_bytes=NO_LIMIT,
         memory=None):
    """Cut a text, bytes of UTF-8, into words.

    line_kind: PARAGRAPHS, WIKI or PARTS. lower: convert words to lower case.
    memory: a `TextMemory`, or None for a new one. Returns None if a paragraph
    or line has more than max_paragraph_bytes, or if the text is not UTF-8.
    Otherwise returns a tuple:

    - types (words,) int32
    - sentences (sentences + 1,) int64: the index of the first word of each,
      then the number of words
    - paragraphs (paragraphs + 1,) int64: the index of the first sentence of
      each, then the number of sentences
    - articles (titles,) int64: the index of the paragraph after each title, or
      of the title itself if it has ' . '
    - names, bytes: the word of each type, a line for each
    - left_out (2,) int64: the number of paragraphs without ' . ', which are
      left out, and the number of their words. Headings without ' . ' are left
      out, too, but not counted
    """
    memory = memory or TextMemory()
    library, handle = memory.library, memory.handle
    sizes = onp.zeros(9, 'int64')       # see text_cut in cut.cc

    # After an exception of a signal handler, `cut` may run on after the end of
    # `text`. Its reference to `memory` keeps the handle valid
    def cut(is_abandoned=None):     # ignored: C++ cannot end early
        library.text_cut(memory.handle, data, len(data), line_kind, lower,
                         max_paragraph_bytes, sizes)
    if len(data) < LONG_BYTES:
        cut()
    else:
        interruptible(cut)
    num_non_ascii_bytes, has_failed = sizes[5:7]
    if has_failed:
        return None
    if num_non_ascii_bytes:     # 0 unless `lower`
        # A line for each word, so that lower() sees which sigma ends a word
        non_ascii = onp.empty(num_non_ascii_bytes, 'uint8')
        library.text_non_ascii(handle, non_ascii, len(non_ascii))
        lowered = non_ascii.tobytes().decode().lower().encode()
        library.text_rename(handle, lowered, len(lowered), sizes)
    types, sentences, paragraphs, articles, names = (
        onp.empty(size, dtype) for size, dtype in zip(
            sizes, ('int32', 'int64', 'int64', 'int64', 'uint8')))
    library.text_copy(handle, types, sentences, paragraphs, articles, names,
                      sizes)
    left_out = sizes[7:]
    return types, sentences, paragraphs, articles, names.tobytes(), left_out


def first_places(types, lengths, places, first):
    """Lower first[k] to the place of the first word of type k, for each k.

    A place is the index of a word in a larger text. types (words,) uint16 or
    int32: the words of some paragraphs, one after another. Paragraph q has
    lengths[q] words from places[q] on; both arrays are (paragraphs,) int64.
    first (number of types,) int64 is changed in place.
    """
    types = onp.ascontiguousarray(types)
    assert types.itemsize in (2, 4) and len(places) == len(lengths)
    draw.library().first_places(
        types.ctypes.data, types.itemsize, len(types), len(first),
        len(lengths), lengths, places, first)


def look_up(table, types):
    """Return table[types]; index -1 reads the last entry. Thread-safe.

    table (entries,) uint16 or int32; types (words,) int32.
    """
    assert table.itemsize in (2, 4) and table.flags.c_contiguous
    found = onp.empty(len(types), table.dtype)
    draw.library().look_up(table.ctypes.data, table.itemsize, len(table),
                           types, len(types), found.ctypes.data)
    return found


def spread(table, begins, lengths, types, ends, size):
    """Join table[begins[k]:begins[k] + lengths[k]] for each k in types.

    table (entries + SPARE,) uint16 or int32. begins (number of types or more,)
    int64. lengths (number of types,) int32. types (words,) int32. ends int64:
    sorted indices of `types`. size: the number of joined entries. Returns the
    joined entries, and for each `end` of ends the number of entries that come
    from types[:end]. Thread-safe.
    """
    assert table.itemsize in (2, 4) and table.flags.c_contiguous
    assert len(begins) >= len(lengths)
    found = onp.empty(size + SPARE, table.dtype)
    counts = onp.array(ends)    # C++ replaces each end by its count
    draw.library().spread(
        table.ctypes.data, table.itemsize, len(table), begins, lengths,
        len(lengths), types, len(types), counts, len(counts),
        found.ctypes.data, size)
    return found[:size], counts


def count_types(types, num_types, table=None):
    """Count the occurrences of each type: (num_types,) int64.

    types (words,) int32. table (num_types,) int32, or None: after the count,
    types becomes table[types] in place.
    """
    assert table is None or (table.dtype == 'int32'
                             and len(table) >= num_types)
    counts = onp.zeros(num_types, 'int64')
    draw.library().count_types(types, len(types), None if table is None
                               else table.ctypes.data, num_types, counts)
    return counts


class Names:
    """Different words, numbered by first occurrence. Not thread-safe."""

    def __init__(self):
        self._library = draw.library()
        self._handle = _new_handle(self, self._library, 'names')
        # Words of the last call of `add`, different words, and their letters
        self._sizes = onp.zeros(3, 'int64')

    def __len__(self):
        return int(self._sizes[1])

    @property
    def letters(self):
        """The number of letters of the different words."""
        return int(self._sizes[2])

    def add(self, lines, kept=None):
        """Add new words; return the number of each word, (words,) int32.

        lines: bytes, a line for each word. kept (words,) bool, or None: a word
        with False is not added, and its number is -1.
        """
        # A word has at least one byte and a line feed
        max_words = len(lines) // 2
        numbers = onp.empty(max_words, 'int32')
        if kept is not None:
            kept = onp.ascontiguousarray(kept).view('uint8')
        self._library.names_add(
            self._handle, lines, len(lines),
            None if kept is None else kept.ctypes.data,
            0 if kept is None else len(kept), numbers, max_words, self._sizes)
        num_words = self._sizes[0]
        return numbers[:num_words]

    def text(self, first=0):
        """The words with number `first` and above: bytes, a line for each."""
        # The first call sets the size, and the second one checks it
        size = ctypes.c_int64()
        self._library.names_copy(self._handle, first, None, size)
        names = onp.empty(size.value, 'uint8')
        self._library.names_copy(self._handle, first, names.ctypes.data, size)
        return names.tobytes()


class Pieces:
    """Cuts texts into word pieces, longest match first. Thread-safe.

    initial: {piece: id} of pieces that begin a word. continuation: the same
    for the other pieces, without '##'. unknown_id: the id for words that
    cannot be cut, or have more than max_letters letters. lower: convert texts
    to lower case.
    """

    def __init__(self, initial, continuation, unknown_id, max_letters, lower):
        arguments = []
        for pieces in (initial, continuation):
            # C++ only cuts texts of printable ASCII: other pieces never match
            pieces = {piece: idx for piece, idx in pieces.items()
                      if piece.isascii() and piece.isprintable()}
            lines = ''.join(f'{piece}\n' for piece in pieces).encode()
            ids = onp.array([*pieces.values()], 'int32')
            arguments += [lines, len(lines), ids, len(ids)]
        self._library = draw.library()
        self._handle = _new_handle(self, self._library, 'pieces', *arguments,
                                   unknown_id, max_letters, lower)

    def cut(self, lines):
        """Cut texts, bytes with a line for each: (counts, ids), int32.

        counts (texts,): the number of ids of each text, or -1 for a text
        with a character other than printable ASCII. ids: the ids of the
        other texts, one text after another.
        """
        counts = onp.empty(lines.count(b'\n'), 'int32')
        # Each id stands for at least one byte
        ids, num_ids = onp.empty(len(lines), 'int32'), ctypes.c_int64()
        self._library.pieces_cut(self._handle, lines, len(lines), counts,
                                 len(counts), ids, num_ids)
        return counts, ids[:num_ids.value].copy()


def _new_handle(owner, library, kind, *arguments):
    """Return the handle of a new C++ object, which is freed with `owner`."""
    handle = ctypes.c_void_p()
    getattr(library, f'{kind}_new')(*arguments, handle)
    free = weakref.finalize(owner, getattr(library, f'{kind}_free'), handle)
    # At the end of the process, another thread may still use the handle
    free.atexit = False
    return handle
