"""Define `TextObjective`, the base class of the objectives of `pretrain`.

The function `evaluate` computes losses and accuracies of the chapter's tasks,
MLM and NSP.
"""
import math
from typing import NamedTuple

from d2lbert import hub
from d2lbert.corpus.corpus import open_corpus, report
from d2lbert.machine.backend import autograd, np
from d2lbert.machine.hardware import require_memory
from d2lbert.nn.checks import host, on_device
from d2lbert.nn.layers import cross_entropy
from d2lbert.nn.packed import MaskedTokens
from d2lbert.nn.steps import num_parameters, shards
from d2lbert.objectives.initializers import initialize
from d2lbert.objectives.objective import Objective, run_summary
from d2lbert.objectives.setting_rules import NAMED_CORPORA
from d2lbert.pretrained.families.nets import (
    PUBLISHED,
    PUBLISHED_DISTILBERT,
    net_of,
)
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab, same_pieces
from d2lbert.progress import Accumulator
from d2lbert.text import UNK_ID
from d2lbert.texts.examples import check_max_len
from d2lbert.texts.numbered_text import MIN_FREQ

DEFAULT_PIECES = 8000

#: {value of the setting `architecture`: arguments of a net}. `net_config` adds
#: arguments from other settings, and raises max_len if a run needs more.
ARCHITECTURES = {'book': dict(max_len=1000), 'published': PUBLISHED,
                 'distilbert': PUBLISHED_DISTILBERT}


class TextObjective(Objective):
    """An objective of `pretrain`, on a text of any size.

    settings: {name: value} of all settings in `training.settings`. vocab: the
    `Vocab` of a resumed run or of a teacher, which replaces the setting
    `vocab`; otherwise None. progress: True to show progress, and to describe
    the text of a new run. is_new: False if the run is resumed, so that a
    checkpoint replaces the initial weights.

    `d2lbert evaluate` constructs no object. It calls the class methods
    `net_to_train`, `held_out_batches` and `figures`.
    """

    weights = (1,)          # for an objective with one loss
    command = 'pretrain'
    change_causes = {
        'fingerprint': ('the corpus', 'a file, what --eval-every holds out, '
                        'or the version of Unicode or NLTK that cuts '
                        'the text'),
        'teacher': ('the teacher', 'its weights are different')}

    def __init__(self, settings, vocab=None, progress=False, is_new=True):
        self.settings, self._is_new = settings, is_new
        self._describes_text = progress and is_new
        self.corpus = read_corpus(settings, vocab, progress)
        self.vocab = self.corpus.vocab
        self.fingerprint = self.corpus.fingerprint
        self.num_steps = settings['num_steps']
        self.eval_every = settings['eval_every']
        if self.eval_every:
            if self.corpus.valid is None:
                raise ValueError('eval_every needs held-out text: name a file '
                                 'as valid (--valid), or raise valid_share '
                                 '(--valid-share)')
            # If the held-out text has no batch, raise the error now, not at
            # the first evaluation
            next(self.held_out_batches(
                self.corpus.valid, settings['batch_size'],
                settings['max_len']))

    @property
    def fixed_entries(self):
        # Checked in this order, since another teacher may change the
        # fingerprint, too. `Distillation` replaces teacher=None
        return dict(teacher=None, fingerprint=self.fingerprint)

    @property
    def net_config(self):
        """The keyword arguments of the net."""
        s = self.settings
        config = dict(ARCHITECTURES[s['architecture']])
        if s['share_layers']:
            config['num_groups'] = 1
        if s['embedding_size'] is not None:
            config['embedding_size'] = s['embedding_size']
            if s['architecture'] == 'published':
                # An ALBERT has groups of layers that share weights. Unless
                # share_layers is given, each group has one layer
                config.setdefault('num_groups', s['num_layers'])
                config['family'] = 'albert'
        config.update(
            vocab_size=len(self.vocab), num_hiddens=s['num_hiddens'],
            ffn_num_hiddens=s['ffn_num_hiddens'], num_heads=s['num_heads'],
            num_layers=s['num_layers'], dropout=s['dropout'],
            max_len=max(config['max_len'], s['max_len']),
            precision=s['precision'])
        for name in ('tie_embeddings', 'pre_norm'):
            if s[name]:
                config[name] = True
        return config

    def net(self, devices):
        bert = net_of(self.net_config)
        bert.vocab = self.vocab
        net = self.net_to_train(bert)
        # 4 bytes each for weight, gradient, Adam's two moments, and average
        bytes_per_weight = 20 if self.settings['average'] else 16
        require_memory(
            bytes_per_weight * num_parameters(net), 'training this model',
            'lower num_hiddens (--num-hiddens), ffn_num_hiddens, num_layers '
            'or max_len')
        # A resumed run passes no text: the checkpoint replaces these weights,
        # and the initializer 'topical' would analyze a text for over a second
        initialize(net, self.settings['initializer'], devices,
                   self.corpus.train if self._is_new else None)
        check_max_len(self.settings['max_len'])
        if self._describes_text:
            # After the checks, so that no report precedes their errors
            report(self.corpus, self.settings,
                   is_named=self.settings['corpus'] in NAMED_CORPORA)
        return net

    @classmethod
    def net_to_train(cls, bert):
        """The net to train: the model, and blocks that the objective adds."""
        return bert

    @staticmethod
    def model_of(net):
        """The model in a net that `net_to_train` returned."""
        return net

    def evaluate(self, net, devices):
        s = self.settings
        return self.figures(net, self.held_out_batches(
            self.corpus.valid, s['batch_size'], s['max_len']), devices)

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        """Yield batches of a held-out text, the same in each call.

        text: a `corpus.stored_text.StoredText`.
        """
        raise NotImplementedError

    @classmethod
    def figures(cls, net, batches, devices):
        """The `cls.Figures` of a net on batches of `held_out_batches`."""
        raise NotImplementedError

    def config_entries(self, history):
        """The entry `wanted`, unless the run has the wanted corpus."""
        return {} if history.wanted is None else dict(wanted=history.wanted)

    def summary(self, history, devices):
        return run_summary(history, devices, self.unit)


