"""`finetune` starts or resumes runs that learn a labelled task."""
import functools
import os
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

from d2lbert.finetuning import seed_runs
from d2lbert.finetuning.datasets import DataInMemory, ModelInMemory, is_task
from d2lbert.finetuning.objective import FineTuning
from d2lbert.finetuning.settings import (
    CHANGEABLE_ON_RESUME,
    GROUPS,
    SEEDS,
    complete,
)
from d2lbert.machine.arguments import PathLike
from d2lbert.machine.terminal import failsafe_output
from d2lbert.training.interrupts import StopRequest
from d2lbert.training.loop import Run
from d2lbert.training.pretraining import RunType, reopen_run
from d2lbert.training.run_folder import DATA, RunFolder
from d2lbert.training.settings import takes_settings


@takes_settings(GROUPS)
def finetune(task: Any = None, data: Optional[PathLike] = None,
             model: Any = None, out: Optional[PathLike] = None,
             force: bool = False, resume: Optional[PathLike] = None,
             devices: Any = 'auto', seeds: int = 1,
             train: Optional[Sequence] = None,
             valid: Optional[Sequence] = None,
             callback: Optional[Callable[[dict], Any]] = None,
             **keywords) -> Path:
    """Fine-tune a pretrained model; returns the path of the run folder.

    task: a name in `TASKS` (tasks/catalog.py). data: the folder with the
    task's files. Without it, the task 'snli' downloads SNLI. model: a folder
    as for `load_model`, but not a run of `finetune`; or the book's
    'bert.small' or 'bert.base'; or a model in memory: a `TextModel`, a pair
    (net, tokenizer), or a net that has an attribute `vocab`. The run trains a
    copy of a model in memory.

    train, valid: examples in memory in place of `data`, both or neither. Each
    is (texts, labels) or (texts, second texts, labels), in lists, arrays or
    columns of a table.
    The first argument may then be the model: `finetune(model, train=(texts,
    labels), valid=(texts, labels))`; with a task, give both by name:
    `finetune(task='regress', model=model, ...)`. If no task is given, it is
    'regress' for labels of type float, Python's or NumPy's, 'tag' for lists of
    tags, and otherwise 'classify', with str(label) as the names of the
    classes. The examples are written to the subfolder `data` of the run
    folder.

    Each epoch ends with an evaluation on the held-out examples: `valid`, or
    the development part of `data`. The weights of the epoch with the highest
    value of the task's first metric are saved.

    out, force, resume, devices and callback are as for `pretrain`. seeds:
    number of runs with consecutive seeds. Two or more are in subfolders of
    the returned folder, and metrics are reported as mean ± standard deviation.
    """
    if train is not None and model is None and not is_task(task):
        task, model = None, task    # called as finetune(model, train=...)
    seeds = SEEDS.checked(seeds)
    if resume is not None and (out is not None or force or seeds > 1):
        raise ValueError('a resumed run stays in its folder, with the seeds '
                         'that it has: give neither --out nor --force nor '
                         '--seeds with --resume')
    examples = _examples_in_memory(train, valid, task, data, resume, keywords)
    if examples is not None:
        # DATA is a placeholder: the setting `data` needs a value for its
        # checks, and `_write_examples` sets the path in the new run folder
        task, data = examples.task, DATA
        if examples.columns is not None:
            keywords['columns'] = examples.columns
    model_in_memory = None
    if model is not None and not isinstance(model, (str, os.PathLike)):
        model_in_memory = ModelInMemory.of(model)
        model = model_in_memory.name
        if seeds > 1 or resume is not None:
            raise ValueError('a model in memory is for one new run: for '
                             'several seeds, save the model and name its '
                             'folder; on resume, leave the model out')
    named_settings = dict(task=task, data=data, model=model)
    keywords.update((name, value) for name, value in named_settings.items()
                    if value is not None)
    run_once = functools.partial(finetune_once, callback=callback)
    if resume is not None and seed_runs.has_seed_runs(resume):
        return seed_runs.resume(run_once, Path(resume), keywords, devices)
    if seeds > 1:
        settings = complete(keywords)
        write_data = None if examples is None else functools.partial(
            _write_examples, examples, settings)
        return seed_runs.begin(run_once, settings, seeds, out, force, devices,
                               write_data)
    return run_once(out, force, resume, devices, keywords, examples,
                    model_in_memory)


def _examples_in_memory(train, valid, task, data, resume, keywords):
    """The `DataInMemory` of train and valid; None if both are None."""
    if train is None and valid is None:
        return None
    if train is None:
        raise ValueError('valid is for examples in memory: give train, too')
    for name, value in (('data', data), ('resume', resume),
                        ('columns', keywords.get('columns'))):
        if value is not None:
            raise ValueError(f'train and valid are examples in memory: leave '
                             f'{name} out')
    return DataInMemory.of(train, valid, task)


def _write_examples(examples, settings, folder):
    """Write examples into a run folder, and set the setting `data`."""
    settings['data'] = examples.write(folder)


def finetune_once(out, force, resume, devices, keywords, examples=None,
                  model_in_memory=None, callback=None):
    """Carry out one run; returns its folder.

    keywords: {name of a setting: value}. examples: a `DataInMemory`, or None.
    model_in_memory: a `ModelInMemory`, or None. Other arguments are as for
    `finetune`.
    """
    with failsafe_output(), StopRequest() as stop:
        if resume is not None:
            run = reopen_run(Path(resume), keywords, devices, stop,
                             FINETUNING, callback)
            # The objective of a resumed run reads the tokenizer and the net's
            # config from the run folder, which `reopen_run` has just found
            run.make_objective = functools.partial(_make_objective,
                                                   run_folder=run.out)
            return run.carry_out()
        settings = complete(keywords)
        if examples is None:
            create = RunFolder.create
            inputs = [settings['data'], settings['model']]
        else:
            write = functools.partial(_write_examples, examples, settings)
            create = functools.partial(RunFolder.create_with, write)
            inputs = [settings['model']]
        make_objective = functools.partial(_make_objective,
                                           model_in_memory=model_in_memory)
        run = Run(make_objective, settings, devices, stop, callback=callback)
        # Raises ValueError if `force` would move one of the inputs away
        return run.carry_out(create, out, force, inputs)


def _make_objective(settings, vocab, run_folder=None, model_in_memory=None):
    """Make the objective of a run; `vocab`, which `Run` passes, is unused."""
    return FineTuning(settings, run_folder, model_in_memory)


#: The argument `run_type` of `reopen_run`
FINETUNING = RunType('finetune', _make_objective, complete,
                     CHANGEABLE_ON_RESUME)
