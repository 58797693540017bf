"""`finetune`: start or resume runs that learn a labelled task."""
import functools
from pathlib import Path

from d2lbert.finetuning import seed_runs as several
from d2lbert.finetuning.objective import FineTuning
from d2lbert.finetuning.settings import CHANGEABLE_ON_RESUME, SEEDS, complete
from d2lbert.machine.terminal import steady_output
from d2lbert.training.interrupts import StopRequest
from d2lbert.training.loop import Run
from d2lbert.training.pretraining import RunType, resumed
from d2lbert.training.run_folder import RunFolder


def finetune(task=None, data=None, model=None, out=None, force=False,
             resume=None, devices='auto', seeds=1, **keywords):
    """Fine-tune a pretrained model and leave a run folder; returns its path.

    task: a name in `tasks.TASKS`. data: the folder with its files.

    model: a checkpoint folder as for `load_pretrained`, or a run folder of
    `pretrain`. keywords: the other settings of `finetuning.settings`.

    Each epoch ends with an evaluation on the development part. The weights
    of the best epoch, by the task's first metric, are saved.

    out, force, resume and devices are as for `pretrain`. seeds: number of
    runs with consecutive seeds, in subfolders of `out`. Their metrics are
    reported as mean ± standard deviation.
    """
    given = dict(task=task, data=data, model=model)
    keywords.update((name, value) for name, value in given.items()
                    if value is not None)
    seeds = SEEDS.checked(seeds)
    if resume is not None and (out is not None or force or seeds > 1):
        raise ValueError('a resumed run stays in its folder, with the seeds '
                         'that it has: give neither --out nor --force nor '
                         '--seeds with --resume')
    if resume is not None and several.is_folder(resume):
        return several.resume(one, Path(resume), keywords, devices)
    if seeds > 1:
        return several.begin(one, complete(keywords), seeds, out, force,
                             devices)
    return one(out, force, resume, devices, keywords)


def one(out, force, resume, devices, keywords):
    """Carry out one run; returns its folder."""
    with steady_output(), StopRequest() as stop:
        if resume is None:
            settings = complete(keywords)
            run = Run(_objective, settings, devices, stop)
            return run.carry_out(RunFolder.take, out, force,
                                 [settings['data'], settings['model']])
        run = resumed(Path(resume), keywords, devices, stop,
                      FINETUNING)
        run.make_objective = functools.partial(_objective, begun=run.out)
        return run.carry_out()


def _objective(settings, vocab, begun=None):
    return FineTuning(settings, begun)


FINETUNING = RunType('finetune', _objective, complete, CHANGEABLE_ON_RESUME)
