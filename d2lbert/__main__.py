"""The command `d2lbert`: pretrain, encode, evaluate, launch, doctor."""
import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys

from d2lbert._version import __version__
from d2lbert.machine.terminal import Steady, fill_descriptors, give_up
from d2lbert.training.interrupts import StopRequest
from d2lbert.training.settings import (
    GROUPS,
    PATHS,
    Setting,
    described_default,
)

DESCRIPTION = '''\
Pretrain BERT as "Dive into Deep Learning" does, and look at what it learnt.

  d2lbert pretrain                       the chapter's run: 50 steps, a minute
  d2lbert encode RUN 'a crane is flying' the vectors of a text
  d2lbert evaluate RUN                   how well it does on unseen text
  d2lbert launch -- pretrain             several processes or machines
  d2lbert doctor                         what works here, and what does not
  d2lbert cache                          what is kept between runs
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
    try:
        if args.needs is not None:
            with _ending_at_once():
                importlib.import_module(args.needs)
        with StopRequest() as stop:     # SIGTERM and SIGHUP clean up, too
            stop.last_words = 'stopped'
            return args.run(args)
    except KeyboardInterrupt as interrupt:
        with _ending_at_once(b''):   # one that was impatient
            print(f'\n{str(interrupt) or "stopped"}', file=sys.stderr)
        return 128 + getattr(interrupt, 'signal', 2)
    except BrokenPipeError:
        give_up(sys.stdout)    # the reader of a pipe left: nothing to say
        return 1
    except (ValueError, TypeError, OSError, ImportError,
            RuntimeError) as error:
        print(f'd2lbert {args.command}: {error}', file=sys.stderr)
        return 1


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
        '-X', 'utf8', *(sys.argv[:1] if spec is None else ['-m', 'd2lbert']),
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
    """The command's arguments; one flag for each keyword of `pretrain`."""
    top = _Parser(
        prog='d2lbert', description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument('--version', action='version',
                     version=f'd2lbert {__version__}')
    # What a command imports besides itself, once its arguments are known
    top.set_defaults(needs=None)
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  required=True)
    _add_pretrain(commands)
    _add_encode(commands)
    _add_evaluate(commands)
    _add_launch(commands)
    _add_doctor(commands)
    _add_cache(commands)
    return top


def _add_pretrain(commands):
    pretrain = commands.add_parser(
        'pretrain', help='train a BERT and leave a run folder',
        description='Train a BERT on pairs of sentences. Without arguments '
        "this is the chapter's run on WikiText-2, which is fetched if it is "
        'not here; where it cannot be fetched, the sample corpus that comes '
        'with d2lbert stands in. Where a default has two values, the second '
        'is that of --recipe learn.')
    pretrain.set_defaults(run=_pretrain, needs='d2lbert.training.pretraining')
    for title, settings in [*GROUPS.items(), ('the run', CARRYING_OUT)]:
        group = next((group for group in pretrain._action_groups
                      if group.title == title), None)
        group = group or pretrain.add_argument_group(title)
        for setting in settings:
            name, options = _flag(setting)
            group.add_argument(name, **options)


def _flag(setting):
    """(name, options) of a setting's flag, for argparse."""
    note = described_default(setting)
    text = setting.help + (f' ({note})' if note else '')
    # What is not given stays away, so that the recipe decides
    options = dict(default=argparse.SUPPRESS, help=text.replace('%', '%%'))
    if setting.kind is bool:
        options['action'] = 'store_true'
    else:
        kind = str if setting.kind == PATHS else setting.kind
        options.update(type=kind, metavar=setting.metavar)
        if setting.several:
            options['nargs'] = '+'
    return '--' + setting.name.replace('_', '-'), options


#: Flags of `pretrain` that are no settings of the run, but say where and
#: how it is carried out.
CARRYING_OUT = (
    Setting('devices', str, 'auto', 'auto (all usable GPUs, else the CPU), '
            'cpu, cpu:2 (two parts on the CPU), gpu or gpu:0,1', 'NAME'),
    Setting('out', str, None, 'run folder (runs/<date-time>)', 'DIR'),
    Setting('force', bool, False, 'replace the run folder, if it exists, '
            'when this run is finished'),
    Setting('resume', str, None, 'go on with this run folder, or with one '
            'of its checkpoints', 'RUN'),
)


def _add_evaluate(commands):
    evaluate = commands.add_parser(
        'evaluate', help='losses and accuracies of a run on held-out text',
        description='Evaluate a run on held-out text: that of its own '
        'corpus, or other files.')
    evaluate.add_argument('folder', metavar='RUN', help='a run folder')
    evaluate.add_argument('--corpus', nargs='+', metavar='FILE',
                          help='text files to evaluate on, read with the '
                          "run's vocabulary")
    evaluate.add_argument('--devices', default='auto', metavar='NAME',
                          help='as for pretrain')
    evaluate.set_defaults(run=_evaluate, needs='d2lbert.training.evaluation')


def _add_encode(commands):
    encode = commands.add_parser(
        'encode', help='print or write the vectors of texts',
        description='Encode a text, or each line of a file, with a trained '
        'model: one vector for <cls>, each token and <sep>, or one for the '
        'whole text with --pool. A text is lower-cased and split at white '
        'space, as the training text was. What is printed is a line for '
        'each vector, behind its token; with --file an empty line ends each '
        'text.')
    add = encode.add_argument
    add('folder', metavar='RUN', help='a run folder')
    add('text', nargs='?', help="for example 'a crane is flying'")
    add('--pair', metavar='TEXT',
        help='a second text, encoded together with the first')
    add('--file', metavar='FILE',
        help='encode each line of a file, - for standard input, instead of '
        'one text; results come as the lines do, in constant memory')
    add('--pool', choices=('cls', 'mean'), help='one vector for a text: that '
        'of <cls>, or the mean of all its vectors, with <cls> and <sep>')
    add('--out', metavar='FILE.npy',
        help='write the vectors as float32 instead of printing them: (T, H) '
        'of one text, (N, H) of N texts with --pool')
    encode.set_defaults(run=_encode, needs='d2lbert.command.encoding')


def _add_launch(commands):
    from d2lbert.launch.job import add_arguments, main
    parser = commands.add_parser(
        'launch', help='train on several machines or processes',
        description='Start scheduler, servers and workers of MXNet\'s '
        'parameter server, on this machine or on others over ssh, each '
        'worker with its part of every batch.')
    add_arguments(parser)
    parser.set_defaults(run=main)


def _add_doctor(commands):
    doctor = commands.add_parser(
        'doctor', help='check Python, MXNet, GPUs, compiler and data',
        description='Print a table of what d2lbert needs and what is here, '
        'with a remedy for each row that is not ok. The exit status is 0 '
        'only if d2lbert can train.')
    doctor.add_argument('--build', action='store_true',
                        help='compile the CPU operators now, not at their '
                        'first use; the exit status is 0 only if that works')
    doctor.set_defaults(run=_doctor)


def _add_cache(commands):
    from d2lbert.machine.cache import KINDS, RENEWABLE
    cache = commands.add_parser(
        'cache', help='what is kept between runs, and its removal',
        description='Show what d2lbert keeps between runs, or remove it: '
        'kernels, the compiled operators; tokens and corpora, texts cut into '
        'words; data, what was fetched. Nothing is removed but what d2lbert '
        'made there.')
    cache.add_argument('--clear', action='store_true', help='remove it')
    cache.add_argument('--kind', nargs='+', choices=list(KINDS),
                       metavar='KIND', help=f'only {", ".join(KINDS)} (all; '
                       f'with --clear {", ".join(RENEWABLE)}, which are made '
                       'again when they are needed)')
    cache.add_argument('--older-than', type=float, metavar='DAYS',
                       help='only what was last used so many days ago')
    cache.set_defaults(run=_cache)


def _pretrain(args):
    from d2lbert import hub
    from d2lbert.machine import workers
    from d2lbert.training.interrupts import Stopped
    from d2lbert.training.pretraining import pretrain
    settings = {name: value for name, value in vars(args).items()
                if name not in ('command', 'run', 'needs')}
    if 'corpus' not in settings and 'resume' not in settings:
        settings['corpus'] = 'wikitext-2'
        try:
            hub.wikitext2_dir(settings.get('data_dir'))
        except hub.HubError as error:
            print(f'{error}\nTraining on the small sample corpus instead.',
                  file=sys.stderr)
            settings['corpus'] = 'sample'
    try:
        out = pretrain(**settings)
    except Stopped as stopped:
        if str(stopped):        # one worker of many speaks for all
            print(f'\n{stopped}', file=sys.stderr)
        return 128 + stopped.signal
    if workers.rank() == 0:
        print(f'run folder {out}', file=sys.stderr)
    return 0


def _evaluate(args):
    from d2lbert.training.evaluation import evaluate_run
    figures = evaluate_run(args.folder, args.corpus, args.devices)
    for name, value in figures._asdict().items():
        print(f'{name} {value:.4f}')
    return 0


def _encode(args):
    from d2lbert.command.encoding import encode
    encode(args.folder, args.text, args.pair, args.file, args.pool, args.out)
    return 0


def _doctor(args):
    # Not `from d2lbert import`: it asks the package, which may be broken
    from d2lbert.command.doctor import main
    return main(args.build)


def _cache(args):
    from d2lbert.machine.cache import main
    return main(args.clear, args.kind, args.older_than)


if __name__ == '__main__':
    sys.exit(main())
