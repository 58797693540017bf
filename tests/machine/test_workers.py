"""Work in threads: its order, its errors, and signals meanwhile."""
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from d2lbert.machine.workers import in_order, interruptible


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


ROOT = Path(__file__).parents[2]


def stopped(code, number, after):
    """(seconds, exit status, output) of a script that a signal ends.

    The signal is sent `after` seconds after its first output.
    """
    head = """
        import signal, sys
        from d2lbert.machine.workers import interruptible
        from d2lbert.training.interrupts import StopRequest
        signal.signal(signal.SIGINT, signal.default_int_handler)
    """
    process = subprocess.Popen(
        [sys.executable, '-c', textwrap.dedent(head) + textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        process.stdout.readline()
        time.sleep(after)
        begun = time.monotonic()
        process.send_signal(number)
        out = process.communicate(timeout=60)[0].decode()
    finally:
        process.kill()
    return time.monotonic() - begun, process.returncode, out


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_call_that_python_cannot_see_into(number):
    seconds, status, out = stopped("""
        import ctypes
        try:
            with StopRequest():
                print('here', flush=True)
                interruptible(lambda _: ctypes.CDLL(None).sleep(50))
        except KeyboardInterrupt as interrupt:
            sys.exit(128 + interrupt.signal)
        """, number, 0.2)
    assert (status, out) == (128 + number, '') and seconds < 20


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_learning_of_pieces(number):
    pytest.importorskip('tokenizers')
    seconds, status, out = stopped("""
        import random
        from d2lbert.pretrained.tokenizers import word_pieces
        rng = random.Random(0)
        counts = {''.join(rng.choices('abcdefghij', k=90)): 3
                  for _ in range(150_000)}
        try:
            with StopRequest():
                print('here', flush=True)
                word_pieces.train_pieces(counts, 30_000, ['[UNK]'], {})
        except KeyboardInterrupt as interrupt:
            sys.exit(128 + interrupt.signal)
        """, number, 3)
    assert (status, out) == (128 + number, '') and seconds < 20


def test_work_that_can_ends_where_it_is_abandoned():
    seconds, status, out = stopped("""
        import time
        def work(is_abandoned):
            while not is_abandoned():
                time.sleep(0.01)
            print('ended', flush=True)
        try:
            print('here', flush=True)
            interruptible(work)
        except KeyboardInterrupt:
            print('stopped', flush=True)
        """, signal.SIGINT, 0.2)
    assert (status, out) == (0, 'ended\nstopped\n')


def test_results_and_errors_come_from_any_thread():
    found = []

    def ask():
        found.append(interruptible(lambda is_abandoned: (
            is_abandoned(), threading.current_thread())))
        with pytest.raises(ZeroDivisionError):
            interruptible(lambda _: 1 / 0)
    ask()
    other = threading.Thread(target=ask)
    other.start()
    other.join()
    (one, helper), (two, same) = found
    assert one is two is False
    assert helper is not threading.main_thread() and same is other
