"""The encoder of the book's chapter "Transformer".

B batch, T tokens, H hiddens, F feed-forward hiddens, R rows (see attention).
"""
import numpy as onp

from d2lbert.attention import MultiHeadAttention
from d2lbert.layers import Dense, LayerNorm, as_defined, ready
from d2lbert.machine.backend import nn, np


class PositionWiseFFN(nn.Block):
    """Two dense layers applied to every position: (..., H) to (..., H)."""

    def __init__(self, ffn_num_hiddens, ffn_num_outputs, precision='fp32',
                 **kwargs):
        super().__init__(**kwargs)
        self.dense1 = Dense(ffn_num_hiddens, activation='relu',
                            precision=precision)
        self.dense2 = Dense(ffn_num_outputs, precision=precision)

    def forward(self, X):
        """Map X (..., H) to (..., ffn_num_outputs)."""
        return self.dense2(self.dense1(X))


class AddNorm(nn.Block):
    """LayerNorm(X + dropout(Y)): a residual connection, then LayerNorm."""

    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.dropout = nn.Dropout(dropout)
        self.ln = LayerNorm()

    def forward(self, X, Y):
        """Add Y to X and normalize; X, Y and the result (..., H)."""
        if (ready(self.ln, X) and not self.dropout._active
                and as_defined(self.dropout)):
            return self.ln.add(X, Y, self.dropout._rate)
        return self.ln(self.dropout(Y) + X)


class TransformerEncoderBlock(nn.Block):
    """Self-attention and feed-forward network, each with its `AddNorm`.

    The 0.17 edition and the first call this class `EncoderBlock`.
    """

    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, dropout,
                 use_bias=False, precision='fp32', **kwargs):
        super().__init__(**kwargs)
        self.attention = MultiHeadAttention(
            num_hiddens, num_heads, dropout, use_bias, precision)
        self.addnorm1 = AddNorm(dropout)
        self.ffn = PositionWiseFFN(ffn_num_hiddens, num_hiddens, precision)
        self.addnorm2 = AddNorm(dropout)

    def forward(self, X, valid_lens):
        """Encode X (B, T, H), or (R, H) with `Rows` for valid_lens."""
        Y = self.addnorm1(X, self.attention(X, X, X, valid_lens))
        return self.addnorm2(Y, self.ffn(Y))


EncoderBlock = TransformerEncoderBlock


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
