"""The book's Transformer encoder, and a decoder block.

Letters in shapes: B sequences of a batch, T tokens of a sequence, S tokens of
the encoded text that a decoder attends to, H hidden units.
"""
import numpy as onp

from d2lbert.attention import MultiHeadAttention
from d2lbert.machine.backend import nn, np
from d2lbert.nn import packed
from d2lbert.nn.layers import Dense, LayerNorm
from d2lbert.nn.variant import BOOK, Variant, num_layers_up_to


class PositionWiseFFN(nn.Block):
    """Two dense layers, applied to every position alike.

    variant: a `Variant`, for activation, activation_dropout and precision.
    in_units: H; with 0, the first call sets it.
    """

    def __init__(self, ffn_num_hiddens, ffn_num_outputs, variant=None,
                 in_units=0, **kwargs):
        variant = Variant.of(variant, kwargs)
        super().__init__(**kwargs)
        self.dropout = None
        if variant.activation_dropout:
            self.dropout = nn.Dropout(variant.activation_dropout)
        self.dense1 = Dense(ffn_num_hiddens, activation=variant.activation,
                            precision=variant.precision, in_units=in_units)
        self.dense2 = Dense(ffn_num_outputs, precision=variant.precision,
                            in_units=ffn_num_hiddens)

    def forward(self, X):
        """Map X (..., H) to (..., ffn_num_outputs)."""
        Y = self.dense1(X)
        return self.dense2(Y if self.dropout is None else self.dropout(Y))


class AddNorm(packed.Packable):
    """LayerNorm(X + dropout(Y)), where X is the residual connection.

    in_channels: H; with 0, the first call sets it. epsilon: of the LayerNorm.
    """

    packed_forward = packed.add_norm

    def __init__(self, dropout, in_channels=0, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.dropout = nn.Dropout(dropout)
        self.ln = LayerNorm(in_channels=in_channels, epsilon=epsilon)

    def forward(self, X, Y):
        """X, Y and the result are (..., H)."""
        return self.ln(self.dropout(Y) + X)

    def add(self, X, Y):
        """Return X + dropout(Y), the residual connection alone."""
        return X + self.dropout(Y)


class TransformerEncoderBlock(packed.Packable):
    """Self-attention and a feed-forward network, each with an `AddNorm`.

    Each of the two, f, is applied as LayerNorm(X + dropout(f(X))), or with
    variant.pre_norm as X + dropout(f(LayerNorm(X))). use_bias: True gives the
    projections of attention a bias. variant: a `Variant`. The book's first
    edition and 0.17 call this class `EncoderBlock`.
    """

    packed_forward = packed.padded_block

    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, dropout,
                 use_bias=False, variant=None, **kwargs):
        variant = Variant.of(variant, kwargs)
        super().__init__(**kwargs)
        self.pre_norm = variant.pre_norm
        self.attention = MultiHeadAttention(
            num_hiddens, num_heads, _attention_dropout(dropout, variant),
            use_bias, variant, in_units=num_hiddens)
        self.addnorm1 = AddNorm(dropout, num_hiddens, variant.layer_norm_eps)
        self.ffn = PositionWiseFFN(ffn_num_hiddens, num_hiddens, variant,
                                   num_hiddens)
        self.addnorm2 = AddNorm(dropout, num_hiddens, variant.layer_norm_eps)

    def forward(self, X, valid_lens):
        """Encode X (B, T, H): (B, T, H).

        valid_lens: as for `MultiHeadAttention.forward`, with Q = T queries.
        """
        if self.pre_norm:
            Y = self.addnorm1.ln(X)
            Y = self.attention(Y, Y, Y, valid_lens)
            return self.feed(self.addnorm1.add(X, Y))
        return self.feed(self.addnorm1(
            X, self.attention(X, X, X, valid_lens)))

    def feed(self, Y):
        """Apply the feed-forward network and its `AddNorm` to Y (..., H)."""
        if self.pre_norm:
            return self.addnorm2.add(Y, self.ffn(self.addnorm2.ln(Y)))
        return self.addnorm2(Y, self.ffn(Y))


EncoderBlock = TransformerEncoderBlock


def _attention_dropout(dropout, variant):
    return (dropout if variant.attention_dropout is None
            else variant.attention_dropout)


