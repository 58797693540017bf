"""The parser of the command, flags shared by several commands, and types."""
import argparse
import contextlib
import json
import math
import re
import shutil
import sys
from pathlib import Path

from d2lbert.machine.arguments import (
    UsageError,
    did_you_mean,
    listed,
    split_devices,
    usage,
)

#: Maximum columns of a help text: longer lines are hard to read.
WIDTH = 90

STATUS = ('exit status: 0, done; 1, not possible, with one line that says '
          'why; 2, the command line is wrong; 128 + N, stopped by signal N '
          '(130: Ctrl-C)')


class Formatter(argparse.HelpFormatter):
    """Help texts of at most `WIDTH` columns."""

    def __init__(self, prog, **options):
        width = min(WIDTH, shutil.get_terminal_size().columns - 2)
        super().__init__(prog, **{**options, 'width': width})


class Parser(argparse.ArgumentParser):
    """A parser that prints an error in one line, with the nearest word.

    Abbreviations of flags are errors, since a new flag would change their
    meaning.
    """

    def __init__(self, **options):
        super().__init__(**{'allow_abbrev': False, 'epilog': STATUS,
                            'formatter_class': Formatter, **options})

    def error(self, message):
        """Print the message and how to get help; exit with status 2."""
        self.exit(2, f'{self.prog}: {with_hint(message, self.prog)}\n')

    def parse_known_args(self, args=None, namespace=None):
        """As argparse, but unknown arguments are errors of this parser.

        argparse would leave them to the main parser, whose help does not
        list the flags of a sub-command. Unknown flags are checked before all
        else: argparse skips them, and may then report another argument as
        missing.
        """
        args = sys.argv[1:] if args is None else list(args)
        for word in self._own_arguments(args):
            name = word.partition('=')[0]
            if name.startswith('--') and (
                    name not in self._option_string_actions):
                self.error(f'there is no flag {name}' + did_you_mean(name, [
                    flag for flag, action
                    in self._option_string_actions.items()
                    if action.help != argparse.SUPPRESS]))
        namespace, others = super().parse_known_args(args, namespace)
        self._take_late(namespace, others)
        if others:
            self.error(f'{others[0]} is one argument too many' + (
                '' if others[0].startswith('-') else
                ': put a text of several words in quotes'))
        return namespace, others

    def _take_late(self, namespace, others):
        """Assign the optional positional arguments that argparse left over.

        argparse gives such an argument its default if a flag separates it
        from the positional argument before it. others: unassigned words.
        """
        for action in self._actions:
            if (others and not action.option_strings
                    and action.nargs in ('?', '*')
                    and getattr(namespace, action.dest) in (
                        action.default, [])
                    and not any(word.startswith('-') for word in others)):
                taken = others[:1] if action.nargs == '?' else others[:]
                del others[:len(taken)]
                setattr(namespace, action.dest,
                        taken[0] if action.nargs == '?' else taken)

    def _own_arguments(self, args):
        """The arguments before '--' and before a sub-command."""
        has_command = any(action.nargs in (argparse.PARSER, argparse.REMAINDER)
                          for action in self._actions)
        for word in args:
            if word == '--' or has_command and not word.startswith('-'):
                return
            yield word

    def _check_value(self, action, value):
        if action.choices is None or value in action.choices:
            return
        hint = did_you_mean(value, action.choices)
        if action.nargs == argparse.PARSER:
            raise argparse.ArgumentError(
                None, f'there is no command {value}{hint}')
        raise argparse.ArgumentError(
            action, f'{value!r} is not {listed(action.choices)}{hint}')


class Renamed(argparse.Action):
    """An earlier name of a flag: it works, and a notice gives the new name.

    Help does not list it. new: the current name.
    """

    def __init__(self, option_strings, dest, new, **options):
        super().__init__(option_strings, new[2:].replace('-', '_'), **{
            'default': argparse.SUPPRESS, 'help': argparse.SUPPRESS,
            **options})
        self.new = new

    def __call__(self, parser, namespace, value, option_string=None):
        # A switch (nargs=0) has no value: set True
        setattr(namespace, self.dest, self.nargs == 0 or value)
        namespace.notices = [*getattr(namespace, 'notices', ()),
                             f'{option_string} is now called {self.new}']


def with_hint(message, prog):
    """A message about a wrong command line, with the command for help."""
    message = re.sub(r'^argument (.*?): ', r'\1: ', str(message))
    return message + (f' See {prog} --help' if message.endswith('?')
                      else f'; see {prog} --help')


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
    add('--overlap', type=at_least(0), metavar='N',
        help='do not truncate longer texts, but encode them in windows '
        'that overlap by N tokens')
    add('--windows', action=Renamed, new='--overlap', type=at_least(0))


def choices(args):
    """Values of the flags of `add_choices`, --precision and --devices.

    Without --pool, whose meaning depends on the folder.
    """
    return dict(layer=args.layer, max_len=args.max_len, overlap=args.overlap,
                precision=args.precision, devices=args.devices)


def add_precision(add):
    """Add --precision, the number format of matrix products."""
    add('--precision', choices=('fp32', 'bf16', 'int8'),
        help='number format of matrix products: float32, bfloat16, or 8-bit '
        'integers. int8 is the fastest; its results differ a little from '
        'fp32, and are the same on every CPU (default: int8 for a folder of '
        'export --precision int8, else fp32)')


def add_device(add):
    """Add --devices to a command that computes on one device."""
    add('--devices', default='auto', metavar='NAME', help='where to compute: '
        'auto (a usable GPU, else the CPU), cpu, gpu or gpu:1 (default: '
        'auto)')


def device_of(text):
    """The device of MXNet that --devices names; of auto or gpu, the first.

    Raises ValueError if there is no such device, or if the text lists several.
    """
    from d2lbert.devices import parse_devices
    found = parse_devices(text)
    if ':' in text and len(found) > 1:
        raise UsageError(f'--devices {text} names {len(found)} devices, and '
                         'this command computes on one: name one, as cpu or '
                         'gpu:0')
    return found[0]


def check_folders(args):
    """Raise ValueError if a model's folder is missing, or --devices wrong."""
    if getattr(args, 'devices', None) is not None:
        with usage():
            split_devices(args.devices)
    for folder in getattr(args, 'folders', None) or [args.folder]:
        path = Path(folder)
        if not path.is_dir():
            beside = []
            with contextlib.suppress(OSError):
                beside = [path.with_name(other.name)
                          for other in path.parent.iterdir()
                          if other.is_dir()]
            raise ValueError(f'there is no folder {folder}: name the folder '
                             'of a run, or of a pretrained model on this '
                             'machine' + did_you_mean(folder, beside))


def add_json(add, help):
    """Add --json; help: the objects that are printed."""
    add('--json', action='store_true', help=f'print JSON for scripts: {help}')


def rounded(vector):
    """float32 numbers as Python floats with the fewest digits."""
    return [float(str(x)) for x in vector]


def print_json(found):
    """Print an object as one line of JSON, with NaN and infinity as null."""
    try:
        line = json.dumps(found, ensure_ascii=False, allow_nan=False)
    except ValueError:
        line = json.dumps(_finite(found), ensure_ascii=False)
    print(line, flush=True)


def _finite(found):
    if isinstance(found, dict):
        return {name: _finite(value) for name, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [_finite(value) for value in found]
    if isinstance(found, float) and not math.isfinite(found):
        return None
    return found
