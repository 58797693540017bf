"""The tasks of GLUE, SNLI and SWAG, and the layout of their files.

Wang et al. 2018, "GLUE: A Multi-Task Benchmark and Analysis Platform for
Natural Language Understanding"; Bowman et al. 2015 (SNLI).
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
from d2lbert.texts.text_files import PACKINGS

__all__ = ['Choices', 'Columns', 'Examples', 'Questions', 'Sentences',
           'TASKS', 'Task', 'TaskError', 'read_task']

PARTS = 'train', 'dev', 'test'


class Task(NamedTuple):
    """A kind of labels, and the layout of the files."""

    name: str
    #: 'classify' (a class for a text or pair), 'regress' (a number), 'choice'
    #: (one of several endings), 'tag' (a class for each word) or 'span' (an
    #: answer in a text)
    kind: str
    pair: Optional[bool]        # two texts? None: depends on the columns
    labels: Optional[tuple]     # names of classes; None: as in the file
    metrics: tuple              # in `metrics`; the first selects the epoch

    # The layout
    folders: tuple = ()         # possible names of the task's folder
    files: tuple = ()           # tuples of names for PARTS, by priority
    text: tuple = ()            # names of the columns of the texts
    label: str = ''             # name of the column of labels
    written: Optional[tuple] = None     # `labels` as the files have them, if
                                        # this is different
    unlabelled: Optional[str] = None    # the label of unlabelled rows
    orders: tuple = ()          # all columns of files without header
    synonyms: tuple = ()        # (other name, name) of columns

    # The leaderboard
    submitted: str = ''         # name of the submission file
    sides: tuple = ()           # further tasks of the same model


def _glue(name, folder, labels, metrics, text, label, orders, kind='classify',
          files=((), (), ()), **layout):
    # files: for each of PARTS, further names of its file
    return Task(
        name, kind, len(text) == 2, labels, metrics, (folder, name),
        tuple((f'{part}.tsv', *more) for part, more in zip(PARTS, files)),
        text, label, orders=tuple(order.split(',') for order in orders),
        **{'submitted': f'{folder}.tsv', **layout})


def _mnli(name, kind, submitted):
    trees = ('genre,sentence1_binary_parse,sentence2_binary_parse,'
             'sentence1_parse,sentence2_parse,sentence1,sentence2')
    return _glue(
        name, 'MNLI', ('entailment', 'neutral', 'contradiction'),
        ('accuracy',), ('sentence1', 'sentence2'), 'gold_label',
        (f'index,promptID,pairID,{trees},label1,label2,label3,label4,label5,'
         'gold_label',
         f'index,promptID,pairID,{trees},label1,gold_label',
         f'index,promptID,pairID,{trees}'), unlabelled='-',
        submitted=submitted)._replace(
            folders=('MNLI', 'mnli', 'multinli_1.0'),
            files=(('train.tsv',), (f'dev_{kind}.tsv',),
                   (f'test_{kind}.tsv',)))


_BINARY = '0', '1'

#: The tasks by name. The last four read any files of a format: tables with
#: `columns`, CoNLL columns and SQuAD's JSON.
TASKS = {task.name: task for task in (
    _glue('sst2', 'SST-2', ('negative', 'positive'), ('accuracy',),
          ('sentence',), 'label', ('sentence,label', 'index,sentence'),
          written=_BINARY),
    _glue('cola', 'CoLA', ('unacceptable', 'acceptable'),
          ('matthews', 'accuracy'), ('sentence',), 'label',
          ('source,label,mark,sentence', 'index,sentence'), written=_BINARY),
    _glue('mrpc', 'MRPC', ('not_equivalent', 'equivalent'),
          ('f1', 'accuracy'), ('#1 String', '#2 String'), 'Quality',
          ('Quality,#1 ID,#2 ID,#1 String,#2 String',),
          files=(['msr_paraphrase_train.txt'], ['msr_paraphrase_train.txt'],
                 ['msr_paraphrase_test.txt']), written=_BINARY),
    _glue('qqp', 'QQP', ('not_duplicate', 'duplicate'), ('f1', 'accuracy'),
          ('question1', 'question2'), 'is_duplicate',
          ('id,qid1,qid2,question1,question2,is_duplicate',
           'id,question1,question2'), written=_BINARY),
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
          written=_BINARY),
    _mnli('mnli', 'matched', 'MNLI-m.tsv')._replace(
        sides=('mnli_mm', 'ax')),
    # The labels are in the book's order
    _glue('snli', 'SNLI', ('entailment', 'contradiction', 'neutral'),
          ('accuracy',), ('sentence1', 'sentence2'), 'gold_label',
          ('gold_label,sentence1_binary_parse,sentence2_binary_parse,'
           'sentence1_parse,sentence2_parse,sentence1,sentence2,captionID,'
           'pairID,label1,label2,label3,label4,label5',),
          files=[[f'snli_1.0_{part}.txt'] for part in PARTS],
          unlabelled='-')._replace(folders=('SNLI', 'snli_1.0'),
                                   submitted=''),
    Task('swag', 'choice', True, None, ('accuracy',), ('SWAG', 'swag'),
         (('train.csv',), ('val.csv',), ('test.csv',))),
    Task('classify', 'classify', None, None, ('accuracy',)),
    Task('regress', 'regress', None, None, ('pearson', 'spearman')),
    Task('tag', 'tag', False, None, ('entity_f1', 'entity_precision',
                                     'entity_recall', 'tag_accuracy')),
    Task('span', 'span', True, None, ('token_f1', 'exact_match')),
)}

#: Further test sets for models of MNLI: the mismatched part, whose sentences
#: are from other sources, and GLUE's diagnostic set.
SIDES = {task.name: task for task in (
    _mnli('mnli_mm', 'mismatched', 'MNLI-mm.tsv'),
    Task('ax', 'classify', True, TASKS['mnli'].labels, ('matthews',),
         ('diagnostic', 'AX', 'MNLI'),
         ((), ('diagnostic-full.tsv',),
          ('diagnostic.tsv', 'diagnostic-full.tsv')),
         ('sentence1', 'sentence2'), 'label',
         orders=tuple(order.split(',') for order in (
             'Lexical Semantics,Predicate-Argument Structure,Logic,'
             'Knowledge,Domain,sentence1,sentence2,label',
             'index,sentence1,sentence2')),
         synonyms=(('Premise', 'sentence1'), ('Hypothesis', 'sentence2'),
                   ('Label', 'label')), submitted='AX.tsv'),
)}

#: Stems and extensions of file names in other layouts
STEMS = ('train',), ('dev', 'valid', 'validation', 'val'), ('test',)
ENDINGS = {'classify': ('.tsv', '.csv', '.txt'),
           'regress': ('.tsv', '.csv', '.txt'), 'choice': ('.csv',),
           'tag': ('.conll', '.txt', '.bio', '.iob', '.iob2', '.tsv'),
           'span': ('.json',)}
FILES = {
    'tag': (('eng.train',), ('eng.testa',), ('eng.testb',)),
    'span': (('train-v1.1.json', 'train-v2.0.json'),
             ('dev-v1.1.json', 'dev-v2.0.json'), ())}


def named(task):
    """The `Task` with this name; a `Task` is returned unchanged."""
    if isinstance(task, Task):
        return task
    try:
        return SIDES[task] if task in SIDES else TASKS[task]
    except (KeyError, TypeError):
        raise TaskError(f'there is no task {task!r}: choose one of '
                        f'{", ".join(TASKS)}') from None


def answered(task):
    """The task with this name, and further tasks of the same model."""
    task = named(task)
    return [task, *(SIDES[name] for name in task.sides)]


def find_beside(task, folder, part):
    """The file of a part in the folder or its parent folder, or None."""
    for place in (Path(folder), Path(folder).absolute().parent):
        try:
            return find(task, place, part)
        except TaskError:
            continue
    return None


def read_task(task: Any, folder: PathLike, part: str = 'train',
              columns: Any = None,
              labels: Optional[Sequence[str]] = None) -> Any:
    """Read a part of a task's data.

    task: a name in `TASKS` or `SIDES`, or a `Task`.

    folder: the task's folder, for example SST-2, or its parent folder, or a
    file. part: 'train', 'dev' or 'test'; 'test' may lack labels.

    columns: the columns of a table with another layout, see `Columns.parse`.
    For 'tag', the columns of words (`text`) and tags (`label`).

    labels: names of the classes, from the training part when another part is
    read; other labels raise an error. None: the names of the task, or the
    sorted names in the file.

    Returns `Examples`; for 'tag' `Sentences`, for 'span' `Questions` and for
    SWAG `Choices`. In GLUE's tables, tabs separate columns and quotes are
    ordinary characters. The first line is a header or the first example.
    Lines that lack a column are skipped with a warning.

    MRPC is read in the layout of GLUE, or from msr_paraphrase_*.txt. In the
    latter case the development part is the list in dev_ids.tsv, or without
    it the test file. Raises `TaskError`, a ValueError.
    """
    task = named(task)
    if part not in PARTS:
        raise TaskError(f'there is no part {part!r}: choose one of '
                        f'{", ".join(PARTS)}')
    path = find(task, folder, part)
    if task.kind == 'span':
        _refuse_columns(task, columns)
        return read_squad(path)
    if task.kind == 'choice':
        _refuse_columns(task, columns)
        return read_swag(path, part)
    columns = None if columns is None else Columns.parse(columns)
    if task.kind == 'tag':
        return _read_tags(path, part, columns, labels)
    return _read_table(task, path, part, columns, labels)


def _refuse_columns(task, columns):
    if columns is not None:
        raise TaskError(f'task {task.name} has a layout of its own, in which '
                        'no columns can be chosen: leave out --columns')


def _read_tags(path, part, columns, labels):
    if columns is None:
        return read_conll(path, labels=labels)
    if (columns.pair is not None or columns.header
            or isinstance(columns.text, str)):
        raise TaskError('for tagging --columns has the numbers of two '
                        'columns, as text=0,label=3, or of one, text=0, '
                        'where there are no tags')
    if columns.label is None and part != 'test':
        raise TaskError(f'--columns has no label, which part {part} needs')
    return read_conll(path, columns.label, columns.text, labels)


# Tables

def _read_table(task, path, part, columns, labels):
    keep = None
    if columns is None and path.name == 'msr_paraphrase_train.txt':
        path, keep = _of_mrpc(path, part)
    head, written = tables.head_of(path), task.written
    if columns is not None:
        places = tables.places_by_columns(path, head, columns)
    elif task.text:
        places = _places(task, path, head, part)
    else:
        raise TaskError(f'task {task.name} has no layout of its own: say by '
                        '--columns where the texts and labels are, as '
                        'text=1,label=0')
    if task.pair is not None and task.pair != (places.pair is not None):
        raise TaskError(f'task {task.name} takes '
                        f'{"pairs: give" if task.pair else "one text: leave"} '
                        f'pair=... {"in" if task.pair else "out of"} '
                        '--columns')
    if places.label is None and part != 'test':
        raise TaskError(
            f'{path} has no labels, which part {part} needs' + (
                f': its first line has no column {task.label!r}'
                if columns is None else ': give label=... in --columns'))
    labels = labels or task.labels
    if columns is not None and written and _has_names(head, places, labels):
        written = None
    return tables.examples_of(path, places, task.kind, labels, written,
                              task.unlabelled, keep)


def _has_names(head, places, labels):
    """True if the labels in a table are the class names themselves."""
    return places.label is not None and any(
        cells[places.label].strip() in labels for _, cells in head
        if len(cells) > places.label)


def _of_mrpc(path, part):
    """MRPC's original files: (the file to read, a filter of rows or None)."""
    listed = path.with_name('dev_ids.tsv')
    if listed.is_file():
        held_out = {tuple(cells[:2]) for _, cells in tables.rows_of(listed)}
        return path, lambda cells: (
            (tuple(cells[1:3]) in held_out) == (part == 'dev'))
    if part != 'dev':
        return path, None
    path = path.with_name('msr_paraphrase_test.txt')
    if not path.is_file():
        raise TaskError(f'{path.parent} has no dev part of task mrpc: '
                        f'expected dev.tsv, dev_ids.tsv or {path.name} in it')
    warn(f'{path}: taken for the development part, as there is no '
         'dev_ids.tsv')
    return path, None


