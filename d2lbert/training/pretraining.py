"""Start a pretraining run on a text, or resume one: `pretrain`."""
import contextlib
import functools
from pathlib import Path
from shlex import quote
from typing import Any, Callable, Iterable, NamedTuple, Optional

from d2lbert.machine import workers
from d2lbert.machine.arguments import PathLike, items_of, short_repr
from d2lbert.machine.files import read_json, write_text
from d2lbert.machine.terminal import failsafe_output
from d2lbert.objectives.distillation import Distillation
from d2lbert.objectives.generative import CLM, Denoise
from d2lbert.objectives.mlm import MLM, MLMAndNSP, MLMAndSBO, MLMAndSOP
from d2lbert.training import checkpoints
from d2lbert.training.interrupts import StopRequest
from d2lbert.training.loop import Run
from d2lbert.training.run_folder import (
    TEXTS_FILE,
    RunFolder,
    with_own_texts,
)
from d2lbert.training.saved_runs import RunError, complete_saved, is_finetuned
from d2lbert.training.settings import (
    CHANGEABLE_ON_RESUME,
    GROUPS,
    check_kept,
    complete,
    takes_settings,
)
from d2lbert.training.teacher import Teacher

#: The objectives, by the values of the setting `objective`.
OBJECTIVES = {'mlm+nsp': MLMAndNSP, 'mlm+sop': MLMAndSOP, 'mlm': MLM,
              'span': MLMAndSBO, 'denoise': Denoise, 'clm': CLM}

#: Settings that name files and folders which a run reads.
INPUT_PATHS = ('corpus', 'data_dir', 'valid', 'vocab', 'teacher')


@takes_settings(GROUPS)
def pretrain(out: Optional[PathLike] = None, force: bool = False,
             resume: Optional[PathLike] = None, devices: Any = 'auto',
             wanted: Optional[dict] = None, texts: Optional[Iterable] = None,
             callback: Optional[Callable[[dict], Any]] = None,
             **keywords) -> Path:
    """Pretrain BERT and leave a run folder; returns its path.

    out: the folder (default: a new one in runs/). force: move a run in
    `out` aside. resume: a run folder or one of its checkpoints; only the
    settings in `CHANGEABLE_ON_RESUME` may then change. devices: 'auto', or
    as `d2lbert pretrain --help` explains. wanted: dict(corpus=, reason=), a
    corpus that could not be had, and why. config.json and log.txt store both;
    the run trains on the argument `corpus`.

    texts: train on these texts in place of `corpus`: a list, a generator, an
    array or a column of a table. Each text is one paragraph, or several with
    empty lines between them. All paragraphs are one article. The texts are
    written to texts.txt in the run folder.

    callback: a function that is called after each step with the numbers of
    the step: a dictionary with the columns of `read_history`, such as `step`
    and `mlm_loss`, and held-out figures if the step was evaluated. The run
    ends after this step, as a finished run, if the function returns True.
    With a callback each step waits for its losses; the losses stay the same.

    `read_history` returns the history of the run. Under `d2lbert launch`
    each worker computes its part of every batch. Only the first worker writes
    the folder; the others return None.
    """
    if resume is not None and (out is not None or force):
        raise ValueError('a resumed run stays in its folder: give neither '
                         '--out nor --force with --resume')
    if resume is not None and wanted is not None:
        raise ValueError('a resumed run takes the wanted corpus from its '
                         'checkpoint: leave wanted out')
    if texts is not None:
        _check_texts_allowed(resume, keywords)
        content = _joined_texts(texts)
        keywords['corpus'] = TEXTS_FILE     # `_write_texts` adds the folder
    with failsafe_output(), StopRequest() as stop:
        if resume is not None:
            run = reopen_run(Path(resume), keywords, devices, stop,
                             callback=callback)
            return run.carry_out()
        settings, make_objective = complete(keywords), _make_objective
        if settings['teacher'] is not None:
            teacher = Teacher.load(settings['teacher'])
            # From `keywords`: default sizes in `settings` would replace the
            # teacher's
            settings = teacher.student_settings(keywords)
            make_objective = functools.partial(make_objective,
                                               teacher=teacher)
        run = Run(make_objective, settings, devices, stop, wanted, callback)
        create = RunFolder.create
        if texts is not None:
            write = functools.partial(_write_texts, content, settings)
            create = functools.partial(RunFolder.create_with, write)
        # texts.txt is part of the run, not an input
        inputs = [settings[name] for name in INPUT_PATHS
                  if name != 'corpus' or texts is None]
        return run.carry_out(create, out, force, inputs)


def _check_texts_allowed(resume, keywords):
    if resume is not None:
        raise ValueError('a resumed run keeps its text: leave texts out')
    for name in 'corpus', 'data_dir', 'text_field':
        if keywords.get(name) is not None:
            raise ValueError(f'texts and {name} exclude each other: leave '
                             'one of them out')
    if workers.num_workers() > 1:
        raise ValueError('texts in memory are for one worker: write them to '
                         'a file, and name it as corpus')


