"""What one of several processes that train together knows of that."""
import os


def rank():
    """The number of this worker, from 0; 0 outside `d2lbert launch`."""
    return int(os.environ.get('D2LBERT_RANK', 0))


def num_workers():
    """How many workers share the data; 1 outside `d2lbert launch`."""
    return int(os.environ.get('D2LBERT_NUM_WORKERS', 1))


def kvstore():
    """The store of all workers' gradients, for `gluon.Trainer`.

    Give it with update_on_kvstore=False: servers then only add gradients
    up, and each worker has the whole optimizer, as without launch. The
    store's own ranks are not those of `rank()`.
    """
    from d2lbert.machine.backend import mx  # the launcher itself needs none

    class Store(mx.kv.KVStore):
        def broadcast(self, key, value, out, priority=0):
            super().broadcast(key, value, out, priority)
            # Pulling the first weights takes its time, and a gradient
            # pushed meanwhile overtakes it and is pulled as the weights
            for array in out if isinstance(out, (list, tuple)) else [out]:
                array.wait_to_read()

        def set_optimizer(self, optimizer):
            raise ValueError(
                'the servers of d2lbert launch only add gradients up: give '
                'gluon.Trainer update_on_kvstore=False')

    store = mx.kv.create('dist_sync')
    store.__class__ = Store
    return store
