"""Run folders: what `d2lbert pretrain` leaves and `d2lbert encode` reads."""
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as onp

import d2lbert
from d2lbert import hub
from d2lbert._mxnet import gluon, init, mx
from d2lbert.bert import BERTModel
from d2lbert.bert_dataset import load_data
from d2lbert.bert_pretraining import train_bert
from d2lbert.devices import parse_devices
from d2lbert.files import new_run_folder, write_text
from d2lbert.text import Vocab


class RunError(ValueError):
    """Why a run folder cannot be written or read, in one sentence."""


#: What `pretrain` does without arguments: the chapter's own settings.
CHAPTER = dict(batch_size=512, max_len=64, num_hiddens=128,
               ffn_num_hiddens=256, num_heads=2, num_layers=2, dropout=0.2,
               lr=0.01, num_steps=50, log_interval=1)


def load_corpus(corpus, batch_size, max_len, data_dir=None):
    """Batches and vocabulary of 'sample', 'wikitext-2' or a text file."""
    if corpus == 'sample':
        folder = hub.sample_dir()
    elif corpus == 'wikitext-2':
        folder = hub.wikitext2_dir(data_dir)
    else:
        return load_data(corpus, batch_size, max_len)
    return load_data(Path(folder, 'wiki.train.tokens'), batch_size, max_len)


def seed_everything(seed):
    """Seed `random`, NumPy and MXNet, on every device."""
    random.seed(seed)
    onp.random.seed(seed % 2 ** 32)
    mx.random.seed(seed)


def pretrain(corpus='wikitext-2', data_dir=None, devices='auto', seed=None,
             out=None, force=False, **settings):
    """Pretrain BERT and leave a run folder; returns its path.

    `settings` are those of `CHAPTER`, with its values where one is not given.
    """
    unknown = sorted(set(settings) - set(CHAPTER))
    if unknown:
        raise TypeError(f'unknown setting {", ".join(unknown)}: there are '
                        f'{", ".join(CHAPTER)}')
    settings = {**CHAPTER, **settings}
    out = new_run_folder() if out is None else Path(out)
    refuse_to_overwrite(out, force)
    contexts = parse_devices(devices)
    seed = int.from_bytes(os.urandom(4), 'little') if seed is None else seed
    seed_everything(seed)
    batches, vocab = load_corpus(corpus, settings['batch_size'],
                                 settings['max_len'], data_dir)
    net = BERTModel(len(vocab), settings['num_hiddens'],
                    settings['ffn_num_hiddens'], settings['num_heads'],
                    settings['num_layers'], settings['dropout'])
    net.initialize(init.Xavier(), ctx=contexts)
    loss = gluon.loss.SoftmaxCELoss()
    with new_folder(out, force) as folder, copied_output(folder / 'log.txt'):
        train_bert(batches, net, loss, len(vocab), contexts,
                   settings['log_interval'], settings['num_steps'],
                   learning_rate=settings['lr'], out=folder)
        net.save_parameters(str(folder / 'model.params'))
        vocab.save(folder / 'vocab.txt')
        config = dict(d2lbert=d2lbert.__version__, model=net.config,
                      training=dict(settings, corpus=str(corpus), seed=seed,
                                    devices=[str(c) for c in contexts]))
        write_text(folder / 'config.json',
                   json.dumps(config, indent=2, ensure_ascii=False) + '\n')
    return out


def refuse_to_overwrite(out, force):
    """Raise `RunError` where a run cannot go to the folder `out`."""
    if out.exists() and not force:
        raise RunError(f'{out} exists already: choose another --out, or give '
                       '--force to replace it')
    if out.exists() and not (out / 'config.json').is_file() and (
            not out.is_dir() or any(out.iterdir())):
        raise RunError(f'{out} is not a run folder, so --force does not '
                       'replace it: choose another --out')


@contextlib.contextmanager
def new_folder(out, force=False):
    """Yield a temporary folder that becomes `out` when all went well."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent))
    try:
        part.chmod(0o777 & ~_umask())       # mkdtemp lets nobody else read
        yield part
        refuse_to_overwrite(out, force)
        if out.exists():
            shutil.rmtree(out)
        os.replace(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def copied_output(path):
    """Copy what is printed meanwhile to the file `path`."""
    class Tee:
        def write(self, text):
            file.write(text)
            return stdout.write(text)

        def flush(self):
            file.flush()
            stdout.flush()
    stdout = sys.stdout
    with open(path, 'w', encoding='utf-8') as file:
        with contextlib.redirect_stdout(Tee()):
            yield


def load_run(folder, ctx=None):
    """The net and vocabulary of a run folder, as (net, vocab)."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f'there is no run folder {folder}')
    for name in ('config.json', 'vocab.txt', 'model.params'):
        if not (folder / name).is_file():
            raise RunError(f'{folder} is not a run folder: it has no {name}')
    try:
        config = json.loads((folder / 'config.json').read_text('utf-8'))
        net = BERTModel(**config['model'])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f'{folder / "config.json"} does not describe a model: '
                       f'{error}') from None
    vocab = Vocab.load(folder / 'vocab.txt')
    if len(vocab) != net.config['vocab_size']:
        raise RunError(f'{folder / "vocab.txt"} has {len(vocab)} entries, '
                       f'but the model {net.config["vocab_size"]}')
    load_parameters(net, folder / 'model.params', ctx)
    net.vocab = vocab
    return net, vocab


def load_parameters(net, path, ctx=None):
    """Load a .params file into net; `RunError` where it does not fit."""
    try:
        net.load_parameters(str(path), ctx=ctx or mx.cpu())
    except (mx.MXNetError, AssertionError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RunError(f'{path} does not hold the parameters of this model '
                       f'(damaged, or of another one): {reason}') from None
