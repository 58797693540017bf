"""Define names that NumPy and Python removed, and correct MXNet 1.9.1.

`mxnet_wheel.py` copies this file into MXNet's package as `mxnet/_compat.py`,
and changes MXNet's modules to import from there. So this file must not import
d2lbert.
"""
import builtins
import contextlib
import ctypes
import os
import re
import signal
import types

import numpy as _numpy

#: {name that NumPy removed after 1.19: its value}.
_REMOVED_VALUES = {
    'Inf': _numpy.inf, 'NAN': _numpy.nan, 'NaN': _numpy.nan,
    'NINF': -_numpy.inf, 'NZERO': -0.0, 'PINF': _numpy.inf, 'PZERO': 0.0,
    'int': builtins.int,
    # MXNet uses only basestring of the module numpy.compat
    'compat': types.SimpleNamespace(basestring=str, integer_types=(int,)),
}
#: {removed name of a NumPy function: its current name}.
_RENAMED = {'alltrue': 'all', 'cumproduct': 'cumprod', 'product': 'prod',
            'round_': 'round', 'row_stack': 'vstack', 'sometrue': 'any',
            'trapz': 'trapezoid'}
#: Removed functions that MXNet looks up on import, but does not call.
_UNCALLED = ('mirr', 'npv', 'pmt', 'ppmt', 'pv', 'rate')


def _in1d(ar1, ar2, assume_unique=False, invert=False):
    return _numpy.isin(_numpy.ravel(ar1), ar2, assume_unique, invert)


def _msort(a):
    return _numpy.sort(a, axis=0)


def _alias(name, current_name):
    # MXNet uses functions as dictionary keys, so each name needs a new one
    def function(*args, **kwargs):
        return getattr(_numpy, current_name)(*args, **kwargs)
    function.__name__ = name
    return function


def _raising_function(name):
    def function(*args, **kwargs):
        raise AttributeError(f'NumPy {_numpy.__version__} has no {name}')
    function.__name__ = name
    return function


class _NumPy(types.ModuleType):
    """A module with the names of NumPy 1.19; NumPy itself is not changed."""

    def __init__(self):
        super().__init__('numpy', _numpy.__doc__)
        names = {**_REMOVED_VALUES, 'in1d': _in1d, 'msort': _msort}
        names.update((name, _alias(name, current_name))
                     for name, current_name in _RENAMED.items())
        names.update((name, _raising_function(name)) for name in _UNCALLED)
        # A name that the installed NumPy has keeps NumPy's value
        vars(self).update({**names, **vars(_numpy)})
        # MXNet means Python's bool, and numpy.bool of NumPy 2 is numpy.bool_
        self.bool = builtins.bool
        # Python would call NumPy's `__getattr__` before the method below
        vars(self).pop('__getattr__', None)

    def __getattr__(self, name):    # for modules that NumPy loads on demand
        return getattr(_numpy, name)


numpy = _NumPy()


class LooseVersion:
    """A version to compare by >=, as in distutils before Python 3.12."""

    def __init__(self, version):
        self.numbers = [int(n) for n in re.findall(
            r'\d+', re.match(r'[\d.]*', version).group())]

    def __ge__(self, other):
        return self.numbers >= other.numbers


StrictVersion = LooseVersion


def parameter_string(value):
    """Convert an operator's parameter to text that MXNet can parse.

    In NumPy 2, str((np.int64(3),)) is '(np.int64(3),)'. MXNet needs '(3,)'.
    """
    if not isinstance(value, (tuple, list)):
        return str(value)
    items = [repr(item) if isinstance(item, str) else parameter_string(item)
             for item in value]
    if isinstance(value, list):
        return '[' + ', '.join(items) + ']'
    return '(' + ', '.join(items) + (',)' if len(items) == 1 else ')')


def adopt_parameter(block, name, parameter):
    """Let `block.collect_params()` find a Parameter set as attribute `name`.

    The stock MXNet 1.9.1 finds only parameters that `block.params` created,
    and neither initializes nor trains other parameters. A parameter with
    the attribute's name, as in `self.w = Parameter('w')`, gets the block's
    prefix.
    """
    collected = block.params._params
    if any(other is parameter for other in collected.values()):
        return
    if parameter.name == name:
        parameter.name = block.prefix + name
    collected[parameter.name] = parameter


@contextlib.contextmanager
def _signal_handlers_kept():
    if os.name != 'posix':
        yield
        return
    sigaction = ctypes.CDLL(None).sigaction
    actions = []
    for number in signal.valid_signals():
        action = ctypes.create_string_buffer(256)   # a struct sigaction fits
        if sigaction(int(number), None, action) == 0:
            actions.append((int(number), action))
    try:
        yield
    finally:
        for number, action in actions:
            sigaction(number, action, None)


def load_library(path):
    """Load libmxnet.so without the handler of SIGSEGV that it installs."""
    from mxnet._libraries import libraries_ready  # mxnet_libraries.py
    with _signal_handlers_kept(), libraries_ready():
        return ctypes.CDLL(path, ctypes.RTLD_LOCAL)
