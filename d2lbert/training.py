"""Training to rely on: recipes, resuming, held-out figures, many devices.

The page's `train_bert` and `pretrain` here go through the same `run_steps`;
what is added lies around it. All random numbers of a run come from its seed,
the epoch and the step, so that a run that goes on is the run that never
stopped.
"""
import contextlib
import functools
import hashlib
import math
import numbers
import os
import signal
import sys
import threading
from pathlib import Path
from shlex import quote

import numpy as onp

from d2lbert import checkpoints, hub, launch
from d2lbert._mxnet import autograd, gluon, init, mx, np
from d2lbert._version import __version__
from d2lbert.bert import BERTModel
from d2lbert.bert_dataset import Batch
from d2lbert.bert_pretraining import (
    History,
    _get_batch_bert,
    _get_batch_loss_bert,
    no_gradient,
    run_steps,
)
from d2lbert.corpus import SPLITS, open_corpus
from d2lbert.devices import parse_devices
from d2lbert.evaluation import Figures, evaluate
from d2lbert.files import free_name, new_run_folder, write_text
from d2lbert.progress import Animator
from d2lbert.recipes import BOOK, RECIPES, SOURCE
from d2lbert.runs import (
    RunError,
    claim,
    copied_output,
    load_run,
    read_config,
    refuse_to_overwrite,
    write_config,
    write_run,
)


def pretrain(out=None, force=False, resume=None, devices='auto', **keywords):
    """Pretrain BERT and leave a run folder; returns its path.

    Keywords are those of `SOURCE` and of `BOOK`, with the values of the
    recipe where one is not given. corpus: 'wikitext-2', 'sample', a text
    file or a list of them. resume: a run folder, or one of its checkpoints,
    to go on with; of the settings only those in `RENEWABLE` may then be
    given anew. Under `d2lbert launch` each worker takes its part of every
    batch.
    """
    if resume is None:
        out = new_run_folder() if out is None else Path(out)
        run = Run(out, complete(keywords), devices)
        refuse_to_overwrite(out, force)
        run.force = force
    else:
        if out is not None or force:
            raise ValueError('a resumed run stays in its folder: give '
                             'neither --out nor --force with --resume')
        run = _resumed(Path(resume), keywords, devices)
    with run.stopping_politely():
        run.prepare()
        run.train()
    return run.out


#: Rows of the table of positions, as the book has them, or more.
POSITIONS = 1000

#: What a run that goes on may be given anew: its end, and where the same
#: text lies now.
RENEWABLE = ('num_steps', 'save_every', 'eval_every', 'corpus', 'valid',
             'data_dir', 'vocab')


def complete(keywords):
    """All settings of a run: those given, the recipe's, a seed."""
    recipe = keywords.get('recipe', 'book')
    if recipe not in RECIPES:
        raise ValueError(f'there is no recipe {recipe!r}: choose '
                         f'{" or ".join(RECIPES)}')
    known = {**SOURCE, **RECIPES[recipe]}
    unknown = sorted(set(keywords) - set(known))
    if unknown:
        raise TypeError(f'unknown setting {", ".join(unknown)}: there are '
                        f'{", ".join(known)}')
    settings = {**known, **keywords}
    if settings['seed'] is None:
        settings['seed'] = int.from_bytes(os.urandom(4), 'little')
    for name in ('corpus', 'valid', 'data_dir', 'vocab'):
        settings[name] = _as_text(name, settings[name])
    for name, default in dict(BOOK, valid_share=0.0).items():
        settings[name] = _of_kind(name, settings[name], type(default))
    for name in ('seed', 'eval_every', 'save_every'):
        if settings[name] is not None:
            settings[name] = _of_kind(name, settings[name], int)
    _check_settings(settings)
    return settings


def _of_kind(name, value, kind):
    """The setting as Python's own int, float, bool or str, for JSON."""
    if kind is str and isinstance(value, str):
        return value
    if kind is bool and isinstance(value, (bool, onp.bool_)):
        return bool(value)
    if (kind in (int, float) and isinstance(value, numbers.Real)
            and not isinstance(value, bool)):
        # Infinity is no whole number, and int() cannot say so
        if kind is float or math.isfinite(value) and int(value) == value:
            return kind(value)
    what = {str: 'a name', bool: 'True or False', int: 'a whole number',
            float: 'a number'}[kind]
    raise (ValueError if kind is int and isinstance(value, numbers.Real)
           else TypeError)(f'{name} must be {what}, not {value!r}')


