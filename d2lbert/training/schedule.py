"""The progress of a run, by steps or by a clock; learning rate, batch size.
"""
import math

from d2lbert.training.settings import check_clock
from d2lbert.training.state import Part


def schedule_of(settings, num_steps, history, num_workers=1):
    """The schedule of a run, by its settings.

    num_steps: the length of a run without the setting `minutes`.
    """
    minutes = settings.get('minutes')
    check_clock(minutes, num_workers)
    return (StepSchedule(num_steps, history) if minutes is None
            else ClockSchedule(minutes, history))


class StepSchedule(Part):
    """The schedule of a run of `num_steps` steps."""

    def __init__(self, num_steps, history):
        self.num_steps, self.history = num_steps, history
        self.length, self.xlim = f'{num_steps} steps', [1, num_steps]

    def begin(self, step):
        """Note the beginning of a step, before its batch is drawn."""

    def is_over(self):
        """True if all steps were taken, or a callback ended the run."""
        return (self.history.is_ended
                or self.history.num_steps >= self.num_steps)

    def progress(self, step):
        """The share of the run before `step`, 0 to 1."""
        return (step - 1) / self.num_steps

    def factor(self, step, warmup, decay):
        """The factor of the learning rate at `step`."""
        # It ends one step after the last, so that no step has a rate of 0
        return rate_factor(step, self.num_steps, self.num_steps + 1, warmup,
                           decay)

    def check(self, path):
        """Raise ValueError if the checkpoint `path` is after the end."""
        if self.history.num_steps > self.num_steps:
            raise ValueError(
                f'num_steps={self.num_steps} is less than the '
                f'{self.history.num_steps} steps that were taken up to '
                f'{path}: name more, or an earlier checkpoint')


class ClockSchedule(Part):
    """The schedule of a run of `minutes` of training.

    The clock is `history.seconds`. It does not run during evaluations and
    while checkpoints are saved, nor between a stop and the resumption. It
    is read once a step, at the beginning. Learning rate and batch size both
    follow this reading, `seconds`.
    """

    def __init__(self, minutes, history):
        self.minutes, self.history = minutes, history
        self.end, self.seconds = 60 * minutes, history.seconds
        self.length, self.xlim = f'{minutes:g} minutes of steps', None

    def begin(self, step):
        """Read the clock at the beginning of a step."""
        self.seconds = self.history.seconds

    def is_over(self):
        """True if no time is left, or a callback ended the run."""
        return self.history.is_ended or self.history.seconds >= self.end

    def progress(self, step):
        """The share of the time before the current step, 0 to 1."""
        return self.seconds / self.end

    def factor(self, step, warmup, decay):
        """The factor of the learning rate at the current step."""
        return rate_factor(self.seconds, self.end, self.end, warmup, decay)

    def restore(self, checkpoint):
        # Earlier versions stored all readings; the last one is the current
        readings = checkpoint.state.get('clock')
        if readings is not None:
            self.history.seconds = float(readings[-1])

    def check(self, path):
        """Raise ValueError if the checkpoint `path` is after the end."""
        if self.history.seconds > self.end:
            raise ValueError(
                f'minutes={self.minutes:g} is less than the '
                f'{self.history.seconds / 60:.2f} minutes that were used up '
                f'to {path}: name more, or an earlier checkpoint')


def batch_size(whole, growing, progress):
    """The number of examples in a batch, at a progress from 0 to 1.

    The share `growing` of the run has three equal phases, with an eighth, a
    quarter and half of `whole`, rounded up. After it the number is `whole`.
    """
    if progress >= growing:
        return whole
    return -(-whole // (8, 4, 2)[int(3 * progress / growing)])


def rate_factor(position, whole, end, warmup, decay):
    """The factor of the learning rate at a position in a run.

    Position, whole and end are steps or seconds. The factor rises from 0 to
    1 in the share `warmup` of the whole. With decay='linear' it then falls
    to 0 at `end` in a straight line, with 'cosine' along half a cosine
    (Loshchilov and Hutter 2017); with 'none' it stays 1.
    """
    rising = warmup * whole
    if position < rising:
        return position / rising
    if decay == 'none':
        return 1.0
    left = (end - position) / (end - rising)
    return left if decay == 'linear' else (1 - math.cos(math.pi * left)) / 2
