"""Texts from files, folders, pipes and standard input.

A text is plain or JSON lines, UTF-8, compressed or not (see `text_files`),
with any line ends, with or without a byte order mark.
"""
import contextlib
import itertools
import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from d2lbert.machine.arguments import failures_of
from d2lbert.machine.files import parse_json
from d2lbert.texts import text_files
from d2lbert.texts.text_files import TextFileError

#: The name of standard input among paths, and in messages.
STDIN, STDIN_NAME = '-', 'standard input'

#: Bytes of lines that are read at once, and the maximum for a line.
READ_BYTES, MAX_LINE_BYTES = 1 << 16, 1 << 24

#: Texts of JSON lines in a batch.
BATCH = 1 << 8

#: Fields of a JSON object that an error lists.
MAX_FIELDS = 8

BOM = b'\xef\xbb\xbf'

#: Beginnings of formats that contain text but are not plain text.
_JSON = re.compile(rb'\s*\{\s*"(\\.|[^"\\])*"\s*:', re.DOTALL)
_JSON_LIST = re.compile(rb'\s*\[\s*\{\s*("|\})')
_MARKUP = re.compile(
    rb'\s*(<!--.*?-->\s*)*(<\?xml[\s?]|<!doctype\s|<(html|head|body)[\s>])',
    re.DOTALL | re.IGNORECASE)


class Source(os.PathLike):
    """A text file: its path, its name in messages, its JSON field.

    stream: the binary file of a pipe that is read once. spooled: a temporary
    file with the content of a pipe, removed with this object.
    """

    def __init__(self, path, name=None, text_field=None, stream=None,
                 spooled=None):
        self.path, self.name = os.fspath(path), str(name or path)
        self.text_field, self.stream = text_field, stream
        self._spooled = spooled

    def __fspath__(self):
        return self.path

    def __str__(self):
        return self.name

    def stat(self):
        """As `Path.stat`."""
        return os.stat(self.path)

    @property
    def digest_name(self):
        """The name of this text's digest in `text_reader.Unchanged`."""
        if self.text_field is None:
            return text_files.DIGEST
        return f'{text_files.DIGEST} in {self.text_field!r}'

    def digest(self, advance=lambda num_bytes: None):
        """sha256 of the text; errors as for `pieces`."""
        return text_files.digest_of(pieces(self, advance))


# From paths to sources

def sources(paths, text_field=None, streams=False):
    """The `Source`s of paths of files, folders and pipes, a list.

    A folder means all files in it and in its subfolders, sorted by name,
    without hidden ones. '-' is standard input. text_field: the field
    of JSON lines that holds the text. streams: read pipes once, without
    copying their content to temporary files. Raises OSError and ValueError.
    """
    found = []
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        if isinstance(path, Source):
            found.append(path)
        elif path == STDIN:
            found.append(_of_stream(_stdin(), STDIN_NAME, text_field,
                                    streams))
        else:
            found += _of_path(Path(path).expanduser(), text_field, streams)
    return found


def _stdin():
    if sys.stdin is None:
        raise ValueError('- is standard input, which is closed: name a file')
    return sys.stdin.buffer


def _of_path(path, text_field, streams):
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        files = sorted(
            file for file in path.rglob('*') if file.is_file() and not any(
                part.startswith('.') for part in
                file.relative_to(path).parts))
        if not files:
            raise TextFileError(f'{path} is a folder without files: name one '
                                'with text files')
        return [Source(file, text_field=text_field) for file in files]
    if stat.S_ISREG(kind):
        return [Source(path, text_field=text_field)]
    # A pipe can be read only once, so it is opened once
    return [_of_stream(open(path, 'rb'), path, text_field, streams)]


def _of_stream(stream, name, text_field, streams):
    if streams:
        return Source(name, name, text_field, stream)
    spooled = tempfile.NamedTemporaryFile(prefix='d2lbert-')
    shutil.copyfileobj(stream, spooled)
    spooled.flush()
    return Source(spooled.name, name, text_field, spooled=spooled)


# From sources to bytes

def pieces(source, advance=lambda num_bytes: None,
           size=text_files.PIECE_BYTES):
    """Yield the text of a path or `Source` as UTF-8, a piece at a time.

    For JSON lines this is the text of each object, followed by an empty
    line. Raises `TextFileError` for JSON without a field, and for HTML; the
    rest as for `text_files.pieces`.
    """
    found = text_files.pieces(source, advance, size)
    first = next(found)
    field = getattr(source, 'text_field', None)
    _check_format(source, first, field)
    if field is None:
        yield first
        yield from found
        return
    held, num_bytes = [], 0
    for _, text in _json_texts(source, _chained(first, found), field):
        held.append(text.strip().encode())
        num_bytes += len(held[-1])
        if num_bytes >= size:
            yield b'\n\n'.join([*held, b''])
            held, num_bytes = [], 0
    yield b'\n\n'.join([*held, b''])


def _chained(first, others):
    yield first
    yield from others


def _check_format(source, first, field):
    """Reject markup, JSON without a field, and a field without JSON."""
    head = first[len(BOM) * first.startswith(BOM):][:1 << 16]
    if _MARKUP.match(head):
        what = 'XML' if b'<?xml' in head[:100].lower() and not re.search(
            rb'(?i)<(!doctype\s+)?html', head) else 'HTML'
        raise TextFileError(f'{source} is {what}, not plain text: take the '
                            'text out of it, and name a file of that')
    if _JSON_LIST.match(head):
        raise TextFileError(f'{source} is a JSON list: write each of its '
                            'objects on a line, and name the field with the '
                            'text (--text-field)')
    is_json = _JSON.match(head)
    if field is None and is_json:
        raise TextFileError(
            f'{source} holds JSON, not plain text: name the field with the '
            f'text (--text-field){_fields(first)}')
    if field is not None and not is_json:
        raise TextFileError(f'{source} does not hold JSON lines, so it has '
                            f'no field {field!r}: leave out --text-field')


