"""This module reads text files in stretches of lines, as lists of paragraphs.

Any thread can split a stretch into paragraphs without the other stretches.
`FileFacts` caches facts about files, such as digests, until the files change.
An argument `path` is a path or a `text_sources.Source`.
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

# The limits of a paragraph, which is held in memory as a whole. A longer
# paragraph is cut into parts. A part may exceed MAX_BYTES, since the bytes are
# counted only after a block is read
MAX_WORDS = 1 << 18
MAX_BYTES = 1 << 24

# The number of bytes that are read at a time
BLOCK_BYTES = text_files.PIECE_BYTES

# The byte order mark of UTF-8
BOM = b'\xef\xbb\xbf'


# From files to lines

def _blocks(path, advance):
    """Yield blocks of a file's lines: (number of the first line, the bytes).

    A block lacks the line feed of its last line. A line of more than MAX_BYTES
    may be split into several blocks. advance: called with the number of bytes
    read, as by `text_files.pieces`.
    """
    number, rest = 1, b''       # rest: the begin of a line, not yet in a block
    for piece in text_sources.with_line_feeds(
            text_sources.pieces(path, advance, BLOCK_BYTES)):
        end = piece.rfind(b'\n')
        if end < 0:
            rest += piece
            if len(rest) > MAX_BYTES:
                blank = _cut_at_blank(path, number, rest)
                yield number, rest[:blank]
                rest = rest[blank + 1:]
            continue
        data = b''.join((rest, memoryview(piece)[:end]))
        rest = piece[end + 1:]
        yield number, data
        # Faster than bytes.count, which reads one byte at a time
        number += 1 + int(onp.count_nonzero(
            onp.frombuffer(data, 'uint8') == ord('\n')))
    if rest:
        yield number, rest


def _decode_lines(path, number, data):
    """The lines of `data`; data[0] is in line `number` of the file."""
    return text_files.decoded(path, data, number).split('\n')


def _cut_at_blank(path, number, data):
    """Warn that a long line is cut; return the index of its last blank.

    data: more than MAX_BYTES bytes of line `number`. A blank is a space or a
    tab. Raises ValueError if only the first byte, or no byte, is a blank.
    """
    blank = max(data.rfind(b' '), data.rfind(b'\t'))
    if blank < 1:
        raise ValueError(
            f'{path}, line {number} has more than {MAX_BYTES:,} bytes without '
            'a blank: expected words with blanks between them')
    _warn_of_split(path, number)
    return blank


def _warn_of_split(path, number):
    """Warn that the paragraph at line `number` is split.

    For a `Source`, only the first call prints a warning.
    """
    if getattr(path, 'has_split_warning', False):
        return
    # A str or Path cannot have this attribute, so it warns at each call
    with contextlib.suppress(AttributeError):
        path.has_split_warning = True
    warn(f'{path}, line {number}: the paragraph at this line has more '
         f'than {MAX_WORDS:,} words or {MAX_BYTES:,} bytes, and is cut into '
         'several; separate paragraphs by blank lines')


def _join_lines(path, number, lines):
    """Join a paragraph's lines into a list of one text.

    A paragraph of more than MAX_WORDS becomes several texts. lines[0] is line
    `number` of the file.
    """
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
    articles: list      # for each article that begins here, the index of its
                        # first text; len(texts) if this text comes later
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

    In WikiText's format a line is a paragraph, but a title is only recognized
    by the blank lines around it. So two lines are only context: the first line
    of `before` and the last line of `data`. They belong to the stretches
    before and after this one.
    """

    path: str       # or a Source
    number: int     # the number of the first line of `data` in the file
    before: bytes   # the two lines before `data`; at the begin of a file, only
                    # an empty line of context; b'' for other formats
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
        lines = _decode_lines(self.path, self.number, self.data)
        articles = [0] if self.is_first else []
        if not self.is_wiki:
            return Paragraphs(
                _plain_paragraphs(self.path, self.number, lines), articles,
                is_tokenized=False)
        before = self.before.decode().split('\n')[:-1]
        return _wiki_paragraphs(self.path, self.number - len(before),
                                before + lines, articles)


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
    """True if the first bytes of a file have a heading of the first level."""
    if data.startswith(BOM):
        data = data[len(BOM):]
    data = b'\n\n' + data + b'\n\n'
    for line_begin in (b'\n = ', b'\n= '):
        found = data.find(line_begin)
        while found >= 0:
            # data[begin:end] is three lines; the second may be a title
            begin = data.rfind(b'\n', 0, found) + 1
            end = data.index(b'\n', data.index(b'\n', found + 1) + 1)
            # Bytes that are not UTF-8 are reported later
            lines = data[begin:end].decode(errors='replace').split('\n')
            if _is_title(lines, 1):
                return True
            found = data.find(line_begin, found + 1)
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
        # The last line of the block, and the line of context before it
        before, is_first = _last_lines(stretch.all_bytes) + b'\n', False


