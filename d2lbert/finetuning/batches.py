"""Encoded examples, windows over long texts, batches and their scores.

Devlin et al. 2018, sections 4.2 and 4.3 (answers), 5.3 (tags). The windows
overlap; which window counts for a token is as in that paper's published code.

B examples, T tokens of the longest example.
"""
from typing import Any, NamedTuple, Optional

import numpy as onp

from d2lbert.machine.backend import autograd
from d2lbert.nn.checks import on_device
from d2lbert.pretrained.heads import WHOLE
from d2lbert.texts.examples import derive_seed, pad_rows

#: Maximum numbers of examples and of tokens in a batch for scoring.
TEXTS, TOKENS = 64, 1 << 12


class Inputs(NamedTuple):
    """Encoded examples; each window of a long text is an example."""

    tokens: list        # (T,) int32 each; for C choices (C, T), padded
    segments: list      # as tokens
    labels: Any         # an array each: (), (T,) or (2,), see `heads`; or None
    notes: Any = None   # extra data of the task kind
    choice_lens: Any = None     # for choices: (C,) int32 each

    @property
    def lens(self):
        """The number of tokens of each example, (N,)."""
        return onp.array([one.size for one in self.tokens], dtype='int64')


class Batch(NamedTuple):
    """A padded batch on the host."""

    tokens_X: Any       # (B, T) int32; for choices (B, C, T)
    segments_X: Any     # as tokens_X
    valid_lens_x: Any   # (B,) int32; for choices (B, C)
    labels_Y: Any       # (B,), (B, T) or (B, 2)

    @property
    def lens(self):
        """The number of real tokens of each example, (B,)."""
        return self.valid_lens_x


def inputs_of(encoded, labels=None, notes=None):
    """The `Inputs` of tokenizer outputs, with or without labels."""
    return Inputs([onp.array(one.ids, dtype='int32') for one in encoded],
                  [onp.array(one.segments, dtype='int32') for one in encoded],
                  labels, notes)


def choices_of(encoded, count, labels=None):
    """The `Inputs` of examples with `count` consecutive texts each."""
    each = [encoded[k:k + count] for k in range(0, len(encoded), count)]

    def padded(columns):
        found = onp.zeros((count, max(map(len, columns))), 'int32')
        for row, column in zip(found, columns):
            row[:len(column)] = column
        return found
    return Inputs([padded([one.ids for one in some]) for some in each],
                  [padded([one.segments for one in some]) for some in each],
                  labels, None, [onp.array([len(one.ids) for one in some],
                                           'int32') for some in each])


def batch_of(inputs, chosen):
    """The `Batch` of the examples with these indices."""
    if inputs.choice_lens is not None:
        return _batch_of_choices(inputs, chosen)
    lens = onp.array([len(inputs.tokens[k]) for k in chosen], dtype='int32')
    # Padding is never read; token 0 is in every vocabulary
    tokens = pad_rows([inputs.tokens[k] for k in chosen])
    segments = pad_rows([inputs.segments[k] for k in chosen])
    labels = None
    if inputs.labels is not None:
        labels = [inputs.labels[k] for k in chosen]
        if onp.ndim(labels[0]) and len({len(some) for some in labels}) > 1:
            labels = [onp.pad(some, (0, tokens.shape[1] - len(some)),
                              constant_values=-1) for some in labels]
        labels = onp.array(labels)
    return Batch(tokens, segments, lens, labels)


def _batch_of_choices(inputs, chosen):
    T = max(inputs.tokens[k].shape[1] for k in chosen)

    def side_by_side(columns):
        return onp.stack([onp.pad(columns[k], (
            (0, 0), (0, T - columns[k].shape[1]))) for k in chosen])
    return Batch(side_by_side(inputs.tokens), side_by_side(inputs.segments),
                 onp.stack([inputs.choice_lens[k] for k in chosen]),
                 None if inputs.labels is None
                 else onp.array([inputs.labels[k] for k in chosen]))


