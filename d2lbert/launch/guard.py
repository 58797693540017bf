"""The guard, which starts and ends one process of a job.

`d2lbert launch` sends the source of this module to a Python on each host,
in a line of JSON that also describes the process. The guard ends that
process when the launcher asks for it, has ended, or has been silent for too
long. It uses only the standard library, since hosts execute its source alone.
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

PR_SET_PDEATHSIG = 1
#: Bytes from the launcher: a sign of life, and a Ctrl-C to forward.
ALIVE, INTERRUPT = b'.', b'i'


def main(spec):
    """Run a process; returns its exit status, 128 + n for signal n.

    spec: a dict with
    argv, cwd, env: the command, its folder, additional environment variables;
    root: (address, port) of the scheduler; None for the scheduler itself;
    join: seconds within which the scheduler must be reachable;
    grace: seconds between SIGTERM and SIGKILL;
    silence: seconds without a sign of life from the launcher, or None;
    sharing: the number of workers on this host, which share its cores;
    machine: the source of `hardware.py`;
    socket: a file to remove after the process, or None.
    """
    orders = []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: orders.append('end'))
    try:
        child = subprocess.Popen(
            spec['argv'], cwd=spec['cwd'], env=_environment(spec),
            stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=die_with(os.getpid()))
    except OSError as error:
        print(f'{error.filename}: {error.strerror} on '
              f'{socket.gethostname()}', file=sys.stderr)
        return 127
    try:
        problem = _watch(child, spec, orders)
    finally:
        _end(child, spec['grace'])
        if spec['socket']:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(spec['socket'])
    if problem:
        print(problem, file=sys.stderr)
        return 1
    return child.returncode if child.returncode >= 0 else (
        128 - child.returncode)


def _environment(spec):
    """Environment variables of the process, with its address and threads."""
    env = dict(os.environ, **spec['env'])
    if spec['root'] and not ({'DMLC_NODE_HOST', 'DMLC_INTERFACE'} & set(env)):
        # The other hosts can reach this host at the address from which it
        # reaches the scheduler
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            with contextlib.suppress(OSError):
                probe.connect(tuple(spec['root']))
                env['DMLC_NODE_HOST'] = probe.getsockname()[0]
    names = ('MXNET_OMP_MAX_THREADS', 'OMP_NUM_THREADS')
    if spec['sharing'] > 1 and not any(env.get(name) for name in names):
        threads = str(max(1, _cores(spec['machine']) // spec['sharing']))
        env.update(dict.fromkeys(names, threads))
    return env


def _cores(machine):
    """The number of cores of this host; machine: source of `hardware.py`."""
    module = dict(__name__='d2lbert.machine.hardware')
    exec(machine, module)
    return module['physical_cores']()


def die_with(guard):
    """Return a preexec_fn: let the process die with its parent, the guard.

    guard: the process id of the guard.
    """
    libc = ctypes.CDLL(None)

    def prepare():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if sys.platform == 'linux':
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:   # the guard has ended before prctl
                os.kill(os.getpid(), signal.SIGKILL)
    return prepare


def _watch(child, spec, orders):
    """Wait until the child has ended or must end; returns an error or None."""
    root = spec['root']
    begun = heard = time.monotonic()
    while child.poll() is None and not orders:
        if select.select([0], [], [], 0.1)[0]:
            received = os.read(0, 4096)
            if not received:    # the launcher closed the pipe, or has ended
                return None
            if INTERRUPT in received:
                child.send_signal(signal.SIGINT)
            heard = time.monotonic()
        elif spec['silence'] and time.monotonic() - heard > spec['silence']:
            return (f'{socket.gethostname()} has had no sign of life from '
                    f'the launcher for {spec["silence"]} s')
        if root:
            refusal = _refusal(root)
            if refusal is None:
                root = None     # reached: do not check again
            elif time.monotonic() - begun > spec['join']:
                return (f'{socket.gethostname()} cannot reach the scheduler '
                        f'at {root[0]}:{root[1]} ({refusal}): open that port '
                        'or give another --root-uri')
    return None


def _refusal(address):
    """Connect to (host, port); return the error as text, or None."""
    try:
        socket.create_connection(tuple(address), timeout=1).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _end(child, grace):
    """End the child and its process group, which may outlive it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)
