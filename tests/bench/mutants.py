"""Mistakes made on purpose, and whether the tests notice them.

    python tests/bench/mutants.py [--only WORDS...] [--list] [--jobs 2]

Copies the checkout (what git tracks) into a temporary folder. There it
makes each mistake of mistakes.py, one at a time, runs the tests that should
notice it, and takes it back. First the same tests have to pass without a
mistake. Prints a table; the exit status is 0 only if at least 95 % of the
mistakes are caught. A mistake is caught if a test fails, if the process
dies, or if it hangs (which is said).
"""
import argparse
import collections
import contextlib
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

from mistakes import MISTAKES, Mistake

ROOT = Path(__file__).resolve().parents[2]
#: What share of the mistakes must be caught.
ENOUGH = 0.95
#: Seconds for the tests of one mistake, by where it is made (C++ has to be
#: compiled first), and for all tests without one.
SECONDS, ALL_SECONDS = {'.py': 120, '.cc': 300, '.h': 300}, 1800
#: The environment variable by which what a test left running is known.
MARK = 'D2LBERT_MUTANTS'

CAUGHT, HUNG, DIED, SURVIVED, BROKEN = (
    'caught', 'hung', 'died', 'SURVIVED', 'BROKEN')


class Broken(Exception):
    """Why a mistake cannot be made or tested, in one sentence."""


# Where mistakes and tests are

class Case(NamedTuple):
    """A mistake, where it is made, and what pytest is to run."""

    mistake: Mistake
    place: str      # the source file, relative to the checkout
    tests: list     # as 'tests/test_x.py::test_y'

    @property
    def room(self):
        """The folder of the source file, or the name of one without."""
        _, room, *rest = self.place.split('/')
        return room if rest else Path(room).stem


def tracked(root):
    """The files of the checkout, as paths relative to it."""
    names = subprocess.run(['git', 'ls-files', '-z'], cwd=root, check=True,
                           stdout=subprocess.PIPE).stdout
    names = [os.fsdecode(name) for name in names.split(b'\0') if name]
    return [name for name in names if (root / name).is_file()]


def find_cases():
    """A `Case` for each mistake; raises `Broken` where there is none."""
    names = tracked(ROOT)
    package, tests = ({
        name: (ROOT / name).read_text('utf-8') for name in names
        if re.fullmatch(pattern, name)}
        for pattern in (r'd2lbert/.*\.(py|cc|h)', r'tests/(.*/)?test_\w+\.py'))
    cases, wrong = [], []
    for mistake in MISTAKES:
        try:
            cases.append(Case(mistake, _place(mistake, package),
                              _tests(mistake, tests)))
        except Broken as error:
            wrong.append(str(error))
    if wrong:
        raise Broken('\n'.join(wrong))
    return cases


def _place(mistake, package):
    """The one source file that has the text of a mistake."""
    counts = {name: text.count(mistake.old) for name, text in package.items()
              if mistake.old in text}
    if sum(counts.values()) != 1:
        where = ', '.join(f'{count} times in {name}'
                          for name, count in counts.items()) or 'nowhere'
        raise Broken(f'the text of {mistake.name!r} must stand once in the '
                     f'package and stands {where}: {mistake.old!r}')
    return next(iter(counts))


def _tests(mistake, tests):
    """The tests that a mistake names, wherever they are."""
    found = []
    for test in mistake.tests.split():
        places = [f'{name}::{test}' for name, text in tests.items()
                  if re.search(rf'^def {test}\(', text, re.MULTILINE)]
        if not places:
            raise Broken(f'{mistake.name!r} names {test}, which no file in '
                         'tests/ defines')
        found += places
    return found


# Running tests

class Copy:
    """A copy of the checkout in which tests run, and mistakes are made."""

    def __init__(self, folder, cache):
        self.folder, self._cache = folder, cache
        self.root, self.own_cache = folder / 'checkout', folder / 'cache'
        self._process = None
        for name in tracked(ROOT):
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)

    def run(self, seconds, tests, *options):
        """Run tests; returns (CAUGHT, HUNG, DIED or SURVIVED, output).

        They get a copy of the cache, so that no mistake outlives them.
        """
        temporary = self.folder / 'tmp'
        for folder in (self.own_cache, temporary):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._cache, self.own_cache)
        temporary.mkdir()
        mark = secrets.token_hex(16)
        env = {name: value for name, value in os.environ.items()
               if name not in ('D2LBERT_CACHE', 'D2LBERT_KERNELS')}
        # Bytecode is told from its source by second and size alone
        env.update({MARK: mark, 'PYTHONDONTWRITEBYTECODE': '1',
                    'PYTHONPATH': str(self.root), 'TMPDIR': str(temporary),
                    'XDG_CACHE_HOME': str(self.own_cache)})
        process = self._process = subprocess.Popen(
            [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider',
             *options, *tests], cwd=self.root, env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output, hung = _wait(process, seconds)
        finally:
            _end(process)
            for left in _marked(mark):
                with contextlib.suppress(OSError):
                    os.kill(left, signal.SIGKILL)
        return _verdict(process.returncode, hung, output), output

    def stop(self):
        """End the tests that run now."""
        if self._process is not None:
            self._process.terminate()

    @contextlib.contextmanager
    def having(self, case):
        """Make a mistake, and take it back in the end."""
        path, mistake = self.root / case.place, case.mistake
        before = path.read_bytes()
        path.write_bytes(before.replace(mistake.old.encode(),
                                        mistake.new.encode()))
        try:
            yield
        finally:
            path.write_bytes(before)


def _wait(process, seconds):
    """(what a process printed, whether it had to be stopped)."""
    try:
        return process.communicate(timeout=seconds)[0].decode(), False
    except subprocess.TimeoutExpired:
        # As Ctrl-C, so that pytest ends what its tests have started
        process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=20)[0].decode(), True
    except subprocess.TimeoutExpired:
        _end(process)
        return process.communicate()[0].decode(), True


