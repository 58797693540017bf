"""Describe tasks, and find and read their files.

The tasks are GLUE's (Wang et al. 2018, "GLUE: A Multi-Task Benchmark and
Analysis Platform for Natural Language Understanding"), SNLI (Bowman et al.
2015), SWAG (Zellers et al. 2018), and four tasks for a user's own files.
"""
from pathlib import Path
from typing import Any, NamedTuple, Optional, Sequence

from d2lbert.finetuning.tasks import tables
from d2lbert.finetuning.tasks.formats import (
    Choices,
    Questions,
    Sentences,
    read_conll,
    read_squad,
    read_swag,
)
from d2lbert.finetuning.tasks.tables import Columns, Examples, TaskError
from d2lbert.machine.arguments import PathLike
from d2lbert.machine.terminal import warn
from d2lbert.texts.text_files import COMPRESSIONS

__all__ = ['Choices', 'Columns', 'Examples', 'Questions', 'Sentences',
           'TASKS', 'Task', 'TaskError', 'read_task']

#: The parts of a task's data
PARTS = 'train', 'dev', 'test'


class Task(NamedTuple):
    """A task: its kind, labels, metrics, and the layout of its files."""

    name: str
    #: 'classify' (a class for a text or pair), 'regress' (a number), 'choice'
    #: (one of several endings), 'tag' (a class for each word) or 'span' (an
    #: answer in a text)
    kind: str
    pair: Optional[bool]        # True: pairs of texts; False: single texts;
                                # None: the user's `Columns` decide
    labels: Optional[tuple]     # names of classes; None: the names in the
                                # file, or no classes
    metrics: tuple              # keys of METRICS in ../metrics.py; the first
                                # metric selects the best epoch

    # The layout of the files
    folders: tuple = ()         # possible names of the task's folder
    files: tuple = ()           # for each of PARTS possible names of its file,
                                # by priority
    text_columns: tuple = ()    # one name, or two names for pairs
    label_column: str = ''
    file_labels: Optional[tuple] = None     # `labels` as files write them;
                                            # None: the same
    no_label: Optional[str] = None      # a missing label as files write it;
                                        # None: every example has a label
    column_orders: tuple = ()   # for files without a header: the possible
                                # lists of column names
    synonyms: tuple = ()        # pairs (name of a column in some headers, its
                                # name in text_columns or label_column)

    submission: str = ''        # file name for GLUE's leaderboard; '': none
    extra_tests: tuple = ()     # names in EXTRA_TESTS: more test sets for a
                                # model of this task


def _glue(name, folder, labels, metrics, text_columns, label_column, orders,
          kind='classify', more_files=((), (), ()), **layout):
    """A `Task` in the layout of GLUE.

    orders: `column_orders`, each a string with commas. more_files: for each of
    PARTS, other names of its file. layout: other fields of `Task`.
    """
    return Task(
        name, kind, len(text_columns) == 2, labels, metrics, (folder, name),
        tuple((f'{part}.tsv', *more) for part, more in zip(PARTS, more_files)),
        text_columns, label_column,
        column_orders=tuple(order.split(',') for order in orders),
        **{'submission': f'{folder}.tsv', **layout})


def _mnli(name, variant, submission):
    """MNLI; variant: 'matched' or 'mismatched', of its dev and test parts."""
    columns = ('index,promptID,pairID,genre,sentence1_binary_parse,'
               'sentence2_binary_parse,sentence1_parse,sentence2_parse,'
               'sentence1,sentence2')
    return _glue(
        name, 'MNLI', ('entailment', 'neutral', 'contradiction'),
        ('accuracy',), ('sentence1', 'sentence2'), 'gold_label',
        (f'{columns},label1,label2,label3,label4,label5,gold_label',
         f'{columns},label1,gold_label', columns), no_label='-',
        submission=submission)._replace(
            folders=('MNLI', 'mnli', 'multinli_1.0'),
            files=(('train.tsv',), (f'dev_{variant}.tsv',),
                   (f'test_{variant}.tsv',)))


_BINARY = '0', '1'

