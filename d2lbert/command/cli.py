"""Run `d2lbert`: parse the command line, call a sub-command, print errors."""
import argparse
import contextlib
import importlib
import io
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
from d2lbert.command.flags import EXIT_STATUSES, Parser, add_help_hint
from d2lbert.machine.arguments import UsageError
from d2lbert.machine.terminal import (
    FailsafeStream,
    close_broken,
    fill_descriptors,
    note,
    printed_warnings,
)
from d2lbert.training.interrupts import StopRequest

#: {title in `--help`: modules of sub-commands}. For a fast `--help`,
#: importing them must import neither MXNet nor NumPy.
GROUPS = {
    'train': (pretrain, finetune, launch),
    'use a model': (encode, similar, fill, generate, predict),
    'judge a model': (evaluate, senses, show),
    "the book's pages": (run,),
    'models of other libraries': (export,),
    'this installation': (doctor, cache, completion, help),
}

#: Sub-commands without --quiet: they print only what the user asks for.
WITHOUT_QUIET = 'cache', 'completion', 'doctor', 'help'

DESCRIPTION = 'Pretrain BERT as "Dive into Deep Learning" does, and use it.'
#: Printed by `d2lbert` without arguments.
OVERVIEW = f'''\
d2lbert {__version__}: {DESCRIPTION[0].lower()}{DESCRIPTION[1:]}

  d2lbert pretrain                        train as the chapter does
  d2lbert encode RUN 'a crane is flying'  print the vectors of a text
  d2lbert fill RUN 'it is a <mask> .'     print the likeliest words at a mask
  d2lbert show RUN --out page.html        write a page about a model
  d2lbert finetune --task sst2 ...        learn a task from labelled texts
  d2lbert run PAGE.ipynb                  run a page of the book, unchanged

  d2lbert --help                          list all commands
  d2lbert COMMAND --help                  list the flags of a command
  d2lbert help                            show the manual
'''


def main(argv=None):
    """Run a command line (default: sys.argv[1:]); returns the exit status."""
    fill_descriptors()      # stdin, stdout or stderr may be closed
    if argv is None:
        _set_up_encoding()
        if isinstance(getattr(sys.stdout, 'buffer', None), io.RawIOBase):
            # With PYTHONUNBUFFERED, Python ignores a partly written text, and
            # `_flush_output` cannot report a write that has failed
            sys.stdout = open(1, 'w', 1, sys.stdout.encoding,
                              sys.stdout.errors, closefd=False)
    err = FailsafeStream(sys.stderr)
    # Python sets sys.stdout to None if standard output was closed
    out = sys.stdout or FailsafeStream(None)
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        try:
            status = _run(argv)
        except SystemExit as request:   # argparse printed help or an error
            sys.exit(_flush_output(request.code))
        return _flush_output(status)


