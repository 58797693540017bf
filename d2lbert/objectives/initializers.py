"""`initialize` sets the initial weights of a net before pretraining."""
import math

import numpy as onp

from d2lbert.attention import MultiHeadAttention
from d2lbert.bert import BERTEncoder
from d2lbert.machine.backend import init, mx, np
from d2lbert.transformer import PositionWiseFFN

# Of a longer text, evenly spaced paragraphs with about this number of words in
# all are analyzed
MAX_WORDS = 1 << 22

# Parameters of the randomized singular value decomposition: additional
# columns of the basis, and power iterations (Halko et al. 2011)
OVERSAMPLING, POWER_ITERATIONS = 16, 3


def topic_vectors(text, size):
    """Latent semantic analysis (Deerwester et al. 1990): (tokens, vectors).

    text: a `NumberedText`. tokens (n,) int64: neither <unk>, nor tokens that
    occur in none or in all of the analyzed paragraphs, nor tokens whose vector
    would be zero. vectors (n, size) float32, each of norm 1: tokens that occur
    in the same paragraphs have similar vectors. If there are fewer tokens or
    fewer distinct paragraphs than `size`, the last columns are zero.
    """
    paragraph_of_weight, token_of_weight, weights = _tf_idf(text)
    unique_tokens, columns = onp.unique(token_of_weight, return_inverse=True)
    rank = min(size, len(unique_tokens), len(onp.unique(paragraph_of_weight)))
    if not rank:
        return unique_tokens, onp.zeros((0, size), 'float32')
    indptr = onp.searchsorted(
        paragraph_of_weight, onp.arange(paragraph_of_weight[-1] + 2))
    # A row for each paragraph, a column for each of unique_tokens
    matrix = mx.nd.sparse.csr_matrix((weights, columns, indptr), shape=(
        len(indptr) - 1, len(unique_tokens)))
    basis = onp.random.RandomState(0).normal(
        size=(len(unique_tokens), rank + OVERSAMPLING)).astype('float32')
    for _ in range(POWER_ITERATIONS):
        basis = _orthonormal_basis(mx.nd.sparse.dot(matrix, mx.nd.sparse.dot(
            matrix, mx.nd.array(basis)), transpose_a=True).asnumpy())
    # Rotate the basis so that its first columns belong to the largest singular
    # values
    _, rotation = _gram_eigenpairs(mx.nd.sparse.dot(
        matrix, mx.nd.array(basis)).asnumpy())
    rotated = basis @ rotation[:, :rank]
    norms = onp.linalg.norm(rotated, axis=1, keepdims=True)
    is_kept = norms[:, 0] > 1e-6    # smaller norms are rounding errors
    vectors = onp.zeros((int(is_kept.sum()), size), 'float32')
    # Repeated paragraphs can leave fewer columns than `rank`
    vectors[:, :rotated.shape[1]] = rotated[is_kept] / norms[is_kept]
    return unique_tokens[is_kept], vectors


