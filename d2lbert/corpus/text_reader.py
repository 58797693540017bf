"""This module reads text files as paragraphs, a stretch of lines at a time.

Any thread can split a stretch into paragraphs without the other stretches.
`FileFacts` caches facts about files, such as digests, until the files change.
An argument `path` is a path or a `text_sources.Source`. An argument `number`
is the line number in the file of the first given line.
"""
import contextlib
import itertools
import json
import os
import time
import zlib
from typing import NamedTuple

import numpy as onp

from d2lbert.machine import cache, files
from d2lbert.machine.files import read_json
from d2lbert.machine.terminal import warn
from d2lbert.texts import text_files, text_sources
from d2lbert.texts.numbered_text import STOP
from d2lbert.texts.text_sources import BOM

# The limits of a paragraph, which is held in memory as a whole. A longer
# paragraph is cut into parts. A part may exceed MAX_BYTES, since the bytes are
# counted only after a block is read
MAX_WORDS = 1 << 18
MAX_BYTES = 1 << 24

# The first block decides the format of a file, see `stretches_of`
BLOCK_BYTES = text_files.PIECE_BYTES


# From files to lines

def _blocks(path, advance):
    """Yield blocks of a file's lines: (number, bytes).

    A block lacks its last line feed. A line of more than MAX_BYTES may be
    split at a blank. advance: called with the number of bytes read.
    """
    number, line_begin = 1, b''
    for piece in text_sources.with_line_feeds(
            text_sources.pieces(path, advance, BLOCK_BYTES)):
        end = piece.rfind(b'\n')
        if end < 0:
            line_begin += piece
            if len(line_begin) > MAX_BYTES:
                data, line_begin = _split_at_blank(path, number, line_begin)
                yield number, data
            continue
        data = b''.join((line_begin, memoryview(piece)[:end]))
        line_begin = piece[end + 1:]
        yield number, data
        # Faster than bytes.count
        number += 1 + int(onp.count_nonzero(
            onp.frombuffer(data, 'uint8') == ord('\n')))
    if line_begin:
        yield number, line_begin


def _split_at_blank(path, number, line):
    """Split a long line at its last space or tab, with a warning.

    Raises ValueError if no byte, or only the first byte, is a space or a tab.
    """
    blank = max(line.rfind(b' '), line.rfind(b'\t'))
    if blank < 1:
        raise ValueError(
            f'{path}, line {number} has more than {MAX_BYTES:,} bytes without '
            'a blank: expected words with blanks between them')
    _warn_of_split(path, number)
    return line[:blank], line[blank + 1:]


def _warn_of_split(path, number):
    """Warn that the paragraph at a line is split; once for each `Source`."""
    if getattr(path, 'has_split_warning', False):
        return
    # A str or Path cannot have this attribute, so it warns at each call
    with contextlib.suppress(AttributeError):
        path.has_split_warning = True
    warn(f'{path}, line {number}: the paragraph at this line has more '
         f'than {MAX_WORDS:,} words or {MAX_BYTES:,} bytes, and is cut into '
         'several; separate paragraphs by blank lines, or by line ends in '
         "WikiText's format")


def _join_lines(path, number, lines):
    """Join a paragraph's lines: [text], or parts of at most MAX_WORDS."""
    text = ' '.join(lines)
    # Counting words is slow, and a text has no more words than characters
    if len(text) <= MAX_WORDS or len(text.split()) <= MAX_WORDS:
        return [text]
    _warn_of_split(path, number)
    texts, held_lines, num_words = [], [], 0
    for line in lines:
        words = line.split()
        if held_lines and num_words + len(words) > MAX_WORDS:
            texts.append(' '.join(held_lines))
            held_lines, num_words = [], 0
        if len(words) > MAX_WORDS:
            texts += [' '.join(words[k:k + MAX_WORDS])
                      for k in range(0, len(words), MAX_WORDS)]
        else:
            held_lines.append(line)
            num_words += len(words)
    if held_lines:
        texts.append(' '.join(held_lines))
    return texts


# From lines to paragraphs

class Paragraphs(NamedTuple):
    """Some consecutive paragraphs of a file."""

    texts: list         # strings
    articles: list      # for each article that begins here, the number of
                        # texts before it
    is_tokenized: bool  # True in WikiText's format: blanks around punctuation


def _is_heading(line):
    """True if a line is a heading of any level, such as ' = = Title = = '."""
    if not line.startswith((' = ', '= ')):
        return False
    line = line.strip()
    has_text = bool(line.strip('= '))
    return line.endswith(' =') and has_text


