"""The masked tokens of a batch: encoded, gathered, scored.

B sequences, T tokens, P predictions, R rows without padding (see `packed`),
S masked tokens of all sequences, H hiddens.
"""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.kernels import ops
from d2lbert.nn import packed
from d2lbert.nn.checks import host, on_device


class MaskedTokens(NamedTuple):
    """The masked tokens of a shard, with the output of a net for them."""

    X: Any              # (R, H) every token
    masked_X: Any       # (S, H) the masked ones
    rows: Any           # (S,) their rows of X, on the host
    left: Any           # (S,) the row before each one's span, on the host;
    right: Any          # (S,) the row after it; None without spans
    labels: Any         # (S,) int32, on the host
    weights: Any        # (S,) float32, on the device
    count: float        # their number
    nsp_Y_hat: Any      # (B, 2), None without such a head
    nsp_y: Any          # (B,) on the host; None without pairs

    @classmethod
    def of(cls, net, shard, device=None):
        """Encode a shard, a `Batch` or `Masked`, by a `BERTModel`.

        device: the net's first one if None. A shard without a masked token
        counts one with a weight of 0, since each device has to compute all
        gradients.
        """
        weights = host(shard.mlm_weights_X)
        b, p = onp.nonzero(weights)
        count = len(b)
        if not count:
            b = p = onp.zeros(1, 'int64')

        def column(name):
            found = getattr(shard, name, None)
            return None if found is None else host(found)[b, p]
        positions = column('pred_positions_X')
        encoded = packed.encode(
            net, shard.tokens_X, getattr(shard, 'segments_X', None),
            shard.valid_lens_x, at=(b, positions), device=device)
        begins = encoded.begins[b]
        left, right = (None if found is None else begins + found
                       for found in (column('left_X'), column('right_X')))
        return cls(encoded.X, encoded.taken_X, begins + positions, left,
                   right, column('mlm_Y').astype('int32'),
                   on_device(weights[b, p], encoded.X.ctx, 'float32'),
                   float(count), encoded.nsp_Y_hat,
                   getattr(shard, 'nsp_y', None))

    def at(self, rows):
        """The vectors (S, H) at rows (S,) of X."""
        return ops.take_rows(self.X, self.put(rows))[0]

    def put(self, numbers):
        """Whole numbers (S,) on the device of X."""
        return on_device(numbers, self.X.ctx, 'int32')

    def mlm_loss(self, head):
        """The mean loss of a `MaskLM` head, and the number of predictions."""
        return head.loss(self.masked_X, self.put(self.labels),
                         self.weights), self.count

    def losses(self, net):
        """[(MLM loss, predictions), (NSP loss, pairs)], each loss a mean.

        The NSP loss has the value of Gluon's `SoftmaxCELoss`. Two operators
        take the place of five, as each costs small batches time.
        """
        count, ctx = len(self.nsp_Y_hat), self.X.ctx
        nsp_l = ops.softmax_ce(
            self.nsp_Y_hat, self.put(host(self.nsp_y)),
            on_device(onp.ones(count, 'float32'), ctx)).mean()
        return [self.mlm_loss(net.mlm), (nsp_l, count)]
