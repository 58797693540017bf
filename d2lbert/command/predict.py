"""`d2lbert predict`: predictions of a fine-tuned model."""
from d2lbert.command.flags import (
    add_force,
    add_precision,
    add_texts,
    at_least,
)


def add(commands):
    """Add this sub-command to the parser."""
    predict = commands.add_parser(
        'predict', help='predict with a fine-tuned model',
        description='Predict with a run of finetune. Of one text: each label '
        'with its share, the number, each word with its tag, or the answer. '
        'With --file a line for each text: the label and its share, the '
        'number or the answer; of tags each word and its tag, and an empty '
        'line behind each text.')
    add = predict.add_argument
    add('folder', metavar='RUN', help='a run folder of finetune')
    add('text', nargs='?', help="for example 'a fine film'; for answers the "
        'question')
    add('--pair', metavar='TEXT', help='the second text of a pair; for '
        'answers the text that is searched')
    add_texts(add, 'predict for each line of a file; a tab parts the texts '
              'of a pair; of a .csv the columns that were trained on')
    add('--top', type=at_least(1), metavar='N', help='the N likeliest labels '
        '(of one text all, of --file one)')
    add('--data', metavar='DIR', help='of a run of a task of GLUE: predict '
        'its test part, and write the file that the leaderboard takes, as '
        'MNLI-m.tsv, into the folder --out')
    add('--out', metavar='FILE', help='write the predictions of --file there '
        'instead of printing them')
    add_force(add)
    add('--devices', default='auto', metavar='NAME', help='as for finetune')
    add_precision(add)
    predict.set_defaults(run=run, needs='d2lbert.finetuning.prediction')


def run(args):
    """Print or write the predictions; returns the exit status."""
    from d2lbert.finetuning.prediction import predicted_lines
    if args.data is not None:
        return submit(args)
    predicted_lines(args.folder, args.text, args.pair, args.file, args.out,
                    args.devices, args.force, args.skip_empty,
                    args.text_field, args.top, args.precision)
    return 0


def submit(args):
    """Write the files of a submission; returns the exit status."""
    from d2lbert.finetuning.tasks.submission import write_submission
    from d2lbert.machine.arguments import UsageError
    if args.out is None or any(given is not None for given in (
            args.text, args.file, args.pair, args.text_field)):
        raise UsageError('--data goes with --out FOLDER alone: the test part '
                         'of the task is predicted')
    for path in write_submission(args.folder, args.data, args.out,
                                 args.devices, args.force, args.precision):
        print(f'wrote {path}')
    return 0
