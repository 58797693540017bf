"""The halves of an encoder's block, made of the operators for their parts.

parts: the module of those, `fused` or `plain`. Arguments as `ops` says;
`fused` has each half as one operator, too, for weights that stay in cache.
"""
__all__ = ['feed_forward', 'self_attention']


def self_attention(parts, X, weights, biases, gamma, beta, offsets, lens,
                   num_heads, weights_p=0, p=0, eps=1e-5, precision='fp32',
                   grad_req=('add',) * 10, length=None, causal=False):
    """LayerNorm(X + dropout(Wo attention(X) + bo))."""
    of_weights, of_biases = grad_req[:4], grad_req[4:-2]
    QKV = parts.joined_dense(X, weights[:3], biases[:3], precision,
                             of_weights[:3] + of_biases[:3])
    Y = parts.attention_qkv(QKV, offsets, lens, num_heads, weights_p,
                            precision, length, causal)
    Y = parts.dense(Y, weights[3], *biases[3:], precision=precision,
                    grad_req=of_weights[3:] + of_biases[3:])
    return parts.add_norm(X, Y, gamma, beta, p, eps, grad_req[-2:])


def feed_forward(parts, X, weights, biases, gamma, beta, act, p=0, eps=1e-5,
                 precision='fp32', grad_req=('add',) * 6):
    """LayerNorm(X + dropout(W2 act(W1 X + b1) + b2))."""
    Y = parts.dense(X, weights[0], biases[0], None, act, precision,
                    grad_req[:2])
    Y = parts.dense(Y, weights[1], biases[1], precision=precision,
                    grad_req=grad_req[2:4])
    return parts.add_norm(X, Y, gamma, beta, p, eps, grad_req[4:])
