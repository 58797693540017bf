"""What a run saw: losses, held-out figures, lines for log.txt."""
import bisect

from d2lbert.machine.files import write_text
from d2lbert.nn.steps import History


class RunHistory(History):
    """A `History` with held-out figures and log lines, for checkpoints."""

    def __init__(self, losses, figures, wanted=None):
        """losses: their names; figures: the type of held-out figures.

        wanted: dict(corpus=, reason=), the text that was asked for and the
        reason why the run has another one, or None.
        """
        super().__init__(losses)
        self.figures, self.wanted = figures, wanted
        self.held_out, self.log_lines = {}, []
        self.first = None       # the losses of the first step
        if wanted is not None:
            self.log_lines.append(
                f'trained on another corpus than {wanted["corpus"]}, which '
                f'could not be had: {wanted["reason"]}\n')

    def add(self, read, num_pairs):
        """Count a step, and read the losses of the one before.

        A step behind, which costs no waiting: a loss that is no number
        should not be news when losses are next logged.
        """
        super().add(read, num_pairs)
        self.read_losses(waiting=1)

    @property
    def recent(self):
        """(number of steps, means of the losses): the last tenth of the run.

        It begins at a logged step. None where none lies before it.
        """
        return self._since(bisect.bisect(self.step, 0.9 * self.step[-1]) - 1)

    @property
    def latest(self):
        """The same of the steps since the logged step before the last."""
        return self._since(len(self.step) - 2)

    def _since(self, k):
        """The same of the steps after logged step number k."""
        if k < 0:
            return None
        last, before = self.step[-1], self.step[k]
        return last - before, tuple(
            (means[-1] * last - means[k] * before) / (last - before)
            for means in (getattr(self, name) for name in self.losses))

    def drop_end(self, log_interval):
        """Remove the entry of the last step of a run that goes on now.

        The run that never stopped has none there, unless one was due.
        """
        if self.step and self.step[-1] % log_interval:
            for name in self.columns:
                getattr(self, name).pop()

    def csv(self, held_out):
        """The text of losses.csv: a row for each step with something noted.

        held_out: whether it has columns for held-out figures.
        """
        columns = self.columns
        if held_out:
            columns += tuple(f'held_out_{name}'
                             for name in self.figures._fields)
        places = {step: place for place, step in enumerate(self.step)}
        return ','.join(columns) + '\n' + ''.join(
            self._csv_row(step, places.get(step), held_out)
            for step in sorted({*places, *self.held_out}))

    def last_csv_row(self, step, held_out):
        """The row of `step`, the latest; '' where nothing was noted."""
        place = None
        if self.step and self.step[-1] == step:
            place = len(self.step) - 1
        elif step not in self.held_out:
            return ''
        return self._csv_row(step, place, held_out)

    def _csv_row(self, step, place, held_out):
        row = (step,) + ('',) * (len(self.columns) - 1)
        if place is not None:
            row = tuple(getattr(self, name)[place] for name in self.columns)
        if held_out:
            row += self.held_out.get(
                step, ('',) * len(self.figures._fields))
        return ','.join(x if x == '' else repr(x) for x in row) + '\n'

    def save_csv(self, path):
        """Write a row for each logged step, with the held-out figures."""
        write_text(path, self.csv(bool(self.held_out)))

    def to_dict(self):
        """All of it as what JSON can hold, exactly."""
        return dict({name: getattr(self, name) for name in self.columns},
                    sums=self.sums.data, seconds=self.seconds,
                    first=self.first,
                    held_out=list(self.held_out.items()),
                    log_lines=self.log_lines, wanted=self.wanted)

    def restore(self, state):
        """Become the history that `to_dict` wrote."""
        for name in (*self.columns, 'seconds', 'log_lines'):
            setattr(self, name, state[name])
        # An older checkpoint has none
        self.wanted, self.first = state.get('wanted'), state.get('first')
        self.sums.data = state['sums']
        self.held_out = {step: self.figures(*figures)
                         for step, figures in state['held_out']}