def _as_text(name, paths):
    """Paths as strings, which config.json and checkpoints can hold.

    A list of one is the one.
    """
    if isinstance(paths, (list, tuple)):
        texts = [_as_text(name, path) for path in paths]
        return texts[0] if len(texts) == 1 else texts
    if paths is None or isinstance(paths, (str, Path)):
        return None if paths is None else str(paths)
    raise TypeError(f'{name} must be the path of a file, not a '
                    f'{type(paths).__name__}')


def _check_settings(s):
    for name in ('batch_size', 'num_steps', 'log_interval', 'accumulate',
                 'eval_every', 'save_every'):
        if s[name] is not None and s[name] < 1:
            raise ValueError(f'{name} must be a whole number of at least 1, '
                             f'not {s[name]}')
    for name in ('lr', 'weight_decay', 'clip', 'warmup', 'valid_share'):
        if not 0 <= s[name] < math.inf:
            raise ValueError(f'{name} must be finite and not negative, not '
                             f'{s[name]}')
    for name in ('warmup', 'valid_share'):
        if s[name] >= 1:
            raise ValueError(f'{name} is a share and must lie below 1, not '
                             f'{s[name]}')
    for name, choices in (('decay', ('none', 'linear')),
                          ('initializer', ('xavier', 'normal')),
                          ('split', SPLITS)):
        if s[name] not in choices:
            raise ValueError(f'{name} must be {" or ".join(choices)}, not '
                             f'{s[name]!r}')
    if s['batch_size'] % s['accumulate']:
        raise ValueError(f'accumulate={s["accumulate"]} does not divide '
                         f'batch_size={s["batch_size"]}')
    if s['data_dir'] is not None and s['corpus'] != 'wikitext-2':
        raise ValueError('data_dir (--data-dir) says where WikiText-2 is, '
                         'and corpus (--corpus) names another text: leave '
                         'one of them out')


def _resumed(path, keywords, devices):
    """The `Run` that a run folder or a checkpoint holds."""
    if path.is_dir():
        found = checkpoints.all_of(path)
        if not found:
            raise RunError(f'{path} has no checkpoint to resume from')
        path = found[-1]
    state, arrays = checkpoints.load(path)
    run = path.parent.parent
    if path.parent != checkpoints.folder_of(run) or not (
            run / 'config.json').is_file():
        raise RunError(f'{path} does not lie in the folder '
                       f'{checkpoints.folder_of("RUN")} of a run: resume '
                       'from where it was written')
    saved = _saved_settings(path, state)
    fixed = sorted(name for name, value in keywords.items()
                   if name not in RENEWABLE and value != saved.get(name))
    if fixed:
        raise ValueError(f'a resumed run keeps its settings: '
                         f'{", ".join(fixed)} cannot be changed, only '
                         f'{", ".join(RENEWABLE)} and devices')
    run = Run(run, complete({**saved, **keywords}), devices)
    run.claimed, run.checkpoint = True, (path, state, arrays)
    return run


def _saved_settings(path, state):
    try:
        return complete(dict(state['settings']))
    except (ValueError, TypeError, OverflowError) as error:
        raise checkpoints.CheckpointError(
            f'{path} is damaged: its settings are those of no run '
            f'({error})') from None


def read_corpus(settings):
    """The `Text` that the settings name, with its held-out part."""
    corpus, valid = settings['corpus'], settings['valid']
    if corpus == 'wikitext-2':
        folder = hub.wikitext2_dir(settings['data_dir'])
        corpus = folder / hub.TRAIN_FILE
        if valid is None and (folder / hub.VALID_FILE).is_file():
            valid = folder / hub.VALID_FILE
    elif corpus == 'sample':
        corpus = hub.sample_dir() / hub.TRAIN_FILE

    def paths(files):
        return [files] if isinstance(files, (str, Path)) else files
    share = settings['valid_share'] if settings['eval_every'] else 0.0
    return open_corpus(
        paths(corpus), valid_paths=None if valid is None else paths(valid),
        valid_share=share if valid is None else 0.0,
        split=settings['split'], vocab=settings['vocab'],
        progress=sys.stderr.isatty())


