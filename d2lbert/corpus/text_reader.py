"""Text files: their lines, and the paragraphs that these make up.

A file is read in stretches, each of which can be cut by itself.
"""
import contextlib
import itertools
from typing import NamedTuple

import numpy as onp

from d2lbert.machine.terminal import warn
from d2lbert.texts import text_files, text_sources
from d2lbert.texts.words import STOP

# A paragraph is held in memory whole: one that is longer is cut
MAX_WORDS = 1 << 18
MAX_BYTES = 1 << 24

BLOCK_BYTES = text_files.PIECE_BYTES

BOM = b'\xef\xbb\xbf'


# From files to lines

def _blocks(path, advance):
    """A file's lines by the block: (number of the first line, bytes).

    advance: as for `textfiles.pieces`.
    """
    number, rest = 1, b''
    for piece in text_sources.with_line_feeds(
            text_sources.pieces(path, advance, BLOCK_BYTES)):
        end = piece.rfind(b'\n')
        if end < 0:
            rest += piece
            if len(rest) > MAX_BYTES:
                place = _last_blank_of(path, number, rest)
                yield number, rest[:place]
                rest = rest[place + 1:]
            continue
        data = b''.join((rest, memoryview(piece)[:end]))
        rest = piece[end + 1:]
        yield number, data
        # Faster than bytes.count, in which no byte is looked at beside others
        number += 1 + int(onp.count_nonzero(
            onp.frombuffer(data, 'uint8') == ord('\n')))
    if rest:
        yield number, rest


def _decoded(path, number, data):
    """The lines in `data`, the first of which is line `number`."""
    return text_files.decoded(path, data, number).split('\n')


def _last_blank_of(path, number, data):
    """The place of the last blank in a line that is longer than MAX_BYTES."""
    place = max(data.rfind(b' '), data.rfind(b'\t'))
    if place < 1:
        raise ValueError(
            f'{path}, line {number} has more than {MAX_BYTES:,} bytes without '
            'a blank: expected a text whose words blanks part')
    _warn_of_cut(path, number)
    return place


def _warn_of_cut(path, number):
    """Log, once for a file, that a paragraph of it is cut."""
    if getattr(path, 'is_cut', False):
        return
    with contextlib.suppress(AttributeError):   # a path, not a Source
        path.is_cut = True
    warn(f'{path}, line {number}: the paragraph that begins here has more '
         f'than {MAX_WORDS:,} words or {MAX_BYTES:,} bytes, and is cut into '
         'several; blank lines part paragraphs')


def _paragraph(path, number, lines):
    """The paragraph that lines make up; several if it is too long."""
    text = ' '.join(lines)
    # Words are counted only where there can be that many
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


class Stretch(NamedTuple):
    """Some consecutive lines of a file, from which paragraphs can be made.

    data: bytes, the first of which belong to line `number`. In WikiText's
    format `before` is the two lines that stand before those, the first of
    which, and the last one of `data`, are there to be looked at; elsewhere
    it is empty.
    """

    path: str
    number: int
    before: bytes
    data: bytes
    is_wiki: bool
    is_first: bool   # of the file

    @property
    def whole(self):
        """All lines, without a byte order mark: bytes."""
        if self.number == 1 and self.data.startswith(BOM):
            return self.before + self.data[len(BOM):]
        return self.before + self.data

    def paragraphs(self):
        """The `Paragraphs` that these lines make up."""
        lines = _decoded(self.path, self.number, self.data)
        articles = [0] if self.is_first else []
        if not self.is_wiki:
            return Paragraphs(_of_parts(self.path, self.number, lines),
                              articles, False)
        before = self.before.decode().split('\n')[:-1]
        return _of_wiki(self.path, self.number - len(before), before + lines,
                        articles)


def stretches_of(path, advance):
    """The lines of a file: yields `Stretch`es, which make up all of it.

    It has WikiText's format if its first block has a title in it. advance:
    as for `textfiles.pieces`.
    """
    blocks = _blocks(path, advance)
    first = next(blocks)
    is_wiki = _has_title(first[1])
    blocks = itertools.chain([first], blocks)
    return (_wiki_stretches if is_wiki else _plain_stretches)(path, blocks)


def paragraphs_of(path, advance):
    """The paragraphs of a file, as `stretches_of`: yields `Paragraphs`."""
    for stretch in stretches_of(path, advance):
        yield stretch.paragraphs()


def _has_title(data):
    """Whether there is a heading of the first level in a file's beginning.
    """
    data = b'\n\n' + data[len(BOM) * data.startswith(BOM):] + b'\n\n'
    for begins in (b'\n = ', b'\n= '):
        place = data.find(begins)
        while place >= 0:
            begin = data.rfind(b'\n', 0, place) + 1
            end = data.index(b'\n', data.index(b'\n', place + 1) + 1)
            # What is no UTF-8 is told when it is cut
            if _is_title(data[begin:end].decode(errors='replace').split(
                    '\n'), 1):
                return True
            place = data.find(begins, place + 1)
    return False


# WikiText's: a paragraph a line, but for headings; a title begins an article

def _wiki_stretches(path, blocks):
    before, is_first = b'\n', True
    for number, data in itertools.chain(blocks, [(0, b'')]):
        stretch = Stretch(path, number, before, data, True, is_first)
        yield stretch
        # Whether the last line is a title is for the next block to say
        before, is_first = _last_lines(stretch.whole) + b'\n', False


def _last_lines(data):
    """The last two lines; or one, where there are no more."""
    end = data.rfind(b'\n')
    return data[data.rfind(b'\n', 0, max(0, end)) + 1:]


def _of_wiki(path, number, lines, articles):
    found = []
    for k in range(1, len(lines) - 1):
        line = lines[k]
        heading = _is_heading(line)
        if heading and _is_title(lines, k):
            articles.append(len(found))
        # The book's rule makes no exception for headings
        if STOP in line or not heading:
            found += _paragraph(path, number + k, [line])
    return Paragraphs(found, articles, True)


# Any other: blank lines part paragraphs; the file is an article

def _plain_stretches(path, blocks):
    held, began, is_first = [], 1, True
    for number, data in blocks:
        end, begin = _last_blank(data)
        if end is not None:
            yield Stretch(path, began, b'', b'\n'.join([*held, data[:end]]),
                          False, is_first)
            # Behind the blank line, where a line may follow or none
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


def _last_blank(data):
    """Where the lines before the last blank one end, and those behind begin.

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
    """The paragraphs of lines, the first of which is line `number`."""
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
