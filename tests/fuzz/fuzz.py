"""Damaged files for each reader, from a seed.

    python tests/fuzz/fuzz.py [TARGET...] [--inputs 1000] [--seconds S]
                              [--seed 0] [--keep]

A reader may read a damaged file, or raise an error of this package, a
ValueError or an OSError. Findings are: a process that ends (crashes), more
than 10 s of a processor or 10 minutes (hangs), more than 1 GB of memory
beyond the reader's own (memory), another exception (tracebacks), and weights
that are taken though they have lost their digest (silent). Prints a table of
each target's inputs, and each finding with the number that repeats it
(--first N --inputs 1). The exit status is 0 if there is no finding. Each
target is read in a process of its own. native.py does the same for the C++
entries.
"""
import argparse
import faulthandler
import json
import logging
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / 'bench')]

import benchmark  # noqa: E402
import mutations  # noqa: E402
import targets  # noqa: E402

SECONDS, MEGABYTES = 10, 1024
KINDS = ['crashes', 'hangs', 'memory', 'tracebacks', 'silent']
SHOWN = 5       # findings of a target


class Hung(BaseException):
    """A reader that takes too long."""


def _alarm(*_):
    raise Hung(f'more than {SECONDS} s')


def fuzz(name, count, seed, folder, first=0, seconds=None, told=None):
    """Damage the files of a target `count` times.

    seconds: the time after which no more inputs are made; told(number): is
    called before each input. Yields (number, what became of it, text): read
    or refused, and '', or one of KINDS and what was found. The last number
    may be below first + count.
    """
    target = targets.TARGETS[name]
    paths = targets.files_of(name, folder)
    whole = {path: path.read_bytes() for path in paths}
    answer = target.answer(target.read(folder))     # they are valid
    begun = time.monotonic()
    for number in range(first, first + count):
        if seconds is not None and time.monotonic() - begun > seconds:
            return
        if told:
            told(number)
        rng = random.Random(f'{name} {seed} {number}')
        path = rng.choice(paths)
        data = mutations.mutated(whole[path], rng)
        path.write_bytes(data)
        yield (number, *_outcome(target, folder, path, data, whole[path],
                                 answer))
        path.write_bytes(whole[path])


def _outcome(target, folder, path, data, whole, answer):
    before = _peak(reset=True)
    # Compiled code does not let Python handle the signal, and who waits for
    # ever needs no processor
    faulthandler.dump_traceback_later(60 * SECONDS, exit=True)
    # Of the processor, as other programs may need it, too
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        found = target.read(folder)
        kind, text = 'read', ''
    except KeyboardInterrupt:
        raise
    except Hung:
        kind, text = 'hangs', traceback.format_exc()
    except MemoryError:
        kind, text = 'memory', traceback.format_exc()
    except BaseException as error:
        kind, text = 'refused', ''
        if not is_allowed(error):
            kind, text = 'tracebacks', traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    if kind == 'read' and data != whole and (
            targets.has_lost_its_digest(path, data, whole)
            or target.answer(found) != answer):
        kind, text = 'silent', 'damaged weights are taken\n'
    if _peak() - before > MEGABYTES << 10:
        kind, text = 'memory', text or 'it takes more than 1 GB\n'
    return kind, f'{path.name}: {text}' if text else ''


def _peak(reset=False):
    """KiB of memory at most, since the last reset where that is possible."""
    try:
        if reset:
            Path('/proc/self/clear_refs').write_text('5')
        with open('/proc/self/status') as file:
            return next(int(line.split()[1]) for line in file
                        if line.startswith('VmHWM'))
    except (OSError, StopIteration):    # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def is_allowed(error):
    """True for a sentence for the user."""
    if isinstance(error, UnicodeError) or not isinstance(
            error, (ValueError, OSError)):
        return False
    return (type(error) in (ValueError, FileNotFoundError, PermissionError)
            or type(error).__module__.startswith('d2lbert.'))


