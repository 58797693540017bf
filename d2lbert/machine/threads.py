"""Work that is shared among threads, its results in the order of the work.

For work that is C++ or NumPy for the most part: Python's own is done by one
thread at a time.
"""
import collections
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

from d2lbert.machine import hardware

# How long abandoned work may take to end by itself
ENDING_SECONDS = 1


def interruptible(work):
    """Return work(is_abandoned), during which signals are handled.

    For long calls of other libraries: Python handles a signal in the main
    thread alone, and only between two steps of Python's own. So the work is
    done in another thread, and goes on there after an exception of a signal
    handler, until the process ends or `is_abandoned()` tells it to stop.
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

    items: gone through by the thread that calls, a few items before the one
    whose turn it is, and what it raises is raised when their turn comes.
    num_threads: None for one each core; with one, nothing is done ahead.
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