def _with_empty_block(blocks):
    """Yield the (line number, bytes) of blocks, then an empty block."""
    number, data = 1, b''
    for number, data in blocks:
        yield number, data
    yield number + data.count(b'\n') + 1, b''


def _last_lines(data):
    """The last two lines of bytes, or the only line."""
    end = data.rfind(b'\n')
    return data[data.rfind(b'\n', 0, max(0, end)) + 1:]


def _wiki_paragraphs(path, number, lines, articles):
    """The `Paragraphs` of lines; the first and the last line are only context.

    lines[0] is line `number` of the file. articles: a list, to which the index
    of the first paragraph of each article is appended.
    """
    texts = []
    for k in range(1, len(lines) - 1):
        line = lines[k]
        is_heading = _is_heading(line)
        if is_heading and _is_title(lines, k):
            articles.append(len(texts))
        # Headings are left out. But by the book's rule a heading with ' . ' is
        # a paragraph, too
        if STOP in line or not is_heading:
            texts += _join_lines(path, number + k, [line])
    return Paragraphs(texts, articles, is_tokenized=True)


# Other formats: blank lines separate paragraphs, the file is one article

def _plain_stretches(path, blocks):
    # held: blocks of lines since the last blank line, from line held_from on
    held, held_from, is_first = [], 1, True

    def make_stretch(parts):
        return Stretch(path, held_from, b'', b'\n'.join(parts),
                       is_wiki=False, is_first=is_first)
    for number, data in blocks:
        if not held:
            held_from = number
        end_above, begin_below = _find_last_blank_line(data)
        if end_above is not None:
            yield make_stretch([*held, data[:end_above]])
            # The blank line may end with the line feed that the block lacks
            held_from = number + (data + b'\n').count(b'\n', 0, begin_below)
            held, is_first, data = [], False, data[begin_below:]
        if data:
            held.append(data)
        if sum(map(len, held)) > MAX_BYTES:
            _warn_of_split(path, held_from)
            yield make_stretch(held)
            held, is_first = [], False
    yield make_stretch(held)


def _find_last_blank_line(data):
    """Find the last blank line of bytes: (end_above, begin_below).

    data[:end_above] is the text above this line, without its last line feed,
    and data[begin_below:] is the text below it. Returns (None, None) if no
    line is blank.
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
    """The texts of the paragraphs in lines; lines[0] is line `number`."""
    texts, held, held_from = [], [], number
    # The added blank line ends the last paragraph
    for line_number, line in enumerate([*lines, ''], number):
        if line and not line.isspace():
            if not held:
                held_from = line_number
            held.append(line)
        elif held:
            texts += _join_lines(path, held_from, held)
            held = []
    return texts


# Facts about files, such as a digest

# The name of the cache's file of facts
FACTS_FILE = 'unchanged.json'

# Increase this when the meaning of a fact changes
VERSION = 1

# The coarsest time resolution of a file system, FAT's 2 seconds
TIME_RESOLUTION_NS = 2 * 10 ** 9

# The maximal number of facts to keep; the oldest ones are dropped
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
        # Do not keep the fact if the file changed meanwhile, or just before:
        # then a further change could leave the times in the stamp as they are
        _, modified_ns, changed_ns, _ = stamp
        if (stamp == _stamp(path) and max(modified_ns, changed_ns)
                < start_ns - TIME_RESOLUTION_NS):
            self._new[key] = [stamp, fact]
        return fact

    def save(self):
        """Store the new facts, or nothing if the cache is not writable."""
        if not self._new or not cache.enabled():
            return
        # Read the facts again, as other processes may have stored some. Facts
        # that they store between this reading and the writing get lost
        stored = _read_facts(_facts_path())
        facts = {key: value for key, value in stored.items()
                 if key not in self._new}
        facts = dict(list({**facts, **self._new}.items())[-MAX_FACTS:])
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
    """The path of FACTS_FILE in the cache."""
    return cache.root() / 'tokens' / FACTS_FILE


def _with_checksum(facts):
    """The content of FACTS_FILE: facts, a version and a checksum."""
    return {'version': VERSION, 'facts': facts,
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
