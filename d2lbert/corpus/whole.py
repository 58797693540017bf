"""Texts of any size, for the book's page "The Dataset for Pretraining BERT".

`load_data_wiki` holds a text in memory; here the text is cut into numbered
words once, into files that are mapped into memory, and batches are drawn
from those as they are needed. What grows with the text is on disk, but for
4 bytes a paragraph (in what order an epoch goes through them) and 8 an
article.

B batch, T tokens (max_len), P predictions (a share of T).
"""
import bisect
import contextlib
import errno
import hashlib
import itertools
import json
import mmap
import os
import random
import shutil
import tempfile
import unicodedata
import uuid
import weakref
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.bert_dataset import (
    MIN_FREQ,
    STOP,
    Batch,
    _check_batch_size,
    _check_max_len,
    _tokens_of_lines,
    _tokens_of_paragraphs,
)
from d2lbert.corpus import punkt, textfiles
from d2lbert.machine import cache
from d2lbert.machine.files import locked
from d2lbert.machine.unchanged import Unchanged
from d2lbert.progress import bar
from d2lbert.text import CLS, RESERVED, SEP, UNK, Vocab

SPLITS = 'book', 'punkt'

# A paragraph is held in memory whole, so it must have an end
MAX_WORDS = 1 << 18
MAX_BYTES = 1 << 24

# Words that are counted at a time. When there are more, the rarer half is
# forgotten: it becomes <unk>, and what comes again is counted from 0
MAX_TYPES = 1 << 21
MAX_CHARS = 1 << 26

# How much of a text Punkt learns its abbreviations from: half a minute's
# work for a text of any size
PUNKT_CHARS = 1 << 20

BLOCK_BYTES = textfiles.PIECE_BYTES
BLOCK_WORDS = 1 << 22

# An epoch of up to this many pairs is one chunk; see Part.batches
CHUNK_PAIRS = 1 << 18

# Runs that are looked at for one that is as long; see Part._run_like
TRIES = 16

# Part of every store's name: to be raised when the files' content changes, or
# what is drawn from them
VERSION = 2

MANIFEST = 'manifest.json'
VOCAB = 'vocab.txt'
COLUMNS = 'ids', 'sentences', 'paragraphs', 'articles'


class Text(NamedTuple):
    """A corpus that was opened: its parts and their vocabulary."""

    train: Any        # Part
    valid: Any        # Part, or None where nothing is held out
    vocab: Vocab      # of the training part; what is rarer has no frequency
    fingerprint: str  # of content and settings: the same text, the same word


def open_corpus(paths, *, valid_paths=None, valid_share=0.0, split='book',
                vocab=None, min_freq=MIN_FREQ, max_vocab=None,
                progress=True):
    """Read text files once and open what came of them, as a `Text`.

    Files are UTF-8, packed or not (as `textfiles` says), lower-cased as they
    are read. A file
    with WikiText's headings ( = Title = between blank lines) has a
    paragraph a line and an article a heading; in any other, blank lines
    part paragraphs and the file is one article.

    split: 'book' takes words as blanks part them and ends a sentence at
    ' . '; 'punkt' has NLTK's Punkt, which learns from the text itself, and
    the ends that scripts other than the Latin have for themselves, end the
    sentences, and (except in WikiText's format, where that is done) sets
    apart each character that Unicode calls punctuation or symbol, and each
    Chinese one. A paragraph that comes out without an inner sentence end is
    passed over.

    valid_paths, or a valid_share of the articles (of blocks of paragraphs
    where there are fewer than 1 / valid_share articles), one out of each of
    so many equal stretches of the text, is held out. The vocabulary is that
    of the training part, of words that occur min_freq times, max_vocab
    words in all if that is given; or it is `vocab`, a Vocab or the path of
    one. More than 2^21 different words are not counted at a time.

    The result is kept in the user's cache under its content and settings; a
    file that has not changed since (see `unchanged`) is not read again.
    Raises OSError and ValueError, which name file and line.
    """
    if split not in SPLITS:
        raise ValueError(f'split={split!r} is unknown: '
                         f'{" or ".join(map(repr, SPLITS))}')
    if not 0 <= valid_share < 1:
        raise ValueError(f'valid_share={valid_share} is no share: it must '
                         'be at least 0 and below 1')
    if valid_paths is not None and valid_share:
        raise ValueError('valid_paths and valid_share both say what to hold '
                         'out: leave one of them out')
    if max_vocab is not None and max_vocab <= len(RESERVED) + 1:
        raise ValueError(f'max_vocab={max_vocab} leaves no room for a word '
                         f'beside {UNK} and {", ".join(RESERVED)}')
    vocab = _given_vocab(vocab)
    files = _files(paths, 'the corpus')
    valid_files = ([] if valid_paths is None
                   else _files(valid_paths, 'the held-out text'))
    cutters = _Punkt if split == 'punkt' else _Book
    stamps = _stamps(files + valid_files)
    digests = _digests(files + valid_files, progress)
    for k, path in enumerate(valid_files, len(files)):
        if digests[k] in digests[:len(files)]:
            twin = files[digests[:len(files)].index(digests[k])]
            raise ValueError(f'{path} is to be held out, but {twin}, which '
                             'is to be trained on, has the same content: '
                             'leave it out of one of them')
    key = _digest_of([
        VERSION, unicodedata.unidata_version, cutters.version(),
        MAX_WORDS, MAX_TYPES, MAX_CHARS, PUNKT_CHARS, BLOCK_BYTES,
        CHUNK_PAIRS, TRIES, valid_share,
        vocab.idx_to_token if vocab else [min_freq, max_vocab],
        digests[:len(files)], digests[len(files):]])

    def build(folder):
        _build(folder, files, valid_files, valid_share, cutters, vocab,
               min_freq, max_vocab, progress)
        for path, before, after in zip(files + valid_files, stamps,
                                       _stamps(files + valid_files)):
            if before != after:
                raise ValueError(f'{path} was changed while it was read: '
                                 'try again')

    store, owned = _store(key, build)
    vocab = Vocab.load(store / VOCAB)
    if owned:
        weakref.finalize(vocab, shutil.rmtree, owned, ignore_errors=True)
    parts = [Part(store / name, vocab, _described(described))
             if (store / name).is_dir() else None
             for name, described in (('train', files),
                                     ('valid', valid_files or files))]
    return Text(*parts, vocab, key)


