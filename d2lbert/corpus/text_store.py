"""A store is a folder with numbered texts and their vocabulary.

The texts are a training text and possibly a held-out text. A store is in the
cache, or temporary if the cache is not usable.
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

# Of `open_or_build`
ATTEMPTS = 10

# The files of a store, beside the folders of the texts
MANIFEST = 'manifest.json'  # the size and checksum of each other file
VOCAB = 'vocab.txt'         # the tokens (words or word pieces), one per line
FREQS = 'freqs.npy'         # their frequencies in the training text; missing
                            # for a given vocabulary and for word pieces
COUNTS = 'counts.json'      # the `Counts` of the texts

# Of `write_numbers`
WORDS_AT_A_TIME = 1 << 20


class Counts(NamedTuple):
    """The numbers of paragraphs and words of a text, used and left out."""

    paragraphs: int         # used paragraphs
    left_out: int           # left-out paragraphs, see `splitters.Cut`
    words: int              # words, or word pieces, of the used paragraphs
    left_out_words: int     # whole words of the left-out paragraphs
    unknown: int            # the number of <unk> among `words`
    min_freq: Any           # the vocabulary's minimum frequency of a word;
                            # None for a given vocabulary and for word pieces


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

    def cut_files(sources, vocab):
        word_types = None
        if isinstance(vocab, PieceVocab):
            word_types = PieceTypes(vocab)
        return CutText(folder / 'cut', sources, cutter, progress, word_types)
    cut = cut_files(files, vocab)
    train_ranges, valid_ranges = split_held_out(cut, valid_share)
    # `write_numbers` checks the same, but later: learning pieces from a text
    # without words would fail first
    check_sentences('train', cut, join_adjacent(train_ranges), cutter)
    if vocab is None and uses_pieces:
        vocab = PieceVocab(WordPiece.of_counts(
            count_words(cut, valid_ranges), pieces))
        if cut.pruned_at:       # cut again: pruned words need pieces, too
            shutil.rmtree(cut.folder)
            cut = cut_files(files, vocab)
        else:
            split_into_pieces(cut, vocab)
    if vocab is None:
        tokens, freqs, table, min_freq = build_vocab(
            cut, train_ranges, valid_ranges, min_freq, max_vocab)
        (folder / VOCAB).write_bytes(tokens)
        onp.save(folder / FREQS, freqs)
        table = narrow(table, len(freqs))
        if valid_files:         # the held-out text is numbered by `vocab`
            vocab = Vocab.load(folder / VOCAB)
    else:
        vocab.save(folder / VOCAB)
        table, min_freq = vocab_table(vocab, cut), None
    unk = UNK_ID if vocab is None else vocab.unk
    known_sums, unknown = write_numbers(folder / 'train', cut, train_ranges,
                                        table, cutter, unk)
    if valid_ranges:
        valid_sums, valid_unknown = write_numbers(
            folder / 'valid', cut, valid_ranges, table, cutter, unk)
        known_sums.update(valid_sums)
        unknown += valid_unknown    # the counts are of both parts of `files`
    counts = dict(train=_counts(cut, unknown, min_freq))
    shutil.rmtree(cut.folder)
    if valid_files:
        del cut, table          # frees memory for the held-out text
        cut = cut_files(valid_files, vocab)
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
    words = [*cut.word_types.names, UNK]
    return narrow(onp.fromiter(
        map(vocab.token_to_idx.get, words, itertools.repeat(vocab.unk)),
        'int32', len(words)), len(vocab))


def check_sentences(part, cut, ranges, cutter):
    """Raise ValueError if no paragraph of `ranges` has two sentences.

    part: 'train' or 'valid', for the message.
    """
    sentence_ranges = [cut.sentence_and_word_range(begin, end)[0]
                       for begin, end in ranges]
    # Each paragraph has a sentence, so equal numbers mean exactly one in each
    num_sentences = sum(end - begin for begin, end in sentence_ranges)
    num_paragraphs = sum(end - begin for begin, end in ranges)
    if num_sentences == num_paragraphs:
        where = (' in the held-out share' if part == 'valid' else
                 ' in the training part')
        if ranges == [(0, cut.num_paragraphs)]:
            where = ''
        raise ValueError(f'{describe_files(cut.files)}: no paragraph has two '
                         f'sentences{where}: {cutter.remedy}')


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
    # tables[k] is for numbers that `cut` stored between prunings k - 1 and k,
    # and the last table for all later numbers
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
    _write_offsets(folder / 'sentences.npy', cut, 'sentences', sentence_ranges)
    _write_offsets(folder / 'paragraphs.npy', cut, 'paragraphs', ranges)
    onp.save(folder / 'articles.npy', _articles_within(cut, ranges))
    return {folder / 'ids.npy': [writer.size, writer.crc]}, unknown


def _write_offsets(path, cut, name, ranges):
    """Write the offsets of ranges of sentences or paragraphs as a .npy file.

    name: 'sentences' or 'paragraphs'. The file has this array of
    `numbered_text.TokenizedText` for a text of only these ranges.
    """
    last_end = 0
    with _open_npy(path, 'int64',
                   1 + sum(end - begin for begin, end in ranges)) as f:
        f.write(onp.zeros(1, 'int64'))
        for begin, end in ranges:
            shift = last_end - cut.offsets(name, begin, begin + 1)[0]
            for first in range(begin, end, BLOCK_WORDS):
                ends = shift + cut.offsets(
                    name, first + 1, min(first + BLOCK_WORDS, end) + 1)
                f.write(ends)
                last_end = ends[-1]


def _articles_within(cut, ranges):
    """The begins of articles, as indices among the paragraphs of `ranges`.

    The begin of a range counts as the begin of an article.
    """
    articles, num_earlier = [], 0
    for begin, end in ranges:
        inside = cut.articles[(cut.articles > begin) & (cut.articles < end)]
        articles += [num_earlier, *(num_earlier + inside - begin).tolist()]
        num_earlier += end - begin
    return onp.array(articles, 'int64')


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
    """The names of a complete store's files, except the manifest."""
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

    key: the name of the store's folder. fill(folder) builds the store in an
    empty folder. Returns (store, temporary): the folder of the store, and the
    folder that the caller must remove after use, or None if the store is in
    the cache.
    """
    root, temporary = cache.root() / 'corpora', None
    # A complete store can also be used in a cache that is read-only
    uses_cache = cache.enabled() and (_is_writable(root)
                                      or is_complete(root / key))
    if not uses_cache:
        root = temporary = Path(tempfile.mkdtemp(prefix='d2lbert-'))
    store = root / key
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
    """Return open_store(store), and the temporary folder or None.

    key, fill, store, temporary folder: as for `find_or_build`. A store that
    another process removes before it is open is built again.
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
    try:
        unfinished.mkdir()
        fill(unfinished)
        cache.make_private(unfinished)
        if store.exists() and not is_complete(store):
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
            'or set D2LBERT_CACHE to a folder on a larger disk') from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
