"""The book's page "BERT": input, encoder, two heads, model.

B batch, T tokens, P predictions, H hiddens, V vocabulary, R rows (see
attention). The published model (Devlin et al. 2018), as the editions 0.17 and
1.0 have it, is the default; `positional='sinusoidal'` gives the first
edition's.
"""
import numpy as onp

from d2lbert.kernels import ops
from d2lbert.machine.backend import nn, np
from d2lbert.nn.checks import (
    check_ids,
    check_shares,
    check_sizes,
    check_tokens,
    check_whole,
    number_of_blocks,
    on_device,
)
from d2lbert.nn.layers import Dense, LayerNorm, grad_reqs, is_ours, values
from d2lbert.text import CLS, SEP
from d2lbert.transformer import Blocks, PositionalEncoding


def get_tokens_and_segments(tokens_a, tokens_b=None, cls=CLS, sep=SEP):
    """Tokens of the BERT input sequence and their segment IDs, two lists."""
    tokens = [cls, *tokens_a, sep]
    segments = [0] * len(tokens)
    if tokens_b is not None:
        tokens += [*tokens_b, sep]
        segments += [1] * (len(tokens_b) + 1)
    return tokens, segments


class BERTEncoder(nn.Block):
    """Token, segment and position embeddings, then Transformer blocks.

    `num_layers` (first and 0.17 editions) and `num_blks` (1.0) are one
    argument. `positional` is 'learnable' or 'sinusoidal' (first edition).

    BERT as published (Devlin et al. 2018, and the code released with it) has
    what the pages leave out: activation='gelu', in the feed-forward networks
    ('gelu_new' is GELU by a tanh, 'relu' the pages'); layer_norm_eps=1e-12;
    embedding_norm=True, LayerNorm and dropout behind the sum of embeddings.
    num_segments: the number of segments; below two they are ignored.
    attention_dropout: that of the attention weights; None: `dropout`.

    ALBERT (Lan et al. 2020) has embedding_size=E, embeddings of E numbers
    and a layer from them to H, and num_groups, the number of groups of
    inner_group_num blocks that the layers are made of, each used by as many
    layers. pre_norm=True: see `TransformerEncoderBlock`; then one more
    LayerNorm follows the last block, but for final_norm=False, as in XLM.
    BART (Lewis et al. 2020) may have activation_dropout within the
    feed-forward networks, and scale_embedding=True, token embeddings scaled
    by √H. causal=True: each token attends to itself and earlier ones alone,
    as in GPT (Radford et al. 2018).
    """

    def __init__(self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads,
                 num_layers=None, dropout=None, max_len=1000, *,
                 num_blks=None, positional='learnable', precision='fp32',
                 activation='relu', layer_norm_eps=1e-5,
                 embedding_norm=False, num_segments=2,
                 attention_dropout=None, embedding_size=None,
                 num_groups=None, inner_group_num=1, pre_norm=False,
                 final_norm=True, activation_dropout=0.0,
                 scale_embedding=False, causal=False, **kwargs):
        super().__init__(**kwargs)
        num_layers = number_of_blocks(num_layers, num_blks)
        E = num_hiddens if embedding_size is None else embedding_size
        if attention_dropout is None:
            attention_dropout = dropout
        check_sizes(vocab_size=vocab_size, num_hiddens=num_hiddens,
                    ffn_num_hiddens=ffn_num_hiddens, num_layers=num_layers,
                    max_len=max_len, embedding_size=E,
                    num_groups=num_groups or 1,
                    inner_group_num=inner_group_num)
        check_sizes(0, num_segments=num_segments)
        check_shares(dropout=dropout, attention_dropout=attention_dropout,
                     activation_dropout=activation_dropout,
                     layer_norm_eps=layer_norm_eps)
        if activation not in ('relu', 'gelu', 'gelu_new'):
            raise ValueError('activation must be relu, gelu or gelu_new, not '
                             f'{activation!r}')
        if positional not in ('learnable', 'sinusoidal'):
            raise ValueError("positional must be 'learnable' or 'sinusoidal', "
                             f'not {positional!r}')
        learnable = self._learnable = positional == 'learnable'
        if embedding_norm and not learnable:
            raise ValueError('embedding_norm=True needs the published '
                             "model's positions, positional='learnable'")
        self.vocab_size, self.max_len = vocab_size, max_len
        self.num_segments = num_segments
        self._scale = num_hiddens ** 0.5 if scale_embedding else None
        self.token_embedding = nn.Embedding(vocab_size, E)
        self.segment_embedding = self.embedding_norm = self.projection = None
        if num_segments:
            self.segment_embedding = nn.Embedding(num_segments, E)
        if embedding_norm:
            self.embedding_norm = LayerNorm(epsilon=layer_norm_eps,
                                            in_channels=E)
            self.embedding_dropout = nn.Dropout(dropout)
        if not learnable:
            self.pos_encoding = PositionalEncoding(E, dropout, max_len)
        if embedding_size is not None:
            self.projection = Dense(num_hiddens, precision=precision,
                                    in_units=E)
        # The first edition's projections have no bias, the later ones do
        self.blks = Blocks(
            num_layers, num_groups, inner_group_num, num_hiddens,
            ffn_num_hiddens, num_heads, dropout, learnable, precision,
            activation, layer_norm_eps, attention_dropout, pre_norm,
            activation_dropout, causal)
        self.norm = None if not (pre_norm and final_norm) else LayerNorm(
            epsilon=layer_norm_eps, in_channels=num_hiddens)
        if learnable:
            self.pos_embedding = self.params.get(
                'pos_embedding', shape=(1, max_len, E))

    def forward(self, tokens, segments, valid_lens, layer=-1):
        """Encode tokens (B, T), segments (B, T), valid_lens (B,) or None.

        Returns (B, T, H). layer: behind which block, 0 for the embeddings,
        -1 for the last. Raises ValueError for an empty batch, for more
        tokens than `max_len`, and for ids that the embeddings do not have.
        """
        tokens, segments = self.check(tokens, segments)
        if valid_lens is not None:
            check_whole(valid_lens, 'valid length')
            valid_lens = on_device(valid_lens, tokens.ctx)
        X = self._embed(tokens, segments)               # (B, T, H)
        for blk in self.blks.up_to(layer):
            X = blk(X, valid_lens)
        return self.finished(X, layer)

    def finished(self, X, layer):
        """What `layer` gives: behind the last block, pre-norm normalizes."""
        count = self.blks.num_layers
        last = layer % (count + 1) == count
        return self.norm(X) if last and self.norm is not None else X

    def _embed(self, tokens, segments):
        if is_ours(self):
            B, T = tokens.shape
            positions = onp.broadcast_to(onp.arange(T), (B, T))
            return self._embed_at(tokens, segments, on_device(
                positions, tokens.ctx, 'int32'))
        X = self.scaled(self.token_embedding(tokens))
        if self.segment_embedding is not None:
            X = X + self.segment_embedding(segments)
        if self._learnable:
            return self._projected(
                X + self.pos_embedding.data(X.ctx)[:, :X.shape[1], :])
        return self._projected(self.pos_encoding(X))

    def scaled(self, words):
        """Token embeddings (..., E) as they count in the sum."""
        return words if self._scale is None else words * self._scale

    def _projected(self, X):
        """What follows the sum of embeddings (..., E): (..., H)."""
        if self.embedding_norm is not None:
            X = self.embedding_dropout(self.embedding_norm(X))
        return X if self.projection is None else self.projection(X)

    def _embed_at(self, tokens, segments, positions):
        """Embed tokens (...) in segments (...) at positions (...)."""
        ctx = tokens.ctx
        words = self.token_embedding.weight
        if self.segment_embedding is None:
            kinds, request = np.zeros((1, words.shape[1]), ctx=ctx), 'null'
        else:
            kinds = self.segment_embedding.weight
            kinds, request = kinds.data(ctx), kinds.grad_req
        if self._learnable:
            positional = self.pos_embedding.data(ctx)
            positional = positional.reshape(positional.shape[1:])   # (L, H)
        else:
            positional = self.pos_encoding.P[0].as_in_ctx(ctx)
        # The reshape stands before the third table and knows how to add
        X = ops.embed(tokens, segments, positions,
                      self.scaled(words.data(ctx)), kinds, positional,
                      grad_req=(*grad_reqs(words), request, 'write'))
        if self._learnable:
            return self._projected(X)
        return self._projected(self.pos_encoding.dropout(X))

    def encode_rows(self, places, layer=-1):
        """Encode what `packing.Places` names, (R, H); only where `is_ours`.
        """
        X = self._embed_at(places.tokens, places.segments, places.positions)
        for blk in self.blks.up_to(layer):
            X = blk(X, places.rows)
        return self.finished(X, layer)

    def encode_firsts(self, places):
        """What `encode_rows` gives of each sequence's first token, (B, H).

        The last block computes nothing else but keys and values.
        """
        X = self._embed_at(places.tokens, places.segments, places.positions)
        *blks, last = self.blks.up_to(-1)
        for blk in blks:
            X = blk(X, places.rows)
        return self.finished(last.encode_firsts(X, places.rows), -1)

    def check(self, tokens, segments):
        """The two as (B, T) arrays on the device, once their ids are known.

        Raises ValueError as `inputs.check_tokens` does.
        """
        ctx = self.token_embedding.weight.list_ctx()[0]
        tokens = check_tokens(tokens, self.vocab_size, self.max_len, ctx)
        if onp.shape(segments) != tokens.shape:
            raise ValueError(f'segments {onp.shape(segments)} and tokens '
                             f'{tokens.shape} must have one shape')
        if self.num_segments < 2:
            segments = onp.zeros(tokens.shape, 'int32')
        check_ids(segments, max(self.num_segments, 1), 'segment')
        return tokens, on_device(segments, ctx, 'int32')


