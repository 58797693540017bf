"""Set the number of OpenMP threads of MXNet's operators.

This module does not import MXNet, because `d2lbert doctor` and the launcher
use it. `mxnet_wheel.py` copies it into the installed MXNet, for programs
that import MXNet first.
"""
import contextlib
import ctypes
import os
import re
import sys
import threading

from d2lbert.machine.hardware import physical_cores

# libgomp ends the process if it cannot start the threads
MOST_THREADS = max(1024, os.cpu_count() or 1)
#: Variables with the number of threads: for MXNet's own loops, and for loops
#: of libraries and compiled operators.
NUMBERS = 'MXNET_OMP_MAX_THREADS', 'OMP_NUM_THREADS'


def thread_count(name, most=MOST_THREADS):
    """The number of threads in an environment variable; None if unset.

    OpenMP allows a list, with one number for each nesting level; the first
    number counts. Raises ImportError for any other value, because MXNet
    would end the process.
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


def thread_settings():
    """Environment variables that give MXNet all threads that it requests.

    MXNet, oneDNN and OpenBLAS assume that OpenMP starts the requested number
    of threads. With fewer threads, they return wrong results without an
    error. Raises ImportError if a variable that the user set is invalid.
    """
    settings, asked = {}, {name: thread_count(name) for name in NUMBERS}
    if not any(asked.values()):
        asked = dict.fromkeys(NUMBERS, physical_cores())
    limit = thread_count('OMP_THREAD_LIMIT', 2**63 - 1)
    if os.environ.get('OMP_MAX_ACTIVE_LEVELS', '').strip() == '0':
        limit = 1       # parallel regions then have a single thread
    if limit:
        asked = {name: min(count or physical_cores(), limit)
                 for name, count in asked.items()}
    for name, count in asked.items():
        if count:
            settings[name] = str(count)
    if os.environ.get('OMP_DYNAMIC', '').strip().lower() == 'true':
        settings['OMP_DYNAMIC'] = 'false'
    return settings


def _loaded_openmp():
    """The system's libgomp if it is already loaded, else None."""
    try:
        return ctypes.CDLL('libgomp.so.1', os.RTLD_NOLOAD | os.RTLD_NOW)
    except (AttributeError, OSError):
        return None


def _check(openmp):
    """Raise if libgomp was loaded with settings that give too few threads."""
    fewer = []

    def ask():
        fewer.append(openmp.omp_get_dynamic()
                     or openmp.omp_get_max_active_levels() == 0
                     or openmp.omp_get_max_threads()
                     > openmp.omp_get_thread_limit())

    # In a new thread: this thread's settings may have been changed
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
def threads_for_import():
    """Let MXNet use every core, unless the user has set another number.

    By default, MXNet uses half of the CPUs, to skip second hardware threads,
    even if each CPU is a whole core. It reads these variables once, when it
    is loaded. MXNET_OMP_MAX_THREADS applies to its own loops, and
    OMP_NUM_THREADS to OpenMP loops of libraries and compiled operators.
    GOMP_SPINCOUNT lets a waiting thread yield after microseconds instead of
    milliseconds, which matters when two programs share the cores.

    On exit the variables are restored, so that child processes do not
    inherit them. The OpenMP thread count of the calling thread is restored,
    too.
    """
    openmp, kept = _loaded_openmp(), None
    if openmp is not None:
        _check(openmp)
        kept = openmp.omp_get_max_threads()
    settings = thread_settings()
    if 'OMP_DYNAMIC' in settings:
        print('d2lbert: OMP_DYNAMIC=true does not hold for MXNet, which '
              'gives wrong numbers with fewer threads than it asks for',
              file=sys.stderr)
    if not any(os.environ.get(name) for name in ('OMP_WAIT_POLICY',
                                                 'GOMP_SPINCOUNT')):
        settings['GOMP_SPINCOUNT'] = '1000'
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        if kept is not None:
            openmp.omp_set_num_threads(kept)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
