"""Read text files, compressed or not.

A file may be compressed as .gz, .bz2, .xz or .zst, or be the only file in a
.zip or .tar archive. The first bytes of a file determine its format, not its
name. Before Python 3.14, .zst files need one of the packages in ZSTD. A file
may be a pipe, which can be read only once.
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

# The number of bytes of a text that are read at a time
PIECE_BYTES = 1 << 22

# The number of first bytes that determine a file's format; a .tar has 'ustar'
# at index 257
HEAD_BYTES = 512

# The maximal number of nested formats; a .tar.gz in a .zip has three
MAX_LAYERS = 3

# The maximal number of an archive's files that an error lists
MAX_NAMES = 8

# The name of a file's digest in the cache `corpus.text_reader.FileFacts`.
# Change it if the computation of the digest changes
DIGEST_KEY = 'sha256 of the text'


class Compression(NamedTuple):
    """A compression format of a single file."""

    pattern: bytes      # a regular expression for the first bytes
    ending: str         # the suffix of file names
    modules: tuple      # module names; the first importable one is used


#: Modules that read .zst files.
ZSTD = ('compression.zstd', 'backports.zstd', 'pyzstd', 'zstandard')

COMPRESSIONS = (
    Compression(rb'\x1f\x8b', '.gz', ('gzip',)),
    Compression(rb'BZh[1-9](1AY&SY|\x17rE8P\x90)', '.bz2', ('bz2',)),
    Compression(rb'\xfd7zXZ\0', '.xz', ('lzma',)),
    Compression(rb'\x28\xb5\x2f\xfd', '.zst', ZSTD))

# (regular expression for the first bytes, name) of unsupported formats
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
    """A file has no text, or text that cannot be read."""


def pieces(path, advance=lambda num_bytes: None, size=PIECE_BYTES):
    """Yield a file's unpacked content, at most `size` bytes at a time.

    path: a path or a `text_sources.Source`. advance: called after each read
    with the number of bytes that it took from the file, before unpacking. The
    first piece of a pipe has a line or HEAD_BYTES, even if `size` is less.
    Raises OSError, or `TextFileError`, a ValueError, if the file is empty, is
    not text or cannot be unpacked.
    """
    # (suffix, file object of packed bytes) of each format, outermost first
    layers = []
    position = 0    # in the file
    is_empty = True
    try:
        with contextlib.ExitStack() as stack:
            raw, is_stream = _open(path, stack)
            head = _read_head(raw, size) if is_stream else b''
            if _is_packed(head):
                # `_unpack` rewinds the file
                raw, is_stream = _temporary_copy(head, raw, stack), False
            if is_stream:
                content = raw
                _check_is_text(path, head[:HEAD_BYTES], [])
            else:
                content = _unpack(path, raw, layers, stack)
            while True:
                if is_stream:
                    # `read1` does not wait until the pipe has `size` bytes
                    piece, head = head or content.read1(size), b''
                    new_position = position + len(piece)
                else:
                    piece = content.read(size)
                    new_position = raw.tell()
                advance(new_position - position)
                position = new_position
                if not piece:
                    break
                is_empty = False
                yield piece
            # A layer verifies its checksum at its end. Read the layers between
            # `raw` and `content` to their ends, too
            for _, packed in reversed(layers[1:]):
                while packed.read(size):
                    pass
    except PermissionError as error:
        denied = PermissionError(f'{path} cannot be read: you do not have '
                                 'permission')
        denied.strerror = error.strerror    # for `failures_of`
        raise denied from None
    except (EOFError, OSError, OverflowError, RuntimeError, ValueError,
            struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error,
            *_library_errors()) as error:
        # A damaged archive may cause EINVAL, since a library seeks to a
        # position below 0. Any other errno means a fault of the disk
        is_disk_fault = getattr(error, 'errno', None) not in (
            None, errno.EINVAL)
        if not layers or isinstance(error, TextFileError) or is_disk_fault:
            raise
        raise TextFileError(
            f'{path} is a broken {_endings(layers)} file ({error}): fetch or '
            'pack it again') from None
    if is_empty:
        raise TextFileError(f'{path} is empty: expected lines of text')


def decoded(path, data, number=1):
    """Decode bytes of UTF-8, which begin in line `number` of a file.

    A byte order mark at the start of a file is removed. Raises
    `TextFileError`, which names the line that is not UTF-8.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # The last line feed before the wrong byte; -1 in the first line
        line_feed = data.rfind(b'\n', 0, error.start)
        line = number + data.count(b'\n', 0, error.start)
        raise TextFileError(
            f'{path}, line {line}: byte {error.start - line_feed} '
            f'({data[error.start]:#04x}) is not UTF-8: convert the file to '
            'UTF-8') from None
    return text[1:] if number == 1 and text.startswith('\ufeff') else text


