"""Run work in threads; results come in order.

Use it for work that is mostly C++ or NumPy: only one thread at a time runs
Python code.
"""
import collections
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

from d2lbert.machine import hardware

# Seconds that abandoned work may take to end by itself
ENDING_SECONDS = 1


def interruptible(work):
    """Return work(is_abandoned), with signals handled meanwhile.

    For long calls into other libraries. Python handles signals only in the
    main thread, between two bytecode instructions. So the work runs in
    another thread. If a signal handler raises, the work continues until the
    process ends, or until it sees that `is_abandoned()` is true.
    """
    if threading.current_thread() is not threading.main_thread():
        return work(lambda: False)
    done, abandoned = Future(), threading.Event()

    def run():
        try:
            done.set_result(work(abandoned.is_set))
        except BaseException as error:
            done.set_exception(error)
    threading.Thread(target=run, daemon=True).start()
    try:
        return done.result()
    finally:
        if not done.done():
            abandoned.set()
            wait([done], ENDING_SECONDS)


def in_order(work, items, num_threads=None):
    """Yield work(item) for each item, in order.

    items: an iterable, read by the calling thread a few items ahead. If it
    raises, the exception comes after the results of the earlier items.
    num_threads: None for one per core; with 1, items are not read ahead.
    """
    if num_threads is None:
        num_threads = hardware.physical_cores()
    if num_threads < 2:
        yield from map(work, items)
        return
    items, waiting = iter(items), collections.deque()
    error = None
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            while True:
                while items is not None and len(waiting) <= num_threads:
                    try:
                        waiting.append(pool.submit(work, next(items)))
                    except StopIteration:
                        items = None
                    except Exception as raised:
                        items, error = None, raised
                if not waiting:
                    break
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
    if error is not None:
        raise error
