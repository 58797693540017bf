"""The command `d2lbert`: pretrain, encode, doctor."""
import argparse
import sys

from d2lbert._version import __version__

DESCRIPTION = '''\
Pretrain BERT as "Dive into Deep Learning" does, and look at what it learnt.

  d2lbert pretrain                       the chapter's run: 50 steps, minutes
  d2lbert encode RUN 'a crane is flying' the vectors of a text
  d2lbert doctor                         what is well here, and what is not
'''


def main(argv=None):
    """Run the command; returns the exit status."""
    args = parser().parse_args(argv)
    try:
        return args.run(args)
    except KeyboardInterrupt:
        print('\nstopped; nothing was written', file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()      # the reader of a pipe left: nothing to say
        return 1
    except (ValueError, TypeError, OSError, ImportError,
            RuntimeError) as error:
        print(f'd2lbert {args.command}: {error}', file=sys.stderr)
        return 1


def parser():
    """The command's arguments; one flag for each keyword of `pretrain`."""
    top = argparse.ArgumentParser(
        prog='d2lbert', description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument('--version', action='version',
                     version=f'd2lbert {__version__}')
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  required=True)
    _add_pretrain(commands)
    _add_encode(commands)
    doctor = commands.add_parser(
        'doctor', help='check Python, MXNet, GPUs, compiler and data',
        description='Print a table of what d2lbert needs and what is here, '
        'with a remedy for each row that is not well. The exit status is 0 '
        'only if d2lbert can train.')
    doctor.set_defaults(run=_doctor)
    return top


def _add_pretrain(commands):
    pretrain = commands.add_parser(
        'pretrain', help='train a BERT and leave a run folder',
        description='Train a BERT on pairs of sentences. Without arguments '
        "this is the chapter's run on WikiText-2, which is fetched if it is "
        'not here; where it cannot be fetched, the sample corpus that comes '
        'with d2lbert stands in.',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    pretrain.set_defaults(run=_pretrain)

    def add(name, kind, default, text, metavar=None):
        pretrain.add_argument(name, type=kind, default=default, help=text,
                              metavar=metavar)
    add('--corpus', str, argparse.SUPPRESS,
        'wikitext-2, sample, or a text file in WikiText format (default: '
        'wikitext-2, or sample where that cannot be had)', 'NAME')
    add('--data-dir', str, argparse.SUPPRESS,
        'folder that holds wiki.train.tokens or wikitext-2/', 'DIR')
    add('--batch-size', int, 512, 'sentence pairs in a step', 'N')
    add('--max-len', int, 64, 'tokens in a pair at most', 'N')
    add('--num-hiddens', int, 128, 'numbers in the vector of a token', 'N')
    add('--ffn-num-hiddens', int, 256,
        'width of the feed-forward networks', 'N')
    add('--num-heads', int, 2, 'attention heads', 'N')
    add('--num-layers', int, 2, 'encoder blocks', 'N')
    add('--dropout', float, 0.2, 'share of numbers dropped', 'P')
    add('--lr', float, 0.01, 'learning rate of Adam', 'RATE')
    add('--num-steps', int, 50, 'steps of training', 'N')
    add('--log-interval', int, 1, 'steps between two log entries', 'N')
    add('--devices', str, 'auto',
        'auto (all usable GPUs, else the CPU), cpu, cpu:2 (two parts on the '
        'CPU), gpu or gpu:0,1', 'NAME')
    add('--seed', int, argparse.SUPPRESS,
        'seed of all random numbers (default: a new one each run)', 'N')
    add('--out', str, argparse.SUPPRESS,
        'run folder (default: runs/<date-time>)', 'DIR')
    pretrain.add_argument('--force', action='store_true',
                          help='replace the run folder if it exists')


def _add_encode(commands):
    encode = commands.add_parser(
        'encode', help='print or write the vectors of a text',
        description='Encode a text with a trained model: one vector for '
        '<cls>, each token and <sep>. The text is lower-cased and split at '
        'white space, as the training text was.')
    encode.add_argument('folder', metavar='RUN', help='a run folder')
    encode.add_argument('text', help="for example 'a crane is flying'")
    encode.add_argument('--pair', metavar='TEXT',
                        help='a second text, encoded together with the first')
    encode.add_argument('--out', metavar='FILE.npy',
                        help='write the vectors, (T, H) float32, instead of '
                        'printing them')
    encode.set_defaults(run=_encode)


def _pretrain(args):
    from d2lbert import hub, runs
    settings = {name: value for name, value in vars(args).items()
                if name not in ('command', 'run')}
    if 'corpus' not in settings:
        settings['corpus'] = 'wikitext-2'
        try:
            hub.wikitext2_dir(settings.get('data_dir'))
        except hub.HubError as error:
            print(f'{error}\nTraining on the small sample corpus instead.',
                  file=sys.stderr)
            settings['corpus'] = 'sample'
    out = runs.pretrain(**settings)
    print(f'run folder {out}', file=sys.stderr)
    return 0


def _encode(args):
    import numpy as np

    from d2lbert.bert import get_tokens_and_segments
    from d2lbert.bert_pretraining import get_bert_encoding
    from d2lbert.files import replacing
    from d2lbert.runs import load_run
    net, vocab = load_run(args.folder)
    text, pair = (None if t is None else t.lower().split()
                  for t in (args.text, args.pair))
    for name, tokens in (('text', text), ('--pair', pair)):
        if tokens == []:
            raise ValueError(f'{name} is empty: give at least one word')
    unknown = sorted({t for t in text + (pair or []) if t not in
                      vocab.token_to_idx})
    if unknown:
        print(f'not in the vocabulary, read as <unk>: {", ".join(unknown)}',
              file=sys.stderr)
    vectors = get_bert_encoding(net, text, pair)[0].asnumpy()
    if args.out is None:
        for token, vector in zip(get_tokens_and_segments(text, pair)[0],
                                 vectors):
            print(token, ' '.join(f'{x:.4f}' for x in vector))
        return 0
    with replacing(args.out) as part, open(part, 'wb') as file:
        np.save(file, vectors)
    return 0


def _doctor(args):
    # Not `from d2lbert import`: it asks the package, which may be broken
    from d2lbert.doctor import main
    return main()


if __name__ == '__main__':
    sys.exit(main())
