"""The operators: each has one name and two implementations.

`fused` in C++ serves float32 arrays on a CPU, where the compiled library is
there; `plain`, of MXNet's own operators, all others: GPUs, other types,
symbols, machines without a compiler. The values are the same to rounding.
Nobody else asks which of the two it is.

Matrices are float32, indices, lengths and offsets int32; precision is
'fp32', or 'bf16' for products of operands rounded to bfloat16 and summed in
float32, which only `fused` has. grad_req is that of all parameters, or a
tuple with one for each: 'write' and 'null' vouch that nothing accumulates in
it, which saves a copy of its gradient. R rows, H hiddens, N heads, V
vocabulary, B sequences.
"""
from d2lbert import kernels
from d2lbert.kernels import fused, plain

__all__ = ['activation', 'adam', 'add_norm', 'attention_qkv',
           'check_precision', 'dense', 'divergence', 'embed', 'feed_forward',
           'joined_dense', 'layer_norm', 'self_attention', 'softmax_ce',
           'take_rows', 'vocab_ce']


def _for(*arrays):
    return fused if kernels.enabled(*arrays) else plain


def dense(X, W, b=None, units=None, act='none', precision='fp32',
          grad_req='add'):
    """act(X W^T + b), act none, relu, tanh, gelu or gelu_new.

    X (..., K), W (units, K), b (units,) or None; returns (..., units).
    units may stay None unless W's shape is still to be inferred.
    """
    return _for(X, W).dense(X, W, b, units, act, precision, grad_req)


def joined_dense(X, weights, biases=(), precision='fp32', grad_req='add'):
    """What `dense` gives for each of several weights, side by side.

    X (..., K), weights (units, K) each, biases (units,) each, or none;
    grad_req: of all of them, or a tuple, of the weights first. Returns
    (..., all units).
    """
    return _for(X, *weights).joined_dense(X, weights, biases, precision,
                                          grad_req)


def activation(X, act):
    """act(X), each number by itself, apart from a product: X like `dense`'s.
    """
    return plain.activation(X, act)


def layer_norm(X, gamma, beta, eps=1e-5, grad_req='add'):
    """LayerNorm(X) over the last axis; X (..., H), gamma, beta (H,)."""
    return _for(X, gamma).layer_norm(X, gamma, beta, eps, grad_req)


def add_norm(X, Y, gamma, beta, p=0, eps=1e-5, grad_req='add'):
    """LayerNorm(X + dropout(Y)) over the last axis.

    X, Y (..., H); gamma, beta (H,); p: dropout; returns (..., H).
    """
    return _for(X, Y, gamma).add_norm(X, Y, gamma, beta, p, eps, grad_req)


def attention_qkv(QKV, offsets, lens, num_heads, p=0, precision='fp32',
                  length=None, causal=False):
    """Softmax attention within sequences that lie one after the other.

    QKV (R, 3H), queries, keys and values side by side; offsets (B + 1,):
    sequence b has rows offsets[b]:offsets[b + 1], all of them queries, the
    first lens[b] (B,) of them keys; p: dropout of the weights. Returns
    (R, H), heads joined, zeros where there are no keys. length: the number
    of rows of each sequence, where all have the same. causal: a query
    attends to no key after its own place.
    """
    return _for(QKV).attention_qkv(QKV, offsets, lens, num_heads, p,
                                   precision, length, causal)


def self_attention(X, weights, biases, gamma, beta, offsets, lens, num_heads,
                   weights_p=0, p=0, eps=1e-5, precision='fp32',
                   grad_req=('add',) * 10, length=None, causal=False):
    """LayerNorm(X + dropout(Wo attention(X) + bo)): half an encoder's block.

    X (R, H); weights (H, H) and biases (H,) of queries, keys, values and
    outcome, or no biases: (); gamma, beta (H,); grad_req: a tuple of all of
    them, in this order; weights_p, p: dropout of attention's weights and of
    what is added; the rest as for `attention_qkv`. Returns (R, H).
    """
    return _for(X, *weights).self_attention(
        X, weights, biases, gamma, beta, offsets, lens, num_heads, weights_p,
        p, eps, precision, grad_req, length, causal)


def feed_forward(X, weights, biases, gamma, beta, act, p=0, eps=1e-5,
                 precision='fp32', grad_req=('add',) * 6):
    """LayerNorm(X + dropout(W2 act(W1 X + b1) + b2)): the block's other half.

    X (R, H); weights (F, H) and (H, F), biases (F,) and (H,), gamma, beta
    (H,); grad_req: a tuple of W1's, b1's, W2's, b2's, gamma's and beta's;
    act, p as for `dense` and `add_norm`. Returns (R, H).
    """
    return _for(X, *weights).feed_forward(X, weights, biases, gamma, beta,
                                          act, p, eps, precision, grad_req)


def embed(tokens, segments, positions, W_tok, W_seg, W_pos, grad_req='add'):
    """W_tok[tokens] + W_seg[segments] + W_pos[positions].

    tokens, segments, positions (...) int32, tables (rows, H); returns
    (..., H). Indices out of range are clipped: check them before.
    """
    return _for(tokens, W_tok).embed(tokens, segments, positions, W_tok,
                                     W_seg, W_pos, grad_req)


def take_rows(X, *lists):
    """Rows of X (R, H) at each list of places (S,): as many arrays (S, H).

    What many uses of X would cost in its gradient, this costs once. Places
    out of range are clipped: check them before.
    """
    return _for(X).take_rows(X, *lists)


def vocab_ce(X, W, b, labels, weights, precision='fp32', grad_req='add'):
    """Cross-entropy of X W^T + b, summed over rows by their weights: (1,).

    X (M, H), W (V, H), b (V,), labels (M,) int32, weights (M,).
    """
    return _for(X, W).vocab_ce(X, W, b, labels, weights,
                               precision=precision, grad_req=grad_req)[0]


def softmax_ce(logits, labels, weights):
    """Cross-entropy of each row of logits (M, V) by its weight: (M,).

    labels (M,) int32, weights (M,).
    """
    return _for(logits).softmax_ce(logits, labels, weights)


def divergence(scores, taught, temperature):
    """KL(softmax(taught / T) || softmax(scores / T)) of each row: (M,).

    scores, taught (M, V), of which only the first get a gradient.
    """
    return _for(scores, taught).divergence(scores, taught, temperature)


def adam(weights, grads, means, variances, rates, decays, beta1, beta2,
         epsilon, rescale=1.0, clip=0.0, ahead=False):
    """Change weights and both means, in place, by a step of Adam.

    Lists, an entry for each parameter, of arrays of MXNet's older type: the
    weight, its gradient, and the running means of gradients and of their
    squares, all of one shape; rates: learning rates, with the correction of
    bias in them; decays: the share that each weight loses. Gradients count
    `rescale` times, and where the norm of all of them together is then above
    `clip`, they are scaled down to it; 0 is no limit. Waits for what reads
    the weights, unless `ahead` says that no prediction is among it.
    """
    _for(*weights).adam(weights, grads, means, variances, rates, decays,
                        beta1, beta2, epsilon, rescale, clip, ahead)


def check_precision(precision):
    """Refuse a precision that is unknown, or that this machine lacks."""
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
