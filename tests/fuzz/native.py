"""Arbitrary bytes for the C++ entries that work on texts, with sanitizers.

    python tests/fuzz/native.py [--inputs 1000000] [--seconds S] [--seed 1]
                                [--corpus FOLDER] [--keep]

entries.cc makes arrays of an input's bytes. With clang and its libFuzzer
(Debian: clang-14 and libclang-rt-14-dev) inputs are guided by the branches
that they reach, and the folder CORPUS keeps those that reach new ones; with
another compiler they are changed at random. AddressSanitizer and
UndefinedBehaviorSanitizer look on in both. An access outside of an array,
undefined behaviour, an unsound answer, more than 10 s or more than 1 GB ends
the program: its report follows the table, and the exit status is 1.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / 'bench'))

import benchmark  # noqa: E402

KERNELS = HERE.parents[1] / 'd2lbert' / 'kernels'
FLAGS = ['-std=c++17', '-O2', '-g1', '-fno-sanitize-recover=all',
         f'-I{KERNELS}']
#: Names of clang, newest first.
CLANGS = ['clang++', *(f'clang++-{k}' for k in range(22, 10, -1))]

#: The number of an entry in entries.cc, and bytes to begin with.
SEEDS = [bytes([0, *choices]) + text.encode() for choices in (
    (0, 0, 1, 199), (0, 1, 0, 199), (0, 2, 1, 199), (1, 1, 1, 199, 30))
    for text in (' = One = \n\n \n The \u00c9t\u00e9 . And \u00c4 . \u0130x '
                 'longerwords longerwords . \n\n = = Two = = \n ', 'a . b\n')]
SEEDS += [bytes([1, 0, 0]) + b'one\ntwo\nthree long ones\none\n' + bytes(9),
          bytes([2, 8]) + b'a\nbc\nx\n' + bytes(9) + b'\4a\nb\n' + bytes(9)
          + b'abab\nbc!x\n', *(bytes([k]) + bytes(range(1, 120))
                               for k in range(3, 10))]


def sanitizing(folder):
    """Compile entries.cc; returns (command, whether libFuzzer guides it).

    None if no compiler has the sanitizers.
    """
    program = Path(folder, 'entries')
    sanitizers = 'address,undefined'
    tries = [([clang, *FLAGS, f'-fsanitize=fuzzer,{sanitizers}'], True)
             for clang in CLANGS if shutil.which(clang)]
    if shutil.which('g++'):
        tries.append((['g++', *FLAGS, f'-fsanitize={sanitizers}',
                       '-DD2LBERT_PLAIN_LOOP'], False))
    for command, is_guided in tries:
        done = subprocess.run([*command, HERE / 'entries.cc', '-o', program],
                              stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode == 0:
            return program, is_guided
        if b'entries.cc' in done.stdout and b'error:' in done.stdout:
            raise RuntimeError(done.stdout.decode(errors='replace'))
    return None


def fuzz(count, seconds=None, seed=1, corpus=None):
    """Give the entries `count` inputs, for so many seconds at most.

    corpus: folder of inputs that reach new branches, or None. Returns
    [(name, inputs, refused, findings)], the way, and a report, '' without
    a finding; or None if nothing can be compiled with sanitizers.
    """
    with tempfile.TemporaryDirectory(prefix='d2lbert-fuzz-') as base:
        compiled = sanitizing(base)
        if compiled is None:
            return None
        program, is_guided = compiled
        folder = Path(corpus or Path(base, 'corpus'))
        folder.mkdir(parents=True, exist_ok=True)
        for k, data in enumerate(SEEDS):
            (folder / f'seed-{k}').write_bytes(data)
        if is_guided:
            options = [folder, f'-runs={count}', f'-seed={seed}',
                       '-max_len=1024', '-len_control=10', '-timeout=10',
                       '-malloc_limit_mb=1024', '-rss_limit_mb=4096',
                       '-reduce_inputs=0', f'-artifact_prefix={folder}/',
                       '-verbosity=0']
            if seconds is not None:
                options.append(f'-max_total_time={max(1, int(seconds))}')
        else:
            options = [str(count), str(1e9 if seconds is None else seconds),
                       str(seed)]
        done = subprocess.run(
            [program, *options], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={
                **os.environ, 'UBSAN_OPTIONS': 'print_stacktrace=1',
                'ASAN_OPTIONS': 'quarantine_size_mb=64'})
        text = done.stdout.decode(errors='replace')
        rows = [(name, *map(int, numbers), 0)
                for name, *numbers in re.findall(
                    r'^ENTRY (\S+) (\d+) (\d+)', text, re.M)]
        report = ''
        if done.returncode or not rows:
            report = text[-9000:]
            rows.append(('finding', 0, 0, 1))
        how = 'libFuzzer' if is_guided else 'random changes'
        return rows, f'{how}, AddressSanitizer, UBSan', report


def run():
    """Fuzz; returns the exit status."""
    parser = argparse.ArgumentParser(
        description='Give arbitrary bytes to the C++ entries.')
    parser.add_argument('--inputs', type=int, default=1_000_000)
    parser.add_argument('--seconds', type=float, help='at most')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--corpus', help='folder that keeps inputs')
    args = benchmark.parse(parser)
    begun = time.monotonic()
    found = fuzz(args.inputs, args.seconds, args.seed, args.corpus)
    if found is None:
        print('no compiler has the sanitizers: install clang-14 and '
              'libclang-rt-14-dev, or g++', file=sys.stderr)
        return 1
    rows, how, report = found
    print(f'{"entry":12}{"inputs":>10}{"refused":>10}{"findings":>10}')
    for name, *numbers in [*rows, ('all', *map(sum, list(zip(*rows))[1:]))]:
        print(f'{name:12}' + ''.join(f'{number:10}' for number in numbers))
    print(f'{how}, {time.monotonic() - begun:.0f} s')
    print(report, end='')
    return int(bool(report))


if __name__ == '__main__':
    sys.exit(benchmark.run(run))
