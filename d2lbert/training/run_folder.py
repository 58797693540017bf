"""Create and lock a run folder, and write the files of the run.

An argument `run` is a `training.loop.Run`.
"""
import contextlib
import errno
import itertools
import json
import math
import os
import re
import shutil
import socket
import time
from pathlib import Path
from shlex import quote

from d2lbert._version import __version__
from d2lbert.machine.files import (
    RUNS,
    UNFINISHED,
    missing_folders,
    new_run_folder,
    read_json,
    remove_empty,
    write_text,
)
from d2lbert.machine.processor import describe_machine
from d2lbert.machine.terminal import note, warn
from d2lbert.pretrained.tokenizers.tokenizer import FILES as TOKENIZER_FILES
from d2lbert.training import checkpoints
from d2lbert.training.saved_runs import RunError, write_run

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

#: Names in a run folder, for data that the caller passed in memory: the file
#: of texts, and the folder of examples of a labelled task.
TEXTS_FILE, DATA = 'texts.txt', 'data'

#: A file that reserves disk space for the files of a finished run.
SPACE_FILE = '.room-for-model.part'

#: Bytes to reserve beside the weights: for the headers of model.params, and
#: for losses.csv and its figure, which are written before model.params.
OTHER_BYTES = 1 << 20


class RunFolder:
    """A run folder that only this process writes to, until `close`.

    is_new: False if a run is resumed, and after `finish`. new_parents: folders
    above `path` that were made for this run, and are removed if the run is not
    kept. moved_path: the new path of an earlier run folder that was moved
    aside from `path`, or None.
    """

    def __init__(self, path, is_new, new_parents=(), moved_path=None):
        self.path, self.is_new = Path(path), is_new
        self.moved_path, self._new_parents = moved_path, new_parents
        self._is_finished = (self.path / 'model.params').is_file()
        self._lock_descriptor = _lock(self.path)
        self._unwritable_files = set()      # names of files

    @classmethod
    def create(cls, out=None, force=False, inputs=()):
        """Make the folder of a new run, and lock it.

        out: the path; None for a new folder in `RUNS`, named by the time.
        force: move a run folder at `out` aside. inputs: the paths that the new
        run reads; raises ValueError instead of moving a folder that holds one
        of them. Raises `RunError` if `out` is taken or cannot be written to.
        """
        if out is None:
            # Before `new_run_folder`, which makes the missing folders
            new_parents = missing_folders(RUNS)
            return cls(new_run_folder(), is_new=True, new_parents=new_parents)
        check_out_folder(out, force)
        out, moved_path = Path(out), None
        if _ended_before_first_row(out):    # use the folder again
            checkpoints.remove_temporary_files(out)
            return cls(out, is_new=True)
        if os.path.lexists(out) and force:
            _check_holds_no_input(out, inputs)
            moved_path = move_aside(out)
        new_parents = missing_folders(out.parent)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.mkdir()
        except FileExistsError:     # another process has just made it
            raise _taken_error(out) from None
        return cls(out, is_new=True, new_parents=new_parents,
                   moved_path=moved_path)

    @classmethod
    def reopen(cls, path):
        return cls(path, is_new=False)

    @classmethod
    def create_with(cls, write, *args):
        """Make a folder by create(*args), then add files by write(path)."""
        folder = cls.create(*args)
        try:
            write(folder.path)
        except BaseException:
            folder.close(keep=False)
            raise
        return folder

    def begin(self, config, vocab, contents):
        """Write config.json, the vocabulary and other text files.

        A resumed run keeps its config.json and its vocabulary, if it has them.
        contents: {name of another file: text}.
        """
        if self.is_new or not (self.path / 'config.json').is_file():
            self.write_config(config)
        if self.is_new or not all((self.path / name).is_file()
                                  for name in vocab.files):
            vocab.save(self.path / 'vocab.txt')
        for name, text in contents.items():
            self._try_to_write(write_text, name, text)

    def write_config(self, config):
        write_text(self.path / 'config.json',
                   json.dumps(config, indent=2, ensure_ascii=False) + '\n')

    def append(self, name, text):
        """Append to losses.csv or log.txt.

        A full disk raises no error here: `write_run` writes the complete
        file at the end of the run.
        """
        self._try_to_write(_append_text, name, text)

    def _try_to_write(self, write, name, text):
        # After an error, a later append would leave a gap
        if name not in self._unwritable_files:
            try:
                write(self.path / name, text)
            except OSError:
                self._unwritable_files.add(name)

    def reserve_space(self, num_bytes):
        """Reserve disk space for the last files, until `free_space`.

        Without effect on file systems that cannot do this.
        """
        if not hasattr(os, 'posix_fallocate'):
            return
        with contextlib.suppress(OSError):
            with open(self._space_path, 'wb') as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)

    def free_space(self):
        with contextlib.suppress(OSError):
            self._space_path.unlink()

    @property
    def _space_path(self):
        return self.path / SPACE_FILE

    def finish(self):
        (self.path / UNFINISHED).unlink()
        self._is_finished, self.is_new = True, False

    def close(self, keep=True):
        """Unlock the folder.

        Unless `keep`, the folder of a new run is removed, and a folder that
        was moved aside for the run gets its name back.
        """
        self.free_space()
        # `write_run` removes the model of a finished run that was resumed, and
        # may then fail
        is_finished = (self._is_finished
                       and (self.path / 'model.params').is_file())
        if self.is_new and not keep:
            shutil.rmtree(self.path, ignore_errors=True)
            if self.moved_path is not None:
                with contextlib.suppress(OSError):
                    os.rename(self.moved_path, self.path)
            remove_empty(self._new_parents)
        elif is_finished:
            # `_lock` makes this file even if the resumed run was finished
            with contextlib.suppress(OSError):
                (self.path / UNFINISHED).unlink()
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None


