"""Define the settings of fine-tuning, and check and complete their values.

`python -m d2lbert.finetuning.settings` prints the table of the manual.
"""
from d2lbert.finetuning.tasks.catalog import TASKS
from d2lbert.training import settings as pretraining_settings
from d2lbert.training.settings import PATHS, Setting, checked_values, table


def _as_in_pretrain(name, default, **changes):
    """A setting of `pretrain` with changed fields, without recipe 'learn'."""
    return pretraining_settings.SETTINGS[name]._replace(
        default=default, learn=None, **changes)


#: {title of a group in the help text: its settings}
GROUPS = {
    'the task': (
        Setting('task', str, None, 'the task: ' + ', '.join(TASKS)
                + '; the last four are for files of your own', 'NAME',
                choices=tuple(TASKS)),
        Setting('data', PATHS, None, 'folder with the files of the task, for '
                'example train.tsv and dev.tsv (snli can be fetched)',
                'DIR', changeable=True),
        Setting('columns', str, None, 'the columns of a table, by name or by '
                'number from 0: text=1,label=0 or premise,hypothesis,label',
                'COLUMNS'),
        Setting('num_examples', int, None, 'train on the first N examples '
                'only', least=1),
    ),
    'the model': (
        Setting('model', PATHS, None, 'the model to fine-tune: the folder of '
                "a released checkpoint or of a run of pretrain; the book's "
                'bert.small or bert.base', 'FOLDER'),
        _as_in_pretrain('precision', 'fp32'),
        Setting('max_len', int, 128, 'largest number of tokens in a text, a '
                'pair or a window over a long text, special tokens included',
                least=4),
        Setting('stride', int, 64, 'tokens between the beginnings of two '
                'windows over a text that is searched for an answer',
                least=1),
    ),
    'the training': (
        Setting('num_epochs', int, 3, 'number of passes over the training '
                'data', least=1, changeable=True),
        _as_in_pretrain('batch_size', 32, help='examples in a step'),
        _as_in_pretrain('accumulate', 1),
        _as_in_pretrain('lr', 5e-5),
        _as_in_pretrain('warmup', 0.1),
        _as_in_pretrain('decay', 'linear'),
        _as_in_pretrain('weight_decay', 0.01),
        _as_in_pretrain('clip', 1.0),
        Setting('bucket', int, 1, 'number of batches whose examples are '
                'sorted by length together, which saves time where padding '
                'is computed; 1: no sorting', least=1),
        _as_in_pretrain('seed', None),
    ),
    'the run': (
        _as_in_pretrain('log_interval', 10,
                        help='steps between two log entries'),
        _as_in_pretrain('save_every', None),
        _as_in_pretrain('keep', 3),
    ),
}

SETTINGS = {setting.name: setting for group in GROUPS.values()
            for setting in group}

DEFAULTS = {name: setting.default for name, setting in SETTINGS.items()}

#: An argument of `finetune`, but no setting of a single run
SEEDS = Setting('seeds', int, 1, 'number of seeds: one run each, reported '
                'as mean ± standard deviation', least=1)

CHANGEABLE_ON_RESUME = [name for name, setting in SETTINGS.items()
                        if setting.changeable]

#: {required setting: what to give, for an error message}
_REQUIRED = {'task': 'a task, as sst2 (--task sst2)',
             'model': 'the folder of the model to fine-tune (--model FOLDER)'}


def complete(keywords):
    """Check the settings `keywords`; return a dict of all settings.

    A missing seed is drawn at random. Raises TypeError or ValueError.
    """
    values = checked_values(SETTINGS, DEFAULTS, keywords)
    needed = [what_to_give for name, what_to_give in _REQUIRED.items()
              if values[name] is None]
    if needed:
        raise ValueError(f'fine-tuning needs {", and ".join(needed)}')
    return values


if __name__ == '__main__':
    print(table(GROUPS, 'default'), end='')
