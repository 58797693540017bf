"""Run `d2lbert pretrain`, which has a flag for each setting of pretraining."""
import argparse
import contextlib
import csv
import sys
from pathlib import Path

from d2lbert.command.flags import RenamedFlag, add_json, print_json
from d2lbert.machine.arguments import UsageError, flag_of, usage_errors
from d2lbert.machine.terminal import note
from d2lbert.objectives.setting_rules import NAMED_CORPORA
from d2lbert.training.settings import (
    GROUPS,
    PATHS,
    SETTINGS,
    Setting,
    check_files,
    complete,
    described_default,
)

#: Flags of `pretrain` and `finetune` that a run does not store as settings.
RUN_FLAGS = (
    Setting('devices', str, 'auto', 'auto (all usable GPUs, else the CPU), '
            'cpu, cpu:2 (the CPU as two devices), gpu or gpu:0,1', 'NAME'),
    Setting('out', str, None, 'run folder (runs/<date-time>)', 'DIR'),
    Setting('force', bool, False, 'move the run folder to DIR.old if it '
            'exists'),
    Setting('resume', str, None, 'continue a run: its folder, or one of its '
            'checkpoints', 'RUN'),
)

#: The settings in the first group of the help text, 'most used'.
MOST_USED = ('corpus', 'tokenizer', 'recipe', 'objective', 'num_steps',
             'minutes', 'batch_size', 'lr', 'max_len', 'num_hiddens',
             'num_layers', 'eval_every', 'seed', 'out', 'resume')

#: Attributes of the parsed arguments that are neither settings nor RUN_FLAGS.
NOT_SETTINGS = ('command', 'run', 'check', 'needs', 'quiet', 'json',
                'notices')


def add(commands):
    """Add this sub-command to the parser."""
    pretrain = commands.add_parser(
        'pretrain', help='train a BERT and write a run folder',
        usage='d2lbert pretrain [FLAG ...]',
        description='Train a BERT on a text. Without flags this is the '
        'run of the chapter on WikiText-2. WikiText-2 is fetched if it is '
        'not on this machine; without a network, the sample corpus of '
        'd2lbert is used instead. Defaults are in parentheses: first those '
        'of the chapter, then those of --recipe learn if they differ.')
    pretrain.set_defaults(run=run, check=check_flags,
                          needs='d2lbert.training.pretraining')
    add_flags(pretrain, {**GROUPS, 'the run': (*GROUPS['the run'],
                                               *RUN_FLAGS)}, MOST_USED)


def add_flags(parser, groups, most_used):
    """Add a flag for each setting, and --json.

    groups: {title in the help text: `Setting`s}. The help text begins with the
    settings that `most_used` names.
    """
    by_name = {setting.name: setting
               for settings in groups.values() for setting in settings}
    help_groups = {'most used': [by_name[name] for name in most_used]}
    for title, settings in groups.items():
        help_groups[title] = [setting for setting in settings
                              if setting.name not in most_used]
    for title, settings in help_groups.items():
        group = parser.add_argument_group(title)
        for setting in settings:
            name, options = _flag_and_options(setting)
            group.add_argument(name, **options)
            # nargs=0: the only setting with an earlier name takes no value
            if setting.earlier:
                group.add_argument(f'--{setting.earlier}', action=RenamedFlag,
                                   current=name, nargs=0)
    # Move argparse's own group (index 1: -h, and below --json) to the end
    parser._action_groups.append(parser._action_groups.pop(1))
    add_json(parser.add_argument, 'one object, at the end, with the run '
             'folder and its last metrics; everything else goes to standard '
             'error')


def given_settings(args):
    """Return {name: value} of the given settings and RUN_FLAGS."""
    return {name: value for name, value in vars(args).items()
            if name not in NOT_SETTINGS}


def _flag_and_options(setting):
    """Return (flag, keywords of `add_argument`) for a setting."""
    default = described_default(setting)
    text = setting.help + (f' ({default})' if default else '')
    # Without the flag, no attribute: defaults may depend on other settings
    options = dict(default=argparse.SUPPRESS, help=text.replace('%', '%%'))
    if setting.kind is bool:
        options['action'] = 'store_true'
    else:
        options.update(type=str if setting.kind == PATHS else setting.kind,
                       metavar=setting.metavar,
                       choices=setting.choices or None)
        if setting.several:
            options['nargs'] = '+'
    return flag_of(setting.name), options


def check_flags(args):
    """Raise an error if a setting is invalid or names a missing file."""
    check_settings(given_settings(args), SETTINGS, complete, NAMED_CORPORA)


def run(args):
    """Train; returns the exit status."""
    from d2lbert import hub
    from d2lbert.training.pretraining import pretrain
    settings = given_settings(args)
    check_devices_and_out(settings)
    if 'corpus' not in settings and 'resume' not in settings:
        settings['corpus'] = 'wikitext-2'
        try:
            # Fetch the text if it is missing; `pretrain` then finds it on disk
            hub.wikitext2_dir(settings.get('data_dir'))
        except hub.HubError as error:
            note(f'{error}\nTraining on the small sample corpus instead.')
            # The run stores why it was not trained on WikiText-2
            settings.update(corpus='sample', wanted=dict(
                corpus='wikitext-2', reason=str(error)))
    return train_and_report(pretrain, settings,
                            last_values if args.json else None)


def check_settings(values, settings, validate, known_names):
    """Raise UsageError for an invalid value, ValueError for a missing file.

    values: {name: value} of the flags. settings, known_names: as for
    `check_files`. validate: `complete` of `pretrain` or `finetune`.
    """
    if 'resume' in values:
        # The other settings are checked when the run folder is read
        if 'out' in values or 'force' in values:
            raise UsageError('a resumed run stays in its folder: give neither '
                             '--out nor --force with --resume')
        return
    stored = {name: values[name] for name in settings if name in values}
    with usage_errors():
        validate(stored)
    check_files(settings, stored, known_names)


def check_devices_and_out(settings):
    """Raise ValueError if the devices or the run folder cannot be used."""
    from d2lbert.devices import parse_devices
    from d2lbert.machine import workers
    from d2lbert.training.run_folder import check_out_folder
    parse_devices(settings.get('devices', 'auto'))
    # Of several workers, only worker 0 writes the run folder
    if settings.get('out') is not None and workers.rank() == 0:
        check_out_folder(settings['out'], settings.get('force', False))


def train_and_report(train, settings, summarize=None):
    """Call train(**settings), print the run folder, return the exit status.

    summarize: None without --json. With --json, summarize(folder) returns
    entries of the printed object, and only this goes to standard output.
    """
    from d2lbert.machine import workers
    from d2lbert.training.interrupts import Stopped
    try:
        with contextlib.redirect_stdout(
                sys.stderr if summarize else sys.stdout):
            folder = train(**settings)
    except Stopped as stopped:
        if str(stopped):    # of several workers, only one has a message
            print(f'\n{stopped}', file=sys.stderr)
        return 128 + stopped.signal
    if workers.rank() == 0:
        note(f'run folder {folder}')
        if summarize:
            print_json(dict(run=str(folder), **summarize(Path(folder))))
    return 0


def last_values(folder):
    """Return {column: its last number} of a run's losses.csv."""
    values = {}
    with open(folder / 'losses.csv', newline='', encoding='utf-8') as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value:   # held-out columns are empty between evaluations
                    values[name] = float(value)
    return dict(values, step=int(values['step']))
