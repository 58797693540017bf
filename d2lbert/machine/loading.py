"""Load the libraries that libmxnet.so needs.

`mxnet_wheel.py` copies this file into the installed MXNet, so that a plain
`import mxnet` works, too.
"""
import contextlib
import ctypes
import os

from d2lbert.machine.arm_libraries import is_arm, load
from d2lbert.machine.hardware import (
    CUDA_LIBRARIES,
    build,
    cuda_libraries,
    mxnet_folders,
)
from d2lbert.machine.openmp import threads_for_import


@contextlib.contextmanager
def libraries_ready():
    """Context in which libmxnet.so can be loaded, with its threads set.

    Raises ImportError, with a remedy, if a library is missing.
    """
    with contextlib.ExitStack() as stack:
        if build() == 'cu112':
            _load_cuda()
            stack.enter_context(_no_cudnn_warning())
        elif is_arm():
            load(mxnet_folders())
        stack.enter_context(threads_for_import())
        yield


def _load_cuda():
    """Load the libraries of mxnet-cu112 from this Python environment.

    The linker reuses a loaded library whenever its name is requested, so
    users need not set LD_LIBRARY_PATH.
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
            # Without a path, try a CUDA 11 of the system
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


@contextlib.contextmanager
def _no_cudnn_warning():
    """Suppress mxnet-cu112's warning about the cuDNN version.

    It was compiled with cuDNN 8.1 and warns about any other 8.x, though all
    have the same interface. It reads the variable only while it is loaded,
    so the variable is removed afterwards.
    """
    name = 'MXNET_CUDNN_LIB_CHECKING'
    if name in os.environ:
        yield
        return
    os.environ[name] = '0'
    try:
        yield
    finally:
        os.environ.pop(name)
