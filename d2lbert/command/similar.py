"""Define the flags of `d2lbert similar`; vectors.py finds the texts."""
from d2lbert.command.flags import (
    add_device,
    add_encoding_flags,
    add_json,
    add_precision,
    add_texts,
    at_least,
    check_folders,
    encoding_options,
)


def add(commands):
    """Add this sub-command to the parser."""
    parser = commands.add_parser(
        'similar', help='find the texts of a file that are nearest to a query',
        description='Print the lines of a file that are nearest to a query, '
        'each after its cosine similarity, the nearest first.')
    add = parser.add_argument
    add('folder', metavar='FOLDER|RUN',
        help='the folder of a pretrained model, or a run folder')
    add('query', help="for example 'a bird in the sky'")
    add_texts(add, 'the texts, one on each line', required=True)
    add('--vectors', metavar='FILE.npy', help='read the vectors of the texts '
        'from this file, which an earlier encode or similar wrote; if the '
        'file does not exist, write them to it')
    add('--top', type=at_least(1), default=5, metavar='N',
        help='number of texts to print (default: 5)')
    add_encoding_flags(
        add, ('own', 'cls', 'mean'),
        'how token vectors are pooled: as the folder stores, else the mean '
        '(own, the default), the first token (cls), or the mean (mean)')
    add_precision(add)
    add_device(add)
    add_json(add, 'a line for each text that is found, with its similarity '
             'and its index among the texts, from 0')
    parser.set_defaults(run=run, check=check_folders,
                        needs='d2lbert.command.vectors')


def run(args):
    """Print the nearest texts; returns the exit status."""
    from d2lbert.command.vectors import similar
    similar(args.folder, args.query, args.file, top=args.top, pool=args.pool,
            vectors_path=args.vectors, text_field=args.text_field,
            skip_empty=args.skip_empty, is_json=args.json,
            **encoding_options(args))
    return 0