class MaskLM(nn.Block):
    """The masked language model head: one hidden layer, then V scores.

    embedding: the token embedding whose weight, (V, H), is that of the last
    layer, too, as in the published model; its own bias stays. units: those
    of the hidden layer, num_hiddens if None; 0: there is none, as in XLM.
    """

    def __init__(self, vocab_size, num_hiddens, precision='fp32', in_units=0,
                 activation='relu', layer_norm_eps=1e-5, embedding=None,
                 units=None, **kwargs):
        super().__init__(**kwargs)
        units = num_hiddens if units is None else units
        self.mlp = nn.Sequential()
        if units:
            self.mlp.add(Dense(units, activation=activation,
                               precision=precision, in_units=in_units),
                         LayerNorm(epsilon=layer_norm_eps,
                                   in_channels=units))
        self.mlp.add(Dense(vocab_size, precision=precision,
                           in_units=units or num_hiddens,
                           params=embedding and embedding.params))
        self._precision = precision

    @property
    def works_on_rows(self):
        """Whether it has the layers that it was made with."""
        return [type(layer) for layer in self.mlp] in (
            [Dense, LayerNorm, Dense], [Dense])

    def forward(self, X, pred_positions):
        """Score the vocabulary at pred_positions (B, P) of X (B, T, H).

        Returns (B, P, V).
        """
        B, T, H = X.shape
        check_ids(pred_positions, T, 'prediction position')
        pred_positions = on_device(pred_positions, X.ctx, 'int32')
        firsts = on_device(onp.arange(B)[:, None] * T, X.ctx, 'int32')
        rows = (pred_positions + firsts).reshape(-1)    # (B*P,)
        masked_X = X.reshape(B * T, H).take(rows, axis=0)
        return self.mlp(masked_X.reshape(B, -1, H))

    def loss(self, masked_X, labels, weights):
        """The weighted mean of cross-entropy at rows masked_X (S, H).

        labels (S,) int32, weights (S,) float32. Returns a scalar; nothing of
        the size of S times the vocabulary is ever stored.
        """
        *hidden, output = self.mlp
        X = masked_X
        for layer in hidden:
            X = layer(X)
        total = ops.vocab_ce(
            X, *values(output, X).values(), labels, weights,
            precision=self._precision,
            grad_req=grad_reqs(output.weight, output.bias))
        return total.reshape(()) / (weights.sum() + 1e-8)


