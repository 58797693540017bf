"""Choose the fastest matrix-multiplication kernel by a measurement.

There are four kernels. `plain` multiplies vectors of fp32. `pairs` multiplies
AVX-512 vectors of pairs of bfloat16. `tiles` multiplies AMX tiles of bfloat16.
`split` uses such tiles for fp32: it splits each number into three bfloat16.

Precision fp32 uses `plain`, or `split` if it is much faster and as accurate.
Precision bf16 uses `pairs`, `tiles` or `plain`. The measurement runs once for
each compiled library and CPU, and a file beside the library stores it. There
is nothing to measure if D2LBERT_AMX is `require`, or if the library lacks
bfloat16 instructions and so has only `plain`.
"""
import contextlib
import ctypes
import json
import os
from typing import NamedTuple

import numpy as onp

from d2lbert.machine.cache import is_trusted, make_private
from d2lbert.machine.files import read_json, replacing
from d2lbert.machine.processor import find_processor

__all__ = ['NAMES', 'Choice', 'chosen', 'cpu', 'describe', 'mode', 'record',
           'resume', 'time_product', 'use']

#: The names of the kernels, in the order of `Kernel` in amx.h.
NAMES = 'plain', 'pairs', 'tiles', 'split'
#: {kernel: its name for users}; `mxnet` is used without the fused operators.
DESCRIPTIONS = {'plain': 'fp32 vectors', 'pairs': 'bfloat16 pairs (AVX-512)',
                'tiles': 'bfloat16 tiles (AMX)',
                'split': 'bfloat16 tiles with three parts per number (AMX)',
                'mxnet': "MXNet's own operators"}

#: (rows, inputs, outputs) of the measured product.
TRIAL_SHAPE = 1024, 256, 512
#: Runs of each kernel; the fastest run counts.
NUM_RUNS = 5
#: For bf16, `plain` is used if it takes less than this share of the time of
#: `pairs` or `tiles`. Smaller differences are noise.
PLAIN_RATIO = 0.95
#: For fp32, `split` is used if it takes less than this share of the time of
#: `plain`. A whole step gains less than the product, and other programs on
#: the same core slow tiles more than vectors.
SPLIT_RATIO = 0.55
#: The largest allowed error of `split` against float64, relative to the
#: largest element of the product. The tests allow the same error.
TOLERANCE = 2e-5

#: Results of `d2lbert_tiles` in amx.cc.
TILES_DENIED, TILES_USABLE = 1, 2

#: Machine types whose CPUs have a family and a model.
X86 = {'x86_64', 'AMD64', 'i386', 'i686'}


class Choice(NamedTuple):
    """The chosen kernel of each precision, and the reason."""

    fp32: str       # a name of NAMES
    bf16: str       # a name of NAMES
    why: str        # whether tiles can be used, and the measured times


class _State:
    """The library of the operators, and its `Choice`; None before `choose`."""

    library = choice = None


def mode():
    """The value of D2LBERT_AMX: auto, off or require."""
    value = os.environ.get('D2LBERT_AMX') or 'auto'
    if value not in ('auto', 'off', 'require'):
        raise ValueError(f'D2LBERT_AMX is {value!r}: it must be auto, off or '
                         'require')
    return value


def cpu():
    """The CPU's name, family and model, or its name and machine type."""
    processor = find_processor()
    name = processor.name or 'unknown'
    if processor.machine not in X86 or not processor.family:
        return f'{name}, {processor.machine}'
    return f'{name}, family {processor.family}, model {processor.model}'


# Choosing

def choose(library, path):
    """Choose and use the kernels of a library of operators.

    library: the library, opened by ctypes from `path`. Raises ValueError if
    D2LBERT_AMX has an unknown value, or is `require` and tiles cannot be used.
    """
    amx_mode = mode()
    library.d2lbert_trial.restype = ctypes.c_double
    has_pairs = bool(library.d2lbert_bf16())
    can_use_tiles, why = _check_tiles(library, amx_mode)
    if amx_mode == 'require':
        if not can_use_tiles:
            raise ValueError(f'D2LBERT_AMX is require, but {why}: unset it')
        choice = Choice('split', 'tiles', 'D2LBERT_AMX is require')
    elif not has_pairs:
        choice = Choice('plain', 'plain', why)
    else:
        measured = _read_or_measure(library, path, can_use_tiles)
        choice = _choose_fastest(measured, can_use_tiles, why)
    _State.library = library
    use(choice)


def use(choice):
    """Use the kernels of a `Choice` from now on, in all threads."""
    _State.library.d2lbert_choose(NAMES.index(choice.fp32),
                                  NAMES.index(choice.bf16))
    _State.choice = choice


def _check_tiles(library, amx_mode):
    """Return (True, reason) if tiles can be used, else (False, reason)."""
    if amx_mode == 'off':
        return False, 'D2LBERT_AMX is off'
    support = library.d2lbert_tiles()
    if support == TILES_USABLE:
        return True, 'AMX can be used'
    if support == TILES_DENIED:
        return False, 'the system refuses AMX to this process'
    if {'amx_tile', 'amx_bf16'} <= find_processor().features:
        return False, ('this CPU has AMX, but the operators were compiled '
                       'without it')
    return False, 'this CPU has no AMX'


