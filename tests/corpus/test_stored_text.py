"""Batches of a text of any size: what is drawn, when, and from where."""
import gc
import os
import tracemalloc
from pathlib import Path

import numpy as onp
import pytest
from batches import digest_of, fixed_text
from texts import assert_same, pairs_of, rows_of, words_of, write

from d2lbert import bert_dataset, hub
from d2lbert.corpus import stored_text
from d2lbert.corpus.corpus import open_corpus
from d2lbert.text import CLS, MASK, PAD, SEP
from d2lbert.texts.examples import empty_columns


def test_texts_that_are_opened_often_leave_nothing_open(wiki):
    if not Path('/proc/self/fd').is_dir():
        pytest.skip('open files cannot be counted here')

    def used():
        gc.collect()
        maps = Path('/proc/self/maps').read_text()
        return len(os.listdir('/proc/self/fd')), maps.count('ids.npy')
    open_corpus(wiki, valid_share=0.1, progress=False)
    before = used()
    for _ in range(20):
        text = open_corpus(wiki, valid_share=0.1, progress=False)
        next(text.train.batches(4, 32, seed=0))
    assert used()[0] > before[0] and used()[1] == before[1] + 2
    del text
    assert used() == before


def test_columns_are_those_of_load_data(tmp_path):
    path = hub.sample_dir() / hub.TRAIN_FILE
    batches, vocab = bert_dataset.load_data(path, 16, 40)
    theirs = next(iter(batches))
    text = open_corpus(path, progress=False)
    _, ours = next(text.train.batches(16, 40, seed=0))
    for a, b in zip(ours, theirs):
        assert isinstance(a, onp.ndarray)
        assert a.dtype == b.dtype and a.shape == b.shape


def test_examples_are_neighbours_or_random_sentences(big):
    rows = rows_of(big.train.batches(64, 64, seed=1))
    paragraphs = [[tuple(sentence) for sentence in paragraph]
                  for paragraph in words_of(big.train)]
    neighbours = sorted(pair for paragraph in paragraphs
                        for pair in zip(paragraph, paragraph[1:]))
    sentences = {sentence for paragraph in paragraphs
                 for sentence in paragraph}
    drawn = list(pairs_of(rows, big.vocab))
    # Each sentence that has a neighbour comes first, once
    assert sorted(a for a, _, _ in drawn) == [a for a, _ in neighbours]
    assert {(a, b) for a, b, is_next in drawn if is_next} <= set(neighbours)
    assert {b for _, b, is_next in drawn if not is_next} <= sentences
    # 5 standard deviations
    assert abs(rows.nsp_y.mean() - 0.5) < 2.5 / len(drawn) ** 0.5
    neighbours = set(neighbours)
    others = [(a, b) for a, b, is_next in drawn if not is_next]
    assert sum(pair in neighbours for pair in others) < len(others) / 20


@pytest.mark.parametrize('fill', [False, True])
def test_sentence_order_swaps_half_of_the_neighbours(big, fill):
    rows = rows_of(big.train.batches(64, 64, seed=1, fill=fill, swap=True))
    text = ' '.join(word for paragraph in words_of(big.train)
                    for sentence in paragraph for word in sentence)
    drawn = list(pairs_of(rows, big.vocab))
    for first, second, in_order in drawn:
        both = (first, second) if in_order else (second, first)
        assert ' '.join(sum(both, ())) in text
    assert abs(rows.nsp_y.mean() - 0.5) < 2.5 / len(drawn) ** 0.5
    if not fill:
        pairs = sorted((a, b) if in_order else (b, a)
                       for a, b, in_order in drawn)
        assert pairs == sorted(
            pair for paragraph in words_of(big.train)
            for pair in zip(map(tuple, paragraph),
                            map(tuple, paragraph[1:])))


def test_partners_come_from_the_whole_text(big):
    # Words w... of a first word that is the article's number
    firsts = [b[0] for _, b, is_next in pairs_of(
        rows_of(big.train.batches(512, 64, seed=2)), big.vocab)
        if not is_next and b and b[0].isdigit()]
    assert onp.std([int(number) for number in firsts]) > 80


def test_pairs_that_do_not_fit_are_dropped(big):
    free = rows_of(big.train.batches(64, 64, seed=3))
    tight = rows_of(big.train.batches(64, 12, seed=3))
    assert tight.tokens_X.shape[1] == 12
    assert len(tight.nsp_y) == (free.valid_lens_x <= 12).sum()
    assert tight.valid_lens_x.max() == 12


