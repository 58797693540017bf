"""Run a training job of several processes with MXNet's parameter server.

`launch` starts a scheduler, servers and workers, on this machine or over ssh.
Workers compute gradients on their parts of the data, and servers add the
gradients up. The scheduler tells each process the addresses of the others.
Each process has a guard (`guard.py`), which starts and ends it.
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
#: The folder in which MXNet creates the sockets of a job on one machine.
SOCKET_FOLDER = '/tmp'


def read_hosts(names_or_path):
    """Parse the option --hosts; return a list of names.

    names_or_path: names separated by commas, the path of a file with a name on
    each line and comments after #, or None for this machine.
    """
    if names_or_path is None:
        return [LOCAL]
    if os.path.isfile(names_or_path):
        lines = Path(names_or_path).read_text(encoding='utf-8').splitlines()
        names = [line.split('#')[0].strip() for line in lines]
    elif os.sep in names_or_path:
        raise ValueError(f'--hosts {names_or_path}: there is no such file')
    else:
        names = [host.strip() for host in names_or_path.split(',')]
    names = [host for host in names if host]
    for host in names:
        if host.startswith('-') or len(host.split()) > 1:
            raise UsageError(f'--hosts {names_or_path}: {host!r} is not the '
                             'name of a host')
    if not names:
        raise UsageError(f'--hosts {names_or_path!r} names no host: give a,b '
                         'or a file with a host on each line')
    return names


def root_address(root_uri, hosts):
    """The IP address at which the hosts can reach this machine.

    The scheduler listens at this address. root_uri: the option --root-uri, a
    name or an address, or None. MXNet's parameter server accepts no names.
    """
    if root_uri is not None:
        try:
            return socket.gethostbyname(root_uri)
        except OSError as error:
            raise ValueError(f'--root-uri {root_uri} is not an address '
                             f'({error.strerror})') from None
    remote_hosts = [host for host in hosts if host != LOCAL]
    if not remote_hosts:
        return '127.0.0.1'
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # `connect` of UDP sends no packet; it only looks up the route, so
            # any port will do. A host may be given as user@host
            probe.connect((remote_hosts[0].rpartition('@')[2], 9))
        except OSError as error:
            raise ValueError(
                f'there is no route from here to {remote_hosts[0]} '
                f'({error.strerror}): give --root-uri, the address at which '
                'the hosts can reach this machine') from None
        return probe.getsockname()[0]


def free_port(address, port):
    """Return `port`, or a free port if `port` is 0.

    address: an IP address of this machine. Raises ValueError if the scheduler
    cannot listen at this address and port.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise ValueError(
                f'the scheduler cannot listen at {address}:{port} '
                f'({error.strerror}): give another --port or --root-uri'
            ) from None
        return probe.getsockname()[1]


def reserve_socket():
    """Create a file that MXNet will replace by a socket; return its path.

    MXNet uses a port number as the name of a socket. Only an unused name is
    taken: ZeroMQ in MXNet would overwrite the file of another program.
    """
    while True:
        # Jobs without this launcher name sockets by real ports, up to 65535
        path = Path(SOCKET_FOLDER, str(100_000 + secrets.randbelow(10 ** 9)))
        with contextlib.suppress(FileExistsError):
            path.touch(mode=0o600, exist_ok=False)
            return path


GRACE_SECONDS = 3       # to end after a signal, or once all workers have ended
SAVE_SECONDS = 30       # for worker 0 to save after Ctrl-C
JOIN_SECONDS = 60       # for a process to reach the scheduler
HEARTBEAT_SECONDS = 5   # between two heartbeats of the launcher
SILENCE_SECONDS = 60    # after this time, a silent launcher counts as gone
#: Arguments of Python that run a guard. Its standard input begins with a line
#: of JSON, the `spec` of `Job.start`.
GUARD = ('-IS', '-c', 'import json, sys\n'
         'spec = json.loads(sys.stdin.buffer.readline())\n'
         "exec(spec['guard_source'])\n"
         'sys.exit(main(spec))')
#: Environment variables that are also set on remote hosts.
FORWARDED_PREFIXES = ('D2LBERT_', 'MXNET_', 'OMP_', 'PS_', 'PYTHON',
                      'DMLC_INTERFACE')


class LaunchError(RuntimeError):
    """A process of a job has failed, so the job was ended."""


