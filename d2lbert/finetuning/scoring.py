"""Run a fine-tuned net over many examples."""
import numpy as onp

from d2lbert.finetuning.batches import batch_of, to_score
from d2lbert.machine.backend import autograd
from d2lbert.nn.checks import on_device
from d2lbert.pretrained.heads import WHOLE


def outputs_of(net, inputs, devices, advance=lambda num_examples: None):
    """The scores of each example of `Inputs`, a list of host arrays.

    (K,) for whole texts, (T, K) for tokens. A batch has examples of similar
    length; padding is not computed, and dropout is off. On the same devices,
    equal inputs have bitwise equal outputs. advance: called with the number
    of examples that are ready.
    """
    found = [None] * len(inputs.tokens)
    chosen = list(to_score(inputs.lens))
    with autograd.pause():
        for begin in range(0, len(chosen), len(devices)):
            # One batch per device at a time
            waiting = [(some, *_scores(net, batch_of(inputs, some), device))
                       for some, device in zip(
                           chosen[begin:begin + len(devices)], devices)]
            for some, scores, bounds in waiting:
                scores = scores.asnumpy()
                parts = (scores if bounds is None
                         else onp.split(scores, bounds[1:-1]))
                for k, part in zip(some, parts):
                    found[k] = part
                advance(len(some))
    return found


def _scores(net, batch, device):
    """Scores on the device, and the bounds of each text (None: one row)."""
    X, begins, _ = encode(net, batch, device)
    if net.kind in WHOLE:
        return net.score_texts(X, begins, len(batch.tokens_X)), None
    lens = batch.lens
    bounds = onp.concatenate([[0], onp.cumsum(lens)])
    rows = onp.concatenate([onp.arange(begin, begin + length)
                            for begin, length in zip(begins, lens)])
    return net.score(X, rows), bounds


def encode(net, batch, device):
    """Run `FineTuned.encode` on a `Batch`; returns (X, begins, lens)."""
    def put(A):
        return on_device(A, device, 'int32')
    X, begins = net.encode(put(batch.tokens_X), put(batch.segments_X),
                           put(batch.valid_lens_x))
    return X, begins, batch.lens
