"""The list of mutants.py as it stands, and a small dose of it."""
import collections
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def python(*arguments):
    """Run Python in the script's folder; (status, what it printed)."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=HERE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, encoding='utf-8')
    return done.returncode, done.stdout


def test_each_mistake_has_its_place_and_its_tests():
    status, out = python('mutants.py', '--list')
    assert status == 0, out
    *lines, total = out.splitlines()
    assert total == f'{len(lines)} mistakes' and len(lines) >= 66
    assert max(collections.Counter(lines).values()) == 1


@pytest.mark.slow
def test_a_mistake_is_caught_and_what_is_none_survives():
    status, out = python('-c', """
import mutants
wrong, = (m for m in mutants.MISTAKES if 'a rate of zero' in m.name)
mutants.MISTAKES = wrong, wrong._replace(name='what is right', new=wrong.old)
raise SystemExit(mutants.main([]))
""")
    assert status == 1, out
    assert '\n50.0% caught, 0 of them by a hang and 0 by a crash\n' in out
    assert '\nSURVIVED: what is right (d2lbert/' in out
