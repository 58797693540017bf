"""Rows packed with full sentences."""
import random
import tracemalloc

import numpy as onp
import pytest
from batches import digest_of, fixed_text
from texts import assert_same, make_wiki, write

from d2lbert.corpus import stored_text
from d2lbert.corpus.corpus import open_corpus
from d2lbert.corpus.masking import SINGLE_TOKENS, SPANBERT, MaskedRows
from d2lbert.corpus.stored_text import full_sentences
from d2lbert.text import SEP


def rows_of(text, max_len, seed=0, chunk=0, num_chunks=1):
    """Each row as a list of parts, lists of words."""
    rows, parts = full_sentences(text, chunk, num_chunks, max_len,
                                 random.Random(seed))
    words = text.vocab.to_tokens(text.ids.tolist())
    parts = [words[a:b] for a, b in parts.tolist()]
    return [parts[a:b] for a, b in zip(rows.tolist(), rows.tolist()[1:])]


def marked(lengths_of_articles):
    """A text whose words tell article and sentence: aKsJwI."""
    lines = []
    for k, lengths in enumerate(lengths_of_articles):
        lines.append(f' \n = Title {k} = \n ')
        # Two sentences or more a paragraph
        at = 0
        while at < len(lengths):
            to = at + 2 if len(lengths) - at > 3 else len(lengths)
            lines.append(' ' + ' . '.join(
                ' '.join(f'a{k}s{j}w{i}' for i in range(lengths[j]))
                for j in range(at, to)) + ' ')
            at = to
    return open_corpus(write('marked', '\n'.join(lines) + '\n'), min_freq=1,
                       progress=False).train


def place(word):
    article, rest = word[1:].split('s')
    sentence, within = rest.split('w')
    return int(article), int(sentence), int(within)


@pytest.fixture
def articles():
    rng = random.Random(7)
    return [[rng.randint(1, 12) for _ in range(rng.randint(2, 15))]
            for _ in range(30)]


@pytest.mark.parametrize('max_len', [16, 40])
def test_rows_hold_full_sentences_in_the_texts_order(articles, max_len):
    text = marked(articles)
    rows = rows_of(text, max_len)
    # Each word is there exactly once
    words = [word for row in rows for part in row for word in part]
    assert sorted(words) == sorted(text.vocab.to_tokens(text.ids.tolist()))
    by_article = [[place(word) for part in row for word in part]
                  for row in rows]
    flat = [item for row in by_article for item in row]
    order = list(dict.fromkeys(article for article, _, _ in flat))
    assert flat == [
        (k, j, i) for k in order for j, length in enumerate(articles[k])
        for i in range(length)]
    for row in by_article:
        # A whole sentence at both ends
        assert row[0][2] == 0
        assert row[-1][2] == articles[row[-1][0]][row[-1][1]] - 1


def test_rows_are_as_full_as_sentences_allow(articles):
    text, max_len = marked(articles), 32
    rows = rows_of(text, max_len)
    crossing = 0
    for row, after in zip(rows, rows[1:]):
        length = 1 + sum(len(part) + 1 for part in row)
        assert length <= max_len
        # One separator more where an article ends
        kinds = [{place(word)[0] for word in part} for part in row]
        assert all(len(kind) == 1 for kind in kinds)
        assert all(a != b for a, b in zip(kinds, kinds[1:]))
        crossing += len(row) > 1
        article, sentence, _ = place(after[0][0])
        new = kinds[-1] != {article}
        assert length + articles[article][sentence] + new > max_len
    assert crossing > 10


def test_a_sentence_longer_than_a_row_goes_on_in_the_next():
    text = marked([[3, 30, 4, 2], [2, 2]])
    rows = rows_of(text, 12)
    lengths = [[len(part) for part in row] for row in rows]
    assert [10] in lengths
    words = [place(word) for row in rows for part in row for word in part]
    assert len(words) == 43 == len(set(words))
    long = [word for word in words if word[:2] == (0, 1)]
    assert long == sorted(long)
    assert all(1 + sum(length + 1 for length in row) <= 12
               for row in lengths)


def test_chunks_hold_all_words_once(articles):
    text = marked(articles)
    everything = sorted(text.vocab.to_tokens(text.ids.tolist()))
    for num_chunks in (1, 2, 7, 1000):
        words = [word for chunk in range(num_chunks)
                 for row in rows_of(text, 24, 0, chunk, num_chunks)
                 for part in row for word in part]
        assert sorted(words) == everything


