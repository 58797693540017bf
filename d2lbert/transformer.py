"""The encoder of the book's chapter "Transformer".

B batch, T tokens, H hiddens, F feed-forward hiddens, R rows (see attention).
"""
import numpy as onp

from d2lbert.attention import MultiHeadAttention
from d2lbert.kernels import ops
from d2lbert.machine.backend import nn, np
from d2lbert.nn.layers import Dense, LayerNorm, grad_reqs, is_ours, values
from d2lbert.nn.packed import Rows


class PositionWiseFFN(nn.Block):
    """Two dense layers applied to every position: (..., H) to (..., H).

    dropout: of the first one's outcome.
    """

    def __init__(self, ffn_num_hiddens, ffn_num_outputs, precision='fp32',
                 in_units=0, activation='relu', dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dropout = nn.Dropout(dropout) if dropout else None
        self.dense1 = Dense(ffn_num_hiddens, activation=activation,
                            precision=precision, in_units=in_units)
        self.dense2 = Dense(ffn_num_outputs, precision=precision,
                            in_units=ffn_num_hiddens)

    def forward(self, X):
        """Map X (..., H) to (..., ffn_num_outputs)."""
        Y = self.dense1(X)
        return self.dense2(Y if self.dropout is None else self.dropout(Y))

    def with_norm(self, X, addnorm):
        """addnorm(X, self(X)) for rows X (R, H), where both are `is_ours`."""
        layers = self.dense1, self.dense2
        act = 'none'
        if (self.dropout is None and self.dense2.act is None
                and all(type(layer) is Dense for layer in layers)):
            act = self.dense1.folded()
        if act == 'none':
            return addnorm(X, self(X))
        weights, biases = zip(*(values(layer, X).values()
                                for layer in layers))
        requests = sum((grad_reqs(layer.weight, layer.bias)
                        for layer in layers), ())
        return ops.feed_forward(
            X, weights, biases, **addnorm.arguments(X), act=act,
            precision=self.dense1._precision,
            grad_req=requests + addnorm.grad_reqs())


class AddNorm(nn.Block):
    """LayerNorm(X + dropout(Y)): a residual connection, then LayerNorm."""

    def __init__(self, dropout, in_channels=0, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.dropout = nn.Dropout(dropout)
        self.ln = LayerNorm(in_channels=in_channels, epsilon=epsilon)

    def forward(self, X, Y):
        """Add Y to X and normalize; X, Y and the result (..., H)."""
        if not is_ours(self):
            return self.ln(self.dropout(Y) + X)
        return ops.add_norm(X, Y, **self.arguments(X),
                            grad_req=self.grad_reqs())

    def arguments(self, X):
        """What the operators have to know of it, but for `grad_reqs`."""
        return dict(values(self.ln, X), p=self.dropout._rate,
                    eps=self.ln._epsilon)

    def grad_reqs(self):
        """What gamma and beta want of their gradients."""
        return grad_reqs(self.ln.gamma, self.ln.beta)

    def add(self, X, Y):
        """X + dropout(Y): the residual connection alone."""
        return X + self.dropout(Y)


class TransformerEncoderBlock(nn.Block):
    """Self-attention and feed-forward network, each with its `AddNorm`.

    The 0.17 edition and the first call this class `EncoderBlock`.
    attention_dropout: that of the attention weights, `dropout` if None;
    activation_dropout: that within the network.
    causal=True: each token attends to itself and those before it alone.
    pre_norm=True normalizes what each of the two is given in place of what
    it is added to: X + dropout(f(LayerNorm(X))).
    """

    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, dropout,
                 use_bias=False, precision='fp32', activation='relu',
                 layer_norm_eps=1e-5, attention_dropout=None, pre_norm=False,
                 activation_dropout=0.0, causal=False, **kwargs):
        super().__init__(**kwargs)
        self.pre_norm = pre_norm
        if attention_dropout is None:
            attention_dropout = dropout
        self.attention = MultiHeadAttention(
            num_hiddens, num_heads, attention_dropout, use_bias, precision,
            in_units=num_hiddens, causal=causal)
        self.addnorm1 = AddNorm(dropout, num_hiddens, layer_norm_eps)
        self.ffn = PositionWiseFFN(ffn_num_hiddens, num_hiddens, precision,
                                   num_hiddens, activation,
                                   activation_dropout)
        self.addnorm2 = AddNorm(dropout, num_hiddens, layer_norm_eps)

    def forward(self, X, valid_lens):
        """Encode X (B, T, H), or (R, H) with `Rows` for valid_lens."""
        if isinstance(valid_lens, Rows):
            return self.encode_rows(X, valid_lens)
        if ((valid_lens is None or valid_lens.ndim == 1)
                and not self.pre_norm and is_ours(self)):
            B, T, H = X.shape
            rows = Rows.padded(B, T, valid_lens, X.ctx)
            return self.encode_rows(X.reshape(B * T, H), rows).reshape(B, T, H)
        if self.pre_norm:
            Y = self.addnorm1.ln(X)
            return self._feed(self.addnorm1.add(
                X, self.attention(Y, Y, Y, valid_lens)))
        return self._feed(self.addnorm1(
            X, self.attention(X, X, X, valid_lens)))

    def encode_rows(self, X, rows):
        """What `forward` gives of X (R, H), where `is_ours`."""
        if self.pre_norm:
            Y = self.addnorm1.ln(X)
            return self._feed(self.addnorm1.add(
                X, self.attention._among_rows(Y, rows)))
        return self.ffn.with_norm(
            self.attention.with_norm(X, rows, self.addnorm1), self.addnorm2)

    def _feed(self, Y):
        """The second half of the block: the network on each Y (..., H)."""
        if self.pre_norm:
            return self.addnorm2.add(Y, self.ffn(self.addnorm2.ln(Y)))
        return self.addnorm2(Y, self.ffn(Y))

    def encode_firsts(self, X, rows):
        """The first row of each sequence of X (R, H) alone, (B, H).

        What `forward` gives there, where `is_ours`.
        """
        firsts = rows.offsets[:-1]
        first_X = X.take(firsts, axis=0)
        if self.pre_norm:
            return self._feed(self.addnorm1.add(
                first_X, self.attention._among_rows(
                    self.addnorm1.ln(X), rows, firsts)))
        return self._feed(self.addnorm1(
            first_X, self.attention._among_rows(X, rows, firsts)))


EncoderBlock = TransformerEncoderBlock


class TransformerDecoderBlock(nn.Block):
    """Attention to what came before, to a text, and a feed-forward network.

    Each with its `AddNorm`. Arguments as for `TransformerEncoderBlock`.
    """

    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, dropout,
                 use_bias=False, precision='fp32', activation='relu',
                 layer_norm_eps=1e-5, attention_dropout=None,
                 activation_dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if attention_dropout is None:
            attention_dropout = dropout

        def attention():
            return MultiHeadAttention(
                num_hiddens, num_heads, attention_dropout, use_bias,
                precision, in_units=num_hiddens)

        def add_norm():
            return AddNorm(dropout, num_hiddens, layer_norm_eps)
        self.attention1, self.addnorm1 = attention(), add_norm()
        self.attention2, self.addnorm2 = attention(), add_norm()
        self.ffn = PositionWiseFFN(ffn_num_hiddens, num_hiddens, precision,
                                   num_hiddens, activation,
                                   activation_dropout)
        self.addnorm3 = add_norm()

    def forward(self, X, encoded_X, valid_lens, seen_lens, cache):
        """Decode X (B, T, H) with a text encoded_X (B, S, H) before it.

        valid_lens (B,): how many tokens of the text count, None: all.
        seen_lens (B, T): how many of all tokens so far each of X may look
        at, None: all. cache: a dict that keeps what was computed of the text
        and of the tokens before X; empty where X begins. Returns (B, T, H).
        """
        if 'text' not in cache:
            cache['text'] = self.attention2.by_head(encoded_X, encoded_X)
        new = self.attention1.by_head(X, X)
        if 'tokens' in cache:
            new = tuple(np.concatenate(both, axis=1)
                        for both in zip(cache['tokens'], new))
        cache['tokens'] = new
        Y = self.addnorm1(X, self.attention1.attend(X, *new, seen_lens))
        Z = self.addnorm2(Y, self.attention2.attend(Y, *cache['text'],
                                                    valid_lens))
        return self.addnorm3(Z, self.ffn(Z))


class Blocks(nn.Sequential):
    """The blocks of an encoder of `num_layers` layers.

    A block for each layer; or num_groups groups of inner_group_num blocks,
    each group that of as many layers one after another (Lan et al. 2020).
    arguments: those of `TransformerEncoderBlock`.
    """

    def __init__(self, num_layers=0, num_groups=None, inner_group_num=1,
                 *arguments, **kwargs):
        super().__init__(**kwargs)
        if num_groups is not None and num_groups > num_layers:
            raise ValueError(f'num_groups={num_groups} is more than the '
                             f'{num_layers} layers that there are: lower it')
        self._inner = inner_group_num
        for _ in range(inner_group_num * (num_groups or num_layers)):
            self.add(TransformerEncoderBlock(*arguments))
        self._groups = None
        if num_groups is not None:
            # Rounded as transformers does
            self._groups = [int(k / (num_layers / num_groups))
                            for k in range(num_layers)]

    @property
    def num_layers(self):
        """How many layers follow the embeddings."""
        return len(self if self._groups is None else self._groups)

    def up_to(self, layer):
        """The blocks up to `layer`, counted from 1, or back from -1: a list.

        One that several layers share is there several times.
        """
        count = self.num_layers
        if not -count - 1 <= layer <= count:
            raise ValueError(f'layer must lie between {-count - 1} and '
                             f'{count}, as there are {count} blocks behind '
                             f'the embeddings, which are 0, not {layer}')
        blks, count = list(self), layer % (count + 1)
        if self._groups is None:
            return blks[:count]
        return [blk for k in self._groups[:count]
                for blk in blks[k * self._inner:(k + 1) * self._inner]]


class PositionalEncoding(nn.Block):
    """Sinusoidal positions (Vaswani et al. 2017, 3.5), then dropout."""

    def __init__(self, num_hiddens, dropout, max_len=1000):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        angles = onp.arange(max_len).reshape(-1, 1) / onp.power(
            10000, onp.arange(0, num_hiddens, 2) / num_hiddens)
        P = onp.zeros((1, max_len, num_hiddens), dtype='float32')
        P[:, :, 0::2] = onp.sin(angles)
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
