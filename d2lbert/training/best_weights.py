"""The weights of the step of a run that scored best on held-out examples."""
import contextlib
import math

import numpy as onp

from d2lbert.machine import params
from d2lbert.machine.backend import np, npx
from d2lbert.machine.files import Name, replacing
from d2lbert.training import checkpoints
from d2lbert.training.saved_runs import load_parameters, save_parameters

#: Where they lie until the run is finished; checkpoints have them, too.
FILE = 'best.params'

PREFIX = 'best/'


class Best:
    """Keeps the weights of the step that the objective scores highest.

    Where it has no score, the weights of the last step are those of the
    run. Of equal scores the first is the best.
    """

    def __init__(self, objective, history, net):
        self.objective, self.history, self.net = objective, history, net

    @property
    def is_kept(self):
        """Whether there is, or will be, a best step."""
        return bool(self.objective.score and self.objective.eval_every)

    @property
    def step(self):
        """The best step so far; None where there is none."""
        if not self.objective.score:
            return None
        return best_step(self.history, self.objective.score)

    def note(self, run, step):
        """Keep the weights of now, of `step`, where they are the best."""
        if self.step == step:
            save_parameters(self.net, run / FILE)

    def arrays(self, run):
        """What a checkpoint needs besides its own weights, {name: array}."""
        if self.step in (None, self.history.num_steps):
            return {}
        return {f'{PREFIX}{name}': array
                for name, array in params.read(run / FILE).items()}

    def restore(self, run, arrays):
        """Put back what `arrays` gave a checkpoint; the net is restored."""
        if self.step is None:
            return
        if self.step == self.history.num_steps:
            save_parameters(self.net, run / FILE)
            return
        if not any(name.startswith(PREFIX) for name in arrays):
            raise checkpoints.CheckpointError(
                'the checkpoint is damaged: it lacks the best weights, those '
                f'of step {self.step}')
        found = {name[len(PREFIX):]: np.array(onp.asarray(array))
                 for name, array in arrays.items()
                 if name.startswith(PREFIX)}
        with replacing(run / FILE) as part:
            npx.save(Name(part), found)

    def load(self, run, devices):
        """Give the net its best weights."""
        if self.step not in (None, self.history.num_steps):
            load_parameters(self.net, run / FILE, devices)

    def close(self, run):
        """Remove the file: the weights are in model.params now."""
        with contextlib.suppress(FileNotFoundError):
            (run / FILE).unlink()


def best_step(history, score):
    """The step with the highest score, the first of equals; None of none."""
    scores = {step: score(figures)
              for step, figures in history.held_out.items()}
    # What is no number is worse than any; max takes the first of equals
    return max(scores, default=None, key=lambda step: -math.inf
               if math.isnan(scores[step]) else scores[step])
