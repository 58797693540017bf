"""The span boundary head of SpanBERT, and a BERT with it.

S masked words, H hiddens, U numbers of a position's vector, V vocabulary.
"""
from d2lbert.kernels import ops
from d2lbert.machine.backend import nn, np
from d2lbert.nn.layers import Dense, LayerNorm, grad_reqs

#: Size of the embedding of a position within a span, as published.
POSITION_UNITS = 200


class BoundaryHead(nn.Block):
    """Predict the words of a span from the tokens beside it.

    Joshi et al. 2020, section 3.2: y = f(x left of the span, x right of the
    span, p of the word's position within the span). f has two layers of H
    units, each with GELU and LayerNorm. The last weight is tied to the token
    embedding (V, H), as in their code; the bias is not.

    num_positions: the largest number of tokens in a span.
    """

    def __init__(self, vocab_size, num_hiddens, num_positions,
                 precision='fp32', layer_norm_eps=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.positions = nn.Embedding(num_positions, POSITION_UNITS)
        self.mlp = nn.Sequential()
        for in_units in (2 * num_hiddens + POSITION_UNITS, num_hiddens):
            self.mlp.add(Dense(num_hiddens, activation='gelu',
                               precision=precision, in_units=in_units),
                         LayerNorm(epsilon=layer_norm_eps,
                                   in_channels=num_hiddens))
        self.bias = self.params.get('bias', shape=(vocab_size,),
                                    init='zeros')
        self._precision = precision

    def forward(self, left_X, right_X, positions):
        """The vectors y (S, H), from left_X and right_X (S, H).

        positions (S,) int32: the position of each word in its span, from 0.
        """
        return self.mlp(np.concatenate(
            [left_X, right_X, self.positions(positions)], axis=1))

    def scores(self, Y, embedding):
        """Scores (S, V) of the vocabulary for Y (S, H).

        embedding: the block of the token embedding.
        """
        return ops.dense(Y, embedding.weight.data(Y.ctx),
                         self.bias.data(Y.ctx), precision=self._precision,
                         grad_req=grad_reqs(embedding.weight, self.bias))

    def loss(self, Y, embedding, labels, weights):
        """The weighted mean cross-entropy at Y (S, H), as `MaskLM.loss`."""
        total = ops.vocab_ce(
            Y, embedding.weight.data(Y.ctx), self.bias.data(Y.ctx), labels,
            weights, precision=self._precision,
            grad_req=grad_reqs(embedding.weight, self.bias))
        return total.reshape(()) / (weights.sum() + 1e-8)


class BERTWithBoundary(nn.Block):
    """A `BERTModel` and the boundary head that is trained with it.

    A run stores them in two files: the model in model.params, as any run,
    and the head in boundary.params, which only this objective needs.
    """

    def __init__(self, bert, num_positions, **kwargs):
        super().__init__(**kwargs)
        config = bert.config
        self.bert = bert
        self.boundary = BoundaryHead(
            config['vocab_size'], config['num_hiddens'], num_positions,
            config['precision'], config['layer_norm_eps'])

    @property
    def parts(self):
        """The blocks by the names of their files in a run folder."""
        return dict(boundary=self.boundary, model=self.bert)

    @property
    def config(self):
        """The arguments of the model."""
        return self.bert.config

    @property
    def vocab(self):
        """The vocabulary of the model."""
        return self.bert.vocab
