"""The processes of a job: started behind guards, watched, printed, ended."""
import codecs
import contextlib
import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from d2lbert.launch import guard
from d2lbert.launch.addresses import LOCAL
from d2lbert.machine import hardware

#: Seconds between SIGTERM and SIGKILL; for worker 0 to save after Ctrl-C; to
#: reach the scheduler; between two signs of life; without one.
GRACE, SAVING, JOIN, BEAT, SILENCE = 3, 30, 60, 5, 60
#: What Python runs on each host: the text of `guard.py`, which comes, with
#: what it is to start, on standard input.
GUARD = ('-IS', '-c', 'import json, sys\n'
         'spec = json.loads(sys.stdin.buffer.readline())\n'
         "exec(spec['guard'])\n"
         'sys.exit(main(spec))')
#: The user's own variables that hosts behind ssh are given as well.
CARRIED = ('D2LBERT_', 'MXNET_', 'OMP_', 'PS_', 'PYTHON', 'DMLC_INTERFACE')


class LaunchError(RuntimeError):
    """Why a job of several processes ended before its time."""


class Process:
    """One process of a job: the guard here, or the ssh that leads to it."""

    def __init__(self, name, host, popen):
        self.name, self.host, self.popen = name, host, popen
        self.begun = time.monotonic()
        self.errors = ''    # the end of what it wrote to standard error

    def send(self, data):
        """Write to its guard, which may be gone."""
        with contextlib.suppress(OSError, ValueError):
            self.popen.stdin.write(data)
            self.popen.stdin.flush()

    def failure(self):
        """How it ended, in words."""
        status, seconds = self.popen.poll(), time.monotonic() - self.begun
        name = self.name
        if self.host != LOCAL:
            name += f' on {self.host}'
            if status == 255:
                return f'{name}: the host cannot be reached, or was lost'
        number = status - 128 if status > 128 else -status
        try:
            how = f'was killed by {signal.Signals(number).name}'
        except ValueError:
            how = f'ended with exit status {status}'
        return f'{name} {how} after {seconds:.0f} s'


