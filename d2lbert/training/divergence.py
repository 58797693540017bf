"""Training that diverges: numbers that are not finite, and losses that grow.
"""
from d2lbert.training.saved_runs import RunError

#: A run has diverged if its loss is this many times the loss of the first
#: step, or 1 nat if that is more: smaller factors may be chance.
FACTOR = 2

#: Number of first steps without a warning, as their losses may be rough.
ROUGH_STEPS = 10


class Diverged(RunError):
    """A loss or a parameter is not finite."""

    @classmethod
    def at(cls, what, step, rate, saved):
        """The error of a step; saved: the existing checkpoints."""
        last = (f'the last checkpoint before that is {saved[-1]}' if saved
                else 'there is no checkpoint before that')
        return cls(f'{what} step {step}, at a learning rate of {rate:g}: '
                   f'training has diverged, and was stopped; {last}: start '
                   'again with a lower lr (--lr), or with clip (--clip)')


class Growth:
    """Compare the losses of a run with the losses of its first step.

    history: its `RunHistory`; weights: the factor of each loss; lr: the
    largest learning rate.
    """

    def __init__(self, history, weights, lr):
        self._history, self._weights, self._lr = history, weights, lr
        self._told_at = None

    def line(self, step):
        """A warning after a step, at most once in a run; else None."""
        if (self._told_at is not None or step < ROUGH_STEPS
                or self._history.step[-1:] != [step]):
            return None
        line = self._line(self._history.latest)
        if line is not None:
            self._told_at = step
        return line

    def last_line(self):
        """A warning about the last tenth of a finished run; else None."""
        if self._told_at == self._history.step[-1]:
            return None
        return self._line(self._history.recent)

    def _line(self, recent):
        first = self._history.first
        if first is None or recent is None:
            return None
        before, now = (sum(
            weight * loss for weight, loss in zip(self._weights, losses))
            for losses in (first, recent[1]))
        if now <= FACTOR * max(before, 1):
            return None
        return (f'training diverges: the loss was {before:.3g} in step 1 and '
                f'is {now:.3g} at step {self._history.step[-1]}, at a '
                f'learning rate of at most {self._lr:g}: start again with a '
                'lower lr (--lr), or with clip (--clip)')
