"""A text in numbers: its vocabulary, its order, its words again."""
import random

import numpy as onp
import pytest
from batches import prose

from d2lbert.text import RESERVED, Vocab
from d2lbert.texts import numbered_text
from d2lbert.texts.numbered_text import (
    NumberedText,
    falling_types,
    shuffled_paragraphs,
)


def test_the_fields_describe_the_text():
    tokens = numbered_text.tokens_of_paragraphs([['a b', 'c'], ['b', '', 'b']])
    corpus = NumberedText.of_tokens(tokens, onp.array([1, 0]), min_freq=1)
    assert corpus.vocab.idx_to_token[5:] == ['b', 'a', 'c']
    assert corpus.ids.tolist() == [6, 5, 7, 5, 5]
    assert corpus.sentences.tolist() == [0, 2, 3, 4, 4, 5]
    assert corpus.paragraphs.tolist() == [0, 2, 5]
    assert (corpus.num_words, corpus.num_sentences, corpus.num_paragraphs,
            corpus.num_pairs) == (5, 5, 2, 3)


@pytest.mark.parametrize('way', ['compiled', 'plain'])
@pytest.mark.parametrize('block', [1, 50, 1 << 22])
@pytest.mark.parametrize('seed', range(3))
def test_the_vocabulary_is_that_of_the_paragraphs_in_order(
        block, seed, way, monkeypatch, request, plain):
    plain() if way == 'plain' else request.getfixturevalue(way)
    monkeypatch.setattr(numbered_text, 'BLOCK_WORDS', block)
    paragraphs = numbered_text.paragraphs_of_lines(
        prose(30, seed, max_words=4).split('\n'))
    order = list(range(len(paragraphs)))
    random.Random(seed).shuffle(order)
    corpus = NumberedText.of_tokens(
        numbered_text.tokens_of_paragraphs(paragraphs), onp.array(order),
        min_freq=2)
    expected = Vocab([sentence.split() for q in order
                      for sentence in paragraphs[q]], 2, RESERVED)
    assert corpus.vocab.idx_to_token == expected.idx_to_token
    assert corpus.vocab.token_freqs == expected.token_freqs


def test_types_that_never_occur_come_last():
    tokens = numbered_text.tokens_of_paragraphs([['b a', 'c']])._replace(
        types=onp.array([2, 3, 2], 'int32'), names=list('wxyz'))
    corpus = NumberedText(tokens.types, None, tokens.sentences,
                          tokens.paragraphs, None)
    freqs = onp.bincount(tokens.types, minlength=4)
    assert falling_types(corpus, freqs, onp.array([0])).tolist()[:2] == [2, 3]


@pytest.mark.parametrize('num_paragraphs', [0, 1, 2, 1000])
def test_paragraphs_are_shuffled_as_random_does(num_paragraphs, compiled,
                                                plain):
    def shuffled():
        rng = random.Random(7)
        order = shuffled_paragraphs(num_paragraphs, rng)
        assert order.dtype == 'int32'
        return order.tolist(), rng.getstate()
    expected, rng = list(range(num_paragraphs)), random.Random(7)
    rng.shuffle(expected)
    assert shuffled() == (expected, rng.getstate())
    plain()
    assert shuffled() == (expected, rng.getstate())
