"""The fused CPU operators: whether to use them, and their loading.

They are compiled and loaded at the first `enabled` or `load`, never by the
import. The environment variable D2LBERT_KERNELS says what to do: `auto` uses
them where they can be built, `off` never, `require` makes their absence an
error. `ops` holds the operators, `plain` the same from MXNet's own.
"""

import ctypes
import os
import pathlib
import sys
import threading
from collections import namedtuple

import numpy

from d2lbert._mxnet import mx
from d2lbert.kernels import build
from d2lbert.kernels.build import BuildError

__all__ = ['BuildError', 'bf16_supported', 'build', 'enabled', 'load',
           'mode', 'state']

SOURCES = ['attention.cc', 'dense.cc', 'embed.cc', 'gemm.cc', 'norm.cc',
           'vocab.cc']

State = namedtuple('State', 'mode loaded path reason')
State.__doc__ = """What `d2lbert doctor` shows of the fused operators.

mode: auto, off or require; loaded: bool; path: the library or None;
reason: why they are not loaded, or None.
"""

_lock = threading.Lock()
_path = _reason = None


def mode():
    """The policy: auto, off or require, from D2LBERT_KERNELS."""
    value = os.environ.get('D2LBERT_KERNELS') or 'auto'
    if value not in ('auto', 'off', 'require'):
        raise ValueError(f'D2LBERT_KERNELS is {value!r}: it must be auto, '
                         f'off or require')
    return value


def state():
    """The `State` of the fused operators now; builds nothing."""
    if mode() == 'off':
        return State('off', False, None, 'D2LBERT_KERNELS is off')
    return State(mode(), _path is not None, _path,
                 None if _path else _reason or 'not needed yet')


def load():
    """Whether the fused operators are there, built and loaded if need be.

    Raises BuildError if they cannot be and D2LBERT_KERNELS is `require`;
    with `auto` a failure prints one line, once.
    """
    global _path, _reason
    policy = mode()
    if policy == 'off':
        return False
    if _path:
        return True
    with _lock:
        if not _path and (not _reason or policy == 'require'):
            first = _reason is None
            try:
                _path = _load()
            except BuildError as error:
                _reason = str(error)
                if policy == 'require':
                    raise
                if first:
                    print(f'd2lbert: no fused operators, training will be '
                          f'slower: {_reason}', file=sys.stderr)
    return _path is not None


def _load():
    folder = pathlib.Path(__file__).parent
    path = build.library('ops', [folder / name for name in SOURCES],
                         mxnet=True)
    try:
        mx.library.load(str(path), verbose=False)
    except (OSError, mx.base.MXNetError) as error:
        line = str(error).strip().splitlines()[0]
        raise BuildError(f'{path} cannot be loaded: {line}') from error
    return path


def enabled(*arrays):
    """Whether the fused operators may take these arrays.

    True where they are loaded (the first call builds them) and every array
    is a float32 or int32 array on a CPU.
    """
    return load() and all(
        isinstance(array, mx.nd.NDArray)
        and array.ctx.device_type != 'gpu'
        and array.dtype in (numpy.float32, numpy.int32) for array in arrays)


def bf16_supported():
    """Whether this CPU and the loaded operators multiply in bfloat16."""
    return load() and bool(ctypes.CDLL(str(_path)).d2lbert_bf16())