class Job:
    """The processes that work together, from the first start to the end."""

    def __init__(self, root, ssh, remote_python, sockets=None):
        self.root, self.ssh, self.remote_python = root, ssh, remote_python
        self.processes, self.sockets = [], sockets
        self.pipes = selectors.DefaultSelector()
        self.mid_line = False   # the terminal shows a line without its end

    def start(self, name, host, arguments, env, sharing=1):
        """Start Python with `arguments` on a host, behind a guard."""
        python = sys.executable if host == LOCAL else self.remote_python
        command = [python, *GUARD]
        if host != LOCAL:
            env = {**{name: value for name, value in os.environ.items()
                      if name.startswith(CARRIED)}, **env}
            command = [*self.ssh, host, f'exec {shlex.join(command)}']
        listens = None
        if self.sockets:
            listens = str(self.sockets[len(self.processes)])
            env = dict(env, PORT=Path(listens).name)
        spec = dict(guard=_text_of(guard), machine=_text_of(hardware),
                    socket=listens, argv=[python, *arguments],
                    cwd=os.getcwd(), env=env,
                    root=None if name == 'scheduler' else self.root,
                    join=JOIN, grace=GRACE, sharing=sharing,
                    silence=None if host == LOCAL else SILENCE)
        try:
            # A session of its own: Ctrl-C is for the launcher alone
            process = Process(name, host, subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True))
        except OSError as error:
            raise LaunchError(f'{name} cannot be started: {command[0]}: '
                              f'{error.strerror}') from None
        self.processes.append(process)
        process.send(json.dumps(spec).encode() + b'\n')
        for pipe in (process.popen.stdout, process.popen.stderr):
            self.pipes.register(pipe, selectors.EVENT_READ,
                                self._printer(process, pipe))

    def watch(self):
        """Wait for all workers; raise `LaunchError` if a process fails."""
        threading.Thread(target=self._beat, daemon=True).start()
        workers = [p for p in self.processes if p.name.startswith('worker')]
        until = None
        while until is None or time.monotonic() < until:
            self._print(0.1)
            for process in self.processes:
                if process.popen.poll():
                    self._fail(process)
            if all(p.popen.poll() == 0 for p in self.processes):
                return
            if until is None and all(p.popen.poll() == 0 for p in workers):
                # Servers that no worker ever spoke to stay where they are
                until = time.monotonic() + GRACE

    def interrupt(self):
        """Hand a Ctrl-C on to worker 0, which may have something to save."""
        for process in self.processes:
            if process.name == 'worker 0':
                process.send(guard.INTERRUPT)
                self._wait([process], SAVING)

    def end(self):
        """End all processes, kindly at first."""
        if self.pipes.get_map() is None:
            return
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.popen.stdin.close()
        self._wait(self.processes, 2 * GRACE + 2)
        for process in self.processes:
            if process.popen.poll() is None:
                # A guard takes its process along
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.popen.pid, signal.SIGKILL)
                process.popen.wait()
        for path in self.sockets or ():
            with contextlib.suppress(FileNotFoundError):
                path.unlink()       # where its guard was killed, too
        for key in list(self.pipes.get_map().values()):
            key.fileobj.close()
        self.pipes.close()

    def _fail(self, process):
        failure = process.failure()
        self.end()
        last = ''.join(f'\n  {line}' for line in
                       process.errors.rstrip().splitlines()[-8:])
        raise LaunchError(f'{failure}, and all others have been ended'
                          + (f'; its last words:{last}' if last else ''))

    def _wait(self, processes, seconds):
        """Wait until these have ended; a (second) Ctrl-C ends the wait."""
        until = time.monotonic() + seconds
        # Nor does it help to wait where nothing can be printed any more
        with contextlib.suppress(KeyboardInterrupt, OSError, ValueError):
            while (any(p.popen.poll() is None for p in processes)
                   and time.monotonic() < until):
                self._print(0.1)
            while self._print(0) and time.monotonic() < until:
                pass

    def _beat(self):
        """Tell the guards of other hosts that the launcher is there."""
        remote = [p for p in self.processes if p.host != LOCAL]
        while any(p.popen.poll() is None for p in remote):
            for process in remote:
                process.send(guard.ALIVE)
            time.sleep(BEAT)

    def _print(self, seconds):
        """Print what the processes have written; wait so long for it.

        Returns whether there was anything.
        """
        if not self.pipes.get_map():
            time.sleep(seconds)
            return False
        readable = self.pipes.select(seconds)
        for key, _ in readable:
            data = os.read(key.fd, 1 << 16)
            key.data(data)
            if not data:
                self.pipes.unregister(key.fileobj)
                key.fileobj.close()
        return bool(readable)

    def _printer(self, process, pipe):
        """A function that prints what comes out of `pipe`, b'' at its end."""
        decoder = codecs.getincrementaldecoder('utf-8')('replace')
        kept = ''

        def write(data):
            nonlocal kept
            text = decoder.decode(data, final=not data)
            if pipe is process.popen.stderr:
                process.errors = (process.errors + text)[-4000:]
            if process.name == 'worker 0':
                out = sys.stdout if pipe is process.popen.stdout else (
                    sys.stderr)
                out.write(text)
                if text and sys.stderr.isatty():
                    self.mid_line = not text.endswith('\n')
            else:
                out = sys.stderr
                *lines, kept = (kept + text).split('\n')
                if kept and not data:
                    lines, kept = [*lines, kept], ''
                if lines and self.mid_line:
                    out.write('\n')
                    self.mid_line = False
                for line in lines:
                    out.write(f'[{process.name}] {line}\n')
            out.flush()
        return write


def _text_of(module):
    return Path(module.__file__).read_text(encoding='utf-8')
