"""MXNet as it was before its NumPy mode."""
import contextlib

from d2lbert.machine.backend import mx


@contextlib.contextmanager
def legacy_mode():
    """Without NumPy's arrays and shapes in this thread; then as before.

    MXNet's own scope would leave other threads without NumPy's shapes.
    """
    try:
        with mx.util.np_array(False), mx.util.np_shape(False):
            yield
    finally:
        mx.util.set_np_shape(2)
