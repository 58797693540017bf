"""What the benchmarks do beside measuring."""
import contextlib
import sys

import benchmark
import numpy as onp
import pytest
from batches import random_batch
from benchmark_worker import FIELDS


def test_a_profile_is_written_beside_the_columns_alone(tmp_path):
    rng = onp.random.RandomState(0)
    batch = random_batch(rng, rng.randint(3, 8, 6), onp.ones((6, 2)), 8, 30)
    path = tmp_path / 'columns.npz'
    onp.savez(str(path), **{f'text.{field}': column
                            for field, column in zip(FIELDS, batch)})
    with contextlib.closing(benchmark.Peer('ours', 'ours', sys.executable,
                                           str(path))) as peer:
        peer.ask('build', vocab_size=30, sizes=(8, 12, 2, 1, 0.0),
                 precision='fp32')
        answer = peer.ask('profile', batch=('text', 0, 6))
    assert any('adam' in name for name, _, _ in answer['operators'])
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {'columns.npz', 'columns.npz.profile.json'}


def test_pairs_are_as_short_as_they_are_asked_to_be():
    texts = benchmark.Texts.__new__(benchmark.Texts)
    rng = onp.random.RandomState(0)
    lens = rng.randint(5, 40, 4000)
    batch = random_batch(rng, lens, onp.ones((4000, 2)), 40, 30)
    texts.columns = {'40': list(batch)}
    assert texts.shorten(40, (9.0, 5.0), (2.0, 1.0), 3) == '40 short'
    tokens, segments, lens, *_, labels = texts.columns['40 short']
    place = onp.arange(40)
    assert abs(lens.mean() - 9 - 5 - 3) < 0.2
    assert abs(segments.sum(1).mean() - 5 - 1) < 0.1
    assert not segments[place >= lens[:, None]].any()
    assert (tokens[place >= lens[:, None]] == 1).all()
    assert set(labels) == {0, 1, 2}
    assert [X.dtype for X in texts.columns['40 short']] == [
        X.dtype for X in batch]


@pytest.mark.parametrize('kind, typed', [('ours', False), ('ours', True),
                                         ('book', True)])
def test_a_classifier_takes_steps(kind, typed, tmp_path, request):
    if kind == 'book':
        request.getfixturevalue('book')
    rng = onp.random.RandomState(0)
    batch = random_batch(rng, rng.randint(3, 8, 6), onp.ones((6, 2)), 8, 30)
    path = tmp_path / 'columns.npz'
    onp.savez(str(path), **{f'text.{field}': column
                            for field, column in zip(FIELDS, batch)})
    with contextlib.closing(benchmark.Peer(kind, kind, sys.executable,
                                           str(path))) as peer:
        peer.ask('build_classifier', vocab_size=30, typed=typed,
                 sizes=(8, 12, 2, 1, 0.0), max_len=16)
        answers = [peer.ask('train', batches=[('text', 0, 6)] * 20,
                            step='fine_tune') for _ in range(2)]
    losses = [answer['losses'][0] for answer in answers]
    # Of six examples, as a sum; and it falls
    assert 2 < losses[1] < losses[0] < 20 and answers[0]['seconds'] > 0
