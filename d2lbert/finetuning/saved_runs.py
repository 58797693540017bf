"""Save and load run folders of fine-tuning.

In addition to the entries of every run, config.json has an entry
`finetuned`, an `About`. The tokenizer is stored in vocab.txt, and a subword
tokenizer also in tokenizer.json.
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
from d2lbert.training.run_marks import is_run
from d2lbert.training.saved_runs import (
    RunError,
    is_finetuned,
    load_parameters,
    read_config,
)


class SavedTokenizer:
    """A tokenizer that can be saved in a run folder; see `load_tokenizer`."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.files = (VOCAB,) if isinstance(tokenizer, WholeWords) else (
            VOCAB, CONFIG, *(tokenizer.files or (TOKENIZER,)))

    def save(self, path):
        """Write vocab.txt at `path`, and the other files beside it."""
        path = Path(path)
        if isinstance(self.tokenizer, WholeWords):
            # WholeWords.save needs a library that is optional here
            self.tokenizer.vocab.save(path)
            return
        self.tokenizer.save(path.parent)
        if not path.is_file():      # a tokenizer other than WordPiece
            write_text(path, ''.join(f'{json.dumps(token)}\n' for token
                                     in self.tokenizer.idx_to_token))


def load_tokenizer(folder):
    """Load the tokenizer of a run folder of fine-tuning."""
    folder = Path(folder)
    if is_in(folder):
        return WordPiece.load(folder)
    return WholeWords(Vocab.load(folder / VOCAB))


def load_finetuned(folder, ctx=None, trainable=True, precision=None):
    """Load the net and tokenizer of a run of `finetune`, or of a checkpoint.

    A checkpoint must have a task head, see `finetuned_folders`. ctx: one
    device or several; default: the CPU. trainable, precision: as for
    `load_pretrained`.

    Returns (net, tokenizer): net is a `FineTuned`, and its `about`, an
    `About`, has the task and the names of the labels. Raises `RunError`, a
    ValueError.
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
    """Make the net, without weights, and the tokenizer of a config.json.

    check: a function that is called with the arguments of the net before it
    is made. It raises ValueError if the stored tensors have other sizes.
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

    For a run of `finetune`, (net, tokenizer); see `load_finetuned`.
    """
    if is_finetuned(folder):
        return load_finetuned(folder, ctx)
    return load.load_run(folder, ctx)


def export_run(run, folder, precision='fp32'):
    """Export any run as a new checkpoint folder.

    precision: 'int8' for 8-bit weights, which only this package loads. `run`
    may then be a checkpoint folder, too.
    """
    if is_finetuned(run) or precision == 'int8' and is_finetuned_folder(run):
        save_pretrained(*load_finetuned(
            run, trainable=False, precision=precision), folder)
    else:
        load.export_run(run, folder, precision)
