"""Train a net on an objective: `Run` takes steps, logs, saves and resumes.

All random numbers of a run are derived from its seed, the epoch and the step.
Hence a resumed run equals the run that never stopped.
"""
import functools
import math

from d2lbert.devices import parse_devices
from d2lbert.machine import workers
from d2lbert.machine.backend import last_line, mx
from d2lbert.nn.steps import describe_training, run_steps
from d2lbert.training import checkpoints
from d2lbert.training.history import Diverged, LossGrowth, RunHistory
from d2lbert.training.hooks import (
    STOPPED_WITH_CHECKPOINT,
    CallbackHook,
    EvaluationHook,
    LogHook,
    SaveHook,
    draw_history,
)
from d2lbert.training.interrupts import StopRequest
from d2lbert.training.run_folder import begin_files, finish_files
from d2lbert.training.saved_runs import RunError
from d2lbert.training.schedule import grown_batch_size, schedule_of
from d2lbert.training.state import (
    BestWeights,
    Conditions,
    DataPosition,
    WeightAverage,
)
from d2lbert.training.updater import Updater, seed_dropout


class Run:
    """The training loop of an objective, with hooks after each step.

    make_objective(settings, vocab) returns an `Objective`; vocab is the
    vocabulary of a checkpoint, or None. settings: a dictionary. devices: as
    for `parse_devices`. stop: a `StopRequest`. wanted: a corpus that could
    not be had, see `RunHistory`. callback: see `pretrain`. To resume a run,
    set two attributes before `carry_out`: `checkpoint` to a `Checkpoint` of
    the run, and `settings` to all its settings.
    """

    def __init__(self, make_objective, settings, devices, stop=None,
                 wanted=None, callback=None):
        self.make_objective, self.settings = make_objective, settings
        self.devices = parse_devices(devices)
        self.stop = stop or StopRequest()
        self.wanted, self.checkpoint = wanted, None
        self.folder = None      # a `RunFolder` in the first worker
        self.resumed_step = 0   # the step of the restored checkpoint
        self.steps_taken = 0    # by this process
        self.user_hooks = [] if callback is None else [CallbackHook(callback)]

    @property
    def out(self):
        """The path of the run folder; None except in the first worker."""
        return None if self.folder is None else self.folder.path

    def open_folder(self, create, *args):
        """In the first worker, make the `RunFolder` by create(*args)."""
        if workers.rank() == 0:
            # After a signal before the assignment, `close` would do nothing
            with self.stop.delayed():
                self.folder = create(*args)

    def carry_out(self, create=None, *args):
        """Prepare, train and finish the run; return `out`.

        create, args: as for `open_folder`, if the run has no folder yet.
        """
        keeps_folder = False
        try:
            if create is not None:
                self.open_folder(create, *args)
            self.prepare()
            self.train()
            keeps_folder = True
        except mx.MXNetError as error:
            keeps_folder = self.steps_taken > 0
            raise RunError(
                f'MXNet failed after step '
                f'{self.resumed_step + self.steps_taken} '
                f'({last_line(error)}): if memory was short, lower '
                'batch_size (--batch-size) or raise accumulate '
                '(--accumulate)') from None
        except Exception:
            # Keep the logged losses. A signal raises `Interrupted`, which is
            # no Exception: then `close` keeps only a folder with checkpoints
            keeps_folder = self.steps_taken > 0
            raise
        finally:
            # A signal during `close` would leave half of a folder
            self.stop.ignores_all = True
            self.close(keeps_folder)
        return self.out

    def close(self, keep=True):
        """Close the run folder.

        A new folder without checkpoints is removed unless `keep`.
        """
        if self.folder is not None:
            self.folder.close(keep or bool(checkpoints.all_of(self.out)))

    # Before the first step

    def prepare(self):
        """Create all objects of the run; restore a checkpoint, if any."""
        s = self.settings
        vocab = (None if self.checkpoint is None else checkpoints.vocab_of(
            self.checkpoint.path, self.checkpoint.arrays))
        self.objective = self.make_objective(s, vocab)
        mx.random.seed(s['seed'] % 2 ** 31)     # MXNet's seed is a C int
        self.net = self.objective.net(self.devices)
        self.history = RunHistory(
            self.objective.losses, self.objective.Figures, self.wanted)
        self.growth = LossGrowth(self.history, self.objective.weights,
                                 s['lr'])
        self.schedule = schedule_of(s, self.objective.num_steps, self.history,
                                    workers.num_workers())
        self.updater = Updater(self.net, self.objective, s, self.schedule,
                               self.devices)
        self.position = DataPosition()
        self.conditions = Conditions(self.objective, self.net, self.devices)
        self.best = BestWeights(self.objective, self.history, self.net,
                                self.out)
        self.average = WeightAverage(self.net, s.get('average', 0.0))
        # Restored in this order: `schedule` and `best` use the restored
        # history, and `best` the restored net
        self.stateful = [
            self.updater, self.history, self.schedule, self.position,
            self.conditions, self.best, self.average]
        self.save_hook = SaveHook()
        # In this order: a callback reads the held-out figures of its step. If
        # it ends the run, the step is logged and saved as the last step
        self.hooks = [EvaluationHook(), *self.user_hooks, LogHook(),
                      self.save_hook]
        if self.checkpoint is not None:
            # Keep no reference, so that the checkpoint's memory is freed
            checkpoint, self.checkpoint = self.checkpoint, None
            self._restore(checkpoint)
            self.stop.last_words = STOPPED_WITH_CHECKPOINT

    def _restore(self, checkpoint):
        """Give all objects their values from a checkpoint."""
        path = checkpoint.path
        self.conditions.check(checkpoint)
        if self.out is not None:
            checkpoints.remove_temporary_files(self.out)
        try:
            for stateful in self.stateful:
                stateful.restore(checkpoint)
        except checkpoints.CheckpointError:
            raise
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            raise checkpoints.damaged(
                path, 'it does not describe the progress of its run '
                f'({error})') from None
        self.resumed_step = self.history.num_steps
        self.schedule.check(path)
        if not self.schedule.is_over():
            # If the run is prolonged, its former last step has an extra entry
            self.history.drop_extra_entry(self.settings['log_interval'])

    # Steps

    def train(self):
        """Take the remaining steps, and write the files of the run."""
        self.animator = draw_history(self.objective, self.history,
                                     self.schedule.xlim)
        if self.folder is not None:
            begin_files(self)
        self.stop.stores_first = True   # `SaveHook` stops the run after a step
        run_steps(self.steps(), self.schedule.is_over,
                  self.settings['log_interval'], self.history, self.animator,
                  self._after, self._describe)
        self.stop.ignores_all = True    # all that is left is to write files
        if self.folder is not None:
            print(finish_files(self))

    def _describe(self, _):
        """A line that describes the run, for `run_steps`."""
        # The argument is the size of the first batch. It may be below the
        # setting batch_size, for example with grow_batch
        devices, num_workers = self.devices, workers.num_workers()
        if num_workers > 1:
            devices = (f'{self.conditions.num_devices} devices of '
                       f'{num_workers} workers')
        return describe_training(
            self.net, self.schedule.length_text, devices,
            self.settings['batch_size'], self.objective.unit)

    def batches(self):
        """Yield batches from `position` on, without end."""
        def next_size():
            return grown_batch_size(
                self.settings['batch_size'],
                self.settings.get('grow_batch', 0.0),
                self.schedule.progress(self.history.num_steps + 1))
        return self.position.batches(self.objective, next_size)

    def steps(self):
        """Take steps; yield (read, number of examples) for each step.

        read() waits for the losses of the step and returns them.
        """
        batches = self.batches()
        while True:
            step = self.history.num_steps + 1
            self.schedule.begin(step)
            batch = next(batches)
            seed_dropout(self.settings['seed'], step, workers.rank())
            terms_of_loss = self.updater.gradients(batch)
            self.updater.update(step)
            self.average.update(step)
            # Compute the rate now: when the losses are read, a few steps
            # later, `ClockSchedule` only knows a later rate
            yield (functools.partial(self._read, step, terms_of_loss,
                                     self.updater.rate(step)),
                   len(batch[0]))

    def _read(self, step, terms_of_loss, rate):
        """Wait for the losses of a step; return them, or raise `Diverged`."""
        # `totals` sums: the other workers send 0, so that the sum is the
        # first worker's request
        sent_request = (self.save_hook.own_request(self)
                        if workers.rank() == 0 else 0)
        *losses, request = self.updater.totals(terms_of_loss, sent_request)
        self.save_hook.request = int(request)
        for name, loss in zip(self.history.losses, losses):
            if not math.isfinite(loss):
                self._raise_diverged(
                    f'the {name.upper()} loss is {loss} in', step, rate)
        if step == 1:
            self.history.first_losses = list(losses)
        return losses

    def _after(self, step):
        self.steps_taken += 1
        # Call is_over() for each hook, since a callback can end the run
        for hook in self.hooks:
            hook.after(self, step, self.schedule.is_over())

    def check_finite(self):
        """Raise `Diverged` if a parameter holds NaN or infinity."""
        name = self.updater.find_not_finite()
        if name is not None:
            step = self.history.num_steps
            self._raise_diverged(f'{name} is no longer finite after', step,
                                 self.updater.rate(step))

    def _raise_diverged(self, what, step, rate):
        earlier = [] if self.folder is None else checkpoints.earlier_than(
            checkpoints.path_of(self.out, step))
        raise Diverged.at(what, step, rate, earlier)
