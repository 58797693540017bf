"""Download files and unpack archives.

The digest of a downloaded file is checked, if it is known, and a stalled
transfer is aborted. No file of an archive is unpacked if the archive is
damaged, or if the name of a member could lead outside the target folder.
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

# A transfer is aborted if the DNS look-up and the headers of the server's
# reply together take more than ANSWER_SECONDS, or if the server then sends
# fewer than STALL_BYTES in a period of STALL_SECONDS
ANSWER_SECONDS = 8
STALL_SECONDS = 20
STALL_BYTES = 1024

#: Default maximum size of a file, in bytes. Without a maximum, a server could
#: fill the disk, since the digest is checked only at the end.
MAX_BYTES = 4 << 30


class HubError(OSError):    # named after the book's DATA_HUB in hub.py
    """Data is missing on this machine and cannot be fetched or unpacked."""


def is_web_page(head):
    """True if a file that begins with the bytes `head` is HTML or XML."""
    return bool(re.match(rb'(\xef\xbb\xbf)?\s*<(!doctype|html|head|\?xml|'
                         rb'error)\b', head, re.IGNORECASE))


class _Transfer(threading.Thread):
    """A thread that downloads a URL into a file; `_watch` observes the thread.

    A time-out of the socket is not enough: it does not limit the DNS look-up,
    and it never occurs if the server sends a byte now and then.
    """

    def __init__(self, url, path, max_bytes):
        super().__init__(daemon=True)
        self.url, self.path, self.max_bytes = url, path, max_bytes
        self.has_answer = False     # true once the headers have arrived
        self.announced_bytes = None     # the header Content-Length, if sent
        self.received_bytes = 0
        self.error = None       # an exception, for the caller to raise
        self.ended = threading.Event()
        self.is_abandoned = False   # set by the caller to end the thread

    def run(self):
        try:
            self._download()
        except Exception as error:
            self.error = error
        self.ended.set()

    def _download(self):
        request = urllib.request.Request(self.url, headers={
            'User-Agent': USER_AGENT, 'Accept-Encoding': 'identity'})
        with urllib.request.urlopen(request, timeout=STALL_SECONDS) as reply:
            self.has_answer = True
            length = reply.headers.get('Content-Length', '')
            self.announced_bytes = int(length) if length.isdigit() else None
            self._check_size(self.announced_bytes or 0)
            with open(self.path, 'wb') as file:
                # read1 returns what has arrived; read would wait for 64 KiB
                for chunk in iter(lambda: reply.read1(1 << 16), b''):
                    if self.is_abandoned:
                        return
                    self._check_size(self.received_bytes + len(chunk))
                    file.write(chunk)
                    self.received_bytes += len(chunk)

    def _check_size(self, num_bytes):
        if num_bytes > self.max_bytes:
            raise HubError(f'{self.url}: sends {num_bytes:,} bytes or more, '
                           f'but at most {self.max_bytes:,} are accepted')


def _watch(transfer, label):
    """Start a transfer and wait for it; raise TimeoutError if it stalls.

    label: the text beside the progress bar.
    """
    transfer.start()
    # The state of the transfer when it last made progress
    had_answer, bytes_then, progress_time = False, 0, time.monotonic()
    # disable=None: no bar if standard error is not a terminal
    with tqdm(desc=label, unit='B', unit_scale=True, leave=False,
              disable=is_quiet() or None, file=sys.stderr) as bar:
        def show_progress():
            bar.total = transfer.announced_bytes
            bar.update(transfer.received_bytes - bar.n)

        # Look every 0.1 s, or more often in tests with a short ANSWER_SECONDS
        while not transfer.ended.wait(min(0.1, ANSWER_SECONDS / 4)):
            show_progress()
            max_seconds = STALL_SECONDS if had_answer else ANSWER_SECONDS
            if (transfer.received_bytes >= bytes_then + STALL_BYTES
                    or transfer.has_answer != had_answer):
                progress_time = time.monotonic()
                bytes_then = transfer.received_bytes
                had_answer = transfer.has_answer
            elif time.monotonic() - progress_time > max_seconds:
                raise TimeoutError
        show_progress()


def _failure_reason(error, has_answer):
    """The reason for a failure, in words for a message.

    has_answer: True if the server had answered before the error.
    """
    if isinstance(error, urllib.error.HTTPError):
        return f'the server answered {error.code} {error.reason}'
    if isinstance(error, urllib.error.URLError):
        error = error.reason    # an exception or a text
    if isinstance(error, str):
        return error
    # Up to Python 3.9, socket.timeout is not TimeoutError
    if isinstance(error, (TimeoutError, socket.timeout)):
        return (f'fewer than {STALL_BYTES:,} bytes came in {STALL_SECONDS} s'
                if has_answer else f'no answer for {ANSWER_SECONDS} s')
    if isinstance(error, ssl.SSLCertVerificationError):
        return f'its certificate is not trusted ({error.verify_message})'
    if isinstance(error, ssl.SSLError):
        # str(error) would end with a line number of Python's C source
        reason = (getattr(error, 'reason', None)
                  or 'the connection broke off').lower()
        return f'no secure connection ({reason.replace("_", " ")})'
    if getattr(error, 'strerror', None):
        return error.strerror
    # For an error without a message, this is only the name of its class
    return f'{type(error).__name__}: {error}'.rstrip(': ')


def fetch(url, path, digest_of, expected, max_bytes=MAX_BYTES):
    """Download `url` to `path`; the file appears only if its digest matches.

    digest_of: a function from a path to the digest of the file. expected: the
    right digest, or None to accept any file. max_bytes: maximum size of the
    file. Raises HubError if the download fails.
    """
    path = Path(path)
    warn(f'd2lbert: fetching {url}')
    new_folders = missing_folders(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix='.fetch-', dir=path.parent)
    transfer = _Transfer(url, os.path.join(temporary, path.name), max_bytes)
    try:
        try:
            _watch(transfer, path.name)
            if transfer.error is not None:
                raise transfer.error
        except HubError:        # from `_check_size`, with a whole message
            raise
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise HubError(
                f'{url}: {_failure_reason(error, transfer.has_answer)}'
                ) from error
        if transfer.announced_bytes not in (None, transfer.received_bytes):
            raise HubError(f'{url}: broke off after '
                           f'{transfer.received_bytes:,} of '
                           f'{transfer.announced_bytes:,} bytes')
        digest = digest_of(transfer.path)
        if expected not in (None, digest):
            with open(transfer.path, 'rb') as f:
                is_page = is_web_page(f.read(1024))
            raise HubError(
                f'{url}: sent {"a web page" if is_page else "another file"} '
                f'({transfer.received_bytes:,} bytes, checksum {digest}) '
                f'instead of the file with checksum {expected}')
        os.replace(transfer.path, path)
    finally:
        transfer.is_abandoned = True
        shutil.rmtree(temporary, ignore_errors=True)
        # The new folders are empty if the download failed. A user would take
        # an empty folder for data
        remove_empty(new_folders)


class ArchiveError(OSError):
    """An archive cannot be unpacked; the message is one sentence."""


#: Exceptions that zipfile, tarfile and the decompressors raise if an archive
#: is damaged or encrypted, or if zipfile does not know its compression. An
#: OSError may have another cause, see `_is_damage`.
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError,
           struct.error, EOFError, NotImplementedError, RuntimeError,
           ValueError, IndexError, OverflowError, OSError)


def _is_damage(error):
    """True if a damaged archive caused an OSError, false if the disk did.

    False also for an ArchiveError, which already has a message for the user.
    """
    return not isinstance(error, ArchiveError) and error.errno in (
        None,                   # gzip: wrong checksum; bzip2: invalid data
        errno.EINVAL,           # an offset before the start of the file
        # Names of members: too long, or the same for a file and a folder
        errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def unpack(archive, base):
    """Unpack the file `archive` into the folder `base`.

    If several members have one name, the last is unpacked. Empty folders are
    left out. Raises ArchiveError, and creates no file, if the archive is
    damaged, encrypted or of an unknown format, or has an invalid member.
    """
    os.makedirs(base, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix='.unpack-', dir=base) as temporary:
        files = {}      # paths in the archive, as tuples of names; an ordered
                        # set, since several members may have one name
        try:
            for name, is_folder, open_member in _members(archive):
                parts = PurePosixPath(name).parts
                if not parts and not is_folder:
                    raise ArchiveError(
                        f'{archive}: a member has no name, so nothing of '
                        'the archive is unpacked')
                if ('..' in parts or name.startswith('/')
                        or '\\' in name or '\0' in name):
                    raise ArchiveError(
                        f'{archive}: the name of member {name!r} could lead '
                        f'outside {base}, so nothing of the archive is '
                        'unpacked')
                path = Path(temporary, *parts)
                if is_folder:
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                with open_member() as member, open(path, 'wb') as file:
                    shutil.copyfileobj(member, file, 1 << 20)
                files[parts] = True
        except DAMAGED as error:
            if isinstance(error, OSError) and not _is_damage(error):
                raise
            raise ArchiveError(f'{archive} cannot be unpacked ({error}): '
                               'delete it and try again') from error
        for parts in files:
            target = Path(base, *parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(temporary, *parts), target)


def _members(archive):
    """Yield (name, is_folder, open_member) for each member of an archive.

    open_member: a function that returns the member as an open file. Raises
    ArchiveError for an unknown format, or for a link or a device in a tar.
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
            # Read the rest of the data: gzip compares its checksum only at
            # the end, and tarfile stops before the end
            while f.fileobj.read(1 << 20):
                pass
    else:
        raise ArchiveError(f'{archive} is no archive that can be unpacked: '
                           'expected .zip, .tar, .gz or .tgz')
