"""Several machines: MXNet's own parameter server, started and watched over.

`d2lbert launch` starts a scheduler, servers and workers, on this machine or
over ssh, each under a guard (`guard.py`). Workers compute gradients on their
own parts of the data, servers add them up, and the scheduler introduces all
to each other. When one of them fails, all end, and nothing stays behind.
"""
import codecs
import collections
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
from d2lbert.launch.addresses import (
    LOCAL,
    SOCKETS,
    free_port,
    read_hosts,
    reserve_socket,
    root_address,
)
from d2lbert.machine import hardware
from d2lbert.machine.files import free_run_name
from d2lbert.training.interrupts import Interrupted

#: Gives up on an unreachable host after 10 s, on one that is lost after 15 s.
SSH = ('ssh -o BatchMode=yes -o ConnectTimeout=10 '
       '-o ServerAliveInterval=5 -o ServerAliveCountMax=3')
#: Seconds between SIGTERM and SIGKILL; for worker 0 to save after Ctrl-C; to
#: reach the scheduler; between two signs of life; without one.
GRACE, SAVING, JOIN, BEAT, SILENCE = 3, 30, 60, 5, 60
#: What Python runs: MXNet serves as soon as it is imported, if told so, and
#: then unpickles what it is sent.
ROLE = ('-c', '''\
import os
role = os.environ.pop('DMLC_ROLE')
from d2lbert.launch import job
job.serve(role)
''')
WORKER = ('-c', '''\
try:
    from d2lbert.launch import job
except KeyboardInterrupt:
    raise SystemExit(130)
job.worker()
''')
_GUARD = ('-IS', '-c', 'import json, sys\n'
          'spec = json.loads(sys.stdin.buffer.readline())\n'
          "exec(spec['guard'])\n"
          'sys.exit(main(spec))')
# The user's own variables that hosts behind ssh are given as well
_CARRIED = ('D2LBERT_', 'MXNET_', 'OMP_', 'PS_', 'PYTHON', 'DMLC_INTERFACE')


class LaunchError(RuntimeError):
    """Why a job of several processes ended before its time."""


def add_arguments(parser):
    """Add the arguments of `d2lbert launch` to an argparse parser."""
    add = parser.add_argument
    add('--workers', type=int, metavar='N',
        help='processes that train (default: one for each host, or 2)')
    add('--servers', type=int, default=1, metavar='N',
        help='processes that add up gradients (default: 1); one for each '
        'host spreads the traffic')
    add('--hosts', metavar='HOSTS',
        help='a,b,c or a file with a host on each line, taken in turn; ssh '
        'must reach them without a password, and this folder, the text '
        f'and Python must be there too; {LOCAL} is this machine, without '
        'ssh (default)')
    add('--port', type=int, default=0, metavar='P',
        help="the scheduler's port (default: a free one)")
    add('--root-uri', metavar='ADDRESS',
        help="this machine's address as the hosts see it (default: the one "
        'from which it reaches the first of them)')
    add('--ssh', default=SSH, metavar='CMD',
        help='what runs a command on a host, as CMD HOST COMMAND (default: '
        f'{SSH})')
    add('--remote-python', default=sys.executable, metavar='PATH',
        help='the Python of the hosts (default: that of this machine)')
    add('worker_command', nargs='...', metavar='-- pretrain ...',
        help='the command of each worker, after --')


def main(args):
    """Run `d2lbert launch` with parsed arguments; returns an exit status."""
    hosts = read_hosts(args.hosts)
    workers = args.workers
    if workers is None:
        workers = 2 if args.hosts is None else len(hosts)
    command, *resumable = _worker_command(args.worker_command)
    try:
        with _interrupted_by(signal.SIGTERM, signal.SIGHUP):
            launch([*WORKER, *command], workers, args.servers, hosts,
                   args.port, args.root_uri, args.ssh, args.remote_python,
                   ROLE)
    except KeyboardInterrupt as interrupt:
        print('d2lbert launch: stopped every process; '
              f'{_way_on(args, workers, *resumable)}', file=sys.stderr)
        return 128 + getattr(interrupt, 'signal', signal.SIGINT)
    except LaunchError as error:
        way_on = _way_on(args, workers, *resumable)
        raise LaunchError(
            f'{error}\n{way_on[0].upper()}{way_on[1:]}') from None
    return 0


