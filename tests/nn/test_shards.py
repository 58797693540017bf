"""Batches split into parts: every row in one part, none empty on a device."""
from typing import Any, NamedTuple

import numpy as onp
import pytest

from d2lbert.machine.backend import np, npx
from d2lbert.nn.steps import part_of, shards, split_over_devices


class Columns(NamedTuple):
    X: Any
    y: Any


@pytest.mark.parametrize('num_rows', [0, 1, 5, 12, 13])
@pytest.mark.parametrize('num_parts', [1, 2, 5])
def test_parts_are_nearly_equal_and_cover_all_rows(num_rows, num_parts):
    batch = Columns(onp.arange(2 * num_rows).reshape(-1, 2),
                    onp.arange(num_rows))
    parts = [part_of(batch, k, num_parts) for k in range(num_parts)]
    sizes = [len(part.y) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert onp.concatenate([part.y for part in parts]).tolist() == list(
        range(num_rows))
    for part in parts:
        assert (part.X[:, 0] == 2 * part.y).all()


@pytest.mark.parametrize('num_rows', [2, 3, 8])
def test_devices_without_an_example_are_left_out(num_rows):
    devices = [npx.cpu(k) for k in range(3)]
    X = onp.arange(num_rows, dtype='int32')
    dealt = shards(Columns(X, X), devices)
    assert [device for _, device in dealt] == devices[:num_rows]
    for array in (X, np.array(X)):
        parts = split_over_devices(array, devices, 'float32')
        assert [part.ctx for part in parts] == devices[:num_rows]
        assert all(part.dtype == 'float32' for part in parts)
        lens = [len(part) for part in parts]
        assert lens == sorted(lens, reverse=True) and lens[0] - lens[-1] < 2
        assert onp.concatenate([part.asnumpy() for part in parts]).tolist(
            ) == X.tolist()
