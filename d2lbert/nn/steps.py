"""The training loop: split batches over devices, take steps, record losses.

A shard is the part of a batch that one device computes.
"""
import math

from d2lbert import kernels
from d2lbert.kernels import draw
from d2lbert.machine.backend import gluon, npx
from d2lbert.machine.files import write_text
from d2lbert.nn.checks import on_device
from d2lbert.progress import Accumulator, Timer


def part_of(batch, k, num_parts):
    """Part k, counted from 0, of num_parts nearly equal parts of a batch.

    batch: a named tuple of arrays with a row for each example.
    """
    num_examples = len(batch[0])
    begin = k * num_examples // num_parts
    end = (k + 1) * num_examples // num_parts
    return type(batch)(*(column[begin:end] for column in batch))


def shards(batch, devices):
    """A list of (shard, device).

    If there are fewer examples than devices, the last devices are left out.
    """
    devices = devices[:len(batch[0])]
    return [(part_of(batch, k, len(devices)), device)
            for k, device in enumerate(devices)]


def devices_in_use(X, devices):
    """The devices that get a shard of X (B, ...): at most B, from the first.

    Raises ValueError for a batch without examples.
    """
    if not len(X):
        raise ValueError('a batch has no example: it must have at least one')
    return devices[:len(X)]


def split_over_devices(X, devices, dtype=None):
    """Split an array (B, ...) by rows; returns a list of device arrays.

    As on the book's pages, but unlike in `part_of`, the longer parts come
    first. If there are fewer rows than devices, the last devices are left out.
    """
    devices = devices_in_use(X, devices)
    return gluon.utils.split_and_load(on_device(X, devices[0], dtype),
                                      devices, even_split=False)


def wait_for_previous_step():
    """Wait until the devices are idle; to be called before a forward pass.

    If a forward pass allocates memory while the previous step still uses some,
    free memory becomes fragmented, and large arrays need new memory. A batch
    may be put on the devices without waiting.
    """
    npx.waitall()


class History:
    """The losses of a training loop: lists with an entry for each logged step.

    losses: the names of the losses. For a loss named mlm, the list `mlm` has
    means since step 1, as the book draws and prints them. The list `mlm_loss`
    has the loss of each logged step itself.
    """

    #: {step: figures of held-out text}, and lines of log.txt. Only the
    #: subclass `training.history.RunHistory` sets these two.
    held_out, log_lines = {}, ()

    def __init__(self, losses=('mlm', 'nsp')):
        self.losses = tuple(losses)
        self.columns = ('step', *(f'{name}_loss' for name in losses),
                        *losses)
        for name in self.columns:
            setattr(self, name, [])
        # Sums over the steps whose losses were read: losses, examples, steps
        self.sums = Accumulator(len(losses) + 2)
        self.seconds = 0.0  # time of all steps
        self._unread = []   # the arguments of `add` for the other steps

    def add(self, read, num_pairs):
        """Add a step, without waiting for its losses.

        read: a function that waits for the losses and returns them as numbers.
        num_pairs: the number of examples, sentence pairs in the book.
        """
        self._unread.append((read, num_pairs))

    def read_losses(self, num_unread=0):
        """Read the losses of all steps except the last `num_unread`."""
        while len(self._unread) > num_unread:
            read, num_pairs = self._unread.pop(0)
            self._last_losses = read()
            self.sums.add(*self._last_losses, num_pairs, 1)

    def log(self, step):
        """Read all losses, and add an entry for `step`, the latest step."""
        self.read_losses()
        entry = (step, *self._last_losses, *self.means)
        for name, value in zip(self.columns, entry):
            getattr(self, name).append(value)

    @property
    def num_steps(self):
        """The number of steps taken."""
        return int(self.sums[-1]) + len(self._unread)

    @property
    def means(self):
        """The mean of each loss over the steps whose losses were read."""
        return tuple(self.sums[k] / self.sums[-1]
                     for k in range(len(self.losses)))

    @property
    def pairs_per_sec(self):
        """Examples per second: in the book, sentence pairs."""
        return self.sums[-2] / self.seconds

    def save_csv(self, path):
        """Write a row for each logged step; equal losses give equal bytes."""
        lines = [','.join(self.columns)]
        lines += [','.join(map(repr, row)) for row in zip(
            *(getattr(self, name) for name in self.columns))]
        write_text(path, '\n'.join(lines) + '\n')

    def __repr__(self):
        if not self.step:       # no entry yet
            return f'<History of {self.num_steps} steps>'
        last_means = ', '.join(f'{name} {getattr(self, name)[-1]:.3f}'
                               for name in self.losses)
        return f'<History of {self.num_steps} steps: {last_means}>'

    def _ipython_display_(self):
        """Show nothing below a notebook cell that ends with a history."""


def run_steps(steps, is_over, log_interval, history, animator,
              after=None, describe=None):
    """Take steps until `is_over()` is true, and record them.

    steps: an iterator; next(steps) takes a step and returns the arguments of
    `History.add`. log_interval: the number of steps between two entries of
    `history`; the last step always has an entry. animator: an `Animator`,
    which draws the entries. after(step) is called after each step.
    describe(num_pairs) is called once, after the first step; it returns a line
    that describes the training.
    """
    # Compile before the clock starts: compiling takes longer than many steps
    kernels.load()
    draw.DRAW.get()
    timer = Timer()
    try:
        while not is_over():
            timer.start()
            read, num_pairs = next(steps)
            history.add(read, num_pairs)
            step = history.num_steps
            if describe is not None and not animator.has_begun:
                animator.begin(describe(num_pairs))
            is_logged = step % log_interval == 0 or is_over()
            if is_logged:
                history.log(step)       # waits for the devices
            history.seconds += timer.stop()
            # The time of this step may have ended a run with a time limit
            if is_over() and not is_logged:
                history.log(step)
                is_logged = True
            if is_logged:
                animator.add(step, history.means)
            if after is not None:
                after(step)
        history.read_losses()
    finally:
        animator.close()


def summary(history, devices, unit='sentence pairs'):
    """The two lines that the book prints after training."""
    losses = ', '.join(f'{name.upper()} loss {mean:.3f}'
                       for name, mean in zip(history.losses, history.means))
    return (f'{losses}\n'
            f'{history.pairs_per_sec:.1f} {unit}/sec on {devices}')


def describe_training(net, length_text, devices, batch_size,
                      unit='sentence pairs'):
    """A line about the training; length_text: for example '50 steps'."""
    return (f'training {num_parameters(net):,} parameters: {length_text} of '
            f'{batch_size} {unit} on {devices}')


def num_parameters(net):
    """The number of elements of all parameters of a net."""
    return sum(math.prod(param.shape)
               for param in net.collect_params().values())


def zero_gradients(net, devices, like=None):
    """Set the gradients of a net on `devices` to zero, and mark them as new.

    Frozen parameters are skipped. like: None, or a device that computed a
    shard: then parameters without a new gradient there are skipped, too.
    """
    for param in net.collect_params().values():
        if param.grad_req != 'null' and (
                like is None or param.data(like)._fresh_grad):
            for device in devices:
                param.grad(device)[:] = 0
                # Gluon's trainer raises an error if a gradient is not new
                param.data(device)._fresh_grad = True
