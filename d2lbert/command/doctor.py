"""Run `d2lbert doctor`: check this machine, and suggest remedies.

The command must work even if MXNet is broken, so MXNet is imported within
functions, not at the start of this module. An argument `mx` is the module
mxnet, or None if MXNet cannot be imported.
"""
import ctypes
import importlib
import os
import platform
import shutil
import sys
import textwrap
from typing import NamedTuple

from d2lbert._version import __version__
from d2lbert.command.flags import add_json, print_json
from d2lbert.machine import cache, hardware, mxnet_libraries
from d2lbert.machine.processor import chosen_isa, find_compiler, find_processor

#: Values of `Row.status`. WARN: slow or incomplete. BAD: `d2lbert pretrain`
#: without flags cannot run, or only with a network.
OK, WARN, BAD = 'ok', 'warn', 'bad'

#: Features of MXNet to report, if MXNet was built with them.
FEATURES = ['OPENMP', 'MKLDNN', 'CUDA', 'CUDNN', 'NCCL', 'DIST_KVSTORE',
            'BLAS_OPEN', 'F16C']

SLOWER = 'everything works but is slower'
#: {name of a row: (name of a module, name of the module's `kernels.Library`,
#: effect if the library is missing)}
COMPILED = {'fast operators': ('d2lbert.kernels', 'OPERATORS', SLOWER),
            'fast reading': ('d2lbert.kernels.draw', 'DRAW', SLOWER),
            'eight bits': ('d2lbert.kernels.int8', 'INT8',
                           '--precision int8 needs this library')}


class Row(NamedTuple):
    """One line of the report."""

    name: str
    status: str
    value: str
    remedy: str = ''    # what the user can do, or else the problem's effect


def add(commands):
    """Add this sub-command to the parser."""
    doctor = commands.add_parser(
        'doctor', help='check Python, MXNet, GPUs, compiler and data',
        description='Print a table of what d2lbert needs and what is here, '
        'with the remedy, or the effect, for each row that is not ok. The '
        'exit status is 0 only if d2lbert can train.')
    doctor.add_argument('--build', action='store_true',
                        help='compile the C++ libraries now, not at their '
                        'first use; the exit status is 0 only if that works')
    add_json(doctor.add_argument, 'one object with the rows')
    doctor.set_defaults(run=run)


def run(args):
    """Print the table; returns the exit status."""
    if args.json:
        rows = report(args.build)
        exit_status = _exit_status(rows, args.build)
        print_json(dict(version=__version__, ok=exit_status == 0,
                        rows=[row._asdict() for row in rows]))
        return exit_status
    return print_report(args.build)


def report(build=False):
    """Return a list of `Row`s about this machine.

    build: also compile the libraries that are not compiled yet.
    """
    mx, mxnet_rows = _mxnet_rows()
    return [_python_row(), _numpy_row(), *mxnet_rows, *_driver_rows(mx),
            *_cuda_rows(), _compiler_row(),
            *(_compiled_row(name, mx, build) for name in COMPILED),
            _processor_row(mx), *_products_rows(), _cache_row(),
            *_data_rows(), _matplotlib_row()]


def print_report(build=False):
    """Print the report; returns the exit status."""
    rows = report(build)
    name_width = max(len(row.name) for row in rows)
    indent = ' ' * (6 + name_width + 2)     # the columns before the value
    for row in rows:
        print(f'{row.status:<6}{row.name:<{name_width}}  '
              + _wrapped(row.value, indent))
        if row.remedy:
            print(f'{indent}-> ' + _wrapped(row.remedy, indent + '   '))
    bad_names = [row.name for row in rows if row.status == BAD]
    exit_status = _exit_status(rows, build)
    print()
    if bad_names:
        print('`d2lbert pretrain` cannot run yet: see '
              f'{", ".join(bad_names)}.')
    else:
        print('`d2lbert pretrain` can run.')
        if exit_status:
            print('Not all compiled libraries can be used.')
    return exit_status


