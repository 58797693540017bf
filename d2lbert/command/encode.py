"""`d2lbert encode`: its flags; `vectors` does the work."""


def add(commands):
    """Add this sub-command to those of the parser."""
    encode = commands.add_parser(
        'encode', help='print or write the vectors of texts',
        description='Encode a text, or each line of a file, with a trained '
        'model: one vector for <cls>, each token and <sep>, or one for the '
        'whole text with --pool. A text is lower-cased and split at white '
        'space, as the training text was. What is printed is a line for '
        'each vector, behind its token; with --file an empty line ends each '
        'text.')
    add = encode.add_argument
    add('folder', metavar='RUN', help='a run folder')
    add('text', nargs='?', help="for example 'a crane is flying'")
    add('--pair', metavar='TEXT',
        help='a second text, encoded together with the first')
    add('--file', metavar='FILE',
        help='encode each line of a file, - for standard input, instead of '
        'one text; results come as the lines do, in constant memory')
    add('--pool', choices=('cls', 'mean'), help='one vector for a text: that '
        'of <cls>, or the mean of all its vectors, with <cls> and <sep>')
    add('--out', metavar='FILE.npy',
        help='write the vectors as float32 instead of printing them: (T, H) '
        'of one text, (N, H) of N texts with --pool')
    encode.set_defaults(run=run, needs='d2lbert.command.vectors')


def run(args):
    """Print or write the vectors; returns the exit status."""
    from d2lbert.command.vectors import encode
    encode(args.folder, args.text, args.pair, args.file, args.pool, args.out)
    return 0
