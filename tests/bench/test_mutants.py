"""The list of mutants.py as it stands, and a small dose of it."""
import collections
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def mutants(*arguments):
    done = subprocess.run(
        [sys.executable, HERE / 'mutants.py', *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding='utf-8')
    return done.returncode, done.stdout


@pytest.mark.slow
def test_each_mistake_has_its_place_and_its_tests():
    status, out = mutants('--list')
    assert status == 0, out
    *lines, total = out.splitlines()
    assert total == f'{len(lines)} mistakes' and len(lines) >= 66
    assert max(collections.Counter(lines).values()) == 1


@pytest.mark.slow
def test_a_mistake_is_caught_and_what_is_none_survives():
    status, out = mutants('--only', 'a rate of zero')
    assert status == 0 and '\n100.0% caught' in out, out
    # What the tests cannot tell from what is right
    code = ('import mutants; case = mutants.find_cases()[0]; '
            'right = case.mistake._replace(new=case.mistake.old); '
            'mutants.MISTAKES = [right]; '
            'raise SystemExit(mutants.main([]))')
    done = subprocess.run([sys.executable, '-c', code], cwd=HERE,
                          stdout=subprocess.PIPE, encoding='utf-8')
    assert done.returncode == 1, done.stdout
    assert '\n0.0% caught' in done.stdout
    assert '\nSURVIVED: ' in done.stdout
