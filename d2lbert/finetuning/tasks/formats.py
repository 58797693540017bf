"""Read files in the formats of CoNLL-2003, SQuAD and SWAG.

CoNLL-2003 has a word and its tag on each line (Tjong Kim Sang and De Meulder
2003). SQuAD's JSON has questions about texts, answered by spans of the texts
(Rajpurkar et al. 2016; 2018 for 2.0, where a question may have no answer).
SWAG has situations with four endings, one of them right (Zellers et al. 2018).
"""
import itertools
import json
import re
from typing import NamedTuple, Optional

from d2lbert.finetuning.tasks import tables
from d2lbert.finetuning.tasks.tables import TaskError, name_list
from d2lbert.machine.files import parse_json
from d2lbert.machine.terminal import warn
from d2lbert.texts import text_files

#: The first word of the line before each document of CoNLL-2003
DOCUMENT = '-DOCSTART-'


class Sentences(NamedTuple):
    """Sentences of words, with a tag for each word."""

    words: list                     # lists of str, one for each sentence
    labels: Optional[list]          # lists of indices into labels_names; None:
                                    # not given
    labels_names: Optional[tuple]   # the tags, by index
    skipped: int                    # always 0
    path: str                       # of the file, for messages
    impossible = has_pairs = False  # as in `Questions` and `Examples`

    @property
    def tags(self):
        """A list of tag names for each sentence; None: not given."""
        if self.labels is None:
            return None
        return [[self.labels_names[k] for k in indices]
                for indices in self.labels]


def read_conll(path, tag_column=-1, word_column=0, names=None):
    """The `Sentences` of a file with a word and its tag on each line.

    Spaces or tabs separate columns. Empty lines, and lines whose first word is
    -DOCSTART-, separate sentences.

    tag_column, word_column: numbers of columns, from 0; -1 is the last column.
    tag_column=None reads no tags. names: the allowed tags; None: the sorted
    tags of the file.

    Raises `TaskError` for a tag that is not allowed, for wrong columns, and
    for a file without words.
    """
    if tag_column is not None and tag_column == word_column:
        raise TaskError(f'column {word_column} cannot be both words and tags')
    words = []      # a list for each sentence
    tags = []       # likewise, of (line number, tag) or, without tags, None
    width = None    # number of columns
    begins_sentence = True
    for number, line in enumerate(text_files.lines(path), 1):
        # Not str.split: other kinds of space may be part of a word
        cells = re.findall('[^ \t\r]+', line)
        if not cells or cells[0] == DOCUMENT:
            begins_sentence = True
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise TaskError(
                f'{path}, line {number}: {len(cells)} columns where the lines '
                f'before have {width}: expected in each line a word and its '
                'tag, and empty lines between sentences')
        if begins_sentence:
            words.append([])
            tags.append([])
            begins_sentence = False
        try:
            words[-1].append(cells[word_column])
            tags[-1].append(None if tag_column is None
                            else (number, cells[tag_column]))
            has_columns = True
        except IndexError:
            has_columns = False
        # A negative and a positive number may name the same column
        is_same_column = tag_column is not None and (
            tag_column % width == word_column % width)
        if not has_columns or is_same_column:
            tags_place = ('' if tag_column is None
                          else ' and tags in the last column'
                          if tag_column == -1
                          else f' and tags in column {tag_column}')
            raise TaskError(
                f'{path}, line {number}: {len(cells)} columns; expected words '
                f'in column {word_column}{tags_place}, '
                'counted from 0: give their numbers by --columns, as '
                'text=0,label=3')
    if not words:
        raise TaskError(f'{path} has no words: expected in each line a word '
                        'and its tag')
    if tag_column is None:
        return Sentences(words, None, names and tuple(names), 0, str(path))
    names = tuple(names) if names else tuple(sorted(
        {tag for sentence in tags for _, tag in sentence}))
    index_of = {name: k for k, name in enumerate(names)}
    for number, tag in itertools.chain.from_iterable(tags):
        if tag not in index_of:
            raise TaskError(
                f'{path}, line {number}: the tag is {name_list([tag])}; '
                f'expected one of {name_list(names)}')
    return Sentences(words, [[index_of[tag] for _, tag in sentence]
                             for sentence in tags], names, 0, str(path))