class Process:
    """One process of a job.

    name: for example 'worker 0'. popen: the `Popen` of the process's guard, or
    of the ssh that runs the guard on another host.
    """

    def __init__(self, name, host, popen):
        self.name, self.host, self.popen = name, host, popen
        self.start_time = time.monotonic()
        self.stderr_tail = ''

    def send(self, data):
        """Write bytes to the guard, unless the guard has ended."""
        with contextlib.suppress(OSError, ValueError):
            self.popen.stdin.write(data)
            self.popen.stdin.flush()

    def failure(self):
        """Describe in a clause how the process ended."""
        status = self.popen.poll()
        seconds = time.monotonic() - self.start_time
        name = self.name
        if self.host != LOCAL:
            name += f' on {self.host}'
            if status == 255:       # an error of ssh itself
                return f'{name}: the host cannot be reached, or was lost'
        # Signal n: 128 + n from a guard, -n if the guard itself was killed
        signal_number = status - 128 if status > 128 else -status
        try:
            how = f'was killed by {signal.Signals(signal_number).name}'
        except ValueError:      # no signal has this number
            how = f'ended with exit status {status}'
        return f'{name} {how} after {seconds:.0f} s'


class Job:
    """All processes of a job, from their start to their end.

    root: (address, port) of the scheduler, or None for Unix sockets.
    ssh_command: a list. remote_python: the path of Python on other hosts.
    socket_paths: one for each process, in the order of `start`; () for TCP.
    """

    def __init__(self, root, ssh_command, remote_python, socket_paths=()):
        self.root, self.remote_python = root, remote_python
        self.ssh_command, self.socket_paths = ssh_command, socket_paths
        self.processes = []
        # The open pipes with output of the processes
        self.selector = selectors.DefaultSelector()
        # True if the terminal's cursor is within a line of worker 0; always
        # False if standard error is not a terminal
        self.is_mid_line = False

    def start(self, name, host, arguments, env, workers_on_host=1):
        """Start Python with `arguments` on a host, under a guard.

        env, workers_on_host: see `guard.main`.
        """
        python = sys.executable if host == LOCAL else self.remote_python
        command = [python, *GUARD]
        if host != LOCAL:
            forwarded = {key: value for key, value in os.environ.items()
                         if key.startswith(FORWARDED_PREFIXES)}
            env = {**forwarded, **env}
            command = [*self.ssh_command, host, f'exec {shlex.join(command)}']
        socket_path = None
        if self.socket_paths:
            socket_path = str(self.socket_paths[len(self.processes)])
            # MXNet takes the name of its socket from PORT
            env = dict(env, PORT=Path(socket_path).name)
        # `guard.main` explains the keys; only GUARD reads `guard_source`
        spec = dict(guard_source=_source_of(guard),
                    hardware_source=_source_of(hardware),
                    socket_path=socket_path, argv=[python, *arguments],
                    cwd=os.getcwd(), env=env,
                    root=None if name == 'scheduler' else self.root,
                    join_seconds=JOIN_SECONDS, grace_seconds=GRACE_SECONDS,
                    silence_seconds=None if host == LOCAL else SILENCE_SECONDS,
                    workers_on_host=workers_on_host)
        try:
            # In a new session, so that Ctrl-C reaches only the launcher
            process = Process(name, host, subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True))
        except OSError as error:
            raise LaunchError(f'{name} cannot be started by {command[0]}: '
                              f'{error.strerror}') from None
        self.processes.append(process)
        process.send(json.dumps(spec).encode() + b'\n')
        for pipe in (process.popen.stdout, process.popen.stderr):
            self.selector.register(pipe, selectors.EVENT_READ,
                                   self._printer(process, pipe))

    def watch(self):
        """Wait for all workers; raise `LaunchError` if a process fails."""
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        workers = [p for p in self.processes if p.name.startswith('worker')]
        deadline = None     # set when all workers have succeeded
        while deadline is None or time.monotonic() < deadline:
            self._print_output(0.1)
            for process in self.processes:
                if process.popen.poll():    # neither running nor successful
                    self._fail(process)
            if all(p.popen.poll() == 0 for p in self.processes):
                return
            if deadline is None and all(p.popen.poll() == 0 for p in workers):
                # A server that no worker contacted never ends: limit the wait
                deadline = time.monotonic() + GRACE_SECONDS

    def interrupt(self):
        """Forward a Ctrl-C to worker 0, and give it time to save."""
        for process in self.processes:
            if process.name == 'worker 0':
                process.send(guard.INTERRUPT)
                self._wait([process], SAVE_SECONDS)

    def end(self):
        """End all processes: ask the guards, then kill guards that remain."""
        if self.selector.get_map() is None:     # closed by an earlier call
            return
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.popen.stdin.close()     # this asks the guard to end
        # A guard waits at most GRACE_SECONDS after SIGTERM, and again after
        # SIGKILL. Give it 2 s more to end itself
        self._wait(self.processes, 2 * GRACE_SECONDS + 2)
        for process in self.processes:
            if process.popen.poll() is None:
                # A process on this machine dies with its guard
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.popen.pid, signal.SIGKILL)
                process.popen.wait()
        for path in self.socket_paths:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()       # left by a killed guard, or unused
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()

    def _fail(self, process):
        """End the job; raise a `LaunchError` that describes the failure."""
        failure = process.failure()
        self.end()
        message = f'{failure}, and all others have been ended'
        last_lines = process.stderr_tail.rstrip().splitlines()[-8:]
        if last_lines:
            message += '\n  '.join(
                [f'; last lines of {process.name}:', *last_lines])
        raise LaunchError(message)

    def _wait(self, processes, seconds):
        """Wait for `processes` to end, or for `seconds`, or for a Ctrl-C."""
        deadline = time.monotonic() + seconds
        # Printing to a closed terminal raises an error, which ends the wait
        with contextlib.suppress(KeyboardInterrupt, OSError, ValueError):
            while (any(p.popen.poll() is None for p in processes)
                   and time.monotonic() < deadline):
                self._print_output(0.1)
            while self._print_output(0) and time.monotonic() < deadline:
                pass        # print what is left in the pipes

    def _send_heartbeats(self):
        """Send heartbeats to the guards on other hosts until these end."""
        remote = [p for p in self.processes if p.host != LOCAL]
        while any(p.popen.poll() is None for p in remote):
            for process in remote:
                process.send(guard.HEARTBEAT)
            time.sleep(HEARTBEAT_SECONDS)

    def _print_output(self, max_wait):
        """Print new output of the processes, after at most `max_wait` seconds.

        Returns True if there was output, or the end of a pipe.
        """
        if not self.selector.get_map():     # no pipe is open
            time.sleep(max_wait)
            return False
        readable = self.selector.select(max_wait)
        for key, _ in readable:
            data = os.read(key.fd, 1 << 16)
            write = key.data        # from `_printer`
            write(data)
            if not data:
                self.selector.unregister(key.fileobj)
                key.fileobj.close()
        return bool(readable)

    def _printer(self, process, pipe):
        """Return a function that prints bytes from a pipe of a process.

        The function takes b'' at the end of the pipe. It prints the output of
        worker 0 at once, and the output of other processes line by line.
        """
        decoder = codecs.getincrementaldecoder('utf-8')('replace')
        unfinished = ''     # a line whose end has not come yet

        def write(data):
            nonlocal unfinished
            text = decoder.decode(data, final=not data)
            if pipe is process.popen.stderr:
                process.stderr_tail = (process.stderr_tail + text)[-4000:]
            if process.name == 'worker 0':
                is_stdout = pipe is process.popen.stdout
                out = sys.stdout if is_stdout else sys.stderr
                out.write(text)
                if text and out.isatty() and sys.stderr.isatty():
                    self.is_mid_line = not text.endswith('\n')
            else:
                out = sys.stderr
                *lines, unfinished = (unfinished + text).split('\n')
                if unfinished and not data:     # the last line has no end
                    lines, unfinished = [*lines, unfinished], ''
                if lines and self.is_mid_line:
                    out.write('\n')
                    self.is_mid_line = False
                for line in lines:
                    out.write(f'[{process.name}] {line}\n')
            out.flush()
        return write


