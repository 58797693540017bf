"""`WordTypes` numbers the different words of a text, and counts them.

Equal words have the same number, their type. Types are numbered from 0, in the
order of first occurrence. `PieceTypes` splits words into numbered pieces.
"""
import itertools

import numpy as onp

from d2lbert.kernels import cut as compiled
from d2lbert.kernels import draw
from d2lbert.kernels.cut import SPARE, Names
from d2lbert.texts.numbered_text import concat_ranges, line_ends

# The maximal numbers of different words and of their letters. Beyond them rare
# words are pruned and become <unk>, except in `PieceTypes`. A pruned word that
# occurs again is a new word, and its count begins at 0
MAX_TYPES = 1 << 21
MAX_LETTERS = 1 << 26


class PlainNames:
    """`kernels.cut.Names` in Python, with the same methods."""

    def __init__(self):
        self._numbers = {}      # {word: number}
        self.letters = 0

    def __len__(self):
        return len(self._numbers)

    def add(self, lines, kept=None):
        numbers, num_known = self._numbers, len(self._numbers)
        names = lines.decode().split('\n')[:-1]
        if kept is None:
            kept = itertools.repeat(True)
        found = onp.fromiter((
            numbers.setdefault(name, len(numbers)) if is_kept else -1
            for name, is_kept in zip(names, kept)), 'int32', len(names))
        is_new = found >= num_known
        self.letters += sum(len(names[k]) for k in onp.flatnonzero(is_new))
        return found

    def text(self, first=0):
        return ''.join(f'{name}\n' for name in itertools.islice(
            self._numbers, first, None)).encode()


def _has_cpp():
    return draw.library() is not None


def look_up(table, types):
    """Return table[types]; type -1 reads the last entry. types: int32."""
    if not _has_cpp():
        return table[types]
    return compiled.look_up(table, types)


def expand(table, begins, lengths, types, ends, size):
    """Replace each k in types by table[begins[k]:begins[k] + lengths[k]].

    ends: indices into types. size: the length of the result. Returns the
    result, and `ends` as indices into the result. Dtypes are as for
    `kernels.cut.spread`.
    """
    if not _has_cpp():
        word_lengths = lengths[types]
        return (table[concat_ranges(begins[types], word_lengths)],
                onp.append(0, onp.cumsum(word_lengths))[ends])
    return compiled.spread(table, begins, lengths, types, ends, size)


def count_types(types, num_types, table=None):
    """The frequency of each type: (num_types,) int64.

    table: if not None, set types to table[types] in place, after counting.
    """
    if _has_cpp():
        return compiled.count_types(types, num_types, table)
    counts = onp.bincount(types, minlength=num_types)
    if table is not None:
        types[:] = table[types]
    return counts


def narrow(numbers, limit):
    """Convert numbers below `limit` to uint16 if they fit, else to int32."""
    return numbers.astype('uint16' if limit <= 1 << 16 else 'int32')


def grow(array, min_size):
    """Return `array`, or a longer copy if it has fewer than min_size entries.

    The new entries are 0.
    """
    if min_size <= len(array):
        return array
    # Zeros take no memory until they are overwritten
    longer = onp.zeros(2 * min_size, array.dtype)
    longer[:len(array)] = array
    return longer


def _new_names():
    return Names() if _has_cpp() else PlainNames()


