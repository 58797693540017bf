"""Commands that get in each other's way, for faults.py."""
import shutil
import time

from faults_cache import own_cache, using
from faults_processes import (
    TINY,
    TRAINED,
    complaints,
    fork,
    is_clear,
    left_behind,
    listing,
    result,
)
from faults_runs import KILLED

from d2lbert.training import checkpoints

RESUMED = ['pretrain', '--resume', 'run', '--num-steps', '25', '--devices',
           'cpu']
SHORT = ['pretrain', *TINY, '--num-steps', '25', '--save-every', '1',
         '--eval-every', '5', '--accumulate', '2', '--dynamic',
         '--fill-sequences']


def get_in_the_way(number, place, tally):
    """Have two commands at once do what only one can."""
    scenes = [one_name, two_resumes, resume_while_it_trains,
              force_while_it_trains, force_twice, first_compilations,
              first_openings, clear_while_it_reads]
    for k in range(number):
        folder = place.folder()
        scene = scenes[k % len(scenes)]
        verdicts, end = scene(place, folder)
        tally.note(scene.__name__.replace('_', ' '), verdicts, end)
        shutil.rmtree(folder)


def a_while(place):
    """Up to the seconds that a run takes; often the two begin at once."""
    return place.rng.choice([0, place.rng.uniform(
        0, place.done(KILLED)[1].seconds)])


def both(folder, argvs, seconds, prepare=None):
    """The `End`s of two commands, the second some seconds later."""
    commands = [fork(folder, argvs[0], prepare)]
    time.sleep(seconds)
    commands.append(fork(folder, argvs[1], prepare))
    return [command.wait() for command in commands]


def judge_refused(ends, may_all_work=False):
    """Verdicts where one had to work, the others to work or to say why."""
    verdicts = [verdict for end in ends for verdict in complaints(end)]
    refused = [end for end in ends if end.status]
    if not all(is_clear(end.err, ['run']) for end in refused):
        verdicts.append('unclear')
    elif refused:
        verdicts.append('clear error')
    if len(refused) == len(ends):
        verdicts.append('blocked name')
    elif not refused and not may_all_work:
        verdicts.append('wrong result')
    return verdicts


def judge_run(place, folder, *more):
    """Verdicts on the run in `folder`, which should be the usual one."""
    expected = result(place.done(KILLED)[0] / 'run')
    equal = result(folder / 'run') == expected
    return ['equal' if equal else 'wrong result'] + left_behind(folder, *more)


def one_name(place, folder):
    ends = both(folder, [KILLED, KILLED], a_while(place))
    return judge_refused(ends) + judge_run(place, folder), ends[1]


def begun(place, folder):
    """Put a run there that was stopped on its way."""
    done = place.done(KILLED)[0] / 'run'
    shutil.copytree(done, folder / 'run')
    (folder / 'run' / 'model.params').unlink()
    (folder / 'run' / 'unfinished').touch()
    for path in checkpoints.all_of(folder / 'run')[1:]:
        path.unlink()


def two_resumes(place, folder):
    begun(place, folder)
    ends = both(folder, [RESUMED, RESUMED], a_while(place))
    return (judge_refused(ends, may_all_work=True)
            + judge_run(place, folder)), ends[1]


def while_it_trains(place, folder, argv):
    """What another command does to a run that has a checkpoint."""
    first = fork(folder, KILLED)
    while first.runs() and not checkpoints.all_of(folder / 'run'):
        time.sleep(0.002)
    time.sleep(place.rng.choice([0, place.rng.uniform(0, 0.3)]))
    ends = [fork(folder, argv).wait()]
    ends.insert(0, first.wait())
    verdicts = judge_refused(ends, may_all_work=True)
    if ends[0].status:
        verdicts.append('lost')
    return verdicts + judge_run(place, folder), ends[1]


def resume_while_it_trains(place, folder):
    return while_it_trains(place, folder, RESUMED)


def force_while_it_trains(place, folder):
    return while_it_trains(place, folder, [*KILLED, '--force'])


def force_twice(place, folder):
    """One of them moves the run aside and begins, the other is refused.

    If the first is finished by then, the other moves it aside, too.
    """
    shutil.copytree(place.done(TRAINED)[0] / 'run', folder / 'run')
    ends = both(folder, [[*KILLED, '--force']] * 2, a_while(place))
    verdicts = judge_refused(ends, may_all_work=True)
    beside = [path.name for path in folder.glob('run.old*')]
    found = [result(folder / name) for name in beside]
    if found.count(result(place.done(TRAINED)[0] / 'run')) != 1 or any(
            f'is now in {name}' not in ''.join(end.err for end in ends)
            for name in beside):
        verdicts.append('lost')
    return verdicts + judge_run(place, folder, *beside), ends[1]


# The cache

def judge_both(place, folder, ends):
    """Verdicts on two runs, one and two, that use one cache."""
    expected = result(place.done(KILLED)[0] / 'run')
    verdicts = [verdict for end in ends for verdict in complaints(end, [0])]
    equal = all(result(folder / name) == expected for name in ('one', 'two'))
    verdicts.append('equal' if equal else 'wrong result')
    if any('.part' in name or '.lock' in name for name in listing(folder)):
        verdicts.append('half-written')
    return verdicts, ends[1]


def both_runs(folder, seconds, variables):
    return both(folder, [[*SHORT, '--out', name] for name in ('one', 'two')],
                seconds, using(variables))


def first_compilations(place, folder):
    variables = own_cache(place, folder, empty=True)
    variables['SLOWLY'] = '0.3'
    ends = both_runs(folder, place.rng.choice([0, 0.1, 0.5]), variables)
    verdicts, end = judge_both(place, folder, ends)
    if ''.join(end.err for end in ends).count('compiling') != 2:
        verdicts.append('unclear')      # each of two libraries once
    return verdicts, end


def first_openings(place, folder):
    variables = own_cache(place, folder)
    ends = both_runs(folder, place.rng.choice([0, 0, 0.05, 0.1]), variables)
    return judge_both(place, folder, ends)


def clear_while_it_reads(place, folder):
    """Clear the cache while it is filled, opened and read."""
    variables = own_cache(place, folder, empty=place.rng.random() < 0.5)
    commands = [fork(folder, [*SHORT, '--out', name], using(variables))
                for name in ('one', 'two')]
    verdicts = []
    while any(command.runs() for command in commands):
        end = fork(folder, ['cache', '--clear'], using(variables)).wait()
        verdicts += complaints(end, [0, 1])
        time.sleep(place.rng.choice([0, place.rng.uniform(0, 0.2)]))
    ends = [command.wait() for command in commands]
    more, end = judge_both(place, folder, ends)
    return verdicts + more, end
