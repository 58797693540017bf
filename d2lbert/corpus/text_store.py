"""A store is a folder with numbered texts and their vocabulary.

It is in the cache, or temporary if the cache is not usable. The texts are a
training text and possibly a held-out text. This module builds stores, checks
that they are complete, and finds them in the cache.
"""
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
    HEADER_BYTES,
    CutText,
    build_vocab,
    count_words,
    describe_files,
    join_adjacent,
    split_held_out,
)
from d2lbert.corpus.text_reader import FileFacts
from d2lbert.corpus.word_types import (
    PieceTypes,
    look_up,
    narrow,
    split_into_pieces,
)
from d2lbert.machine import cache
from d2lbert.machine.files import locked, read_json
from d2lbert.machine.workers import in_order
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import UNK, UNK_ID, Vocab
from d2lbert.texts.numbered_text import BLOCK_WORDS

# Increase this when `build` writes other files for the same text
VERSION = 4

# Attempts to open a store that other processes may remove before it is open
ATTEMPTS = 10

# The files of a store, beside the folders of the texts. MANIFEST: the size and
# checksum of each other file
MANIFEST = 'manifest.json'
# The tokens of the vocabulary (words or word pieces), one per line
VOCAB = 'vocab.txt'
# The frequencies of the tokens, if the vocabulary was built from the training
# text and has whole words
FREQS = 'freqs.npy'
# The `Counts` of the texts
COUNTS = 'counts.json'

# The number of words that `write_numbers` handles at a time
WORDS_AT_A_TIME = 1 << 20


class Counts(NamedTuple):
    """The numbers of paragraphs and words of a text, used and left out."""

    paragraphs: int         # used paragraphs
    left_out: int           # left-out paragraphs, see `splitters.Cut`
    words: int              # words, or word pieces, of the used paragraphs
    left_out_words: int     # whole words of the left-out paragraphs
    unknown: int            # the number of <unk> among `words`
    # The minimum frequency of a word in the vocabulary; None if the caller
    # gave the vocabulary, or if it has word pieces
    min_freq: Any


# The content of a store. In this section `cut` is a `CutText`, and `cutter` is
# a cutter of `splitters`

def build(folder, files, valid_files, valid_share, cutter_class, vocab,
          min_freq, max_vocab, pieces, progress):
    """Write vocabulary, numbered texts, counts and manifest into `folder`.

    files, valid_files: lists of `text_sources.Source`s. cutter_class: a class
    of `splitters`. vocab: a `Vocab`, a `PieceVocab` or None. The other
    arguments are as for `open_corpus`.
    """
    uses_pieces = pieces is not None or isinstance(vocab, PieceVocab)
    cutter = cutter_class(files, progress, lower=not uses_pieces)

    def cut_files(sources):     # into pieces if `vocab` is by now a PieceVocab
        word_types = None
        if isinstance(vocab, PieceVocab):
            word_types = PieceTypes(vocab)
        return CutText(folder / 'cut', sources, cutter, progress, word_types)
    cut = cut_files(files)
    # Two lists of ranges of paragraphs
    train, valid = split_held_out(cut, valid_share)
    # `write_numbers` checks the same, but later: learning pieces from a text
    # without words would fail first
    check_sentences('train', cut, join_adjacent(train), cutter)
    if vocab is None and uses_pieces:
        vocab = PieceVocab(WordPiece.of_counts(
            count_words(cut, valid), pieces))
        if cut.pruned_at:       # cut again: pruned words need pieces, too
            shutil.rmtree(cut.folder)
            cut = cut_files(files)
        else:
            split_into_pieces(cut, vocab)
    if vocab is None:
        tokens, freqs, table, min_freq = build_vocab(cut, train, valid,
                                                     min_freq, max_vocab)
        (folder / VOCAB).write_bytes(tokens)
        onp.save(folder / FREQS, freqs)
        table = narrow(table, len(freqs))
        if valid_files:         # the held-out text is numbered by `vocab`
            vocab = Vocab.load(folder / VOCAB)
    else:
        vocab.save(folder / VOCAB)
        table, min_freq = vocab_table(vocab, cut), None
    unk = UNK_ID if vocab is None else vocab.unk
    # The sizes and checksums of the largest files, computed while writing
    known_sums, unknown = write_numbers(folder / 'train', cut, train, table,
                                        cutter, unk)
    if valid:
        valid_sums, valid_unknown = write_numbers(
            folder / 'valid', cut, valid, table, cutter, unk)
        known_sums.update(valid_sums)
        unknown += valid_unknown    # the counts are of both parts of `files`
    counts = dict(train=_counts(cut, unknown, min_freq))
    shutil.rmtree(cut.folder)
    if valid_files:
        del cut, table          # frees memory for the held-out text
        cut = cut_files(valid_files)
        valid_sums, unknown = write_numbers(
            folder / 'valid', cut, [(0, cut.num_paragraphs)],
            vocab_table(vocab, cut), cutter, vocab.unk)
        known_sums.update(valid_sums)
        counts['valid'] = _counts(cut, unknown, min_freq)
        shutil.rmtree(cut.folder)
    (folder / COUNTS).write_text(json.dumps(counts))
    paths = [path for path in sorted(folder.rglob('*')) if path.is_file()]
    (folder / MANIFEST).write_text(json.dumps({
        path.relative_to(folder).as_posix():
            known_sums.get(path) or size_and_crc(path) for path in paths}))


