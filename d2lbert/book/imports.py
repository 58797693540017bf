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

from d2lbert.book.pages import has_mxnet, split_tabs

REDIRECTED_MODULES = 'd2l', 'd2l.mxnet'
NON_MXNET_MODULES = 'd2l.jax', 'd2l.paddle', 'd2l.tensorflow', 'd2l.torch'

_TAB_MAGIC = re.compile(r'\s*%%tab\s+(.+)')
_LOAD_TABS = re.compile(r'(\s*)%(?:re)?load_ext\s+d2lbook\.tab\s*$')
_PIP_INSTALL = re.compile(r'(\s*)([!%]\s*(?:\S*python\S*\s+-m\s+)?pip3?\s+'
                          r'(?:un)?install\s.*)$')
_BOOK_OR_MXNET = re.compile(r"[\s/'\"](?:d2l|mxnet)(?![a-zA-Z_])")


class BookModule(types.ModuleType):
    """A module of the book's package with the public names of d2lbert."""

    def __getattr__(self, name):
        names = importlib.import_module('d2lbert.names')
        # Python itself asks for names such as __file__
        if name.startswith('__') and name != '__all__':
            raise AttributeError(name)
        if hasattr(names, name):
            return getattr(names, name)
        raise AttributeError(_missing_message(f'{self.__name__}.{name}'))


class BookFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Let `import d2l` give a `BookModule`, even if no d2l is installed."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname in REDIRECTED_MODULES:
            # A package: for `from d2l.mxnet import x`, if d2lbert has no x,
            # Python then looks for a module d2l.mxnet.x, and the error below
            # names it
            return importlib.machinery.ModuleSpec(
                fullname, self, origin='d2lbert', is_package=True)
        if fullname.startswith('d2l.'):
            raise ImportError(_missing_message(fullname), name=fullname)
        return None

    def create_module(self, spec):
        return BookModule(spec.name)

    def exec_module(self, module):
        """Do nothing: Python requires this method, but there is no code."""


def _missing_message(full_name):
    if full_name in NON_MXNET_MODULES:
        return (f'{full_name} is for another framework: d2lbert runs the '
                'MXNet version of a page')
    short_name = 'd2l.' + full_name.rpartition('.')[2]
    return (f'{short_name} is not in d2lbert, which has the names of the '
            "book's BERT chapters")


def adapt_lines(lines):
    """Return the lines of a cell, adapted to d2lbert.

    Their number stays the same, so that errors name the right lines.
    """
    first_line = next(filter(str.strip, lines), '')
    tab_match = _TAB_MAGIC.match(first_line)
    if tab_match:
        if not has_mxnet(split_tabs(tab_match.group(1))):
            return [f'# {line}' for line in lines]
        # IPython would look for a magic command %%tab
        lines = [f'# {line}' if line is first_line else line
                 for line in lines]
    return [_adapt_line(line) for line in lines]


def _adapt_line(line):
    text = line.rstrip('\n')
    pip_match = _PIP_INSTALL.match(text)
    if pip_match:
        indentation, command = pip_match.groups()
        if _BOOK_OR_MXNET.search(command):
            message = f'skipped, d2lbert replaces d2l and MXNet: {command}'
            return f'{indentation}print({message!r})\n'
    load_match = _LOAD_TABS.match(text)
    if load_match:
        indentation = load_match.group(1)
        return f'{indentation}from d2lbert.book.pages import tab\n'
    return line


class Redirection:
    """Switch the redirection of `import d2l` in this process on and off."""

    def __init__(self):
        self._finder, self._shell = BookFinder(), None
        self._has_set_start_method = False

    def begin(self, shell):
        """Redirect `import d2l`, and adapt the cells of an IPython shell."""
        if self._shell is not None:
            return
        # If MXNet cannot work, this raises ImportError before anything changes
        importlib.import_module('d2lbert.names')
        if _forget_book():
            print('d2l was already imported: run again the cells that import '
                  'it', file=sys.stderr)
        sys.meta_path.insert(0, self._finder)
        shell.input_transformers_cleanup.append(adapt_lines)
        self._shell = shell
        # Pages define classes in cells and use them in worker processes. Only
        # a forked process has these classes. From Python 3.14 on, 'fork' is
        # not the default
        default = multiprocessing.get_all_start_methods()[0]
        is_chosen = multiprocessing.get_start_method(
            allow_none=True) is not None
        self._has_set_start_method = (
            sys.platform == 'linux' and not is_chosen and default != 'fork')
        if self._has_set_start_method:
            multiprocessing.set_start_method('fork')

    def end(self):
        """Undo `begin`: `import d2l` gives the installed package again."""
        if self._shell is None:
            return
        sys.meta_path.remove(self._finder)
        self._shell.input_transformers_cleanup.remove(adapt_lines)
        _forget_book()
        if self._has_set_start_method:
            multiprocessing.set_start_method(None, force=True)  # the default
        self._shell = None


def _forget_book():
    """Forget the imported modules of `d2l`; return True if there were any."""
    names = [name for name in sys.modules if name.split('.')[0] == 'd2l']
    for name in names:
        del sys.modules[name]
    return bool(names)


redirection = Redirection()     # of this process, for `%load_ext d2lbert`


def cell_traceback():
    """Return, as JSON, the last error's calls whose code is in cells.

    Each call is [line number in its cell, name of the function], the innermost
    call last. The first item is in the cell that was run. The name is
    '<module>' for code outside of functions, also for code that a cell gives
    to `exec` or to a magic command such as %%time.
    """
    # Code of cells, and only this code, has the globals of __main__
    cell_globals = sys.modules['__main__'].__dict__
    calls = [(line, frame.f_code.co_name)
             for frame, line in traceback.walk_tb(sys.last_traceback)
             if frame.f_globals is cell_globals]
    # Code with a syntax error has not run, so no call is in it. If this code
    # is the cell, `calls` is empty. If the cell gave it to a magic command,
    # `calls` has the call of the command. After more calls, the code is not a
    # cell's
    error = sys.last_value
    if len(calls) < 2 and isinstance(error, SyntaxError) and error.lineno:
        calls.append((error.lineno, '<module>'))
    return json.dumps(calls)
