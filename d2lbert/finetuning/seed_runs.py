"""Carry out runs that differ only in their seed, and average their metrics.

The runs are in subfolders seed-1, seed-2, ... of one folder.
"""
import contextlib
import json
import math
import shutil
import statistics
from pathlib import Path
from shlex import quote

from d2lbert.finetuning.datasets import moved_data
from d2lbert.finetuning.settings import CHANGEABLE_ON_RESUME, complete
from d2lbert.machine.files import (
    RUNS,
    missing_folders,
    new_run_folder,
    read_json,
    remove_empty,
    replacing,
    write_text,
)
from d2lbert.training import checkpoints
from d2lbert.training.interrupts import Stopped
from d2lbert.training.run_folder import DATA, move_aside
from d2lbert.training.saved_runs import RunError, is_finetuned, read_config
from d2lbert.training.settings import check_kept

#: The file beside the runs with their `state`: a dict with `settings` and
#: `seeds` and, when all runs are finished, `figures` and `summary`
SEEDS_FILE = 'seeds.json'

#: Results of `_progress_of`
FINISHED, RESUMABLE = 'finished', 'resumable'


def has_seed_runs(path):
    """True if a folder holds runs of several seeds."""
    return (Path(path) / SEEDS_FILE).is_file()


def begin(run_once, settings, num_seeds, out, force, devices,
          write_data=None):
    """Carry out `num_seeds` runs; returns the folder with their subfolders.

    run_once(out, force, resume, devices, keywords): carries out one run, see
    `finetuning.finetune_once`. settings: all settings, with the seed of the
    first run. out, force, devices: as for `finetune`. write_data(out): writes
    examples in memory to the folder, and sets settings['data'] to their path;
    None: all examples are in files.
    """
    new_parents = missing_folders(RUNS if out is None else Path(out).parent)
    out = _make_folder(out, force)
    is_new = not has_seed_runs(out)
    try:
        if write_data is not None:
            write_data(out)
        state = dict(settings=settings, seeds=[
            settings['seed'] + k for k in range(num_seeds)])
        with _replacing_state(out, state):
            return _carry_out(run_once, out, state, devices, force=force)
    except BaseException:
        # Remove a new folder if no run has started
        if is_new and {path.name for path in out.iterdir()} <= {
                SEEDS_FILE, DATA}:
            shutil.rmtree(out / DATA, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                (out / SEEDS_FILE).unlink()
            remove_empty([out, *new_parents])
        raise


def _make_folder(out, force):
    """Return the folder for new runs; make it if it is missing."""
    if out is None:
        return new_run_folder()
    out = Path(out)
    has_runs = has_seed_runs(out)
    may_reuse = force and has_runs
    if out.exists() and not may_reuse:
        raise RunError(f'{out} exists already{_resume_hint(out)}: choose '
                       'another --out' + (
                           ', or give --force to move its runs aside'
                           if has_runs else ''))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f'{out} cannot be made ({error.strerror}): choose '
                       'another --out') from None
    return out


def _resume_hint(out):
    """A hint to resume `out`, for a message; '' without unfinished runs."""
    if not has_seed_runs(out) or 'figures' in _read_state(out):
        return ''
    return (', with runs that are not finished (to go on with them: --resume '
            f'{quote(str(out))})')


def resume(run_once, out, keywords, devices):
    """Carry out the unfinished runs in `out`; returns `out`.

    run_once: as for `begin`. keywords: the settings to change.
    """
    state = _read_state(out)
    state['settings']['data'] = moved_data(state['settings'].get('data'), out)
    check_kept(keywords, state['settings'], CHANGEABLE_ON_RESUME,
               'resumed runs keep their')
    checked = complete({**state['settings'], **keywords})
    # Only these: the runs may lack settings that were added after them
    settings = {**state['settings'],
                **{name: checked[name] for name in keywords}}
    if settings != state['settings']:
        # The figures of the earlier settings are left out
        state = dict(settings=settings, seeds=state['seeds'])
        with _replacing_state(out, state):
            return _carry_out(run_once, out, state, devices, is_resumed=True)
    return _carry_out(run_once, out, state, devices, is_resumed=True)


