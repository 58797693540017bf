"""`d2lbert export` and `d2lbert import`: convert runs to and from folders."""
from d2lbert.command.flags import check_folders


def add(commands):
    """Add these sub-commands to the parser."""
    export = commands.add_parser(
        'export', help='write a run as a checkpoint for other libraries',
        description='Write the model of a run as a folder of config.json, '
        "model.safetensors and its tokenizer. transformers' "
        'BertForPreTraining and AutoTokenizer load it; a run of finetune is '
        'loaded by the class for its task. The format requires learnt '
        'positions and a LayerNorm after the embeddings.')
    export.add_argument('folder', metavar='RUN', help='a run folder; with '
                        '--precision int8 also a checkpoint folder')
    export.add_argument('out', metavar='FOLDER', help='the folder to make')
    export.add_argument('--precision', choices=('fp32', 'int8'),
                        default='fp32', help='the numbers that weights are '
                        'stored as: float32, or whole numbers of eight bits, '
                        'a quarter of the size, which d2lbert alone loads '
                        '(default: fp32)')
    export.set_defaults(run=run, check=check_folders,
                        needs='d2lbert.training.load')
    back = commands.add_parser(
        'import', help='write a pretrained model as a run',
        description='Write the model of a folder of config.json, '
        'model.safetensors and a tokenizer as a run folder, with the '
        'weights in model.params. Heads that the folder lacks get '
        'random weights.')
    back.add_argument('folder', metavar='FOLDER',
                      help='a folder of a pretrained model')
    back.add_argument('out', metavar='RUN', help='the run folder to make')
    back.set_defaults(run=run, check=check_folders,
                      needs='d2lbert.training.load')


def run(args):
    """Write the folder; returns the exit status."""
    if args.command == 'export':
        from d2lbert.training.load import export_run
        export_run(args.folder, args.out, args.precision)
    else:
        from d2lbert.training.load import import_run
        import_run(args.folder, args.out)
    return 0