def _joined_texts(texts):
    """The content of texts.txt."""
    texts = items_of(texts)
    for k, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f'texts[{k}] must be a string, not '
                            f'{short_repr(text)}')
    kept = [text.strip() for text in texts if text.strip()]
    if not kept:
        raise ValueError('texts has no text with a word: give at least one')
    return '\n\n'.join([*kept, ''])


def _write_texts(content, settings, folder):
    write_text(folder / TEXTS_FILE, content)
    settings['corpus'] = str(folder / TEXTS_FILE)


def _make_objective(settings, vocab, teacher=None):
    """Make the `Objective` of a run.

    vocab: the vocabulary of a checkpoint; None for a new run, and for an early
    checkpoint without a vocabulary. teacher: the `Teacher` that `settings`
    name, if it is loaded already.
    """
    is_new = vocab is None
    make = functools.partial(OBJECTIVES[settings['objective']], settings,
                             progress=workers.rank() == 0, is_new=is_new)
    if settings['teacher'] is None:
        return make(vocab)
    teacher = teacher or Teacher.load(settings['teacher'])
    teacher.check(settings, vocab)
    return Distillation(make(teacher.vocab), teacher, is_new)


class RunType(NamedTuple):
    """The differences between pretraining and fine-tuning for `reopen_run`."""

    command: str            # the sub-command of d2lbert
    make_objective: Any     # see `Run`
    complete: Any           # a function from some settings to all
    changeable: Any         # names of settings that may change on resume


PRETRAINING = RunType('pretrain', _make_objective, complete_saved,
                      CHANGEABLE_ON_RESUME)


def reopen_run(path, keywords, devices, stop=None, run_type=PRETRAINING,
               callback=None):
    """Lock a run folder and read a checkpoint; return the `Run` to carry out.

    path: a run folder, for its last checkpoint, or a checkpoint in one.
    keywords: changed settings. run_type: raises `RunError` for a run of
    another type. The other arguments are as for `Run`.
    """
    is_folder = path.is_dir()
    if path.is_file():
        # The text of 'FILE', '../FILE' or a link does not name the run folder
        path = next(filter(checkpoints.is_in_run, (
            path, path.parent.resolve() / path.name, path.resolve())), path)
    # A checkpoint is RUN/checkpoints/FILE
    folder = path if is_folder else path.parent.parent
    if not is_folder and not checkpoints.is_in_run(path):
        if not path.is_file():
            raise checkpoints.CheckpointError(f'there is no checkpoint {path}')
        raise RunError(f'{path} is not in the folder '
                       f'{checkpoints.folder_of("RUN")} of a run: move it '
                       'back there to resume from it')
    if not checkpoints.all_of(folder):
        raise RunError(f'{folder} has no checkpoint to resume from: name a '
                       'run folder that has checkpoints/step-*.npz')
    command = 'finetune' if is_finetuned(folder) else 'pretrain'
    if command != run_type.command:
        raise RunError(f'{folder} is a run of d2lbert {command}: go on with '
                       f'd2lbert {command} --resume {quote(str(path))}')
    run = Run(run_type.make_objective, None, devices, stop, callback=callback)
    try:
        run.open_folder(RunFolder.reopen, folder)
        if is_folder:
            # List the checkpoints again: before this process got the lock,
            # another process may have saved one
            path = checkpoints.all_of(folder)[-1]
        run.checkpoint = checkpoints.Checkpoint.read(path)
        run.settings = _resumed_settings(run.checkpoint, keywords, run_type)
        _check_sizes(run, folder)
    except BaseException:
        run.close()
        raise
    return run


def _check_sizes(run, folder):
    """Raise `CheckpointError` if a size is too large for the saved tensors.

    A damaged size, in the settings or in config.json, could need any amount of
    memory.
    """
    settings = dict(run.settings)
    if settings.get('share_layers'):
        settings['num_groups'] = 1      # as in the config of such a net
    configs = [settings]
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        configs.append(dict(read_json(folder / 'config.json')['model']))
    shapes = {name: array.shape
              for name, array in run.checkpoint.arrays.items()}
    for config in configs:
        checkpoints.check_net_sizes(run.checkpoint.path, config, shapes)


def _resumed_settings(checkpoint, keywords, run_type):
    """The settings of a checkpoint, changed by `keywords`."""
    try:
        saved = run_type.complete(dict(checkpoint.state['settings']))
    except (ValueError, TypeError) as error:
        raise checkpoints.damaged(
            checkpoint.path, f'its settings are invalid ({error})') from None
    check_kept(keywords, saved, run_type.changeable)
    saved = with_own_texts(saved, checkpoint.path.parent.parent)
    return run_type.complete({**saved, **keywords})