def test_articles_come_in_a_new_order_each_time(articles):
    text = marked(articles)
    orders = [tuple(dict.fromkeys(
        place(word)[0] for row in rows_of(text, 24, seed) for part in row
        for word in part)) for seed in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(30))


def test_batches_are_these_rows(big):
    text, vocab = big.train, big.vocab
    _, rows = next(text.batches(10 ** 6, 40, seed=4, spans=SINGLE_TOKENS))
    assert isinstance(rows, MaskedRows)
    tokens = rows.tokens_X.copy()
    row, k = onp.nonzero(rows.mlm_weights_X)
    tokens[row, rows.pred_positions_X[row, k]] = rows.mlm_Y[row, k]
    found = sorted(' '.join(vocab.to_tokens(row[1:int(n)].tolist()))
                   for row, n in zip(tokens, rows.valid_lens_x))
    assert found == sorted(
        ' '.join(word for part in row for word in (*part, SEP))
        for row in rows_of(text, 40, 4))
    assert rows.valid_lens_x.mean() > 30


@pytest.mark.parametrize('spans', [SINGLE_TOKENS, SPANBERT],
                         ids=['tokens', 'spans'])
@pytest.mark.parametrize('dynamic', [True, False])
def test_rows_can_be_resumed_from_any_position(big, monkeypatch, spans,
                                               dynamic):
    monkeypatch.setattr(stored_text, 'CHUNK_TOKENS', 700)
    text = big.train
    assert text.num_chunks(32, spans) > 5
    how = dict(seed=6, epoch=2, spans=spans, dynamic=dynamic)
    everything = list(text.batches(8, 32, **how))
    for cut in (0, 1, 9, len(everything) - 2):
        rest = list(text.batches(8, 32, start=everything[cut][0], **how))
        assert [place for place, _ in rest] == [
            place for place, _ in everything[cut + 1:]]
        for (_, a), (_, b) in zip(rest, everything[cut + 1:]):
            assert_same(a, b)
    other = list(text.batches(8, 32, **dict(how, epoch=3)))
    digests = [sorted(row.tobytes() for _, batch in batches
                      for row in batch.tokens_X)
               for batches in (everything, other)]
    # Static rows are the same in every epoch, in another order
    assert (digests[0] == digests[1]) is not dynamic
    assert everything[0][1].tokens_X.tobytes() != (
        other[0][1].tokens_X.tobytes())


@pytest.mark.parametrize('way', ['compiled', 'plain'])
@pytest.mark.parametrize('spans, digest', [
    (SINGLE_TOKENS,
     'b55dddf759cc91f34df08308f20c66c728b3de76b61f1e6de73cdff07156a4ae'),
    (SPANBERT,
     '6d63fb332aca8ea351affaf6bcd478e1ebcb2655415fe58f510b5e1538b83c7c'),
], ids=['tokens', 'spans'])
def test_a_seed_gives_these_rows_for_ever(way, spans, digest, request, plain,
                                          monkeypatch):
    plain() if way == 'plain' else request.getfixturevalue(way)
    monkeypatch.setattr(stored_text, 'CHUNK_TOKENS', 200)
    text = open_corpus(write('fixed', fixed_text()), min_freq=3, seed=11,
                       progress=False)
    assert text.train.num_chunks(24, spans) == 3
    assert digest_of(batch for epoch in (0, 1) for _, batch in (
        text.train.batches(16, 24, seed=11, epoch=epoch, spans=spans))
    ) == digest


def test_a_place_in_another_text_is_refused(big):
    with pytest.raises(ValueError, match='belongs to another text'):
        big.train.batches(8, 32, seed=0, spans=SINGLE_TOKENS, start=(2, 0))


def test_memory_does_not_grow_with_the_text(monkeypatch):
    monkeypatch.setattr(stored_text, 'CHUNK_TOKENS', 1 << 12)

    def peak(num_articles):
        text = open_corpus(write(f'w{num_articles}',
                                 make_wiki(num_articles)[0]), min_freq=2,
                           progress=False).train
        assert text.num_chunks(64, SPANBERT) > num_articles // 100
        tracemalloc.start()
        try:
            for _ in text.batches(64, 64, seed=0, spans=SPANBERT):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak(4800) < 4 * peak(300)

