"""A text cut into numbered words, what is held out of it, its vocabulary."""
import bisect
import contextlib
import itertools
import random

import numpy as onp

from d2lbert.corpus.text_reader import stretches_of
from d2lbert.corpus.word_types import WordTypes, counted, looked_up, spread
from d2lbert.machine.threads import in_order
from d2lbert.progress import bar
from d2lbert.text import RESERVED, UNK, UNK_ID
from d2lbert.texts.numbered_text import BLOCK_WORDS, concat_ranges
from d2lbert.texts.words import line_ends

# Bytes before a cut text's numbers, so that their file can become a .npy
ROOM_FOR_HEADER = 128


class CutText:
    """A text cut into words, numbered as `types` did when they came.

    Lies in a folder of its own: the numbers in a file, and for each time
    that rare words were forgotten the file `became-N.npy`, which leads from
    the numbers before to those that are valid in the end. Pieces, where
    those are what is numbered, are called words, too.

    types: what the words are told by, `WordTypes()` or a `PieceTypes`.
    """

    def __init__(self, folder, files, cutter, progress, types=None):
        folder.mkdir()
        self.folder, self.files = folder, files
        self._articles = []
        # The words before pruned_at[k] were numbered before rare words were
        # forgotten for the k-th time
        self.pruned_at = []
        self.types = WordTypes() if types is None else types
        self.dtype = self.types.dtype
        self.num_words = self.num_sentences = self.num_paragraphs = 0
        with contextlib.ExitStack() as stack:
            self._out = self._begun(stack, 'ids', 'sentences', 'paragraphs')
            shown = stack.enter_context(bar(
                sum(path.stat().st_size for path in files), 'cutting', 'B',
                unit_scale=True, quiet=not progress))
            # Closed before what it is at work on
            for some in stack.enter_context(contextlib.closing(in_order(
                    cutter.cut, itertools.chain.from_iterable(
                        stretches_of(path, shown.update) for path in files),
                    cutter.num_threads))):
                self._add(some)
        self._link_prunings()
        # An article without a paragraph is none
        self.articles = onp.unique(onp.concatenate(self._articles))
        self.articles = self.articles[self.articles < self.num_paragraphs]

    def _begun(self, stack, ids, *ends):
        """Files to be written, open: for numbers, and for where things end."""
        files = [stack.enter_context(open(self.folder / name, 'wb'))
                 for name in (ids, *ends)]
        files[0].write(bytes(ROOM_FOR_HEADER))
        for f in files[1:]:
            f.write(onp.zeros(1, 'int64'))
        return files

    def _add(self, some):
        """Number the words of a `cutting.Cut` and write them down."""
        ids, sentences, paragraphs = self._out
        self._articles.append(self.num_paragraphs + some.articles)
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
        """Let each became-N.npy lead to the last numbers in one step."""
        later = None
        for k in reversed(range(len(self.pruned_at))):
            became = self.became(k)
            if later is not None:
                became = onp.where(became < 0, became, later[became])
                onp.save(self._became_file(k), became)
            later = became

    def cut_further(self, table, begins):
        """Let word k become the numbers table[begins[k]:begins[k + 1]].

        table (numbers + SPARE,), begins (types + 1,) int64. No words may have
        been forgotten.
        """
        ends = onp.memmap(self.folder / 'sentences', 'int64', 'r')
        lengths = onp.diff(begins).astype('int32')

        def parts(stretch):
            begin, end = stretch
            first, last = onp.searchsorted(ends, stretch, 'right')
            first = first if begin else 1       # there may be empty ones
            types = self.words(begin, end)
            return spread(table, begins, lengths, types,
                          ends[first:last] - begin,
                          int(counted(types, len(lengths)) @ lengths))
        count = 0
        with contextlib.ExitStack() as stack:
            ids, sentences = self._begun(stack, 'ids-further',
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
        """Words begin to end - 1 in parts that `words` takes: (begin, end).

        size: of how many words each is at most, or BLOCK_WORDS.
        """
        while begin < end:
            stop = min(end, begin + (size or BLOCK_WORDS))
            k = bisect.bisect_right(self.pruned_at, begin)
            stop = min([stop, *self.pruned_at[k:k + 1]])
            yield begin, stop
            begin = stop

    def words(self, begin, end):
        """Words begin to end - 1, of one of `stretches`: (words,).

        In valid numbers, -1 for forgotten ones. For any thread.
        """
        k, numbers = self.numbers(begin, end)
        if k < len(self.pruned_at):
            return looked_up(self.became(k), numbers)
        return numbers

    def numbers(self, begin, end):
        """Those words as they were numbered: (k, (words,)).

        For k < len(pruned_at), `became(k)` leads to valid numbers.
        """
        return (bisect.bisect_right(self.pruned_at, begin),
                self._read('ids', self.dtype, begin, end, ROOM_FOR_HEADER))

    def became(self, k):
        """What became of the numbers before pruned_at[k]: int32."""
        return onp.load(self._became_file(k))

    def offsets(self, name, begin, end):
        """Entries begin to end - 1 of sentences or paragraphs."""
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
        """Sentences and words of paragraphs begin to end - 1."""
        sentences = [int(self.offsets('paragraphs', q, q + 1)[0])
                     for q in (begin, end)]
        return sentences, [int(self.offsets('sentences', s, s + 1)[0])
                           for s in sentences]


def held_out(cut, share):
    """Ranges of paragraphs for training and for validation, two lists."""
    everything = [(0, cut.num_paragraphs)]
    if not share or not cut.num_paragraphs:
        return everything, []
    starts = cut.articles
    if len(starts) * share < 1:
        # At least four blocks, so that not all comes from one place
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
    for k in range(num_held):
        begin, end = (len(starts) * j // num_held for j in (k, k + 1))
        held.add(begin + int(rng.random() * (end - begin)))
    ranges = [], []
    for k, start in enumerate(starts.tolist()):
        ranges[k in held].append((start, ends[k]))
    return ranges


def joined(ranges):
    """The same with ranges that follow on each other made one."""
    longer = []
    for begin, end in ranges:
        if longer and longer[-1][1] == begin:
            begin = longer.pop()[0]
        longer.append((begin, end))
    return longer


def build_vocab(cut, train, valid, min_freq, max_vocab):
    """The vocabulary of the ranges of paragraphs that are to be trained on.

    The same as text.Vocab gives for them, but that frequencies are those of
    its words alone. Returns its tokens, bytes, a line each; how often each
    occurs, (tokens,) int64, 0 for the reserved ones; and the number of each
    word of the text, (types + 1,) int32, the last that of -1.
    """
    text, freqs = b'\n' + cut.types.text(), _freqs(cut, valid)
    # Each token stands between two of them
    feeds, reserved = line_ends(text), [UNK, *RESERVED]
    table = onp.full(len(freqs) + 1, UNK_ID, 'int32')
    falling = onp.flatnonzero(freqs >= max(1, min_freq))
    for number, token in enumerate(reserved):
        place = text.find(f'\n{token}\n'.encode())
        if place >= 0:
            k = onp.searchsorted(feeds, place)
            table[k], falling = number, falling[falling != k]
    # As `numbered.falling_types`, for ranges of numbers that may be pruned
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
                             freqs[falling]]), table)


