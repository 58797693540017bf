"""The initial weights of nets that are pretrained.

Token vectors may begin with the topics of a text: by latent semantic
analysis, which words share paragraphs.
"""
import math

import numpy as onp

from d2lbert.attention import MultiHeadAttention
from d2lbert.bert import BERTEncoder
from d2lbert.machine.backend import init, mx, np
from d2lbert.transformer import PositionWiseFFN

# Words to analyze; of a longer text, paragraphs spread over all of it
MOST_WORDS = 1 << 22

# Additional columns and passes over the matrix that make the randomized
# decomposition precise (Halko et al. 2011)
MORE, PASSES = 16, 3


def topics(text, size):
    """Latent semantic analysis of a text: (tokens, vectors).

    text: a `NumberedText`. tokens (n,) int64: all known tokens that occur in
    some paragraphs and not in all. vectors (n, size) float32, of length 1:
    tokens of paragraphs on the same topic have similar vectors. Trailing
    columns are zero if the text has too few words or paragraphs.
    Deerwester et al. 1990, "Indexing by Latent Semantic Analysis".
    """
    paragraphs, tokens, weights = _weighted(text)
    there, columns = onp.unique(tokens, return_inverse=True)
    wide = min(size, len(there), len(onp.unique(paragraphs)))
    if not wide:
        return there, onp.zeros((0, size), 'float32')
    begins = onp.searchsorted(paragraphs, onp.arange(paragraphs[-1] + 2))
    matrix = mx.nd.sparse.csr_matrix((weights, columns, begins), shape=(
        len(begins) - 1, len(there)))
    basis = onp.random.RandomState(0).normal(
        size=(len(there), wide + MORE)).astype('float32')
    for _ in range(PASSES):
        basis = _orthogonal(mx.nd.sparse.dot(matrix, mx.nd.sparse.dot(
            matrix, mx.nd.array(basis)), transpose_a=True).asnumpy())
    # Rotated so that the first columns have the largest singular values
    turned = basis @ _principal(mx.nd.sparse.dot(
        matrix, mx.nd.array(basis)).asnumpy())[1][:, :wide]
    lengths = onp.linalg.norm(turned, axis=1, keepdims=True)
    kept = lengths[:, 0] > 1e-6
    vectors = onp.zeros((int(kept.sum()), size), 'float32')
    vectors[:, :wide] = turned[kept] / lengths[kept]
    return there[kept], vectors


