"""Run `d2lbert predict`: print or write predictions of a fine-tuned model."""
from d2lbert.command.flags import (
    add_devices,
    add_force,
    add_json,
    add_precision,
    add_texts,
    at_least,
    check_folders,
    print_json,
)
from d2lbert.machine.arguments import UsageError


def add(commands):
    """Add this sub-command to the parser."""
    predict = commands.add_parser(
        'predict', help='predict with a fine-tuned model',
        description='Predict with a run of finetune. For one text, print '
        'a number, the answer, each label with its probability, or each word '
        'with its tag, as the task requires. With --file, print a line for '
        'each text: the number, the answer, or the likeliest label with its '
        'probability. For tags, print a line for each word, and an empty line '
        'after each text.')
    add = predict.add_argument
    add('folder', metavar='RUN', help='a run folder of finetune')
    add('text', nargs='?', help="for example 'a fine film'; the question, if "
        'the task is to find answers')
    add('--pair', metavar='TEXT', help='the second text of a pair; the text '
        'to search, if the task is to find answers')
    add_texts(add, 'predict for each line of a file; a tab separates the '
              'texts of a pair; a .csv has the columns of the training data')
    add('--top', type=at_least(1), metavar='N', help='the N likeliest labels '
        '(default: all for one text, one with --file)')
    add('--data', metavar='DIR', help='for a run of a GLUE task: predict '
        'its test part, and write the submission file, for example '
        'MNLI-m.tsv, into the folder --out')
    add('--out', metavar='FILE', help='the output file for predictions '
        'of --file, which are then not printed')
    add_force(add)
    add_devices(add)
    add_precision(add)
    add_json(add, 'the lines that --out x.jsonl would get; for one text, or '
             'with --top, also the probabilities of labels; with --data, one '
             'line with the names of the files')
    predict.set_defaults(run=run, check=check_folders,
                         needs='d2lbert.finetuning.prediction')


def run(args):
    """Print or write the predictions; returns the exit status."""
    from d2lbert.finetuning.prediction import write_predictions
    if args.data is not None:
        _write_submission(args)
    else:
        write_predictions(args.folder, args.text, args.pair, args.file,
                          args.out, args.devices, args.force, args.skip_empty,
                          args.text_field, args.top, args.precision,
                          print_json if args.json else None)
    return 0


def _write_submission(args):
    from d2lbert.finetuning.prediction import write_submission
    has_other_flag = args.skip_empty or any(value is not None for value in (
        args.text, args.file, args.pair, args.text_field, args.top))
    if args.out is None or has_other_flag:
        raise UsageError('--data needs --out FOLDER, and takes no text, '
                         '--file, --pair, --text-field, --skip-empty or '
                         '--top: it predicts the test part of the task')
    paths = write_submission(args.folder, args.data, args.out, args.devices,
                             args.force, args.precision)
    if args.json:
        print_json(dict(files=list(map(str, paths))))
    else:
        for path in paths:
            print(f'wrote {path}')
