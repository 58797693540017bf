"""A text as words, and as numbers of a vocabulary."""
import bz2
import gzip
import lzma
import random

import numpy as onp
import pytest
from batches import prose

from d2lbert.text import RESERVED, Vocab
from d2lbert.texts import numbered_text
from d2lbert.texts.numbered_text import (
    NumberedText,
    read_tokens,
    shuffled_paragraphs,
    types_by_frequency,
)

pytestmark = pytest.mark.usefixtures('own_cache')


@pytest.fixture
def text(tmp_path):
    path = tmp_path / 'text'
    path.write_text(prose(60), encoding='utf-8')
    return path


def assert_same(tokens, others):
    assert tokens.names == others.names
    for a, b in zip(tokens[:3], others[:3]):
        assert a.dtype == b.dtype
        onp.testing.assert_array_equal(a, b)


def test_words_are_cut_alike_around_every_character(compiled, plain):
    lines = []
    for code in [*range(0xd800), *range(0xe000, 0x10000), 0x10400, 0x1f600]:
        c = chr(code)
        if c not in '\r\n':
            lines.append(f'{c}ΑΣ{c}b . c{c}{c}d. .{c}. {c}Ae{c}')
    lines += ['one line . ', ' . ', ' .  . ', 'no stop here.', '', ' ',
              'a . . b . c .', 'ΑΣ . ΑΣ', ' . x', 'a\0b . c']
    cut = numbered_text.tokens_of_lines(lines)
    plain()
    assert_same(cut, numbered_text.tokens_of_lines(lines))


def test_line_ends_of_any_system_give_one_text(tmp_path):
    texts = []
    for number, end in enumerate(['\n', '\r\n', '\r']):
        path = tmp_path / str(number)
        path.write_bytes(prose(5).replace('\n', end).encode())
        texts.append(read_tokens(path))
    assert texts[0].names == texts[1].names == texts[2].names
    assert len(texts[0].paragraphs) == 6


@pytest.mark.parametrize('pack', [gzip.compress, bz2.compress,
                                  lzma.compress])
def test_a_packed_file_is_cut_as_it_is(text, tmp_path, pack):
    packed = tmp_path / 'packed'
    packed.write_bytes(pack(text.read_bytes()))
    assert_same(read_tokens(packed), read_tokens(text))


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
    types = types_by_frequency(corpus, freqs, onp.array([0]))
    assert types.tolist()[:2] == [2, 3]


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
