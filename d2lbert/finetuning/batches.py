"""Make batches of encoded examples, score them, and decode the predictions.

A long context of a question is cut into overlapping windows, and each window
is an example (Devlin et al. 2018, sections 4.2 and 4.3, and the published
code). A tag is predicted at the first token of a word (section 5.3). 'choice',
'tag' and 'span' are kinds of tasks, see `Task` (tasks/catalog.py). An
`Encoded` is the result of a tokenizer (pretrained/tokenizers/).

Numbers: N examples, B examples in a batch, T tokens in an example or in the
longest example of a batch, C texts to choose from, K scores of a text or of a
token, W windows over a context, M tokens of a context, m of them in a window.
"""
from typing import Any, NamedTuple, Optional

import numpy as onp

from d2lbert.machine.backend import autograd
from d2lbert.nn.checks import on_device
from d2lbert.pretrained.heads import TEXT_KINDS
from d2lbert.texts.examples import derive_seed, pad_rows

#: Limits of a batch for scoring, see `scoring_batches`
MAX_EXAMPLES, MAX_TOKENS = 64, 1 << 12

#: The label of a token that has no tag
IGNORED = -1


class Inputs(NamedTuple):
    """N encoded examples: each field has N entries, or is None.

    The comments describe one entry.
    """

    tokens: list        # (T,) int32; for 'choice' (C, T), padded
    segments: list      # like tokens
    labels: Any         # a number; for 'tag' (T,), for 'span' (2,), see
                        # `FineTuned.losses` in pretrained/heads.py
    sources: Any = None     # for 'tag' the `Encoded` of a sentence, for 'span'
                            # the `Window`; None for other kinds
    choice_lens: Any = None     # for 'choice' (C,) int32, the number of tokens
                                # of each text

    @property
    def lens(self):
        """(N,) numbers of tokens; for 'choice' of all C texts with padding."""
        return onp.array([ids.size for ids in self.tokens], dtype='int64')


class Batch(NamedTuple):
    """A padded batch on the host."""

    tokens_X: Any       # (B, T) int32; for 'choice' (B, C, T)
    segments_X: Any     # like tokens_X
    valid_lens_x: Any   # (B,) int32; for 'choice' (B, C)
    labels_Y: Any       # (B,), for 'tag' (B, T), for 'span' (B, 2); None: no
                        # labels


def inputs_of(encoded, labels=None, sources=None):
    """Make `Inputs` of an `Encoded` or a `Window` for each example."""
    return Inputs([onp.array(one.ids, dtype='int32') for one in encoded],
                  [onp.array(one.segments, dtype='int32') for one in encoded],
                  labels, sources)


def choice_inputs(encoded, num_choices, labels=None):
    """The `Inputs` of examples with `num_choices` texts each.

    encoded: a list of the `Encoded` of all texts, example after example.
    """
    groups = [encoded[k:k + num_choices]
              for k in range(0, len(encoded), num_choices)]
    return Inputs(
        [pad_rows([one.ids for one in group]) for group in groups],
        [pad_rows([one.segments for one in group]) for group in groups],
        labels, choice_lens=[
            onp.array([len(one.ids) for one in group], 'int32')
            for group in groups])


def batch_of(inputs, indices):
    """The `Batch` of the examples at `indices` of `Inputs`."""
    if inputs.choice_lens is not None:
        return _batch_of_choices(inputs, indices)
    lens = onp.array([len(inputs.tokens[k]) for k in indices], dtype='int32')
    # Padding changes no score, and every vocabulary has token 0
    tokens = pad_rows([inputs.tokens[k] for k in indices])
    segments = pad_rows([inputs.segments[k] for k in indices])
    labels = None
    if inputs.labels is not None:
        labels = [inputs.labels[k] for k in indices]
        is_array = onp.ndim(labels[0]) > 0      # for 'tag' and 'span'
        if is_array and len(set(map(len, labels))) > 1:     # only for 'tag'
            labels = [onp.pad(tags, (0, tokens.shape[1] - len(tags)),
                              constant_values=IGNORED) for tags in labels]
        labels = onp.array(labels)
    return Batch(tokens, segments, lens, labels)


def _batch_of_choices(inputs, indices):
    T = max(inputs.tokens[k].shape[1] for k in indices)

    def pad_and_stack(arrays):      # to (B, C, T)
        return onp.stack([
            onp.pad(arrays[k], ((0, 0), (0, T - arrays[k].shape[1])))
            for k in indices])
    labels = None
    if inputs.labels is not None:
        labels = onp.array([inputs.labels[k] for k in indices])
    return Batch(pad_and_stack(inputs.tokens), pad_and_stack(inputs.segments),
                 onp.stack([inputs.choice_lens[k] for k in indices]), labels)


