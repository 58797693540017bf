"""Codecs: each encodes the data of a kind of task, and decodes the outputs.

The method `inputs` turns the data that `read_task` (tasks/catalog.py) returns
into `Inputs` (batches.py). Three methods take the outputs of the net, a list
of arrays as `outputs_of` (batches.py) returns it: `loss` returns the mean
loss, `guesses` the predicted labels, and `predictions` a `Prediction` for each
text. The functions of metrics.py compare the guesses with `true_labels`.

A method has the same arguments in all codecs, although some codecs ignore
`training`, `inputs` or `data`.
"""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.finetuning.batches import (
    answer_windows,
    best_answers,
    choice_inputs,
    inputs_of,
    labels_of_tokens,
    values_of_words,
)
from d2lbert.machine.terminal import warn
from d2lbert.nn.layers import log_softmax


class Prediction(NamedTuple):
    """The prediction for a text or pair.

    A field is None if the kind of task has no such value.
    """

    label: Any          # the name of a class, a number, a list of tags, the
                        # text of an answer, or the text of the chosen ending
    score: Any = None   # the probability of the predicted class or ending;
                        # for 'tag' a list with the probability of each word's
                        # predicted tag; for 'span' the score of the best
                        # span, even if `label` is '' for no answer
    shares: Any = None  # {name: probability} of all classes, or of all
                        # endings; equal endings have one entry, their sum
    place: Any = None   # (begin, end) of the answer in characters of the text,
                        # or the index of the chosen ending


class TextCodec:
    """For texts or pairs with a class ('classify') or a number ('regress').

    about: in all codecs, the `About` (pretrained/heads.py) of the task.
    """

    def __init__(self, about, tokenizer):
        self.about, self.tokenizer = about, tokenizer

    def inputs(self, data, training=False):
        """The `Inputs` of `Examples` (tasks/tables.py)."""
        encoded = self.tokenizer.encode_batch(data.texts_a, data.texts_b,
                                              self.about.max_len)
        warn_of_cut(self, data, encoded)
        labels = data.labels
        if labels is not None:
            labels = onp.array(labels, 'float64' if self.about.kind
                               == 'regress' else 'int32')
        return inputs_of(encoded, labels)

    def encode_untruncated(self, data, k):
        """The `Encoded` of example k, for `warn_of_cut`."""
        return self.tokenizer.encode(
            data.texts_a[k], data.texts_b and data.texts_b[k])

    def loss(self, outputs, inputs):
        """The mean loss, as training computes it.

        outputs: (N, K) scores of K classes for N examples, or (N, 1) numbers.
        """
        outputs = onp.array(outputs, 'float64')
        if self.about.kind == 'regress':
            return float(((outputs[:, 0] - inputs.labels) ** 2).mean())
        return _mean_cross_entropy(outputs, inputs.labels)

    def guesses(self, outputs, inputs, data):
        """A class index or a number for each example."""
        outputs = onp.array(outputs)
        return (outputs[:, 0].astype('float64')
                if self.about.kind == 'regress' else outputs.argmax(axis=1))

    @staticmethod
    def true_labels(data):
        """A class index or a number for each example."""
        return data.labels

    def predictions(self, outputs, inputs, data):
        """A `Prediction` for each text or pair."""
        if self.about.kind == 'regress':
            return [Prediction(float(value))
                    for value in self.guesses(outputs, inputs, data)]
        predictions = []
        for probs in onp.exp(log_softmax(onp.array(outputs, 'float64'))):
            k = int(probs.argmax())
            predictions.append(Prediction(
                self.about.labels[k], float(probs[k]),
                dict(zip(self.about.labels, map(float, probs)))))
        return predictions


class EndingCodec:
    """For texts with several endings, one of them right ('choice')."""

    def __init__(self, about, tokenizer):
        self.about, self.tokenizer = about, tokenizer

    def inputs(self, data, training=False):
        """The `Inputs` of `Choices` (tasks/formats.py).

        An example is C pairs: its text with each of its C endings.
        """
        C = len(data.endings[0])
        encoded = self.tokenizer.encode_batch(
            [text for text in data.texts for _ in range(C)],
            [ending for endings in data.endings for ending in endings],
            self.about.max_len)
        warn_of_cut(self, data, encoded, 'pairs')
        return choice_inputs(encoded, C, None if data.labels is None
                             else onp.array(data.labels, 'int32'))

    def encode_untruncated(self, data, k):
        """The `Encoded` of pair k, for `warn_of_cut`.

        Pair k is ending k % C of example k // C.
        """
        example, ending = divmod(k, len(data.endings[0]))
        return self.tokenizer.encode(data.texts[example],
                                     data.endings[example][ending])

    def loss(self, outputs, inputs):
        """The mean loss, as training computes it.

        outputs: (N, C) scores of the C endings of N examples.
        """
        return _mean_cross_entropy(onp.array(outputs, 'float64'),
                                   inputs.labels)

    def guesses(self, outputs, inputs, data):
        """The index of an ending for each example."""
        return onp.array(outputs).argmax(axis=1)

    @staticmethod
    def true_labels(data):
        """The index of the right ending for each example."""
        return data.labels

    def predictions(self, outputs, inputs, data):
        """A `Prediction` for each text; its `label` is the chosen ending."""
        predictions = []
        for endings, scores in zip(data.endings, outputs):
            probs = onp.exp(log_softmax(scores.astype('float64')))
            k = int(probs.argmax())
            shares = {}
            for ending, prob in zip(endings, map(float, probs)):
                shares[ending] = shares.get(ending, 0.0) + prob
            predictions.append(Prediction(endings[k], float(probs[k]), shares,
                                          k))
        return predictions