def _exit_status(rows, build):
    """Return 1 for a BAD row or, with `build`, a WARN of a library; else 0."""
    for row in rows:
        is_required = build and row.name in COMPILED
        if row.status == BAD or (is_required and row.status == WARN):
            return 1
    return 0


def _wrapped(text, indent):
    """Wrap text to the terminal, with `indent` before all lines but the first.

    Words are not broken, so that commands and paths can be copied.
    """
    width = max(16, shutil.get_terminal_size((79, 24)).columns - len(indent))
    lines = textwrap.wrap(text, width, break_long_words=False,
                          break_on_hyphens=False)
    return ('\n' + indent).join(lines)


def _python_row():
    value = (f'{platform.python_version()} ({sys.executable}), '
             f'{platform.system()} {platform.machine()}')
    if sys.version_info < (3, 8):
        return Row('Python', BAD, value, 'd2lbert needs Python 3.8 or later: '
                   'make a virtual environment with a later Python')
    return Row('Python', OK, value)


def _numpy_row():
    try:
        import numpy
    except ImportError as error:
        return Row('NumPy', BAD, f'cannot be imported: {error}',
                   'pip install numpy')
    return Row('NumPy', OK, numpy.__version__)


def _mxnet_rows():
    """Return (mx, rows): the module mxnet or None, and `Row`s about it."""
    mxnet_build = hardware.build()
    try:
        mx = importlib.import_module('d2lbert.machine.backend').mx
    except ImportError as error:
        # Every message of machine.backend ends with ': ' and the remedy
        problem, _, remedy = str(error).rpartition(': ')
        return None, [Row('MXNet', BAD, problem, remedy)]
    enabled = [name for name in FEATURES
               if mx.runtime.Features().is_enabled(name)]
    value = f'{mx.__version__}, {mxnet_build} build, with {", ".join(enabled)}'
    return mx, [Row('MXNet', OK, value), _threads_row()]


def _threads_row():
    num_cores = hardware.physical_cores()
    num_cpus = len(hardware.available_cpus())
    hardware_text = f'{num_cpus} CPUs available, {num_cores} cores'
    try:
        num_threads = ctypes.CDLL('libgomp.so.1').omp_get_max_threads()
    except (AttributeError, OSError):
        return Row('threads', OK, f'unknown; {hardware_text}')
    mxnet_limit = mxnet_libraries.thread_count('MXNET_OMP_MAX_THREADS')
    if mxnet_limit is not None:
        num_threads = min(num_threads, mxnet_limit)
    value = f'{num_threads}; {hardware_text}'
    if num_threads < num_cores:
        variables = ['OMP_NUM_THREADS', 'MXNET_OMP_MAX_THREADS',
                     'OMP_THREAD_LIMIT', 'OMP_MAX_ACTIVE_LEVELS']
        variables_set = [name for name in variables if os.environ.get(name)]
        return Row('threads', WARN, value, 'unset '
                   + ' and '.join(variables_set or variables)
                   + ' to use every core')
    return Row('threads', OK, value)


