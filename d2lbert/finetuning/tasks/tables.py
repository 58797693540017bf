"""Read examples from CSV files and tab-separated files."""
import csv
import itertools
import math
import sys
from pathlib import Path
from typing import NamedTuple, Optional

from d2lbert.machine.terminal import warn
from d2lbert.texts import text_files

#: Roles of columns, in the order that `Columns.parse` expects
ROLES = 'text', 'pair', 'label'

#: Number of rows from which the layout of a table is recognized
NUM_FIRST_ROWS = 100


class TaskError(ValueError):
    """The data of a task cannot be read."""


class Examples(NamedTuple):
    """Texts of a task, with labels; lists have one entry an example."""

    texts_a: list                   # str
    texts_b: Optional[list]         # str, the second texts; None: no pairs
    labels: Optional[list]          # class index or float; None: not given
    labels_names: Optional[tuple]   # names of the classes; None for 'regress',
                                    # or if neither task nor file has names
    skipped: int                    # number of lines skipped with a warning
    path: str                       # of the file, for messages
    impossible = False              # as in `Questions`

    @property
    def has_pairs(self):
        """True if the examples are pairs of texts."""
        return self.texts_b is not None


class Columns(NamedTuple):
    """The columns of a table by role, each a name or a number from 0."""

    text: object
    pair: object = None             # the second text; None: single texts
    label: object = None            # None: without labels
    header: Optional[bool] = None   # True if line 1 has the names of columns;
                                    # None: unknown

    @classmethod
    def parse(cls, columns):
        """Parse the value of `--columns` or `columns=`.

        'text=1,label=0' gives columns by role: `text`, `pair` (the second
        text) and `label`. Without roles, one column is the text, two are
        text and label, and three are text, pair and label. In Python,
        {role: column} or a list of columns works, too, and names of columns
        may contain commas.

        If no column is given by name, the first line is an example, unless
        'header=yes' is added. Add 'header=no' if line 1 could be mistaken
        for a header.
        """
        if isinstance(columns, cls):
            return columns
        by_role, without_role = _split_roles(columns)
        header = by_role.pop('header', None)
        if header not in (None, True, False, 'yes', 'no'):
            raise TaskError(f'header={header} in --columns: expected yes or '
                            'no')
        implied_roles = {1: ROLES[:1], 2: ('text', 'label'), 3: ROLES}.get(
            len(without_role), ())
        all_roles = {*by_role, *implied_roles}
        is_mixed = by_role and without_role
        has_empty_name = '' in (*by_role.values(), *without_role)
        has_unknown_role = all_roles - set(ROLES)
        if (is_mixed or has_empty_name or has_unknown_role
                or 'text' not in all_roles):
            raise TaskError(
                'expected --columns with roles, as text=1,label=0 or '
                'text=premise,pair=hypothesis,label=label, or one to three '
                'names, as sentence,label')
        by_role = {role: _number_or_name(column) for role, column
                   in (*by_role.items(), *zip(implied_roles, without_role))}
        if len(set(by_role.values())) < len(by_role):
            raise TaskError('--columns gives one column two roles')
        header = {'yes': True, 'no': False}.get(header, header)
        has_names = any(isinstance(column, str)
                        for column in by_role.values())
        if has_names and header is False:
            raise TaskError('--columns has names of columns and header=no: '
                            'without a header give their numbers, from 0')
        return cls(**by_role, header=True if has_names else header)


def _split_roles(columns):
    """Return ({role: column}, columns without a role) for --columns."""
    if isinstance(columns, dict):
        return {role: column for role, column in columns.items()
                if column is not None}, []
    if not isinstance(columns, str):
        return {}, list(columns)
    parts = [part.strip() for part in columns.split(',')]
    with_role = [tuple(side.strip() for side in part.split('=', 1))
                 for part in parts if '=' in part]
    if len(dict(with_role)) < len(with_role):
        raise TaskError(f'--columns {columns} gives a role twice')
    return dict(with_role), [part for part in parts if '=' not in part]


def _number_or_name(column):
    text = str(column).strip()
    return int(text) if text.isascii() and text.isdigit() else text


# Rows

def uncompressed_name(path):
    """A file's name in lower case, without .gz and the like."""
    name = Path(path).name.lower()
    for compression in text_files.COMPRESSIONS:
        if name.endswith(compression.ending):
            name = name[:-len(compression.ending)]
    return name


