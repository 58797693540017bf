"""Runs that are killed, stopped and signalled, for faults.py."""
import shutil
import signal
import time

from faults_processes import (
    TINY,
    TRAINED,
    complaints,
    fork,
    is_clear,
    left_behind,
    listing,
    on_change,
    result,
    start,
)

from d2lbert.training import checkpoints
from d2lbert.training.interrupts import SIGNALS

#: A run with everything that a checkpoint has to remember.
LONG = ['pretrain', *TINY, '--num-steps', '25', '--eval-every', '5',
        '--accumulate', '2', '--dynamic', '--fill-sequences', '--out', 'run']
KILLED = [*LONG, '--save-every', '1']


def num_changes(place, argv):
    """How many changes to files a command makes."""
    name = place.base / 'changes'

    def count():
        file = open(name, 'wb', buffering=0)
        on_change(lambda: file.write(b'.'))

    def count_all():
        fork(place.folder(), argv, count).wait()
        return name.stat().st_size
    return place.once(('changes', *argv), count_all)


def a_moment(rng, number, seconds):
    """(number of a change to files, seconds), one of them None."""
    if rng.random() < 0.5:
        return rng.randint(1, number), None
    return None, rng.uniform(0, seconds)


def await_moment(command, change, seconds):
    """Wait for a moment; returns whether the command came to it."""
    if not command.reaches():
        return False
    if change is not None:
        return command.reaches()
    time.sleep(seconds)
    return command.runs()


def way_on(folder):
    """The command that goes on with what is there, None where nothing is.
    """
    for run in sorted(folder.glob('run*'), reverse=True):
        if checkpoints.all_of(run):
            return ['pretrain', '--resume', run.name, '--devices', 'cpu']
    return None


# Killed runs

def kill_runs(number, place, tally):
    """Kill and resume until so many are killed.

    Every third run moves another one aside, which must be there at any time.
    """
    whole, end = place.done(KILLED)
    expected = result(whole / 'run')
    extent = num_changes(place, KILLED), end.seconds
    trained = place.done(TRAINED)[0] / 'run'
    runs = 0
    while tally.counts['tried'] < number:
        folder = place.folder()
        replacing = runs % 3 == 2
        if replacing:
            shutil.copytree(trained, folder / 'run')
            # Or it could be gone on with
            shutil.rmtree(folder / 'run' / 'checkpoints')
        kills, verdicts, end = kill_and_resume(
            folder, number - tally.counts['tried'], place.rng, extent,
            result(trained) if replacing else None)
        if end.status == 0:
            verdicts.append('equal' if result(folder / 'run') == expected
                            else 'wrong result')
            verdicts += left_behind(folder, *['run.old'] * replacing)
        if kills:
            tally.note(f'run {runs}, killed {kills} times', verdicts, end,
                       tried=kills)
        shutil.rmtree(folder)
        runs += 1


def kill_and_resume(folder, most, rng, extent, moved):
    """One run to its end, killed on the way again and again.

    moved: the result of a run that it moves aside, or None. Returns (number
    of kills, verdicts, the last `End`).
    """
    kills, newest, verdicts = 0, 0, []
    force = ['--force'] * (moved is not None)
    while True:
        step, problems = check_checkpoints(folder)
        verdicts += problems + ['lost'] * (step < newest)
        newest = step
        change, seconds = a_moment(rng, *extent)
        command = fork(folder, way_on(folder) or KILLED + force,
                       moment=change if kills < most else None)
        if (kills < most and await_moment(command, change, seconds)
                and command.send(signal.SIGKILL)):
            end = command.wait()
            kills += end.status == -signal.SIGKILL
            if moved and moved not in map(result, folder.glob('run*')):
                verdicts.append('lost')
            if end.status == -signal.SIGKILL:
                continue
        else:
            end = command.wait()
        if end.status == 0:
            return kills, verdicts, end
        if force or '--force' not in end.err or not is_clear(end.err, ['run']):
            return kills, [*verdicts, 'blocked name'], end
        force = ['--force']     # as the message says


def check_checkpoints(folder):
    """The last step saved in any run, and verdicts on all checkpoints."""
    verdicts, last = [], 0
    for run in folder.glob('run*'):
        for path in checkpoints.all_of(run):
            last = max(last, int(path.stem[5:]))
            try:
                checkpoints.load(path)
            except checkpoints.CheckpointError as error:
                print(error)
                verdicts.append('lost')
    return last, verdicts


# Signals