def _given_vocab(vocab):
    """The vocabulary asked for, checked; None where it is to be built."""
    if vocab is None:
        return None
    if not isinstance(vocab, Vocab):
        if not Path(vocab).is_file():
            raise FileNotFoundError(f'{vocab} is no file: name a vocabulary '
                                    'that d2lbert saved')
        return Vocab.load(vocab)
    for idx, token in enumerate([UNK, *RESERVED]):
        got = vocab.idx_to_token[idx:idx + 1]
        if got != [token]:
            came = repr(got[0]) if got else 'nothing'
            raise ValueError(f'token {idx} of the vocabulary must be the '
                             f'reserved {token!r}, not {came}: build it '
                             'with reserved_tokens=d2lbert.text.RESERVED')
    return vocab


def _files(paths, what):
    """Paths of files that are there, from one path or several."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    files = [Path(path).expanduser() for path in paths]
    if not files:
        raise ValueError(f'{what} has no file: name at least one')
    for path in files:
        if path.is_dir():
            raise IsADirectoryError(f'{path} is a folder: name the text '
                                    'files in it')
        if not path.is_file():
            raise FileNotFoundError(f'{path} is no file: name a text file')
    return files


def _described(files):
    more = len(files) - 1
    return f'{files[0]}' + (f' and {more} more' if more else '')


def _stamps(files):
    return [(path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _digest_of(settings):
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:32]


def _bar(total, what, progress):
    return bar(total, what, 'B', unit_scale=True, quiet=not progress)


# From files to lines

def _digests(files, progress):
    """sha256 of the content of each file, unpacked."""
    unchanged = Unchanged()
    with _bar(sum(path.stat().st_size for path in files), 'looking',
              progress) as shown:
        def find_out(path):
            return textfiles.digest(path, shown.update)
        digests = [unchanged.get(textfiles.DIGEST, path, find_out)
                   for path in files]
    unchanged.save()
    return digests


def _with_line_feeds(pieces):
    """The same with every line end as a line feed."""
    held = b''
    for piece in pieces:
        piece = held + piece
        # It may be the first half of a line end
        held = b'\r' if piece.endswith(b'\r') else b''
        if b'\r' in piece:
            piece = piece[:len(piece) - len(held)].replace(
                b'\r\n', b'\n').replace(b'\r', b'\n')
        yield piece
    if held:
        yield b'\n'


def _blocks(path, told):
    """A file's lines by the block: (number of the first line, lines)."""
    number, rest = 1, b''
    for piece in _with_line_feeds(
            textfiles.pieces(path, told, BLOCK_BYTES)):
        end = piece.rfind(b'\n')
        if end < 0:
            rest += piece
            _check_length(path, number, len(rest), '')
            continue
        lines = _decoded(path, number, rest + piece[:end])
        rest = piece[end + 1:]
        yield number, lines
        number += len(lines)
    if rest:
        yield number, _decoded(path, number, rest)


