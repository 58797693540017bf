"""A text cut into words: by the page's rule, once, and kept in the cache."""
import collections
import contextlib
import hashlib
import unicodedata
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as onp

from d2lbert.kernels import cut, draw
from d2lbert.machine import cache, files
from d2lbert.machine.file_facts import Unchanged
from d2lbert.texts import text_files

# A sentence ends where this stands; what closes a line stays in its sentence
STOP = ' . '


class Tokens(NamedTuple):
    """A text cut into words, before anything is drawn or counted.

    Word number types[i] is names[types[i]]. Sentence s has the words
    sentences[s] up to sentences[s + 1], paragraph q has the sentences
    paragraphs[q] up to paragraphs[q + 1].
    """

    types: onp.ndarray       # (number of words,) int32
    sentences: onp.ndarray   # (number of sentences + 1,) int64
    paragraphs: onp.ndarray  # (number of paragraphs + 1,) int64
    names: list


# From bytes to sentences

def line_ends(text):
    """Where the lines of bytes end: (lines,) int64."""
    return onp.flatnonzero(onp.frombuffer(text, 'uint8') == ord('\n'))


def read_lines(path):
    """The lines of a UTF-8 text file; ValueError names file and line."""
    _check_is_file(path)
    return _decoded(path, b''.join(text_files.pieces(path)))


def _check_is_file(path):
    if not Path(path).is_file():
        raise FileNotFoundError(f'{path} is no file: name a text file in '
                                "WikiText's format")


def _decoded(path, data):
    """The lines of a text that was read from `path`."""
    if b'\r' in data:
        data = data.replace(b'\r\n', b'\n').replace(b'\r', b'\n')
    lines = []
    for number, line in enumerate(data.split(b'\n'), 1):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError as error:
            raise ValueError(
                f'{path}, line {number}: byte {error.start + 1} '
                f'({line[error.start]:#04x}) is not UTF-8: convert the file '
                'to UTF-8') from None
    return lines


def paragraphs_of_lines(lines, lower=True):
    """Lower-case paragraphs (lists of sentences) of a text's lines."""
    return [(line.strip().lower() if lower else line.strip()).split(STOP)
            for line in lines if STOP in line]


# From sentences to words

def tokens_of_paragraphs(paragraphs):
    """`Tokens` of paragraphs given as lists of sentences (strings)."""
    numbers = collections.defaultdict()
    numbers.default_factory = numbers.__len__
    sentences = [sentence.split() for paragraph in paragraphs
                 for sentence in paragraph]
    ends = onp.cumsum([0] + [len(words) for words in sentences])
    types = onp.fromiter(
        (numbers[word] for words in sentences for word in words), 'int32',
        ends[-1])
    return Tokens(types, ends.astype('int64'),
                  onp.cumsum([0] + [len(paragraph) for paragraph in
                                    paragraphs], dtype='int64'),
                  list(numbers))


def tokens_of_lines(lines, lower=True):
    """`Tokens` of a text's lines, in C++ where that is to be had."""
    if draw.library() is None:
        return tokens_of_paragraphs(paragraphs_of_lines(lines, lower))
    *arrays, _, names = cut.text('\n'.join(lines).encode(), cut.PARAGRAPHS,
                                 lower)
    return Tokens(*arrays, names.decode().split('\n')[:-1])


# The cache

def read_tokens(path):
    """`Tokens` of a file, kept in the user's cache under its content."""
    _check_is_file(path)
    if cache.enabled():
        unchanged = Unchanged()
        digest = unchanged.get(text_files.DIGEST, path, text_files.digest)
        unchanged.save()
        tokens = load_tokens(_cached_tokens(digest))
        if tokens is not None:
            return tokens
    data = b''.join(text_files.pieces(path))
    tokens = tokens_of_lines(_decoded(path, data))
    if cache.enabled():
        # A cache that cannot be written costs time, nothing else
        with contextlib.suppress(OSError):
            # By what was read: the file may be another by now
            _save_tokens(tokens, _cached_tokens(
                hashlib.sha256(data).hexdigest()))
    return tokens


def _cached_tokens(digest):
    """Where the `Tokens` of a text with this sha256 are kept."""
    # What lower() does is a matter of Python's Unicode tables, too
    key = hashlib.sha256(
        f'2 {unicodedata.unidata_version} {digest}'.encode()).hexdigest()
    return cache.root() / 'tokens' / f'{key[:32]}.npz'


def _save_tokens(tokens, path):
    cache.folder('tokens')
    with files.replacing(path) as part:
        with open(part, 'wb') as f:
            onp.savez(f, types=tokens.types, sentences=tokens.sentences,
                      paragraphs=tokens.paragraphs,
                      names=_packed(tokens.names))
        cache.make_private(part)


def load_tokens(path):
    """`Tokens` from the cache; None for a file that is missing or damaged.

    Also for one that another user can have written.
    """
    if not cache.is_ours(path):
        return None
    try:
        with onp.load(path, allow_pickle=False) as f:
            tokens = Tokens(f['types'], f['sentences'], f['paragraphs'],
                            _unpacked(f['names']))
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    if not _points_inside(tokens):
        return None
    cache.used(path)
    return tokens


def _packed(names):
    return onp.frombuffer(''.join(f'{name}\n' for name in names).encode(),
                          'uint8')


def _unpacked(names):
    return names.tobytes().decode().split('\n')[:-1]


def _points_inside(tokens):
    """Whether no number in `tokens` points outside: C++ will trust them."""
    for offsets, end in ((tokens.sentences, len(tokens.types)),
                         (tokens.paragraphs, len(tokens.sentences) - 1)):
        if (offsets.dtype != 'int64' or offsets.ndim != 1 or not len(offsets)
                or offsets[0] != 0 or offsets[-1] != end
                or (onp.diff(offsets) < 0).any()):
            return False
    types = tokens.types
    return (types.dtype == 'int32' and types.ndim == 1 and
            (not len(types) or (0 <= types.min()
                                and types.max() < len(tokens.names))))
