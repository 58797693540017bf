"""Held-out figures: losses and accuracies of both tasks, on unseen text."""
import math
from typing import NamedTuple

from d2lbert.machine.backend import autograd, np, npx
from d2lbert.nn import packed
from d2lbert.nn.checks import on_device
from d2lbert.nn.masked_tokens import MaskedTokens
from d2lbert.nn.shards import shards
from d2lbert.progress import Accumulator
from d2lbert.text import UNK_ID


class Figures(NamedTuple):
    """Figures of a model on a text, over all its predictions and pairs.

    Words outside the vocabulary are <unk>, which is easy to predict: a text
    full of them has a high mlm_accuracy. known_accuracy leaves them out, and
    also the <unk> that WikiText-2 itself writes for a rare word.
    """

    mlm_loss: float         # nats for a prediction
    perplexity: float       # exp(mlm_loss)
    mlm_accuracy: float     # share of masked words ranked first
    nsp_loss: float         # nats for a pair; 0.693 is chance
    nsp_accuracy: float     # share of pairs with the right label
    # Checkpoints of earlier versions lack these
    unknown_share: float = math.nan   # of <unk> among the masked words
    known_accuracy: float = math.nan  # mlm_accuracy without <unk>


def evaluate(net, batches, devices):
    """The `Figures` of `net` on batches as of `load_data_wiki`."""
    sums = Accumulator(8)
    for batch in batches:
        waiting = [_sums(net, shard, device) for shard, device in shards(
            type(batch)(*map(packed.host, batch)), devices)]
        for figures in waiting:
            sums.add(*figures.asnumpy())
    (mlm_loss, mlm_hits, num_preds, known_hits, num_known, nsp_loss, nsp_hits,
     num_pairs) = sums.data
    if not num_preds or not num_pairs:
        raise ValueError('there is nothing to evaluate on: the text has no '
                         'pair of sentences that fits')
    *mlm, unknown_share, known_accuracy = mlm_figures(
        mlm_loss, mlm_hits, num_preds, known_hits, num_known)
    return Figures(*mlm, *loss_and_accuracy(nsp_loss, nsp_hits, num_pairs),
                   unknown_share, known_accuracy)


def mlm_figures(loss, hits, num_preds, known_hits, num_known):
    """Figures of masked words, of the total of `mlm_sums`.

    Returns loss, perplexity, accuracy, share of <unk>, accuracy without.
    """
    loss, accuracy = loss_and_accuracy(loss, hits, num_preds)
    if math.isnan(loss):
        known_hits = math.nan
    # After training has failed, exp(loss) can overflow
    perplexity = math.exp(loss) if not loss > 700 else math.inf
    return (loss, perplexity, accuracy, (num_preds - num_known) / num_preds,
            known_hits / num_known if num_known else math.nan)


def loss_and_accuracy(loss, hits, count):
    """Means of the sums over `count` predictions."""
    if math.isnan(loss):        # argmax of NaN scores is no prediction
        hits = math.nan
    return loss / count, hits / count


def _sums(net, shard, device):
    """Sums over the part of a batch on one device, (8,).

    MLM: loss, hits, predictions, hits and predictions without <unk>; NSP:
    loss, hits, pairs.
    """
    with autograd.pause():      # the caller may be recording
        masked = MaskedTokens.of(net, shard, device)
        device = masked.X.ctx
        nsp, _ = _loss_hits_count(masked.nsp_Y_hat,
                                  on_device(shard.nsp_y, device))
        if not masked.count:
            return np.concatenate([np.zeros(5, ctx=device), nsp])
        scores = net.mlm(       # any head that scores (B, P) of (B, T, H)
            np.expand_dims(masked.X, 0), masked.put(masked.rows[None]))
    return np.concatenate([mlm_sums(scores[0], masked.labels), nsp])


def mlm_sums(scores, labels):
    """Loss, hits, predictions, hits and predictions without <unk>: (5,).

    scores (M, V) of masked words; labels (M,) on the host.
    """
    known = on_device(labels != UNK_ID, scores.ctx, 'float32')
    mlm, hits = _loss_hits_count(scores, on_device(labels, scores.ctx))
    return np.concatenate([mlm, np.stack([(hits * known).sum(),
                                          known.sum()])])


def _loss_hits_count(scores, labels):
    """(M, K) scores of labels (M,): three sums, (3,), and the hits, (M,)."""
    labels = labels.astype('int32')
    losses = -npx.pick(npx.log_softmax(scores), labels)
    hits = (scores.argmax(axis=1).astype('int32') == labels).astype(
        losses.dtype)
    return np.stack([losses.sum(), hits.sum(),
                     np.ones_like(losses).sum()]), hits


def mlm_line(figures):
    """Held-out figures of masked words, as a part of a line."""
    return (f'held-out MLM loss {figures.mlm_loss:.3f}, accuracy '
            f'{figures.mlm_accuracy:.3f} (of known words '
            f'{figures.known_accuracy:.3f}, {figures.unknown_share:.0%} '
            'are <unk>)')


def pairs_line(name, figures):
    """The figures `name`_loss and `name`_accuracy, as a part of a line."""
    loss, accuracy = (getattr(figures, f'{name}_{what}')
                      for what in ('loss', 'accuracy'))
    return f'{name.upper()} loss {loss:.3f}, accuracy {accuracy:.3f}'
