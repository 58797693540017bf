"""`d2lbert finetune`: its flags come from the settings of fine-tuning."""
from d2lbert.command import pretrain
from d2lbert.finetuning.settings import GROUPS, SEEDS, SETTINGS, complete
from d2lbert.machine.files import read_json
from d2lbert.training.settings import check_files

#: Values of --model that are no folders: models that the book publishes.
NAMED = 'bert.small', 'bert.base'

#: The settings that come first in the help text.
FIRST = ('task', 'data', 'model', 'num_epochs', 'batch_size', 'lr',
         'max_len', 'seed', 'seeds', 'out', 'resume')


def add(commands):
    """Add this sub-command to the parser."""
    finetune = commands.add_parser(
        'finetune', help='learn a labelled task with a pretrained model',
        usage='d2lbert finetune --task NAME --model FOLDER [FLAG ...]',
        description='Train all weights of a pretrained model, and a new '
        'output layer, on a labelled task: a class or a number for a text or '
        'a pair, a tag for each word, or an answer within a text. The '
        'development part is evaluated after each epoch, and the best '
        'weights are kept. Defaults are in parentheses.')
    finetune.set_defaults(run=run, check=check_flags,
                          needs='d2lbert.finetuning.finetuning')
    pretrain.add_flags(finetune, {**GROUPS, 'the run': (
        *GROUPS['the run'], *pretrain.CARRYING_OUT, SEEDS)}, FIRST)


def check_flags(args):
    """As `pretrain.check_flags`, for the settings of fine-tuning."""
    settings = pretrain.given(args)
    pretrain.check(settings, complete)
    if 'resume' not in settings:
        check_files(SETTINGS, {name: settings[name] for name in SETTINGS
                               if name in settings}, NAMED)


def run(args):
    """Train; returns the exit status."""
    from d2lbert.finetuning.finetuning import finetune
    settings = pretrain.given(args)
    if settings.get('seeds', 1) == 1:
        pretrain.check_place(settings)
    return pretrain.carried_out(finetune, settings, args.json and figures)


def figures(folder):
    """The metrics of a run on the development part, or of several runs."""
    from d2lbert.finetuning import seed_runs
    if seed_runs.is_folder(folder):
        found = read_json(folder / seed_runs.FILE)
        return {name: found[name] for name in ('seeds', 'figures', 'summary')}
    return dict(figures=read_json(folder / 'config.json')['figures'])
