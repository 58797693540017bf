"""Record and read the losses, held-out figures and log lines of a run."""
import bisect
import csv
import math
from pathlib import Path
from typing import Dict, Union

import numpy as onp

from d2lbert.machine.arguments import PathLike
from d2lbert.machine.files import is_run, write_text
from d2lbert.nn.steps import History
from d2lbert.training.saved_runs import RunError
from d2lbert.training.state import Stateful

#: A run warns of a loss that is above MAX_GROWTH times the loss of the first
#: step and also above MAX_GROWTH nats. Smaller growth may be chance.
MAX_GROWTH = 2

#: `LossGrowth.warning_after` warns from this step on: early losses fluctuate.
FIRST_CHECKED_STEP = 10


class RunHistory(History, Stateful):
    """A `History` with held-out figures and log lines.

    The attribute `step` is the list of the logged steps. losses: the names of
    the losses. figures_type: the named tuple type of the held-out figures.
    wanted: dict(corpus=, reason=), the corpus that the user wanted and why it
    could not be had; None if the run has the wanted corpus.
    """

    #: True if a callback has ended the run
    is_ended = False

    def __init__(self, losses, figures_type, wanted=None):
        super().__init__(losses)
        self.figures_type, self.wanted = figures_type, wanted
        self.held_out = {}      # {step: figures}
        self.log_lines = []     # of log.txt, with newlines
        self.first_losses = None    # of step 1
        if wanted is not None:
            self.log_lines.append(
                f'trained on another corpus than {wanted["corpus"]}, which '
                f'could not be had: {wanted["reason"]}\n')

    def add(self, read, num_pairs):
        """Add a step, and read the losses of the previous step.

        The devices have finished the previous step, so this does not wait. If
        a loss is not finite, `read` raises `Diverged`. Hence a diverged run
        ends before the next log entry.
        """
        super().add(read, num_pairs)
        self.read_losses(num_unread=1)

    @property
    def recent(self):
        """(number of steps, mean losses) of about the last tenth of the run.

        These are all steps after the last log entry in the first nine tenths
        of the run. None if there is no such entry.
        """
        return self._since(bisect.bisect(self.step, 0.9 * self.step[-1]) - 1)

    @property
    def latest(self):
        """(number of steps, mean losses) between the last two log entries.

        None if there are fewer than two entries.
        """
        return self._since(len(self.step) - 2)

    def _since(self, k):
        """(number of steps, mean losses) after log entry k; None if k < 0."""
        if k < 0:
            return None
        # The lists have means since step 1: a mean times its step is a sum
        begin, end = self.step[k], self.step[-1]
        return end - begin, tuple(
            (means[-1] * end - means[k] * begin) / (end - begin)
            for means in (getattr(self, name) for name in self.losses))

    def drop_extra_entry(self, log_interval):
        """Remove the extra entry of the last step, when a run is prolonged.

        A run logs its last step, even if it is no multiple of log_interval.
        """
        if self.step and self.step[-1] % log_interval:
            for name in self.columns:
                getattr(self, name).pop()

    def latest_numbers(self, step):
        """{column of losses.csv: number} of `step`, the latest step.

        Waits for the losses. An evaluated step also has held-out figures.
        """
        self.read_losses()
        numbers = dict(zip(self.columns,
                           (step, *self._last_losses, *self.means)))
        if step in self.held_out:
            numbers.update(held_out_numbers(self.held_out[step]))
        return numbers

    def csv_text(self, has_held_out):
        """The text of losses.csv: a row for each logged or evaluated step."""
        columns = self.columns
        if has_held_out:
            columns += tuple(f'held_out_{name}'
                             for name in self.figures_type._fields)
        index_of = {step: k for k, step in enumerate(self.step)}
        return ','.join(columns) + '\n' + ''.join(
            self._csv_row(step, index_of.get(step), has_held_out)
            for step in sorted({*index_of, *self.held_out}))

    def last_csv_row(self, step, has_held_out):
        """The row of the latest step; '' if neither logged nor evaluated."""
        is_logged = self.step[-1:] == [step]
        if not is_logged and step not in self.held_out:
            return ''
        k = len(self.step) - 1 if is_logged else None
        return self._csv_row(step, k, has_held_out)

    def _csv_row(self, step, k, has_held_out):
        """The row of a step; k: the index of its log entry, or None."""
        row = (step,) + ('',) * (len(self.columns) - 1)
        if k is not None:
            row = tuple(getattr(self, name)[k] for name in self.columns)
        if has_held_out:
            no_figures = ('',) * len(self.figures_type._fields)
            row += self.held_out.get(step, no_figures)
        return ','.join(x if x == '' else repr(x) for x in row) + '\n'

    def save_csv(self, path):
        """Write losses.csv, with held-out figures if there are any."""
        write_text(path, self.csv_text(bool(self.held_out)))

    def state(self):
        lists = {name: getattr(self, name) for name in self.columns}
        return dict(history=dict(
            lists, sums=self.sums.data, seconds=self.seconds,
            held_out=list(self.held_out.items()), log_lines=self.log_lines,
            wanted=self.wanted, first=self.first_losses))

    def restore(self, checkpoint):
        state = checkpoint.state['history']
        for name in (*self.columns, 'log_lines'):
            setattr(self, name, state[name])
        self.seconds = float(state['seconds'])
        # Checkpoints of earlier versions lack these two
        self.wanted = state.get('wanted')
        self.first_losses = state.get('first')
        self.sums.data = state['sums']
        self.held_out = {step: self.figures_type(*figures)
                         for step, figures in state['held_out']}


