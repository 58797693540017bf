"""A text split into numbered words, its held-out part, its vocabulary."""
import bisect
import contextlib
import itertools
import random

import numpy as onp

from d2lbert.bert_dataset import MIN_FREQ
from d2lbert.corpus.text_reader import stretches_of
from d2lbert.corpus.word_types import WordTypes, counted, looked_up, spread
from d2lbert.machine.workers import in_order
from d2lbert.progress import bar
from d2lbert.text import RESERVED, UNK, UNK_ID
from d2lbert.texts.numbered_text import BLOCK_WORDS, concat_ranges, line_ends

# A text of fewer words is small: it may have many that occur only a few times
SMALL_TEXT = 200_000

# The share of a small text's words that may be too rare for the vocabulary
RARE_SHARE = 0.1

# Bytes before a cut text's numbers, so that their file can become a .npy
ROOM_FOR_HEADER = 128


class CutText:
    """A text split into words (or word pieces) and numbered, in a folder.

    When there are too many different words, rare ones are pruned and the
    others renumbered. For each pruning the file `became-N.npy` maps the
    numbers before it to the final numbers.

    types: numbers the words, a `WordTypes` or a `PieceTypes`.
    """

    def __init__(self, folder, files, cutter, progress, types=None):
        folder.mkdir()
        self.folder, self.files = folder, files
        self._articles = []
        # The number of words that had been written at each pruning
        self.pruned_at = []
        self.types = WordTypes() if types is None else types
        self.dtype = self.types.dtype
        self.num_words = self.num_sentences = self.num_paragraphs = 0
        # Paragraphs without an inner sentence end, and the words in them
        self.passed = onp.zeros(2, 'int64')
        with contextlib.ExitStack() as stack:
            self._out = self._open_files(stack, 'ids', 'sentences',
                                         'paragraphs')
            shown = stack.enter_context(bar(
                sum(path.stat().st_size for path in files), 'cutting', 'B',
                unit_scale=True, quiet=not progress))
            # Stops its threads before the files are closed
            for some in stack.enter_context(contextlib.closing(in_order(
                    cutter.cut, itertools.chain.from_iterable(
                        stretches_of(path, shown.update) for path in files),
                    cutter.num_threads))):
                self._add(some)
        self._link_prunings()
        # An article without paragraphs begins where the next one does
        self.articles = onp.unique(onp.concatenate(self._articles))
        self.articles = self.articles[self.articles < self.num_paragraphs]

    def _open_files(self, stack, ids, *ends):
        """Open a file for numbers, and files for ends, which begin with 0."""
        files = [stack.enter_context(open(self.folder / name, 'wb'))
                 for name in (ids, *ends)]
        files[0].write(bytes(ROOM_FOR_HEADER))
        for f in files[1:]:
            f.write(onp.zeros(1, 'int64'))
        return files

    def _add(self, some):
        """Number the words of a `splitters.Cut` and write them."""
        ids, sentences, paragraphs = self._out
        self._articles.append(self.num_paragraphs + some.articles)
        self.passed += some.passed
        numbers, ends = self.types.numbered(some)
        ids.write(numbers)
        sentences.write(self.num_words + ends[1:])
        paragraphs.write(self.num_sentences + some.paragraphs[1:])
        self.num_words += len(numbers)
        self.num_sentences += len(some.sentences) - 1
        self.num_paragraphs += len(some.paragraphs) - 1
        if self.types.too_many:
            onp.save(self._became_file(len(self.pruned_at)),
                     self.types.prune())
            self.pruned_at.append(self.num_words)

    def _became_file(self, k):
        return self.folder / f'became-{k}.npy'

    def _link_prunings(self):
        """Make each became-N.npy map to the final numbers."""
        later = None
        for k in reversed(range(len(self.pruned_at))):
            became = self.became(k)
            if later is not None:
                became = onp.where(became < 0, became, later[became])
                onp.save(self._became_file(k), became)
            later = became

    def cut_further(self, table, begins):
        """Replace each number k by the numbers table[begins[k]:begins[k + 1]].

        table (numbers + SPARE,), begins (types + 1,) int64. No word may have
        been pruned.
        """
        ends = onp.memmap(self.folder / 'sentences', 'int64', 'r')
        lengths = onp.diff(begins).astype('int32')

        def parts(stretch):
            begin, end = stretch
            first, last = onp.searchsorted(ends, stretch, 'right')
            # ends[0] is the text's begin; further zeros end empty sentences
            first = first if begin else 1
            types = self.words(begin, end)
            return spread(table, begins, lengths, types,
                          ends[first:last] - begin,
                          int(counted(types, len(lengths)) @ lengths))
        count = 0
        with contextlib.ExitStack() as stack:
            ids, sentences = self._open_files(stack, 'ids-further',
                                              'sentences-further')
            for numbers, new_ends in stack.enter_context(contextlib.closing(
                    in_order(parts, self.stretches(0, self.num_words)))):
                ids.write(numbers)
                sentences.write(count + new_ends)
                count += len(numbers)
        for name in 'ids', 'sentences':
            (self.folder / f'{name}-further').replace(self.folder / name)
        self.num_words, self.dtype = count, table.dtype

    def stretches(self, begin, end, size=None):
        """Split words begin to end - 1 into ranges (begin, end) for `words`.

        size: the maximal number of words of a range, by default BLOCK_WORDS.
        No range contains words from before and after a pruning.
        """
        while begin < end:
            stop = min(end, begin + (size or BLOCK_WORDS))
            k = bisect.bisect_right(self.pruned_at, begin)
            stop = min([stop, *self.pruned_at[k:k + 1]])
            yield begin, stop
            begin = stop

    def words(self, begin, end):
        """The final numbers of a range of `stretches`; -1 if pruned.

        Any thread may call it.
        """
        k, numbers = self.numbers(begin, end)
        if k < len(self.pruned_at):
            return looked_up(self.became(k), numbers)
        return numbers

    def numbers(self, begin, end):
        """(k, numbers) of a range of `stretches`, as they were written.

        For k < len(pruned_at), `became(k)` maps them to the final numbers.
        """
        return (bisect.bisect_right(self.pruned_at, begin),
                self._read('ids', self.dtype, begin, end, ROOM_FOR_HEADER))

    def became(self, k):
        """The final number of each number before pruning k: int32."""
        return onp.load(self._became_file(k))

    def offsets(self, name, begin, end):
        """Entries begin to end - 1 of the file sentences or paragraphs."""
        return self._read(name, 'int64', begin, end)

    def _read(self, name, dtype, begin, end, before=0):
        with open(self.folder / name, 'rb') as f:
            f.seek(before + begin * onp.dtype(dtype).itemsize)
            numbers = onp.fromfile(f, dtype, end - begin)
        if len(numbers) < end - begin:
            raise OSError(f'{self.folder / name} lost its end while it was '
                          'in use: try again')
        return numbers

    def span(self, begin, end):
        """The position of paragraphs begin to end - 1, in sentences and words.

        Returns two ranges, each [begin, end].
        """
        sentences = [int(self.offsets('paragraphs', q, q + 1)[0])
                     for q in (begin, end)]
        return sentences, [int(self.offsets('sentences', s, s + 1)[0])
                           for s in sentences]


