"""The bytes of text files, compressed or not.

A file may be compressed as .gz, .bz2, .xz or .zst, or be the only file in a
.zip or .tar archive. Its first bytes decide, not its name. A .zst file needs
a library: Python's from 3.14 on, or one of the packages in ZSTD. A pipe
cannot be rewound, so its content can be read only once.
"""
import contextlib
import errno
import functools
import hashlib
import importlib
import io
import itertools
import re
import shutil
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import NamedTuple

PIECE_BYTES = 1 << 22

# The bytes that tell the format; a tar archive has its mark at byte 257
HEAD_BYTES = 512

# Nested formats, such as a .zip file of a .tar.gz file
MAX_LAYERS = 3

# Names of an archive's files that an error lists
MAX_NAMES = 8

# The label of a result of `digest`, where `text_reader.Unchanged` keeps it;
# change it if the digest changes
DIGEST = 'sha256 of the text'


class Packing(NamedTuple):
    """A compression format."""

    begins: bytes       # a regular expression for the first bytes
    ending: str         # the suffix of file names
    modules: tuple      # the first one that can be imported is used


#: Modules that read .zst files.
ZSTD = ('compression.zstd', 'backports.zstd', 'pyzstd', 'zstandard')

PACKINGS = (Packing(rb'\x1f\x8b', '.gz', ('gzip',)),
            Packing(rb'BZh[1-9](1AY&SY|\x17rE8P\x90)', '.bz2', ('bz2',)),
            Packing(rb'\xfd7zXZ\0', '.xz', ('lzma',)),
            Packing(rb'\x28\xb5\x2f\xfd', '.zst', ZSTD))

# (expression for the first bytes, name) of formats that are no text and cannot
# be unpacked here
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
           (rb'\x04\x22\x4d\x18', 'a file packed with lz4'),
           (rb'\x1f\x9d', 'a file packed with compress'),
           (rb'\x89PNG\r\n', 'a picture (PNG)'),
           (rb'\xff\xd8\xff', 'a picture (JPEG)'),
           (rb'\x7fELF', 'a program'))


class TextFileError(ValueError):
    """A file without text, or whose text cannot be read."""


def pieces(path, advance=lambda num_bytes: None, size=PIECE_BYTES):
    """Yield a file's unpacked content, at most `size` bytes at a time.

    advance: called after each piece with the number of bytes by which the
    place in the file, still packed, moved.
    Raises `TextFileError`, a ValueError, if the file is empty, broken or not
    a text; PermissionError if it cannot be read.
    """
    # (suffix, file object of packed bytes) of each format, outermost first
    layers = []
    place, empty = 0, True
    try:
        with contextlib.ExitStack() as stack:
            raw, is_stream = _opened(path, stack)
            if is_stream and _is_packed(raw):
                raw, is_stream = _spooled(raw, stack), False
            f = raw if is_stream else _unpacked(path, raw, layers, stack)
            if is_stream:
                _check_is_text(path, raw.peek(HEAD_BYTES)[:HEAD_BYTES], [])
            while True:
                # A pipe is read without waiting for more
                piece = f.read1(size) if is_stream else f.read(size)
                after = place + len(piece) if is_stream else raw.tell()
                advance(after - place)
                place = after
                if not piece:
                    break
                empty = False
                yield piece
            # The checksum of an outer format is after the inner file's end:
            # read each packed file to its end, except the one on the disk
            for _, packed in reversed(layers[1:]):
                while packed.read(size):
                    pass
    except PermissionError:
        raise PermissionError(f'{path} cannot be read: you have no '
                              'permission to') from None
    except (EOFError, OSError, OverflowError, RuntimeError, ValueError,
            struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error,
            *_library_errors()) as error:
        # An errno means a fault of the disk. EINVAL is the exception: damaged
        # archives cause it, by a seek to a place before the file
        if (not layers or isinstance(error, TextFileError) or getattr(
                error, 'errno', None) not in (None, errno.EINVAL)):
            raise
        raise TextFileError(
            f'{path} is a broken {_endings(layers)} file ({error}): fetch or '
            'pack it again') from None
    if empty:
        raise TextFileError(f'{path} is empty: expected lines of text')


def decoded(path, data, number=1):
    """Decode UTF-8 `data`, which starts at line `number` of `path`.

    A byte order mark at the begin of a file is removed. Raises
    `TextFileError`, which names the line that is not UTF-8.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        start = data.rfind(b'\n', 0, error.start)
        line = number + data.count(b'\n', 0, error.start)
        raise TextFileError(
            f'{path}, line {line}: byte '
            f'{error.start - start} ({data[error.start]:#04x}) is not UTF-8: '
            'convert the file to UTF-8') from None
    return text[1:] if number == 1 and text.startswith('\ufeff') else text


def lines(path):
    """Yield the lines of a UTF-8 file, unpacked; only line feeds end them.

    A carriage return stays in its line. Errors as for `pieces`.
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
    return digest_of(pieces(path, advance))


def digest_of(found):
    """sha256 of pieces of bytes, hexadecimal."""
    content = hashlib.sha256()
    for piece in found:
        content.update(piece)
    return content.hexdigest()


# Pipes