def worker():
    """Run a worker's command; if it fails, leave at once.

    MXNet's own way out of Python waits for all other workers to finish.
    """
    from d2lbert.__main__ import main
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    try:
        status = main(sys.argv[1:])
    except SystemExit as error:
        status = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def serve(role):
    """Be the scheduler or a server, as `role` says, until the job ends.

    MXNet's own server unpickles, and so executes, what it is sent as an
    optimizer, by whoever reaches its port. Workers here never send one.
    """
    from d2lbert.machine.backend import mx

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


def launch(worker, workers=2, servers=1, hosts=(LOCAL,), port=0,
           root_uri=None, ssh=SSH, remote_python=sys.executable, role=ROLE):
    """Run `workers` processes of Python with the arguments `worker`.

    role: the arguments for the scheduler and the servers. What worker 0
    prints is printed as it comes; the lines of all others go to standard
    error, each behind a name. Returns when all workers have ended well, and
    raises `LaunchError` when a process fails. No process is left then.

    Where all are here, and neither `port` nor `root_uri` is given, they
    speak through sockets that other users cannot open, else over TCP.
    """
    for name, count in (('--workers', workers), ('--servers', servers)):
        if count < 1:
            raise ValueError(f'{name} must be 1 or more, not {count}')
    if not 0 <= port < 2 ** 16:
        raise ValueError(f'--port must be 0 to 65535, not {port}')
    env = dict(DMLC_NUM_WORKER=str(workers), DMLC_NUM_SERVER=str(servers),
               D2LBERT_NUM_WORKERS=str(workers))
    places = [hosts[i % len(hosts)] for i in range(max(workers, servers))]
    sharing = collections.Counter(places[:workers])
    address = root_address(root_uri, hosts)
    if (set(hosts) == {LOCAL} and not port and root_uri is None
            and os.access(SOCKETS, os.W_OK)):
        job = _Job(None, shlex.split(ssh), remote_python,
                   [reserve_socket() for _ in range(1 + servers + workers)])
        port = job.sockets[0].name
        env.update(DMLC_LOCAL='1', DMLC_NODE_HOST=address)
    else:
        port = free_port(address, port)
        job = _Job((address, port), shlex.split(ssh), remote_python)
    env.update(DMLC_PS_ROOT_URI=address, DMLC_PS_ROOT_PORT=str(port))
    try:
        job.start('scheduler', LOCAL, role, dict(env, DMLC_ROLE='scheduler'))
        for i, host in enumerate(places[:servers]):
            job.start(f'server {i}', host, role,
                      dict(env, DMLC_ROLE='server'))
        for i, host in enumerate(places[:workers]):
            job.start(f'worker {i}', host, worker,
                      dict(env, DMLC_ROLE='worker', D2LBERT_RANK=str(i)),
                      sharing[host])
        job.watch()
    except KeyboardInterrupt:
        job.interrupt()
        raise
    finally:
        job.end()


class _Process:
    """One process of a job: the guard here, or the ssh that leads to it."""

    def __init__(self, name, host, popen):
        self.name, self.host, self.popen = name, host, popen
        self.begun = time.monotonic()
        self.said = ''      # the end of what it wrote to standard error

    def tell(self, data):
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