def _tf_idf(text):
    """TF-IDF weights of the tokens of each analyzed paragraph.

    Returns (paragraphs, tokens, weights), three arrays with an entry for each
    weight above 0, sorted by paragraph: the index among the analyzed
    paragraphs, the token id, and the weight. <unk> has weight 0. The weights
    of a paragraph have the Euclidean norm 1.
    """
    paragraph_offsets = text.sentences[text.paragraphs]    # in words
    analyzed = onp.arange(text.num_paragraphs)
    if text.num_words > MAX_WORDS:
        analyzed = onp.unique(onp.linspace(
            0, len(analyzed) - 1, max(1, len(analyzed) * MAX_WORDS
                                       // text.num_words)).astype('int64'))
    begins, ends = paragraph_offsets[analyzed], paragraph_offsets[analyzed + 1]
    # Words are stored as word types, which `text.numbers` maps to token ids
    types = onp.concatenate([text.read(begin, end) for begin, end
                             in zip(begins.tolist(), ends.tolist())])
    V, num_analyzed = len(text.vocab), len(analyzed)
    paragraph_of_word = onp.repeat(onp.arange(num_analyzed), ends - begins)
    # Each pair of a paragraph and a token becomes one number
    pairs, counts = onp.unique(paragraph_of_word * V + text.numbers[types],
                               return_counts=True)
    paragraphs, tokens = onp.divmod(pairs, V)
    # clip avoids a division by 0 for tokens that do not occur
    document_frequencies = onp.bincount(tokens, minlength=V).clip(1)
    idf = onp.log(num_analyzed / document_frequencies)
    idf[text.vocab.unk] = 0
    weights = (1 + onp.log(counts)) * idf[tokens]
    norms = onp.sqrt(onp.bincount(paragraphs, weights ** 2, num_analyzed))
    is_kept = weights > 0
    paragraphs, tokens = paragraphs[is_kept], tokens[is_kept]
    return paragraphs, tokens, (
        weights[is_kept] / norms[paragraphs]).astype('float32')


def _gram_eigenpairs(matrix):
    """Eigenvalues and eigenvectors of matrixᵀ matrix, largest first."""
    values, vectors = onp.linalg.eigh((matrix.T @ matrix).astype('float64'))
    return values[::-1], vectors[:, ::-1].astype('float32')


def _orthonormal_basis(matrix):
    """An orthonormal basis of the column space of a matrix, float32."""
    values, vectors = _gram_eigenpairs(matrix)
    is_kept = values > values[0] * 1e-10    # others are rounding errors
    return (matrix @ vectors[:, is_kept]
            / onp.sqrt(values[is_kept])).astype('float32')


#: Standard deviation of the initial weights of BERT-base (Devlin et al. 2018),
#: and its number of hidden units.
STD, PUBLISHED_HIDDENS = 0.02, 768

#: The mean initial attention score of a token with itself, with `mimetic`. In
#: a text of 64 tokens, another occurrence of the same word then gets about a
#: tenth of the attention.
SELF_SCORE = 3.5

#: The weight of the topic in the initial vector of a token, with `topical`.
#: The rest is random, so that no two vectors are equal.
TOPIC_WEIGHT = 0.97


def initialize(net, method, devices, text=None):
    """Initialize all parameters of `net` on every device.

    method: one of

    - 'xavier': Glorot and Bengio 2010, as in the book;
    - 'normal': N(0, 0.02²), as in the published BERT;
    - 'mimetic': tokens attend to similar tokens from the first step on, as
      in trained nets (Trockman and Kolter 2023, "Mimetic Initialization of
      Self-Attention Layers"). Key weights equal query weights;
    - 'topical': 'mimetic', with similar embeddings for tokens of the same
      topics, which `topic_vectors` finds in `text`, a `NumberedText`.
      Without a text it equals 'mimetic'.
    """
    is_mimetic = method in ('mimetic', 'topical')
    if is_mimetic:
        net.apply(_set_mimetic_initializers)
    net.initialize(init.Xavier() if method == 'xavier' else init.Normal(STD),
                   ctx=devices)
    if is_mimetic:
        net.apply(_copy_queries_to_keys)
    if method == 'topical' and text is not None:
        net.apply(lambda block: _set_topics(block, text))


def _set_topics(block, text):
    """Mix the topics of a text into the token embeddings of an encoder."""
    if not isinstance(block, BERTEncoder):
        return
    weight = block.token_embedding.weight
    embeddings = weight.data(weight.list_ctx()[0]).asnumpy()
    size = embeddings.shape[1]
    tokens, vectors = topic_vectors(text, size)
    # On average the norm of a vector stays STD √size
    embeddings[tokens] *= math.sqrt(1 - TOPIC_WEIGHT ** 2)
    embeddings[tokens] += TOPIC_WEIGHT * STD * math.sqrt(size) * vectors
    weight.set_data(np.array(embeddings))


def _set_mimetic_initializers(block):
    if isinstance(block, BERTEncoder):
        if block.segment_embedding is not None:
            block.segment_embedding.weight.init = init.Normal(STD / 2)
        if block.learns_positions:
            block.pos_embedding.init = init.Normal(STD / 2)
    elif isinstance(block, PositionWiseFFN):
        H = block.dense2._units
        for layer in (block.dense1, block.dense2):
            layer.weight.init = _normal_for(H)
    elif isinstance(block, MultiHeadAttention):
        H = block.W_o._units
        for layer in (block.W_v, block.W_o):
            layer.weight.init = _normal_for(H)
        # For a head of d units and an input x of H normalized numbers, the
        # score of x with itself is |Wx|² / √d. For W of N(0, σ²), this is on
        # average √d H σ²
        block.W_q.weight.init = init.Normal(math.sqrt(
            SELF_SCORE / (H * math.sqrt(H / block.num_heads))))


def _normal_for(H):
    """The initializer N(0, STD² 768 / H), for H hidden units."""
    return init.Normal(STD * math.sqrt(PUBLISHED_HIDDENS / H))


def _copy_queries_to_keys(block):
    if isinstance(block, MultiHeadAttention):
        block.W_k.weight.set_data(block.W_q.weight.data(
            block.W_q.weight.list_ctx()[0]))
