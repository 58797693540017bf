"""Text files read in stretches of lines, and split into paragraphs.

Each stretch can be split without its neighbours. `Unchanged` caches facts
about files, such as digests, until the files change.
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

# A paragraph is held in memory; a longer one is split
MAX_WORDS = 1 << 18
MAX_BYTES = 1 << 24

BLOCK_BYTES = text_files.PIECE_BYTES

BOM = b'\xef\xbb\xbf'


# From files to lines

def _blocks(path, advance):
    """Yield blocks of a file's lines: (number of the first line, bytes).

    advance: as for `text_files.pieces`.
    """
    number, rest = 1, b''
    for piece in text_sources.with_line_feeds(
            text_sources.pieces(path, advance, BLOCK_BYTES)):
        end = piece.rfind(b'\n')
        if end < 0:
            rest += piece
            if len(rest) > MAX_BYTES:
                place = _place_to_split(path, number, rest)
                yield number, rest[:place]
                rest = rest[place + 1:]
            continue
        data = b''.join((rest, memoryview(piece)[:end]))
        rest = piece[end + 1:]
        yield number, data
        # Faster than bytes.count, which reads one byte at a time
        number += 1 + int(onp.count_nonzero(
            onp.frombuffer(data, 'uint8') == ord('\n')))
    if rest:
        yield number, rest


def _decoded(path, number, data):
    """The lines of `data`; the first is line `number` of the file."""
    return text_files.decoded(path, data, number).split('\n')


def _place_to_split(path, number, data):
    """The place of the last blank in a line longer than MAX_BYTES.

    Warns; raises ValueError if there is no blank.
    """
    place = max(data.rfind(b' '), data.rfind(b'\t'))
    if place < 1:
        raise ValueError(
            f'{path}, line {number} has more than {MAX_BYTES:,} bytes without '
            'a blank: expected words with blanks between them')
    _warn_of_cut(path, number)
    return place


def _warn_of_cut(path, number):
    """Warn, once for a file, that a paragraph is split."""
    if getattr(path, 'is_cut', False):
        return
    with contextlib.suppress(AttributeError):   # a path, not a Source
        path.is_cut = True
    warn(f'{path}, line {number}: the paragraph that begins here has more '
         f'than {MAX_WORDS:,} words or {MAX_BYTES:,} bytes, and is cut into '
         'several; separate paragraphs by blank lines')


def _paragraph(path, number, lines):
    """A list with the paragraph of lines; several if it is too long."""
    text = ' '.join(lines)
    # Words are counted only if there can be too many
    if len(text) <= MAX_WORDS or len(text.split()) <= MAX_WORDS:
        return [text]
    _warn_of_cut(path, number)
    found, held, count = [], [], 0
    for line in lines:
        words = line.split()
        if held and count + len(words) > MAX_WORDS:
            found.append(' '.join(held))
            held, count = [], 0
        if len(words) > MAX_WORDS:
            found += [' '.join(words[k:k + MAX_WORDS])
                      for k in range(0, len(words), MAX_WORDS)]
        else:
            held.append(line)
            count += len(words)
    return found + [' '.join(held)] * bool(held)


# From lines to paragraphs

class Paragraphs(NamedTuple):
    """Some consecutive paragraphs of a file."""

    texts: list      # strings
    articles: list   # the places in `texts` at which articles begin
    is_cut: bool     # True if the words have blanks between them


def _is_heading(line):
    """True if a line is a heading of any level: = = Title = = ."""
    if not line.startswith((' = ', '= ')):
        return False
    line = line.strip()
    return line.endswith(' =') and bool(line.strip('= '))


def _is_title(lines, k):
    """True if lines[k] is a heading of the first level.

    A line of a table can look the same, but has no blank lines around it.
    """
    line = lines[k].strip()
    return (_is_heading(lines[k])
            and not line.startswith('= = ') and not line.endswith(' = =')
            and not lines[k - 1].strip() and not lines[k + 1].strip())


class Stretch(NamedTuple):
    """Some consecutive lines of a file that contain whole paragraphs.

    data: bytes that begin with line `number`. before: in WikiText's format
    the two lines before `data`, otherwise empty. The first line of `before`
    and the last line of `data` are only context: whether a line is a title
    depends on its neighbours.
    """

    path: str
    number: int
    before: bytes
    data: bytes
    is_wiki: bool
    is_first: bool   # of the file

    @property
    def whole(self):
        """`before` and `data` without a byte order mark: bytes."""
        if self.number == 1 and self.data.startswith(BOM):
            return self.before + self.data[len(BOM):]
        return self.before + self.data

    def paragraphs(self):
        """The `Paragraphs` of these lines."""
        lines = _decoded(self.path, self.number, self.data)
        articles = [0] if self.is_first else []
        if not self.is_wiki:
            return Paragraphs(_of_parts(self.path, self.number, lines),
                              articles, False)
        before = self.before.decode().split('\n')[:-1]
        return _of_wiki(self.path, self.number - len(before), before + lines,
                        articles)


def stretches_of(path, advance):
    """Yield the lines of a file as `Stretch`es.

    The file has WikiText's format if there is a title in its first block.
    advance: as for `text_files.pieces`.
    """
    blocks = _blocks(path, advance)
    first = next(blocks)
    is_wiki = has_title(first[1])
    blocks = itertools.chain([first], blocks)
    return (_wiki_stretches if is_wiki else _plain_stretches)(path, blocks)


def paragraphs_of(path, advance):
    """Yield the `Paragraphs` of a file; the rest as for `stretches_of`."""
    for stretch in stretches_of(path, advance):
        yield stretch.paragraphs()


def has_title(data):
    """True if a file's beginning has a heading of the first level."""
    data = b'\n\n' + data[len(BOM) * data.startswith(BOM):] + b'\n\n'
    for begins in (b'\n = ', b'\n= '):
        place = data.find(begins)
        while place >= 0:
            begin = data.rfind(b'\n', 0, place) + 1
            end = data.index(b'\n', data.index(b'\n', place + 1) + 1)
            # Bytes that are not UTF-8 are reported later
            if _is_title(data[begin:end].decode(errors='replace').split(
                    '\n'), 1):
                return True
            place = data.find(begins, place + 1)
    return False


