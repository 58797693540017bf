"""Redirect `import d2l` to d2lbert in the kernel that runs a page."""
import importlib
import importlib.abc
import importlib.machinery
import json
import multiprocessing
import re
import sys
import traceback
import types

from d2lbert.book.pages import is_ours, split_tabs

#: The package of the book and its module for MXNet.
MODULES = 'd2l', 'd2l.mxnet'
#: The book's modules for other frameworks.
OTHERS = 'd2l.jax', 'd2l.paddle', 'd2l.tensorflow', 'd2l.torch'

_TAB = re.compile(r'\s*%%tab\s+(.+)')
_LOAD_TABS = re.compile(r'(\s*)%(?:re)?load_ext\s+d2lbook\.tab\s*$')
_PIP = re.compile(r'(\s*)([!%]\s*(?:\S*python\S*\s+-m\s+)?pip3?\s+'
                  r'(?:un)?install\s.*)$')
_BOOK_OR_MXNET = re.compile(r"[\s/'\"](?:d2l|mxnet)(?![a-zA-Z_])")


class BookModule(types.ModuleType):
    """A module of the book's package with the public names of d2lbert."""

    def __getattr__(self, name):
        names = importlib.import_module('d2lbert.names')
        if name == '__all__' or not name.startswith('__'):
            if hasattr(names, name):
                return getattr(names, name)
            raise AttributeError(_missing_message(f'{self.__name__}.{name}'))
        raise AttributeError(name)


class BookFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find the modules of the book's package, installed or not."""

    def find_spec(self, fullname, path=None, target=None):
        """The spec of `d2l` or `d2l.mxnet`; ImportError for other modules.
        """
        if fullname in MODULES:
            # Packages, so that `from d2l.mxnet import x` looks x up here
            return importlib.machinery.ModuleSpec(
                fullname, self, origin='d2lbert', is_package=True)
        if fullname.startswith('d2l.'):
            raise ImportError(_missing_message(fullname), name=fullname)
        return None

    def create_module(self, spec):
        """An empty module, which looks up names when they are used."""
        return BookModule(spec.name)

    def exec_module(self, module):
        """Required of a loader; the module has no code."""


def _missing_message(name):
    if name in OTHERS:
        return (f'{name} is for another framework: d2lbert runs the MXNet '
                'version of a page')
    name = 'd2l.' + name.rpartition('.')[2]
    return (f"{name} is not in d2lbert, which has the names of the book's "
            'BERT chapters')


def adapt_lines(lines):
    """Replace the lines of a cell that need d2lbook, or would install d2l.

    lines: a cell, as IPython passes it to input transformers. Each line
    stays one line, so that line numbers in errors are right.
    """
    first = next(filter(str.strip, lines), '')
    tabs = _TAB.match(first)
    if tabs:
        if not is_ours(split_tabs(tabs.group(1))):
            return [f'# {line}' for line in lines]
        lines = [f'# {line}' if line is first else line for line in lines]
    return [_adapted(line) for line in lines]


def _adapted(line):
    """The line, or its replacement if it is pip or %load_ext d2lbook.tab."""
    text = line.rstrip('\n')
    pip, tabs = _PIP.match(text), _LOAD_TABS.match(text)
    if pip and _BOOK_OR_MXNET.search(pip.group(2)):
        message = f'skipped, d2lbert takes its place: {pip.group(2)}'
        return f'{pip.group(1)}print({message!r})\n'
    if tabs:
        return f'{tabs.group(1)}from d2lbert.book.pages import tab\n'
    return line


class Redirection:
    """The redirection of `import d2l` in this process."""

    def __init__(self):
        self._finder, self._ip = BookFinder(), None
        self._set_start_method = False

    def begin(self, ip):
        """Let `import d2l` mean d2lbert, and adapt the cells of a shell.

        ip: the IPython shell.
        """
        if self._ip is not None:
            return
        importlib.import_module('d2lbert.names')    # raises ImportError early
        if _forget_book():
            print('d2l was already imported: run the cells that import it '
                  'again', file=sys.stderr)
        sys.meta_path.insert(0, self._finder)
        ip.input_transformers_cleanup.append(adapt_lines)
        self._ip = ip
        # Pages pass methods of classes that they define to worker processes.
        # Only a forked process has these classes, and Python 3.14 does not
        # fork by default
        self._set_start_method = (
            sys.platform == 'linux'
            and multiprocessing.get_start_method(allow_none=True) is None
            and multiprocessing.get_all_start_methods()[0] != 'fork')
        if self._set_start_method:
            multiprocessing.set_start_method('fork')

    def end(self):
        """Let `import d2l` mean the installed package again."""
        if self._ip is None:
            return
        sys.meta_path.remove(self._finder)
        self._ip.input_transformers_cleanup.remove(adapt_lines)
        _forget_book()
        if self._set_start_method:
            multiprocessing.set_start_method(None, force=True)
        self._ip = None


def _forget_book():
    """Forget the modules of the book's package; True if there were any."""
    found = [name for name in sys.modules if name.split('.')[0] == 'd2l']
    for name in found:
        del sys.modules[name]
    return bool(found)


redirection = Redirection()


def error_place():
    """The traceback of the last error, limited to code in cells, as JSON.

    A list of [line number, name of the function]. The first entry is in the
    cell that was run, the last is where the error was raised.
    """
    shell_names = sys.modules['__main__'].__dict__
    error, trace = sys.last_value, sys.last_traceback
    found = [(line, frame.f_code.co_name)
             for frame, line in traceback.walk_tb(trace)
             if frame.f_globals is shell_names]
    if not found and isinstance(error, SyntaxError):
        found = [(error.lineno, '<module>')]
    return json.dumps(found)
