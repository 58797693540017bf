"""The command line: parser, start-up and error handling."""
import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import textwrap

from d2lbert._version import __version__
from d2lbert.command import (
    cache,
    completion,
    doctor,
    encode,
    evaluate,
    export,
    fill,
    finetune,
    generate,
    help,
    launch,
    predict,
    pretrain,
    run,
    senses,
    show,
    similar,
)
from d2lbert.command.flags import STATUS, Parser, with_hint
from d2lbert.machine.arguments import UsageError
from d2lbert.machine.terminal import (
    Steady,
    fill_descriptors,
    give_up,
    note,
    speaking,
)
from d2lbert.training.interrupts import StopRequest

#: The sub-commands, in the groups of `--help`. They import MXNet only when
#: they run, so that help is fast.
GROUPS = {
    'train': (pretrain, finetune, launch),
    'use a model': (encode, similar, fill, generate, predict),
    'judge a model': (evaluate, senses, show),
    "the book's pages": (run,),
    'models of other libraries': (export,),
    'this installation': (doctor, cache, completion, help),
}
COMMANDS = tuple(command for commands in GROUPS.values()
                 for command in commands)

#: Sub-commands that print only the requested report.
REPORTS = 'cache', 'completion', 'doctor', 'help'

DESCRIPTION = 'Pretrain BERT as "Dive into Deep Learning" does, and use it.'
OVERVIEW = f'''\
d2lbert {__version__}: {DESCRIPTION[0].lower()}{DESCRIPTION[1:]}

  d2lbert pretrain                        the run of the chapter, a minute
  d2lbert encode RUN 'a crane is flying'  the vectors of a text
  d2lbert fill RUN 'it is a <mask> .'     the likeliest words at a mask
  d2lbert show RUN --out page.html        attention, words, losses: a page
  d2lbert finetune --task sst2 ...        learn a task from labelled texts
  d2lbert run PAGE.ipynb                  a page of the book, unchanged

  d2lbert --help                          all commands
  d2lbert COMMAND --help                  the flags of a command
  d2lbert help                            the manual
'''


def main(argv=None):
    """Run the command; returns the exit status."""
    fill_descriptors()
    if argv is None:
        _speak_utf8()
    with contextlib.redirect_stderr(Steady(sys.stderr)):
        return _main(argv)


def _main(argv):
    with _ending_at_once():
        args = parser().parse_args(argv)
    if args.command is None:
        print(OVERVIEW, end='')
        return 0
    try:
        with speaking(args.quiet):
            for line in args.notices:
                note(line)
            if args.check is not None:
                args.check(args)
            if args.needs is not None:
                with _ending_at_once():
                    importlib.import_module(args.needs)
            with StopRequest() as stop:     # SIGTERM and SIGHUP clean up, too
                stop.last_words = 'stopped'
                return args.run(args)
    except KeyboardInterrupt as interrupt:
        with _ending_at_once(b''):      # a second Ctrl-C ends at once
            print(f'\n{str(interrupt) or "stopped"}', file=sys.stderr)
        return 128 + getattr(interrupt, 'signal', 2)
    except BrokenPipeError:
        give_up(sys.stdout)    # the reader has closed the pipe
        return 1
    except (ValueError, TypeError, OSError, ImportError, MemoryError,
            RuntimeError) as error:
        prog, message = f'd2lbert {args.command}', _sentence(error)
        if isinstance(error, UsageError):
            message = with_hint(message, prog)
        print(f'{prog}: {message}', file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _sentence(error):
    """The message of an error; only the last line of an error of MXNet."""
    if isinstance(error, MemoryError):
        return str(error) or 'no memory left: work on less at a time'
    mxnet = sys.modules.get('mxnet')
    if mxnet is not None and isinstance(error, mxnet.MXNetError):
        return importlib.import_module(
            'd2lbert.machine.backend').last_line(error)
    return error


def _speak_utf8():
    """Restart in Python's UTF-8 mode if the locale is ASCII only.

    An ASCII locale cannot decode file names and texts beyond ASCII. In any
    other locale, characters that cannot be printed become backslash escapes.
    """
    if sys.getfilesystemencoding() not in ('ascii', 'us-ascii'):
        if getattr(sys.stdout, 'errors', None) == 'strict':
            sys.stdout.reconfigure(errors='backslashreplace')
        return
    spec = sys.modules['__main__'].__spec__     # not None after python -m
    os.execv(sys.executable, [
        sys.executable, *subprocess._args_from_interpreter_flags(),
        '-X', 'utf8', *(sys.argv[:1] if spec is None else ['-m', spec.name]),
        *sys.argv[1:]])


@contextlib.contextmanager
def _ending_at_once(words=b'\nstopped\n'):
    """Let Ctrl-C end this process with one line.

    Imports take seconds, and their code may catch KeyboardInterrupt.
    """
    def end(*_):
        os.write(2, words)
        os._exit(130)
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def parser():
    """The parser. A sub-command sets the default `run`, a function of args.

    It may also set `check`, a function of args that raises errors before
    libraries are loaded, and `needs`, the module to import after `check`.
    """
    top = Parser(
        prog='d2lbert', usage='d2lbert COMMAND ...',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=textwrap.fill(STATUS, 79) + '\n\n'
        'd2lbert COMMAND --help lists the flags of a command; d2lbert help, '
        'the manual.')
    top.add_argument('--version', action='version',
                     version=f'd2lbert {__version__}',
                     help='print the version and exit')
    top.set_defaults(check=None, needs=None, quiet=False, notices=())
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  prog='d2lbert',
                                  help=argparse.SUPPRESS)
    groups = {}
    for title, modules in GROUPS.items():
        before = len(commands.choices)
        for module in modules:
            module.add(commands)
        groups[title] = list(commands.choices)[before:]
    helps = {action.dest: action.help
             for action in commands._choices_actions}
    top.description = DESCRIPTION + ''.join(
        f'\n\n{title}:\n' + '\n'.join(
            f'  {name:<11} {helps[name]}' for name in names)
        for title, names in groups.items())
    for name, command in commands.choices.items():
        if name not in REPORTS:
            command.add_argument(
                '-q', '--quiet', action='store_true', help='write nothing '
                'but errors to standard error: no progress, no warnings')
    return top
