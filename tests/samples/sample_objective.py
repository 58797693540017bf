"""A sample objective: masked words with the z-loss of Chowdhery et al. 2022.

The second loss keeps the normalizer of the softmax near 1: it is the mean of
the squared log-sum-exp of the logits, over the masked words.
"""
from d2lbert.machine.backend import np
from d2lbert.objectives.mlm import MLM


class MLMAndZ(MLM):
    """Masked words and z-loss; data, net and held-out figures are MLM's."""

    losses, weights = ('mlm', 'z'), (1, 1e-4)

    @staticmethod
    def losses_of(net, masked):
        """[(MLM loss, predictions), (z-loss, predictions)]."""
        logits = net.mlm.mlp(masked.masked_X)           # (S, V)
        most = logits.max(axis=-1, keepdims=True)
        log_z = np.log(np.exp(logits - most).sum(axis=-1)) + most[:, 0]
        # A shard without a masked word has one of weight 0
        z_l = (log_z ** 2 * masked.weights).sum() / max(masked.count, 1)
        return [masked.mlm_loss(net.mlm), (z_l, masked.count)]


def make_objective(settings, vocab):
    """The objective of a run; vocab: of the checkpoint that it resumes."""
    return MLMAndZ(settings, vocab, is_new=vocab is None)
