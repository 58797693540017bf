"""Run functions in threads; connect the workers of distributed training."""
import collections
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

from d2lbert.machine import hardware

# After an exception, `interruptible` waits at most this long for `work` to end
ENDING_SECONDS = 1


def interruptible(work):
    """Return the result of work(is_abandoned); handle signals meanwhile.

    `work` is one long call of compiled code. Python's signal handlers run only
    in the main thread, and not during such a call. So in the main thread this
    function starts `work` in another thread, and waits. If a handler raises an
    exception, this function raises it, and `is_abandoned()` becomes True.
    `work` should then end, if it can.
    """
    if threading.current_thread() is not threading.main_thread():
        return work(lambda: False)      # no signal handler runs in this thread
    future, abandoned = Future(), threading.Event()

    def run():
        try:
            future.set_result(work(abandoned.is_set))
        except BaseException as error:
            future.set_exception(error)
    threading.Thread(target=run, daemon=True).start()
    try:
        return future.result()
    finally:
        if not future.done():   # a signal handler has raised an exception
            abandoned.set()
            wait([future], ENDING_SECONDS)


def in_order(work, items, num_threads=None):
    """Yield work(item) for each item, in order; compute in threads.

    items: an iterable. The calling thread reads at most `num_threads` items
    after the item whose result comes next. If `items` raises an exception, the
    results of the earlier items come first. num_threads: None for one per
    core; 1 for no threads.
    """
    if num_threads is None:
        num_threads = hardware.physical_cores()
    if num_threads < 2:
        yield from map(work, items)
        return
    items, futures = iter(items), collections.deque()
    has_more, error = True, None
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            while True:
                while has_more and len(futures) <= num_threads:
                    try:
                        futures.append(pool.submit(work, next(items)))
                    except StopIteration:
                        has_more = False
                    except Exception as exception:
                        has_more, error = False, exception
                if not futures:
                    break
                yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()
    if error is not None:
        raise error


def rank():
    """The index of this worker, from 0; always 0 without `d2lbert launch`."""
    return _number_in('D2LBERT_RANK', 0, 0)


def num_workers():
    """The number of workers; 1 without `d2lbert launch`."""
    return _number_in('D2LBERT_NUM_WORKERS', 1, 1)


def _number_in(name, default, least):
    """The number in environment variable `name`; default: unset or blank."""
    text = os.environ.get(name, '').strip() or str(default)
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise ValueError(f'{name} is {text!r} and must be a whole number of '
                         f'at least {least}: unset it, since d2lbert launch '
                         'sets it for its processes')
    return int(text)


def kvstore():
    """The key-value store that sums the gradients of the workers.

    Pass it to `gluon.Trainer` with update_on_kvstore=False. Each worker then
    runs the whole optimizer. MXNet numbers its workers in another order: for
    the data of this worker, use `rank()`, not the attribute `rank`.
    """
    # Not at the top: some commands use this module without importing MXNet
    from d2lbert.machine.backend import mx

    class Store(mx.kv.KVStore):
        def broadcast(self, key, value, out, priority=0):
            super().broadcast(key, value, out, priority)
            # Wait until this worker has the weights. A push replaces them on
            # the server, so a gradient pushed earlier could arrive instead
            for array in out if isinstance(out, (list, tuple)) else [out]:
                array.wait_to_read()

        def set_optimizer(self, optimizer):
            raise ValueError(
                'the servers of d2lbert launch only add up gradients: pass '
                'update_on_kvstore=False to gluon.Trainer')

    store = mx.kv.create('dist_sync')
    store.__class__ = Store     # `create` makes a plain KVStore
    return store
