"""Define the argument parser of `d2lbert`, and flags of several sub-commands.

An argument `add` is the method `add_argument` of a sub-command's parser.
"""
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
    usage_errors,
)

#: Maximum columns of help texts and of pages of the manual.
MAX_WIDTH = 90

#: The last paragraph of each help text.
EXIT_STATUSES = ('exit status: 0, done; 1, not possible, with one line that '
                 'says why; 2, the command line is wrong; 128 + N, stopped by '
                 'signal N (130: Ctrl-C)')


class Formatter(argparse.HelpFormatter):
    """Format help texts in lines of at most `MAX_WIDTH` columns."""

    def __init__(self, prog, **options):
        # - 2, as in argparse
        width = min(MAX_WIDTH, shutil.get_terminal_size().columns - 2)
        super().__init__(prog, **{**options, 'width': width})


class Parser(argparse.ArgumentParser):
    """A parser that prints an error in one line and suggests a similar word.

    Abbreviated flags are errors: a flag that is added later could change the
    meaning of an abbreviation.
    """

    def __init__(self, **options):
        super().__init__(**{'allow_abbrev': False, 'epilog': EXIT_STATUSES,
                            'formatter_class': Formatter, **options})

    def error(self, message):
        self.exit(2, f'{self.prog}: {add_help_hint(message, self.prog)}\n')

    def parse_known_args(self, args=None, namespace=None):
        """Parse as argparse does, but make unknown arguments an error.

        argparse would leave this error to the main parser, whose help does not
        list the flags of a sub-command. Flags are checked before parsing:
        argparse skips unknown flags, and may then report another argument as
        missing.
        """
        args = sys.argv[1:] if args is None else list(args)
        for argument in self._arguments_before_command(args):
            self._reject_unknown_flag(argument)
        namespace, unassigned = super().parse_known_args(args, namespace)
        self._assign_positionals(namespace, unassigned)
        if unassigned:
            self._reject_unknown_flag(unassigned[0])
            self.error(f'{unassigned[0]} is one argument too many' + (
                '' if unassigned[0].startswith('-') else
                ': put a text of several words in quotes'))
        return namespace, unassigned

    def _reject_unknown_flag(self, argument):
        name = argument.partition('=')[0]
        if name.startswith('--') and name not in self._option_string_actions:
            self.error(f'there is no flag {name}' + did_you_mean(name, [
                flag for flag, action in self._option_string_actions.items()
                if action.help != argparse.SUPPRESS]))

    def _assign_positionals(self, namespace, unassigned):
        """Move words from `unassigned` to optional positional arguments.

        If a flag precedes an optional positional argument, argparse sets this
        argument to its default and leaves the user's words over.
        """
        if any(word.startswith('-') for word in unassigned):
            return      # an unknown flag: `parse_known_args` reports an error
        optional_positionals = [
            action for action in self._actions
            if not action.option_strings and action.nargs in ('?', '*')]
        for action in optional_positionals:
            # Without words, argparse sets the default or, for '*', []
            is_unset = getattr(namespace, action.dest) in (action.default, [])
            if unassigned and is_unset:
                takes_one_word = action.nargs == '?'
                num_words = 1 if takes_one_word else len(unassigned)
                words = unassigned[:num_words]
                del unassigned[:num_words]
                setattr(namespace, action.dest,
                        words[0] if takes_one_word else words)

    def _arguments_before_command(self, args):
        """Yield the arguments before '--' or before the parser's command.

        A command begins with the first word that is not a flag.
        """
        # PARSER: a sub-command. REMAINDER: the workers' command in `launch`
        takes_command = any(
            action.nargs in (argparse.PARSER, argparse.REMAINDER)
            for action in self._actions)
        for arg in args:
            begins_command = takes_command and not arg.startswith('-')
            if arg == '--' or begins_command:
                return
            yield arg

    def _check_value(self, action, value):
        """Raise an error, with a suggestion, if `action` rejects `value`."""
        if action.choices is None or value in action.choices:
            return
        suggestion = did_you_mean(value, action.choices)
        if action.nargs == argparse.PARSER:
            raise argparse.ArgumentError(
                None, f'there is no command {value}{suggestion}')
        raise argparse.ArgumentError(
            action, f'{value!r} is not {listed(action.choices)}{suggestion}')


class RenamedFlag(argparse.Action):
    """The argparse action of a flag's earlier name, which stays valid.

    current: the flag's name of today, for example '--overlap'. The action sets
    the value of that flag, and adds a line to `args.notices`.
    """

    def __init__(self, option_strings, dest, current, **options):
        # argparse has derived `dest` from the earlier name
        super().__init__(option_strings, current[2:].replace('-', '_'), **{
            'default': argparse.SUPPRESS, 'help': argparse.SUPPRESS,
            **options})
        self.current = current

    def __call__(self, parser, namespace, value, option_string=None):
        setattr(namespace, self.dest, True if self.nargs == 0 else value)
        namespace.notices = [*getattr(namespace, 'notices', ()),
                             f'{option_string} is now called {self.current}']


