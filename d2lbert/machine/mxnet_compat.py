"""Old names of Python and NumPy that MXNet 1.9.1 uses.

`mxnet_wheel.py` copies this file into MXNet's package as `mxnet/_compat.py`,
and lets MXNet's modules import these names from it. So this file imports no
module of d2lbert. `mxnet_libraries.py` and its import are copied, too.
"""
import builtins
import contextlib
import ctypes
import os
import re
import signal
import types

import numpy as _numpy

#: Names that NumPy dropped or renamed from 1.20 to 2.0, and their values.
_VALUES = {
    'Inf': _numpy.inf, 'NAN': _numpy.nan, 'NaN': _numpy.nan,
    'NINF': -_numpy.inf, 'NZERO': -0.0, 'PINF': _numpy.inf, 'PZERO': 0.0,
    'int': builtins.int,
    'compat': types.SimpleNamespace(basestring=str, integer_types=(int,)),
}
_RENAMED = {'alltrue': 'all', 'cumproduct': 'cumprod', 'product': 'prod',
            'round_': 'round', 'row_stack': 'vstack', 'sometrue': 'any',
            'trapz': 'trapezoid'}
#: Names without a successor. MXNet lists these names but never calls them.
_GONE = ('mirr', 'npv', 'pmt', 'ppmt', 'pv', 'rate')


def _in1d(ar1, ar2, assume_unique=False, invert=False):
    """numpy.in1d of NumPy below 2.4."""
    return _numpy.isin(_numpy.ravel(ar1), ar2, assume_unique, invert)


def _msort(a):
    """numpy.msort of NumPy below 2.0: sorted along the first axis."""
    return _numpy.sort(a, axis=0)


def _renamed(name, today):
    """A new function object per name: MXNet uses functions as keys."""
    def function(*args, **kwargs):
        return getattr(_numpy, today)(*args, **kwargs)
    function.__name__ = name
    return function


def _gone(name):
    """A function that raises AttributeError: NumPy dropped this name."""
    def function(*args, **kwargs):
        raise AttributeError(f'NumPy {_numpy.__version__} has no {name}')
    function.__name__ = name
    return function


class _NumPy(types.ModuleType):
    """NumPy with the names of NumPy 1.19; NumPy itself is not changed."""

    def __init__(self):
        super().__init__('numpy', _numpy.__doc__)
        old = {**_VALUES, 'in1d': _in1d, 'msort': _msort}
        old.update((name, _renamed(name, today))
                   for name, today in _RENAMED.items())
        old.update((name, _gone(name)) for name in _GONE)
        vars(self).update({**old, **vars(_numpy)})
        # NumPy 1.20 to 1.23 warn about this name; in 2.0 it means bool_
        self.bool = builtins.bool
        vars(self).pop('__getattr__', None)

    def __getattr__(self, name):    # NumPy's lazily loaded modules
        return getattr(_numpy, name)


numpy = _NumPy()


class LooseVersion:
    """Comparable version numbers; Python 3.12 has no distutils."""

    def __init__(self, version):
        self.numbers = [int(n) for n in re.findall(
            r'\d+', re.match(r'[\d.]*', version).group())]

    def __ge__(self, other):
        return self.numbers >= other.numbers


StrictVersion = LooseVersion


def parameter_string(value):
    """The text of an operator's parameter, as MXNet's parser expects it.

    NumPy 2 writes `np.int64(3)` for a NumPy number in a tuple or a list;
    the parser expects 3.
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

    MXNet 1.9.1 finds only parameters created by `block.params`. MXNet 2
    also allows `self.pos_embedding = gluon.Parameter('pos_embedding', ...)`,
    which 1.9.1 would neither initialize nor train. A parameter with the
    attribute's name gets the block's prefix, as other parameters do.
    """
    known = block.params._params
    if any(other is parameter for other in known.values()):
        return
    if parameter.name == name:
        parameter.name = block.prefix + name
    known[parameter.name] = parameter


@contextlib.contextmanager
def _signal_handlers_kept():
    """Restore the process's signal handlers, including native ones."""
    if os.name != 'posix':
        yield
        return
    sigaction = ctypes.CDLL(None).sigaction
    kept = []
    for number in signal.valid_signals():
        action = ctypes.create_string_buffer(256)   # larger than on any system
        if sigaction(int(number), None, action) == 0:
            kept.append((int(number), action))
    try:
        yield
    finally:
        for number, action in kept:
            sigaction(number, action, None)


def load_library(path):
    """Load libmxnet.so, without its handler of SIGSEGV.

    Its libraries are loaded first, and it gets every core.
    """
    from mxnet._libraries import libraries_ready
    with _signal_handlers_kept(), libraries_ready():
        return ctypes.CDLL(path, ctypes.RTLD_LOCAL)
