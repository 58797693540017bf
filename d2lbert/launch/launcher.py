"""Start the processes of a job on MXNet's parameter server.

`launch` starts a scheduler, servers and workers, on this machine or over
ssh, each under a guard (`guard.py`). Workers compute gradients on their
parts of the data, and servers add the gradients up. The scheduler tells each
process the addresses of the others. If a process fails, all are ended.
"""
import codecs
import collections
import contextlib
import json
import os
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from d2lbert.launch import guard
from d2lbert.machine import hardware
from d2lbert.machine.arguments import UsageError

#: The name of this machine in a list of hosts.
LOCAL = 'localhost'
#: The folder in which MXNet puts the sockets of a job on one machine.
SOCKETS = '/tmp'


def read_hosts(hosts):
    """A list of hosts from --hosts: a,b,c or a file with one on each line.

    None gives this machine.
    """
    if hosts is None:
        return [LOCAL]
    if os.path.isfile(hosts):
        lines = Path(hosts).read_text(encoding='utf-8').splitlines()
        found = [line.split('#')[0].strip() for line in lines]
    elif os.sep in hosts:
        raise ValueError(f'--hosts {hosts}: there is no such file')
    else:
        found = [host.strip() for host in hosts.split(',')]
    found = [host for host in found if host]
    for host in found:
        if host.startswith('-') or len(host.split()) > 1:
            raise UsageError(f'--hosts {hosts}: {host!r} is not the name of '
                             'a host')
    if not found:
        raise UsageError(f'--hosts {hosts!r} names no host: give a,b or a '
                         'file with a host on each line')
    return found


def root_address(root_uri, hosts):
    """The IP address of this machine that the hosts can reach.

    The scheduler listens there; ps-lite needs an address, not a name.
    """
    if root_uri is not None:
        try:
            return socket.gethostbyname(root_uri)
        except OSError as error:
            raise ValueError(f'--root-uri {root_uri} is not an address '
                             f'({error.strerror})') from None
    remote = [host for host in hosts if host != LOCAL]
    if not remote:
        return '127.0.0.1'
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends no packet; it only looks up the route
            probe.connect((remote[0].rpartition('@')[2], 9))
        except OSError as error:
            raise ValueError(
                f'there is no route from here to {remote[0]} '
                f'({error.strerror}): give --root-uri, the address at which '
                'the hosts can reach this machine') from None
        return probe.getsockname()[0]


