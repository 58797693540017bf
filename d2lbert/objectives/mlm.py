"""Define objectives on masked words, as in BERT, ALBERT, RoBERTa, SpanBERT.

The objectives of BERT (the chapter's) and of ALBERT also have pairs of
sentences. RoBERTa's objective has masked words only. SpanBERT's objective adds
the span boundary objective (SBO): a second head predicts each masked word.

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
    """The objective of the chapter, on a text of any size."""

    losses = 'mlm', 'nsp'
    Figures = Figures
    plotted = 'mlm_loss', 'nsp_loss'
    unit = 'sentence pairs'
    # Half of the pairs have label 0. With swap=True, the two texts of these
    # pairs are swapped; with swap=False, the second text is drawn at random
    swap = False

    @property
    def weights(self):
        """Factor of each loss in the sum that is minimized."""
        return 1, self.settings['nsp_weight']

    def batches(self, epoch, start):
        """Yield (position, `texts.examples.Batch`), see `Objective`."""
        s = self.settings
        return self.corpus.train.batches(
            s['batch_size'], s['max_len'], seed=s['seed'], epoch=epoch,
            start=start, dynamic=s['dynamic'], fill=s['fill_sequences'],
            mask_share=s['mask_share'],
            whole_words=s['whole_word_masking'], swap=self.swap)

    @staticmethod
    def counts(batch):
        """(number of masked words, number of pairs), for the two losses."""
        return batch.mlm_weights_X.sum(), len(batch.tokens_X)

    def shard_losses(self, net, batch, devices):
        """For each device, the list that `losses_of` returns for its shard."""
        return [self.losses_of(net, MaskedTokens.of(net, shard, device))
                for shard, device in shards(batch, devices)]

    @staticmethod
    def losses_of(net, masked):
        """[(MLM loss, number of masked words), (pair loss, number of pairs)].

        masked: the `nn.packed.MaskedTokens` of a shard, which have the net's
        vectors and the labels.
        """
        return masked.losses(net)

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        """Yield batches of a held-out `StoredText`, the same in each call."""
        return (batch for _, batch in text.batches(
            batch_size, max_len, seed=0, dynamic=False, swap=cls.swap))

    @classmethod
    def figures(cls, net, batches, devices):
        """`Figures` of a net on the batches of `held_out_batches`."""
        # `SOPFigures` has the fields of `text_objective.Figures` in the same
        # order, but two names have `sop` in place of `nsp`
        return cls.Figures(*evaluate(net, batches, devices))

    def line(self, figures):
        """Figures as a line of the log."""
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
    NSP is easier: a text drawn at random usually has another topic than the
    first text. The topics of adjacent texts do not show their order.
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
    span, p). Here x is the encoder's vector of a token, and p embeds the
    word's position within the span. f has a layer of H units and a layer of E
    units, each with GELU and LayerNorm. As in SpanBERT's code, the weight that
    maps y to scores is the token embedding (V, E). The bias of the scores
    belongs to this head alone.

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

    def scores(self, Y, embedding):
        """Scores (S, V) of the vocabulary for Y (S, E).

        embedding: the block of the token embedding.
        """
        return ops.dense(Y, embedding.weight.data(Y.ctx),
                         self.bias.data(Y.ctx), precision=self._precision,
                         grad_req=grad_reqs(embedding.weight, self.bias))

    def loss(self, Y, embedding, labels, weights):
        """The weighted mean cross-entropy of Y (S, E), like `MaskLM.loss`.

        embedding: as for `scores`. labels, weights (S,).
        """
        total = ops.vocab_ce(
            Y, embedding.weight.data(Y.ctx), self.bias.data(Y.ctx), labels,
            weights, precision=self._precision,
            grad_req=grad_reqs(embedding.weight, self.bias))
        # 1e-8: in a shard without masked words, all weights are 0
        return total.reshape(()) / (weights.sum() + 1e-8)


class BERTWithBoundary(nn.Block):
    """A `BERTModel` and the boundary head that is trained with it.

    A run stores the model in model.params, as every run does, and the head
    in boundary.params, which only `MLMAndSBO` needs.
    """

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
        """{name of a .params file of a run, without suffix: the block}."""
        return dict(boundary=self.boundary, model=self.bert)

    @property
    def config(self):
        """The arguments of the model."""
        return self.bert.config

    @property
    def vocab(self):
        """The vocabulary of the model."""
        return self.bert.vocab


class MLMFigures(NamedTuple):
    """Figures of a model on a text; see `text_objective.Figures`."""

    mlm_loss: float
    perplexity: float
    mlm_accuracy: float
    unknown_share: float
    known_accuracy: float


class SpanFigures(NamedTuple):
    """`MLMFigures`, and loss and accuracy of the boundary head.

    Both heads predict the same masked words.
    """

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
    sentences. Single tokens are masked, or whole words if the setting
    whole_word_masking is True. Masks are drawn again in each epoch, unless
    the setting dynamic is False. The next-sentence layers `hidden` and `nsp`
    keep their initial weights and have no gradient.
    """

    losses = ('mlm',)
    unit = 'sequences'
    Figures = MLMFigures
    plotted = ('mlm_loss',)
    # In training, the setting whole_word_masking replaces SINGLE_TOKENS by
    # WHOLE_WORDS
    masking = SINGLE_TOKENS

    @classmethod
    def net_to_train(cls, bert):
        """The model, with its next-sentence layers frozen."""
        freeze_pair_layers(bert)
        return bert

    def batches(self, epoch, start):
        """Yield (position, `corpus.masking.MaskedRows`), see `Objective`."""
        s, masking = self.settings, self.masking
        # `MLMAndSBO` has SPANBERT, which always masks whole words
        if masking == SINGLE_TOKENS and s['whole_word_masking']:
            masking = WHOLE_WORDS
        return self.corpus.train.batches(
            s['batch_size'], s['max_len'], seed=s['seed'], epoch=epoch,
            start=start, dynamic=s['dynamic'], mask_share=s['mask_share'],
            spans=masking)

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        """Yield batches of a held-out `StoredText`, the same in each call.

        The setting whole_word_masking has no effect here, so that figures of
        runs with and without it can be compared.
        """
        return (batch for _, batch in text.batches(
            batch_size, max_len, seed=0, dynamic=False, spans=cls.masking))

    @classmethod
    def counts(cls, batch):
        """The number of masked words, once for each loss."""
        return (batch.mlm_weights_X.sum(),) * len(cls.losses)

    @classmethod
    def shard_losses(cls, net, batch, devices):
        """For each device, the list that `losses_of` returns for its shard."""
        model = cls.model_of(net)
        return [cls.losses_of(net, MaskedTokens.of(model, shard, device))
                for shard, device in shards(batch, devices)]

    @staticmethod
    def losses_of(net, masked):
        """[(MLM loss, number of masked words)] of `MaskedTokens`."""
        return [masked.mlm_loss(net.mlm)]

    @classmethod
    def figures(cls, net, batches, devices):
        """`Figures` of a net on the batches of `held_out_batches`."""
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
        """A list of the `sums_of` of all shards that have masked words."""
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
        """Figures as a line of the log."""
        return mlm_line(figures)