class Answer(NamedTuple):
    """An answer, equal to context[begin:end] unless `begin` is None."""

    text: str
    begin: Optional[int]    # None: unknown

    @property
    def end(self):
        return None if self.begin is None else self.begin + len(self.text)


class Questions(NamedTuple):
    """Questions, each about one context; lists have one entry a question."""

    questions: list             # str
    contexts: list              # str
    answers: Optional[list]     # lists of `Answer`, [] if unanswerable;
                                # None: the file has no answers
    ids: list                   # str
    impossible: bool            # True if questions may be unanswerable
    skipped: int                # number of questions with answers, of which
                                # none has a known position
    path: str                   # of the file, for messages
    labels_names, has_pairs = None, True    # as in `Examples`


def read_squad(path):
    """The `Questions` of a file of SQuAD 1.1 or 2.0.

    An answer that the context does not have at the given position is kept
    without a position, for scoring only. Raises `TaskError` if the file has
    another structure.
    """
    try:
        content = parse_json(text_files.read_text(path))
    except json.JSONDecodeError as error:
        raise TaskError(f'{path}, line {error.lineno}: no JSON ({error.msg} '
                        f'at column {error.colno}): fetch it again') from None
    except text_files.TextFileError:    # a ValueError that names the file
        raise
    except ValueError as error:
        raise TaskError(f'{path} is no file of SQuAD: {error}') from None
    reader = _JSONReader(path)
    questions, contexts, answers, ids = [], [], [], []
    impossible = False
    # at_...: see `at` in `_JSONReader`
    for article, at_article in reader.objects(content, 'data', 'the file'):
        for paragraph, at_paragraph in reader.objects(article, 'paragraphs',
                                                      at_article):
            context = reader.text(paragraph, 'context', at_paragraph)
            for qa, at_qa in reader.objects(paragraph, 'qas', at_paragraph):
                questions.append(reader.text(qa, 'question', at_qa))
                contexts.append(context)
                ids.append(reader.text(qa, 'id', at_qa))
                # SQuAD 2.0 has this key for all questions, SQuAD 1.1 for none
                impossible |= 'is_impossible' in qa
                answers.append(reader.answers(qa, context, at_qa))
    if not questions:
        raise TaskError(f'{path} has no questions')
    seen = set()
    for qa_id in ids:
        if qa_id in seen:
            raise TaskError(f'{path} has two questions with the id {qa_id!r}')
        seen.add(qa_id)
    skipped = sum(bool(accepted) and all(a.begin is None for a in accepted)
                  for accepted in answers)
    if skipped:
        warn(f'{path}: the answers of {skipped:,} questions are not at their '
             'places in the text; these questions are not trained on')
    if None in answers:
        if any(accepted is not None for accepted in answers):
            raise TaskError(f'{path}: question {ids[answers.index(None)]!r} '
                            "has no 'answers', and others have")
        answers = None
    impossible |= answers is not None and [] in answers
    return Questions(questions, contexts, answers, ids, impossible, skipped,
                     str(path))


