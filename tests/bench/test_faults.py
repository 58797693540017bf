"""A small dose of faults.py, which gives the figures by hand."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

import d2lbert

HERE = Path(__file__).resolve().parent


@pytest.mark.slow
def test_nothing_is_lost_to_kills_and_damaged_inputs(monkeypatch):
    root = Path(d2lbert.__file__).resolve().parents[1]
    monkeypatch.setenv('PYTHONPATH', str(root))
    done = subprocess.run(
        [sys.executable, HERE / 'faults.py', '--kills', '6', '--inputs',
         '42', '--seed', '7'], capture_output=True, encoding='utf-8')
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r'6 kills of \d+ runs.* 0 different; 0 checkpoints lost',
                     done.stdout)
    assert re.search(r'\nall +42( +\d+){2}( +0){5}\n', done.stdout)
