"""What the scheduler and the servers of a job run: MXNet's, made harmless."""
import os
import sys


def serve(role):
    """Be the scheduler or a server, as `role` says, until the job ends.

    MXNet's own server unpickles, and so executes, what it is sent as an
    optimizer, by whoever reaches its port. Workers here never send one.
    """
    try:
        # Here, where DMLC_ROLE is gone: MXNet would serve at once
        from d2lbert.machine.backend import mx
    except ImportError as error:
        sys.exit(f'd2lbert launch: {error}')

    class Server(mx.kvstore.KVStoreServer):
        def _controller(self):
            def refuse(*_):
                print('an optimizer was sent to this server, which only adds '
                      'gradients up: give gluon.Trainer '
                      'update_on_kvstore=False', file=sys.stderr, flush=True)
                os._exit(1)
            return refuse
    os.environ['DMLC_ROLE'] = role
    Server(mx.kv.create('dist')).run()