class _JSONReader:
    """Reads values of SQuAD's JSON; raises `TaskError` for invalid values.

    at: in all methods, a name in messages for the JSON object that is read,
    such as 'qas 3 of paragraphs 1 of data 2'.
    """

    def __init__(self, path):
        self.path = path

    def _raise_error(self, at, problem):
        raise TaskError(f'{self.path}: {at} {problem}: SQuAD\'s layout has '
                        'data, paragraphs, context, qas, question, id, and '
                        'answers with text and answer_start')

    def objects(self, parent, key, at):
        """Yield the objects in the list parent[key], each with its name."""
        children = parent.get(key) if isinstance(parent, dict) else None
        if not isinstance(children, list):
            self._raise_error(at, f'has no list {key!r}')
        for k, child in enumerate(children, 1):
            at_child = f'{key} {k}' + ('' if at == 'the file' else f' of {at}')
            if not isinstance(child, dict):
                self._raise_error(at_child, 'is no object')
            yield child, at_child

    def text(self, parent, key, at):
        """The str parent[key]; an id may be a whole number in the file."""
        value = parent.get(key)
        if key == 'id' and type(value) is int:
            value = str(value)
        if not isinstance(value, str):
            self._raise_error(at, f'has no text {key!r}')
        try:
            value.encode()      # only to find half of a surrogate pair
        except UnicodeEncodeError as error:
            raise TaskError(
                f'{self.path}: the {key!r} of {at} has half of a character, '
                f'{value[error.start]!a}, which is no text') from None
        return value

    def answers(self, qa, context, at):
        """`Answer`s of `qa`; [] if unanswerable, None without 'answers'."""
        if qa.get('is_impossible') is True:
            return []
        if 'answers' not in qa:
            return None
        answers = []
        for answer, at_answer in self.objects(qa, 'answers', at):
            text = self.text(answer, 'text', at_answer)
            begin = answer.get('answer_start')
            if type(begin) is not int:
                self._raise_error(at_answer, "has no number 'answer_start'")
            is_there = 0 <= begin and text and context.startswith(text, begin)
            answers.append(Answer(text, begin if is_there else None))
        return answers


#: Columns of SWAG's files: the first sentence, the beginning of the second
#: sentence, the index of the right ending, and the endings
FIRST, SECOND, LABEL = 'sent1', 'sent2', 'label'
ENDINGS = tuple(f'ending{k}' for k in range(4))


class Choices(NamedTuple):
    """Texts, each with several endings; lists have one entry a text."""

    texts: list             # str
    endings: list           # equally long tuples of str
    labels: Optional[list]  # index of the right ending; None: not given
    skipped: int            # always 0
    path: str               # of the file, for messages
    labels_names, impossible, has_pairs = None, False, True # as in `Examples`


def read_swag(path, part='train'):
    """The `Choices` of a file of SWAG.

    Each ending is the column `sent2` followed by a column of `ENDINGS`. part:
    'train', 'dev' or 'test'; only 'test' may lack labels. Raises `TaskError`.
    """
    rows = tables.rows_of(path)
    _, first_row = next(rows, (1, []))
    column_names = [name.strip() for name in first_row]
    has_labels = LABEL in column_names
    needed = [FIRST, SECOND, *ENDINGS]
    if has_labels or part != 'test':
        needed.append(LABEL)
    missing = [name for name in needed if name not in column_names]
    if missing:
        raise TaskError(
            f'{path} is not laid out as task swag: its first line has no '
            f'column {", ".join(missing)}; expected the CSV file as published')
    column_of = {name: column_names.index(name) for name in needed}
    texts, endings = [], []
    lines_labels = []       # (line number, label) of each example
    for number, cells in rows:
        if len(cells) != len(column_names):
            raise TaskError(
                f'{path}, line {number}: there are {len(cells)} columns, and '
                f'the first line names {len(column_names)}: take the file '
                'as published')
        row = {name: cells[k].strip() for name, k in column_of.items()}
        texts.append(row[FIRST])
        endings.append(tuple(f'{row[SECOND]} {row[name]}'.strip()
                             for name in ENDINGS))
        if has_labels:
            lines_labels.append((number, row[LABEL]))
    if not texts:
        raise TaskError(f'{path} has a header and no examples')
    labels = None
    if has_labels:
        labels = tables.class_indices(
            path, lines_labels, [str(k) for k in range(len(ENDINGS))])
    return Choices(texts, endings, labels, 0, str(path))
