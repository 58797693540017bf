"""`CutText` numbers the words of a text of any size, in files on disk.

Other functions choose the held-out part of such a text, and build the
vocabulary of the training part.
"""
import bisect
import contextlib
import itertools
import random

import numpy as onp

from d2lbert.bert_dataset import MIN_FREQ
from d2lbert.corpus.text_reader import stretches_of
from d2lbert.corpus.word_types import (
    WordTypes,
    count_types,
    expand,
    look_up,
)
from d2lbert.machine.workers import in_order
from d2lbert.progress import bar
from d2lbert.text import RESERVED, UNK, UNK_ID
from d2lbert.texts.numbered_text import BLOCK_WORDS, concat_ranges, line_ends

# A number of words and a share of them, see `usual_min_freq`
SMALL_TEXT, RARE_SHARE = 200_000, 0.1

# The file `ids` begins with this many zeros, which `text_store.write_numbers`
# replaces by the header of a .npy file
HEADER_BYTES = 128


class CutText:
    """The numbered words (or word pieces) of a text, in files of a folder.

    The file `ids` has the number of each word. The files `sentences` and
    `paragraphs` have the arrays of `numbered_text.TokenizedText`. When there
    are too many different words, rare words are pruned and the other words
    are renumbered. Pruning K = 0, 1, ... writes `renumbering-K.npy`, which
    maps the numbers written since the previous pruning to the final numbers.

    folder: a new folder; files: `text_sources.Source`s; cutter: a cutter of
    `splitters`; word_types: a `WordTypes` or `PieceTypes`. The attribute
    `articles` has the index of each article's first paragraph.
    """

    def __init__(self, folder, files, cutter, progress, word_types=None):
        folder.mkdir()
        self.folder, self.files = folder, files
        # The number of words that were written before each pruning
        self.pruned_at = []
        self.word_types = WordTypes() if word_types is None else word_types
        self.dtype = self.word_types.dtype
        self.num_words = self.num_sentences = self.num_paragraphs = 0
        self.left_out = onp.zeros(2, 'int64')       # as in `splitters.Cut`
        articles = []
        with contextlib.ExitStack() as stack:
            self._out_files = self._open_files(stack, 'ids', 'sentences',
                                               'paragraphs')
            progress_bar = stack.enter_context(bar(
                sum(file.stat().st_size for file in files), 'cutting', 'B',
                unit_scale=True, quiet=not progress))
            stretches = itertools.chain.from_iterable(
                stretches_of(file, progress_bar.update) for file in files)
            # `closing` stops the threads before the stack closes the files
            cuts = stack.enter_context(contextlib.closing(
                in_order(cutter.cut, stretches, cutter.num_threads)))
            for new_cut in cuts:
                articles.append(self.num_paragraphs + new_cut.articles)
                self._add(new_cut)
        self._chain_renumberings()
        # Drop articles without paragraphs. The entry of such an article equals
        # the next entry or, at the end, the number of paragraphs
        articles = onp.unique(onp.concatenate(articles))
        self.articles = articles[articles < self.num_paragraphs]

    def _open_files(self, stack, ids_name, *offsets_names):
        """Open the new files; write room for a header, or the offset 0."""
        out_files = [stack.enter_context(open(self.folder / name, 'wb'))
                     for name in (ids_name, *offsets_names)]
        out_files[0].write(bytes(HEADER_BYTES))
        for f in out_files[1:]:
            f.write(onp.zeros(1, 'int64'))
        return out_files

    def _add(self, new_cut):
        """Number the words of a `splitters.Cut` and write them."""
        ids, sentences, paragraphs = self._out_files
        self.left_out += new_cut.left_out
        numbers, sentence_offsets = self.word_types.number_words(new_cut)
        ids.write(numbers)
        sentences.write(self.num_words + sentence_offsets[1:])
        paragraphs.write(self.num_sentences + new_cut.paragraphs[1:])
        self.num_words += len(numbers)
        self.num_sentences += len(new_cut.sentences) - 1
        self.num_paragraphs += len(new_cut.paragraphs) - 1
        if self.word_types.too_many:
            onp.save(self._renumbering_file(len(self.pruned_at)),
                     self.word_types.prune())
            self.pruned_at.append(self.num_words)

    def _renumbering_file(self, k):
        return self.folder / f'renumbering-{k}.npy'

    def _chain_renumberings(self):
        """Make each renumbering file map to the final numbers.

        Before this call, file K maps only to the numbers after pruning K.
        """
        next_renumbering = None     # the final map of file k + 1
        for k in reversed(range(len(self.pruned_at))):
            renumbering = self.renumbering(k)
            if next_renumbering is not None:
                # Words that were pruned at k stay -1
                renumbering = onp.where(renumbering < 0, renumbering,
                                        next_renumbering[renumbering])
                onp.save(self._renumbering_file(k), renumbering)
            next_renumbering = renumbering

    def replace_words(self, pieces, begins):
        """Replace each word of number i by pieces[begins[i]:begins[i + 1]].

        pieces: uint16 or int32, with SPARE unused entries at the end, see
        `kernels.cut`. begins (different words + 1,) int64. No word may have
        been pruned.
        """
        ends = onp.memmap(self.folder / 'sentences', 'int64', 'r')[1:]
        lengths = onp.diff(begins).astype('int32')

        def pieces_and_ends(word_range):
            begin, end = word_range
            # ends[first:stop] are above `begin` and at most `end`
            first, stop = onp.searchsorted(ends, word_range, 'right')
            if begin == 0:
                first = 0       # empty first sentences end at 0
            numbers = self.final_numbers(begin, end)
            size = int(count_types(numbers, len(lengths)) @ lengths)
            return expand(pieces, begins, lengths, numbers,
                          ends[first:stop] - begin, size)
        num_pieces = 0
        with contextlib.ExitStack() as stack:
            ids, sentences = self._open_files(stack, 'ids-pieces',
                                              'sentences-pieces')
            for new_ids, new_ends in stack.enter_context(contextlib.closing(
                    in_order(pieces_and_ends,
                             self.word_ranges(0, self.num_words)))):
                ids.write(new_ids)
                sentences.write(num_pieces + new_ends)
                num_pieces += len(new_ids)
        for name in 'ids', 'sentences':
            (self.folder / f'{name}-pieces').replace(self.folder / name)
        self.num_words, self.dtype = num_pieces, pieces.dtype

    def word_ranges(self, begin, end, size=None):
        """Split words begin to end - 1 into ranges; yield each (begin, end).

        size: the maximal number of words of a range; None: BLOCK_WORDS.
        No range extends across a pruning.
        """
        while begin < end:
            k = self._next_pruning(begin)
            stop = min(end, begin + (size or BLOCK_WORDS),
                       *self.pruned_at[k:k + 1])
            yield begin, stop
            begin = stop

    def _next_pruning(self, word):
        """The index of the first pruning after a word, or len(pruned_at)."""
        return bisect.bisect_right(self.pruned_at, word)

    def final_numbers(self, begin, end):
        """The final numbers of one of `word_ranges`, -1 for pruned words."""
        k, numbers = self.stored_numbers(begin, end)
        if k < len(self.pruned_at):
            return look_up(self.renumbering(k), numbers)
        return numbers

    def stored_numbers(self, begin, end):
        """(k, numbers): the numbers of one of `word_ranges`, as in the file.

        `renumbering(k)` maps them to the final numbers. If k is
        len(pruned_at), they are final.
        """
        return (self._next_pruning(begin),
                self._read('ids', self.dtype, begin, end, HEADER_BYTES))

    def renumbering(self, k):
        """The array of `renumbering-k.npy`, -1 for pruned words."""
        return onp.load(self._renumbering_file(k))

    def offsets(self, name, begin, end):
        """Entries begin to end - 1 of the file 'sentences' or 'paragraphs'."""
        return self._read(name, 'int64', begin, end)

    def _read(self, name, dtype, begin, end, skip_bytes=0):
        # Opened in each call, since several threads read
        with open(self.folder / name, 'rb') as f:
            f.seek(skip_bytes + begin * onp.dtype(dtype).itemsize)
            numbers = onp.fromfile(f, dtype, end - begin)
        if len(numbers) < end - begin:
            raise OSError(f'{self.folder / name} lost its end while it was '
                          'in use: try again')
        return numbers

    def sentence_and_word_range(self, begin, end):
        """Two lists [begin, end]: sentences and words of a paragraph range."""
        sentence_range = [int(self.offsets('paragraphs', q, q + 1)[0])
                          for q in (begin, end)]
        return sentence_range, [int(self.offsets('sentences', s, s + 1)[0])
                                for s in sentence_range]