def _carry_out(run_once, out, state, devices, force=False, is_resumed=False):
    """Carry out the runs, print their metrics, and return `out`.

    force: as for `finetune`. is_resumed: True to go on with the runs in `out`.
    """
    num_runs = len(state['seeds'])
    for k, seed in enumerate(state['seeds'], 1):
        folder = out / f'seed-{k}'
        settings = dict(state['settings'], seed=seed)
        progress = _progress_of(folder, settings) if is_resumed else None
        if progress == FINISHED:
            continue
        print(f'seed {seed}, run {k} of {num_runs}', flush=True)
        try:
            if progress == RESUMABLE:
                changeable = {name: settings[name]
                              for name in CHANGEABLE_ON_RESUME}
                run_once(out=None, force=False, resume=folder,
                         devices=devices, keywords=changeable)
            else:
                # On resume, a folder without a usable run is replaced
                replaces_run = (is_resumed or force) and folder.exists()
                run_once(out=folder, force=replaces_run, resume=None,
                         devices=devices, keywords=settings)
        except Stopped as stopped:
            raise Stopped(f'stopped in run {k} of {num_runs}; go on with: '
                          f'd2lbert finetune --resume {quote(str(out))}',
                          stopped.signal) from None
    _finish(out, state)
    return out


def _finish(out, state):
    """Write and print the metrics, and move left-over runs aside."""
    num_runs = len(state['seeds'])
    figures = [read_config(out / f'seed-{k}')['figures']
               for k in range(1, num_runs + 1)]
    summary = {name: dict(mean=mean, spread=deviation) for name, (
        mean, deviation) in means_and_deviations(figures).items()}
    _write_state(out, dict(state, figures=figures, summary=summary))
    _move_extra_runs(out, num_runs)
    for name, value in summary.items():
        print(f'{name} {value["mean"]:.4f} ± {value["spread"]:.4f} ('
              + ', '.join(f'{run[name]:.4f}' for run in figures) + ')')


def _progress_of(folder, settings):
    """FINISHED, RESUMABLE, or None if the run in `folder` has to start again.

    settings: the settings that the run should have.
    """
    if not is_finetuned(folder):
        return None
    run_settings = read_json(folder / 'config.json').get('training', {})
    if any(run_settings.get(name) != value for name, value in settings.items()
           if name not in CHANGEABLE_ON_RESUME):
        return None
    # A resumed run may be asked for more epochs than it has
    if ((folder / 'model.params').is_file()
            and run_settings['num_epochs'] >= settings['num_epochs']):
        return FINISHED
    return RESUMABLE if checkpoints.all_of(folder) else None


def _move_extra_runs(out, num_runs):
    """Move aside runs above number num_runs, left by an earlier call."""
    for folder in out.glob('seed-*'):
        number = folder.name[len('seed-'):]
        if (number.isdigit() and int(number) > num_runs
                and is_finetuned(folder)):
            move_aside(folder)


def means_and_deviations(figures):
    """{name: (mean, deviation)} of the loss and the metrics over several runs.

    figures: a list of {name: value}, by run. deviation: the sample standard
    deviation, which divides by N - 1 for N runs. Mean and deviation are nan if
    a value is not finite.
    """
    statistics_of = {}
    for name in figures[0]:
        values = [run[name] for run in figures]
        if all(map(math.isfinite, values)):
            statistics_of[name] = (statistics.mean(values),
                                   statistics.stdev(values))
        else:
            statistics_of[name] = math.nan, math.nan
    return statistics_of


@contextlib.contextmanager
def _replacing_state(out, state):
    """Write SEEDS_FILE on entry; restore its earlier content after an error.

    It is not restored if a run in `out` has changed, nor after an
    interruption: then the runs can be resumed with the new state.
    """
    earlier_content = ((out / SEEDS_FILE).read_bytes() if has_seed_runs(out)
                       else None)
    runs_before = _files_of_runs(out)
    _write_state(out, state)
    try:
        yield
    except Exception:
        if (earlier_content is not None
                and _files_of_runs(out) == runs_before):
            with replacing(out / SEEDS_FILE) as temporary:
                temporary.write_bytes(earlier_content)
        raise


def _files_of_runs(out):
    """A set that changes if a run in `out` is replaced or goes on."""
    stats = {path: path.stat() for path in out.glob('seed-*/*')}
    return {(path, stat.st_ino, stat.st_mtime_ns)
            for path, stat in stats.items()}


def _write_state(out, state):
    path = out / SEEDS_FILE
    try:
        write_text(path, json.dumps(state, indent=2) + '\n')
    except OSError as error:
        raise RunError(f'{path} cannot be written ({error.strerror})'
                       ) from None


def _read_state(out):
    path = out / SEEDS_FILE
    try:
        state = dict(read_json(path))
        # Only to raise an error if values are missing or have other types
        dict(state['settings'])['num_epochs'] + sum(state['seeds'])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f'{path} is damaged ({error}): resume the runs in '
                       f'{out} one by one') from None
    return state
