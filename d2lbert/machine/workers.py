"""Work in threads, and the worker processes of distributed training.

Use threads for work that is mostly C++ or NumPy: only one thread at a time
runs Python code. Results come in order.
"""
import collections
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

from d2lbert.machine import hardware

# Seconds to wait for abandoned work to end
ENDING_SECONDS = 1


def interruptible(work):
    """Return the result of work(is_abandoned); handle signals meanwhile.

    Use it for long calls into other libraries. Python handles signals only in
    the main thread, between two bytecode instructions. So the work runs in
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


def rank():
    """The index of this worker, from 0; 0 outside `d2lbert launch`."""
    return int(os.environ.get('D2LBERT_RANK', 0))


def num_workers():
    """The number of workers; 1 outside `d2lbert launch`."""
    return int(os.environ.get('D2LBERT_NUM_WORKERS', 1))


def kvstore():
    """The key-value store that sums gradients, for `gluon.Trainer`.

    Pass update_on_kvstore=False to the trainer: servers then only sum the
    gradients, and each worker runs the whole optimizer, as without launch.
    The store numbers the workers differently from `rank()`.
    """
    from d2lbert.machine.backend import mx  # the launcher does not need MXNet

    class Store(mx.kv.KVStore):
        def broadcast(self, key, value, out, priority=0):
            super().broadcast(key, value, out, priority)
            # Wait: a gradient pushed before this pull ends would
            # overtake it and be pulled as the weights
            for array in out if isinstance(out, (list, tuple)) else [out]:
                array.wait_to_read()

        def set_optimizer(self, optimizer):
            raise ValueError(
                'the servers of d2lbert launch only add gradients up: give '
                'gluon.Trainer update_on_kvstore=False')

    store = mx.kv.create('dist_sync')
    store.__class__ = Store
    return store