class TagCodec:
    """For sentences with a tag for each word ('tag').

    The tag is predicted at the word's first token.
    """

    def __init__(self, about, tokenizer):
        self.about, self.tokenizer = about, tokenizer

    def inputs(self, data, training=False):
        """The `Inputs` of `Sentences` (tasks/formats.py).

        The label of a token is -1 if no word begins there.
        """
        encoded = [self.tokenizer.encode_words(
            words, max_len=self.about.max_len) for words in data.words]
        warn_of_cut(self, data, encoded)
        labels = None
        if data.labels is not None:
            labels = [onp.array(labels_of_tokens(one, indices), 'int32')
                      for one, indices in zip(encoded, data.labels)]
        return inputs_of(encoded, labels, sources=encoded)

    def encode_untruncated(self, data, k):
        """The `Encoded` of sentence k, for `warn_of_cut`."""
        return self.tokenizer.encode_words(data.words[k])

    def loss(self, outputs, inputs):
        """The mean loss, as training computes it.

        outputs: (T, K) scores of K tags for the T tokens of each sentence.
        """
        scores = onp.concatenate(outputs).astype('float64')
        labels = onp.concatenate(inputs.labels)
        has_label = labels >= 0
        if not has_label.any():
            return 0.0
        return _mean_cross_entropy(scores[has_label], labels[has_label])

    def guesses(self, outputs, inputs, data):
        """A list of tag names for each sentence."""
        return [one.label for one in self.predictions(outputs, inputs, data)]

    @staticmethod
    def true_labels(data):
        """A list of tag names for each sentence."""
        return data.tags

    def predictions(self, outputs, inputs, data):
        """A `Prediction` for each sentence.

        A word has no token if it was cut off, or if the tokenizer drops it.
        Then its tag is O, or the first tag if the task has no O, with the
        probability 0.
        """
        names = self.about.labels
        default = names.index('O') if 'O' in names else 0
        predictions = []
        for words, scores, encoded in zip(data.words, outputs, inputs.sources):
            probs = onp.exp(log_softmax(scores.astype('float64')))
            indices = values_of_words(encoded, probs.argmax(axis=1),
                                      len(words), default)
            tag_probs = values_of_words(encoded, probs.max(axis=1),
                                        len(words), 0.0)
            predictions.append(Prediction([names[k] for k in indices],
                                          list(map(float, tag_probs))))
        return predictions


class AnswerCodec:
    """For questions about a text ('span').

    An answer is a span of the text. Some questions have no answer.
    """

    def __init__(self, about, tokenizer):
        self.about, self.tokenizer = about, tokenizer

    def inputs(self, data, training=False):
        """The `Inputs` of `Questions` (tasks/formats.py).

        An example is a `Window` (batches.py). Its label is the positions of
        the answer's first and last token: (0, 0) if there is no answer or the
        window does not have all of it, (-1, -1) if the position of the answer
        in the context is unknown. Training leaves out windows with (-1, -1).
        """
        windows = answer_windows(
            self.tokenizer, data.questions, data.contexts, data.answers,
            self.about.max_len, self.about.stride)
        if training:
            windows = [one for one in windows if one.target is not None]
        labels = None
        if data.answers is not None:
            labels = [onp.array((-1, -1) if one.target is None
                                else one.target, 'int32') for one in windows]
        return inputs_of(windows, labels, sources=windows)

    def loss(self, outputs, inputs):
        """The mean loss, as training computes it.

        outputs: (T, 2) scores of the T tokens of each window as first and
        last token of the answer. Windows whose label is (-1, -1) do not count.
        """
        # Each entry is two losses, of the first and of the last token
        losses = [-log_softmax(scores.T.astype('float64'))[[0, 1], target]
                  for scores, target in zip(outputs, inputs.labels)
                  if target[0] >= 0]
        return float(onp.mean(losses)) if losses else 0.0

    def guesses(self, outputs, inputs, data):
        """The text of the answer to each question."""
        return [one.label for one in self.predictions(outputs, inputs, data)]

    @staticmethod
    def true_labels(data):
        """A list of `Answer` for each question."""
        return data.answers

    def predictions(self, outputs, inputs, data):
        """A `Prediction` for each question."""
        best = best_answers(
            inputs.sources, [scores[:, 0] for scores in outputs],
            [scores[:, 1] for scores in outputs], data.contexts,
            null=self.about.null)
        return [Prediction(one.text, one.score, place=(one.begin, one.end))
                for one in best]


def _mean_cross_entropy(scores, labels):
    """The mean cross-entropy of scores (N, K) and class indices (N,)."""
    log_probs = log_softmax(scores)[onp.arange(len(labels)), labels]
    return float(-log_probs.mean())


def warn_of_cut(codec, data, encoded, unit='examples'):
    """Log a warning with the number of truncated examples, if there are any.

    codec: a codec that has `encode_untruncated`. encoded: a list of the
    `Encoded` of the data, truncated to max_len tokens. unit: the word for the
    entries of `encoded` in the warning.
    """
    max_len = codec.about.max_len
    # Only entries with max_len tokens may have been truncated. Encoding them
    # again without truncation shows which ones were
    candidates = [k for k, one in enumerate(encoded)
                  if len(one.ids) >= max_len]
    num_cut = sum(len(codec.encode_untruncated(data, k).ids) > max_len
                  for k in candidates)
    if num_cut:
        warn(f'{data.path}: {num_cut:,} of {len(encoded):,} {unit} were cut '
             f'to {max_len} tokens (max_len)')


#: {kind of task: class}
CODECS = {'classify': TextCodec, 'regress': TextCodec, 'choice': EndingCodec,
          'tag': TagCodec, 'span': AnswerCodec}