def _driver_rows(mx):
    """Return a row about the NVIDIA driver, and a row for each GPU."""
    driver, mxnet_build = hardware.driver(), hardware.build()
    if driver.problem.startswith('libcuda.so.1 does not work'):
        return [Row('driver', WARN, driver.problem,
                    'if this machine has a GPU, install the NVIDIA driver '
                    'again; without a GPU, nothing is wrong')]
    if driver.problem:      # no driver or no GPU: OK, since a CPU is enough
        return [Row('driver', OK, driver.problem)]
    driver_text = 'NVIDIA'
    if driver.cuda:
        driver_text += ', for CUDA up to {}.{}'.format(*driver.cuda)
    rows = [Row('driver', OK, driver_text)]
    for gpu in driver.gpus:
        name = f'GPU {gpu.index}'
        major, minor = gpu.capability       # major is 0 if unknown
        value = f'{gpu.name}, compute capability ' + (
            f'{major}.{minor}' if major else 'unknown')
        if not gpu.is_usable:
            rows.append(Row(name, WARN, f'{value}: not usable',
                            f'{gpu.reason}; the CPU or another GPU is used'))
        elif mxnet_build == 'cpu':
            rows.append(Row(
                name, WARN, f'{value}: not used by the CPU build of MXNet',
                'pip uninstall -y mxnet, then D2LBERT_MXNET=cu112 pip '
                'install .'))
        elif mx is not None and gpu.index >= _num_gpus(mx):
            rows.append(Row(name, WARN, f'{value}: MXNet does not see it',
                            'update the NVIDIA driver, and look at '
                            'CUDA_VISIBLE_DEVICES'))
        else:
            rows.append(Row(name, OK, f'{value}: usable'))
    return rows


def _num_gpus(mx):
    try:
        return mx.context.num_gpus()
    except mx.base.MXNetError:
        return 0


def _cuda_rows():
    """Return [row about the CUDA libraries]; [] for the CPU build of MXNet."""
    if hardware.build() != 'cu112':
        return []
    paths = dict(hardware.cuda_libraries())
    missing = [library for library in hardware.CUDA_LIBRARIES
               if paths[library.file] is None]
    total = len(hardware.CUDA_LIBRARIES)
    if not missing:
        return [Row('CUDA libraries', OK, f'{total} of {total} found')]
    # Name a package with several libraries once
    packages = dict.fromkeys(library.requirement for library in missing)
    return [Row('CUDA libraries', WARN,
                f'{total - len(missing)} of {total} found in this '
                'environment; not ' + ', '.join(
                    library.file for library in missing),
                'unless the system has them: pip install '
                + ' '.join(packages))]


def _compiler_row():
    try:
        _, version = find_compiler()
        return Row('compiler', OK, version)
    except LookupError as error:    # `error` lists the names that were tried
        return Row('compiler', WARN, f'none found: looked for {error}',
                   'training works but is slower without a C++ compiler: '
                   'apt-get install g++ (Debian and Ubuntu), or name one in '
                   'CXX')


def _compiled_row(name, mx, build):
    """Return the row `name`, a key of COMPILED; build: as in `report`."""
    if mx is None:
        return Row(name, WARN, 'not tried without MXNet',
                   'see MXNet above')
    module_name, library_name, effect_if_missing = COMPILED[name]
    failure_status, failure_remedy = WARN, effect_if_missing
    try:
        from d2lbert import kernels
        if kernels.mode() == 'off':
            return Row(name, WARN, 'not used: D2LBERT_KERNELS is off',
                       f'{effect_if_missing}; unset D2LBERT_KERNELS')
        if kernels.mode() == 'require':
            # `pretrain` does not need the library of eight bits
            failure_status = WARN if name == 'eight bits' else BAD
            failure_remedy = ('commands that need this library fail, since '
                              'D2LBERT_KERNELS=require; unset '
                              'D2LBERT_KERNELS')
        module = importlib.import_module(module_name)
        library = getattr(module, library_name)
        # `get` compiles the library if necessary
        is_usable = library.open_if_compiled() or (
            build and library.get() is not None)
    except ValueError as error:     # an environment variable is invalid
        return Row(name, BAD, f'not loaded: {error}', 'correct this '
                   'variable; until then, commands that need this library '
                   'fail')
    except Exception as error:  # other rows must still be printed
        return Row(name, failure_status, f'not loaded: {error}',
                   failure_remedy)
    if is_usable:
        value = f'loaded from {library.path}'
        if name == 'eight bits':
            value += f'; multiplies by {module.product()}'
        return Row(name, OK, value)
    if library.reason:
        return Row(name, failure_status, f'not loaded: {library.reason}',
                   failure_remedy)
    return Row(name, WARN, 'not compiled yet',
               f'run d2lbert doctor --build, which takes {library.takes}; '
               'else the first use compiles it')


