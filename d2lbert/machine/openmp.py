"""How many threads MXNet's operators get: OpenMP's, and never fewer.

It works where MXNet does not, for `d2lbert doctor` and the launcher. A copy
is a module of the installed MXNet (see `mxnet_wheel.py`), for programs that
import MXNet first.
"""
import contextlib
import ctypes
import os
import re
import sys
import threading

from d2lbert.machine.hardware import physical_cores

# Far beyond any use; libgomp ends the process where it cannot start them
MOST_THREADS = max(1024, os.cpu_count() or 1)
#: The variables that say how many: for MXNet's own loops, and for those of
#: libraries and compiled operators.
NUMBERS = 'MXNET_OMP_MAX_THREADS', 'OMP_NUM_THREADS'


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


def thread_settings():
    """Variables by which MXNet gets as many threads as it asks for.

    Its operators, oneDNN's and OpenBLAS's among them, reckon with the number
    that they ask OpenMP for, and give wrong numbers in silence where fewer
    threads come. ImportError where one of the user's own is no number.
    """
    settings, asked = {}, {name: thread_count(name) for name in NUMBERS}
    if not any(asked.values()):
        asked = dict.fromkeys(NUMBERS, physical_cores())
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
    return settings


def _loaded_openmp():
    """The system's libgomp, None where no package has loaded it."""
    try:
        return ctypes.CDLL('libgomp.so.1', os.RTLD_NOLOAD | os.RTLD_NOW)
    except (AttributeError, OSError):
        return None


def _check(openmp):
    """Refuse what libgomp, once loaded, can no longer be kept from."""
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
def threads_for_import():
    """Let MXNet use every core, unless the user has chosen otherwise.

    By itself it takes half of the CPUs, to leave out the second hardware
    threads, even where a CPU is a whole core. It reads these variables
    once, when it is loaded: MXNET_OMP_MAX_THREADS is for its own loops,
    OMP_NUM_THREADS for the OpenMP loops of libraries and compiled operators.
    GOMP_SPINCOUNT makes a thread that waits for another give way after
    microseconds, not milliseconds, which matters as soon as two programs
    share the cores. Afterwards they are as before, so that programs started
    from here are not affected. The number of threads that this thread gives
    to other libraries' loops is kept, too.
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
