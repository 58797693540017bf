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
    name = os.path.basename(''.join(sys.argv[:1]))
    if name == '-m':
        # `python -m` has not found its module yet: only orig_argv has the
        # module's name. Before Python 3.10, d2lbert is assumed
        return any(argument.split('.')[0] in ('d2lbert', '-md2lbert')
                   for argument in getattr(sys, 'orig_argv', ['d2lbert']))
    return name == 'd2lbert'


set_matplotlib_folder()
_import_message = None      # the error's message if MXNet cannot be imported
if not _is_command():       # the command must print --help without MXNet
    try:
        from d2lbert.names import *  # noqa: F403
    except ImportError as error:
        # Do not raise the error here: some modules work without MXNet, and
        # `d2lbert doctor` needs only them
        _import_message = str(error)
        warnings.warn(f'd2lbert cannot work yet: {_import_message}',
                      stacklevel=2)


def __getattr__(name):
    """Return the object of the public name `name`.

    Python calls this function for a name that this module lacks. In the
    command, it lacks all public names. Raises ImportError if MXNet cannot be
    imported.
    """
    # For a submodule, raise AttributeError, and do not import MXNet: Python
    # then imports the submodule itself for `from d2lbert import SUBMODULE`
    if (not name.startswith('__')
            and not importlib.util.find_spec(f'{__name__}.{name}')):
        if _import_message is not None:
            raise ImportError(_import_message)
        names = importlib.import_module('d2lbert.names')
        if hasattr(names, name):
            return getattr(names, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def load_ipython_extension(ip):
    """`%load_ext d2lbert`: make `import d2l` import d2lbert in this kernel."""
    from d2lbert.book.imports import redirection
    redirection.begin(ip)


def unload_ipython_extension(ip):
    """`%unload_ext d2lbert`: make `import d2l` import the package d2l again.
    """
    from d2lbert.book.imports import redirection
    redirection.end()
