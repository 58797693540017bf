"""What d2lbert keeps between runs: where, whose it may be, and how long.

It works where MXNet does not, for `d2lbert doctor`.
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

#: The kinds of what is kept, and how the files and folders of each are
#: named; what stands in the first group is one entry. Nothing with another
#: name is ever removed, since D2LBERT_CACHE can name any folder.
KINDS = {
    'kernels': r'(\w+-[0-9a-f]{16}\.so)(?:\.sha256|\.products)?',
    'tokens': r'([0-9a-f]{32}\.npz|unchanged\.json)',
    'corpora': r'([0-9a-f]{32})',
    # archives that hub.DATA_HUB names, and the folders that are in them
    'data': r'(wikitext-2(?:-v1\.zip)?|'
            r'(?:snli_1\.0|bert\.base|bert\.small)(?:\.zip)?)',
    'wheels': r'(mxnet[\w.+-]*\.whl)',
}
#: What is made again when it is needed, without the network
RENEWABLE = 'kernels', 'tokens', 'corpora'

#: What somebody who was killed left behind, or still works on
LEFT = (r'\..+\.part|[0-9a-f]{32}\.\w+\.part|\.(?:fetch|unpack)-.+|'
        r'(?:build|\w+-[0-9a-f]{16}|[0-9a-f]{32})\.lock')
#: What has not been touched for so long has nobody who works on it
LEFT_SECONDS = 3600


class CacheError(OSError):
    """Why there is no folder to keep things in, in one sentence."""


# Where

def enabled():
    """Whether results that can be made again may be kept for later runs."""
    return os.environ.get('D2LBERT_CACHE', '').lower() != 'off'


def root():
    """The folder that things are kept in: absolute, perhaps not there yet.

    $D2LBERT_CACHE, else $XDG_CACHE_HOME/d2lbert, else ~/.cache/d2lbert; or
    a private one for temporary files where that cannot be (`is_temporary`).
    D2LBERT_CACHE=off stops only what can be made again from being kept
    (`enabled`). A relative D2LBERT_CACHE starts from where this process was
    when it first asked; a relative XDG_CACHE_HOME is ignored, as its
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
    """Whether `root` stands in for a home folder, and may not last."""
    named = os.environ.get('D2LBERT_CACHE')
    return not (named and enabled()) and _usual() is None


@functools.lru_cache(maxsize=None)
def _absolute(path):
    """The same for as long as the process lives, wherever it goes."""
    return Path(os.path.abspath(path))


def _usual():
    """The user's own folder, or None where there can be none."""
    base = os.path.expanduser(os.environ.get('XDG_CACHE_HOME') or '')
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser('~'), '.cache')
    folder = Path(base, 'd2lbert')
    if not folder.is_absolute():
        return None     # no HOME, and nobody of this number has a name
    # A container gives a user without a name the home folder /
    above = next(path for path in (folder, *folder.parents)
                 if os.path.lexists(path))
    if above != folder and not os.access(above, os.W_OK | os.X_OK):
        return None
    if _open_to_others(folder) is not None:
        return None     # a container's root in the home folder of another
    return folder


@functools.lru_cache(maxsize=None)
def _temporary():
    """The user's own folder among the temporary files."""
    folder = Path(tempfile.gettempdir(), f'd2lbert-{os.geteuid()}')
    try:
        if folder.is_symlink():
            raise CacheError
        return private(folder)
    except CacheError:      # another user was quicker
        folder = Path(tempfile.mkdtemp(prefix='d2lbert-'))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder


def stand_in_for_home():
    """Let matplotlib, which asks for a home folder, do without one."""
    with contextlib.suppress(OSError):
        if not os.path.isabs(os.path.expanduser('~')):
            os.environ.setdefault('MPLCONFIGDIR',
                                  str(_temporary() / 'matplotlib'))


# Whose

def folder(kind):
    """The `private` folder of a kind, which is made if it is missing."""
    path = private(root() / kind)
    with contextlib.suppress(OSError):
        sweep(kind)
    return path