@pytest.mark.parametrize('fill', [False, True])
def test_tokens_are_masked_as_in_the_book(big, fill):
    rows = rows_of([pair for epoch in range(3) for pair in
                    big.train.batches(64, 64, seed=4, epoch=epoch,
                                      fill=fill)])
    lengths = rows.valid_lens_x.astype(int)
    num_preds = rows.mlm_weights_X.sum(1)
    assert num_preds.tolist() == [max(1, round(n * 0.15)) for n in lengths]
    real = onp.arange(rows.mlm_weights_X.shape[1]) < num_preds[:, None]
    assert (rows.mlm_weights_X == real).all()
    assert not rows.mlm_Y[~real].any()
    assert not rows.pred_positions_X[~real].any()
    steps = onp.diff(rows.pred_positions_X, axis=1)
    assert (steps[real[:, 1:]] > 0).all()
    special = set(big.vocab[[CLS, SEP, PAD, MASK]])
    assert not special & set(rows.mlm_Y[real].tolist())
    shown = onp.take_along_axis(rows.tokens_X, rows.pred_positions_X, 1)[real]
    labels = rows.mlm_Y[real]
    masked = shown == big.vocab[MASK]
    n, vocab_size = len(labels), len(big.vocab)
    assert abs(masked.mean() - 0.8 - 0.1 / vocab_size) < 2 / n ** 0.5
    assert abs((shown == labels).mean() - 0.1) < 0.01 + 2 / n ** 0.5
    other = shown[~masked & (shown != labels)]
    assert len(set(other.tolist())) > 0.9 * vocab_size
    assert abs(other.mean() / vocab_size - 0.5) < 0.06
    # Every place is as likely as any other
    place = (rows.pred_positions_X / (lengths[:, None] - 1))[real]
    assert abs(place.mean() - 0.5) < 0.02


def test_the_share_of_masked_tokens_can_be_chosen(big):
    rows = rows_of(big.train.batches(64, 64, seed=4, mask_share=0.4))
    assert rows.mlm_Y.shape[1] == round(64 * 0.4)
    assert rows.mlm_weights_X.sum(1).tolist() == [
        max(1, round(n * 0.4)) for n in rows.valid_lens_x.astype(int)]


@pytest.mark.parametrize('settings', [
    {}, {'dynamic': False}, {'fill': True}], ids=str)
def test_an_epoch_can_be_resumed_from_any_position(big, settings, monkeypatch):
    monkeypatch.setattr(stored_text, 'CHUNK_TOKENS', 700 * 32)
    num_chunks = big.train.num_chunks(32)
    assert num_chunks > 3
    settings = dict(settings, seed=5, epoch=2)
    everything = list(big.train.batches(100, 32, **settings))
    positions = [position for position, _ in everything]
    assert positions[-1] == (num_chunks, 0)
    assert len({chunk for chunk, _ in positions}) == num_chunks + 1
    for k, position in enumerate(positions, 1):
        rest = list(big.train.batches(100, 32, start=position, **settings))
        assert [p for p, _ in rest] == positions[k:]
        for (_, ours), (_, theirs) in zip(rest, everything[k:]):
            assert_same(ours, theirs)


def test_all_chunks_together_hold_all_examples(big, monkeypatch):
    firsts = [sorted(a for a, _, _ in pairs_of(rows_of(
        big.train.batches(50, 64, seed=0)), big.vocab))]
    monkeypatch.setattr(stored_text, 'CHUNK_TOKENS', 300 * 64)
    firsts.append(sorted(a for a, _, _ in pairs_of(rows_of(
        big.train.batches(50, 64, seed=0)), big.vocab)))
    assert firsts[0] == firsts[1]