class Run:
    """One run: its settings, its net, its place in the data, its history."""

    def __init__(self, out, settings, devices):
        self.out, self.settings = out, settings
        self.devices = parse_devices(devices)
        self.force = self.claimed = False
        self.checkpoint = None
        self.history = RunHistory()
        self.position, self.epoch = (0, 0), 0
        self.stop_asked = self.started = self.shares_losses = False
        self.rank, self.num_workers = launch.rank(), launch.num_workers()
        self.num_devices = len(self.devices) * self.num_workers

    def prepare(self):
        """Read the corpus, make net and trainer, restore a checkpoint."""
        s = self.settings
        self.text = read_corpus(s)
        self.vocab = self.text.vocab
        if s['eval_every']:
            if self.text.valid is None:
                raise ValueError('eval_every needs held-out text: name some '
                                 'as valid (--valid), or raise valid_share '
                                 '(--valid-share)')
            # Text of which no pair fits is refused now, not hours later
            next(held_out_batches(self.text.valid, s['batch_size'],
                                  s['max_len']))
        mx.random.seed(s['seed'] % 2 ** 31)
        self.net = BERTModel(
            len(self.vocab), s['num_hiddens'], s['ffn_num_hiddens'],
            s['num_heads'], s['num_layers'], s['dropout'],
            max_len=max(POSITIONS, s['max_len']), precision=s['precision'])
        self.net.vocab = self.vocab
        self.net.initialize(
            init.Xavier() if s['initializer'] == 'xavier'
            else init.Normal(0.02), ctx=self.devices)
        self.loss = gluon.loss.SoftmaxCELoss()
        self._infer_shapes()
        if s['accumulate'] > 1:
            self.net.collect_params().setattr('grad_req', 'add')
        self.trainer = gluon.Trainer(
            self.net.collect_params(), 'adam', {'learning_rate': s['lr']},
            kvstore=launch.kvstore() if self.num_workers > 1 else 'device',
            update_on_kvstore=False)
        if self.checkpoint is not None:
            self._restore(*self.checkpoint)

    def _infer_shapes(self):
        """One small forward pass, so that every weight exists."""
        for device in self.devices:
            ones = np.zeros((1, 2), dtype='int32', ctx=device)
            self.net(ones, ones, None, ones)

    def _restore(self, path, state, arrays):
        if self.text.fingerprint != state['fingerprint']:
            raise RunError(
                f'the corpus of {path} has changed since (a file, what '
                '--eval-every holds out, or the version of Unicode or NLTK '
                'that cuts it): resume with what it was')
        checkpoints.restore(path, state, arrays, self.net, self.trainer)
        try:
            self.history = RunHistory.from_dict(state['history'])
            self.epoch = int(state['epoch'])
            self.position = tuple(map(int, state['position']))
        except (ValueError, TypeError, KeyError) as error:
            raise checkpoints.CheckpointError(
                f'{path} is damaged: it does not say where its run was '
                f'({error})') from None
        if self.history.num_steps > self.settings['num_steps']:
            raise ValueError(
                f'num_steps={self.settings["num_steps"]} is less than the '
                f'{self.history.num_steps} steps that were taken up to '
                f'{path}: name more, or an earlier checkpoint')
        for what, now in (('devices', self.num_devices),
                          ('workers', self.num_workers)):
            before = state[f'num_{what}']
            if before != now:
                self.say(f'the number of {what} was {before} when {path} was '
                         f'written and is {now} now: the parameters are the '
                         'same, the stream of dropout is not')
                break
        if self.rank == 0:
            checkpoints.sweep(self.out)

    def say(self, line):
        """A line for whoever looks on, from one worker only."""
        if self.rank == 0:
            print(line, file=sys.stderr)

    def train(self):
        """Take the steps that are left, then write the run folder."""
        s, history = self.settings, self.history
        legend = ['mlm', 'nsp']
        if s['eval_every']:
            legend += ['held-out mlm', 'held-out nsp']
        self.animator = Animator(xlabel='step', ylabel='loss', legend=legend,
                                 xlim=[1, s['num_steps']])
        for point in zip(history.step, zip(history.mlm, history.nsp)):
            self.animator.add(*point)
        for step, figures in history.held_out.items():
            self._draw(step, figures)
        self.started = True
        with copied_output(history.log_lines, quiet=self.rank != 0):
            run_steps(self._steps(), s['num_steps'], s['log_interval'],
                      history, self.devices, self.animator, self._after)
        if self.rank == 0:
            complete_run = functools.partial(
                write_run, net=self.net, history=history,
                animator=self.animator)
            if self.claimed:
                # A resumed run may have more steps than when it began, and
                # until all is written it counts as not finished
                with contextlib.suppress(FileNotFoundError):
                    (self.out / 'model.params').unlink()
                write_config(self.out, self._config())
                complete_run(self.out)
            else:
                self._claim(complete_run)

    def _claim(self, complete_run=None):
        """Make the run folder at the first write, unless one is resumed."""
        if not self.claimed:
            try:
                refuse_to_overwrite(self.out, self.force)
            except RunError:
                # Another run was faster; this one's training is not lost
                taken, self.out = self.out, free_name(self.out)
                if self.out == taken:
                    raise       # it is the place that will not do
                self.say(f'{taken} was made by another in the meantime: '
                         f'this run is in {self.out}')
            claim(self.out, self._config(), self.vocab, complete_run)
            self.claimed = True

    def _draw(self, step, figures):
        self.animator.add(step, (None, None, figures.mlm_loss,
                                 figures.nsp_loss))

    def _config(self):
        return dict(d2lbert=__version__, model=self.net.config,
                    fingerprint=self.text.fingerprint,
                    training=dict(self.settings,
                                  devices=[str(c) for c in self.devices]))

    def _after(self, step):
        """What is due behind a step: figures, a checkpoint, the end."""
        s = self.settings
        if self.rank == 0 and s['eval_every'] and (
                step % s['eval_every'] == 0 or step == s['num_steps']):
            figures = self._evaluate()
            self.history.held_out[step] = figures
            self._draw(step, figures)
            self.animator.say(
                f'step {step}: held-out MLM loss {figures.mlm_loss:.3f}, '
                f'accuracy {figures.mlm_accuracy:.3f} (of known words '
                f'{figures.known_accuracy:.3f}, {figures.unknown_share:.0%} '
                f'are <unk>); NSP loss '
                f'{figures.nsp_loss:.3f}, accuracy '
                f'{figures.nsp_accuracy:.3f}')
        if s['save_every'] and (step % s['save_every'] == 0
                                or step == s['num_steps']):
            self._save()
        # Among several workers all losses are there when they are logged
        if (self.stop_asked and step < s['num_steps']
                and (self.num_workers == 1 or step % s['log_interval'] == 0)):
            self._save()
            way_on = '' if self.num_workers > 1 else (
                f'; go on with: d2lbert pretrain --resume '
                f'{quote(str(self.out))}')
            raise Stopped(f'stopped at step {step}{way_on}')

    def _evaluate(self):
        s = self.settings
        return evaluate(self.net, held_out_batches(
            self.text.valid, s['batch_size'], s['max_len']), self.devices)

    def _save(self):
        self.history.settle()       # all workers at once: they share losses
        if self.rank != 0:
            return
        self._claim()
        checkpoints.save(
            self.out, self.history.num_steps,
            dict(settings=self.settings, history=self.history.to_dict(),
                 epoch=self.epoch, position=list(self.position),
                 fingerprint=self.text.fingerprint,
                 num_devices=self.num_devices,
                 num_workers=self.num_workers),
            self.net, self.trainer)

    def _batches(self):
        """This run's batches from where it stands, without end."""
        s = self.settings
        while True:
            for position, batch in self.text.train.batches(
                    s['batch_size'], s['max_len'], seed=s['seed'],
                    epoch=self.epoch, start=self.position,
                    dynamic=s['dynamic'], fill=s['fill']):
                self.position = position
                yield batch
            self.epoch, self.position = self.epoch + 1, (0, 0)

    def _steps(self):
        """Steps for `run_steps`: each reads its losses when it is asked."""
        for batch in self._batches():
            step = self.history.num_steps + 1
            # So dropout depends on the step and not on what came before
            mx.random.seed(_mix(self.settings['seed'], step, self.rank))
            mlm_ls, nsp_ls = self._gradients(batch)
            self._update(step)
            yield (functools.partial(self._total, mlm_ls, nsp_ls),
                   len(batch.tokens_X))

    def _gradients(self, batch):
        """Gradients of the batch's two mean losses, whatever the split.

        Each part (of `accumulate`, on each device of each worker) counts by
        its share of the batch's predictions and pairs.
        """
        predictions, pairs = batch.mlm_weights_X.sum(), len(batch.tokens_X)
        mine = part_of(batch, self.rank, self.num_workers)
        if self.settings['accumulate'] > 1:
            no_gradient(self.net, self.devices)
        mlm_ls, nsp_ls, used = [], [], 0
        for k in range(self.settings['accumulate']):
            part = part_of(mine, k, self.settings['accumulate'])
            if not len(part.tokens_X):
                continue
            shards = _get_batch_bert(part, self.devices)
            with autograd.record():
                losses = _get_batch_loss_bert(
                    self.net, self.loss, len(self.vocab), *shards)
                scaled = []
                for mlm_l, nsp_l, weights, nsp_y in zip(
                        *losses[:2], shards.mlm_weights_X, shards.nsp_y):
                    share = float(weights.sum()) / max(predictions, 1)
                    mlm_ls.append(mlm_l * share)
                    nsp_ls.append(nsp_l * (len(nsp_y) / pairs))
                    scaled.append(mlm_ls[-1] + nsp_ls[-1])
            autograd.backward(scaled)
            used = max(used, len(scaled))
        no_gradient(self.net, self.devices[used:])
        return mlm_ls, nsp_ls

    def _update(self, step):
        """Add up gradients of all devices and workers; clip; step."""
        s = self.settings
        lr = s['lr'] * schedule(step, s['num_steps'], s['warmup'], s['decay'])
        self.trainer.set_learning_rate(lr)
        self.trainer.allreduce_grads()
        params = [p for p in self.net.collect_params().values()
                  if p.grad_req != 'null']
        divisor = 1.0
        if s['clip']:
            divisor = max(1.0, gradient_norm(params, self.devices[0])
                          / s['clip'])
        if s['weight_decay']:
            decay_weights(params, lr * s['weight_decay'])
        # The optimizer divides as it reads: no pass over the gradients more
        self.trainer.update(divisor)

    def _total(self, mlm_ls, nsp_ls):
        """The step's MLM and NSP losses, summed over all who took part."""
        totals = [sum(map(float, ls)) for ls in (mlm_ls, nsp_ls)]
        if self.num_workers > 1:
            # The trainer's keys are the parameters' numbers
            store, key = self.trainer._kvstore, len(self.trainer._params)
            both = np.array(totals, dtype='float32')
            if not self.shares_losses:
                self._compare_with_the_first(store, key)
                self.shares_losses = True
            store.pushpull(key, both, out=both)
            totals = both.tolist()
        return totals

    def _compare_with_the_first(self, store, key):
        """Raise `RunError` where this worker trains on something else."""
        # As two halves, each of which float32 holds exactly
        mine = np.array(divmod(_mix(self.settings, self.text.fingerprint),
                               1 << 16), dtype='float32')
        first = np.zeros(2, dtype='float32')
        store.broadcast(key, mine, first)
        if mine.tolist() != first.tolist():
            raise RunError(
                f'worker {self.rank} has other settings or another text than '
                'the first: name a --corpus that is the same on every host')

    @contextlib.contextmanager
    def stopping_politely(self):
        """Let the first Ctrl-C end the run behind a step, with a checkpoint.

        Among several workers, worker 0 saves when losses are next logged,
        and the launcher ends the others. Where Ctrl-C is ignored, as behind
        nohup, it stays so.
        """
        if (threading.current_thread() is not threading.main_thread()
                or signal.getsignal(signal.SIGINT) is signal.SIG_IGN
                or self.rank != 0):
            yield
            return

        def ask(*_):
            if self.stop_asked or not self.started:
                raise KeyboardInterrupt(
                    'stopped; what was saved before is whole' if self.claimed
                    else 'stopped; nothing was written')
            self.stop_asked = True
        before = signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before or signal.SIG_DFL)


