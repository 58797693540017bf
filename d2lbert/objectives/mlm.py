"""Masked words without next sentences: RoBERTa's objective, and SpanBERT's.

B rows, T tokens, S hidden words, R rows without padding (see `packing`).
"""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.bert_pretraining import summary
from d2lbert.corpus.spans import SPANS, TOKENS, WORDS
from d2lbert.devices import shards
from d2lbert.machine.backend import autograd, np
from d2lbert.objectives.boundary import BERTWithBoundary
from d2lbert.objectives.evaluation import (
    loss_and_accuracy,
    mlm_figures,
    mlm_sums,
)
from d2lbert.objectives.mlm_nsp import MLMAndNSP, mlm_line, pairs_line
from d2lbert.packing import at_real_places
from d2lbert.progress import Accumulator


class MLMFigures(NamedTuple):
    """What a model makes of a text; see `evaluation.Figures`."""

    mlm_loss: float
    perplexity: float
    mlm_accuracy: float
    unknown_share: float
    known_accuracy: float


class SpanFigures(NamedTuple):
    """The same, and what the boundary head makes of the same words."""

    mlm_loss: float
    perplexity: float
    mlm_accuracy: float
    unknown_share: float
    known_accuracy: float
    sbo_loss: float         # nats for a prediction
    sbo_accuracy: float     # share of hidden words that come first


class MLM(MLMAndNSP):
    """Words hidden one by one, in full sentences: Liu et al. 2019.

    Rows are one segment, filled as `corpus.sentences` says; what is hidden
    is drawn anew each epoch, unless dynamic=False. The model keeps the two
    layers that next sentences need, `hidden` and `nsp`, with the weights
    that it was made with: they get no gradient and are never updated.
    """

    losses = 'mlm',
    unit = 'sequences'
    Figures = MLMFigures
    drawn = 'mlm_loss',
    spans = TOKENS

    @classmethod
    def trained(cls, bert):
        """The model, with what no loss reaches frozen."""
        for name in ('hidden', 'nsp'):
            if getattr(bert, name, None) is not None:
                getattr(bert, name).collect_params().setattr('grad_req',
                                                             'null')
        return bert

    def batches(self, epoch, start):
        """One epoch of training: (position, `Masked` of NumPy arrays)."""
        s, spans = self.settings, self.spans
        if spans == TOKENS and s['whole_word_masking']:
            spans = WORDS
        return self.text.train.batches(
            s['batch_size'], s['max_len'], seed=s['seed'], epoch=epoch,
            start=start, dynamic=s['dynamic'], spans=spans)

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        """Always the same batches of a held-out `StoredText`.

        Masked words are single tokens, whatever a run of `mlm` hides, so
        that figures of all of them can be compared.
        """
        return (batch for _, batch in text.batches(
            batch_size, max_len, seed=0, dynamic=False, spans=cls.spans))

    @classmethod
    def counts(cls, batch):
        """Predictions, for each loss."""
        return (batch.mlm_weights_X.sum(),) * len(cls.losses)

    @classmethod
    def shard_losses(cls, net, batch, devices):
        """[(MLM loss, predictions), ...] of each device, as in `losses`."""
        return [[(loss, hidden.count) for loss in cls.losses_of(net, hidden)]
                for hidden in (Hidden.of(net, shard, device)
                               for shard, device in shards(batch, devices))]

    @staticmethod
    def losses_of(net, hidden):
        """The losses of a shard, scalars."""
        return [net.mlm.loss(hidden.at(hidden.places), hidden.labels,
                             hidden.weights)]

    @classmethod
    def figures(cls, net, batches, devices):
        """`Figures` of a net on batches like `held_out_batches`."""
        sums = None
        for batch in batches:
            with autograd.pause():
                waiting = [cls.sums_of(net, hidden) for hidden in (
                    Hidden.of(net, shard, device)
                    for shard, device in shards(batch, devices))
                    if hidden.count]
            for figures in waiting:
                sums = sums or Accumulator(figures.size)
                sums.add(*figures.asnumpy())
        if sums is None:
            raise ValueError('there is nothing to evaluate on: no word of '
                             'the text was hidden')
        return cls.Figures(*cls.means_of(*sums.data))

    @staticmethod
    def sums_of(net, hidden):
        """Sums over a shard, (5,): those of `evaluation.mlm_sums`."""
        return mlm_sums(net.mlm.mlp(hidden.at(hidden.places)),
                        hidden.labels.asnumpy())

    means_of = staticmethod(mlm_figures)

    line = staticmethod(mlm_line)

    @classmethod
    def summary(cls, history, devices):
        """The book's two lines, of sequences."""
        return summary(history, devices, cls.unit)


