"""Commands in processes of their own, for faults.py, and how they ended."""
import collections
import csv
import ctypes
import hashlib
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.__main__ import main
from d2lbert.launch import guard

TINY = ['--corpus', 'sample', '--batch-size', '100', '--max-len', '32',
        '--num-hiddens', '8', '--ffn-num-hiddens', '8', '--num-layers', '1',
        '--devices', 'cpu', '--seed', '1']
TRAINED = ['pretrain', *TINY, '--num-steps', '4', '--save-every', '1',
           '--eval-every', '2', '--out', 'run']
#: What a finished run holds besides its checkpoints.
COMPLETE = {'config.json', 'log.txt', 'losses.csv', 'losses.png',
            'model.params', 'vocab.txt'}
SECONDS = 120           # no command of these takes as long

GOOD = 'equal', 'clear error', 'harmless'
BAD = ('unclear', 'traceback', 'wrong result', 'lost', 'half-written',
       'blocked name', 'hung')


class End(NamedTuple):
    """How a command ended."""

    status: int         # minus the signal's number if one ended it
    out: str
    err: str
    seconds: float


class Command:
    """A command that runs; `said` is a pipe on which it tells its moments."""

    def __init__(self, pid, outputs, said=None):
        self.pid, self.outputs, self.said = pid, outputs, said
        self.begun = time.monotonic()

    def reaches(self, seconds=SECONDS):
        """Whether it reached its next moment, before it ended."""
        return bool(select.select([self.said], [], [], seconds)[0]
                    and os.read(self.said, 1))

    def send(self, *numbers, gap=0):
        """Send it signals; returns whether it was there to get the first.
        """
        for k, number in enumerate(numbers):
            if k:
                time.sleep(gap)
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG
                         | os.WNOWAIT):
                return k > 0
            os.kill(self.pid, number)
        return True

    def runs(self):
        return not os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG
                             | os.WNOWAIT)

    def wait(self, seconds=SECONDS):
        """The `End`; the command is killed after so many seconds."""
        while True:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                break
            if time.monotonic() - self.begun > seconds:
                os.kill(self.pid, signal.SIGKILL)
                status = os.waitpid(self.pid, 0)[1]
                break
            time.sleep(0.002)
        if self.said is not None:
            os.close(self.said)
        texts = []
        for file in self.outputs:
            file.seek(0)
            texts.append(file.read().decode('utf-8', 'replace'))
            file.close()
        return End(-os.WTERMSIG(status) if os.WIFSIGNALED(status)
                   else os.WEXITSTATUS(status), *texts,
                   time.monotonic() - self.begun)


def _in_child():
    """What each child does first, as a function.

    It dies with this process, and what nohup or a script's `&` ignores it
    heeds.
    """
    die = guard.make_die_with_parent()

    def prepare():
        die()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
    return prepare


def fork(folder, argv, prepare=None, moment=None):
    """Start `d2lbert` in `folder`, forked from here; returns a `Command`.

    Its first moment is that before it begins. prepare: called in it before
    that. moment: the number of a change to files before which it has a
    second one.
    """
    outputs = [tempfile.TemporaryFile() for _ in range(2)]
    become, (said, tell) = _in_child(), os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        return Command(pid, outputs, said)
    status = 70
    try:
        become()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(folder)
        for number, file in enumerate(outputs, 1):
            os.dup2(file.fileno(), number)
        sys.stdin = open(os.devnull)
        sys.stdout, sys.stderr = (
            open(number, 'w', encoding='utf-8', closefd=False)
            for number in (1, 2))
        if prepare is not None:
            prepare()
        if moment is not None:
            def pause():
                os.write(tell, b'm')
                time.sleep(0.01)
            at_change(moment, pause)
        os.write(tell, b'r')
        status = main(argv)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except SystemExit as exit:
        status = exit.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def start(folder, argv, env=None, prepare=None, code=None, **kwargs):
    """Start `d2lbert` in a new Python in `folder`; returns a `Command`.

    env: variables, None for those that are to be unset. prepare: called
    before the new Python begins. code: a program instead of `-m d2lbert`.
    """
    outputs = [tempfile.TemporaryFile() for _ in range(2)]
    variables = dict(os.environ)
    for name, value in (env or {}).items():
        variables.pop(name, None)
        if value is not None:
            variables[name] = value
    become = _in_child()

    def before():
        become()
        if prepare is not None:
            prepare()
    kwargs = {'stdin': subprocess.DEVNULL, 'stdout': outputs[0],
              'stderr': outputs[1], **kwargs}
    command = ['-m', 'd2lbert'] if code is None else ['-c', code]
    process = subprocess.Popen([sys.executable, *command, *argv], cwd=folder,
                               env=variables, preexec_fn=before, **kwargs)
    process.returncode = 0      # it is this module that waits for it
    return Command(process.pid, outputs)


def obey_modes():
    """Let this process obey the modes of files, even if it is root's."""
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and libc.capget(header, sets) == 0:
        for capability in (1, 2):       # CAP_DAC_OVERRIDE, ..._READ_SEARCH
            # Nor may the programs that it starts disobey
            libc.prctl(24, capability, 0, 0, 0)     # PR_CAPBSET_DROP
            for k in range(3):
                sets[k] &= ~(1 << capability)
        libc.capset(header, sets)


