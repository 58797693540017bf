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
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor. A kernel of Jupyter inherits it
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def close_broken(stream):
    """Close a stream after a failed write.

    Otherwise Python would flush the stream at exit, fail and print an error.
    """
    with contextlib.suppress(OSError, ValueError):
        stream.close()


# The text of a panic: thread, message and backtrace
_PANIC = re.compile(rb"\n?thread '[^\n]*panicked at [^\n]*\n[^\n]*\n"
                    rb'(?:stack backtrace:\n(?: +[^\n]*\n)*)?'
                    rb'(?:note: [^\n]*\n)?')
# Held by the thread that captures standard error
_capture_lock = threading.Lock()


@contextlib.contextmanager
def without_panics():
    """Context in which Rust code of the tokenizers library prints no panics.

    Rust prints a panic before Python gets the exception. So standard error
    goes to a temporary file, whose text is printed on exit, without panics.

    While one thread captures, the context has no effect in other threads. They
    may print a panic after the capture. Threads do not share a capture, which
    would never end while their calls overlap.
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


_issued_kinds = weakref.WeakKeyDictionary()     # {owner: set of kinds}


def warn_once(owner, kind, line):
    """Issue the warning `line`, unless `owner` already had one of this kind.

    owner: for example a tokenizer. Later lines of the kind are logged at level
    INFO, so that a server does not print a line for each request.
    """
    kinds = _issued_kinds.setdefault(owner, set())
    if kind in kinds:
        LOG.info('%s', line)
        return
    kinds.add(kind)
    # The warning names the line of code that called the package d2lbert. Stack
    # level 1 is this function
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get(
            '__name__', '').partition('.')[0] == 'd2lbert':
        frame, level = frame.f_back, level + 1
    warnings.warn(line, TextWarning, stacklevel=level)


class _NoteHandler(logging.Handler):
    def emit(self, record):
        note(record.getMessage())


@contextlib.contextmanager
def printed_warnings(hidden=False):
    """Context in which a command prints the warnings of this package.

    hidden: hide the warnings and progress bars instead (--quiet).
    """
    logger_state = LOG.handlers, LOG.propagate
    default_show = warnings.showwarning

    def show(message, category, *args, **kwargs):
        if issubclass(category, TextWarning):
            note(message)
        else:
            default_show(message, category, *args, **kwargs)
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


_quiet = False


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
    """Print a line to standard error, unless `is_quiet()`."""
    if not _quiet and sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


class FailsafeStream:
    """A text stream that ignores output once a write has failed.

    stream: the stream to write to, or None if its descriptor was closed before
    Python started. The log lines of a run are in log.txt, too.
    """

    # Other code reads these attributes, even if the stream is None
    encoding, errors = 'utf-8', 'replace'

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        try:
            self._attempt('write', text)
        except UnicodeEncodeError as error:
            # The stream is intact, but its encoding lacks a character
            self._attempt('write', text.encode(
                error.encoding, 'backslashreplace').decode(error.encoding))
        return len(text)

    def flush(self):
        self._attempt('flush')

    def isatty(self):
        return bool(self._attempt('isatty'))

    def _attempt(self, method_name, *args):
        """Call a method of the stream; after a failure, return None."""
        if self._stream is None:
            return None
        try:
            return getattr(self._stream, method_name)(*args)
        except UnicodeEncodeError:      # a ValueError that `write` handles
            raise
        except (OSError, ValueError):   # ValueError: the file is closed
            close_broken(self._stream)
            self._stream = None
            return None


# Contexts of `failsafe_output`, and sys.stdout and sys.stderr before the first
_num_open_contexts, _original_streams = 0, None
_streams_lock = threading.Lock()    # guards these variables


@contextlib.contextmanager
def failsafe_output():
    """Context in which printing never raises an OSError.

    On exit, the streams are flushed, so that Python's flush at the end of the
    program cannot fail. Since threads share sys.stdout and sys.stderr, the
    context that is entered first replaces them, and the context that is left
    last restores them.
    """
    global _num_open_contexts, _original_streams
    with _streams_lock:
        if not _num_open_contexts:
            _original_streams = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = map(FailsafeStream, _original_streams)
        _num_open_contexts += 1
        streams = sys.stdout, sys.stderr
    try:
        yield
    finally:
        for stream in streams:
            stream.flush()
        with _streams_lock:
            _num_open_contexts -= 1
            if not _num_open_contexts:
                sys.stdout, sys.stderr = _original_streams