#: {name: `Task`}. The last four are for a user's own files: tables with
#: `columns` (classify, regress), CoNLL columns (tag) and SQuAD's JSON (span).
TASKS = {task.name: task for task in (
    _glue('sst2', 'SST-2', ('negative', 'positive'), ('accuracy',),
          ('sentence',), 'label', ('sentence,label', 'index,sentence'),
          file_labels=_BINARY),
    _glue('cola', 'CoLA', ('unacceptable', 'acceptable'),
          ('matthews', 'accuracy'), ('sentence',), 'label',
          ('source,label,mark,sentence', 'index,sentence'),
          file_labels=_BINARY),
    _glue('mrpc', 'MRPC', ('not_equivalent', 'equivalent'),
          ('f1', 'accuracy'), ('#1 String', '#2 String'), 'Quality',
          ('Quality,#1 ID,#2 ID,#1 String,#2 String',),
          # The original files have no dev part, see `_original_mrpc`
          more_files=(['msr_paraphrase_train.txt'],
                      ['msr_paraphrase_train.txt'],
                      ['msr_paraphrase_test.txt']), file_labels=_BINARY),
    _glue('qqp', 'QQP', ('not_duplicate', 'duplicate'), ('f1', 'accuracy'),
          ('question1', 'question2'), 'is_duplicate',
          ('id,qid1,qid2,question1,question2,is_duplicate',
           'id,question1,question2'), file_labels=_BINARY),
    _glue('stsb', 'STS-B', None, ('pearson', 'spearman'),
          ('sentence1', 'sentence2'), 'score',
          ('index,genre,filename,year,old_index,source1,source2,sentence1,'
           'sentence2,score',
           'index,genre,filename,year,old_index,source1,source2,sentence1,'
           'sentence2'), kind='regress'),
    _glue('qnli', 'QNLI', ('entailment', 'not_entailment'), ('accuracy',),
          ('question', 'sentence'), 'label',
          ('index,question,sentence,label', 'index,question,sentence')),
    _glue('rte', 'RTE', ('entailment', 'not_entailment'), ('accuracy',),
          ('sentence1', 'sentence2'), 'label',
          ('index,sentence1,sentence2,label', 'index,sentence1,sentence2')),
    _glue('wnli', 'WNLI', ('not_entailment', 'entailment'), ('accuracy',),
          ('sentence1', 'sentence2'), 'label',
          ('index,sentence1,sentence2,label', 'index,sentence1,sentence2'),
          file_labels=_BINARY),
    _mnli('mnli', 'matched', 'MNLI-m.tsv')._replace(
        extra_tests=('mnli_mm', 'ax')),
    # The order of the labels is the book's, and differs from MNLI's
    _glue('snli', 'SNLI', ('entailment', 'contradiction', 'neutral'),
          ('accuracy',), ('sentence1', 'sentence2'), 'gold_label',
          ('gold_label,sentence1_binary_parse,sentence2_binary_parse,'
           'sentence1_parse,sentence2_parse,sentence1,sentence2,captionID,'
           'pairID,label1,label2,label3,label4,label5',),
          more_files=[[f'snli_1.0_{part}.txt'] for part in PARTS],
          no_label='-')._replace(folders=('SNLI', 'snli_1.0'),
                                 submission=''),
    Task('swag', 'choice', True, None, ('accuracy',), folders=('SWAG', 'swag'),
         files=(('train.csv',), ('val.csv',), ('test.csv',))),
    Task('classify', 'classify', None, None, ('accuracy',)),
    Task('regress', 'regress', None, None, ('pearson', 'spearman')),
    Task('tag', 'tag', False, None, ('entity_f1', 'entity_precision',
                                     'entity_recall', 'tag_accuracy')),
    Task('span', 'span', True, None, ('token_f1', 'exact_match')),
)}