def _run(argv):
    """Parse and run a command line; print errors; return the exit status.

    The docstring of `parser` describes the attributes of `args`.
    """
    with _exiting_on_ctrl_c():
        args = parser().parse_args(argv)
    try:
        if args.command is None:
            print(OVERVIEW, end='')
            return 0
        with printed_warnings(hidden=args.quiet):
            for line in args.notices:
                note(line)
            if args.check is not None:
                args.check(args)
            if args.needs is not None:
                with _exiting_on_ctrl_c():
                    importlib.import_module(args.needs)
            # Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, so that the
            # sub-command can remove its temporary files
            with StopRequest() as stop:
                stop.last_words = 'stopped'     # KeyboardInterrupt's message
                return args.run(args)
    except KeyboardInterrupt as interrupt:
        with _exiting_on_ctrl_c(b''):   # a second Ctrl-C prints nothing
            print(f'\n{str(interrupt) or "stopped"}', file=sys.stderr)
        return 128 + getattr(interrupt, 'signal', signal.SIGINT)
    except BrokenPipeError:
        close_broken(sys.stdout)    # the reader closed the pipe: no message
        return 1
    except (ValueError, TypeError, OSError, ImportError, MemoryError,
            RuntimeError) as error:
        # If `print` with flush=True has failed, `_flush_output` fails, too
        if getattr(error, 'errno', None) is not None and _flush_output(0):
            return 1
        prog = f'd2lbert {args.command}' if args.command else 'd2lbert'
        message = _message_of(error)
        if isinstance(error, UsageError):
            message = add_help_hint(message, prog)
        print(f'{prog}: {message}', file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _flush_output(status):
    """Flush standard output; return `status`, but on failure 1 in place of 0.

    Otherwise Python would flush at exit, print an error of its own and exit
    with status 120.
    """
    try:
        # FailsafeStream(None) has no attribute `closed`, and needs no flush
        if not getattr(sys.stdout, 'closed', True):
            with _exiting_on_ctrl_c():
                sys.stdout.flush()
        return status
    except OSError as error:
        close_broken(sys.stdout)
        # Print no error for a closed pipe, and no second error
        if status == 0 and not isinstance(error, BrokenPipeError):
            print('d2lbert: standard output cannot be written: '
                  f'{error.strerror}', file=sys.stderr)
        return status or 1


def _message_of(error):
    if isinstance(error, MemoryError):
        return str(error) or 'no memory left: work on less at a time'
    mxnet = sys.modules.get('mxnet')
    if mxnet is not None and isinstance(error, mxnet.MXNetError):
        from d2lbert.machine.backend import last_line
        return last_line(error)     # earlier lines are a C++ traceback
    return str(error)


def _set_up_encoding():
    """Let this process read and print all of Unicode.

    In an ASCII locale, Python can only decode ASCII file names and texts, so
    this function restarts the process in Python's UTF-8 mode. In any other
    locale, a character that cannot be printed becomes a backslash escape.
    """
    if sys.getfilesystemencoding() not in ('ascii', 'us-ascii'):
        if getattr(sys.stdout, 'errors', None) == 'strict':
            sys.stdout.reconfigure(errors='backslashreplace')
        return
    # The module of `python -m`; None if Python was started in another way
    spec = sys.modules['__main__'].__spec__
    os.execv(sys.executable, [
        sys.executable, *subprocess._args_from_interpreter_flags(),
        '-X', 'utf8', *(sys.argv[:1] if spec is None else ['-m', spec.name]),
        *sys.argv[1:]])


@contextlib.contextmanager
def _exiting_on_ctrl_c(message=b'\nstopped\n'):
    """Context in which Ctrl-C prints a message and exits at once.

    Imports take seconds, and their code might catch KeyboardInterrupt.
    """
    def exit_now(*_):
        os.write(2, message)    # to standard error
        os._exit(130)
    # A handler of the calling program, or an ignored Ctrl-C, stays as it is
    has_default_handler = (signal.getsignal(signal.SIGINT)
                           is signal.default_int_handler)
    if has_default_handler:
        signal.signal(signal.SIGINT, exit_now)
    try:
        yield
    finally:
        if has_default_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def parser():
    """Return the parser of the command and of all sub-commands.

    A sub-command's module sets these attributes of the parsed `args`. run: a
    function of `args` that returns the exit status. check: None, or a function
    that raises an error for invalid `args`. needs: None, or the name of a slow
    module to import after `check`. `RenamedFlag` adds lines to `args.notices`.
    """
    top = Parser(
        prog='d2lbert', usage='d2lbert COMMAND ...',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=textwrap.fill(EXIT_STATUSES, 79) + '\n\n'
        'd2lbert COMMAND --help lists the flags of a command; d2lbert help, '
        'the manual.')
    top.add_argument('--version', action='version',
                     version=f'd2lbert {__version__}',
                     help='print the version and exit')
    top.set_defaults(check=None, needs=None, quiet=False, notices=())
    # Hide argparse's list of sub-commands: the description lists them by group
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  prog='d2lbert',
                                  help=argparse.SUPPRESS)
    paragraphs = [DESCRIPTION]
    for title, modules in GROUPS.items():
        # It has an item for each sub-command, whose name is `dest`
        num_before = len(commands._choices_actions)
        for module in modules:
            module.add(commands)    # a module may add several sub-commands
        lines = [f'  {action.dest:<11} {action.help}'
                 for action in commands._choices_actions[num_before:]]
        paragraphs.append('\n'.join([f'{title}:', *lines]))
    top.description = '\n\n'.join(paragraphs)
    for name, command_parser in commands.choices.items():
        if name not in WITHOUT_QUIET:
            command_parser.add_argument(
                '-q', '--quiet', action='store_true', help='write nothing '
                'but errors to standard error: no progress, no warnings')
    return top
