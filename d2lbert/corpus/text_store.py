"""Stores: folders in the cache with a numbered text and its vocabulary."""
import contextlib
import errno
import itertools
import json
import os
import shutil
import tempfile
import uuid
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.corpus.cut_text import (
    ROOM_FOR_HEADER,
    CutText,
    build_vocab,
    count_words,
    described,
    held_out,
    joined,
)
from d2lbert.corpus.text_reader import Unchanged
from d2lbert.corpus.word_types import PieceTypes, in_pieces, looked_up, narrow
from d2lbert.machine import cache
from d2lbert.machine.files import locked, read_json
from d2lbert.machine.workers import in_order
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import UNK, UNK_ID, Vocab
from d2lbert.texts.numbered_text import BLOCK_WORDS

# Increase this when the content of the files changes
VERSION = 4

# Attempts to build a store that other processes remove before it is open
TRIES = 10

MANIFEST = 'manifest.json'
VOCAB = 'vocab.txt'
# The frequencies of the tokens of a vocabulary that was built here
FREQS = 'freqs.npy'
# The `Counts` of the texts
COUNTS = 'counts.json'

# Words that are renumbered at a time
STORED_WORDS = 1 << 20


class Counts(NamedTuple):
    """The numbers of paragraphs and words that are used and left out."""

    paragraphs: int     # used paragraphs
    passed: int         # unused paragraphs, which have no two sentences
    words: int          # words of used paragraphs
    passed_words: int   # words of unused paragraphs
    unknown: int        # the number of `words` that are <unk>
    # The minimum frequency of a word in the vocabulary; None if the vocabulary
    # was given, or has word pieces
    min_freq: Any


# The content of a store

def build(folder, files, valid_files, valid_share, cutters, vocab, min_freq,
          max_vocab, pieces, progress):
    """Write vocabulary, numbered texts and manifest into `folder`.

    cutters: a class of `splitters`; the rest as for `open_corpus`.
    """
    of_pieces = pieces is not None or isinstance(vocab, PieceVocab)
    cutter = cutters(files, progress, lower=not of_pieces)

    def counts_of(cut, unknown):
        return Counts(cut.num_paragraphs, int(cut.passed[0]), cut.num_words,
                      int(cut.passed[1]), unknown, min_freq)

    def cut_text(files):
        types = PieceTypes(vocab) if isinstance(vocab, PieceVocab) else None
        return CutText(folder / 'cut', files, cutter, progress, types)
    cut = cut_text(files)
    train, valid = held_out(cut, valid_share)
    # Checked before pieces are learnt, as there may be no words
    check_sentences('train', cut, joined(train), cutter)
    if vocab is None and of_pieces:
        vocab = PieceVocab(WordPiece.of_counts(
            count_words(cut, valid), pieces))
        if cut.pruned_at:       # cut again: pruned words have pieces, too
            shutil.rmtree(cut.folder)
            cut = cut_text(files)
        else:
            in_pieces(cut, vocab)
    if vocab is None:
        tokens, freqs, table, min_freq = build_vocab(cut, train, valid,
                                                     min_freq, max_vocab)
        (folder / VOCAB).write_bytes(tokens)
        onp.save(folder / FREQS, freqs)
        table = narrow(table, len(freqs))
        if valid_files:
            vocab = Vocab.load(folder / VOCAB)
    else:
        vocab.save(folder / VOCAB)
        table, min_freq = table_of(vocab, cut), None
    unk = UNK_ID if vocab is None else vocab.unk
    sums, unknown = write_numbers(folder / 'train', cut, train, table, cutter,
                                  unk)
    if valid:
        more, unknown_there = write_numbers(folder / 'valid', cut, valid,
                                            table, cutter, unk)
        sums.update(more)
        unknown += unknown_there
    counts = dict(train=counts_of(cut, unknown))
    shutil.rmtree(cut.folder)
    if valid_files:
        del cut, table          # frees memory for the next ones
        cut = cut_text(valid_files)
        more, unknown = write_numbers(
            folder / 'valid', cut, [(0, cut.num_paragraphs)],
            table_of(vocab, cut), cutter, vocab.unk)
        sums.update(more)
        counts['valid'] = counts_of(cut, unknown)
        shutil.rmtree(cut.folder)
    (folder / COUNTS).write_text(json.dumps(counts))
    files = [path for path in sorted(folder.rglob('*')) if path.is_file()]
    (folder / MANIFEST).write_text(json.dumps({
        path.relative_to(folder).as_posix():
            sums.get(path) or size_and_sum(path) for path in files}))


