"""SQuAD's JSON: questions about texts, answered by spans of the texts.

Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension
of Text", and 2018, "Know What You Don't Know" (2.0, where a question may
have no answer).
"""
import json
from typing import NamedTuple, Optional

from d2lbert.finetuning.tasks.tables import TaskError
from d2lbert.machine.files import parse_json
from d2lbert.machine.terminal import warn
from d2lbert.texts import text_files


class Answer(NamedTuple):
    """An answer, with its position in the context."""

    text: str
    begin: Optional[int]    # in characters; None: not in the context

    @property
    def end(self):
        """The position after the last character, or None."""
        return None if self.begin is None else self.begin + len(self.text)


class Questions(NamedTuple):
    """Questions, each about one context."""

    questions: list             # str
    contexts: list              # str, one for each question
    answers: Optional[list]     # lists of `Answer`, [] if unanswerable;
                                # None: the file has no answers
    ids: list                   # str
    impossible: bool            # True if questions may be unanswerable
    skipped: int                # questions whose answers are not at the
                                # given positions
    path: str
    labels_names, has_pairs = None, True


def read_squad(path):
    """The `Questions` of a file of SQuAD 1.1 or 2.0.

    Raises `TaskError`, with the position in the file, for another structure.
    If the context does not have an answer at the given position, the answer
    is kept without a position, for scoring only. A warning gives the number
    of questions without any other answer.
    """
    try:
        whole = parse_json(text_files.whole(path))
    except json.JSONDecodeError as error:
        raise TaskError(f'{path}, line {error.lineno}: no JSON ({error.msg} '
                        f'at column {error.colno}): fetch it again') from None
    except text_files.TextFileError:
        raise
    except ValueError as error:
        raise TaskError(f'{path} is no file of SQuAD: {error}') from None
    look = _Look(path)
    questions, contexts, answers, ids = [], [], [], []
    impossible = False
    for article, at in look.each(whole, 'data', 'the file'):
        for paragraph, at_p in look.each(article, 'paragraphs', at):
            context = look.text(paragraph, 'context', at_p)
            for qa, at_q in look.each(paragraph, 'qas', at_p):
                questions.append(look.text(qa, 'question', at_q))
                contexts.append(context)
                ids.append(look.text(qa, 'id', at_q))
                impossible |= 'is_impossible' in qa
                answers.append([] if qa.get('is_impossible') is True else
                               None if 'answers' not in qa else
                               look.answers(qa, context, at_q))
    if not questions:
        raise TaskError(f'{path} has no questions')
    if len(set(ids)) < len(ids):
        seen = set()
        twice = next(i for i in ids if i in seen or seen.add(i))
        raise TaskError(f'{path} has two questions with the id {twice!r}')
    skipped = sum(bool(some) and all(a.begin is None for a in some)
                  for some in answers)
    if skipped:
        warn(f'{path}: the answers of {skipped:,} questions are not at their '
             'places in the text; they are not trained on')
    if None in answers:
        if any(some is not None for some in answers):
            raise TaskError(f'{path}: question {ids[answers.index(None)]!r} '
                            "has no 'answers', and others have")
        answers = None
    impossible |= answers is not None and [] in answers
    return Questions(questions, contexts, answers, ids, impossible, skipped,
                     str(path))


class _Look:
    """Access to parsed JSON; raises `TaskError` for a missing value."""

    def __init__(self, path):
        self.path = path

    def _refuse(self, at, what):
        raise TaskError(f'{self.path}: {at} {what}, which SQuAD\'s layout '
                        'has: data, paragraphs, context, qas, question, id, '
                        'answers with text and answer_start')

    def each(self, parent, key, at):
        """The objects in a list, each with a description of its position."""
        children = parent.get(key) if isinstance(parent, dict) else None
        if not isinstance(children, list):
            self._refuse(at, f'has no list {key!r}')
        for k, child in enumerate(children, 1):
            where = f'{key} {k}' + ('' if at == 'the file' else f' of {at}')
            if not isinstance(child, dict):
                self._refuse(where, 'is no object')
            yield child, where

    def text(self, parent, key, at):
        value = parent.get(key)
        if key == 'id' and type(value) is int:
            value = str(value)
        if not isinstance(value, str):
            self._refuse(at, f'has no text {key!r}')
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise TaskError(
                f'{self.path}: {at} has in its {key!r} half of a character, '
                f'{value[error.start]!a}, which is no text') from None
        return value

    def answers(self, qa, context, at):
        found = []
        for answer, at_a in self.each(qa, 'answers', at):
            text = self.text(answer, 'text', at_a)
            begin = answer.get('answer_start')
            if type(begin) is not int:
                self._refuse(at_a, "has no number 'answer_start'")
            there = 0 <= begin and text and context.startswith(text, begin)
            found.append(Answer(text, begin if there else None))
        return found