def _choose_fastest(measured, can_use_tiles, why):
    seconds, errors = measured['seconds'], measured['errors']
    bf16 = 'pairs'
    if can_use_tiles and seconds['tiles'] < seconds['pairs']:
        bf16 = 'tiles'
    if seconds['plain'] < PLAIN_RATIO * seconds[bf16]:
        bf16 = 'plain'
    fp32 = 'plain'
    if (can_use_tiles and seconds['split'] < SPLIT_RATIO * seconds['plain']
            and errors['split'] <= errors['plain']
            and measured['split_error'] <= TOLERANCE):
        fp32 = 'split'
    figures = ', '.join(f'{1e3 * seconds[name]:.2f} by {DESCRIPTIONS[name]}'
                        for name in NAMES if name in seconds)
    return Choice(fp32, bf16, f'{why}; milliseconds of one product, measured '
                              f'once: {figures}')


def _read_or_measure(library, path, can_use_tiles):
    """Read the stored measurement, or take and store a new one.

    Returns a dict. seconds: {kernel: time of the product}. errors: {kernel:
    root mean square error against float64} for `plain` and `split`.
    split_error: the largest error of `split` divided by the largest element of
    the product.
    """
    names = NAMES if can_use_tiles else NAMES[:2]   # the last two use tiles
    stored_path = path.with_name(path.name + '.products')
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = read_json(stored_path)
        if (is_trusted(stored_path.stat()) and stored['cpu'] == cpu()
                and set(names) <= set(stored['seconds'])):
            return dict(
                seconds={name: float(stored['seconds'][name])
                         for name in names},
                errors={name: float(error)
                        for name, error in stored['errors'].items()},
                split_error=float(stored['split_error']))
    measured = _measure(library, names)
    with contextlib.suppress(OSError):
        with replacing(stored_path) as temporary_path:
            temporary_path.write_text(json.dumps(dict(measured, cpu=cpu())),
                                      'utf-8')
            make_private(temporary_path)
    return measured


def _measure(library, names):
    """Measure these kernels; returns the dict of `_read_or_measure`."""
    rows, inputs, outputs = TRIAL_SHAPE
    rng = onp.random.RandomState(1)
    X, W = (rng.normal(size=size).astype('float32')
            for size in ((rows, inputs), (outputs, inputs)))
    Y = onp.empty((rows, outputs), 'float32')
    checked_rows = slice(64)
    exact = X[checked_rows].astype('float64') @ W.T.astype('float64')
    seconds = dict.fromkeys(names, float('inf'))
    errors, split_error = {}, 0.
    for _ in range(NUM_RUNS):
        for name in names:
            seconds[name] = min(seconds[name],
                                time_product(library, name, X, W, Y))
            if name in ('plain', 'split'):
                error = Y[checked_rows] - exact
                errors[name] = float(onp.sqrt((error ** 2).mean()))
                if name == 'split':
                    split_error = float(abs(error).max() / abs(exact).max())
    return dict(seconds=seconds, errors=errors,
                split_error=split_error)


def time_product(library, name, X, W, Y, runs=1):
    """Compute Y = X W^T by one thread; return the CPU seconds of a run.

    name: the kernel. X (R, K), W (N, K) and Y (R, N): C-contiguous float32
    NumPy arrays; Y is overwritten. runs: the number of runs; the fastest run
    counts. Returns infinity if memory runs out, or if the kernel needs tiles
    and they cannot be used.
    """
    (rows, inputs), outputs = X.shape, len(W)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (X, W, Y)]
    return library.d2lbert_trial(
        NAMES.index(name), *map(ctypes.c_long, (rows, inputs, outputs)),
        *pointers, runs)


# The kernels in use

def chosen():
    """The `Choice` in use; None before the operators are loaded."""
    return _State.choice


def describe(name):
    """The description of a kernel by its name."""
    return DESCRIPTIONS.get(name, name)


def record(precision, fused=True):
    """The kernel and the CPU in use, for a checkpoint.

    precision: 'fp32' or 'bf16'. fused: True if the fused operators are in use.
    Returns {'product': name of the kernel, or 'mxnet' for MXNet's operators,
    'cpu': the result of `cpu`}.
    """
    choice = chosen()
    kernel = getattr(choice, precision) if fused and choice else 'mxnet'
    return dict(product=kernel, cpu=cpu())


def resume(before, precision, fused=True):
    """Use the kernel of a resumed run again, if CPU and D2LBERT_AMX allow it.

    before: the result of `record` in the run's checkpoint. precision, fused:
    as for `record`. Returns a clause for a message if the resumed run has to
    use another kernel, else None.
    """
    current = record(precision, fused)
    if not isinstance(before, dict) or not before.get('product'):
        return None     # older versions of the package stored no record
    kernel, old_cpu = before['product'], before.get('cpu')
    if kernel == current['product']:
        return None
    if (old_cpu == current['cpu'] and current['product'] != 'mxnet'
            and mode() != 'require'
            and kernel in _possible_kernels(precision)):
        use(_State.choice._replace(
            **{precision: kernel},
            why=f'{_State.choice.why}; {precision} as in the resumed run'))
        return None
    return (f'matrices were multiplied by {describe(kernel)} on {old_cpu}, '
            f'and are now multiplied by {describe(current["product"])} on '
            f'{current["cpu"]}')


def _possible_kernels(precision):
    """The names of the kernels that can compute a precision here."""
    names = {'fp32': ['plain'], 'bf16': ['plain', 'pairs']}[precision]
    if _check_tiles(_State.library, mode())[0]:
        names.append({'fp32': 'split', 'bf16': 'tiles'}[precision])
    return names
