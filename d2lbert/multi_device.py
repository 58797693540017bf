"""Train a net on several devices, as the book's chapter 13 does.

`train_ch13` is from the page "Image Augmentation", `evaluate_accuracy_gpus`
from "Concise Implementation for Multiple GPUs". A shard is the part of a batch
that one device computes.

In shapes, letters are numbers. B: examples of a batch. C: classes.
"""
from d2lbert.devices import device_list, try_all_gpus
from d2lbert.machine.backend import autograd
from d2lbert.nn.steps import (
    num_parameters,
    split_over_devices,
    wait_for_previous_step,
    zero_gradients,
)
from d2lbert.progress import Accumulator, Animator, Timer


def accuracy(y_hat, y):
    """Return the number of labels y (B, ...) that y_hat predicts correctly.

    y_hat: scores (B, C, ...), or predicted labels (B,). Waits for the device.
    """
    return float(_num_correct(y_hat, y))


def _num_correct(y_hat, y):
    """`accuracy` as a scalar on the device, without waiting."""
    if y_hat.ndim > 1 and y_hat.shape[1] > 1:   # scores, not labels
        y_hat = y_hat.argmax(axis=1)
    # Without the reshape, (B, 1) and (B,) would be compared as (B, B)
    return (y_hat.reshape(y.shape).astype(y.dtype) == y).astype('int32').sum()


def split_batch(X, y, devices):
    """Split X (B, ...) and y (B, ...) over devices: two lists of shards.

    If there are fewer examples than devices, the last devices get no shard.
    """
    if len(X) != len(y):
        raise ValueError(f'{len(X)} examples have {len(y)} labels')
    devices = device_list(devices, 'split_batch')
    return split_over_devices(X, devices), split_over_devices(y, devices)


def split_batch_multi_inputs(X, y, devices):
    """Split a batch with several arrays of features over devices.

    X: a list of arrays (B, ...). Returns two lists with an entry for each
    device: a tuple with a shard of each array, and a shard of y. If there are
    fewer examples than devices, the last devices get no shard.
    """
    devices = device_list(devices, 'split_batch_multi_inputs')
    for array in X:
        if len(array) != len(y):
            raise ValueError(f'{len(array)} examples have {len(y)} labels')
    shards_of_each = [split_over_devices(array, devices) for array in X]
    return list(zip(*shards_of_each)), split_over_devices(y, devices)


class _DelayedSums:
    """Sums over batches, updated while the devices compute the next batch."""

    def __init__(self, num_sums):
        self._sums, self._unread = Accumulator(num_sums), []

    def add(self, results, *counts):
        """Add a batch: results as for `_sum_over_devices`, then numbers."""
        self._unread.append((results, counts))
        self.read(num_unread=1)     # this batch is still being computed

    def read(self, num_unread=0):
        """Wait for all but the last num_unread batches; return the sums."""
        while len(self._unread) > num_unread:
            results, counts = self._unread.pop(0)
            self._sums.add(*_sum_over_devices(results), *counts)
        return self._sums


def _sum_over_devices(results):
    """Wait for the devices; return the sum of each scalar over them.

    results: a tuple of scalars from each device.
    """
    return [sum(map(float, scalars)) for scalars in zip(*results)]


def evaluate_accuracy_gpus(net, data_iter, split_f=split_batch):
    """Return the share of labels that a net predicts correctly.

    data_iter yields (features, labels). split_f splits a batch over the
    devices of the net.
    """
    devices = next(iter(net.collect_params().values())).list_ctx()
    sums = _DelayedSums(2)      # correct predictions, labels
    with autograd.pause():
        for features, labels in data_iter:
            X_shards, y_shards = split_f(features, labels, devices)
            results = [(_num_correct(net(X_shard), y_shard),)
                       for X_shard, y_shard in zip(X_shards, y_shards)]
            sums.add(results, labels.size)
    num_correct, num_labels = sums.read()
    if not num_labels:
        raise ValueError('the data to evaluate on has no batch')
    return num_correct / num_labels