def free_port(root, port):
    """Return `port` if the scheduler can use it, or a free port for 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((root, port))
        except OSError as error:
            raise ValueError(
                f'the scheduler cannot listen at {root}:{port} '
                f'({error.strerror}): give another --port or --root-uri'
            ) from None
        return probe.getsockname()[1]


def reserve_socket():
    """Create a file with an unused name, which a socket will replace.

    Returns its path. MXNet wants a number, its port, as the name. ZeroMQ
    overwrites any file of that name, so no other process may use it.
    """
    while True:
        path = Path(SOCKETS, str(100_000 + secrets.randbelow(10 ** 9)))
        with contextlib.suppress(FileExistsError):
            path.touch(mode=0o600, exist_ok=False)
            return path


# Durations in seconds
GRACE = 3       # between SIGTERM and SIGKILL
SAVING = 30     # for worker 0 to save after Ctrl-C
JOIN = 60       # for a process to reach the scheduler
BEAT = 5        # between two signs of life
SILENCE = 60    # after this time, a silent launcher counts as gone
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
    """One process of a job.

    popen: its guard, or the ssh that runs its guard.
    """

    def __init__(self, name, host, popen):
        self.name, self.host, self.popen = name, host, popen
        self.begun = time.monotonic()
        self.errors = ''    # the end of its standard error

    def send(self, data):
        """Write to the guard, unless it has ended."""
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
    """All processes of a job, from their start to their end.

    root: (address, port) of the scheduler, or None with `sockets`. ssh: the
    command, a list. sockets: a path for each process, in order of start.
    """

    def __init__(self, root, ssh, remote_python, sockets=None):
        self.root, self.ssh, self.remote_python = root, ssh, remote_python
        self.processes, self.sockets = [], sockets
        self.pipes = selectors.DefaultSelector()
        self.mid_line = False   # the terminal shows an unfinished line

    def start(self, name, host, arguments, env, sharing=1):
        """Start Python with `arguments` on a host, under a guard.

        sharing: the number of workers on this host.
        """
        python = sys.executable if host == LOCAL else self.remote_python
        command = [python, *GUARD]
        if host != LOCAL:
            env = {**{name: value for name, value in os.environ.items()
                      if name.startswith(CARRIED)}, **env}
            command = [*self.ssh, host, f'exec {shlex.join(command)}']
        socket_path = None
        if self.sockets:
            socket_path = str(self.sockets[len(self.processes)])
            env = dict(env, PORT=Path(socket_path).name)
        spec = dict(guard=_text_of(guard), machine=_text_of(hardware),
                    socket=socket_path, argv=[python, *arguments],
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
                if process.popen.poll():    # neither running nor 0
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
        """End the job; raise `LaunchError` about this process."""
        failure = process.failure()
        self.end()
        last = ''.join(f'\n  {line}' for line in
                       process.errors.rstrip().splitlines()[-8:])
        raise LaunchError(f'{failure}, and all others have been ended'
                          + (f'; its last lines:{last}' if last else ''))

    def _wait(self, processes, seconds):
        """Wait until `processes` have ended; another Ctrl-C ends the wait."""
        until = time.monotonic() + seconds
        # A closed terminal also ends the wait
        with contextlib.suppress(KeyboardInterrupt, OSError, ValueError):
            while (any(p.popen.poll() is None for p in processes)
                   and time.monotonic() < until):
                self._print(0.1)
            # Print what they have written last
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
        """A function that prints data of `pipe`; b'' marks its end.

        Output of worker 0 is printed as it comes, the rest line by line.
        """
        decoder = codecs.getincrementaldecoder('utf-8')('replace')
        rest = ''   # an unfinished line

        def write(data):
            nonlocal rest
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
                *lines, rest = (rest + text).split('\n')
                if rest and not data:
                    lines, rest = [*lines, rest], ''
                if lines and self.mid_line:
                    out.write('\n')
                    self.mid_line = False
                for line in lines:
                    out.write(f'[{process.name}] {line}\n')
            out.flush()
        return write


def _text_of(module):
    return Path(module.__file__).read_text(encoding='utf-8')


#: ssh gives up on an unreachable host after 10 s, on a lost one after 15 s.
SSH = ('ssh -o BatchMode=yes -o ConnectTimeout=10 '
       '-o ServerAliveInterval=5 -o ServerAliveCountMax=3')
#: The program of the scheduler and the servers, as arguments of Python.
#: If DMLC_ROLE is set, `import mxnet` starts MXNet's own server, so the
#: program removes this variable first. `import d2lbert` is quick if argv[0] is
#: the name of the command, so the program sets it.
ROLE = ('-c', '''\
import os, sys
role = os.environ.pop('DMLC_ROLE')
sys.argv[0] = 'd2lbert'
from d2lbert.launch.launcher import serve
serve(role)
''')


def launch(worker, workers=2, servers=1, hosts=(LOCAL,), port=0,
           root_uri=None, ssh=SSH, remote_python=sys.executable, role=ROLE):
    """Run `workers` processes of Python with the arguments `worker`.

    role: the arguments of Python for the scheduler and the servers. The output
    of worker 0 is printed as it comes. The lines of all other processes go to
    standard error, each with the name of its process. Returns when all
    workers have succeeded. When a process fails, ends all and raises
    `LaunchError`.

    Processes on this machine alone communicate through sockets that other
    users cannot open. With other hosts, or with a `port` or `root_uri`, they
    use TCP.
    """
    for name, count in (('--workers', workers), ('--servers', servers)):
        if count < 1:
            raise UsageError(f'{name} must be 1 or more, not {count}')
    if not 0 <= port < 2 ** 16:
        raise UsageError(f'--port must be 0 to 65535, not {port}')
    env = dict(DMLC_NUM_WORKER=str(workers), DMLC_NUM_SERVER=str(servers),
               D2LBERT_NUM_WORKERS=str(workers))
    host_of = [hosts[i % len(hosts)] for i in range(max(workers, servers))]
    sharing = collections.Counter(host_of[:workers])
    address = root_address(root_uri, hosts)
    if (set(hosts) == {LOCAL} and not port and root_uri is None
            and os.access(SOCKETS, os.W_OK)):
        job = Job(None, shlex.split(ssh), remote_python,
                  [reserve_socket() for _ in range(1 + servers + workers)])
        port = job.sockets[0].name
        env.update(DMLC_LOCAL='1', DMLC_NODE_HOST=address)
    else:
        port = free_port(address, port)
        job = Job((address, port), shlex.split(ssh), remote_python)
    env.update(DMLC_PS_ROOT_URI=address, DMLC_PS_ROOT_PORT=str(port))
    try:
        job.start('scheduler', LOCAL, role, dict(env, DMLC_ROLE='scheduler'))
        for i, host in enumerate(host_of[:servers]):
            job.start(f'server {i}', host, role,
                      dict(env, DMLC_ROLE='server'))
        for i, host in enumerate(host_of[:workers]):
            job.start(f'worker {i}', host, worker,
                      dict(env, DMLC_ROLE='worker', D2LBERT_RANK=str(i)),
                      sharing[host])
        job.watch()
    except KeyboardInterrupt:
        job.interrupt()
        raise
    finally:
        job.end()


def serve(role):
    """Run as the scheduler or a server until the job ends.

    role: 'scheduler' or 'server'. MXNet's own server unpickles, and so
    executes, an optimizer that anyone sends to its port. The workers of this
    package never send one, so this server refuses it and exits.
    """
    try:
        # With DMLC_ROLE set, this import would start MXNet's own server
        from d2lbert.machine.backend import mx
    except ImportError as error:
        sys.exit(f'd2lbert launch: {error}')

    class Server(mx.kvstore.KVStoreServer):
        def _controller(self):
            def refuse(*_):
                print('an optimizer was sent to this server, which only adds '
                      'gradients up: give gluon.Trainer '
                      'update_on_kvstore=False', file=sys.stderr, flush=True)
                os._exit(1)
            return refuse
    os.environ['DMLC_ROLE'] = role
    Server(mx.kv.create('dist')).run()