def epoch_of(lens, batch_size, bucket, *seed):
    """The batches of an epoch, each an array of example indices.

    Every example is in one batch. Examples are shuffled, then sorted by
    length within each group of `bucket` batches, then cut into batches. The
    last batch may be smaller. Finally the batches are shuffled. `seed`
    determines the result.
    """
    rng = onp.random.RandomState(derive_seed('epoch', *seed))
    order = rng.permutation(len(lens))
    batches = []
    for begin in range(0, len(order), bucket * batch_size):
        some = order[begin:begin + bucket * batch_size]
        if bucket > 1:
            some = some[onp.argsort(lens[some], kind='stable')]
        batches += [some[k:k + batch_size]
                    for k in range(0, len(some), batch_size)]
    return [batches[k] for k in rng.permutation(len(batches))]


def to_score(lens):
    """Yield arrays of example indices for scoring, sorted by length."""
    order, begin = onp.argsort(lens, kind='stable'), 0
    while begin < len(order):
        count = onp.searchsorted(
            onp.cumsum(lens[order[begin:begin + TEXTS]]), TOKENS, 'right')
        yield order[begin:begin + max(1, int(count))]
        begin += max(1, int(count))


#: The label of positions without a label
IGNORED = -1


# Answers in texts

class Window(NamedTuple):
    """A question with a part of its context, an input of the net.

    The C tokens of the context are at positions first ... first + C - 1 of
    the T positions.
    """

    question: int           # index of the question
    ids: Any                # list of T numbers
    segments: Any           # list of T numbers
    first: int              # position of the first token of the context
    offsets: Any            # (C, 2) int: character range of each context token
    central: Any            # (C,) bool: of all windows with this token, this
                            # one has the most context around it
    target: Optional[tuple]     # positions of the first and last token of the
                                # answer; (0, 0): not in this window; None:
                                # unknown

    @property
    def has_answer(self):
        """True if the answer is known and is in this window."""
        return self.target not in (None, (0, 0))


class Guess(NamedTuple):
    """A predicted answer; '' for no answer."""

    text: str
    begin: int          # in characters; (0, 0) for no answer
    end: int
    score: float        # of the best span: begin score + end score
    null_score: float   # of no answer: the sum of both at position 0


class _Pieces(NamedTuple):
    ids: list
    offsets: Any        # (C, 2)


def answer_windows(tokenizer, questions, contexts, answers=None, max_len=384,
                   stride=128, max_question=64):
    """A list of the `Window`s over the contexts of questions, in order.

    questions, contexts: lists of str, equally long. answers: None, or a list
    of `Answer` for each question, [] if it has no answer. The first answer
    with a known position is the target.

    max_len: maximum of T. stride: context tokens between the starts of two
    windows. max_question: maximum tokens of a question; the rest is cut off.
    Raises ValueError if there is no room for the context.
    """
    if stride < 1 or max_question < 1:
        raise ValueError(f'stride {stride} and max_question {max_question} '
                         'must be at least 1')
    frame = _Frame(tokenizer)
    question_pieces = _pieces_of(tokenizer, questions)
    context_pieces = _pieces_of(tokenizer, contexts)
    windows = []
    for k, (question, context) in enumerate(zip(questions, contexts)):
        wanted = None if answers is None else _wanted(
            answers[k], context_pieces[context].offsets)
        windows += frame.windows(
            k, question_pieces[question].ids[:max_question],
            context_pieces[context], wanted, max_len, stride)
    return windows


def _pieces_of(tokenizer, texts):
    """{text: `_Pieces`}, without special tokens."""
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
    """(first, last) token of the answer; () for no answer, None: unknown."""
    answer = next((a for a in answers if a.begin is not None), None)
    if answer is None:
        return None if answers else ()
    first = int((offsets[:, 1] > answer.begin).argmax()) if len(
        offsets) else 0
    before = onp.flatnonzero(offsets[:, 0] < answer.end)
    last = int(before[-1]) if len(before) else -1
    # No token has a character of this answer: the tokenizer dropped them
    if first > last or offsets[first, 1] <= answer.begin:
        return None
    return first, last


class _Frame:
    """The special tokens around and between two texts."""

    def __init__(self, tokenizer):
        encoded = tokenizer.encode('a', 'a')
        inside = [word is not None for word in encoded.words]
        begin = inside.index(True)                          # of the first text
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
        # Windows must cover every token
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
    """For each of `count` tokens, the window with most context around it.

    As published, the score of a window is the smaller number of tokens on
    either side, plus 0.01 times the window's length. Ties go to the first
    window.
    """
    places = onp.arange(count)
    before = places - begins[:, None]                       # (W, C)
    behind = ends[:, None] - 1 - places
    shown = onp.minimum(before, behind) + .01 * (ends - begins)[:, None]
    return onp.where((before < 0) | (behind < 0), -1, shown).argmax(0)


