"""The command line: parser, start-up and error handling."""
import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys

from d2lbert._version import __version__
from d2lbert.command import (
    cache,
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
from d2lbert.machine.arguments import UsageError
from d2lbert.machine.terminal import (
    Steady,
    fill_descriptors,
    give_up,
    speaking,
)
from d2lbert.training.interrupts import StopRequest

DESCRIPTION = '''\
Pretrain BERT as "Dive into Deep Learning" does, and look at what it learnt.

  d2lbert pretrain                       the chapter's run: 50 steps, a minute
  d2lbert run PAGE.ipynb                 a page of the book, unchanged
  d2lbert encode RUN 'a crane is flying' the vectors of a text
  d2lbert similar FOLDER QUERY --file F  the lines nearest to a query
  d2lbert evaluate RUN                   losses and accuracies on unseen text
  d2lbert fill FOLDER 'it is a [MASK] .' predict the masked words
  d2lbert generate FOLDER 'a text'       generate a text with a BART
  d2lbert show RUN --out page.html       attention, senses, losses: a page
  d2lbert senses RUN                     how well it separates word senses
  d2lbert finetune --task sst2 ...       learn a labelled task
  d2lbert predict RUN 'a fine film'      predict with the fine-tuned model
  d2lbert export RUN FOLDER              a run as a checkpoint for others
  d2lbert import FOLDER RUN              a pretrained model as a run
  d2lbert launch -- pretrain             several processes or machines
  d2lbert doctor                         what works here, and what does not
  d2lbert cache                          list or remove cached files
  d2lbert help [TOPIC]                   the manual
'''
EPILOG = '''\
exit status: 0, it is done; 1, it could not be done; 2, the command line is
wrong; 128 and the number of a signal (130: Ctrl-C), it was stopped.
'''

#: The sub-commands, in the order of `--help`; `launch` uses the parser of
#: `pretrain`. They import MXNet only when they run, so that help is fast.
COMMANDS = (pretrain, run, encode, similar, evaluate, fill, generate, show,
            senses, finetune, predict, export, launch, doctor, cache, help)


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
    try:
        with speaking(args.quiet):
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
        print(f'd2lbert {args.command}: {_sentence(error)}', file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _sentence(error):
    """The message of an error; one line of MXNet's messages."""
    if isinstance(error, MemoryError):
        return str(error) or 'no memory left: work on less at a time'
    mxnet = sys.modules.get('mxnet')
    if mxnet is not None and isinstance(error, mxnet.MXNetError):
        return importlib.import_module(
            'd2lbert.machine.backend').last_line(error)
    return error


def _speak_utf8():
    """Restart in Python's UTF-8 mode if the locale is ASCII only.

    An ASCII locale cannot decode other file names and texts. In any other
    locale, characters that cannot be printed become backslash escapes.
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
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class _Parser(argparse.ArgumentParser):
    """A parser that prints errors in one line, without the usage text."""

    def error(self, message):
        self.exit(2, f'{self.prog}: {message}; see {self.prog} --help\n')


def parser():
    """The parser. A sub-command sets `run`, its function of the arguments."""
    top = _Parser(
        prog='d2lbert', description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument('--version', action='version',
                     version=f'd2lbert {__version__}')
    # The module that a command imports after its arguments are parsed
    top.set_defaults(needs=None, quiet=False)
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  required=True)
    for command in COMMANDS:
        command.add(commands)
    for name, command in commands.choices.items():
        # The other two print only the requested report
        if name not in ('cache', 'doctor', 'help'):
            command.add_argument(
                '-q', '--quiet', action='store_true', help='write nothing '
                'but errors to standard error: no progress, no warnings')
    return top