def _is_title(lines, k):
    """True if lines[k] is a heading of the first level, ' = Title = '.

    A line of a table can look the same, but has no blank lines around it.
    """
    line = lines[k].strip()
    return (_is_heading(lines[k])
            and not line.startswith('= = ') and not line.endswith(' = =')
            and not lines[k - 1].strip() and not lines[k + 1].strip())


class Stretch(NamedTuple):
    """Some consecutive lines of a file that contain whole paragraphs.

    WikiText's titles are recognized by the blank lines around them. So in this
    format, two lines are only context: the first line of `before` belongs to
    the previous stretch, and the last line of `data` to the next stretch.
    """

    path: str       # or a Source
    number: int     # the number of the first line of `data`
    before: bytes   # the two lines before `data`; at the begin of a file, an
                    # empty line; b'' for other formats
    data: bytes
    is_wiki: bool   # True for WikiText's format
    is_first: bool  # True for the first stretch of a file

    @property
    def all_bytes(self):
        """`before` and `data` joined, without a byte order mark."""
        if self.number == 1 and self.data.startswith(BOM):
            return self.before + self.data[len(BOM):]
        return self.before + self.data

    def paragraphs(self):
        """Return the `Paragraphs` of these lines."""
        lines = text_files.decoded(self.path, self.data,
                                   self.number).split('\n')
        articles = [0] if self.is_first else []
        if self.is_wiki:
            before = self.before.decode().split('\n')[:-1]
            texts, titles = _wiki_paragraphs(
                self.path, self.number - len(before), before + lines)
            articles += titles
        else:
            texts = _plain_paragraphs(self.path, self.number, lines)
        return Paragraphs(texts, articles, is_tokenized=self.is_wiki)


def stretches_of(path, advance):
    """Yield the lines of a file as `Stretch`es.

    The file has WikiText's format if there is a title in its first block.
    advance: called with the number of bytes read.
    """
    blocks = _blocks(path, advance)
    number, data = next(blocks)
    make_stretches = _wiki_stretches if has_title(data) else _plain_stretches
    return make_stretches(path, itertools.chain([(number, data)], blocks))


def paragraphs_of(path, advance):
    """Yield the `Paragraphs` of a file; arguments as for `stretches_of`."""
    for stretch in stretches_of(path, advance):
        yield stretch.paragraphs()


def has_title(data):
    """True if the first bytes of a file have a title of WikiText's format."""
    if data.startswith(BOM):
        data = data[len(BOM):]
    data = b'\n\n' + data + b'\n\n'
    for heading_begin in (b'\n = ', b'\n= '):
        found = data.find(heading_begin)
        while found >= 0:
            # data[begin:end] is the possible title and the lines around it
            begin = data.rfind(b'\n', 0, found) + 1
            end = data.index(b'\n', data.index(b'\n', found + 1) + 1)
            # Bytes that are not UTF-8 are reported later
            lines = data[begin:end].decode(errors='replace').split('\n')
            if _is_title(lines, 1):
                return True
            found = data.find(heading_begin, found + 1)
    return False


# WikiText's format: each line is a paragraph, titles begin articles

def _wiki_stretches(path, blocks):
    before, is_first = b'\n', True
    # The last line of a block belongs to the next stretch, so the last stretch
    # has an empty block
    for number, data in _with_empty_block(blocks):
        stretch = Stretch(path, number, before, data, is_wiki=True,
                          is_first=is_first)
        yield stretch
        before, is_first = _last_two_lines(stretch.all_bytes) + b'\n', False


def _with_empty_block(blocks):
    """Yield the blocks, then an empty block."""
    number, data = 1, b''
    for number, data in blocks:
        yield number, data
    yield number + data.count(b'\n') + 1, b''


def _last_two_lines(data):
    end = data.rfind(b'\n')
    return data[data.rfind(b'\n', 0, max(0, end)) + 1:]


def _wiki_paragraphs(path, number, lines):
    """(texts, articles) of lines[1:-1], as in `Paragraphs`."""
    texts, articles = [], []
    for k in range(1, len(lines) - 1):
        line = lines[k]
        is_heading = _is_heading(line)
        if is_heading and _is_title(lines, k):
            articles.append(len(texts))
        # By the book's rule a heading with ' . ' is a paragraph, too
        if STOP in line or not is_heading:
            texts += _join_lines(path, number + k, [line])
    return texts, articles