def _decoded(path, number, data):
    """The lines in `data`, the first of which is line `number`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        start = data.rfind(b'\n', 0, error.start)
        raise ValueError(
            f'{path}, line {number + data.count(10, 0, error.start)}: byte '
            f'{error.start - start} ({data[error.start]:#04x}) is not UTF-8: '
            'convert the file to UTF-8') from None
    if number == 1 and text.startswith('\ufeff'):
        text = text[1:]
    lines = text.split('\n')
    if max(map(len, lines)) > MAX_WORDS:
        for k, line in enumerate(lines, number):
            _check_length(path, k, 0, line)
    return lines


def _check_length(path, number, num_bytes, text):
    """Refuse a line or paragraph that is too long to be one."""
    # Words are counted only where there can be so many
    num_words = len(text.split()) if len(text) > MAX_WORDS else 0
    if num_bytes > MAX_BYTES or num_words > MAX_WORDS:
        came = (f'{num_words:,} words' if num_words > MAX_WORDS
                else f'more than {MAX_BYTES:,} bytes')
        raise ValueError(
            f'{path}, line {number}: the paragraph that begins here has '
            f'{came}, and no more than {MAX_WORDS:,} words are allowed: part '
            'the paragraphs by blank lines')


# From lines to paragraphs

class Paragraphs(NamedTuple):
    """Some consecutive paragraphs of a file."""

    texts: list      # strings
    articles: list   # where in `texts` an article begins
    is_cut: bool     # whether blanks part the words already


def _is_heading(line):
    """Whether a line is a heading of any level: = = Title = = ."""
    if not line.startswith((' = ', '= ')):
        return False
    line = line.strip()
    return line.endswith(' =') and bool(line.strip('= '))


def _is_title(lines, k):
    """Whether lines[k] is a heading of the first level.

    Lines of tables can look alike, but no blank lines part them.
    """
    line = lines[k].strip()
    return (_is_heading(lines[k])
            and not line.startswith('= = ') and not line.endswith(' = =')
            and not lines[k - 1].strip() and not lines[k + 1].strip())


def _paragraphs(path, told):
    """The paragraphs of a file: yields `Paragraphs`."""
    blocks = _blocks(path, told)
    number, lines = next(blocks)
    framed = ['', *lines, '']
    wiki = any(_is_title(framed, k) for k in range(1, len(lines) + 1))
    blocks = itertools.chain([(number, lines)], blocks)
    return _wiki_paragraphs(blocks) if wiki else _plain_paragraphs(
        path, blocks)


def _wiki_paragraphs(blocks):
    """A paragraph a line, but for headings; a title begins an article."""
    first, lines = [0], ['']
    for _, more in itertools.chain(blocks, [(None, [''])]):
        # Whether the last line is a title is for the next block to say
        lines = lines[-2:] + more
        texts, articles = [], first
        for k in range(1, len(lines) - 1):
            line = lines[k]
            heading = _is_heading(line)
            if heading and _is_title(lines, k):
                articles.append(len(texts))
            # The book's rule makes no exception for headings
            if STOP in line or not heading:
                texts.append(line)
        yield Paragraphs(texts, articles, True)
        first = []


def _plain_paragraphs(path, blocks):
    """Blank lines part paragraphs; the file is an article."""
    first, held, began = [0], [], 1
    for number, lines in itertools.chain(blocks, [(0, [''])]):
        texts = []
        for k, line in enumerate(lines, number):
            if line and not line.isspace():
                if not held:
                    began = k
                held.append(line)
            elif held:
                texts.append(' '.join(held))
                _check_length(path, began, 0, texts[-1])
                held = []
        _check_length(path, began, sum(map(len, held)), '')
        yield Paragraphs(texts, first, False)
        first = []


# From paragraphs to words

def _moved(places, kept):
    """What places in a list become when only some items are kept."""
    return onp.cumsum([0, *kept])[places]


class _Book:
    """Cut paragraphs by the book's rule."""

    @staticmethod
    def version():
        return 'book'

    def __init__(self, files, progress):
        pass

    def cut(self, paragraphs):
        """(Tokens, where articles begin) of `Paragraphs`."""
        kept = [STOP in text for text in paragraphs.texts]
        return (_tokens_of_lines(list(itertools.compress(paragraphs.texts,
                                                         kept))),
                _moved(paragraphs.articles, kept))


class _Punkt:
    """Cut paragraphs into sentences as Punkt does, then into words."""

    @staticmethod
    def version():
        return punkt.version()

    def __init__(self, files, progress):
        """Learn from the beginning of the text what an abbreviation is."""
        with _bar(PUNKT_CHARS, 'learning', progress) as shown:
            self.splitter = punkt.Splitter(_beginning(files, shown.update))

    def cut(self, paragraphs):
        """(Tokens, where articles begin) of `Paragraphs`."""
        cut = [self.splitter.sentences(text, paragraphs.is_cut)
               for text in paragraphs.texts]
        kept = [len(sentences) > 1 for sentences in cut]
        return (_tokens_of_paragraphs(
                    [[sentence.lower() for sentence in sentences]
                     for sentences in itertools.compress(cut, kept)]),
                _moved(paragraphs.articles, kept))


def _beginning(files, told):
    """The first paragraphs of a text, PUNKT_CHARS in all.

    told: called with the number of characters of each.
    """
    left = PUNKT_CHARS
    for path in files:
        for paragraphs in _paragraphs(path, lambda num_bytes: None):
            for text in paragraphs.texts:
                if not left:
                    return
                text = text[:left]
                yield text
                told(len(text))
                left -= len(text)


# From words to numbers

