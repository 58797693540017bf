"""Run folders: what `pretrain` leaves, and what reads it again."""
import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from shlex import quote

from d2lbert._mxnet import mx, npx
from d2lbert.bert import BERTModel
from d2lbert.files import Name, replacing, write_text
from d2lbert.text import Vocab


class RunError(ValueError):
    """Why a run folder cannot be written or read, in one sentence."""


def refuse_to_overwrite(out, force):
    """Raise `RunError` where a new run cannot go to the folder `out`."""
    above = next((path for path in out.absolute().parents if path.exists()),
                 out)
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise RunError(f'{out} cannot be made: {above} is no folder that you '
                       'may write to: choose another --out')
    if not out.exists():
        return
    if not force:
        raise RunError(f'{out} exists already: choose another --out, or give '
                       '--force to replace it')
    here = Path.cwd()
    if out.resolve() in (here, *here.parents):
        raise RunError(f'{out} is the folder that you are in, or one above '
                       'it, so --force does not replace it: choose another '
                       '--out')
    if out.is_symlink() or not out.is_dir() or any(
            out.iterdir()) and not _is_run_folder(out):
        raise RunError(f'{out} is not a run folder, so --force does not '
                       'replace it: choose another --out')


def _is_run_folder(folder):
    """Whether `pretrain` made this folder, finished or not."""
    try:
        return 'd2lbert' in dict(json.loads(
            (folder / 'config.json').read_text('utf-8')))
    except (OSError, ValueError, TypeError):
        return False


def claim(out, config, vocab, complete=None):
    """Make `out` the folder of a run, whole.

    It holds config.json, vocab.txt and what `complete(folder)` writes; what
    stood there before is moved aside, and gone once the new folder is there.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent))
    try:
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o777 & ~mask)       # mkdtemp lets nobody else read
        write_config(part, config)
        vocab.save(part / 'vocab.txt')
        if complete is not None:
            complete(part)
        before = part.with_name(f'{part.name}.old')
        if out.exists():
            os.replace(out, before)
        try:
            os.replace(part, out)
        except OSError:
            if before.exists():
                os.replace(before, out)
            raise
        shutil.rmtree(before, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_config(out, config):
    """Write what a run is made with to its folder `out`."""
    write_text(out / 'config.json',
               json.dumps(config, indent=2, ensure_ascii=False) + '\n')


def write_run(out, net, history, animator):
    """Complete the run folder `out`; model.params comes last.

    A run folder without model.params is one that was not finished.
    """
    animator.save(out / 'losses.png')
    history.save_csv(out / 'losses.csv')
    write_text(out / 'log.txt', ''.join(history.log_lines))
    save_parameters(net, out / 'model.params')


def save_parameters(net, path):
    """Write a .params file as Gluon does, whole or not at all."""
    with replacing(path) as part:
        try:
            net.save_parameters(Name(part))
            # A disk that is full at the last bytes goes unnoticed there
            npx.load(Name(part))
        except mx.MXNetError as error:
            raise OSError(f'{path} cannot be written whole (is the disk '
                          f'full?): {last_line(error)}') from None


def last_line(error):
    """What an error says; MXNet's own begin with a traceback."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


@contextlib.contextmanager
def copied_output(lines, quiet=False):
    """Append what is printed meanwhile to the list `lines`."""
    class Tee:
        def write(self, text):
            lines.append(text)
            return len(text) if quiet else stdout.write(text)

        def flush(self):
            stdout.flush()
    stdout = sys.stdout
    with contextlib.redirect_stdout(Tee()):
        yield


def load_run(folder, ctx=None):
    """The net and vocabulary of a run folder, as (net, vocab)."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f'there is no run folder {folder}')
    config = read_config(folder)
    try:
        if not isinstance(config, dict) or 'model' not in config:
            raise ValueError('it says nothing of one')
        net = BERTModel(**config['model'])
    except (ValueError, TypeError, OverflowError) as error:
        raise RunError(f'{folder / "config.json"} does not describe a model: '
                       f'{error}') from None
    vocab = Vocab.load(folder / 'vocab.txt')
    if len(vocab) != net.config['vocab_size']:
        raise RunError(f'{folder / "vocab.txt"} has {len(vocab)} entries, '
                       f'but the model {net.config["vocab_size"]}')
    load_parameters(net, folder / 'model.params', ctx)
    net.vocab = vocab
    return net, vocab


def read_config(folder):
    """What config.json of the finished run in `folder` says."""
    for name in ('config.json', 'vocab.txt'):
        if not (folder / name).is_file():
            raise RunError(f'{folder} is not a run folder: it has no {name}')
    if not (folder / 'model.params').is_file():
        raise RunError(f'the run in {folder} was not finished: go on with '
                       f'd2lbert pretrain --resume {quote(str(folder))}')
    try:
        return json.loads((folder / 'config.json').read_text('utf-8'))
    except ValueError as error:
        raise RunError(f'{folder / "config.json"} is damaged: {error}'
                       ) from None


def load_parameters(net, path, ctx=None):
    """Load a .params file into net; `RunError` where it does not fit."""
    try:
        net.load_parameters(Name(path), ctx=ctx or mx.cpu())
    except (mx.MXNetError, AssertionError, ValueError, OSError) as error:
        raise RunError(f'{path} does not hold the parameters of this model '
                       f'(damaged, or of another one): {last_line(error)}'
                       ) from None