def lines(path):
    """Yield the lines of a UTF-8 file, unpacked. Only line feeds end lines.

    Raises the errors of `pieces`.
    """
    number, held = 1, []    # held: pieces of the incomplete line `number`
    for piece in pieces(path):
        end = piece.rfind(b'\n')
        held.append(piece if end < 0 else piece[:end])
        if end >= 0:
            whole_lines = decoded(path, b''.join(held), number).split('\n')
            yield from whole_lines
            number, held = number + len(whole_lines), [piece[end + 1:]]
    if any(held):
        yield from decoded(path, b''.join(held), number).split('\n')


def read_text(path):
    """Return a file's text, unpacked. Raises the errors of `pieces`."""
    return decoded(path, b''.join(pieces(path)))


def digest(path, advance=lambda num_bytes: None):
    """The SHA-256 digest of a file, unpacked; arguments as for `pieces`."""
    return digest_of(pieces(path, advance))


def digest_of(byte_pieces):
    """The SHA-256 digest of an iterable of bytes, hexadecimal."""
    sha256 = hashlib.sha256()
    for piece in byte_pieces:
        sha256.update(piece)
    return sha256.hexdigest()


# Pipes

def _open(path, stack):
    """Open a path or `text_sources.Source`; return (file object, is_stream).

    is_stream: True if the file object cannot be rewound; then it has `read1`.
    stack: an ExitStack that closes a file opened here.
    """
    stream = getattr(path, 'stream', None)
    if stream is None:
        file = stack.enter_context(open(path, 'rb'))
        return file, not file.seekable()
    if not hasattr(stream, 'read1'):
        stream = io.BufferedReader(stream)
    return stream, True


def _read_head(stream, size):
    """Read a stream up to a line feed, HEAD_BYTES or its end, and maybe more.

    One read returns only what the pipe's other end has written so far.
    """
    head = piece = stream.read1(size)
    while piece and len(head) < HEAD_BYTES and b'\n' not in head:
        piece = stream.read1(size)
        head += piece
    return head


def _is_packed(head):
    """True if the first bytes are those of a compressed file or an archive."""
    return head[257:262] == b'ustar' or head.startswith(b'PK') or any(
        re.match(compression.pattern, head) for compression in COMPRESSIONS)


def _temporary_copy(head, stream, stack):
    """A temporary file of the bytes `head` and the rest of a stream."""
    file = stack.enter_context(tempfile.TemporaryFile())
    file.write(head)
    shutil.copyfileobj(stream, file)
    file.seek(0)
    return file


# Packed files

def _endings(layers):
    """The suffixes of nested formats, such as '.tar.gz'."""
    return ''.join(ending for ending, _ in reversed(layers))


def _library_errors():
    """The exceptions that imported modules raise for damaged data."""
    errors = []
    for module in ('lzma', *ZSTD):
        for name in ('LZMAError', 'ZstdError'):
            error = getattr(sys.modules.get(module), name, None)
            if error is not None:
                errors.append(error)
    return errors


def _unpack(path, f, layers, stack):
    """Return a file object with the text that the file object `f` contains.

    layers: an empty list, to which the layers of `pieces` are added.
    """
    while True:
        head = f.read(HEAD_BYTES)
        f.seek(0)
        compression = next(
            (compression for compression in COMPRESSIONS
             if re.match(compression.pattern, head)), None)
        if compression:
            ending = compression.ending
            open_layer = _opener(path, compression)
        elif head.startswith((b'PK\3\4', b'PK\5\6')):
            ending = '.zip'
            open_layer = functools.partial(_open_zip, path, stack)
        elif head[257:262] == b'ustar':
            ending = '.tar'
            open_layer = functools.partial(_open_tar, path, stack)
        else:
            _check_is_text(path, head, layers)
            return f
        # Append before opening, so that an error names this format, too
        layers.append((ending, f))
        f = stack.enter_context(open_layer(f))
        if len(layers) > MAX_LAYERS:
            raise TextFileError(f'{path} is packed more than {MAX_LAYERS} '
                                'times over: unpack it')


def _opener(path, compression):
    """Return a function that wraps a compressed file object in a reader."""
    for name in compression.modules:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name)
            if name == 'zstandard':
                return lambda f: io.BufferedReader(_ZstandardReader(f))
            return module.open
    if compression.ending == '.zst':
        raise TextFileError(
            f'{path} is packed as .zst, which no library here can read: pip '
            'install zstandard, or unpack it')
    raise TextFileError(
        f'{path} is packed as {compression.ending}, which this Python cannot '
        f'read (it lacks the module {compression.modules[0]}): unpack it')


