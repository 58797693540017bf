"""Find the cache folder, protect it from other users, and remove its entries.

This module does not import MXNet, because `d2lbert doctor` has to work where
MXNet does not.
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

#: {kind of cache entries: pattern of names}. Two names belong to one entry if
#: the pattern's first group matches the same text in both. Only files and
#: folders whose names match one of these patterns or TEMPORARY are ever
#: removed, since D2LBERT_CACHE may point at any folder.
KINDS = {
    'kernels': r'(\w+-[0-9a-f]{16}\.so)(?:\.sha256|\.products)?',
    'tokens': r'([0-9a-f]{32}\.npz|unchanged\.json)',
    'corpora': r'([0-9a-f]{32})',
    # archives of hub.DATA_HUB, and the folders in these archives
    'data': r'(wikitext-2(?:-v1\.zip)?|'
            r'(?:snli_1\.0|bert\.base|bert\.small)(?:\.zip)?)',
    'wheels': r'(mxnet[\w.+-]*\.whl)',
}
#: Kinds of entries that can be made again without the network.
RENEWABLE = 'kernels', 'tokens', 'corpora'

#: Pattern of the names of temporary files and folders, and of lock files.
TEMPORARY = (r'\..+\.part|[0-9a-f]{32}\.\w+\.part|\.(?:fetch|unpack)-.+|'
             r'(?:build|\w+-[0-9a-f]{16}|[0-9a-f]{32})\.lock')
#: Temporary files older than this count as left over from killed processes.
LEFTOVER_SECONDS = 3600


class CacheError(OSError):
    """A cache folder cannot be used; the message is one sentence."""


# Location

def enabled():
    """False if D2LBERT_CACHE=off; then texts and wheels are not cached."""
    return os.environ.get('D2LBERT_CACHE', '').lower() != 'off'


def _configured_root():
    """$D2LBERT_CACHE, or '' if this variable is off or unset."""
    return os.environ.get('D2LBERT_CACHE', '') if enabled() else ''


def root():
    """The absolute path of the cache folder, which may not exist yet.

    It is $D2LBERT_CACHE, unless this variable is empty or off. The default is
    the folder d2lbert in $XDG_CACHE_HOME or else in ~/.cache, or, if this is
    not usable, a private temporary folder. Raises CacheError if D2LBERT_CACHE
    begins with ~ and no home folder is known.
    """
    setting = _configured_root()
    if setting:
        path = os.path.expanduser(setting)
        if path.startswith('~'):
            raise CacheError(f'D2LBERT_CACHE is {setting!r}, and there is no '
                             f'home folder {setting.split("/")[0]}: set '
                             'D2LBERT_CACHE to an absolute path')
        return _absolute(path)
    return _default_root() or _temporary_root()


def is_root_temporary():
    return not _configured_root() and _default_root() is None


@functools.lru_cache(maxsize=None)
def _absolute(path):
    """The absolute path, cached so that a later chdir does not change it."""
    return Path(os.path.abspath(path))


def _default_root():
    """The default root; None if it cannot be created or a parent is unsafe."""
    base = os.path.expanduser(os.environ.get('XDG_CACHE_HOME') or '')
    if not os.path.isabs(base):     # XDG specifies to ignore a relative path
        base = os.path.join(os.path.expanduser('~'), '.cache')
    default = Path(base, 'd2lbert')
    if not default.is_absolute():
        return None     # no HOME, and no user name for this user id
    existing = next(path for path in (default, *default.parents)
                    if os.path.lexists(path))
    if existing != default and not os.access(existing, os.W_OK | os.X_OK):
        return None     # for example, in a container with the home folder /
    if _unsafe_parent(default) is not None:
        return None     # for example, the user root in another user's home
    return default


@functools.lru_cache(maxsize=None)
def _temporary_root():
    """The user's private folder in the temporary directory."""
    path = Path(tempfile.gettempdir(), f'd2lbert-{os.geteuid()}')
    try:
        if path.is_symlink():
            raise CacheError
        return private_folder(path)
    except CacheError:      # another user may have taken this name
        path = Path(tempfile.mkdtemp(prefix='d2lbert-'))
        atexit.register(shutil.rmtree, path, ignore_errors=True)
        return path


def set_matplotlib_folder():
    """Let matplotlib use a temporary folder if there is no home folder."""
    with contextlib.suppress(OSError):
        if not os.path.isabs(os.path.expanduser('~')):
            os.environ.setdefault('MPLCONFIGDIR',
                                  str(_temporary_root() / 'matplotlib'))


