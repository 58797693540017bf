"""Print messages and warnings; a failed write does not end a run."""
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
    """Open /dev/null in place of a closed standard input, output or error.

    Otherwise the next opened file would get the free descriptor 0, 1 or 2, and
    libraries would print into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)      # the lowest free descriptor


def close_broken(stream):
    """Close a stream after a failed write.

    Otherwise Python would flush the stream at exit, fail and print an error.
    """
    with contextlib.suppress(OSError, ValueError):
        stream.close()


#: The text that Rust prints for a panic: thread, message and backtrace.
_PANIC = re.compile(rb"\n?thread '[^\n]*panicked at [^\n]*\n[^\n]*\n"
                    rb'(?:stack backtrace:\n(?: +[^\n]*\n)*)?'
                    rb'(?:note: [^\n]*\n)?')
# The thread in `without_panics` that captures standard error holds this lock
_capture_lock = threading.Lock()


@contextlib.contextmanager
def without_panics():
    """Context in which Rust code of the tokenizers library prints no panics.

    Rust prints a panic before Python gets the exception. In this context,
    descriptor 2 is a temporary file. On exit, the text of the file without the
    panics is written to standard error.

    While one thread captures, other threads enter this context without effect.
    They may print a panic after the capture has ended. If threads shared a
    capture, it could end only when no thread is in the context, and with
    overlapping calls this may never happen.
    """
    if not _capture_lock.acquire(blocking=False):
        yield
        return
    try:
        with tempfile.TemporaryFile() as captured:
            saved_stderr = os.dup(2)
            os.dup2(captured.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(saved_stderr, 2)
                os.close(saved_stderr)
                captured.seek(0)
                output = _PANIC.sub(b'', captured.read())
                if output:
                    os.write(2, output)
    finally:
        _capture_lock.release()


#: The logger of the package. It has no handler; unless the application adds
#: one, Python prints lines of level WARNING or above to standard error.
LOG = logging.getLogger('d2lbert')


def warn(line):
    """Log a line that the user should see; `--quiet` hides it."""
    LOG.warning('%s', line)


class TextWarning(UserWarning):
    """Input texts were truncated, or have unknown words."""


# {owner: kinds of warnings issued for it}, see `warn_once`
_warned = weakref.WeakKeyDictionary()


def warn_once(owner, kind, line):
    """Issue the warning `line`, unless `owner` already had one of this kind.

    owner: an object, for example a tokenizer. kind: a text, equal for warnings
    of the same kind. Later lines of a kind are logged at level INFO, so that a
    server does not print a line for each request. The warning names the line
    of code that called the package d2lbert.
    """
    kinds = _warned.setdefault(owner, set())
    if kind in kinds:
        LOG.info('%s', line)
        return
    kinds.add(kind)
    # Find the stack level of the caller of the package; 1 is this function
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get(
            '__name__', '').partition('.')[0] == 'd2lbert':
        frame, level = frame.f_back, level + 1
    warnings.warn(line, TextWarning, stacklevel=level)


class _NoteHandler(logging.Handler):
    """A log handler that prints messages with `note`."""

    def emit(self, record):
        note(record.getMessage())


@contextlib.contextmanager
def printed_warnings(hidden=False):
    """Context in which a command prints the warnings of this package.

    hidden: if true, hide the warnings and progress bars (--quiet).
    """
    logger_state = LOG.handlers, LOG.propagate
    show_other = warnings.showwarning

    def show(message, category, *args, **kwargs):
        if issubclass(category, TextWarning):
            note(message)
        else:
            show_other(message, category, *args, **kwargs)
    # Without a handler, Python would print lines of `warn` despite --quiet
    LOG.handlers = [_NoteHandler(logging.WARNING)]
    # Otherwise a handler of the root logger would print each line once more
    LOG.propagate = False
    try:
        with quiet(hidden), warnings.catch_warnings():
            warnings.simplefilter('always', TextWarning)
            warnings.showwarning = show
            yield
    finally:
        LOG.handlers, LOG.propagate = logger_state


_quiet = False      # True in a context of `quiet`


@contextlib.contextmanager
def quiet(active=True):
    """Context without lines of `note` and without progress bars (--quiet).

    active: if false, the context changes nothing.
    """
    global _quiet
    previous = _quiet
    _quiet = active or previous
    try:
        yield
    finally:
        _quiet = previous


def is_quiet():
    """True in a context of `quiet`."""
    return _quiet


def note(line):
    """Print a line to standard error, except in a context of `quiet`."""
    if not _quiet and sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


class FailsafeStream:
    """A text stream that ignores output once a write has failed.

    stream: the stream to write to, or None if its descriptor was closed before
    Python started. A write fails if a disk is full, or a pipe or a terminal is
    closed. The log lines of a run are not lost: they are in log.txt, too.
    """

    # Other code reads these attributes. They do not depend on the stream,
    # which may be None
    encoding, errors = 'utf-8', 'replace'

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        """Write the text, unless an earlier write has failed."""
        try:
            self._attempt('write', text)
        except UnicodeEncodeError as error:
            # The stream is intact, but its encoding lacks a character
            self._attempt('write', text.encode(
                error.encoding, 'backslashreplace').decode(error.encoding))
        return len(text)

    def flush(self):
        """Flush the stream, unless an earlier write has failed."""
        self._attempt('flush')

    def isatty(self):
        """True if the stream is an open terminal."""
        return bool(self._attempt('isatty'))

    def _attempt(self, name, *args):
        """Call a method of the stream; after a failure, return None."""
        if self._stream is None:
            return None
        try:
            return getattr(self._stream, name)(*args)
        except UnicodeEncodeError:      # a ValueError that `write` handles
            raise
        except (OSError, ValueError):   # ValueError: the file is closed
            close_broken(self._stream)
            self._stream = None
            return None


# The number of open contexts of `failsafe_output`; sys.stdout and sys.stderr
# as they were before the first of these contexts
_num_contexts, _original_streams = 0, None
# A thread holds this lock while it changes the two variables above
_streams_lock = threading.Lock()


@contextlib.contextmanager
def failsafe_output():
    """Context in which printing never raises an OSError.

    On exit, the streams are flushed, so that Python's flush at the end of the
    program cannot fail. All threads share sys.stdout and sys.stderr. So the
    context that is entered first replaces both, and the context that is left
    last restores both.
    """
    global _num_contexts, _original_streams
    with _streams_lock:
        if not _num_contexts:
            _original_streams = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = map(FailsafeStream, _original_streams)
        _num_contexts += 1
        streams = sys.stdout, sys.stderr
    try:
        yield
    finally:
        for stream in streams:
            stream.flush()
        with _streams_lock:
            _num_contexts -= 1
            if not _num_contexts:
                sys.stdout, sys.stderr = _original_streams
