"""A few minutes of fuzz.py, which runs for longer by hand."""
import random
import re
import subprocess
import sys
from pathlib import Path

import mutations
import pytest

import d2lbert

HERE = Path(__file__).resolve().parent


def test_damage_is_repeated_by_its_seed():
    data = b'{"a": [1, 2.5, "text"]}' * 9
    some = [mutations.mutated(data, random.Random(k)) for k in range(200)]
    assert some == [mutations.mutated(data, random.Random(k))
                    for k in range(200)]
    assert len(set(some)) > 150 and data not in some
    mutations.mutated(b'', random.Random(0))


@pytest.mark.slow
def test_no_reader_trips_over_a_damaged_file(monkeypatch):
    root = Path(d2lbert.__file__).resolve().parents[1]
    monkeypatch.setenv('PYTHONPATH', str(root))
    done = subprocess.run(
        [sys.executable, HERE / 'fuzz.py', '--inputs', '100000', '--seconds',
         '12', '--seed', '1'], capture_output=True, encoding='utf-8')
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-3000:]
    rows = re.findall(r'^(\w+) +(\d+) +(\d+) +(\d+)$', done.stdout, re.M)
    assert len(rows) >= 14
    for name, inputs, refused, found in rows:
        assert int(inputs) >= 50 and 0 < int(refused) and found == '0', name
