"""Held-out figures: losses and accuracies of both tasks, on unseen text."""
import math
from typing import NamedTuple

from d2lbert._mxnet import autograd, np, npx
from d2lbert.bert_pretraining import _get_batch_bert
from d2lbert.progress import Accumulator


class Figures(NamedTuple):
    """What a model makes of a text, over all its predictions and pairs."""

    mlm_loss: float         # nats for a prediction
    perplexity: float       # exp(mlm_loss)
    mlm_accuracy: float     # share of hidden words that come first
    nsp_loss: float         # nats for a pair; 0.693 is chance
    nsp_accuracy: float     # share of pairs told rightly; 0.5 is chance


def evaluate(net, batches, devices):
    """The `Figures` of `net` on batches like those of `load_data_wiki`."""
    # MLM: loss, hits, predictions; NSP: loss, hits, pairs
    sums = Accumulator(6)
    for batch in batches:
        waiting = [_sums(net, *shard)
                   for shard in zip(*_get_batch_bert(batch, devices))]
        for figures in waiting:
            sums.add(*figures.asnumpy())
    if not sums[2] or not sums[5]:
        raise ValueError('there is nothing to evaluate on: the text has no '
                         'pair of sentences that fits')
    mlm_loss = sums[0] / sums[2]
    # Where training has failed, e to the loss can be beyond all numbers
    perplexity = math.exp(mlm_loss) if not mlm_loss > 700 else math.inf
    return Figures(mlm_loss, perplexity, sums[1] / sums[2],
                   sums[3] / sums[5], sums[4] / sums[5])


def _sums(net, tokens_X, segments_X, valid_lens_x, pred_positions_X,
          mlm_weights_X, mlm_Y, nsp_y):
    """Losses, hits and counts of both tasks on one device: (6,)."""
    # Words to score are many numbers each: leave out what only pads
    row, k = mlm_weights_X.asnumpy().nonzero()
    places = row * tokens_X.shape[1] + pred_positions_X.asnumpy()[row, k]
    with autograd.pause():      # somebody may be recording
        encoded, _, nsp_Y_hat = net(tokens_X, segments_X, valid_lens_x)
        nsp = _loss_hits_count(nsp_Y_hat, nsp_y)
        if not len(row):
            return np.concatenate([np.zeros_like(nsp), nsp])
        mlm_Y_hat = net.mlm(
            encoded.reshape(1, -1, encoded.shape[-1]),
            np.array(places[None], dtype='int32', ctx=encoded.ctx))
    labels = np.array(mlm_Y.asnumpy()[row, k], ctx=encoded.ctx)
    return np.concatenate([_loss_hits_count(mlm_Y_hat[0], labels), nsp])


def _loss_hits_count(scores, labels):
    """(M, K) scores of labels (M,): three sums, (3,)."""
    labels = labels.astype('int32')
    losses = -npx.pick(npx.log_softmax(scores), labels)
    hits = scores.argmax(axis=1).astype('int32') == labels
    return np.stack([losses.sum(), hits.astype(losses.dtype).sum(),
                     np.ones_like(losses).sum()])
