"""What the benchmarks do beside measuring."""
import contextlib
import sys

import benchmark
import numpy as onp
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
