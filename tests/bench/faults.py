"""Faults in figures: what this package makes of what can go wrong.

    python tests/bench/faults.py [--only KIND...] [--kills 50] [--seed 0] ...

Kills `d2lbert pretrain` at random moments, resumes it until it is done and
compares what it leaves with a run that nobody disturbed; sends it signals;
breaks its outputs, compiled libraries, threads and surroundings; has
commands get in each other's way; and feeds them damaged checkpoints,
parameters, vocabularies, configurations, corpora, archives and arguments.
Prints what became of it as a table; the exit status is 0 only if nothing
went wrong. Each command runs in a process of its own: one forked from this
one, which has imported d2lbert, or a new Python where that matters.
"""
import argparse
import collections
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from faults_inputs import DAMAGES, damage_inputs
from faults_libraries import damage_libraries
from faults_locks import get_in_the_way
from faults_misuses import MISUSES, misuse
from faults_outputs import break_outputs
from faults_processes import BAD, GOOD, Place, Tally
from faults_runs import kill_runs, send_signals
from faults_surroundings import change_surroundings
from faults_threads import change_threads

from d2lbert.machine import cache as kept

#: Kind of fault: what makes them, how many by default, what they are.
KINDS = {
    'kills': (kill_runs, 50, 'runs ended by SIGKILL and resumed'),
    'signals': (send_signals, 49, 'SIGINT, SIGTERM, SIGHUP, SIGSTOP'),
    'outputs': (break_outputs, 80, 'closed, full, without a reader'),
    'locks': (get_in_the_way, 24, 'two commands where one is to work'),
    'threads': (change_threads, 30, 'OpenMP variables, one processor'),
    'libraries': (damage_libraries, 40, 'damaged compiled libraries'),
    'environments': (change_surroundings, 36, 'folders, disks, locales'),
    'misuses': (misuse, len(MISUSES), 'commands as people mistake them'),
    'inputs': (damage_inputs, 200, 'damaged files and arguments'),
}
MEMORY = 8 << 30        # so that a damaged size cannot take the machine


def show(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print('  '.join([row[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]))


def run():
    parser = argparse.ArgumentParser(
        description='Count what becomes of faults.')
    for kind, (_, number, what) in KINDS.items():
        parser.add_argument(f'--{kind}', type=int, default=number,
                            metavar='N', help=f'{what} ({number})')
    parser.add_argument('--only', nargs='+', choices=list(KINDS),
                        metavar='KIND', help='only these kinds of '
                        + ', '.join(KINDS))
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--verbose', action='store_true',
                        help='show what was said to each fault')
    args = parser.parse_args()
    begun = time.monotonic()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    tallies = []
    with tempfile.TemporaryDirectory(prefix='d2lbert-faults-') as base:
        base = Path(base)
        base.chmod(0o755)       # some commands run as nobody
        cache = base / 'cache'
        cache.mkdir()
        (cache / 'kernels').symlink_to(kept.folder('kernels'))
        os.environ['D2LBERT_CACHE'] = str(cache)
        place = Place(base)
        for kind, (make, _, _) in KINDS.items():
            number = getattr(args, kind)
            if not number or kind not in (args.only or KINDS):
                continue
            # Each kind's own, so that --only changes nothing
            place.rng = random.Random(f'{kind} {args.seed}')
            if make is damage_inputs:
                found = {name: Tally(name, args.verbose) for name in DAMAGES}
                make(number, place, found)
                tallies += found.values()
            else:
                tallies.append(Tally(kind, args.verbose))
                make(number, place, tallies[-1])
    columns = ['tried', *GOOD, *BAD]
    total = sum((tally.counts for tally in tallies), collections.Counter())
    show([['kind', *columns]] + [
        [kind, *(str(count[name]) for name in columns)]
        for kind, count in [*((tally.kind, tally.counts)
                              for tally in tallies), ('all', total)]])
    print(f'{time.monotonic() - begun:.0f} s, seed {args.seed}')
    return any(total[name] for name in BAD)


if __name__ == '__main__':
    sys.exit(run())
