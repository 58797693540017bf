"""The command `d2lbert`: pretrain, encode, evaluate, launch, doctor."""
import argparse
import contextlib
import importlib
import os
import signal
import sys

from d2lbert._version import __version__
from d2lbert.recipes import BOOK, LEARN

DESCRIPTION = '''\
Pretrain BERT as "Dive into Deep Learning" does, and look at what it learnt.

  d2lbert pretrain                       the chapter's run: 50 steps, a minute
  d2lbert encode RUN 'a crane is flying' the vectors of a text
  d2lbert evaluate RUN                   how well it does on unseen text
  d2lbert launch -- pretrain             several processes or machines
  d2lbert doctor                         what works here, and what does not
'''


def main(argv=None):
    """Run the command; returns the exit status."""
    args = parser().parse_args(argv)
    try:
        if args.needs is not None:
            with _ending_at_once():
                importlib.import_module(args.needs)
        return args.run(args)
    except KeyboardInterrupt as interrupt:
        print(f'\n{str(interrupt) or "stopped"}', file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()      # the reader of a pipe left: nothing to say
        return 1
    except (ValueError, TypeError, OSError, ImportError,
            RuntimeError) as error:
        print(f'd2lbert {args.command}: {error}', file=sys.stderr)
        return 1


@contextlib.contextmanager
def _ending_at_once():
    """Let Ctrl-C end this process with one line.

    Importing takes seconds, through code that may catch the exception.
    """
    def end(*_):
        os.write(2, b'\nstopped\n')
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
    doctor = commands.add_parser(
        'doctor', help='check Python, MXNet, GPUs, compiler and data',
        description='Print a table of what d2lbert needs and what is here, '
        'with a remedy for each row that is not ok. The exit status is 0 '
        'only if d2lbert can train.')
    doctor.set_defaults(run=_doctor)
    return top


def _add_pretrain(commands):
    pretrain = commands.add_parser(
        'pretrain', help='train a BERT and leave a run folder',
        description='Train a BERT on pairs of sentences. Without arguments '
        "this is the chapter's run on WikiText-2, which is fetched if it is "
        'not here; where it cannot be fetched, the sample corpus that comes '
        'with d2lbert stands in. Where a default has two values, the second '
        'is that of --recipe learn.')
    pretrain.set_defaults(run=_pretrain, needs='d2lbert.training')
    for title, flags in FLAGS.items():
        group = pretrain.add_argument_group(title)
        for name, kind, metavar, text in flags:
            options = dict(default=argparse.SUPPRESS, help=text + _default(
                name.lstrip('-').replace('-', '_')))
            if kind is bool:
                options['action'] = 'store_true'
            else:
                options.update(type=kind, metavar=metavar)
                if name in ('--corpus', '--valid'):
                    options['nargs'] = '+'
            # What is not given stays away, so that the recipe decides
            group.add_argument(name, **options)


def _default(name):
    if name not in BOOK or isinstance(BOOK[name], bool):
        return ''
    both = BOOK[name], LEARN[name]
    return f' ({both[0]}; {both[1]})' if both[0] != both[1] \
        else f' ({both[0]})'


#: Flags of `pretrain`: name, type, what stands for the value, help.
FLAGS = {
    'the text': [
        ('--corpus', str, 'NAME', 'wikitext-2, sample, or text files, plain '
         'or in WikiText format, gzip too (wikitext-2, or sample where that '
         'cannot be had)'),
        ('--data-dir', str, 'DIR', 'folder that holds wiki.train.tokens or '
         'wikitext-2/'),
        ('--split', str, 'HOW', "how plain text is cut into sentences: book, "
         "at ' . ' and with words apart already, or punkt, by a library "
         '(book)'),
        ('--vocab', str, 'FILE', 'use this vocabulary, a token a line, '
         'instead of building one'),
        ('--valid', str, 'FILE', 'held-out text files'),
        ('--valid-share', float, 'SHARE', 'share of the articles held out '
         'for --eval-every where there is no held-out file (0.05)'),
        ('--fill', bool, None, 'fill sequences with several sentences, as '
         'the published BERT does'),
        ('--dynamic', bool, None, 'draw new masks and pairs each epoch (the '
         'recipe learn does)'),
    ],
    'the model': [
        ('--max-len', int, 'N', 'tokens in a pair at most'),
        ('--num-hiddens', int, 'N', 'numbers in the vector of a token'),
        ('--ffn-num-hiddens', int, 'N', 'width of the feed-forward networks'),
        ('--num-heads', int, 'N', 'attention heads'),
        ('--num-layers', int, 'N', 'encoder blocks'),
        ('--dropout', float, 'P', 'share of numbers dropped'),
        ('--precision', str, 'NAME', 'fp32 or bf16, for the products of '
         'matrices'),
    ],
    'the training': [
        ('--recipe', str, 'NAME', "book, the chapter's settings, or learn, "
         'which learns more in ten minutes (book)'),
        ('--batch-size', int, 'N', 'sentence pairs in a step'),
        ('--accumulate', int, 'K', 'parts of a batch that are worked on one '
         'after another, to save memory'),
        ('--num-steps', int, 'N', 'steps of training'),
        ('--lr', float, 'RATE', 'learning rate of Adam'),
        ('--warmup', float, 'SHARE', 'share of the steps in which the rate '
         'rises'),
        ('--decay', str, 'HOW', 'none or linear: how the rate falls'),
        ('--weight-decay', float, 'RATE', 'decoupled weight decay'),
        ('--clip', float, 'NORM', 'limit of the gradient norm, 0 for none'),
        ('--initializer', str, 'NAME', 'xavier or normal'),
        ('--seed', int, 'N', 'seed of all random numbers (a new one each '
         'run)'),
        ('--devices', str, 'NAME', 'auto (all usable GPUs, else the CPU), '
         'cpu, cpu:2 (two parts on the CPU), gpu or gpu:0,1 (auto)'),
    ],
    'the run': [
        ('--out', str, 'DIR', 'run folder (runs/<date-time>)'),
        ('--force', bool, None, 'replace the run folder if it exists'),
        ('--log-interval', int, 'N', 'steps between two log entries'),
        ('--eval-every', int, 'N', 'steps between two looks at held-out '
         'text'),
        ('--save-every', int, 'N', 'steps between two checkpoints, of which '
         'the last three are kept'),
        ('--resume', str, 'RUN', 'go on with this run folder, or with one '
         'of its checkpoints'),
    ],
}


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
    evaluate.set_defaults(run=_evaluate, needs='d2lbert.training')


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
    encode.set_defaults(run=_encode, needs='d2lbert.encoding')


def _add_launch(commands):
    from d2lbert.launch import add_arguments, main
    parser = commands.add_parser(
        'launch', help='train on several machines or processes',
        description='Start scheduler, servers and workers of MXNet\'s '
        'parameter server, on this machine or on others over ssh, each '
        'worker with its part of every batch.')
    add_arguments(parser)
    parser.set_defaults(run=main)


def _pretrain(args):
    from d2lbert import hub, launch
    from d2lbert.training import Stopped, pretrain
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
        print(f'\n{stopped}', file=sys.stderr)
        return 130
    if launch.rank() == 0:
        print(f'run folder {out}', file=sys.stderr)
    return 0


def _evaluate(args):
    from d2lbert.training import evaluate_run
    figures = evaluate_run(args.folder, args.corpus, args.devices)
    for name, value in figures._asdict().items():
        print(f'{name} {value:.4f}')
    return 0


def _encode(args):
    from d2lbert.encoding import encode
    encode(args.folder, args.text, args.pair, args.file, args.pool, args.out)
    return 0


def _doctor(args):
    # Not `from d2lbert import`: it asks the package, which may be broken
    from d2lbert.doctor import main
    return main()


if __name__ == '__main__':
    sys.exit(main())
