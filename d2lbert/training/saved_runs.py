"""Write and read the files of a finished run: weights, history, config."""
import contextlib
from pathlib import Path
from shlex import quote

from d2lbert.bert_dataset import MIN_FREQ
from d2lbert.machine import array_files
from d2lbert.machine.backend import last_line, mx
from d2lbert.machine.files import (
    UNFINISHED,
    MXNetPath,
    read_json,
    replacing,
    write_text,
)
from d2lbert.nn import layers
from d2lbert.pretrained.tokenizers.tokenizer import VOCAB, has_tokenizer
from d2lbert.training.settings import EARLIER_NAMES, complete


class RunError(ValueError):
    """A run fails, or its folder is unusable; the message is one sentence."""


def write_run(out, net, history, animator):
    """Write the last files of a run.

    model.params is written last, since a run without this file is not
    finished. net: as `Objective.net` returns it.
    """
    with contextlib.suppress(FileNotFoundError):
        (out / 'model.params').unlink()     # if a finished run was resumed
    animator.save(out / 'losses.png')
    history.save_csv(out / 'losses.csv')
    write_text(out / 'log.txt', ''.join(history.log_lines))
    for name, block in net.parts.items():
        if name != 'model':
            save_parameters(block, out / f'{name}.params')
    save_parameters(net.parts['model'], out / 'model.params')


def load_parts(net, folder, ctx=None):
    """Load each of net.parts, except the model, from a run folder."""
    for name, block in net.parts.items():
        if name != 'model':
            load_parameters(block, Path(folder, f'{name}.params'), ctx)


def save_parameters(net, path):
    """Write a .params file as Gluon does, but atomically."""
    with replacing(path) as partial_path:
        try:
            net.save_parameters(MXNetPath(partial_path), deduplicate=True)
            # Gluon raises no error if the disk is full at the last bytes, but
            # reading the file does
            array_files.stored_params(partial_path)
        except (mx.MXNetError, ValueError) as error:
            raise OSError(f'{path} cannot be written whole (is the disk '
                          f'full?): {last_line(error)}') from None


def read_config(folder):
    """The contents of config.json of a finished run.

    Raises `RunError` for any other folder.
    """
    has_config = (folder / 'config.json').is_file()
    has_vocab = (folder / VOCAB).is_file() or has_tokenizer(folder)
    if not has_config or not has_vocab:
        missing = VOCAB if has_config else 'config.json'
        first_run = folder / 'seed-1'       # see finetuning/seed_runs.py
        hint = f': name one of its runs, as {first_run}'
        raise RunError(f'{folder} is not a run folder: it has no {missing}'
                       + (hint if first_run.is_dir() else ''))
    try:
        config = read_json(folder / 'config.json')
    except ValueError as error:
        raise RunError(f'{folder / "config.json"} is damaged: {error}'
                       ) from None
    if not (folder / 'model.params').is_file():
        is_run_config = isinstance(config, dict) and 'd2lbert' in config
        if not is_run_config and not (folder / UNFINISHED).exists():
            raise RunError(f'{folder} is not a run folder: its config.json '
                           'does not describe a run (d2lbert import makes '
                           'a run of a pretrained model)')
        if not any(folder.glob('checkpoints/step-*.npz')):
            raise RunError(f'the run in {folder} was not finished and has '
                           'no checkpoint to resume from: train it again')
        command = 'finetune' if is_finetuned(folder) else 'pretrain'
        raise RunError(f'the run in {folder} was not finished: go on with '
                       f'd2lbert {command} --resume {quote(str(folder))}')
    return config


def is_finetuned(folder):
    """True if config.json of a folder describes a fine-tuned model."""
    try:
        return 'finetuned' in dict(read_json(Path(folder) / 'config.json'))
    except (OSError, ValueError, TypeError):
        return False


def load_parameters(net, path, ctx=None):
    """Load a .params file into `net`; raise `RunError` if it does not fit."""
    try:
        layers.load_parameters(net, path, ctx)
    except (ValueError, OSError) as error:
        raise unreadable_error(path, error) from None


def unreadable_error(path, error):
    """The `RunError` for a .params file that cannot be loaded into its net."""
    if getattr(error, 'strerror', None):    # for example, no permission
        return RunError(f'{path} cannot be read: {error.strerror}')
    return RunError(f'{path} does not hold the parameters of this model '
                    f'(it is damaged, or of another model): {error}')


def complete_saved(settings):
    """Complete the settings that config.json or a checkpoint stores.

    Earlier versions stored neither split nor min_freq. They split sentences
    and built vocabularies as the book does.
    """
    # `complete` accepts earlier names, too, but with a warning
    settings = {EARLIER_NAMES.get(name, name): value
                for name, value in settings.items()}
    builds_vocab = (settings.get('tokenizer', 'words') == 'words'
                    and settings.get('vocab') is None)
    return complete({'min_freq': MIN_FREQ if builds_vocab else None,
                     'split': 'book', **settings})
