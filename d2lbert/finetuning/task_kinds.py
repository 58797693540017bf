"""The kinds of tasks: from data to inputs, from outputs to guesses.

A kind turns the data of `tasks.read_task` into `Inputs` (`inputs`). From the
outputs of the net it computes the loss (`loss`), the guesses for `metrics`
(`guesses`, compared with `wanted`), and predictions for users
(`predictions`).
"""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.finetuning.batches import (
    answer_windows,
    best_answers,
    choice_inputs,
    inputs_of,
    labels_of_tokens,
    labels_of_words,
)
from d2lbert.machine.terminal import warn
from d2lbert.nn.layers import log_softmax


class Prediction(NamedTuple):
    """The prediction for a text or a pair."""

    # label: the name of a label, a number, a list of tags, the text of an
    #   answer, or the text of the chosen ending
    # score: the probability of the label, ending or of each tag, or the
    #   score of the answer
    # shares: {name: probability} of all labels or endings
    # place: (first, last + 1) character of the answer in its text, or the
    #   index of the chosen ending
    label: Any
    score: Any = None
    shares: Any = None
    place: Any = None


class WholeTexts:
    """Texts or pairs with a label ('classify') or a number ('regress').

    about: the `About` of the task, as for the other kinds.
    """

    def __init__(self, about, tokenizer):
        self.about, self.tokenizer = about, tokenizer

    def inputs(self, data, training=False):
        """The `Inputs` of `Examples`."""
        encoded = self.tokenizer.encode_batch(data.texts_a, data.texts_b,
                                              self.about.max_len)
        say_cut(self, data, encoded)
        labels = data.labels
        if labels is not None:
            labels = onp.array(labels, 'float64' if self.about.kind
                               == 'regress' else 'int32')
        return inputs_of(encoded, labels)

    def encode(self, data, k):
        """Example k of the data without truncation, for `say_cut`."""
        return self.tokenizer.encode(
            data.texts_a[k], data.texts_b and data.texts_b[k])

    def loss(self, outputs, inputs):
        """The mean loss, as training computes it.

        outputs: (N, K) scores of K labels for N examples, or (N, 1).
        """
        outputs = onp.array(outputs, 'float64')
        if self.about.kind == 'regress':
            return float(((outputs[:, 0] - inputs.labels) ** 2).mean())
        return float(-log_softmax(outputs)[
            onp.arange(len(outputs)), inputs.labels].mean())

    def guesses(self, outputs, inputs, data):
        """A class index or a number for each example."""
        outputs = onp.array(outputs)
        return (outputs[:, 0].astype('float64')
                if self.about.kind == 'regress' else outputs.argmax(axis=1))

    @staticmethod
    def wanted(data):
        """The true labels, for `metrics`."""
        return data.labels

    def predictions(self, outputs, inputs, data):
        """A `Prediction` for each text."""
        if self.about.kind == 'regress':
            return [Prediction(float(value))
                    for value in self.guesses(outputs, inputs, data)]
        found = []
        for shares in onp.exp(log_softmax(onp.array(outputs, 'float64'))):
            k = int(shares.argmax())
            found.append(Prediction(
                self.about.labels[k], float(shares[k]),
                dict(zip(self.about.labels, map(float, shares)))))
        return found


class Endings:
    """Texts with several endings, one of them right."""

    def __init__(self, about, tokenizer):
        self.about, self.tokenizer = about, tokenizer

    def inputs(self, data, training=False):
        """The `Inputs` of `formats.Choices`: C pairs for each example."""
        count = len(data.endings[0])
        encoded = self.tokenizer.encode_batch(
            [text for text in data.texts for _ in range(count)],
            [one for some in data.endings for one in some],
            self.about.max_len)
        say_cut(self, data, encoded, 'pairs')
        return choice_inputs(encoded, count, None if data.labels is None
                          else onp.array(data.labels, 'int32'))

    def encode(self, data, k):
        """Pair k of the data without truncation, for `say_cut`."""
        example, ending = divmod(k, len(data.endings[0]))
        return self.tokenizer.encode(data.texts[example],
                                     data.endings[example][ending])

    def loss(self, outputs, inputs):
        """The mean loss, as training computes it.

        outputs: (N, C) scores of the C endings of N examples.
        """
        return float(-log_softmax(onp.array(outputs, 'float64'))[
            onp.arange(len(outputs)), inputs.labels].mean())

    def guesses(self, outputs, inputs, data):
        """The index of an ending for each example."""
        return onp.array(outputs).argmax(axis=1)

    @staticmethod
    def wanted(data):
        """The indices of the right endings."""
        return data.labels

    def predictions(self, outputs, inputs, data):
        """A `Prediction`, an ending, for each text."""
        found = []
        for endings, scores in zip(data.endings, outputs):
            shares = onp.exp(log_softmax(scores.astype('float64')))
            k = int(shares.argmax())
            found.append(Prediction(endings[k], float(shares[k]), dict(zip(
                endings, map(float, shares))), k))
        return found


