"""`d2lbert finetune`: its flags come from the settings of fine-tuning."""
from d2lbert.command import pretrain
from d2lbert.finetuning.settings import GROUPS, SEEDS, complete


def add(commands):
    """Add this sub-command to the parser."""
    finetune = commands.add_parser(
        'finetune', help='learn a labelled task with a pretrained model',
        description='Train all weights of a pretrained model, and a new '
        'layer on it, on a labelled task: a class or a number for a text or '
        'a pair, a tag for each word, an answer in a text. After each epoch '
        'the development part is scored, and the best weights are kept.')
    finetune.set_defaults(run=run, needs='d2lbert.finetuning.finetuning')
    pretrain.add_flags(finetune, [
        *GROUPS.items(), ('the run', (*pretrain.CARRYING_OUT, SEEDS))])


def run(args):
    """Train; returns the exit status."""
    from d2lbert.finetuning.finetuning import finetune
    settings = pretrain.given(args)
    pretrain.check(settings, complete)
    return pretrain.carried_out(finetune, settings)