def held_out_numbers(figures):
    """Held-out figures as {column of losses.csv: number}."""
    return {f'held_out_{name}': value
            for name, value in figures._asdict().items()}


def history_rows(run):
    """The rows of losses.csv, of a run folder or a `History`.

    A row is {column: number}, without empty columns. Raises `RunError` for a
    folder without a history or with a damaged one.
    """
    if isinstance(run, History):
        entries = zip(*(getattr(run, name) for name in run.columns))
        rows = {entry[0]: dict(zip(run.columns, entry)) for entry in entries}
        for step, figures in run.held_out.items():
            rows.setdefault(step, dict(step=step)).update(
                held_out_numbers(figures))
        return [rows[step] for step in sorted(rows)]
    path = Path(run, 'losses.csv')
    if not path.is_file():
        problem = ('has no history: it was imported, or its losses.csv is '
                   'lost' if is_run(run) else 'is not a run folder')
        raise RunError(f'{run} {problem}; name a folder that d2lbert '
                       'pretrain or finetune wrote')
    try:
        with open(path, encoding='utf-8', newline='') as file:
            return [_parse_row(row) for row in csv.DictReader(file)]
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f'the history of {run} is damaged: {error}') from None


def _parse_row(row):
    """{column: number} of a row {column: text}, without empty columns.

    Raises ValueError or TypeError for an empty `step`.
    """
    return {name: int(value) if name == 'step' else float(value)
            for name, value in row.items()      # None if the row is too short
            if name == 'step' or value not in ('', None)}


def read_history(run: Union[PathLike, History]) -> Dict[str, onp.ndarray]:
    """The history of a run as {column: NumPy array}.

    run: a run folder, finished or not, or a `History` of `train_bert`. An
    array has an entry for each logged or evaluated step. The columns are as in
    losses.csv: `step` (int64), the losses of the step itself such as
    `mlm_loss`, the means of the losses since step 1 such as `mlm`, and
    held-out figures such as `held_out_mlm_loss`. All columns except `step` are
    float64, and NaN where a step has no number. Raises `RunError`, a
    ValueError.
    """
    rows = history_rows(run)
    # Held-out columns last; `sorted` keeps the order of the other columns
    columns = sorted(dict.fromkeys(name for row in rows for name in row),
                     key=lambda name: name.startswith('held_out_'))
    return {name: onp.array([row.get(name, math.nan) for row in rows],
                            'int64' if name == 'step' else 'float64')
            for name in columns}


class Diverged(RunError):
    """A loss or a parameter is not finite, so the run was stopped."""

    @classmethod
    def at(cls, what, step, rate, earlier):
        """The error for a step; rate: its learning rate.

        what: the first words of the message, as 'the MLM loss is nan in'.
        earlier: the checkpoints before the step, oldest first.
        """
        last = (f'the last checkpoint before that is {earlier[-1]}' if earlier
                else 'there is no checkpoint before that')
        return cls(f'{what} step {step}, at a learning rate of {rate:g}: '
                   f'training has diverged, and was stopped; {last}: start '
                   'again with a lower lr (--lr), or with clip (--clip)')


class LossGrowth:
    """Warnings of a loss that has grown far above the first step's loss.

    weights: the factor of each loss. lr: the largest learning rate.
    """

    def __init__(self, history, weights, lr):
        self._history, self._weights, self._lr = history, weights, lr
        self._warned_at = None      # the step of the warning

    def warning_after(self, step):
        """A warning if the losses have grown at a logged step; else None.

        Only the first warning of a run is returned.
        """
        is_logged = self._history.step[-1:] == [step]
        if (self._warned_at is not None or step < FIRST_CHECKED_STEP
                or not is_logged):
            return None
        warning = self._warning(self._history.latest)
        if warning is not None:
            self._warned_at = step
        return warning

    def final_warning(self):
        """A warning if the losses have grown at the end of a run; else None.

        Also None if `warning_after` has just warned of the last step.
        """
        if self._warned_at == self._history.step[-1]:
            return None
        return self._warning(self._history.recent)

    def _warning(self, steps_and_losses):
        """A warning if the losses have grown beyond MAX_GROWTH; else None.

        steps_and_losses: `latest` or `recent` of the history.
        """
        first_losses = self._history.first_losses
        if first_losses is None or steps_and_losses is None:
            return None
        _, mean_losses = steps_and_losses
        before = self._weighted_sum(first_losses)
        now = self._weighted_sum(mean_losses)
        if now <= MAX_GROWTH * max(before, 1):
            return None
        return (f'training diverges: the loss was {before:.3g} in step 1 and '
                f'is {now:.3g} at step {self._history.step[-1]}, at a '
                f'learning rate of at most {self._lr:g}: start again with a '
                'lower lr (--lr), or with clip (--clip)')

    def _weighted_sum(self, losses):
        return sum(weight * loss
                   for weight, loss in zip(self._weights, losses))
