"""Run `d2lbert export` and `d2lbert import`."""
from d2lbert.command.flags import check_folders


def add(commands):
    """Add these sub-commands to the parser."""
    export = commands.add_parser(
        'export', help='write a run as a checkpoint for other libraries',
        description='Write the model of a run as a folder with config.json, '
        'model.safetensors and the files of its tokenizer. In the library '
        'transformers, AutoTokenizer loads the tokenizer, and '
        'BertForPreTraining loads a BERT. For a relative of BERT use the '
        'class of its family, and for a run of finetune the class for its '
        'task. The format requires learnt positions and a LayerNorm after '
        'the embeddings.')
    export.add_argument('folder', metavar='RUN', help='a run folder or, with '
                        '--precision int8, the folder of a pretrained model')
    export.add_argument('out', metavar='FOLDER', help='the folder to make')
    export.add_argument('--precision', choices=('fp32', 'int8'),
                        default='fp32', help='store weights as float32, or '
                        'as 8-bit integers: the file has about a quarter of '
                        'the size, and only d2lbert loads it (default: fp32)')
    export.set_defaults(run=run, check=check_folders,
                        needs='d2lbert.training.load')
    import_parser = commands.add_parser(
        'import', help='write a pretrained model as a run',
        description='Read a folder with config.json, model.safetensors and '
        'a tokenizer, and write its model as a run folder, with the weights '
        'in model.params. Heads that the folder lacks get random weights.')
    import_parser.add_argument('folder', metavar='FOLDER',
                               help='a folder of a pretrained model')
    import_parser.add_argument('out', metavar='RUN',
                               help='the run folder to make')
    import_parser.set_defaults(run=run, check=check_folders,
                               needs='d2lbert.training.load')


def run(args):
    """Export or import; returns the exit status."""
    from d2lbert.training.load import export_run, import_run
    if args.command == 'export':
        export_run(args.folder, args.out, args.precision)
    else:
        import_run(args.folder, args.out)
    return 0
