"""Load the libraries that libmxnet.so needs; set its number of threads.

This module does not import MXNet, because `d2lbert doctor` and `d2lbert
launch` use it where MXNet may be broken. `mxnet_wheel.py` copies it into
MXNet's package, so that `import mxnet` works without d2lbert, too.
"""
import contextlib
import ctypes
import os
import platform
import re
import struct
import sys
import tempfile
import threading

from d2lbert.machine.hardware import (
    ARM_PACKAGES,
    CUDA_LIBRARIES,
    build,
    cuda_libraries,
    mxnet_folders,
    physical_cores,
)


@contextlib.contextmanager
def libraries_ready():
    """Context to load libmxnet.so in, with its libraries and thread counts.

    Raises ImportError, with a remedy, if a needed library cannot be loaded, if
    a thread count is invalid, or if OpenMP may start too few threads.
    """
    with contextlib.ExitStack() as stack:
        if build() == 'cu112':
            _load_cuda()
            stack.enter_context(_no_cudnn_warning())
        elif _is_arm_linux():
            load_arm(mxnet_folders())
        stack.enter_context(threads_for_import())
        yield


def _load_cuda():
    """Load the CUDA libraries, so that users need not set LD_LIBRARY_PATH.

    The dynamic linker links libmxnet.so to libraries that are already loaded.
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
            # With the name alone, the linker searches the system's folders
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

    mxnet-cu112 was compiled with cuDNN 8.1 and, when it is loaded, warns about
    any other 8.x, though all have the same interface.
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


# libmxnet.so of the Arm wheel requests ARM_LIBRARIES, which no package index
# offers. The first is a linear algebra library, whose functions have the same
# names in OpenBLAS and LAPACKE. The others only replace functions of the C
# library.
#
# The dynamic linker first looks for libraries by name, and then for functions
# in all loaded libraries. It accepts a loaded library that stores the
# requested name (DT_SONAME). So empty libraries with the requested names are
# enough, if OpenBLAS and LAPACKE are loaded, too.

ARM_LIBRARIES = ('libarmpl_lp64_mp.so', 'libamath.so', 'libastring.so')
LINEAR_ALGEBRA = ('libopenblas.so.0', 'liblapacke.so.3')

#: {platform.machine(): its number in the field e_machine of an ELF file}.
ELF_MACHINES = {'aarch64': 183, 'x86_64': 62}


def _is_arm_linux():
    return sys.platform.startswith('linux') and (
        platform.machine() == 'aarch64')


def empty_library(name, machine):
    """The bytes of an empty shared library with `name` as its DT_SONAME.

    machine: a key of ELF_MACHINES. The file has an ELF header, two program
    headers, and a dynamic section with the name and an empty symbol table.
    """
    header_size, program_header_size, symbol_size = 64, 56, 24  # in bytes
    strings = b'\0' + name.encode() + b'\0'
    # Offsets of the sections in the file, in bytes
    strings_at = header_size + 2 * program_header_size
    symbols_at = (strings_at + len(strings) + 7) // 8 * 8   # 8-byte aligned
    dynamic_at = symbols_at + symbol_size
    # Pairs (tag, value): DT_SONAME (an offset in `strings`), DT_STRTAB,
    # DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL
    dynamic = struct.pack('<12Q', 14, 1, 5, strings_at, 6, symbols_at, 10,
                          len(strings), 11, symbol_size, 0, 0)
    size = dynamic_at + len(dynamic)
    ident = b'\x7fELF' + bytes([2, 1, 1]) + bytes(9)    # 64 bits, LSB first
    return b''.join([
        # ELF header: `ident`, then e_type (3: shared library) to e_shstrndx
        ident, struct.pack('<HHIQQQIHHHHHH', 3, ELF_MACHINES[machine], 1, 0,
                           header_size, 0, 0, header_size,
                           program_header_size, 2, 0, 0, 0),
        # PT_LOAD: the whole file, writable because the linker stores
        # addresses in it. PT_DYNAMIC: the dynamic section
        struct.pack('<IIQQQQQQ', 1, 6, 0, 0, 0, size, size, 1 << 16),
        struct.pack('<IIQQQQQQ', 2, 6, dynamic_at, dynamic_at, dynamic_at,
                    len(dynamic), len(dynamic), 8),
        strings.ljust(symbols_at - strings_at, b'\0'), bytes(symbol_size),
        dynamic])


def _try_load(name):
    try:
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def load_arm(folders=()):
    """Load ARM_LIBRARIES, or replacements for the missing ones.

    folders: where to search after the system's folders. Pass the folder of
    libmxnet.so, since the dynamic linker also searches it. Raises ImportError
    without a linear algebra library.
    """
    def load(name):
        paths = [name, *(os.path.join(folder, name) for folder in folders)]
        return any(map(_try_load, paths))

    missing = [name for name in ARM_LIBRARIES if not load(name)]
    if ARM_LIBRARIES[0] in missing:
        openblas, lapacke = LINEAR_ALGEBRA
        if not _try_load(openblas):
            raise ImportError(
                f'MXNet for Arm needs {openblas}, not found here: '
                + ARM_PACKAGES)
        # May be missing: OpenBLAS may contain LAPACKE, and without LAPACKE
        # only MXNet's linalg fails
        _try_load(lapacke)
    for name in missing:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, name)
            with open(path, 'wb') as file:
                file.write(empty_library(name, platform.machine()))
            # The library stays loaded after its file is removed
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)


#: Larger thread counts are rejected: if libgomp cannot start the threads, it
#: ends the process.
MAX_THREADS = max(1024, os.cpu_count() or 1)
#: Variables with thread counts. The first is for MXNet's own loops, the second
#: for loops of libraries and compiled operators.
THREAD_VARIABLES = 'MXNET_OMP_MAX_THREADS', 'OMP_NUM_THREADS'


def thread_count(name, maximum=MAX_THREADS):
    """The thread count in environment variable `name`; None: unset or blank.

    If the variable lists a count for each nesting level of OpenMP, the first
    is returned. Raises ImportError for an invalid value, with which MXNet
    might end the process.
    """
    text = os.environ.get(name, '')
    if not text.strip():
        return None
    if re.fullmatch(r'\s*\d+\s*(,\s*\d+\s*)*', text, re.ASCII):
        count = int(text.split(',')[0])
        if 1 <= count <= maximum:
            return count
    raise ImportError(
        f'{name} is {text!r} and must be a number of threads from 1 to '
        f'{maximum}: unset {name}, or set it to {physical_cores()}, one for '
        'each core')


def thread_settings():
    """{variable: value} with which MXNet gets all threads that it requests.

    MXNet, oneDNN and OpenBLAS assume that OpenMP starts the requested number
    of threads. With fewer threads, they return wrong results without an
    error. Raises ImportError as `thread_count` does.
    """
    counts = {name: thread_count(name) for name in THREAD_VARIABLES}
    if not any(counts.values()):
        counts = dict.fromkeys(THREAD_VARIABLES, physical_cores())
    # A limit starts no threads, so any number that fits into 64 bits is valid
    limit = thread_count('OMP_THREAD_LIMIT', 2**63 - 1)
    if os.environ.get('OMP_MAX_ACTIVE_LEVELS', '').strip() == '0':
        limit = 1       # parallel regions have a single thread
    if limit:
        # Also set an unset variable: MXNet's default may exceed the limit
        counts = {name: min(count or physical_cores(), limit)
                  for name, count in counts.items()}
    settings = {name: str(count) for name, count in counts.items() if count}
    if os.environ.get('OMP_DYNAMIC', '').strip().lower() == 'true':
        settings['OMP_DYNAMIC'] = 'false'
    return settings


def _loaded_libgomp():
    try:
        return ctypes.CDLL('libgomp.so.1', os.RTLD_NOLOAD | os.RTLD_NOW)
    except (AttributeError, OSError):
        return None


def _check_threads(libgomp):
    """Raise ImportError if the loaded libgomp may start too few threads.

    libgomp reads environment variables only on loading, so it is too late to
    correct them.
    """
    may_lack_threads = []   # one result, from the thread

    def check():
        may_lack_threads.append(libgomp.omp_get_dynamic()
                                or libgomp.omp_get_max_active_levels() == 0
                                or libgomp.omp_get_max_threads()
                                > libgomp.omp_get_thread_limit())

    # A new thread has the settings that libgomp read from the environment. The
    # program may have changed the settings of the present thread
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    if may_lack_threads[0]:
        raise ImportError(
            'OpenMP was loaded before d2lbert, and OMP_DYNAMIC, '
            'OMP_THREAD_LIMIT or OMP_MAX_ACTIVE_LEVELS may give MXNet fewer '
            'threads than it requests, so that it computes wrong numbers: '
            'import d2lbert before all other packages, or unset these '
            'variables')


@contextlib.contextmanager
def threads_for_import():
    """Context to load MXNet in, so that MXNet uses all cores.

    By default, MXNet uses half of the CPUs, to skip second hardware threads,
    even if each CPU is a whole core. MXNet reads THREAD_VARIABLES only on
    loading. On exit, the environment is restored, so that child processes do
    not inherit the changes.
    """
    libgomp = _loaded_libgomp()
    if libgomp is not None:
        _check_threads(libgomp)
        # Loading MXNet may change the count of the calling thread
        count_before = libgomp.omp_get_max_threads()
    settings = thread_settings()
    if 'OMP_DYNAMIC' in settings:
        print('d2lbert: OMP_DYNAMIC=true is ignored, because MXNet computes '
              'wrong numbers if it gets fewer threads than it requests',
              file=sys.stderr)
    if not any(os.environ.get(name) for name in ('OMP_WAIT_POLICY',
                                                 'GOMP_SPINCOUNT')):
        # Waiting threads yield after microseconds instead of milliseconds,
        # which matters when two programs share the cores
        settings['GOMP_SPINCOUNT'] = '1000'
    values_before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        if libgomp is not None:
            libgomp.omp_set_num_threads(count_before)
        for name, value in values_before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