def train_batch_ch13(net, features, labels, loss, trainer, devices,
                     split_f=split_batch):
    """Train on a batch; return (sum of losses, number of correct predictions).

    features, labels: one batch of train_iter. devices: a list. For the other
    arguments see `train_ch13`. Waits for the devices.
    """
    return tuple(_sum_over_devices(_train_step(
        net, features, labels, loss, trainer, devices, split_f)))


def _train_step(net, features, labels, loss, trainer, devices, split_f):
    """Train on a batch without waiting for the results.

    Returns (sum of losses, number of correct predictions) for each shard,
    scalars on its device.
    """
    X_shards, y_shards = split_f(features, labels, devices)
    wait_for_previous_step()
    with autograd.record():
        pred_shards = [net(X_shard) for X_shard in X_shards]
        losses = [loss(pred_shard, y_shard)
                  for pred_shard, y_shard in zip(pred_shards, y_shards)]
    autograd.backward(losses)
    idle_devices = devices[len(losses):]
    if idle_devices:
        # The trainer would add the gradients left there by an earlier step
        zero_gradients(net, idle_devices, like=devices[0])
    # ignore_stale_grad: the loss may leave out parameters, for example those
    # of a pretraining head
    trainer.step(len(labels), ignore_stale_grad=True)
    return [(shard_losses.sum(), _num_correct(pred_shard, y_shard))
            for shard_losses, pred_shard, y_shard
            in zip(losses, pred_shards, y_shards)]


def train_ch13(net, train_iter, test_iter, loss, trainer, num_epochs,
               devices=None, split_f=split_batch):
    """Train a net, draw losses and accuracies, print the book's two lines.

    train_iter and test_iter yield (features, labels); each is read once per
    epoch. loss: a function that returns one number for each example. trainer:
    a Gluon `Trainer`. devices: None means `try_all_gpus()`. split_f: splits a
    batch over the devices. Training loss and accuracy are drawn up to nine
    times per epoch, and the accuracy on test_iter after each epoch.
    """
    devices = (try_all_gpus() if devices is None
               else device_list(devices, 'train_ch13'))
    num_batches = len(train_iter)
    if num_batches < 1 or num_epochs < 1:
        raise ValueError(f'nothing can be trained in {num_epochs} epochs of '
                         f'{num_batches} batches: both must be at least 1')
    timer = Timer()
    animator = Animator(xlabel='epoch', xlim=[1, num_epochs], ylim=[0, 1],
                        legend=['train loss', 'train acc', 'test acc'])
    batches_per_drawing = max(1, num_batches // 5)
    try:
        for epoch in range(num_epochs):
            sums = _DelayedSums(4)  # of loss, correct, examples, labels
            timer.start()
            for i, (features, labels) in enumerate(train_iter, 1):
                sums.add(_train_step(net, features, labels, loss, trainer,
                                     devices, split_f),
                         len(labels), labels.size)
                if not animator.has_begun:
                    animator.begin(
                        f'training {num_parameters(net):,} parameters: '
                        f'{num_epochs} epochs of {num_batches} batches on '
                        f'{devices}')
                num_epochs_done = epoch + i / num_batches
                animator.move(num_epochs_done)
                if i % batches_per_drawing == 0 or i == num_batches:
                    loss_sum, num_correct, num_examples, num_labels = (
                        sums.read())    # waits for the devices
                    timer.stop()
                    train_loss = loss_sum / num_examples
                    train_acc = num_correct / num_labels
                    animator.add(num_epochs_done,
                                 (train_loss, train_acc, None))
                    timer.start()
            timer.stop()
            test_acc = evaluate_accuracy_gpus(net, test_iter, split_f)
            animator.add(epoch + 1, (None, None, test_acc))
    finally:
        animator.close()
    print(f'loss {train_loss:.3f}, train acc {train_acc:.3f}, '
          f'test acc {test_acc:.3f}')
    print(f'{num_examples * num_epochs / timer.sum():.1f} examples/sec on '
          f'{devices}')