class _ZstandardReader(io.RawIOBase):
    """A file object that unpacks a .zst file by the package zstandard.

    The package's own reader would end after the first frame of a file, and
    would not report truncation.
    """

    def __init__(self, file):
        self._file, self._position = file, 0    # position: in the content
        self._decompressor = None   # of the current frame, or None
        self._packed = b''      # read, but not unpacked yet
        self._unpacked = b''    # unpacked, but not returned yet

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, position, whence=0):
        is_current = (position, whence) in ((0, 1), (self._position, 0))
        if (position, whence) == (0, 0):
            self._file.seek(0)
            self.__init__(self._file)
        elif not is_current:
            raise io.UnsupportedOperation('a .zst file can only be rewound '
                                          'to its beginning')
        return self._position

    def readinto(self, buffer):
        while not self._unpacked:
            if not self._packed:
                self._packed = self._file.read(1 << 17)
                if not self._packed:
                    if self._decompressor is not None:
                        raise EOFError('the file ends within a frame')
                    return 0
            if self._decompressor is None:
                import zstandard
                self._decompressor = (
                    zstandard.ZstdDecompressor().decompressobj())
            self._unpacked = self._decompressor.decompress(self._packed)
            self._packed = b''
            if self._decompressor.eof:
                self._packed = self._decompressor.unused_data
                self._decompressor = None
        num_bytes = min(len(buffer), len(self._unpacked))
        buffer[:num_bytes] = self._unpacked[:num_bytes]
        self._unpacked = self._unpacked[num_bytes:]
        self._position += num_bytes
        return num_bytes


def _check_is_text(path, head, layers):
    """Raise TextFileError if the first bytes, `head`, cannot be text."""
    for pattern, format_name in FOREIGN:
        if re.match(pattern, head):
            raise TextFileError(f'{path} is {format_name}, not text: name a '
                                'file of UTF-8 text, packed or not')
    # Binary files and UTF-16 have zeros. `decoded` reports UTF-16 that begins
    # with a byte order mark, and names the line. After unpacking, zeros may
    # come from damage, which `pieces` reports
    has_utf16_mark = head.startswith((b'\xff\xfe', b'\xfe\xff'))
    if b'\0' in head and not layers and not has_utf16_mark:
        raise TextFileError(
            f'{path} is no UTF-8 text: its byte {head.index(0) + 1} is zero, '
            'as in binary files and in UTF-16: convert the file to UTF-8')


def _open_zip(path, stack, f):
    """Open the only file of the zip archive in the file object `f`."""
    archive = stack.enter_context(zipfile.ZipFile(f))
    # Not `info.is_dir`, which fails for an empty name in some Pythons
    infos = [info for info in archive.infolist()
             if not info.filename.endswith('/')]
    names = {info.filename for info in infos}
    # Office, OpenDocument and e-book files contain one of these
    if names & {'[Content_Types].xml', 'mimetype'}:
        raise TextFileError(f'{path} is a document or an e-book, not text: '
                            'save it as UTF-8 text')
    info = _only_file(path, '.zip', infos, lambda info: info.filename)
    if info.flag_bits & 1:
        raise TextFileError(f'{path} is encrypted: unpack it with its '
                            'password')
    return archive.open(info)


def _open_tar(path, stack, f):
    """Open the only file of the tar archive in the file object `f`."""
    archive = stack.enter_context(tarfile.open(fileobj=f, mode='r:'))
    return archive.extractfile(_only_file(
        path, '.tar', filter(tarfile.TarInfo.isfile, archive),
        lambda info: info.name))


def _only_file(path, ending, infos, name_of):
    """The only file of an archive; raises `TextFileError` for none or several.

    infos: the `ZipInfo` or `TarInfo` of each file; name_of(info): its name.
    """
    # macOS adds files with metadata, whose names begin with ._
    infos = (info for info in infos
             if not PurePosixPath(name_of(info)).name.startswith('._'))
    # One file more than the error lists, to know if there are more
    infos = list(itertools.islice(infos, MAX_NAMES + 1))
    if not infos:
        raise TextFileError(f'{path} is a {ending} archive without a file in '
                            'it')
    if len(infos) == 1:
        return infos[0]
    names = ', '.join(repr(name_of(info)) for info in infos[:MAX_NAMES])
    if len(infos) > MAX_NAMES:
        names += ' and more'
    raise TextFileError(
        f'{path} is a {ending} archive of several files ({names}): unpack it '
        'and name the files to read')
