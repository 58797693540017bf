"""Compile, load and use the C++ code of the package.

Libraries are compiled and loaded at their first use, never by an import. The
environment variable D2LBERT_KERNELS controls this: `auto` uses them where
they can be built, `off` never, and `require` raises an error without them.
`ops` declares the operators; README.md describes them. MXNet is imported only
with the operators: its import takes longer than `int8` takes for a text.
"""
import ctypes
import os
import pathlib
import re
import threading
from collections import namedtuple

import numpy

from d2lbert.kernels import build, products
from d2lbert.kernels.build import BuildError
from d2lbert.machine.files import Name

__all__ = ['BuildError', 'Library', 'bf16_supported', 'build',
           'compiled_for', 'enabled', 'load', 'mode', 'products', 'state']

FOLDER = pathlib.Path(__file__).parent
SOURCES = ['adam.cc', 'amx.cc', 'attention.cc', 'dense.cc', 'divergence.cc',
           'embed.cc', 'feed_forward.cc', 'gemm.cc', 'norm.cc', 'rows.cc',
           'self_attention.cc', 'vocab.cc']
#: Attempts to build and open a library, whose file may be removed in between.
ATTEMPTS = 3

State = namedtuple('State', 'mode loaded path reason')
State.__doc__ = """The state of the fused operators, for `d2lbert doctor`.

mode: auto, off or require; loaded: bool; path: the library or None;
reason: why they are not loaded, or None.
"""


def mode():
    """The policy: auto, off or require, from D2LBERT_KERNELS."""
    value = os.environ.get('D2LBERT_KERNELS') or 'auto'
    if value not in ('auto', 'off', 'require'):
        raise ValueError(f'D2LBERT_KERNELS is {value!r}: it must be auto, '
                         f'off or require')
    return value


class Library:
    """A compiled library, opened at the first `get`.

    name: the start of its file name. sources: names of C++ files in this
    folder. opened: a function that opens the library at a path; `get` returns
    its result. It may raise OSError, AttributeError or MXNetError. mxnet:
    build against the extension interface of MXNet. what, takes: a description
    and the time of the compilation, for the progress line. options: further
    options of the compiler.

    Attribute path: the path of the open library, or None. Attribute reason:
    the reason why it could not be opened, or None.
    """

    _lock = threading.Lock()
    _is_told = False    # one warning for all libraries

    def __init__(self, name, sources, opened, mxnet=False, what='',
                 takes='a few seconds', options=()):
        self.name, self.mxnet, self.options = name, mxnet, options
        self.what, self.takes = what, takes
        self.sources = [FOLDER / source for source in sources]
        self.path = self.reason = self._handle = None
        self._opened = opened

    def get(self):
        """Return the result of `opened`; None if Python must do the work.

        Compiles the library first if it is missing. If it cannot be compiled
        or opened, raises BuildError with D2LBERT_KERNELS=require. With `auto`
        the first failure of any library prints one line.
        """
        policy = mode()
        if policy == 'off':
            return None
        if self.path is None:
            with Library._lock:
                if not self.path and (not self.reason or policy == 'require'):
                    self._try(policy)
        return self._handle

    def _try(self, policy):
        for _ in range(ATTEMPTS):
            path = None
            try:
                path = build.library(self.name, self.sources, self.mxnet,
                                     self.what, self.takes,
                                     options=self.options)
                self._open(path)
                return
            except BuildError as caught:
                error = caught
            # Another process may have cleared the cache in the meantime
            if path is None or path.exists():
                break
        self.reason = str(error)
        if policy == 'require':
            raise error
        if not Library._is_told:
            Library._is_told = True
            build.say(f'slower without its compiled C++: {error}')

    def _open(self, path):
        name = path
        try:
            with build.held(path) as name:
                self._handle = self._opened(name)
        except BuildError:
            raise
        except (OSError, AttributeError, RuntimeError) as error:
            line = ([type(error).__name__] + str(error).splitlines())[-1]
            line = line.replace(f'{name}: ', '')
            raise BuildError(
                f'{path} cannot be loaded ({line}): if its folder is mounted '
                'noexec, set D2LBERT_CACHE to one that is not') from error
        self.path, self.reason = path, None

    def find(self):
        """Open the library if it is compiled; returns whether it is open.

        Never compiles it. Raises BuildError.
        """
        if self.path is None:
            path = build.library(self.name, self.sources, self.mxnet,
                                 compiling=False, options=self.options)
            if path is not None:
                self._open(path)
        return self.path is not None


def _opened(path):
    """Register the operators of the library at `path` with MXNet."""
    from d2lbert.machine.backend import mx
    # Clearer errors than MXNet's own; AttributeError for a foreign library
    library = ctypes.CDLL(str(path))
    library.d2lbert_bf16
    library.d2lbert_isa.restype = ctypes.c_char_p
    products.choose(library, path)
    mx.library.load(Name(path), verbose=False)
    for source in SOURCES:
        for name in re.findall(r'^REGISTER_OP\((\w+)\)',
                               (FOLDER / source).read_text('utf-8'), re.M):
            getattr(mx.nd, name)
    return library


OPERATORS = Library('ops', SOURCES, _opened, mxnet=True,
                    what='the fused CPU operators', takes='half a minute')


def state():
    """The `State` of the fused operators now; never compiles them."""
    if mode() == 'off':
        return State('off', False, None, 'D2LBERT_KERNELS is off')
    path = OPERATORS.path
    return State(mode(), path is not None, path,
                 None if path else OPERATORS.reason or 'not needed yet')


def load():
    """Compile and load the fused operators; returns whether they are loaded.

    Raises BuildError if that fails and D2LBERT_KERNELS is `require`. With
    `auto` the first failure prints one line.
    """
    return OPERATORS.get() is not None


def enabled(*arrays):
    """True if the fused operators can take these arrays.

    They can take MXNet's float32 or int32 arrays on a CPU. Only the device of
    the first array is checked. The first call compiles the operators.
    """
    return load() and all(
        hasattr(array, 'ctx') and array.dtype in (numpy.float32, numpy.int32)
        for array in arrays) and arrays[0].ctx.device_type != 'gpu'


def compiled_for():
    """(instruction set, floats in a vector) of the operators in use.

    None if they are not loaded; never loads them.
    """
    library = OPERATORS.path and OPERATORS.get()
    return library and (library.d2lbert_isa().decode(),
                        library.d2lbert_vector())


def bf16_supported():
    """True if this CPU and the loaded operators multiply in bfloat16."""
    return load() and bool(OPERATORS.get().d2lbert_bf16())