class Stopped(KeyboardInterrupt):
    """A run was stopped with Ctrl-C and saved; the text says how to go on."""


class RunHistory(History):
    """A `History` with held-out figures and log lines, for checkpoints."""

    def __init__(self):
        super().__init__()
        self.held_out, self.log_lines = {}, []

    def save_csv(self, path):
        """Write a row for each logged step, with the held-out figures."""
        if not self.held_out:
            super().save_csv(path)
            return
        logged = {row[0]: row for row in zip(
            *(getattr(self, name) for name in self.columns))}
        lines = [','.join(self.columns + tuple(
            f'held_out_{name}' for name in Figures._fields))]
        for step in sorted({*logged, *self.held_out}):
            row = logged.get(step, (step,) + ('',) * (len(self.columns) - 1))
            row += self.held_out.get(step, ('',) * len(Figures._fields))
            lines.append(','.join(x if x == '' else repr(x) for x in row))
        write_text(path, '\n'.join(lines) + '\n')

    def to_dict(self):
        """All of it as what JSON can hold, exactly."""
        return dict({name: getattr(self, name) for name in self.columns},
                    sums=self.sums.data, seconds=self.seconds,
                    held_out=list(self.held_out.items()),
                    log_lines=self.log_lines)

    @classmethod
    def from_dict(cls, state):
        """The history that `to_dict` wrote."""
        history = cls()
        for name in (*cls.columns, 'seconds', 'log_lines'):
            setattr(history, name, state[name])
        history.sums.data = state['sums']
        history.held_out = {step: Figures(*figures)
                            for step, figures in state['held_out']}
        return history


