"""Compute a run's end, learning rate and batch size from its steps or time."""
import math

from d2lbert.training.settings import check_clock
from d2lbert.training.state import Stateful


def schedule_of(settings, num_steps, history, num_workers=1):
    """The schedule of a run.

    num_steps: None for a run of `minutes`. history: a `RunHistory`.
    """
    minutes = settings.get('minutes')
    check_clock(minutes, num_workers)
    return (StepSchedule(num_steps, history) if minutes is None
            else ClockSchedule(minutes, history))


class StepSchedule(Stateful):
    """The schedule of a run of `num_steps` steps.

    xlim: the limits of the x axis of the plot. length_text: the length of
    the run for a message.
    """

    def __init__(self, num_steps, history):
        self.num_steps, self.history = num_steps, history
        self.length_text, self.xlim = f'{num_steps} steps', [1, num_steps]

    def begin(self, step):
        """Do nothing: only `ClockSchedule` reads the clock here."""

    def is_over(self):
        return (self.history.is_ended
                or self.history.num_steps >= self.num_steps)

    def progress(self, step):
        """The share of the run before `step`, from 0 to 1."""
        return (step - 1) / self.num_steps

    def factor(self, step, warmup, decay):
        """The factor of the learning rate at `step`."""
        # The decay ends one step after the last: no step has a rate of 0
        return rate_factor(step, self.num_steps, self.num_steps + 1, warmup,
                           decay)

    def check(self, path):
        """Raise ValueError if the run restored from `path` is past its end."""
        if self.history.num_steps > self.num_steps:
            raise ValueError(
                f'the run would end at step {self.num_steps}, but {path} is '
                f'of step {self.history.num_steps}: give more steps or '
                'epochs, or an earlier checkpoint')


class ClockSchedule(Stateful):
    """The schedule of a run of `minutes` of training.

    The clock is `history.seconds`. It stops during evaluations and callbacks,
    while checkpoints are saved, and until a stopped run is resumed. `begin`
    reads it once for each step: learning rate and batch size of a step depend
    on `begin_seconds`, the time at its beginning.
    """

    def __init__(self, minutes, history):
        self.minutes, self.history = minutes, history
        self.end_seconds, self.begin_seconds = 60 * minutes, history.seconds
        # The number of steps is unknown, so the x axis has no limits
        self.length_text, self.xlim = f'{minutes:g} minutes of steps', None

    def begin(self, step):
        self.begin_seconds = self.history.seconds

    def is_over(self):
        return (self.history.is_ended
                or self.history.seconds >= self.end_seconds)

    def progress(self, step):
        return self.begin_seconds / self.end_seconds

    def factor(self, step, warmup, decay):
        return rate_factor(self.begin_seconds, self.end_seconds,
                           self.end_seconds, warmup, decay)

    def restore(self, checkpoint):
        # Checkpoints of earlier versions have a list of all clock readings
        readings = checkpoint.state.get('clock')
        if readings is not None:
            self.history.seconds = float(readings[-1])

    def check(self, path):
        if self.history.seconds > self.end_seconds:
            raise ValueError(
                f'minutes={self.minutes:g} is less than the '
                f'{self.history.seconds / 60:.2f} minutes that were used '
                f'before {path}: give more minutes, or an earlier checkpoint')


def grown_batch_size(full_size, growing_share, progress):
    """The number of examples in the batch at a progress from 0 to 1.

    growing_share: the share of the run with smaller batches, in three equal
    phases: an eighth, a quarter and half of `full_size`, rounded up.
    """
    if progress >= growing_share:
        return full_size
    # progress < growing_share, but rounding may raise the quotient to 3
    phase = min(int(3 * progress / growing_share), 2)
    divisor = (8, 4, 2)[phase]
    return math.ceil(full_size / divisor)


def rate_factor(position, length, decay_end, warmup, decay):
    """The factor of the learning rate at a position in a run.

    position, length (of the run) and decay_end are steps or seconds. The
    factor rises from 0 to 1 in the first share `warmup` of the run. With decay
    'linear' or 'cosine' (Loshchilov and Hutter 2017), it then falls to 0 at
    `decay_end`.
    """
    warmup_end = warmup * length
    if position < warmup_end:
        return position / warmup_end
    if decay == 'none':
        return 1.0
    remaining = (decay_end - position) / (decay_end - warmup_end)   # 1 to 0
    if decay == 'linear':
        return remaining
    return (1 - math.cos(math.pi * remaining)) / 2
