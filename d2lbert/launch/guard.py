"""The guard: a program that starts and ends one process of a job.

For each process, the launcher (`launcher.py`) runs Python on a host, and sends
it a line of JSON, the dict `spec`. Its entry guard_source is the source of
this module. The Python that runs this source is the guard. It ends the process
if the connection to the launcher closes or is silent for too long, if the
guard gets a signal, or if it cannot reach the scheduler.

This module imports only the standard library: the launcher starts Python with
-IS, which finds no installed package.
"""
import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time

#: For Linux's `prctl`: choose the signal that a process gets when its parent
#: ends.
PR_SET_PDEATHSIG = 1
#: Bytes that the launcher sends. INTERRUPT forwards a Ctrl-C.
HEARTBEAT, INTERRUPT = b'.', b'i'


def main(spec):
    """Run a process; return its exit status, or 128 + n if signal n ended it.

    Returns 127 if the process cannot be started, and 1 for a problem that
    `_watch` finds. Keys of spec:
    argv, cwd, env: command, folder and additional environment variables;
    root: [address, port] of the scheduler, which must be reachable within
    join_seconds; None for the scheduler itself, and for Unix sockets;
    grace_seconds: the longest wait after SIGTERM, and again after SIGKILL;
    silence_seconds: after this time, a silent launcher counts as gone; None
    for no limit;
    workers_on_host: the number of workers that share the cores of this host;
    1 for a server or the scheduler;
    hardware_source: the source of machine/hardware.py, for `_num_cores`;
    socket_path: MXNet's Unix socket, removed at the end, or None for TCP.
    """
    signals = []    # received signals; `_watch` returns after the first
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.append(received))
    try:
        child = subprocess.Popen(
            spec['argv'], cwd=spec['cwd'], env=_environment(spec),
            stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=make_die_with_parent())
    except OSError as error:
        # If fork failed, the error has no file name
        print(f'{error.filename or spec["argv"][0]}: {error.strerror} on '
              f'{socket.gethostname()}', file=sys.stderr)
        return 127
    try:
        problem = _watch(child, spec, signals)
    finally:
        _end(child, spec['grace_seconds'])
        if spec['socket_path']:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(spec['socket_path'])
    if problem:
        print(problem, file=sys.stderr)
        return 1
    status = child.returncode       # -n if signal n ended the child
    if status is None:      # SIGKILL was sent, but the child has not ended yet
        status = -signal.SIGKILL
    return status if status >= 0 else 128 - status


def _environment(spec):
    env = dict(os.environ, **spec['env'])
    has_address = 'DMLC_NODE_HOST' in env or 'DMLC_INTERFACE' in env
    if spec['root'] and not has_address:
        # Other hosts can reach this host at the address from which this host
        # reaches the scheduler. A UDP socket gets this address by `connect`,
        # which fails if there is no route
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            with contextlib.suppress(OSError):
                probe.connect(tuple(spec['root']))
                env['DMLC_NODE_HOST'] = probe.getsockname()[0]
    names = ('MXNET_OMP_MAX_THREADS', 'OMP_NUM_THREADS')
    has_num_threads = any(env.get(name) for name in names)
    if spec['workers_on_host'] > 1 and not has_num_threads:
        num_threads = max(
            1, _num_cores(spec['hardware_source']) // spec['workers_on_host'])
        env.update(dict.fromkeys(names, str(num_threads)))
    return env


def _num_cores(hardware_source):
    module_globals = dict(__name__='d2lbert.machine.hardware')
    exec(hardware_source, module_globals)
    return module_globals['physical_cores']()


def make_die_with_parent():
    """Return a `preexec_fn` for a child of this process.

    It restores the default handling of SIGINT. On Linux, it also has the
    kernel kill the child when this process ends.
    """
    libc = ctypes.CDLL(None)
    parent_pid = os.getpid()

    def prepare():
        # A child ignores SIGINT if the parent of this process did
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if sys.platform == 'linux':
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            # If the parent ended before `prctl`, no signal will come
            if os.getppid() != parent_pid:
                os.kill(os.getpid(), signal.SIGKILL)
    return prepare


def _watch(child, spec, signals):
    """Wait until the child has ended or must end.

    Returns a message if the child must end because of an error, otherwise
    None. signals: a list, to which the handlers of `main` append.
    """
    unchecked_root = spec['root']       # None once a connection has succeeded
    start_time = last_heard = time.monotonic()
    while child.poll() is None and not signals:
        if select.select([0], [], [], 0.1)[0]:      # standard input
            data = os.read(0, 4096)
            if not data:        # the launcher closed the pipe, or has ended
                return None
            if INTERRUPT in data:
                child.send_signal(signal.SIGINT)
            last_heard = time.monotonic()
        elif (spec['silence_seconds']
              and time.monotonic() - last_heard > spec['silence_seconds']):
            return (f'{socket.gethostname()} has had no sign of life from '
                    f'the launcher for {spec["silence_seconds"]} s')
        if unchecked_root:
            error = _connection_error(unchecked_root)
            if error is None:
                unchecked_root = None
            elif time.monotonic() - start_time > spec['join_seconds']:
                address, port = unchecked_root
                return (f'{socket.gethostname()} cannot reach the scheduler '
                        f'at {address}:{port} ({error}): open that port or '
                        'give another --root-uri')
    return None


def _connection_error(root):
    """Connect to [address, port]; return the error as text, or None."""
    try:
        socket.create_connection(tuple(root), timeout=1).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _end(child, grace_seconds):
    """End the child and its process group, which may outlive the child."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_seconds)
