"""Files that appear whole or not at all."""
import contextlib
import os
import time
from pathlib import Path


@contextlib.contextmanager
def replacing(path):
    """Yield a temporary path beside `path`; rename it when all went well."""
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path      # a device or a pipe is written to, never replaced
        return
    part = path.with_name(f'.{path.name}.{os.getpid()}.part')
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)      # a full disk names no file
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def write_text(path, text):
    """Write `text` to `path` as UTF-8, whole or not at all."""
    with replacing(path) as part:
        part.write_text(text, encoding='utf-8')


def new_run_folder(parent='runs'):
    """The name of a folder for a run that begins now; not yet made."""
    return free_name(Path(parent, time.strftime('%Y-%m-%d_%H-%M-%S')))


def free_name(path):
    """`path`, or a like name beside it, where nothing has that name yet."""
    found, copy = path, 1
    while os.path.lexists(found):
        copy += 1
        found = path.with_name(f'{path.name}-{copy}')
    return found


def file_digest(path, hasher):
    """What `hasher`, of hashlib, makes of a file's bytes, hexadecimal."""
    with open(path, 'rb') as f:
        for piece in iter(lambda: f.read(1 << 20), b''):
            hasher.update(piece)
    return hasher.hexdigest()
