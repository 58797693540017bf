"""Files that appear whole or not at all."""
import contextlib
import itertools
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


def run_names(parent='runs'):
    """Names for the folder of a run that begins now, without end."""
    path = Path(parent, time.strftime('%Y-%m-%d_%H-%M-%S'))
    yield path
    for copy in itertools.count(2):
        yield path.with_name(f'{path.name}-{copy}')


def new_run_folder(parent='runs'):
    """Make a folder for a run that begins now, which no other run gets."""
    Path(parent).mkdir(parents=True, exist_ok=True)
    for path in run_names(parent):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path


def free_run_name(parent='runs'):
    """The name that the next run folder would get; not yet made."""
    return next(path for path in run_names(parent)
                if not os.path.lexists(path))
