"""The compiled CPU operators: whether to use them, and their loading.

They are compiled and loaded at their first use, never by the import. The
environment variable D2LBERT_KERNELS says what to do: `auto` uses them where
they can be built, `off` never, `require` makes their absence an error.
`ops` holds the fused operators, `plain` the same from MXNet's own.
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
from d2lbert.machine.backend import mx
from d2lbert.machine.files import Name

__all__ = ['BuildError', 'Library', 'bf16_supported', 'build',
           'compiled_for', 'enabled', 'load', 'mode', 'products', 'state']

FOLDER = pathlib.Path(__file__).parent
SOURCES = ['adam.cc', 'amx.cc', 'attention.cc', 'dense.cc', 'divergence.cc',
           'embed.cc', 'feed_forward.cc', 'gemm.cc', 'norm.cc', 'rows.cc',
           'self_attention.cc', 'vocab.cc']

State = namedtuple('State', 'mode loaded path reason')
State.__doc__ = """What `d2lbert doctor` shows of the fused operators.

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
    """One compiled library, opened at the first `get`.

    name: the start of its file's name; sources: names of C++ files here;
    opened: gives, for the library's path, what `get` is to return, or
    raises OSError, AttributeError or MXNetError; mxnet: whether it is built
    against MXNet's extension interface; what, takes: what it is, and how
    long it takes to compile; options: more of the compiler's options.

    path: of the library once it is open, or None; reason: why it could not
    be opened, or None.
    """

    _lock = threading.Lock()
    _is_told = False    # one line is enough for all of them

    def __init__(self, name, sources, opened, mxnet=False, what='',
                 takes='a few seconds', options=()):
        self.name, self.mxnet, self.options = name, mxnet, options
        self.what, self.takes = what, takes
        self.sources = [FOLDER / source for source in sources]
        self.path = self.reason = self._handle = None
        self._opened = opened

    def get(self):
        """What `opened` gave; None where the plain twins are to do it.

        Compiles the library if need be. Raises BuildError where that or
        the opening fails and D2LBERT_KERNELS is `require`; with `auto` the
        first failure prints one line.
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
        try:
            self._open(build.library(self.name, self.sources, self.mxnet,
                                     self.what, self.takes,
                                     options=self.options))
        except BuildError as error:
            self.reason = str(error)
            if policy == 'require':
                raise
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

        Compiles nothing. Raises BuildError.
        """
        if self.path is None:
            path = build.library(self.name, self.sources, self.mxnet,
                                 compiling=False, options=self.options)
            if path is not None:
                self._open(path)
        return self.path is not None


def _opened(path):
    """Make the operators of the library at `path` MXNet's own."""
    library = ctypes.CDLL(str(path))    # whose errors are better than MXNet's
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
    """The `State` of the fused operators now; builds nothing."""
    if mode() == 'off':
        return State('off', False, None, 'D2LBERT_KERNELS is off')
    path = OPERATORS.path
    return State(mode(), path is not None, path,
                 None if path else OPERATORS.reason or 'not needed yet')


def load():
    """Whether the fused operators are there, built and loaded if need be.

    Raises BuildError if they cannot be and D2LBERT_KERNELS is `require`;
    with `auto` a failure prints one line, once.
    """
    return OPERATORS.get() is not None


def enabled(*arrays):
    """Whether the fused operators may take these arrays.

    True where they are loaded (the first call builds them) and these are
    float32 or int32 arrays on a CPU; all are where the first one is.
    """
    return load() and all(
        isinstance(array, mx.nd.NDArray)
        and array.dtype in (numpy.float32, numpy.int32)
        for array in arrays) and arrays[0].ctx.device_type != 'gpu'


def compiled_for():
    """(instruction set, floats in a vector) of the operators in use.

    None where they are not loaded; loads nothing.
    """
    library = OPERATORS.path and OPERATORS.get()
    return library and (library.d2lbert_isa().decode(),
                        library.d2lbert_vector())


def bf16_supported():
    """Whether this CPU and the loaded operators multiply in bfloat16."""
    return load() and bool(OPERATORS.get().d2lbert_bf16())