def shuffled_batches(lens, batch_size, bucket, *seed):
    """The batches of an epoch, each an array of example indices.

    lens (N,): the number of tokens of each example. Only one batch may be
    smaller than batch_size. bucket: the number of batches whose examples are
    sorted by length together; 1: no sorting. seed: any values; equal arguments
    give equal batches.
    """
    rng = onp.random.RandomState(derive_seed('epoch', *seed))
    order = rng.permutation(len(lens))
    batches, group_size = [], bucket * batch_size
    for begin in range(0, len(order), group_size):
        group = order[begin:begin + group_size]
        if bucket > 1:
            group = group[onp.argsort(lens[group], kind='stable')]
        batches += [group[k:k + batch_size]
                    for k in range(0, len(group), batch_size)]
    return [batches[k] for k in rng.permutation(len(batches))]


def scoring_batches(lens):
    """Yield the batches for scoring, each an array of example indices.

    lens (N,): the number of tokens of each example. The examples are sorted by
    length, so that batches need little padding. A batch has at most
    MAX_EXAMPLES examples, whose lens sum to at most MAX_TOKENS. A longer
    example is a batch alone.
    """
    order, begin = onp.argsort(lens, kind='stable'), 0
    while begin < len(order):
        total_tokens = onp.cumsum(lens[order[begin:begin + MAX_EXAMPLES]])
        size = max(1, int(onp.searchsorted(total_tokens, MAX_TOKENS, 'right')))
        yield order[begin:begin + size]
        begin += size


# Answers in texts

class Window(NamedTuple):
    """A question and a part of its context, encoded as inputs of the net."""

    question_index: int
    ids: Any                # list of T token ids
    segments: Any           # list of T numbers, 0 or 1
    context_begin: int      # position in ids of the first context token
    offsets: Any            # (m, 2) int: (begin, end) of each context token in
                            # characters of the context
    is_central: Any         # (m,) bool: True if `_central_windows` chooses
                            # this window for the token
    target: Optional[tuple]     # positions in ids of the answer's first and
                                # last token; (0, 0): there is no answer, or
                                # this window lacks a part of it; None: the
                                # position of the answer is unknown


class Guess(NamedTuple):
    """A predicted answer; '' for no answer."""

    text: str
    begin: int          # in characters of the context; 0 for no answer
    end: int            # likewise, the position after the last character
    score: float        # begin score + end score of the best span
    null_score: float   # score of no answer: the lowest begin score + end
                        # score of position 0 among the windows


class _TextTokens(NamedTuple):
    """The M tokens of a question or context, without special tokens."""

    ids: list
    offsets: Any        # (M, 2) int: (begin, end) in characters


def answer_windows(tokenizer, questions, contexts, answers=None, max_len=384,
                   stride=128, max_question=64):
    """List the `Window`s over the contexts, in the order of the questions.

    questions, contexts: lists of str, equally long. answers: None, or a list
    of `Answer` (tasks/formats.py) for each question, [] if it has no answer.
    The first answer with a known position is the target.

    max_len: maximum of T. stride: number of context tokens from the start of a
    window to the start of the next, or less if windows have room for fewer.
    max_question: maximum number of tokens of a question; the rest is cut off.
    Raises ValueError for a stride or max_question below 1, or if max_len
    leaves no tokens for the context.
    """
    if stride < 1 or max_question < 1:
        raise ValueError(f'stride {stride} and max_question {max_question} '
                         'must be at least 1')
    template = _PairTemplate(tokenizer)
    question_tokens = _tokens_by_text(tokenizer, questions)
    context_tokens = _tokens_by_text(tokenizer, contexts)
    windows = []
    for k, (question, context) in enumerate(zip(questions, contexts)):
        span = None if answers is None else _answer_span(
            answers[k], context_tokens[context].offsets)
        windows += template.windows(
            k, question_tokens[question].ids[:max_question],
            context_tokens[context], span, max_len, stride)
    return windows


def _tokens_by_text(tokenizer, texts):
    """{text: `_TextTokens`} of a list of texts."""
    # Several questions may share a context, which is encoded once
    texts = list(dict.fromkeys(texts))
    tokens_by_text = {}
    # In chunks, so that few of the large `Encoded` are in memory at once
    for k in range(0, len(texts), 1024):
        chunk = texts[k:k + 1024]
        for text, encoded in zip(chunk, tokenizer.encode_batch(chunk)):
            # The word of a special token is None
            positions = [t for t, word in enumerate(encoded.words)
                         if word is not None]
            tokens_by_text[text] = _TextTokens(
                [encoded.ids[t] for t in positions],
                onp.array([encoded.offsets[t] for t in positions],
                          'i4').reshape(-1, 2))
    return tokens_by_text