def fuzz_apart(name, args, kernels):
    """Fuzz a target in processes of its own; returns its row and findings.

    kernels: the folder of compiled libraries that all share. The row: {what
    became of inputs: how many}; findings: (number, text).
    """
    row, found = dict.fromkeys(['read', 'refused', *KINDS], 0), []
    first, end = args.first, args.first + args.inputs
    begun = time.monotonic()
    while first < end:
        left = args.seconds and args.seconds - (time.monotonic() - begun)
        if left is not None and left <= 0:
            break
        with tempfile.TemporaryDirectory(prefix='d2lbert-fuzz-') as base:
            place = Path(base, 'number')
            Path(base, 'cache').mkdir()
            Path(base, 'cache', 'kernels').symlink_to(kernels)
            done = subprocess.run(
                [sys.executable, __file__, name, '--inputs',
                 str(end - first), '--seed', str(args.seed), '--first',
                 str(first), *(['--seconds', str(left)] if left else []),
                 '--within', base], stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, encoding='utf-8', errors='replace')
            lines = [json.loads(line[7:]) for line in done.stdout.splitlines()
                     if line.startswith('RESULT ')]
            for kind, number, text in lines[-1:] and lines[-1]['findings']:
                found.append((number, text))
            for kind, number in (lines[-1]['row'].items() if lines else ()):
                row[kind] += number
            if done.returncode == 0:
                break
            # It ended within an input
            number = place.read_text() if place.exists() else ''
            if not number:
                raise RuntimeError(f'{name}: {done.stdout[-3000:]}')
            number = int(number)
            if not lines:
                row['read'] += number - first   # what became of these is lost
            is_hung = re.search('^Timeout ', done.stdout, re.M)
            row['hangs' if is_hung else 'crashes'] += 1
            found.append((number, f'exit status {done.returncode}\n'
                          f'{done.stdout[-2000:]}\n'))
            first = number + 1
    return row, found


def fuzz_within(name, args):
    """Fuzz a target in this process; prints a line for `fuzz_apart`."""
    signal.signal(signal.SIGPROF, _alarm)
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')
    limit = 8 << 30     # a finding is not to take the machine
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.environ['D2LBERT_CACHE'] = str(Path(args.within, 'cache'))
    row, findings = dict.fromkeys(['read', 'refused', *KINDS], 0), []
    with open(Path(args.within, 'number'), 'w') as file:
        def tell(number):
            file.seek(0)
            file.write(str(number))
            file.flush()
        for number, kind, text in fuzz(
                name, args.inputs, args.seed, Path(args.within, name),
                args.first, args.seconds, tell):
            row[kind] += 1
            if text and len(findings) < SHOWN:
                findings.append((kind, number, text))
    print('\nRESULT ' + json.dumps(dict(row=row, findings=findings)))
    return 0


def run():
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
    parser.add_argument('--within', help=argparse.SUPPRESS)
    args = benchmark.parse(parser)
    unknown = set(args.targets) - set(targets.TARGETS)
    if unknown:
        parser.error(f'unknown targets: {", ".join(sorted(unknown))}')
    if args.within:
        return fuzz_within(args.targets[0], args)
    names = args.targets or list(targets.TARGETS)
    print(f'{"target":12}{"inputs":>9}{"refused":>9}' + ''.join(
        f'{kind:>11}' for kind in KINDS))
    total = dict.fromkeys(['read', 'refused', *KINDS], 0)
    with tempfile.TemporaryDirectory(prefix='d2lbert-fuzz-') as kernels:
        for name in names:
            row, found = fuzz_apart(name, args, kernels)
            _show(name, row)
            for number, text in found[:SHOWN]:
                print(f'{name} {number}, {text}', flush=True)
            for kind in total:
                total[kind] += row[kind]
    _show('all', total)
    return int(any(total[kind] for kind in KINDS))


def _show(name, row):
    print(f'{name:12}{sum(row.values()):9}{row["refused"]:9}' + ''.join(
        f'{row[kind]:11}' for kind in KINDS), flush=True)


if __name__ == '__main__':
    sys.exit(benchmark.run(run))
