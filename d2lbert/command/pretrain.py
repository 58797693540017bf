"""Run `d2lbert pretrain`, which has a flag for each setting of pretraining.

finetune.py and launch.py also use functions of this module.
"""
import argparse
import contextlib
import csv
import sys
from pathlib import Path

from d2lbert.command.flags import RenamedFlag, add_json, print_json
from d2lbert.machine.arguments import UsageError, usage_errors
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

#: Flags of `pretrain` and `finetune` for the devices and the run folder. A run
#: does not store them as its settings.
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
    """Add a flag for each setting to a parser, and --json.

    groups: {title in the help text: `Setting`s}; most_used: names of settings
    to list in a group of their own, before all others.
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
    # Move argparse's group of flags, index 1, to the end: it has -h, and gets
    # --json
    parser._action_groups.append(parser._action_groups.pop(1))
    add_json(parser.add_argument, 'one object, at the end, with the run '
             'folder and its last metrics; everything else goes to standard '
             'error')


def given_settings(args):
    """Return the given settings and RUN_FLAGS, {name: value}."""
    return {name: value for name, value in vars(args).items()
            if name not in NOT_SETTINGS}


def _flag_and_options(setting):
    """Return (name of the flag, keywords of `add_argument`) for a setting."""
    default = described_default(setting)
    text = setting.help + (f' ({default})' if default else '')
    # Without the flag, `args` gets no attribute, and `pretrain` or `finetune`
    # sets the default
    options = dict(default=argparse.SUPPRESS, help=text.replace('%', '%%'))
    if setting.kind is bool:
        options['action'] = 'store_true'
    else:
        options.update(type=str if setting.kind == PATHS else setting.kind,
                       metavar=setting.metavar,
                       choices=setting.choices or None)
        if setting.several:
            options['nargs'] = '+'
    return '--' + setting.name.replace('_', '-'), options


def check_flags(args):
    """Raise an error if a setting is invalid or names a missing file.

    For a resumed run, only the checks of `check_settings` are made. cli.py
    calls this function before it imports MXNet and before `run`.
    """
    settings = given_settings(args)
    check_settings(settings, complete)
    if 'resume' not in settings:
        # Without RUN_FLAGS
        values = {name: settings[name] for name in SETTINGS
                  if name in settings}
        check_files(SETTINGS, values, NAMED_CORPORA)


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


def check_settings(settings, validate):
    """Raise UsageError if settings are invalid, without reading any file.

    settings: {name: value}; validate: a function that gets the settings of a
    new run and raises an error if one is invalid. A resumed run checks its
    settings when it reads its folder. For such a run, this function raises an
    error for --out and --force only.
    """
    if settings.get('resume') is None:
        # Settings that a run does not store; only finetune has `seeds`
        not_stored = {setting.name for setting in RUN_FLAGS} | {'seeds'}
        with usage_errors():    # a ValueError becomes a UsageError, status 2
            validate({name: value for name, value in settings.items()
                      if name not in not_stored})
    elif 'out' in settings or settings.get('force'):
        raise UsageError('a resumed run stays in its folder: give neither '
                         '--out nor --force with --resume')


def check_devices_and_out(settings):
    """Raise ValueError if the devices or the run folder cannot be used."""
    from d2lbert.devices import parse_devices
    from d2lbert.machine import workers
    from d2lbert.training.run_folder import check_free
    parse_devices(settings.get('devices', 'auto'))
    # Of several workers, only worker 0 writes the run folder
    if settings.get('out') is not None and workers.rank() == 0:
        check_free(settings['out'], settings.get('force', False))


def train_and_report(train, settings, summarize=None):
    """Call train(**settings), print the run folder, return the exit status.

    summarize: None or, for --json, a function that gets the run folder and
    returns a dictionary. With it, standard output gets only a line of JSON,
    with this dictionary and the path of the folder.
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
    """Return {column: last number in it} from the losses.csv of a run."""
    values = {}
    with open(folder / 'losses.csv', newline='', encoding='utf-8') as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value:   # held-out columns are empty between evaluations
                    values[name] = float(value)
    return dict(values, step=int(values['step']))
