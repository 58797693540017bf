"""Check arguments, and the files that command-line flags name."""
import contextlib
import csv
import difflib
import functools
import json
import operator
import os
import re
from pathlib import Path
from typing import Union

from d2lbert.machine.files import replacing
from d2lbert.machine.terminal import warn

#: The path of a file or folder, for type hints.
PathLike = Union[str, os.PathLike]


class UsageError(ValueError):
    """Arguments that are invalid, whatever the files and models contain."""


def listed(choices):
    """Choices as text: 'a, b or c'."""
    *first, last = map(str, choices)
    return f'{", ".join(first)} or {last}' if first else last


def did_you_mean(word, choices):
    """': did you mean NEAREST?', or '' if no choice is near."""
    choices = {str(choice).lower(): choice for choice in choices}
    near = difflib.get_close_matches(str(word).lower(), choices, 1)
    if not near and len(str(word)) > 2:     # an abbreviation
        near = [name for name in choices if name.startswith(
            str(word).lower())][:1]
    return f': did you mean {choices[near[0]]}?' if near else ''


def renamed(**names):
    """A decorator: take keywords by their earlier names, {old: new}.

    A warning tells the new name.
    """
    def decorate(function):
        @functools.wraps(function)
        def call(*args, **keywords):
            return function(*args, **current_names(names, keywords))
        return call
    return decorate


def current_names(names, keywords):
    """Keywords by their current names, with a warning for earlier ones.

    names: {old: new}.
    """
    for old, new in names.items():
        if old in keywords:
            if new in keywords:
                raise TypeError(f'{old} is the earlier name of {new}: give '
                                f'only {new}')
            warn(f'{old} is now called {new}')
            keywords = {new if name == old else name: value
                        for name, value in keywords.items()}
    return keywords


@contextlib.contextmanager
def usage():
    """Turn ValueError and TypeError into `UsageError`."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None


@contextlib.contextmanager
def failures_of(flag, path, done):
    """Turn an OSError into a ValueError that names the flag and the file.

    For example '--out page.html cannot be written: ...'.

    done: the attempted action, 'read' or 'written'.
    """
    try:
        yield
    except BrokenPipeError:
        raise       # the reader closed the pipe: not an error of the user
    except OSError as error:
        raise ValueError(f'{flag} {path} cannot be {done}: {error.strerror}'
                         ) from None


def check_place(out, example, flag='--out'):
    """Raise if no file can be written to --out; call before computing.

    example: a possible file name, for the message.
    """
    path = Path(out)
    if path.is_dir():
        raise ValueError(f'{flag} {out} is a folder: name a file, as '
                         f'{path / example}')
    if not path.absolute().parent.is_dir():
        raise ValueError(f'{flag} {out} cannot be written: there is no folder '
                         f'{path.parent}')


def check_out(out, force, example, reads=(), flag='--out'):
    """Raise if --out is invalid; call before computing.

    reads: paths of the files and folders that the command reads. None of
    them may be overwritten.
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
    """The file among `reads` with the device and inode of `out`, or None."""
    for path in map(Path, reads):
        files = path.rglob('*') if path.is_dir() else [path]
        for file in files:
            with contextlib.suppress(OSError):
                if file.is_file() and file.samefile(out):
                    return file
    return None


@contextlib.contextmanager
def writing(out, force, flag='--out'):
    """Yield a temporary file, which is then renamed to --out.

    Raises ValueError if --out cannot be written. Without force, a file that
    was created at `out` after `check_out` is kept.
    """
    part = None
    try:
        with replacing(out, overwrite=force) as part:
            yield part
    except BrokenPipeError:
        raise
    except OSError as error:
        # The error may come from another file that is read here
        if error.errno is None or error.filename not in (
                None, str(part), str(out)):
            raise
        raise ValueError(f'{flag} {out} cannot be written: {error.strerror}'
                         ) from None


# Arguments of functions

