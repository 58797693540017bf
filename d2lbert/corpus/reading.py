"""Text files: their lines, and the paragraphs that these make up."""
import itertools
from typing import NamedTuple

from d2lbert.machine import textfiles
from d2lbert.words import STOP

# A paragraph is held in memory whole, so it must have an end
MAX_WORDS = 1 << 18
MAX_BYTES = 1 << 24

BLOCK_BYTES = textfiles.PIECE_BYTES


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
    """A file's lines by the block: (number of the first line, lines).

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
        lines = _decoded(path, number, rest + piece[:end])
        rest = piece[end + 1:]
        yield number, lines
        number += len(lines)
    if rest:
        yield number, _decoded(path, number, rest)


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


def paragraphs_of(path, advance):
    """The paragraphs of a file: yields `Paragraphs`.

    It has WikiText's format if its first block has a title in it. advance:
    as for `textfiles.pieces`.
    """
    blocks = _blocks(path, advance)
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
