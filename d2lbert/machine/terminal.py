"""Print output and warnings; a failed write does not end a run."""
import contextlib
import logging
import os
import re
import sys
import tempfile
import threading
import warnings
import weakref


def fill_descriptors():
    """Open /dev/null for standard input, output or error if it is closed.

    Otherwise the next opened file would get the free descriptor, and
    libraries would print into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)      # the lowest free descriptor


def give_up(stream):
    """Close a stream that cannot be written.

    Otherwise Python flushes it at exit, prints an error and fails.
    """
    with contextlib.suppress(OSError, ValueError):
        stream.close()


#: The text of a panic in Rust: the thread, the message, a backtrace.
_PANIC = re.compile(rb"\n?thread '[^\n]*panicked at [^\n]*\n[^\n]*\n"
                    rb'(?:stack backtrace:\n(?: +[^\n]*\n)*)?'
                    rb'(?:note: [^\n]*\n)?')
_holding = threading.Lock()


@contextlib.contextmanager
def without_panics():
    """Keep the text of panics in Rust off standard error.

    Rust prints it, from any thread, before Python gets the exception.
    Within this context, descriptor 2 is a temporary file; on exit, everything
    else in it is written to standard error. While one thread is in this
    context, the context does nothing in other threads: the output of all
    threads is held back for one call at most.
    """
    if not _holding.acquire(blocking=False):
        yield
        return
    try:
        with tempfile.TemporaryFile() as held:
            stderr = os.dup(2)
            os.dup2(held.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
                held.seek(0)
                text = _PANIC.sub(b'', held.read())
                if text:
                    os.write(2, text)
    finally:
        _holding.release()


#: The logger of the package. It has no handler; unless the application adds
#: one, Python prints warnings to standard error.
LOG = logging.getLogger('d2lbert')


def warn(line):
    """Log a line that the user should see; `--quiet` hides it."""
    LOG.warning('%s', line)


class TextWarning(UserWarning):
    """Input texts were truncated, or have unknown words."""


_told = weakref.WeakKeyDictionary()


def warn_once(owner, kind, line):
    """Warn of `line` the first time for this owner and kind.

    owner: an object, for example a tokenizer. Later lines are logged at
    level INFO, so that a server does not print a line for each request. The
    warning names the line of the program that called this package.
    """
    kinds = _told.setdefault(owner, set())
    if kind in kinds:
        LOG.info('%s', line)
        return
    kinds.add(kind)
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get(
            '__name__', '').partition('.')[0] == 'd2lbert':
        frame, level = frame.f_back, level + 1
    warnings.warn(line, TextWarning, stacklevel=level)


class _Stderr(logging.Handler):
    """Write log messages to the current sys.stderr."""

    def emit(self, record):
        note(record.getMessage())


@contextlib.contextmanager
def speaking(is_quiet=False):
    """Let a command print the package's warnings; hide them if quiet."""
    before, show = (LOG.handlers, LOG.propagate), warnings.showwarning

    def show_text(message, category, *args, **kwargs):
        if issubclass(category, TextWarning):
            note(message)
        else:
            show(message, category, *args, **kwargs)
    # Without a handler Python would print warnings even if quiet
    LOG.handlers = [_Stderr(logging.WARNING)]
    # A handler of the root logger would print each line twice
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
    """Silence `note` and progress bars in this context (--quiet)."""
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
    """Print a line to standard error, unless within `quiet`."""
    if not _quiet and sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


class Steady:
    """A stream that goes silent, instead of raising, if writing fails.

    stream: a text stream, or None if the descriptor was closed before Python
    started. Output lost to a full disk, a closed pipe or a closed terminal
    is still in the log.txt of a run.
    """

    encoding, errors = 'utf-8', 'replace'

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        """Write the text if this is still possible."""
        self._attempt('write', text)
        return len(text)

    def flush(self):
        """Flush the stream if this is still possible."""
        self._attempt('flush')

    def isatty(self):
        """True if the stream is an open terminal."""
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
_users, _before = 0, None      # of `steady_output`: open contexts, old streams


@contextlib.contextmanager
def steady_output():
    """Context in which printing never raises an OSError.

    It flushes on exit, so that Python's own flush cannot fail. Threads share
    standard output: the first context replaces it, and the last one restores
    it.
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
