"""Standard output and error that may fail without costing a run."""
import contextlib
import logging
import os
import sys
import threading
import warnings
import weakref


def fill_descriptors():
    """Let standard input, output and error be something, if they are closed.

    The next file to be opened would take the free number, and what a
    library prints would go into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)      # the lowest number is free


def give_up(stream):
    """Close a stream that cannot be written.

    Otherwise Python tries once more at its end, complains and fails.
    """
    with contextlib.suppress(OSError, ValueError):
        stream.close()


#: The logger of the package. It has no handler of its own, so where the
#: application gives it none, Python prints warnings to standard error.
LOG = logging.getLogger('d2lbert')


def warn(line):
    """Log a line that the user should see; `--quiet` hides it."""
    LOG.warning('%s', line)


class TextWarning(UserWarning):
    """Texts of a call are not what they seem: cut, or of unknown words."""


_told = weakref.WeakKeyDictionary()


def warn_once(owner, kind, line, stacklevel=3):
    """Warn of `line`, the first time for this owner and kind; then log it.

    owner: an object, for example a tokenizer. Later lines have the level
    INFO: a server is not to write a line for each request.
    """
    kinds = _told.setdefault(owner, set())
    if kind in kinds:
        LOG.info('%s', line)
        return
    kinds.add(kind)
    warnings.warn(line, TextWarning, stacklevel=stacklevel)


class _Stderr(logging.Handler):
    """Writes the messages of records to what standard error is then."""

    def emit(self, record):
        note(record.getMessage())


@contextlib.contextmanager
def speaking(is_quiet=False):
    """Let a command print the package's warnings, or hide them."""
    before, show = (LOG.handlers, LOG.propagate), warnings.showwarning

    def show_text(message, category, *args, **kwargs):
        if issubclass(category, TextWarning):
            note(message)
        else:
            show(message, category, *args, **kwargs)
    # Without a handler Python would print what is to be quiet
    LOG.handlers = [_Stderr(logging.WARNING)]
    # A library may have given the root logger a handler, which would repeat
    LOG.propagate = False
    try:
        with quiet(is_quiet), warnings.catch_warnings():
            warnings.simplefilter('always', TextWarning)
            warnings.showwarning = show_text
            yield
    finally:
        LOG.handlers, LOG.propagate = before


_quiet = False


@contextlib.contextmanager
def quiet(is_quiet=True):
    """Let `note` and progress bars be silent meanwhile (--quiet)."""
    global _quiet
    before, _quiet = _quiet, is_quiet or _quiet
    try:
        yield
    finally:
        _quiet = before


def is_quiet():
    """True within `quiet`."""
    return _quiet


def note(line):
    """Print a line to standard error, unless the command is to be quiet."""
    if not _quiet and sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


class Steady:
    """A stream that goes silent, rather than raise, once it cannot write.

    stream: a text stream, or None where the descriptor was closed before
    Python began. What is lost on the way to a full disk, a closed pipe or
    a terminal that is gone has its place in log.txt.
    """

    encoding, errors = 'utf-8', 'replace'

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        """Write the text where that is still possible."""
        self._attempt('write', text)
        return len(text)

    def flush(self):
        """Flush what was written."""
        self._attempt('flush')

    def isatty(self):
        """Whether a terminal still listens."""
        return bool(self._attempt('isatty'))

    def _attempt(self, name, *args):
        if self._stream is None:
            return None
        try:
            return getattr(self._stream, name)(*args)
        except (OSError, ValueError):
            give_up(self._stream)       # a closed file raises ValueError
            self._stream = None
            return None


_lock = threading.Lock()
_users, _before = 0, None      # of `steady_output`; what it stands in for


@contextlib.contextmanager
def steady_output():
    """Let nothing that is printed meanwhile raise an OSError.

    Flushes behind itself, so that Python finds nothing left to fail on.
    Standard output belongs to all threads: the first to come replaces it,
    and the last to leave puts it back.
    """
    global _users, _before
    with _lock:
        if not _users:
            _before = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = map(Steady, _before)
        _users += 1
        steady = sys.stdout, sys.stderr
    try:
        yield
    finally:
        for stream in steady:
            stream.flush()
        with _lock:
            _users -= 1
            if not _users:
                sys.stdout, sys.stderr = _before
