"""Check the arguments of functions and commands; write tables of results."""
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

from d2lbert.machine.files import line_feeds, replacing
from d2lbert.machine.terminal import warn

#: The path of a file or folder, for type hints.
PathLike = Union[str, os.PathLike]


class UsageError(ValueError):
    """Arguments are invalid: a command exits with status 2, not 1."""


def flag_of(name):
    """The flag of the command for a setting, for example --num-steps."""
    return '--' + name.replace('_', '-')


def listed(choices):
    """Join choices to a text such as 'a, b or c'."""
    *first, last = map(str, choices)
    return f'{", ".join(first)} or {last}' if first else last


def did_you_mean(word, choices):
    """Return ': did you mean CHOICE?', the end of a message, or ''.

    CHOICE is spelt almost like `word`, or else begins with `word` (at least 3
    characters). Case is ignored.
    """
    by_lower = {str(choice).lower(): choice for choice in choices}
    word = str(word).lower()
    matches = difflib.get_close_matches(word, by_lower, 1)
    if not matches and len(word) > 2:
        matches = [lower for lower in by_lower if lower.startswith(word)]
    return f': did you mean {by_lower[matches[0]]}?' if matches else ''


def renamed(**current_names):
    """Decorate a function to accept earlier names of its keyword arguments.

    current_names: EARLIER='CURRENT' for each name; see `rename_keywords`.
    """
    def decorate(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            return function(*args, **rename_keywords(current_names, kwargs))
        return call
    return decorate


def rename_keywords(current_names, kwargs):
    """Return keyword arguments under their current names.

    current_names: {earlier name: current name}. Each earlier name causes a
    warning. Raises TypeError if an argument is given under both names.
    """
    for old, new in current_names.items():
        if old not in kwargs:
            continue
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
    """Context that turns an OSError into a ValueError about a flag.

    The message is for example '--out page.html cannot be written: No space
    left on device'. action: 'read' or 'written'.
    """
    try:
        yield
    except BrokenPipeError:
        raise       # the reader closed the pipe: no failure of `path`
    except OSError as error:
        raise ValueError(f'{flag} {path} cannot be {action}: {error.strerror}'
                         ) from None


def check_text_or_file(text, file, text_field, skip_empty, what='a text'):
    """Raise UsageError unless a command has either a text or --file.

    text_field, skip_empty: flags about the lines of --file, which are errors
    with a text. what: the name of `text` in the message.
    """
    if (text is None) == (file is None):
        raise UsageError(f'give {what}, or --file FILE with a text on each '
                         'line' + (', not both' if file is not None else ''))
    if file is None and (skip_empty or text_field is not None):
        raise UsageError('--text-field and --skip-empty are for the lines of '
                         '--file: leave them out')


def check_out_path(out, example, flag='--out'):
    """Raise ValueError if `out` is a folder, or if its folder is missing.

    example: a file name for the message.
    """
    path = Path(out)
    if path.is_dir():
        raise ValueError(f'{flag} {out} is a folder: name a file, as '
                         f'{path / example}')
    if not path.absolute().parent.is_dir():
        raise ValueError(f'{flag} {out} cannot be written: there is no folder '
                         f'{path.parent}')


def check_out(out, force, example, reads=(), flag='--out'):
    """Raise ValueError or FileExistsError if `out` must not be written.

    Call this before a long computation. force: if true, `out` may be replaced.
    example: a file name for the message. reads: files and folders that the
    command reads, so that `out` must not replace any of their files.
    """
    check_out_path(out, example, flag)
    if not Path(out).is_file():
        return
    source = _find_same_file(out, reads)
    if source is not None:
        raise ValueError(f'{flag} {out} is the file {source}, which this '
                         'command reads: choose another name')
    if not force:
        raise FileExistsError(f'{flag} {out} exists already: choose another '
                              'name, or give --force to replace it')


def _find_same_file(out, paths):
    """Find `out` among files and in folders; None if it is not there."""
    for path in map(Path, paths):
        files = path.rglob('*') if path.is_dir() else [path]
        for file in files:
            with contextlib.suppress(OSError):
                if file.is_file() and file.samefile(out):
                    return file
    return None


@contextlib.contextmanager
def writing(out, force, flag='--out'):
    """Yield the path of a temporary file; rename it to `out` on success.

    If `out` is a device or a pipe, this yields `out` itself. If `out` is a
    link to a file, this replaces the file. Raises ValueError if `out` cannot
    be written, or exists although `force` is false.
    """
    given, temporary = out, None
    if os.path.isfile(out):     # not a pipe, whose real path does not exist
        out = os.path.realpath(out)
    try:
        with replacing(out, overwrite=force) as temporary:
            yield temporary
    except BrokenPipeError:
        raise       # as in `failures_of`
    except OSError as error:
        is_from_system = error.errno is not None
        # `replacing` sets filename, unless `out` is a device or a pipe (None)
        is_about_out = error.filename in (None, str(temporary), str(Path(out)))
        if not (is_from_system and is_about_out):
            raise
        raise ValueError(f'{flag} {given} cannot be written: '
                         f'{error.strerror}') from None


def split_devices(text):
    """Parse --devices; return (kind, numbers).

    kind: 'auto', 'cpu' or 'gpu'. numbers: [0, 1] for 'gpu:0,1' (indices of
    GPUs), [2] for 'cpu:2' (a count of devices), [] without a colon. Raises
    ValueError for an invalid text, and TypeError if it is no string.
    """
    if not isinstance(text, str):
        raise TypeError("devices must be a string such as 'auto', 'cpu', "
                        f"'cpu:2' or 'gpu:0,1', not {short_repr(text)}")
    text = text.strip()
    kind, _, indices_or_count = text.partition(':')
    numbers = [int(digits) for digits in re.findall(r'\d+', indices_or_count)]
    if (not re.fullmatch(r'auto|cpu|gpu|cpu:\d+|gpu:\d+(,\d+)*', text)
            or (kind == 'cpu' and numbers == [0])):
        raise ValueError(f"devices are {text!r}; they must be 'auto', 'cpu', "
                         "'cpu:2' (two CPU devices), 'gpu' or 'gpu:0,1'")
    return kind, numbers


def check_model(net, tokenizer):
    """Raise TypeError if `net` is no net, or `tokenizer` is no tokenizer."""
    is_net = hasattr(net, 'encoder')
    is_tokenizer = hasattr(tokenizer, 'encode_batch')
    if is_net and is_tokenizer:
        return
    if hasattr(net, 'encode_batch') and hasattr(tokenizer, 'encoder'):
        raise TypeError('net and tokenizer are swapped: give the net first')
    name, value = ('tokenizer', tokenizer) if is_net else ('net', net)
    raise TypeError(f'{name} must be a {name}, such as '
                    f'load_model(FOLDER).{name}, not {short_repr(value)}')


def items_of(items, name='texts', what='texts'):
    """Convert a list, tuple, generator, array or column of a table to a list.

    NumPy's strings and numbers become Python's. Raises TypeError for a string,
    a table, a dictionary, or an object that is not iterable. name, what: the
    argument and a plural noun for its items, in the message.
    """
    is_table = hasattr(items, 'columns')
    if is_table or isinstance(items, dict):
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


def names_among(choices, argument, names):
    """Return names as a list; raise ValueError for a name not in `choices`.

    argument: what the message calls `names`. A string is one name.
    """
    names = items_of([names] if isinstance(names, str) else names, argument,
                     'names')
    for name in names:
        if name not in choices:
            raise ValueError(f'{argument} must be names among '
                             f'{", ".join(choices)}, not {short_repr(name)}')
    return names


def whole_number(name, value):
    """Return the value as an int; raise TypeError if it is not an integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f'{name} must be a whole number, not '
                        f'{short_repr(value)}') from None


def short_repr(value):
    """The repr of a value for a message; 'a TYPE' if the repr is long."""
    text = repr(value)
    if len(text) <= 40 and '\n' not in text:
        return text
    return f'a {type(value).__name__}'


def check_sizes(least=1, **sizes):
    """Raise ValueError unless each size is a whole number >= `least`."""
    for name, size in sizes.items():
        try:
            is_valid = int(size) == size >= least
        except (TypeError, ValueError, OverflowError):
            is_valid = False
        if not is_valid:
            raise ValueError(f'{name} must be a whole number of at least '
                             f'{least}, not {size!r}')


def check_shares(**shares):
    """Raise ValueError unless each share is at least 0 and less than 1."""
    for name, share in shares.items():
        try:
            is_valid = 0 <= share < 1
        except TypeError:
            is_valid = False
        if not is_valid:
            raise ValueError(f'{name} must be a number from 0 to less than '
                             f'1, not {share!r}')


#: Extensions of the tables that `write_rows` writes.
TABLE_EXTENSIONS = ('.csv', '.jsonl')

# A file with an extension in neither tuple gets predictions as lines of text
_UNSUPPORTED_EXTENSIONS = (
    '.npy', '.npz', '.parquet', '.json', '.xlsx', '.feather', '.gz', '.bz2',
    '.xz', '.zst', '.zip')


def check_predictions_out(out):
    extension = Path(out).suffix.lower()
    if extension in _UNSUPPORTED_EXTENSIONS:
        raise UsageError(f'--out {out}: predictions are not written as '
                         f'{extension} files: choose a name that ends in '
                         f'{", ".join(TABLE_EXTENSIONS)}, .tsv or .txt')


def write_rows(path, extension, rows):
    """Write a table, as CSV, or as JSON Lines if `extension` is '.jsonl'.

    path: its own extension is ignored, since it is often a temporary file.
    rows: dictionaries {column: value} with equal columns.
    """
    with open(path, 'w', encoding='utf-8', newline='') as file:
        if extension == '.jsonl':
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + '\n')
            return
        writer = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(line_feeds(file), list(row))
                writer.writeheader()
            writer.writerow(row)