def _answer_span(answers, offsets):
    """The indices of the first and the last context token of the answer.

    Returns () if `answers`, a list of `Answer`, is empty. Returns None if the
    position is unknown, or if the tokenizer dropped all characters of the
    answer. offsets: as in `_TextTokens`.
    """
    if not answers:
        return ()
    answer = next((a for a in answers if a.begin is not None), None)
    if answer is None:
        return None
    not_before = onp.flatnonzero(offsets[:, 1] > answer.begin)
    not_after = onp.flatnonzero(offsets[:, 0] < answer.end)
    if not len(not_before) or not len(not_after):
        return None
    first, last = int(not_before[0]), int(not_after[-1])
    return (first, last) if first <= last else None


class _PairTemplate:
    """The special tokens and the segments with which a pair is encoded.

    special: three (ids, segments) of the special tokens before, between and
    after the two texts. text_segments: the segment of each text.
    """

    def __init__(self, tokenizer):
        encoded = tokenizer.encode('a', 'a')
        is_text = [word is not None for word in encoded.words]
        begin_a = is_text.index(True)
        end_a = is_text.index(False, begin_a)
        begin_b = is_text.index(True, end_a)
        end_b = is_text.index(False, begin_b)
        self.special = [
            (encoded.ids[i:j], encoded.segments[i:j])
            for i, j in ((0, begin_a), (end_a, begin_b), (end_b, None))]
        self.text_segments = [encoded.segments[i] for i in (begin_a, begin_b)]
        self.num_special = sum(len(ids) for ids, _ in self.special)

    def windows(self, k, question, context, span, max_len, stride):
        """Yield the `Window`s of question k.

        question: token ids. context: `_TextTokens`. span: as `_answer_span`
        returns it. max_len, stride: as for `answer_windows`.
        """
        M = len(context.ids)
        max_context = max_len - self.num_special - len(question)
        if max_context < 1:
            raise ValueError(
                f'max_len {max_len} leaves no place for the context beside '
                f'{self.num_special} special tokens and a question of '
                f'{len(question)} tokens: raise max_len')
        # A longer step would leave tokens in no window
        step = min(stride, max_context)
        # The first window that reaches the end of the context is the last one
        begins = onp.arange(0, max(M - max_context, 0) + step, step)
        ends = onp.minimum(begins + max_context, M)
        window_of_token = _central_windows(begins, ends, M)
        ((before, before_segments), (between, between_segments),
         (after, after_segments)) = self.special
        context_begin = len(before) + len(question) + len(between)
        for w, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist())):
            target = None if span is None else (0, 0)
            if span and begin <= span[0] and span[1] < end:
                # From positions in the context to positions in ids
                target = tuple(context_begin - begin + t for t in span)
            yield Window(
                k,
                [*before, *question, *between, *context.ids[begin:end],
                 *after],
                [*before_segments, *[self.text_segments[0]] * len(question),
                 *between_segments, *[self.text_segments[1]] * (end - begin),
                 *after_segments],
                context_begin, context.offsets[begin:end],
                window_of_token[begin:end] == w, target)


def _central_windows(begins, ends, M):
    """The index of the window with most context around each token, (M,).

    Window w has the context tokens begins[w] to ends[w] - 1; begins and ends
    are (W,). As published, the chosen window has the highest score min(before,
    after) + 0.01 * length; in a tie, it is the first.
    """
    tokens = onp.arange(M)
    before = tokens - begins[:, None]                       # (W, M)
    after = ends[:, None] - 1 - tokens
    scores = onp.minimum(before, after) + .01 * (ends - begins)[:, None]
    is_outside = (before < 0) | (after < 0)
    # Each token is in a window, with a score above 0, so -1 is never highest
    return onp.where(is_outside, -1, scores).argmax(0)