class _Job:
    """The processes that work together, from the first start to the end."""

    def __init__(self, root, ssh, remote_python, sockets=None):
        self.root, self.ssh, self.remote_python = root, ssh, remote_python
        self.processes, self.sockets = [], sockets
        self.pipes = selectors.DefaultSelector()
        self.amid = False       # the terminal shows a line without its end

    def start(self, name, host, arguments, env, sharing=1):
        """Start Python with `arguments` on a host, behind a guard."""
        python = sys.executable if host == LOCAL else self.remote_python
        command = [python, *_GUARD]
        if host != LOCAL:
            env = {**{name: value for name, value in os.environ.items()
                      if name.startswith(_CARRIED)}, **env}
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
            process = _Process(name, host, subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True))
        except OSError as error:
            raise LaunchError(f'{name} cannot be started: {command[0]}: '
                              f'{error.strerror}') from None
        self.processes.append(process)
        process.tell(json.dumps(spec).encode() + b'\n')
        for pipe in (process.popen.stdout, process.popen.stderr):
            self.pipes.register(pipe, selectors.EVENT_READ,
                                self._printer(process, pipe))

    def watch(self):
        """Wait for all workers; raise `LaunchError` if a process fails."""
        threading.Thread(target=self._beat, daemon=True).start()
        workers = [p for p in self.processes if p.name.startswith('worker')]
        patience = None
        while patience is None or time.monotonic() < patience:
            self._print(0.1)
            for process in self.processes:
                if process.popen.poll():
                    self._fail(process)
            if all(p.popen.poll() == 0 for p in self.processes):
                return
            if patience is None and all(p.popen.poll() == 0 for p in workers):
                # Servers that no worker ever spoke to stay where they are
                patience = time.monotonic() + GRACE

    def interrupt(self):
        """Hand a Ctrl-C on to worker 0, which may have something to save."""
        for process in self.processes:
            if process.name == 'worker 0':
                process.tell(guard.INTERRUPT)
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
                       process.said.rstrip().splitlines()[-8:])
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
                process.tell(guard.ALIVE)
            time.sleep(BEAT)

    def _print(self, seconds):
        """Print what the processes have written; wait so long for it.

        Returns whether there was anything.
        """
        if not self.pipes.get_map():
            time.sleep(seconds)
            return False
        ready = self.pipes.select(seconds)
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            key.data(data)
            if not data:
                self.pipes.unregister(key.fileobj)
                key.fileobj.close()
        return bool(ready)

    def _printer(self, process, pipe):
        """A function that prints what comes out of `pipe`, b'' at its end."""
        decoder = codecs.getincrementaldecoder('utf-8')('replace')
        kept = ''

        def write(data):
            nonlocal kept
            text = decoder.decode(data, final=not data)
            if pipe is process.popen.stderr:
                process.said = (process.said + text)[-4000:]
            if process.name == 'worker 0':
                out = sys.stdout if pipe is process.popen.stdout else (
                    sys.stderr)
                out.write(text)
                if text and sys.stderr.isatty():
                    self.amid = not text.endswith('\n')
            else:
                out = sys.stderr
                *lines, kept = (kept + text).split('\n')
                if kept and not data:
                    lines, kept = [*lines, kept], ''
                if lines and self.amid:
                    out.write('\n')
                    self.amid = False
                for line in lines:
                    out.write(f'[{process.name}] {line}\n')
            out.flush()
        return write


def _text_of(module):
    return Path(module.__file__).read_text(encoding='utf-8')


@contextlib.contextmanager
def _interrupted_by(*signals):
    """Let these signals do what Ctrl-C does, unless they are ignored.

    nohup has SIGHUP ignored, so that a job outlives its terminal.
    """
    def interrupt(number, _):
        raise Interrupted(number=number)
    before = {number: signal.signal(number, interrupt)
              for number in signals
              if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _worker_command(command):
    """(command, run folder, what to resume it with) of a worker, checked."""
    command = command[1:] if command[:1] == ['--'] else list(command)
    if command[:1] != ['pretrain']:
        raise ValueError('what the workers are to run is missing: give '
                         'pretrain and its arguments after --, as in '
                         'd2lbert launch --workers 2 -- pretrain')
    from d2lbert.__main__ import parser
    settings = parser().parse_args(command)
    run = getattr(settings, 'resume', None)
    if run is None:
        if not hasattr(settings, 'seed'):
            # One for all: they take parts of the same batches
            command += ['--seed', str(int.from_bytes(os.urandom(4),
                                                     'little'))]
        run = getattr(settings, 'out', None)
        if run is None:
            run = str(free_run_name())
            command += ['--out', run]
    elif run.endswith('.npz'):
        # It may have gone on from there to later ones
        run = str(Path(run).parent.parent)
    again = ['pretrain', '--resume', run]
    for name in ('num_steps', 'save_every', 'eval_every', 'devices'):
        if hasattr(settings, name):
            again += ['--' + name.replace('_', '-'),
                      str(getattr(settings, name))]
    return command, run, again


def _way_on(args, workers, run, again):
    """How to go on after a job has ended too soon."""
    if not any(Path(run, 'checkpoints').glob('step-*.npz')):
        return (f'{run} holds no checkpoint to go on from (pretrain '
                '--save-every N writes them)')
    command = ['d2lbert', 'launch', '--workers', str(workers),
               '--servers', str(args.servers)]
    for name, value in (('--hosts', args.hosts),
                        ('--root-uri', args.root_uri)):
        if value is not None:
            command += [name, value]
    for name, value, default in (
            ('--port', args.port, 0), ('--ssh', args.ssh, SSH),
            ('--remote-python', args.remote_python, sys.executable)):
        if value != default:
            command += [name, str(value)]
    return ('go on with: '
            + shlex.join([*command, '--', *again]))