class NextSentencePred(nn.Block):
    """The next sentence prediction head.

    `NextSentencePred()` scores (B, H), what `BERTModel.hidden` gives.
    `NextSentencePred(num_hiddens)` is the first edition's: it takes (B, T, H)
    and brings its own hidden layer.
    """

    def __init__(self, num_hiddens=None, in_units=0, **kwargs):
        super().__init__(**kwargs)
        if num_hiddens is None:
            self.output = Dense(2, flatten=True, in_units=in_units)
        else:
            self.mlp = nn.Sequential()
            self.mlp.add(Dense(num_hiddens, activation='tanh', flatten=True,
                               in_units=in_units),
                         Dense(2, flatten=True, in_units=num_hiddens))
        self._first_edition = num_hiddens is not None

    def forward(self, X):
        """Score "is next" and "is not" as (B, 2)."""
        if self._first_edition:
            return self.mlp(X[:, 0, :])     # 0 is the place of <cls>
        return self.output(X)


#: What a `BERTModel` may have otherwise, and what it has.
RELATIVE = dict(family='bert', heads=('pooler', 'mlm', 'nsp'),
                mlm_hidden=True, mlm_activation=None)


class BERTModel(nn.Block):
    """The encoder and its two pretraining heads.

    Arguments as for `BERTEncoder`; with `positional='sinusoidal'` the whole
    model is the first edition's. `precision='bf16'` multiplies matrices in
    bfloat16 and keeps sums, weights and everything else in float32.
    `tie_embeddings=True`, as published: the head that predicts words has the
    token embedding for its last weight. `hidden` is what others call the
    pooler. relative: what the relatives of BERT have otherwise, of RELATIVE
    and of the encoder's keywords; family: in whose folders the net is kept
    (`pretrained.families`); heads: those that there are, of 'pooler', 'mlm'
    and 'nsp', the last not without the first; mlm_hidden=False: the head
    that predicts words has no hidden layer; mlm_activation: that of this
    layer, where it is not `activation`.
    """

    def __init__(self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads,
                 num_layers=None, dropout=None, max_len=1000, *,
                 num_blks=None, positional='learnable', precision='fp32',
                 activation='relu', layer_norm_eps=1e-5,
                 embedding_norm=False, num_segments=2, tie_embeddings=False,
                 attention_dropout=None, **relative):
        super().__init__()
        ops.check_precision(precision)
        _, heads, mlm_hidden, mlm_activation = (
            relative.get(name, value) for name, value in RELATIVE.items())
        if 'nsp' in heads and 'pooler' not in heads:
            raise ValueError('the head nsp stands on the head pooler: name '
                             'both in heads, or neither')
        num_layers = number_of_blocks(num_layers, num_blks)
        self.config = dict(
            vocab_size=vocab_size, num_hiddens=num_hiddens,
            ffn_num_hiddens=ffn_num_hiddens, num_heads=num_heads,
            num_layers=num_layers, dropout=dropout, max_len=max_len,
            positional=positional, precision=precision,
            activation=activation, layer_norm_eps=layer_norm_eps,
            embedding_norm=embedding_norm, num_segments=num_segments,
            tie_embeddings=tie_embeddings,
            attention_dropout=attention_dropout, **relative)
        self.vocab = None       # bound by train_bert and load_run
        self.encoder = BERTEncoder(**{
            name: value for name, value in self.config.items()
            if name != 'tie_embeddings' and name not in RELATIVE})
        # In the order of a first pass through the book's model, so that one
        # seed draws the same initial weights
        self.mlm = MaskLM(
            vocab_size, num_hiddens, precision, num_hiddens,
            mlm_activation or activation, layer_norm_eps,
            self.encoder.token_embedding if tie_embeddings else None,
            relative.get('embedding_size') if mlm_hidden else 0)
        if positional == 'learnable':
            self.nsp = None
            if 'pooler' in heads:
                self.hidden = Dense(num_hiddens, activation='tanh',
                                    flatten=True, in_units=num_hiddens)
            if 'nsp' in heads:
                self.nsp = NextSentencePred(in_units=num_hiddens)
        else:
            self.nsp = NextSentencePred(num_hiddens, num_hiddens)

    def forward(self, tokens, segments, valid_lens=None, pred_positions=None):
        """Encode a batch and score both tasks.

        tokens, segments (B, T); valid_lens (B,); pred_positions (B, P).
        Returns encoded_X (B, T, H), mlm_Y_hat (B, P, V) or None where there
        are no pred_positions, nsp_Y_hat (B, 2) or None without such a head.
        """
        encoded_X = self.encoder(tokens, segments, valid_lens)
        mlm_Y_hat = None
        if pred_positions is not None:
            mlm_Y_hat = self.mlm(encoded_X, pred_positions)
        return encoded_X, mlm_Y_hat, self._score_next(encoded_X)

    def encode_rows(self, places, layer=-1, at=None):
        """`packing.Places` encoded, (R, H), and nsp_Y_hat (B, 2).

        Only for a net that `is_ours`: what `forward` gives, but nothing is
        computed on padding. layer: as for `BERTEncoder`; of any but -1,
        nsp_Y_hat is None. at: rows (S,) int32 of those R; (S, H), then.
        """
        X = self.encoder.encode_rows(places, layer)
        if layer != -1:
            return X if at is None else ops.take_rows(X, at)[0], None
        firsts = places.rows.offsets[:-1]                       # (B,)
        cls_X, *wanted = ops.take_rows(
            X, firsts, *([] if at is None else [at]))
        return wanted[0] if wanted else X, self._score_next(cls_X)

    def _score_next(self, X):
        """nsp_Y_hat (B, 2) or None, of X (B, T, H) or its <cls> (B, H)."""
        if self.nsp is None:
            return None
        if not hasattr(self, 'hidden'):
            return self.nsp(np.expand_dims(X, 1) if X.ndim == 2 else X)
        # 0 is the place of <cls>
        return self.nsp(self.hidden(X if X.ndim == 2 else X[:, 0, :]))