def best_answers(windows, begin_scores, end_scores, contexts, max_answer=30,
                 null=False, threshold=0.0):
    """The best answer to each question: a list of `Guess`.

    windows: all windows of `answer_windows`. begin_scores: for each window an
    array (T,), or longer if padded, with the net's score of each token as the
    first token of the answer. end_scores: the same for the last token.
    contexts: a str for each question. max_answer: maximum number of tokens of
    an answer. A span must begin at a token for which `Window.is_central` is
    True.

    null: True if a question may have no answer. The answer is then '' if
    `Guess.null_score` is above `Guess.score` + threshold. To a context without
    tokens, the answer is always ''.
    """
    # Best span so far of each question: score, and begin and end in characters
    best = [(-onp.inf, 0, 0)] * len(contexts)
    null_scores = [onp.inf] * len(contexts)
    for window, begin_row, end_row in zip(windows, begin_scores, end_scores):
        k, m = window.question_index, len(window.offsets)
        null_scores[k] = min(null_scores[k],
                             float(begin_row[0] + end_row[0]))
        in_context = slice(window.context_begin, window.context_begin + m)
        first_scores = onp.where(window.is_central, onp.asarray(
            begin_row[in_context], 'f8'), -onp.inf)
        last_scores = onp.asarray(end_row[in_context], 'f8')
        # distance: from the first to the last token of a span
        for distance in range(min(max_answer, m)):
            scores = first_scores[:m - distance] + last_scores[distance:]
            first = int(scores.argmax())
            if scores[first] > best[k][0]:
                best[k] = (float(scores[first]),
                           int(window.offsets[first, 0]),
                           int(window.offsets[first + distance, 1]))
    guesses = []
    for (score, begin, end), null_score, context in zip(best, null_scores,
                                                        contexts):
        has_no_span = score == -onp.inf
        prefers_null = null and null_score > score + threshold
        if has_no_span or prefers_null:
            guesses.append(Guess('', 0, 0, score, null_score))
        else:
            guesses.append(Guess(context[begin:end], begin, end, score,
                                 null_score))
    return guesses


# Tags of words

def labels_of_tokens(encoded, word_labels):
    """The label of the word that begins at each token; `IGNORED` if none does.

    encoded: the `Encoded` of a list of words.
    """
    return [IGNORED if word is None else word_labels[word]
            for word in _word_beginnings(encoded)]


def values_of_words(encoded, token_values, num_words, default):
    """The value of the first token of each word.

    encoded: the `Encoded` of a list of `num_words` words. default: the value
    of a word that was cut off or that the tokenizer drops.
    """
    word_values = [default] * num_words
    for value, word in zip(token_values, _word_beginnings(encoded)):
        if word is not None:
            word_values[word] = value
    return word_values


def _word_beginnings(encoded):
    """Yield the index of the word that begins at each token, or None."""
    previous = None
    for word in encoded.words:
        yield None if word == previous else word
        previous = word


# Scores

def outputs_of(net, inputs, devices, advance=lambda num_examples: None):
    """The scores of each example of `Inputs`, a list of N arrays on the host.

    net: a `FineTuned` (pretrained/heads.py). The scores are (K,) for a whole
    text, (C,) for 'choice' and (T, K) for tokens. Dropout is off. On the same
    devices, equal inputs have bitwise equal outputs. advance is called after
    each batch.
    """
    outputs = [None] * len(inputs.tokens)
    batches = list(scoring_batches(inputs.lens))
    with autograd.pause():
        for begin in range(0, len(batches), len(devices)):
            # Start a batch on every device before waiting for scores
            pending = [
                (indices, *_score(net, batch_of(inputs, indices), device))
                for indices, device in zip(
                    batches[begin:begin + len(devices)], devices)]
            for indices, scores, split_rows in pending:
                scores = scores.asnumpy()
                parts = (scores if split_rows is None
                         else onp.split(scores, split_rows))
                for k, part in zip(indices, parts):
                    outputs[k] = part
                advance(len(indices))
    return outputs


def _score(net, batch, device):
    """Return the scores of a `Batch`, on the device, and the rows to split at.

    `onp.split` at these rows gives the scores of each example. If they are
    None, example b has the row scores[b].
    """
    X, begins, lens = run_encoder(net, batch, device)
    if net.kind in TEXT_KINDS:
        return net.score_texts(X, begins, len(batch.tokens_X)), None
    rows = onp.concatenate([onp.arange(begin, begin + length)
                            for begin, length in zip(begins, lens)])
    return net.score(X, rows), onp.cumsum(lens)[:-1]


def run_encoder(net, batch, device):
    """Return X and begins of `FineTuned.encode`, and `Batch.valid_lens_x`."""
    def put(A):
        return on_device(A, device, 'int32')
    X, begins = net.encode(put(batch.tokens_X), put(batch.segments_X),
                           put(batch.valid_lens_x))
    return X, begins, batch.valid_lens_x