def _opened(path, stack):
    """(file object, True if it cannot be rewound).

    path: the path of a file or pipe, or a `text_sources.Source`, which may
    hold an open stream.
    """
    stream = getattr(path, 'stream', None)
    if stream is None:
        file = stack.enter_context(open(path, 'rb'))
        return file, not file.seekable()
    return (stream if hasattr(stream, 'peek') else io.BufferedReader(stream)
            ), True


def _is_packed(stream):
    """True if a stream has a compressed file or an archive."""
    head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    return head[257:262] == b'ustar' or head.startswith(b'PK') or any(
        re.match(packing.begins, head) for packing in PACKINGS)


def _spooled(stream, stack):
    """A temporary file with the content of a stream."""
    file = stack.enter_context(tempfile.TemporaryFile())
    shutil.copyfileobj(stream, file)
    file.seek(0)
    return file


# Packed files

def _endings(layers):
    return ''.join(ending for ending, _ in reversed(layers))


def _library_errors():
    """The exceptions by which imported modules report damaged data."""
    names = 'LZMAError', 'ZstdError'
    return [getattr(sys.modules[module], name) for module in ('lzma', *ZSTD)
            if module in sys.modules for name in names
            if hasattr(sys.modules[module], name)]


def _unpacked(path, f, layers, stack):
    """A file object with the text in `f`; fills `layers`.

    `stack` closes the file objects that are opened.
    """
    while True:
        head = f.read(HEAD_BYTES)
        f.seek(0)
        packing = next((packing for packing in PACKINGS
                        if re.match(packing.begins, head)), None)
        if packing:
            ending, open_layer = packing.ending, _opener(path, packing)
        elif head.startswith((b'PK\3\4', b'PK\5\6')):
            ending = '.zip'
            open_layer = functools.partial(_of_zip, path, stack)
        elif head[257:262] == b'ustar':
            ending = '.tar'
            open_layer = functools.partial(_of_tar, path, stack)
        else:
            _check_is_text(path, head, layers)
            return f
        # Before it is opened, for the message if that fails
        layers.append((ending, f))
        f = stack.enter_context(open_layer(f))
        if len(layers) > MAX_LAYERS:
            raise TextFileError(f'{path} is packed more than {MAX_LAYERS} '
                                'times over: unpack it')


def _opener(path, packing):
    """The function that opens a compressed file object for reading."""
    for name in packing.modules:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name)
            return (module.open if name != 'zstandard' else
                    lambda f: io.BufferedReader(_Zstandard(f)))
    if packing.ending == '.zst':
        raise TextFileError(
            f'{path} is packed as .zst, which no library here can read: pip '
            'install zstandard, or unpack it')
    # Python was built without the module
    raise TextFileError(
        f'{path} is packed as {packing.ending}, which this Python cannot '
        f'read (it lacks the module {packing.modules[0]}): unpack it')


class _Zstandard(io.RawIOBase):
    """A .zst file of any number of frames, by the package zstandard.

    The package's reader ends after the first frame, and does not report a
    truncated file.
    """

    def __init__(self, file):
        self._file, self._frame, self._place = file, None, 0
        self._rest = b''    # packed bytes that were read and not unpacked
        self._data = b''    # unpacked bytes that were not returned yet

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, place, whence=0):
        if (place, whence) == (0, 0):
            self._file.seek(0)
            self.__init__(self._file)
        elif (place, whence) not in ((0, 1), (self._place, 0)):
            # Both of these stay where they are
            raise io.UnsupportedOperation('only to the beginning')
        return self._place

    def readinto(self, buffer):
        while not self._data:
            if not self._rest:
                self._rest = self._file.read(1 << 17)
                if not self._rest:
                    if self._frame is not None:
                        raise EOFError('it ends within a frame')
                    return 0
            if self._frame is None:
                import zstandard
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._data = self._frame.decompress(self._rest)
            self._rest = b''
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._data))
        buffer[:count] = self._data[:count]
        self._data = self._data[count:]
        self._place += count
        return count


def _check_is_text(path, head, layers):
    for begins, what in FOREIGN:
        if re.match(begins, head):
            raise TextFileError(f'{path} is {what}, not text: name a file of '
                                'UTF-8 text, packed or not')
    # Other zeros are left to `decoded`: of UTF-16 with a byte order mark it
    # names the line, and unpacked zeros may be a damage that `pieces` reports
    if (b'\0' in head and not layers
            and not head.startswith((b'\xff\xfe', b'\xfe\xff'))):
        raise TextFileError(
            f'{path} is no UTF-8 text: its byte {head.index(0) + 1} is zero, '
            'as in binary files and in UTF-16: convert the file to UTF-8')


def _of_zip(path, stack, f):
    """The only file of the zip archive in `f`."""
    archive = stack.enter_context(zipfile.ZipFile(f))
    # `is_dir` of some versions of Python needs a name that is not empty
    infos = [info for info in archive.infolist()
             if not info.filename.endswith('/')]
    names = {info.filename for info in infos}
    # Members of Office, OpenDocument and e-book files
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
    """The only file in `infos`; `TextFileError` for none or several."""
    # macOS adds files with metadata, whose names begin with ._
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