class _Summed:
    """A file open for writing; `sum` is [size, CRC-32] so far."""

    def __init__(self, f):
        self.f, self.sum = f, [0, 0]

    def write(self, data):
        data = memoryview(data).cast('B')
        self.f.write(data)
        self.sum = [self.sum[0] + len(data), zlib.crc32(data, self.sum[1])]


@contextlib.contextmanager
def _npy(path, dtype, length, mode='wb'):
    """A `_Summed` with the header of a one-dimensional .npy file.

    mode: 'r+b' to overwrite an existing file in place.
    """
    with open(path, mode) as f:
        summed = _Summed(f)
        onp.lib.format.write_array_header_1_0(summed, {
            'descr': onp.lib.format.dtype_to_descr(onp.dtype(dtype)),
            'fortran_order': False, 'shape': (length,)})
        yield summed
        f.truncate()        # an existing file may be longer


def table_of(vocab, cut):
    """The vocabulary number of each word of a cut text: (types + 1,).

    uint16 or int32; the last entry is for -1, pruned words. None for word
    pieces, whose numbers in the cut text are final.
    """
    if isinstance(vocab, PieceVocab):
        return None
    names = [*cut.types.names, UNK]
    return narrow(onp.fromiter(
        map(vocab.token_to_idx.get, names, itertools.repeat(vocab.unk)),
        'int32', len(names)), len(vocab))


def check_sentences(name, cut, ranges, cutter):
    """Raise ValueError if no paragraph of a part has two sentences."""
    spans = [cut.span(begin, end)[0] for begin, end in ranges]
    if sum(last - first for first, last in spans) == sum(
            end - begin for begin, end in ranges):
        raise ValueError(
            f'{described(cut.files)}: no paragraph has two sentences'
            f'{_named_part(name, ranges, cut)}: {cutter.remedy}')


def write_numbers(folder, cut, ranges, table, cutter, unk):
    """Write ranges of paragraphs of a cut text as vocabulary numbers.

    table: as `table_of` returns it; unk: the vocabulary number of <unk>.
    Returns ({path: [size, CRC-32]} of the largest file, the count of unknown
    words).
    """
    ranges = joined(ranges)
    check_sentences(folder.name, cut, ranges, cutter)
    spans = [cut.span(begin, end) for begin, end in ranges]
    # tables[k] is for numbers from before pruning k, the last one for final
    # numbers
    tables = [] if table is None else [
        *(table[cut.became(k)] for k in range(len(cut.pruned_at))), table]

    def numbers(stretch):
        k, words = cut.numbers(*stretch)
        return looked_up(tables[k], words) if tables else words
    folder.mkdir()
    in_place = ranges == [(0, cut.num_paragraphs)]
    unknown = 0
    where = cut.folder / 'ids' if in_place else folder / 'ids.npy'
    with _npy(where, cut.dtype if table is None else table.dtype,
              sum(end - begin for _, (begin, end) in spans),
              'r+b' if in_place else 'wb') as ids:
        # Writing in place saves disk space. No number gets longer, and only
        # numbers that were read are overwritten
        assert not in_place or ids.sum[0] == ROOM_FOR_HEADER
        for some in in_order(numbers, itertools.chain.from_iterable(
                cut.stretches(*words, STORED_WORDS) for _, words in spans)):
            ids.write(some)
            unknown += int(onp.count_nonzero(some == unk))
    where.replace(folder / 'ids.npy')
    sentence_ranges = [sentences for sentences, _ in spans]
    for name, stretches in (('sentences', sentence_ranges),
                            ('paragraphs', ranges)):
        _write_ends(folder / f'{name}.npy', cut, name, stretches)
    articles, done = [], 0
    for begin, end in ranges:
        inside = cut.articles[(cut.articles > begin) & (cut.articles < end)]
        # A range begins an article, too
        articles += [done, *(done + inside - begin).tolist()]
        done += end - begin
    onp.save(folder / 'articles.npy', onp.array(articles, 'int64'))
    return {folder / 'ids.npy': ids.sum}, unknown


