"""Compute the encoder of the book's pages faster, without padding.

A block of a page computes an array (B, T, H). Its twin here, a function,
computes the rows of real tokens alone by fused operators: an array (R, H),
one sequence after another. A twin is valid only if the block is unmodified
(see `is_unmodified`), which `Packable`, `encode` and `encode_first_tokens`
check. Twins with `padded` in their name return (B, T, H), with padding.

B: the number of sequences. T: the length of a padded sequence. R: the number
of rows. H: the number of hidden units. S: the number of selected tokens, for
example masked ones. An argument `rows` is an `ops.Rows`.
"""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.kernels import ops
from d2lbert.machine.backend import autograd, mx, nn, np
from d2lbert.nn.checks import check_lens, host, on_device
from d2lbert.nn.layers import (
    Dense,
    grad_reqs,
    is_unmodified,
    parameter_values,
)


class Packable(nn.Block):
    """A block whose `forward` has a twin, `packed_forward`.

    `forward` is the page's code, and works with any child blocks. A call of
    the block runs the twin if the block is unmodified.
    """

    def packed_forward(self, *args):
        """Return the result, or NotImplemented to run `forward` instead."""
        return NotImplemented

    def __call__(self, *args):
        if is_unmodified(self):
            output = self.packed_forward(*args)
            if output is not NotImplemented:
                return output
        return super().__call__(*args)


class PackedTokens(NamedTuple):
    """The real tokens of B sequences, one after another, on a device."""

    tokens: Any         # (R,) int32
    segments: Any       # (R,) int32
    positions: Any      # (R,) int32, the index of each token in its sequence
    rows: ops.Rows


# From a batch to rows

class EncodedRows(NamedTuple):
    """The output of `encode` for the real tokens of a batch."""

    X: Any              # (R, H), the vectors of all tokens
    begins: Any         # (B,), the first row of each sequence, on the host
    nsp_Y_hat: Any      # (B, 2), or None; see `encode`
    taken_X: Any        # (S, H), the vectors of selected tokens, or None


def encode(net, tokens, segments, valid_lens, layer=-1, at=None, device=None):
    """Encode the real tokens of a batch; returns `EncodedRows`.

    tokens (B, T), segments (B, T) or None for zeros, and valid_lens (B,) are
    host or device arrays. layer: as for `BERTEncoder.forward`. at: two host
    arrays (S,), the sequence and the position of each token to select for
    taken_X, or None. device: the device for host arrays; None: the net's first
    device.

    In the result, token t of sequence b is row begins[b] + t of X, for each t
    below valid_lens[b]. nsp_Y_hat is None unless the net has a head for
    sentence pairs and layer is -1 (not the last layer's positive number). If
    the net has modified blocks or a sequence is empty, the net is called as on
    the book's page. Then X has rows for padding, too, and R is B * T.
    """
    lens = _lens_of(tokens, valid_lens)
    device = device or _device_of(tokens, net)
    if not is_unmodified(net) or (lens < 1).any():
        return _encode_as_the_page(net, tokens, segments, lens, layer, at,
                                   device)
    packed, begins = pack(net.encoder, tokens, segments, lens, device)
    X = _layer_output(net.encoder, packed, layer)
    # At most one array (S,); `taken` has as many arrays (S, H)
    selected_rows = [] if at is None else [_row_indices(at, begins, device)]
    nsp_Y_hat = None
    if layer == -1 and net.has_pair_head:
        # One operator, since two would compute two gradients of the size of X
        cls_X, *taken = ops.take_rows(X, packed.rows.offsets[:-1],
                                      *selected_rows)
        nsp_Y_hat = net.score_pairs(cls_X)
    else:
        taken = ops.take_rows(X, *selected_rows) if selected_rows else []
    return EncodedRows(X, begins, nsp_Y_hat, taken[0] if taken else None)


def _lens_of(tokens, valid_lens):
    """valid_lens (B,) or (B, 1), checked, as a host array (B,) int32."""
    lens = host(valid_lens).reshape(-1)
    check_lens(lens, tokens)
    return lens.astype('int32')


