"""Load a model from any kind of folder, and export and import runs.

config.json of a run of `finetune` has an entry `finetuned`, the fields of a
`pretrained.heads.About`.
"""
import json
from pathlib import Path
from typing import Any, NamedTuple, Optional, Tuple

from d2lbert._version import __version__
from d2lbert.machine import array_files
from d2lbert.machine.arguments import PathLike, names_among
from d2lbert.machine.files import is_run, new_folder, write_text
from d2lbert.nn.precision import check_precision, set_precision
from d2lbert.pretrained import folders
from d2lbert.pretrained.families.config import generation_fields_of_net
from d2lbert.pretrained.families.nets import net_of
from d2lbert.pretrained.families.tensor_names import HEADS, PARTS
from d2lbert.pretrained.folders import load_pretrained, save_pretrained
from d2lbert.pretrained.heads import KINDS as HEAD_KINDS
from d2lbert.pretrained.heads import About, FineTuned
from d2lbert.pretrained.pooling import pooling_of
from d2lbert.pretrained.tensor_files import (
    PretrainedError,
    check_against_tensors,
)
from d2lbert.pretrained.tokenizers.tokenizer import (
    VOCAB,
    WholeWords,
    WordPiece,
    has_tokenizer,
)
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import Vocab
from d2lbert.training.saved_runs import (
    RunError,
    is_finetuned,
    load_parameters,
    read_config,
    save_parameters,
    unreadable_error,
)

#: The kinds of folders that `load` tells apart.
RUN, TUNED_RUN = 'run of pretrain', 'run of finetune'
PRETRAINED, TUNED = 'pretrained model', 'fine-tuned model'


class Loaded(NamedTuple):
    """A model that was loaded from a folder."""

    kind: str           # RUN, TUNED_RUN, PRETRAINED or TUNED
    net: Any            # a `BERTModel` or a relative, or a `FineTuned`
    tokenizer: Any      # the net's tokenizer, with the attribute `pooling`


def load(path, ctx=None, heads=HEADS, trainable=True, precision=None,
         task_head=True):
    """Load the model in a folder; returns a `Loaded`.

    path: the folder of a run of `pretrain` or `finetune`, or of a pretrained
    or a fine-tuned model as `transformers`, sentence-transformers or
    `save_pretrained` write it. ctx, trainable, precision and, for a pretrained
    model, heads are as for `load_pretrained`. task_head=False: load a
    fine-tuned model as a pretrained model, without its task head, and raise an
    error for a run of `finetune`. Raises `RunError` or `PretrainedError`, both
    ValueErrors.
    """
    path = Path(path)
    if not path.is_dir():
        raise PretrainedError(f'there is no folder {path}: name the folder of '
                              'a run or of a pretrained model on this disk')
    heads = names_among(HEADS, 'heads', heads)
    check_precision(precision)
    if not is_run(path):
        opened = folders.open_folder(path)
        if task_head and folders.head_kind(opened) is not None:
            return Loaded(TUNED, *folders.load_opened_finetuned(
                opened, ctx, trainable, precision))
        return Loaded(PRETRAINED, *folders.load_opened(
            opened, ctx, heads, trainable, precision))
    if task_head and is_finetuned(path):
        return Loaded(TUNED_RUN, *load_finetuned(path, ctx, trainable,
                                                 precision))
    if has_tokenizer(path):     # else vocab.txt has whole words
        net, tokenizer = _described_net(path, trainable), WordPiece.load(path)
        _check_vocabulary(net, tokenizer, path)
        load_parameters(net, path / 'model.params', ctx)
    else:
        net, vocab = load_pretraining_run(path, ctx, trainable)
        tokenizer = WholeWords(vocab)
    pooling_files = read_config(path).get('pooling')    # of an imported run
    tokenizer.pooling = (None if pooling_files is None
                         else pooling_of(pooling_files, path))
    return Loaded(RUN, set_precision(net, precision), tokenizer)