def freeze_pair_layers(bert):
    """Freeze the next-sentence layers, which no loss reaches."""
    for layer in bert.hidden, bert.nsp:
        if layer is not None:
            layer.collect_params().setattr('grad_req', 'null')


def read_corpus(settings, vocab=None, progress=False):
    """The `corpus.corpus.Corpus` that the settings name.

    vocab: the `Vocab` of a resumed or evaluated run, or of a teacher, which
    numbers the words. None: use the file that the setting `vocab` names, or
    build a vocabulary from the text.
    """
    paths, valid_paths = settings['corpus'], settings['valid']
    if paths == 'wikitext-2':
        folder = hub.wikitext2_dir(settings['data_dir'])
        paths = folder / hub.TRAIN_FILE
        if valid_paths is None and (folder / hub.VALID_FILE).is_file():
            valid_paths = folder / hub.VALID_FILE
    elif paths == 'sample':
        paths = hub.sample_dir() / hub.TRAIN_FILE
    vocab_source, min_freq = settings['vocab'], settings['min_freq']
    if min_freq is None and settings['corpus'] in NAMED_CORPORA:
        min_freq = MIN_FREQ
    # A vocabulary that was built from the text is built again, so that the
    # text has the same key in the cache. Then `vocab` replaces it
    was_built = vocab_source is None and settings['teacher'] is None
    if vocab is not None and not was_built:
        vocab_source = vocab
    valid_share = settings['valid_share'] if settings['eval_every'] else 0.0
    if valid_paths is not None:
        valid_share = 0.0
    keywords = dict(
        valid_paths=valid_paths, valid_share=valid_share,
        split=settings['split'], text_field=settings['text_field'],
        progress=progress)
    vocab_size = settings['vocab_size']
    if settings['tokenizer'] == 'wordpiece':
        if vocab_source is None:
            corpus = open_corpus(paths, pieces=vocab_size or DEFAULT_PIECES,
                                 **keywords)
            if vocab is None or same_pieces(corpus.vocab, vocab):
                return corpus
            # Another version of the library `tokenizers` learned other pieces
            vocab_source = vocab
        elif vocab is None:
            vocab_source = PieceVocab.load(vocab_source)
        return open_corpus(paths, vocab=vocab_source, **keywords)
    # The seed only orders the words of a new vocabulary
    seed = settings['seed'] if vocab is None else None
    corpus = open_corpus(paths, vocab=vocab_source, max_vocab=vocab_size,
                         min_freq=min_freq, seed=seed, **keywords)
    return corpus if vocab is None else corpus.numbered_by(vocab)


class Figures(NamedTuple):
    """Figures of a model on a text, over all predictions and pairs.

    <unk> is easy to predict, so a text full of unknown words has a high
    mlm_accuracy. known_accuracy leaves out every <unk>, also those that
    WikiText-2 itself has.
    """

    mlm_loss: float         # nats for a prediction
    perplexity: float       # exp(mlm_loss)
    mlm_accuracy: float     # share of masked words ranked first
    nsp_loss: float         # nats for a pair; 0.693 is chance
    nsp_accuracy: float     # share of pairs with the right label
    # With defaults, since checkpoints of earlier versions lack them
    unknown_share: float = math.nan   # share of <unk> among masked words
    known_accuracy: float = math.nan  # mlm_accuracy without <unk>