class Tags:
    """Sentences with a tag for each word, scored at its first token."""

    def __init__(self, about, tokenizer):
        self.about, self.tokenizer = about, tokenizer

    def inputs(self, data, training=False):
        """The `Inputs` of `Sentences`; label -1 where no word begins."""
        encoded = [self.tokenizer.encode_words(
            words, max_len=self.about.max_len) for words in data.words]
        say_cut(self, data, encoded)
        labels = None
        if data.labels is not None:
            labels = [onp.array(labels_of_tokens(one, tags), 'int32')
                      for one, tags in zip(encoded, data.labels)]
        return inputs_of(encoded, labels, sources=encoded)

    def encode(self, data, k):
        """Sentence k of the data without truncation, for `say_cut`."""
        return self.tokenizer.encode_words(data.words[k])

    def loss(self, outputs, inputs):
        """The mean loss, as training computes it.

        outputs: for each sentence the scores of K tags for its T tokens,
        (T, K).
        """
        scores = onp.concatenate(outputs).astype('float64')
        labels = onp.concatenate(inputs.labels)
        has_label = labels >= 0
        return float(-log_softmax(scores[has_label])[
            onp.arange(has_label.sum()), labels[has_label]].mean())

    def guesses(self, outputs, inputs, data):
        """A list of tag names for each sentence."""
        return [one.label for one in self.predictions(outputs, inputs, data)]

    @staticmethod
    def wanted(data):
        """The true tags by name; `data.labels` has their numbers."""
        return data.tags

    def predictions(self, outputs, inputs, data):
        """A `Prediction` for each sentence.

        Words that were cut off or have no token get the tag O, or the first
        tag if there is no O.
        """
        names = self.about.labels
        default = names.index('O') if 'O' in names else 0
        found = []
        for words, scores, encoded in zip(data.words, outputs, inputs.sources):
            shares = onp.exp(log_softmax(scores.astype('float64')))
            guessed = labels_of_words(encoded, shares.argmax(axis=1),
                                      len(words), default)
            probs = labels_of_words(encoded, shares.max(axis=1), len(words),
                                    0.0)
            found.append(Prediction([names[k] for k in guessed],
                                    list(map(float, probs))))
        return found


class Answers:
    """Questions about a text; the answer is a span of the text, or none."""

    def __init__(self, about, tokenizer):
        self.about, self.tokenizer = about, tokenizer

    def inputs(self, data, training=False):
        """The `Inputs` of `Questions`: one example for each window.

        Labels are (0, 0) if the window does not contain the answer, and
        (-1, -1) if the answer is unknown. Training skips windows with unknown
        answers.
        """
        windows = answer_windows(
            self.tokenizer, data.questions, data.contexts, data.answers,
            self.about.max_len, self.about.stride)
        if training:
            windows = [one for one in windows if one.target is not None]
        labels = None
        if data.answers is not None:
            labels = [onp.array(one.target or (-1, -1), 'int32')
                      for one in windows]
        return inputs_of(windows, labels, sources=windows)

    def loss(self, outputs, inputs):
        """The mean loss, as training computes it.

        outputs: for each window the scores of its T tokens as first and last
        token of the answer, (T, 2).
        """
        losses = [-log_softmax(scores.T.astype('float64'))[[0, 1], places]
                  for scores, places in zip(outputs, inputs.labels)
                  if places[0] >= 0]
        return float(onp.mean(losses)) if losses else 0.0

    def guesses(self, outputs, inputs, data):
        """The text of the answer to each question."""
        return [one.label for one in self.predictions(outputs, inputs, data)]

    @staticmethod
    def wanted(data):
        """The true answers, for `metrics`."""
        return data.answers

    def predictions(self, outputs, inputs, data):
        """A `Prediction` for each question."""
        best = best_answers(
            inputs.sources, [scores[:, 0] for scores in outputs],
            [scores[:, 1] for scores in outputs], data.contexts,
            null=self.about.null)
        return [Prediction(one.text, one.score, place=(one.begin, one.end))
                for one in best]


def say_cut(kind, data, encoded, what='examples'):
    """Log a warning with the number of truncated examples."""
    limit = kind.about.max_len
    full = [k for k, one in enumerate(encoded) if len(one.ids) >= limit]
    cut = sum(len(kind.encode(data, k).ids) > limit for k in full)
    if cut:
        warn(f'{data.path}: {cut:,} of {len(encoded):,} {what} were cut to '
             f'{limit} tokens (max_len)')


KINDS = {'classify': WholeTexts, 'regress': WholeTexts, 'choice': Endings,
         'tag': Tags, 'span': Answers}