def load_run(folder: PathLike, ctx: Any = None, trainable: bool = True
             ) -> Tuple[Any, Any]:
    """The net and vocabulary of a run folder, as (net, vocab).

    The net is the model, without layers that only the objective used. For a
    run of `finetune`, (net, tokenizer); see `load_finetuned`. ctx and
    trainable are as for `load_pretrained`.
    """
    if is_finetuned(folder):
        return load_finetuned(folder, ctx, trainable)
    return load_pretraining_run(folder, ctx, trainable)


def load_finetuned(folder: PathLike, ctx: Any = None, trainable: bool = True,
                   precision: Optional[str] = None) -> Tuple[FineTuned, Any]:
    """Load a fine-tuned net and its tokenizer.

    folder: a run of `finetune`, or a folder of a model with a task head, as
    `transformers` or `save_pretrained` writes it. ctx: one device or several;
    default: the CPU. trainable, precision: as for `load_pretrained`.

    Returns (net, tokenizer): net is a `FineTuned`, and net.about, an `About`,
    has the task and the names of the labels. Raises `RunError` or
    `PretrainedError`, both ValueErrors.
    """
    check_precision(precision)
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f'there is no run folder {folder}')
    if not is_run(folder) and folders.has_weights(folder):
        return folders.load_finetuned_folder(folder, ctx, trainable,
                                             precision)
    net, tokenizer = make_finetuned(read_config(folder), folder,
                                    check_arguments=True)
    if not trainable:
        net.collect_params().setattr('grad_req', 'null')
    load_parameters(net, folder / 'model.params', ctx)
    return set_precision(net, precision), tokenizer


def load_pretraining_run(folder, ctx=None, trainable=True):
    """Load a run of `pretrain`; returns (net, vocabulary), see `load_run`."""
    folder = Path(folder)
    net = _described_net(folder, trainable)
    vocab = (PieceVocab.load(folder) if has_tokenizer(folder)
             else Vocab.load(folder / VOCAB))
    _check_vocabulary(net, vocab, folder)
    load_parameters(net, folder / 'model.params', ctx)
    net.vocab = vocab
    return net, vocab


def _check_vocabulary(net, vocab, folder):
    """Raise `RunError` if a vocabulary or tokenizer does not fit its net.

    A `Vocab` must have as many tokens as the net, since a shorter `Vocab`
    would give masked examples other random tokens. A tokenizer may have fewer.
    """
    size, expected = len(vocab), net.config['vocab_size']
    is_too_small = size < expected and isinstance(vocab, Vocab)
    if size > expected or is_too_small:
        raise RunError(f'the vocabulary in {folder} has {size} tokens, but '
                       f'the model {expected}')


def _described_net(folder, trainable):
    """The net that config.json of a run folder describes, uninitialized."""
    if not folder.is_dir():
        raise RunError(f'there is no run folder {folder}')
    config = read_config(folder)
    try:
        if not isinstance(config, dict) or 'model' not in config:
            raise ValueError('it has no entry "model"')
        if 'finetuned' in config:
            raise RunError(f'{folder} holds a fine-tuned model, which has '
                           'a head for its task: use d2lbert predict or '
                           'evaluate, load_model or load_finetuned')
        _check_net_arguments(config['model'], folder)
        net = net_of(config['model'])
        net.trained_len = _trained_len(config)
        net.random_heads = tuple(config.get('random_heads', ()))
        if config.get('generation') is not None:
            net.generation_fields = dict(config['generation'])
        if not trainable:
            net.collect_params().setattr('grad_req', 'null')
        return net
    except RunError:        # a ValueError with a complete message
        raise
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise RunError(f'{folder / "config.json"} does not describe a model: '
                       f'{error}') from None


