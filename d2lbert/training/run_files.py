"""The files of a run folder, apart from files that people put there."""
import contextlib
import os
import re
import shutil
from pathlib import Path

from d2lbert.pretrained.tokenizers.tokenizer import FILES
from d2lbert.training import schedule

#: Marks a run that is not finished. Whoever writes the run holds a lock on
#: this file, which the system lets go of however the process ends.
UNFINISHED = 'unfinished'

#: Names of the files that a run writes, and of those of `checkpoints`.
OWN = re.compile('|'.join([
    r'\..+\.part', r'(model|best|boundary)\.params', r'losses\.(csv|png)',
    r'config\.json', r'log\.txt', *map(re.escape, (
        UNFINISHED, schedule.FILE, *FILES))]))
OWN_CHECKPOINTS = re.compile(r'step-\d+\.npz|\..+\.part')


def foreign(folder):
    """The paths in a run folder that no run wrote, relative to it."""
    found = []
    for name, own in ('.', OWN), ('checkpoints', OWN_CHECKPOINTS):
        with contextlib.suppress(OSError):
            for path in sorted(Path(folder, name).iterdir()):
                is_folder = path.is_dir() and not path.is_symlink()
                # A run has one folder, and gives no file's name to another
                if (path.name == 'checkpoints' and name == '.' if is_folder
                        else own.fullmatch(path.name)):
                    continue
                found.append(path.relative_to(folder))
    return found


def check_reads(out, paths):
    """Refuse to replace the run in `out` where a new run reads it.

    paths: of files and folders, None among them, and lists of paths.
    """
    others = foreign(out)
    own = [path for path in (*out.iterdir(), *out.glob('checkpoints/*'))
           if path.is_file() and path.relative_to(out) not in others]
    for path in paths:
        if isinstance(path, (list, tuple)):
            check_reads(out, path)
        elif path is not None and Path(path).exists():
            if any(one.samefile(path) for one in (out, *own)):
                raise ValueError(f'--out {out} holds {path}, which this run '
                                 'reads, so --force does not replace it: '
                                 'choose another --out')


def remove_run(folder, target=None):
    """Remove what a run wrote to a folder, and the folder if it is empty.

    target: where everything else is moved; it stays in `folder` where it
    cannot be moved. Returns the names of what was moved, with / after
    those of folders.
    """
    kept, others = [], foreign(folder)
    for name in others if target is not None else ():
        is_folder = (folder / name).is_dir()
        with contextlib.suppress(OSError):
            (target / name).parent.mkdir(exist_ok=True)
            if not os.path.lexists(target / name):
                os.rename(folder / name, target / name)
                kept.append(f'{name}/' if is_folder else f'{name}')
    if not foreign(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return kept
    for path in (*folder.glob('checkpoints/*'), *folder.iterdir()):
        if path.relative_to(folder) not in others:
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
    return kept
