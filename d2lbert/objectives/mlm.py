"""Define objectives on masked words, as in BERT, ALBERT, RoBERTa, SpanBERT.

A masked "word" is a token: a whole word, or a word piece. A shard is the part
of a batch that one device computes.

S: the number of masked words. H: the number of hidden units. E: the size of
the token embeddings, equal to H without the setting embedding_size. V: the
number of tokens in the vocabulary.
"""
from typing import NamedTuple

import numpy as onp

from d2lbert.corpus.masking import SINGLE_TOKENS, SPANBERT, WHOLE_WORDS
from d2lbert.kernels import ops
from d2lbert.machine.backend import autograd, nn, np
from d2lbert.nn.layers import Dense, LayerNorm, grad_reqs
from d2lbert.nn.packed import MaskedTokens
from d2lbert.nn.steps import shards
from d2lbert.objectives.text_objective import (
    Figures,
    TextObjective,
    evaluate,
    freeze_pair_layers,
    loss_and_accuracy,
    mlm_figures,
    mlm_line,
    mlm_sums,
    task_line,
)
from d2lbert.progress import Accumulator


class MLMAndNSP(TextObjective):
    """Masked words and next sentences, the objective of the chapter."""

    losses = 'mlm', 'nsp'
    Figures = Figures
    plotted = 'mlm_loss', 'nsp_loss'
    unit = 'sentence pairs'
    # Half of the pairs, with label 0, are swapped (True) or get a random
    # second text (False)
    swap = False

    @property
    def weights(self):
        return 1, self.settings['nsp_weight']

    def batches(self, epoch, start):
        """Yield (position, `texts.examples.Batch`)."""
        s = self.settings
        return self.corpus.train.batches(
            s['batch_size'], s['max_len'], seed=s['seed'], epoch=epoch,
            start=start, dynamic=s['dynamic'], fill=s['fill_sequences'],
            mask_share=s['mask_share'],
            whole_words=s['whole_word_masking'], swap=self.swap)

    @staticmethod
    def counts(batch):
        return batch.mlm_weights_X.sum(), len(batch.tokens_X)

    def shard_losses(self, net, batch, devices):
        return [self.losses_of(net, MaskedTokens.of(net, shard, device))
                for shard, device in shards(batch, devices)]

    @staticmethod
    def losses_of(net, masked):
        """[(MLM loss, number of masked words), (pair loss, number of pairs)].

        masked: the `nn.packed.MaskedTokens` of a shard.
        """
        return masked.losses(net)

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        return (batch for _, batch in text.batches(
            batch_size, max_len, seed=0, dynamic=False, swap=cls.swap))

    @classmethod
    def figures(cls, net, batches, devices):
        # `SOPFigures` has the fields of `Figures` in the same order, with
        # `sop` in place of `nsp`
        return cls.Figures(*evaluate(net, batches, devices))

    def line(self, figures):
        return (f'{mlm_line(figures)}; '
                f'{task_line(self.losses[1], figures)}')


class SOPFigures(NamedTuple):
    """Figures of a model on a text; see `text_objective.Figures`."""

    mlm_loss: float
    perplexity: float
    mlm_accuracy: float
    sop_loss: float         # nats for a pair; 0.693 is chance
    sop_accuracy: float     # share of pairs with the right label
    unknown_share: float
    known_accuracy: float


class MLMAndSOP(MLMAndNSP):
    """Masked words and sentence order: Lan et al. 2020, section 3.1.

    The two texts of a pair are always adjacent in the corpus. In half of the
    pairs they are swapped. The NSP head predicts the label, 1 for "in order".
    """

    losses = 'mlm', 'sop'
    Figures = SOPFigures
    plotted = 'mlm_loss', 'sop_loss'
    swap = True


#: Size of the embedding of a position within a span, as in SpanBERT.
POSITION_UNITS = 200


