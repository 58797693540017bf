"""Write files and folders atomically, hold locks, create run folders."""
import contextlib
import errno
import itertools
import json
import os
import secrets
import shutil
import time
import types
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

#: Default parent of run folders.
RUNS = Path('runs')

#: A file in the folder of each unfinished run. The run's process locks the
#: file, and the system releases the lock however the process ends.
UNFINISHED = 'unfinished'


@contextlib.contextmanager
def replacing(path, overwrite=True):
    """Yield the path of a temporary file; rename it to `path` on success.

    On failure, `path` is unchanged. If `path` is a device or a pipe, this
    yields `path` itself. overwrite: if false, raise FileExistsError instead of
    replacing a file.
    """
    path = Path(path)
    is_device_or_pipe = path.exists() and not (path.is_file() or path.is_dir())
    if is_device_or_pipe:
        yield path
        return
    temporary = None
    try:
        temporary = _create_temporary(path)
        yield temporary
        if overwrite:
            os.replace(temporary, path)
        else:
            _rename_without_overwriting(temporary, path)
    except OSError as error:
        is_about_temporary = error.filename in (None, str(temporary))
        if error.errno is not None and is_about_temporary:
            _set_file_name(error, path)
        raise
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


def _rename_without_overwriting(temporary, path):
    """Rename a file; raise FileExistsError if `path` exists.

    The caller has to remove `temporary`, which may remain as a hard link.
    """
    try:
        os.link(temporary, path)    # unlike os.replace, it never overwrites
        return
    except FileExistsError:
        raise
    except OSError:     # for example, a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST),
                                  str(path)) from None
    os.replace(temporary, path)


def _set_file_name(error, path):
    """Let an OSError name `path` instead of a temporary file or no file."""
    error.filename = str(path)
    del error.filename2     # with filename2 = None, the message contains None


def _temporary_path(path):
    # The name is random, so that no other user can create a link there first,
    # and matches cache.TEMPORARY
    return path.with_name(f'.{path.name}.{secrets.token_hex(8)}.part')


def _create_temporary(path):
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    while True:
        temporary = _temporary_path(path)
        try:
            os.close(os.open(temporary, flags, 0o666))
        except FileExistsError:
            continue
        except OSError as error:
            error.filename = str(path)
            raise
        return temporary


@contextlib.contextmanager
def new_folder(path):
    """Yield the path of a temporary folder; rename it to `path` on success.

    Raises FileExistsError if `path` exists and is not an empty folder. On
    failure, the temporary folder and new parents of `path` are removed.
    """
    path = Path(os.path.abspath(path))
    if os.path.lexists(path) and not _is_empty_folder(path):
        raise FileExistsError(f'{path} exists already: choose another name')
    new_parents = missing_folders(path.parent)
    temporary = _temporary_path(path)
    is_renamed = False
    try:
        temporary.mkdir(parents=True)
        yield temporary
        os.rename(temporary, path)
        is_renamed = True
    except OSError as error:
        names = [str(name) for name in (error.filename, error.filename2)
                 if name is not None]
        is_about_new_folder = not names or any(
            name.startswith(str(temporary)) or Path(name) in new_parents
            for name in names)
        if error.errno is not None and is_about_new_folder:
            _set_file_name(error, path)
        raise
    finally:
        if not is_renamed:
            shutil.rmtree(temporary, ignore_errors=True)
            remove_empty(new_parents)


def _is_empty_folder(path):
    return (path.is_dir() and not path.is_symlink()
            and next(path.iterdir(), None) is None)


def write_text(path, text):
    """Write `text` to `path` as UTF-8, atomically."""
    with replacing(path) as temporary:
        # Lone surrogates, of a file name that Python could not decode, become
        # escapes such as \udce9. A JSON parser reads the same surrogates
        temporary.write_text(text, encoding='utf-8',
                             errors='backslashreplace')


def line_feeds(file):
    """Wrap a text file for csv.writer, so that rows end with LF.

    csv.writer itself ends rows with CR LF: with other line ends, it does not
    quote a cell with a lone CR before Python 3.13.
    """
    return types.SimpleNamespace(
        write=lambda row: file.write(f'{row[:-2]}\n'))


def parse_json(text):
    """Parse JSON; raise ValueError for any other text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError('its brackets are nested too deeply') from None


def read_json(path):
    """Parse a JSON file; raise OSError or, if it is not JSON, ValueError."""
    return parse_json(Path(path).read_text('utf-8'))


class MXNetPath(str):
    """A path to pass to MXNet, which calls encode('utf-8') of each path.

    If the file system has another encoding, or the name is not valid UTF-8,
    str.encode would fail or return the name of another file.
    """

    def encode(self, *_):
        return os.fsencode(str(self))


@contextlib.contextmanager
def locked(path, wait=True, before_wait=None):
    """Hold an exclusive lock against other threads and other processes.

    path: the lock file, which is created on entry and removed on exit.
    wait: if false, raise BlockingIOError instead of waiting for another
    holder. before_wait: a function to call before waiting. Yields True if the
    lock is held, and False if locking is impossible, for example because the
    folder is not writable.
    """
    try:
        lock = _acquire_lock(path, wait, before_wait)
    except BlockingIOError:
        raise
    except OSError:
        lock = None
    try:
        yield lock is not None
    finally:
        if lock is not None:
            # Remove the file before unlocking it, so that a waiting process
            # finds the file gone and locks a new one
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(lock)


def _acquire_lock(path, wait, before_wait):
    """Return a descriptor of the locked file; None if Python lacks `fcntl`."""
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
                if before_wait is not None:
                    before_wait()
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:     # a file system without locks
                os.unlink(path)
                raise
            if _is_same_file(lock, path):
                return lock
        except BaseException:
            os.close(lock)
            raise
        # The previous holder has removed this file: lock the new one
        os.close(lock)


def _is_same_file(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor),
                                os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def missing_folders(path):
    """The folders that path.mkdir(parents=True) would make, deepest first."""
    path = Path(path)
    return [folder for folder in (path, *path.parents)
            if not folder.exists()]


def remove_empty(folders):
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _run_paths(parent):
    """Yield PARENT/TIME, PARENT/TIME-2, PARENT/TIME-3 and so on."""
    path = Path(parent, time.strftime('%Y-%m-%d_%H-%M-%S'))
    yield path
    for number in itertools.count(2):
        yield path.with_name(f'{path.name}-{number}')


def new_run_folder(parent=RUNS):
    """Create a folder in `parent`, named by the time; return its path."""
    Path(parent).mkdir(parents=True, exist_ok=True)
    for path in _run_paths(parent):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path


def free_run_path(parent=RUNS):
    """The path that `new_run_folder` would create now."""
    return next(path for path in _run_paths(parent)
                if not os.path.lexists(path))


def file_digest(path, hasher):
    """The hexadecimal digest of a file; hasher: for example hashlib.sha1()."""
    with open(path, 'rb') as file:
        for chunk in iter(lambda: file.read(1 << 20), b''):
            hasher.update(chunk)
    return hasher.hexdigest()


def is_run(path):
    """True if `path` is the folder of a finished or an unfinished run."""
    path = Path(path)
    if any((path / name).exists() for name in (
            'model.params', 'checkpoints', UNFINISHED, 'losses.csv')):
        return True
    try:
        # The config.json of a released model does not have this key
        return 'model' in read_json(path / 'config.json')
    except (OSError, ValueError, TypeError):
        return False
