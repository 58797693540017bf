"""Rows of token ids: truncated like the loops that remove one token a time."""
import numpy as onp
import pytest

from d2lbert.texts.examples import pad_rows, truncate_pair


def remove_one_by_one(first, second, room, first_loses_ties):
    while first + second > room:
        if first > second or first == second and first_loses_ties:
            first -= 1
        else:
            second -= 1
    return first, second


@pytest.mark.parametrize('odd_to_first', [False, True])
def test_the_longer_text_loses_tokens_first(odd_to_first):
    first, second = (lens.ravel() for lens in onp.mgrid[:9, :9])
    for room in range(9):
        kept = truncate_pair(first, second, room, odd_to_first)
        expected = [remove_one_by_one(a, b, room, not odd_to_first)
                    for a, b in zip(first.tolist(), second.tolist())]
        assert list(zip(*kept)) == expected


def test_rows_are_padded_on_the_right():
    rows = pad_rows([[3, 4, 5], onp.array([6]), []], pad_id=1)
    assert rows.dtype == 'int32'
    assert rows.tolist() == [[3, 4, 5], [6, 1, 1], [1, 1, 1]]
    assert pad_rows([[7], [8, 9]]).tolist() == [[7, 0], [8, 9]]
