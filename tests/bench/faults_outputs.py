"""Standard output and error that cannot be written, for faults.py."""
import contextlib
import itertools
import os
import pty
import shutil

from faults_processes import (
    COMPLETE,
    TINY,
    TRAINED,
    complaints,
    is_clear,
    result,
    start,
)

COMMANDS = {
    'pretrain': ['pretrain', *TINY, '--num-steps', '4', '--save-every', '1',
                 '--eval-every', '2', '--out', 'new'],
    'evaluate': ['evaluate', 'run', '--devices', 'cpu'],
    'encode': ['encode', 'run', 'a bird'],
    'doctor': ['doctor'],
    'cache': ['cache'],
}
#: How standard output and standard error are.
STATES = 'open', 'closed', 'full', 'no reader'
#: Every combination but that of two open ones; both on a terminal that is
#: gone.
COMBINATIONS = [*itertools.product(STATES, STATES)][1:] + [
    ('no terminal', 'no terminal')]


def break_outputs(number, place, tally):
    """Break the outputs of commands."""
    cases = [(name, pair) for name in COMMANDS for pair in COMBINATIONS]
    for name, pair in place.some(cases, number):
        folder = place.folder()
        shutil.copytree(place.done(TRAINED)[0] / 'run', folder / 'run')
        with contextlib.ExitStack() as stack:
            given = [stack.enter_context(broken(state)) for state in pair]
            command = start(
                folder, COMMANDS[name],
                prepare=lambda pair=pair: close(pair),
                **{stream: file for stream, file in zip(
                    ('stdout', 'stderr'), given) if file is not None})
        end = command.wait()
        tally.note(f'{name} with output {pair[0]}, error {pair[1]}',
                   judge(place, name, pair, folder, end), end)
        shutil.rmtree(folder)


@contextlib.contextmanager
def broken(state):
    """A descriptor to be written to in vain; None for a usual one."""
    if state in ('open', 'closed'):
        yield None
        return
    if state == 'full':
        reader, writer = None, os.open('/dev/full', os.O_WRONLY)
    else:
        reader, writer = (os.pipe() if state == 'no reader'
                          else pty.openpty())
        os.close(reader)
    yield writer
    os.close(writer)


def close(pair):
    for number, state in enumerate(pair, 1):
        if state == 'closed':
            os.close(number)


def judge(place, name, pair, folder, end):
    """Verdicts on a command whose outputs are a pair of `STATES`."""
    verdicts = complaints(end, [0, 1])
    if name == 'pretrain':
        whole = place.done(TRAINED)[0] / 'run'
        new = folder / 'new'
        if (end.status != 0 or result(new) != result(whole)
                or set(os.listdir(new)) != COMPLETE | {'checkpoints'}):
            return [*verdicts, 'lost']
        return [*verdicts, 'equal']
    if pair[0] == 'open':
        # What is said of the machine need not be the same twice
        usual = end.out if name in ('doctor', 'cache') else place.done(
            TRAINED, COMMANDS[name])[1].out
        if end.status != 0 or not end.out or end.out != usual:
            verdicts.append('wrong result')
    elif pair[0] == 'full' and end.status == 0:
        verdicts.append('unclear')      # lost without a word
    if pair[1] == 'open' and len(end.err.strip().splitlines()) > 1:
        verdicts.append('unclear')
    if end.status and pair[1] == 'open' and is_clear(end.err, [name]):
        return [*verdicts, 'clear error']
    return [*verdicts, 'harmless']