class TransformerDecoderBlock(nn.Block):
    """Masked self-attention, cross-attention and a feed-forward network.

    Each of the three has an `AddNorm`. The arguments are as for
    `TransformerEncoderBlock`, but variant.pre_norm is ignored.
    """

    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, dropout,
                 use_bias=False, variant=None, **kwargs):
        variant = Variant.of(variant, kwargs)
        super().__init__(**kwargs)

        def attention():
            return MultiHeadAttention(
                num_hiddens, num_heads, _attention_dropout(dropout, variant),
                use_bias, variant, in_units=num_hiddens)

        def add_norm():
            return AddNorm(dropout, num_hiddens, variant.layer_norm_eps)
        # attention1 is the self-attention, attention2 the cross-attention
        self.attention1, self.addnorm1 = attention(), add_norm()
        self.attention2, self.addnorm2 = attention(), add_norm()
        self.ffn = PositionWiseFFN(ffn_num_hiddens, num_hiddens, variant,
                                   num_hiddens)
        self.addnorm3 = add_norm()

    def forward(self, X, encoded_X, valid_lens, seen_lens, cache):
        """Decode X (B, T, H), given an encoded text encoded_X (B, S, H).

        valid_lens (B,): the number of encoded tokens before the padding; None:
        all S. seen_lens (B, T): the number of decoded tokens that each token
        of X attends to, counted from the first token of the first call; None:
        all. cache: a dict for the keys and values of the text and of decoded
        tokens, empty at the first call. Later calls ignore encoded_X. Returns
        (B, T, H).
        """
        if 'text' not in cache:
            cache['text'] = self.attention2.project_kv(encoded_X, encoded_X)
        keys, values = self.attention1.project_kv(X, X)
        if 'tokens' in cache:
            old_keys, old_values = cache['tokens']
            keys = np.concatenate((old_keys, keys), axis=1)
            values = np.concatenate((old_values, values), axis=1)
        cache['tokens'] = keys, values
        Y = self.addnorm1(X, self.attention1.attend(X, keys, values,
                                                    seen_lens))
        Z = self.addnorm2(Y, self.attention2.attend(Y, *cache['text'],
                                                    valid_lens))
        return self.addnorm3(Z, self.ffn(Z))


class Blocks(nn.Sequential):
    """The blocks of an encoder; layers may share some of them.

    num_layers: as for `Variant.blocks_of_layers`. arguments: the positional
    arguments of `TransformerEncoderBlock` before variant.
    """

    # Gluon slices blocks by adding them to an object made without arguments
    def __init__(self, num_layers=0, variant=BOOK, *arguments, **kwargs):
        super().__init__(**kwargs)
        block_indices = variant.blocks_of_layers(num_layers)
        num_blocks = 1 + max((k for indices in block_indices
                              for k in indices), default=-1)
        for _ in range(num_blocks):
            self.add(TransformerEncoderBlock(*arguments, variant))
        # The block indices of each layer; None: each layer is one block
        self._block_indices = (None if variant.num_groups is None
                               else block_indices)

    @property
    def num_layers(self):
        """The number of layers, without the embeddings."""
        if self._block_indices is None:
            return len(self)
        return len(self._block_indices)

    def up_to(self, layer):
        """Return the blocks to apply, in order, for the output of `layer`.

        layer: as for `num_layers_up_to`. A shared block is repeated.
        """
        num_used_layers = num_layers_up_to(layer, self.num_layers)
        blks = list(self)
        if self._block_indices is None:
            return blks[:num_used_layers]
        return [blks[k] for indices in self._block_indices[:num_used_layers]
                for k in indices]

    def of_layer(self, layer):
        """Return the blocks of one layer, from 1, in order."""
        return self.up_to(layer)[len(self.up_to(layer - 1)):]


class PositionalEncoding(nn.Block):
    """Sinusoidal positions (Vaswani et al. 2017, section 3.5) and dropout."""

    def __init__(self, num_hiddens, dropout, max_len=1000):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        angles = onp.arange(max_len).reshape(-1, 1) / onp.power(
            10000, onp.arange(0, num_hiddens, 2) / num_hiddens)
        P = onp.zeros((1, max_len, num_hiddens), dtype='float32')
        P[:, :, 0::2] = onp.sin(angles)
        # If num_hiddens is odd, there is one cosine less than sines
        P[:, :, 1::2] = onp.cos(angles)[:, :num_hiddens // 2]
        self.P = np.array(P)

    def forward(self, X):
        """Add the first T positions to X (B, T, H)."""
        num_tokens, max_len = X.shape[1], self.P.shape[1]
        if num_tokens > max_len:
            raise ValueError(f'{num_tokens} tokens are more than the '
                             f'{max_len} positions of this encoding: raise '
                             'max_len or cut the sequences')
        return self.dropout(X + self.P[:, :num_tokens, :].as_in_ctx(X.ctx))