def _encode_as_the_page(net, tokens, segments, lens, layer, at, device):
    """`encode` by a call of the net; X has rows for padding, too."""
    if segments is None:
        segments = onp.zeros(onp.shape(tokens), 'int32')
    inputs = (on_device(tokens, device, 'int32'),
              on_device(segments, device, 'int32'),
              on_device(lens, device, 'float32'))
    if layer == -1:
        encoded_X, _, nsp_Y_hat = net(*inputs)
    else:
        encoded_X, nsp_Y_hat = net.encoder(*inputs, layer), None
    B, T, H = encoded_X.shape
    X, begins = encoded_X.reshape(B * T, H), onp.arange(B) * T
    taken_X = None
    if at is not None:
        taken_X, = ops.take_rows(X, _row_indices(at, begins, X.ctx))
    return EncodedRows(X, begins, nsp_Y_hat, taken_X)


def encode_first_tokens(encoder, tokens, segments, valid_lens):
    """The encoder's output for the first token of each sequence, (B, H).

    The arguments are as for `BERTEncoder.forward`. After attention, the last
    block computes first tokens only, to save time. It computes all tokens if
    the encoder is quantized or has modified blocks, or if a sequence is empty.
    """
    if valid_lens is None:
        lens = onp.full(len(tokens), onp.shape(tokens)[1], 'int32')
    else:
        lens = _lens_of(tokens, valid_lens)
    if not is_unmodified(encoder) or (lens < 1).any():
        return encoder(tokens, segments, valid_lens)[:, 0, :]
    packed, _ = pack(encoder, tokens, segments, lens,
                     _device_of(tokens, encoder))
    if encoder.quantized is not None:
        return _run_quantized(encoder.quantized, packed,
                              returned_rows='first')
    X = embed(encoder, packed.tokens, packed.segments, packed.positions)
    *blks, last_blk = encoder.blks.up_to(-1)
    for blk in blks:
        X = block(blk, X, packed.rows)
    return encoder.finish(
        block_of_first_tokens(last_blk, X, packed.rows), -1)


def encode_padded(encoder, tokens, segments, valid_lens, layer=-1):
    """The twin of `BERTEncoder.forward`; returns (B, T, H).

    Returns NotImplemented for valid_lens of another shape than (B,). A
    quantized encoder raises ValueError instead, and gives zeros at padding.
    """
    # Read the device now, since `check` moves tokens to the host
    ctx = _device_of(tokens, encoder)
    tokens, segments = encoder.check(tokens, segments)
    B, T = tokens.shape
    if valid_lens is not None:
        check_lens(valid_lens, tokens)
        valid_lens = on_device(valid_lens, ctx)
    if encoder.quantized is not None:
        _check_not_recording()
        if not _has_length_per_sequence(valid_lens):
            raise ValueError("a net with precision='int8' takes one valid "
                             'length for each sequence, (B,), not an array '
                             f'of shape {valid_lens.shape}')
        host_lens = None if valid_lens is None else host(valid_lens)
        return on_device(encoder.quantized.encode_padded(
            host(tokens), host(segments), host_lens, layer), ctx)
    if not _has_length_per_sequence(valid_lens):
        return NotImplemented
    positions = onp.broadcast_to(onp.arange(T), (B, T))
    # Here the tokens of `PackedTokens` include padding
    packed = PackedTokens(*(on_device(A.reshape(-1), ctx, 'int32')
                            for A in (tokens, segments, positions)),
                          _rows_with_padding(B, T, valid_lens, ctx))
    return _layer_output(encoder, packed, layer).reshape(B, T, -1)


def _has_length_per_sequence(valid_lens):
    """True for an array (B,), and for None; False for an array (B, T)."""
    return valid_lens is None or valid_lens.ndim == 1


def _device_of(tokens, block):
    """The device of tokens; for host arrays the block's first device."""
    if isinstance(tokens, mx.nd.NDArray):
        return tokens.ctx
    return next(iter(block.collect_params().values())).list_ctx()[0]


def pack(encoder, tokens, segments, lens, ctx):
    """Check and pack the real tokens; returns (`PackedTokens` on ctx, begins).

    tokens and segments (B, T): as for `encode`. lens (B,) int32 on the host,
    all above 0; a length above T counts as T. begins (B,): the first row of
    each sequence, on the host.
    """
    tokens, segments = map(host, encoder.check(tokens, segments))
    T = tokens.shape[1]
    is_real = onp.arange(T) < lens[:, None]             # (B, T)
    _, positions = onp.nonzero(is_real)                 # (R,)
    offsets = onp.concatenate([[0], onp.cumsum(onp.minimum(lens, T))])

    def put(A):
        return on_device(A, ctx, 'int32')
    rows = ops.Rows(put(offsets), put(onp.diff(offsets)))
    return PackedTokens(put(tokens[is_real]), put(segments[is_real]),
                        put(positions), rows), offsets[:-1]