def _places(task, path, head, part):
    """The `Places` of a task, by the header or by the order of columns."""
    synonyms = dict(task.synonyms)
    names = [synonyms.get(cell.strip(), cell.strip())
             for cell in head[0][1]]
    header = set(task.text) <= set(names)
    if not header:
        # Of two orders with equal length, the first is for labelled parts,
        # the second for the test part; the last one in the dictionary wins
        orders = {len(order): order for order in (
            task.orders if part == 'test' else reversed(task.orders))}
        names = next((orders[len(cells)] for _, cells in head
                      if len(cells) in orders), None)
    if names is None:
        raise TaskError(
            f'{path} is not laid out as task {task.name}: neither has its '
            f'first line the names {", ".join(task.text)}, nor has any line '
            f'{" or ".join(str(len(order)) for order in task.orders)} columns '
            'with tabs between them; another layout is described by '
            '--columns')
    label = names.index(task.label) if task.label in names else None
    return tables.Places(
        *[names.index(name) for name in task.text],
        *[None] * (2 - len(task.text)), label, len(names), header)


# Files

def find(task, folder, part):
    """The path of a part's file; raises `TaskError` if it is missing."""
    folder = Path(folder)
    if folder.is_file():
        return folder
    if not folder.is_dir():
        raise TaskError(f'there is no folder {folder}: name one that holds '
                        f'the files of task {task.name}')
    names = list(_names(task, part))
    looked = list(_homes(task, folder))
    for home in looked:
        for name in names:
            if (home / name).is_file():
                return home / name
    expected = [name for name in names if not name.endswith(
        tuple(packing.ending for packing in PACKINGS))]
    if task.files:
        expected = expected[:len(task.files[PARTS.index(part)])]
    raise TaskError(
        f'{folder} has no {part} part of task {task.name}: expected '
        f'{" or ".join(expected)} in it'
        + (f', in {folder / task.folders[0]} or in '
           f'{folder / "glue" / task.folders[0]}' if task.folders else ''))


def _homes(task, folder):
    """Folders that may have the files of a task, by priority."""
    wanted = {_plain(name) for name in task.folders}
    yield folder
    for parent in (folder, *_children(folder, {'glue'})):
        yield from _children(parent, wanted)


def _children(folder, wanted):
    return sorted(child for child in folder.iterdir()
                  if _plain(child.name) in wanted and child.is_dir())


def _plain(name):
    return name.lower().replace('-', '').replace('_', '')


def _names(task, part):
    """Possible names of a part's file, by priority, packed ones last."""
    k = PARTS.index(part)
    names = [*(task.files[k] if task.files else ()),
             *FILES.get(task.kind, ((),) * 3)[k]]
    if task.name not in SIDES:
        names += [stem + ending for stem in STEMS[k]
                  for ending in ENDINGS[task.kind]]
    for packed in ('', *(packing.ending for packing in PACKINGS)):
        yield from (name + packed for name in dict.fromkeys(names))
