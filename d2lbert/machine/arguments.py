"""Checks of arguments, and of files that the flags of a command name."""
import contextlib
import operator
from pathlib import Path

from d2lbert.machine.files import replacing


class UsageError(ValueError):
    """Arguments that cannot be, whatever the files and models hold."""


@contextlib.contextmanager
def usage():
    """Let errors of values and types be `UsageError`s."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None


@contextlib.contextmanager
def failures_of(flag, path, done):
    """Say OSErrors as '--out page.html cannot be written: ...', ValueErrors.

    done: what could not be done with the file, 'read' or 'written'.
    """
    try:
        yield
    except BrokenPipeError:
        raise       # the reader of a pipe left: no mistake of the user
    except OSError as error:
        raise ValueError(f'{flag} {path} cannot be {done}: {error.strerror}'
                         ) from None


def check_place(out, example, flag='--out'):
    """Refuse an --out that is no place for a file, before any computing.

    example: a name that the file might have.
    """
    path = Path(out)
    if path.is_dir():
        raise ValueError(f'{flag} {out} is a folder: name a file, as '
                         f'{path / example}')
    if not path.absolute().parent.is_dir():
        raise ValueError(f'{flag} {out} cannot be written: there is no folder '
                         f'{path.parent}')


def check_out(out, force, example, reads=(), flag='--out'):
    """Refuse what --out cannot be, before anything is computed for it.

    reads: paths of the files, and of the folders of files, that the command
    reads. It never writes over any of them.
    """
    check_place(out, example, flag)
    if not Path(out).is_file():
        return
    source = _same_file(out, reads)
    if source is not None:
        raise ValueError(f'{flag} {out} is the file {source}, which this '
                         'command reads: choose another name')
    if not force:
        raise FileExistsError(f'{flag} {out} exists already: choose another '
                              'name, or give --force to replace it')


def _same_file(out, reads):
    """The file among `reads` that `out` is by device and inode, or None."""
    for path in map(Path, reads):
        files = path.rglob('*') if path.is_dir() else [path]
        for file in files:
            with contextlib.suppress(OSError):
                if file.is_file() and file.samefile(out):
                    return file
    return None


@contextlib.contextmanager
def writing(out, force, flag='--out'):
    """Yield a temporary file that becomes --out; ValueError if it cannot.

    Without force, a file that has come to `out` since `check_out` stays.
    """
    part = None
    try:
        with replacing(out, overwrite=force) as part:
            yield part
    except BrokenPipeError:
        raise
    except OSError as error:
        # Other files that are read meanwhile have names of their own
        if error.errno is None or error.filename not in (
                None, str(part), str(out)):
            raise
        raise ValueError(f'{flag} {out} cannot be written: {error.strerror}'
                         ) from None


# Arguments of functions

def check_model(net, tokenizer):
    """Raise TypeError that names the argument which is no net or tokenizer.
    """
    is_net, is_tokenizer = hasattr(net, 'encoder'), hasattr(
        tokenizer, 'encode_batch')
    if is_net and is_tokenizer:
        return
    if hasattr(net, 'encode_batch') and hasattr(tokenizer, 'encoder'):
        raise TypeError('net and tokenizer are swapped: give the net first')
    name, given = ('net', net) if not is_net else ('tokenizer', tokenizer)
    raise TypeError(f'{name} must be a {name} as load_model gives it, not '
                    f'{short(given)}')


def whole_number(name, value):
    """The value as an int; TypeError names the argument if it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f'{name} must be a whole number, not {short(value)}'
                        ) from None


def short(value):
    """An object in a few words, for an error."""
    text = repr(value)
    return text if len(text) <= 40 and '\n' not in text else (
        f'a {type(value).__name__}')
