"""cut.cc, types.cc and pieces.cc for Python: words, their numbers and pieces.

To be called where `draw.library` says that they are compiled; each gives what
its plain twin gives. While C++ is at work other threads go on.
"""
import ctypes
import weakref

import numpy as onp

from d2lbert.kernels import draw
from d2lbert.machine.threads import interruptible

#: What the lines of a text are, for `text`: paragraphs, all of them; those
#: of WikiText, with its headings, the first and the last only looked at;
#: parts of paragraphs, with blank ones between.
PARAGRAPHS, WIKI, PARTS = range(3)

#: Numbers for which a table of `spread` has room behind its own.
SPARE = 4

#: Bytes of a text that is cut in a thread of its own, for more than about a
#: tenth of a second, so that signals are handled meanwhile.
LONG = 1 << 25

#: No bound for the bytes of a paragraph.
NO_BOUND = (1 << 63) - 1


class Room:
    """Memory in which texts are cut, one after the other.

    Not for several threads. With one of its own for each text, most of the
    time would go into new memory.
    """

    def __init__(self):
        self.library = draw.library()
        self.handle = _made(self, self.library, 'text')


def text(data, lines, lower=True, most=NO_BOUND, room=None):
    """Cut a text, bytes of UTF-8, into words.

    lines: what its lines are; lower: whether to make letters small; most:
    bytes of a paragraph; room: a `Room` that is to be used. Returns types
    (words,) int32, sentences and paragraphs, (their number + 1,) int64, as
    `words.Tokens` has them, articles (titles,) int64, the paragraphs before
    which a title stands, names, bytes, a line for each different word, and
    passed (2,) int64: how many paragraphs without an inner sentence end were
    passed over, headings aside, and the words in them. Or None, where a
    paragraph is longer or something is no UTF-8.
    """
    room = room or Room()
    library, handle = room.library, room.handle
    sizes = onp.zeros(9, 'int64')

    def cut(is_abandoned=None):
        library.text_cut(room.handle, data, len(data), lines, lower, most,
                         sizes)
    if len(data) < LONG:
        cut()
    else:
        interruptible(cut)
    if sizes[6]:
        return None
    if sizes[5]:
        # Blanks part the words, so no letter depends on another word
        foreign = onp.empty(sizes[5], 'uint8')
        library.text_foreign(handle, foreign, len(foreign))
        small = foreign.tobytes().decode().lower().encode()
        library.text_rename(handle, small, len(small), sizes)
    arrays = [onp.empty(size, dtype) for size, dtype in zip(
        sizes, ('int32', 'int64', 'int64', 'int64', 'uint8'))]
    library.text_copy(handle, *arrays, sizes)
    return (*arrays[:-1], arrays[-1].tobytes(), sizes[7:])


def first_places(types, lengths, places, first):
    """Lower `first` to where each type stands, if that is before it.

    types (words,) uint16 or int32, those of paragraphs of so many words
    each; places (paragraphs,) int64: where these begin; first (types,)
    int64.
    """
    types = onp.ascontiguousarray(types)
    assert types.itemsize in (2, 4) and len(places) == len(lengths)
    draw.library().first_places(
        types.ctypes.data, types.itemsize, len(types), len(first),
        len(lengths), lengths, places, first)


def looked_up(table, types):
    """table[types], in any thread.

    table uint16 or int32; types (words,) int32, -1 for the last entry.
    """
    assert table.itemsize in (2, 4) and table.flags.c_contiguous
    found = onp.empty(len(types), table.dtype)
    draw.library().look_up(table.ctypes.data, table.itemsize, len(table),
                           types, len(types), found.ctypes.data)
    return found


