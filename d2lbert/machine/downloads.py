"""Download files and unpack archives.

Digests are checked and stalled transfers are aborted. An archive is unpacked
completely, and never outside the target folder.
"""
import errno
import http.client
import lzma
import os
import re
import shutil
import socket
import ssl
import struct
import sys
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from d2lbert.machine.files import missing_folders, remove_empty
from d2lbert.machine.terminal import is_quiet, warn

# wikitext.smerity.com rejects Python's default User-Agent
USER_AGENT = 'Mozilla/5.0 (compatible; d2lbert; https://d2l.ai)'

# A transfer is aborted if the server does not answer within ANSWER_SECONDS,
# including the DNS look-up, or if it then sends fewer than STALL_BYTES in any
# period of STALL_SECONDS
ANSWER_SECONDS = 8
STALL_SECONDS = 20
STALL_BYTES = 1024

#: Maximum size of a file of unknown size, in bytes. The digest is checked
#: only at the end, when a server may have filled the disk.
MOST_BYTES = 4 << 30


class HubError(OSError):
    """Data is neither on this machine nor available from the network."""


def is_web_page(head):
    """True if the first bytes of a file are the start of a web page."""
    return bool(re.match(rb'(\xef\xbb\xbf)?\s*<(!doctype|html|head|\?xml|'
                         rb'error)\b', head, re.IGNORECASE))


class _Transfer(threading.Thread):
    """Download a URL into a file, in a thread that the caller watches.

    A socket time-out covers neither the DNS look-up nor a server that sends
    a byte now and then; the watching thread aborts in both cases.
    """

    def __init__(self, url, path, most):
        super().__init__(daemon=True)
        self.url, self.path, self.most = url, path, most
        self.answered = False
        self.size = None  # announced by the server
        self.received = 0
        self.error = None
        self.done = threading.Event()
        self.abandoned = False

    def run(self):
        try:
            self._read()
        except Exception as error:  # the watching thread raises it
            self.error = error
        self.done.set()

    def _read(self):
        request = urllib.request.Request(self.url, headers={
            'User-Agent': USER_AGENT, 'Accept-Encoding': 'identity'})
        with urllib.request.urlopen(request, timeout=STALL_SECONDS) as reply:
            self.answered = True
            length = reply.headers.get('Content-Length', '')
            self.size = int(length) if length.isdigit() else None
            self._check(self.size or 0)
            with open(self.path, 'wb') as f:
                # read1 returns the received bytes, read waits for a full chunk
                for chunk in iter(lambda: reply.read1(1 << 16), b''):
                    if self.abandoned:
                        return
                    self._check(self.received + len(chunk))
                    f.write(chunk)
                    self.received += len(chunk)

    def _check(self, size):
        if size > self.most:
            raise HubError(f'{self.url}: sends {size:,} bytes or more, and '
                           f'the file has {self.most:,} at most')


def _watch(transfer, label):
    """Show a transfer's progress until it ends; abort it if it stalls."""
    transfer.start()
    mark, since = 0, time.monotonic()   # bytes and time of the last progress
    answered = False
    # disable=None: no bar if standard error is not a terminal
    with tqdm(desc=label, unit='B', unit_scale=True, leave=False,
              disable=is_quiet() or None, file=sys.stderr) as bar:
        while not transfer.done.wait(min(0.1, ANSWER_SECONDS / 4)):
            bar.total = transfer.size
            bar.update(transfer.received - bar.n)
            if (transfer.received >= mark + STALL_BYTES
                    or transfer.answered > answered):
                mark, since = transfer.received, time.monotonic()
                answered = transfer.answered
            elif time.monotonic() - since > (
                    STALL_SECONDS if answered else ANSWER_SECONDS):
                raise TimeoutError
        bar.total = transfer.size
        bar.update(transfer.received - bar.n)


def _reason(error, answered):
    """The reason of a failure; answered: True if the server had answered."""
    if isinstance(error, urllib.error.HTTPError):
        return f'the server answered {error.code} {error.reason}'
    if isinstance(error, urllib.error.URLError):
        error = error.reason
    # Up to Python 3.9, socket.timeout is not TimeoutError
    if isinstance(error, (TimeoutError, socket.timeout)):
        return (f'nothing came for {STALL_SECONDS} s' if answered
                else f'no answer for {ANSWER_SECONDS} s')
    if isinstance(error, ssl.SSLCertVerificationError):
        return f'its certificate is not trusted ({error.verify_message})'
    if isinstance(error, ssl.SSLError):
        # Python's text ends with a line number of its C source
        words = (getattr(error, 'reason', None)
                 or 'the connection broke off').lower()
        return f'no secure connection ({words.replace("_", " ")})'
    return getattr(error, 'strerror', None) or (
        f'{type(error).__name__}: {error}'.rstrip(': '))


def fetch(url, path, digest, expected, most=MOST_BYTES):
    """Download `url` to `path`; the file appears only if its digest matches.

    digest: a function of a path. expected: its result, or None to accept any.
    most: maximum size in bytes; a larger transfer is aborted.
    """
    path = Path(path)
    warn(f'd2lbert: fetching {url}')
    made = missing_folders(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix='.fetch-', dir=path.parent)
    transfer = _Transfer(url, os.path.join(folder, path.name), most)
    try:
        try:
            _watch(transfer, path.name)
            if transfer.error is not None:
                raise transfer.error
        except HubError:
            raise
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise HubError(
                f'{url}: {_reason(error, transfer.answered)}') from error
        if transfer.size not in (None, transfer.received):
            raise HubError(f'{url}: broke off after {transfer.received:,} '
                           f'of {transfer.size:,} bytes')
        got = digest(transfer.path)
        if expected not in (None, got):
            with open(transfer.path, 'rb') as f:
                page = is_web_page(f.read(1024))
            raise HubError(
                f'{url}: sent {"a web page" if page else "another file"} '
                f'({transfer.received:,} bytes, checksum {got}) instead of '
                f'the file with checksum {expected}')
        os.replace(transfer.path, path)
    finally:
        transfer.abandoned = True
        shutil.rmtree(folder, ignore_errors=True)
        remove_empty(made)      # an empty folder would be taken for data


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
    """Unpack `archive` into `base`; no file appears if a member is invalid."""
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
