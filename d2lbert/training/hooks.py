"""The hooks of a run: evaluation, callback, log and checkpoints.

After each step the `Run` calls the method after(run, step, is_last) of each
hook. is_last: True if the run is over.
"""
import time
from shlex import quote

import numpy as onp

from d2lbert.machine import workers
from d2lbert.machine.arguments import short_repr
from d2lbert.machine.terminal import warn
from d2lbert.progress import Animator
from d2lbert.training import checkpoints
from d2lbert.training.interrupts import Stopped
from d2lbert.training.run_folder import has_held_out, log

#: Line styles in the plot, of the losses and then of the held-out losses.
LINE_STYLES = '-', 'm--', 'g-.', 'r:', 'c-', 'y--', 'k-.', 'b:'

#: Bits of a request, see `SaveHook`.
STOP, SAVE = 1, 2

#: The message if a signal ends a run at once, and the run has a checkpoint.
STOPPED_WITH_CHECKPOINT = 'stopped; the last checkpoint is whole'

#: With save_every=None, a run saves a timed checkpoint this long after its
#: start or its last checkpoint.
SAVE_SECONDS = 300


class EvaluationHook:
    """Evaluate the net every `eval_every` steps and after the last step."""

    def after(self, run, step, is_last):
        every = run.objective.eval_every
        is_due = every and (step % every == 0 or is_last)
        if not is_due:
            return
        # Called in every worker, as it sums their losses; may raise `Diverged`
        run.history.read_losses()
        if workers.rank() != 0:
            return
        with run.average.applied():
            figures = run.objective.evaluate(run.net, run.devices)
        run.history.held_out[step] = figures
        run.best.save_if_best(step)
        plot_held_out(run.animator, run.objective, step, figures)
        log(run, f'step {step}: {run.objective.line(figures)}',
            run.animator.print_line)


def plot_held_out(animator, objective, step, figures):
    """Add held-out figures to the plot that `draw_history` began."""
    animator.add(step, (
        *[None] * len(objective.losses),    # no points for these curves
        *(getattr(figures, name) for name in objective.plotted)))


def draw_history(objective, history, xlim):
    """Return an `Animator` with the losses and held-out figures of a history.

    xlim: [first step, last step], or None.
    """
    legend = list(objective.losses)
    if objective.eval_every:
        # `plotted` lacks figures for the losses that a teacher adds
        with_figure = objective.losses[:len(objective.plotted)]
        legend += [f'held-out {name}' for name in with_figure]
    animator = Animator(xlabel='step', ylabel='loss', legend=legend,
                        xlim=xlim, fmts=LINE_STYLES, quiet=workers.rank() != 0,
                        # Taller if the legend is below the axes
                        figsize=(3.5, 2.5 if len(legend) <= 2 else 3.1))
    curves = [getattr(history, name) for name in objective.losses]
    for step, *means in zip(history.step, *curves):
        animator.add(step, means)
    for step, figures in history.held_out.items():
        plot_held_out(animator, objective, step, figures)
    return animator


class CallbackHook:
    """Call the user's function, which may end the run, after each step."""

    def __init__(self, callback):
        if not callable(callback):
            raise TypeError('callback must be a function of a step\'s '
                            f'numbers, not {short_repr(callback)}')
        if workers.num_workers() > 1:
            raise ValueError('callback is for one worker: leave it out under '
                             'd2lbert launch')
        self.callback = callback

    def after(self, run, step, is_last):
        """End the run if the function returns True."""
        history = run.history
        result = self.callback(history.latest_numbers(step))
        # Only True ends the run, no other truthy value. Comparisons of NumPy
        # numbers give a numpy.bool_
        wants_end = isinstance(result, (bool, onp.bool_)) and result
        if not wants_end or is_last:
            return
        history.is_ended = True
        is_logged = history.step[-1:] == [step]
        if not is_logged:
            history.log(step)
            run.animator.add(step, history.means)
        if step not in history.held_out:
            EvaluationHook().after(run, step, is_last=True)
        log(run, f'the callback ended the run after step {step}',
            run.animator.print_line)


class LogHook:
    """Append rows to losses.csv, and warn of growing losses."""

    def after(self, run, step, is_last):
        if workers.rank() == 0:
            run.folder.append('losses.csv', run.history.last_csv_row(
                step, has_held_out(run)))
            # `log` ignores None
            log(run, run.growth.warning_after(step), warn)


class SaveHook:
    """Save checkpoints, and end the run after a request to stop.

    A request is 0, STOP, SAVE or STOP + SAVE. With several workers, the
    first worker's request reaches all workers together with the losses, and
    `Run._read` stores it in `request`. So all workers act after the same step.
    """

    def __init__(self):
        self.request = 0
        self._saved_at = time.monotonic()   # the start or the last save
        self._has_timed_checkpoint = False

    def own_request(self, run):
        """STOP after a signal, plus SAVE if a timed checkpoint is due."""
        is_due = (run.settings['save_every'] is None
                  and time.monotonic() - self._saved_at >= SAVE_SECONDS)
        return STOP * (run.stop.signal is not None) + SAVE * is_due

    def after(self, run, step, is_last):
        """Save a due checkpoint; to stop, save one and raise `Stopped`."""
        every = run.settings['save_every']
        request = (self.own_request(run) if workers.num_workers() == 1
                   else self.request)
        must_stop = request & STOP and not is_last
        if every:
            is_due = step % every == 0 or is_last
        else:
            # Without a timed checkpoint, the last step is not saved either
            is_due = request & SAVE or (is_last and self._has_timed_checkpoint)
            self._has_timed_checkpoint |= bool(is_due)
        if is_due or must_stop:
            self._save(run, step)
        if must_stop:
            raise Stopped(self._stop_message(run, step), run.stop.signal)

    def _save(self, run, step):
        # Called in every worker, as it sums their losses
        run.history.read_losses()
        self.request, self._saved_at = 0, time.monotonic()
        if workers.rank() == 0:
            run.check_finite()
            state, arrays = dict(settings=run.settings), {}
            for stateful in run.stateful:
                state.update(stateful.state())
                arrays.update(stateful.arrays())
            num_kept = (
                run.settings['keep'] if run.settings['save_every'] else 1)
            checkpoints.save(run.out, step, state, arrays, num_kept)
            run.stop.last_words = STOPPED_WITH_CHECKPOINT

    @staticmethod
    def _stop_message(run, step):
        if workers.rank() != 0:
            return ''
        if workers.num_workers() > 1:
            return f'stopped at step {step}'
        return (f'stopped at step {step}; go on with: d2lbert '
                f'{run.objective.command} --resume {quote(str(run.out))}')
