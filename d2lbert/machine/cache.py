"""The cache: its folder, who may write to it, and how long entries stay.

This module does not import MXNet, because `d2lbert doctor` uses it.
"""
import atexit
import contextlib
import functools
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Tuple

from d2lbert.machine.files import locked

try:
    import grp
    import pwd
except ImportError:  # not a POSIX system
    grp = pwd = None

#: Kinds of cache entries, each with a pattern of its file and folder names.
#: Names with the same first group belong to one entry. Only files that match
#: are ever removed: D2LBERT_CACHE may point at any folder.
KINDS = {
    'kernels': r'(\w+-[0-9a-f]{16}\.so)(?:\.sha256|\.products)?',
    'tokens': r'([0-9a-f]{32}\.npz|unchanged\.json)',
    'corpora': r'([0-9a-f]{32})',
    # archives of hub.DATA_HUB, and the folders in these archives
    'data': r'(wikitext-2(?:-v1\.zip)?|'
            r'(?:snli_1\.0|bert\.base|bert\.small)(?:\.zip)?)',
    'wheels': r'(mxnet[\w.+-]*\.whl)',
}
#: Kinds that can be recomputed without the network
RENEWABLE = 'kernels', 'tokens', 'corpora'

#: Temporary names: in use, or left over from a killed process
LEFT = (r'\..+\.part|[0-9a-f]{32}\.\w+\.part|\.(?:fetch|unpack)-.+|'
        r'(?:build|\w+-[0-9a-f]{16}|[0-9a-f]{32})\.lock')
#: Temporary files unchanged for this time are left over
LEFT_SECONDS = 3600


class CacheError(OSError):
    """There is no usable cache folder; the message is one sentence."""


# Location

def enabled():
    """True if recomputable results may be cached (not D2LBERT_CACHE=off)."""
    return os.environ.get('D2LBERT_CACHE', '').lower() != 'off'


def root():
    """The absolute path of the cache folder, which may not exist yet.

    $D2LBERT_CACHE, else $XDG_CACHE_HOME/d2lbert, else ~/.cache/d2lbert. If
    none of these is usable, a private temporary folder (`is_temporary`).
    With D2LBERT_CACHE=off, recomputable results are not cached (`enabled`).
    A relative D2LBERT_CACHE is resolved once, against the working directory
    of the first call. A relative XDG_CACHE_HOME is ignored, as its
    specification demands.
    """
    named = os.environ.get('D2LBERT_CACHE')
    if named and enabled():
        path = os.path.expanduser(named)
        if path.startswith('~'):
            raise CacheError(f'D2LBERT_CACHE is {named!r}, and there is no '
                             f'home folder {named.split("/")[0]}: name an '
                             'absolute path')
        return _absolute(path)
    return _usual() or _temporary()


def is_temporary():
    """True if `root` is temporary, because no home folder is usable."""
    named = os.environ.get('D2LBERT_CACHE')
    return not (named and enabled()) and _usual() is None


@functools.lru_cache(maxsize=None)
def _absolute(path):
    """The absolute path; the same after a change of the working directory."""
    return Path(os.path.abspath(path))


def _usual():
    """The user's cache folder, or None if the user has no home folder."""
    base = os.path.expanduser(os.environ.get('XDG_CACHE_HOME') or '')
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser('~'), '.cache')
    folder = Path(base, 'd2lbert')
    if not folder.is_absolute():
        return None     # no HOME, and no user name for this user id
    # In a container, a user without a name has the home folder /
    above = next(path for path in (folder, *folder.parents)
                 if os.path.lexists(path))
    if above != folder and not os.access(above, os.W_OK | os.X_OK):
        return None
    if _replaceable_at(folder) is not None:
        return None     # root of a container, in another user's home folder
    return folder


