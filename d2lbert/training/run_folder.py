"""The folder of a run while it is written: taken, locked, grown, finished."""
import contextlib
import glob
import json
import os
import re
import shutil
import socket
import time
from pathlib import Path
from shlex import quote

from d2lbert.machine.files import (
    RUNS,
    exchange,
    missing,
    new_run_folder,
    read_json,
    remove_empty,
    write_text,
)
from d2lbert.pretrained.tokenizers.tokenizer import FILES
from d2lbert.training import checkpoints, schedule
from d2lbert.training.run_files import (
    UNFINISHED,
    check_reads,
    remove_run,
)
from d2lbert.training.saved_runs import RunError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

#: Keeps the room that the model will need.
RESERVE = '.room-for-model.part'


class RunFolder:
    """A run folder that this process alone writes to, until `close`.

    path: where it is now; target: where it will be when it is finished,
    another place only while it is to replace a run (--force).
    """

    def __init__(self, path, is_new, replaces=None, made=()):
        self.path, self.is_new, self.replaces = Path(path), is_new, replaces
        self._made = made       # folders to be removed with a discarded run
        self._was_finished = (self.path / 'model.params').is_file()
        self._lock = _lock(self.path)
        self._cannot_grow = set()

    @classmethod
    def take(cls, out=None, force=False, reads=()):
        """Make the folder of a new run; `RunError` where that cannot be.

        out: its path, None for one named after the time. force: take the
        place of the run in `out`, once the new run is finished, unless it is
        among `reads`, the paths that the new run reads.
        """
        if out is None:
            made = missing(RUNS)
            return cls(new_run_folder(), True, made=made)
        out = Path(out)
        _check_writable(out)
        if _was_given_up(out):
            checkpoints.sweep(out)
            return cls(out, is_new=True)
        if os.path.lexists(out) and force:
            _check_replaceable(out)
            check_reads(out, reads)
            found = os.stat(out)
            replaces = out.name, found.st_dev, found.st_ino
            return cls(_make_beside(out), True, replaces)
        made = missing(out.parent)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.mkdir()
        except FileExistsError:
            raise RunError(
                f'{out} exists already{_state(out)}: choose another --out, '
                'or give --force to replace it') from None
        return cls(out, True, made=made)

    @classmethod
    def reopen(cls, path):
        """Go on with the run folder `path`, even as its replacement."""
        replaces = None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            name, *found = dict(read_json(path / 'config.json'))['replaces']
            # The same name: it was put there, and not told so any more
            if Path(name).name == name != path.name:
                replaces = (name, *found)
        return cls(path, is_new=False, replaces=replaces)

    @property
    def target(self):
        """Where the folder will be when the run is finished."""
        if self.replaces is None:
            return self.path
        return self.path.with_name(self.replaces[0])

    def begin(self, config, vocab, texts):
        """Write what describes the run; texts: {name: beginning of a file}.

        In the folder of a resumed run only what was lost is written.
        """
        if self.is_new or not (self.path / 'config.json').is_file():
            self.write_config(config)
        if self.is_new or not all((self.path / name).is_file()
                                  for name in vocab.files):
            vocab.save(self.path / 'vocab.txt')
        for name, text in texts.items():
            self._grow(name, lambda path, text=text: write_text(path, text))

    def write_config(self, config):
        """Write what the run is made with."""
        if self.replaces is not None:
            config = dict(config, replaces=self.replaces)
        write_text(self.path / 'config.json',
                   json.dumps(config, indent=2, ensure_ascii=False) + '\n')

    def append(self, name, text):
        """Add to a file that grows while the run goes on.

        All of it is written once more in the end, so a full disk now is no
        reason to stop.
        """
        def add(path):
            with open(path, 'a', encoding='utf-8') as file:
                file.write(text)
        self._grow(name, add)

    def _grow(self, name, write):
        # A line that is missing in the middle would mislead more than an end
        if name not in self._cannot_grow:
            try:
                write(self.path / name)
            except OSError:
                self._cannot_grow.add(name)

    def reserve(self, num_bytes):
        """Set room aside for the model, `num_bytes`, until `release`.

        Where a file system cannot, the run has to hope.
        """
        if not hasattr(os, 'posix_fallocate'):
            return
        with contextlib.suppress(OSError):
            with open(self._reserve, 'wb') as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)

    def release(self):
        """Give the room back that `reserve` set aside."""
        with contextlib.suppress(OSError):
            self._reserve.unlink()

    @property
    def _reserve(self):
        return self.path / RESERVE

    def finish(self, config):
        """Mark the run as finished and put it in its place.

        Returns a sentence where the place is not what it was, or where it
        held files that no run wrote, else None.
        """
        kept = found_there = None
        if self.replaces is not None:
            target, path = self.target, self.path
            try:
                found = os.stat(target)
                same = self.replaces[1:] == (found.st_dev, found.st_ino)
            except OSError:
                same = not os.path.lexists(target)
            if not same or holder(target):
                kept = (f'{target} is not the run any more that was to be '
                        f'replaced: this run stays in {path}')
            if kept is None:
                try:
                    found_there = _exchange(path, target)
                    self.path = target
                except OSError as error:
                    kept = (f'{target} cannot be replaced '
                            f'({error.strerror}): this run stays in {path}')
            # Only now: until it has its place it can still be resumed to it
            self.replaces = None
            self.write_config(config)
        (self.path / UNFINISHED).unlink()
        self._was_finished, self.is_new = True, False
        if found_there:
            kept = (f'kept in {self.path}, as no run wrote it: '
                    f'{", ".join(found_there)}')
        return kept

    def close(self, keep=True):
        """Let go of the folder; remove a new one that is not worth keeping.
        """
        with contextlib.suppress(OSError):
            self._reserve.unlink()
            if self._was_finished and not (
                    self.path / 'model.params').is_file():
                self._was_finished = False
        if self.is_new and not keep:
            shutil.rmtree(self.path, ignore_errors=True)
            remove_empty(self._made)
        elif self._was_finished:
            with contextlib.suppress(OSError):
                (self.path / UNFINISHED).unlink()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _check_writable(out):
    above = next((path for path in out.absolute().parents if path.exists()),
                 out)
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise RunError(f'{out} cannot be made: {above} is no folder that you '
                       'may write to: choose another --out')