def _firsts(cut, train, count):
    """Where words first come in ranges of paragraphs: (count,) int64.

    -1 for one that does not.
    """
    # The last entry is that of number -1
    first = onp.full(count + 1, -1, 'int64')
    place = 0
    for numbers in words_of_ranges(cut, train):
        new = onp.flatnonzero(first[numbers] < 0)[::-1]
        # Of several values for one entry NumPy keeps the last
        first[numbers[new]] = place + new
        place += len(numbers)
    return first[:-1]


def _freqs(cut, valid):
    """How often each word occurs outside of ranges of paragraphs: (types,).
    """
    # The last entry is that of number -1
    freqs = onp.append(cut.types.counts, 0)
    for numbers in words_of_ranges(cut, valid):
        different, counts = onp.unique(numbers, return_counts=True)
        freqs[different] -= counts
    return freqs[:-1]


def count_words(cut, valid):
    """{word: how often it occurs outside of `valid`, ranges of paragraphs}.
    """
    return {name: count for name, count in zip(
        cut.types.names, _freqs(cut, valid).tolist()) if count}


def words_of_ranges(cut, ranges):
    """The words of ranges of paragraphs, as `CutText.words` gives them."""
    for begin, end in joined(ranges):
        for stretch in cut.stretches(*cut.span(begin, end)[1]):
            yield cut.words(*stretch)


def described(files):
    """Files in a few words, for what is said about their text."""
    more = len(files) - 1
    return f'{files[0]}' + (f' and {more} more' if more else '')