#: {name: `Task`} of more test sets for a model of MNLI: the mismatched part,
#: whose sentences are from other sources, and GLUE's diagnostic set.
EXTRA_TESTS = {task.name: task for task in (
    _mnli('mnli_mm', 'mismatched', 'MNLI-mm.tsv'),
    Task('ax', 'classify', True, TASKS['mnli'].labels, ('matthews',),
         folders=('diagnostic', 'AX', 'MNLI'),
         files=((), ('diagnostic-full.tsv',),
                ('diagnostic.tsv', 'diagnostic-full.tsv')),
         text_columns=('sentence1', 'sentence2'), label_column='label',
         column_orders=tuple(order.split(',') for order in (
             'Lexical Semantics,Predicate-Argument Structure,Logic,'
             'Knowledge,Domain,sentence1,sentence2,label',
             'index,sentence1,sentence2')),
         synonyms=(('Premise', 'sentence1'), ('Hypothesis', 'sentence2'),
                   ('Label', 'label')), submission='AX.tsv'),
)}

#: Tasks of TASKS also accept files named by a stem and an extension, such as
#: valid.csv. STEMS: for each of PARTS. EXTENSIONS: {kind of task: extensions}.
STEMS = ('train',), ('dev', 'valid', 'validation', 'val'), ('test',)
EXTENSIONS = {'classify': ('.tsv', '.csv', '.txt'),
              'regress': ('.tsv', '.csv', '.txt'), 'choice': ('.csv',),
              'tag': ('.conll', '.txt', '.bio', '.iob', '.iob2', '.tsv'),
              'span': ('.json',)}

#: {kind of task: for each of PARTS file names}, of CoNLL-2003 and SQuAD
PUBLISHED_FILES = {
    'tag': (('eng.train',), ('eng.testa',), ('eng.testb',)),
    'span': (('train-v1.1.json', 'train-v2.0.json'),
             ('dev-v1.1.json', 'dev-v2.0.json'), ())}


def task_of(name_or_task):
    if isinstance(name_or_task, Task):
        return name_or_task
    try:
        return {**TASKS, **EXTRA_TESTS}[name_or_task]
    except (KeyError, TypeError):
        raise TaskError(f'there is no task {name_or_task!r}: choose one of '
                        f'{", ".join(TASKS)}') from None


def with_extra_tests(name_or_task):
    """A list: a `Task`, then its extra tests."""
    task = task_of(name_or_task)
    return [task, *(EXTRA_TESTS[test] for test in task.extra_tests)]


def find_file_nearby(task, folder, part):
    """`find_file` in a folder or its parent; None if no file is found."""
    for candidate in (Path(folder), Path(folder).absolute().parent):
        try:
            return find_file(task, candidate, part)
        except TaskError:
            continue
    return None


def read_task(task: Any, folder: PathLike, part: str = 'train',
              columns: Any = None,
              labels: Optional[Sequence[str]] = None) -> Any:
    """Read a part of a task's data.

    task: a name in `TASKS` or `EXTRA_TESTS`, or a `Task`.

    folder: the task's folder, for example SST-2, or its parent folder, or the
    file of this part. part: 'train', 'dev' or 'test'; 'test' may lack labels.

    columns: the columns of a table in another layout than the task's, see
    `Columns.parse`. For 'tag', the columns of words (`text`) and tags
    (`label`). 'span' and SWAG accept no columns.

    labels: names of the classes or tags; other labels in the file raise an
    error. For 'dev' and 'test', give the names of the training part. None: the
    task's `labels`, or else the sorted names in the file. Where a file has
    numbers for the classes, names other than the task's are those of the
    numbers, in order. Tasks without classes or tags ignore `labels`.

    Returns `Examples`; for 'tag' `Sentences`, for 'span' `Questions` and for
    SWAG `Choices`. In GLUE's tables, tabs separate columns and quotes are
    ordinary characters. The first line is a header or the first example. For
    `Examples`, lines with missing or extra columns, or with the task's
    `no_label`, are skipped with a warning.

    MRPC is read from GLUE's files, or from msr_paraphrase_*.txt. The dev part
    of the latter is the examples that dev_ids.tsv lists, or the test part if
    dev_ids.tsv is missing. Raises `TaskError`, a ValueError.
    """
    task = task_of(task)
    if part not in PARTS:
        raise TaskError(f'there is no part {part!r}: choose one of '
                        f'{", ".join(PARTS)}')
    path = find_file(task, folder, part)
    if task.kind == 'span':
        _check_no_columns(task, columns)
        return read_squad(path)
    if task.kind == 'choice':
        _check_no_columns(task, columns)
        return read_swag(path, part)
    columns = None if columns is None else Columns.parse(columns)
    if task.kind == 'tag':
        return _read_tags(path, part, columns, labels)
    return _read_table(task, path, part, columns, labels)


