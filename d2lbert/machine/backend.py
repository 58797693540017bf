"""Import MXNet; every other module imports it from here.

`mxnet_wheel.py` adapts MXNet 1.9.1 to current Python and NumPy when it is
installed. This module finds MXNet's libraries and sets its threads. If MXNet
cannot work, importing this module raises one ImportError with the remedy.
"""
import ctypes
import importlib
import os
import platform
import re
import sys
import threading
import warnings

from d2lbert.machine import mxnet_wheel
from d2lbert.machine.hardware import (  # noqa: F401  (re-exports build, gpus)
    MXNET_VERSION,
    WHEELS,
    build,
    gpus,
    mxnet_folders,
    mxnet_wheels,
)
from d2lbert.machine.mxnet_libraries import libraries_ready

_START_OVER = ('pip uninstall -y mxnet mxnet-cu112 and install d2lbert '
               'again with pip install .')


def _check_numpy():
    """Raise if the installed MXNet cannot use this NumPy or Python."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError('MXNet needs NumPy, which cannot be imported '
                          f'({error}): pip install numpy') from None
    if any(mxnet_wheel.is_changed(folder) for folder in mxnet_folders()):
        return
    numpy_version = tuple(map(int, numpy.__version__.split('.')[:2]))
    if numpy_version >= (1, 24) or sys.version_info >= (3, 12):
        raise ImportError(
            f'the MXNet {MXNET_VERSION} that is installed is the stock one, '
            'which works with NumPy below 1.24 on Python below 3.12 only, '
            f'and here are NumPy {numpy.__version__} and Python '
            f'{platform.python_version()}: {_START_OVER}')


def _check_wheels():
    """Raise unless one complete wheel of the right version is installed."""
    wheels = mxnet_wheels()
    if len(wheels) > 1:
        raise ImportError(
            'both mxnet and mxnet-cu112 are installed, which write the same '
            'folder, so that the last one written is in use and uninstalling '
            f'one empties the folder of both: {_START_OVER}')
    for wheel, version in wheels.items():
        if version.split('+')[0] != MXNET_VERSION:
            raise ImportError(
                f'{wheel} {version} is installed and d2lbert needs '
                f'{MXNET_VERSION}: {_START_OVER}')
    folders = mxnet_folders()
    if any((folder / '__init__.py').exists() for folder in folders):
        return
    for wheel in wheels:
        raise _emptied_error(wheel)
    raise ImportError('MXNet is not installed: install d2lbert again with '
                      'pip install .')


def _emptied_error(wheel):
    """The ImportError for a wheel whose files have been removed."""
    return ImportError(
        f'pip lists {wheel} but files of its folder mxnet are gone, as they '
        'are after mxnet or mxnet-cu112 was uninstalled beside the other: '
        + _START_OVER)


def _keep_freed_memory():
    """Keep the memory of freed arrays instead of returning it to the system.

    MXNet has no pool for arrays on the CPU: by default glibc maps fresh
    pages for each large one, and writing a fresh page for the first time
    costs more than the arithmetic on it. D2LBERT_MALLOC=default leaves
    glibc as it is.
    """
    if os.environ.get('D2LBERT_MALLOC') == 'default':
        return
    if platform.libc_ver()[0] != 'glibc':
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)          # M_MMAP_MAX: large arrays from the heap too
    libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: the heap never shrinks
    libc.mallopt(-8, 1)          # M_ARENA_MAX: threads share freed memory


def _explain(error):
    """Return an ImportError with a remedy for an error of `import mxnet`."""
    if sys.flags.optimize > 1:
        return ImportError('MXNet cannot be imported where Python drops '
                           'docstrings: leave -OO out, and unset '
                           'PYTHONOPTIMIZE')
    wheel = WHEELS[build()]
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    library = re.match(r'(\S+): cannot open shared object', text)
    if library and library.group(1) in ('libgomp.so.1', 'libquadmath.so.0'):
        return ImportError(
            f'MXNet needs the system library {library.group(1)}, which is '
            'not here: apt-get install libgomp1 libquadmath0 (Debian and '
            'Ubuntu), or your system\'s packages of the same libraries')
    if library:
        return ImportError(f'MXNet needs {library.group(1)}, which is not '
                           f'here: {_START_OVER}')
    symbol = re.search(r'undefined symbol: (cu[A-Z]\w*)', text)
    if symbol:
        return ImportError(f'the NVIDIA driver lacks {symbol.group(1)}, which '
                           'the GPU build of MXNet calls: update the NVIDIA '
                           'driver')
    if 'Cannot find the MXNet library' in text:
        return _emptied_error(wheel)
    if isinstance(error, ModuleNotFoundError) and error.name:
        if error.name.split('.')[0] == 'mxnet':
            return _emptied_error(wheel)
        return ImportError(f'MXNet needs the package {error.name}: '
                           f'pip install {error.name}')
    return ImportError(
        f'MXNet cannot be imported ({type(error).__name__}: {text}): '
        + _START_OVER)


def _import_mxnet():
    """Prepare the environment, then import MXNet."""
    if 'mxnet' not in sys.modules:
        _check_wheels()
        _check_numpy()
    _keep_freed_memory()
    with warnings.catch_warnings(), libraries_ready():
        # MXNet's code has invalid escapes and similar flaws
        warnings.simplefilter('ignore')
        try:
            module = importlib.import_module('mxnet')
        except Exception as error:
            raise _explain(error) from None
    if module.__version__ != MXNET_VERSION:
        raise ImportError(
            f'MXNet {module.__version__} is installed and d2lbert needs '
            f'{MXNET_VERSION}: {_START_OVER}')
    return module


def last_line(error):
    """The last line of an error's message, without the C++ source.

    MXNet's messages begin with a traceback.
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return re.sub(r'^\[\d+\] .*\.(?:h|cc)\[\d+\]: ', '', line.strip())


class _NumPyMode(threading.local):
    """MXNet's NumPy mode, switched on in every thread.

    In MXNet it is on only in the thread that called `npx.set_np()`; in the
    other threads, layers reject NumPy arrays.
    """

    def __init__(self):     # runs in each thread that reads the mode
        self.value = mx.util.np_array(True)     # a scope, as after set_np()
        mx.util.set_np_shape(True)


mx = _import_mxnet()
autograd, gluon, init = mx.autograd, mx.gluon, mx.init
nn, np, npx = mx.gluon.nn, mx.np, mx.npx
npx.set_np()
mx.util._NumpyArrayScope._current = _NumPyMode()
# 2 switches NumPy shapes (scalars and empty arrays) on in all threads. A
# thread may use arrays before it reads the NumPy mode
mx.util.set_np_shape(2)
