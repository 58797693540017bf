"""Attention, as in the book's chapter "Attention Mechanisms".

Letters in shapes: B sequences of a batch, N heads, A = B*N, T tokens of a
sequence, Q queries, K keys, H hidden units, d the width of a query and of a
key, D the width of a value.
"""
import contextlib
import math

from d2lbert.machine.backend import nn, np, npx
from d2lbert.nn import packed
from d2lbert.nn.layers import Dense
from d2lbert.nn.variant import Variant


def masked_softmax(X, valid_lens):
    """Softmax over the last axis, with weight 0 for padding: (A, Q, K).

    X (A, Q, K) float32; valid_lens: None, (A,) or (A, Q), the number of keys
    before the padding. If a length is zero or negative, all keys get equal
    weight, as in the book.
    """
    if valid_lens is None:
        return npx.softmax(X)
    if valid_lens.ndim == 1:
        valid_lens = valid_lens.repeat(X.shape[1])
    # Clipped, since MXNet would write outside of X for a length below zero
    valid_lens = valid_lens.reshape(-1).astype(X.dtype).clip(0, X.shape[-1])
    # -1e6 rather than -inf: weights must not be NaN if a length is zero
    scores = npx.sequence_mask(X.reshape(-1, X.shape[-1]), valid_lens,
                               use_sequence_length=True, value=-1e6, axis=1)
    return npx.softmax(scores).reshape(X.shape)


class DotProductAttention(nn.Block):
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1).

    attention_weights: the weights of the last call, (A, Q, K), before dropout;
    None if keeps_weights is False, as in a `MultiHeadAttention` outside of
    `keep_attention`.
    """

    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.dropout = nn.Dropout(dropout)
        self.keeps_weights, self.attention_weights = True, None

    def forward(self, queries, keys, values, valid_lens=None):
        """Return softmax(queries keysᵀ / √d) values, (A, Q, D).

        queries (A, Q, d), keys (A, K, d), values (A, K, D); valid_lens as
        for `masked_softmax`.
        """
        scores = npx.batch_dot(queries, keys, transpose_b=True)
        weights = masked_softmax(scores / math.sqrt(queries.shape[-1]),
                                 valid_lens)            # (A, Q, K)
        self.attention_weights = weights if self.keeps_weights else None
        return npx.batch_dot(self.dropout(weights), values)


class MultiHeadAttention(packed.Packable):
    """Multi-head attention (Vaswani et al. 2017, section 3.2.2).

    use_bias: the four projections have biases. variant: a `Variant`; only its
    fields precision and causal are used. in_units: the width of queries, keys
    and values; with 0, the first call sets it.
    """

    packed_forward = packed.padded_attention

    def __init__(self, num_hiddens, num_heads, dropout, use_bias=False,
                 variant=None, in_units=0, **kwargs):
        variant = Variant.of(variant, kwargs)
        super().__init__(**kwargs)
        if num_heads < 1 or num_hiddens % num_heads:
            raise ValueError(
                f'{num_heads} heads do not divide {num_hiddens} hiddens: '
                'num_heads must be at least 1, and num_hiddens a multiple '
                'of it')
        self.num_heads, self.precision = num_heads, variant.precision
        self.causal = variant.causal
        self.attention = DotProductAttention(dropout)
        self.attention.keeps_weights = False

        def projection(input_width):
            return Dense(num_hiddens, use_bias=use_bias,
                         precision=variant.precision, in_units=input_width)
        self.W_q, self.W_k = projection(in_units), projection(in_units)
        self.W_v, self.W_o = projection(in_units), projection(num_hiddens)

    @property
    def packable(self):
        """True if the operators of `nn.packed` can compute this block.

        They store no attention weights, and need linear projections that all
        have a bias or all have none.
        """
        layers = self.W_q, self.W_k, self.W_v, self.W_o
        return not self.attention.keeps_weights and all(
            type(layer) is Dense and layer.act is None
            and not layer._flatten
            and (layer.bias is None) == (self.W_q.bias is None)
            for layer in layers)

    def forward(self, queries, keys, values, valid_lens):
        """Attend from queries (B, Q, H) to keys and values (B, K, H).

        valid_lens: None, (B,) or (B, Q), the number of keys before the
        padding. Returns (B, Q, H).
        """
        if self.causal:
            valid_lens = _causal_lens(queries, valid_lens)
        return self._attend_projected(
            self.project_q(queries), *self.project_kv(keys, values),
            valid_lens)

    def attend(self, queries, keys, values, valid_lens):
        """Like `forward`, with keys and values (B*N, K, H/N) by `project_kv`.

        Ignores `causal`.
        """
        return self._attend_projected(self.project_q(queries), keys, values,
                                      valid_lens)

    def project_q(self, queries):
        """Project queries (B, Q, H) and split heads: (B*N, Q, H/N)."""
        return transpose_qkv(self.W_q(queries), self.num_heads)

    def project_kv(self, keys, values):
        """Project keys and values (B, K, H): two arrays (B*N, K, H/N)."""
        return (transpose_qkv(self.W_k(keys), self.num_heads),
                transpose_qkv(self.W_v(values), self.num_heads))

    def _attend_projected(self, queries, keys, values, valid_lens):
        """Attend from (B*N, Q, H/N) to (B*N, K, H/N): (B, Q, H)."""
        if valid_lens is not None:
            valid_lens = valid_lens.repeat(self.num_heads, axis=0)
        output = self.attention(queries, keys, values,
                                valid_lens)             # (B*N, Q, H/N)
        return self.W_o(transpose_output(output, self.num_heads))


def _causal_lens(queries, valid_lens):
    """Limit valid_lens to a query's own key and earlier keys: (B, Q)."""
    B, Q = queries.shape[:2]
    lens = np.arange(1, Q + 1, ctx=queries.ctx).reshape(1, Q)
    if valid_lens is None:
        return np.repeat(lens, B, axis=0)
    return np.minimum(lens, valid_lens.astype(lens.dtype).reshape(B, -1))


@contextlib.contextmanager
def keep_attention(net):
    """Store the attention weights when `net` is called in this context.

    For each `MultiHeadAttention`, `attention.attention_weights` then has the
    weights of its last call, (B*N, Q, K), before dropout. Without this
    context, they are not stored, since they take much memory.
    """
    old_settings = {}       # {block: its old keeps_weights}

    def keep_weights_of(block):
        if isinstance(block, DotProductAttention):
            # `apply` visits a block twice if it is the child of two blocks
            old_settings.setdefault(block, block.keeps_weights)
            block.keeps_weights = True
    net.apply(keep_weights_of)
    try:
        yield net
    finally:
        for block, old_value in old_settings.items():
            block.keeps_weights = old_value


def transpose_qkv(X, num_heads):
    """Split heads: (B, T, H) to (B*N, T, H/N)."""
    X = X.reshape(X.shape[0], X.shape[1], num_heads, -1)
    # swapaxes is five times faster than transpose on a CPU
    X = X.swapaxes(1, 2)                                # (B, N, T, H/N)
    return X.reshape(-1, X.shape[2], X.shape[3])


def transpose_output(X, num_heads):
    """Join heads, undoing `transpose_qkv`: (B*N, T, H/N) to (B, T, H)."""
    X = X.reshape(-1, num_heads, X.shape[1], X.shape[2])
    X = X.swapaxes(1, 2)                                # (B, T, N, H/N)
    return X.reshape(X.shape[0], X.shape[1], -1)
