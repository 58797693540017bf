"""The one door to MXNet: every other module imports it from here.

MXNet 1.9.1 was built for the Pythons, NumPys and CUDA of 2022. This
module makes `import mxnet` work on those at hand and at full speed; what
cannot be made to work becomes one ImportError whose sentence holds the
remedy.
"""
import contextlib
import ctypes
import importlib
import os
import platform
import re
import sys
import threading
import warnings

from d2lbert.machine.hardware import (  # noqa: F401  (build and gpus for others)
    CUDA_LIBRARIES,
    MXNET_VERSION,
    WHEELS,
    build,
    cuda_libraries,
    gpus,
    mxnet_folders,
    mxnet_wheels,
    physical_cores,
)

_REINSTALL = f'pip install --force-reinstall --no-deps {{}}=={MXNET_VERSION}'
# Far beyond any use; libgomp ends the process where it cannot start them
MOST_THREADS = max(1024, os.cpu_count() or 1)
_START_OVER = ('pip uninstall -y mxnet mxnet-cu112 and install d2lbert '
               'again with pip install .')


def _check_numpy():
    """Refuse a NumPy that MXNet cannot work with; fill the small gaps."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError('MXNet needs NumPy, which cannot be imported '
                          f"({error}): pip install 'numpy<2'") from None
    if int(numpy.__version__.split('.')[0]) >= 2:
        raise ImportError(f'NumPy {numpy.__version__} is installed, and '
                          f'MXNet {MXNET_VERSION} works with versions below '
                          "2 only: pip install 'numpy<2'")
    # NumPy 1.24 took the name away, and hasattr would warn of NumPy 1.20's
    if 'bool' not in vars(numpy):
        numpy.bool = bool


def _provide_distutils():
    """MXNet imports distutils.version, which CPython 3.12 left out."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            importlib.import_module('distutils.version')
            return
        except ImportError:
            pass
        try:
            distutils = importlib.import_module('setuptools._distutils')
            version = importlib.import_module('setuptools._distutils.version')
        except ImportError:
            raise ImportError(
                f'MXNet {MXNET_VERSION} imports distutils, which Python '
                f'{platform.python_version()} lacks: pip install '
                "'setuptools<90'") from None
    sys.modules['distutils'] = distutils
    sys.modules['distutils.version'] = version


def _check_wheels():
    """Refuse an environment whose mxnet folder cannot be whole."""
    wheels = mxnet_wheels()
    if len(wheels) > 1:
        raise ImportError(
            'both mxnet and mxnet-cu112 are installed, which write the same '
            'folder, so that the last one written is in use and uninstalling '
            f'one empties the folder of both: {_START_OVER}')
    for wheel, version in wheels.items():
        if version != MXNET_VERSION:
            raise ImportError(
                f'{wheel} {version} is installed and d2lbert needs '
                f'{MXNET_VERSION}: pip install {wheel}=={MXNET_VERSION}')
    folders = mxnet_folders()
    if any((folder / '__init__.py').exists() for folder in folders):
        return
    for wheel in wheels:
        raise _emptied(wheel)
    raise ImportError('MXNet is not installed: install d2lbert again with '
                      f'pip install ., or pip install mxnet=={MXNET_VERSION}')


def _emptied(wheel):
    return ImportError(
        f'pip lists {wheel} but files of its folder mxnet are gone, as they '
        'are after mxnet or mxnet-cu112 was uninstalled beside the other: '
        + _REINSTALL.format(wheel))


