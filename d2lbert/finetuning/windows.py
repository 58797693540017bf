"""Pieces and what they stand for: windows over texts, words' tags.

Devlin et al. 2018, sections 4.2 and 4.3 (answers), 5.3 (tags); windows that
overlap and which of them speaks for a piece: the paper's published code.
"""
from typing import Any, NamedTuple, Optional

import numpy as onp

#: The label of places that have none
IGNORED = -1


# Answers out of texts

class Window(NamedTuple):
    """A question with a part of its context, as the net takes it.

    The C pieces of the context stand in places first ... first + C - 1 of
    the T.
    """

    question: int           # its number
    ids: Any                # list of T numbers
    segments: Any           # list of T numbers
    first: int              # place of the first piece of the context
    offsets: Any            # (C, 2) int, their characters in the context
    central: Any            # (C,) bool: no window shows more on both sides
    target: Optional[tuple]     # places of the answer's first and last piece;
                                # (0, 0): the answer is not in this window;
                                # None: not known

    @property
    def has_answer(self):
        """Whether the answer is known, and in this window."""
        return self.target not in (None, (0, 0))


class Guess(NamedTuple):
    """An answer out of a context; '' for none."""

    text: str
    begin: int          # in characters of the context; (0, 0) for none
    end: int
    score: float        # of the best span: begin's and end's, added
    null_score: float   # of there being no answer: those of place 0, added


class _Pieces(NamedTuple):
    ids: list
    offsets: Any        # (C, 2)


def answer_windows(tokenizer, questions, contexts, answers=None, max_len=384,
                   stride=128, max_question=64):
    """The `Window`s over the contexts of questions, in order: a list.

    questions, contexts: str, as many. answers: lists of `Answer` for each
    question (the first that has a place is the target; [] if the question
    has no answer), or None. max_len: T at most. stride: pieces of the
    context between the beginnings of two windows (which overlap by what
    else they hold). max_question: pieces of a question at most, the rest is
    cut off. Raises ValueError if there is no room for the context.
    """
    if stride < 1 or max_question < 1:
        raise ValueError(f'stride {stride} and max_question {max_question} '
                         'must be at least 1')
    frame = _Frame(tokenizer)
    asked = _pieces_of(tokenizer, questions)
    spoken = _pieces_of(tokenizer, contexts)
    windows = []
    for k, (question, context) in enumerate(zip(questions, contexts)):
        wanted = None if answers is None else _wanted(
            answers[k], spoken[context].offsets)
        windows += frame.windows(
            k, asked[question].ids[:max_question], spoken[context], wanted,
            max_len, stride)
    return windows


def _pieces_of(tokenizer, texts):
    """{text: its `_Pieces`, without special tokens}."""
    texts = list(dict.fromkeys(texts))
    found = {}
    for k in range(0, len(texts), 1024):
        some = texts[k:k + 1024]
        for text, encoded in zip(some, tokenizer.encode_batch(some)):
            inside = [t for t, word in enumerate(encoded.words)
                      if word is not None]
            found[text] = _Pieces(
                [encoded.ids[t] for t in inside],
                onp.array([encoded.offsets[t] for t in inside],
                          'i4').reshape(-1, 2))
    return found


def _wanted(answers, offsets):
    """(First, last) piece of the answer; () if there is none, None unknown.
    """
    answer = next((a for a in answers if a.begin is not None), None)
    if answer is None:
        return None if answers else ()
    first = int((offsets[:, 1] > answer.begin).argmax()) if len(
        offsets) else 0
    before = onp.flatnonzero(offsets[:, 0] < answer.end)
    last = int(before[-1]) if len(before) else -1
    # Of characters that the tokenizer passes over there is no piece
    if first > last or offsets[first, 1] <= answer.begin:
        return None
    return first, last