def is_csv(path):
    return uncompressed_name(path).endswith('.csv')


def with_tabs(path):
    """The end of a message about columns of a table; '' for CSV."""
    return '' if is_csv(path) else ' with tabs between them'


def rows_of(path):
    """Yield (line number, cells) for each row of a table.

    In a .csv file, commas separate cells; semicolons if the first line has
    semicolons but no comma. Quoted cells may contain separators and line ends.

    In other files, tabs separate cells and quotes are ordinary characters.
    Only LF and CRLF end lines. Any file may be compressed.
    """
    if is_csv(path):
        yield from _csv_rows(path)
        return
    for number, line in enumerate(text_files.lines(path), 1):
        yield number, (line[:-1] if line.endswith('\r') else line).split('\t')


def _csv_rows(path):
    start_line = 1      # the line in which a row begins
    lines = text_files.lines(path)
    first_line = next(lines, '')
    # Spreadsheets write semicolons in locales with decimal commas
    delimiter = ';' if ';' in first_line and ',' not in first_line else ','
    # For the whole process; by default a cell has at most 131,072 characters
    csv.field_size_limit(sys.maxsize)
    # strict: otherwise an unclosed quote silently takes the rest of the file
    reader = csv.reader(
        (line + '\n' for line in itertools.chain([first_line], lines)),
        strict=True, delimiter=delimiter)
    try:
        for cells in reader:
            yield start_line, cells
            start_line = reader.line_num + 1
    except csv.Error as error:
        raise TaskError(
            f'{path}, line {start_line}: the row that begins here is not '
            f'valid CSV ({error}): close its quotes, write a quote in quotes '
            'twice, or name the file .tsv if tabs separate its columns'
            ) from None


# From rows to examples

class ColumnIndices(NamedTuple):
    """The columns of a table by role, as indices into the cells of a row."""

    text: int
    pair: Optional[int]
    label: Optional[int]
    width: int              # number of cells in a complete row
    header: Optional[bool]  # True if the first row has the names of columns;
                            # None: unknown, so the row is an example


def first_rows(path):
    """The first NUM_FIRST_ROWS rows of a table, as `rows_of` yields them."""
    return list(itertools.islice(rows_of(path), NUM_FIRST_ROWS))


def indices_of_columns(path, first_rows, columns):
    """Find the columns of a `Columns` in a table; return `ColumnIndices`."""
    _, first_cells = first_rows[0]
    first_cells = [cell.strip() for cell in first_cells]

    def find(role, column):
        if isinstance(column, int) or column is None:
            return column
        if first_cells.count(column) == 1:
            return first_cells.index(column)
        found = 'several columns' if column in first_cells else 'no column'
        raise TaskError(
            f'{path} has {found} {column!r} in its first line '
            f'({name_list(first_cells)}): name its columns by --columns, or '
            f'give their numbers from 0, as {role}=1')
    by_role = {role: getattr(columns, role) for role in ROLES}
    indices = [find(role, column) for role, column in by_role.items()]
    width = max(max(i for i in indices if i is not None) + 1, len(first_cells))
    has_names = any(isinstance(column, str) for column in by_role.values())
    header = True if has_names else columns.header
    return ColumnIndices(*indices, width, header)


