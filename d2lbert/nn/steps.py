"""The training loop: shards, steps, losses and time.

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
    """The k-th of num_parts nearly equal parts of a batch's rows.

    batch: a named tuple of columns with a row for each example.
    """
    rows = len(batch[0])
    begin, end = (j * rows // num_parts for j in (k, k + 1))
    return type(batch)(*(column[begin:end] for column in batch))


def shards(batch, devices):
    """(part of a batch, device) for each device that gets an example.

    A batch smaller than the number of devices leaves the last ones out.
    """
    devices = devices[:len(batch[0])]
    return [(part_of(batch, k, len(devices)), device)
            for k, device in enumerate(devices)]


def spread(X, devices, dtype=None):
    """Split an array (B, ...) over devices: a list of arrays.

    Gluon splits, as on the book's pages: the first parts may have a row more.
    A batch smaller than the number of devices leaves the last ones out.
    """
    devices = devices[:len(X)]
    return gluon.utils.split_and_load(on_device(X, devices[0], dtype),
                                      devices, even_split=False)


def wait_for_step_before():
    """Wait until the devices are idle; call before each forward pass.

    The next batch may already be on the devices. But if its forward pass
    takes memory before the last step has freed its own, free memory becomes
    fragmented. Large arrays no longer fit, and more memory is used.
    """
    npx.waitall()


class History:
    """The losses of a training loop: lists with an entry for each logged step.

    losses: the names of the losses. `mlm` and `nsp` are means of the losses
    since step 1, as the book draws and prints them; `mlm_loss` and
    `nsp_loss` are the losses of the step itself.
    """

    #: Held-out results by step, and lines of the log. Runs set both.
    held_out, log_lines = {}, ()

    def __init__(self, losses=('mlm', 'nsp')):
        self.losses = tuple(losses)
        self.columns = ('step', *(f'{name}_loss' for name in losses),
                        *losses)
        for name in self.columns:
            setattr(self, name, [])
        # The sums of each loss, of sentence pairs and of steps
        self.sums, self.seconds = Accumulator(len(losses) + 2), 0.0
        self._waiting = []

    def add(self, read, num_pairs):
        """Count a step; `read()` waits for its losses and is called later."""
        self._waiting.append((read, num_pairs))

    def read_losses(self, waiting=0):
        """Wait for the devices; read all losses except the last `waiting`."""
        while len(self._waiting) > waiting:
            read, num_pairs = self._waiting.pop(0)
            self._last = read()
            self.sums.add(*self._last, num_pairs, 1)

    def log(self, step):
        """Read all losses, and make an entry for `step`, the last step."""
        self.read_losses()
        entry = (step, *self._last, *self.means)
        for name, value in zip(self.columns, entry):
            getattr(self, name).append(value)

    @property
    def num_steps(self):
        """The number of steps taken."""
        return int(self.sums[-1]) + len(self._waiting)

    @property
    def means(self):
        """The mean of each loss over all steps read."""
        return tuple(self.sums[k] / self.sums[-1]
                     for k in range(len(self.losses)))

    @property
    def pairs_per_sec(self):
        """Sentence pairs per second."""
        return self.sums[-2] / self.seconds

    def save_csv(self, path):
        """Write a row for each logged step; equal losses give equal bytes."""
        lines = [','.join(self.columns)]
        lines += [','.join(map(repr, row)) for row in zip(
            *(getattr(self, name) for name in self.columns))]
        write_text(path, '\n'.join(lines) + '\n')

    def __repr__(self):
        if not self.step:
            return '<History of 0 steps>'
        means = ', '.join(f'{name} {getattr(self, name)[-1]:.3f}'
                          for name in self.losses)
        return f'<History of {self.num_steps} steps: {means}>'

    def _ipython_display_(self):
        """Display no value below a notebook cell, as in the book."""


def run_steps(steps, is_over, log_interval, history, animator,
              after=None, about=None):
    """Take steps until `is_over()`, counted by `history`.

    `steps` yields (read, number of pairs), the arguments of `History.add`.
    `after(step)` is called after each step. `about(number of pairs)` is
    called once, after the first step; it returns a line that describes the
    training. The last step is always logged. Draws with `animator`.
    """
    # Compile before the clock starts: it takes longer than many steps
    kernels.load()
    draw.DRAW.get()
    timer = Timer()
    try:
        while not is_over():
            timer.start()
            read, num_pairs = next(steps)
            history.add(read, num_pairs)
            step = history.num_steps
            if about is not None and not animator.begun:
                animator.begin(about(num_pairs))
            if step % log_interval == 0 or is_over():
                history.log(step)       # waits for the devices
            history.seconds += timer.stop()
            if is_over() and history.step[-1:] != [step]:
                history.log(step)       # the step used up the time of the run
            if history.step[-1:] == [step]:
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


def about(net, length, devices, batch_size, unit='sentence pairs'):
    """A line that describes the training; length: as '50 steps'."""
    return (f'training {num_parameters(net):,} parameters: {length} of '
            f'{batch_size} {unit} on {devices}')


def num_parameters(net):
    """The number of parameters of a net."""
    return sum(math.prod(param.shape)
               for param in net.collect_params().values())


def no_gradient(net, devices, like=None):
    """Set the gradients of devices without a shard to zero for this step.

    like: a device with a shard. If it has no new gradient of a parameter, the
    devices get none, either.
    """
    for param in net.collect_params().values():
        if param.grad_req != 'null' and (
                like is None or param.data(like)._fresh_grad):
            for device in devices:
                param.grad(device)[:] = 0
                # Gluon refuses to step on stale gradients
                param.data(device)._fresh_grad = True