# Other formats: blank lines separate paragraphs, the file is one article

def _plain_stretches(path, blocks):
    # held: blocks of lines since the last blank line
    held, held_number, is_first = [], 1, True

    def make_stretch(parts):
        return Stretch(path, held_number, b'', b'\n'.join(parts),
                       is_wiki=False, is_first=is_first)
    for number, data in blocks:
        if not held:
            held_number = number
        end_above, begin_below = _find_last_blank_line(data)
        if end_above is not None:
            yield make_stretch([*held, data[:end_above]])
            # The blank line may end with the line feed that the block lacks
            held_number = number + (data + b'\n').count(b'\n', 0, begin_below)
            held, is_first, data = [], False, data[begin_below:]
        if data:
            held.append(data)
        if sum(map(len, held)) > MAX_BYTES:
            _warn_of_split(path, held_number)
            yield make_stretch(held)
            held, is_first = [], False
    yield make_stretch(held)


def _find_last_blank_line(data):
    """Find the last blank line: (end_above, begin_below), or (None, None).

    data[:end_above] is the text above this line, without its last line feed,
    and data[begin_below:] is the text below it.
    """
    end = len(data)
    while end >= 0:
        begin = data.rfind(b'\n', 0, end) + 1
        line = data[begin:end]
        if not line or line.decode(errors='replace').isspace():
            return max(0, begin - 1), end + 1
        end = begin - 1
    return None, None


def _plain_paragraphs(path, number, lines):
    texts, held, held_number = [], [], number
    # The added blank line ends the last paragraph
    for line_number, line in enumerate([*lines, ''], number):
        if line and not line.isspace():
            if not held:
                held_number = line_number
            held.append(line)
        elif held:
            texts += _join_lines(path, held_number, held)
            held = []
    return texts


# Facts about files, such as a digest

FACTS_FILE = 'unchanged.json'

# Increase this when the meaning of a fact changes
FACTS_VERSION = 1

# The coarsest time resolution of a file system, FAT's 2 seconds
TIME_RESOLUTION_NS = 2 * 10 ** 9

MAX_FACTS = 1024


class FileFacts:
    """A cache of facts about files. A fact is valid until its file changes."""

    def __init__(self):
        # {'NAME PATH': [stamp of the file, fact]}; new: not stored yet
        self._stored, self._new = {}, {}
        if cache.enabled():
            self._stored = _read_facts(_facts_path())
            cache.mark_used(_facts_path())

    def get(self, name, path, compute):
        """Return a named fact about a file: cached, or compute(path).

        A fact is an object that JSON can represent.
        """
        key = f'{name} {os.path.abspath(path)}'
        start_ns, stamp = time.time_ns(), _stamp(path)
        known = self._stored.get(key)
        if known is not None and known[0] == stamp:
            return known[1]
        fact = compute(path)
        # Soon after a change, a further change may leave the times as they are
        _, modified_ns, changed_ns, _ = stamp
        is_settled = (max(modified_ns, changed_ns)
                      < start_ns - TIME_RESOLUTION_NS)
        if stamp == _stamp(path) and is_settled:
            self._new[key] = [stamp, fact]
        return fact

    def save(self):
        """Store the new facts, or nothing if the cache is not writable."""
        if not self._new or not cache.enabled():
            return
        # Read the facts again, as other processes may have stored some. Facts
        # that they store between this reading and the writing get lost
        stored = _read_facts(_facts_path())
        older = [(key, value) for key, value in stored.items()
                 if key not in self._new]
        facts = dict([*older, *self._new.items()][-MAX_FACTS:])
        self._stored, self._new = facts, {}
        with contextlib.suppress(OSError):
            _facts_path().parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(_facts_path()) as temporary:
                temporary.write_text(json.dumps(_with_checksum(facts)),
                                     'utf-8')
                cache.make_private(temporary)


def _stamp(path):
    """Four numbers, of which one or more change when the file changes."""
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns,
            status.st_ino]


def _facts_path():
    return cache.root() / 'tokens' / FACTS_FILE


def _with_checksum(facts):
    """The content of FACTS_FILE."""
    return {'version': FACTS_VERSION, 'facts': facts,
            'sum': zlib.crc32(json.dumps(facts).encode())}


def _read_facts(path):
    """Read the facts in a file; {} if missing, damaged or not trusted."""
    if not cache.is_trusted_path(path):
        return {}
    try:
        content = read_json(path)
        facts = content['facts']
        return facts if content == _with_checksum(facts) else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
