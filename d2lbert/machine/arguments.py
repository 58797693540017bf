"""Files that a command's flags name: what is said where they fail."""
import contextlib
from pathlib import Path


@contextlib.contextmanager
def failures_of(flag, path, done):
    """Say OSErrors as '--out page.html cannot be written: ...', ValueErrors.

    done: what could not be done with the file, 'read' or 'written'.
    """
    try:
        yield
    except OSError as error:
        raise ValueError(f'{flag} {path} cannot be {done}: {error.strerror}'
                         ) from None


def check_place(out, example):
    """Refuse an --out that is no place for a file, before any computing.

    example: a name that the file might have.
    """
    path = Path(out)
    if path.is_dir():
        raise ValueError(f'--out {out} is a folder: name a file, as '
                         f'{path / example}')
    if not path.absolute().parent.is_dir():
        raise ValueError(f'--out {out} cannot be written: there is no folder '
                         f'{path.parent}')


def check_out(out, force, example):
    """Refuse what --out cannot be, before anything is computed for it."""
    check_place(out, example)
    if Path(out).is_file() and not force:
        raise FileExistsError(f'--out {out} exists already: choose another '
                              'name, or give --force to replace it')