@functools.lru_cache(maxsize=None)
def _temporary():
    """The user's private folder in the temporary directory."""
    folder = Path(tempfile.gettempdir(), f'd2lbert-{os.geteuid()}')
    try:
        if folder.is_symlink():
            raise CacheError
        return private(folder)
    except CacheError:      # another user has taken this name
        folder = Path(tempfile.mkdtemp(prefix='d2lbert-'))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder


def stand_in_for_home():
    """Give matplotlib a folder when there is no home folder."""
    with contextlib.suppress(OSError):
        if not os.path.isabs(os.path.expanduser('~')):
            os.environ.setdefault('MPLCONFIGDIR',
                                  str(_temporary() / 'matplotlib'))


# Ownership

def folder(kind):
    """Return the `private` folder of a kind; create it if it is missing."""
    path = private(root() / kind)
    with contextlib.suppress(OSError):
        sweep(kind)
    return path


def private(path):
    """Return the folder `path`; create it for this user alone if missing.

    Raises CacheError if it cannot be created, or if another user (except
    root) may write to it or replace it.
    """
    path = Path(path)
    try:
        _make(path)
        found = path.stat()
        if found.st_uid == os.geteuid() and found.st_mode & 0o022:
            # A common umask (002) lets the user's group write
            path.chmod(stat.S_IMODE(found.st_mode) & ~0o022)
            found = path.stat()
    except OSError as error:
        raise CacheError(
            f'the cache folder {path} cannot be made or read '
            f'({error.strerror}): set D2LBERT_CACHE to a folder that you can '
            'write') from None
    above = _replaceable_at(path)
    if above is not None:
        raise CacheError(
            f'the cache folder {path} is not trusted, because {above} belongs '
            'to another user, or others can write to it: set D2LBERT_CACHE '
            'to a folder of your own')
    if not is_trusted(found):
        raise CacheError(
            f'the cache folder {path} belongs to another user, or others can '
            'write to it, so nothing in it is trusted: set D2LBERT_CACHE to '
            'a folder of your own')
    return path


def _make(path):
    if not path.is_dir():
        _make(path.parent)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:     # created by another process, or a file
            if not path.is_dir():
                raise


def is_trusted(found):
    """True if an os.stat result lets only root and this user write."""
    return (found.st_uid in (0, os.geteuid())
            and not found.st_mode & 0o022)


def is_ours(path):
    """True if only root and this user can have written to `path`.

    For a folder, this includes its content. The folders above `path` must
    not let other users replace it.
    """
    path = Path(path)
    try:
        return (_replaceable_at(path) is None and is_trusted(path.stat())
                and all(is_trusted(inner.lstat())
                        for inner in path.rglob('*')))
    except OSError:
        return False


def make_private(path):
    """Restrict writing to this user, for a file or for a whole folder."""
    path = Path(path)
    for one in (path, *path.rglob('*')):
        one.chmod(stat.S_IMODE(one.stat().st_mode) & ~0o022)


def _replaceable_at(path):
    """The first folder or link where others can replace `path`, or None.

    A sticky folder, like /tmp, lets users replace only their own files.
    In a container with a single user, user id 0 may be unmapped; then root
    is the owner of the root folder.
    """
    owners = {0, os.geteuid(), os.stat('/').st_uid}
    for above, found in _way_to(path):
        mode = found.st_mode
        if found.st_uid not in owners:
            return above
        if (stat.S_ISDIR(mode) and not mode & stat.S_ISVTX
                and (mode & 0o002 or (mode & 0o020 and not _is_own_group(
                    found.st_gid)))):
            return above
    return None


def _way_to(path):
    """Yield each folder above `path`, and each link, with its os.lstat.

    Stops at the first missing one. `path` itself is yielded only if it is a
    link: replacing it takes write permission for the folder above it.
    """
    here, links = '/', 0
    left = [*reversed(Path(os.path.abspath(path)).parts[1:])]
    yield here, os.lstat(here)
    while left:
        part = left.pop()
        here, before = os.path.join(here, part), here
        if part == '..':        # in the target of a link
            here = os.path.dirname(before)
            continue
        try:
            found = os.lstat(here)
        except OSError:
            return
        if stat.S_ISLNK(found.st_mode):
            yield here, found
            links += 1
            if links > 40:
                return          # a loop of links, which the system rejects
            target = Path(os.readlink(here))
            left += reversed(target.parts[target.is_absolute():])
            here = '/' if target.is_absolute() else before
        elif left:
            yield here, found


