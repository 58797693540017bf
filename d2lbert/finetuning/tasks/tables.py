"""Read tables of examples, with columns separated by tabs or commas."""
import csv
import itertools
import math
from typing import NamedTuple, Optional

from d2lbert.machine.terminal import warn
from d2lbert.texts import text_files

#: Roles of columns, in the order of names given without a role
ROLES = 'text', 'pair', 'label'

# Number of rows that determine the layout of a table
HEAD_ROWS = 100


class TaskError(ValueError):
    """A task's data cannot be read; the message is one sentence."""


class Examples(NamedTuple):
    """Texts of a task, with their labels."""

    texts_a: list                   # str
    texts_b: Optional[list]         # str, for pairs
    labels: Optional[list]          # int (classes) or float; None: not given
    labels_names: Optional[tuple]   # names of the classes
    skipped: int                    # number of skipped lines
    path: str
    impossible = False

    @property
    def has_pairs(self):
        """True if the examples are pairs of texts."""
        return self.texts_b is not None


class Columns(NamedTuple):
    """The columns of a table by role, each a name or a number from 0."""

    text: object
    pair: object = None
    label: object = None
    header: Optional[bool] = None   # True if line 1 has names; see `parse`

    @classmethod
    def parse(cls, columns):
        """Parse the value of `--columns` or `columns=`.

        'text=1,label=0' gives columns by role: `text`, `pair` (the second
        text) and `label`. A column is a number from 0, or a name in the
        first line. Roles may be omitted: 'sentence,label' is text and label,
        'premise,hypothesis,label' is text, pair and label, and a single
        column is the text.

        If a column is given by name, the first line is a header. Otherwise
        the first line is an example, unless 'header=yes' is added. Add
        'header=no' if line 1 could be mistaken for a header. In Python, a
        dictionary of roles or a list of columns works, too, also with commas
        in names.
        """
        if isinstance(columns, cls):
            return columns
        given, in_order = _given(columns)
        header = given.pop('header', None)
        if header not in (None, True, False, 'yes', 'no'):
            raise TaskError(f'header={header} in --columns: expected yes or '
                            'no')
        roles = {0: (), 1: ROLES[:1], 2: ('text', 'label'), 3: ROLES}.get(
            len(in_order))
        if (roles is None or given and in_order
                or '' in (*given.values(), *in_order)
                or not {'text'} <= {*given, *roles} <= set(ROLES)):
            raise TaskError(
                'expected --columns with roles, as text=1,label=0 or '
                'text=premise,pair=hypothesis,label=label, or one to three '
                'names, as sentence,label')
        places = {role: _number(name) for role, name
                  in (*given.items(), *zip(roles, in_order))}
        if len(set(places.values())) < len(places):
            raise TaskError('--columns gives one column two roles')
        header = {'yes': True, 'no': False}.get(header, header)
        by_name = any(isinstance(name, str) for name in places.values())
        if by_name and header is False:
            raise TaskError('--columns names columns, and says header=no: '
                            'without a header give their numbers, from 0')
        return cls(**places, header=True if by_name else header)


def _given(columns):
    """({role: column}, [columns without a role]) of a value."""
    if isinstance(columns, dict):
        return {role: name for role, name in columns.items()
                if name is not None}, []
    if not isinstance(columns, str):
        return {}, list(columns)
    parts = [part.strip() for part in columns.split(',')]
    named = [tuple(side.strip() for side in part.split('=', 1))
             for part in parts if '=' in part]
    if len(dict(named)) < len(named):
        raise TaskError(f'--columns {columns} gives a role twice')
    return dict(named), [part for part in parts if '=' not in part]


def _number(name):
    """A column of --columns as a number if possible, else as a name."""
    text = str(name).strip()
    return int(text) if text.isascii() and text.isdigit() else text


# Rows

def is_csv(path):
    """True if the file name ends in .csv, before any packing."""
    name = str(path).lower()
    for packing in text_files.PACKINGS:
        if name.endswith(packing.ending):
            name = name[:-len(packing.ending)]
    return name.endswith('.csv')


def rows_of(path):
    """Yield (line number, cells) for each row of a table.

    In a .csv file, commas separate cells. If the first line has semicolons
    but no comma, semicolons separate them. A quoted cell may contain
    separators and line breaks.

    In other files, tabs separate cells and quotes are ordinary characters. A
    line ends with LF or CRLF only. The file may be compressed.
    """
    if is_csv(path):
        yield from _csv_rows(path)
        return
    for number, line in enumerate(text_files.lines(path), 1):
        yield number, (line[:-1] if line.endswith('\r') else line).split('\t')


def _csv_rows(path):
    number, lines = 1, text_files.lines(path)
    first = next(lines, '')
    # Spreadsheets write semicolons in locales with decimal commas.
    # Strict: an unclosed quote would swallow the rest of the file
    reader = csv.reader(
        (line + '\n' for line in itertools.chain([first], lines)),
        strict=True,
        delimiter=';' if ';' in first and ',' not in first else ',')
    try:
        for cells in reader:
            yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise TaskError(
            f'{path}, line {number}: what begins here is no row of a CSV file '
            f'({error}): close its quotes, write a quote in quotes twice, or '
            'name the file .tsv if tabs part its columns') from None


# From rows to examples

