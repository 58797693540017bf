"""Compile and load the C++ libraries of the package.

A library is compiled and loaded at its first use, never by an import. The
environment variable D2LBERT_KERNELS is `auto` to use a library if it can be
built, `off` to use none, or `require` to raise an error if a library cannot be
built. One library has the fused operators, which replace operators of MXNet on
a CPU (`ops.py`). The other libraries are loaded without MXNet, since importing
MXNet takes longer than encoding a text.
"""
import ctypes
import os
import pathlib
import re
import threading
from typing import NamedTuple, Optional

import numpy

from d2lbert.kernels import build, products
from d2lbert.kernels.build import BuildError
from d2lbert.machine.files import MXNetPath

__all__ = ['BuildError', 'Library', 'bf16_supported', 'build',
           'compiled_for', 'enabled', 'load', 'mode', 'products', 'state']

FOLDER = pathlib.Path(__file__).parent
#: The C++ files of the fused operators.
SOURCES = ['adam.cc', 'amx.cc', 'amx_permission.cc', 'attention.cc',
           'dense.cc', 'divergence.cc', 'embed.cc', 'feed_forward.cc',
           'gemm.cc', 'norm.cc', 'rows.cc', 'self_attention.cc', 'vocab.cc']
#: Attempts to build a library that another process removes before it is open
MAX_ATTEMPTS = 3


class State(NamedTuple):
    """The state of the fused operators."""

    mode: str                       # auto, off or require
    loaded: bool
    path: Optional[pathlib.Path]    # of their library; None: not loaded
    reason: Optional[str]           # why they are not loaded; None: loaded


def mode():
    """The value of D2LBERT_KERNELS: auto, off or require."""
    value = os.environ.get('D2LBERT_KERNELS') or 'auto'
    if value not in ('auto', 'off', 'require'):
        raise ValueError(f'D2LBERT_KERNELS is {value!r}: it must be auto, '
                         f'off or require')
    return value


class Library:
    """A compiled library, opened at the first `get`.

    name: the start of the library's file name. sources: names of C++ files in
    this folder. open_library: a function that opens the library at a path;
    `get` returns its result. An OSError, AttributeError or RuntimeError of the
    function becomes a BuildError. mxnet: True to use the extension interface
    of MXNet. what, takes: a description of the library and the duration of its
    compilation, for the progress line. options: more options of the compiler.

    Attributes. path: the path of the open library, or None. reason: why the
    library could not be compiled or opened, or None.
    """

    _lock = threading.Lock()
    _has_warned = False     # one warning for all libraries

    def __init__(self, name, sources, open_library, mxnet=False, what='',
                 takes='a few seconds', options=()):
        self.name, self.mxnet, self.options = name, mxnet, options
        self.what, self.takes = what, takes
        self.sources = [FOLDER / source for source in sources]
        self.path = self.reason = self._result = None
        self._open_library = open_library

    def get(self):
        """The result of `open_library`, or None if Python must do the work.

        Compiles the library first if it is missing. If compiling or
        opening fails, raises BuildError with D2LBERT_KERNELS=require. With
        `auto`, returns None; the first library that fails prints a line.
        """
        policy = mode()
        if policy == 'off':
            return None
        if self.path is None:
            with Library._lock:
                may_try = not self.reason or policy == 'require'
                # Again, since another thread may have opened it
                if self.path is None and may_try:
                    self._build_and_open(policy)
        return self._result

    def _build_and_open(self, policy):
        for _ in range(MAX_ATTEMPTS):
            path = None
            try:
                path = build.library(self.name, self.sources, self.mxnet,
                                     self.what, self.takes,
                                     options=self.options)
                self._open(path)
                return
            except BuildError as caught:
                error = caught
            was_removed = path is not None and not path.exists()
            if not was_removed:
                break
        self.reason = str(error)
        if policy == 'require':
            raise error
        if not Library._has_warned:
            Library._has_warned = True
            build.print_line(f'slower without its compiled C++: {error}')

    def _open(self, path):
        """Open the compiled library at `path`, or raise BuildError."""
        checked_path = path     # if `checked` itself raises an OSError
        try:
            with build.checked(path) as checked_path:
                self._result = self._open_library(checked_path)
        except BuildError:      # a RuntimeError with a complete message
            raise
        except (OSError, AttributeError, RuntimeError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            cause = lines[-1].replace(f'{checked_path}: ', '')
            raise BuildError(
                f'{path} cannot be loaded ({cause}): if its folder is mounted '
                'noexec, set D2LBERT_CACHE to a folder that is not') from error
        self.path, self.reason = path, None

    def open_if_compiled(self):
        """Open the library if its file exists; return True if it is open.

        Raises BuildError as `build.library` does, or if the library cannot be
        opened.
        """
        if self.path is None:
            path = build.library(self.name, self.sources, self.mxnet,
                                 compiling=False, options=self.options)
            if path is not None:
                self._open(path)
        return self.path is not None


def _open_operators(path):
    """Register the operators of the library at `path` with MXNet."""
    from d2lbert.machine.backend import mx
    # First by ctypes, since mx.library.load has less clear errors
    library = ctypes.CDLL(str(path))
    library.d2lbert_bf16    # AttributeError if another library is at `path`
    library.d2lbert_isa.restype = ctypes.c_char_p
    products.choose(library, path)
    mx.library.load(MXNetPath(path), verbose=False)
    for source in SOURCES:
        for name in re.findall(r'^REGISTER_OP\((\w+)\)',
                               (FOLDER / source).read_text('utf-8'), re.M):
            getattr(mx.nd, name)    # AttributeError if it is not registered
    return library


OPERATORS = Library('ops', SOURCES, _open_operators, mxnet=True,
                    what='the fused CPU operators', takes='half a minute')


def state():
    """The current `State` of the fused operators; never compiles them."""
    if mode() == 'off':
        return State('off', False, None, 'D2LBERT_KERNELS is off')
    path = OPERATORS.path
    return State(mode(), path is not None, path,
                 None if path else OPERATORS.reason or 'not needed yet')


def load():
    """Compile and load the fused operators; return True if they are loaded.

    Reports a failure as `Library.get` does.
    """
    return OPERATORS.get() is not None


def enabled(*arrays):
    """True if the fused operators are loaded and can take these arrays.

    They can take MXNet's float32 and int32 arrays on a CPU. Only the device of
    the first array is checked. Compiles the operators if they are missing.
    """
    if not load():
        return False
    # Symbols and NumPy arrays have no `ctx`. Look it up in the class, since
    # array.ctx would construct a new Context
    can_take_all = all(hasattr(type(array), 'ctx')
                       and array.dtype in (numpy.float32, numpy.int32)
                       for array in arrays)
    return can_take_all and arrays[0].ctx.device_type != 'gpu'


def compiled_for():
    """(name of the instruction set, floats in a vector) of the operators.

    Returns None if the operators are not loaded; never loads them.
    """
    library = OPERATORS.get() if OPERATORS.path else None
    if library is None:
        return None
    return library.d2lbert_isa().decode(), library.d2lbert_vector()


def bf16_supported():
    """True if the operators can multiply in bfloat16; loads them first."""
    return load() and bool(OPERATORS.get().d2lbert_bf16())