def _load_cuda():
    """Load what mxnet-cu112 links from this environment's own folders.

    Once a library is loaded, the linker takes it for every later one that
    asks for its name, so nobody needs to set LD_LIBRARY_PATH.
    """
    try:
        ctypes.CDLL('libcuda.so.1', ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ImportError(
            'the GPU build of MXNet (mxnet-cu112) is installed and the '
            f'NVIDIA driver cannot be loaded ({error}): install the driver, '
            'or pip uninstall -y mxnet-cu112 and install d2lbert again with '
            'D2LBERT_MXNET=cpu pip install .') from None
    missing = []
    for library, (file, path) in zip(CUDA_LIBRARIES, cuda_libraries()):
        try:
            # Without a path: perhaps the system has a CUDA 11 of its own
            ctypes.CDLL(path or file, ctypes.RTLD_GLOBAL)
        except OSError as error:
            if path:
                raise ImportError(
                    f'{path} cannot be loaded ({error}): pip install '
                    f'--force-reinstall --no-deps {library.requirement}'
                ) from None
            missing.append(library)
    if missing:
        files = ', '.join(library.file for library in missing)
        wheels = ' '.join(dict.fromkeys(
            library.requirement for library in missing))
        raise ImportError(f'mxnet-cu112 needs {files}, not found here: '
                          f'pip install {wheels}')
    # It was compiled with cuDNN 8.1 and warns of any other 8.x, all of
    # which have the same interface
    os.environ.setdefault('MXNET_CUDNN_LIB_CHECKING', '0')


def _keep_freed_memory():
    """Let freed arrays be used again instead of going back to the system.

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
    libc.mallopt(-8, 1)          # M_ARENA_MAX: what one thread frees serves
    #                              the others as well


def thread_count(name, most=MOST_THREADS):
    """The number of threads that a variable asks for, None if it is unset.

    Of OpenMP's lists, which go on with the threads of regions within
    regions, the first number. ImportError for anything else: MXNet would
    end the process.
    """
    text = os.environ.get(name, '')
    if not text.strip():
        return None
    if re.fullmatch(r'\s*\d+\s*(,\s*\d+\s*)*', text, re.ASCII):
        count = int(text.split(',')[0])
        if 1 <= count <= most:
            return count
    raise ImportError(
        f'{name} is {text!r} and must be a number of threads from 1 to '
        f'{most}: unset {name}, or set it to {physical_cores()}, one for '
        'each core')


def _thread_settings():
    """Variables by which MXNet gets as many threads as it asks for.

    Its operators, oneDNN's and OpenBLAS's among them, reckon with the number
    that they ask OpenMP for, and give wrong numbers in silence where fewer
    threads come.
    """
    names = ('MXNET_OMP_MAX_THREADS', 'OMP_NUM_THREADS')
    settings, asked = {}, {name: thread_count(name) for name in names}
    if not any(asked.values()):
        asked = dict.fromkeys(names, physical_cores())
    limit = thread_count('OMP_THREAD_LIMIT', 2**63 - 1)
    if os.environ.get('OMP_MAX_ACTIVE_LEVELS', '').strip() == '0':
        limit = 1       # no region has more threads than the one it had
    if limit:
        asked = {name: min(count or physical_cores(), limit)
                 for name, count in asked.items()}
    for name, count in asked.items():
        if count:
            settings[name] = str(count)
    if os.environ.get('OMP_DYNAMIC', '').strip().lower() == 'true':
        settings['OMP_DYNAMIC'] = 'false'
        print('d2lbert: OMP_DYNAMIC=true does not hold for MXNet, which '
              'gives wrong numbers with fewer threads than it asks for',
              file=sys.stderr)
    return settings


def _check_loaded_openmp():
    """Refuse what libgomp, once loaded, can no longer be kept from."""
    try:
        openmp = ctypes.CDLL('libgomp.so.1', os.RTLD_NOLOAD | os.RTLD_NOW)
    except (AttributeError, OSError):
        return
    fewer = []

    def ask():
        fewer.append(openmp.omp_get_dynamic()
                     or openmp.omp_get_max_active_levels() == 0
                     or openmp.omp_get_max_threads()
                     > openmp.omp_get_thread_limit())

    # A thread of its own, as this one's settings may have been changed
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    if fewer[0]:
        raise ImportError(
            'OpenMP was loaded before d2lbert, with OMP_DYNAMIC, '
            'OMP_THREAD_LIMIT or OMP_MAX_ACTIVE_LEVELS giving MXNet fewer '
            'threads than it asks for, and so wrong numbers: import d2lbert '
            'before all other packages, or unset these variables')


@contextlib.contextmanager
def _threads_for_import():
    """Let MXNet use every core, unless the user has chosen otherwise.

    By itself it takes half of the CPUs, to leave out the second hardware
    threads, even where a CPU is a whole core. It reads these variables
    once, when it is loaded: MXNET_OMP_MAX_THREADS is for its own loops,
    OMP_NUM_THREADS for the OpenMP loops of libraries and compiled operators.
    GOMP_SPINCOUNT makes a thread that waits for another give way after
    microseconds, not milliseconds, which matters as soon as two programs
    share the cores. Afterwards they are as before, so that programs started
    from here are not affected.
    """
    _check_loaded_openmp()
    settings = _thread_settings()
    if not any(os.environ.get(name) for name in ('OMP_WAIT_POLICY',
                                                 'GOMP_SPINCOUNT')):
        settings['GOMP_SPINCOUNT'] = '1000'
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _explain(error):
    """The ImportError to raise for what `import mxnet` raised."""
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
                           f'here: {_REINSTALL.format(wheel)}')
    symbol = re.search(r'undefined symbol: (cu[A-Z]\w*)', text)
    if symbol:
        return ImportError(f'the NVIDIA driver lacks {symbol.group(1)}, which '
                           'the GPU build of MXNet calls: update the NVIDIA '
                           'driver')
    if 'Cannot find the MXNet library' in text:
        return _emptied(wheel)
    if isinstance(error, ModuleNotFoundError) and error.name:
        if error.name.split('.')[0] == 'mxnet':
            return _emptied(wheel)
        return ImportError(f'MXNet needs the package {error.name}: '
                           f'pip install {error.name}')
    return ImportError(
        f'MXNet cannot be imported ({type(error).__name__}: {text}): '
        + _REINSTALL.format(wheel))


def _import_mxnet():
    """Import MXNet, after all that it needs has been made ready."""
    _check_numpy()
    _provide_distutils()
    if 'mxnet' not in sys.modules:
        _check_wheels()
        if build() == 'cu112':
            _load_cuda()
    _keep_freed_memory()
    with warnings.catch_warnings(), _threads_for_import():
        # Of NumPy's and distutils' old names, which are MXNet's affair
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


mx = _import_mxnet()
autograd, gluon, init = mx.autograd, mx.gluon, mx.init
nn, np, npx = mx.gluon.nn, mx.np, mx.npx
npx.set_np()