class MLMAndSBO(MLM):
    """Words masked in spans, each predicted by two heads: Joshi et al. 2020.

    The MLM head reads the vector of the masked word. The boundary head reads
    the vectors of the two tokens beside the span, and the word's position in
    the span. Rows are single sequences, as in `MLM`.
    """

    losses, weights = ('mlm', 'sbo'), (1, 1)
    Figures = SpanFigures
    plotted = 'mlm_loss', 'sbo_loss'
    masking = SPANBERT

    @classmethod
    def net_to_train(cls, bert):
        """The model with frozen next-sentence layers, and a boundary head."""
        return BERTWithBoundary(super().net_to_train(bert),
                                cls.masking.max_tokens(bert.vocab))

    @staticmethod
    def model_of(net):
        """The `BERTModel` in a net with a boundary head."""
        return net.bert

    @classmethod
    def losses_of(cls, net, masked):
        """[(MLM loss, number of masked words), (SBO loss, the same number)].
        """
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
        """The values of `SpanFigures`, from the ten sums of `sums_of`."""
        # sums[8:] are for known_accuracy, which is not reported for SBO
        return *mlm_figures(*sums[:5]), *loss_and_accuracy(*sums[5:8])

    @staticmethod
    def _boundary_vectors(net, masked):
        """The vectors (S, E) from which the boundary head predicts words."""
        # The first token of a span has position 0: its row is left + 1. In a
        # shard without masked words, `masked` has one entry, for the first
        # token of the shard. Its `left` is the row of this token itself, so
        # its position would be -1
        span_positions = masked.masked_rows - masked.left - 1
        return net.boundary(
            masked.at(masked.left), masked.at(masked.right),
            masked.put(onp.maximum(span_positions, 0)))

    @staticmethod
    def line(figures):
        """Figures as a line of the log."""
        return f'{mlm_line(figures)}; {task_line("sbo", figures)}'
