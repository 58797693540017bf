"""Masked words and pairs of sentences: what the chapter trains for.

And the same with the order of sentences, which is ALBERT's.
"""
import math
from pathlib import Path
from typing import NamedTuple

from d2lbert import hub
from d2lbert.corpus.corpus import open_corpus
from d2lbert.corpus.report import report
from d2lbert.machine.hardware import require_memory
from d2lbert.nn.layers import cross_entropy
from d2lbert.nn.masked_tokens import MaskedTokens
from d2lbert.nn.shards import shards
from d2lbert.nn.steps import summary
from d2lbert.objectives.figures import Figures, evaluate
from d2lbert.objectives.initializers import initialize
from d2lbert.pretrained.families.family import net_of
from d2lbert.pretrained.families.sizes import DISTILLED, PUBLISHED
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab, same_pieces
from d2lbert.texts.examples import check_max_len
from d2lbert.texts.numbered_text import MIN_FREQ

#: Word pieces that are learnt where no number of them is given.
PIECES = 8000

#: Corpora that have names. Their vocabulary is the book's, however small.
NAMED = 'wikitext-2', 'sample'

#: Rows of the table of positions, as the book has them, or more.
POSITIONS = 1000

#: What nets have besides their sizes, by the name of the architecture.
ARCHITECTURES = {'book': dict(max_len=POSITIONS), 'published': PUBLISHED,
                 'distilbert': DISTILLED}


class MLMAndNSP:
    """The objective of the chapter, on a text of any size.

    settings: those of `training.settings`; vocab: the `Vocab` to use in
    place of a file that the settings name, which may be gone; begins:
    whether the net keeps the weights that are drawn for it, as it does not
    where a run goes on.
    """

    losses = 'mlm', 'nsp'
    Figures = Figures
    drawn = 'mlm_loss', 'nsp_loss'
    unit, command = 'sentence pairs', 'pretrain'
    swap = False            # whether the label is the order of a pair
    score = None            # the weights of the last step are kept
    changed = {
        'fingerprint': ('the corpus', 'a file, what --eval-every holds out, '
                        'or the version of Unicode or NLTK that cuts it'),
        'teacher': ('the teacher', 'its weights are others')}

    def __init__(self, settings, vocab=None, progress=False, begins=True):
        self.settings, self._begins = settings, begins
        self._reports = progress and begins
        s = settings
        self.text = read_corpus(s, vocab, progress)
        self.vocab, self.fingerprint = self.text.vocab, self.text.fingerprint
        if s['eval_every']:
            if self.text.valid is None:
                raise ValueError('eval_every needs held-out text: name some '
                                 'as valid (--valid), or raise valid_share '
                                 '(--valid-share)')
            # Text of which no pair fits is refused now, not hours later
            next(self.held_out_batches(self.text.valid, s['batch_size'],
                                       s['max_len']))

    @property
    def recorded(self):
        """What must be the same in a resumed run, by what it is of."""
        # Another teacher has another vocabulary, too: it is named first
        return dict(teacher=None, fingerprint=self.fingerprint)

    @property
    def num_steps(self):
        """Steps of the whole run."""
        return self.settings['num_steps']

    @property
    def weights(self):
        """How much each of the losses counts."""
        return 1, self.settings['nsp_weight']

    @property
    def eval_every(self):
        """Steps between two looks at held-out text, or None."""
        return self.settings['eval_every']

    @property
    def model(self):
        """The arguments of the net, a dictionary."""
        s = self.settings
        before = dict(ARCHITECTURES[s['architecture']])
        if s['share_layers']:
            before['num_groups'] = 1
        if s['embedding_size'] is not None:
            before['embedding_size'] = s['embedding_size']
            if s['architecture'] == 'published':
                # Whose folders speak of groups, even of one layer each
                before.setdefault('num_groups', s['num_layers'])
                before['family'] = 'albert'
        return dict(
            before, vocab_size=len(self.vocab), num_hiddens=s['num_hiddens'],
            ffn_num_hiddens=s['ffn_num_hiddens'], num_heads=s['num_heads'],
            num_layers=s['num_layers'], dropout=s['dropout'],
            max_len=max(before['max_len'], s['max_len']),
            precision=s['precision'],
            **{name: True for name in ('tie_embeddings', 'pre_norm')
               if s[name]})

    def net(self, devices):
        """The net, with new weights on every device."""
        bert = net_of(self.model)
        bert.vocab = self.vocab
        net = self.trained(bert)
        # A weight, its gradient, Adam's two moments, and its average
        num_bytes = 20 if self.settings['average'] else 16
        require_memory(
            num_bytes * sum(math.prod(param.shape)
                            for param in net.collect_params().values()),
            'training this model', 'lower num_hiddens (--num-hiddens), '
            'ffn_num_hiddens, num_layers or max_len')
        # To find topics takes a second and more
        initialize(net, self.settings['initializer'], devices,
                   self.text.train if self._begins else None)
        check_max_len(self.settings['max_len'])
        if self._reports:
            # Only now: what cannot be is one line, without another before it
            report(self.text, self.settings,
                   self.settings['corpus'] in NAMED)
        return net

    @staticmethod
    def trained(bert):
        """The net that is trained: a `BERTModel` with what it needs."""
        return bert

    def batches(self, epoch, start):
        """One epoch of training: (position, Batch of NumPy arrays)."""
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
    def model_of(net):
        """The `BERTModel` in a net of this objective."""
        return net

    def losses_of(self, net, masked):
        """[(MLM loss, predictions), (loss of pairs, pairs)] of a shard."""
        return [masked.mlm_loss(net.mlm), (
            cross_entropy(masked.nsp_Y_hat, masked.nsp_y),
            len(masked.nsp_y))]

    def evaluate(self, net, devices):
        """`Figures` of the held-out text."""
        s = self.settings
        return self.figures(net, self.held_out_batches(
            self.text.valid, s['batch_size'], s['max_len']), devices)

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        """Always the same batches of a held-out `StoredText`."""
        return held_out_batches(text, batch_size, max_len, cls.swap)

    @classmethod
    def figures(cls, net, batches, devices):
        """`Figures` of a net on batches like `held_out_batches`."""
        return cls.Figures(*evaluate(net, batches, devices))

    @staticmethod
    def line(figures):
        """Held-out figures in words."""
        return f'{mlm_line(figures)}; {pairs_line("nsp", figures)}'

    @staticmethod
    def described(history):
        """What config.json has besides net and settings."""
        return {} if history.wanted is None else dict(wanted=history.wanted)

    @classmethod
    def summary(cls, history, devices):
        """The book's two lines, and the losses of the last steps."""
        return run_summary(history, devices, cls.unit)


