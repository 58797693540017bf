"""Files that appear whole or not at all, and locks between processes."""
import contextlib
import errno
import itertools
import json
import os
import secrets
import shutil
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

#: Where runs go that are given no folder.
RUNS = Path('runs')


@contextlib.contextmanager
def replacing(path, overwrite=True):
    """Yield a temporary path beside `path`; rename it when all went well.

    With overwrite=False, raises FileExistsError if `path` exists by then.
    The file of that name is there already, empty: it was made under a name
    that nobody can foresee, and not through a link that somebody put there.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path      # a device or a pipe is written to, never replaced
        return
    part = None
    try:
        part = _new_part(path)
        yield part
        if overwrite:
            os.replace(part, path)
        else:
            _rename_new(part, path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(part)):
            _name_alone(error, path)
        raise
    finally:
        if part is not None:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()


def _rename_new(part, path):
    """Rename `part` to `path`; raises FileExistsError if `path` exists."""
    try:
        os.link(part, path)
        return
    except FileExistsError:
        raise
    except OSError:     # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST),
                                  str(path)) from None
    os.replace(part, path)


def _name_alone(error, path):
    """Let an OSError name `path`, and no other file.

    A full disk names none, and nobody knows the name of a part.
    """
    error.filename = str(path)
    del error.filename2     # None would be told as a name


def _new_part(path):
    """Make an empty file beside `path`, with the mode of any new file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    while True:
        part = path.with_name(f'.{path.name}.{secrets.token_hex(8)}.part')
        try:
            os.close(os.open(part, flags, 0o666))
        except FileExistsError:
            continue
        except OSError as error:
            error.filename = str(path)
            raise
        return part


@contextlib.contextmanager
def new_folder(path):
    """Yield a new folder beside `path`, which gets that name in the end.

    Raises FileExistsError where there is something but an empty folder. If
    anything goes wrong, nothing is left of it.
    """
    path = Path(os.path.abspath(path))
    if os.path.lexists(path) and not (
            path.is_dir() and not path.is_symlink()
            and next(path.iterdir(), None) is None):
        raise FileExistsError(f'{path} exists already: choose another name')
    above = missing(path.parent)
    part = path.with_name(f'.{path.name}.{secrets.token_hex(8)}.part')
    done = False
    try:
        part.mkdir(parents=True)
        yield part
        os.rename(part, path)
        done = True
    except OSError as error:
        if error.errno is not None:
            _name_alone(error, path)
        raise
    finally:
        if not done:
            shutil.rmtree(part, ignore_errors=True)
            remove_empty(above)


def write_text(path, text):
    """Write `text` to `path` as UTF-8, whole or not at all.

    A file name's bytes that are no text here (lone surrogates in Python)
    are written as backslash escapes, which JSON reads back.
    """
    with replacing(path) as part:
        part.write_text(text, encoding='utf-8', errors='backslashreplace')


def parse_json(text):
    """The object that a text of JSON describes; ValueError for any other.

    Python raises RecursionError for brackets in thousands of brackets.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError('its brackets are nested too deeply') from None


def read_json(path):
    """The object in a JSON file; raises OSError and ValueError."""
    return parse_json(Path(path).read_text('utf-8'))


class Name(str):
    """The name of a file, for MXNet: it encodes as the file system does.

    MXNet encodes every name as UTF-8, which fails, or names another file,
    where the locale is not UTF-8 or the name is not.
    """

    def encode(self, *_):
        return os.fsencode(str(self))


@contextlib.contextmanager
def locked(path, wait=True, waiting=None):
    """Keep others out, processes and threads, who lock the same path.

    Yields True; or False where there can be no lock: on file systems that
    have none, in folders that cannot be written. The file at `path` is made
    for the lock and removed after it. waiting: called before others are
    waited for. Raises BlockingIOError if wait is false and it is held.
    """
    try:
        lock = _lock(path, wait, waiting)
    except BlockingIOError:
        raise
    except OSError:
        lock = None
        with contextlib.suppress(OSError):
            os.unlink(path)     # made, and then not to be locked
    try:
        yield lock is not None
    finally:
        if lock is not None:
            # While it is held: whoever waits for it sees that it is gone
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(lock)


def _lock(path, wait, waiting):
    """The descriptor of a lock that is held, or None without locks."""
    if fcntl is None:
        return None
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise
                if waiting is not None:
                    waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_at(lock, path):
                return lock
        except BaseException:
            os.close(lock)
            raise
        # The one before removed it: another file is the lock now
        os.close(lock)


def _is_at(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor),
                                os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def missing(path):
    """`path` and the folders above it, those that are not there: a list."""
    path = Path(path)
    return [folder for folder in (path, *path.parents)
            if not folder.exists()]


def remove_empty(folders):
    """Remove folders, one after the other, that are there and empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def run_names(parent=RUNS):
    """Names for the folder of a run that begins now, without end."""
    path = Path(parent, time.strftime('%Y-%m-%d_%H-%M-%S'))
    yield path
    for copy in itertools.count(2):
        yield path.with_name(f'{path.name}-{copy}')


def new_run_folder(parent=RUNS):
    """Make a folder for a run that begins now, which no other run gets."""
    Path(parent).mkdir(parents=True, exist_ok=True)
    for path in run_names(parent):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path


def free_run_name(parent=RUNS):
    """The name that the next run folder would get; not yet made."""
    return next(path for path in run_names(parent)
                if not os.path.lexists(path))


def file_digest(path, hasher):
    """What `hasher`, of hashlib, makes of a file's bytes, hexadecimal."""
    with open(path, 'rb') as f:
        for piece in iter(lambda: f.read(1 << 20), b''):
            hasher.update(piece)
    return hasher.hexdigest()
