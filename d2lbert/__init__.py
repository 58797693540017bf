"""The BERT chapters of *Dive into Deep Learning* on MXNet 1.9.1/Gluon.

`import d2lbert as d2l` replaces the book's `d2l` package. Its flat names are
in `names.py`.
"""
import importlib
import importlib.util
import os
import sys
import warnings

from d2lbert._version import __version__  # noqa: F401
from d2lbert.machine.cache import set_matplotlib_folder


def _is_command():
    """True in the command `d2lbert`, and in `python -m d2lbert`."""
    name = os.path.basename(''.join(sys.argv[:1]))
    if name == '-m':
        # Python is looking for the module to run. From 3.10 on, orig_argv
        # holds its name.
        return any(argument.split('.')[0] in ('d2lbert', '-md2lbert')
                   for argument in getattr(sys, 'orig_argv', ['d2lbert']))
    return name == 'd2lbert'


set_matplotlib_folder()
_reason = None
if not _is_command():       # the command must print --help without MXNet
    try:
        from d2lbert.names import *  # noqa: F403
    except ImportError as error:
        # `d2lbert doctor` must run without MXNet, to tell the cause
        _reason = str(error)
        warnings.warn(f'd2lbert cannot work yet: {_reason}', stacklevel=2)


def __getattr__(name):
    """Import a flat name that is not imported yet, as in the command.

    Raises ImportError if MXNet cannot be imported.
    """
    # The module system imports submodules, which are no flat names
    if (not name.startswith('__')
            and not importlib.util.find_spec(f'{__name__}.{name}')):
        if _reason is not None:
            raise ImportError(_reason)
        names = importlib.import_module('d2lbert.names')
        if hasattr(names, name):
            return getattr(names, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def load_ipython_extension(ip):
    """`%load_ext d2lbert`: let `import d2l` give d2lbert in this kernel."""
    from d2lbert.book.imports import redirection
    redirection.begin(ip)


def unload_ipython_extension(ip):
    """`%unload_ext d2lbert`: let `import d2l` mean the installed package."""
    from d2lbert.book.imports import redirection
    redirection.end()
