"""The BERT model of the book's page "BERT", and its variants.

The default is the model of editions 0.17 and 1.0, which learns positions.
`positional='sinusoidal'` makes the model of the first edition. A `Variant`
(nn/variant.py) describes other models, such as the published BERT.

Letters in shapes: B sequences of a batch, T tokens of a sequence, P
predictions of a sequence, S masked tokens of a batch, H hidden units, V tokens
of the vocabulary, E the width of the embeddings.
"""
import numpy as onp

from d2lbert.kernels import ops
from d2lbert.machine.arguments import check_shares, check_sizes
from d2lbert.machine.backend import mx, nn, np
from d2lbert.nn import packed
from d2lbert.nn.checks import (
    check_ids,
    check_lens,
    check_tokens,
    host_unless_gpu,
    number_of_blocks,
    on_device,
)
from d2lbert.nn.layers import (
    Dense,
    LayerNorm,
    Model,
    grad_reqs,
    parameter_values,
)
from d2lbert.nn.variant import ACTIVATIONS, Variant
from d2lbert.text import CLS, SEP
from d2lbert.transformer import Blocks, PositionalEncoding


def get_tokens_and_segments(tokens_a, tokens_b=None, cls=CLS, sep=SEP):
    """Return the tokens of a BERT input sequence, and their segments.

    tokens_a, tokens_b: lists of tokens. <cls>, tokens_a and <sep> are segment
    0. tokens_b, if given, and a second <sep> are segment 1.
    """
    tokens = [cls, *tokens_a, sep]
    segments = [0] * len(tokens)
    if tokens_b is not None:
        tokens += [*tokens_b, sep]
        segments += [1] * (len(tokens) - len(segments))
    return tokens, segments


class BERTEncoder(packed.Packable):
    """Token, segment and position embeddings, then Transformer blocks.

    `num_layers` (first edition and 0.17) and `num_blks` (1.0) are names of one
    argument. variant: a `Variant`; its fields can also be given as keywords,
    such as activation='gelu'. Learned positions are the parameter
    `pos_embedding`, and sinusoidal positions the block `pos_encoding`.
    """

    packed_forward = packed.encode_padded

    def __init__(self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads,
                 num_layers=None, dropout=None, max_len=1000, num_blks=None,
                 variant=None, **kwargs):
        variant = Variant.of(variant, kwargs)
        super().__init__(**kwargs)
        num_layers = number_of_blocks(num_layers, num_blks)
        check_sizes(vocab_size=vocab_size, num_hiddens=num_hiddens,
                    ffn_num_hiddens=ffn_num_hiddens, num_layers=num_layers,
                    max_len=max_len)
        check_shares(dropout=dropout)
        if variant.activation not in ACTIVATIONS:
            raise ValueError('activation must be relu, gelu or gelu_new, not '
                             f'{variant.activation!r}')
        E = variant.embedding_size or num_hiddens
        self.vocab_size, self.max_len = vocab_size, max_len
        self.num_segments = variant.num_segments
        self.quantized = None   # or a `QuantizedEncoder` to call instead
        self.learns_positions = variant.learns_positions
        self._scale = num_hiddens ** 0.5 if variant.scale_embedding else None
        self.token_embedding = nn.Embedding(vocab_size, E)
        self.segment_embedding = self.embedding_norm = self.projection = None
        if variant.num_segments:
            self.segment_embedding = nn.Embedding(variant.num_segments, E)
        if variant.embedding_norm:
            self.embedding_norm = LayerNorm(epsilon=variant.layer_norm_eps,
                                            in_channels=E)
            self.embedding_dropout = nn.Dropout(dropout)
        if not variant.learns_positions:
            self.pos_encoding = PositionalEncoding(E, dropout, max_len)
        if variant.embedding_size is not None:
            self.projection = Dense(num_hiddens, in_units=E,
                                    precision=variant.precision)
        use_bias = variant.learns_positions     # False in the first edition
        self.blks = Blocks(num_layers, variant, num_hiddens, ffn_num_hiddens,
                           num_heads, dropout, use_bias)
        self.norm = None
        if variant.pre_norm and variant.final_norm:
            self.norm = LayerNorm(epsilon=variant.layer_norm_eps,
                                  in_channels=num_hiddens)
        if variant.learns_positions:
            self.pos_embedding = self.params.get(
                'pos_embedding', shape=(1, max_len, E))

    def forward(self, tokens, segments, valid_lens, layer=-1):
        """Encode tokens (B, T) in segments (B, T): (B, T, H).

        valid_lens (B,): the number of tokens before the padding; None: all T.
        layer: the layer whose output to return, counted from 1; 0 is the
        embeddings, -1 the last layer. Raises ValueError for an empty batch,
        for more tokens than `max_len`, and for ids without an embedding. Ids
        on a GPU are not checked.
        """
        if self.quantized is not None:
            return packed.encode_padded(self, tokens, segments, valid_lens,
                                        layer)
        ctx = (tokens.ctx if isinstance(tokens, mx.nd.NDArray)
               else self.token_embedding.weight.list_ctx()[0])
        tokens, segments = (on_device(A, ctx, 'int32')
                            for A in self.check(tokens, segments))
        if valid_lens is not None:
            check_lens(valid_lens, tokens)
            valid_lens = on_device(valid_lens, ctx)
        X = self.embed(tokens, segments)                # (B, T, H)
        for blk in self.blks.up_to(layer):
            X = blk(X, valid_lens)
        return self.finish(X, layer)

    def embed(self, tokens, segments):
        """Embed tokens (B, T) in segments (B, T): (B, T, H)."""
        X = self.scale(self.token_embedding(tokens))
        if self.segment_embedding is not None:
            X = X + self.segment_embedding(segments)
        if self.learns_positions:
            X = X + self.pos_embedding.data(X.ctx)[:, :X.shape[1], :]
        else:
            X = self.pos_encoding(X)
        return self.finish_embedding(X)

    def finish_embedding(self, X):
        """Apply LayerNorm, dropout and projection: (..., E) to (..., H)."""
        if self.embedding_norm is not None:
            X = self.embedding_dropout(self.embedding_norm(X))
        return X if self.projection is None else self.projection(X)

    def finish(self, X, layer):
        """Normalize the last layer's X in a pre-LN model; else return X."""
        is_last = layer in (-1, self.blks.num_layers)
        return self.norm(X) if is_last and self.norm is not None else X

    def scale(self, X):
        """Multiply X (..., E) by √H if variant.scale_embedding."""
        return X if self._scale is None else X * self._scale

    def position_table(self, ctx):
        """Return the vectors of all positions on a device, (max_len, E)."""
        if not self.learns_positions:
            return self.pos_encoding.P[0].as_in_ctx(ctx)
        table = self.pos_embedding.data(ctx)
        return table.reshape(table.shape[1:])

    def check(self, tokens, segments):
        """Return validated tokens and segments (B, T).

        Arrays on a GPU stay there; others go to the host. segments=None means
        zeros. Raises ValueError as `forward` does.
        """
        tokens = check_tokens(tokens, self.vocab_size, self.max_len)
        if segments is None:
            segments = onp.zeros(tokens.shape, 'int32')
        if onp.shape(segments) != tokens.shape:
            raise ValueError(f'segments {onp.shape(segments)} and tokens '
                             f'{tokens.shape} must have one shape')
        if self.num_segments < 2:   # the given segments are ignored
            segments = onp.zeros(tokens.shape, 'int32')
        check_ids(segments, max(self.num_segments, 1), 'segment')
        return tokens, host_unless_gpu(segments)


