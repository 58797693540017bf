"""By what matrices are multiplied, chosen for the machine at hand.

Four ways, in the order of `Product` in amx.h: `plain`, fp32 vectors;
`pairs`, pairs of bfloat16 in AVX-512 vectors; `tiles`, bfloat16 in AMX
tiles; `split`, fp32 as the sum of three bfloat16 in AMX tiles. The
environment variable D2LBERT_AMX says what to do about tiles: `auto` takes
them where they are faster, `off` never, `require` always, and makes their
absence an error. What is faster is measured once for each compiled library
and CPU, and kept beside the library.
"""
import contextlib
import ctypes
import json
import os
import platform
from typing import NamedTuple

import numpy as onp

from d2lbert.machine.cache import is_trusted, make_private
from d2lbert.machine.files import read_json, replacing

__all__ = ['NAMES', 'Choice', 'chosen', 'cpu', 'mode', 'record', 'resume',
           'trial', 'use', 'words_of']

NAMES = 'plain', 'pairs', 'tiles', 'split'
WORDS = {'plain': 'fp32 vectors', 'pairs': 'bfloat16 pairs (AVX-512)',
         'tiles': 'bfloat16 tiles (AMX)',
         'split': 'three bfloat16 tiles a number (AMX)',
         'mxnet': "MXNet's own operators"}

#: Rows, inputs and outputs of the product that is measured.
TRIAL = 1024, 256, 512
TURNS = 5
#: What has to be gained: as much is lost to chance.
FASTER = 0.95
#: What the tests allow of the largest number, as an error against float64.
TOLERANCE = 2e-5


class Choice(NamedTuple):
    """What is used: a name for each precision, and why, as a sentence."""

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
    """The CPU's name, family and model, as far as the system tells them."""
    found = {}
    with contextlib.suppress(OSError), open('/proc/cpuinfo') as lines:
        for line in lines:
            name, colon, value = line.partition(':')
            if not colon:
                break       # of the first one
            found[name.strip()] = value.strip()
    name = found.get('model name') or platform.processor() or 'unknown'
    if 'cpu family' not in found:
        return f'{name}, {platform.machine()}'
    return f'{name}, family {found["cpu family"]}, model {found["model"]}'


def _has_amx():
    """Whether the CPU has tiles, by what the system says of it."""
    with contextlib.suppress(OSError), open('/proc/cpuinfo') as lines:
        for line in lines:
            if line.startswith('flags'):
                return {'amx_tile', 'amx_bf16'} <= set(line.split())
    return False


# Choosing

def choose(library, path):
    """Choose for a library of operators that was just opened from `path`.

    Raises ValueError where D2LBERT_AMX is `require` and there are no tiles.
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
    """Multiply by the products of a `Choice` from now on, in all threads."""
    _State.library.d2lbert_choose(NAMES.index(choice.fp32),
                                  NAMES.index(choice.bf16))
    _State.choice = choice


def _tiles(library, policy):
    """Whether there are tiles, and how that comes, in words."""
    if policy == 'off':
        return False, 'D2LBERT_AMX is off'
    # The system is asked only where the library can make use of the answer
    answer = library.d2lbert_tiles()
    if answer == 2:
        return True, 'AMX is there'
    if answer == 1:
        return False, 'the system refuses AMX to this process'
    if _has_amx():
        return False, ('this CPU has AMX, but the operators were compiled '
                       'without it')
    return False, 'this CPU has no AMX'


def _quickest(measured, tiles, why):
    """The `Choice` by measured seconds and errors."""
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
    """Seconds of each product on this machine, from the cache or measured.

    Also the errors of fp32 and split products against float64: the root of
    the mean square, and the largest of split ones in terms of the largest
    number.
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
    rows, inputs, outputs = TRIAL
    rng = onp.random.RandomState(1)
    X, W = (rng.normal(size=size).astype('float32')
            for size in ((rows, inputs), (outputs, inputs)))
    Y = onp.empty((rows, outputs), 'float32')
    few = slice(64)     # rows that are compared
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
    """Seconds of one thread for Y = X W^T, the least of several times.

    X (R, K), W (N, K), Y (R, N): C-contiguous float32 arrays of NumPy.
    """
    (rows, inputs), outputs = X.shape, len(W)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (X, W, Y)]
    return library.d2lbert_trial(
        NAMES.index(name), *map(ctypes.c_long, (rows, inputs, outputs)),
        *pointers, times)


# What is used

def chosen():
    """The `Choice` in use; None before the operators are loaded."""
    return _State.choice


def words_of(name):
    """What a product is, in words."""
    return WORDS.get(name, name)


def record(precision, fused=True):
    """What a checkpoint says: the product's name and the CPU's.

    fused: whether the fused operators do the work.
    """
    used = chosen()
    product = getattr(used, precision) if fused and used else 'mxnet'
    return dict(product=product, cpu=cpu())


def resume(before, precision, fused=True):
    """Multiply as before, for a run that goes on; what `record` gave then.

    On the same CPU the choice is taken over where the measured one alone
    stands against it. Returns None, or what has changed as the beginning of
    a sentence.
    """
    now = record(precision, fused)
    if not isinstance(before, dict) or not before.get('product'):
        return None     # of an older version
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