def make_finetuned(config, folder, check_arguments=False):
    """Return (`FineTuned` without weights, tokenizer) of a run of `finetune`.

    config: the contents of config.json. folder: the run folder, which has
    the tokenizer. check_arguments: True to check the arguments of the net
    against model.params, which an unfinished run lacks.
    """
    if not isinstance(config, dict) or 'finetuned' not in config:
        raise RunError(f'{folder} is no run of d2lbert finetune: name the '
                       'folder of such a run')
    try:
        about = About.of(config['finetuned'])
        if about.kind not in HEAD_KINDS:
            raise ValueError(f'its kind is {about.kind!r}')
        if check_arguments:
            _check_net_arguments(config['model'], folder)
        net = FineTuned.of_config(config['model'], about.kind,
                                  about.num_scores, about.dropout)
    except RunError:        # as in `_described_net`
        raise
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise RunError(f'{folder / "config.json"} does not describe a '
                       f'fine-tuned model: {error}') from None
    tokenizer = (WordPiece.load(folder) if has_tokenizer(folder)
                 else WholeWords(Vocab.load(folder / VOCAB)))
    _check_vocabulary(net, tokenizer, folder)
    net.about = about
    return net, tokenizer


def _check_net_arguments(arguments, folder):
    """Check the entry `model` of config.json against a run's model.params.

    Raises TypeError if `arguments` is no dictionary, ValueError for a size too
    large for the tensors, and `RunError` if model.params is damaged.
    """
    if not isinstance(arguments, dict):
        raise TypeError('its entry "model" must be a dictionary, not '
                        f'{arguments!r}')
    path = folder / 'model.params'
    try:
        tensors = array_files.stored_params(path)
    except (ValueError, OSError) as error:
        raise unreadable_error(path, error) from None
    check_against_tensors(arguments, [tensor.shape
                                      for tensor in tensors.values()])


def _trained_len(config):
    """The setting max_len of a run; None for an imported run."""
    if config.get('fingerprint') is None:   # `import_run` wrote the config
        return None
    return dict(config.get('training', {})).get('max_len')


# Export and import

def export_run(run, folder, precision='fp32'):
    """Write the model of the folder `run` as a new folder of safetensors.

    precision: 'fp32', for weights that other libraries can load; or 'int8',
    for int8 weights, which only this package can load. With 'int8', `run` may
    also be the folder of a pretrained or fine-tuned model.
    """
    if precision == 'fp32' and not is_run(run):
        raise PretrainedError(f'{run} is no folder of a run: name a folder '
                              'that d2lbert pretrain or finetune wrote')
    # heads=(): do not warn of missing heads, which are not saved
    _, net, tokenizer = load(run, heads=(), trainable=False,
                             precision=precision)
    save_pretrained(net, tokenizer, folder, parts_to_save(net))


def parts_to_save(net):
    """The parts to save: those without random weights. None: all parts."""
    if net.about is not None:
        return None
    parts = [part for part in PARTS if not net.has_random(part)]
    return None if len(parts) == len(PARTS) else parts


def import_run(folder, run):
    """Write the pretrained model in `folder` as a new run folder `run`.

    The run holds the net, the tokenizer, the folder's settings for pooling and
    text generation, and those with which `d2lbert evaluate` reads texts. Heads
    that `folder` lacks get random weights.
    """
    net, tokenizer = load_pretrained(folder, trainable=False,
                                     precision='fp32')
    word_tokenizer = WholeWords.of(tokenizer)   # None for word pieces
    config = dict(
        d2lbert=__version__, model=net.config, fingerprint=None,
        random_heads=[head for head in HEADS if net.pretrained.lacks(head)],
        training=dict(tokenizer=('wordpiece' if word_tokenizer is None
                                 else 'words'),
                      batch_size=64,
                      max_len=min(128, net.encoder.max_len),
                      objective=_objective_of(net)))
    if tokenizer.pooling is not None and tokenizer.pooling.files:
        config['pooling'] = tokenizer.pooling.files
    if net.decoder is not None:
        config['generation'] = generation_fields_of_net(net, tokenizer)
    with new_folder(run) as partial_path:
        write_text(partial_path / 'config.json',
                   json.dumps(config, indent=2) + '\n')
        if word_tokenizer is None:
            tokenizer.save(partial_path)
        else:
            word_tokenizer.vocab.save(partial_path / VOCAB)
        save_parameters(net, partial_path / 'model.params')


def _objective_of(net):
    """The name of the objective that fits the heads of a pretrained net."""
    if net.nsp is None:
        return 'mlm' if net.decoder is None else 'denoise'
    return 'mlm+sop' if net.config.get('family') == 'albert' else 'mlm+nsp'
