"""The book's page "BERT": input, encoder, two heads, model.

B batch, T tokens, P predictions, H hiddens, V vocabulary, R rows (see
attention). The published model (Devlin et al. 2018), as the editions 0.17 and
1.0 have it, is the default; `positional='sinusoidal'` gives the first
edition's.
"""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert import kernels
from d2lbert.attention import Rows
from d2lbert.kernels import ops
from d2lbert.layers import Dense, LayerNorm, as_defined, grad_reqs
from d2lbert.machine.backend import nn, np
from d2lbert.text import CLS, SEP
from d2lbert.transformer import PositionalEncoding, TransformerEncoderBlock


def get_tokens_and_segments(tokens_a, tokens_b=None):
    """Tokens of the BERT input sequence and their segment IDs, two lists."""
    tokens = [CLS, *tokens_a, SEP]
    segments = [0] * len(tokens)
    if tokens_b is not None:
        tokens += [*tokens_b, SEP]
        segments += [1] * (len(tokens_b) + 1)
    return tokens, segments


class PackedBatch(NamedTuple):
    """A batch without its padding, as `BERTModel.losses` works on it.

    S is the number of predictions whose weight is not zero.
    """

    tokens: Any         # (R,) int32
    segments: Any       # (R,) int32
    positions: Any      # (R,) int32
    rows: Rows
    cls_rows: Any       # (B,) int32, the row of each <cls>
    pred_rows: Any      # (S,) int32, the row of each prediction
    labels: Any         # (S,) int32
    weights: Any        # (S,) float32
    nsp_y: Any          # (B,)


class BERTEncoder(nn.Block):
    """Token, segment and position embeddings, then Transformer blocks.

    `num_layers` (first and 0.17 editions) and `num_blks` (1.0) are one
    argument. `positional` is 'learnable' or 'sinusoidal' (first edition).
    """

    def __init__(self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads,
                 num_layers=None, dropout=None, max_len=1000, *,
                 num_blks=None, positional='learnable', precision='fp32',
                 **kwargs):
        super().__init__(**kwargs)
        num_layers = _number_of_blocks(num_layers, num_blks)
        _check_sizes(dropout, vocab_size=vocab_size, num_hiddens=num_hiddens,
                     ffn_num_hiddens=ffn_num_hiddens, num_layers=num_layers,
                     max_len=max_len)
        if positional not in ('learnable', 'sinusoidal'):
            raise ValueError("positional must be 'learnable' or 'sinusoidal', "
                             f'not {positional!r}')
        self.vocab_size, self.max_len = vocab_size, max_len
        learnable = self._learnable = positional == 'learnable'
        self.token_embedding = nn.Embedding(vocab_size, num_hiddens)
        self.segment_embedding = nn.Embedding(2, num_hiddens)
        if not learnable:
            self.pos_encoding = PositionalEncoding(num_hiddens, dropout,
                                                   max_len)
        self.blks = nn.Sequential()
        for _ in range(num_layers):
            # The first edition's projections have no bias, the later ones do
            self.blks.add(TransformerEncoderBlock(
                num_hiddens, ffn_num_hiddens, num_heads, dropout, learnable,
                precision))
        if learnable:
            self.pos_embedding = self.params.get(
                'pos_embedding', shape=(1, max_len, num_hiddens))

    def forward(self, tokens, segments, valid_lens):
        """Encode tokens (B, T), segments (B, T), valid_lens (B,) or None.

        Returns (B, T, H). Raises ValueError for an empty batch, for more
        tokens than `max_len`, and for ids that the embeddings do not have.
        """
        tokens, segments = self.check(tokens, segments)
        (B, T), ctx = tokens.shape, tokens.ctx
        if valid_lens is not None:
            check_whole(valid_lens, 'valid length')
            valid_lens = on_device(valid_lens, ctx)
        if not (kernels.enabled(self.token_embedding.weight.data(ctx))
                and as_defined(self)):
            X = self.token_embedding(tokens) + self.segment_embedding(segments)
            if self._learnable:
                X = X + self.pos_embedding.data(ctx=ctx)[:, :T, :]
            else:
                X = self.pos_encoding(X)
            for blk in self.blks:
                X = blk(X, valid_lens)
            return X
        positions = np.array(onp.tile(onp.arange(T), B), dtype='int32',
                             ctx=ctx)
        X = self.encode_rows(
            tokens.reshape(-1), segments.reshape(-1), positions,
            Rows.padded(B, T, valid_lens, ctx))
        return X.reshape(B, T, -1)

    def encode_rows(self, tokens, segments, positions, rows):
        """Encode token rows (R,) that lie as `rows` says; returns (R, H)."""
        ctx = tokens.ctx
        tables = self.token_embedding.weight, self.segment_embedding.weight
        if self._learnable:
            positional = self.pos_embedding.data(ctx)
            positional = positional.reshape(positional.shape[1:])   # (L, H)
        else:
            positional = self.pos_encoding.P[0].as_in_ctx(ctx)
        # The reshape stands before the third table and knows how to add
        X = ops.embed(tokens, segments, positions,
                      *(table.data(ctx) for table in tables), positional,
                      grad_req=(*grad_reqs(*tables), 'write'))
        if not self._learnable:
            X = self.pos_encoding.dropout(X)
        for blk in self.blks:
            X = blk(X, rows)
        return X

    def check(self, tokens, segments):
        """The two as (B, T) arrays on the device, once their ids are known.

        Ids are read where that costs nothing: in host arrays, and on a CPU.
        MXNet itself would clip a token id that is out of range in silence.
        """
        ctx = self.token_embedding.weight.list_ctx()[0]
        shape = onp.shape(tokens)
        if len(shape) != 2 or 0 in shape:
            raise ValueError('tokens must be a batch of at least one row and '
                             f'one column, (B, T), not of shape {shape}')
        if onp.shape(segments) != shape:
            raise ValueError(f'segments {onp.shape(segments)} and tokens '
                             f'{shape} must have one shape')
        if shape[1] > self.max_len:
            raise ValueError(f'{shape[1]} tokens are more than the '
                             f'{self.max_len} positions of this model: raise '
                             'max_len or cut the sequences')
        check_ids(tokens, self.vocab_size, 'token')
        check_ids(segments, 2, 'segment')
        return on_device(tokens, ctx, 'int32'), on_device(segments, ctx,
                                                          'int32')


