"""A run: steps towards an objective, with all that makes them trustworthy.

All random numbers of a run come from its seed, the epoch and the step, so
that a run that goes on is the run that never stopped.
"""
import functools
import math
import time
from shlex import quote

from d2lbert import kernels
from d2lbert._version import __version__
from d2lbert.devices import parse_devices
from d2lbert.machine import workers
from d2lbert.machine.backend import mx
from d2lbert.machine.files import write_text
from d2lbert.machine.hardware import described
from d2lbert.machine.terminal import note, warn
from d2lbert.nn.steps import about, run_steps
from d2lbert.progress import Animator
from d2lbert.training import checkpoints
from d2lbert.training.best_weights import Best
from d2lbert.training.data_position import Place
from d2lbert.training.divergence import Diverged, Growth
from d2lbert.training.history import RunHistory
from d2lbert.training.interrupts import Stopped, StopRequest
from d2lbert.training.run_folder import check_room
from d2lbert.training.saved_runs import RunError, last_line, write_run
from d2lbert.training.schedule import batch_size, pace_of
from d2lbert.training.updater import Updater, seed_dropout
from d2lbert.training.weight_average import Average

#: What the first worker asks of all of them.
STOP, SAVE = 1, 2

#: How the losses are drawn, and behind them the held-out ones.
LINES = '-', 'm--', 'g-.', 'r:', 'c-', 'y--', 'k-.', 'b:'

#: Seconds between the checkpoints of a run that was not told when to save.
SAVE_SECONDS = 300


