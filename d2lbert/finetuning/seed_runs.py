"""Runs that differ only in their seed, with mean and standard deviation.

With small data, the score varies by several points from seed to seed. The
runs are in subfolders seed-1, seed-2, ... of a folder. The file seeds.json in
this folder has the settings, and when all runs are finished, the metrics.
"""
import contextlib
import json
import math
import shutil
import statistics
from pathlib import Path
from shlex import quote

from d2lbert.finetuning.settings import CHANGEABLE_ON_RESUME
from d2lbert.machine.files import (
    RUNS,
    missing,
    new_run_folder,
    read_json,
    remove_empty,
    write_text,
)
from d2lbert.training import checkpoints
from d2lbert.training.interrupts import Stopped
from d2lbert.training.run_folder import DATA, move_aside
from d2lbert.training.saved_runs import RunError, is_finetuned, read_config

FILE = 'seeds.json'

FINISHED, BEGUN = 'finished', 'begun'


def is_folder(path):
    """True if a folder holds runs of several seeds."""
    return (Path(path) / FILE).is_file()


def begin(one, settings, count, out, force, devices, write=None):
    """Carry out `count` runs; returns their folder.

    one(out, force, resume, devices, keywords): a function that carries out
    one run. settings: all settings, with the seed of the first run. write:
    called with the folder, to put the data of the runs there.
    """
    made = missing(RUNS if out is None else Path(out).parent)
    if out is None:
        out = new_run_folder()
    else:
        out = Path(out)
        if out.exists() and not (force and is_folder(out)):
            raise RunError(f'{out} exists already{_resume_hint(out)}: choose '
                           'another --out' + (
                               ', or give --force to move its runs aside'
                               if is_folder(out) else ''))
        _make(out)
    state = dict(settings=settings, seeds=[
        settings['seed'] + k for k in range(count)])
    try:
        if write is not None:
            write(out)
        _write(out, state)
        return _carry_out(one, out, state, force, devices)
    except BaseException:
        # Remove the folder if no run has started
        if {path.name for path in out.iterdir()} <= {FILE, DATA}:
            shutil.rmtree(out / DATA, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                (out / FILE).unlink()
            remove_empty([out, *made])
        raise


def _make(out):
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f'{out} cannot be made ({error.strerror}): choose '
                       'another --out') from None


def _resume_hint(out):
    """The end of an error message for a folder with unfinished runs, or ''."""
    if not is_folder(out) or 'figures' in _read(out):
        return ''
    return (', with runs that are not finished (to go on with them: --resume '
            f'{quote(str(out))})')


def resume(one, out, keywords, devices):
    """Resume the unfinished runs in `out`."""
    state = _read(out)
    fixed = sorted(name for name, value in keywords.items()
                   if name not in CHANGEABLE_ON_RESUME
                   and value != state['settings'].get(name))
    if fixed:
        raise ValueError(f'resumed runs keep their settings: '
                         f'{", ".join(fixed)} cannot be changed, only '
                         f'{", ".join(CHANGEABLE_ON_RESUME)} and devices')
    state['settings'].update(keywords)
    return _carry_out(one, out, state, None, devices)


def _carry_out(one, out, state, force, devices):
    """Carry out the runs; force=None: resume the existing ones."""
    for k, seed in enumerate(state['seeds'], 1):
        folder = out / f'seed-{k}'
        settings = dict(state['settings'], seed=seed)
        progress = (None if force is not None
                    else _progress_of(folder, settings))
        if progress == FINISHED:
            continue
        print(f'seed {seed}, run {k} of {len(state["seeds"])}', flush=True)
        try:
            if progress == BEGUN:
                one(None, False, folder, devices,
                    {name: settings[name] for name in CHANGEABLE_ON_RESUME})
            else:
                # A run without a checkpoint starts again
                one(folder, force is not False and folder.exists(), None,
                    devices, settings)
        except Stopped as stopped:
            raise Stopped(f'stopped in run {k} of {len(state["seeds"])}; go '
                          f'on with: d2lbert finetune --resume '
                          f'{quote(str(out))}', stopped.signal) from None
    figures = [read_config(out / f'seed-{k}')['figures']
               for k in range(1, len(state['seeds']) + 1)]
    summary = {name: dict(mean=mean, spread=spread) for name, (mean, spread)
               in mean_and_spread(figures).items()}
    _write(out, dict(state, figures=figures, summary=summary))
    _move_extra_runs(out, len(state['seeds']))
    for name, found in summary.items():
        print(f'{name} {found["mean"]:.4f} ± {found["spread"]:.4f} ('
              + ', '.join(f'{one[name]:.4f}' for one in figures) + ')')
    return out


def _progress_of(folder, settings):
    """FINISHED, BEGUN, or None if there is no run with these settings."""
    if not is_finetuned(folder):
        return None
    training = read_json(folder / 'config.json').get('training', {})
    # The caller replaces a run with other settings
    if any(training.get(name) != value for name, value in settings.items()
           if name not in CHANGEABLE_ON_RESUME):
        return None
    if ((folder / 'model.params').is_file()
            and training['num_epochs'] >= settings['num_epochs']):
        return FINISHED
    return BEGUN if checkpoints.all_of(folder) else None


def _move_extra_runs(out, count):
    """Move the runs of further seeds aside, since there are fewer now."""
    for folder in out.glob('seed-*'):
        number = folder.name[5:]
        if number.isdigit() and int(number) > count and is_finetuned(folder):
            move_aside(folder)


def mean_and_spread(figures):
    """{name: (mean, standard deviation)} of a list of dictionaries.

    This is the sample standard deviation, with N - 1 in the denominator.
    """
    found = {}
    for name in figures[0]:
        values = [one[name] for one in figures]
        all_finite = all(map(math.isfinite, values))
        found[name] = (statistics.mean(values), statistics.stdev(values)
                       ) if all_finite else (math.nan, math.nan)
    return found


def _write(out, state):
    try:
        write_text(out / FILE, json.dumps(state, indent=2) + '\n')
    except OSError as error:
        raise RunError(f'{out / FILE} cannot be written ({error.strerror})'
                       ) from None


def _read(out):
    try:
        state = dict(read_json(out / FILE))
        dict(state['settings'])['num_epochs'] + sum(state['seeds'])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f'{out / FILE} is damaged ({error}): resume the runs '
                       f'in {out} one by one') from None
    return state
