"""Flags shared by several commands, and types of flag values."""
import argparse


def at_least(least, kind=int):
    """An argparse type: a number that is at least `least`."""
    def number(text):
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(
                f'{text} must be at least {least}')
        return value
    number.__name__ = kind.__name__     # argparse names it in its errors
    return number


def add_texts(add, help, **options):
    """Add the flags for a file with a text on each line."""
    add('--file', metavar='FILE', help=f'{help}; - is standard input; in a '
        'folder, all files are read', **options)
    add('--text-field', metavar='NAME',
        help='the field of JSON lines that holds the text')
    add('--skip-empty', action='store_true',
        help='skip empty lines of --file, which are errors otherwise, '
        'and print their number')


def add_force(add):
    """Add --force, which lets a command replace a file."""
    add('--force', action='store_true', help='replace the file --out, if it '
        'exists; a file that the command reads is never replaced')


def add_choices(add, pools, what):
    """Add the flags that define a vector; what: the help of --pool."""
    add('--pool', choices=pools, help=what)
    add('--layer', type=int, default=-1, metavar='N',
        help='the block whose output to use; 0 is the embeddings, -1 the '
        'last block (default: -1)')
    add('--max-len', type=at_least(1), metavar='N',
        help='truncate texts to N tokens, including special tokens, and '
        'print how many were cut (default: the limit of the folder; a run '
        'raises an error for texts longer than its positions)')
    add('--windows', type=at_least(0), metavar='N',
        help='do not truncate longer texts, but encode them in windows '
        'that overlap by N tokens')


def choices(args):
    """The values of these flags except --pool, and of --precision."""
    return dict(layer=args.layer, max_len=args.max_len, windows=args.windows,
                precision=args.precision)


def add_precision(add):
    """Add --precision, the number format of matrix products."""
    add('--precision', choices=('fp32', 'bf16', 'int8'),
        help='number format of matrix products: float32, bfloat16, or 8-bit '
        'integers. int8 is the fastest; its results differ a little from '
        'fp32, and are the same on every CPU (default: int8 for a folder of '
        'export --precision int8, else fp32)')
