"""From the gradients of a batch's parts to new weights."""
import numpy as onp

from d2lbert.machine.backend import autograd, gluon, mx, np
from d2lbert.nn.shards import part_of, wait_for_step_before
from d2lbert.nn.steps import no_gradient
from d2lbert.texts.seeds import derive_seed
from d2lbert.training import optimizer  # noqa: F401  (registers 'adamw')
from d2lbert.training.saved_runs import RunError


class Updater:
    """One step's gradients and update, on all devices of this worker.

    pace: see `training.pace`; kvstore: what adds up gradients, as
    `gluon.Trainer` takes it.
    """

    def __init__(self, net, objective, settings, pace, devices,
                 kvstore='device', rank=0, num_workers=1):
        self.net, self.objective, self.settings = net, objective, settings
        self.pace, self._shares = pace, False
        self.devices, self.rank, self.num_workers = devices, rank, num_workers
        if settings['accumulate'] > 1:
            for param in net.collect_params().values():
                if param.grad_req != 'null':    # what is frozen stays so
                    param.grad_req = 'add'
        self.trainer = gluon.Trainer(
            net.collect_params(), 'adamw', dict(
                learning_rate=settings['lr'], wd=settings['weight_decay'],
                clip_norm=settings['clip'],
                ahead=True),    # `gradients` waits for predictions
            kvstore=kvstore, update_on_kvstore=False)

    def gradients(self, batch):
        """Gradients of the means of a batch's losses, however it is split.

        Each part (of `accumulate`, on each device of each worker) counts by
        its share of what a loss is a mean over. Returns for each loss what
        this worker's parts add to it, lists of scalars, before its weight.
        """
        counts = self.objective.counts(batch)
        mine = part_of(batch, self.rank, self.num_workers)
        accumulate = self.settings['accumulate']
        if accumulate > 1:
            no_gradient(self.net, self.devices)
        added, used = [[] for _ in counts], 0
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
            for parts, losses in zip(added, zip(*scaled)):
                parts += losses
        if used < len(self.devices):    # collecting them takes a millisecond
            no_gradient(self.net, self.devices[used:])
        return added

    def _total(self, losses):
        """The sum of losses by their weights."""
        first, *others = (loss if weight == 1 else loss * weight for
                          loss, weight in zip(losses, self.objective.weights))
        return sum(others, first)

    def rate(self, step):
        """The learning rate of a step."""
        s = self.settings
        return s['lr'] * self.pace.factor(step, s['warmup'], s['decay'])

    def update(self, step):
        """Add up gradients of all devices and workers; clip; step."""
        self.trainer.set_learning_rate(self.rate(step))
        self.trainer.step(1)

    def over_all(self, numbers):
        """The sums of each of some numbers over all workers, a list.

        Raises `RunError` where this worker trains on something else.
        """
        # The trainer's keys are the parameters' numbers
        store, key = self.trainer._kvstore, len(self.trainer._params)
        sums = np.array(numbers, dtype='float32')
        if not self._shares:
            self._compare_with_the_first(store, key, sums.size)
            self._shares = True
        store.pushpull(key, sums, out=sums)
        return sums.tolist()

    def _compare_with_the_first(self, store, key, size):
        # 16 bits a number, which float32 holds exactly; as many numbers as
        # are exchanged under this key later on
        mine = np.zeros(size, dtype='float32')
        mine[:2] = np.array(divmod(derive_seed(self.settings,
                                         self.objective.recorded), 1 << 16))
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


def seed_dropout(*what):
    """Let dropout depend on what this is for, not on what came before."""
    mx.random.seed(derive_seed(*what))
