"""Work that is shared among threads comes back in its order."""
import threading
import time

import pytest

from d2lbert.machine.workers import in_order


@pytest.mark.parametrize('threads', [1, 2, 7])
def test_results_come_in_the_order_of_the_items(threads):
    def work(k):
        time.sleep(0.002 * (k % 3))
        return k * k, threading.current_thread()
    squares, workers = zip(*in_order(work, range(30), threads))
    assert squares == tuple(k * k for k in range(30))
    assert len(set(workers)) <= threads
    assert (threading.current_thread() in workers) == (threads == 1)
    assert threading.active_count() < 7


def test_a_few_items_are_taken_ahead_and_no_more():
    taken = []

    def items():
        for k in range(50):
            taken.append(k)
            yield k
    for k, _ in enumerate(in_order(abs, items(), 3)):
        assert len(taken) <= k + 5
    assert taken == list(range(50))


@pytest.mark.parametrize('threads', [1, 3])
def test_an_error_of_items_comes_after_the_earlier_results(threads):
    def items():
        yield from range(5)
        raise OSError('no more of it')
    came = []
    with pytest.raises(OSError, match='no more'):
        came.extend(in_order(abs, items(), threads))
    came = []
    with pytest.raises(OSError, match='no more'):
        for k in in_order(abs, items(), threads):
            came.append(k)
    assert came == list(range(5))


def test_an_error_ends_the_work():
    begun = []

    def work(k):
        begun.append(k)
        if k == 3:
            raise ValueError('three')
        return k
    came = []
    with pytest.raises(ValueError, match='three'):
        for k in in_order(work, range(1000), 2):
            came.append(k)
    assert came == [0, 1, 2] and len(begun) < 10


def test_an_abandoned_generator_leaves_no_thread():
    before = threading.active_count()
    results = in_order(abs, range(1000), 4)
    assert next(results) == 0
    results.close()
    assert threading.active_count() == before
