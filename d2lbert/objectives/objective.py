"""Define `Objective`, the base class of all training objectives."""
from d2lbert.nn import steps


class Objective:
    """A task that `training.loop.Run` trains a net for.

    The run manages steps, clocks, devices and checkpoints. The objective
    provides data, net, losses and figures. Figures are losses and metrics on
    held-out examples.
    """

    #: Names of the losses, as in losses.csv.
    losses = ()

    #: Factor of each loss in the sum that is minimized.
    weights = ()

    #: Plural noun for examples in printed lines.
    unit = 'examples'

    #: Sub-command of `d2lbert` to resume with, for messages.
    command = None

    #: Type of the result of `evaluate`: a named tuple of held-out figures.
    Figures = None

    #: Names of the figures to plot: plotted[k] is losses[k] on held-out
    #: examples. The last losses may have no figure.
    plotted = ()

    #: The number of steps of the whole run; None if a clock ends the run.
    num_steps = None

    #: The number of steps between two evaluations; None for no evaluation.
    eval_every = None

    #: `score(figures)` returns a number. A finished run keeps the weights with
    #: the highest score; with None the last weights, or their average.
    score = None

    #: Vocabulary or tokenizer to save in the run folder. `files` has the names
    #: of its files. `save(path)` writes them; path: of vocab.txt.
    vocab = None

    #: A string that changes with the data.
    fingerprint = None

    #: {name in `fixed_entries`: (what changed, possible causes)}, for the
    #: error message if this entry differs when a run is resumed.
    change_causes = {}

    @property
    def fixed_entries(self):
        """Entries of a checkpoint that must be the same in a resumed run."""
        return dict(fingerprint=self.fingerprint)

    def net(self, devices):
        """The net with its initial weights on every device.

        Attributes of the net: `config`, the arguments of its `BERTModel` or
        `BARTModel`; `vocab`; and `parts`, {name of a .params file without
        suffix: block to save}.
        """
        raise NotImplementedError

    def batches(self, epoch, start):
        """Yield (next position, batch) from the position `start` of an epoch.

        A batch is a named tuple of NumPy arrays with a row for each example. A
        position, where a batch begins, is two integers.
        """
        raise NotImplementedError

    def counts(self, batch):
        """For each loss, the number of its items in a batch.

        A loss is a mean over items, such as masked words.
        """
        raise NotImplementedError

    def shard_losses(self, net, batch, devices):
        """For each device that gets examples of a batch, [(loss, count), ...].

        The list of a device has an entry for each of `losses`: the loss, a
        scalar on the device, and the number of its items on this device.
        """
        raise NotImplementedError

    def evaluate(self, net, devices):
        """The `Figures` of a net on the held-out examples."""
        raise NotImplementedError

    def line(self, figures):
        """Figures as a line of the log."""
        return ', '.join(f'{name} {value:.4f}' for name, value
                         in figures._asdict().items())

    def config_entries(self, history):
        """Further entries of config.json, {name: value}.

        history: a `training.history.RunHistory`.
        """
        return {}

    def summary(self, history, devices):
        """Lines to print at the end of a run."""
        return steps.summary(history, devices, self.unit)


def run_summary(history, devices, unit):
    """The book's two lines of losses and speed, and a line of recent losses.

    The book prints means since step 1, which include the high losses of the
    first steps. history: a `training.history.RunHistory`.
    """
    book_lines = steps.summary(history, devices, unit)
    if history.recent is None:
        return book_lines
    count, means = history.recent
    losses = ', '.join(f'{name.upper()} loss {mean:.3f}'
                       for name, mean in zip(history.losses, means))
    return f'{book_lines}\nlast {count} step{"s" * (count > 1)}: {losses}'
