"""The files by which a folder is known as a run."""
from pathlib import Path

from d2lbert.machine.files import read_json

#: A file that marks an unfinished run. The process that writes the run locks
#: it; the system releases the lock however the process ends.
UNFINISHED = 'unfinished'


def is_run(path):
    """True if a folder holds a run, finished or not."""
    path = Path(path)
    if any((path / name).exists() for name in (
            'model.params', 'checkpoints', UNFINISHED, 'losses.csv')):
        return True
    try:
        return 'model' in read_json(path / 'config.json')
    except (OSError, ValueError, TypeError):
        return False