class _Types:
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


class _Raw:
    """A text in the order in which it was read, in numbers of types.

    Lies in a folder of its own. The numbers are those of the moment; what
    they have become since `_Types.prune` is in the files `became-N.npy`.
    """

    def __init__(self, folder, files, cutter, progress):
        folder.mkdir()
        self.folder, self.files = folder, files
        self.articles = onp.zeros(0, 'int64')
        # Where the numbers change: the words before became[k] were numbered
        # before the k-th pruning
        self.pruned_at = []
        self.types = _Types()
        self.num_words = self.num_sentences = self.num_paragraphs = 0
        with contextlib.ExitStack() as stack:
            self._out = [stack.enter_context(open(folder / name, 'wb'))
                         for name in COLUMNS[:3]]
            for f in self._out[1:]:
                f.write(onp.zeros(1, 'int64'))
            shown = stack.enter_context(_bar(
                sum(path.stat().st_size for path in files), 'cutting',
                progress))
            for path in files:
                for paragraphs in _paragraphs(path, shown.update):
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
        """Let each became-N.npy lead to the last numbers at once."""
        later = None
        for k in reversed(range(len(self.pruned_at))):
            became = onp.load(self._became(k))
            if later is not None:
                became = onp.where(became < 0, became, later[became])
                onp.save(self._became(k), became)
            later = became

    def words(self, begin, end):
        """The last numbers, -1 if forgotten, of words begin to end - 1.

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


def _held_out(raw, share):
    """Ranges of paragraphs for training and for validation, two lists."""
    everything = [(0, raw.num_paragraphs)]
    if not share or not raw.num_paragraphs:
        return everything, []
    starts = raw.articles
    if len(starts) * share < 1:
        # At least four blocks, so that not all comes from one place
        size = max(1, min(64, int(raw.num_paragraphs * share / 4)))
        starts = onp.arange(0, raw.num_paragraphs, size)
    num_held = max(1, round(len(starts) * share))
    if num_held >= len(starts):
        raise ValueError(
            f'{_described(raw.files)}: valid_share={share} of '
            f'{len(starts)} paragraphs leaves nothing to train on: name a '
            'longer text, or a smaller share')
    ends = [*starts[1:].tolist(), raw.num_paragraphs]
    rng = random.Random(0)
    held = set()
    for k in range(num_held):
        begin, end = (len(starts) * j // num_held for j in (k, k + 1))
        held.add(begin + int(rng.random() * (end - begin)))
    ranges = [], []
    for k, start in enumerate(starts.tolist()):
        ranges[k in held].append((start, ends[k]))
    return ranges


def _joined(ranges):
    """The same with ranges that follow on each other made one."""
    joined = []
    for begin, end in ranges:
        if joined and joined[-1][1] == begin:
            begin = joined.pop()[0]
        joined.append((begin, end))
    return joined


def _build_vocab(raw, train, valid, min_freq, max_vocab):
    """The vocabulary of the ranges of paragraphs that are to be trained on.

    The same as text.Vocab gives, but that no frequency is kept of words
    that are left out.
    """
    names = list(raw.types.numbers)
    freqs = raw.types.counts[:len(names)]
    first = onp.arange(len(names))
    if valid:
        # The last entry is that of number -1
        freqs = onp.append(freqs, 0)
        for numbers in _words(raw, valid):
            different, counts = onp.unique(numbers, return_counts=True)
            freqs[different] -= counts
        first = onp.full(len(freqs), -1, 'int64')
        place = 0
        for numbers in _words(raw, train):
            new = onp.flatnonzero(first[numbers] < 0)[::-1]
            # Of several values for one entry NumPy keeps the last
            first[numbers[new]] = place + new
            place += len(numbers)
        freqs, first = freqs[:-1], first[:-1]
    falling = onp.lexsort((first, -freqs))
    falling = falling[freqs[falling] >= max(1, min_freq)]
    taken = {UNK, *RESERVED}
    pairs = [(names[k], int(freqs[k])) for k in falling.tolist()
             if names[k] not in taken]
    if max_vocab is not None:
        pairs = pairs[:max_vocab - len(taken)]
    return Vocab.from_freqs(pairs, min_freq, RESERVED)


def _words(raw, ranges):
    """The words of ranges of paragraphs, as `_Raw.words` gives them."""
    for begin, end in _joined(ranges):
        yield from raw.words(*raw.span(begin, end)[1])


# The store: what is kept on disk

def _build(folder, files, valid_files, valid_share, cutters, vocab,
           min_freq, max_vocab, progress):
    """Write vocabulary, parts and manifest of a text into `folder`."""
    cutter = cutters(files, progress)
    raw = _Raw(folder / 'raw', files, cutter, progress)
    train, valid = _held_out(raw, valid_share)
    if vocab is None:
        vocab = _build_vocab(raw, train, valid, min_freq, max_vocab)
    vocab.save(folder / VOCAB)
    _write_part(folder / 'train', raw, train, vocab, cutters)
    if valid:
        _write_part(folder / 'valid', raw, valid, vocab, cutters)
    shutil.rmtree(raw.folder)
    if valid_files:
        raw = _Raw(folder / 'raw', valid_files, cutter, progress)
        _write_part(folder / 'valid', raw, [(0, raw.num_paragraphs)], vocab,
                    cutters)
        shutil.rmtree(raw.folder)
    names = [path.relative_to(folder).as_posix()
             for path in sorted(folder.rglob('*')) if path.is_file()]
    (folder / MANIFEST).write_text(json.dumps(
        {name: _size_and_sum(folder / name) for name in names}))


@contextlib.contextmanager
def _npy(path, dtype, length):
    """A file that becomes a one-dimensional .npy by writing its numbers."""
    with open(path, 'wb') as f:
        onp.lib.format.write_array_header_1_0(f, {
            'descr': onp.lib.format.dtype_to_descr(onp.dtype(dtype)),
            'fortran_order': False, 'shape': (length,)})
        yield f


def _write_part(folder, raw, ranges, vocab, cutters):
    """Write ranges of paragraphs of a text, numbered by `vocab`."""
    ranges = _joined(ranges)
    spans = [raw.span(begin, end) for begin, end in ranges]
    num_paragraphs = sum(end - begin for begin, end in ranges)
    num_sentences = sum(end - begin for (begin, end), _ in spans)
    num_words = sum(end - begin for _, (begin, end) in spans)
    if num_sentences == num_paragraphs:
        raise ValueError(
            f'{_described(raw.files)}: no paragraph has two sentences'
            f'{_where(folder.name, ranges, raw)}: '
            + ("with split='book' a sentence ends at ' . ', its full stop "
               "between blanks; split='punkt' is for text as people write it"
               if cutters is _Book else
               'expected running text, a blank line between paragraphs'))
    # The last entry is that of number -1
    table = onp.array(vocab[[*raw.types.numbers, UNK]], 'int32')
    dtype = 'uint16' if len(vocab) <= 1 << 16 else 'int32'
    table = table.astype(dtype)
    folder.mkdir()
    with _npy(folder / 'ids.npy', dtype, num_words) as f:
        for _, (begin, end) in spans:
            for numbers in raw.words(begin, end):
                f.write(table[numbers])
    for name, length, stretches in (
            ('sentences', num_sentences, [span[0] for span in spans]),
            ('paragraphs', num_paragraphs, ranges)):
        with _npy(folder / f'{name}.npy', 'int64', length + 1) as f:
            f.write(onp.zeros(1, 'int64'))
            last = 0
            for begin, end in stretches:
                shift = last - raw.offsets(name, begin, begin + 1)[0]
                for block in range(begin, end, BLOCK_WORDS):
                    ends = shift + raw.offsets(
                        name, block + 1, min(block + BLOCK_WORDS, end) + 1)
                    f.write(ends)
                    last = ends[-1]
    articles, done = [], 0
    for begin, end in ranges:
        inside = raw.articles[(raw.articles > begin) & (raw.articles < end)]
        articles += [done, *(done + inside - begin).tolist()]
        done += end - begin
    onp.save(folder / 'articles.npy', onp.array(articles, 'int64'))


def _where(name, ranges, raw):
    if ranges == [(0, raw.num_paragraphs)]:
        return ''
    return ' in the held-out share' if name == 'valid' else (
        ' in what is not held out')


def _size_and_sum(path):
    size = checksum = 0
    with open(path, 'rb') as f:
        for piece in iter(lambda: f.read(1 << 20), b''):
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
    return [size, checksum]


def _sound(store):
    """Whether a store is there, and all of it as it was written."""
    unchanged = Unchanged()
    try:
        manifest = json.loads((store / MANIFEST).read_text())
        sound = {VOCAB, 'train/ids.npy'} <= set(manifest) and all(
            unchanged.get('size and CRC-32', store / name,
                          _size_and_sum) == expected
            for name, expected in manifest.items())
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    unchanged.save()
    return sound


def _store(key, build):
    """(folder of a store, folder to be removed in the end or None).

    build: called with an empty folder to fill, if the store is missing or
    damaged.
    """
    root = cache.root() / 'corpora'
    owned, store = None, root / key
    if not cache.enabled() or not (_writable(root) or _sound(store)):
        owned = Path(tempfile.mkdtemp(prefix='d2lbert-'))
        root, store = owned, owned / key
    try:
        if not _sound(store):
            with locked(root / f'{key}.lock') as alone:
                if alone:
                    for stale in root.glob(f'{key}.*.part'):
                        shutil.rmtree(stale, ignore_errors=True)
                if not _sound(store):
                    _fill(store, build)
    except BaseException:
        if owned:
            shutil.rmtree(owned, ignore_errors=True)
        raise
    cache.used(store)
    return store, owned


def _writable(folder):
    with contextlib.suppress(OSError):
        return os.access(cache.private(folder), os.W_OK | os.X_OK)
    return False


def _fill(store, build):
    """Build a store beside its place and put it there, whole or not."""
    part = store.with_name(f'{store.name}.{uuid.uuid4().hex[:8]}.part')
    part.mkdir()
    try:
        build(part)
        if store.exists() and not _sound(store):
            store.rename(part / 'damaged')
            # Not a part of the new one, and gone before it takes its place
            shutil.rmtree(part / 'damaged', ignore_errors=True)
        try:
            part.rename(store)
        except OSError:
            # Another process may have been quicker where locks do not work
            if not _sound(store):
                raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f'no room left in {store.parent} for the words of the corpus, '
            'which take up to twice as much as the corpus itself: free some, '
            'or let D2LBERT_CACHE name a folder on a larger disk') from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


# From the store to batches

class Examples(NamedTuple):
    """Pairs of texts, as places of words: a is ids[begin_a:end_a]."""

    begin_a: onp.ndarray  # (N,) int64, like the next three
    end_a: onp.ndarray
    begin_b: onp.ndarray
    end_b: onp.ndarray
    is_next: onp.ndarray  # (N,) bool


class Part:
    """A text in numbers, on disk, from which batches are drawn.

    ids (words,) uint16 or int32; sentence s is ids[sentences[s]:
    sentences[s + 1]], paragraph q has the sentences paragraphs[q] up to
    paragraphs[q + 1], article number k begins with paragraph articles[k].
    """

    def __init__(self, folder, vocab, source):
        self.vocab, self.source = vocab, source
        mapped = [onp.load(folder / f'{name}.npy', mmap_mode='r')
                  for name in COLUMNS]
        self._maps = [array._mmap for array in mapped]
        # Where the first word stands in the file
        self._offset = mapped[0].offset
        self._file = open(folder / 'ids.npy', 'rb')
        weakref.finalize(self, self._file.close)
        self.ids, self.sentences, self.paragraphs, self.articles = map(
            onp.asarray, mapped)

    @property
    def num_words(self):
        return len(self.ids)

    @property
    def num_sentences(self):
        return len(self.sentences) - 1

    @property
    def num_paragraphs(self):
        return len(self.paragraphs) - 1

    @property
    def num_articles(self):
        return len(self.articles)

    @property
    def num_pairs(self):
        """Neighbours in the same paragraph, too long ones included."""
        return self.num_sentences - self.num_paragraphs

    @property
    def num_chunks(self):
        """How many pieces an epoch is drawn in."""
        return -(-self.num_paragraphs // self._chunk_paragraphs)

    @property
    def _chunk_paragraphs(self):
        if self.num_pairs <= CHUNK_PAIRS:
            return self.num_paragraphs
        return max(1, CHUNK_PAIRS * self.num_paragraphs // self.num_pairs)

    def batches(self, batch_size, max_len, *, seed, epoch=0, start=(0, 0),
                dynamic=True, mask_share=0.15, fill=False):
        """One epoch: yields (position, Batch of NumPy arrays).

        position (chunk, index) is where the batch after this one stands;
        given as `start` it gives the rest of the epoch to the last bit.
        Everything follows from the arguments and the text. The paragraphs,
        in a new order, are taken CHUNK_PAIRS pairs of sentences at a time
        (a text as small as WikiText-2 at once); the examples of such a
        chunk are shuffled, and its last batch may be smaller.

        Examples follow the book: each sentence with its neighbour or, in
        half of the cases, with a random sentence of a random paragraph, left
        out if longer than max_len; mask_share of the tokens hidden.
        fill: instead, both texts are runs of sentences that come close to
        max_len together; only a pair of sentences that is longer is cut.
        dynamic: new partners and masks each epoch; without it the examples
        are those of every epoch, and only their order is new.
        Raises ValueError if not one pair fits.
        """
        _check_batch_size(batch_size)
        _check_max_len(max_len)
        if not 0 < mask_share < 1:
            raise ValueError(f'mask_share={mask_share} is no share: it must '
                             'lie between 0 and 1')
        chunk, index = start
        if not (0 <= chunk <= self.num_chunks and 0 <= index):
            raise ValueError(
                f'start={tuple(start)} lies outside of {self.source}, which '
                f'has {self.num_chunks} chunks: it belongs to another text')
        return self._batches(batch_size, max_len, int(seed), int(epoch),
                             chunk, index, dynamic, mask_share, fill)

    def _batches(self, batch_size, max_len, seed, epoch, first_chunk,
                 first_index, dynamic, mask_share, fill):
        drawn = epoch if dynamic else 'static'
        paragraphs = onp.arange(self.num_paragraphs, dtype='int32')
        _rng('paragraphs', seed, drawn).shuffle(paragraphs)
        chunks = onp.arange(self.num_chunks)
        if not dynamic:
            _rng('chunks', seed, epoch).shuffle(chunks)
        size = self._chunk_paragraphs
        nothing = (first_chunk, first_index) == (0, 0)
        for place in range(first_chunk, self.num_chunks):
            chunk = int(chunks[place])
            draw = self._runs if fill else self._neighbours
            examples = draw(
                paragraphs[chunk * size:(chunk + 1) * size].astype('int64'),
                max_len, _rng('pairs', seed, drawn, chunk))
            self._release()
            order = _rng('order', seed, epoch, chunk).permutation(
                len(examples.is_next))
            key = _seeds('masks', seed, drawn, chunk).view('uint64')[:1]
            num_batches = -(-len(order) // batch_size)
            if first_index > max(0, num_batches - 1):
                raise ValueError(
                    f'start={(place, first_index)} lies outside of '
                    f'{self.source}: chunk {place} has {num_batches} batches '
                    f'of {batch_size}, so it belongs to another text or '
                    'another batch size')
            for index in range(first_index, num_batches):
                nothing = False
                rows = order[index * batch_size:(index + 1) * batch_size]
                batch = self._batch(examples, rows, max_len, mask_share, key)
                yield ((place, index + 1) if index + 1 < num_batches
                       else (place + 1, 0)), batch
            first_index = 0
        if nothing:
            raise ValueError(
                f'{self.source}: not one pair of sentences fits max_len='
                f'{max_len} with {CLS} and two {SEP}: raise max_len')

    def _release(self):
        """Let go of the pages that were read: the system still has them.

        Until then they count as this process's memory, all of the file if
        enough places in it are touched.
        """
        for mapped in self._maps:
            if hasattr(mmap, 'MADV_DONTNEED'):
                mapped.madvise(mmap.MADV_DONTNEED)

    def _neighbours(self, order, max_len, rng):
        """`Examples` by the book's rule, of the paragraphs in `order`."""
        starts = self.paragraphs[order]
        counts = self.paragraphs[order + 1] - starts - 1
        firsts = onp.repeat(starts - onp.cumsum(counts) + counts, counts)
        firsts += onp.arange(len(firsts))
        is_next = rng.random_sample(len(firsts)) < 0.5
        partners = rng.randint(0, self.num_paragraphs, len(firsts))
        starts = self.paragraphs[partners]
        counts = self.paragraphs[partners + 1] - starts
        seconds = onp.where(
            is_next, firsts + 1,
            starts + (rng.random_sample(len(firsts)) * counts).astype('int64'))
        examples = Examples(
            self.sentences[firsts], self.sentences[firsts + 1],
            self.sentences[seconds], self.sentences[seconds + 1], is_next)
        fits = _lengths(examples) <= max_len
        return Examples(*(column[fits] for column in examples))

    def _runs(self, order, max_len, rng):
        """`Examples` of runs of sentences, of the paragraphs in `order`.

        As in the published BERT: sentences are taken until the next one
        would not fit, and parted at random; if the second text is replaced,
        its sentences come again. The last run of a paragraph goes on into
        the article's next one.
        """
        rng = random.Random(int(rng.randint(1 << 31)))
        rows = []
        for q in order.tolist():
            begin, end = self.paragraphs[q:q + 2].tolist()
            ends = self._ends(begin, end, q, max_len)
            a, last = 0, len(ends) - 2  # sentences, the paragraph's first is 0
            while a < min(end - begin, last):
                stop = a + 2
                while stop <= last and (
                        ends[stop + 1] - ends[a] + 3 <= max_len):
                    stop += 1
                b = a + 1 + int(rng.random() * (stop - a - 1))
                second = ends[b], ends[stop]
                is_next = rng.random() < 0.5
                if not is_next:
                    second = self._run_like(
                        second, max_len - 3 - (ends[b] - ends[a]), max_len,
                        rng)
                rows.append((*_cut(ends[a], ends[b], *second, max_len - 3),
                             is_next))
                a = stop if is_next else b
        columns = onp.array(rows, 'int64').reshape(-1, 5).T
        return Examples(*columns[:4], columns[4].astype(bool))

    def _ends(self, begin, end, q, max_len):
        """Where sentences begin, and the last of them ends.

        They are sentences begin to end - 1, of paragraph q, and as many of
        those that follow in the article as can be of use.
        """
        k = onp.searchsorted(self.articles, q, 'right')
        if k < len(self.articles):
            limit = int(self.paragraphs[self.articles[k]])
        else:
            limit = self.num_sentences
        return self.sentences[begin:min(end + max_len, limit) + 1].tolist()

    def _run_like(self, span, room, max_len, rng):
        """A random run of sentences, about as long as `span`.

        Otherwise its length would tell that it does not follow. So would a
        cut: it has no more than `room` words, unless `span` has, or none of
        TRIES runs is so short.
        """
        wanted = span[1] - span[0]
        room = max(room, wanted)
        best = None
        for _ in range(TRIES):
            q = int(rng.random() * self.num_paragraphs)
            begin, end = self.paragraphs[q:q + 2].tolist()
            begin += int(rng.random() * (end - begin))
            ends = self._ends(begin, begin + 1, q, max_len)
            # The last end that is not beyond `wanted`, or the one after it
            stop = max(1, bisect.bisect_right(ends, ends[0] + wanted) - 1)
            for last in ends[stop:stop + 2]:
                length = last - ends[0]
                rank = length > room, abs(length - wanted)
                if best is None or rank < best[0]:
                    best = rank, (ends[0], last)
            if best[0] <= (False, wanted // 8):
                break
        return best[1]

    def _read(self, begins, ends):
        """All words from each begin to its end, in a row.

        Not by way of the map: each place touched there may map megabytes.
        """
        size = self.ids.itemsize
        return onp.frombuffer(b''.join(map(
            os.pread, itertools.repeat(self._file.fileno()),
            ((ends - begins) * size).tolist(),
            (begins * size + self._offset).tolist())), self.ids.dtype)

    def _batch(self, examples, rows, max_len, mask_share, key):
        """A `Batch` of some examples (rows), masked.

        What is hidden depends on the example's number and on key alone.
        """
        begin_a, end_a, begin_b, end_b, is_next = (
            column[rows][:, None] for column in examples)
        lengths = _lengths(Examples(begin_a, end_a, begin_b, end_b, is_next))
        T = onp.arange(max_len)
        first_sep = 1 + end_a - begin_a  # (B, 1)
        is_word = (T >= 1) & (T != first_sep) & (T < lengths - 1)
        pad, mask, cls, sep = self.vocab[RESERVED]
        tokens = onp.full(is_word.shape, pad, 'int32')
        tokens[is_word] = self._read(
            onp.concatenate([begin_a, begin_b], 1).ravel(),
            onp.concatenate([end_a, end_b], 1).ravel())
        tokens[:, 0] = cls
        onp.put_along_axis(tokens, first_sep, sep, 1)
        onp.put_along_axis(tokens, lengths - 1, sep, 1)
        segments = ((T > first_sep) & (T < lengths)).astype('int32')

        # Hide: of all words those with the least random numbers
        candidates = is_word & (tokens != cls) & (tokens != sep)
        counters = 2 * max_len * rows[:, None] + T
        lots = onp.where(candidates, _uniform(key, counters), 2.0)
        P = max(1, round(max_len * mask_share))
        num_preds = onp.minimum(
            onp.maximum(1, onp.rint(lengths * mask_share).astype('int64')),
            candidates.sum(1, keepdims=True))
        hidden = onp.arange(P) < num_preds
        positions = onp.where(hidden, onp.argsort(lots, 1)[:, :P], max_len)
        positions.sort(axis=1)
        positions = onp.where(hidden, positions, 0)
        labels = onp.take_along_axis(tokens, positions, 1)
        kinds = _uniform(key, onp.take_along_axis(counters, positions, 1)
                         + max_len)
        # The upper tenth, stretched over the vocabulary
        anything = onp.minimum((kinds - 0.9) * 10 * len(self.vocab),
                               len(self.vocab) - 1).astype('int32')
        shown = onp.where(kinds < 0.8, mask,
                          onp.where(kinds < 0.9, labels, anything))
        row, column = onp.nonzero(hidden)
        tokens[row, positions[row, column]] = shown[row, column]
        return Batch(tokens, segments, lengths[:, 0].astype('float32'),
                     positions.astype('int32'), hidden.astype('float32'),
                     onp.where(hidden, labels, 0).astype('int32'),
                     is_next[:, 0].astype('float32'))


def _lengths(examples):
    """Tokens of each example, <cls> and two <sep> included."""
    return (examples.end_a - examples.begin_a
            + examples.end_b - examples.begin_b + 3)


def _cut(begin_a, end_a, begin_b, end_b, room):
    """Cut two texts to `room` words where they part: (B, E, B, E).

    The longer one loses first; the words where they meet stay.
    """
    len_a, len_b = end_a - begin_a, end_b - begin_b
    len_a = min(len_a, max(room - len_b, room // 2))
    len_b = min(len_b, room - len_a)
    return end_a - len_a, end_a, begin_b, begin_b + len_b


# Random numbers that can be had from any place on

def _seeds(*what):
    """256 random bits that follow from what they are for: (8,) uint32."""
    digest = hashlib.sha256(repr(what).encode()).digest()
    return onp.frombuffer(digest, '<u4').astype('uint32')


def _rng(*what):
    """A RandomState, whose numbers NumPy promises never to change."""
    return onp.random.RandomState(_seeds(*what))


def _uniform(key, counters):
    """Numbers in [0, 1) that depend on key (1,) uint64 and counter alone.

    SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
    Generators", 2014.
    """
    z = counters.astype('uint64') + onp.uint64(1)
    z = key + z * onp.uint64(0x9e3779b97f4a7c15)
    z = (z ^ z >> onp.uint64(30)) * onp.uint64(0xbf58476d1ce4e5b9)
    z = (z ^ z >> onp.uint64(27)) * onp.uint64(0x94d049bb133111eb)
    return ((z ^ z >> onp.uint64(31)) >> onp.uint64(11)) * 2.0 ** -53