class BoundaryHead(nn.Block):
    """Predict the words of a span from the two tokens beside the span.

    Joshi et al. 2020, section 3.2: y = f(x left of the span, x right of the
    span, p). Here x is the encoder's vector of a token, p embeds the word's
    position within the span, and f is `mlp`. As in SpanBERT's code, the token
    embedding (V, E) maps y to scores.

    num_positions: the largest number of tokens in a span. embedding_size: E;
    None: H.
    """

    def __init__(self, vocab_size, num_hiddens, num_positions,
                 precision='fp32', layer_norm_eps=1e-5, embedding_size=None,
                 **kwargs):
        super().__init__(**kwargs)
        self.positions = nn.Embedding(num_positions, POSITION_UNITS)
        self.mlp = nn.Sequential()
        for in_units, units in (
                (2 * num_hiddens + POSITION_UNITS, num_hiddens),
                (num_hiddens, embedding_size or num_hiddens)):
            self.mlp.add(Dense(units, activation='gelu',
                               precision=precision, in_units=in_units),
                         LayerNorm(epsilon=layer_norm_eps,
                                   in_channels=units))
        self.bias = self.params.get('bias', shape=(vocab_size,),
                                    init='zeros')
        self._precision = precision

    def forward(self, left_vectors, right_vectors, span_positions):
        """The vectors y (S, E), from the vectors x (S, H) beside each span.

        span_positions (S,) int32: each word's position in its span, from 0.
        """
        return self.mlp(np.concatenate(
            [left_vectors, right_vectors, self.positions(span_positions)],
            axis=1))

    def scores(self, Y, token_embedding):
        """Scores (S, V) of the vocabulary for Y (S, E)."""
        return ops.dense(
            Y, token_embedding.weight.data(Y.ctx), self.bias.data(Y.ctx),
            precision=self._precision,
            grad_req=grad_reqs(token_embedding.weight, self.bias))

    def loss(self, Y, token_embedding, labels, weights):
        """The weighted mean cross-entropy of Y (S, E), like `MaskLM.loss`.

        labels, weights (S,).
        """
        total = ops.vocab_ce(
            Y, token_embedding.weight.data(Y.ctx), self.bias.data(Y.ctx),
            labels, weights, precision=self._precision,
            grad_req=grad_reqs(token_embedding.weight, self.bias))
        # 1e-8: in a shard without masked words, all weights are 0
        return total.reshape(()) / (weights.sum() + 1e-8)


class BERTWithBoundary(nn.Block):
    """A `BERTModel` and the boundary head that is trained with it."""

    def __init__(self, bert, num_positions, **kwargs):
        super().__init__(**kwargs)
        config = bert.config
        self.bert = bert
        self.boundary = BoundaryHead(
            config['vocab_size'], config['num_hiddens'], num_positions,
            config['precision'], config['layer_norm_eps'],
            config.get('embedding_size'))

    @property
    def parts(self):
        return dict(boundary=self.boundary, model=self.bert)

    @property
    def config(self):
        return self.bert.config

    @property
    def vocab(self):
        return self.bert.vocab


class MLMFigures(NamedTuple):
    """Figures of a model on a text; see `text_objective.Figures`."""

    mlm_loss: float
    perplexity: float
    mlm_accuracy: float
    unknown_share: float
    known_accuracy: float


class SpanFigures(NamedTuple):
    """`MLMFigures`, and loss and accuracy of the boundary head."""

    mlm_loss: float
    perplexity: float
    mlm_accuracy: float
    unknown_share: float
    known_accuracy: float
    sbo_loss: float         # nats for a masked word
    sbo_accuracy: float     # share of masked words ranked first


