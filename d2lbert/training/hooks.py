"""Actions after a step of a run: evaluating it, logging it, saving it."""
import time
from shlex import quote

import numpy as onp

from d2lbert.machine import workers
from d2lbert.machine.arguments import short
from d2lbert.machine.terminal import warn
from d2lbert.progress import Animator
from d2lbert.training import checkpoints
from d2lbert.training.interrupts import Stopped
from d2lbert.training.run_folder import has_held_out, log

#: Line styles of the losses, followed by the held-out losses.
LINES = '-', 'm--', 'g-.', 'r:', 'c-', 'y--', 'k-.', 'b:'

#: Bits of a request of the first worker to all workers.
STOP, SAVE = 1, 2

#: The last words of a process that a second signal ends after a checkpoint.
SAVED = 'stopped; the last checkpoint is whole'

#: Seconds between the checkpoints of a run without `save_every`.
SAVE_SECONDS = 300


class Evaluating:
    """Evaluate the net every `eval_every` steps and after the last one."""

    def after(self, run, step, is_last):
        """Store and plot the figures; keep the weights if they are the best.
        """
        every = run.objective.eval_every
        if not every or step % every and not is_last:
            return
        run.history.read_losses()   # raises before NaN is evaluated
        if workers.rank() != 0:
            return
        with run.average.in_place():
            figures = run.objective.evaluate(run.net, run.devices)
        run.history.held_out[step] = figures
        run.best.note(step)
        draw(run.animator, run.objective, step, figures)
        log(run, f'step {step}: {run.objective.line(figures)}',
            run.animator.say)


def draw(animator, objective, step, figures):
    """Add held-out figures to the last curves of `draw_history`."""
    animator.add(step, (
        *[None] * len(objective.losses),
        *(getattr(figures, name) for name in objective.plotted)))


def draw_history(objective, history, xlim):
    """An `Animator` with everything that a history has logged so far."""
    legend = list(objective.losses)
    if objective.eval_every:
        legend += [f'held-out {name}' for name, _ in zip(
            objective.losses, objective.plotted)]
    animator = Animator(xlabel='step', ylabel='loss', legend=legend,
                        xlim=xlim, fmts=LINES, quiet=workers.rank() != 0,
                        figsize=(3.5, 2.5 if len(legend) <= 2 else 3.1))
    for step, *means in zip(history.step, *(
            getattr(history, name) for name in objective.losses)):
        animator.add(step, means)
    for step, figures in history.held_out.items():
        draw(animator, objective, step, figures)
    return animator


class Calling:
    """Call a function of the user after each step; it may end the run."""

    def __init__(self, callback):
        if not callable(callback):
            raise TypeError('callback must be a function of a step\'s '
                            f'numbers, not {short(callback)}')
        if workers.num_workers() > 1:
            raise ValueError('callback is for one worker: leave it out under '
                             'd2lbert launch')
        self.callback = callback

    def after(self, run, step, is_last):
        """End the run if the function returns True."""
        history = run.history
        ends = self.callback(history.entry(step))
        # A comparison of NumPy numbers gives a numpy.bool_
        if not (isinstance(ends, (bool, onp.bool_)) and ends) or is_last:
            return
        history.is_ended = True
        if history.step[-1:] != [step]:
            history.log(step)
            run.animator.add(step, history.means)
        if step not in history.held_out:
            Evaluating().after(run, step, is_last=True)
        log(run, f'the callback ended the run after step {step}',
            run.animator.say)


class Logging:
    """Append a logged step to losses.csv, and warn of growing losses."""

    def after(self, run, step, is_last):
        """Append a row, as the first worker."""
        if workers.rank() == 0:
            run.folder.append('losses.csv', run.history.last_csv_row(
                step, has_held_out(run)))
            log(run, run.growth.line(step), warn)


class Saving:
    """Save checkpoints, and end the run after a request to stop.

    With several workers, `requests` come from the first worker together
    with the losses, so that all workers act on them after the same step.
    """

    def __init__(self):
        self.requests, self._saved_at = 0, time.monotonic()
        self._has_saved = False

    def wanted(self, run):
        """The current request of this worker: 0, STOP, SAVE or their sum."""
        is_due = (run.settings['save_every'] is None
                  and time.monotonic() - self._saved_at >= SAVE_SECONDS)
        return STOP * (run.stop.signal is not None) + SAVE * is_due

    def after(self, run, step, is_last):
        """Save if it is due; raises `Stopped` after a request to stop."""
        every = run.settings['save_every']
        requests = (self.wanted(run) if workers.num_workers() == 1
                    else self.requests)
        stopping = requests & STOP and not is_last
        if every:
            is_due = step % every == 0 or is_last
        else:
            # A run with automatic checkpoints also saves its last step
            is_due = requests & SAVE or is_last and self._has_saved
            self._has_saved |= bool(is_due)
        if is_due or stopping:
            self._save(run, step)
        if stopping:
            raise Stopped(self._stop_message(run, step), run.stop.signal)

    def _save(self, run, step):
        run.history.read_losses()   # in all workers, as they exchange them
        self.requests, self._saved_at = 0, time.monotonic()
        if workers.rank() == 0:
            run.check_finite()
            state, arrays = dict(settings=run.settings), {}
            for part in run.parts:
                state.update(part.state())
                arrays.update(part.arrays())
            checkpoints.save(
                run.out, step, state, arrays,
                run.settings['keep'] if run.settings['save_every'] else 1)
            run.stop.last_words = SAVED

    @staticmethod
    def _stop_message(run, step):
        if workers.rank() != 0:
            return ''
        if workers.num_workers() > 1:
            return f'stopped at step {step}'
        return (f'stopped at step {step}; go on with: d2lbert '
                f'{run.objective.command} --resume {quote(str(run.out))}')
