"""Run `d2lbert launch`: start the processes that train one model."""
import os
import shlex
import signal
import sys
from pathlib import Path

from d2lbert.command.flags import at_least
from d2lbert.command.pretrain import check_flags
from d2lbert.launch.launcher import (
    LOCAL,
    SERVER,
    SSH,
    LaunchError,
    launch,
    read_hosts,
)
from d2lbert.machine import mxnet_libraries
from d2lbert.machine.arguments import UsageError, flag_of, usage_errors
from d2lbert.machine.files import free_run_path
from d2lbert.training.settings import CHANGEABLE_ON_RESUME, check_clock

#: Arguments of Python that start a worker. The arguments of `d2lbert` follow.
WORKER = ('-m', 'd2lbert.command.worker')
#: The settings in CHANGEABLE_ON_RESUME that describe the inputs of a run.
INPUT_SETTINGS = ('corpus', 'data_dir', 'text_field', 'vocab', 'valid',
                  'teacher')


def add(commands):
    """Add this sub-command. `pretrain`, whose parser it uses, must exist."""
    parser = commands.add_parser(
        'launch', help='train on several machines or processes',
        description="Start the scheduler, the servers and the workers of "
        "MXNet's parameter server, on this machine or on others over ssh. "
        'Each worker computes its part of every batch.')
    add = parser.add_argument
    add('--workers', type=at_least(1), metavar='N',
        help='processes that train (default: one for each host, or 2 '
        'without --hosts)')
    add('--servers', type=at_least(1), default=1, metavar='N',
        help='processes that add up gradients (default: 1); one for each '
        'host spreads the traffic')
    add('--hosts', metavar='HOSTS',
        help='a,b,c or a file with a host on each line; workers and servers '
        'are started on the hosts in turn. ssh must reach each host without '
        'a password, and each host must have the current folder, the text '
        f'and Python; {LOCAL} is this machine, without ssh (default)')
    add('--port', type=int, default=0, metavar='P',
        help="the scheduler's port (default: a free one)")
    add('--root-uri', metavar='ADDRESS',
        help='the address at which the hosts reach this machine (default: '
        'the address of its connection to the first host)')
    add('--ssh', default=SSH, metavar='CMD',
        help='the program that runs a command on a host, as CMD HOST COMMAND '
        f'(default: {SSH})')
    add('--remote-python', default=sys.executable, metavar='PATH',
        help='the path of Python on the hosts (default: as on this machine)')
    add('worker_command', nargs='...', metavar='-- pretrain ...',
        help='the command of each worker, after --')
    parser.set_defaults(run=run, pretrain_parser=commands.choices['pretrain'])


def run(args):
    """Train; returns the exit status."""
    hosts = read_hosts(args.hosts)
    num_workers = args.workers
    if num_workers is None:
        num_workers = 2 if args.hosts is None else len(hosts)
    command, run_folder, resume_arguments = _worker_command(
        args.worker_command, args.pretrain_parser, num_workers)
    if args.quiet:
        command.append('--quiet')
    # Fail here, not in each worker, if an environment variable is invalid
    mxnet_libraries.thread_settings()
    try:
        launch([*WORKER, *command], num_workers, args.servers, hosts,
               args.port, args.root_uri, args.ssh, args.remote_python, SERVER)
    except (KeyboardInterrupt, LaunchError) as error:
        hint = _resume_hint(args, num_workers, run_folder, resume_arguments)
        if isinstance(error, LaunchError):
            raise LaunchError(
                f'{error}\n{hint[0].upper()}{hint[1:]}') from None
        print(f'd2lbert launch: stopped every process; {hint}',
              file=sys.stderr)
        return 128 + getattr(error, 'signal', signal.SIGINT)
    return 0


def _worker_command(command, pretrain_parser, num_workers=1):
    """Check the command of the workers, and add --seed and --out if missing.

    command: ['--', 'pretrain', ...]; a command with --resume is not changed.
    Returns (command, run_folder, resume_arguments), see `_resume_arguments`.
    """
    command = command[1:] if command[:1] == ['--'] else list(command)
    if command[:1] != ['pretrain']:
        problem = (f'the workers cannot run {command[0]!r}' if command
                   else 'the command of the workers is missing')
        raise UsageError(f'{problem}: give pretrain and its flags after --, '
                         'as in d2lbert launch --workers 2 -- pretrain')
    # `pretrain_args` has no attribute for a setting that is not given
    pretrain_args = pretrain_parser.parse_args(command[1:])
    check_flags(pretrain_args)
    with usage_errors():
        check_clock(getattr(pretrain_args, 'minutes', None), num_workers)
    run_folder = getattr(pretrain_args, 'resume', None)
    if run_folder is None:
        if not hasattr(pretrain_args, 'seed'):
            # The workers need the same seed to divide the same batches
            command += ['--seed', str(int.from_bytes(os.urandom(4),
                                                     'little'))]
        run_folder = getattr(pretrain_args, 'out', None)
        if run_folder is None:
            run_folder = str(free_run_path())
            command += ['--out', run_folder]
    elif run_folder.endswith('.npz'):
        # RUN/checkpoints/step-N.npz: this job may add later checkpoints to RUN
        run_folder = str(Path(run_folder).parent.parent)
    return command, run_folder, _resume_arguments(run_folder, pretrain_args)


def _resume_arguments(run_folder, pretrain_args):
    """Return arguments of `d2lbert` that resume a run with the job's flags."""
    names = ['devices', *CHANGEABLE_ON_RESUME]
    if not hasattr(pretrain_args, 'resume'):
        # Checkpoints of a new run store its inputs. A resumed run may have
        # checkpoints from before this job, which store the earlier inputs
        names = [name for name in names if name not in INPUT_SETTINGS]
    arguments = ['pretrain', '--resume', run_folder]
    for name in names:
        if hasattr(pretrain_args, name):
            value = getattr(pretrain_args, name)
            values = value if isinstance(value, list) else [value]
            arguments += [flag_of(name), *map(str, values)]
    return arguments


def _resume_hint(args, num_workers, run_folder, resume_arguments):
    """Return a message: how to resume, or that there is no checkpoint."""
    if not any(Path(run_folder, 'checkpoints').glob('step-*.npz')):
        return (f'there is no checkpoint of {run_folder} to resume from '
                '(pretrain --save-every N writes checkpoints)')
    command = ['d2lbert', 'launch', '--workers', str(num_workers),
               '--servers', str(args.servers)]
    for name, value, default in (
            ('--hosts', args.hosts, None), ('--root-uri', args.root_uri, None),
            ('--port', args.port, 0), ('--ssh', args.ssh, SSH),
            ('--remote-python', args.remote_python, sys.executable)):
        if value != default:
            command += [name, str(value)]
    return 'go on with: ' + shlex.join([*command, '--', *resume_arguments])