class MaskLM(nn.Block):
    """The masked language model head: one hidden layer, then V scores."""

    def __init__(self, vocab_size, num_hiddens, precision='fp32', **kwargs):
        super().__init__(**kwargs)
        self.mlp = nn.Sequential()
        self.mlp.add(Dense(num_hiddens, activation='relu',
                           precision=precision),
                     LayerNorm(),
                     Dense(vocab_size, precision=precision))
        self._precision = precision

    def forward(self, X, pred_positions):
        """Score the vocabulary at pred_positions (B, P) of X (B, T, H).

        Returns (B, P, V).
        """
        B, T, H = X.shape
        check_ids(pred_positions, T, 'prediction position')
        pred_positions = on_device(pred_positions, X.ctx, 'int32')
        firsts = np.array(onp.arange(B)[:, None] * T, dtype='int32',
                          ctx=X.ctx)
        rows = (pred_positions + firsts).reshape(-1)    # (B*P,)
        masked_X = X.reshape(B * T, H).take(rows, axis=0)
        return self.mlp(masked_X.reshape(B, -1, H))

    def loss(self, masked_X, labels, weights):
        """The weighted mean of cross-entropy at rows masked_X (S, H).

        labels (S,) int32, weights (S,) float32. Returns a scalar; nothing of
        the size of S times the vocabulary is ever stored.
        """
        hidden, norm, output = self.mlp
        ctx = masked_X.ctx
        total, _ = ops.vocab_ce(
            norm(hidden(masked_X)), output.weight.data(ctx),
            output.bias.data(ctx), labels, weights,
            precision=self._precision,
            grad_req=grad_reqs(output.weight, output.bias))
        return total.reshape(()) / (weights.sum() + 1e-8)


