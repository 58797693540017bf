"""Atomic writes of files and folders, locks between processes, run folders.
"""
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

#: Default parent of run folders.
RUNS = Path('runs')

#: A file that marks an unfinished run. The process that writes the run locks
#: it; the system releases the lock however the process ends.
UNFINISHED = 'unfinished'


@contextlib.contextmanager
def replacing(path, overwrite=True):
    """Yield a temporary path beside `path`; rename it to `path` on success.

    With overwrite=False, raises FileExistsError if `path` exists at the end.
    The temporary file already exists, empty. Its name is random, so that no
    other user can prepare a link under that name.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path      # a device or a pipe: write to it, do not replace it
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

    ENOSPC carries no file name, and users never see temporary names.
    """
    error.filename = str(path)
    del error.filename2     # set to None, it would be printed as a name


def _new_part(path):
    """Create an empty file beside `path`, with the default mode."""
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
    """Yield a temporary folder, which is renamed to `path` on success.

    Raises FileExistsError if `path` exists and is not an empty folder. On
    failure, the temporary folder is removed.
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
    """Write `text` to `path` as UTF-8, atomically.

    Lone surrogates, which Python uses for undecodable bytes of file names,
    are written as backslash escapes. JSON reads these back.
    """
    with replacing(path) as part:
        part.write_text(text, encoding='utf-8', errors='backslashreplace')


def parse_json(text):
    """Parse JSON; raise ValueError for any other text.

    For deeply nested brackets, Python itself raises RecursionError.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError('its brackets are nested too deeply') from None


def read_json(path):
    """Parse a JSON file; raises OSError and ValueError."""
    return parse_json(Path(path).read_text('utf-8'))


class Name(str):
    """A file name for MXNet, encoded as the file system encodes it.

    MXNet encodes every name as UTF-8. If the locale or the name is not
    UTF-8, this fails or names another file.
    """

    def encode(self, *_):
        return os.fsencode(str(self))


@contextlib.contextmanager
def locked(path, wait=True, waiting=None):
    """Hold a lock on `path` against other processes and threads.

    Yields True, or False if locking is impossible: on file systems without
    locks, and in folders that are not writable. The file at `path` is
    created for the lock and removed afterwards. waiting: a function that is
    called before waiting for another holder. Raises BlockingIOError if the
    lock is held and wait is false.
    """
    try:
        lock = _lock(path, wait, waiting)
    except BlockingIOError:
        raise
    except OSError:
        lock = None
        with contextlib.suppress(OSError):
            os.unlink(path)     # created, but the lock failed
    try:
        yield lock is not None
    finally:
        if lock is not None:
            # Remove it while it is locked, so that waiters see that it is gone
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(lock)


def _lock(path, wait, waiting):
    """Take the lock; return its descriptor, or None without lock support."""
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
        # The last holder removed this file: lock the new one
        os.close(lock)


def _is_at(descriptor, path):
    """True if `path` is still the file that `descriptor` has open."""
    try:
        return os.path.samestat(os.fstat(descriptor),
                                os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def missing(path):
    """The missing folders among `path` and its parents, deepest first."""
    path = Path(path)
    return [folder for folder in (path, *path.parents)
            if not folder.exists()]


def remove_empty(folders):
    """Remove the given folders in order; skip any that is not empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def run_names(parent=RUNS):
    """Yield names for the folder of a run that begins now, endlessly."""
    path = Path(parent, time.strftime('%Y-%m-%d_%H-%M-%S'))
    yield path
    for copy in itertools.count(2):
        yield path.with_name(f'{path.name}-{copy}')


def new_run_folder(parent=RUNS):
    """Create a new folder for a run that begins now; returns its path."""
    Path(parent).mkdir(parents=True, exist_ok=True)
    for path in run_names(parent):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path


def free_run_name(parent=RUNS):
    """The name that the next run folder would get; does not create it."""
    return next(path for path in run_names(parent)
                if not os.path.lexists(path))


def file_digest(path, hasher):
    """The hexadecimal digest of a file; hasher: an object of hashlib."""
    with open(path, 'rb') as f:
        for piece in iter(lambda: f.read(1 << 20), b''):
            hasher.update(piece)
    return hasher.hexdigest()


def is_run(path):
    """True if a folder holds a run, finished or not."""
    path = Path(path)
    if any((path / name).exists() for name in (
            'model.params', 'checkpoints', UNFINISHED, 'losses.csv')):
        return True
    try:
        return 'model' in read_json(path / 'config.json')
    except (OSError, ValueError, TypeError):
        return False