def _check_no_columns(task, columns):
    if columns is not None:
        raise TaskError(f'task {task.name} has a layout of its own: leave '
                        'out --columns')


def _read_tags(path, part, columns, labels):
    if columns is None:
        return read_conll(path, names=labels)
    has_names = any(isinstance(column, str) for column in columns)
    if columns.pair is not None or columns.header or has_names:
        raise TaskError('for tagging --columns has the numbers of two '
                        'columns, as text=0,label=3, or of one, text=0, '
                        'if there are no tags')
    if columns.label is None and part != 'test':
        raise TaskError(f'--columns has no label, which part {part} needs')
    return read_conll(path, tag_column=columns.label,
                      word_column=columns.text, names=labels)


# Tables

def _read_table(task, path, part, columns, labels):
    keep_row = None     # keeps all rows
    if columns is None and (tables.uncompressed_name(path)
                            == 'msr_paraphrase_train.txt'):
        path, keep_row = _original_mrpc(path, part)
    first_rows, file_labels = tables.first_rows(path), task.file_labels
    if columns is not None:
        indices = tables.indices_of_columns(path, first_rows, columns)
    elif task.text_columns:
        indices = _column_indices(task, path, first_rows, part)
    else:
        raise TaskError(f'task {task.name} has no layout of its own: name '
                        'the columns of texts and labels by --columns, as '
                        'text=1,label=0')
    has_pairs = indices.pair is not None
    if task.pair is not None and task.pair != has_pairs:
        raise TaskError(f'task {task.name} takes ' + (
            'pairs: give pair=... in --columns' if task.pair
            else 'one text: leave pair=... out of --columns'))
    if indices.label is None and part != 'test':
        raise TaskError(
            f'{path} has no labels, which part {part} needs' + (
                f': its first line has no column {task.label_column!r}'
                if columns is None else ': give label=... in --columns'))
    labels = labels or task.labels
    # A user's table may have the class names in place of `file_labels`
    if (columns is not None and file_labels
            and _has_class_names(first_rows, indices, labels)):
        file_labels = None
    if file_labels and set(labels) <= set(task.labels):
        # The caller may give the task's own names in another order
        file_label_of = dict(zip(task.labels, file_labels))
        file_labels = [file_label_of[name] for name in labels]
    return tables.examples_of(path, indices, task.kind, labels, file_labels,
                              task.no_label, keep_row)


def _has_class_names(first_rows, indices, names):
    """True if a label in a table's `first_rows` is in `names`."""
    return indices.label is not None and any(
        cells[indices.label].strip() in names for _, cells in first_rows
        if len(cells) > indices.label)


def _original_mrpc(path, part):
    """Return (path to read, keep_row) for a part of the original MRPC.

    path: of msr_paraphrase_train.txt, which may be compressed. keep_row: as
    for `tables.examples_of`.
    """
    dev_ids = path.with_name('dev_ids.tsv')
    if dev_ids.is_file():
        # The ids of both sentences identify an example. They are columns 0
        # and 1 of dev_ids.tsv, and columns 1 and 2 of the training file
        held_out = {tuple(cells[:2]) for _, cells in tables.rows_of(dev_ids)}
        return path, lambda cells: (
            (tuple(cells[1:3]) in held_out) == (part == 'dev'))
    if part != 'dev':
        return path, None
    test_name = 'msr_paraphrase_test.txt'
    test_files = [file for file in sorted(path.parent.iterdir())
                  if tables.uncompressed_name(file) == test_name
                  and file.is_file()]
    if not test_files:
        raise TaskError(f'{path.parent} has no dev part of task mrpc: '
                        f'expected dev.tsv, dev_ids.tsv or {test_name} in it')
    path = test_files[0]
    warn(f'{path}: taken for the development part, as there is no '
         'dev_ids.tsv')
    return path, None


