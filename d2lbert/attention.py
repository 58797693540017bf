"""Attention, as the book's chapter "Attention Mechanisms" defines it.

B batch, T tokens, Q queries, K keys, H hiddens, N heads, R rows: the tokens of
all sequences one after another, with or without their padding.
"""
import contextlib
import math

from d2lbert.kernels import ops
from d2lbert.machine.backend import nn, np, npx
from d2lbert.nn.layers import Dense, grad_reqs, is_ours, values
from d2lbert.nn.packed import Rows


def masked_softmax(X, valid_lens):
    """Softmax over the last axis, blind to padding.

    X (A, Q, K) float32; valid_lens None, (A,) or (A, Q): how many leading
    keys count. Returns an array like X. A length of zero gives all keys equal
    weight, as in the book, and never NaN.
    """
    if valid_lens is None:
        return npx.softmax(X)
    if valid_lens.ndim == 1:
        valid_lens = valid_lens.repeat(X.shape[1])
    # -1e6 rather than -inf: a row without a valid key must not become NaN
    rows = npx.sequence_mask(X.reshape(-1, X.shape[-1]),
                             valid_lens.reshape(-1).astype(X.dtype), True,
                             value=-1e6, axis=1)
    return npx.softmax(rows).reshape(X.shape)


class DotProductAttention(nn.Block):
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1).

    attention_weights: the probabilities of the last call, (A, Q, K), before
    dropout; None before the first call, and within a `MultiHeadAttention`
    unless `keep_attention` asks to have them kept.
    """

    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.dropout = nn.Dropout(dropout)
        self.keeps_weights, self.attention_weights = True, None

    def forward(self, queries, keys, values, valid_lens=None):
        """Weigh values (A, K, D) by softmax(queries keysᵀ / √d): (A, Q, D)."""
        scores = npx.batch_dot(queries, keys, transpose_b=True)
        weights = masked_softmax(scores / math.sqrt(queries.shape[-1]),
                                 valid_lens)            # (A, Q, K)
        self.attention_weights = weights if self.keeps_weights else None
        return npx.batch_dot(self.dropout(weights), values)


class MultiHeadAttention(nn.Block):
    """Multi-head attention (Vaswani et al. 2017, section 3.2.2).

    causal=True: query t attends to keys 0 to t, of the valid ones, alone.
    """

    def __init__(self, num_hiddens, num_heads, dropout, use_bias=False,
                 precision='fp32', in_units=0, causal=False, **kwargs):
        super().__init__(**kwargs)
        if num_heads < 1 or num_hiddens % num_heads:
            raise ValueError(
                f'{num_heads} heads do not divide {num_hiddens} hiddens: '
                'choose num_hiddens as a multiple of num_heads')
        self.num_heads, self._precision = num_heads, precision
        self._causal = causal
        self.attention = DotProductAttention(dropout)
        self.attention.keeps_weights = False

        def linear(in_units):
            return Dense(num_hiddens, use_bias=use_bias, precision=precision,
                         in_units=in_units)
        self.W_q, self.W_k = linear(in_units), linear(in_units)
        self.W_v, self.W_o = linear(in_units), linear(num_hiddens)

    @property
    def works_on_rows(self):
        """Whether nobody wants the weights, and its layers only multiply."""
        return not self.attention.keeps_weights and all(
            type(layer) is Dense and layer.act is None
            and not layer._flatten
            for layer in (self.W_q, self.W_k, self.W_v, self.W_o))

    def forward(self, queries, keys, values, valid_lens):
        """Attend from queries (B, Q, H) to keys and values (B, K, H).

        valid_lens None, (B,) or (B, Q) says how many keys count. Returns
        (B, Q, H).
        """
        if (queries is keys and keys is values and is_ours(self)
                and (valid_lens is None or valid_lens.ndim == 1)):
            B, T, H = queries.shape
            rows = Rows.padded(B, T, valid_lens, queries.ctx)
            return self._among_rows(queries.reshape(B * T, H),
                                    rows).reshape(B, T, -1)
        if self._causal:
            valid_lens = _causal_lens(*queries.shape[:2], valid_lens,
                                      queries.ctx)
        queries = transpose_qkv(self.W_q(queries), self.num_heads)
        return self._attend(queries, *self.by_head(keys, values), valid_lens)

    def by_head(self, keys, values):
        """Keys and values (B, K, H) as `attend` takes them.

        Two of (B*N, K, H/N), which may be kept for more queries.
        """
        return (transpose_qkv(self.W_k(keys), self.num_heads),
                transpose_qkv(self.W_v(values), self.num_heads))

    def attend(self, queries, keys, values, valid_lens):
        """Attend from queries (B, Q, H) to what `by_head` gave: (B, Q, H)."""
        return self._attend(transpose_qkv(self.W_q(queries), self.num_heads),
                            keys, values, valid_lens)

    def _attend(self, queries, keys, values, valid_lens):
        output = self.attention(queries, keys, values,
                                self._by_head(valid_lens))  # (B*N, Q, H/N)
        return self.W_o(transpose_output(output, self.num_heads))

    def _by_head(self, valid_lens):
        if valid_lens is None:
            return None
        return valid_lens.repeat(self.num_heads, axis=0)

    def _among_rows(self, X, rows, wanted=None):
        """Self-attention among the rows of X (R, H); returns (R, H).

        wanted (W,) int32: the rows that alone are returned, (W, H).
        """
        QKV = self._project(X)
        self.attention.attention_weights = None
        Y = ops.attention_qkv(
            QKV, rows.offsets, rows.lens, num_heads=self.num_heads,
            p=self.attention.dropout._rate, precision=self._precision,
            length=rows.length, causal=self._causal)
        return self.W_o(Y if wanted is None else Y.take(wanted, axis=0))

    def with_norm(self, X, rows, addnorm):
        """addnorm(X, self-attention of X) for X (R, H), both `is_ours`."""
        self.attention.attention_weights = None
        layers = self.W_q, self.W_k, self.W_v, self.W_o
        return ops.self_attention(
            X, *self._parameters(X, layers), **addnorm.arguments(X),
            offsets=rows.offsets, lens=rows.lens, num_heads=self.num_heads,
            weights_p=self.attention.dropout._rate,
            precision=self._precision, length=rows.length,
            causal=self._causal,
            grad_req=self._requests(layers) + addnorm.grad_reqs())

    def _parameters(self, X, layers):
        """Weights and biases of some layers: two tuples; without bias: ()."""
        parameters = [*zip(*(values(layer, X).values() for layer in layers))]
        return parameters if len(parameters) == 2 else [*parameters, ()]

    def _requests(self, layers):
        """What their weights, then their biases, want of their gradients."""
        return sum(zip(*(grad_reqs(layer.weight, layer.bias)
                         for layer in layers)), ())

    def _project(self, X):
        """Queries, keys and values side by side: (R, H) to (R, 3H)."""
        # One product reads X once
        layers = self.W_q, self.W_k, self.W_v
        return ops.joined_dense(X, *self._parameters(X, layers),
                                precision=self._precision,
                                grad_req=self._requests(layers))


def _causal_lens(B, Q, valid_lens, ctx):
    """The number of keys (B, Q) that each query attends to.

    valid_lens: None, (B,) or (B, Q), how many keys count.
    """
    lens = np.arange(1, Q + 1, ctx=ctx).reshape(1, Q)
    if valid_lens is None:
        return np.repeat(lens, B, axis=0)
    return np.minimum(lens, valid_lens.astype(lens.dtype).reshape(B, -1))


@contextlib.contextmanager
def keep_attention(net):
    """Let each attention in `net` keep its weights meanwhile.

    `attention.attention_weights` of each `MultiHeadAttention` are then those
    of its last call, (B*N, Q, K) before dropout, in training, too. Otherwise
    nobody stores them: they are many.
    """
    found = []

    def visit(block):
        if isinstance(block, DotProductAttention):
            found.append((block, block.keeps_weights))
            block.keeps_weights = True
    net.apply(visit)
    try:
        yield net
    finally:
        for block, before in found:
            block.keeps_weights = before


def transpose_qkv(X, num_heads):
    """Split heads: (B, T, H) to (B*N, T, H/N)."""
    X = X.reshape(X.shape[0], X.shape[1], num_heads, -1)
    # swapaxes is five times faster than transpose on a CPU
    X = X.swapaxes(1, 2)                                # (B, N, T, H/N)
    return X.reshape(-1, X.shape[2], X.shape[3])


def transpose_output(X, num_heads):
    """Undo `transpose_qkv`, join heads: (B*N, T, D) to (B, T, N*D)."""
    X = X.reshape(-1, num_heads, X.shape[1], X.shape[2])
    X = X.swapaxes(1, 2)                                # (B, T, N, D)
    return X.reshape(X.shape[0], X.shape[1], -1)