def part_of(batch, k, n):
    """The k-th of n nearly equal parts of a batch's rows."""
    rows = len(batch.tokens_X)
    return Batch(*(column[k * rows // n:(k + 1) * rows // n]
                   for column in batch))


def held_out_batches(part, batch_size, max_len):
    """Always the same batches of a held-out text."""
    return (batch for _, batch in part.batches(batch_size, max_len, seed=0,
                                               dynamic=False))


def schedule(step, num_steps, warmup, decay):
    """What the learning rate is multiplied by at `step` (from 1).

    It rises over the share `warmup` of all steps, then falls to nearly 0
    with decay='linear', or stays.
    """
    rising = warmup * num_steps
    if step < rising:
        return step / rising
    if decay == 'none':
        return 1.0
    return (num_steps + 1 - step) / (num_steps + 1 - rising)


def gradient_norm(params, device):
    """The common norm of all gradients on a device, a float."""
    grads = [param.grad(device).reshape(-1) for param in params]
    if device.device_type == 'cpu':
        # NumPy's dot product takes half as long as MXNet's
        grads = [grad.asnumpy() for grad in grads]
        return math.sqrt(sum(float(grad.dot(grad)) for grad in grads))
    return math.sqrt(float(sum(np.dot(grad, grad) for grad in grads)))


def decay_weights(params, share):
    """Decoupled weight decay (Loshchilov and Hutter 2019) of matrices.

    Biases and the scales and shifts of LayerNorm are left alone.
    """
    for param in params:
        if len(param.shape) > 1:
            for weight in param.list_data():
                weight *= 1 - share


def _mix(*numbers):
    """One seed for MXNet out of several numbers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest()
    return int.from_bytes(digest, 'little') >> 1


def evaluate_run(folder, corpus=None, devices='auto'):
    """The `Figures` of a run on its held-out text, or on another one.

    corpus: as for `pretrain`; of one with a held-out part, that part.
    """
    contexts = parse_devices(devices)
    net, vocab = load_run(folder, contexts)
    training, fingerprint = _settings_of(Path(folder))
    if corpus is not None:
        text = read_corpus(dict(SOURCE, corpus=_as_text('corpus', corpus),
                                vocab=vocab, split=training['split']))
        part = text.valid or text.train
    else:
        if training['vocab'] is not None:
            training['vocab'] = vocab       # its file may be gone
        text = read_corpus(training)
        if text.fingerprint != fingerprint:
            raise RunError(
                f'the corpus of {folder} has changed since it was trained on '
                '(a file, or the version of Unicode or NLTK that cuts it), '
                'so what was held out is not known: name files with --corpus')
        # Without --eval-every all of a text was trained on
        part = text.valid
    if part is None:
        raise RunError(f'the corpus of {folder} has no held-out text: name '
                       'files with --corpus')
    return evaluate(net, held_out_batches(part, training['batch_size'],
                                          training['max_len']), contexts)


def _settings_of(folder):
    """The settings of the finished run in `folder`, and its text's name."""
    try:
        config = dict(read_config(folder))
        training = dict(config['training'])
        training.pop('devices', None)
        return complete(training), config['fingerprint']
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(f'{folder / "config.json"} does not describe a run: '
                       f'{error}') from None