def spread(table, begins, lengths, types, ends, size):
    """table[begins[k]:begins[k] + lengths[k]] for each k of types, in a row.

    table (numbers + SPARE,) uint16 or int32; begins (types,) int64 and
    lengths (types,) int32; types (words,) int32; ends (places,) int64: how
    many of these there are up to places that rise; size: how many numbers
    there will be. Returns them, and how many of them there are up to those
    places, int64. In any thread.
    """
    assert table.itemsize in (2, 4) and table.flags.c_contiguous
    assert len(begins) >= len(lengths)
    ends, found = onp.array(ends), onp.empty(size + SPARE, table.dtype)
    draw.library().spread(
        table.ctypes.data, table.itemsize, len(table), begins, lengths,
        len(lengths), types, len(types), ends, len(ends), found.ctypes.data,
        size)
    return found[:size], ends


def counted(types, num_types, table=None):
    """How often each of so many types occurs: (num_types,) int64.

    types (words,) int32; they become table[types], where a table (num_types,)
    int32 is given.
    """
    assert table is None or table.dtype == 'int32' and len(table) >= num_types
    counts = onp.zeros(num_types, 'int64')
    draw.library().count_types(types, len(types), None if table is None
                               else table.ctypes.data, num_types, counts)
    return counts


class Names:
    """Different words, numbered as they came. Not for several threads."""

    def __init__(self):
        self._library = draw.library()
        self._handle = _made(self, self._library, 'names')
        # Names that came last, all names, their letters
        self._sizes = onp.zeros(3, 'int64')

    def __len__(self):
        return int(self._sizes[1])

    @property
    def letters(self):
        """How many letters all words have."""
        return int(self._sizes[2])

    def add(self, lines, kept=None):
        """The numbers of words, a line each, bytes: (words,) int32.

        kept (words,) bool: without those at which it is False; they have -1.
        """
        numbers = onp.empty(len(lines) // 2, 'int32')
        if kept is not None:
            kept = onp.ascontiguousarray(kept).view('uint8')
        self._library.names_add(
            self._handle, lines, len(lines),
            None if kept is None else kept.ctypes.data,
            0 if kept is None else len(kept), numbers, len(numbers),
            self._sizes)
        return numbers[:self._sizes[0]]

    def text(self, first=0):
        """The words from number `first` on, a line each: bytes."""
        size = ctypes.c_int64()
        self._library.names_copy(self._handle, first, None, size)
        names = onp.empty(size.value, 'uint8')
        self._library.names_copy(self._handle, first, names.ctypes.data, size)
        return names.tobytes()


class Pieces:
    """Words cut into pieces, by BERT's rule. For any thread.

    begin, more: {piece: its number}, of those that words begin with and of
    those that words go on with, without what marks these; unknown: the number
    for words that cannot be cut, or have more than `most` letters; lower:
    whether to make letters small.
    """

    def __init__(self, begin, more, unknown, most, lower):
        tables = []
        for pieces in (begin, more):
            # Words that are cut here have no other letters, nor line feeds
            pieces = {piece: idx for piece, idx in pieces.items()
                      if piece.isascii() and piece.isprintable()}
            lines = ''.join(f'{piece}\n' for piece in pieces).encode()
            ids = onp.array([*pieces.values()], 'int32')
            tables += [lines, len(lines), ids, len(ids)]
        self._library = draw.library()
        self._handle = _made(self, self._library, 'pieces', *tables, unknown,
                             most, lower)

    def cut(self, lines):
        """(counts, ids) of words, a line each, bytes: int32.

        counts (words,): how many of the ids each has, or -1 for one that is
        not of ASCII's letters, digits and punctuation alone.
        """
        counts = onp.empty(lines.count(b'\n'), 'int32')
        ids, size = onp.empty(len(lines), 'int32'), ctypes.c_int64()
        self._library.pieces_cut(self._handle, lines, len(lines), counts,
                                 len(counts), ids, size)
        return counts, ids[:size.value].copy()


def _made(owner, library, kind, *arguments):
    """A handle of C++, which is freed with its owner."""
    handle = ctypes.c_void_p()
    getattr(library, f'{kind}_new')(*arguments, handle)
    free = weakref.finalize(owner, getattr(library, f'{kind}_free'), handle)
    # Another thread may still be at work when the process ends
    free.atexit = False
    return handle
