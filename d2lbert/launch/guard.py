"""The guard of one process of a job on several machines.

`d2lbert launch` hands this text to a Python on each host, with a line of
JSON on standard input that says what to run. The guard starts it and sees
to it that it ends: when the launcher says so, when the launcher is gone, or
when nothing has been heard from it for too long. It stands alone, on the
standard library, and knows nothing of the rest of the package.
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
#: What the launcher writes: that it is there, and a Ctrl-C to hand on.
ALIVE, INTERRUPT = b'.', b'i'


def main(spec):
    """Run what `spec` says; returns its exit status, 128 + n for signal n.

    spec: argv, cwd, env; root, the scheduler's (address, port), or None in
    the scheduler itself; join, the seconds in which that must be reachable;
    grace, those between SIGTERM and SIGKILL; silence, those after which a
    launcher counts as gone, or None; sharing, the processes of this host
    that compute; machine, the text of `hardware.py`; socket, the file that
    is not to stay when the process has ended, or None.
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
    env = dict(os.environ, **spec['env'])
    if spec['root'] and not ({'DMLC_NODE_HOST', 'DMLC_INTERFACE'} & set(env)):
        # The address from which this host reaches the scheduler is the one
        # at which the other hosts can reach this one
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
    """The cores of this host, counted by the text of `hardware.py`."""
    names = dict(__name__='d2lbert.machine.hardware')
    exec(machine, names)
    return names['physical_cores']()


def die_with(guard):
    """What the new process does first: be killed when the guard is."""
    libc = ctypes.CDLL(None)

    def prepare():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if sys.platform == 'linux':
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:
                os.kill(os.getpid(), signal.SIGKILL)
    return prepare


def _watch(child, spec, orders):
    """Wait until the child ends or has to; returns a problem or None."""
    root = spec['root']
    begun = heard = time.monotonic()
    while child.poll() is None and not orders:
        if select.select([0], [], [], 0.1)[0]:
            said = os.read(0, 4096)
            if not said:
                return None
            if INTERRUPT in said:
                child.send_signal(signal.SIGINT)
            heard = time.monotonic()
        elif spec['silence'] and time.monotonic() - heard > spec['silence']:
            return (f'{socket.gethostname()} has heard nothing from the '
                    f'launcher for {spec["silence"]} s')
        if root:
            refusal = _refusal(root)
            if refusal is None:
                root = None
            elif time.monotonic() - begun > spec['join']:
                return (f'{socket.gethostname()} cannot reach the scheduler '
                        f'at {root[0]}:{root[1]} ({refusal}): open that port '
                        'or give another --root-uri')
    return None


def _refusal(address):
    """Why nothing answers at (host, port); None where something does."""
    try:
        socket.create_connection(tuple(address), timeout=1).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _end(child, grace):
    """End the child and all that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)
