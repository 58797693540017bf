"""What a run saw: losses, held-out figures, lines for log.txt."""
from d2lbert.bert_pretraining import History
from d2lbert.evaluation import Figures
from d2lbert.files import write_text


class RunHistory(History):
    """A `History` with held-out figures and log lines, for checkpoints."""

    def __init__(self):
        super().__init__()
        self.held_out, self.log_lines = {}, []

    def add(self, read, num_pairs):
        """Count a step, and read the losses of the one before.

        A step behind, which costs no waiting: a loss that is no number
        should not be news when losses are next logged.
        """
        super().add(read, num_pairs)
        self.settle(waiting=1)

    def csv(self, held_out):
        """The text of losses.csv: a row for each step with something noted.

        held_out: whether it has columns for held-out figures.
        """
        columns = self.columns
        if held_out:
            columns += tuple(f'held_out_{name}' for name in Figures._fields)
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
            row += self.held_out.get(step, ('',) * len(Figures._fields))
        return ','.join(x if x == '' else repr(x) for x in row) + '\n'

    def save_csv(self, path):
        """Write a row for each logged step, with the held-out figures."""
        write_text(path, self.csv(bool(self.held_out)))

    def to_dict(self):
        """All of it as what JSON can hold, exactly."""
        return dict({name: getattr(self, name) for name in self.columns},
                    sums=self.sums.data, seconds=self.seconds,
                    held_out=list(self.held_out.items()),
                    log_lines=self.log_lines)

    @classmethod
    def from_dict(cls, state):
        """The history that `to_dict` wrote."""
        history = cls()
        for name in (*cls.columns, 'seconds', 'log_lines'):
            setattr(history, name, state[name])
        history.sums.data = state['sums']
        history.held_out = {step: Figures(*figures)
                            for step, figures in state['held_out']}
        return history