def split_held_out(cut_text, share):
    """Two lists of ranges (begin, end) of paragraphs: training, held-out.

    share: the share of the articles that is held out. If that is less than one
    article, the share of small blocks of paragraphs.
    """
    if not share or not cut_text.num_paragraphs:
        return [(0, cut_text.num_paragraphs)], []
    # The first paragraph of each article, or of each block
    starts = cut_text.articles
    if len(starts) * share < 1:
        # At least four blocks if the share is four paragraphs or more
        size = max(1, min(64, int(cut_text.num_paragraphs * share / 4)))
        starts = onp.arange(0, cut_text.num_paragraphs, size)
    num_held_out = max(1, round(len(starts) * share))
    if num_held_out >= len(starts):
        raise ValueError(
            f'{describe_files(cut_text.files)}: valid_share={share} of '
            f'{len(starts)} articles or blocks of paragraphs leaves nothing '
            'to train on: name a longer text, or a smaller share')
    ends = [*starts[1:].tolist(), cut_text.num_paragraphs]
    rng = random.Random(0)
    # Hold out a random article (or block) from each of num_held_out groups of
    # consecutive ones
    held_out = set()
    for group in range(num_held_out):
        first = len(starts) * group // num_held_out
        stop = len(starts) * (group + 1) // num_held_out
        held_out.add(first + int(rng.random() * (stop - first)))
    train, valid = [], []
    for k, paragraph_range in enumerate(zip(starts.tolist(), ends)):
        (valid if k in held_out else train).append(paragraph_range)
    return train, valid