def _append_text(path, text):
    with open(path, 'a', encoding='utf-8') as file:
        file.write(text)


def with_own_texts(settings, folder):
    """The settings of a saved run, whose folder may have been moved.

    If the run was trained on texts in memory, the setting `corpus` becomes the
    path of TEXTS_FILE in `folder`.
    """
    corpus, texts_path = settings.get('corpus'), Path(folder, TEXTS_FILE)
    if (isinstance(corpus, str) and Path(corpus).name == TEXTS_FILE
            and texts_path.is_file()):
        return {**settings, 'corpus': str(texts_path)}
    return settings


def check_out_folder(out, force=False):
    """Raise `RunError` if a new run cannot be written to the folder `out`.

    force: True if a run folder at `out` may be moved aside.
    """
    out = Path(out)
    _check_writable(out)
    if not os.path.lexists(out) or _ended_before_first_row(out):
        return
    if not force:
        raise _taken_error(out)
    _check_movable(out)


def _taken_error(out):
    return RunError(f'{out} exists already{_unfinished_clause(out)}: choose '
                    'another --out, or give --force to move it aside')


def _check_writable(out):
    existing_parent = next((path for path in out.absolute().parents
                            if path.exists()), out)
    if not existing_parent.is_dir() or not os.access(existing_parent, os.W_OK):
        raise RunError(f'{out} cannot be made: {existing_parent} is no folder '
                       'that you may write to: choose another --out')


def _check_movable(out):
    here = Path.cwd()
    if out.resolve() in (here, *here.parents):
        raise RunError(f'{out} is the folder that you are in, or one above '
                       'it, so --force does not move it: choose another '
                       '--out')
    if out.is_symlink() or not out.is_dir() or not _is_run_folder(out):
        raise RunError(f'{out} is not a run folder, so --force does not '
                       'move it: choose another --out')
    process = lock_holder(out)
    if process:
        raise RunError(f'{out} is being written by {process}: choose another '
                       '--out')


