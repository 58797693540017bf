"""The bytes of text files, as they are or packed.

A file may be packed as .gz, .bz2 or .xz, or be the only one in a .zip or
.tar archive; how it begins tells, not its name.
"""
import contextlib
import functools
import hashlib
import importlib
import itertools
import re
import struct
import tarfile
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import NamedTuple

PIECE_BYTES = 1 << 22

# Beginnings of files that are looked at; a tar archive says what it is at
# byte 257
HEAD_BYTES = 512

# More than any file has for a reason: a .zip file of a .tar.gz file
MAX_LAYERS = 3

# Names of an archive's files that an error lists
MAX_NAMES = 8

# What `digest` gives is kept under this name (see `unchanged`): to be
# changed when it gives something else
DIGEST = 'sha256 of the text'


class Packing(NamedTuple):
    """How packed files begin, how their names end, the module for them."""

    begins: str
    ending: str
    module: str


PACKINGS = (Packing(rb'\x1f\x8b', '.gz', 'gzip'),
            Packing(rb'BZh[1-9](1AY&SY|\x17rE8P\x90)', '.bz2', 'bz2'),
            Packing(rb'\xfd7zXZ\0', '.xz', 'lzma'))

# How files begin that are neither text nor can be unpacked here
FOREIGN = ((rb'%PDF-', 'a PDF file'),
           (rb'\{\\rtf', 'an RTF document'),
           (rb'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1', 'an Office document'),
           (rb'PAR1\x15', 'a Parquet file'),
           (rb'ARROW1', 'an Arrow file'),
           (rb'\x89HDF\r\n', 'an HDF5 file'),
           (rb'\x93NUMPY', 'a NumPy array'),
           (rb'SQLite format 3\0', 'an SQLite database'),
           (rb"7z\xbc\xaf'\x1c", 'a 7z archive'),
           (rb'Rar!\x1a\x07', 'a RAR archive'),
           (rb'\x28\xb5\x2f\xfd', 'a file packed with zstd'),
           (rb'\x04\x22\x4d\x18', 'a file packed with lz4'),
           (rb'\x1f\x9d', 'a file packed with compress'),
           (rb'\x89PNG\r\n', 'a picture (PNG)'),
           (rb'\xff\xd8\xff', 'a picture (JPEG)'),
           (rb'\x7fELF', 'a program'))


class TextFileError(ValueError):
    """A file that holds no text, or none that can be got at."""


def pieces(path, advance=lambda num_bytes: None, size=PIECE_BYTES):
    """A file's content, unpacked, `size` bytes at a time (the last: fewer).

    advance: called with the number of bytes of the file that each piece took.
    Raises `TextFileError`, a ValueError, if the file is empty, broken or of
    a format that is no text; PermissionError if it cannot be read.
    """
    layers = []  # from the outside: (how a file is packed, that file)
    place, empty = 0, True
    try:
        with open(path, 'rb') as raw, contextlib.ExitStack() as stack:
            f = _unpacked(path, raw, layers, stack)
            while True:
                piece = f.read(size)
                advance(raw.tell() - place)
                place = raw.tell()
                if not piece:
                    break
                empty = False
                yield piece
            # An archive's file ends before the checksum of what it is in
            for _, container in reversed(layers[1:]):
                while container.read(size):
                    pass
    except PermissionError:
        raise PermissionError(f'{path} cannot be read: you have no '
                              'permission to') from None
    except (EOFError, OSError, OverflowError, RuntimeError, ValueError,
            struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error,
            *_lzma_errors()) as error:
        # What the disk says has a number
        if (not layers or isinstance(error, TextFileError)
                or getattr(error, 'errno', None)):
            raise
        raise TextFileError(
            f'{path} is a broken {_endings(layers)} file ({error}): fetch or '
            'pack it again') from None
    if empty:
        raise TextFileError(f'{path} is empty: expected lines of text')


def decoded(path, data, number=1):
    """Lines of UTF-8 as text, the first of which is line `number` of `path`.

    A byte order mark before the first line of a file is left out. Raises
    `TextFileError` that says which line is not UTF-8.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        start = data.rfind(b'\n', 0, error.start)
        raise TextFileError(
            f'{path}, line {number + data.count(10, 0, error.start)}: byte '
            f'{error.start - start} ({data[error.start]:#04x}) is not UTF-8: '
            'convert the file to UTF-8') from None
    return text[1:] if number == 1 and text.startswith('\ufeff') else text


def lines(path):
    """Yield the lines of a file of UTF-8, unpacked, which line feeds end.

    A carriage return is a letter like any other. Errors as for `pieces`.
    """
    number, held = 1, []
    for piece in pieces(path):
        end = piece.rfind(b'\n')
        held.append(piece if end < 0 else piece[:end])
        if end >= 0:
            some = decoded(path, b''.join(held), number).split('\n')
            yield from some
            number, held = number + len(some), [piece[end + 1:]]
    if any(held):
        yield from decoded(path, b''.join(held), number).split('\n')


def whole(path):
    """A file's text, unpacked, as one string; errors as for `pieces`."""
    return decoded(path, b''.join(pieces(path)))


