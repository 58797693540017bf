"""A step of training: gradients of a batch, and the update by `AdamW`.

A batch can be split into parts, over devices and over workers.
"""
import math

import numpy as onp

from d2lbert.kernels import ops
from d2lbert.machine import workers
from d2lbert.machine.backend import autograd, gluon, mx, np
from d2lbert.nn.steps import no_gradient, part_of, wait_for_step_before
from d2lbert.texts.examples import derive_seed
from d2lbert.training.checkpoints import (
    CheckpointError,
    named_parameters,
    remedy,
    set_weights,
    vocab_arrays,
)
from d2lbert.training.saved_runs import RunError
from d2lbert.training.state import Part


@mx.optimizer.register
class AdamW(mx.optimizer.Optimizer):
    """Adam with decoupled weight decay and clipping by the common norm.

    For `gluon.Trainer(params, 'adamw', {...}, update_on_kvstore=False)`.
    Without decay and clipping it equals MXNet's Adam up to rounding (Kingma
    and Ba 2015, with bias correction in the rate). Decay is decoupled
    (Loshchilov and Hutter 2019): a step multiplies matrices by
    1 - learning_rate * wd. Biases and the parameters of LayerNorm do not
    decay. clip_norm: limit of the norm of all gradients together, after
    `rescale_grad`; 0 for none. ahead: prepare a step while its gradients are
    still computed. This is only for loops in which no earlier prediction is
    still pending then.
    """

    def __init__(self, learning_rate=0.001, beta1=0.9, beta2=0.999,
                 epsilon=1e-8, clip_norm=0.0, ahead=False, **keywords):
        super().__init__(learning_rate=learning_rate, **keywords)
        if self.clip_gradient is not None:
            raise ValueError('AdamW clips by the norm of all gradients: give '
                             'clip_norm in place of clip_gradient')
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.clip_norm, self.ahead = clip_norm, ahead
        self.aggregate_num = 1 << 30    # all parameters in one `update`

    def create_state(self, index, weight):
        """Moving averages of gradients and their squares, zeros."""
        if weight.stype != 'default':
            raise ValueError(f'AdamW updates dense weights, not '
                             f'{weight.stype} ones')
        return tuple(mx.nd.zeros(weight.shape, weight.ctx, weight.dtype)
                     for _ in range(2))

    def update(self, index, weight, grad, state):
        """Update several parameters, or one.

        index: the numbers of the parameters, a list, or one number. The
        other arguments are lists, or arrays of one parameter, accordingly.
        """
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        if self.clip_norm and len(index) == 1 < self._num_trained():
            raise ValueError('clip_norm needs all gradients at once: give '
                             'gluon.Trainer update_on_kvstore=False')
        self._update_count(index)
        rates = self._get_lrs(index)
        decays = [rate * wd if len(one.shape) > 1 else 0.0 for rate, wd, one
                  in zip(rates, self._get_wds(index), weight)]
        for k, number in enumerate(index):
            rates[k] *= self._correction(self._index_update_count[number])
        means, variances = zip(*state)
        ops.adam(weight, grad, means, variances, rates, decays, self.beta1,
                 self.beta2, self.epsilon, self.rescale_grad, self.clip_norm,
                 self.ahead)

    def _num_trained(self):
        return sum(param.grad_req != 'null'
                   for param in self.param_dict.values())

    def _correction(self, count):
        """Adam's correction of moving averages that start at zero."""
        return math.sqrt(1 - self.beta2 ** count) / (1 - self.beta1 ** count)


