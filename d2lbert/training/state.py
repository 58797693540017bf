"""Define `Stateful`, and objects of a run that checkpoints store."""
import contextlib
import math

import numpy as onp

from d2lbert import kernels
from d2lbert.machine import array_files, workers
from d2lbert.machine.backend import mx, np, npx
from d2lbert.machine.files import MXNetPath, replacing
from d2lbert.machine.terminal import note
from d2lbert.training.checkpoints import damaged
from d2lbert.training.saved_runs import (
    RunError,
    load_parameters,
    save_parameters,
)


class Stateful:
    """An object of a run whose values the checkpoints store."""

    def state(self):
        """The object's entries, {name: value}, in the JSON of a checkpoint."""
        return {}

    def arrays(self):
        """The object's arrays in a checkpoint, {name: NumPy array}."""
        return {}

    def restore(self, checkpoint):
        """Take the object's values from a `Checkpoint`.

        Raises ValueError, TypeError, LookupError or OverflowError if they are
        damaged.
        """


def _note_in_first_worker(line):
    if workers.rank() == 0:
        note(line)


class Conditions(Stateful):
    """The data, devices and operators on which the results of a run depend.

    `check` raises an error for other data. `restore` warns of another number
    of devices or workers, or another kernel: these change further results.
    """

    def __init__(self, objective, net, devices):
        self.objective, self.net, self.devices = objective, net, devices

    @property
    def num_devices(self):
        """The total of all workers, assuming that each has equally many."""
        return len(self.devices) * workers.num_workers()

    def state(self):
        return dict(self.objective.fixed_entries,
                    num_devices=self.num_devices,
                    num_workers=workers.num_workers(),
                    products=kernels.products.record(
                        *self._product_arguments()))

    def restore(self, checkpoint):
        """Use the recorded kernel again, if possible; warn of changes."""
        path, state, _ = checkpoint
        for name, now in (('devices', self.num_devices),
                          ('workers', workers.num_workers())):
            before = state[f'num_{name}']
            if before != now:
                _note_in_first_worker(
                    f'the number of {name} was {before} when {path} was '
                    f'written and is {now} now: the parameters are the '
                    'same, the random numbers of dropout are not')
                break       # one line is enough if both numbers changed
        difference = kernels.products.resume(state.get('products'),
                                             *self._product_arguments())
        if difference:
            _note_in_first_worker(
                f'{difference}: the parameters of {path} are the same, but '
                'further steps differ by rounding')

    def check(self, checkpoint):
        """Raise `RunError` if a fixed entry of the objective has changed."""
        path, state, _ = checkpoint
        for name, now in self.objective.fixed_entries.items():
            if state.get(name) != now:
                subject, causes = self.objective.change_causes[name]
                raise RunError(
                    f'cannot resume: {subject} of {path} has changed since '
                    f'({causes}): restore the original, or start a new run')

    def _product_arguments(self):
        """The arguments (precision, fused) of `kernels.products.record`."""
        return self.net.config['precision'], kernels.load() and all(
            device.device_type != 'gpu' for device in self.devices)


class DataPosition(Stateful):
    """The place in the data where the next batch of the run begins.

    epoch, position: the beginning of a batch of the objective, see
    `Objective.batches`, or the end of the epoch. taken: the number of examples
    of this batch that the run has used, 0 unless grow_batch divides batches.
    """

    def __init__(self):
        self.epoch, self.position, self.taken = 0, (0, 0), 0

    def batches(self, objective, next_size):
        """Yield batches from this position on, without end.

        next_size(): the largest size of the next batch. Larger batches of the
        objective are divided.
        """
        while True:
            for next_position, batch in objective.batches(self.epoch,
                                                          self.position):
                begin, num_examples = self.taken, len(batch[0])
                while begin < num_examples:
                    end = begin + next_size()
                    # Move the position before `yield`, since the step may save
                    # it in a checkpoint
                    if end < num_examples:
                        self.taken = end
                    else:
                        self.position, self.taken = next_position, 0
                    yield type(batch)(*(column[begin:end]
                                        for column in batch))
                    begin = end
            self.epoch, self.position = self.epoch + 1, (0, 0)

    def state(self):
        return dict(epoch=self.epoch, position=list(self.position),
                    taken=self.taken)

    def restore(self, checkpoint):
        state = checkpoint.state
        self.epoch = int(state['epoch'])
        self.position = tuple(map(int, state['position']))
        # Checkpoints of earlier versions lack `taken`
        self.taken = int(state.get('taken', 0))