def best_answers(windows, begins, ends, contexts, max_answer=30, null=False,
                 threshold=0.0):
    """The best answer to each question: a list of `Guess`.

    windows: all windows of `answer_windows`. begins, ends: the net's scores,
    for each window an array (T,) or longer. contexts: a str for each
    question. max_answer: maximum tokens of an answer. A span must begin at a
    token that is `central` in its window.

    null: True if a question may have no answer. The answer is then '' if the
    lowest score of position 0 among the windows is above the score of the
    best span plus `threshold`.
    """
    best = [(-onp.inf, 0, 0)] * len(contexts)
    null_scores = [onp.inf] * len(contexts)
    for window, begin, end in zip(windows, begins, ends):
        k, count = window.question, len(window.offsets)
        null_scores[k] = min(null_scores[k], float(begin[0] + end[0]))
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
    return [Guess('', 0, 0, score, null_score)
            if null and null_score > score + threshold or score == -onp.inf
            else Guess(context[begin:end], begin, end, score, null_score)
            for (score, begin, end), null_score, context
            in zip(best, null_scores, contexts)]


# Tags of words

def labels_of_pieces(encoded, labels):
    """A label for each position: a word's label is at its first token.

    encoded: the `Encoded` of a list of words. labels: a number for each word.
    Returns T numbers, `IGNORED` at further tokens and special tokens.
    """
    return [IGNORED if begin is None else labels[begin]
            for begin in _beginnings(encoded)]


def labels_of_words(encoded, guesses, num_words, default):
    """The label for each word: the guess at its first token.

    guesses: a number for each position of the `Encoded`. default: the label
    of words without a token, because they were cut off or the tokenizer
    drops them. Returns `num_words` numbers.
    """
    labels = [default] * num_words
    for guess, word in zip(guesses, _beginnings(encoded)):
        if word is not None:
            labels[word] = guess
    return labels


def _beginnings(encoded):
    """For each position, the word that begins there, or None."""
    last = None
    for word in encoded.words:
        yield None if word == last else word
        last = word


def outputs_of(net, inputs, devices, advance=lambda num_examples: None):
    """The scores of each example of `Inputs`, a list of host arrays.

    (K,) for whole texts, (T, K) for tokens. A batch has examples of similar
    length; padding is not computed, and dropout is off. On the same devices,
    equal inputs have bitwise equal outputs. advance: called with the number
    of examples that are ready.
    """
    found = [None] * len(inputs.tokens)
    chosen = list(to_score(inputs.lens))
    with autograd.pause():
        for begin in range(0, len(chosen), len(devices)):
            # One batch per device at a time
            waiting = [(some, *_scores(net, batch_of(inputs, some), device))
                       for some, device in zip(
                           chosen[begin:begin + len(devices)], devices)]
            for some, scores, bounds in waiting:
                scores = scores.asnumpy()
                parts = (scores if bounds is None
                         else onp.split(scores, bounds[1:-1]))
                for k, part in zip(some, parts):
                    found[k] = part
                advance(len(some))
    return found


def _scores(net, batch, device):
    """(scores on the device, bounds of each text's rows).

    bounds None: each text has one row.
    """
    X, begins, _ = encode(net, batch, device)
    if net.kind in WHOLE:
        return net.score_texts(X, begins, len(batch.tokens_X)), None
    lens = batch.lens
    bounds = onp.concatenate([[0], onp.cumsum(lens)])
    rows = onp.concatenate([onp.arange(begin, begin + length)
                            for begin, length in zip(begins, lens)])
    return net.score(X, rows), bounds


def encode(net, batch, device):
    """Run `FineTuned.encode` on a `Batch`; returns (X, begins, lens)."""
    def put(A):
        return on_device(A, device, 'int32')
    X, begins = net.encode(put(batch.tokens_X), put(batch.segments_X),
                           put(batch.valid_lens_x))
    return X, begins, batch.lens
