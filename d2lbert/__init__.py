"""The BERT chapters of *Dive into Deep Learning* on MXNet 1.9.1/Gluon.

`import d2lbert as d2l` replaces the book's `d2l` package. `names.py` lists the
public names, such as `d2l.BERTModel`.
"""
import importlib
import importlib.util
import os
import sys
import warnings

from d2lbert._version import __version__  # noqa: F401
from d2lbert.machine.cache import set_matplotlib_folder


def _is_command():
    """True if this process is `d2lbert` or `python -m d2lbert`."""
    program = os.path.basename(''.join(sys.argv[:1]))
    if program == '-m':
        # `python -m` is still looking for its module: only orig_argv names
        # it. Before Python 3.10, d2lbert is assumed
        return any(argument.split('.')[0] in ('d2lbert', '-md2lbert')
                   for argument in getattr(sys, 'orig_argv', ['d2lbert']))
    return program == 'd2lbert'


set_matplotlib_folder()
_names_error = None         # the message if names.py cannot be imported
if not _is_command():       # the command must print --help without MXNet
    try:
        from d2lbert.names import *  # noqa: F403
    except ImportError as error:
        # Not raised: some modules of the package work without MXNet
        _names_error = str(error)
        warnings.warn(f'd2lbert cannot work yet: {_names_error}',
                      stacklevel=2)


def __getattr__(name):
    """Return the public object `name`: the command imports none at start.

    Raises ImportError if MXNet cannot be imported.
    """
    # After an AttributeError, `from d2lbert import SUBMODULE` imports the
    # submodule. It may be one that works without MXNet
    if (not name.startswith('__')
            and not importlib.util.find_spec(f'{__name__}.{name}')):
        if _names_error is not None:
            raise ImportError(_names_error)
        names = importlib.import_module('d2lbert.names')
        if hasattr(names, name):
            return getattr(names, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def load_ipython_extension(ip):
    """`%load_ext d2lbert`: make `import d2l` import d2lbert in this kernel."""
    from d2lbert.book.imports import redirection
    redirection.begin(ip)


def unload_ipython_extension(ip):
    """`%unload_ext d2lbert`: undo `load_ipython_extension`."""
    from d2lbert.book.imports import redirection
    redirection.end()
