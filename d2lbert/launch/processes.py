"""The processes of a job: start, watch, print, and end them."""
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

#: Seconds: between SIGTERM and SIGKILL; for worker 0 to save after Ctrl-C;
#: to reach the scheduler; between two signs of life; until a silent launcher
#: counts as gone.
GRACE, SAVING, JOIN, BEAT, SILENCE = 3, 30, 60, 5, 60
#: Arguments of Python on each host. It reads a line of JSON with the source
#: of `guard.py` and the process to start.
GUARD = ('-IS', '-c', 'import json, sys\n'
         'spec = json.loads(sys.stdin.buffer.readline())\n'
         "exec(spec['guard'])\n"
         'sys.exit(main(spec))')
#: Prefixes of environment variables that are also set on remote hosts.
CARRIED = ('D2LBERT_', 'MXNET_', 'OMP_', 'PS_', 'PYTHON', 'DMLC_INTERFACE')


class LaunchError(RuntimeError):
    """A process of a job has failed, and the job was ended."""


class Process:
    """One process of a job: its guard, or the ssh to its guard."""

    def __init__(self, name, host, popen):
        self.name, self.host, self.popen = name, host, popen
        self.begun = time.monotonic()
        self.errors = ''    # the end of its standard error

    def send(self, data):
        """Write to its guard, which may have ended."""
        with contextlib.suppress(OSError, ValueError):
            self.popen.stdin.write(data)
            self.popen.stdin.flush()

    def failure(self):
        """A sentence on how the process ended."""
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
    """All processes of a job, from their start to their end."""

    def __init__(self, root, ssh, remote_python, sockets=None):
        self.root, self.ssh, self.remote_python = root, ssh, remote_python
        self.processes, self.sockets = [], sockets
        self.pipes = selectors.DefaultSelector()
        self.mid_line = False   # the terminal shows an unfinished line

    def start(self, name, host, arguments, env, sharing=1):
        """Start Python with `arguments` on a host, under a guard."""
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
            # In a new session, so that Ctrl-C reaches the launcher only
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
                # Servers that no worker has contacted do not end
                until = time.monotonic() + GRACE

    def interrupt(self):
        """Forward a Ctrl-C to worker 0, and give it time to save."""
        for process in self.processes:
            if process.name == 'worker 0':
                process.send(guard.INTERRUPT)
                self._wait([process], SAVING)

    def end(self):
        """End all processes: ask their guards first, then kill."""
        if self.pipes.get_map() is None:
            return
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.popen.stdin.close()
        self._wait(self.processes, 2 * GRACE + 2)
        for process in self.processes:
            if process.popen.poll() is None:
                # The process dies with its guard
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.popen.pid, signal.SIGKILL)
                process.popen.wait()
        for path in self.sockets or ():
            with contextlib.suppress(FileNotFoundError):
                path.unlink()       # a killed guard has not removed it
        for key in list(self.pipes.get_map().values()):
            key.fileobj.close()
        self.pipes.close()

    def _fail(self, process):
        failure = process.failure()
        self.end()
        last = ''.join(f'\n  {line}' for line in
                       process.errors.rstrip().splitlines()[-8:])
        raise LaunchError(f'{failure}, and all others have been ended'
                          + (f'; its last lines:{last}' if last else ''))

    def _wait(self, processes, seconds):
        """Wait until these have ended; another Ctrl-C ends the wait."""
        until = time.monotonic() + seconds
        # A closed terminal also ends the wait
        with contextlib.suppress(KeyboardInterrupt, OSError, ValueError):
            while (any(p.popen.poll() is None for p in processes)
                   and time.monotonic() < until):
                self._print(0.1)
            while self._print(0) and time.monotonic() < until:
                pass

    def _beat(self):
        """Send signs of life to the guards on other hosts."""
        remote = [p for p in self.processes if p.host != LOCAL]
        while any(p.popen.poll() is None for p in remote):
            for process in remote:
                process.send(guard.ALIVE)
            time.sleep(BEAT)

    def _print(self, seconds):
        """Print output of the processes; wait at most `seconds` for it.

        Returns True if there was output.
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
        """A function that prints data of `pipe`; b'' marks its end."""
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