class MLMAndSBO(MLM):
    """Words hidden in spans, and said twice: Joshi et al. 2020.

    By the MLM head from their own places, and by the boundary head from the
    two places beside their span. Rows are those of `MLM`, single sequences.
    """

    losses = 'mlm', 'sbo'
    Figures = SpanFigures
    drawn = 'mlm_loss', 'sbo_loss'
    spans = SPANS

    @classmethod
    def trained(cls, bert):
        """The model with a boundary head, and with its NSP frozen."""
        return BERTWithBoundary(super().trained(bert),
                                cls.spans.most(bert.vocab))

    @classmethod
    def losses_of(cls, net, hidden):
        """MLM and SBO loss of a shard, scalars."""
        return [*super().losses_of(net.bert, hidden), net.boundary.loss(
            cls._boundary(net, hidden), net.bert.encoder.token_embedding,
            hidden.labels, hidden.weights)]

    @classmethod
    def sums_of(cls, net, hidden):
        """Sums over a shard, (10,): those of both heads."""
        return np.concatenate([
            super().sums_of(net.bert, hidden),
            mlm_sums(net.boundary.scores(
                cls._boundary(net, hidden),
                net.bert.encoder.token_embedding), hidden.labels.asnumpy())])

    @staticmethod
    def means_of(*sums):
        """Figures of both heads."""
        return *mlm_figures(*sums[:5]), *loss_and_accuracy(*sums[5:8])

    @staticmethod
    def _boundary(net, hidden):
        behind = hidden.places - hidden.left - 1
        return net.boundary(        # -1 where nothing is hidden
            hidden.at(hidden.left), hidden.at(hidden.right),
            hidden.put(onp.maximum(behind, 0)))

    @staticmethod
    def line(figures):
        """Held-out figures in words."""
        return f'{mlm_line(figures)}; {pairs_line("sbo", figures)}'


class Hidden(NamedTuple):
    """The hidden words of a shard, and what the net says of its tokens."""

    X: Any              # (R, H)
    places: Any         # (S,) rows of X, on the host, as are the next two
    left: Any           # (S,) the row left of each one's span
    right: Any          # (S,) the row right of it
    labels: Any         # (S,) int32
    weights: Any        # (S,) float32
    count: float        # how many there are

    @classmethod
    def of(cls, net, shard, device):
        """Encode a `Masked` of NumPy arrays on a device.

        Where nothing is hidden, one word counts with a weight of 0: each
        device has to give all gradients.
        """
        net = getattr(net, 'bert', net)
        tokens = np.array(shard.tokens_X, dtype='int32', ctx=device)
        X, begins, _ = at_real_places(net, tokens, np.zeros_like(tokens),
                                      shard.valid_lens_x)
        row, k = onp.nonzero(shard.mlm_weights_X)
        count = len(row)
        if not count:
            row = k = onp.zeros(1, 'int64')
        places, left, right = (
            begins[row] + column[row, k] for column in (
                shard.pred_positions_X, shard.left_X, shard.right_X))
        return cls(X, places, left, right, *(
            np.array(column[row, k], dtype=column.dtype, ctx=device)
            for column in (shard.mlm_Y, shard.mlm_weights_X)), float(count))

    def at(self, places):
        """The vectors (S, H) at rows `places` of X."""
        return self.X.take(self.put(places), axis=0)

    def put(self, numbers):
        """Whole numbers (S,) on the device of X."""
        return np.array(numbers, dtype='int32', ctx=self.X.ctx)
