"""Compute the gradients of a batch, and update the weights with `AdamW`.

A batch is divided among the workers. Each worker divides its rows into
`accumulate` parts, and computes the parts one after another. A part is divided
into shards, at most one for each of the worker's devices.
"""
import math

import numpy as onp

from d2lbert.kernels import ops
from d2lbert.machine import workers
from d2lbert.machine.backend import autograd, gluon, mx, np
from d2lbert.nn.steps import part_of, wait_for_previous_step, zero_gradients
from d2lbert.texts.examples import derive_seed
from d2lbert.training.checkpoints import (
    damaged,
    named_parameters,
    set_weights,
    vocab_arrays,
)
from d2lbert.training.saved_runs import RunError
from d2lbert.training.state import Stateful


@mx.optimizer.register
class AdamW(mx.optimizer.Optimizer):
    """Adam with decoupled weight decay, and clipping by the gradients' norm.

    For `gluon.Trainer(params, 'adamw', {...}, update_on_kvstore=False)`.
    Without decay and clipping it equals MXNet's Adam up to rounding (Kingma
    and Ba 2015, with bias correction in the rate). Decay multiplies matrices
    by 1 - learning_rate * wd (Loshchilov and Hutter 2019). Biases and the
    parameters of LayerNorm do not decay.

    clip_norm: limit of the norm of all gradients together, after
    `rescale_grad`; 0: no limit. ahead: True queues an update while its
    gradients are still being computed. Set it only if no prediction (forward
    pass without gradients) is pending at an update: a pending prediction may
    move a weight to other memory.
    """

    def __init__(self, learning_rate=0.001, beta1=0.9, beta2=0.999,
                 epsilon=1e-8, clip_norm=0.0, ahead=False, **keywords):
        super().__init__(learning_rate=learning_rate, **keywords)
        if self.clip_gradient is not None:
            raise ValueError('AdamW clips by the norm of all gradients: give '
                             'clip_norm in place of clip_gradient')
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.clip_norm, self.ahead = clip_norm, ahead
        self.aggregate_num = 1 << 30    # `update` gets all parameters at once

    def create_state(self, index, weight):
        """Return zeros for Adam's two moments."""
        if weight.stype != 'default':
            raise ValueError(f'AdamW updates dense weights, not '
                             f'{weight.stype} ones: make the parameter '
                             "with stype='default'")
        return tuple(mx.nd.zeros(weight.shape, weight.ctx, weight.dtype)
                     for _ in range(2))

    def update(self, index, weight, grad, state):
        """Update one parameter, or several if all arguments are lists."""
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        if self.clip_norm and len(index) == 1 and self._num_trainable() > 1:
            raise ValueError('clip_norm needs all gradients at once: give '
                             'gluon.Trainer update_on_kvstore=False')
        self._update_count(index)
        rates = self._get_lrs(index)
        # Only matrices decay, by a rate without Adam's bias correction
        decays = [rate * wd if len(array.shape) > 1 else 0.0
                  for rate, wd, array in zip(rates, self._get_wds(index),
                                             weight)]
        for k, number in enumerate(index):
            rates[k] *= self._bias_correction(
                self._index_update_count[number])
        means, squares = zip(*state)
        ops.adam(weight, grad, means, squares, rates, decays, self.beta1,
                 self.beta2, self.epsilon, self.rescale_grad, self.clip_norm,
                 self.ahead)

    def _num_trainable(self):
        return sum(param.grad_req != 'null'
                   for param in self.param_dict.values())

    def _bias_correction(self, t):
        """Adam's factor of the learning rate at update t, counted from 1."""
        return math.sqrt(1 - self.beta2 ** t) / (1 - self.beta1 ** t)