def add_help_hint(message, prog):
    """Append 'see PROG --help' to a message about a wrong command line."""
    # Shorten argparse's 'argument NAME: ' to 'NAME: '
    message = re.sub(r'^argument (.*?): ', r'\1: ', str(message))
    is_suggestion = message.endswith('?')
    return message + (f' See {prog} --help' if is_suggestion
                      else f'; see {prog} --help')


def at_least(minimum, number_type=int):
    """Return an argparse `type`, a function that parses numbers >= minimum."""
    def parse(text):
        value = number_type(text)
        if not value >= minimum:    # true also for NaN
            raise argparse.ArgumentTypeError(
                f'{text} must be at least {minimum}')
        return value
    # argparse prints this name in its error: invalid int value
    parse.__name__ = number_type.__name__
    return parse


def add_texts(add, file_help, **file_options):
    """Add --file, whose lines are texts, and the flags about these texts."""
    add('--file', metavar='FILE', help=f'{file_help}; - is standard input; of '
        'a folder, all files are read', **file_options)
    add('--text-field', metavar='NAME',
        help='the field of JSON lines that holds the text')
    add('--skip-empty', action='store_true',
        help='skip empty lines of --file, which are errors otherwise, '
        'and print how many')


def add_force(add):
    add('--force', action='store_true', help='replace the file --out, if it '
        'exists; a file that the command reads is never replaced')


def add_encoding_flags(add, poolings, pool_help):
    add('--pool', choices=poolings, help=pool_help)
    add('--layer', type=int, default=-1, metavar='N',
        help='the block whose output to use; 0 is the embeddings, -1 the '
        'last block (default: -1)')
    add('--max-len', type=at_least(1), metavar='N',
        help='truncate texts to N tokens, including special tokens, and '
        'print how many were cut (default: for a pretrained model, the limit '
        'that its folder stores; for a run, none, and a text with more '
        'tokens than positions is an error)')
    add('--overlap', type=at_least(0), metavar='N',
        help='do not truncate longer texts, but encode them in windows '
        'that overlap by N tokens')
    add('--windows', action=RenamedFlag, current='--overlap',
        type=at_least(0))


def encoding_options(args):
    """Return the keywords `options` of `encode` and `similar`, vectors.py."""
    return dict(layer=args.layer, max_len=args.max_len, overlap=args.overlap,
                precision=args.precision, devices=args.devices)


def add_precision(add):
    add('--precision', choices=('fp32', 'bf16', 'int8'),
        help='number format of matrix products: float32, bfloat16, or 8-bit '
        'integers. int8 is the fastest; its results differ a little from '
        'fp32, and are the same on every CPU (default: int8 for a folder '
        'that export --precision int8 wrote, else fp32)')


def add_device(add):
    """Add --devices to a command that computes on one device."""
    add('--devices', default='auto', metavar='NAME', help='where to compute: '
        'auto (a usable GPU, else the CPU), cpu, gpu or gpu:1 (default: '
        'auto)')


def add_devices(add):
    """Add --devices to a command that computes on several devices."""
    add('--devices', default='auto', metavar='NAME', help='where to compute: '
        'auto (all usable GPUs, else the CPU), cpu, cpu:2 (the CPU as two '
        'devices), gpu or gpu:0,1 (default: auto)')


def device_of(text):
    """Return the MXNet device that --devices names.

    'gpu' is the first GPU that MXNet can use; 'auto' is the same or, without
    such a GPU, the CPU. Raises ValueError if there is no such device, and
    UsageError if `text` names several devices, as 'gpu:0,1' and 'cpu:2' do.
    """
    from d2lbert.devices import parse_devices
    devices = parse_devices(text)
    # 'gpu' and 'auto' may give several devices, too, but name none
    if ':' in text and len(devices) > 1:
        raise UsageError(f'--devices {text} names {len(devices)} devices, and '
                         'this command computes on one: name one, for '
                         'example cpu or gpu:0')
    return devices[0]


def check_folders(args):
    """Raise UsageError for invalid --devices, ValueError without a folder."""
    if getattr(args, 'devices', None) is not None:
        with usage_errors():
            split_devices(args.devices)
    # `senses` has several folders
    for folder in getattr(args, 'folders', None) or [args.folder]:
        path = Path(folder)
        if not path.is_dir():
            siblings = []
            with contextlib.suppress(OSError):
                siblings = [sibling for sibling in path.parent.iterdir()
                            if sibling.is_dir()]
            raise ValueError(f'there is no folder {folder}: name the folder '
                             'of a run, or of a pretrained model on this '
                             'machine' + did_you_mean(folder, siblings))


def add_json(add, printed_objects):
    add('--json', action='store_true',
        help=f'print JSON for scripts: {printed_objects}')


def short_floats(vector):
    """Return float32 numbers as Python floats that print the same digits."""
    # float(x) of the float32 number 0.1 would print as 0.10000000149011612
    return [float(str(x)) for x in vector]


def print_json(value):
    """Print a value as one line of JSON, with NaN and infinity as null."""
    try:
        line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        line = json.dumps(_nonfinite_to_none(value), ensure_ascii=False)
    print(line, flush=True)


def _nonfinite_to_none(value):
    if isinstance(value, dict):
        return {name: _nonfinite_to_none(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nonfinite_to_none(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
