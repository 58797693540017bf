"""SWAG: a situation with four endings, one of them right.

Zellers et al. 2018, "SWAG: A Large-Scale Adversarial Dataset for Grounded
Commonsense Inference". Its files are train.csv, val.csv and test.csv.
"""
from typing import NamedTuple, Optional

from d2lbert.finetuning.tasks import tables
from d2lbert.finetuning.tasks.tables import TaskError

#: Columns of a file: the first sentence, the start of the second sentence, its
#: endings, and the number of the right ending.
FIRST, SECOND, LABEL = 'sent1', 'sent2', 'label'
ENDINGS = tuple(f'ending{k}' for k in range(4))


class Choices(NamedTuple):
    """Texts, each with several possible endings."""

    texts: list             # str
    endings: list           # a tuple of str each, of equal length
    labels: Optional[list]  # int: the right ending; None: not given
    skipped: int            # number of lines without an example
    path: str
    labels_names, impossible, has_pairs = None, False, True


def read_swag(path, part='train'):
    """The `Choices` of a file of SWAG.

    The second text of each pair is `sent2` and an ending. The columns are
    found by their names in the first line. part: 'test' may lack labels.
    Raises `TaskError`, a ValueError.
    """
    rows = tables.rows_of(path)
    _, head = next(rows, (1, []))
    head = [name.strip() for name in head]
    needed = [FIRST, SECOND, *ENDINGS]
    if part != 'test':
        needed.append(LABEL)
    lacking = [name for name in needed if name not in head]
    if lacking:
        raise TaskError(
            f'{path} is not laid out as task swag: its first line has no '
            f'column {", ".join(lacking)}; expected the CSV file as published')
    places = {name: head.index(name) for name in (*needed, LABEL)
              if name in head}
    texts, endings, labels = [], [], []
    for number, cells in rows:
        if len(cells) != len(head):
            raise TaskError(
                f'{path}, line {number}: there are {len(cells)} columns, and '
                f'the first line names {len(head)}: take the file as '
                'published')
        found = {name: cells[place].strip()
                 for name, place in places.items()}
        texts.append(found[FIRST])
        endings.append(tuple(f'{found[SECOND]} {found[name]}'.strip()
                             for name in ENDINGS))
        if LABEL in places:
            labels.append((number, found[LABEL]))
    if not texts:
        raise TaskError(f'{path} has a header and no examples')
    return Choices(texts, endings, tables.numbered_labels(
        path, labels, [str(k) for k in range(len(ENDINGS))])
        if LABEL in places else None, 0, str(path))