def _check_replaceable(out):
    here = Path.cwd()
    if out.resolve() in (here, *here.parents):
        raise RunError(f'{out} is the folder that you are in, or one above '
                       'it, so --force does not replace it: choose another '
                       '--out')
    if out.is_symlink() or not out.is_dir() or not _is_run_folder(out):
        raise RunError(f'{out} is not a run folder, so --force does not '
                       'replace it: choose another --out')
    busy = holder(out)
    if busy:
        raise RunError(f'{out} is being written by {busy}: choose another '
                       '--out')


def _is_run_folder(folder):
    """Whether `pretrain` made this folder, finished or not."""
    try:
        return 'd2lbert' in dict(read_json(folder / 'config.json'))
    except FileNotFoundError:
        # One that is empty, or was given up before the first step
        return {path.name for path in folder.iterdir()} <= {UNFINISHED}
    except (OSError, ValueError, TypeError):
        return False


def _was_given_up(out):
    """Whether `out` is of a run that ended before it had learnt anything.

    Nobody writes to it, and it holds nothing but what each run begins with.
    """
    began_with = {UNFINISHED, 'config.json', 'losses.csv', 'log.txt',
                  schedule.FILE, *FILES}
    try:
        found = {path.name for path in out.iterdir()
                 if not re.fullmatch(r'\..+\.part', path.name)}
        return (not out.is_symlink() and UNFINISHED in found
                and found <= began_with and holder(out) is None
                and all(len((out / name).read_text().splitlines()) <= 1
                        for name in ('losses.csv', schedule.FILE)
                        if name in found))
    except OSError:
        return False


def _state(out):
    """Whether `out` is a run that is not finished, as part of a sentence."""
    busy = holder(out)
    if busy:
        return f' and is being written by {busy}'
    if not (out / UNFINISHED).is_file():
        return ''
    if checkpoints.all_of(out):
        return (', as a run that was not finished (to go on with it: '
                f'--resume {quote(str(out))})')
    return ', as a run that was not finished and has no checkpoint'


def _make_beside(out):
    """A new folder for what will replace `out`: out.new, out.new-2, ..."""
    copy = 1
    while True:
        path = out.with_name(f'{out.name}.new' + (f'-{copy}' if copy > 1
                                                  else ''))
        try:
            path.mkdir()
            return path
        except FileExistsError:
            if _was_given_up(path):
                checkpoints.sweep(path)
                return path
            copy += 1


def _exchange(path, target):
    """Put the folder `path` in the place of `target`, which is removed.

    Files in it that no run wrote stay; returns their names.
    """
    aside = target.with_name(f'.{target.name}.{os.getpid()}.old')
    try:
        exchange(path, target)      # a kill finds one of them in the place
    except OSError:     # nothing is there, or the file system cannot
        if target.exists():
            os.replace(target, aside)
        try:
            os.replace(path, target)
        except OSError:
            if aside.exists():
                os.replace(aside, target)
            raise
    else:
        os.replace(path, aside)
    kept = []
    # Also of a process that was killed here
    for old in target.parent.glob(f'.{glob.escape(target.name)}.*.old'):
        kept += remove_run(old, target)
    return kept


def _lock(folder):
    """A descriptor of the folder's lock; `RunError` if another has it."""
    path = folder / UNFINISHED
    while True:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT
                           | getattr(os, 'O_NOFOLLOW', 0), 0o666)
        except OSError as error:
            raise RunError(f'{folder} cannot be written to '
                           f'({error.strerror})') from None
        try:
            if fcntl:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy = _words(lock)
            os.close(lock)
            raise RunError(f'{folder} is being written by {busy}: wait '
                           'until it has ended, or stop it') from None
        except OSError:
            pass        # a file system without locks
        # Whoever had it may have finished, and removed the file, just now
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                break
        os.close(lock)
    os.ftruncate(lock, 0)
    os.pwrite(lock, (
        f'process {os.getpid()} on {socket.gethostname()} since '
        f'{time.strftime("%Y-%m-%d %H:%M:%S")}\n').encode(), 0)
    return lock


def _words(lock):
    text = os.pread(lock, 200, 0).decode('utf-8', 'replace').strip()
    return text or 'another process'


def holder(folder):
    """Who writes to a run folder now, in words; None for nobody."""
    try:
        lock = os.open(Path(folder) / UNFINISHED, os.O_RDONLY)
    except OSError:
        return None
    try:
        if fcntl:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _words(lock)
    except OSError:
        pass
    finally:
        os.close(lock)
    return None


def check_room(folder, out, num_bytes):
    """Refuse, naming `out`, where fewer than num_bytes are free."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise RunError(
            f'{out} has {free / 1e6:.1f} MB of room, and the run will write '
            f'{num_bytes / 1e6:.1f} MB: free some, or choose another --out')
