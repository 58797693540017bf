"""`d2lbert evaluate`: a run's figures on held-out text."""


def add(commands):
    """Add this sub-command to those of the parser."""
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
    evaluate.set_defaults(run=run, needs='d2lbert.training.evaluation')


def run(args):
    """Print the figures, a line each; returns the exit status."""
    from d2lbert.training.evaluation import evaluate_run
    figures = evaluate_run(args.folder, args.corpus, args.devices)
    for name, value in figures._asdict().items():
        print(f'{name} {value:.4f}')
    return 0
