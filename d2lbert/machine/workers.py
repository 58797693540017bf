"""The rank and number of worker processes in distributed training."""
import os


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