class NextSentencePred(nn.Block):
    """The next sentence prediction head.

    `NextSentencePred()` scores (B, H), what `BERTModel.hidden` gives.
    `NextSentencePred(num_hiddens)` is the first edition's: it takes (B, T, H)
    and brings its own hidden layer.
    """

    def __init__(self, num_hiddens=None, **kwargs):
        super().__init__(**kwargs)
        if num_hiddens is None:
            self.output = Dense(2, flatten=True)
        else:
            self.mlp = nn.Sequential()
            self.mlp.add(Dense(num_hiddens, activation='tanh', flatten=True),
                         Dense(2, flatten=True))
        self._first_edition = num_hiddens is not None

    def forward(self, X):
        """Score "is next" and "is not" as (B, 2)."""
        if self._first_edition:
            return self.mlp(X[:, 0, :])     # 0 is the place of <cls>
        return self.output(X)


class BERTModel(nn.Block):
    """The encoder and its two pretraining heads.

    Arguments as for `BERTEncoder`; with `positional='sinusoidal'` the whole
    model is the first edition's. `precision='bf16'` multiplies matrices in
    bfloat16 and keeps sums, weights and everything else in float32.
    """

    def __init__(self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads,
                 num_layers=None, dropout=None, max_len=1000, *,
                 num_blks=None, positional='learnable', precision='fp32'):
        super().__init__()
        _check_precision(precision)
        num_layers = _number_of_blocks(num_layers, num_blks)
        self.config = dict(
            vocab_size=vocab_size, num_hiddens=num_hiddens,
            ffn_num_hiddens=ffn_num_hiddens, num_heads=num_heads,
            num_layers=num_layers, dropout=dropout, max_len=max_len,
            positional=positional, precision=precision)
        self.vocab = None       # bound by train_bert and load_run
        self.encoder = BERTEncoder(
            vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_layers,
            dropout, max_len, positional=positional, precision=precision)
        if positional == 'learnable':
            self.hidden = Dense(num_hiddens, activation='tanh', flatten=True)
            self.nsp = NextSentencePred()
        else:
            self.nsp = NextSentencePred(num_hiddens)
        self.mlm = MaskLM(vocab_size, num_hiddens, precision)

    @property
    def initialized(self):
        """Whether every parameter has its values, as after a first call."""
        return all(param._data is not None
                   for param in self.collect_params().values())

    def forward(self, tokens, segments, valid_lens=None, pred_positions=None):
        """Encode a batch and score both tasks.

        tokens, segments (B, T); valid_lens (B,); pred_positions (B, P).
        Returns encoded_X (B, T, H), mlm_Y_hat (B, P, V) or None where there
        are no pred_positions, nsp_Y_hat (B, 2).
        """
        encoded_X = self.encoder(tokens, segments, valid_lens)
        mlm_Y_hat = None
        if pred_positions is not None:
            mlm_Y_hat = self.mlm(encoded_X, pred_positions)
        return encoded_X, mlm_Y_hat, self._score_next(encoded_X)

    def losses(self, batch, loss):
        """Both losses of a `PackedBatch` with labels nsp_y, as two scalars.

        What the book computes from `forward`, on the real tokens and the
        real predictions alone.
        """
        encoded_X = self.encoder.encode_rows(batch.tokens, batch.segments,
                                             batch.positions, batch.rows)
        mlm_l = self.mlm.loss(encoded_X.take(batch.pred_rows, axis=0),
                              batch.labels, batch.weights)
        cls_X = np.expand_dims(encoded_X.take(batch.cls_rows, axis=0), 1)
        return mlm_l, loss(self._score_next(cls_X), batch.nsp_y).mean()

    def _score_next(self, encoded_X):
        if hasattr(self, 'hidden'):
            # 0 is the place of <cls>
            return self.nsp(self.hidden(encoded_X[:, 0, :]))
        return self.nsp(encoded_X)


def parameter_count(vocab_size, num_hiddens, ffn_num_hiddens, num_layers,
                    max_len):
    """How many numbers a `BERTModel` with learnable positions learns."""
    V, H, F = vocab_size, num_hiddens, ffn_num_hiddens
    block = 4 * (H * H + H) + 2 * H * F + F + H + 4 * H
    heads = 2 * (H * H + H) + 2 * H + (H + 1) * (V + 2)
    return (V + 2 + max_len) * H + num_layers * block + heads


