"""Masked words and pairs of sentences: the chapter's objective, and ALBERT's.
"""
from typing import NamedTuple

from d2lbert.nn.layers import cross_entropy
from d2lbert.nn.masked_tokens import MaskedTokens
from d2lbert.nn.shards import shards
from d2lbert.objectives.figures import Figures, evaluate, mlm_line, pairs_line
from d2lbert.objectives.text_objective import TextObjective


class MLMAndNSP(TextObjective):
    """The objective of the chapter, on a text of any size."""

    losses = 'mlm', 'nsp'
    Figures = Figures
    drawn = 'mlm_loss', 'nsp_loss'
    unit = 'sentence pairs'
    swap = False        # True if a pair is labelled by its order

    @property
    def weights(self):
        """Factor of each loss in the sum that is minimized."""
        return 1, self.settings['nsp_weight']

    def batches(self, epoch, start):
        """Yield (position, `Batch` of NumPy arrays) of an epoch."""
        s = self.settings
        return self.text.train.batches(
            s['batch_size'], s['max_len'], seed=s['seed'], epoch=epoch,
            start=start, dynamic=s['dynamic'], fill=s['fill'],
            mask_share=s['mask_share'],
            whole_words=s['whole_word_masking'], swap=self.swap)

    @staticmethod
    def counts(batch):
        """Predictions and pairs: each loss is a mean over its own."""
        return batch.mlm_weights_X.sum(), len(batch.tokens_X)

    def shard_losses(self, net, batch, devices):
        """[(MLM loss, predictions), (loss of pairs, pairs)] of each device.
        """
        return [self.losses_of(net, MaskedTokens.of(net, shard, device))
                for shard, device in shards(batch, devices)]

    @staticmethod
    def losses_of(net, masked):
        """[(MLM loss, predictions), (loss of pairs, pairs)] of a shard."""
        return [masked.mlm_loss(net.mlm), (
            cross_entropy(masked.nsp_Y_hat, masked.nsp_y),
            len(masked.nsp_y))]

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        """The batches of a held-out `StoredText`, always the same."""
        return held_out_batches(text, batch_size, max_len, cls.swap)

    @classmethod
    def figures(cls, net, batches, devices):
        """`Figures` of a net on batches as of `held_out_batches`."""
        return cls.Figures(*evaluate(net, batches, devices))

    def line(self, figures):
        """Figures as a line of the log."""
        return (f'{mlm_line(figures)}; '
                f'{pairs_line(self.losses[1], figures)}')


class SOPFigures(NamedTuple):
    """Figures of a model on a text; see `figures.Figures`."""

    mlm_loss: float
    perplexity: float
    mlm_accuracy: float
    sop_loss: float         # nats for a pair; 0.693 is chance
    sop_accuracy: float     # share of pairs with the right label
    unknown_share: float
    known_accuracy: float


class MLMAndSOP(MLMAndNSP):
    """Masked words and sentence order: Lan et al. 2020, section 3.1.

    The two texts of a pair are always neighbours. Half of the pairs have
    them swapped. The head is the one of next sentences; label 1 is "in
    order". The topics of the two texts reveal next sentences almost always,
    but never their order.
    """

    losses = 'mlm', 'sop'
    Figures = SOPFigures
    drawn = 'mlm_loss', 'sop_loss'
    swap = True


def held_out_batches(text, batch_size, max_len, swap=False):
    """The batches of a held-out `StoredText`, always the same."""
    return (batch for _, batch in text.batches(
        batch_size, max_len, seed=0, dynamic=False, swap=swap))
