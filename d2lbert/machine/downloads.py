"""Download files and unpack archives."""
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

# A transfer is aborted unless the headers arrive within ANSWER_SECONDS, and
# then at least STALL_BYTES in each period of STALL_SECONDS
ANSWER_SECONDS = 8
STALL_SECONDS = 20
STALL_BYTES = 1024

#: Default limit of the size of a file. Without a limit, a server could fill
#: the disk, since the digest is checked only at the end.
MAX_BYTES = 4 << 30


class HubError(OSError):    # named after the book's DATA_HUB in hub.py
    """Data is missing on this machine and cannot be fetched or unpacked."""


def is_web_page(head):
    """True if a file that begins with the bytes `head` is HTML or XML."""
    return bool(re.match(rb'(\xef\xbb\xbf)?\s*<(!doctype|html|head|\?xml|'
                         rb'error)\b', head, re.IGNORECASE))


class _Transfer(threading.Thread):
    """Download a URL to a file, in a thread that `_watch` observes.

    A time-out of the socket is not enough: it does not limit the DNS look-up,
    and it never occurs if the server sends a byte now and then.
    """

    def __init__(self, url, path, max_bytes):
        super().__init__(daemon=True)
        self.url, self.path, self.max_bytes = url, path, max_bytes
        self.has_headers, self.content_length = False, None
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
            self.has_headers = True
            length = reply.headers.get('Content-Length', '')
            if length.isdigit():
                self.content_length = int(length)
                self._check_size(self.content_length)
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


def _watch(transfer, bar_label):
    """Start a transfer and wait for it; raise TimeoutError if it stalls."""
    transfer.start()
    # The state at the last progress
    had_headers, bytes_then, progress_time = False, 0, time.monotonic()
    # disable=None: no bar if standard error is not a terminal
    with tqdm(desc=bar_label, unit='B', unit_scale=True, leave=False,
              disable=is_quiet() or None, file=sys.stderr) as bar:
        def show_progress():
            bar.total = transfer.content_length
            bar.update(transfer.received_bytes - bar.n)

        # Look every 0.1 s, or more often in tests with a short ANSWER_SECONDS
        while not transfer.ended.wait(min(0.1, ANSWER_SECONDS / 4)):
            show_progress()
            max_seconds = STALL_SECONDS if had_headers else ANSWER_SECONDS
            if (transfer.received_bytes >= bytes_then + STALL_BYTES
                    or transfer.has_headers != had_headers):
                progress_time = time.monotonic()
                bytes_then = transfer.received_bytes
                had_headers = transfer.has_headers
            elif time.monotonic() - progress_time > max_seconds:
                raise TimeoutError
        show_progress()


def _failure_reason(error, has_headers):
    if isinstance(error, urllib.error.HTTPError):
        return f'the server answered {error.code} {error.reason}'
    if isinstance(error, urllib.error.URLError):
        error = error.reason    # an exception or a text
    if isinstance(error, str):
        return error
    # Up to Python 3.9, socket.timeout is not TimeoutError
    if isinstance(error, (TimeoutError, socket.timeout)):
        return (f'fewer than {STALL_BYTES:,} bytes came in {STALL_SECONDS} s'
                if has_headers else f'no answer for {ANSWER_SECONDS} s')
    if isinstance(error, ssl.SSLCertVerificationError):
        return f'its certificate is not trusted ({error.verify_message})'
    if isinstance(error, ssl.SSLError):
        # str(error) would end with a line number of Python's C source
        reason = (getattr(error, 'reason', None)
                  or 'the connection broke off').lower()
        return f'no secure connection ({reason.replace("_", " ")})'
    if getattr(error, 'strerror', None):
        return error.strerror
    # Some errors have no message
    return f'{type(error).__name__}: {error}'.rstrip(': ')


def fetch(url, path, digest_of, expected_digest, max_bytes=MAX_BYTES):
    """Download `url` to `path`; the file appears only if its digest matches.

    digest_of: a function of a path. expected_digest: None accepts any file.
    Raises HubError if the download fails.
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
        except HubError:        # from `_check_size`; it names the URL
            raise
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = _failure_reason(error, transfer.has_headers)
            # A reason may have several lines, as of a loop of redirections
            raise HubError(f'{url}: {" ".join(reason.split())}') from error
        if transfer.content_length not in (None, transfer.received_bytes):
            raise HubError(f'{url}: broke off after '
                           f'{transfer.received_bytes:,} of '
                           f'{transfer.content_length:,} bytes')
        digest = digest_of(transfer.path)
        if expected_digest not in (None, digest):
            with open(transfer.path, 'rb') as f:
                is_page = is_web_page(f.read(1024))
            raise HubError(
                f'{url}: sent {"a web page" if is_page else "another file"} '
                f'({transfer.received_bytes:,} bytes, checksum {digest}) '
                f'instead of the file with checksum {expected_digest}')
        os.replace(transfer.path, path)
    finally:
        transfer.is_abandoned = True
        shutil.rmtree(temporary, ignore_errors=True)
        # A user would take an empty new folder for data
        remove_empty(new_folders)


class ArchiveError(OSError):
    """An archive cannot be unpacked; the message is one sentence."""


#: Exceptions of zipfile, tarfile and the decompressors for an archive that is
#: damaged, encrypted or compressed in an unknown way.
DAMAGE_ERRORS = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError,
    struct.error, EOFError, NotImplementedError, RuntimeError, ValueError,
    IndexError, OverflowError, OSError)
#: The errno of an OSError that such an archive causes, and not the disk.
DAMAGE_ERRNOS = (
    None,                   # gzip: wrong checksum; bzip2: invalid data
    errno.EINVAL,           # an offset before the start of the file
    # Names of members: too long, or the same for a file and a folder
    errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def unpack(archive, base):
    """Unpack the file `archive` into the folder `base`, without empty folders.

    Raises ArchiveError, and unpacks nothing, if the archive is damaged,
    encrypted or of an unknown format, or if the name or the type of a member
    is unsafe.
    """
    os.makedirs(base, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix='.unpack-', dir=base) as temporary:
        files = {}      # an ordered set: several members may have one path
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
        except ArchiveError:
            raise
        except DAMAGE_ERRORS as error:
            if isinstance(error, OSError) and error.errno not in DAMAGE_ERRNOS:
                raise
            # tarfile adds a line for each format that it has tried
            reason = str(error).partition('\n')[0].rstrip(':')
            raise ArchiveError(
                f'{archive} cannot be unpacked ({reason}): delete it and try '
                'again, or unpack it with another program') from error
        for parts in files:
            target = Path(base, *parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(temporary, *parts), target)


def _members(archive):
    """Yield (name, is_folder, open_member) for each member of an archive."""
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
            # tarfile stops before the end of the data, where gzip compares
            # its checksum
            while f.fileobj.read(1 << 20):
                pass
    else:
        raise ArchiveError(f'{archive} is no archive that can be unpacked: '
                           'expected .zip, .tar, .gz or .tgz')