def join_adjacent(ranges):
    """Join each range (begin, end) that begins where the previous one ends."""
    joined = []
    for begin, end in ranges:
        if joined and joined[-1][1] == begin:
            begin = joined.pop()[0]
        joined.append((begin, end))
    return joined


def build_vocab(cut_text, train, valid, min_freq, max_vocab):
    """Build the vocabulary of the training part, sorted as a `text.Vocab`.

    train, valid: the two lists of `split_held_out`. min_freq: the minimum
    frequency of a word, or None for `usual_min_freq`; max_vocab: the maximal
    number of tokens, or None. Returns a tuple:

    - tokens, bytes: one token per line
    - token_freqs (tokens,) int64, 0 for reserved tokens
    - table (types + 1,) int32: the vocabulary number of each different word;
      the last entry is for -1, pruned words
    - min_freq: the argument, or `usual_min_freq`
    """
    lines = b'\n' + cut_text.word_types.text()
    freqs = _freqs_outside(cut_text, valid)
    if min_freq is None:
        min_freq = usual_min_freq(freqs)
    line_feeds = line_ends(lines)   # word k is between entries k and k + 1
    reserved = [UNK, *RESERVED]
    table = onp.full(len(freqs) + 1, UNK_ID, 'int32')
    # The frequency of a word is 0 if only the held-out part has it
    kept = onp.flatnonzero(freqs >= max(1, min_freq))
    # A reserved token that is also a word of the text keeps its number
    for number, token in enumerate(reserved):
        found = lines.find(f'\n{token}\n'.encode())
        if found >= 0:
            k = onp.searchsorted(line_feeds, found)
            table[k] = number
            kept = kept[kept != k]
    # Sort by falling frequency, then by first occurrence in the training part
    if valid:
        positions = _first_positions(cut_text, train, len(freqs))
        kept = kept[onp.lexsort((positions[kept], -freqs[kept]))]
    else:       # `kept` is already in the order of first occurrence
        kept = kept[onp.argsort(-freqs[kept], kind='stable')]
    if max_vocab is not None:
        kept = kept[:max_vocab - len(reserved)]
    table[kept] = onp.arange(len(reserved), len(reserved) + len(kept))
    reserved_lines = ''.join(f'{token}\n' for token in reserved).encode()
    # The words with their line feeds
    kept_lines = onp.frombuffer(lines, 'uint8')[concat_ranges(
        line_feeds[kept] + 1, onp.diff(line_feeds)[kept])]
    token_freqs = onp.concatenate([onp.zeros(len(reserved), 'int64'),
                                   freqs[kept]])
    return (reserved_lines + kept_lines.tobytes(), token_freqs, table,
            min_freq)