class Updater(Part):
    """Gradients and updates of a net, on all devices of this worker.

    schedule: see `training.schedule`. Checkpoints have the weights, the
    moments of Adam and the vocabulary of the net.
    """

    def __init__(self, net, objective, settings, schedule, devices):
        self.net, self.objective, self.settings = net, objective, settings
        self.schedule, self.devices = schedule, devices
        self._is_compared = False
        self.rank, self.num_workers = workers.rank(), workers.num_workers()
        if settings['accumulate'] > 1:
            for param in net.collect_params().values():
                if param.grad_req != 'null':    # frozen weights stay frozen
                    param.grad_req = 'add'
        self.trainer = gluon.Trainer(
            net.collect_params(), AdamW(
                learning_rate=settings['lr'], wd=settings['weight_decay'],
                clip_norm=settings['clip'],
                ahead=True),    # `gradients` waited for all predictions
            kvstore=(workers.kvstore() if self.num_workers > 1
                     else 'device'),
            update_on_kvstore=False)

    def gradients(self, batch):
        """Compute the gradients of a batch, without waiting for the losses.

        The batch is split over workers, into `accumulate` parts, and over
        devices. Each loss is a mean over items such as masked words; a part
        is weighted by its share of the items in the whole batch. Any split
        gives the same gradients. Returns for each loss a list of scalars,
        the weighted losses of the parts, whose sum over all workers is the
        loss of the batch.
        """
        counts = self.objective.counts(batch)
        mine = part_of(batch, self.rank, self.num_workers)
        accumulate = self.settings['accumulate']
        if accumulate > 1:
            no_gradient(self.net, self.devices)
        terms, used = [[] for _ in counts], 0
        for k in range(accumulate):
            part = part_of(mine, k, accumulate)
            if not len(part[0]):
                continue
            wait_for_step_before()
            with autograd.record():
                scaled = [
                    [loss * (count / max(of_all, 1))
                     for (loss, count), of_all in zip(shard, counts)]
                    for shard in self.objective.shard_losses(
                        self.net, part, self.devices)]
                totals = [self._total(losses) for losses in scaled]
            autograd.backward(totals)
            used = len(totals)      # the last part is the largest
            for terms_of_loss, losses in zip(terms, zip(*scaled)):
                terms_of_loss += losses
        if used < len(self.devices):    # saves no_gradient's millisecond
            no_gradient(self.net, self.devices[used:])
        return terms

    def _total(self, losses):
        """The sum of the losses, weighted by the objective: what to minimize.
        """
        first, *others = (loss if weight == 1 else loss * weight for
                          loss, weight in zip(losses, self.objective.weights))
        return sum(others, first)

    def rate(self, step):
        """The learning rate of a step."""
        s = self.settings
        return s['lr'] * self.schedule.factor(step, s['warmup'], s['decay'])

    def update(self, step):
        """Sum gradients over devices and workers; clip them; update."""
        self.trainer.set_learning_rate(self.rate(step))
        self.trainer.step(1)

    def totals(self, losses, *more):
        """The sums over all workers of each loss, and of each of `more`.

        losses: as `gradients` returns them. more: further numbers of this
        worker. Raises `RunError` if this worker has other settings or data
        than the first.
        """
        numbers = [*(sum(map(float, terms)) for terms in losses), *more]
        if self.num_workers == 1:
            return numbers
        # The keys of the trainer are 0, 1, ..., one for each parameter
        store, key = self.trainer._kvstore, len(self.trainer._params)
        sums = np.array(numbers, dtype='float32')
        if not self._is_compared:
            self._compare_with_the_first(store, key, sums.size)
            self._is_compared = True
        store.pushpull(key, sums, out=sums)
        return sums.tolist()

    def _compare_with_the_first(self, store, key, size):
        # A hash of 31 bits, as two numbers that float32 holds exactly. All
        # arrays of a key have the same size
        mine = np.zeros(size, dtype='float32')
        mine[:2] = np.array(divmod(derive_seed(
            self.settings, self.objective.recorded), 1 << 16))
        first = np.zeros_like(mine)
        store.broadcast(key, mine, first)
        if mine.tolist() != first.tolist():
            raise RunError(
                f'worker {self.rank} has other settings or another text than '
                'the first: name a --corpus that is the same on every host')

    def not_finite(self):
        """The name of a parameter that holds NaN or infinity, or None."""
        for name, param in self.net._collect_params_with_prefix().items():
            if not onp.isfinite(
                    param.data(self.devices[0]).asnumpy()).all():
                return name
        return None

    def state(self):
        return dict(updates=self.trainer.optimizer.num_update)

    def arrays(self):
        found, states = {}, self.trainer._updaters[0].states
        params = named_parameters(self.net)
        for name, param in params.items():
            found[f'param/{name}'] = param.data(
                param.list_ctx()[0]).asnumpy()
        for name, param in params.items():
            index = self.trainer._param2idx[param.name]
            for i, moment in enumerate(states.get(index, ())):
                found[f'moment{i}/{name}'] = moment.asnumpy()
        return {**found, **vocab_arrays(self.net.vocab)}

    def restore(self, checkpoint):
        params = named_parameters(self.net)
        set_weights(checkpoint.path, params, checkpoint.weights())
        optimizer = self.trainer.optimizer
        # Adam's bias correction depends on the number of updates
        optimizer.begin_num_update = optimizer.num_update = (
            checkpoint.state['updates'])
        for name, param in params.items():
            if f'moment0/{name}' in checkpoint.arrays:
                moments = [checkpoint.arrays.get(f'moment{i}/{name}')
                           for i in range(2)]
                if any(onp.shape(moment) != param.shape
                       for moment in moments):
                    raise CheckpointError(
                        f'{checkpoint.path} is damaged: its moments of '
                        f'{name} are not of the shape {param.shape}'
                        + remedy(checkpoint.path))
                self._set_moments(param, moments)

    def _set_moments(self, param, moments):
        index = self.trainer._param2idx[param.name]
        for device, updater in zip(param.list_ctx(), self.trainer._updaters):
            # The update is an operator of MXNet's older array type
            updater.states[index] = tuple(
                np.array(moment, ctx=device).as_nd_ndarray()
                for moment in moments)
            updater.states_synced[index] = True


def seed_dropout(*what):
    """Seed the random numbers of dropout with `derive_seed`."""
    mx.random.seed(derive_seed(*what))
