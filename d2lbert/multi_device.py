"""Training on several devices, as the book's chapter 13 has it.

`train_ch13` and its parts, from the pages "Concise Implementation for
Multiple GPUs" and "Image Augmentation". They take any net, and any loss that
gives a number for each example. B batch, C classes.
"""
from d2lbert.devices import try_all_gpus
from d2lbert.machine.backend import autograd
from d2lbert.nn.steps import (
    num_parameters,
    split_over_devices,
    wait_for_last_step,
    zero_gradients,
)
from d2lbert.progress import Accumulator, Animator, Timer


def accuracy(y_hat, y):
    """The number of labels y (B, ...) that y_hat predicts correctly.

    y_hat: scores (B, C, ...), or predicted labels of y's shape. Waits for
    the devices.
    """
    return float(_hits(y_hat, y))


def _hits(y_hat, y):
    """As `accuracy`, but an array on the device, without waiting."""
    if y_hat.ndim > 1 and y_hat.shape[1] > 1:
        y_hat = y_hat.argmax(axis=1)
    return (y_hat.astype(y.dtype) == y).astype('int32').sum()


def split_batch(X, y, devices):
    """Split X (B, ...) and y (B, ...) over devices: two lists of shards.

    A batch smaller than the number of devices leaves the last devices out.
    """
    if len(X) != len(y):
        raise ValueError(f'{len(X)} examples have {len(y)} labels')
    return split_over_devices(X, devices), split_over_devices(y, devices)


def split_batch_multi_inputs(X, y, devices):
    """Split a batch with several features over devices, as `split_batch`.

    X: a list of arrays (B, ...). Returns two lists with an item for each
    device: tuples of the shards of X, and the shards of y.
    """
    for feature in X:
        if len(feature) != len(y):
            raise ValueError(f'{len(feature)} examples have {len(y)} labels')
    return (list(zip(*(split_over_devices(feature, devices)
                       for feature in X))),
            split_over_devices(y, devices))


class _Sums:
    """Sums over batches.

    The results of a batch are read while the devices compute the next one.
    """

    def __init__(self, num_sums):
        self._metric, self._waiting = Accumulator(num_sums), []

    def add(self, results, *counts):
        """Add a batch: `results` as of `_device_sums`, and plain numbers."""
        self._waiting.append((results, counts))
        self.read(1)

    def read(self, waiting=0):
        """Return the sums, without the last `waiting` batches."""
        while len(self._waiting) > waiting:
            results, counts = self._waiting.pop(0)
            self._metric.add(*_device_sums(results), *counts)
        return self._metric


def _device_sums(results):
    """Sum each of several results over the devices; waits for them.

    results: for each device a tuple of scalars on the device.
    """
    return [sum(map(float, of_devices)) for of_devices in zip(*results)]


def evaluate_accuracy_gpus(net, data_iter, split_f=split_batch):
    """The share of labels that a net predicts correctly.

    data_iter yields (features, labels); split_f splits them over all devices
    of the net.
    """
    devices = next(iter(net.collect_params().values())).list_ctx()
    sums = _Sums(2)
    with autograd.pause():
        for features, labels in data_iter:
            X_shards, y_shards = split_f(features, labels, devices)
            sums.add([(_hits(net(X_shard), y_shard),) for X_shard, y_shard
                      in zip(X_shards, y_shards)], labels.size)
    hits, count = sums.read()
    if not count:
        raise ValueError('the data to evaluate on has no batch')
    return hits / count


def train_batch_ch13(net, features, labels, loss, trainer, devices,
                     split_f=split_batch):
    """Train on a batch; return its sum of losses and number of right guesses.

    Waits for the step.
    """
    return tuple(_device_sums(_step(net, features, labels, loss, trainer,
                                    devices, split_f)))


def _step(net, features, labels, loss, trainer, devices, split_f):
    """Train on a batch; return the results of each device.

    A list of (sum of losses, number of right guesses). They stay on their
    devices.
    """
    X_shards, y_shards = split_f(features, labels, devices)
    wait_for_last_step()
    with autograd.record():
        pred_shards = [net(X_shard) for X_shard in X_shards]
        losses = [loss(pred_shard, y_shard)
                  for pred_shard, y_shard in zip(pred_shards, y_shards)]
    autograd.backward(losses)
    if len(losses) < len(devices):
        zero_gradients(net, devices[len(losses):], like=devices[0])
    # A parameter that the loss does not depend on, as of a pretraining head,
    # has no new gradient and is not updated
    trainer.step(len(labels), ignore_stale_grad=True)
    return [(shard_losses.sum(), _hits(pred_shard, y_shard))
            for shard_losses, pred_shard, y_shard
            in zip(losses, pred_shards, y_shards)]


def train_ch13(net, train_iter, test_iter, loss, trainer, num_epochs,
               devices=None, split_f=split_batch):
    """Train a net, draw losses and accuracies, print the book's two lines.

    train_iter and test_iter yield (features, labels); each is read once per
    epoch. devices: None is `try_all_gpus()`. split_f splits a batch over
    them. loss returns a number for each example. A step does not change
    parameters that have no gradient in it. Losses and accuracies of training
    are drawn five times per epoch, the accuracy on test_iter once.
    """
    devices = try_all_gpus() if devices is None else list(devices)
    if not devices:
        raise ValueError('train_ch13 needs a list of at least one device, as '
                         'try_all_gpus() gives')
    num_batches = len(train_iter)
    if num_batches < 1 or num_epochs < 1:
        raise ValueError(f'there is nothing to do in {num_epochs} epochs of '
                         f'{num_batches} batches: both must be at least 1')
    timer = Timer()
    animator = Animator(xlabel='epoch', xlim=[1, num_epochs], ylim=[0, 1],
                        legend=['train loss', 'train acc', 'test acc'])
    try:
        for epoch in range(num_epochs):
            sums = _Sums(4)     # losses, right guesses, examples, labels
            timer.start()
            for i, (features, labels) in enumerate(train_iter, 1):
                sums.add(_step(net, features, labels, loss, trainer, devices,
                               split_f), len(labels), labels.size)
                if not animator.begun:
                    animator.begin(
                        f'training {num_parameters(net):,} parameters: '
                        f'{num_epochs} epochs of {num_batches} batches on '
                        f'{devices}')
                animator.move(epoch + i / num_batches)
                if i % max(1, num_batches // 5) == 0 or i == num_batches:
                    loss_sum, hits, examples, count = sums.read()
                    timer.stop()
                    animator.add(epoch + i / num_batches, (
                        loss_sum / examples, hits / count, None))
                    timer.start()
            timer.stop()
            test_acc = evaluate_accuracy_gpus(net, test_iter, split_f)
            animator.add(epoch + 1, (None, None, test_acc))
    finally:
        animator.close()
    print(f'loss {loss_sum / examples:.3f}, train acc {hits / count:.3f}, '
          f'test acc {test_acc:.3f}')
    print(f'{examples * num_epochs / timer.sum():.1f} examples/sec on '
          f'{devices}')
