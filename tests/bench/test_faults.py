"""A small dose of faults.py, which gives the figures by hand."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

import d2lbert

HERE = Path(__file__).resolve().parent
DOSE = ['--kills', '6', '--signals', '7', '--outputs', '8', '--locks', '8',
        '--threads', '4', '--libraries', '8', '--environments', '6',
        '--misuses', '8', '--inputs', '42', '--seed', '7']


@pytest.mark.slow
def test_nothing_is_lost_to_what_can_go_wrong(monkeypatch):
    root = Path(d2lbert.__file__).resolve().parents[1]
    monkeypatch.setenv('PYTHONPATH', str(root))
    done = subprocess.run([sys.executable, HERE / 'faults.py', *DOSE],
                          capture_output=True, encoding='utf-8')
    assert done.returncode == 0, done.stdout + done.stderr
    # Verdicts on as many as were asked for, none of them bad; where nothing
    # can be compiled, or no locale made, there are fewer
    rows = dict(re.findall(r'^(\w[\w ]*?) {2,}(\d[\d ]*)$', done.stdout,
                           re.M))
    for kind, number in zip(DOSE[::2], DOSE[1::2]):
        if kind[2:] in ('kills', 'signals', 'outputs', 'locks', 'threads',
                        'misuses'):
            assert rows[kind[2:]].split()[0] == number
    tried, *verdicts = map(int, rows['all'].split())
    assert tried > 42 + 33 and sum(verdicts[:3]) >= tried
    assert verdicts[3:] == [0] * 7