def evaluate(net, batches, devices):
    """The `Figures` of a net on batches, as `load_data_wiki` loads them."""
    totals = Accumulator(8)
    for batch in batches:
        host_batch = type(batch)(*map(host, batch))
        # Start all devices before waiting for the first device
        shard_sums = [_shard_sums(net, shard, device)
                      for shard, device in shards(host_batch, devices)]
        for sums in shard_sums:
            totals.add(*sums.asnumpy())
    mlm_totals, pair_totals = totals.data[:5], totals.data[5:]
    num_preds, num_pairs = mlm_totals[2], pair_totals[2]
    if not num_preds or not num_pairs:
        raise ValueError('there is nothing to evaluate on: the text has no '
                         'pair of sentences that fits')
    loss, perplexity, accuracy, unknown_share, known_accuracy = mlm_figures(
        *mlm_totals)
    pair_figures = loss_and_accuracy(*pair_totals)
    return Figures(loss, perplexity, accuracy, *pair_figures, unknown_share,
                   known_accuracy)


def mlm_figures(loss_sum, hits, num_preds, known_hits, num_known):
    """Figures of predicted tokens, from the sums that `mlm_sums` returns.

    Returns mean loss, perplexity, accuracy, share of <unk>, and accuracy on
    tokens other than <unk>.
    """
    loss, accuracy = loss_and_accuracy(loss_sum, hits, num_preds)
    if math.isnan(loss):    # as in `loss_and_accuracy`
        known_hits = math.nan
    # exp overflows above 709, which the loss of a diverged training can exceed
    perplexity = math.inf if loss > 700 else math.exp(loss)
    unknown_share = (num_preds - num_known) / num_preds
    known_accuracy = known_hits / num_known if num_known else math.nan
    return loss, perplexity, accuracy, unknown_share, known_accuracy


def loss_and_accuracy(loss_sum, hits, count):
    """(mean loss, accuracy), from sums over `count` predictions."""
    # The argmax of NaN scores is no prediction, even if it hits
    if math.isnan(loss_sum):
        hits = math.nan
    return loss_sum / count, hits / count


def _shard_sums(net, shard, device):
    """Sums over a shard, the part of a batch on one device: (8,).

    The five sums of `mlm_sums`, then loss, hits and number of pairs.
    """
    with autograd.pause():      # the caller may be recording
        masked = MaskedTokens.of(net, shard, device)
        device = masked.X.ctx
        pair_sums, _ = _sums_and_hits(masked.nsp_Y_hat,
                                      on_device(shard.nsp_y, device))
        if not masked.count:
            return np.concatenate([np.zeros(5, ctx=device), pair_sums])
        # Called as on the book's page, since a user may have replaced the head
        scores = net.mlm(np.expand_dims(masked.X, 0),
                         masked.put(masked.masked_rows[None]))
    return np.concatenate([mlm_sums(scores[0], masked.labels), pair_sums])


def mlm_sums(scores, labels, unk=UNK_ID):
    """Sums over M predictions of tokens: (5,).

    Loss, hits and number of all predictions, then hits and number of the
    predictions whose label is not <unk>. A prediction is a hit if its label
    has the highest score. scores (M, V); labels (M,) on the host. unk: the id
    of <unk>.
    """
    is_known = on_device(labels != unk, scores.ctx, 'float32')
    sums, is_hit = _sums_and_hits(scores, on_device(labels, scores.ctx))
    return np.concatenate([sums, np.stack([(is_hit * is_known).sum(),
                                           is_known.sum()])])


def _sums_and_hits(scores, labels):
    """(sums, is_hit) of M predictions.

    sums (3,): loss, hits and number of the predictions. is_hit (M,): 1 for a
    hit, else 0. scores (M, K) for K classes; labels (M,).
    """
    labels = labels.astype('int32')
    losses = cross_entropy(scores, labels)
    is_hit = (scores.argmax(axis=1).astype('int32') == labels).astype(
        losses.dtype)
    return np.stack([losses.sum(), is_hit.sum(),
                     np.ones_like(losses).sum()]), is_hit


def mlm_line(figures):
    """The held-out figures of masked words, for a line of the log."""
    return (f'held-out MLM loss {figures.mlm_loss:.3f}, accuracy '
            f'{figures.mlm_accuracy:.3f} (of known words '
            f'{figures.known_accuracy:.3f}, {figures.unknown_share:.0%} '
            'are <unk>)')


def task_line(name, figures):
    """The figures `name`_loss and `name`_accuracy, for a line of the log."""
    loss = getattr(figures, f'{name}_loss')
    accuracy = getattr(figures, f'{name}_accuracy')
    return f'{name.upper()} loss {loss:.3f}, accuracy {accuracy:.3f}'