def pack(tokens, segments, valid_lens, pred_positions, mlm_weights, mlm_Y,
         nsp_y):
    """Leave padding and weightless predictions out of a batch.

    The fields of `load_data_wiki`'s batches, on one CPU device; returns a
    `PackedBatch`, or None where a row is empty, nothing is to be predicted,
    or a prediction lies in the padding.
    """
    ctx = tokens.ctx
    check_whole(valid_lens, 'valid length')
    check_whole(pred_positions, 'prediction position')
    lens = valid_lens.asnumpy().reshape(-1).astype('int32')
    B, T = tokens.shape
    lens = onp.minimum(lens, T)
    example, column = onp.nonzero(mlm_weights.asnumpy())
    place = pred_positions.asnumpy()[example, column]
    if (lens.min() < 1 or not len(example)
            or (place < 0).any() or (place >= lens[example]).any()):
        return None
    offsets = onp.concatenate([[0], onp.cumsum(lens)])
    real = onp.arange(T) < lens[:, None]                # (B, T)

    def put(A, dtype='int32'):
        return np.array(A, dtype=dtype, ctx=ctx)
    return PackedBatch(
        put(tokens.asnumpy()[real]), put(segments.asnumpy()[real]),
        put(onp.nonzero(real)[1]), Rows(put(offsets), put(lens)),
        put(offsets[:-1]), put(offsets[example] + place),
        put(mlm_Y.asnumpy()[example, column]),
        put(mlm_weights.asnumpy()[example, column], 'float32'), nsp_y)


def on_device(X, ctx, dtype=None):
    """X, a host or device array, as an array on ctx (its own if it has)."""
    if not isinstance(X, np.ndarray):
        X = onp.asarray(X)
        return np.array(X, dtype=dtype or X.dtype, ctx=ctx)
    return X if dtype is None else X.astype(dtype, copy=False)


def _on_host(X):
    """X as a host array where reading it costs nothing, else None."""
    if isinstance(X, np.ndarray):
        return X.asnumpy() if X.ctx.device_type == 'cpu' else None
    return onp.asarray(X)


def check_whole(X, name):
    """Refuse a number that is not whole, where reading it costs nothing.

    Whole floats will do, as some of the book's arrays hold; MXNet would cut
    others, and NaN, in silence.
    """
    X = _on_host(X)
    if X is not None and X.dtype.kind == 'f':
        broken = X[~(X == onp.floor(X))]        # NaN equals nothing
        if broken.size:
            raise ValueError(f'{name} {broken[0]} is not a whole number')


def check_ids(ids, bound, name):
    """Refuse ids that are not whole numbers from 0 to bound - 1.

    Only where reading them costs nothing.
    """
    ids = _on_host(ids)
    if ids is None:
        return
    if not ids.size:
        raise ValueError(f'at least one {name} is needed, not an array of '
                         f'shape {ids.shape}')
    check_whole(ids, name)
    low, high = ids.min(), ids.max()
    if low < 0 or high >= bound:
        raise ValueError(f'{name} {low if low < 0 else high} is out of '
                         f'range: it must be 0 to {bound - 1}')


def _number_of_blocks(num_layers, num_blks):
    if (num_layers is None) == (num_blks is None):
        raise TypeError('give the number of blocks once, as num_layers or as '
                        f'num_blks, not {num_layers} and {num_blks}')
    return num_blks if num_layers is None else num_layers


def _check_precision(precision):
    if precision == 'fp32':
        return
    if precision != 'bf16':
        raise ValueError("precision must be 'fp32' or 'bf16', "
                         f'not {precision!r}')
    if not kernels.load():
        raise ValueError("precision='bf16' needs the fused operators, which "
                         f'are not there: {kernels.state().reason}')
    if not kernels.bf16_supported():
        raise ValueError("precision='bf16' needs a CPU with AVX-512 BF16 "
                         "instructions, which this one lacks: use 'fp32'")


def _check_sizes(dropout, **sizes):
    for name, size in sizes.items():
        if int(size) != size or size < 1:
            raise ValueError(f'{name} must be a whole number of at least 1, '
                             f'not {size!r}')
    if dropout is None or not 0 <= dropout < 1:
        raise ValueError('dropout must be a number from 0 to less than 1, '
                         f'not {dropout!r}')
