"""What MXNet 1.9.1 expects of Python and NumPy, for those of today.

`mxnet_wheel.py` copies this file into MXNet's own package as
`mxnet/_compat.py`, and lets MXNet's modules import these names from it. It
imports nothing of d2lbert; `loading.py` and what that needs are copied, too.
"""
import builtins
import contextlib
import ctypes
import os
import re
import signal
import types

import numpy as _numpy

#: Names that NumPy dropped or renamed between 1.20 and 2.0: the value today.
_VALUES = {
    'Inf': _numpy.inf, 'NAN': _numpy.nan, 'NaN': _numpy.nan,
    'NINF': -_numpy.inf, 'NZERO': -0.0, 'PINF': _numpy.inf, 'PZERO': 0.0,
    'int': builtins.int,
    'compat': types.SimpleNamespace(basestring=str, integer_types=(int,)),
}
_RENAMED = {'alltrue': 'all', 'cumproduct': 'cumprod', 'product': 'prod',
            'round_': 'round', 'row_stack': 'vstack', 'sometrue': 'any',
            'trapz': 'trapezoid'}
#: Names without a successor. MXNet lists them and calls none itself.
_GONE = ('mirr', 'npv', 'pmt', 'ppmt', 'pv', 'rate')


def _in1d(ar1, ar2, assume_unique=False, invert=False):
    """numpy.in1d of NumPy below 2.4."""
    return _numpy.isin(_numpy.ravel(ar1), ar2, assume_unique, invert)


def _msort(a):
    """numpy.msort of NumPy below 2.0: sorted along the first axis."""
    return _numpy.sort(a, axis=0)


def _renamed(name, today):
    """A function of its own: MXNet keeps a table by functions."""
    def function(*args, **kwargs):
        return getattr(_numpy, today)(*args, **kwargs)
    function.__name__ = name
    return function


def _gone(name):
    """A function that says that NumPy no longer has this name."""
    def function(*args, **kwargs):
        raise AttributeError(f'NumPy {_numpy.__version__} has no {name}')
    function.__name__ = name
    return function


class _NumPy(types.ModuleType):
    """NumPy with the names of NumPy 1.19. The real module stays as it is."""

    def __init__(self):
        super().__init__('numpy', _numpy.__doc__)
        old = {**_VALUES, 'in1d': _in1d, 'msort': _msort}
        old.update((name, _renamed(name, today))
                   for name, today in _RENAMED.items())
        old.update((name, _gone(name)) for name in _GONE)
        vars(self).update({**old, **vars(_numpy)})
        # NumPy 1.20 to 1.23 warn of this name, and 2.0 means bool_ by it
        self.bool = builtins.bool
        vars(self).pop('__getattr__', None)

    def __getattr__(self, name):    # what NumPy loads when it is asked for
        return getattr(_numpy, name)


numpy = _NumPy()


class LooseVersion:
    """The numbers of a version, to compare: distutils left Python 3.12."""

    def __init__(self, version):
        self.numbers = [int(n) for n in re.findall(
            r'\d+', re.match(r'[\d.]*', version).group())]

    def __ge__(self, other):
        return self.numbers >= other.numbers


StrictVersion = LooseVersion


def parameter_string(value):
    """The text that a parameter of an operator is passed as.

    MXNet reads numbers, and NumPy 2 writes `np.int64(3)` for a NumPy number
    within a tuple or a list.
    """
    if not isinstance(value, (tuple, list)):
        return str(value)
    items = [repr(item) if isinstance(item, str) else parameter_string(item)
             for item in value]
    if isinstance(value, list):
        return '[' + ', '.join(items) + ']'
    return '(' + ', '.join(items) + (',)' if len(items) == 1 else ')')


def adopt_parameter(block, name, parameter):
    """Let `block.collect_params()` find a Parameter set as an attribute.

    MXNet 1.9.1 finds only parameters that the block's own `params` made, so
    `self.pos_embedding = gluon.Parameter('pos_embedding', ...)`, as MXNet 2
    allows it, would be neither initialized nor trained. A parameter that
    bears the attribute's name gets the block's prefix, as others have it.
    """
    known = block.params._params
    if any(other is parameter for other in known.values()):
        return
    if parameter.name == name:
        parameter.name = block.prefix + name
    known[parameter.name] = parameter


@contextlib.contextmanager
def _signal_handlers_kept():
    """Restore the process's signal handlers, native ones included."""
    if os.name != 'posix':
        yield
        return
    sigaction = ctypes.CDLL(None).sigaction
    kept = []
    for number in signal.valid_signals():
        action = ctypes.create_string_buffer(256)   # above every system's
        if sigaction(int(number), None, action) == 0:
            kept.append((int(number), action))
    try:
        yield
    finally:
        for number, action in kept:
            sigaction(number, action, None)


def load_library(path):
    """Load libmxnet.so, which would otherwise catch SIGSEGV for all.

    It finds the libraries that it needs, and every core.
    """
    from mxnet._loading import libraries_ready
    with _signal_handlers_kept(), libraries_ready():
        return ctypes.CDLL(path, ctypes.RTLD_LOCAL)
