"""Training that diverges: numbers that are not finite, and losses that grow.
"""
from d2lbert.training.saved_runs import RunError

#: A run has diverged where its loss is this many times the loss of the first
#: step, or of a first step of 1 nat: less may be a matter of the examples.
FACTOR = 2

#: A running run is not warned of earlier: first steps may be rough.
ROUGH_STEPS = 10


class Diverged(RunError):
    """A loss, or a parameter, is no finite number any more."""

    @classmethod
    def at(cls, what, step, rate, saved):
        """The error of a step; saved: the checkpoints that there are."""
        last = (f'the last checkpoint before that is {saved[-1]}' if saved
                else 'there is no checkpoint before that')
        return cls(f'{what} step {step}, at a learning rate of {rate:g}: '
                   f'training has diverged, and was stopped; {last}: begin '
                   'again with a lower lr (--lr), or with clip (--clip)')


class Growth:
    """Compares the losses of a run's steps with those of its first one.

    history: its `RunHistory`; weights: how much each loss counts; lr: the
    greatest learning rate.
    """

    def __init__(self, history, weights, lr):
        self._history, self._weights, self._lr = history, weights, lr
        self._told_at = None

    def line(self, step):
        """What to warn of after a step of a running run; once, else None."""
        if (self._told_at is not None or step < ROUGH_STEPS
                or self._history.step[-1:] != [step]):
            return None
        line = self._line(self._history.latest)
        if line is not None:
            self._told_at = step
        return line

    def last_line(self):
        """What to warn of a finished run, by its last tenth; or None."""
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
                f'learning rate of at most {self._lr:g}: begin again with a '
                'lower lr (--lr), or with clip (--clip)')