# Ownership

def folder(kind):
    """Return the cache folder of a kind; create it if it is missing.

    Leftovers in it are removed. Raises CacheError as `root` and
    `private_folder` do.
    """
    path = private_folder(root() / kind)
    with contextlib.suppress(OSError):
        remove_leftovers(kind)
    return path


def private_folder(path):
    """Return the folder `path`; if it is missing, create it with mode 700.

    If this user owns the folder, other users lose the right to write to it.
    Raises CacheError if the folder cannot be created, or if any user except
    the superuser and this user may write to it or replace it.
    """
    path = Path(path)
    try:
        _make_folders(path)
        status = path.stat()
        if status.st_uid == os.geteuid() and status.st_mode & 0o022:
            # A folder made with the common umask 002 lets a group write
            path.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
            status = path.stat()
    except OSError as error:
        raise CacheError(
            f'the cache folder {path} cannot be created or read '
            f'({error.strerror}): set D2LBERT_CACHE to a folder that you can '
            'write') from None
    unsafe = _unsafe_parent(path)
    if unsafe is not None:
        raise CacheError(
            f'the cache folder {path} is not trusted, because {unsafe} '
            'belongs to another user, or others can write to it: set '
            'D2LBERT_CACHE to a folder of your own')
    if not is_trusted(status):
        raise CacheError(
            f'the cache folder {path} belongs to another user, or others can '
            'write to it, so nothing in it is trusted: set D2LBERT_CACHE to '
            'a folder of your own')
    return path


def _make_folders(path):
    """Create a folder and its missing parents, each with mode 700."""
    if not path.is_dir():
        _make_folders(path.parent)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:     # another process made a folder or a file
            if not path.is_dir():
                raise


def is_trusted(status):
    """True if a stat result lets only the superuser and this user write."""
    return (status.st_uid in (0, os.geteuid())
            and not status.st_mode & 0o022)


def is_trusted_path(path):
    """True if only the superuser and this user can have written to `path`.

    All files in a folder are checked, too, and the parents of `path`, since a
    user who can write to a parent can replace `path`. Linux gives every link
    mode 777, so this is False for a folder with a link in it.
    """
    path = Path(path)
    try:
        return (_unsafe_parent(path) is None and is_trusted(path.stat())
                and all(is_trusted(inner.lstat())
                        for inner in path.rglob('*')))
    except OSError:
        return False


def make_private(path):
    """Forbid other users to write to `path` and, in a folder, to its files."""
    path = Path(path)
    for item in (path, *path.rglob('*')):
        item.chmod(stat.S_IMODE(item.stat().st_mode) & ~0o022)


def _unsafe_parent(path):
    """The first parent or link of `path` that others can change, else None."""
    # In a container with a single user, the superuser's files, / among them,
    # may have another owner
    trusted_owners = {0, os.geteuid(), os.stat('/').st_uid}
    for parent, status in _parents_and_links(path):
        mode = status.st_mode
        if status.st_uid not in trusted_owners:
            return parent
        others_can_write = mode & 0o002 or (
            mode & 0o020 and not _is_own_group(status.st_gid))
        # In a sticky folder, like /tmp, users can replace only their own files
        is_sticky = mode & stat.S_ISVTX
        if stat.S_ISDIR(mode) and others_can_write and not is_sticky:
            return parent
    return None


def _parents_and_links(path):
    """Yield (path, os.lstat result) of each parent folder and link of `path`.

    The first is /. The iteration ends at the first missing folder. `path`
    itself is yielded only if it is a link.
    """
    current, num_links = '/', 0
    name_stack = [*reversed(Path(os.path.abspath(path)).parts[1:])]
    yield current, os.lstat(current)
    while name_stack:
        name = name_stack.pop()
        current, previous = os.path.join(current, name), current
        if name == '..':        # in the target of a link
            current = os.path.dirname(previous)
            continue
        try:
            status = os.lstat(current)
        except OSError:
            return
        if stat.S_ISLNK(status.st_mode):
            yield current, status
            num_links += 1
            if num_links > 40:      # probably a loop; Linux has the same limit
                return
            target = Path(os.readlink(current))
            if target.is_absolute():
                current, names = '/', target.parts[1:]
            else:
                current, names = previous, target.parts
            name_stack += reversed(names)
        elif name_stack:
            yield current, status


