"""Unpack archives: completely, and never outside the target folder."""
import errno
import lzma
import os
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath


class ArchiveError(OSError):
    """An archive cannot be unpacked; the message is one sentence."""


#: Exceptions that the libraries raise for a damaged archive.
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError,
           struct.error, EOFError, NotImplementedError, RuntimeError,
           ValueError, IndexError, OverflowError, OSError)


def _is_damage(error):
    """True if an OSError comes from the archive's content."""
    return not isinstance(error, ArchiveError) and error.errno in (
        None,                   # a checksum of gzip, a stream of bzip2
        errno.EINVAL,           # an offset before the start of the file
        errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def unpack(archive, base):
    """Unpack `archive` into `base`: all files appear together, or none."""
    os.makedirs(base, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix='.unpack-', dir=base) as temp:
        files = []
        try:
            for name, is_folder, opened in _members(archive):
                parts = PurePosixPath(name).parts
                if not parts and not is_folder:
                    raise ArchiveError(
                        f'{archive}: a member has no name, so nothing of '
                        'the archive is unpacked')
                if ('..' in parts or name.startswith('/')
                        or '\\' in name or '\0' in name):
                    raise ArchiveError(
                        f'{archive}: member {name!r} would land outside '
                        f'{base}, so nothing of the archive is unpacked')
                path = Path(temp, *parts)
                if is_folder:
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                with opened() as source, open(path, 'wb') as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                files.append(parts)
        except DAMAGED as error:
            if isinstance(error, OSError) and not _is_damage(error):
                raise
            raise ArchiveError(f'{archive} cannot be unpacked ({error}): '
                               'delete it and try again') from error
        for parts in files:
            target = Path(base, *parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(temp, *parts), target)


def _members(archive):
    """Yield (name, is_folder, function that opens it) for each member.

    Raises ArchiveError for a device or a link in a tar archive.
    """
    if archive.endswith('.zip'):
        with zipfile.ZipFile(archive) as f:
            for info in f.infolist():
                yield info.filename, info.filename.endswith('/'), (
                    lambda info=info: f.open(info))
    elif archive.endswith(('.tar', '.gz', '.tgz')):
        with tarfile.open(archive) as f:
            for info in f:
                if not (info.isfile() or info.isdir()):
                    raise ArchiveError(
                        f'{archive}: member {info.name!r} is a link or a '
                        'device, so nothing of the archive is unpacked')
                yield info.name, info.isdir(), (
                    lambda info=info: f.extractfile(info))
            # The checksum of gzip comes after what tar reads
            while f.fileobj.read(1 << 20):
                pass
    else:
        raise ArchiveError(f'{archive} is no archive that can be unpacked: '
                           'expected .zip, .tar, .gz or .tgz')