def _counts(cut, unknown, min_freq):
    """The `Counts` of a `CutText`."""
    left_out, left_out_words = cut.left_out.tolist()
    return Counts(cut.num_paragraphs, left_out, cut.num_words, left_out_words,
                  unknown, min_freq)


class _ChecksumWriter:
    """Writes to a file; `size` and `crc` (CRC-32) are of all written bytes."""

    def __init__(self, f):
        self._f = f
        self.size = self.crc = 0

    def write(self, data):
        data = memoryview(data).cast('B')
        self._f.write(data)
        self.size += len(data)
        self.crc = zlib.crc32(data, self.crc)


@contextlib.contextmanager
def _open_npy(path, dtype, length, mode='wb'):
    """Yield a writer for the `length` entries of a .npy file.

    mode: 'r+b' to overwrite an existing file in place.
    """
    with open(path, mode) as f:
        writer = _ChecksumWriter(f)
        onp.lib.format.write_array_header_1_0(writer, {
            'descr': onp.lib.format.dtype_to_descr(onp.dtype(dtype)),
            'fortran_order': False, 'shape': (length,)})
        yield writer
        f.truncate()        # an existing file may be longer


def vocab_table(vocab, cut):
    """The vocabulary number of each different word of a `CutText`.

    (types + 1,) uint16 or int32; the last entry is for -1, pruned words. None
    for word pieces, since a `CutText` stores their vocabulary numbers.
    """
    if isinstance(vocab, PieceVocab):
        return None
    words = [*cut.word_types.names, UNK]     # pruned words become <unk>
    return narrow(onp.fromiter(
        map(vocab.token_to_idx.get, words, itertools.repeat(vocab.unk)),
        'int32', len(words)), len(vocab))


def check_sentences(part, cut, ranges, cutter):
    """Raise ValueError if no paragraph of `ranges` has two sentences.

    part: 'train' or 'valid', for the message.
    """
    sentence_ranges = [cut.sentence_and_word_range(begin, end)[0]
                       for begin, end in ranges]
    # Each paragraph has at least one sentence. If there are as many paragraphs
    # as sentences, each has exactly one
    num_sentences = sum(end - begin for begin, end in sentence_ranges)
    num_paragraphs = sum(end - begin for begin, end in ranges)
    if num_sentences == num_paragraphs:
        raise ValueError(
            f'{describe_files(cut.files)}: no paragraph has two sentences'
            f'{_in_part(part, ranges, cut)}: {cutter.remedy}')


def write_numbers(folder, cut, ranges, table, cutter, unk):
    """Write ranges of paragraphs of a `CutText` as vocabulary numbers.

    folder: a new folder, 'train' or 'valid'. table: as `vocab_table` returns
    it; unk: the vocabulary number of <unk>. Returns ({path: [size, CRC-32]} of
    the file ids.npy, the number of unknown words).
    """
    ranges = join_adjacent(ranges)
    check_sentences(folder.name, cut, ranges, cutter)
    sentence_ranges, word_ranges = zip(*(
        cut.sentence_and_word_range(begin, end) for begin, end in ranges))
    # tables[k] maps the numbers of `cut` from before pruning k to vocabulary
    # numbers. The last table maps the final numbers
    tables = [] if table is None else [
        *(table[cut.renumbering(k)] for k in range(len(cut.pruned_at))), table]

    def vocabulary_numbers(word_range):
        k, numbers = cut.stored_numbers(*word_range)
        return look_up(tables[k], numbers) if tables else numbers
    folder.mkdir()
    # A whole text is written over the file `ids` of `cut`, to save disk space.
    # No number gets more bytes, and each is read before it is overwritten
    in_place = ranges == [(0, cut.num_paragraphs)]
    unknown = 0
    path = cut.folder / 'ids' if in_place else folder / 'ids.npy'
    with _open_npy(path, cut.dtype if table is None else table.dtype,
                   sum(end - begin for begin, end in word_ranges),
                   'r+b' if in_place else 'wb') as writer:
        if in_place:        # the header fits exactly before the numbers
            assert writer.size == HEADER_BYTES
        for numbers in in_order(
                vocabulary_numbers, itertools.chain.from_iterable(
                    cut.word_ranges(begin, end, WORDS_AT_A_TIME)
                    for begin, end in word_ranges)):
            writer.write(numbers)
            unknown += int(onp.count_nonzero(numbers == unk))
    path.replace(folder / 'ids.npy')
    _write_ends(folder / 'sentences.npy', cut, 'sentences', sentence_ranges)
    _write_ends(folder / 'paragraphs.npy', cut, 'paragraphs', ranges)
    # new_begin: the index of a range's first paragraph in the new text
    articles, new_begin = [], 0
    for begin, end in ranges:
        inside = cut.articles[(cut.articles > begin) & (cut.articles < end)]
        # The begin of a range counts as the begin of an article
        articles += [new_begin, *(new_begin + inside - begin).tolist()]
        new_begin += end - begin
    onp.save(folder / 'articles.npy', onp.array(articles, 'int64'))
    return {folder / 'ids.npy': [writer.size, writer.crc]}, unknown


