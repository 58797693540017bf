"""Tokens and vocabularies against the book's page."""
import collections
import random

import pytest

from d2lbert import text
from d2lbert.text import RESERVED, Vocab

LINES = ['the crane flies', 'the driver drives the crane', 'it flies']


def test_tokenize_splits_into_words_or_characters():
    assert text.tokenize(['a  b\tc', '']) == [['a', 'b', 'c'], []]
    assert text.tokenize(['ab c'], 'char') == [['a', 'b', ' ', 'c']]


def test_tokenize_refuses_an_unknown_kind():
    with pytest.raises(ValueError, match="'syllable'.*'word' or 'char'"):
        text.tokenize(LINES, 'syllable')


def test_a_corpus_may_be_nested_or_flat():
    nested = text.tokenize(LINES)
    flat = [word for line in nested for word in line]
    expected = collections.Counter(' '.join(LINES).split())
    assert text.count_corpus(nested) == expected
    assert text.count_corpus(flat) == expected
    assert text.count_corpus([]) == {}


def test_numbers_follow_frequency_then_first_occurrence():
    vocab = Vocab(text.tokenize(LINES), reserved_tokens=RESERVED)
    assert vocab.idx_to_token == [
        '<unk>', '<pad>', '<mask>', '<cls>', '<sep>',
        'the', 'crane', 'flies', 'driver', 'drives', 'it']
    assert vocab.token_freqs[:3] == [('the', 3), ('crane', 2), ('flies', 2)]
    assert len(vocab) == 11
    assert vocab.unk == 0


def test_rare_tokens_are_unknown():
    vocab = Vocab(text.tokenize(LINES), min_freq=2)
    assert vocab.idx_to_token == ['<unk>', 'the', 'crane', 'flies']
    assert vocab['driver'] == 0
    assert ('driver', 1) in vocab.token_freqs


def test_numbers_and_tokens_may_be_nested_lists():
    vocab = Vocab(text.tokenize(LINES))
    assert vocab[['the', ('crane', 'zebra')]] == [1, [2, 0]]
    assert vocab.to_tokens([1, [2, 0]]) == ['the', ['crane', '<unk>']]
    assert vocab.to_tokens(1) == 'the'


def test_an_empty_vocabulary_knows_the_unknown_token():
    assert Vocab().idx_to_token == ['<unk>']


def test_the_vocabulary_is_the_books(book):
    words = random.Random(0).choices([*'abcdefghijkl', '<unk>', '<cls>'],
                                     range(1, 15), k=200)
    lines = [words[i:i + 10] for i in range(0, 200, 10)]
    for min_freq in (0, 9):
        ours = Vocab(lines, min_freq, RESERVED)
        books = book.Vocab(lines, min_freq, RESERVED)
        assert ours.idx_to_token == books.idx_to_token
        assert ours.token_to_idx == books.token_to_idx
        assert ours.token_freqs == books.token_freqs
        assert ours[['a', 'zz']] == books[['a', 'zz']]


def test_a_saved_vocabulary_comes_back(tmp_path):
    vocab = Vocab([['crane', 'naïve', '戦場', '\x85']], 0, RESERVED)
    path = tmp_path / 'vocab.txt'
    vocab.save(path)
    again = Vocab.load(path)
    assert again.idx_to_token == vocab.idx_to_token
    assert again.token_to_idx == vocab.token_to_idx
    assert again.token_freqs == []
    assert [file.name for file in tmp_path.iterdir()] == ['vocab.txt']


def test_windows_line_ends_do_no_harm(tmp_path):
    path = tmp_path / 'vocab.txt'
    path.write_bytes('\r\n'.join(['<unk>', *RESERVED, 'a', '']).encode())
    assert Vocab.load(path).idx_to_token == ['<unk>', *RESERVED, 'a']


def test_a_token_with_a_line_break_cannot_be_saved(tmp_path):
    path = tmp_path / 'vocab.txt'
    with pytest.raises(ValueError, match=r"token 1 is 'a\\nb'"):
        Vocab([['a\nb']]).save(path)
    assert not path.exists()


@pytest.mark.parametrize('lines, line, complaint', [
    ([], 1, "'<unk>', found the end"),
    (['<unk>', '<pad>', '<mask>'], 4, "'<cls>', found the end"),
    (['<unk>', '<mask>', '<pad>', '<cls>', '<sep>'], 2, "found '<mask>'"),
    (['<unk>', *RESERVED, 'a', 'b', 'a'], 8, "'a' is in line 6 already"),
    (['<unk>', *RESERVED, '<cls>'], 6, "'<cls>' is in line 4 already"),
    (['<unk>', *RESERVED, '', 'b'], 6, 'empty line'),
    (['<unk>', *RESERVED, '\udcff'], 6, 'not UTF-8'),
])
def test_a_damaged_file_is_refused_by_line(tmp_path, lines, line, complaint):
    path = tmp_path / 'vocab.txt'
    path.write_text('\n'.join(lines) + '\n' * bool(lines),
                    encoding='utf-8', errors='surrogateescape')
    with pytest.raises(ValueError, match=complaint) as error:
        Vocab.load(path)
    assert f'{path}, line {line}: ' in str(error.value)
