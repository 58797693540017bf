"""Files in CoNLL format: a word and its tag on each line.

Tjong Kim Sang and De Meulder 2003, "Introduction to the CoNLL-2003 Shared
Task: Language-Independent Named Entity Recognition".
"""
import re
from typing import NamedTuple, Optional

from d2lbert.finetuning.tasks.tables import TaskError, shown
from d2lbert.texts import text_files

DOCUMENT = '-DOCSTART-'


class Sentences(NamedTuple):
    """Sentences of words, with a tag for each word."""

    words: list                     # lists of str
    labels: Optional[list]          # lists of int; None: not given
    labels_names: Optional[tuple]   # the tags, by number
    skipped: int                    # always 0
    path: str
    impossible = has_pairs = False

    @property
    def tags(self):
        """The tags by name: lists of str, or None."""
        return self.labels and [[self.labels_names[k] for k in labels]
                                for labels in self.labels]


def read_conll(path, column=-1, word=0, labels=None):
    """The `Sentences` of a file with a word and its tag on each line.

    Spaces or tabs separate columns, and empty lines separate sentences.
    Lines that begin with -DOCSTART- are skipped.

    column: the column of the tags, from 0; negative numbers count from the
    end; None: no tags. word: the column of the words. labels: the allowed
    tags; None: the sorted tags of the file. Tags of any scheme are kept
    unchanged.

    Raises `TaskError`, with the line number, for an unknown tag or a wrong
    number of columns.
    """
    if column is not None and column == word:
        raise TaskError(f'column {word} cannot be both words and tags')
    words, tags, width, fresh = [], [], None, True
    for number, line in enumerate(text_files.lines(path), 1):
        # Split at these only: other kinds of space may be part of a word
        cells = re.findall('[^ \t\r]+', line)
        if not cells or cells[0] == DOCUMENT:
            fresh = True
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise TaskError(
                f'{path}, line {number}: {len(cells)} columns where the lines '
                f'before have {width}: expected in each line a word and its '
                'tag, and empty lines between sentences')
        if fresh:
            words.append([])
            tags.append([])
            fresh = False
        try:
            words[-1].append(cells[word])
            tags[-1].append(None if column is None
                            else (number, cells[column]))
        except IndexError:
            width = None
        if width is None or column is not None and (
                column % width == word % width):
            raise TaskError(
                f'{path}, line {number}: {len(cells)} columns; expected words '
                f'in column {word} and tags in column {column}, counted from '
                '0 (-1 is the last): say which by --columns, as '
                'text=0,label=3')
    if not words:
        raise TaskError(f'{path} has no words: expected in each line a word '
                        'and its tag')
    if column is None:
        return Sentences(words, None, labels and tuple(labels), 0, str(path))
    names = tuple(labels) if labels else tuple(sorted(
        {tag for sentence in tags for _, tag in sentence}))
    numbers = {name: k for k, name in enumerate(names)}
    for number, tag in (found for sentence in tags for found in sentence):
        if tag not in numbers:
            raise TaskError(
                f'{path}, line {number}: the tag is {shown([tag])}; expected '
                f'one of {shown(names)}')
    return Sentences(words, [[numbers[tag] for _, tag in sentence]
                             for sentence in tags], names, 0, str(path))