def usual_min_freq(freqs):
    """The default minimum frequency of a word in the vocabulary.

    freqs (types,): the frequency of each word. The default is the book's
    MIN_FREQ. For a text of fewer than SMALL_TEXT words it is lowered until at
    most RARE_SHARE of the words are unknown: many words of a small text are
    rare.
    """
    num_words = freqs.sum()
    if num_words >= SMALL_TEXT:
        return MIN_FREQ
    for min_freq in range(MIN_FREQ, 1, -1):
        num_unknown = freqs[freqs < min_freq].sum()
        if num_unknown <= RARE_SHARE * num_words:
            return min_freq
    return 1


def _first_positions(cut_text, ranges, num_types):
    """The first position of each word in ranges of paragraphs.

    Positions count the words of all ranges together. Returns (num_types,)
    int64, -1 for a word that does not occur.
    """
    # The last entry is for number -1, pruned words
    positions = onp.full(num_types + 1, -1, 'int64')
    num_read = 0
    for numbers in _numbers_of_ranges(cut_text, ranges):
        # Reversed, since NumPy keeps the last of several values for an entry
        new = onp.flatnonzero(positions[numbers] < 0)[::-1]
        positions[numbers[new]] = num_read + new
        num_read += len(numbers)
    return positions[:-1]


def _freqs_outside(cut_text, ranges):
    """The frequency of each word outside of `ranges`: (types,) int64."""
    # The last entry is for number -1, pruned words
    freqs = onp.append(cut_text.word_types.counts, 0)
    for numbers in _numbers_of_ranges(cut_text, ranges):
        different, counts = onp.unique(numbers, return_counts=True)
        freqs[different] -= counts
    return freqs[:-1]


def count_words(cut_text, valid):
    """{word: frequency} outside of the ranges of paragraphs `valid`."""
    freqs = _freqs_outside(cut_text, valid).tolist()
    return {word: freq for word, freq in zip(cut_text.word_types.names, freqs)
            if freq}


def _numbers_of_ranges(cut_text, ranges):
    """Yield arrays of the final numbers of the words of paragraph ranges."""
    for paragraph_range in join_adjacent(ranges):
        _, word_range = cut_text.sentence_and_word_range(*paragraph_range)
        for begin, end in cut_text.word_ranges(*word_range):
            yield cut_text.final_numbers(begin, end)


def describe_files(files):
    """The first file's name and the number of further files, for messages."""
    more = len(files) - 1
    return f'{files[0]}' + (f' and {more} more' if more else '')
