"""The hidden words of a batch, and what a net says of its tokens.

R rows without padding (see `packing`), S hidden words, H hiddens, B pairs.
"""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.kernels import ops
from d2lbert.machine.backend import np
from d2lbert.nn.checks import on_device
from d2lbert.nn.packed import at_real_places


class Hidden(NamedTuple):
    """The hidden words of a shard, and what the net says of its tokens."""

    X: Any              # (R, H)
    places: Any         # (S,) rows of X, on the host, as are the next two
    left: Any           # (S,) the row left of each one's span; None in pairs
    right: Any          # (S,) the row right of it; None in pairs
    labels: Any         # (S,) int32
    weights: Any        # (S,) float32
    count: float        # how many there are
    nsp_Y_hat: Any      # (B, 2), None without such a head
    nsp_y: Any          # (B,) float32, on the host; None without pairs

    @classmethod
    def of(cls, net, shard, device):
        """Encode a `Masked`, or a `Batch`, of NumPy arrays on a device.

        Where nothing is hidden, one word counts with a weight of 0: each
        device has to give all gradients.
        """
        net = getattr(net, 'bert', net)

        def column(name):
            found = getattr(shard, name, None)
            return None if found is None else on_device(found, device,
                                                        'int32')
        tokens, segments = column('tokens_X'), column('segments_X')
        X, begins, nsp_Y_hat = at_real_places(
            net, tokens, np.zeros_like(tokens) if segments is None
            else segments, shard.valid_lens_x)
        row, k = onp.nonzero(shard.mlm_weights_X)
        count = len(row)
        if not count:
            row = k = onp.zeros(1, 'int64')
        places, left, right = (
            None if found is None else begins[row] + found[row, k]
            for found in (getattr(shard, name, None) for name in (
                'pred_positions_X', 'left_X', 'right_X')))
        return cls(X, places, left, right, *(
            on_device(found[row, k], device)
            for found in (shard.mlm_Y, shard.mlm_weights_X)), float(count),
            nsp_Y_hat, getattr(shard, 'nsp_y', None))

    def at(self, places):
        """The vectors (S, H) at rows `places` of X."""
        return ops.take_rows(self.X, self.put(places))[0]

    def put(self, numbers):
        """Whole numbers (S,) on the device of X."""
        return on_device(numbers, self.X.ctx, 'int32')

    def mlm_loss(self, bert):
        """(MLM loss of a `BERTModel`, predictions)."""
        return bert.mlm.loss(self.at(self.places), self.labels,
                             self.weights), self.count
