"""`pretrain`: a run of the chapter's objective, or of another one."""
import contextlib
import functools
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from d2lbert.machine import workers
from d2lbert.machine.files import read_json
from d2lbert.machine.terminal import steady_output
from d2lbert.objectives.distillation import Taught
from d2lbert.objectives.pretraining import OBJECTIVES
from d2lbert.training import checkpoints
from d2lbert.training.earlier import complete_saved
from d2lbert.training.interrupts import StopRequest
from d2lbert.training.loop import Run
from d2lbert.training.run_folder import RunFolder
from d2lbert.training.saved_runs import RunError, is_finetuned
from d2lbert.training.settings import ANEW, complete
from d2lbert.training.teacher import Teacher

#: Settings that name files and folders that a run reads.
READS = ('corpus', 'valid', 'vocab', 'teacher')


def pretrain(out=None, force=False, resume=None, devices='auto', wanted=None,
             **keywords):
    """Pretrain BERT and leave a run folder; returns its path.

    keywords: the settings of `training.settings`, with the values of the
    recipe where one is not given. corpus: 'wikitext-2', 'sample', a text
    file or a list of them. resume: a run folder, or one of its checkpoints,
    to go on with; of the settings only those in `ANEW` may then be given
    another value. force: take the place of the run in `out`, when this one
    is finished. wanted: dict(corpus=, reason=), a text that could not be had
    and for which `corpus` is a substitute; config.json and log.txt name it.
    Under `d2lbert launch` each worker takes its part of every batch.
    """
    if resume is not None and (out is not None or force):
        raise ValueError('a resumed run stays in its folder: give neither '
                         '--out nor --force with --resume')
    if resume is not None and wanted is not None:
        raise ValueError('a resumed run has noted what was wanted: leave '
                         'wanted out')
    with steady_output(), StopRequest() as stop:
        if resume is None:
            settings, make = complete(keywords), _objective
            if settings['teacher'] is not None:
                teacher = Teacher.load(settings['teacher'])
                settings = teacher.completed(keywords)
                make = functools.partial(_objective, teacher=teacher)
            run = Run(make, settings, devices, stop)
            run.wanted = wanted
            return run.carry_out(RunFolder.take, out, force,
                                 [settings[name] for name in READS])
        return resumed(Path(resume), keywords, devices, stop).carry_out()


def _objective(settings, vocab, teacher=None):
    """The objective of a run; vocab: that of one that goes on."""
    begins = vocab is None
    make = functools.partial(OBJECTIVES[settings['objective']], settings,
                             progress=workers.rank() == 0, begins=begins)
    if settings['teacher'] is None:
        return make(vocab)
    teacher = teacher or Teacher.load(settings['teacher'])
    teacher.check(settings, vocab)
    return Taught(make(teacher.vocab), teacher, begins)


class Kind(NamedTuple):
    """What kind of run a checkpoint goes on with."""

    command: str            # the sub-command of such runs
    objective: Any          # as `Run` takes it
    complete: Any           # settings of a checkpoint to all settings
    anew: Any               # settings that may be given another value


PRETRAINING = Kind('pretrain', _objective, complete_saved, ANEW)


def resumed(path, keywords, devices, stop=None, kind=PRETRAINING):
    """The `Run` that a run folder or a checkpoint holds, with its lock."""
    is_folder = path.is_dir()
    folder = path if is_folder else path.parent.parent
    if not is_folder and path.parent != checkpoints.folder_of(folder):
        if not path.is_file():
            raise checkpoints.CheckpointError(f'there is no checkpoint {path}')
        raise RunError(f'{path} does not lie in the folder '
                       f'{checkpoints.folder_of("RUN")} of a run: resume '
                       'from where it was written')
    if not checkpoints.all_of(folder):
        raise RunError(f'{folder} has no checkpoint to resume from')
    command = 'finetune' if is_finetuned(folder) else 'pretrain'
    if command != kind.command:
        raise RunError(f'{folder} is a run of d2lbert {command}: go on with '
                       f'd2lbert {command} --resume {quote(str(path))}')
    run = Run(kind.objective, None, devices, stop)
    try:
        run.take_folder(RunFolder.reopen, folder)
        if is_folder:
            # Only now: the process that held the lock may have saved more
            path = checkpoints.all_of(folder)[-1]
        run.checkpoint = (path, *checkpoints.load(path))
        run.settings = _settings_anew(path, run.checkpoint[1], keywords,
                                      kind)
        _check_sizes(path, run, folder)
    except BaseException:
        run.close()
        raise
    return run


def _check_sizes(path, run, folder):
    """Refuse sizes of a net that no tensor of its checkpoint has."""
    settings = dict(run.settings)
    if settings.get('share_layers'):
        settings['num_groups'] = 1
    described = [settings]
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        described.append(dict(read_json(folder / 'config.json')['model']))
    for sizes in described:
        checkpoints.check_described(path, sizes, {
            name: array.shape for name, array in run.checkpoint[2].items()})


def _settings_anew(path, state, keywords, kind):
    """The settings of a checkpoint, with what may be given anew."""
    try:
        saved = kind.complete(dict(state['settings']))
    except (ValueError, TypeError, OverflowError) as error:
        raise checkpoints.CheckpointError(
            f'{path} is damaged: its settings are those of no run '
            f'({error})') from None
    fixed = sorted(name for name, value in keywords.items()
                   if name not in kind.anew and value != saved.get(name))
    if fixed:
        raise ValueError(f'a resumed run keeps its settings: '
                         f'{", ".join(fixed)} cannot be changed, only '
                         f'{", ".join(kind.anew)} and devices')
    return kind.complete({**saved, **keywords})
