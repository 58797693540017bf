"""Run folders of fine-tuning: what lies beside the weights, and loading.

config.json has, besides what each run has, an entry `finetuned`, an `About`;
the tokenizer lies in vocab.txt, and in tokenizer.json where it is one of
word pieces.
"""
import json
from pathlib import Path

from d2lbert.finetuning.finetuned_folders import (
    is_finetuned_folder,
    load_finetuned_folder,
    stored_here,
)
from d2lbert.finetuning.heads import KINDS, FineTuned
from d2lbert.finetuning.task_kinds import About
from d2lbert.machine.backend import mx
from d2lbert.machine.files import write_text
from d2lbert.nn.precision import check_precision, set_precision
from d2lbert.pretrained.folders import save_pretrained
from d2lbert.pretrained.tokenizers.tokenizer import (
    CONFIG,
    TOKENIZER,
    VOCAB,
    WholeWords,
    WordPiece,
    is_in,
)
from d2lbert.text import Vocab
from d2lbert.training import load
from d2lbert.training.load import check_described
from d2lbert.training.saved_runs import (
    RunError,
    is_finetuned,
    is_run,
    load_parameters,
    read_config,
)


class SavedTokenizer:
    """A tokenizer as a run folder keeps it, for `load_tokenizer`."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.files = (VOCAB,) if isinstance(tokenizer, WholeWords) else (
            VOCAB, CONFIG, *(tokenizer.files or (TOKENIZER,)))

    def save(self, path):
        """Write vocab.txt, as `path`, and other files beside it."""
        path = Path(path)
        if isinstance(self.tokenizer, WholeWords):
            # Its own save needs a library that such a run does without
            self.tokenizer.vocab.save(path)
            return
        self.tokenizer.save(path.parent)
        if not path.is_file():      # of tokens that are no word pieces
            write_text(path, ''.join(f'{json.dumps(token)}\n' for token
                                     in self.tokenizer.idx_to_token))


def load_tokenizer(folder):
    """The tokenizer of a run folder of fine-tuning."""
    folder = Path(folder)
    if is_in(folder):
        return WordPiece.load(folder)
    return WholeWords(Vocab.load(folder / VOCAB))


def load_finetuned(folder, ctx=None, trainable=True, precision=None):
    """The net and tokenizer of a run folder of `finetune`.

    Or of a folder of others whose head scores texts or words, see `folders`.
    ctx: a device or several, else the CPU. Returns (net, tokenizer): a
    `FineTuned` whose `about`, an `About`, says what it was trained for, with
    the names of its labels. trainable, precision: as for `load_pretrained`.
    Raises `RunError`, a ValueError.
    """
    check_precision(precision)
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f'there is no run folder {folder}')
    if not is_run(folder) and stored_here(folder):
        return load_finetuned_folder(folder, ctx, trainable, precision)
    net, tokenizer = made_of(
        read_config(folder), folder,
        lambda model: check_described(model, folder))
    if not trainable:
        net.collect_params().setattr('grad_req', 'null')
    load_parameters(net, folder / 'model.params', ctx or mx.cpu())
    return set_precision(net, precision), tokenizer


def made_of(config, folder, check=None):
    """The net without weights and the tokenizer that config.json tells of.

    check: called with the arguments of the net before it is made; raises
    ValueError where no tensor of the run has these sizes.
    """
    if not isinstance(config, dict) or 'finetuned' not in config:
        raise RunError(f'{folder} is no run of d2lbert finetune: name one '
                       'that is')
    try:
        about = About.of(config['finetuned'])
        if about.kind not in KINDS:
            raise ValueError(f'its kind is {about.kind!r}')
        if check is not None:
            check(config['model'])
        net = FineTuned.of_config(config['model'], about.kind,
                                  about.num_scores, about.dropout)
    except RunError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise RunError(f'{folder / "config.json"} does not describe a '
                       f'fine-tuned model: {error}') from None
    tokenizer = load_tokenizer(folder)
    if len(tokenizer) > net.config['vocab_size']:
        raise RunError(f'the tokenizer in {folder} has {len(tokenizer)} '
                       f'tokens, but the model '
                       f'{net.config["vocab_size"]}')
    net.about = about
    return net, tokenizer


def load_run(folder, ctx=None):
    """The net and vocabulary of a run folder, as (net, vocab).

    Of a run of `finetune` the net and its tokenizer, see `load_finetuned`.
    """
    if is_finetuned(folder):
        return load_finetuned(folder, ctx)
    return load.load_run(folder, ctx)


def export_run(run, folder, precision='fp32'):
    """Write any run as a new FOLDER that others load.

    precision: 'int8' for int8 weights, which only this package loads. `run`
    may then be a folder of a pretrained model, too.
    """
    if is_finetuned(run) or precision == 'int8' and is_finetuned_folder(run):
        save_pretrained(*load_finetuned(
            run, trainable=False, precision=precision), folder)
    else:
        load.export_run(run, folder, precision)
