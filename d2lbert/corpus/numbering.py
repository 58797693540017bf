"""Words counted and numbered as they come, and what is held out of them."""
import bisect
import contextlib
import itertools
import random

import numpy as onp

from d2lbert.corpus.reading import paragraphs_of
from d2lbert.numbered import BLOCK_WORDS
from d2lbert.progress import bar
from d2lbert.text import RESERVED, UNK, Vocab

# Words that are counted at a time. When there are more, the rarer half is
# forgotten: it becomes <unk>, and what comes again is counted from 0
MAX_TYPES = 1 << 21
MAX_CHARS = 1 << 26


class WordTypes:
    """The different words so far, numbered as they came, and counted."""

    def __init__(self):
        self.numbers = {}
        self.counts = onp.zeros(1 << 12, 'int64')
        self.chars = 0

    def add(self, tokens):
        """Count `Tokens`; returns the words' numbers (words,) int32."""
        numbers, known = self.numbers, len(self.numbers)
        table = onp.fromiter(
            (numbers.setdefault(name, len(numbers)) for name in tokens.names),
            'int32', len(tokens.names))
        self.chars += sum(len(tokens.names[k])
                          for k in onp.flatnonzero(table >= known))
        if len(numbers) > len(self.counts):
            self.counts = onp.concatenate([
                self.counts, onp.zeros(2 * len(numbers), 'int64')])
        self.counts[table] += onp.bincount(tokens.types,
                                           minlength=len(table))
        return table[tokens.types]

    @property
    def too_many(self):
        return len(self.numbers) > MAX_TYPES or self.chars > MAX_CHARS

    def prune(self):
        """Forget the rarer half; returns what old numbers became, or -1."""
        counts = self.counts[:len(self.numbers)]
        lengths = onp.fromiter(map(len, self.numbers), 'int64', len(counts))
        falling = onp.argsort(-counts, kind='stable')
        last = min(MAX_TYPES // 2, len(counts) - 1, onp.searchsorted(
            onp.cumsum(lengths[falling]), MAX_CHARS // 2))
        # Equally rare words go together
        kept = counts > counts[falling[last]]
        self.numbers = {name: k for k, name in enumerate(
            itertools.compress(self.numbers, kept))}
        self.chars = int(lengths[kept].sum())
        self.counts = counts[kept]
        return onp.where(kept, onp.cumsum(kept) - 1, -1).astype('int32')


class CutText:
    """A text cut into words, numbered as `WordTypes` did when they came.

    Lies in a folder of its own: the numbers in a file, and for each time
    that rare words were forgotten the file `became-N.npy`, which leads from
    the numbers before to those that are valid in the end.
    """

    def __init__(self, folder, files, cutter, progress):
        folder.mkdir()
        self.folder, self.files = folder, files
        self.articles = onp.zeros(0, 'int64')
        # The words before pruned_at[k] were numbered before rare words were
        # forgotten for the k-th time
        self.pruned_at = []
        self.types = WordTypes()
        self.num_words = self.num_sentences = self.num_paragraphs = 0
        with contextlib.ExitStack() as stack:
            self._out = [stack.enter_context(open(folder / name, 'wb'))
                         for name in ('ids', 'sentences', 'paragraphs')]
            for f in self._out[1:]:
                f.write(onp.zeros(1, 'int64'))
            shown = stack.enter_context(bar(
                sum(path.stat().st_size for path in files), 'cutting', 'B',
                unit_scale=True, quiet=not progress))
            for path in files:
                for paragraphs in paragraphs_of(path, shown.update):
                    self._add(*cutter.cut(paragraphs))
        self._link_prunings()
        # An article without a paragraph is none
        self.articles = onp.unique(self.articles)
        self.articles = self.articles[self.articles < self.num_paragraphs]

    def _add(self, tokens, articles):
        ids, sentences, paragraphs = self._out
        self.articles = onp.concatenate([
            self.articles, self.num_paragraphs + articles])
        ids.write(self.types.add(tokens))
        sentences.write(self.num_words + tokens.sentences[1:])
        paragraphs.write(self.num_sentences + tokens.paragraphs[1:])
        self.num_words += len(tokens.types)
        self.num_sentences += len(tokens.sentences) - 1
        self.num_paragraphs += len(tokens.paragraphs) - 1
        if self.types.too_many:
            onp.save(self._became(len(self.pruned_at)), self.types.prune())
            self.pruned_at.append(self.num_words)

    def _became(self, k):
        return self.folder / f'became-{k}.npy'

    def _link_prunings(self):
        """Let each became-N.npy lead to the last numbers in one step."""
        later = None
        for k in reversed(range(len(self.pruned_at))):
            became = onp.load(self._became(k))
            if later is not None:
                became = onp.where(became < 0, became, later[became])
                onp.save(self._became(k), became)
            later = became

    def words(self, begin, end):
        """Words begin to end - 1 in valid numbers, -1 for forgotten ones.

        Yields int32 arrays of up to BLOCK_WORDS words.
        """
        while begin < end:
            k = bisect.bisect_right(self.pruned_at, begin)
            became, stop = None, min(end, begin + BLOCK_WORDS)
            if k < len(self.pruned_at):
                became = onp.load(self._became(k))
                stop = min(stop, self.pruned_at[k])
            numbers = self._read('ids', 'int32', begin, stop)
            yield numbers if became is None else became[numbers]
            begin = stop

    def offsets(self, name, begin, end):
        """Entries begin to end - 1 of sentences or paragraphs."""
        return self._read(name, 'int64', begin, end)

    def _read(self, name, dtype, begin, end):
        with open(self.folder / name, 'rb') as f:
            f.seek(begin * onp.dtype(dtype).itemsize)
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
    its words alone.
    """
    names = list(cut.types.numbers)
    freqs = _freqs(cut, valid)
    first = onp.arange(len(names))
    if valid:
        # The last entry is that of number -1
        first = onp.full(len(freqs) + 1, -1, 'int64')
        place = 0
        for numbers in words_of_ranges(cut, train):
            new = onp.flatnonzero(first[numbers] < 0)[::-1]
            # Of several values for one entry NumPy keeps the last
            first[numbers[new]] = place + new
            place += len(numbers)
        first = first[:-1]
    # As `numbered.falling_types`, for ranges of numbers that may be pruned
    falling = onp.lexsort((first, -freqs))
    falling = falling[freqs[falling] >= max(1, min_freq)]
    taken = {UNK, *RESERVED}
    pairs = [(names[k], int(freqs[k])) for k in falling.tolist()
             if names[k] not in taken]
    if max_vocab is not None:
        pairs = pairs[:max_vocab - len(taken)]
    return Vocab.from_freqs(pairs, min_freq, RESERVED)


def _freqs(cut, valid):
    """How often each word occurs outside of ranges of paragraphs: (types,).
    """
    # The last entry is that of number -1
    freqs = onp.append(cut.types.counts[:len(cut.types.numbers)], 0)
    for numbers in words_of_ranges(cut, valid):
        different, counts = onp.unique(numbers, return_counts=True)
        freqs[different] -= counts
    return freqs[:-1]


def count_words(cut, valid):
    """{word: how often it occurs outside of `valid`, ranges of paragraphs}.
    """
    return {name: count for name, count in zip(
        cut.types.numbers, _freqs(cut, valid).tolist()) if count}


def words_of_ranges(cut, ranges):
    """The words of ranges of paragraphs, as `CutText.words` gives them."""
    for begin, end in joined(ranges):
        yield from cut.words(*cut.span(begin, end)[1])


def described(files):
    """Files in a few words, for what is said about their text."""
    more = len(files) - 1
    return f'{files[0]}' + (f' and {more} more' if more else '')