def _end(process):
    """End a process that still runs, and its group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _marked(mark):
    """The numbers of processes that were started with this mark."""
    wanted = f'{MARK}={mark}'.encode()
    for entry in Path('/proc').glob('[0-9]*/environ'):
        with contextlib.suppress(OSError):
            if wanted in entry.read_bytes().split(b'\0'):
                yield int(entry.parent.name)


def _verdict(status, hung, output):
    if hung:
        return HUNG
    if status < 0 or status == 2 and 'during collection' not in output:
        return DIED     # or a signal that it was to ignore ended pytest
    if status == 1:
        return CAUGHT
    if status == 0 and re.search(r'\b\d+ passed', output):
        return SURVIVED
    if status == 0:
        raise Broken('all of its tests were skipped:\n' + _end_of(output))
    raise Broken('pytest did not get to its tests:\n' + _end_of(output))


def _end_of(output):
    return '\n'.join(f'  {line}' for line in output.splitlines()[-25:])


# All of it

def check_without(copy, cases, cache):
    """Raise `Broken` unless all tests pass that the mistakes name."""
    tests = sorted({test for case in cases for test in case.tests})
    print(f'{len(tests)} tests without a mistake ...', flush=True)
    verdict, output = copy.run(ALL_SECONDS, tests)
    if verdict != SURVIVED:
        raise Broken(f'the tests do not pass without a mistake ({verdict}):\n'
                     + _end_of(output))
    # What was compiled for it serves all that leaves the C++ as it is
    shutil.copytree(copy.own_cache, cache, dirs_exist_ok=True)


def try_all(cases, copies):
    """The verdict on each case, told as they come."""
    free, stopped = queue.Queue(), threading.Event()
    for copy in copies:
        free.put(copy)

    def attempt(case):
        if stopped.is_set():
            return None
        copy, begun = free.get(), time.monotonic()
        try:
            with copy.having(case):
                verdict, _ = copy.run(SECONDS[Path(case.place).suffix],
                                      case.tests, '-x')
        except Broken as error:
            verdict = BROKEN
            print(error, flush=True)
        finally:
            free.put(copy)
        if not stopped.is_set():
            print(f'{verdict:<9}{time.monotonic() - begun:>4.0f} s  '
                  f'{case.mistake.name}', flush=True)
        return verdict

    with futures.ThreadPoolExecutor(len(copies)) as pool:
        try:
            return list(pool.map(attempt, cases))
        except BaseException:
            stopped.set()
            for copy in copies:
                copy.stop()
            raise


def report(cases, verdicts):
    """Print the table; returns whether enough mistakes were caught."""
    count, caught = collections.Counter(), collections.Counter()
    for case, verdict in zip(cases, verdicts):
        for room in (case.room, 'all'):
            count[room] += 1
            caught[room] += verdict in (CAUGHT, HUNG, DIED)
    print(f'\n{"room":<20}{"mistakes":>9}{"caught":>8}')
    for room in [*dict.fromkeys(case.room for case in cases), 'all']:
        print(f'{room:<20}{count[room]:>9}{caught[room]:>8}')
    print(f'\n{caught["all"] / count["all"]:.1%} caught, '
          f'{verdicts.count(HUNG)} of them by a hang and '
          f'{verdicts.count(DIED)} by a crash')
    for case, verdict in zip(cases, verdicts):
        if verdict in (SURVIVED, BROKEN):
            print(f'{verdict}: {case.mistake.name} ({case.place})')
    return BROKEN not in verdicts and caught['all'] >= ENOUGH * count['all']


def main(argv=None):
    """Run the script; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog='The exit status is 0 only if 95 % are caught.')
    parser.add_argument('--only', metavar='WORDS', nargs='+', default=[''],
                        help='only mistakes that have one of these in their '
                        'names, or are made in these rooms')
    parser.add_argument('--list', action='store_true',
                        help='only say which there are, and where')
    parser.add_argument('--jobs', type=int, default=2, metavar='N',
                        help='how many are tried at a time (default: 2)')
    args = parser.parse_args(argv)
    if args.jobs < 1:
        parser.error(f'--jobs must be 1 or more, not {args.jobs}')
    try:
        # All of them: a list that is wrong anywhere cannot be relied on
        cases = [case for case in find_cases() if case.room in args.only
                 or any(words in case.mistake.name for words in args.only)]
        if not cases:
            raise Broken(f'there is no mistake {" or ".join(args.only)!r}')
        if args.list:
            for case in cases:
                print(f'{case.room:<18}{case.mistake.name}')
            print(f'{len(cases)} mistakes')
            return 0
        with tempfile.TemporaryDirectory(prefix='mutants-') as folder:
            return _run(cases, args.jobs, Path(folder))
    except Broken as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('\nstopped', file=sys.stderr)
        return 130


def _run(cases, jobs, folder):
    cache = folder / 'cache'
    cache.mkdir()
    copies = [Copy(folder / str(k), cache)
              for k in range(min(jobs, len(cases)))]
    check_without(copies[0], cases, cache)
    return 0 if report(cases, try_all(cases, copies)) else 1


if __name__ == '__main__':
    sys.exit(main())
