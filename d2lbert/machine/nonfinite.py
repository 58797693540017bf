"""Find NaN and infinite weights."""
import numpy as onp

from d2lbert.machine.terminal import warn

#: Number of tensors that a warning lists.
MAX_NAMES = 4


def count_not_finite(array):
    """The number of NaN and infinite values in an array."""
    # A finite sum proves that all values are finite, and it is fast
    with onp.errstate(over='ignore', invalid='ignore'):
        if array.dtype.kind != 'f' or onp.isfinite(array.sum()):
            return 0
    return array.size - int(onp.count_nonzero(onp.isfinite(array)))


def warn_not_finite(path, counts):
    """Log one warning about tensors with NaN or infinite values, if any.

    counts: {name: count}; 0 if all values are finite.
    """
    found = {name: count for name, count in counts.items() if count}
    if not found:
        return
    names = [f'{name} ({count:,})' for name, count in found.items()]
    more = (f' and {len(names) - MAX_NAMES} more tensors'
            if len(names) > MAX_NAMES else '')
    warn(f'{path} holds numbers that are NaN or infinite: '
         f'{", ".join(names[:MAX_NAMES])}{more}; what the model computes will '
         'be NaN, too: fetch the file again, or train with a lower lr (--lr)')