def _rows_with_padding(B, T, valid_lens, ctx):
    """The `ops.Rows` of an array (B * T, H) that includes padding.

    valid_lens (B,): a device array, or None if all tokens are real.
    """
    offsets = onp.arange(B + 1, dtype='int32') * T
    if valid_lens is None:
        lens = np.full((B,), T, dtype='int32', ctx=ctx)
    else:
        lens = valid_lens.astype('int32')
    return ops.Rows(on_device(offsets, ctx), lens, common_length=T)


def _row_indices(at, begins, ctx):
    """The row of each token `at`, (S,) on ctx; see `encode` and `pack`."""
    sequences, positions = at
    return on_device(begins[sequences] + positions, ctx, 'int32')


def _layer_output(encoder, packed, layer):
    """The output (R, H) of a layer of an encoder for `PackedTokens`."""
    if encoder.quantized is not None:
        return _run_quantized(encoder.quantized, packed, layer)
    X = embed(encoder, packed.tokens, packed.segments, packed.positions)
    for blk in encoder.blks.up_to(layer):
        X = block(blk, X, packed.rows)
    return encoder.finish(X, layer)


def _run_quantized(quantized, packed, layer=-1, returned_rows='all'):
    """The output of `QuantizedEncoder.encode` for `PackedTokens`."""
    _check_not_recording()
    X = quantized.encode(host(packed.rows.offsets), host(packed.tokens),
                         host(packed.segments), layer, returned_rows)
    return on_device(X, packed.tokens.ctx)


def _check_not_recording():
    if autograd.is_recording():
        raise ValueError("a net with precision='int8' has no gradients: load "
                         "it with precision='fp32' to train it")


# The twins of the parts of an encoder

def embed(encoder, tokens, segments, positions):
    """The twin of `BERTEncoder.embed`: the input (..., H) of the first block.

    tokens, segments and positions (...) are int32 device arrays.
    """
    ctx = tokens.ctx
    token_weight = encoder.token_embedding.weight
    if encoder.segment_embedding is None:
        segment_table = np.zeros((1, token_weight.shape[1]), ctx=ctx)
        segment_grad_req = 'null'
    else:
        segment_weight = encoder.segment_embedding.weight
        segment_table = segment_weight.data(ctx)
        segment_grad_req = segment_weight.grad_req
    # A learned position table is a reshaped parameter. MXNet's reshape obeys
    # the grad_req of the parameter, so 'write' is right for the table
    X = ops.embed(tokens, segments, positions,
                  encoder.scale(token_weight.data(ctx)), segment_table,
                  encoder.position_table(ctx),
                  grad_req=(token_weight.grad_req, segment_grad_req, 'write'))
    if not encoder.learns_positions:
        # With sinusoidal positions, dropout follows the sum of the embeddings
        X = encoder.pos_encoding.dropout(X)
    return encoder.finish_embedding(X)


def block(blk, X, rows):
    """The twin of `TransformerEncoderBlock.forward` on X (R, H)."""
    if blk.pre_norm:
        Y = blk.addnorm1.ln(X)
        X = blk.addnorm1.add(X, self_attention(blk.attention, Y, rows))
        return blk.feed(X)
    Y = _add_self_attention(blk.attention, X, rows, blk.addnorm1)
    return _add_feed_forward(blk.ffn, Y, blk.addnorm2)


def block_of_first_tokens(blk, X, rows):
    """The output (B, H) of `block` on X (R, H) for first tokens only."""
    first_rows = rows.offsets[:-1]
    first_X = X.take(first_rows, axis=0)    # (B, H)
    if blk.pre_norm:
        Y = self_attention(blk.attention, blk.addnorm1.ln(X), rows, first_rows)
        return blk.feed(blk.addnorm1.add(first_X, Y))
    Y = self_attention(blk.attention, X, rows, first_rows)
    return blk.feed(blk.addnorm1(first_X, Y))