def _fields(data):
    """The names of the first object's text fields, for an error message."""
    with contextlib.suppress(ValueError, AttributeError):
        first = parse_json(data.decode('utf-8-sig').strip().split('\n')[0])
        names = [name for name, value in first.items()
                 if isinstance(value, str)]
        if names:
            return (f', one of {", ".join(map(repr, names[:MAX_FIELDS]))}'
                    + (' and more' if len(names) > MAX_FIELDS else ''))
    return ''


def _json_texts(source, found, field):
    """Pairs of a line's number and the text of its object."""
    for number, data in itertools.chain.from_iterable(
            _lines_of(source, found)):
        line = text_files.decoded(source, data, number)
        if not line.strip():
            continue
        try:
            item = parse_json(line)
        except ValueError:
            item = None
        if not isinstance(item, dict):
            raise TextFileError(f'{source}, line {number} is no JSON object: '
                                'expected one on each line')
        text = item.get(field)
        if not isinstance(text, str):
            names = ', '.join(map(repr, list(item)[:MAX_FIELDS]))
            raise TextFileError(
                f'{source}, line {number} has no text in a field {field!r}: '
                f'its fields are {names or "none"}')
        try:
            text.encode()
        except UnicodeEncodeError:      # an escape of a lone surrogate
            text = text.encode('utf-8', 'replace').decode()
        yield number, text


def with_line_feeds(found):
    """Pieces of bytes with all line ends replaced by line feeds."""
    held = b''
    for piece in found:
        piece = held + piece
        # Its line feed may be in the next piece
        held = b'\r' if piece.endswith(b'\r') else b''
        if b'\r' in piece:
            piece = piece[:len(piece) - len(held)].replace(
                b'\r\n', b'\n').replace(b'\r', b'\n')
        yield piece
    if held:
        yield b'\n'


def _lines_of(source, found):
    """Lists of pairs of a line's number and its bytes."""
    number, kept = 1, b''
    for piece in with_line_feeds(found):
        *lines, kept = (kept + piece).split(b'\n')
        yield list(enumerate(lines, number))
        number += len(lines)
        if len(kept) > MAX_LINE_BYTES:
            raise TextFileError(f'{source}, line {number} is longer than '
                                f'{MAX_LINE_BYTES >> 20} MiB: put each text '
                                'on a line')
    if kept:
        yield [(number, kept)]


# From sources to texts, a line each

class Line(NamedTuple):
    """A text and its place in messages, such as 'x.txt, line 3'."""

    name: str
    text: str


class Lines:
    """The texts of a file, one per line.

    path, text_field: as for `sources`. skip_empty: skip empty lines, and count
    them in `skipped`; otherwise they are errors. twice: False reads a pipe
    without a copy, so the lines can be iterated only once. flag: the command's
    flag with the path, for messages.
    """

    def __init__(self, path, text_field=None, skip_empty=False, twice=True,
                 flag='--file'):
        self._flag, self._path, self._skips = flag, path, skip_empty
        self.skipped, self.first_skipped = 0, None
        with failures_of(flag, path, 'read'):
            self.sources = sources([path], text_field, streams=not twice)
        self.is_stream = any(source.stream for source in self.sources)

    def __iter__(self):
        """Yield `Line`s; an OSError becomes a ValueError."""
        return itertools.chain.from_iterable(self.batches())

    def batches(self):
        """Yield lists of `Line`s; the rest as for `__iter__`."""
        self.skipped, self.first_skipped = 0, None
        is_empty = True
        for source in self.sources:
            with failures_of(self._flag, source, 'read'):
                for found in _texts(source):
                    batch, failure = self._checked(source, found)
                    is_empty &= not batch
                    if batch:
                        yield batch
                    if failure:     # after the texts before the error
                        raise failure
        if is_empty:
            raise TextFileError(f'{self._path} holds no text: put one on '
                                'each line')

    def _checked(self, source, found):
        """The `Line`s before the first wrong line, and its error or None."""
        batch = []
        try:
            for number, text in found:
                name = f'{source}, line {number}'
                if text:
                    batch.append(Line(name, text))
                elif self._skips:
                    self.skipped += 1
                    self.first_skipped = self.first_skipped or name
                else:
                    raise TextFileError(
                        f'{name} is empty: put a text on each line, or leave '
                        'out empty lines with --skip-empty')
        except TextFileError as error:
            return batch, error
        return batch, None

    def count(self):
        """The number of texts; raises the errors of reading them."""
        return sum(1 for _ in self)

    def skipped_words(self):
        """A message about skipped lines, or None."""
        if not self.skipped:
            return None
        return (f'{self.skipped:,} empty line'
                f'{"s were" if self.skipped > 1 else " was"} left out, the '
                f'first {self.first_skipped}')


def _texts(source):
    """Iterables of pairs of a line's number and its stripped text."""
    found = text_files.pieces(source, size=READ_BYTES)
    first = next(found)
    _check_format(source, first, source.text_field)
    found = _chained(first, found)
    if source.text_field is not None:
        texts = ((number, ' '.join(text.split())) for number, text
                 in _json_texts(source, found, source.text_field))
        while True:
            some = list(itertools.islice(texts, BATCH))
            if not some:
                return
            yield some
    for lines in _lines_of(source, found):
        yield ((number, text_files.decoded(source, data, number).strip())
               for number, data in lines)