class Run:
    """One run: its objective, its net, its place in the data, its history.

    make_objective(settings, vocab): the objective, see `objectives`; vocab
    is that of a checkpoint, or None. stop: a `StopRequest`. A run that is
    resumed has a `checkpoint`: (path, state, arrays).
    """

    def __init__(self, make_objective, settings, devices, stop=None):
        self.make_objective, self.settings = make_objective, settings
        self.devices = parse_devices(devices)
        self.stop = stop or StopRequest()
        self.folder = self.checkpoint = self.wanted = None
        self.place = Place()
        self.saved_by_itself = False
        self.orders = self.steps_taken = 0
        self.rank, self.num_workers = workers.rank(), workers.num_workers()
        self.num_devices = len(self.devices) * self.num_workers

    @property
    def out(self):
        """Where the run folder is now; None in all workers but the first."""
        return self.folder and self.folder.path

    def take_folder(self, take, *args):
        """Take the folder that `take(*args)` gives, as the first worker."""
        if self.rank == 0:
            with self.stop.held():
                self.folder = take(*args)
            if self.folder.target != self.out:
                self.say(f'{self.folder.target} is replaced when the run is '
                         f'finished; until then it is in {self.out}')

    def close(self, keep=True):
        """Let go of the run folder; a new one is removed unless `keep`."""
        if self.folder is not None:
            self.folder.close(keep)

    def carry_out(self, take=None, *args):
        """Prepare, train and finish the run; returns its folder.

        take, args: as for `take_folder`, where there is no folder yet.
        """
        keep = False
        try:
            if take is not None:
                self.take_folder(take, *args)
            self.prepare()
            self.train()
            keep = True
        except mx.MXNetError as error:
            keep = self.steps_taken > 0
            raise RunError(
                f'MXNet failed behind step {self.steps_taken} '
                f'({last_line(error)}): where memory was short, lower '
                'batch_size (--batch-size) or raise accumulate '
                '(--accumulate)') from None
        except Exception:
            # A log of what was learnt is worth keeping; to an interrupted
            # run without a checkpoint somebody has said no
            keep = self.steps_taken > 0
            raise
        finally:
            self.stop.deaf = True   # or a second signal leaves half of it
            if self.folder is not None:
                self.close(keep or bool(checkpoints.all_of(self.out)))
        return self.out

    # Before the first step

    def prepare(self):
        """Make the objective, the net and what updates it; restore."""
        vocab = None
        if self.checkpoint is not None:
            path, _, arrays = self.checkpoint
            vocab = checkpoints.vocab_of(path, arrays)
        self.objective = self.make_objective(self.settings, vocab)
        mx.random.seed(self.settings['seed'] % 2 ** 31)
        self.net = self.objective.net(self.devices)
        self.eval_every = self.objective.eval_every
        self.history = RunHistory(
            self.objective.losses, self.objective.Figures, self.wanted)
        self.growth = Growth(self.history, self.objective.weights,
                             self.settings['lr'])
        self.pace = pace_of(self.settings, self.objective.num_steps,
                            self.history, self.num_workers)
        self.best = Best(self.objective, self.history, self.net)
        self.average = Average(self.net, self.settings.get('average', 0.0))
        self.updater = Updater(
            self.net, self.objective, self.settings, self.pace,
            self.devices,
            workers.kvstore() if self.num_workers > 1 else 'device',
            self.rank, self.num_workers)
        if self.checkpoint is not None:
            # Its memory is needed no longer than this
            checkpoint, self.checkpoint = self.checkpoint, None
            self._restore(*checkpoint)
            self.stop.last_words = 'stopped; what was saved before is whole'

    def _restore(self, path, state, arrays):
        for name, now in self.objective.recorded.items():
            if state.get(name) != now:
                what, why = self.objective.changed[name]
                raise RunError(f'{what} of {path} has changed since ({why}): '
                               'resume with what it was')
        checkpoints.restore(path, state, arrays, self.net,
                            self.updater.trainer)
        try:
            self.history.restore(state['history'])
            self.pace.restore(state, self.out)
            self.place.restore(state)
        except (ValueError, TypeError, KeyError) as error:
            raise checkpoints.CheckpointError(
                f'{path} is damaged: it does not say where its run was '
                f'({error})') from None
        self.pace.check(path)
        if not self.pace.is_over():
            self.history.drop_end(self.settings['log_interval'])
        for what, now in (('devices', self.num_devices),
                          ('workers', self.num_workers)):
            before = state[f'num_{what}']
            if before != now:
                self.say(f'the number of {what} was {before} when {path} was '
                         f'written and is {now} now: the parameters are the '
                         'same, the stream of dropout is not')
                break
        changed = kernels.products.resume(state.get('products'),
                                          *self._multiplies())
        if changed:
            self.say(f'{changed}: the parameters of {path} are the same, the '
                     'steps from here on differ by rounding')
        if self.rank == 0:
            checkpoints.sweep(self.out)
            self.best.restore(self.out, arrays)
        self.average.restore(path, arrays)

    def _multiplies(self):
        """The precision of products, and whether it is the fused operators
        that compute them."""
        return self.net.config['precision'], kernels.load() and all(
            device.device_type != 'gpu' for device in self.devices)

    def say(self, line):
        """A line for whoever looks on, from one worker only."""
        if self.rank == 0:
            note(line)

    # Steps

    def train(self):
        """Take the steps that are left, then write the run folder."""
        s, history = self.settings, self.history
        legend = list(history.losses)
        if self.eval_every:
            legend += [f'held-out {name}' for name, _ in zip(
                history.losses, self.objective.drawn)]
        self.animator = Animator(xlabel='step', ylabel='loss', legend=legend,
                                 xlim=self.pace.xlim, fmts=LINES,
                                 quiet=self.rank != 0)
        for step, *means in zip(history.step, *(
                getattr(history, name) for name in history.losses)):
            self.animator.add(step, means)
        for step, figures in history.held_out.items():
            self._draw(step, figures)
        if self.rank == 0:
            self._begin_folder()
        self.saved_at = time.monotonic()
        self.stop.patient = True
        run_steps(self.steps(), self.pace.is_over, s['log_interval'],
                  history, self.animator, self._after,
                  # Not its own count: the first batch may be a small one
                  lambda _: about(
                      self.net, self.pace.words, self.devices
                      if self.num_workers == 1 else f'{self.num_devices} '
                      f'devices of {self.num_workers} workers',
                      s['batch_size'], self.objective.unit))
        self.stop.deaf = True       # only files are left to be written
        if self.rank == 0:
            self._finish()

    def _batches(self):
        """This run's batches from where it stands, without end."""
        return self.place.batches(self.objective, self._batch_size)

    def _batch_size(self):
        s = self.settings
        return batch_size(s['batch_size'], s.get('grow_batch', 0.0),
                          self.pace.share(self.history.num_steps + 1))

    def steps(self):
        """Steps for `run_steps`: each reads its losses when it is asked."""
        batches = self._batches()
        while True:
            step = self.history.num_steps + 1
            self.pace.begin(step)
            batch = next(batches)
            seed_dropout(self.settings['seed'], step, self.rank)
            losses = self.updater.gradients(batch)
            self.updater.update(step)
            self.average.update(step)
            yield functools.partial(self._read, step, losses), len(batch[0])

    def _read(self, step, losses):
        """A step's losses; raises `Diverged` where one is no number."""
        totals = self._totals(losses)
        for name, total in zip(self.history.losses, totals):
            if not math.isfinite(total):
                self._diverged(step, f'the {name.upper()} loss is {total} in')
        if step == 1:
            self.history.first = list(totals)
        return totals

    def _totals(self, losses):
        """The step's losses, summed over all who took part.

        With them the first worker's orders come to all workers, so that
        all act on them behind the same step.
        """
        totals = [sum(map(float, added)) for added in losses]
        if self.num_workers > 1:
            *totals, orders = self.updater.over_all(
                [*totals, 0 if self.rank else self._orders()])
            self.orders = int(orders)
        return totals

    # Behind a step

    def _after(self, step):
        """What is due behind a step: figures, a checkpoint, the end."""
        s, last = self.settings, self.pace.is_over()
        self.steps_taken += 1
        if self.eval_every and (step % self.eval_every == 0 or last):
            self.history.read_losses()   # figures of a net that still works
            if self.rank == 0:
                self._note_held_out(step)
        if self.rank == 0:
            self.folder.append('losses.csv', self.history.last_csv_row(
                step, self._has_held_out()))
            if self.pace.file:
                self.folder.append(self.pace.file, self.pace.row(step))
            self._log(self.growth.line(step), warn)
        orders = self._orders() if self.num_workers == 1 else self.orders
        stopping = orders & STOP and not last
        if s['save_every']:
            due = step % s['save_every'] == 0 or last
        else:
            # One that has saved by itself can also be made longer
            due = orders & SAVE or last and self.saved_by_itself
            self.saved_by_itself |= bool(due)
        if due or stopping:
            self._save()
        if stopping:
            way_on = '' if self.num_workers > 1 else (
                f'; go on with: d2lbert {self.objective.command} --resume '
                f'{quote(str(self.out))}')
            raise Stopped(f'stopped at step {step}{way_on}'
                          if self.rank == 0 else '', self.stop.signal)

    def _log(self, line, say):
        """Keep a line in log.txt and say it; None for nothing to say."""
        if line is not None:
            self.history.log_lines.append(f'{line}\n')
            self.folder.append('log.txt', f'{line}\n')
            say(line)

    def _orders(self):
        """What the first worker wants all to do: STOP, SAVE, both, or 0."""
        overdue = (self.settings['save_every'] is None
                   and time.monotonic() - self.saved_at >= SAVE_SECONDS)
        return STOP * (self.stop.signal is not None) + SAVE * overdue

    def _note_held_out(self, step):
        with self.average.in_place():
            figures = self.objective.evaluate(self.net, self.devices)
        self.history.held_out[step] = figures
        self.best.note(self.out, step)
        self._draw(step, figures)
        self._log(f'step {step}: {self.objective.line(figures)}',
                  self.animator.say)

    def _draw(self, step, figures):
        self.animator.add(step, (
            *[None] * len(self.history.losses),
            *(getattr(figures, name) for name in self.objective.drawn)))

    def _save(self):
        self.history.read_losses()   # all workers at once: they share them
        self.orders, self.saved_at = 0, time.monotonic()
        if self.rank != 0:
            return
        self._check_finite()
        checkpoints.save(
            self.out, self.history.num_steps,
            dict(settings=self.settings, history=self.history.to_dict(),
                 **self.place.state(), **self.pace.state(),
                 **self.objective.recorded,
                 num_devices=self.num_devices,
                 num_workers=self.num_workers,
                 products=kernels.products.record(*self._multiplies())),
            self.net, self.updater.trainer,
            self.settings['keep'] if self.settings['save_every'] else 1,
            {**self.best.arrays(self.out), **self.average.arrays()})
        self.stop.last_words = 'stopped; what was saved before is whole'

    def _check_finite(self):
        """Raise `Diverged` where a parameter holds what is no number."""
        name = self.updater.not_finite()
        if name is not None:
            self._diverged(self.history.num_steps,
                           f'{name} is no longer finite after')

    def _diverged(self, step, what):
        saved = checkpoints.all_of(self.out) if self.rank == 0 else []
        raise Diverged.at(what, step, self.updater.rate(step), saved)

    # The folder

    def _begin_folder(self):
        num_bytes = 4 * sum(param.data(self.devices[0]).size for param in
                            self.net.collect_params().values())
        best, s = self.best.is_kept, self.settings
        # A checkpoint has both of Adam's moments, too, and the oldest goes
        # when the new one is there
        arrays, saved = 3 + bool(self.average.decay) + best, 0
        if s['save_every']:
            steps = self.objective.num_steps    # None where a clock decides
            saved = min([s['keep'] + 1] * bool(s['keep']) + (
                [math.ceil(steps / s['save_every'])] if steps else []),
                default=1)
        check_room(self.out, self.folder.target,
                   num_bytes * (1 + best + arrays * saved))
        self.folder.reserve(num_bytes)
        self.folder.begin(self._config(), self.objective.vocab, {
            'losses.csv': self.history.csv(self._has_held_out()),
            'log.txt': ''.join(self.history.log_lines), **self.pace.texts()})

    def _has_held_out(self):
        return bool(self.eval_every or self.history.held_out)

    def _finish(self):
        """Write what a finished run leaves, and only then print it."""
        self._log(self.growth.last_line(), warn)
        lines = self.objective.summary(self.history, self.devices)
        self.history.log_lines.append(f'{lines}\n')
        self._check_finite()
        self.folder.release()
        self.best.load(self.out, self.devices)
        self.average.put()
        # A resumed run may have more steps than when it began
        self.folder.write_config(self._config())
        for name, text in self.pace.texts().items():
            write_text(self.out / name, text)
        write_run(self.out, self.net, self.history, self.animator)
        self.best.close(self.out)
        kept_apart = self.folder.finish(self._config())
        if kept_apart:
            self.say(kept_apart)
        print(lines)

    def _config(self):
        return dict(d2lbert=__version__, model=self.net.config,
                    **self.objective.described(self.history),
                    fingerprint=self.objective.fingerprint,
                    machine=described(),
                    training=dict(self.settings,
                                  devices=[str(c) for c in self.devices]))
