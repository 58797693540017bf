"""Latent semantic analysis: token vectors from shared paragraphs."""
import numpy as onp

from d2lbert.machine.backend import mx

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
