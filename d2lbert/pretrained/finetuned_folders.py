"""Load fine-tuned checkpoints in the format of `transformers`.

These are folders of a ...ForSequenceClassification,
...ForTokenClassification or ...ForQuestionAnswering, written by
`transformers` or by `save_pretrained`. training/load.py loads runs of
`finetune`.
"""
from pathlib import Path

from d2lbert.pretrained import folders
from d2lbert.pretrained.families import tensor_names
from d2lbert.pretrained.families.family import family_of
from d2lbert.pretrained.heads import WHOLE, About, FineTuned
from d2lbert.pretrained.tensor_files import (
    INDEX,
    OTHERS,
    WEIGHTS,
    PretrainedError,
)

#: Tokens between the starts of two windows over a long context.
STRIDE = 128


def stored_here(folder):
    """True if the folder has the files of a checkpoint."""
    return any((Path(folder) / name).is_file()
               for name in (WEIGHTS, INDEX, *OTHERS))


def load_finetuned_folder(folder, ctx=None, trainable=True, precision=None):
    """The `FineTuned` net and tokenizer of a checkpoint folder.

    The net's `about` has no task name, and accepts single texts and pairs.
    ctx, trainable and precision are as for `load_pretrained`. Raises
    `PretrainedError` if the checkpoint has no task head.
    """
    opened = folders.open_folder(folder)
    if kind_of(opened) is None:
        raise PretrainedError(
            f'{folder} has no head that scores texts or words (its '
            'config.json names no class of a fine-tuned model): fine-tune '
            'it with d2lbert finetune')
    return load_opened(opened, ctx, trainable, precision)


def load_opened(opened, ctx=None, trainable=True, precision=None):
    """As `load_finetuned_folder`, for a folder with a task head."""
    kind = kind_of(opened)
    about = about_of(opened, kind)
    net, tokenizer = folders.fill_net(
        opened, tensor_names.finetuned(opened.keywords, kind, about.num_scores,
                                opened.config['skip']),
        lambda: FineTuned.of_config(opened.keywords, kind, about.num_scores,
                                    about.dropout),
        ctx, trainable, precision,
        needed=('encoder', 'decoder', 'pooler', 'head'))
    net.about = about._replace(max_len=min(
        about.max_len, tokenizer.max_len or about.max_len))
    return net, tokenizer


def kind_of(opened):
    """The kind of head that an `Opened` folder's config names, or None."""
    family = family_of(opened.keywords)
    for name in opened.config.get('architectures') or ():
        for kind, known in family.finetuned.items():
            if known == name:
                is_one = (kind in ('classify', 'regress')
                          and len(labels_of(opened.config)) == 1)
                return 'regress' if is_one else kind
    return None


def labels_of(config):
    """The names of the labels, in order of their numbers."""
    found = config.get('id2label') or {'0': 'LABEL_0', '1': 'LABEL_1'}
    try:
        named = {int(number): str(name) for number, name in found.items()}
        return tuple(named[k] for k in range(len(named)))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise PretrainedError(
            'id2label in config.json must give each number from 0 on the '
            f'name of its label, not {found!r}') from None


def about_of(opened, kind):
    """The `About` of a checkpoint, with its labels and dropout."""
    config, family = opened.config, family_of(opened.keywords)
    whole = kind in WHOLE
    problem = config.get('problem_type')
    if whole and problem == 'multi_label_classification':
        raise PretrainedError(
            f'{opened.folder} gives texts several labels at once '
            f'(problem_type is {problem!r}), which is not served here')
    field, default = family.dropouts[0 if whole else 1]
    dropout = config.get(field)
    if dropout is None:
        dropout = opened.keywords['dropout'] if default is None else default
    return About(
        task='', kind=kind,
        pair={'tag': False, 'span': True, 'choice': True}.get(kind),
        labels=labels_of(config) if kind in ('classify', 'tag') else None,
        metrics=(), max_len=opened.keywords['max_len'], stride=STRIDE,
        null=False, dropout=dropout)
