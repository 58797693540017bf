"""How far a run is, by its steps or by a clock, and the rate there."""
import math

#: What a run of so many minutes keeps in its folder: when each step began.
FILE = 'clock.csv'

HEAD = 'step,seconds\n'


def pace_of(settings, num_steps, history, num_workers=1):
    """The pace that the settings of a run name.

    num_steps: how many there are, where no `minutes` are set.
    """
    minutes = settings.get('minutes')
    check_clock(minutes, num_workers)
    return (BySteps(num_steps, history) if minutes is None
            else ByClock(minutes, history))


def check_clock(minutes, num_workers):
    """Refuse a run by the clock that has several workers, hence clocks."""
    if minutes is not None and num_workers > 1:
        raise ValueError(f'minutes={minutes:g} is for one worker, whose clock '
                         f'it is, not for {num_workers}: give num_steps '
                         '(--num-steps) in place of it')


class BySteps:
    """A run of `num_steps` steps, each of which is as much as any other."""

    file = None

    def __init__(self, num_steps, history):
        self.num_steps, self.history = num_steps, history
        self.words, self.xlim = f'{num_steps} steps', [1, num_steps]

    def begin(self, step):
        """Tell that `step` begins, and what it is drawn from comes next."""

    def is_over(self):
        """Whether the steps that were taken are all."""
        return self.history.num_steps >= self.num_steps

    def share(self, step):
        """The share of the run that lies before `step`, 0 to 1."""
        return (step - 1) / self.num_steps

    def factor(self, step, warmup, decay):
        """What the learning rate is multiplied by at `step`."""
        return schedule(step, self.num_steps, self.num_steps + 1, warmup,
                        decay)

    def texts(self):
        """What lies in the run folder of it, {name: text}."""
        return {}

    def state(self):
        """What a checkpoint says of it: the history counts the steps."""
        return {}

    def restore(self, state, folder):
        """Go on from a checkpoint; the history is restored."""

    def check(self, path):
        """Refuse to go on where more was taken up to `path` than is left."""
        if self.history.num_steps > self.num_steps:
            raise ValueError(
                f'num_steps={self.num_steps} is less than the '
                f'{self.history.num_steps} steps that were taken up to '
                f'{path}: name more, or an earlier checkpoint')


class ByClock:
    """A run of so many minutes of training, in as many steps as they give.

    The clock is that of the history, which stands still while the run is
    scored or saved and while it is stopped. It is read once a step, when
    that begins: `seconds`, one for each step. A step that is taken once
    more, since a run was killed behind its last checkpoint, takes the
    reading that it had, and so is the step that it was, and the time that
    it takes is not counted twice.
    """

    file = FILE

    def __init__(self, minutes, history):
        self.minutes, self.history = minutes, history
        self.end, self.seconds, self._known = 60 * minutes, [], 0
        self.words, self.xlim = f'{minutes:g} minutes of steps', None

    def begin(self, step):
        """Read the clock for `step`, or what it showed before."""
        if step > len(self.seconds):
            self.seconds.append(self.history.seconds)
        else:
            self.history.seconds = self.seconds[step - 1]

    def is_over(self):
        """Whether no time is left to begin a step in."""
        return self._next() >= self.end

    def _next(self):
        """What the clock shows the step that comes next."""
        taken = self.history.num_steps
        return (self.seconds[taken] if taken < len(self.seconds)
                else self.history.seconds)

    def share(self, step):
        """The share of the time that was used when `step` began."""
        return self.seconds[step - 1] / self.end

    def factor(self, step, warmup, decay):
        """What the learning rate is multiplied by at `step`."""
        return schedule(self.seconds[step - 1], self.end, self.end, warmup,
                        decay)

    def texts(self):
        """{`FILE`: its text}, with all readings."""
        return {FILE: HEAD + ''.join(f'{k},{second!r}\n' for k, second
                                     in enumerate(self.seconds, 1))}

    def row(self, step):
        """What `FILE` lacks of a step; '' where it was taken before."""
        if step <= self._known:
            return ''
        return f'{step},{self.seconds[step - 1]!r}\n'

    def state(self):
        """What a checkpoint says of it: readings, the next one included."""
        return dict(clock=[*self.seconds[:self.history.num_steps],
                           self._next()])

    def restore(self, state, folder):
        """Go on from a checkpoint; the history is restored.

        What `FILE` in the run folder says of later steps holds for them,
        too.
        """
        taken = self.history.num_steps
        *self.seconds, now = map(float, state['clock'])
        if len(self.seconds) != taken:
            raise ValueError(f'the clock was read {len(self.seconds)} times '
                             f'in {taken} steps')
        self.history.seconds = now
        later = _readings(folder / FILE)[taken:]
        # A file that was changed, or is of another run, says nothing
        if later[:1] == [now]:
            self.seconds += later
        self._known = len(self.seconds)

    def check(self, path):
        """Refuse to go on where more was used up to `path` than is left."""
        if self.history.seconds > self.end:
            raise ValueError(
                f'minutes={self.minutes:g} is less than the '
                f'{self.history.seconds / 60:.2f} minutes that were used up '
                f'to {path}: name more, or an earlier checkpoint')


def _readings(path):
    """The seconds in the file `FILE`, as far as it is whole."""
    seconds = []
    try:
        text = path.read_text('utf-8')
    except (OSError, ValueError):
        return seconds
    for line in text.splitlines(keepends=True)[1:]:
        step, _, second = line.partition(',')
        try:
            second = float(second)
            if int(step) != len(seconds) + 1 or line[-1] != '\n' or not (
                    (seconds or [0.0])[-1] <= second < math.inf):
                break
        except ValueError:
            break
        seconds.append(second)
    return seconds


def batch_size(whole, growing, share):
    """How many examples a batch has when a share of the run is over.

    In thirds of the share `growing` they are an eighth, a quarter and half
    of the `whole`, rounded up, then all of it.
    """
    if share >= growing:
        return whole
    return -(-whole // (8, 4, 2)[int(3 * share / growing)])


def schedule(place, whole, end, warmup, decay):
    """What the learning rate is multiplied by at a place in a run.

    It rises over the share `warmup` of the `whole`, then falls until `end`,
    where it is 0, in a straight line with decay='linear', or by half a
    cosine with 'cosine' (Loshchilov and Hutter 2017); or it stays.
    """
    rising = warmup * whole
    if place < rising:
        return place / rising
    if decay == 'none':
        return 1.0
    left = (end - place) / (end - rising)
    return left if decay == 'linear' else (1 - math.cos(math.pi * left)) / 2