def padded_block(blk, X, valid_lens):
    """The twin of `TransformerEncoderBlock.forward` on X (B, T, H).

    Returns NotImplemented for pre-LN, and for valid_lens of another shape than
    (B,).
    """
    if blk.pre_norm or not _has_length_per_sequence(valid_lens):
        return NotImplemented
    B, T, H = X.shape
    rows = _rows_with_padding(B, T, valid_lens, X.ctx)
    return block(blk, X.reshape(B * T, H), rows).reshape(B, T, H)


def padded_attention(attention, queries, keys, values, valid_lens):
    """The twin of `MultiHeadAttention.forward` for self-attention (B, T, H).

    Returns NotImplemented unless queries, keys and values are the same array,
    and for valid_lens of another shape than (B,).
    """
    is_self_attention = queries is keys and keys is values
    if not (is_self_attention and _has_length_per_sequence(valid_lens)):
        return NotImplemented
    B, T, H = queries.shape
    rows = _rows_with_padding(B, T, valid_lens, queries.ctx)
    Y = self_attention(attention, queries.reshape(B * T, H), rows)
    return Y.reshape(B, T, -1)


def add_norm(addnorm, X, Y):
    """The twin of `AddNorm.forward`, on arrays (..., H).

    Returns NotImplemented for arrays of two shapes.
    """
    if X.shape != Y.shape:
        return NotImplemented
    return ops.add_norm(X, Y, *_norm(addnorm, X), _norm_grad_reqs(addnorm))


def self_attention(attention, X, rows, row_indices=None):
    """Self-attention among the tokens of each sequence, for X (R, H).

    attention: a `MultiHeadAttention`. row_indices (S,): the rows to return,
    int32 on the device; None: all rows.
    """
    # One product for queries, keys and values, so that X is read once
    layers = attention.W_q, attention.W_k, attention.W_v
    QKV = ops.joined_dense(X, *_parameters(X, layers),
                           precision=attention.precision,
                           grad_req=_dense_grad_reqs(layers))
    # The operator stores no attention weights. Weights from an earlier call of
    # the page's code must not look like the weights of this call
    attention.attention.attention_weights = None
    Y = ops.attention_qkv(
        QKV, rows.offsets, rows.lens, num_heads=attention.num_heads,
        p=attention.attention.dropout._rate, precision=attention.precision,
        common_length=rows.common_length, causal=attention.causal)
    if row_indices is not None:
        Y = Y.take(row_indices, axis=0)
    return attention.W_o(Y)


def _add_self_attention(attention, X, rows, addnorm):
    """Return addnorm(X, self_attention(attention, X, rows)), for X (R, H)."""
    attention.attention.attention_weights = None    # see `self_attention`
    layers = attention.W_q, attention.W_k, attention.W_v, attention.W_o
    return ops.self_attention(
        X, *_parameters(X, layers), _norm(addnorm, X), rows,
        num_heads=attention.num_heads, p=attention.attention.dropout._rate,
        precision=attention.precision, causal=attention.causal,
        grad_req=_dense_grad_reqs(layers) + _norm_grad_reqs(addnorm))


def _add_feed_forward(ffn, X, addnorm):
    """Return addnorm(X, ffn(X)), for X (R, H)."""
    dense1, dense2 = layers = ffn.dense1, ffn.dense2
    has_plain_layers = (ffn.dropout is None and dense2.act is None
                        and all(type(layer) is Dense
                                and layer.bias is not None
                                for layer in layers))
    act = dense1.fused_activation() if has_plain_layers else 'none'
    if act == 'none':       # the layers must be called one by one
        return addnorm(X, ffn(X))
    weights, biases = _parameters(X, layers)
    # In the order W1, b1, W2, b2, unlike `_dense_grad_reqs`
    dense_grad_reqs = grad_reqs(dense1.weight, dense1.bias,
                                dense2.weight, dense2.bias)
    return ops.feed_forward(
        X, weights, biases, _norm(addnorm, X), act, dense1.precision,
        grad_req=dense_grad_reqs + _norm_grad_reqs(addnorm))


def _parameters(X, layers):
    """(weights, biases) of dense layers on X's device.

    Either all layers have a bias, or none has one: biases is then ().
    """
    values = [parameter_values(layer, X).values() for layer in layers]
    weights, *biases = zip(*values)     # [biases] or []
    return weights, biases[0] if biases else ()


