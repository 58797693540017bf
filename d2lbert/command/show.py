"""Run `d2lbert show`: write an HTML page about a model."""
import argparse

from d2lbert.command.flags import add_device, check_folders, device_of


class _TextAction(argparse.Action):
    """Append the pair (value of --text, None) to `args.texts`."""

    def __call__(self, parser, namespace, value, option_string=None):
        namespace.texts = [*(namespace.texts or ()), (value, None)]


class _PairAction(argparse.Action):
    """Replace the None in the last pair of `args.texts`."""

    def __call__(self, parser, namespace, value, option_string=None):
        texts = namespace.texts or ()
        if not texts or texts[-1][1] is not None:
            parser.error('--pair is the second text of a pair: give it '
                         'after the --text that it belongs to')
        namespace.texts = [*texts[:-1], (texts[-1][0], value)]


def add(commands):
    """Add this sub-command to the parser."""
    parser = commands.add_parser(
        'show', help='write a page about what a model has learnt',
        description='Write an HTML file about a model and texts: attention '
        'by layer and head, predictions for each token if it were masked, '
        'the nearest tokens of a corpus, the vectors of a word in many '
        'sentences, and the history of the run. It opens in any browser, '
        'without a network.')
    add = parser.add_argument
    add('folder', metavar='RUN|FOLDER', help='the folder of a run of '
        'pretrain or finetune, or of a pretrained model')
    add('--text', dest='texts', action=_TextAction, metavar='TEXT',
        help="a text to show, for example 'a crane is flying'; repeat --text "
        "for several (default: the book's texts with the word crane)")
    # SUPPRESS: no `args.pair`; `_PairAction` changes `args.texts`
    add('--pair', action=_PairAction, metavar='TEXT',
        default=argparse.SUPPRESS,
        help='the second text of a pair; give it after --text with the first')
    add('--word', dest='words', action='append', metavar='WORD', help='a '
        'word whose vectors in many sentences are shown; repeat --word for '
        'several (default: words of the texts that occur often enough)')
    add('--file', metavar='FILE', help='search the lines of this file for '
        'the nearest tokens and the words (default: the training text of a '
        'run of pretrain, else the sample corpus)')
    add('--text-field', metavar='NAME', help='the field of JSON lines in '
        '--file that holds the text')
    add('--out', metavar='FILE.html', required=True,
        help='the page to write')
    add('--force', action='store_true', help='replace the page, if it '
        'exists')
    add_device(add)
    parser.set_defaults(run=run, check=check_folders,
                        needs='d2lbert.pictures.show')


def run(args):
    """Write the page; returns the exit status."""
    from d2lbert.pictures.show import write_page
    write_page(args.folder, args.out, args.force, texts=args.texts,
               words=args.words, file=args.file,
               text_field=args.text_field, ctx=device_of(args.devices))
    return 0
