"""Run folders: what `pretrain` leaves, and what reads it again."""
import contextlib
from pathlib import Path
from shlex import quote

from d2lbert.machine import params
from d2lbert.machine.backend import last_line, mx
from d2lbert.machine.files import Name, read_json, replacing, write_text
from d2lbert.nn import layers
from d2lbert.pretrained.families.family import net_of
from d2lbert.pretrained.size_checks import check_sizes
from d2lbert.pretrained.tokenizers.tokenizer import VOCAB, is_in
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import Vocab
from d2lbert.training.run_files import UNFINISHED


class RunError(ValueError):
    """Why a run folder cannot be written or read, in one sentence."""


def write_run(out, net, history, animator):
    """Complete the run folder `out`; model.params comes last.

    A run folder without model.params is one that was not finished.
    """
    with contextlib.suppress(FileNotFoundError):
        (out / 'model.params').unlink()     # of the run when it was shorter
    animator.save(out / 'losses.png')
    history.save_csv(out / 'losses.csv')
    write_text(out / 'log.txt', ''.join(history.log_lines))
    for name, part in _parts(net).items():
        if name != 'model':
            save_parameters(part, out / f'{name}.params')
    save_parameters(_parts(net)['model'], out / 'model.params')


def _parts(net):
    """The parts of a net that files of their own hold; see `objectives`."""
    return getattr(net, 'parts', {'model': net})


def load_parts(net, folder, ctx=None):
    """Load into `net` what lies beside the model of the run in `folder`."""
    for name, part in _parts(net).items():
        if name != 'model':
            load_parameters(part, Path(folder, f'{name}.params'), ctx)


def save_parameters(net, path):
    """Write a .params file as Gluon does, whole or not at all."""
    with replacing(path) as part:
        try:
            net.save_parameters(Name(part), deduplicate=True)
            # A disk that is full at the last bytes goes unnoticed there
            params.stored(part)
        except (mx.MXNetError, ValueError) as error:
            raise OSError(f'{path} cannot be written whole (is the disk '
                          f'full?): {last_line(error)}') from None


def load_run(folder, ctx=None, trainable=True):
    """The net and vocabulary of a run of `pretrain`, as (net, vocab).

    The net is the model alone, whatever it was trained for. trainable=False
    leaves out its gradients, which take as much memory as its weights.
    """
    folder = Path(folder)
    net = _described_net(folder, trainable)
    of_pieces = is_in(folder)
    vocab = (PieceVocab.load(folder) if of_pieces
             else Vocab.load(folder / VOCAB))
    if len(vocab) != net.config['vocab_size']:
        raise RunError(f'{folder / VOCAB} has {len(vocab)} entries, '
                       f'but the model {net.config["vocab_size"]}')
    load_parameters(net, folder / 'model.params', ctx)
    net.vocab = vocab
    return net, vocab


def load_net(folder, ctx=None, trainable=True):
    """The net of a run folder, without a vocabulary."""
    folder = Path(folder)
    net = _described_net(folder, trainable)
    load_parameters(net, folder / 'model.params', ctx)
    return net


def _described_net(folder, trainable):
    """The net that config.json of a run folder describes, without values."""
    if not folder.is_dir():
        raise RunError(f'there is no run folder {folder}')
    config = read_config(folder)
    try:
        if not isinstance(config, dict) or 'model' not in config:
            raise ValueError('it says nothing of one')
        if 'finetuned' in config:
            raise RunError(f'{folder} holds a fine-tuned model, which has '
                           'other scores: d2lbert predict and evaluate, '
                           'load_run and load_finetuned know it')
        check_described(config['model'], folder)
        net = net_of(config['model'])
        net.trained_len = _trained_len(config)
        net.random_heads = tuple(config.get('random_heads', ()))
        if not trainable:
            net.collect_params().setattr('grad_req', 'null')
        return net
    except RunError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise RunError(f'{folder / "config.json"} does not describe a model: '
                       f'{error}') from None


def check_described(model, folder):
    """Compare a net's arguments with the tensors in a run folder.

    Raises `ValueError` for sizes that no tensor has, and `RunError` where
    model.params is damaged.
    """
    if not isinstance(model, dict):
        raise TypeError(f'a model is a table of arguments, not {model!r}')
    path = folder / 'model.params'
    try:
        found = params.stored(path)
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from None
    check_sizes(model, [tensor.shape for tensor in found.values()])


def _trained_len(config):
    """The length of the sequences of a run; None of an imported model."""
    if config.get('fingerprint') is None:
        return None
    return dict(config.get('training', {})).get('max_len')


def read_config(folder):
    """What config.json of the finished run in `folder` says."""
    for name, is_there in (
            ('config.json', (folder / 'config.json').is_file()),
            (VOCAB, (folder / VOCAB).is_file() or is_in(folder))):
        if not is_there:
            raise RunError(f'{folder} is not a run folder: it has no {name}')
    try:
        config = read_json(folder / 'config.json')
    except ValueError as error:
        raise RunError(f'{folder / "config.json"} is damaged: {error}'
                       ) from None
    if not (folder / 'model.params').is_file():
        if not (folder / UNFINISHED).exists() and (
                not isinstance(config, dict) or 'd2lbert' not in config):
            raise RunError(f'{folder} is not a run folder: its config.json '
                           'describes another model (d2lbert import makes a '
                           'run of a pretrained one)')
        if not any(folder.glob('checkpoints/step-*.npz')):
            raise RunError(f'the run in {folder} was not finished and has '
                           'no checkpoint to go on from: train it again')
        command = 'finetune' if is_finetuned(folder) else 'pretrain'
        raise RunError(f'the run in {folder} was not finished: go on with '
                       f'd2lbert {command} --resume {quote(str(folder))}')
    return config


def is_finetuned(folder):
    """Whether config.json there is that of a fine-tuned model."""
    try:
        return 'finetuned' in dict(read_json(Path(folder) / 'config.json'))
    except (OSError, ValueError, TypeError):
        return False


def load_parameters(net, path, ctx=None):
    """Load a .params file into net; `RunError` where it does not fit."""
    try:
        layers.load_parameters(net, path, ctx)
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path, error):
    return RunError(f'{path} does not hold the parameters of this model '
                    f'(damaged, or of another one): {error}')