class Places(NamedTuple):
    """The columns of a table as numbers from 0."""

    text: int
    pair: Optional[int]
    label: Optional[int]
    width: int              # number of cells in a complete row
    header: Optional[bool]  # True if the first row has names; None: not
                            # given, so it is read as an example


def head_of(path):
    """A list of the first rows of a table, as `rows_of` yields them."""
    return list(itertools.islice(rows_of(path), HEAD_ROWS))


def places_by_columns(path, head, columns):
    """The `Places` of `Columns` in a table; head: its first rows."""
    first = [cell.strip() for cell in head[0][1]]

    def place(role, name):
        if isinstance(name, int) or name is None:
            return name
        if first.count(name) == 1:
            return first.index(name)
        count = 'several columns' if name in first else 'no column'
        raise TaskError(
            f'{path} has {count} {name!r} in its first line ({shown(first)}): '
            'name its columns by --columns, or give their numbers from 0, as '
            f'{role}=1')
    at = [place(role, name) for role, name in zip(ROLES, columns)]
    width = max(max(p for p in at if p is not None) + 1, len(first))
    return Places(*at, width, columns.header)


def examples_of(path, places, kind='classify', names=None, written=None,
                unlabelled=None, keep=None):
    """The `Examples` of a table.

    kind: 'classify' or 'regress'. names: names of the classes; None: the
    sorted labels of the file. written: the class names in this file, if they
    differ. unlabelled: the label of rows without a label. keep: a function
    of a row's cells; rows for which it is false are dropped. Rows with
    missing or extra columns are skipped with a warning.
    """
    last_place = max(p for p in places[:3] if p is not None)
    # odd: (line, number of cells) of rows with missing or extra columns; bare:
    # the number of unlabelled rows
    texts_a, texts_b, found, odd, bare, number = [], [], [], [], 0, 0
    for number, cells in itertools.islice(rows_of(path), bool(places.header),
                                          None):
        if len(cells) <= last_place or any(cells[places.width:]):
            odd.append((number, len(cells)))
        elif keep is not None and not keep(cells):
            continue
        elif (places.label is not None and unlabelled is not None
              and cells[places.label].strip() == unlabelled):
            bare += 1
        else:
            texts_a.append(cells[places.text])
            if places.pair is not None:
                texts_b.append(cells[places.pair])
            if places.label is not None:
                found.append((number, cells[places.label].strip()))
    if not texts_a:
        raise TaskError(
            f'{path} has no examples: of its {number:,} lines {len(odd):,} '
            f'do not have {places.width} columns'
            f'{"" if is_csv(path) else " with tabs between them"}'
            if number else f'{path} has a header and no examples')
    _say_skipped(path, odd, bare, unlabelled, places.width)
    labels = None
    if places.label is not None and kind == 'regress':
        labels = [_score(path, *label) for label in found]
    elif places.label is not None:
        if names is None:
            _check_is_no_header(path, places, found)
            names = _classes(path, found)
        labels = numbered_labels(path, found, names, written)
    return Examples(
        texts_a, texts_b if places.pair is not None else None, labels,
        None if kind == 'regress' or names is None else tuple(names),
        len(odd) + bare, str(path))


def _classes(path, found):
    """The sorted class names; found: a list of (line, label)."""
    for number, name in found:
        if not name:
            raise TaskError(
                f'{path}, line {number}: the label is missing: write one, or '
                'leave the line out')
    return tuple(sorted({name for _, name in found}))


def _say_skipped(path, odd, bare, unlabelled, width):
    said = []
    if odd:
        number, count = odd[0]
        said.append(
            f'{len(odd):,} lines with missing or extra columns (the first is '
            f'line {number}, with {count} where {width} were expected)')
    if bare:
        said.append(f'{bare:,} lines with the label {unlabelled!r}')
    if said:
        warn(f'{path}: skipped {" and ".join(said)}')


def numbered_labels(path, found, names, written=None):
    """The class indices; found: a list of (line, label)."""
    numbers = {name: k for k, name in enumerate(written or names)}
    try:
        return [numbers[name] for _, name in found]
    except KeyError:
        number, name = next(f for f in found if f[1] not in numbers)
    said = f'is {shown([name])}' if name else 'is missing'
    raise TaskError(
        f'{path}, line {number}: the label {said}; expected one '
        f'of {shown(numbers)}')


def shown(names):
    """Names for a message: at most 12, long ones shortened."""
    names = [repr(name if len(name) <= 40 else f'{name[:37]}...')
             for name in names]
    return ', '.join(names[:12] + ['...'] * (len(names) > 12))


def _score(path, number, text):
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise TaskError(
            f'{path}, line {number}: the label is {shown([text])}; expected '
            'a number'
            + (' (if line 1 has the names of columns, give these names, or '
               'add header=yes to --columns)' if number == 1 else ''))
    return score


def _check_is_no_header(path, places, found):
    """Raise if the label in line 1 looks like the name of a column."""
    (number, name), rest = found[0], [name for _, name in found[1:]]
    if (number == 1 and places.header is None and name not in rest
            and len(set(rest)) < len(rest)):
        raise TaskError(
            f'{path}, line 1: the label {shown([name])} occurs nowhere else: '
            'if these are the names of columns, add header=yes to --columns, '
            'and header=no if this is an example')
