"""`d2lbert launch`: run a job of several processes."""
import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path

from d2lbert.command.flags import at_least
from d2lbert.command.pretrain import check_flags
from d2lbert.launch.launcher import (
    LOCAL,
    ROLE,
    SSH,
    LaunchError,
    launch,
    read_hosts,
)
from d2lbert.machine import mxnet_libraries
from d2lbert.machine.arguments import UsageError, usage
from d2lbert.machine.files import free_run_name
from d2lbert.training.interrupts import Interrupted
from d2lbert.training.settings import check_clock

#: Python arguments that start a worker; the command follows.
WORKER = ('-m', 'd2lbert.command.worker')


def add(commands):
    """Add this sub-command to the parser, after `pretrain`."""
    parser = commands.add_parser(
        'launch', help='train on several machines or processes',
        description='Start scheduler, servers and workers of MXNet\'s '
        'parameter server, on this machine or on others over ssh, each '
        'worker with its part of every batch.')
    add = parser.add_argument
    add('--workers', type=at_least(1), metavar='N',
        help='processes that train (default: one for each host, or 2)')
    add('--servers', type=at_least(1), default=1, metavar='N',
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
    parser.set_defaults(run=run, pretrain=commands.choices['pretrain'])


def run(args):
    """Run the job, print how to resume; returns the exit status."""
    hosts = read_hosts(args.hosts)
    workers = args.workers
    if workers is None:
        workers = 2 if args.hosts is None else len(hosts)
    command, *resuming = _worker_command(args.worker_command, args.pretrain,
                                         workers)
    if args.quiet:
        command.append('--quiet')
    # Raise here the error that every process would raise
    mxnet_libraries.thread_settings()
    try:
        with _interrupted_by(signal.SIGTERM, signal.SIGHUP):
            launch([*WORKER, *command], workers, args.servers, hosts,
                   args.port, args.root_uri, args.ssh, args.remote_python,
                   ROLE)
    except KeyboardInterrupt as interrupt:
        print('d2lbert launch: stopped every process; '
              f'{_resume_hint(args, workers, *resuming)}', file=sys.stderr)
        return 128 + getattr(interrupt, 'signal', signal.SIGINT)
    except LaunchError as error:
        hint = _resume_hint(args, workers, *resuming)
        raise LaunchError(
            f'{error}\n{hint[0].upper()}{hint[1:]}') from None
    return 0


@contextlib.contextmanager
def _interrupted_by(*signals):
    """Handle these signals like Ctrl-C, unless they are ignored.

    nohup ignores SIGHUP, so that a job outlives its terminal.
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


def _worker_command(command, pretrain, workers=1):
    """Check a worker's command: (command, run folder, command to resume).

    The returned command also has a seed and a run folder. pretrain: the
    parser of that sub-command.
    """
    command = command[1:] if command[:1] == ['--'] else list(command)
    if command[:1] != ['pretrain']:
        raise UsageError('the command of the workers is missing: give '
                         'pretrain and its flags after --, as in '
                         'd2lbert launch --workers 2 -- pretrain')
    settings = pretrain.parse_args(command[1:])
    check_flags(settings)
    with usage():
        check_clock(getattr(settings, 'minutes', None), workers)
    run = getattr(settings, 'resume', None)
    if run is None:
        if not hasattr(settings, 'seed'):
            # One seed for all workers: each takes a part of every batch
            command += ['--seed', str(int.from_bytes(os.urandom(4),
                                                     'little'))]
        run = getattr(settings, 'out', None)
        if run is None:
            run = str(free_run_name())
            command += ['--out', run]
    elif run.endswith('.npz'):
        # Resume the run next time: it may have later checkpoints by then
        run = str(Path(run).parent.parent)
    again = ['pretrain', '--resume', run]
    for name in ('num_steps', 'minutes', 'save_every', 'keep', 'eval_every',
                 'devices'):
        if hasattr(settings, name):
            again += ['--' + name.replace('_', '-'),
                      str(getattr(settings, name))]
    return command, run, again


def _resume_hint(args, workers, run, again):
    """The message about resuming a job that has ended too early."""
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
