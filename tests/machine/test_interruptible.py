"""Long calls of libraries end when a signal comes."""
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from d2lbert.machine.workers import interruptible

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
                word_pieces.learn(counts, 30_000, ['[UNK]'], {})
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
