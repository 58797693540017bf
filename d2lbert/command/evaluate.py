"""Run `d2lbert evaluate`: print the metrics of a run on held-out text."""
from d2lbert.command.flags import (
    add_devices,
    add_json,
    add_precision,
    check_folders,
    print_json,
)
from d2lbert.machine.arguments import UsageError


def add(commands):
    """Add this sub-command to the parser."""
    evaluate = commands.add_parser(
        'evaluate', help='print metrics of a run on held-out text',
        description='Evaluate a run of pretrain on the held-out part of its '
        'corpus or on other files, and a run of finetune on the development '
        'part of its task.')
    evaluate.add_argument('folder', metavar='RUN', help='a run folder')
    evaluate.add_argument('--corpus', nargs='+', metavar='FILE',
                          help='text files to evaluate on, read with the '
                          "run's vocabulary")
    evaluate.add_argument('--text-field', metavar='NAME', help='the field '
                          'of JSON lines that holds the text of --corpus')
    evaluate.add_argument('--data', metavar='DIR',
                          help='for a run of finetune: a folder with other '
                          'files of its task, or a file')
    add_devices(evaluate.add_argument)
    add_precision(evaluate.add_argument)
    add_json(evaluate.add_argument, 'an object with the metrics; for a run '
             'of finetune, a line for its task and each extra test')
    evaluate.set_defaults(run=run, check=check_folders,
                          needs='d2lbert.training.evaluation')


def run(args):
    """Print the metrics; returns the exit status."""
    from d2lbert.training.evaluation import evaluate_run
    from d2lbert.training.saved_runs import is_finetuned
    if is_finetuned(args.folder):
        _evaluate_finetuned(args)
        return 0
    if args.data is not None:
        raise UsageError(f'{args.folder} is not a run of finetune: name '
                         'text files with --corpus, not with --data')
    if args.text_field is not None and args.corpus is None:
        raise UsageError('--text-field is for the files of --corpus: name '
                         'them, or leave --text-field out')
    metrics = evaluate_run(args.folder, args.corpus, args.devices,
                           args.text_field, args.precision)
    if args.json:
        print_json(metrics._asdict())
    else:
        _print_metrics(metrics)
    return 0


def _evaluate_finetuned(args):
    from d2lbert.finetuning.prediction import evaluations
    if args.corpus is not None:
        raise UsageError(f'{args.folder} is a run of finetune: name '
                         'other files with --data, not with --corpus')
    if args.text_field is not None:
        raise UsageError(f'{args.folder} is a run of finetune: leave '
                         '--text-field out, which is for --corpus')
    results = evaluations(args.folder, args.data, args.devices,
                          precision=args.precision)
    # Extra tests, such as the mismatched part of MNLI, follow the task
    for k, (name, metrics) in enumerate(results):
        if args.json:
            print_json(dict(task=name, **metrics._asdict()))
        else:
            _print_metrics(metrics, f'{name} ' if k else '')


def _print_metrics(metrics, prefix=''):
    for name, value in metrics._asdict().items():
        print(f'{prefix}{name} {value:.4f}')