def examples_of(path, indices, kind='classify', names=None, file_labels=None,
                no_label=None, keep_row=None):
    """The `Examples` of a table; indices: the `ColumnIndices` of its columns.

    kind: 'classify' or 'regress'. names: names of the classes; None: the
    sorted labels of the file. file_labels: the labels in the file, in the
    order of `names`; None: the names. no_label: the label of rows without a
    class. keep_row: a function of the cells of a row; rows for which it
    returns False are dropped without a warning.

    Rows with the label `no_label`, without a column that is read, or with text
    in extra columns are skipped with a warning.
    """
    last_read_column = max(
        i for i in (indices.text, indices.pair, indices.label)
        if i is not None)
    has_labels = indices.label is not None
    num_header_rows = 1 if indices.header else 0
    texts_a, texts_b, number = [], [], 0
    lines_labels = []       # (line number, label) of each example
    misfits = []            # (line number, number of cells) of skipped rows
    num_unlabelled = num_dropped = 0
    for number, cells in itertools.islice(rows_of(path), num_header_rows,
                                          None):
        if len(cells) <= last_read_column or any(cells[indices.width:]):
            misfits.append((number, len(cells)))
        elif keep_row is not None and not keep_row(cells):
            num_dropped += 1
        elif has_labels and cells[indices.label].strip() == no_label:
            num_unlabelled += 1
        else:
            texts_a.append(cells[indices.text])
            if indices.pair is not None:
                texts_b.append(cells[indices.pair])
            if has_labels:
                lines_labels.append((number, cells[indices.label].strip()))
    if number == 0:     # the loop read no row
        raise TaskError(f'{path} has a header and no examples')
    if not texts_a:
        num_rows = len(misfits) + num_unlabelled + num_dropped
        reasons = ' and '.join(f'{count:,} {reason}' for count, reason in (
            (len(misfits), f'do not have {indices.width} columns'
             + with_tabs(path)),
            (num_unlabelled, f'have the label {no_label!r}'),
            (num_dropped, 'belong to another part')) if count)
        raise TaskError(f'{path} has no examples: of its {num_rows:,} rows '
                        f'{reasons}')
    _warn_of_skipped(path, misfits, num_unlabelled, no_label, indices.width)
    labels = None
    if has_labels and kind == 'regress':
        labels = [_finite_float(path, number, label)
                  for number, label in lines_labels]
    elif has_labels:
        if names is None:
            _check_is_no_header(path, indices, lines_labels)
            names = _class_names(path, lines_labels)
        labels = class_indices(path, lines_labels, names, file_labels)
    has_classes = kind != 'regress' and names is not None
    return Examples(
        texts_a, texts_b if indices.pair is not None else None, labels,
        tuple(names) if has_classes else None,
        len(misfits) + num_unlabelled, str(path))


def _class_names(path, lines_labels):
    for number, name in lines_labels:
        if not name:
            raise TaskError(
                f'{path}, line {number}: the label is missing: write one, or '
                'leave the line out')
    return tuple(sorted({name for _, name in lines_labels}))


def _warn_of_skipped(path, misfits, num_unlabelled, no_label, width):
    reasons = []
    if misfits:
        number, num_cells = misfits[0]
        reasons.append(
            f'{len(misfits):,} lines with missing or extra columns (the first '
            f'is line {number}, with {num_cells} where {width} were expected)')
    if num_unlabelled:
        reasons.append(f'{num_unlabelled:,} lines with the label {no_label!r}')
    if reasons:
        warn(f'{path}: skipped {" and ".join(reasons)}')


def class_indices(path, lines_labels, names, file_labels=None):
    """The class index of each label.

    lines_labels: (line number, label) of each example. names, file_labels: as
    for `examples_of`. Raises `TaskError` for any other label.
    """
    index_of = {name: k for k, name in enumerate(file_labels or names)}
    for number, label in lines_labels:
        if label not in index_of:
            found = f'is {name_list([label])}' if label else 'is missing'
            raise TaskError(
                f'{path}, line {number}: the label {found}; expected one '
                f'of {name_list(index_of)}')
    return [index_of[label] for _, label in lines_labels]


def name_list(names):
    """A string that lists up to 12 names, each cut to 40 characters."""
    names = [repr(name if len(name) <= 40 else f'{name[:37]}...')
             for name in names]
    return ', '.join(names[:12] + ['...'] * (len(names) > 12))


def _finite_float(path, number, label):
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TaskError(
            f'{path}, line {number}: the label is {name_list([label])}; '
            'expected a number'
            + (' (if line 1 has the names of columns, give these names, or '
               'add header=yes to --columns)' if number == 1 else ''))
    return value


def _check_is_no_header(path, indices, lines_labels):
    """Raise `TaskError` if line 1, read as an example, may be a header."""
    number, first = lines_labels[0]
    other_labels = [label for _, label in lines_labels[1:]]
    has_repeated = len(set(other_labels)) < len(other_labels)
    looks_like_header = first not in other_labels and has_repeated
    if number == 1 and indices.header is None and looks_like_header:
        raise TaskError(
            f'{path}, line 1: the label {name_list([first])} occurs nowhere '
            'else: if line 1 has the names of columns, add header=yes to '
            '--columns; if line 1 is an example, add header=no')