class Updater(Stateful):
    """Compute gradients and update a net, on all devices of this worker."""

    def __init__(self, net, objective, settings, schedule, devices):
        self.net, self.objective, self.settings = net, objective, settings
        self.schedule, self.devices = schedule, devices
        self._is_worker_checked = False
        self.rank, self.num_workers = workers.rank(), workers.num_workers()
        if settings['accumulate'] > 1:
            for param in net.collect_params().values():
                if param.grad_req != 'null':    # frozen weights stay frozen
                    param.grad_req = 'add'
        self.trainer = gluon.Trainer(
            net.collect_params(), AdamW(
                learning_rate=settings['lr'], wd=settings['weight_decay'],
                clip_norm=settings['clip'],
                ahead=True),    # safe: `gradients` waits for the devices
            kvstore=(workers.kvstore() if self.num_workers > 1
                     else 'device'),
            update_on_kvstore=False)

    def gradients(self, batch):
        """Compute the gradients of a batch, without waiting for the last part.

        Each loss is a mean over items such as masked words. The loss of a
        shard is weighted by the shard's share of all items in the batch, so
        that any division gives the same gradients.

        Returns a list for each loss: the weighted losses of this worker's
        shards, scalars on the devices. Summed over all workers, the list gives
        the loss of the batch.
        """
        batch_counts = self.objective.counts(batch)
        worker_batch = part_of(batch, self.rank, self.num_workers)
        accumulate = self.settings['accumulate']
        if accumulate > 1:
            zero_gradients(self.net, self.devices)
        terms_of_loss = [[] for _ in batch_counts]
        num_used_devices = 0    # in the last part
        for k in range(accumulate):
            part = part_of(worker_batch, k, accumulate)
            if not len(part[0]):    # there are fewer rows than parts
                continue
            wait_for_previous_step()
            with autograd.record():
                losses_by_shard = [
                    _weighted_losses(losses_and_counts, batch_counts)
                    for losses_and_counts in self.objective.shard_losses(
                        self.net, part, self.devices)]
                sums = [self._sum_to_minimize(losses)
                        for losses in losses_by_shard]
            autograd.backward(sums)
            # The last part is the largest, so it uses the most devices
            num_used_devices = len(sums)
            for terms, new_terms in zip(terms_of_loss, zip(*losses_by_shard)):
                terms += new_terms
        # Else `update` would add the old gradients of devices without a shard.
        # The condition saves a call of about 1 ms
        if num_used_devices < len(self.devices):
            zero_gradients(self.net, self.devices[num_used_devices:])
        return terms_of_loss

    def _sum_to_minimize(self, losses):
        # Do not multiply by 1 or add to 0: each costs an operation
        first, *others = (loss if weight == 1 else loss * weight for
                          loss, weight in zip(losses, self.objective.weights))
        return sum(others, first)

    def rate(self, step):
        """The learning rate of a step."""
        s = self.settings
        return s['lr'] * self.schedule.factor(step, s['warmup'], s['decay'])

    def update(self, step):
        """Sum gradients over devices and workers, clip, update the weights."""
        self.trainer.set_learning_rate(self.rate(step))
        self.trainer.step(1)    # 1: gradients of means need no division

    def totals(self, losses, *extra_numbers):
        """The sums over all workers of each loss and each extra number.

        losses: the result of `gradients`. Waits for the devices. The first
        call raises `RunError` if this worker has other settings or data than
        the first worker.
        """
        numbers = [*(sum(map(float, terms)) for terms in losses),
                   *extra_numbers]
        if self.num_workers == 1:
            return numbers
        # A free key: the trainer uses 0, 1, ..., one for each parameter
        store, key = self.trainer._kvstore, len(self.trainer._params)
        array = np.array(numbers, dtype='float32')
        if not self._is_worker_checked:
            self._check_equals_first_worker(store, key, array.size)
            self._is_worker_checked = True
        store.pushpull(key, array, out=array)   # sums over the workers
        return array.tolist()

    def _check_equals_first_worker(self, store, key, size):
        """Raise `RunError` if the first worker has other settings or data.

        size: of every array that the key-value store has at this key.
        """
        # Two numbers hold the hash of 31 bits, since float32 has only 24 bits
        own_hash = np.zeros(size, dtype='float32')
        own_hash[:2] = np.array(divmod(derive_seed(
            self.settings, self.objective.fixed_entries), 1 << 16))
        first_hash = np.zeros_like(own_hash)
        store.broadcast(key, own_hash, first_hash)
        if own_hash.tolist() != first_hash.tolist():
            raise RunError(
                f'worker {self.rank} has other settings or another text than '
                'the first: name a --corpus that is the same on every host')

    def find_not_finite(self):
        """The name of a parameter that holds NaN or infinity, or None."""
        for name, param in self.net._collect_params_with_prefix().items():
            if not onp.isfinite(
                    param.data(self.devices[0]).asnumpy()).all():
                return name
        return None

    def state(self):
        return dict(updates=self.trainer.optimizer.num_update)

    def arrays(self):
        arrays, states = {}, self.trainer._updaters[0].states
        params = named_parameters(self.net)
        for name, param in params.items():
            arrays[f'param/{name}'] = param.data(
                param.list_ctx()[0]).asnumpy()
        for name, param in params.items():
            index = self.trainer._param2idx[param.name]
            for i, moment in enumerate(states.get(index, ())):
                arrays[f'moment{i}/{name}'] = moment.asnumpy()
        return {**arrays, **vocab_arrays(self.net.vocab)}

    def restore(self, checkpoint):
        params = named_parameters(self.net)
        set_weights(checkpoint.path, params, checkpoint.weights())
        optimizer = self.trainer.optimizer
        # Adam's bias correction depends on the number of updates
        optimizer.begin_num_update = optimizer.num_update = (
            checkpoint.state['updates'])
        for name, param in params.items():
            # Before the first update, there are no moments
            if param.grad_req != 'null' and optimizer.num_update:
                moments = [checkpoint.arrays.get(f'moment{i}/{name}')
                           for i in range(2)]
                if any(onp.shape(moment) != param.shape
                       for moment in moments):
                    raise damaged(
                        checkpoint.path, f'its moments of {name} are not of '
                        f'the shape {param.shape}')
                self._set_moments(param, moments)

    def _set_moments(self, param, moments):
        index = self.trainer._param2idx[param.name]
        for device, updater in zip(param.list_ctx(), self.trainer._updaters):
            # `ops.adam` takes MXNet's older array type, mx.nd.NDArray
            updater.states[index] = tuple(
                np.array(moment, ctx=device).as_nd_ndarray()
                for moment in moments)
            # The moments are on their device: MXNet need not copy them
            updater.states_synced[index] = True


def _weighted_losses(losses_and_counts, batch_counts):
    """The losses of a shard, each times the shard's share of the items."""
    return [loss * (count / max(batch_count, 1))
            for (loss, count), batch_count in zip(losses_and_counts,
                                                  batch_counts)]


def seed_dropout(*values):
    """Seed the random numbers of dropout with a hash of `values`."""
    mx.random.seed(derive_seed(*values))
