"""Ctrl-C, SIGTERM and SIGHUP, taken as a request to stop."""
import contextlib
import math
import os
import signal
import threading
import time

#: What asks a run to stop; a platform may lack some of them.
SIGNALS = [getattr(signal, name) for name in ('SIGINT', 'SIGTERM', 'SIGHUP')
           if hasattr(signal, name)]


#: Seconds in which no other signal breaks into what one has begun to end.
CLEANING = 2


class Interrupted(KeyboardInterrupt):
    """A signal ended the work; `signal` is its number."""

    def __init__(self, text='', number=signal.SIGINT):
        super().__init__(text)
        self.signal = int(number)


class Stopped(Interrupted):
    """A signal ended a run, which was saved; the text says how to go on."""


class StopRequest:
    """Whether somebody wants the work in a `with` statement to stop.

    While `patient`, the first signal is noted in `signal`, for the work to
    end where that is convenient; at any other time, and from the second on,
    a signal raises `Interrupted` with the text `last_words`, unless one has
    done so just now. While `deaf`, signals change nothing. Those that are
    ignored stay so (nohup).
    """

    def __init__(self):
        self.signal = None
        self.patient = self.deaf = False
        self.last_words = 'stopped; nothing was written'
        self._before, self._is_held, self._held = {}, False, None
        self._raised = -math.inf

    def __enter__(self):
        # Only the main thread can handle signals
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: handler for number, handler in (
                    (number, signal.getsignal(number)) for number in SIGNALS)
                if handler is not signal.SIG_IGN}
        for number in self._before:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def _note(self, number, frame):
        if self._is_held:
            self._held = number
            return
        if self.deaf:
            return
        if self.patient and self.signal is None:
            self.signal = number
        elif _is_in_destructor(frame):
            # Python would print the exception, and then go on
            threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
        elif time.monotonic() - self._raised > CLEANING:
            self._raised = time.monotonic()
            raise Interrupted(self.last_words, number)

    @contextlib.contextmanager
    def held(self):
        """Let signals wait for the end of a `with` statement."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        number, self._held = self._held, None
        if number is not None:
            self._note(number, None)


def _is_in_destructor(frame):
    while frame is not None:
        if frame.f_code.co_name == '__del__':
            return True
        frame = frame.f_back
    return False
