"""Masked words without next sentences: RoBERTa's objective, and SpanBERT's.

B rows, T tokens, S masked words, R rows without padding (see `nn.packed`).
"""
from typing import NamedTuple

import numpy as onp

from d2lbert.corpus.masking import SINGLE_TOKENS, SPANBERT, WHOLE_WORDS
from d2lbert.machine.backend import autograd, np
from d2lbert.nn.masked_tokens import MaskedTokens
from d2lbert.nn.shards import shards
from d2lbert.objectives.figures import (
    loss_and_accuracy,
    mlm_figures,
    mlm_line,
    mlm_sums,
    pairs_line,
)
from d2lbert.objectives.span_boundary import BERTWithBoundary
from d2lbert.objectives.text_objective import TextObjective, freeze_pair_layers
from d2lbert.progress import Accumulator


class MLMFigures(NamedTuple):
    """Figures of a model on a text; see `figures.Figures`."""

    mlm_loss: float
    perplexity: float
    mlm_accuracy: float
    unknown_share: float
    known_accuracy: float


class SpanFigures(NamedTuple):
    """The same, and the figures of the boundary head on these words."""

    mlm_loss: float
    perplexity: float
    mlm_accuracy: float
    unknown_share: float
    known_accuracy: float
    sbo_loss: float         # nats for a prediction
    sbo_accuracy: float     # share of masked words ranked first


class MLM(TextObjective):
    """Words masked one by one, in full sentences: Liu et al. 2019.

    A row is one segment, filled by `corpus.stored_text`. Masks are drawn
    again each epoch, unless dynamic=False. The layers `hidden` and `nsp`,
    for next sentences, keep their initial weights and have no gradient.
    """

    losses = 'mlm',
    unit = 'sequences'
    Figures = MLMFigures
    drawn = 'mlm_loss',
    spans = SINGLE_TOKENS

    @classmethod
    def trained(cls, bert):
        """The model, with the layers that no loss reaches frozen."""
        freeze_pair_layers(bert)
        return bert

    def batches(self, epoch, start):
        """Yield (position, `MaskedRows` of NumPy arrays) of an epoch."""
        s, spans = self.settings, self.spans
        if spans == SINGLE_TOKENS and s['whole_word_masking']:
            spans = WHOLE_WORDS
        return self.text.train.batches(
            s['batch_size'], s['max_len'], seed=s['seed'], epoch=epoch,
            start=start, dynamic=s['dynamic'], mask_share=s['mask_share'],
            spans=spans)

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        """The batches of a held-out `StoredText`, always the same.

        Runs of `mlm` mask single tokens here, even if they mask whole words
        in training, so that their figures can be compared.
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
        model = cls.model_of(net)
        return [cls.losses_of(net, MaskedTokens.of(model, shard, device))
                for shard, device in shards(batch, devices)]

    @staticmethod
    def losses_of(net, masked):
        """[(MLM loss, predictions)] of `MaskedTokens`."""
        return [masked.mlm_loss(net.mlm)]

    @classmethod
    def figures(cls, net, batches, devices):
        """`Figures` of a net on batches as of `held_out_batches`."""
        sums = None
        for batch in batches:
            with autograd.pause():
                waiting = [cls.sums_of(net, masked) for masked in (
                    MaskedTokens.of(cls.model_of(net), shard, device)
                    for shard, device in shards(batch, devices))
                    if masked.count]
            for figures in waiting:
                sums = sums or Accumulator(figures.size)
                sums.add(*figures.asnumpy())
        if sums is None:
            raise ValueError('there is nothing to evaluate on: no word of '
                             'the text was masked')
        return cls.Figures(*cls.means_of(*sums.data))

    @staticmethod
    def sums_of(net, masked):
        """Sums over a shard, (5,), as `figures.mlm_sums` returns them."""
        return mlm_sums(net.mlm.mlp(masked.masked_X), masked.labels)

    means_of = staticmethod(mlm_figures)

    @staticmethod
    def line(figures):
        """Figures as a line of the log."""
        return mlm_line(figures)


class MLMAndSBO(MLM):
    """Words masked in spans, each predicted by two heads: Joshi et al. 2020.

    The MLM head reads the vector of the word's own position. The boundary
    head reads the vectors of the two positions beside the span. Rows are
    single sequences, as in `MLM`.
    """

    losses, weights = ('mlm', 'sbo'), (1, 1)
    Figures = SpanFigures
    drawn = 'mlm_loss', 'sbo_loss'
    spans = SPANBERT

    @classmethod
    def trained(cls, bert):
        """The model with a boundary head, and with its NSP layers frozen."""
        return BERTWithBoundary(super().trained(bert),
                                cls.spans.max_tokens(bert.vocab))

    @staticmethod
    def model_of(net):
        """The `BERTModel` in a net with a boundary head."""
        return net.bert

    @classmethod
    def losses_of(cls, net, masked):
        """[(loss, predictions), ...] of `MaskedTokens`, MLM and SBO."""
        return [masked.mlm_loss(net.bert.mlm), (net.boundary.loss(
            cls._boundary(net, masked), net.bert.encoder.token_embedding,
            masked.put(masked.labels), masked.weights), masked.count)]

    @classmethod
    def sums_of(cls, net, masked):
        """Sums over a shard, (10,), for both heads."""
        return np.concatenate([
            super().sums_of(net.bert, masked),
            mlm_sums(net.boundary.scores(
                cls._boundary(net, masked),
                net.bert.encoder.token_embedding), masked.labels)])

    @staticmethod
    def means_of(*sums):
        """Figures of both heads."""
        return *mlm_figures(*sums[:5]), *loss_and_accuracy(*sums[5:8])

    @staticmethod
    def _boundary(net, masked):
        positions = masked.rows - masked.left - 1
        return net.boundary(        # -1 if nothing is masked
            masked.at(masked.left), masked.at(masked.right),
            masked.put(onp.maximum(positions, 0)))

    @staticmethod
    def line(figures):
        """Figures as a line of the log."""
        return f'{mlm_line(figures)}; {pairs_line("sbo", figures)}'