def _is_own_group(group_id):
    """True for the user's private primary group, which has no other member.

    Many systems give each user such a group, with the user's name.
    """
    if grp is None:
        return False
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except KeyError:
        return False
    return (user.pw_gid == group_id and group.gr_name == user.pw_name
            and set(group.gr_mem) <= {user.pw_name})


# Lifetime

class Entry(NamedTuple):
    """A cache entry, or a temporary file or folder (see `TEMPORARY`)."""

    kind: str
    paths: Tuple[Path, ...]
    size: int           # bytes
    last_used: float    # seconds since 1970
    is_temporary: bool


def mark_used(path):
    """Set the last use of a cache entry to now, if `path` is in the cache."""
    with contextlib.suppress(OSError, ValueError):
        Path(path).relative_to(root())      # ValueError: outside the cache
        os.utime(path)


def entries(kinds=tuple(KINDS)):
    """Yield each `Entry` of the kinds. Links are not followed."""
    for kind in kinds:
        found = {}      # {(name of the entry, is_temporary): paths}
        for path in _paths_of_kind(kind):
            match = re.fullmatch(KINDS[kind], path.name)
            if match:
                found.setdefault((match.group(1), False), []).append(path)
            elif re.fullmatch(TEMPORARY, path.name):
                found.setdefault((path.name, True), []).append(path)
        for (_, is_temporary), paths in sorted(found.items()):
            sizes, mtimes = zip(*map(_size_and_mtime, paths))
            yield Entry(kind, tuple(paths), sum(sizes), max(mtimes),
                        is_temporary)


def _paths_of_kind(kind):
    parent = root() / kind
    # A link may point outside the cache, so it is ignored
    if parent.is_symlink() or not parent.is_dir():
        return []
    return list(parent.iterdir())


def _size_and_mtime(path):
    """(size in bytes, time of the last change) of a file or a whole folder."""
    size, mtime = 0, 0
    with contextlib.suppress(FileNotFoundError):    # removed meanwhile
        status = path.lstat()
        size, mtime = status.st_size, status.st_mtime
        if stat.S_ISDIR(status.st_mode):
            size = 0
            for inner in path.iterdir():
                inner_size, inner_mtime = _size_and_mtime(inner)
                size, mtime = size + inner_size, max(mtime, inner_mtime)
    return size, mtime


def remove_leftovers(kind, now=None):
    """Remove temporary files older than LEFTOVER_SECONDS; return bytes freed.

    now: seconds since 1970; None for the current time.
    """
    now = time.time() if now is None else now
    return sum(_remove(entry) for entry in entries([kind])
               if entry.is_temporary
               and now - entry.last_used > LEFTOVER_SECONDS)


def clear(kind, older_than=0):
    """Remove entries and leftovers of a kind.

    Returns (number of removed entries, bytes freed). older_than: the minimum
    number of days since the last use. Raises BlockingIOError, and removes no
    entry, if another process holds a lock in the folder to write an entry. If
    a process creates a lock later, its entry may be removed. This loses only
    time: the next process makes the entry again.
    """
    now = time.time()
    with contextlib.ExitStack() as stack:
        for entry in entries([kind]):
            if entry.is_temporary and entry.paths[0].suffix == '.lock':
                stack.enter_context(locked(entry.paths[0], wait=False))
        old = [entry for entry in entries([kind]) if not entry.is_temporary
               and now - entry.last_used >= older_than * 86400]
        freed = sum(map(_remove, old))
        return len(old), freed + remove_leftovers(kind, now)


def _remove(entry):
    """Remove an entry, except locks that are held; return the entry's size."""
    for path in entry.paths:
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            if path.suffix == '.lock':
                with locked(path, wait=False):
                    pass        # on exit, `locked` removes the file
            elif path.is_dir() and not path.is_symlink():
                # Rename it first: no process sees a half-removed folder
                temporary = path.with_name(f'.{secrets.token_hex(8)}.part')
                path.rename(temporary)
                shutil.rmtree(temporary)
            else:
                path.unlink()
    return entry.size


def size():
    """Total size of the cache in bytes."""
    return sum(entry.size for entry in entries())


def megabytes(num_bytes):
    """The text for a number of bytes, such as '12.3 MB'."""
    return f'{num_bytes / 1e6:.1f} MB'