# Changes to files, as moments

CHANGES = {'open', 'os.rename', 'os.remove', 'os.mkdir', 'os.rmdir',
           'os.truncate'}


def on_change(function):
    """Have a function called before each change to files, for ever."""
    def hook(event, arguments):
        if event in CHANGES and (
                event != 'open' or isinstance(arguments[2], int)
                and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            function()
    sys.addaudithook(hook)


def at_change(number, function):
    """Have a function called before one of the changes to files."""
    left = [number]

    def count():
        left[0] -= 1
        if left[0] == 0:
            function()
    on_change(count)


# What is there, and how it is judged

class Place:
    """Where faults are made: a folder, random numbers, what is expected."""

    def __init__(self, base):
        self.base, self.rng = base, random.Random(0)
        self._number, self._known = 0, {}

    def folder(self):
        """A new, empty folder."""
        self._number += 1
        path = self.base / f'{self._number:04}'
        path.mkdir()
        return path

    def once(self, key, function):
        """What function() gave when it was called the first time."""
        if key not in self._known:
            self._known[key] = function()
        return self._known[key]

    def done(self, *commands, run=fork, **kwargs):
        """(folder, last `End`) of undisturbed commands, carried out once.
        """
        def carry_out():
            folder = self.folder()
            for argv in commands:
                end = run(folder, argv, **kwargs).wait()
                if end.status:
                    sys.exit(f'{argv} failed: {end.err}')
            return folder, end
        return self.once(repr((commands, run, kwargs)), carry_out)

    def some(self, cases, number):
        """So many of the cases, in turn, each as often as the others."""
        cases, chosen = list(cases), []
        while len(chosen) < number:
            chosen += self.rng.sample(cases, len(cases))
        return chosen[:number]


class Tally:
    """The verdicts on one kind of fault."""

    def __init__(self, kind, verbose=False):
        self.kind, self.verbose = kind, verbose
        self.counts = collections.Counter()

    def note(self, what, verdicts, end=None, tried=1):
        """Count what became of a fault; what is bad is printed."""
        verdicts = list(dict.fromkeys(verdicts))
        if set(verdicts) & set(BAD):
            verdicts = [name for name in verdicts if name in BAD]
        self.counts['tried'] += tried
        for name in verdicts:
            self.counts[name] += tried
        if self.verbose or set(verdicts) & set(BAD):
            print(f'{self.kind}: {what}: {", ".join(verdicts)}')
            if end is not None:
                print(f'    status {end.status}, {end.err.strip()[-1500:]}')


def listing(folder):
    """Every path below `folder` with the checksum of what it holds."""
    return {path.relative_to(folder).as_posix():
            hashlib.sha1(path.read_bytes()).hexdigest()
            if path.is_file() else 'folder'
            for path in folder.rglob('*')}


def result(run):
    """What has to be equal in two runs; None where one is not complete."""
    try:
        return {name: (Path(run) / name).read_bytes()
                for name in ('losses.csv', 'model.params')}
    except OSError:
        return None


def losses(run):
    """The numbers of a run's losses.csv, an array; None without one."""
    try:
        with open(Path(run) / 'losses.csv', newline='') as file:
            return onp.array([[float(cell or 0) for cell in row]
                              for row in list(csv.reader(file))[1:]])
    except (OSError, ValueError):
        return None


def close_losses(run, expected):
    """Whether two runs have the same losses, but for rounding."""
    found, wanted = losses(run), losses(expected)
    return (found is not None and found.shape == wanted.shape
            and onp.allclose(found, wanted, rtol=1e-3, atol=1e-4))


def left_behind(folder, *more):
    """Verdicts on a folder in which one run was finished, named run."""
    found = set(os.listdir(folder)) - {'run', *more}
    inner = set(os.listdir(folder / 'run')) - {'checkpoints'}
    part = any('.part' in name for name in listing(folder / 'run'))
    return ['half-written'] * bool(found or inner != COMPLETE or part)


def complaints(end, statuses=(0, 1, 2)):
    """Verdicts on how a command ended, whatever it was to do."""
    if end.status == -signal.SIGKILL and end.seconds > SECONDS:
        return ['hung']
    if any(words in end.err for words in ('Traceback', 'Exception ignored')):
        return ['traceback']
    return [] if end.status in statuses else ['unclear']


def is_clear(text, names):
    """Whether an error is one line, of words, that names what it is about.

    Lines that say what it does without, or what it trains, may come before.
    """
    *notes, line = text.strip().splitlines() or ['']
    return (all(note.startswith(('d2lbert: ', 'training '))
                for note in notes)
            and len(line.split()) > 3 and any(name in line for name in names))


# Damage

class Case(NamedTuple):
    """A command that is given something damaged."""

    what: str
    argv: list
    names: tuple        # one of them has to be in the message
    prepare: Any = None     # called in the command's process
    same: bool = False      # whether success must mean the usual result


def cut(rng, data):
    return data[:rng.randrange(len(data))]


def flipped(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 8, 100])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def noise(rng, num_bytes=2000):
    return bytes(rng.randrange(256) for _ in range(num_bytes))