def held_out(cut, share):
    """Two lists of ranges of paragraphs: for training, and held out."""
    everything = [(0, cut.num_paragraphs)]
    if not share or not cut.num_paragraphs:
        return everything, []
    starts = cut.articles
    if len(starts) * share < 1:
        # At least four blocks are held out, from different places
        size = max(1, min(64, int(cut.num_paragraphs * share / 4)))
        starts = onp.arange(0, cut.num_paragraphs, size)
    num_held = max(1, round(len(starts) * share))
    if num_held >= len(starts):
        raise ValueError(
            f'{described(cut.files)}: valid_share={share} of '
            f'{len(starts)} paragraphs leaves nothing to train on: name a '
            'longer text, or a smaller share')
    ends = [*starts[1:].tolist(), cut.num_paragraphs]
    rng = random.Random(0)
    held = set()
    # One random article of each of num_held equal stretches
    for k in range(num_held):
        begin, end = (len(starts) * j // num_held for j in (k, k + 1))
        held.add(begin + int(rng.random() * (end - begin)))
    ranges = [], []
    for k, start in enumerate(starts.tolist()):
        ranges[k in held].append((start, ends[k]))
    return ranges


def joined(ranges):
    """Ranges, with adjacent ones joined."""
    longer = []
    for begin, end in ranges:
        if longer and longer[-1][1] == begin:
            begin = longer.pop()[0]
        longer.append((begin, end))
    return longer


def build_vocab(cut, train, valid, min_freq, max_vocab):
    """Build the vocabulary of the training part, as text.Vocab does.

    train, valid: the two lists of `held_out`. min_freq: None for
    `usual_min_freq`. Returns (tokens, freqs, table, min_freq). tokens: bytes,
    one token per line. freqs (tokens,) int64: the frequency of each token, 0
    for reserved tokens. table (types + 1,) int32: the vocabulary number of
    each word of the text; the last entry is for -1, pruned words.
    """
    text, freqs = b'\n' + cut.types.text(), _freqs(cut, valid)
    if min_freq is None:
        min_freq = usual_min_freq(freqs)
    # Word k is between line feeds k and k + 1
    feeds, reserved = line_ends(text), [UNK, *RESERVED]
    table = onp.full(len(freqs) + 1, UNK_ID, 'int32')
    falling = onp.flatnonzero(freqs >= max(1, min_freq))
    for number, token in enumerate(reserved):
        place = text.find(f'\n{token}\n'.encode())
        if place >= 0:
            k = onp.searchsorted(feeds, place)
            table[k], falling = number, falling[falling != k]
    # As `falling_types`, for ranges of paragraphs and pruned numbers. The
    # numbers follow first occurrence, so without held-out ranges a stable
    # sort is enough
    falling = falling[onp.lexsort(
        (_firsts(cut, train, len(freqs))[falling], -freqs[falling]))
        if valid else onp.argsort(-freqs[falling], kind='stable')]
    if max_vocab is not None:
        falling = falling[:max_vocab - len(reserved)]
    table[falling] = onp.arange(len(reserved), len(reserved) + len(falling))
    lines = onp.frombuffer(text, 'uint8')[concat_ranges(
        feeds[falling] + 1, onp.diff(feeds)[falling])]
    return (''.join(f'{token}\n' for token in reserved).encode()
            + lines.tobytes(),
            onp.concatenate([onp.zeros(len(reserved), 'int64'),
                             freqs[falling]]), table, min_freq)


def usual_min_freq(freqs):
    """The default minimum frequency of a word in the vocabulary.

    freqs (types,): the frequency of each word. The default is the book's
    MIN_FREQ. For a small text it is lower, so that at most RARE_SHARE of the
    words are unknown.
    """
    num_words = freqs.sum()
    if num_words >= SMALL_TEXT:
        return MIN_FREQ
    return next((least for least in range(MIN_FREQ, 1, -1)
                 if freqs[freqs < least].sum() <= RARE_SHARE * num_words), 1)


def _firsts(cut, train, count):
    """The first place of each word in ranges of paragraphs: (count,) int64.

    -1 for a word that does not occur.
    """
    # The last entry is for number -1, pruned words
    first = onp.full(count + 1, -1, 'int64')
    place = 0
    for numbers in words_of_ranges(cut, train):
        new = onp.flatnonzero(first[numbers] < 0)[::-1]
        # Reversed: of several values for one entry NumPy keeps the last
        first[numbers[new]] = place + new
        place += len(numbers)
    return first[:-1]


def _freqs(cut, valid):
    """The frequency of each word outside of ranges of paragraphs: (types,).
    """
    # The last entry is for number -1, pruned words
    freqs = onp.append(cut.types.counts, 0)
    for numbers in words_of_ranges(cut, valid):
        different, counts = onp.unique(numbers, return_counts=True)
        freqs[different] -= counts
    return freqs[:-1]


def count_words(cut, valid):
    """{word: frequency} outside of the ranges of paragraphs `valid`."""
    return {name: count for name, count in zip(
        cut.types.names, _freqs(cut, valid).tolist()) if count}


def words_of_ranges(cut, ranges):
    """Yield the final numbers of the words of ranges of paragraphs."""
    for begin, end in joined(ranges):
        for stretch in cut.stretches(*cut.span(begin, end)[1]):
            yield cut.words(*stretch)


def described(files):
    """The first file's name and the number of further files."""
    more = len(files) - 1
    return f'{files[0]}' + (f' and {more} more' if more else '')
