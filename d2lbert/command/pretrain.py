"""`d2lbert pretrain`: its flags come from the settings of pretraining."""
import argparse
import contextlib
import csv
import sys
from pathlib import Path

from d2lbert.command.flags import Renamed, add_json, print_json
from d2lbert.machine.arguments import UsageError, usage
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

#: Flags of `pretrain` that are not settings of the run: where and how to
#: run it.
CARRYING_OUT = (
    Setting('devices', str, 'auto', 'auto (all usable GPUs, else the CPU), '
            'cpu, cpu:2 (the CPU as two devices), gpu or gpu:0,1', 'NAME'),
    Setting('out', str, None, 'run folder (runs/<date-time>)', 'DIR'),
    Setting('force', bool, False, 'move the run folder to DIR.old if it '
            'exists'),
    Setting('resume', str, None, 'continue the run in this folder, or one '
            'of its checkpoints', 'RUN'),
)

#: The settings that come first in the help text.
FIRST = ('corpus', 'tokenizer', 'recipe', 'objective', 'num_steps',
         'minutes', 'batch_size', 'lr', 'max_len', 'num_hiddens',
         'num_layers', 'eval_every', 'seed', 'out', 'resume')

#: Arguments of the parser that are not settings.
OTHERS = ('command', 'run', 'check', 'needs', 'quiet', 'json',
          'notices')


def add(commands):
    """Add this sub-command to the parser."""
    pretrain = commands.add_parser(
        'pretrain', help='train a BERT and leave a run folder',
        usage='d2lbert pretrain [FLAG ...]',
        description='Train a BERT on a text. Without flags this is the '
        'run of the chapter on WikiText-2. WikiText-2 is fetched if it is '
        'not on this machine; without a network, the sample corpus of '
        'd2lbert is used instead. Defaults are in parentheses: first those '
        'of the chapter, then those of --recipe learn if they differ.')
    pretrain.set_defaults(run=run, check=check_flags,
                          needs='d2lbert.training.pretraining')
    add_flags(pretrain, {**GROUPS, 'the run': (*GROUPS['the run'],
                                               *CARRYING_OUT)}, FIRST)


def add_flags(parser, groups, first):
    """Add flags for settings to a parser, and --json.

    groups: {title: settings}; first: names of settings for a group at the
    top.
    """
    found = {setting.name: setting for settings in groups.values()
             for setting in settings}
    groups = {'most used': [found[name] for name in first], **{
        title: [setting for setting in settings if setting.name not in first]
        for title, settings in groups.items()}}
    for title, settings in groups.items():
        group = parser.add_argument_group(title)
        for setting in settings:
            name, options = _flag(setting)
            group.add_argument(name, **options)
            if setting.earlier:     # only switches have been renamed
                group.add_argument(f'--{setting.earlier}', action=Renamed,
                                   new=name, nargs=0)
    # argparse's own group, with -h and --json, comes last
    parser._action_groups.append(parser._action_groups.pop(1))
    add_json(parser.add_argument, 'one object, at the end, with the run '
             'folder and its last metrics; everything else goes to standard '
             'error')


def given(args):
    """The settings among the arguments, {name: value}."""
    return {name: value for name, value in vars(args).items()
            if name not in OTHERS}


def _flag(setting):
    """(name, options) of a setting's flag for argparse."""
    note = described_default(setting)
    text = setting.help + (f' ({note})' if note else '')
    # Settings that are not given are absent, so that the recipe decides
    options = dict(default=argparse.SUPPRESS, help=text.replace('%', '%%'))
    if setting.kind is bool:
        options['action'] = 'store_true'
    else:
        kind = str if setting.kind == PATHS else setting.kind
        options.update(type=kind, metavar=setting.metavar,
                       choices=setting.choices or None)
        if setting.several:
            options['nargs'] = '+'
    return '--' + setting.name.replace('_', '-'), options


def check_flags(args):
    """Raise for settings that are invalid, and for files that are missing.

    `cli` calls this before anything is loaded, downloaded or read.
    """
    settings = given(args)
    check(settings, complete)
    if 'resume' not in settings:
        check_files(SETTINGS, {name: settings[name] for name in SETTINGS
                               if name in settings}, NAMED_CORPORA)


def run(args):
    """Train; returns the exit status."""
    from d2lbert import hub
    from d2lbert.training.pretraining import pretrain
    settings = given(args)
    check_place(settings)
    if 'corpus' not in settings and 'resume' not in settings:
        settings['corpus'] = 'wikitext-2'
        try:
            hub.wikitext2_dir(settings.get('data_dir'))
        except hub.HubError as error:
            note(f'{error}\nTraining on the small sample corpus instead.')
            settings.update(corpus='sample', wanted=dict(
                corpus='wikitext-2', reason=str(error)))
    return carried_out(pretrain, settings, args.json and last_row)


def check(settings, complete):
    """Raise UsageError for settings that are invalid whatever the files hold.

    complete: the function that checks them. A resumed run checks the settings
    in its folder later.
    """
    if settings.get('resume') is None:
        others = {setting.name for setting in CARRYING_OUT} | {'seeds'}
        with usage():
            complete({name: value for name, value in settings.items()
                      if name not in others})
    elif 'out' in settings or settings.get('force'):
        raise UsageError('a resumed run stays in its folder: give neither '
                         '--out nor --force with --resume')


def check_place(settings):
    """Raise ValueError if --devices or --out of a run cannot be used."""
    from d2lbert.devices import parse_devices
    from d2lbert.machine import workers
    from d2lbert.training.run_folder import check_free
    parse_devices(settings.get('devices', 'auto'))
    if settings.get('out') is not None and workers.rank() == 0:
        check_free(settings['out'], settings.get('force', False))


def carried_out(train, settings, summary=None):
    """Call train(**settings), print the folder; returns the exit status.

    summary: a function of the run folder, which returns a dict. If given,
    standard output gets only this dict and the folder, as JSON.
    """
    from d2lbert.machine import workers
    from d2lbert.training.interrupts import Stopped
    try:
        with contextlib.redirect_stdout(
                sys.stderr if summary else sys.stdout):
            out = train(**settings)
    except Stopped as stopped:
        if str(stopped):        # only one worker has a message
            print(f'\n{stopped}', file=sys.stderr)
        return 128 + stopped.signal
    if workers.rank() == 0:
        note(f'run folder {out}')
        if summary:
            print_json(dict(run=str(out), **summary(Path(out))))
    return 0


def last_row(folder):
    """The last values in the columns of the losses.csv of a run, a dict."""
    found = {}
    with open(folder / 'losses.csv', newline='', encoding='utf-8') as file:
        for row in csv.DictReader(file):
            found.update((name, float(value))
                         for name, value in row.items() if value)
    return dict(found, step=int(found['step']))