def digest(path, advance=lambda num_bytes: None):
    """sha256 of a file's content, unpacked; the rest as for `pieces`."""
    content = hashlib.sha256()
    for piece in pieces(path, advance):
        content.update(piece)
    return content.hexdigest()


def _endings(layers):
    return ''.join(ending for ending, _ in reversed(layers))


def _lzma_errors():
    with contextlib.suppress(ImportError):
        import lzma
        return [lzma.LZMAError]
    return []


def _unpacked(path, f, layers, stack):
    """The text in the file object `f`; `layers` becomes how it is packed.

    What is opened on the way is closed with `stack`.
    """
    while True:
        head = f.read(HEAD_BYTES)
        f.seek(0)
        packing = next((packing for packing in PACKINGS
                        if re.match(packing.begins, head)), None)
        if packing:
            ending, opened = packing.ending, _module(path, packing).open
        elif head.startswith((b'PK\3\4', b'PK\5\6')):
            ending, opened = '.zip', functools.partial(_of_zip, path, stack)
        elif head[257:262] == b'ustar':
            ending, opened = '.tar', functools.partial(_of_tar, path, stack)
        else:
            _check_is_text(path, head, layers)
            return f
        # Before it is opened, for what is said if it cannot be
        layers.append((ending, f))
        f = stack.enter_context(opened(f))
        if len(layers) > MAX_LAYERS:
            raise TextFileError(f'{path} is packed more than {MAX_LAYERS} '
                                'times over: unpack it')


def _module(path, packing):
    try:
        return importlib.import_module(packing.module)
    except ImportError:     # a Python that was built without it
        raise TextFileError(
            f'{path} is packed as {packing.ending}, which this Python cannot '
            f'read (it lacks the module {packing.module}): unpack it'
            ) from None


def _check_is_text(path, head, layers):
    for begins, what in FOREIGN:
        if re.match(begins, head):
            raise TextFileError(f'{path} is {what}, not text: name a file of '
                                'UTF-8 text, packed or not')
    # A byte order mark of UTF-16 is no UTF-8, which is said with its place,
    # and what comes out of a packed file may be wrong, which is said later
    if (b'\0' in head and not layers
            and not head.startswith((b'\xff\xfe', b'\xfe\xff'))):
        raise TextFileError(
            f'{path} is no UTF-8 text: its byte {head.index(0) + 1} is zero, '
            'as in binary files and in UTF-16: convert the file to UTF-8')


def _of_zip(path, stack, f):
    """The only file of the zip archive in `f`."""
    archive = stack.enter_context(zipfile.ZipFile(f))
    infos = [info for info in archive.infolist() if not info.is_dir()]
    names = {info.filename for info in infos}
    # How Office, OpenDocument and e-books are packed
    if names & {'[Content_Types].xml', 'mimetype'}:
        raise TextFileError(f'{path} is a document or an e-book, not text: '
                            'save it as UTF-8 text')
    info = _only(path, '.zip', infos, lambda info: info.filename)
    if info.flag_bits & 1:
        raise TextFileError(f'{path} is encrypted: unpack it with its '
                            'password')
    return archive.open(info)


def _of_tar(path, stack, f):
    """The only file of the tar archive in `f`."""
    archive = stack.enter_context(tarfile.open(fileobj=f, mode='r:'))
    return archive.extractfile(_only(
        path, '.tar', filter(tarfile.TarInfo.isfile, archive),
        lambda info: info.name))


def _only(path, ending, infos, name_of):
    """The one in `infos` that describes a file; `TextFileError` otherwise."""
    # What macOS keeps beside a file goes by the file's name with ._ before
    infos = list(itertools.islice((
        info for info in infos
        if not PurePosixPath(name_of(info)).name.startswith('._')),
        MAX_NAMES + 1))
    if len(infos) == 1:
        return infos[0]
    names = ', '.join(repr(name_of(info)) for info in infos[:MAX_NAMES])
    if len(infos) > MAX_NAMES:
        names += ' and more'
    raise TextFileError(
        f'{path} is a {ending} archive of several files ({names}): unpack it '
        'and name those that are to be read' if infos else
        f'{path} is a {ending} archive without a file in it')
