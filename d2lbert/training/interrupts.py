"""Handle Ctrl-C, SIGTERM and SIGHUP as requests to stop a run."""
import contextlib
import math
import os
import signal
import threading
import time

#: Signals that stop a run; some platforms lack SIGHUP.
SIGNALS = [getattr(signal, name) for name in ('SIGINT', 'SIGTERM', 'SIGHUP')
           if hasattr(signal, name)]

#: Seconds after an `Interrupted` in which further signals are ignored, so
#: that `finally` blocks can clean up.
CLEANUP_SECONDS = 2


class Interrupted(KeyboardInterrupt):
    """A signal ended the work; `signal` is its number."""

    def __init__(self, text='', number=None):
        """number: of the signal; None if only another worker got a signal."""
        super().__init__(text)
        self.signal = int(signal.SIGINT if number is None else number)


class Stopped(Interrupted):
    """A signal ended a run, after the run saved a checkpoint."""


class StopRequest:
    """Handle signals within a `with` statement.

    While `stores_first` is True, the first signal is only stored in `signal`,
    which the training loop reads after each step. Any other signal raises
    `Interrupted` with the message `last_words`, except in the CLEANUP_SECONDS
    after the last `Interrupted`. While `ignores_all` is True, signals have no
    effect. Signals that were ignored before, as under nohup, stay ignored.
    """

    def __init__(self):
        self.signal = None      # the number of the stored signal
        self.stores_first = self.ignores_all = False
        self.last_words = 'stopped; nothing was written'
        self._handlers_before = {}      # {number of a signal: handler}
        self._is_delaying = False
        self._delayed_number = None     # the last signal while delaying
        self._raised_at = -math.inf     # the time of the last `Interrupted`

    def __enter__(self):
        # Python allows handlers in the main thread only
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number)
                        for number in SIGNALS}
            self._handlers_before = {
                number: handler for number, handler in handlers.items()
                if handler is not signal.SIG_IGN}
        for number in self._handlers_before:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_):
        for number, handler in self._handlers_before.items():
            # None: the handler was not installed by Python code
            signal.signal(number, handler or signal.SIG_DFL)

    def _handle(self, number, frame):
        if self._is_delaying:
            self._delayed_number = number
            return
        if self.ignores_all:
            return
        if self.stores_first and self.signal is None:
            self.signal = number
        elif _is_in_destructor(frame):
            # Python ignores an exception in __del__: send the signal again
            # after 10 ms, when __del__ may be over
            threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
        elif time.monotonic() - self._raised_at > CLEANUP_SECONDS:
            self._raised_at = time.monotonic()
            raise Interrupted(self.last_words, number)

    @contextlib.contextmanager
    def delayed(self):
        """Handle signals only at the end of a `with` statement.

        Of several signals, only the last is handled. If the statement raises
        an error, none is handled.
        """
        self._delayed_number = None     # a failed statement may leave one
        self._is_delaying = True
        try:
            yield
        finally:
            self._is_delaying = False
        if self._delayed_number is not None:
            self._handle(self._delayed_number, None)


def _is_in_destructor(frame):
    while frame is not None:
        if frame.f_code.co_name == '__del__':
            return True
        frame = frame.f_back
    return False