def _write_ends(path, cut, name, stretches):
    """Write the ends of sentences or paragraphs of several ranges."""
    last = 0
    with _npy(path, 'int64', 1 + sum(end - begin
                                     for begin, end in stretches)) as f:
        f.write(onp.zeros(1, 'int64'))
        for begin, end in stretches:
            shift = last - cut.offsets(name, begin, begin + 1)[0]
            for block in range(begin, end, BLOCK_WORDS):
                ends = shift + cut.offsets(
                    name, block + 1, min(block + BLOCK_WORDS, end) + 1)
                f.write(ends)
                last = ends[-1]


def _named_part(name, ranges, cut):
    if ranges == [(0, cut.num_paragraphs)]:
        return ''
    return ' in the held-out share' if name == 'valid' else (
        ' in what is not held out')


def size_and_sum(path):
    size = checksum = 0
    with open(path, 'rb') as f:
        for piece in iter(lambda: f.read(1 << 20), b''):
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
    return [size, checksum]


def is_whole(store):
    """True if a store is complete, and written by this user or root."""
    if not cache.is_ours(store):
        return False
    unchanged = Unchanged()
    try:
        manifest = read_json(store / MANIFEST)
        whole = {VOCAB, COUNTS, 'train/ids.npy'} <= set(manifest) and all(
            unchanged.get('size and CRC-32', store / name,
                          size_and_sum) == expected
            for name, expected in manifest.items())
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    unchanged.save()
    return whole


def names(store):
    """The names of the files of a complete store."""
    return set(read_json(store / MANIFEST))


def counts(store):
    """{part: `Counts`} of a complete store.

    The held-out part has an entry only if it was read from files of its own.
    """
    return {part: Counts(*numbers)
            for part, numbers in read_json(store / COUNTS).items()}


# The folder of a store

def find_or_build(key, build):
    """Find a store, or build it.

    Returns (its folder, temporary folder to remove at the end or None).
    build: a function that fills an empty folder; called if the store is
    missing or damaged.
    """
    root = cache.root() / 'corpora'
    owned, store = None, root / key
    if not cache.enabled() or not (_writable(root) or is_whole(store)):
        owned = Path(tempfile.mkdtemp(prefix='d2lbert-'))
        root, store = owned, owned / key
    try:
        if not is_whole(store):
            with locked(root / f'{key}.lock') as alone:
                if alone:
                    for stale in root.glob(f'{key}.*.part'):
                        shutil.rmtree(stale, ignore_errors=True)
                if not is_whole(store):
                    _fill(store, build)
    except BaseException:
        if owned:
            shutil.rmtree(owned, ignore_errors=True)
        raise
    cache.used(store)
    return store, owned


def opened(key, build, open_store):
    """(open_store(folder of a store), temporary folder or None).

    A store that is removed before it is open is built again.
    """
    for attempt in range(TRIES):
        store, owned = find_or_build(key, build)
        try:
            return open_store(store), owned
        except FileNotFoundError:
            if owned or is_whole(store) or attempt == TRIES - 1:
                raise


def _writable(folder):
    with contextlib.suppress(OSError):
        return os.access(cache.private(folder), os.W_OK | os.X_OK)
    return False


def _fill(store, build):
    """Build a store in a temporary folder and rename it when complete."""
    unfinished = store.with_name(f'{store.name}.{uuid.uuid4().hex[:8]}.part')
    unfinished.mkdir()
    try:
        build(unfinished)
        cache.make_private(unfinished)
        if store.exists() and not is_whole(store):
            # The new store needs its name
            store.rename(unfinished / 'damaged')
            shutil.rmtree(unfinished / 'damaged', ignore_errors=True)
        try:
            unfinished.rename(store)
        except OSError:
            # Without locks another process may have been faster
            if not is_whole(store):
                raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f'no room left in {store.parent} for the words of the corpus, '
            'which take up to twice as much as the corpus itself: free some, '
            'or let D2LBERT_CACHE name a folder on a larger disk') from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