class SOPFigures(NamedTuple):
    """What a model makes of a text; see `evaluation.Figures`."""

    mlm_loss: float
    perplexity: float
    mlm_accuracy: float
    sop_loss: float         # nats for a pair; 0.693 is chance
    sop_accuracy: float     # share of pairs told rightly; 0.5 is chance
    unknown_share: float
    known_accuracy: float


class MLMAndSOP(MLMAndNSP):
    """Masked words and the order of sentences: Lan et al. 2020, section 3.1.

    The two texts of a pair are always neighbours, and in half of the pairs
    they have changed places. The head is that of next sentences: its 1 says
    "in order". What the two are about tells nothing here, and in next
    sentences it tells nearly all.
    """

    losses = 'mlm', 'sop'
    Figures = SOPFigures
    drawn = 'mlm_loss', 'sop_loss'
    swap = True

    @staticmethod
    def line(figures):
        """Held-out figures in words."""
        return f'{mlm_line(figures)}; {pairs_line("sop", figures)}'


def run_summary(history, devices, unit):
    """The book's two lines, and the losses of the last steps.

    The book prints means since step 1, to which the first steps add much.
    """
    lines = summary(history, devices, unit)
    if history.recent is None:
        return lines
    count, means = history.recent
    losses = ', '.join(f'{name.upper()} loss {mean:.3f}'
                       for name, mean in zip(history.losses, means))
    return f'{lines}\nlast {count} step{"s" * (count > 1)}: {losses}'


def mlm_line(figures):
    """Held-out figures of hidden words, in words."""
    return (f'held-out MLM loss {figures.mlm_loss:.3f}, accuracy '
            f'{figures.mlm_accuracy:.3f} (of known words '
            f'{figures.known_accuracy:.3f}, {figures.unknown_share:.0%} '
            'are <unk>)')


def pairs_line(name, figures):
    """The loss and accuracy that figures have under a name, in words."""
    loss, accuracy = (getattr(figures, f'{name}_{what}')
                      for what in ('loss', 'accuracy'))
    return f'{name.upper()} loss {loss:.3f}, accuracy {accuracy:.3f}'


def read_corpus(settings, vocab=None, progress=False):
    """The `Text` that the settings name, with its held-out part.

    Its vocabulary, where one is built, is that of the seed in them. vocab:
    the `Vocab` to use instead, and in place of a file that they name, or of
    a teacher.
    """
    corpus, valid = settings['corpus'], settings['valid']
    if corpus == 'wikitext-2':
        folder = hub.wikitext2_dir(settings['data_dir'])
        corpus = folder / hub.TRAIN_FILE
        if valid is None and (folder / hub.VALID_FILE).is_file():
            valid = folder / hub.VALID_FILE
    elif corpus == 'sample':
        corpus = hub.sample_dir() / hub.TRAIN_FILE
    given, min_freq = settings['vocab'], settings['min_freq']
    if min_freq is None and settings['corpus'] in NAMED:
        min_freq = MIN_FREQ
    if vocab is not None and (given, settings['teacher']) != (None, None):
        given = vocab

    def paths(files):
        return [files] if isinstance(files, (str, Path)) else files
    share = settings['valid_share'] if settings['eval_every'] else 0.0
    keywords = dict(
        valid_paths=None if valid is None else paths(valid),
        valid_share=share if valid is None else 0.0,
        split=settings['split'], text_field=settings['text_field'],
        progress=progress)
    size = settings['vocab_size']
    if settings['tokenizer'] == 'wordpiece':
        if given is None:
            text = open_corpus(paths(corpus), pieces=size or PIECES,
                               **keywords)
            if vocab is None or same_pieces(text.vocab, vocab):
                return text
            given = vocab       # learnt by another version of the library
        elif vocab is None:
            given = PieceVocab.load(given)
        return open_corpus(paths(corpus), vocab=given, **keywords)
    text = open_corpus(
        paths(corpus), vocab=given, max_vocab=size, min_freq=min_freq,
        seed=settings['seed'] if vocab is None else None, **keywords)
    return text if vocab is None else text.numbered_by(vocab)


def held_out_batches(text, batch_size, max_len, swap=False):
    """Always the same batches of a held-out `StoredText`."""
    return (batch for _, batch in text.batches(
        batch_size, max_len, seed=0, dynamic=False, swap=swap))