class MaskLM(nn.Block):
    """The masked language model head: one hidden layer, then V scores.

    variant: a `Variant`; mlm_hidden=False leaves out the hidden layer, as in
    XLM, and then num_hiddens must be H. in_units: H; with 0, the first call
    sets it. embedding: None, or the token embedding; the last layer then has
    the weight (V, E) of the embedding, and a bias of its own.
    """

    def __init__(self, vocab_size, num_hiddens, variant=None, in_units=0,
                 embedding=None, **kwargs):
        variant = Variant.of(variant, kwargs)
        super().__init__(**kwargs)
        units, precision = num_hiddens, variant.precision
        self.mlp = nn.Sequential()
        if variant.mlm_hidden:
            units = variant.embedding_size or num_hiddens
            self.mlp.add(
                Dense(units, precision=precision, in_units=in_units,
                      activation=variant.mlm_activation
                      or variant.activation),
                LayerNorm(epsilon=variant.layer_norm_eps, in_channels=units))
        self.mlp.add(Dense(vocab_size, precision=precision, in_units=units,
                           params=embedding and embedding.params))
        self.precision = precision

    @property
    def packable(self):
        """True if the layers are as in `__init__`, so that `loss` fits."""
        types = [type(layer) for layer in self.mlp]
        return types in ([Dense, LayerNorm, Dense], [Dense]) and (
            self.mlp[-1].bias is not None and self.mlp[-1].act is None)

    def forward(self, X, pred_positions):
        """Return scores (B, P, V) at pred_positions (B, P) of X (B, T, H)."""
        B, T, H = X.shape
        check_ids(pred_positions, T, 'prediction position')
        pred_positions = on_device(pred_positions, X.ctx, 'int32')
        first_rows = on_device(onp.arange(B)[:, None] * T, X.ctx, 'int32')
        rows = (pred_positions + first_rows).reshape(-1)    # (B*P,)
        masked_X = X.reshape(B * T, H).take(rows, axis=0)
        return self.mlp(masked_X.reshape(B, -1, H))

    def loss(self, masked_X, labels, weights):
        """Return the weighted mean cross-entropy of masked tokens, a scalar.

        masked_X (S, H), labels (S,) int32, weights (S,) float32. On a CPU with
        the fused operators, the scores (S, V) are never stored.
        """
        *hidden_layers, output = self.mlp
        X = masked_X
        for layer in hidden_layers:
            X = layer(X)
        total = ops.vocab_ce(
            X, *parameter_values(output, X).values(), labels, weights,
            precision=self.precision,
            grad_req=grad_reqs(output.weight, output.bias))
        # 1e-8, as in the book, gives 0 if all weights are 0
        return total.reshape(()) / (weights.sum() + 1e-8)