class _Frame:
    """The special tokens around and between two texts."""

    def __init__(self, tokenizer):
        encoded = tokenizer.encode('a', 'a')
        inside = [word is not None for word in encoded.words]
        begin = inside.index(True)                          # of the first
        middle = inside.index(False, begin)
        second = inside.index(True, middle)
        tail = inside.index(False, second)
        self.parts = [(encoded.ids[i:j], encoded.segments[i:j])
                      for i, j in ((0, begin), (middle, second),
                                   (tail, None))]
        self.segments = encoded.segments[begin], encoded.segments[second]
        self.size = sum(len(ids) for ids, _ in self.parts)

    def windows(self, number, question, context, wanted, max_len, stride):
        room, count = max_len - self.size - len(question), len(context.ids)
        if room < 1:
            raise ValueError(
                f'max_len {max_len} leaves no place for the context beside '
                f'{self.size} special tokens and a question of '
                f'{len(question)} pieces')
        # No piece may fall between two windows
        step = min(stride, room)
        begins = onp.arange(0, max(count - room, 0) + step, step)
        ends = onp.minimum(begins + room, count)
        central = _central(begins, ends, count)
        (head, seg_h), (middle, seg_m), (tail, seg_t) = self.parts
        first = len(head) + len(question) + len(middle)
        for k, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist())):
            target = None if wanted is None else (0, 0)
            if wanted and begin <= wanted[0] and wanted[1] < end:
                target = tuple(first - begin + place for place in wanted)
            yield Window(
                number,
                [*head, *question, *middle, *context.ids[begin:end], *tail],
                [*seg_h, *[self.segments[0]] * len(question), *seg_m,
                 *[self.segments[1]] * (end - begin), *seg_t],
                first, context.offsets[begin:end],
                central[begin:end] == k, target)


def _central(begins, ends, count):
    """For each of `count` pieces the window that shows most around it.

    As published: the fewer of the pieces before and behind it count, and a
    hundredth of the window's length; the first of equals.
    """
    places = onp.arange(count)
    before = places - begins[:, None]                       # (W, C)
    behind = ends[:, None] - 1 - places
    shown = onp.minimum(before, behind) + .01 * (ends - begins)[:, None]
    return onp.where((before < 0) | (behind < 0), -1, shown).argmax(0)


def best_answers(windows, begins, ends, contexts, max_answer=30, null=False,
                 threshold=0.0):
    """The best answer to each question: a list of `Guess`.

    windows: of `answer_windows`, all of them. begins, ends: the net's scores
    for each place of each window, as many arrays, (T,) or longer. contexts:
    str, one for each question. max_answer: pieces of an answer at most.
    null: whether there may be none; then there is none where place 0, in the
    window where it scores least, scores more than the best span and
    `threshold` together. A span begins where its window is `central`.
    """
    best = [(-onp.inf, 0, 0)] * len(contexts)
    none = [onp.inf] * len(contexts)
    for window, begin, end in zip(windows, begins, ends):
        k, count = window.question, len(window.offsets)
        none[k] = min(none[k], float(begin[0] + end[0]))
        place = slice(window.first, window.first + count)
        begin = onp.where(window.central, onp.asarray(begin[place], 'f8'),
                          -onp.inf)
        end = onp.asarray(end[place], 'f8')
        for more in range(min(max_answer, count)):
            scores = begin[:count - more] + end[more:]
            at = int(scores.argmax())
            if scores[at] > best[k][0]:
                best[k] = (float(scores[at]), int(window.offsets[at, 0]),
                           int(window.offsets[at + more, 1]))
    return [Guess('', 0, 0, score, no)
            if null and no > score + threshold or score == -onp.inf else
            Guess(context[begin:end], begin, end, score, no)
            for (score, begin, end), no, context
            in zip(best, none, contexts)]


# Words' tags

def labels_of_pieces(encoded, labels):
    """A label for each place: that of a word at its first piece.

    encoded: the `Encoded` of a list of words. labels: a number for each word.
    Gives T numbers, `IGNORED` at further pieces and special tokens.
    """
    return [IGNORED if begin is None else labels[begin]
            for begin in _beginnings(encoded)]


def labels_of_words(encoded, guesses, num_words, default):
    """The label for each word: the guess at its first piece.

    guesses: a number for each place of the `Encoded`. default: the label of
    words that have no place there, because they lie behind its end or the
    tokenizer has no piece of them. Gives `num_words` numbers.
    """
    labels = [default] * num_words
    for guess, word in zip(guesses, _beginnings(encoded)):
        if word is not None:
            labels[word] = guess
    return labels


def _beginnings(encoded):
    """For each place the word that begins there, or None."""
    last = None
    for word in encoded.words:
        yield None if word == last else word
        last = word
