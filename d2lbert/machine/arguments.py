"""Check arguments of functions, and the files that command-line flags name."""
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
    """Arguments that are invalid whatever the files and models are."""


def listed(choices):
    """Join choices to a text such as 'a, b or c'."""
    *first, last = map(str, choices)
    return f'{", ".join(first)} or {last}' if first else last


def did_you_mean(word, choices):
    """Return ': did you mean CHOICE?', the end of a message, or ''.

    CHOICE is one of `choices` that is spelled like `word` or begins with it.
    """
    choices = {str(choice).lower(): choice for choice in choices}
    similar = difflib.get_close_matches(str(word).lower(), choices, 1)
    if not similar and len(str(word)) > 2:      # `word` may be an abbreviation
        similar = [name for name in choices if name.startswith(
            str(word).lower())][:1]
    return f': did you mean {choices[similar[0]]}?' if similar else ''


def renamed(**names):
    """Decorate a function to accept earlier names of its keyword arguments.

    names: {earlier name: current name}. A warning gives the current name.
    """
    def decorate(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            return function(*args, **current_names(names, kwargs))
        return call
    return decorate


def current_names(names, kwargs):
    """Replace earlier names in {keyword: value}; warn of each.

    names: {earlier name: current name}. Returns the new dictionary.
    """
    for old, new in names.items():
        if old in kwargs:
            if new in kwargs:
                raise TypeError(f'{old} is the earlier name of {new}: give '
                                f'only {new}')
            warn(f'{old} is now called {new}')
            kwargs = {new if name == old else name: value
                      for name, value in kwargs.items()}
    return kwargs


@contextlib.contextmanager
def usage_errors():
    """Context that turns a ValueError or TypeError into a `UsageError`."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None


@contextlib.contextmanager
def failures_of(flag, path, action):
    """Context that turns an OSError into a ValueError with flag and file.

    The message is for example '--out page.html cannot be written: No space
    left on device'. action: 'read' or 'written'.
    """
    try:
        yield
    except BrokenPipeError:
        raise       # the program that reads the output ended: no user error
    except OSError as error:
        raise ValueError(f'{flag} {path} cannot be {action}: {error.strerror}'
                         ) from None


def check_out_path(out, example, flag='--out'):
    """Raise ValueError if --out is a folder, or in a folder that is missing.

    Call it before a long computation. example: a file name for the message.
    """
    path = Path(out)
    if path.is_dir():
        raise ValueError(f'{flag} {out} is a folder: name a file, as '
                         f'{path / example}')
    if not path.absolute().parent.is_dir():
        raise ValueError(f'{flag} {out} cannot be written: there is no folder '
                         f'{path.parent}')


def check_out(out, force, example, reads=(), flag='--out'):
    """Raise an error if the command must not write to --out.

    Call it before a long computation. force: allow to replace a file. reads:
    paths of files and folders that the command reads, which it never replaces.
    example, flag: as in `check_out_path`.
    """
    check_out_path(out, example, flag)
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
    """The path, in or under `reads`, of the same file as `out`; or None."""
    for path in map(Path, reads):
        files = path.rglob('*') if path.is_dir() else [path]
        for file in files:
            with contextlib.suppress(OSError):
                if file.is_file() and file.samefile(out):
                    return file
    return None


@contextlib.contextmanager
def writing(out, force, flag='--out'):
    """Yield the path of a temporary file; rename it to --out on success.

    Raises ValueError if --out cannot be written. Unless `force` is true, a
    file that was created at `out` after `check_out` is not replaced.
    """
    temporary = None
    try:
        with replacing(out, overwrite=force) as temporary:
            yield temporary
    except BrokenPipeError:
        raise
    except OSError as error:
        # An error with another file name is about a file that the caller reads
        if error.errno is None or error.filename not in (
                None, str(temporary), str(out)):
            raise
        raise ValueError(f'{flag} {out} cannot be written: {error.strerror}'
                         ) from None


# Arguments of functions

def split_devices(text):
    """Parse --devices; return (kind, numbers).

    kind: 'auto', 'cpu' or 'gpu'. numbers: a list of the indices of GPUs, or
    [number of CPU devices]; [] if the text has none. Raises ValueError if the
    text is invalid.
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
    """Raise TypeError if `net` is no net, or `tokenizer` is no tokenizer."""
    is_net, is_tokenizer = hasattr(net, 'encoder'), hasattr(
        tokenizer, 'encode_batch')
    if is_net and is_tokenizer:
        return
    if hasattr(net, 'encode_batch') and hasattr(tokenizer, 'encoder'):
        raise TypeError('net and tokenizer are swapped: give the net first')
    name, value = ('net', net) if not is_net else ('tokenizer', tokenizer)
    raise TypeError(f'{name} must be a {name} as load_model gives it, not '
                    f'{short_repr(value)}')


def items_of(items, name='texts', what='texts'):
    """Convert a list, tuple, generator, array or column of a table to a list.

    Strings and numbers of NumPy and pandas become Python objects. Raises
    TypeError for a single string, a table or a dictionary. name, what: for the
    message, the name of the argument and the plural of its items.
    """
    if hasattr(items, 'columns') or isinstance(items, dict):
        raise TypeError(f'{name} must be a list of {what}, not a '
                        f'{type(items).__name__}: give one column of it')
    if hasattr(items, 'tolist'):
        items = items.tolist()
    if isinstance(items, (str, bytes)):
        raise TypeError(f'{name} must be a list of {what}, not one: give '
                        f'[{short_repr(items)}]')
    try:
        return list(items)
    except TypeError:
        raise TypeError(f'{name} must be a list of {what}, not '
                        f'{short_repr(items)}') from None


def whole_number(name, value):
    """Return the value as an int; raise TypeError if it is not an integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f'{name} must be a whole number, not '
                        f'{short_repr(value)}') from None


def short_repr(value):
    """The repr of a value, or 'a TYPE' if it is long; for error messages."""
    text = repr(value)
    return text if len(text) <= 40 and '\n' not in text else (
        f'a {type(value).__name__}')


def check_sizes(least=1, **sizes):
    """Raise ValueError unless each size is a whole number >= `least`."""
    for name, size in sizes.items():
        if int(size) != size or size < least:
            raise ValueError(f'{name} must be a whole number of at least '
                             f'{least}, not {size!r}')


def check_shares(**shares):
    """Raise ValueError unless each share is at least 0 and less than 1."""
    for name, share in shares.items():
        if share is None or not 0 <= share < 1:
            raise ValueError(f'{name} must be a number from 0 to less than '
                             f'1, not {share!r}')


#: File name extensions for `write_rows`; other files get lines of text.
ROW_FORMATS = ('.csv', '.jsonl')

#: Extensions of table and archive formats that cannot be written.
_UNSUPPORTED = ('.npy', '.npz', '.parquet', '.json', '.xlsx', '.feather',
                '.gz', '.bz2', '.xz', '.zst', '.zip')


def check_rows_out(out):
    """Raise UsageError if --out has the extension of an unsupported format."""
    ending = Path(out).suffix.lower()
    if ending in _UNSUPPORTED:
        raise UsageError(f'--out {out}: predictions are not written as '
                         f'{ending} files: choose a name that ends in '
                         f'{", ".join(ROW_FORMATS)}, .tsv or .txt')


def write_rows(path, ending, rows):
    """Write a table, as JSON Lines if `ending` is '.jsonl', otherwise as CSV.

    rows: dictionaries {column: value}, all with the same columns.
    """
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