class WordTypes:
    """The different words of the text so far, with numbers and counts."""

    #: The dtype of the numbers that `number_words` returns.
    dtype = onp.dtype('int32')

    def __init__(self):
        self._names = _new_names()
        self._counts = onp.zeros(1 << 12, 'int64')

    def __len__(self):
        return len(self._names)

    @property
    def names(self):
        return self.text().decode().split('\n')[:-1]

    def text(self, first=0):
        """The words from number `first` on, one per line: bytes."""
        return self._names.text(first)

    @property
    def counts(self):
        """The frequency of each word: (words,) int64."""
        return self._counts[:len(self)]

    def number_words(self, cut):
        """Number and count the words of a `splitters.Cut`.

        Returns the number of each word, and cut.sentences. The numbers replace
        cut.types in place.
        """
        numbers = self.add(cut.names)
        # Also sets cut.types to numbers[cut.types]
        counts = count_types(cut.types, len(numbers), table=numbers)
        self.add_counts(numbers, counts)
        return cut.types, cut.sentences

    def add(self, lines):
        """Return the numbers of different words, and add the new words.

        lines: bytes, one word per line.
        """
        numbers = self._names.add(lines)
        self._counts = grow(self._counts, len(self))
        return numbers

    def add_counts(self, numbers, counts):
        """Add `counts` to the frequencies of words; all numbers differ."""
        self._counts[numbers] += counts

    @property
    def too_many(self):
        """True if the words exceed a limit, so that `prune` must follow."""
        return len(self) > MAX_TYPES or self._names.letters > MAX_LETTERS

    def prune(self):
        """Prune the rarest words, down to half of each limit or less.

        Returns the new number of each word, -1 for pruned words: int32.
        """
        counts, lines = self.counts, self._names.text()
        lengths = _num_letters(lines)
        order = onp.argsort(-counts, kind='stable')     # frequent words first
        # The number of frequent words whose letters fit into half the limit
        num_fitting = onp.searchsorted(onp.cumsum(lengths[order]),
                                       MAX_LETTERS // 2)
        first_pruned = min(MAX_TYPES // 2, len(counts) - 1, num_fitting)
        # Words as frequent as the first pruned word are pruned, too
        kept = counts > counts[order[first_pruned]]
        self._names = _new_names()
        self._names.add(lines, kept)
        self._counts = counts[kept]
        return onp.where(kept, onp.cumsum(kept) - 1, -1).astype('int32')


def _num_letters(lines):
    """The number of letters of each line of bytes: (lines,) int64."""
    first_bytes = onp.frombuffer(lines, 'uint8')    # of the letters in UTF-8
    if first_bytes.max(initial=0) > 0x7f:
        first_bytes = first_bytes[(first_bytes & 0xc0) != 0x80]
    return onp.diff(line_ends(first_bytes), prepend=-1) - 1


class PieceTypes:
    """Numbers the word pieces of a text; replaces `WordTypes` in a `CutText`.

    vocab: the `PieceVocab` that numbers the pieces. A pruned word is split
    again when it occurs again, so no word is lost.
    """

    #: `CutText` need not renumber pieces, even if words are pruned here.
    too_many = False

    def __init__(self, vocab):
        self._words, self._split_lines = WordTypes(), vocab.cutter()
        # The pieces of word k are _ids[_begins[k]:_begins[k + 1]]. At least
        # SPARE unused entries follow, as `expand` requires
        self._ids = narrow(onp.zeros(SPARE, 'int32'), len(vocab))
        # int32 is enough: MAX_LETTERS limits the letters of all words, and a
        # letter becomes a few pieces at most
        self._begins = onp.zeros(1, 'int32')
        self.dtype = self._ids.dtype

    def number_words(self, cut):
        """Split the words of a `splitters.Cut` into pieces.

        Returns the number of each piece, and cut.sentences as indices of
        pieces.
        """
        num_known = len(self._words)
        numbers = self._words.add(cut.names)
        self._add_pieces(self._words.text(num_known), num_known)
        counts = count_types(cut.types, len(numbers))
        self._words.add_counts(numbers, counts)
        begins = self._begins[numbers]
        lengths = self._begins[numbers + 1] - begins
        pieces_and_ends = expand(
            self._ids, begins.astype('int64'), lengths, cut.types,
            cut.sentences, int(counts @ lengths))
        if self._words.too_many:
            self._prune()
        return pieces_and_ends

    def _add_pieces(self, lines, first):
        """Split new words, numbered from `first` on, and store their pieces.

        lines: bytes, one word per line.
        """
        ids, begins = self._split_lines(lines)
        num_earlier_ids = self._begins[first]
        num_ids = num_earlier_ids + len(ids)
        self._ids = grow(self._ids, num_ids + SPARE)
        self._ids[num_earlier_ids:num_ids] = ids
        stop = first + len(begins)
        self._begins = grow(self._begins, stop)
        self._begins[first:stop] = num_earlier_ids + begins

    def _prune(self):
        kept_words = onp.flatnonzero(self._words.prune() >= 0)
        lengths = onp.diff(self._begins)[kept_words]
        self._ids = onp.append(
            self._ids[concat_ranges(self._begins[kept_words], lengths)],
            onp.zeros(SPARE, self.dtype))
        self._begins = onp.append(0, onp.cumsum(lengths)).astype('int32')


def split_into_pieces(cut_text, vocab):
    """Replace the words of a `CutText` by the word pieces of a `PieceVocab`.

    No word may have been pruned.
    """
    split_lines = vocab.cutter()
    ids, begins = split_lines(cut_text.word_types.text())
    table = narrow(onp.append(ids, onp.zeros(SPARE, 'int32')), len(vocab))
    cut_text.replace_words(table, begins)