def _processor_row(mx):
    value = str(find_processor())
    isa_setting, compiled_for = 'native', None
    if mx is not None:
        from d2lbert import kernels
        try:
            isa_setting = chosen_isa()
        except ValueError as error:
            remedy = '`d2lbert help environment` explains D2LBERT_ISA'
            # Not `kernels.mode`, which raises an error for other values
            if os.environ.get('D2LBERT_KERNELS') == 'off':
                return Row('processor', WARN, f'{value}; {error}',
                           'nothing is compiled for it while '
                           f'D2LBERT_KERNELS is off; {remedy}')
            return Row('processor', BAD, f'{value}; {error}', remedy)
        compiled_for = kernels.compiled_for()
    if compiled_for:
        instruction_set, vector_floats = compiled_for
        value += (f': operators for {instruction_set}, {vector_floats} '
                  'floats a vector')
    if isa_setting != 'native':
        value += f'; D2LBERT_ISA is {isa_setting}'
    return Row('processor', OK, value)


def _products_rows():
    """Return [row about matrix products]; [] if no operators are loaded."""
    kernels = sys.modules.get('d2lbert.kernels')    # None without MXNet
    choice = kernels and kernels.products.chosen()
    if not choice:
        return []
    value = ' and '.join(
        f'{precision} by {kernels.products.describe(method)}'
        for precision, method in (('fp32', choice.fp32),
                                  ('bf16', choice.bf16)))
    return [Row('products', OK, f'{value}: {choice.why}')]


def _cache_row():
    try:
        value = f'{cache.root()}, {cache.megabytes(cache.size())}'
        is_temporary = cache.is_root_temporary()
    except OSError as error:
        return Row('cache', WARN, f'does not work: {error}',
                   'set D2LBERT_CACHE to a folder that you can write')
    if is_temporary:
        return Row('cache', WARN, f'{value}: there is no home folder that '
                   'can be written', 'set D2LBERT_CACHE, or HOME, to a folder '
                   'that is not temporary')
    return Row('cache', OK, value)


def _data_rows():
    """Return rows about WikiText-2 and the sample corpus.

    `d2lbert pretrain` needs one of the two if it has neither a network nor
    --corpus.
    """
    try:
        from d2lbert import hub
        wikitext_dir = hub.find_wikitext2()
    except Exception as error:  # other rows must still be printed
        return [Row('data', BAD, f'the search for texts failed: {error}',
                    'install d2lbert again with pip install .')]
    try:
        sample_row = Row('sample corpus', OK, str(hub.sample_dir()))
    except FileNotFoundError:
        sample_row = Row('sample corpus', WARN if wikitext_dir else BAD,
                         'not found',
                         'install d2lbert again with pip install .')
    if wikitext_dir:
        flaws = hub.wikitext2_flaws(wikitext_dir, thorough=True)
        if not flaws:
            return [Row('WikiText-2', OK, str(wikitext_dir)), sample_row]
        return [Row('WikiText-2', WARN, '; '.join(flaws),
                    '`d2lbert pretrain` uses these files as they are: put '
                    'the published files there, or remove the folder to have '
                    'them fetched'), sample_row]
    return [Row('WikiText-2', WARN, 'not on this machine',
                '`d2lbert pretrain` fetches it if the network allows, and '
                'trains on the sample corpus if not; or set D2LBERT_DATA to '
                'the folder that contains wikitext-2/'), sample_row]


def _matplotlib_row():
    try:
        import matplotlib
        backend = matplotlib.get_backend()
    except Exception as error:  # an unknown MPLBACKEND raises ValueError
        return Row('matplotlib', WARN, f'does not work: {error}',
                   "losses cannot be drawn: pip install 'matplotlib<4', and "
                   'look at MPLBACKEND')
    return Row('matplotlib', OK, f'{matplotlib.__version__}, backend '
                                 f'{backend}')