def _dense_grad_reqs(layers):
    """The grad_req of the weights of all layers, then of the biases."""
    pairs = [grad_reqs(layer.weight, layer.bias) for layer in layers]
    return sum(zip(*pairs), ())


def _norm(addnorm, X):
    """The `ops.Norm` of an `AddNorm`, on X's device."""
    return ops.Norm(**parameter_values(addnorm.ln, X), p=addnorm.dropout._rate,
                    eps=addnorm.ln._epsilon)


def _norm_grad_reqs(addnorm):
    return grad_reqs(addnorm.ln.gamma, addnorm.ln.beta)


class MaskedTokens(NamedTuple):
    """The output of a net for a shard, and the labels of masked tokens.

    A shard is the part of a batch that one device computes. S is the number of
    masked tokens of the shard, or 1 for a shard without masked tokens.
    """

    X: Any              # (R, H), the vectors of all tokens
    masked_X: Any       # (S, H), the vectors of the masked tokens
    masked_rows: Any    # (S,), the rows of masked tokens in X, on the host
    left: Any           # (S,), the row before the span of each masked token,
                        # on the host; None if the shard has no spans
    right: Any          # (S,), likewise the row after the span
    labels: Any         # (S,) int32, the original tokens, on the host
    weights: Any        # (S,) float32, weights of the losses, on the device
    count: float        # the number of masked tokens, may be 0
    nsp_Y_hat: Any      # (B, 2), None without a head for sentence pairs
    nsp_y: Any          # (B,), a host or device array; None without pairs

    @classmethod
    def of(cls, net, shard, device=None):
        """Encode a shard by a `BERTModel`.

        shard: a `texts.examples.Batch` or `corpus.masking.MaskedRows`.
        device: as for `encode`. If the shard has no masked token, the first
        prediction of its first sequence is taken with weight 0, since each
        device must compute all gradients.
        """
        weights_X = host(shard.mlm_weights_X)
        # Masked token s is prediction p[s] of sequence b[s]
        b, p = onp.nonzero(weights_X)
        count = len(b)
        if not count:
            b = p = onp.zeros(1, 'int64')

        def at_masked_tokens(name):
            """The values (S,) of a field; None if the shard lacks it."""
            field = getattr(shard, name, None)
            return None if field is None else host(field)[b, p]
        positions = at_masked_tokens('pred_positions_X')
        encoded = encode(
            net, shard.tokens_X, getattr(shard, 'segments_X', None),
            shard.valid_lens_x, at=(b, positions), device=device)
        first_rows = encoded.begins[b]  # (S,), of sequence b[s]
        left, right = (
            None if borders is None else first_rows + borders
            for borders in map(at_masked_tokens, ('left_X', 'right_X')))
        return cls(encoded.X, encoded.taken_X, first_rows + positions, left,
                   right, at_masked_tokens('mlm_Y').astype('int32'),
                   on_device(weights_X[b, p], encoded.X.ctx, 'float32'),
                   float(count), encoded.nsp_Y_hat,
                   getattr(shard, 'nsp_y', None))

    def at(self, row_indices):
        """The vectors (S, H) in the rows row_indices (S,) of X."""
        vectors, = ops.take_rows(self.X, self.put(row_indices))
        return vectors

    def put(self, integers):
        """Return an array as int32 on the device of X."""
        return on_device(integers, self.X.ctx, 'int32')

    def mlm_loss(self, head):
        """(mean loss, number of masked tokens) of a `bert.MaskLM` head."""
        return head.loss(self.masked_X, self.put(self.labels),
                         self.weights), self.count

    def losses(self, net):
        """[(MLM loss, number of masked tokens), (NSP loss, number of pairs)].

        Each loss is a mean. The NSP loss is Gluon's `SoftmaxCELoss`, computed
        by two operators instead of five, which saves time in small batches.
        """
        num_pairs = len(self.nsp_Y_hat)
        pair_weights = on_device(onp.ones(num_pairs, 'float32'), self.X.ctx)
        nsp_l = ops.softmax_ce(self.nsp_Y_hat, self.put(host(self.nsp_y)),
                               pair_weights).mean()
        return [self.mlm_loss(net.mlm), (nsp_l, num_pairs)]
