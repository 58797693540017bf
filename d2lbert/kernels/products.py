"""Choose the matrix-multiplication kernel by measurement.

There are four, in the order of `Product` in amx.h. `plain`: fp32 vectors.
`pairs`: pairs of bfloat16 in AVX-512 vectors. `tiles`: bfloat16 in AMX tiles.
`split`: fp32 as the sum of three bfloat16 in AMX tiles. The environment
variable D2LBERT_AMX controls tiles: `auto` uses them if they are faster, `off`
never, and `require` always, or raises an error without them. The measurement
runs once for each compiled library and CPU. A file beside the library stores
its result.
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

__all__ = ['NAMES', 'Choice', 'chosen', 'cpu', 'mode', 'record', 'resume',
           'trial', 'use', 'words_of']

NAMES = 'plain', 'pairs', 'tiles', 'split'
WORDS = {'plain': 'fp32 vectors', 'pairs': 'bfloat16 pairs (AVX-512)',
         'tiles': 'bfloat16 tiles (AMX)',
         'split': 'three bfloat16 tiles a number (AMX)',
         'mxnet': "MXNet's own operators"}

#: Rows, inputs and outputs of the measured product.
TRIAL = 1024, 256, 512
#: Runs of each kernel; the fastest one counts.
TURNS = 5
#: A kernel is faster if it takes at most this share of the other's time.
#: Smaller differences are noise.
FASTER = 0.95
#: The error against float64 that the tests allow, relative to the largest
#: element of the product.
TOLERANCE = 2e-5

#: Machine types whose CPUs have a family and a model.
X86 = {'x86_64', 'AMD64', 'i386', 'i686'}


class Choice(NamedTuple):
    """The kernel of each precision, and a sentence with the reason."""

    fp32: str
    bf16: str
    why: str


class _State:
    library = choice = None


def mode():
    """The policy: auto, off or require, from D2LBERT_AMX."""
    value = os.environ.get('D2LBERT_AMX') or 'auto'
    if value not in ('auto', 'off', 'require'):
        raise ValueError(f'D2LBERT_AMX is {value!r}: it must be auto, off or '
                         'require')
    return value


def cpu():
    """The name, family and model of the CPU; its machine type elsewhere."""
    this = find_processor()
    name = this.name or 'unknown'
    if this.machine not in X86 or not this.family:
        return f'{name}, {this.machine}'
    return f'{name}, family {this.family}, model {this.model}'


# Choosing

def choose(library, path):
    """Choose the kernels of a library of operators, opened from `path`.

    Raises ValueError if D2LBERT_AMX is `require` and there are no tiles.
    """
    policy = mode()
    library.d2lbert_trial.restype = ctypes.c_double
    has_pairs = bool(library.d2lbert_bf16())
    tiles, why = _tiles(library, policy)
    if policy == 'require':
        if not tiles:
            raise ValueError(f'D2LBERT_AMX is require, and {why}: unset it')
        choice = Choice('split', 'tiles', 'D2LBERT_AMX is require')
    elif not has_pairs:
        choice = Choice('plain', 'plain', why)
    else:
        choice = _quickest(_measured(library, path, tiles), tiles, why)
    _State.library = library
    use(choice)


def use(choice):
    """Use the kernels of a `Choice` from now on, in all threads."""
    _State.library.d2lbert_choose(NAMES.index(choice.fp32),
                                  NAMES.index(choice.bf16))
    _State.choice = choice


def _tiles(library, policy):
    """Return whether tiles can be used, and the reason in words."""
    if policy == 'off':
        return False, 'D2LBERT_AMX is off'
    answer = library.d2lbert_tiles()    # 0: the library has no tiles
    if answer == 2:
        return True, 'AMX is there'
    if answer == 1:
        return False, 'the system refuses AMX to this process'
    if {'amx_tile', 'amx_bf16'} <= find_processor().features:
        return False, ('this CPU has AMX, but the operators were compiled '
                       'without it')
    return False, 'this CPU has no AMX'


def _quickest(measured, tiles, why):
    """The `Choice` by a measurement, as `_measured` returns it.

    tiles, why: whether tiles can be used, and the reason.
    """
    seconds, errors = measured['seconds'], measured['errors']
    bf16 = 'pairs'
    if tiles and seconds['tiles'] < seconds['pairs']:
        bf16 = 'tiles'
    if seconds['plain'] < FASTER * seconds[bf16]:
        bf16 = 'plain'
    fp32 = 'plain'
    if (tiles and seconds['split'] < FASTER * seconds['plain']
            and errors['split'] <= errors['plain']
            and measured['largest'] <= TOLERANCE):
        fp32 = 'split'
    figures = ', '.join(f'{1e3 * seconds[name]:.2f} by {WORDS[name]}'
                        for name in NAMES if name in seconds)
    return Choice(fp32, bf16, f'{why}; milliseconds of one product, measured '
                              f'once: {figures}')


def _measured(library, path, tiles):
    """Measure each kernel, or read an earlier measurement.

    Returns a dict. seconds: of each kernel. errors: the root mean square
    error of `plain` and of `split` against float64. largest: the largest
    error of `split` over the largest element of the product.
    """
    names = NAMES if tiles else NAMES[:2]
    kept = path.with_name(path.name + '.products')
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = read_json(kept)
        if (is_trusted(kept.stat()) and found['cpu'] == cpu()
                and set(names) <= set(found['seconds'])):
            return dict(
                seconds={name: float(found['seconds'][name])
                         for name in names},
                errors={name: float(error)
                        for name, error in found['errors'].items()},
                largest=float(found['largest']))
    found = _measure(library, names)
    with contextlib.suppress(OSError):
        with replacing(kept) as part:
            part.write_text(json.dumps(dict(found, cpu=cpu())), 'utf-8')
            make_private(part)
    return found


def _measure(library, names):
    """Measure each kernel; returns the dict of `_measured`."""
    rows, inputs, outputs = TRIAL
    rng = onp.random.RandomState(1)
    X, W = (rng.normal(size=size).astype('float32')
            for size in ((rows, inputs), (outputs, inputs)))
    Y = onp.empty((rows, outputs), 'float32')
    few = slice(64)     # compared rows
    exact = X[few].astype('float64') @ W.T.astype('float64')
    seconds = dict.fromkeys(names, float('inf'))
    errors, largest = {}, 0.
    for _ in range(TURNS):
        for name in names:
            seconds[name] = min(seconds[name], trial(library, name, X, W, Y))
            if name in ('plain', 'split'):
                off = Y[few] - exact
                errors[name] = float(onp.sqrt((off ** 2).mean()))
                if name == 'split':
                    largest = float(abs(off).max() / abs(exact).max())
    return dict(seconds=seconds, errors=errors, largest=largest)


def trial(library, name, X, W, Y, times=1):
    """Seconds of one thread for Y = X W^T, the least of `times` runs.

    X (R, K), W (N, K), Y (R, N): C-contiguous float32 arrays of NumPy.
    """
    (rows, inputs), outputs = X.shape, len(W)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (X, W, Y)]
    return library.d2lbert_trial(
        NAMES.index(name), *map(ctypes.c_long, (rows, inputs, outputs)),
        *pointers, times)


# The kernels in use

def chosen():
    """The `Choice` in use; None before the operators are loaded."""
    return _State.choice


def words_of(name):
    """The description of a kernel by its name."""
    return WORDS.get(name, name)


def record(precision, fused=True):
    """The names of the kernel and of the CPU, to store in a checkpoint.

    fused: True if the fused operators are in use.
    """
    used = chosen()
    product = getattr(used, precision) if fused and used else 'mxnet'
    return dict(product=product, cpu=cpu())


def resume(before, precision, fused=True):
    """Use the kernel of a resumed run again; before: its `record`.

    On the same CPU the kernel of the run replaces the measured one. Returns
    None, or a clause that names the change of kernels.
    """
    now = record(precision, fused)
    if not isinstance(before, dict) or not before.get('product'):
        return None     # a checkpoint of an older version
    product, where = before['product'], before.get('cpu')
    if product == now['product']:
        return None
    if (where == now['cpu'] and now['product'] != 'mxnet'
            and mode() == 'auto' and product in _possible(precision)):
        use(_State.choice._replace(
            **{precision: product},
            why=f'{_State.choice.why}; as the run that was resumed'))
        return None
    return (f'matrices were multiplied by {words_of(product)} on {where}, '
            f'and are by {words_of(now["product"])} on {now["cpu"]}')


def _possible(precision):
    names = {'fp32': ['plain'], 'bf16': ['plain', 'pairs']}[precision]
    if _State.library.d2lbert_tiles() == 2:
        names.append({'fp32': 'split', 'bf16': 'tiles'}[precision])
    return names
