"""Damaged files for each reader, from a seed.

    python tests/fuzz/fuzz.py [TARGET...] [--inputs 1000] [--seconds S]
                              [--seed 0]

A reader may read a damaged file, or raise an error of this package, a
ValueError or an OSError. Anything else is a finding: another exception, more
than 10 s, or more than 1 GB of memory. Prints a table of each target's
inputs, and each finding with the number that repeats it (--first N --inputs
1). The exit status is 0 if there is no finding.
"""
import argparse
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import mutations  # noqa: E402
import targets  # noqa: E402

SECONDS, MEGABYTES = 10, 1024


class Hung(BaseException):
    """A reader that takes too long."""


def _alarm(*_):
    raise Hung(f'more than {SECONDS} s')


def fuzz(name, count, seed, folder, first=0, seconds=None):
    """Damage the files of a target `count` times.

    seconds: the time after which no more inputs are made. Returns (inputs,
    how many were refused, [(number, file, traceback)]).
    """
    paths = targets.files_of(name, folder)
    whole = {path: path.read_bytes() for path in paths}
    targets.TARGETS[name].read(folder)      # they are valid
    refused, found, begun, number = 0, [], time.monotonic(), first
    while number < first + count and (
            seconds is None or time.monotonic() - begun < seconds):
        rng = random.Random(f'{name} {seed} {number}')
        path = rng.choice(paths)
        path.write_bytes(mutations.mutated(whole[path], rng))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            targets.TARGETS[name].read(folder)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if is_allowed(error):
                refused += 1
            else:
                found.append((number, path.name, traceback.format_exc()))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if after - before > MEGABYTES << 10:
            found.append((number, path.name, 'it takes more than 1 GB\n'))
        path.write_bytes(whole[path])
        number += 1
    return number - first, refused, found


def is_allowed(error):
    """True for a sentence for the user."""
    if isinstance(error, UnicodeError) or not isinstance(
            error, (ValueError, OSError)):
        return False
    return (type(error) in (ValueError, FileNotFoundError, PermissionError)
            or type(error).__module__.startswith('d2lbert.'))


def run(argv=None):
    """Fuzz; returns the exit status."""
    parser = argparse.ArgumentParser(description='Damage files, and read '
                                     'them.')
    parser.add_argument('targets', nargs='*', metavar='TARGET',
                        help=', '.join(targets.TARGETS))
    parser.add_argument('--inputs', type=int, default=1000,
                        help='for each target (1000)')
    parser.add_argument('--seconds', type=float,
                        help='for each target at most')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--first', type=int, default=0,
                        help='number of the first input (0)')
    args = parser.parse_args(argv)
    unknown = set(args.targets) - set(targets.TARGETS)
    if unknown:
        parser.error(f'unknown targets: {", ".join(sorted(unknown))}')
    signal.signal(signal.SIGALRM, _alarm)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')
    limit = 8 << 30     # a finding is not to take the machine
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    failed = False
    with tempfile.TemporaryDirectory(prefix='d2lbert-fuzz-') as base:
        os.environ['D2LBERT_CACHE'] = str(Path(base, 'cache'))
        print(f'{"target":12}{"inputs":>8}{"refused":>9}{"findings":>10}')
        for name in args.targets or targets.TARGETS:
            count, refused, found = fuzz(
                name, args.inputs, args.seed, Path(base, name), args.first,
                args.seconds)
            print(f'{name:12}{count:8}{refused:9}{len(found):10}', flush=True)
            for number, file, text in found[:5]:
                print(f'{name} {number}, {file}:\n{text}', flush=True)
            failed = failed or bool(found)
    return int(failed)


if __name__ == '__main__':
    sys.exit(run())
