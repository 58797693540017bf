"""Read texts from files, folders, pipes and standard input.

A file has plain text or JSON lines in UTF-8. It may be compressed (see
`text_files`), have any line ends, and begin with a byte order mark.
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

#: The number of bytes that `Lines` reads at once.
READ_BYTES = 1 << 16

#: The approximate maximal size of a line, in `Lines` and in JSON lines.
MAX_LINE_BYTES = 1 << 24

#: The number of texts of JSON lines in a batch of `Lines`.
BATCH_TEXTS = 1 << 8

#: The maximum number of fields of a JSON object that an error lists.
MAX_FIELDS = 8

BOM = b'\xef\xbb\xbf'   # the byte order mark of UTF-8

# The beginnings of a JSON object, a JSON list of objects, and HTML or XML
_JSON_OBJECT = re.compile(rb'\s*\{\s*"(\\.|[^"\\])*"\s*:', re.DOTALL)
_JSON_LIST = re.compile(rb'\s*\[\s*\{\s*("|\})')
_MARKUP = re.compile(
    rb'\s*(<!--.*?-->\s*)*(<\?xml[\s?]|<!doctype\s|<(html|head|body)[\s>])',
    re.DOTALL | re.IGNORECASE)


class Source(os.PathLike):
    """A text file, or a pipe.

    path: of the file, or of the temporary copy of a pipe; for a pipe without a
    copy, its name. name: the name in messages, by default the path.
    text_field: the field of JSON lines that has the text, or None for plain
    text. stream: the open binary file of a pipe without a copy, or None.
    temporary_file: the open copy of a pipe, or None. The copy is removed with
    this object.
    """

    def __init__(self, path, name=None, text_field=None, stream=None,
                 temporary_file=None):
        self.path, self.name = os.fspath(path), str(name or path)
        self.text_field, self.stream = text_field, stream
        self._temporary_file = temporary_file

    def __fspath__(self):
        return self.path

    def __str__(self):
        return self.name

    def stat(self):
        return os.stat(self.path)

    @property
    def digest_key(self):
        """The name of the digest in a cache; see `text_files.DIGEST_KEY`."""
        if self.text_field is None:
            return text_files.DIGEST_KEY
        return f'{text_files.DIGEST_KEY} in {self.text_field!r}'

    def digest(self, advance=lambda num_bytes: None):
        """The SHA-256 digest of the text; `advance` is as for `pieces`."""
        return text_files.digest_of(pieces(self, advance))


# From paths to sources

def sources(paths, text_field=None, single_pass=False):
    """The `Source`s of paths of files, folders and pipes: a list.

    paths: one path or several; a `Source` among them is returned as it is. A
    folder means all files in it and in its subfolders, sorted by path, without
    hidden files and folders. '-' is standard input. text_field: as for
    `Source`. single_pass: True if each source is read only once; then pipes
    are not copied to temporary files. Raises OSError and ValueError.
    """
    found = []
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        if isinstance(path, Source):
            found.append(path)
        elif path == STDIN:
            found.append(_source_of_stream(_stdin(), STDIN_NAME, text_field,
                                           single_pass))
        else:
            # Path.expanduser raises an error if there is no such user
            found += _sources_of_path(os.path.expanduser(path), text_field,
                                      single_pass)
    return found


def _stdin():
    if sys.stdin is None:
        raise ValueError('- is standard input, which is closed: name a file')
    return sys.stdin.buffer


def _sources_of_path(path, text_field, single_pass):
    mode = os.stat(path).st_mode        # an error for '', which Path makes '.'
    path = Path(path)
    if stat.S_ISDIR(mode):
        def is_hidden(file):
            return any(part.startswith('.')
                       for part in file.relative_to(path).parts)
        files = sorted(file for file in path.rglob('*')
                       if file.is_file() and not is_hidden(file))
        if not files:
            raise TextFileError(f'{path} is a folder without files: name a '
                                'folder with text files')
        return [Source(file, text_field=text_field) for file in files]
    if stat.S_ISREG(mode):
        return [Source(path, text_field=text_field)]
    # The path is a pipe
    return [_source_of_stream(open(path, 'rb'), path, text_field,
                              single_pass)]


def _source_of_stream(stream, name, text_field, single_pass):
    if single_pass:
        return Source(name, name, text_field, stream)
    file = tempfile.NamedTemporaryFile(prefix='d2lbert-')
    shutil.copyfileobj(stream, file)
    file.flush()
    return Source(file.name, name, text_field, temporary_file=file)


# From sources to bytes

def pieces(source, advance=lambda num_bytes: None,
           size=text_files.PIECE_BYTES):
    """Yield the text of a path or `Source` as bytes, a piece at a time.

    Plain text is neither changed nor decoded. For JSON lines this yields the
    stripped text of each object, as UTF-8, and an empty line after it. Then a
    piece may be larger than `size`. Raises `TextFileError` for HTML and XML,
    for a JSON list, for JSON without a text_field, for plain text with a
    text_field, for a wrong line of JSON lines, and as `text_files.pieces`.

    advance: called after each read with the number of bytes that it took from
    the file. size: in bytes.
    """
    field = getattr(source, 'text_field', None)
    byte_pieces = _checked_pieces(
        source, text_files.pieces(source, advance, size), field)
    if field is None:
        yield from byte_pieces
        return
    held, num_bytes = [], 0     # encoded texts, and their size
    for _, text in _json_texts(source, byte_pieces, field):
        held.append(text.strip().encode())
        num_bytes += len(held[-1])
        if num_bytes >= size:
            yield b'\n\n'.join([*held, b''])
            held, num_bytes = [], 0
    yield b'\n\n'.join([*held, b''])


def _checked_pieces(source, byte_pieces, field):
    """Return the pieces; raise the errors of `pieces` for a wrong format."""
    first = next(byte_pieces)
    begin = len(BOM) if first.startswith(BOM) else 0
    head = first[begin:begin + (1 << 16)]
    if _MARKUP.match(head):
        # XHTML may begin with <?xml, too
        is_html = (b'<?xml' not in head[:100].lower()
                   or re.search(rb'(?i)<(!doctype\s+)?html', head))
        raise TextFileError(f'{source} is {"HTML" if is_html else "XML"}, not '
                            'plain text: extract the text into a file, and '
                            'name this file')
    if _JSON_LIST.match(head):
        raise TextFileError(f'{source} is a JSON list: write each of its '
                            'objects on a line, and name the field with the '
                            'text (--text-field)')
    is_json = _JSON_OBJECT.match(head)
    if field is None and is_json:
        raise TextFileError(
            f'{source} holds JSON, not plain text: name the field with the '
            f'text (--text-field){_list_text_fields(first)}')
    if field is not None and not is_json:
        raise TextFileError(f'{source} does not hold JSON lines, so it has '
                            f'no field {field!r}: leave out --text-field')
    return itertools.chain([first], byte_pieces)


def _list_text_fields(data):
    """The end of an error message: text fields of the first object, or ''."""
    # A cut or damaged first line has no fields to list
    with contextlib.suppress(ValueError, AttributeError):
        first_line = data.decode('utf-8-sig').strip().split('\n')[0]
        item = parse_json(first_line)
        names = [name for name, value in item.items()
                 if isinstance(value, str)]
        if names:
            return (f', one of {", ".join(map(repr, names[:MAX_FIELDS]))}'
                    + (' and more' if len(names) > MAX_FIELDS else ''))
    return ''


def _json_texts(source, byte_pieces, field):
    """Yield (number of a line, text of its object) for JSON lines."""
    for number, data in itertools.chain.from_iterable(
            _line_batches(source, byte_pieces)):
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
        except UnicodeEncodeError:      # a lone surrogate, such as '\ud800'
            text = text.encode('utf-8', 'replace').decode()
        yield number, text


def with_line_feeds(byte_pieces):
    """Yield pieces of bytes, with line feeds in place of all line ends."""
    held = b''
    for piece in byte_pieces:
        piece = held + piece
        # Hold back a final '\r': the '\n' of '\r\n' may begin the next piece
        held = b'\r' if piece.endswith(b'\r') else b''
        if b'\r' in piece:
            piece = piece[:len(piece) - len(held)].replace(
                b'\r\n', b'\n').replace(b'\r', b'\n')
        yield piece
    if held:
        yield b'\n'


def _line_batches(source, byte_pieces):
    """Yield lists of lines, each (number of the line, its bytes)."""
    number, rest = 1, b''
    for piece in with_line_feeds(byte_pieces):
        *lines, rest = (rest + piece).split(b'\n')
        yield list(enumerate(lines, number))
        number += len(lines)
        if len(rest) > MAX_LINE_BYTES:
            raise TextFileError(f'{source}, line {number} is longer than '
                                f'{MAX_LINE_BYTES >> 20} MiB: put each text '
                                'on a line of its own')
    if rest:
        yield [(number, rest)]


# From sources to texts, one text per line

@contextlib.contextmanager
def reading_failures(flag, path):
    """As `failures_of` for reading, but with a message for a missing path."""
    with failures_of(flag, path, 'read'):
        try:
            yield
        except FileNotFoundError as error:
            if error.filename is None:      # `tempfile` found no folder
                raise
            raise ValueError(f'there is no file or folder {path}: name an '
                             f'existing one for {flag}') from None


class Line(NamedTuple):
    """A text, and its name in messages, such as 'x.txt, line 3'."""

    name: str
    text: str


class Lines:
    """The texts of a file, a folder or a pipe, one per line.

    path: a single path; text_field, single_pass: as for `sources`. skip_empty:
    skip empty lines, and count them in `skipped`; otherwise an empty line is
    an error. In JSON lines, an object with an empty text counts as an empty
    line, and blank lines between objects are ignored. flag: the command's flag
    for `path`, in messages. The attribute `is_stream` is True if the texts can
    be read only once.
    """

    def __init__(self, path, text_field=None, skip_empty=False,
                 single_pass=False, flag='--file'):
        self._flag, self._path, self._skip_empty = flag, path, skip_empty
        # The number of skipped lines, and the name of the first one
        self.skipped, self.first_skipped = 0, None
        with reading_failures(flag, path):
            self.sources = sources([path], text_field, single_pass)
        self.is_stream = any(source.stream for source in self.sources)

    def __iter__(self):
        return itertools.chain.from_iterable(self.batches())

    def batches(self):
        """Yield lists of `Line`s; an OSError becomes a ValueError."""
        self.skipped, self.first_skipped = 0, None
        is_empty = True
        for source in self.sources:
            with reading_failures(self._flag, source):
                for texts in _text_batches(source):
                    batch, error = self._make_lines(source, texts)
                    is_empty &= not batch
                    if batch:       # also if an error follows
                        yield batch
                    if error:
                        raise error
        if is_empty:
            raise TextFileError(f'{self._path} holds no text: put a text on '
                                'each line')

    def _make_lines(self, source, texts):
        """Return (`Line`s before the first error, the error or None).

        texts: an iterable of (number of a line, its text), which may raise the
        error.
        """
        batch = []
        try:
            for number, text in texts:
                name = f'{source}, line {number}'
                if text:
                    batch.append(Line(name, text))
                elif self._skip_empty:
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
        """The number of texts; reads all lines."""
        return sum(1 for _ in self)

    def skipped_note(self):
        """A message about the skipped lines; None if no line was skipped."""
        if not self.skipped:
            return None
        return (f'{self.skipped:,} empty line'
                f'{"s were" if self.skipped > 1 else " was"} left out, the '
                f'first {self.first_skipped}')


def _text_batches(source):
    """Yield iterables of (number of a line, its stripped text).

    The caller must read an iterable to its end before the next one: they share
    an iterator. In a text of JSON lines, one space replaces each run of white
    space.
    """
    byte_pieces = _checked_pieces(
        source, text_files.pieces(source, size=READ_BYTES), source.text_field)
    if source.text_field is None:
        for lines in _line_batches(source, byte_pieces):
            yield ((number, text_files.decoded(source, line, number).strip())
                   for number, line in lines)
        return
    texts = ((number, ' '.join(text.split())) for number, text
             in _json_texts(source, byte_pieces, source.text_field))
    # `for` takes the first text of each batch, `islice` the others
    for first_text in texts:
        yield itertools.chain([first_text],
                              itertools.islice(texts, BATCH_TEXTS - 1))
