"""`d2lbert similar`: its flags; vectors.py does the work."""
from d2lbert.command.flags import (
    add_choices,
    add_device,
    add_json,
    add_precision,
    add_texts,
    at_least,
    check_folders,
    choices,
)


def add(commands):
    """Add this sub-command to the parser."""
    similar = commands.add_parser(
        'similar', help='find the texts of a file that are nearest to a query',
        description='Print the lines of a file that are nearest to a query, '
        'each after its cosine similarity, the nearest first.')
    add = similar.add_argument
    add('folder', metavar='FOLDER|RUN',
        help='the folder of a pretrained model, or a run folder')
    add('query', help="for example 'a bird in the sky'")
    add_texts(add, 'the texts, one on each line', required=True)
    add('--vectors', metavar='FILE.npy', help='take the vectors of the texts '
        'from this file, which an earlier call of encode or similar wrote; '
        'if it does not exist, write them there')
    add('--top', type=at_least(1), default=5, metavar='N',
        help='how many lines (default: 5)')
    add_choices(add, ('own', 'cls', 'mean'),
                'the pooling of token vectors: that of the folder, else the '
                'mean (own, the default), the first token (cls), or the mean')
    add_precision(add)
    add_device(add)
    add_json(add, 'a line for each text that is found, with its similarity '
             'and its row among the texts, from 0')
    similar.set_defaults(run=run, check=check_folders,
                         needs='d2lbert.command.vectors')


def run(args):
    """Print the lines; returns the exit status."""
    from d2lbert.command.vectors import similar
    similar(args.folder, args.query, args.file, args.top, args.pool,
            args.vectors, args.text_field, args.skip_empty, args.json,
            **choices(args))
    return 0