def test_a_truncated_file_is_reported(big, own_cache):
    ids, = own_cache.glob('*/train/ids.npy')
    os.truncate(ids, ids.stat().st_size // 2)
    with pytest.raises(OSError, match='ids.npy lost its end'):
        next(big.train.batches(8, 64, seed=0))


@pytest.mark.parametrize('max_len', [64, 512])
def test_the_columns_of_a_chunk_have_a_bound(max_len):
    row = empty_columns(1, max_len, pad=1)
    size = sum(column.nbytes for column in row)
    assert size * (stored_text.CHUNK_TOKENS // max_len) < 100e6


@pytest.mark.parametrize('fill', [False, True])
def test_one_chunk_is_in_memory_at_a_time(big, fill, monkeypatch):
    monkeypatch.setattr(stored_text, 'CHUNK_TOKENS', 100 * 64)
    size = 0
    tracemalloc.start()
    try:
        for _, batch in big.train.batches(16, 64, seed=0, fill=fill):
            size += sum(column.nbytes for column in batch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert big.train.num_chunks(64) > 20
    assert peak < size / 3


def in_order(rows):
    return sorted(zip(*(column.tolist() for column in rows)))


@pytest.mark.parametrize('fill', [False, True])
def test_static_examples_come_again_in_another_order(big, fill, monkeypatch):
    monkeypatch.setattr(stored_text, 'CHUNK_TOKENS', 700 * 32)
    first, second = (rows_of(big.train.batches(
        64, 32, seed=6, epoch=epoch, dynamic=False, fill=fill))
        for epoch in (0, 1))
    assert in_order(first) == in_order(second)
    assert (first.tokens_X != second.tokens_X).any(1).mean() > 0.9


@pytest.mark.parametrize('fill', [False, True])
def test_dynamic_examples_are_new_each_epoch(big, fill):
    first, second = ({repr(row) for row in in_order(rows_of(
        big.train.batches(64, 32, seed=6, epoch=epoch, fill=fill)))}
        for epoch in (0, 1))
    assert len(first & second) < len(first) / 5


def test_a_seed_gives_one_stream(big):
    def rows(seed):
        return rows_of(big.train.batches(64, 32, seed=seed))
    assert_same(rows(7), rows(7))
    assert in_order(rows(7)) != in_order(rows(8))


@pytest.mark.parametrize('way', ['compiled', 'plain'])
@pytest.mark.parametrize('settings, digest', [
    (dict(dynamic=False),
     'a604e54c38f47126433f2601e871e318e5bf90fa0a6f0d9dc3dcdc47728d5089'),
    (dict(dynamic=True),
     'eb9705375ecb64744c3734f92b05e449e2d4dec5467e44af3e5eda03119d1298'),
    (dict(dynamic=False, fill=True),
     '83cdcb926c1225c80f9040b3e66b77ef613034916cf02dae615c384b1a53079c'),
    (dict(dynamic=True, fill=True),
     '74e1ec3b6c8a7598d410ad472116bbdff11c1774a36520df3a44a8f677f82c1f'),
    (dict(dynamic=True, swap=True),
     '29f5f9b1a8660b7d97824fdef9fbdb1a2f2debdfdd57b666149d58fcd67ba4aa'),
    (dict(dynamic=True, swap=True, fill=True),
     '2acbe4f2a1d843a4243cf637165b1291a840fb573fb80a0a0db2dfd1fb14c674'),
    (dict(dynamic=True, mask_share=0.4),
     '6f70ad6312726261e2934826f87149e0b6d0e323e25514413e10dccacf07a4eb'),
], ids=['static', 'dynamic', 'static, filled', 'dynamic, filled',
        'swapped', 'swapped, filled', 'more hidden'])
def test_a_seed_gives_these_batches_for_ever(way, settings, digest, request,
                                             plain, monkeypatch):
    plain() if way == 'plain' else request.getfixturevalue(way)
    monkeypatch.setattr(stored_text, 'CHUNK_TOKENS', 30 * 24)
    text = open_corpus(write('fixed', fixed_text()), min_freq=3, seed=11,
                       progress=False)
    assert text.train.num_chunks(24) == 3
    positions, batches = zip(*(
        pair for epoch in (0, 1) for pair in text.train.batches(
            16, 24, seed=11, epoch=epoch, **settings)))
    assert digest_of(batches) == digest


def test_examples_do_not_depend_on_the_batch_size(big):
    small, large = (rows_of(big.train.batches(size, 32, seed=9))
                    for size in (7, 1000))
    assert_same(small, large)


@pytest.mark.parametrize('settings, message', [
    (dict(batch_size=0), 'batch_size=0'),
    (dict(max_len=4), 'max_len=4'),
    (dict(mask_share=0), 'mask_share=0 must be between'),
    (dict(start=(9, 0)), r'start=\(9, 0\) lies outside of .*wiki.tokens'),
    (dict(start=(0, 999)), r'start=\(0, 999\) lies outside of .*wiki.tokens'),
    (dict(start=(1, 7)), r'start=\(1, 7\) lies outside of .*wiki.tokens'),
])
def test_wrong_arguments_of_batches_are_refused(wiki, settings, message):
    part = open_corpus(wiki, progress=False).train
    with pytest.raises(ValueError, match=message):
        next(part.batches(**{**dict(batch_size=4, max_len=32, seed=0),
                             **settings}))
