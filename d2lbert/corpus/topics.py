"""What tokens are about, from the paragraphs in which they stand."""
import numpy as onp

from d2lbert.machine.backend import mx

# Words that are looked at: paragraphs from all over a longer text
MOST_WORDS = 1 << 22

# Columns beyond those asked for, and how often the matrix is gone through,
# so that those asked for come out right (Halko et al. 2011)
MORE, PASSES = 16, 3


def topics(text, size):
    """Latent semantic analysis of a text: (tokens, vectors).

    text: a `Corpus`. tokens (n,) int64: those that are about something, which
    stand in some paragraphs and not in others, and of these not the one for
    all unknown words; vectors (n, size) float32: of
    length 1, near those of tokens in paragraphs about the same (Deerwester et
    al. 1990, "Indexing by Latent Semantic Analysis"), with zeros behind them
    where the text has too few words or paragraphs for so many numbers.
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
    # Turned so that the first columns are the strongest
    turned = basis @ _principal(mx.nd.sparse.dot(
        matrix, mx.nd.array(basis)).asnumpy())[1][:, :wide]
    lengths = onp.linalg.norm(turned, axis=1, keepdims=True)
    kept = lengths[:, 0] > 1e-6
    vectors = onp.zeros((int(kept.sum()), size), 'float32')
    vectors[:, :wide] = turned[kept] / lengths[kept]
    return there[kept], vectors


def _weighted(text):
    """How much each token counts in each paragraph, by paragraphs.

    Returns (paragraphs, tokens, weights), of which no weight is 0: the
    logarithm of how often, times that of how rare it is among paragraphs;
    of each paragraph of length 1.
    """
    words = text.sentences[text.paragraphs]     # before which one begins
    chosen = onp.arange(text.num_paragraphs)
    if text.num_words > MOST_WORDS:
        # All over the text, as many as have so many words on average
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
    """Eigenvalues and -vectors of matrixᵀ matrix, float64, falling."""
    values, vectors = onp.linalg.eigh((matrix.T @ matrix).astype('float64'))
    return values[::-1], vectors[:, ::-1].astype('float32')


def _orthogonal(matrix):
    """Columns of length 1 at right angles that span the same, float32."""
    values, vectors = _principal(matrix)
    kept = values > values[0] * 1e-10
    return (matrix @ vectors[:, kept]
            / onp.sqrt(values[kept])).astype('float32')
