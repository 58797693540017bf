"""OpenMP's variables and few processors, for faults.py."""
import os
import shutil

from faults_processes import (
    TINY,
    close_losses,
    complaints,
    is_clear,
    left_behind,
    start,
)

#: A run with products large enough for several threads.
WIDE = ['pretrain', *TINY, '--num-hiddens', '64', '--ffn-num-hiddens', '64',
        '--dropout', '0', '--num-steps', '4', '--save-every', '1',
        '--eval-every', '2', '--out', 'run']

#: Variables, and the one that must be named where they cannot hold.
THREADS = [
    ({'OMP_NUM_THREADS': '1'}, None), ({'OMP_NUM_THREADS': '2'}, None),
    ({'OMP_NUM_THREADS': '7'}, None), ({'OMP_NUM_THREADS': '2,1'}, None),
    ({'OMP_NUM_THREADS': ''}, None),
    ({'OMP_NUM_THREADS': 'abc'}, 'OMP_NUM_THREADS'),
    ({'OMP_NUM_THREADS': '0'}, 'OMP_NUM_THREADS'),
    ({'OMP_NUM_THREADS': '-1'}, 'OMP_NUM_THREADS'),
    ({'OMP_NUM_THREADS': '99999'}, 'OMP_NUM_THREADS'),
    ({'OMP_DYNAMIC': 'true'}, None), ({'OMP_THREAD_LIMIT': '1'}, None),
    ({'OMP_THREAD_LIMIT': '2', 'OMP_NUM_THREADS': '5'}, None),
    ({'OMP_MAX_ACTIVE_LEVELS': '0'}, None),
    ({'MXNET_OMP_MAX_THREADS': 'abc'}, 'MXNET_OMP_MAX_THREADS'),
    ({'MXNET_OMP_MAX_THREADS': '3'}, None), ('one processor', None),
]


def change_threads(number, place, tally):
    """Train under variables of OpenMP, with the compiled operators and not.
    """
    cases = [(variables, name, policy) for variables, name in THREADS
             for policy in ('auto', 'off')]
    expected = place.done(WIDE, run=start)[0] / 'run'
    for variables, name, policy in place.some(cases, number):
        folder, prepare = place.folder(), None
        what = f'{variables}, kernels {policy}'
        env = {'D2LBERT_KERNELS': policy}
        if variables == 'one processor':
            def prepare():
                os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        else:
            env.update(variables)
        end = start(folder, WIDE, env, prepare).wait()
        verdicts = complaints(end, [0, 1])
        if end.status == 0 and name is None:
            verdicts.append('equal' if close_losses(folder / 'run', expected)
                            else 'wrong result')
            verdicts += left_behind(folder)
        else:
            verdicts.append('clear error' if end.status and name and is_clear(
                end.err, [name]) else 'unclear')
            verdicts += ['half-written'] * bool(os.listdir(folder))
        tally.note(what, verdicts, end)
        shutil.rmtree(folder)
