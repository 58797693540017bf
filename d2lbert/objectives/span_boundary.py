"""The boundary objective of SpanBERT: its head, and the net that has it.

S hidden words, H hiddens, U numbers of a position's vector, V vocabulary.
"""
from d2lbert.kernels import ops
from d2lbert.machine.backend import nn, np
from d2lbert.nn.layers import Dense, LayerNorm, grad_reqs

#: Numbers in the vector of a position within a span, as published.
POSITION_UNITS = 200


class BoundaryHead(nn.Block):
    """Says the words of a span from what stands left and right of it.

    As in Joshi et al. 2020, section 3.2: y = f(x left of the span, x right
    of it, p of the word's place behind the left one), f being two layers of
    H units with GELU and LayerNorm behind each. y is scored by the token
    embedding, (V, H), which is the last weight here as it is in their code,
    and a bias of its own.

    num_positions: tokens of a span at most.
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

    def forward(self, left_X, right_X, places):
        """The vectors y (S, H), of left_X and right_X (S, H).

        places (S,) int32: how many tokens behind the left one, less 1.
        """
        return self.mlp(np.concatenate(
            [left_X, right_X, self.positions(places)], axis=1))

    def scores(self, Y, embedding):
        """Score the vocabulary, (S, V), for Y (S, H); embedding: its block.
        """
        return ops.dense(Y, embedding.weight.data(Y.ctx),
                         self.bias.data(Y.ctx), precision=self._precision,
                         grad_req=grad_reqs(embedding.weight, self.bias))

    def loss(self, Y, embedding, labels, weights):
        """The weighted mean of cross-entropy at Y (S, H), as `MaskLM.loss`.
        """
        total = ops.vocab_ce(
            Y, embedding.weight.data(Y.ctx), self.bias.data(Y.ctx), labels,
            weights, precision=self._precision,
            grad_req=grad_reqs(embedding.weight, self.bias))
        return total.reshape(()) / (weights.sum() + 1e-8)


class BERTWithBoundary(nn.Block):
    """A `BERTModel` and the boundary head that is trained with it.

    A run keeps them apart: the model is its model.params, which `load_run`
    reads as that of any run, and the head lies beside it in boundary.params.
    Nothing but this objective needs the head.
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
        """The blocks that files of a run folder hold, by their names."""
        return dict(boundary=self.boundary, model=self.bert)

    @property
    def config(self):
        """The arguments of the model."""
        return self.bert.config

    @property
    def vocab(self):
        """That of the model."""
        return self.bert.vocab
