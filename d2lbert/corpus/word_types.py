"""Different words of a text, numbered by first occurrence and counted.

`PieceTypes` splits words into word pieces, each different word once.
"""
import itertools

import numpy as onp

from d2lbert.kernels import cut as compiled
from d2lbert.kernels import draw
from d2lbert.kernels.cut import SPARE, Names
from d2lbert.texts.numbered_text import concat_ranges, line_ends

# The limits of the number of different words and of their letters. Above them
# the rarer half is pruned: these words become <unk>, and if one occurs again,
# it is counted from 0
MAX_TYPES = 1 << 21
MAX_CHARS = 1 << 26


class PlainNames:
    """`kernels.cut.Names` in Python."""

    def __init__(self):
        self._numbers = {}
        self.letters = 0

    def __len__(self):
        return len(self._numbers)

    def add(self, lines, kept=None):
        numbers, known = self._numbers, len(self._numbers)
        names = lines.decode().split('\n')[:-1]
        table = onp.fromiter((
            numbers.setdefault(name, len(numbers)) if keep else -1
            for name, keep in zip(names, itertools.repeat(True)
                                  if kept is None else kept)),
            'int32', len(names))
        self.letters += sum(len(names[k])
                            for k in onp.flatnonzero(table >= known))
        return table

    def text(self, first=0):
        return ''.join(f'{name}\n' for name in itertools.islice(
            self._numbers, first, None)).encode()


def looked_up(table, types):
    """table[types], by C++ where it is compiled."""
    if draw.library() is None:
        return table[types]
    return compiled.looked_up(table, types)


def spread(table, begins, lengths, types, ends, size):
    """Replace each type k by table[begins[k]:begins[k] + lengths[k]].

    By C++ where it is compiled. Returns (entries, new_ends): `ends` are
    places in types, and new_ends are the same places in the entries. size:
    the number of entries.
    """
    if draw.library() is None:
        lengths = lengths[types]
        return (table[concat_ranges(begins[types], lengths)],
                onp.append(0, onp.cumsum(lengths))[ends])
    return compiled.spread(table, begins, lengths, types, ends, size)


def counted(types, num_types, table=None):
    """The frequency of each type, by C++ where it is compiled.

    table: if given, replaces each type k by table[k], in place.
    """
    if draw.library() is not None:
        return compiled.counted(types, num_types, table)
    counts = onp.bincount(types, minlength=num_types)
    if table is not None:
        types[:] = table[types]
    return counts


def narrow(numbers, count):
    """Numbers below `count` in the dtype of the files: uint16 or int32."""
    return numbers.astype('uint16' if count <= 1 << 16 else 'int32')


def roomy(array, size):
    """An array of at least `size` entries that begins with `array`.

    The size doubles, so that a growing array is copied only a few times.
    """
    if size <= len(array):
        return array
    longer = onp.zeros(2 * size, array.dtype)   # uses no memory yet
    longer[:len(array)] = array
    return longer


def _new_names():
    return PlainNames() if draw.library() is None else Names()


class WordTypes:
    """The different words so far, numbered by first occurrence.
    """

    #: The dtype of the numbers.
    dtype = onp.dtype('int32')

    def __init__(self):
        self._names = _new_names()
        self._counts = onp.zeros(1 << 12, 'int64')

    def __len__(self):
        return len(self._names)

    @property
    def names(self):
        """The words, a list."""
        return self.text().decode().split('\n')[:-1]

    def text(self, first=0):
        """The words from number `first` on, one per line: bytes."""
        return self._names.text(first)

    @property
    def counts(self):
        """The frequency of each word: (words,) int64."""
        return self._counts[:len(self)]

    def numbered(self, some):
        """The word numbers (words,) of a `Cut`, and its sentences' ends."""
        table = self.add(some.names)
        # `counted` also replaces some.types by word numbers
        self.count(table, counted(some.types, len(table), table))
        return some.types, some.sentences

    def add(self, lines):
        """The numbers of different words, one per line of bytes: int32."""
        table = self._names.add(lines)
        self._counts = roomy(self._counts, len(self))
        return table

    def count(self, numbers, counts):
        """Add to the counts of different words."""
        self._counts[numbers] += counts

    @property
    def too_many(self):
        return len(self) > MAX_TYPES or self._names.letters > MAX_CHARS

    def prune(self):
        """Prune the rarer half; return each word's new number, or -1."""
        counts, text = self.counts, self._names.text()
        lengths = _lengths(text)
        falling = onp.argsort(-counts, kind='stable')
        last = min(MAX_TYPES // 2, len(counts) - 1, onp.searchsorted(
            onp.cumsum(lengths[falling]), MAX_CHARS // 2))
        # Equally frequent words are pruned together
        kept = counts > counts[falling[last]]
        self._names = _new_names()
        self._names.add(text, kept)
        self._counts = counts[kept]
        return onp.where(kept, onp.cumsum(kept) - 1, -1).astype('int32')


def _lengths(names):
    """The number of letters of words, one per line: (words,) int64."""
    codes = onp.frombuffer(names, 'uint8')
    if codes.max(initial=0) > 0x7f:
        # A UTF-8 continuation byte does not start a letter
        names = codes[(codes & 0xc0) != 0x80]
    return onp.diff(line_ends(names), prepend=-1) - 1


class PieceTypes:
    """Numbers a text's word pieces, with the interface of `WordTypes`.

    A pruned word is split again when it occurs again, so no word is lost.
    """

    #: False, since pruning words leaves the stored piece numbers valid.
    too_many = False

    def __init__(self, vocab):
        self._words, self._cutter = WordTypes(), vocab.cutter()
        self._ids = narrow(onp.zeros(SPARE, 'int32'), len(vocab))
        # int32 is enough: a word has at most as many pieces as letters, and
        # MAX_CHARS limits the letters
        self._begins = onp.zeros(1, 'int32')
        self.dtype = self._ids.dtype

    def numbered(self, some):
        """The pieces (pieces,) of a `Cut`, and the ends of its sentences."""
        known = len(self._words)
        table = self._words.add(some.names)
        self._learn(self._words.text(known), known)
        counts = counted(some.types, len(table))
        self._words.count(table, counts)
        begins = self._begins[table]
        lengths = self._begins[table + 1] - begins
        # A cut has few different words, so their pieces stay in the CPU's
        # cache
        found = spread(self._ids, begins.astype('int64'), lengths, some.types,
                       some.sentences, int(counts @ lengths))
        if self._words.too_many:
            self._forget()
        return found

    def _learn(self, lines, known):
        """Split words, one per line; the first gets number `known`."""
        ids, begins = self._cutter(lines)
        first = self._begins[known]
        self._ids = roomy(self._ids, first + len(ids) + SPARE)
        self._ids[first:first + len(ids)] = ids
        self._begins = roomy(self._begins, known + len(begins))
        self._begins[known:known + len(begins)] = first + begins

    def _forget(self):
        """Prune rare words, and drop their pieces."""
        kept = onp.flatnonzero(self._words.prune() >= 0)
        lengths = onp.diff(self._begins)[kept]
        self._ids = onp.append(
            self._ids[concat_ranges(self._begins[kept], lengths)],
            onp.zeros(SPARE, self.dtype))
        self._begins = onp.append(0, onp.cumsum(lengths)).astype('int32')


def in_pieces(cut, vocab):
    """Split the words of a `CutText` into pieces; none may be pruned."""
    ids, begins = vocab.cutter()(cut.types.text())
    cut.cut_further(narrow(onp.append(ids, onp.zeros(SPARE, 'int32')),
                           len(vocab)), begins)
