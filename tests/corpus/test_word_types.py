"""The vocabulary of a text of any size, and what is held out of it."""
import random

import numpy as onp
import pytest
from texts import UNK, book_vocab, book_words, make_wiki, words_of, write

from d2lbert.corpus import text_reader, word_types
from d2lbert.corpus.corpus import open_corpus
from d2lbert.kernels import cut
from d2lbert.text import RESERVED


def test_the_vocabulary_can_be_bounded(wiki):
    free = open_corpus(wiki, progress=False).vocab
    bounded = open_corpus(wiki, max_vocab=20, progress=False).vocab
    assert bounded.idx_to_token == free.idx_to_token[:20]
    rare = open_corpus(wiki, min_freq=40, progress=False).vocab
    assert 5 < len(rare) < len(free)
    assert rare.idx_to_token == free.idx_to_token[:len(rare)]


def test_more_words_than_two_bytes_can_number_take_four():
    many = ' '.join(f'x{k}' for k in range(70000))
    path = write('many.txt', f'{many} . {many}\n\n{many} . {many}')
    text = open_corpus(path, min_freq=1, progress=False)
    assert text.train.types.dtype == 'int32' and len(text.vocab) == 70005
    assert text.train.ids[-1] == 70004
    assert open_corpus(path, min_freq=5, progress=False
                       ).train.types.dtype == 'uint16'


def test_rare_words_are_pruned_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(word_types, 'MAX_TYPES', 100)
    monkeypatch.setattr(text_reader, 'BLOCK_BYTES', 1000)
    rng = random.Random(0)
    # Every other word is new
    text = ''.join(
        ' . '.join(' '.join((f'often{rng.randrange(20)}', f'x{k * 40 + j}'))
                   for j in range(20)) + '\n\n' for k in range(100))
    path = write('new.txt', text)
    opened = open_corpus(path, min_freq=2, valid_share=0.1, progress=False)
    truth = {str(paragraph[0][1]): paragraph
             for paragraph in book_words(text.split('\n'))}
    for part in opened[:2]:
        for got in words_of(part):
            # Numbers are right where a word is not forgotten
            want = [w for w in truth.values() if len(w) == len(got) and all(
                g in (UNK, t) for a, b in zip(got, w) for g, t in zip(a, b))]
            assert want
    assert set(opened.vocab.idx_to_token) == {
        UNK, *RESERVED, *(f'often{k}' for k in range(20))}
    unknown = (opened.train.ids == 0).mean()
    assert 0.5 <= unknown < 0.55


def test_articles_are_held_out_whole(tmp_path):
    content, articles = make_wiki(50)
    path = write('wiki', content)
    text = open_corpus(path, valid_share=0.1, min_freq=1, progress=False)
    assert (len(text.train.articles), len(text.valid.articles)) == (45, 5)
    # The first word of each paragraph is the number of its article
    numbers = [[int(line.split()[0]) for line in article]
               for article in articles]
    held = {paragraph.split()[0] for article in articles
            for paragraph in article} - {
        paragraph[0][0] for paragraph in words_of(text.train)}
    held = {int(number) for number in held}
    assert len(held) == 5
    # One of each tenth of the text
    assert sorted(number // 10 for number in held) == [0, 1, 2, 3, 4]
    assert text.valid.num_paragraphs == sum(
        len(article) for article in numbers if article[0] in held)
    assert (text.train.num_paragraphs + text.valid.num_paragraphs
            == sum(map(len, numbers)))


def test_the_vocabulary_is_that_of_the_training_part(tmp_path):
    content, articles = make_wiki(50)
    text = open_corpus(write('wiki', content), valid_share=0.2, min_freq=1,
                       progress=False)
    train = words_of(text.train)
    assert book_vocab(train, 1).idx_to_token == text.vocab.idx_to_token
    # The articles' numbers are words that occur nowhere else
    assert {paragraph[0][0] for paragraph in words_of(text.valid)} == {UNK}


def test_blocks_of_a_text_without_articles_are_held_out(tmp_path):
    path = write('plain.txt', '\n\n'.join(
        f'p{k} one . two' for k in range(400)))
    text = open_corpus(path, valid_share=0.05, min_freq=1, progress=False)
    held = sorted({f'p{k}' for k in range(400)} - {
        paragraph[0][0] for paragraph in words_of(text.train)})
    assert len(held) == text.valid.num_paragraphs == 20
    numbers = sorted(int(word[1:]) for word in held)
    assert numbers == [k for start in numbers[::5]
                       for k in range(start, start + 5)]


@pytest.mark.parametrize('dtype', ['uint16', 'int32'])
def test_tables_are_the_same_compiled_or_not(dtype, compiled, plain):
    rng = onp.random.RandomState(0)
    table = rng.randint(0, 1 << 16, 501).astype(dtype)
    types = rng.randint(-1, 500, 3000).astype('int32')      # the last is -1's
    expected = [int(table[k]) for k in types]
    assert word_types.look_up(table, types).tolist() == expected
    assert word_types.look_up(table, types).dtype == dtype
    plain()
    assert word_types.look_up(table, types).tolist() == expected


@pytest.mark.parametrize('dtype', ['uint16', 'int32'])
def test_words_become_several_numbers_compiled_or_not(dtype, compiled, plain):
    rng = onp.random.RandomState(0)
    # None, one, many numbers for a word
    counts = rng.choice([0, 1, 1, 1, 2, 3, 4, 5, 9], 500).astype('int32')
    begins = onp.append(0, onp.cumsum(counts))
    table = rng.randint(0, 1 << 16, begins[-1] + cut.SPARE).astype(dtype)
    types = rng.randint(0, 500, 3000).astype('int32')
    pieces = [table[begins[k]:begins[k + 1]].tolist() for k in types]

    def found(types, ends):
        occur = word_types.count_types(types, 500)
        assert occur.tolist() == onp.bincount(types, minlength=500).tolist()
        numbers, ends = word_types.expand(
            table, begins, counts, types, ends, int(occur @ counts))
        assert numbers.dtype == dtype and ends.dtype == onp.int64
        return numbers.tolist(), ends.tolist()

    def check():
        for ends in [0, 0, 7, 7, 2999, 3000], [1], []:
            numbers, there = found(types, onp.array(ends, 'int64'))
            assert numbers == sum(pieces, [])
            assert there == [len(sum(pieces[:end], [])) for end in ends]
        assert found(types[:0], onp.zeros(2, 'int64')) == ([], [0, 0])
    check()
    plain()
    check()


def test_a_small_share_comes_from_four_places(tmp_path):
    path = write('plain.txt', '\n\n'.join(
        f'p{k} one . two' for k in range(160)))
    text = open_corpus(path, valid_share=0.05, min_freq=1, progress=False)
    numbers = sorted({int(paragraph[0][0][1:]) for paragraph in words_of(
        text.train)} ^ set(range(160)))
    # One stretch of two paragraphs in each quarter of the text
    assert [number // 40 for number in numbers] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(b == a + 1 for a, b in zip(numbers[::2], numbers[1::2]))
