"""Rows that are filled with runs of sentences."""
import random

import pytest
from texts import pairs_of, rows_of, words_of, write

from d2lbert.corpus.corpus import open_corpus


def test_filled_rows_waste_little(big):
    rows = rows_of(big.train.batches(64, 32, seed=10, fill=True))
    assert rows.valid_lens_x.max() == 32
    assert rows.valid_lens_x.mean() > 26
    neighbours = rows_of(big.train.batches(64, 32, seed=10))
    assert rows.valid_lens_x.mean() > neighbours.valid_lens_x.mean() + 8
    assert abs(rows.nsp_y.mean() - 0.5) < 2.5 / len(rows.nsp_y) ** 0.5
    # Length does not tell what follows
    means = [rows.segments_X[rows.nsp_y == k].sum(1).mean() for k in (0, 1)]
    assert abs(means[0] - means[1]) < 0.05 * means[1]


def test_filled_rows_are_runs_of_sentences(big):
    articles = big.train.articles.tolist() + [big.train.num_paragraphs]
    paragraphs = words_of(big.train)
    texts = [' '.join(word for paragraph in paragraphs[a:b]
                      for sentence in paragraph for word in sentence)
             for a, b in zip(articles, articles[1:])]
    everything = '\n'.join(f' {text} ' for text in texts)
    covered = 0
    for a, b, is_next in list(pairs_of(rows_of(
            big.train.batches(64, 32, seed=11, fill=True)), big.vocab))[:300]:
        parts = [' '.join((*a, *b))] if is_next else map(' '.join, (a, b))
        for part in parts:
            assert f' {part} ' in everything
        covered += len(a) + len(b)
    assert covered > 300 * 20


@pytest.mark.parametrize('max_len', [23, 32, 64])
def test_filled_rows_hold_whole_sentences_and_as_many_as_fit(max_len):
    # Each sentence has words of its own
    rng, articles, sentences = random.Random(0), [], []
    for _ in range(60):
        begin, paragraphs = len(sentences), []
        for _ in range(rng.randint(1, 4)):
            paragraphs.append([])
            for _ in range(rng.randint(2, 6)):
                paragraphs[-1].append(tuple(
                    f's{len(sentences)}x{j}'
                    for j in range(rng.randint(1, 9))))
                sentences.append(paragraphs[-1][-1])
        articles.append((range(begin, len(sentences)), paragraphs))
    path = write('marked', ''.join(
        ' \n = Title = \n \n' + ''.join(
            f' {" . ".join(map(" ".join, paragraph))}\n'
            for paragraph in paragraphs)
        for _, paragraphs in articles))
    part = open_corpus(path, min_freq=1, progress=False).train
    article_of = {k: numbers for numbers, _ in articles for k in numbers}

    def numbers_of(words):
        """The sentences that the words are, no word more nor less."""
        numbers = sorted({int(word[1:].split('x')[0]) for word in words})
        assert words == sum((sentences[k] for k in numbers), ())
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert numbers[-1] in article_of[numbers[0]]
        return numbers

    kinds = set()
    for a, b, is_next in pairs_of(rows_of(
            part.batches(64, max_len, seed=12, fill=True)), part.vocab):
        first, second = numbers_of(a), numbers_of(b)
        kinds.add(is_next)
        if is_next:
            assert second[0] == first[-1] + 1
            after = second[-1] + 1
            if after in article_of[first[0]]:
                assert len(a) + len(b) + len(sentences[after]) + 3 > max_len
    assert kinds == {False, True}


def test_runs_truncate_long_sentences():
    long = ' '.join(f'x{k}' for k in range(30))
    path = write('long.txt', f'{long} . {long}\n\n{long} . {long}')
    text = open_corpus(path, min_freq=1, progress=False)
    with pytest.raises(ValueError, match='long.txt.*max_len=16'):
        list(text.train.batches(4, 16, seed=0))
    # The truncation reveals neither the order nor what follows
    for swap in (False, True):
        rows = rows_of(text.train.batches(4, 16, seed=0, fill=True,
                                          swap=swap))
        assert (rows.valid_lens_x == 16).all()
        for a, b, _ in pairs_of(rows, text.vocab):
            assert a == tuple(f'x{k}' for k in range(30 - len(a), 30))
            assert b == tuple(f'x{k}' for k in range(len(b)))
