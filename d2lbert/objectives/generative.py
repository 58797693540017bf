"""Objectives that predict every token of a text: one loss.

M predicted tokens, H hiddens, V vocabulary.
"""
from d2lbert.machine.backend import autograd, np
from d2lbert.nn.checks import on_device
from d2lbert.nn.shards import shards
from d2lbert.objectives.figures import mlm_figures, mlm_sums
from d2lbert.objectives.text_objective import TextObjective
from d2lbert.progress import Accumulator

#: Rows with scores of the whole vocabulary in memory at a time.
ROWS = 1 << 10


class Generative(TextObjective):
    """The common part of `clm` and `denoise`; `counts` returns (M,)."""

    unit = 'sequences'

    @staticmethod
    def states(net, shard, device):
        """Vectors X (M, H), and the tokens that they predict.

        The tokens, labels (M,) int32, are on the host.
        """
        raise NotImplementedError

    @classmethod
    def shard_losses(cls, net, batch, devices):
        """[(loss, tokens)] of each device."""
        found = []
        for shard, device in shards(batch, devices):
            X, labels = cls.states(net, shard, device)
            loss = net.mlm.loss(X, on_device(labels, device, 'int32'),
                                np.ones(len(labels), ctx=device))
            found.append([(loss, float(len(labels)))])
        return found

    @classmethod
    def figures(cls, net, batches, devices):
        """`Figures` of a net on batches as of `held_out_batches`."""
        sums = Accumulator(5)
        for batch in batches:
            for shard, device in shards(batch, devices):
                with autograd.pause():
                    X, labels = cls.states(net, shard, device)
                    for k in range(0, len(labels), ROWS):
                        sums.add(*mlm_sums(net.mlm.mlp(X[k:k + ROWS]),
                                           labels[k:k + ROWS]).asnumpy())
        if not sums[2]:
            raise ValueError('there is nothing to evaluate on: the text has '
                             'no word')
        return cls.Figures(*mlm_figures(*sums.data))
