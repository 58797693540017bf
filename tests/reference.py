"""The chapter's model in float64 NumPy with loops, an oracle for the tests.

Plain on purpose: nothing here shares code or tricks with the package.
Parameters come as a dictionary under the names of a .params file.
"""
import math

import numpy as np


def parameters(net):
    """The parameters of a Gluon block as a dictionary of float64 arrays."""
    return {name: param.data(param.list_ctx()[0]).asnumpy().astype('float64')
            for name, param in net._collect_params_with_prefix().items()}


def check_same(net, other):
    """Assert that two blocks have the same parameters, to the bit."""
    ours, theirs = parameters(net), parameters(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert np.array_equal(ours[name], theirs[name]), name


def under(params, prefix):
    """The part of `params` below `prefix`, without it."""
    return {name[len(prefix) + 1:]: value for name, value in params.items()
            if name.startswith(f'{prefix}.')}


def masked_softmax(X, valid_lens):
    """Softmax over the first keys of X (A, Q, K); a length of 0 is even."""
    A, Q, K = X.shape
    Y = np.zeros((A, Q, K))
    for a in range(A):
        for q in range(Q):
            if valid_lens is None:
                n = K
            else:
                n = int(np.asarray(valid_lens)[(a, q)[:np.ndim(valid_lens)]])
            if n == 0:
                Y[a, q] = 1 / K
                continue
            exps = np.exp(X[a, q, :n] - X[a, q, :n].max())
            Y[a, q, :n] = exps / exps.sum()
    return Y


def attention(queries, keys, values, valid_lens):
    """Scaled dot-product attention: weights (A, Q, K), output (A, Q, D)."""
    scores = np.array([[[q @ k for k in K] for q in Q]
                       for Q, K in zip(queries, keys)])
    weights = masked_softmax(scores / math.sqrt(queries.shape[-1]),
                             valid_lens)
    return weights, np.array([w @ V for w, V in zip(weights, values)])


def dense(params, X):
    return X @ params['weight'].T + params.get('bias', 0)


def multi_head(params, num_heads, queries, keys, values, valid_lens):
    """Multi-head attention, head by head: (B, Q, H)."""
    Q, K, V = (dense(under(params, name), X) for name, X in
               (('W_q', queries), ('W_k', keys), ('W_v', values)))
    width = Q.shape[-1] // num_heads
    heads = [attention(*(X[..., n * width:(n + 1) * width]
                         for X in (Q, K, V)), valid_lens)[1]
             for n in range(num_heads)]
    return dense(under(params, 'W_o'), np.concatenate(heads, axis=-1))


def layer_norm(params, X, eps=1e-5):
    Y = np.empty(X.shape)
    for row in np.ndindex(*X.shape[:-1]):
        mean = sum(X[row]) / X.shape[-1]
        variance = sum((X[row] - mean) ** 2) / X.shape[-1]
        Y[row] = (X[row] - mean) / math.sqrt(variance + eps)
    return Y * params['gamma'] + params['beta']


def gelu(X):
    return X * (1 + np.vectorize(math.erf)(X / math.sqrt(2))) / 2


def gelu_new(X):
    """Hendrycks and Gimpel 2016: GELU by a tanh."""
    return X * (1 + np.tanh(math.sqrt(2 / math.pi)
                            * (X + 0.044715 * X ** 3))) / 2


def relu(X):
    return np.maximum(X, 0)


ACTS = {'relu': relu, 'gelu': gelu, 'gelu_new': gelu_new}


def ffn(params, X, act=relu):
    return dense(under(params, 'dense2'),
                 act(dense(under(params, 'dense1'), X)))


def encoder_block(params, num_heads, X, valid_lens, act=relu, eps=1e-5,
                  pre_norm=False):
    if pre_norm:
        Y = layer_norm(under(params, 'addnorm1.ln'), X, eps)
        X = X + multi_head(under(params, 'attention'), num_heads, Y, Y, Y,
                           valid_lens)
        Y = layer_norm(under(params, 'addnorm2.ln'), X, eps)
        return X + ffn(under(params, 'ffn'), Y, act)
    attended = multi_head(under(params, 'attention'), num_heads, X, X, X,
                          valid_lens)
    Y = layer_norm(under(params, 'addnorm1.ln'), X + attended, eps)
    return layer_norm(under(params, 'addnorm2.ln'),
                      Y + ffn(under(params, 'ffn'), Y, act), eps)


def sinusoids(num_tokens, num_hiddens):
    """The positions of Vaswani et al. 2017, number by number: (T, H)."""
    P = np.empty((num_tokens, num_hiddens))
    for i, j in np.ndindex(*P.shape):
        angle = i / 10000 ** ((j - j % 2) / num_hiddens)
        P[i, j] = math.cos(angle) if j % 2 else math.sin(angle)
    return P


def bert(params, num_heads, tokens, segments, valid_lens, pred_positions,
         act=relu, eps=1e-5, num_blocks=None):
    """encoded_X (B, T, H), mlm_Y_hat (B, P, V), nsp_Y_hat (B, 2).

    The edition is known by the parameters: the first has no `hidden`, and
    the published model a norm behind its embeddings; one that normalizes
    first has a norm behind its last block. num_blocks: how many
    of them, where not all.
    """
    first_edition = 'hidden.weight' not in params
    tokens = np.asarray(tokens, int)
    T = tokens.shape[1]
    X = (params['encoder.token_embedding.weight'][tokens]
         + params['encoder.segment_embedding.weight'][
             np.asarray(segments, int)])
    X = X + (sinusoids(T, X.shape[-1]) if first_edition
             else params['encoder.pos_embedding'][0, :T])
    if 'encoder.embedding_norm.gamma' in params:
        X = layer_norm(under(params, 'encoder.embedding_norm'), X, eps)
    if 'encoder.projection.weight' in params:
        X = dense(under(params, 'encoder.projection'), X)
    i = 0
    while under(params, f'encoder.blks.{i}') and i != num_blocks:
        X = encoder_block(under(params, f'encoder.blks.{i}'), num_heads, X,
                          valid_lens, act, eps,
                          'encoder.norm.gamma' in params)
        i += 1
    if 'encoder.norm.gamma' in params:
        X = layer_norm(under(params, 'encoder.norm'), X, eps)
    masked_X = np.array([x[p] for x, p in
                         zip(X, np.asarray(pred_positions, int))])
    hidden = act(dense(under(params, 'mlm.mlp.0'), masked_X))
    mlm_Y_hat = dense(under(params, 'mlm.mlp.2'),
                      layer_norm(under(params, 'mlm.mlp.1'), hidden, eps))
    hidden, output = (('nsp.mlp.0', 'nsp.mlp.1') if first_edition
                      else ('hidden', 'nsp.output'))
    nsp_Y_hat = dense(under(params, output),
                      np.tanh(dense(under(params, hidden), X[:, 0])))
    return X, mlm_Y_hat, nsp_Y_hat


def cross_entropy(scores, label):
    return math.log(sum(np.exp(scores - scores.max()))) + (
        scores.max() - scores[int(label)])


def losses(params, num_heads, batch):
    """The MLM and NSP losses of a batch of seven host arrays."""
    tokens, segments, valid_lens, positions, weights, labels, nsp_y = batch
    _, mlm_Y_hat, nsp_Y_hat = bert(params, num_heads, tokens, segments,
                                   valid_lens, positions)
    mlm_l = sum(w * cross_entropy(scores, label)
                for row in zip(mlm_Y_hat, labels, weights)
                for scores, label, w in zip(*row) if w)
    nsp_l = [cross_entropy(*pair) for pair in zip(nsp_Y_hat, nsp_y)]
    return mlm_l / np.sum(weights), sum(nsp_l) / len(nsp_l)