class WeightAverage(Stateful):
    """The exponential moving average of the weights; decay=0: no average.

    The decay of a step is at most (1 + step) / (10 + step), as in TensorFlow,
    so that the initial weights soon count little.
    """

    PREFIX = 'average/'

    def __init__(self, net, decay):
        self.decay = decay
        self._averages = {}     # {name: (parameter, its average)}
        if decay:
            for name, param in net._collect_params_with_prefix().items():
                # A shared weight has several names and one average
                has_average = any(param is other
                                  for other, _ in self._averages.values())
                if param.grad_req != 'null' and not has_average:
                    self._averages[name] = param, self._weight(param).copy()

    @staticmethod
    def _weight(param):
        """The value on the first device, an mx.nd.NDArray for `sgd_update`."""
        return param.data(param.list_ctx()[0]).as_nd_ndarray()

    def update(self, step):
        """Move the average towards the weights after `step`."""
        rate = 1 - min(self.decay, (1 + step) / (10 + step))
        for param, average in self._averages.values():
            # average -= rate * (average - weight), in one pass: a step of
            # SGD with gradient -weight and weight decay 1
            mx.nd.sgd_update(average, self._weight(param), lr=rate, wd=1.0,
                             rescale_grad=-1.0, out=average)

    @contextlib.contextmanager
    def applied(self):
        """Within a `with` statement, set the net's weights to the averages."""
        saved = [self._weight(param).copy()
                 for param, _ in self._averages.values()]
        self.apply()
        try:
            yield
        finally:
            for (param, _), weight in zip(self._averages.values(), saved):
                param.set_data(weight.as_np_ndarray())

    def apply(self):
        """Set the net's weights to the averages."""
        for param, average in self._averages.values():
            param.set_data(average.as_np_ndarray())

    def arrays(self):
        return {f'{self.PREFIX}{name}': average.asnumpy()
                for name, (_, average) in self._averages.items()}

    def restore(self, checkpoint):
        for name, (param, average) in self._averages.items():
            found = checkpoint.arrays.get(f'{self.PREFIX}{name}')
            if onp.shape(found) != param.shape:     # () if `found` is None
                raise damaged(checkpoint.path, 'it lacks the average of '
                              f'{name}, of the shape {param.shape}')
            average[:] = np.array(found).as_nd_ndarray()


class BestWeights(Stateful):
    """The weights of the step with the highest score of the objective.

    Until the run is finished, best.params has them. folder: the run folder;
    None except in the first worker, which alone stores weights. is_kept: False
    if the objective has no score or no evaluation.
    """

    PREFIX = 'best/'

    def __init__(self, objective, history, net, folder):
        self.score = objective.score
        self.is_kept = bool(objective.score and objective.eval_every)
        self.history, self.net = history, net
        self.path = None if folder is None else folder / 'best.params'

    @property
    def step(self):
        """The best step so far; None if no best weights are stored."""
        if not self.score or self.path is None:
            return None
        return best_step(self.history, self.score)

    def save_if_best(self, step):
        """Save the current weights, if `step` is the best step so far."""
        if self.step == step:
            save_parameters(self.net, self.path)

    def arrays(self):
        # If the current step is the best, `Updater` stores these weights
        if self.step in (None, self.history.num_steps):
            return {}
        return {f'{self.PREFIX}{name}': array
                for name, array in array_files.read_params(self.path).items()}

    def restore(self, checkpoint):
        if self.step is None:
            return
        if self.step == self.history.num_steps:
            # `Updater` has restored these weights
            save_parameters(self.net, self.path)
            return
        found = {name: np.array(onp.asarray(array))
                 for name, array in checkpoint.weights(self.PREFIX).items()}
        if not found:
            raise damaged(checkpoint.path, 'it lacks the best weights, '
                          f'of step {self.step}')
        with replacing(self.path) as partial_path:
            npx.save(MXNetPath(partial_path), found)

    def load(self, devices):
        """Load the best weights, if any, unless the net has them already."""
        if self.step not in (None, self.history.num_steps):
            load_parameters(self.net, self.path, devices)

    def close(self):
        """Remove best.params, since model.params has the weights now."""
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()


def best_step(history, score):
    """The first step with the highest score(held-out figures), or None."""
    scores = {step: score(figures)
              for step, figures in history.held_out.items()}
    # NaN is worse than any number; max returns the first of equals
    return max(scores, default=None, key=lambda step: -math.inf
               if math.isnan(scores[step]) else scores[step])