def send_signals(number, place, tally):
    """Send signals at random moments and go on as the command says."""
    kinds = [signal_saving, signal_plain, signal_saving, signal_plain,
             signal_fresh, stop_and_go, signal_reading]
    for k in range(number):
        folder = place.folder()
        what, verdicts, end = kinds[k % len(kinds)](place, folder)
        tally.note(what, verdicts, end)
        shutil.rmtree(folder)


def some_signals(rng):
    """One signal or two, and the seconds between them."""
    numbers = [rng.choice(SIGNALS)]
    if rng.random() < 0.4:
        numbers.append(rng.choice(SIGNALS))
    return numbers, rng.choice([0, rng.uniform(0, 0.05)])


def signal_saving(place, folder):
    return _signal(place, folder, KILLED)


def signal_plain(place, folder):
    return _signal(place, folder, LONG)


def _signal(place, folder, argv):
    rng = place.rng
    change, seconds = a_moment(rng, num_changes(place, argv),
                               place.done(argv)[1].seconds)
    numbers, gap = some_signals(rng)
    command = fork(folder, argv, moment=change)
    if await_moment(command, change, seconds):
        command.send(*numbers, gap=gap)
    end = command.wait()
    when = (f'change {change}' if seconds is None else f'{seconds:.2f} s')
    what = f'{_names(numbers)} at {when} of {argv[-1]}'
    return what, *judge_signalled(place, folder, argv, numbers, end)


def signal_fresh(place, folder):
    """In a new Python, whose imports are most of the time."""
    seconds = place.rng.uniform(0, place.done(KILLED, run=start)[1].seconds)
    numbers, gap = some_signals(place.rng)
    command = start(folder, KILLED)
    time.sleep(seconds)
    command.send(*numbers, gap=gap)
    end = command.wait()
    return (f'{_names(numbers)} at {seconds:.2f} s of a new Python',
            *judge_signalled(place, folder, KILLED, numbers, end))


def stop_and_go(place, folder):
    command = fork(folder, KILLED)
    if await_moment(command, None, place.rng.uniform(
            0, place.done(KILLED)[1].seconds)):
        command.send(signal.SIGSTOP)
        time.sleep(place.rng.uniform(0, 0.5))
        command.send(signal.SIGCONT)
    end = command.wait()
    return 'SIGSTOP, SIGCONT', judge_finished(place, folder, end), end


def signal_reading(place, folder):
    """What only reads a run leaves nothing behind, and can be repeated."""
    trained = place.done(TRAINED)[0]
    shutil.copytree(trained / 'run', folder / 'run')
    (folder / 'texts.txt').write_text('a bird\n' * 2000)
    before = listing(folder)
    argv = place.rng.choice([
        ['evaluate', 'run', '--devices', 'cpu'],
        ['encode', 'run', '--file', 'texts.txt', '--pool', 'mean', '--out',
         'vectors.npy']])
    numbers, gap = some_signals(place.rng)
    command = fork(folder, argv)
    if await_moment(command, None, place.rng.uniform(0, 0.3)):
        command.send(*numbers, gap=gap)
    end = command.wait()
    verdicts = complaints(end, _statuses(numbers))
    after = listing(folder)
    if end.status == 0:
        after.pop('vectors.npy', None)
    if after != before:
        verdicts.append('half-written')
    again = fork(folder, argv).wait()
    verdicts += ['harmless'] if again.status == 0 else ['blocked name']
    return f'{_names(numbers)} to {argv[0]}', verdicts, end


def _names(numbers):
    return ', '.join(signal.Signals(number).name for number in numbers)


def _statuses(numbers):
    """How a command may end: well, or as a shell says of the signal."""
    return {0, *(128 + number for number in numbers),
            *(-number for number in numbers)}


def judge_signalled(place, folder, argv, numbers, end):
    """Verdicts on a run that was sent signals; goes on with it first."""
    verdicts = complaints(end, _statuses(numbers))
    if end.status != 0:
        on = way_on(folder)
        if 'go on with' in end.err and not on:
            verdicts.append('lost')
        more = fork(folder, on or argv).wait()
        if more.status != 0:
            return [*verdicts, 'blocked name'], more
        return verdicts + judge_finished(place, folder, more), end
    return verdicts + judge_finished(place, folder, end), end


def judge_finished(place, folder, end):
    """Verdicts on a run that had nothing to do with what went before."""
    verdicts = complaints(end, [0])
    expected = result(place.done(KILLED)[0] / 'run')
    verdicts.append('equal' if result(folder / 'run') == expected
                    else 'wrong result')
    return verdicts + left_behind(folder)
