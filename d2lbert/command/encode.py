"""Define the flags of `d2lbert encode`; vectors.py encodes the texts."""
from d2lbert.command.flags import (
    add_device,
    add_encoding_flags,
    add_force,
    add_json,
    add_precision,
    add_texts,
    check_folders,
    encoding_options,
)


def add(commands):
    """Add this sub-command to the parser."""
    encode = commands.add_parser(
        'encode', help='print or write the vectors of texts',
        description='Encode a text, or each line of a file. By default, a '
        'pretrained model gives one vector for each text, with the pooling '
        'that its folder stores, or else the mean. A run gives one vector for '
        'each token, including <cls> and <sep>, or one for each text with '
        '--file and --out. --pool changes this. If the tokens of a run are '
        'whole words, texts are lower-cased and split as its training text '
        'was. Each printed line has the vector of a text, or a token and its '
        'vector. With --file, an empty line follows the tokens of each text.')
    add = encode.add_argument
    add('folder', metavar='FOLDER|RUN',
        help='the folder of a pretrained model, or a run folder')
    add('text', nargs='?', help="for example 'a crane is flying'")
    add('--pair', metavar='TEXT',
        help='a second text, encoded together with the first')
    add_texts(add, 'encode each line of a file instead of one text; results '
              'are written line by line, in constant memory')
    add('--out', metavar='FILE', help='write the vectors as float32 instead '
        'of printing them: (N, H) for N texts, (T, H) for the T tokens of '
        'one text; the extension selects the format: .npy, .npz, .csv, .tsv, '
        '.jsonl or .parquet, which needs pyarrow')
    add_force(add)
    add_encoding_flags(
        add, ('own', 'cls', 'mean', 'none'),
        'one vector for a text: pooled as the folder defines (own), the '
        'vector of the first token (cls), or the mean of all tokens, special '
        'tokens included (mean); or one for each token (none)')
    add_precision(add)
    add_device(add)
    add_json(add, 'a line for each text, with its vector, or its tokens and '
             'their vectors; with --out, one line about the file')
    encode.set_defaults(run=run, check=check_folders,
                        needs='d2lbert.command.vectors')


def run(args):
    """Print or write the vectors; returns the exit status."""
    from d2lbert.command.vectors import encode
    encode(args.folder, args.text, args.pair, args.file, args.pool, args.out,
           args.force, args.text_field, args.skip_empty, args.json,
           **encoding_options(args))
    return 0
