"""The files that a run writes to its folder at its beginning and its end."""
import math

from d2lbert._version import __version__
from d2lbert.machine.processor import described
from d2lbert.machine.terminal import warn
from d2lbert.training.run_folder import check_room
from d2lbert.training.saved_runs import write_run


def config_of(run):
    """The contents of config.json: the net, the data and the settings."""
    return dict(d2lbert=__version__, model=run.net.config,
                **run.objective.described(run.history),
                fingerprint=run.objective.fingerprint,
                machine=described(),
                training=dict(run.settings,
                              devices=[str(c) for c in run.devices]))


def has_held_out(run):
    """True if losses.csv has columns for held-out figures."""
    return bool(run.objective.eval_every or run.history.held_out)


def log(run, line, show):
    """Append a line to log.txt, and call show(line); None is no line."""
    if line is not None:
        run.history.log_lines.append(f'{line}\n')
        run.folder.append('log.txt', f'{line}\n')
        show(line)


def begin_files(run):
    """Write what describes a run; raise `RunError` if the disk is too full.
    """
    weights = 4 * sum(param.data(run.devices[0]).size
                      for param in run.net.collect_params().values())
    keeps_best = run.best.is_kept
    # A checkpoint has weights, two moments, and maybe averages and the best
    arrays = 3 + bool(run.average.decay) + keeps_best
    check_room(run.out, weights * (
        1 + keeps_best + arrays * num_checkpoints(run)))
    run.folder.reserve(weights)
    run.folder.begin(config_of(run), run.objective.vocab, {
        'losses.csv': run.history.csv(has_held_out(run)),
        'log.txt': ''.join(run.history.log_lines)})


def num_checkpoints(run):
    """The largest number of files that `save_every` leads to."""
    s, num_steps = run.settings, run.objective.num_steps
    if not s['save_every']:
        return 0
    limits = []
    if s['keep']:       # the oldest is removed after the newest is written
        limits.append(s['keep'] + 1)
    if num_steps:       # None if a clock ends the run
        limits.append(math.ceil(num_steps / s['save_every']))
    return min(limits, default=1)


def finish_files(run):
    """Write the files of a finished run; return its summary."""
    log(run, run.growth.last_line(), warn)
    lines = run.objective.summary(run.history, run.devices)
    run.history.log_lines.append(f'{lines}\n')
    run.check_finite()
    run.folder.release()
    run.best.load(run.devices)
    run.average.put()
    # A resumed run can have more steps than at its beginning
    run.folder.write_config(config_of(run))
    write_run(run.out, run.net, run.history, run.animator)
    run.best.close()
    run.folder.finish()
    return lines
