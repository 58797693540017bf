"""Import MXNet; all other modules of d2lbert import MXNet from here.

`mxnet_wheel.py` adapted MXNet 1.9.1 to current Python and NumPy when d2lbert
was installed. If MXNet cannot work, importing this module raises an
ImportError that contains the remedy.
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

_REINSTALL = ('pip uninstall -y mxnet mxnet-cu112 and install d2lbert '
              'again with pip install .')


def _check_numpy_and_python():
    """Raise ImportError if MXNet cannot work with this NumPy or Python."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError('MXNet needs NumPy, which cannot be imported '
                          f'({error}): pip install numpy') from None
    if any(mxnet_wheel.is_changed(folder) for folder in mxnet_folders()):
        return      # an adapted MXNet works with every NumPy and Python
    numpy_version = tuple(map(int, numpy.__version__.split('.')[:2]))
    if numpy_version >= (1, 24) or sys.version_info >= (3, 12):
        raise ImportError(
            f'the MXNet {MXNET_VERSION} that is installed is the stock one, '
            'which works with NumPy below 1.24 on Python below 3.12 only, '
            f'and this is NumPy {numpy.__version__} on Python '
            f'{platform.python_version()}: {_REINSTALL}')


def _check_wheels():
    """Raise ImportError if MXNet is missing, from two wheels, or not 1.9.1.

    For an MXNet without a wheel, `_import_mxnet` checks the version.
    """
    wheels = mxnet_wheels()
    if len(wheels) > 1:
        raise ImportError(
            'both mxnet and mxnet-cu112 are installed, and their files are '
            'in the same folder: the wheel that was installed last is used, '
            f'and uninstalling one removes files of both: {_REINSTALL}')
    for wheel, version in wheels.items():
        if version.split('+')[0] != MXNET_VERSION:
            raise ImportError(
                f'{wheel} {version} is installed and d2lbert needs '
                f'{MXNET_VERSION}: {_REINSTALL}')
    if any((folder / '__init__.py').exists() for folder in mxnet_folders()):
        return
    if wheels:
        raise _missing_files_error(next(iter(wheels)))
    raise ImportError('MXNet is not installed: install d2lbert again with '
                      'pip install .')


def _missing_files_error(wheel):
    return ImportError(
        f'pip lists {wheel} but files of its folder mxnet are missing, '
        'perhaps because mxnet and mxnet-cu112 were both installed and one '
        f'was uninstalled: {_REINSTALL}')


def _keep_freed_memory():
    """Let glibc keep the memory of freed arrays for new arrays.

    MXNet has no memory pool for arrays on the CPU. By default, glibc requests
    new pages from the system for each large array. The first write to a new
    page takes more time than the arithmetic on the numbers in it.
    """
    if os.environ.get('D2LBERT_MALLOC') == 'default':
        return
    if platform.libc_ver()[0] != 'glibc':
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)          # M_MMAP_MAX: no array outside the heap
    libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: the heap never shrinks
    libc.mallopt(-8, 1)          # M_ARENA_MAX: threads share freed memory


def _import_error(error):
    """Convert an error of `import mxnet` to an ImportError with a remedy."""
    if sys.flags.optimize > 1:
        return ImportError('MXNet cannot be imported if Python removes '
                           'docstrings: run Python without -OO, and unset '
                           'PYTHONOPTIMIZE')
    installed_wheel = WHEELS[build()]
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    missing_library = re.match(r'(\S+): cannot open shared object', first_line)
    if missing_library:
        library = missing_library.group(1)
        if library in ('libgomp.so.1', 'libquadmath.so.0'):
            return ImportError(
                f'MXNet needs the system library {library}, which is not '
                'here: apt-get install libgomp1 libquadmath0 (Debian and '
                'Ubuntu), or your system\'s packages of the same libraries')
        return ImportError(f'MXNet needs {library}, which is not here: '
                           f'{_REINSTALL}')
    cuda_function = re.search(r'undefined symbol: (cu[A-Z]\w*)', first_line)
    if cuda_function:
        return ImportError(f'the NVIDIA driver lacks {cuda_function.group(1)},'
                           ' which the GPU build of MXNet calls: update the '
                           'NVIDIA driver')
    if 'Cannot find the MXNet library' in first_line:
        return _missing_files_error(installed_wheel)
    if isinstance(error, ModuleNotFoundError) and error.name:
        if error.name.split('.')[0] == 'mxnet':
            return _missing_files_error(installed_wheel)
        return ImportError(f'MXNet needs the package {error.name}: '
                           f'pip install {error.name}')
    return ImportError(
        f'MXNet cannot be imported ({type(error).__name__}: {first_line}): '
        + _REINSTALL)


def _import_mxnet():
    """Check the installation, set up memory and threads, import MXNet."""
    if 'mxnet' not in sys.modules:      # an imported MXNet needs no check
        _check_wheels()
        _check_numpy_and_python()
    _keep_freed_memory()
    with warnings.catch_warnings(), libraries_ready():
        # Python warns about MXNet's code, for example about invalid escapes
        warnings.simplefilter('ignore')
        try:
            module = importlib.import_module('mxnet')
        except Exception as error:
            raise _import_error(error) from None
    if module.__version__ != MXNET_VERSION:
        raise ImportError(
            f'MXNet {module.__version__} is installed and d2lbert needs '
            f'{MXNET_VERSION}: {_REINSTALL}')
    return module


def last_line(error):
    """The last line of an error's message, without a position in C++ code.

    In an error of MXNet, the earlier lines are a traceback of C++ functions.
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return re.sub(r'^\[\d+\] .*\.(?:h|cc)\[\d+\]: ', '', line.strip())


class _NumPyMode(threading.local):
    """The state of MXNet's NumPy mode, on in every thread.

    With MXNet's own state, the mode is on only in the thread that calls
    `npx.set_np()`, so layers in other threads would reject arrays of `mx.np`.
    """

    def __init__(self):     # runs once in each thread that reads the state
        self.value = mx.util.np_array(True)     # as set_np() does
        mx.util.set_np_shape(True)


mx = _import_mxnet()
autograd, gluon, init = mx.autograd, mx.gluon, mx.init
nn, np, npx = mx.gluon.nn, mx.np, mx.npx
npx.set_np()
mx.util._NumpyArrayScope._current = _NumPyMode()
# The value 2 allows NumPy shapes (scalars, empty arrays) in all threads, even
# in a thread that has not read `_NumPyMode` yet
mx.util.set_np_shape(2)