def _weighted(text):
    """TF-IDF weights of tokens in paragraphs, sorted by paragraph.

    Returns (paragraphs, tokens, weights), without weights of 0. A weight is
    the logarithm of the frequency times that of the inverse paragraph
    frequency; the weights of each paragraph are scaled to length 1.
    """
    words = text.sentences[text.paragraphs]     # first of each paragraph
    chosen = onp.arange(text.num_paragraphs)
    if text.num_words > MOST_WORDS:
        # Spread over the text, with MOST_WORDS words on average
        chosen = onp.unique(onp.linspace(
            0, len(chosen) - 1, max(1, len(chosen) * MOST_WORDS
                                    // text.num_words)).astype('int64'))
    types = onp.concatenate([text.read(begin, end) for begin, end in zip(
        words[chosen].tolist(), words[chosen + 1].tolist())])
    V, num_chosen = len(text.vocab), len(chosen)
    places = onp.repeat(onp.arange(num_chosen), onp.diff(words)[chosen])
    pairs, counts = onp.unique(places * V + text.numbers[types],
                               return_counts=True)
    paragraphs, tokens = onp.divmod(pairs, V)
    rare = onp.log(num_chosen / onp.bincount(tokens, minlength=V).clip(1))
    rare[text.vocab.unk] = 0
    weights = (1 + onp.log(counts)) * rare[tokens]
    lengths = onp.sqrt(onp.bincount(paragraphs, weights ** 2, num_chosen))
    kept = weights > 0
    paragraphs, tokens = paragraphs[kept], tokens[kept]
    return paragraphs, tokens, (
        weights[kept] / lengths[paragraphs]).astype('float32')


def _principal(matrix):
    """Eigenvalues and eigenvectors of matrixᵀ matrix, falling."""
    values, vectors = onp.linalg.eigh((matrix.T @ matrix).astype('float64'))
    return values[::-1], vectors[:, ::-1].astype('float32')


def _orthogonal(matrix):
    """Orthonormal columns that span the same space, float32."""
    values, vectors = _principal(matrix)
    kept = values > values[0] * 1e-10
    return (matrix @ vectors[:, kept]
            / onp.sqrt(values[kept])).astype('float32')


#: Standard deviation of the published weights (Devlin et al. 2018), and the
#: number of hiddens that it was chosen for.
SPREAD, PUBLISHED_HIDDENS = 0.02, 768

#: The initial attention score of a token with itself, with `mimetic`. In a
#: text of 64 tokens, other tokens of the same word then get about a tenth of
#: the attention.
SELF_SCORE = 3.5

#: The share of the topic in the initial vector of a token, with `topical`.
#: The rest is random, so that no two vectors are equal.
TOPIC = 0.97


def initialize(net, how, devices, text=None):
    """Give all parameters of `net` initial weights on every device.

    how: one of

    - 'xavier': Glorot and Bengio 2010, as on the pages;
    - 'normal': N(0, 0.02²), as published;
    - 'mimetic': tokens attend to similar tokens from the first step on, as
      in trained nets (Trockman and Kolter 2023, "Mimetic Initialization of
      Self-Attention Layers"). Keys equal queries. Segment and position
      embeddings have half the scale of token embeddings. The matrices of the
      blocks are N(0, 0.02² 768 / H) for H hiddens;
    - 'topical': 'mimetic', with similar embeddings for tokens of the same
      topics, which `topics` finds in `text`, a `Corpus` or None.
    """
    mimetic = how in ('mimetic', 'topical')
    if mimetic:
        net.apply(_spread)
    net.initialize(init.Xavier() if how == 'xavier' else init.Normal(SPREAD),
                   ctx=devices)
    if mimetic:
        net.apply(_match)
    if how == 'topical' and text is not None:
        net.apply(lambda block: _set_topics(block, text))


def _set_topics(block, text):
    if not isinstance(block, BERTEncoder):
        return
    weight = block.token_embedding.weight
    first = weight.data(weight.list_ctx()[0]).asnumpy()
    H = first.shape[1]
    tokens, vectors = topics(text, H)
    first[tokens] *= math.sqrt(1 - TOPIC ** 2)
    first[tokens] += TOPIC * SPREAD * math.sqrt(H) * vectors
    weight.set_data(np.array(first))


def _spread(block):
    if isinstance(block, BERTEncoder):
        if block.segment_embedding is not None:
            block.segment_embedding.weight.init = init.Normal(SPREAD / 2)
        if block.learnable:
            block.pos_embedding.init = init.Normal(SPREAD / 2)
    elif isinstance(block, PositionWiseFFN):
        for layer in (block.dense1, block.dense2):
            layer.weight.init = _scaled(block.dense2._units)
    elif isinstance(block, MultiHeadAttention):
        H = block.W_o._units
        for layer in (block.W_v, block.W_o):
            layer.weight.init = _scaled(H)
        # For d numbers in a head and inputs of H normalized numbers, the
        # score of x with itself is |Wx|² / √d, on average √d H σ²
        block.W_q.weight.init = init.Normal(math.sqrt(
            SELF_SCORE / (H * math.sqrt(H / block.num_heads))))


def _scaled(H):
    return init.Normal(SPREAD * math.sqrt(PUBLISHED_HIDDENS / H))


def _match(block):
    if isinstance(block, MultiHeadAttention):
        block.W_k.weight.set_data(block.W_q.weight.data(
            block.W_q.weight.list_ctx()[0]))