class NextSentencePred(nn.Block):
    """The next sentence prediction head.

    `NextSentencePred()` takes the output of `BERTModel.hidden`, (B, H).
    `NextSentencePred(num_hiddens)` is the head of the first edition: it takes
    encoded tokens (B, T, H) and includes the hidden layer.
    """

    def __init__(self, num_hiddens=None, in_units=0, **kwargs):
        super().__init__(**kwargs)
        self._is_first_edition = num_hiddens is not None
        if self._is_first_edition:
            self.mlp = nn.Sequential()
            self.mlp.add(Dense(num_hiddens, activation='tanh', flatten=True,
                               in_units=in_units),
                         Dense(2, flatten=True, in_units=num_hiddens))
        else:
            self.output = Dense(2, flatten=True, in_units=in_units)

    def forward(self, X):
        """Return the scores (B, 2) of "is not next" and "is next"."""
        if self._is_first_edition:
            return self.mlp(X[:, 0, :])     # token 0 is <cls>
        return self.output(X)


class BERTModel(Model):
    """The encoder and its two pretraining heads.

    The arguments are as for `BERTEncoder`. `hidden`, the pooler of the
    published BERT, is None if variant.heads lacks 'pooler'; `nsp` is None if
    it lacks 'nsp'. The first edition's model ignores variant.heads: its `nsp`
    includes the hidden layer, and `hidden` is None.
    """

    def __init__(self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads,
                 num_layers=None, dropout=None, max_len=1000, num_blks=None,
                 variant=None, **kwargs):
        variant = Variant.of(variant, kwargs)
        super().__init__(**kwargs)
        ops.check_precision(variant.precision)
        num_layers = number_of_blocks(num_layers, num_blks)
        self.config = dict(
            vocab_size=vocab_size, num_hiddens=num_hiddens,
            ffn_num_hiddens=ffn_num_hiddens, num_heads=num_heads,
            num_layers=num_layers, dropout=dropout, max_len=max_len,
            **variant.config())
        self.encoder = BERTEncoder(
            vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_layers,
            dropout, max_len, variant=variant)
        # In the book's order, so that a seed gives the same initial weights
        self.mlm = MaskLM(
            vocab_size, num_hiddens, variant, num_hiddens,
            self.encoder.token_embedding if variant.tie_embeddings else None)
        self.hidden = self.nsp = None
        if not variant.learns_positions:        # the first edition
            self.nsp = NextSentencePred(num_hiddens, num_hiddens)
            return
        if 'pooler' in variant.heads:
            self.hidden = Dense(num_hiddens, activation='tanh',
                                flatten=True, in_units=num_hiddens)
        if 'nsp' in variant.heads:
            self.nsp = NextSentencePred(in_units=num_hiddens)

    def forward(self, tokens, segments, valid_lens=None, pred_positions=None):
        """Encode a batch and return the scores of both pretraining tasks.

        tokens, segments, valid_lens: as for `BERTEncoder.forward`;
        pred_positions (B, P). Returns encoded_X (B, T, H); mlm_Y_hat
        (B, P, V), or None without pred_positions; nsp_Y_hat (B, 2), or None
        without the head `nsp`.
        """
        encoded_X = self.encoder(tokens, segments, valid_lens)
        mlm_Y_hat = nsp_Y_hat = None
        if pred_positions is not None:
            mlm_Y_hat = self.mlm(encoded_X, pred_positions)
        if self.has_pair_head:
            nsp_Y_hat = self.score_pairs(encoded_X[:, 0, :])    # <cls>
        return encoded_X, mlm_Y_hat, nsp_Y_hat

    @property
    def has_pair_head(self):
        return self.nsp is not None

    def score_pairs(self, cls_X):
        """Return nsp_Y_hat (B, 2) for the vectors of <cls>, (B, H)."""
        if self.hidden is None:     # the first edition's head takes (B, T, H)
            return self.nsp(np.expand_dims(cls_X, 1))
        return self.nsp(self.hidden(cls_X))
