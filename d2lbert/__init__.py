"""The BERT chapters of *Dive into Deep Learning* on MXNet 1.9.1/Gluon.

`import d2lbert as d2l` stands in for the book's own `d2l` package. Its flat
names are in `names.py`; MXNet comes with them, and `import mxnet` works behind
it.
"""
import importlib
import importlib.util
import os
import sys
import warnings

from d2lbert._version import __version__  # noqa: F401
from d2lbert.machine.cache import stand_in_for_home


def _is_command():
    """Whether this is `d2lbert`, or `python -m d2lbert` or a part of it."""
    name = os.path.basename(''.join(sys.argv[:1]))
    if name == '-m':
        # What argv holds while Python looks for a module to run; for which
        # one it does, it tells from 3.10 on
        return any(argument.split('.')[0] in ('d2lbert', '-md2lbert')
                   for argument in getattr(sys, 'orig_argv', ['d2lbert']))
    return name == 'd2lbert'


stand_in_for_home()
_reason = None
if not _is_command():       # which must not wait for MXNet to say --help
    try:
        from d2lbert.names import *  # noqa: F403
    except ImportError as error:
        # What needs no MXNet must run without it, to say what is wrong
        _reason = str(error)
        warnings.warn(f'd2lbert cannot work yet: {_reason}', stacklevel=2)


def __getattr__(name):
    """A name that is not there yet: in the command, or without MXNet."""
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