class MLM(TextObjective):
    """Masked words without sentence pairs, as in RoBERTa: Liu et al. 2019.

    Each row is a single sequence, which `corpus.stored_text` fills with full
    sentences. Masks are drawn again in each epoch, unless the setting dynamic
    is False.
    """

    losses = ('mlm',)
    unit = 'sequences'
    Figures = MLMFigures
    plotted = ('mlm_loss',)
    masking = SINGLE_TOKENS

    @classmethod
    def net_to_train(cls, bert):
        freeze_pair_layers(bert)
        return bert

    def batches(self, epoch, start):
        """Yield (position, `corpus.masking.MaskedRows`)."""
        s, masking = self.settings, self.masking
        # SPANBERT, of `MLMAndSBO`, always masks whole words
        if masking == SINGLE_TOKENS and s['whole_word_masking']:
            masking = WHOLE_WORDS
        return self.corpus.train.batches(
            s['batch_size'], s['max_len'], seed=s['seed'], epoch=epoch,
            start=start, dynamic=s['dynamic'], mask_share=s['mask_share'],
            spans=masking)

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        # The setting whole_word_masking has no effect, so that figures of runs
        # can be compared
        return (batch for _, batch in text.batches(
            batch_size, max_len, seed=0, dynamic=False, spans=cls.masking))

    @classmethod
    def counts(cls, batch):
        return (batch.mlm_weights_X.sum(),) * len(cls.losses)

    @classmethod
    def shard_losses(cls, net, batch, devices):
        model = cls.model_of(net)
        return [cls.losses_of(net, MaskedTokens.of(model, shard, device))
                for shard, device in shards(batch, devices)]

    @staticmethod
    def losses_of(net, masked):
        """[(MLM loss, number of masked words)] of `MaskedTokens`."""
        return [masked.mlm_loss(net.mlm)]

    @classmethod
    def figures(cls, net, batches, devices):
        totals = None       # made when the number of sums is known
        for batch in batches:
            # `_shard_sums` starts all devices before `asnumpy` waits for one
            for sums in cls._shard_sums(net, batch, devices):
                if totals is None:
                    totals = Accumulator(sums.size)
                totals.add(*sums.asnumpy())
        if totals is None:
            raise ValueError('there is nothing to evaluate on: no word of '
                             'the text was masked')
        return cls.Figures(*cls.figures_of_sums(*totals.data))

    @classmethod
    def _shard_sums(cls, net, batch, devices):
        """`sums_of` for each shard that has masked words."""
        model, shard_sums = cls.model_of(net), []
        with autograd.pause():
            for shard, device in shards(batch, devices):
                masked = MaskedTokens.of(model, shard, device)
                if masked.count:
                    shard_sums.append(cls.sums_of(net, masked))
        return shard_sums

    @staticmethod
    def sums_of(net, masked):
        """The sums of `mlm_sums` over a shard, (5,)."""
        return mlm_sums(net.mlm.mlp(masked.masked_X), masked.labels)

    figures_of_sums = staticmethod(mlm_figures)

    @staticmethod
    def line(figures):
        return mlm_line(figures)


class MLMAndSBO(MLM):
    """Masked spans and span boundary objective (SBO): Joshi et al. 2020.

    The MLM head and a `BoundaryHead` predict the same masked words.
    """

    losses, weights = ('mlm', 'sbo'), (1, 1)
    Figures = SpanFigures
    plotted = 'mlm_loss', 'sbo_loss'
    masking = SPANBERT

    @classmethod
    def net_to_train(cls, bert):
        return BERTWithBoundary(super().net_to_train(bert),
                                cls.masking.max_tokens(bert.vocab))

    @staticmethod
    def model_of(net):
        return net.bert

    @classmethod
    def losses_of(cls, net, masked):
        mlm_loss_and_count = masked.mlm_loss(net.bert.mlm)
        sbo_loss = net.boundary.loss(
            cls._boundary_vectors(net, masked),
            net.bert.encoder.token_embedding, masked.put(masked.labels),
            masked.weights)
        return [mlm_loss_and_count, (sbo_loss, masked.count)]

    @classmethod
    def sums_of(cls, net, masked):
        """The sums over a shard, (10,): `mlm_sums` of each head."""
        return np.concatenate([
            super().sums_of(net.bert, masked),
            mlm_sums(net.boundary.scores(
                cls._boundary_vectors(net, masked),
                net.bert.encoder.token_embedding), masked.labels)])

    @staticmethod
    def figures_of_sums(*sums):
        # sums[8:] are for known_accuracy, which is not reported for SBO
        return *mlm_figures(*sums[:5]), *loss_and_accuracy(*sums[5:8])

    @staticmethod
    def _boundary_vectors(net, masked):
        """The vectors y (S, E) of the boundary head."""
        # The token after `left` has position 0. In a shard without masked
        # words, `masked` has one entry of weight 0, whose row is `left`, so
        # that its position would be -1
        span_positions = masked.masked_rows - masked.left - 1
        return net.boundary(
            masked.at(masked.left), masked.at(masked.right),
            masked.put(onp.maximum(span_positions, 0)))

    @staticmethod
    def line(figures):
        return f'{mlm_line(figures)}; {task_line("sbo", figures)}'
