"""Text files: their lines, and the paragraphs that these make up.

A file is read in stretches, each of which can be cut by itself.
"""
import itertools
from typing import NamedTuple

import numpy as onp

from d2lbert.machine import textfiles
from d2lbert.words import STOP

# A paragraph is held in memory whole, so it must have an end
MAX_WORDS = 1 << 18
MAX_BYTES = 1 << 24

BLOCK_BYTES = textfiles.PIECE_BYTES

BOM = b'\xef\xbb\xbf'


# From files to lines

def _with_line_feeds(pieces):
    """The same with every line end as a line feed."""
    held = b''
    for piece in pieces:
        piece = held + piece
        # The line feed that belongs to it may be in the next piece
        held = b'\r' if piece.endswith(b'\r') else b''
        if b'\r' in piece:
            piece = piece[:len(piece) - len(held)].replace(
                b'\r\n', b'\n').replace(b'\r', b'\n')
        yield piece
    if held:
        yield b'\n'


def _blocks(path, advance):
    """A file's lines by the block: (number of the first line, bytes).

    advance: as for `textfiles.pieces`.
    """
    number, rest = 1, b''
    for piece in _with_line_feeds(
            textfiles.pieces(path, advance, BLOCK_BYTES)):
        end = piece.rfind(b'\n')
        if end < 0:
            rest += piece
            _check_length(path, number, len(rest), '')
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
    lines = textfiles.decoded(path, data, number).split('\n')
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
        return _of_wiki(self.before.decode().split('\n')[:-1] + lines,
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


def _of_wiki(lines, articles):
    texts = []
    for k in range(1, len(lines) - 1):
        line = lines[k]
        heading = _is_heading(line)
        if heading and _is_title(lines, k):
            articles.append(len(texts))
        # The book's rule makes no exception for headings
        if STOP in line or not heading:
            texts.append(line)
    return Paragraphs(texts, articles, True)


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
        _check_held(path, began, held)
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


def _check_held(path, number, held):
    """Refuse a paragraph that does not end; held: its lines so far."""
    if sum(map(len, held)) > MAX_BYTES:
        text = textfiles.decoded(path, b'\n'.join(held), number)
        _check_length(path, number, len(text) - text.count('\n'), '')


def _of_parts(path, number, lines):
    """The paragraphs of lines, the first of which is line `number`."""
    texts, held, began = [], [], number
    for k, line in enumerate([*lines, ''], number):
        if line and not line.isspace():
            if not held:
                began = k
            held.append(line)
        elif held:
            texts.append(' '.join(held))
            _check_length(path, began, 0, texts[-1])
            held = []
    return texts