def _check_holds_no_input(out, inputs):
    """Raise ValueError if the folder `out` holds one of the paths `inputs`.

    An item of `inputs` may be None, or a list of paths.
    """
    for path in inputs:
        if isinstance(path, (list, tuple)):
            _check_holds_no_input(out, path)
        elif path is not None and Path(path).exists():
            path = Path(path).resolve()
            if out.resolve() in (path, *path.parents):
                raise ValueError(f'--out {out} holds {path}, which this run '
                                 'reads, so --force does not move it: '
                                 'choose another --out')


def move_aside(out):
    """Rename a run folder to out.old, out.old-2, ...; return the new path.

    An empty folder is removed instead; then return None. Raises `RunError` if
    another process writes to the folder, or if it cannot be renamed.
    """
    with contextlib.suppress(OSError):
        out.rmdir()     # fails unless the folder is empty
        return None
    had_lock_file = (out / UNFINISHED).exists()
    lock = _lock(out)
    current_path = out
    try:
        for number in itertools.count(1):
            target = out.with_name(
                f'{out.name}.old' + (f'-{number}' if number > 1 else ''))
            try:
                os.rename(out, target)
                break
            except OSError as error:
                is_name_taken = error.errno in (
                    errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
                if not is_name_taken:
                    raise RunError(
                        f'{out} cannot be moved ({error.strerror}): choose '
                        'another --out') from None
        current_path = target
    finally:
        if not had_lock_file:
            (current_path / UNFINISHED).unlink()
        os.close(lock)
    note(f'the run that was in {out} is now in {target}')
    return target


def _is_run_folder(folder):
    """True if a run made this folder, or if it is empty.

    Unlike `machine.files.is_run`, this does not trust the name of a file such
    as model.params, since --force moves the folder.
    """
    try:
        # The config.json of a released model does not have this key
        return 'd2lbert' in dict(read_json(folder / 'config.json'))
    except FileNotFoundError:
        # A run that ended early may have written no config.json
        return {path.name for path in folder.iterdir()} <= {UNFINISHED}
    except (OSError, ValueError, TypeError):
        return False


def _ended_before_first_row(out):
    """True if `out` has a run that ended before its first row in losses.csv.

    A new run may take such a folder, since nothing is lost.
    """
    first_files = {UNFINISHED, 'config.json', 'losses.csv', 'log.txt',
                   *TOKENIZER_FILES, TEXTS_FILE, DATA}
    try:
        found = {path.name for path in out.iterdir()
                 if not re.fullmatch(r'\..+\.part', path.name)}
        if (out.is_symlink() or UNFINISHED not in found
                or found - first_files or lock_holder(out) is not None):
            return False
        if 'losses.csv' not in found:
            return True
        # Before the first row, losses.csv has at most the line of headings
        return len((out / 'losses.csv').read_text().splitlines()) <= 1
    except OSError:
        return False


def _unfinished_clause(out):
    """Part of an error message if `out` holds an unfinished run; else ''."""
    process = lock_holder(out)
    if process:
        return f' and is being written by {process}'
    if not (out / UNFINISHED).is_file():
        return ''
    if checkpoints.all_of(out):
        return (', as a run that was not finished (to go on with it: '
                f'--resume {quote(str(out))})')
    return ', as a run that was not finished and has no checkpoint'


def _lock(folder):
    """Lock a folder; return the descriptor of its open file `UNFINISHED`.

    The text of the file names this process. On a file system without locks
    the file stays unlocked.
    """
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
            process = _named_holder(lock)
            os.close(lock)
            raise RunError(f'{folder} is being written by {process}: wait '
                           'until it has ended, or stop it') from None
        except OSError:
            pass        # a file system without locks
        # The previous holder may have removed the file just before `flock`.
        # Then this lock protects nothing: make and lock a new file
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                break
        os.close(lock)
    with contextlib.suppress(OSError):  # `check_disk_space` finds a full disk
        os.ftruncate(lock, 0)
        os.pwrite(lock, (
            f'process {os.getpid()} on {socket.gethostname()} since '
            f'{time.strftime("%Y-%m-%d %H:%M:%S")}\n').encode(), 0)
    return lock


def _named_holder(descriptor):
    """The process that holds a lock, from the text in the open lock file."""
    text = os.pread(descriptor, 200, 0).decode('utf-8', 'replace').strip()
    return text or 'another process'


def lock_holder(folder):
    """The process that writes to a run folder now, as text, or None."""
    try:
        descriptor = os.open(Path(folder) / UNFINISHED, os.O_RDONLY)
    except OSError:
        return None
    try:
        if fcntl:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _named_holder(descriptor)
    except OSError:
        pass        # a file system without locks
    finally:
        os.close(descriptor)
    return None


def check_disk_space(out, num_bytes):
    """Raise `RunError` if the disk of a folder has too few free bytes."""
    free = shutil.disk_usage(out).free
    if free < num_bytes:
        raise RunError(
            f'{out} has {free / 1e6:.1f} MB of room, and the run will write '
            f'{num_bytes / 1e6:.1f} MB: free some, or choose another --out')


def config_of(run):
    """The contents of config.json."""
    return dict(d2lbert=__version__, model=run.net.config,
                **run.objective.config_entries(run.history),
                fingerprint=run.objective.fingerprint,
                machine=describe_machine(),
                training=dict(run.settings,
                              devices=[str(device) for device in run.devices]))


def has_held_out(run):
    """True if losses.csv has columns for held-out figures."""
    return bool(run.objective.eval_every or run.history.held_out)


def log(run, line, show):
    """Append a line to log.txt and call show(line), unless line is None."""
    if line is not None:
        run.history.log_lines.append(f'{line}\n')
        run.folder.append('log.txt', f'{line}\n')
        show(line)


def begin_files(run):
    """Write the first files of a run, and reserve space for its last files.

    Raises `RunError` if the disk has too little room for the run's models and
    checkpoints.
    """
    # 4 bytes for each float32
    model_bytes = 4 * sum(param.data(run.devices[0]).size
                          for param in run.net.collect_params().values())
    has_best = run.best.is_kept
    # A checkpoint has up to five arrays for each parameter: the weights,
    # Adam's two moments, the average, the best weights
    models_per_checkpoint = 3 + bool(run.average.decay) + has_best
    # model.params, best.params and the checkpoints
    num_models = 1 + has_best + models_per_checkpoint * max_checkpoints(run)
    check_disk_space(run.out, model_bytes * num_models + OTHER_BYTES)
    run.folder.reserve_space(model_bytes + OTHER_BYTES)
    run.folder.begin(config_of(run), run.objective.vocab, {
        'losses.csv': run.history.csv_text(has_held_out(run)),
        'log.txt': ''.join(run.history.log_lines)})


def max_checkpoints(run):
    """The largest number of checkpoints of `save_every` on disk at a time.

    Checkpoints saved after a signal do not count. If a clock ends the run and
    all checkpoints are kept, the number is unknown; then this returns 1, the
    least possible number.
    """
    s, num_steps = run.settings, run.objective.num_steps
    if not s['save_every']:
        return 0
    limits = []
    if s['keep']:       # the oldest is removed after the newest is written
        limits.append(s['keep'] + 1)
    if num_steps:       # None if a clock ends the run
        limits.append(math.ceil(num_steps / s['save_every']))
    return min(limits, default=1)


def finish_files(run):
    """Write the files of a finished run; return its summary, a text."""
    log(run, run.growth.final_warning(), warn)
    summary = run.objective.summary(run.history, run.devices)
    run.history.log_lines.append(f'{summary}\n')    # `write_run` writes it
    run.check_finite()
    run.folder.free_space()
    # A run has best weights (finetune), an average (pretrain), or neither
    run.best.load(run.devices)
    run.average.apply()
    # `begin` leaves the config.json of a resumed run as it was, but settings
    # such as num_steps may have changed
    run.folder.write_config(config_of(run))
    write_run(run.out, run.net, run.history, run.animator)
    run.best.close()
    run.folder.finish()
    return summary