def _source_of(module):
    return Path(module.__file__).read_text(encoding='utf-8')


#: The default ssh. It reports an unreachable host after 10 s, and a lost
#: connection after 15 s.
SSH = ('ssh -o BatchMode=yes -o ConnectTimeout=10 '
       '-o ServerAliveInterval=5 -o ServerAliveCountMax=3')
#: Arguments of Python that run `serve`. With DMLC_ROLE, `import mxnet` would
#: start MXNet's own server, so the variable is removed first. argv[0] is the
#: name of the command, so that `import d2lbert` does not import MXNet.
SERVER = ('-c', '''\
import os, sys
role = os.environ.pop('DMLC_ROLE')
sys.argv[0] = 'd2lbert'
from d2lbert.launch.launcher import serve
serve(role)
''')


def launch(worker, workers=2, servers=1, hosts=(LOCAL,), port=0, root_uri=None,
           ssh=SSH, remote_python=sys.executable, server=SERVER):
    """Run a job; return when all workers have succeeded.

    worker, server: the arguments of Python for a worker, and for a server or
    the scheduler. workers, servers: the numbers of workers and servers. hosts:
    a list of hosts, which get the workers in turn, and the servers in turn.
    port: the port of the scheduler, or 0 for a free port. root_uri: as in
    `root_address`. ssh: the command of ssh. remote_python: the path of Python
    on other hosts.

    The output of worker 0 is printed at once. The lines of all other processes
    go to standard error, each with the name of its process. If a process
    fails, all processes are ended, and `LaunchError` is raised.
    """
    for name, count in (('--workers', workers), ('--servers', servers)):
        if count < 1:
            raise UsageError(f'{name} must be 1 or more, not {count}')
    if not 0 <= port < 2 ** 16:
        raise UsageError(f'--port must be 0 to 65535, not {port}')
    try:
        ssh_command = shlex.split(ssh)
    except ValueError as error:     # 'No closing quotation'
        raise UsageError(f'--ssh {ssh} has {str(error).lower()}: correct its '
                         'quotes and backslashes') from None
    if not ssh_command:
        raise UsageError('--ssh is empty: give the program that runs a '
                         'command on a host, or leave --ssh out')
    env = dict(DMLC_NUM_WORKER=str(workers), DMLC_NUM_SERVER=str(servers),
               D2LBERT_NUM_WORKERS=str(workers))
    if not {'', os.getcwd()}.intersection(sys.path):
        # Python 3.11 or later then imports no random.py of the current folder
        env['PYTHONSAFEPATH'] = '1'
    # host_of[i]: the host of server i, and of worker i
    host_of = [hosts[i % len(hosts)] for i in range(max(workers, servers))]
    num_workers_on = collections.Counter(host_of[:workers])
    address = root_address(root_uri, hosts)
    # Other users cannot open these sockets (with a usual umask)
    uses_unix_sockets = (
        set(hosts) == {LOCAL} and not port and root_uri is None
        and os.access(SOCKET_FOLDER, os.W_OK))
    if uses_unix_sockets:
        job = Job(None, ssh_command, remote_python,
                  [reserve_socket() for _ in range(1 + servers + workers)])
        # DMLC_LOCAL makes MXNet use Unix sockets, whose names replace port
        # numbers. The scheduler gets the first socket
        root_port = job.socket_paths[0].name
        env.update(DMLC_LOCAL='1', DMLC_NODE_HOST=address)
    else:
        root_port = free_port(address, port)
        job = Job((address, root_port), ssh_command, remote_python)
    env.update(DMLC_PS_ROOT_URI=address, DMLC_PS_ROOT_PORT=str(root_port))
    try:
        job.start('scheduler', LOCAL, server, dict(env, DMLC_ROLE='scheduler'))
        for i, host in enumerate(host_of[:servers]):
            job.start(f'server {i}', host, server,
                      dict(env, DMLC_ROLE='server'))
        for i, host in enumerate(host_of[:workers]):
            job.start(f'worker {i}', host, worker,
                      dict(env, DMLC_ROLE='worker', D2LBERT_RANK=str(i)),
                      num_workers_on[host])
        job.watch()
    except KeyboardInterrupt:
        job.interrupt()
        raise
    finally:
        job.end()


def serve(role):
    """Run as the scheduler or a server until the job ends.

    role: 'scheduler' or 'server'. MXNet's own server unpickles each optimizer
    that is sent to its port, and unpickling can execute any code. The workers
    of this package never send an optimizer, so this server exits if it gets
    one.
    """
    try:
        # SERVER has removed DMLC_ROLE, so this import starts no server
        from d2lbert.machine.backend import mx
    except ImportError as error:
        sys.exit(f'd2lbert launch: {error}')

    class Server(mx.kvstore.KVStoreServer):
        def _controller(self):      # returns the receiver of an optimizer
            def refuse(*_):
                print('an optimizer was sent to this server, which only adds '
                      'gradients up: give gluon.Trainer '
                      'update_on_kvstore=False', file=sys.stderr, flush=True)
                os._exit(1)
            return refuse
    os.environ['DMLC_ROLE'] = role
    Server(mx.kv.create('dist')).run()