def _write_ends(path, cut, name, ranges):
    """Write a .npy file: 0, then the end of each sentence or paragraph.

    name: 'sentences' or 'paragraphs', the unit of `ranges`. The end of a
    sentence is the number of words up to it, and the end of a paragraph is
    the number of sentences up to it. Only the ranges are counted.
    """
    last = 0        # the last end written
    with _open_npy(path, 'int64',
                   1 + sum(end - begin for begin, end in ranges)) as f:
        f.write(onp.zeros(1, 'int64'))
        for begin, end in ranges:
            shift = last - cut.offsets(name, begin, begin + 1)[0]
            for first in range(begin, end, BLOCK_WORDS):
                ends = shift + cut.offsets(
                    name, first + 1, min(first + BLOCK_WORDS, end) + 1)
                f.write(ends)
                last = ends[-1]


def _in_part(part, ranges, cut):
    """The words that name a part in a message; '' for a whole text."""
    if ranges == [(0, cut.num_paragraphs)]:
        return ''
    return (' in the held-out share' if part == 'valid' else
            ' in the training part')


def size_and_crc(path):
    """The [size, CRC-32] of a file."""
    size = crc = 0
    with open(path, 'rb') as f:
        for piece in iter(lambda: f.read(1 << 20), b''):
            size += len(piece)
            crc = zlib.crc32(piece, crc)
    return [size, crc]


def is_complete(store):
    """True if a folder is a complete store, written by this user or root."""
    if not cache.is_trusted_path(store):
        return False
    facts = FileFacts()
    try:
        manifest = read_json(store / MANIFEST)
        has_needed_files = {VOCAB, COUNTS, 'train/ids.npy'} <= set(manifest)
        complete = has_needed_files and all(
            facts.get('size and CRC-32', store / name,
                      size_and_crc) == expected
            for name, expected in manifest.items())
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    facts.save()
    return complete


def file_names(store):
    """The names of the files of a complete store."""
    return set(read_json(store / MANIFEST))


def read_counts(store):
    """{part: `Counts`} of a complete store; part: 'train' or 'valid'.

    'valid' is only present if the held-out text has files of its own.
    Otherwise 'train' counts the held-out share, too.
    """
    return {part: Counts(*numbers)
            for part, numbers in read_json(store / COUNTS).items()}


# The folder of a store

def find_or_build(key, fill):
    """Find a store, or build it if it is missing or damaged.

    key: the name of the store's folder. fill(folder): a function that builds
    the store in an empty folder. Returns (store, temporary): the folder of the
    store, and the folder that the caller must remove at the end, or None if
    the store is in the cache.
    """
    root = cache.root() / 'corpora'
    temporary, store = None, root / key
    # A complete store can also be used in a cache that is read-only
    uses_cache = cache.enabled() and (_is_writable(root) or is_complete(store))
    if not uses_cache:
        temporary = Path(tempfile.mkdtemp(prefix='d2lbert-'))
        root, store = temporary, temporary / key
    try:
        if not is_complete(store):
            with locked(root / f'{key}.lock') as has_lock:
                if has_lock:
                    # Folders left by processes that were killed
                    for stale in root.glob(f'{key}.*.part'):
                        shutil.rmtree(stale, ignore_errors=True)
                # While waiting, another process may have built the store
                if not is_complete(store):
                    _build_and_rename(store, fill)
    except BaseException:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    cache.mark_used(store)
    return store, temporary


def open_or_build(key, fill, open_store):
    """Return open_store(folder of a store), and the temporary folder or None.

    key, fill: as for `find_or_build`. A store that another process removes
    before it is open is built again.
    """
    for attempt in range(ATTEMPTS):
        store, temporary = find_or_build(key, fill)
        try:
            return open_store(store), temporary
        except FileNotFoundError:
            if temporary or is_complete(store) or attempt == ATTEMPTS - 1:
                raise


def _is_writable(folder):
    """True if a folder can be written into; creates it if it is missing."""
    with contextlib.suppress(OSError):
        return os.access(cache.private_folder(folder), os.W_OK | os.X_OK)
    return False


def _build_and_rename(store, fill):
    """Build a store under another name, and rename it when complete."""
    unfinished = store.with_name(f'{store.name}.{uuid.uuid4().hex[:8]}.part')
    unfinished.mkdir()
    try:
        fill(unfinished)
        cache.make_private(unfinished)
        if store.exists() and not is_complete(store):
            # The new store needs the name of the damaged one
            store.rename(unfinished / 'damaged')
            shutil.rmtree(unfinished / 'damaged', ignore_errors=True)
        try:
            unfinished.rename(store)
        except OSError:
            # Where locks have no effect, another process may have been faster
            if not is_complete(store):
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
