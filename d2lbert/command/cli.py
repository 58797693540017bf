"""The command line: its parser, how it begins and how it fails."""
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
  d2lbert evaluate RUN                   how well it does on unseen text
  d2lbert fill FOLDER 'it is a [MASK] .' what it guesses for masked words
  d2lbert generate FOLDER 'a text'       what a BART says to it
  d2lbert show RUN --out page.html       attention, senses, losses: a page
  d2lbert senses RUN                     whether a word's senses part
  d2lbert finetune --task sst2 ...       learn a labelled task
  d2lbert predict RUN 'a fine film'      what it then says of a text
  d2lbert export RUN FOLDER              a run for others to load
  d2lbert import FOLDER RUN              a pretrained model as a run
  d2lbert launch -- pretrain             several processes or machines
  d2lbert doctor                         what works here, and what does not
  d2lbert cache                          what is kept between runs
  d2lbert help [TOPIC]                   the manual
'''
EPILOG = '''\
exit status: 0, it is done; 1, it could not be done; 2, the command line is
wrong; 128 and the number of a signal (130: Ctrl-C), it was stopped.
'''

#: The sub-commands, as `--help` lists them; `launch` asks for `pretrain`'s
#: parser. They import what they need when they run: nobody waits for MXNet
#: to read a help text.
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
        with _ending_at_once(b''):      # one that was impatient
            print(f'\n{str(interrupt) or "stopped"}', file=sys.stderr)
        return 128 + getattr(interrupt, 'signal', 2)
    except BrokenPipeError:
        give_up(sys.stdout)    # the reader of a pipe left: nothing to say
        return 1
    except (ValueError, TypeError, OSError, ImportError, MemoryError,
            RuntimeError) as error:
        print(f'd2lbert {args.command}: {_sentence(error)}', file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _sentence(error):
    """The message of an error, in one line where MXNet has several."""
    if isinstance(error, MemoryError):
        return str(error) or 'no memory left: work on less at a time'
    mxnet = sys.modules.get('mxnet')
    if mxnet is not None and isinstance(error, mxnet.MXNetError):
        return importlib.import_module(
            'd2lbert.machine.backend').last_line(error)
    return error


def _speak_utf8():
    """Start again in Python's UTF-8 mode where the locale knows ASCII only.

    There, names of files and words of texts beyond ASCII are no text. In
    any other locale, what cannot be printed is printed as its code.
    """
    if sys.getfilesystemencoding() not in ('ascii', 'us-ascii'):
        if getattr(sys.stdout, 'errors', None) == 'strict':
            sys.stdout.reconfigure(errors='backslashreplace')
        return
    spec = sys.modules['__main__'].__spec__     # there is one after -m
    os.execv(sys.executable, [
        sys.executable, *subprocess._args_from_interpreter_flags(),
        '-X', 'utf8', *(sys.argv[:1] if spec is None else ['-m', spec.name]),
        *sys.argv[1:]])


@contextlib.contextmanager
def _ending_at_once(words=b'\nstopped\n'):
    """Let Ctrl-C end this process with one line.

    Importing takes seconds, through code that may catch the exception.
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
    """One that says what is wrong in one line, not below thirty."""

    def error(self, message):
        self.exit(2, f'{self.prog}: {message}; see {self.prog} --help\n')


def parser():
    """The parser. A sub-command sets `run`, its function of the arguments."""
    top = _Parser(
        prog='d2lbert', description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument('--version', action='version',
                     version=f'd2lbert {__version__}')
    # What a command imports besides itself, once its arguments are known
    top.set_defaults(needs=None, quiet=False)
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  required=True)
    for command in COMMANDS:
        command.add(commands)
    for name, command in commands.choices.items():
        # Of the others all that is printed is what was asked for
        if name not in ('cache', 'doctor', 'help'):
            command.add_argument(
                '-q', '--quiet', action='store_true', help='write nothing '
                'but errors to standard error: no progress, no warnings')
    return top
