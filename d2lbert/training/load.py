"""A net and its tokenizer, from the folder of a run or of a checkpoint.

And the ways between the two: a run's .params leave as safetensors, and
published weights come in as a run.
"""
import json
from pathlib import Path

from d2lbert._version import __version__
from d2lbert.machine.files import new_folder, read_json, write_text
from d2lbert.nn.precision import check_precision, set_precision
from d2lbert.pretrained.families.tensor_names import HEADS
from d2lbert.pretrained.folders import load_pretrained, save_pretrained
from d2lbert.pretrained.sentence_transformers import pooling_of
from d2lbert.pretrained.tensor_files import PretrainedError
from d2lbert.pretrained.tokenizers.tokenizer import (
    VOCAB,
    WholeWords,
    WordPiece,
    is_in,
)
from d2lbert.training.saved_runs import (
    RunError,
    load_net,
    load_run,
    read_config,
    save_parameters,
)


def load_model(path, ctx=None, heads=HEADS, trainable=True,
               precision='fp32'):
    """The net and tokenizer of a folder, as (net, tokenizer).

    path: the RUN that `pretrain` left, with whole words or word pieces, or
    a FOLDER of a pretrained model; ctx, heads, trainable and precision as
    for `load_pretrained`.
    Raises `RunError` or `PretrainedError`, both ValueErrors.
    """
    path = Path(path)
    if not path.is_dir():
        raise PretrainedError(f'there is no folder {path}: name that of a run'
                              ' or of a pretrained model, on this disk')
    if not is_run(path):
        return load_pretrained(path, ctx, heads, trainable, precision)
    check_precision(precision)
    if is_in(path):
        tokenizer = WordPiece.load(path)
        tokenizer.pooling = _pooling_of(path)
        net = load_net(path, ctx, trainable)
        if len(tokenizer) > net.config['vocab_size']:
            raise RunError(f'the tokenizer in {path} has {len(tokenizer)} '
                           f'tokens, but the model '
                           f'{net.config["vocab_size"]}')
        return set_precision(net, precision), tokenizer
    net, vocab = load_run(path, ctx, trainable)
    tokenizer = WholeWords(vocab)
    tokenizer.pooling = _pooling_of(path)
    return set_precision(net, precision), tokenizer


def _pooling_of(run):
    """The `Pooling` of an imported run whose folder had one, else None."""
    files = read_config(run).get('pooling')
    return None if files is None else pooling_of(files, run)


def is_run(path):
    """Whether a folder is that of a run, finished or not."""
    if any((path / name).exists() for name in (
            'model.params', 'checkpoints', 'unfinished', 'losses.csv')):
        return True
    try:
        return 'model' in read_json(path / 'config.json')
    except (OSError, ValueError, TypeError):
        return False


def export_run(run, folder):
    """Write the run in `run` as a new FOLDER that others load."""
    if not is_run(Path(run)):
        raise PretrainedError(f'{run} is no folder of a run: name one that '
                              'd2lbert pretrain left')
    net, tokenizer = load_model(run, trainable=False)
    save_pretrained(net, tokenizer, folder)


def import_run(folder, run):
    """Write the pretrained model in `folder` as a new RUN.

    It holds the net and its tokenizer, and no training but the settings by
    which `d2lbert evaluate` reads texts: what is missing in `folder` is
    drawn at random, once.
    """
    net, tokenizer = load_pretrained(folder, trainable=False)
    words = WholeWords.of(tokenizer)
    config = dict(
        d2lbert=__version__, model=net.config, fingerprint=None,
        # Not in the folder, so random from now on
        random_heads=[head for head in HEADS if net.pretrained.lacking(head)],
        training=dict(tokenizer='wordpiece' if words is None else 'words',
                      batch_size=64,
                      max_len=min(128, net.encoder.max_len),
                      objective=_objective_of(net)))
    if tokenizer.pooling is not None and tokenizer.pooling.files:
        config['pooling'] = tokenizer.pooling.files
    with new_folder(run) as part:
        write_text(part / 'config.json', json.dumps(config, indent=2) + '\n')
        if words is None:
            tokenizer.save(part)
        else:  # as a run of whole words has them
            words.vocab.save(part / VOCAB)
        save_parameters(net, part / 'model.params')


def _objective_of(net):
    """What the heads of a pretrained net were trained for."""
    if net.nsp is None:
        return 'mlm' if net.decoder is None else 'denoise'
    return 'mlm+sop' if net.config.get('family') == 'albert' else 'mlm+nsp'
