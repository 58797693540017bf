"""`d2lbert pretrain`: its flags come from the settings of pretraining."""
import argparse
import sys

from d2lbert.machine.arguments import UsageError, usage
from d2lbert.machine.terminal import note
from d2lbert.training.settings import (
    GROUPS,
    PATHS,
    Setting,
    complete,
    described_default,
)

#: Flags of `pretrain` that are not settings of the run: where and how to
#: run it.
CARRYING_OUT = (
    Setting('devices', str, 'auto', 'auto (all usable GPUs, else the CPU), '
            'cpu, cpu:2 (two parts on the CPU), gpu or gpu:0,1', 'NAME'),
    Setting('out', str, None, 'run folder (runs/<date-time>)', 'DIR'),
    Setting('force', bool, False, 'move the run folder, if it exists, to '
            'DIR.old'),
    Setting('resume', str, None, 'go on with this run folder, or with one '
            'of its checkpoints', 'RUN'),
)


def add(commands):
    """Add this sub-command to the parser."""
    pretrain = commands.add_parser(
        'pretrain', help='train a BERT and leave a run folder',
        description='Train a BERT, on pairs of sentences unless --objective '
        "says otherwise. Without arguments this is the chapter's run on "
        'WikiText-2, which is fetched if it is not here; where it cannot be '
        'fetched, the sample corpus that comes with d2lbert stands in. Where '
        'a default has two values, the second is that of --recipe learn.')
    pretrain.set_defaults(run=run, needs='d2lbert.training.pretraining')
    add_flags(pretrain, [*GROUPS.items(), ('the run', CARRYING_OUT)])


def add_flags(parser, groups):
    """Add flags for settings to a parser; groups: (title, settings)."""
    for title, settings in groups:
        group = next((group for group in parser._action_groups
                      if group.title == title), None)
        group = group or parser.add_argument_group(title)
        for setting in settings:
            name, options = _flag(setting)
            group.add_argument(name, **options)


def given(args):
    """The settings among the arguments, {name: value}."""
    return {name: value for name, value in vars(args).items()
            if name not in ('command', 'run', 'needs', 'quiet')}


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
        options.update(type=kind, metavar=setting.metavar)
        if setting.several:
            options['nargs'] = '+'
    return '--' + setting.name.replace('_', '-'), options


def run(args):
    """Train; returns the exit status."""
    from d2lbert import hub
    from d2lbert.training.pretraining import pretrain
    settings = given(args)
    check(settings, complete)
    if 'corpus' not in settings and 'resume' not in settings:
        settings['corpus'] = 'wikitext-2'
        try:
            hub.wikitext2_dir(settings.get('data_dir'))
        except hub.HubError as error:
            note(f'{error}\nTraining on the small sample corpus instead.')
            settings.update(corpus='sample', wanted=dict(
                corpus='wikitext-2', reason=str(error)))
    return carried_out(pretrain, settings)


def check(settings, complete):
    """Raise UsageError for settings that are invalid with any files.

    complete: the function that checks them. A resumed run checks its own.
    """
    if settings.get('resume') is None:
        others = {setting.name for setting in CARRYING_OUT} | {'seeds'}
        with usage():
            complete({name: value for name, value in settings.items()
                      if name not in others})
    elif 'out' in settings or settings.get('force'):
        raise UsageError('a resumed run stays in its folder: give neither '
                         '--out nor --force with --resume')


def carried_out(train, settings):
    """Call train(**settings), print the folder; returns the exit status."""
    from d2lbert.machine import workers
    from d2lbert.training.interrupts import Stopped
    try:
        out = train(**settings)
    except Stopped as stopped:
        if str(stopped):        # only one worker has a message
            print(f'\n{stopped}', file=sys.stderr)
        return 128 + stopped.signal
    if workers.rank() == 0:
        note(f'run folder {out}')
    return 0