def split_devices(text):
    """Parse --devices: (kind, numbers), with 'auto', 'cpu' or 'gpu' first.

    numbers: the indices of GPUs, the number of CPU devices, or []. Raises
    ValueError for any other text.
    """
    text = text.strip()
    kind, _, numbers = text.partition(':')
    numbers = [int(number) for number in re.findall(r'\d+', numbers)]
    if (not re.fullmatch(r'auto|cpu|gpu|cpu:\d+|gpu:\d+(,\d+)*', text)
            or kind == 'cpu' and numbers == [0]):
        raise ValueError(f"devices are {text!r}; they must be 'auto', 'cpu', "
                         "'cpu:2' (two CPU devices), 'gpu' or 'gpu:0,1'")
    return kind, numbers


def check_model(net, tokenizer):
    """Raise TypeError if an argument is not a net or not a tokenizer."""
    is_net, is_tokenizer = hasattr(net, 'encoder'), hasattr(
        tokenizer, 'encode_batch')
    if is_net and is_tokenizer:
        return
    if hasattr(net, 'encode_batch') and hasattr(tokenizer, 'encoder'):
        raise TypeError('net and tokenizer are swapped: give the net first')
    name, given = ('net', net) if not is_net else ('tokenizer', tokenizer)
    raise TypeError(f'{name} must be a {name} as load_model gives it, not '
                    f'{short(given)}')


def items_of(items, name='texts', what='texts'):
    """A list, from a list, tuple, generator, array or column of a table.

    Strings and numbers of NumPy and pandas become Python objects. Raises
    TypeError for a single string, and for a table or a dictionary.
    """
    if hasattr(items, 'columns') or isinstance(items, dict):
        raise TypeError(f'{name} must be a list of {what}, not a '
                        f'{type(items).__name__}: give one column of it')
    if hasattr(items, 'tolist'):
        items = items.tolist()
    if isinstance(items, (str, bytes)):
        raise TypeError(f'{name} must be a list of {what}, not one: give '
                        f'[{short(items)}]')
    try:
        return list(items)
    except TypeError:
        raise TypeError(f'{name} must be a list of {what}, not '
                        f'{short(items)}') from None


def whole_number(name, value):
    """Return the value as an int; raise TypeError if it is not an integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f'{name} must be a whole number, not {short(value)}'
                        ) from None


def short(value):
    """A short description of an object, for an error message."""
    text = repr(value)
    return text if len(text) <= 40 and '\n' not in text else (
        f'a {type(value).__name__}')


def check_sizes(least=1, **sizes):
    """Raise ValueError for sizes other than whole numbers from `least` on."""
    for name, size in sizes.items():
        if int(size) != size or size < least:
            raise ValueError(f'{name} must be a whole number of at least '
                             f'{least}, not {size!r}')


def check_shares(**shares):
    """Raise ValueError unless each number is at least 0 and below 1."""
    for name, share in shares.items():
        if share is None or not 0 <= share < 1:
            raise ValueError(f'{name} must be a number from 0 to less than '
                             f'1, not {share!r}')


#: File name extensions of the formats of `write_rows`.
ROW_FORMATS = ('.csv', '.jsonl')

#: Extensions of other table and archive formats, which are rejected.
_OTHERS = ('.npy', '.npz', '.parquet', '.json', '.xlsx', '.feather', '.gz',
           '.bz2', '.xz', '.zst', '.zip')


def check_rows_out(out):
    """Raise UsageError if the extension of --out is one of `_OTHERS`."""
    ending = Path(out).suffix.lower()
    if ending in _OTHERS:
        raise UsageError(f'--out {out}: predictions are not written as '
                         f'{ending}: let the name end in '
                         f'{", ".join(ROW_FORMATS)}, .tsv or .txt')


def write_rows(path, ending, rows):
    """Write dictionaries with equal keys, one per row, in format `ending`."""
    with open(path, 'w', encoding='utf-8', newline='') as file:
        writer = None
        for row in rows:
            if ending == '.jsonl':
                file.write(json.dumps(row, ensure_ascii=False) + '\n')
                continue
            if writer is None:
                writer = csv.DictWriter(file, list(row), lineterminator='\n')
                writer.writeheader()
            writer.writerow(row)