# WikiText's format: each line is a paragraph, titles begin articles

def _wiki_stretches(path, blocks):
    before, is_first = b'\n', True
    # An empty block at the end, since the last line of a block is context
    for number, data in itertools.chain(blocks, [(0, b'')]):
        stretch = Stretch(path, number, before, data, True, is_first)
        yield stretch
        # The next stretch has the last line again, after its neighbour
        before, is_first = _last_lines(stretch.whole) + b'\n', False


def _last_lines(data):
    """The last two lines, or the only one."""
    end = data.rfind(b'\n')
    return data[data.rfind(b'\n', 0, max(0, end)) + 1:]


def _of_wiki(path, number, lines, articles):
    """The `Paragraphs` of lines except the first and the last.

    lines[0] is line `number` of the file.
    """
    found = []
    for k in range(1, len(lines) - 1):
        line = lines[k]
        heading = _is_heading(line)
        if heading and _is_title(lines, k):
            articles.append(len(found))
        # By the book's rule a heading with ' . ' is a paragraph, too
        if STOP in line or not heading:
            found += _paragraph(path, number + k, [line])
    return Paragraphs(found, articles, True)


# Other formats: blank lines separate paragraphs, the file is one article

def _plain_stretches(path, blocks):
    held, began, is_first = [], 1, True
    for number, data in blocks:
        end, begin = _last_blank_line(data)
        if end is not None:
            yield Stretch(path, began, b'', b'\n'.join([*held, data[:end]]),
                          False, is_first)
            # The line after the blank line, which may be the last of `data`
            began = number + (data + b'\n').count(b'\n', 0, begin)
            held, is_first, data = [], False, data[begin:]
        if end is None or data:
            held.append(data)
        if sum(map(len, held)) > MAX_BYTES:
            _warn_of_cut(path, began)
            yield Stretch(path, began, b'', b'\n'.join(held), False, is_first)
            began = number + data.count(b'\n') + 1
            held, is_first = [], False
    yield Stretch(path, began, b'', b'\n'.join(held), False, is_first)


def _last_blank_line(data):
    """(end of the lines before the last blank line, begin of those after).

    (None, None) if no line is blank.
    """
    end = len(data)
    while end >= 0:
        begin = data.rfind(b'\n', 0, end) + 1
        line = data[begin:end]
        if not line or line.decode(errors='replace').isspace():
            return max(0, begin - 1), end + 1
        end = begin - 1
    return None, None


def _of_parts(path, number, lines):
    """The paragraphs of lines; the first is line `number`."""
    found, held, began = [], [], number
    for k, line in enumerate([*lines, ''], number):
        if line and not line.isspace():
            if not held:
                began = k
            held.append(line)
        elif held:
            found += _paragraph(path, began, held)
            held = []
    return found


INDEX = 'unchanged.json'

# Increase this when the meaning of a fact changes
VERSION = 1

# The coarsest time resolution of a file system
REST_NS = 2 * 10 ** 9

# Number of facts kept; the oldest are dropped
MAX_FACTS = 1024


class Unchanged:
    """The known facts about files; `save` stores the new ones."""

    def __init__(self):
        self.facts, self.new = {}, {}
        if cache.enabled():
            self.facts = _load(_index())
            cache.used(_index())

    def get(self, what, path, find_out):
        """Return the fact `what` about a file: cached, or find_out(path).

        A fact is an object that JSON can represent.
        """
        key = f'{what} {os.path.abspath(path)}'
        begun, stamp = time.time_ns(), _stamp(path)
        known = self.facts.get(key)
        if known is not None and known[0] == stamp:
            return known[1]
        fact = find_out(path)
        # Do not keep the fact if the file changed meanwhile, or if another
        # write so soon could leave the time stamp as it is
        if (stamp == _stamp(path)
                and max(stamp[1], stamp[2]) < begun - REST_NS):
            self.new[key] = [stamp, fact]
        return fact

    def save(self):
        """Store the new facts; if the cache is not writable, skip this."""
        if not self.new or not cache.enabled():
            return
        # Keep facts that other processes stored (not safe against a race)
        facts = {key: value for key, value in _load(_index()).items()
                 if key not in self.new}
        facts = dict(list({**facts, **self.new}.items())[-MAX_FACTS:])
        self.facts, self.new = facts, {}
        with contextlib.suppress(OSError):
            _index().parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(_index()) as part:
                part.write_text(json.dumps(_sealed(facts)), 'utf-8')
                cache.make_private(part)


def _stamp(path):
    """A list of numbers that changes when the file changes."""
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns,
            found.st_ino]


def _index():
    return cache.root() / 'tokens' / INDEX


def _sealed(facts):
    return {'version': VERSION, 'facts': facts,
            'sum': zlib.crc32(json.dumps(facts).encode())}


def _load(index):
    """The facts in an index that this user owns; empty if it is damaged."""
    if not cache.is_ours(index):
        return {}
    try:
        sealed = read_json(index)
        facts = sealed['facts']
        return facts if sealed == _sealed(facts) else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
