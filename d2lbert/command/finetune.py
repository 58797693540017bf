"""Run `d2lbert finetune`, which has a flag for each fine-tuning setting."""
from d2lbert.command import pretrain
from d2lbert.finetuning.settings import GROUPS, SEEDS, SETTINGS, complete
from d2lbert.machine.arguments import usage_errors
from d2lbert.machine.files import read_json

#: Models of the book, which --model accepts in place of a folder.
BOOK_MODELS = 'bert.small', 'bert.base'

#: The settings in the first group of the help text, 'most used'.
MOST_USED = ('task', 'data', 'model', 'num_epochs', 'batch_size', 'lr',
             'max_len', 'seed', 'seeds', 'out', 'resume')


def add(commands):
    """Add this sub-command to the parser."""
    finetune = commands.add_parser(
        'finetune', help='learn a labelled task with a pretrained model',
        usage='d2lbert finetune --task NAME --model FOLDER [FLAG ...]',
        description='Train all weights of a pretrained model, and a new '
        'output layer, on a labelled task: a class or a number for a text or '
        'a pair, a tag for each word, an answer within a text, or the right '
        'one of several endings. The development part is evaluated after '
        'each epoch, and the best weights are kept. Defaults are in '
        'parentheses.')
    finetune.set_defaults(run=run, check=check_flags,
                          needs='d2lbert.finetuning.finetuning')
    pretrain.add_flags(finetune, {**GROUPS, 'the run': (
        *GROUPS['the run'], *pretrain.RUN_FLAGS, SEEDS)}, MOST_USED)


def check_flags(args):
    """Raise an error if a setting is invalid or names a missing file."""
    values = pretrain.given_settings(args)
    with usage_errors():
        num_seeds = SEEDS.checked(values.get('seeds', SEEDS.default))
        if 'resume' in values and num_seeds > 1:
            raise ValueError('a resumed run keeps its seeds: leave --seeds '
                             'out with --resume')
    pretrain.check_settings(values, SETTINGS, complete, BOOK_MODELS)


def run(args):
    """Train; returns the exit status."""
    from d2lbert.finetuning.finetuning import finetune
    settings = pretrain.given_settings(args)
    # With several seeds, --out is a folder of runs, and `finetune` checks it
    if settings.get('seeds', 1) == 1:
        pretrain.check_devices_and_out(settings)
    return pretrain.train_and_report(finetune, settings,
                                     read_figures if args.json else None)


def read_figures(folder):
    """Return a dict with the development metrics of a run, for --json.

    Of several seeds, figures is a list, and summary has means and deviations.
    """
    from d2lbert.finetuning import seed_runs
    if seed_runs.has_seed_runs(folder):
        entries = read_json(folder / seed_runs.SEEDS_FILE)
        return {name: entries[name]
                for name in ('seeds', 'figures', 'summary')}
    return dict(figures=read_json(folder / 'config.json')['figures'])
