"""Run `d2lbert senses`: measure how well a model separates word senses."""
from d2lbert.command.flags import (
    add_device,
    add_json,
    add_precision,
    check_folders,
    device_of,
    print_json,
)


def add(commands):
    """Add this sub-command to the parser."""
    parser = commands.add_parser(
        'senses', help='measure how well a model separates word senses',
        description='Compare the vectors of words with two senses in the '
        'sentences of the sample corpus. For each word and each layer of a '
        'model, print the fraction of occurrences whose most similar other '
        'occurrence has the same sense. Layer 0 is the embeddings; the column '
        'chance has the fraction of the more frequent sense. For a run with '
        'checkpoints, also print the fractions for each checkpoint; pretrain '
        '--save-every N --keep 0 keeps all checkpoints.')
    add = parser.add_argument
    add('folders', nargs='+', metavar='RUN|FOLDER', help='the folder of a run '
        'of pretrain or finetune, or of a pretrained model; several '
        'models share one figure --out')
    add('--word', dest='words', action='append', metavar='WORD', help='one '
        'of the 32 words with annotated senses, for example crane; repeat '
        '--word for several (default: all)')
    add('--out', metavar='FILE.png', help='a figure to draw: fractions '
        'by layer, and by step of the checkpoints')
    add('--force', action='store_true', help='replace the figure, if there '
        'is one')
    add_precision(add)
    add_device(add)
    add_json(add, 'a line for each model, with the same numbers')
    parser.set_defaults(run=run, check=check_folders,
                        needs='d2lbert.pictures.senses')


def run(args):
    """Print the fractions and draw the figure; returns the exit status."""
    from d2lbert.pictures.senses import (
        as_dict,
        plot_reports,
        sense_report,
        table,
    )
    if args.out is not None:
        from d2lbert.pictures.figures import check_figure, save_figure
        check_figure(args.out, args.force, args.folders)
    reports = []
    for k, folder in enumerate(args.folders):
        report = sense_report(folder, args.words, args.precision,
                              device_of(args.devices))
        reports.append(report)
        if args.json:
            print_json(as_dict(report))
            continue
        if len(args.folders) > 1:
            print(f'\n{report.name}' if k else report.name)
        print('\n'.join(table(report)), flush=True)
    if args.out is not None:
        save_figure(plot_reports(reports), args.out, args.force)
    return 0
