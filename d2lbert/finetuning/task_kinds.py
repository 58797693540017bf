"""Codecs: each encodes the data of a kind of task, and decodes the outputs.

`inputs` encodes `data`, as `read_task` (tasks/catalog.py) returns it. `loss`,
`guesses` and `predictions` decode `outputs`, as `outputs_of` (batches.py)
returns them. The loss is the mean, as training computes it. The functions of
metrics.py compare `guesses` with `true_labels`. N, C, T, K: as in batches.py.

All codecs have these methods, with the same arguments, although some codecs
ignore `training`, `inputs` or `data`.
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


class _Codec:
    """The base class; about: the `About` (pretrained/heads.py) of the task."""

    def __init__(self, about, tokenizer):
        self.about, self.tokenizer = about, tokenizer

    def guesses(self, outputs, inputs, data):
        """The guess for each example, which the metrics compare."""
        return [one.label for one in self.predictions(outputs, inputs, data)]

    @staticmethod
    def true_labels(data):
        return data.labels

    def _warn_of_truncation(self, data, encoded, unit='examples'):
        """Warn of the entries of `encoded` that were truncated, if any.

        encoded: a list of the `Encoded` of `data`. unit: the word for its
        entries in the warning.
        """
        max_len = self.about.max_len
        # Only full entries may have been truncated: encode these again
        full = [k for k, one in enumerate(encoded) if len(one.ids) >= max_len]
        num_truncated = sum(
            len(self._encode_untruncated(data, k).ids) > max_len for k in full)
        if num_truncated:
            warn(f'{data.path}: {num_truncated:,} of {len(encoded):,} {unit} '
                 f'were cut to {max_len} tokens (max_len)')


class TextCodec(_Codec):
    """For texts or pairs with a class ('classify') or a number ('regress')."""

    def inputs(self, data, training=False):
        """The `Inputs` of `Examples` (tasks/tables.py)."""
        encoded = self.tokenizer.encode_batch(data.texts_a, data.texts_b,
                                              self.about.max_len)
        self._warn_of_truncation(data, encoded)
        labels = data.labels
        if labels is not None:
            dtype = 'float64' if self.about.kind == 'regress' else 'int32'
            labels = onp.array(labels, dtype)
        return inputs_of(encoded, labels)

    def _encode_untruncated(self, data, k):
        return self.tokenizer.encode(
            data.texts_a[k], data.texts_b and data.texts_b[k])

    def loss(self, outputs, inputs):
        """outputs: (N, K) scores of classes, or (N, 1) numbers."""
        outputs = onp.array(outputs, 'float64')
        if self.about.kind == 'regress':
            return float(((outputs[:, 0] - inputs.labels) ** 2).mean())
        return _mean_cross_entropy(outputs, inputs.labels)

    def guesses(self, outputs, inputs, data):
        """A class index or a number for each example."""
        outputs = onp.array(outputs)
        return (outputs[:, 0].astype('float64')
                if self.about.kind == 'regress' else outputs.argmax(axis=1))

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


class EndingCodec(_Codec):
    """For texts with several endings, one of them right ('choice')."""

    def inputs(self, data, training=False):
        """The `Inputs` of `Choices` (tasks/formats.py).

        An example is C pairs: its text with each of its C endings.
        """
        C = len(data.endings[0])
        encoded = self.tokenizer.encode_batch(
            [text for text in data.texts for _ in range(C)],
            [ending for endings in data.endings for ending in endings],
            self.about.max_len)
        self._warn_of_truncation(data, encoded, 'pairs')
        return choice_inputs(encoded, C, None if data.labels is None
                             else onp.array(data.labels, 'int32'))

    def _encode_untruncated(self, data, k):
        example, ending = divmod(k, len(data.endings[0]))
        return self.tokenizer.encode(data.texts[example],
                                     data.endings[example][ending])

    def loss(self, outputs, inputs):
        """outputs: (N, C) scores of the endings."""
        return _mean_cross_entropy(onp.array(outputs, 'float64'),
                                   inputs.labels)

    def guesses(self, outputs, inputs, data):
        """The index of an ending for each example."""
        return onp.array(outputs).argmax(axis=1)

    def predictions(self, outputs, inputs, data):
        """A `Prediction` for each text."""
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


class TagCodec(_Codec):
    """For sentences with a tag for each word ('tag').

    The tag is predicted at the word's first token.
    """

    def inputs(self, data, training=False):
        """The `Inputs` of `Sentences` (tasks/formats.py)."""
        encoded = [self.tokenizer.encode_words(
            words, max_len=self.about.max_len) for words in data.words]
        self._warn_of_truncation(data, encoded)
        labels = None
        if data.labels is not None:
            labels = [onp.array(labels_of_tokens(sentence, tags), 'int32')
                      for sentence, tags in zip(encoded, data.labels)]
        return inputs_of(encoded, labels, sources=encoded)

    def _encode_untruncated(self, data, k):
        return self.tokenizer.encode_words(data.words[k])

    def loss(self, outputs, inputs):
        """outputs: (T, K) scores of the tags for each sentence."""
        scores = onp.concatenate(outputs).astype('float64')
        labels = onp.concatenate(inputs.labels)
        has_label = labels >= 0
        if not has_label.any():
            return 0.0
        return _mean_cross_entropy(scores[has_label], labels[has_label])

    @staticmethod
    def true_labels(data):
        return data.tags

    def predictions(self, outputs, inputs, data):
        """A `Prediction` for each sentence.

        A word without a token, because it was cut off or the tokenizer drops
        it, has the tag O, or else the first tag, with probability 0.
        """
        names = self.about.labels
        default = names.index('O') if 'O' in names else 0
        predictions = []
        for words, scores, encoded in zip(data.words, outputs, inputs.sources):
            probs = onp.exp(log_softmax(scores.astype('float64')))
            tags = values_of_words(encoded, probs.argmax(axis=1), len(words),
                                   default)
            tag_probs = values_of_words(encoded, probs.max(axis=1),
                                        len(words), 0.0)
            predictions.append(Prediction([names[k] for k in tags],
                                          list(map(float, tag_probs))))
        return predictions


class AnswerCodec(_Codec):
    """For questions that are answered by a span of a text ('span')."""

    def inputs(self, data, training=False):
        """The `Inputs` of `Questions` (tasks/formats.py).

        An example is a `Window` (batches.py). Its label is the window's
        `target`, or (-1, -1) for None. Training leaves out windows whose
        target is None.
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
        """outputs: (T, 2) scores of the tokens of each window.

        The scores are for the first and for the last token of an answer.
        Windows with the label (-1, -1) do not count.
        """
        # Each entry is two losses, of the first and of the last token
        losses = [-log_softmax(scores.T.astype('float64'))[[0, 1], target]
                  for scores, target in zip(outputs, inputs.labels)
                  if target[0] >= 0]
        return float(onp.mean(losses)) if losses else 0.0

    @staticmethod
    def true_labels(data):
        """A list of `Answer` for each question."""
        return data.answers

    def predictions(self, outputs, inputs, data):
        """A `Prediction` for each question, which may have many windows."""
        best = best_answers(
            inputs.sources, [scores[:, 0] for scores in outputs],
            [scores[:, 1] for scores in outputs], data.contexts,
            null=self.about.null)
        return [Prediction(one.text, one.score, place=(one.begin, one.end))
                for one in best]


def _mean_cross_entropy(scores, labels):
    """scores: (N, K). labels: class indices (N,)."""
    log_probs = log_softmax(scores)[onp.arange(len(labels)), labels]
    return float(-log_probs.mean())


#: {kind of task: class}
CODECS = {'classify': TextCodec, 'regress': TextCodec, 'choice': EndingCodec,
          'tag': TagCodec, 'span': AnswerCodec}