def _is_own_group(number):
    """True if this user is the only member of the group.

    Many systems give each user such a group, and a umask of 002 lets the
    group write.
    """
    if grp is None:
        return False
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return (user.pw_gid == number and group.gr_name == user.pw_name
            and set(group.gr_mem) <= {user.pw_name})


# Lifetime

class Entry(NamedTuple):
    """One cache entry."""

    kind: str
    paths: Tuple[Path, ...]
    size: int       # bytes
    used: float     # last use, in seconds since 1970
    is_left: bool   # temporary: in use, or left over from a killed process


def used(path):
    """Set the last use of a cache entry to now; ignore paths elsewhere."""
    with contextlib.suppress(OSError, ValueError):
        path = Path(path)
        path.relative_to(root())
        os.utime(path)


def entries(kinds=tuple(KINDS)):
    """All `Entry`s of some kinds. Links are not followed."""
    for kind in kinds:
        found = {}
        for path in _paths(kind):
            match = re.fullmatch(KINDS[kind], path.name)
            name = match.group(1) if match else path.name
            if match or re.fullmatch(LEFT, path.name):
                found.setdefault((name, not match), []).append(path)
        for (_, is_left), paths in sorted(found.items()):
            sizes, times = zip(*map(_size_and_time, paths))
            yield Entry(kind, tuple(paths), sum(sizes), max(times), is_left)


def _paths(kind):
    where = root() / kind
    # A link points outside the cache
    if where.is_symlink() or not where.is_dir():
        return []
    return list(where.iterdir())


def _size_and_time(path):
    """Size in bytes and last change of a file or a folder."""
    size, changed = 0, 0
    with contextlib.suppress(FileNotFoundError):    # removed meanwhile
        found = path.lstat()
        size, changed = found.st_size, found.st_mtime
        if stat.S_ISDIR(found.st_mode):
            size = 0
            for inner in path.iterdir():
                more, time_of_inner = _size_and_time(inner)
                size, changed = size + more, max(changed, time_of_inner)
    return size, changed


def sweep(kind, now=None):
    """Remove leftovers of killed processes; returns the bytes freed."""
    now = time.time() if now is None else now
    return sum(_remove(entry) for entry in entries([kind])
               if entry.is_left and now - entry.used > LEFT_SECONDS)


def clear(kind, older_than=0):
    """Remove the entries of a kind; returns (number, bytes freed).

    older_than: keep entries that were used within this number of days.
    Removes nothing and raises BlockingIOError if another process is writing an
    entry of this kind.
    """
    now = time.time()
    with contextlib.ExitStack() as stack:
        for entry in entries([kind]):
            if entry.is_left and entry.paths[0].suffix == '.lock':
                stack.enter_context(locked(entry.paths[0], wait=False))
        old = [entry for entry in entries([kind]) if not entry.is_left
               and now - entry.used >= older_than * 86400]
        freed = sum(map(_remove, old))
        return len(old), freed + sweep(kind, now)


def _remove(entry):
    for path in entry.paths:
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            if path.suffix == '.lock':
                with locked(path, wait=False):
                    pass        # taking the lock removes its file
            elif path.is_dir() and not path.is_symlink():
                # Rename it first: others never see a half-removed folder
                gone = path.with_name(f'.{secrets.token_hex(8)}.part')
                path.rename(gone)
                shutil.rmtree(gone)
            else:
                path.unlink()
    return entry.size


def size():
    """Total size of the cache in bytes."""
    return sum(entry.size for entry in entries())


def megabytes(number):
    return f'{number / 1e6:.1f} MB'