def _column_indices(task, path, first_rows, part):
    """The `ColumnIndices` of a task's file.

    Columns are found by their names in the header. Without a header, the
    number of columns shows which of the task's `column_orders` the file has.
    """
    synonyms, orders = dict(task.synonyms), task.column_orders
    _, first_cells = first_rows[0]
    names = [synonyms.get(cell.strip(), cell.strip()) for cell in first_cells]
    has_header = set(task.text_columns) <= set(names)
    if not has_header:
        # Of two orders with equal length, the first is for labelled parts
        # and the second for the test part. The dictionary keeps the later one
        order_of_length = {len(order): order for order in (
            orders if part == 'test' else reversed(orders))}
        names = next((order_of_length[len(cells)] for _, cells in first_rows
                      if len(cells) in order_of_length), None)
    if names is None:
        widths = dict.fromkeys(str(len(order)) for order in orders)
        raise TaskError(
            f'{path} is not laid out as task {task.name}: its first line '
            f'lacks the names {", ".join(task.text_columns)}, and none of the '
            f'first {tables.NUM_FIRST_ROWS} lines has {" or ".join(widths)} '
            f'columns{tables.with_tabs(path)}; describe another layout '
            'by --columns')
    text, *pair = [names.index(name) for name in task.text_columns]
    label = (names.index(task.label_column) if task.label_column in names
             else None)
    return tables.ColumnIndices(text, pair[0] if pair else None, label,
                                len(names), has_header)


# Files

def find_file(task, folder, part):
    """The path of a part's file; raises `TaskError` if it is missing.

    folder: as for `read_task`.
    """
    folder = Path(folder)
    if folder.is_file():
        return folder
    if not folder.is_dir():
        raise TaskError(f'there is no folder {folder}: name one that holds '
                        f'the files of task {task.name}')
    names = list(_possible_names(task, part))
    if not names:
        known = [name for name, files in zip(PARTS, task.files) if files]
        raise TaskError(f'there is no {part} part of task {task.name}: choose '
                        f'part {" or ".join(known)}')
    for task_folder in list(_possible_folders(task, folder)):
        for name in names:
            if (task_folder / name).is_file():
                return task_folder / name
    endings = tuple(compression.ending for compression in COMPRESSIONS)
    expected = (task.files[PARTS.index(part)] if task.files
                else [name for name in names if not name.endswith(endings)])
    raise TaskError(
        f'{folder} has no {part} part of task {task.name}: expected '
        f'{" or ".join(expected)} in it'
        + (f', in {folder / task.folders[0]} or in '
           f'{folder / "glue" / task.folders[0]}' if task.folders else ''))


def _possible_folders(task, folder):
    """Yield folders that may have the files of a task, by priority."""
    names = {_normalized(name) for name in task.folders}
    yield folder
    for parent in (folder, *_subfolders(folder, {'glue'})):
        yield from _subfolders(parent, names)


def _subfolders(folder, names):
    """The sorted subfolders whose `_normalized` name is one of `names`."""
    return sorted(child for child in folder.iterdir()
                  if _normalized(child.name) in names and child.is_dir())


def _normalized(name):
    """The name of a folder without case, hyphens and underscores."""
    return name.lower().replace('-', '').replace('_', '')


def _possible_names(task, part):
    """Yield possible names of a part's file, by priority; compressed last."""
    k = PARTS.index(part)
    names = [*(task.files[k] if task.files else ()),
             *PUBLISHED_FILES.get(task.kind, ((),) * 3)[k]]
    if task.name not in EXTRA_TESTS:
        names += [stem + extension for stem in STEMS[k]
                  for extension in EXTENSIONS[task.kind]]
    names = dict.fromkeys(names)    # without duplicates
    for ending in ('', *(compression.ending for compression in COMPRESSIONS)):
        yield from (name + ending for name in names)