def private(path):
    """Make the folder `path` if it is missing, for this user alone.

    Returns it. Raises CacheError if it cannot be made, or if another user
    (other than root) may write to it or put another folder in its place.
    """
    path = Path(path)
    try:
        _make(path)
        found = path.stat()
        if found.st_uid == os.geteuid() and found.st_mode & 0o022:
            # A common umask has let the user's group write, too
            path.chmod(stat.S_IMODE(found.st_mode) & ~0o022)
            found = path.stat()
    except OSError as error:
        raise CacheError(
            f'the cache folder {path} cannot be made or read '
            f'({error.strerror}): set D2LBERT_CACHE to a folder that you can '
            'write') from None
    above = _open_to_others(path)
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
        except FileExistsError:     # made meanwhile, or a file
            if not path.is_dir():
                raise


def is_trusted(found):
    """Whether only root and this user may write, by an os.stat result."""
    return (found.st_uid in (0, os.geteuid())
            and not found.st_mode & 0o022)


def is_ours(path):
    """True if only root and this user can have written what is at `path`.

    Of a folder, all that is in it. The folders above must not let others
    put something else in its place.
    """
    path = Path(path)
    try:
        return (_open_to_others(path) is None and is_trusted(path.stat())
                and all(is_trusted(inner.lstat())
                        for inner in path.rglob('*')))
    except OSError:
        return False


def make_private(path):
    """Let only this user write to a file, or to a folder and all in it."""
    path = Path(path)
    for one in (path, *path.rglob('*')):
        one.chmod(stat.S_IMODE(one.stat().st_mode) & ~0o022)


def _open_to_others(path):
    """The folder or link above `path` that others can exchange, or None.

    A sticky folder, like /tmp, lets each user exchange their own alone.
    Where the system has no number for root, as in a container of one user,
    root is whoever owns the root folder.
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
    """Each folder and link that leads to `path`, and its os.lstat result.

    As far as it is there.
    """
    here, links = '/', 0
    left = [*reversed(Path(os.path.abspath(path)).parts[1:])]
    yield here, os.lstat(here)
    while left:
        part = left.pop()
        here, before = os.path.join(here, part), here
        if part == '..':        # of a link
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
                return          # a circle, which the system refuses
            target = Path(os.readlink(here))
            left += reversed(target.parts[target.is_absolute():])
            here = '/' if target.is_absolute() else before
        elif left:
            yield here, found


def _is_own_group(number):
    """True for a group that has no other member than this user.

    Many systems give each user such a group, which a umask of 002 then lets
    write.
    """
    if grp is None:
        return False
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return (user.pw_gid == number and group.gr_name == user.pw_name
            and set(group.gr_mem) <= {user.pw_name})


# How long

class Entry(NamedTuple):
    """What is kept under one name."""

    kind: str
    paths: Tuple[Path, ...]
    size: int       # bytes
    used: float     # when last, in seconds since 1970
    is_left: bool   # of no use: somebody who was killed left it behind


def used(path):
    """Note that something in the cache was used just now."""
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
    # A link leads out of the cache
    if where.is_symlink() or not where.is_dir():
        return []
    return list(where.iterdir())


def _size_and_time(path):
    """Bytes and last change of a file, or of all that is in a folder."""
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
    """Remove what was left behind; returns the bytes that this freed."""
    now = time.time() if now is None else now
    return sum(_remove(entry) for entry in entries([kind])
               if entry.is_left and now - entry.used > LEFT_SECONDS)


def clear(kind, older_than=0):
    """Remove a kind; returns (how many, bytes freed).

    older_than: days since their last use; what was used later stays.
    Raises BlockingIOError, and removes nothing, while another process is
    making something of this kind.
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
                    pass        # which removes it
            elif path.is_dir() and not path.is_symlink():
                # At once, for whoever looks meanwhile
                gone = path.with_name(f'.{secrets.token_hex(8)}.part')
                path.rename(gone)
                shutil.rmtree(gone)
            else:
                path.unlink()
    return entry.size


def size():
    """Bytes of all that is kept."""
    return sum(entry.size for entry in entries())


def megabytes(number):
    return f'{number / 1e6:.1f} MB'
