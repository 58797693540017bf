"""Token vectors against a singular value decomposition in float64."""
import numpy as onp
import pytest
from texts import write

from d2lbert.corpus.corpus import open_corpus
from d2lbert.objectives import initializers as topics_module
from d2lbert.objectives.initializers import topic_vectors


def expected(text, size, chosen=None):
    """The TF-IDF matrix by its definition, paragraph by paragraph."""
    begins = text.sentences[text.paragraphs]
    paragraphs = [text.ids[begin:end] for begin, end in zip(begins,
                                                            begins[1:])]
    if chosen is not None:
        paragraphs = [paragraphs[k] for k in chosen]
    counts = onp.stack([onp.bincount(some, minlength=len(text.vocab))
                        for some in paragraphs])
    rare = onp.log(len(counts) / onp.maximum(1, (counts > 0).sum(0)))
    rare[text.vocab.unk] = 0
    weights = onp.where(counts, 1 + onp.log(onp.maximum(1, counts)), 0) * rare
    weights /= onp.linalg.norm(weights, axis=1, keepdims=True)
    values, vectors = onp.linalg.svd(weights, full_matrices=False)[1:]
    vectors = vectors[:size][values[:size] > 1e-9].T
    lengths = onp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / onp.where(lengths > 1e-9, lengths, 1), values


def found_in(text, size):
    """A row of `topic_vectors` for each token, zeros for one that has none."""
    tokens, vectors = topic_vectors(text, size)
    assert vectors.dtype == 'float32'
    found = onp.zeros((len(text.vocab), size))
    found[tokens] = vectors
    return found


def near(found, vectors):
    """True if two matrices have the same products of rows."""
    onp.testing.assert_allclose(found @ found.T, vectors @ vectors.T,
                                atol=2e-3)


@pytest.fixture
def text(wiki):
    return open_corpus(wiki, min_freq=3, progress=False).train


def test_vectors_are_those_of_a_singular_value_decomposition(text):
    size = len(text.vocab)      # and more: there are fewer different words
    vectors, values = expected(text, size)
    assert vectors.shape[1] > 40
    near(found_in(text, size), vectors)


def test_the_strongest_come_first_and_others_are_left_out(tmp_path):
    # Five topics of nine words each, with one word that all paragraphs have
    rng = onp.random.RandomState(0)
    lines = []
    for k in range(200):
        words = [f't{k % 5}w{w}' for w in rng.randint(0, 9, 12)]
        lines.append(' '.join(['all', *words, '.', words[0], 'all']))
    text = open_corpus(write('topics', '\n\n'.join(lines)), min_freq=2,
                       progress=False).train
    found = found_in(text, 5)
    vectors, values = expected(text, 5)
    assert values[4] > 2 * values[5]
    near(found, vectors)
    names = text.vocab.idx_to_token
    for one, ours in zip(names, found):
        for other, theirs in zip(names, found):
            if one[0] == other[0] == 't':
                same = float(one[1] == other[1])
                assert ours @ theirs == pytest.approx(same, abs=0.1)
    for token in 'all', '<unk>', '<mask>':
        assert not found[text.vocab[token]].any()


def test_columns_beyond_the_rank_are_zero(tmp_path):
    text = open_corpus(write('short', b'a b . c\n\nd e . a\n'), min_freq=1,
                       progress=False).train
    found = found_in(text, 40)
    assert found[:, :2].any() and not found[:, 2:].any()
    lengths = onp.linalg.norm(found, axis=1)
    assert set(lengths.round(5).tolist()) == {0, 1}
    # One paragraph has no topic
    text = open_corpus(write('one', b'a b . c\n'), min_freq=1,
                       progress=False).train
    tokens, vectors = topic_vectors(text, 4)
    assert tokens.shape == (0,) and vectors.shape == (0, 4)


def test_paragraphs_that_repeat_add_no_columns(tmp_path):
    rng = onp.random.RandomState(0)
    different = [' '.join(['.', *(f'w{w}' for w in rng.randint(0, 200, 12))])
                 for _ in range(20)]
    path = tmp_path / 'repeated.txt'
    path.write_text('\n\n'.join(f'a {paragraph}' for paragraph
                                in different * 15))
    text = open_corpus(path, min_freq=1, progress=False).train
    assert text.num_paragraphs == 300
    found = found_in(text, 64)
    vectors, _ = expected(text, 64)
    assert vectors.shape[1] == 20
    near(found, vectors)
    assert found[:, :20].any(axis=0).all() and not found[:, 20:].any()


def test_a_long_text_is_sampled_all_over(text,
                                                            monkeypatch):
    monkeypatch.setattr(topics_module, 'MAX_WORDS', text.num_words // 3)
    num = text.num_paragraphs * (text.num_words // 3) // text.num_words
    chosen = onp.linspace(0, text.num_paragraphs - 1, num).astype(int)
    vectors, _ = expected(text, 500, chosen)
    near(found_in(text, len(text.vocab)), vectors)
    assert chosen[-1] == text.num_paragraphs - 1 and len(chosen) > 20


def test_topics_are_reproducible(text):
    for one, other in zip(topic_vectors(text, 16), topic_vectors(text, 16)):
        onp.testing.assert_array_equal(one, other)
