"""A few minutes of fuzz.py, which runs for longer by hand."""
import collections
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import fuzz
import mutations
import native
import numpy as onp
import pytest
import targets

import d2lbert
from d2lbert.pretrained import tensor_files

HERE = Path(__file__).resolve().parent


def test_damage_is_repeated_by_its_seed():
    data = b'{"a": [1, 2.5, "text"]}' * 9
    some = [mutations.mutated(data, random.Random(k)) for k in range(200)]
    assert some == [mutations.mutated(data, random.Random(k))
                    for k in range(200)]
    assert len(set(some)) > 150 and data not in some
    mutations.mutated(b'', random.Random(0))


def test_findings_are_counted_by_their_kind(monkeypatch, tmp_path):
    """One target whose reader has each fault, by what its file begins with."""
    def read(folder):
        data = (folder / 'x').read_bytes()
        if len(data) < 90:
            raise ValueError('too short')
        if data[0] >= 128:
            raise IndexError
        return data[:9]
    monkeypatch.setitem(targets.TARGETS, 'x', targets.Target(
        lambda folder: (folder / 'x').write_bytes(b'abcde' * 20), read,
        answer=lambda found: found))
    monkeypatch.setattr(signal, 'setitimer', lambda *_: None)
    found = list(fuzz.fuzz('x', 400, 0, tmp_path / 'x'))
    kinds = collections.Counter(kind for _, kind, _ in found)
    assert set(kinds) == {'read', 'refused', 'tracebacks', 'silent'}
    assert sum(kinds.values()) == 400
    one = next(one for one in found if one[1] == 'tracebacks')
    assert 'IndexError' in one[2] and one[2].startswith('x: ')
    # Its number repeats a finding
    assert list(fuzz.fuzz('x', 1, 0, tmp_path / 'x', one[0])) == [one]


def test_weights_that_lost_their_digest_are_told(tmp_path):
    path = tmp_path / 'x.safetensors'
    tensor_files.write(path, {'a': onp.ones(3, 'float32')}, 'x')
    whole = path.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    assert targets.has_lost_its_digest(path, flipped, whole)
    assert not targets.has_lost_its_digest(path, whole, whole)
    other = whole.replace(targets.DIGESTS.encode(), b'd2lbert.blake2c')
    assert not targets.has_lost_its_digest(path, other, whole)


def test_each_family_has_a_folder_to_damage():
    for folder in targets.FAMILIES.values():
        assert (targets.FIXTURES / folder / 'config.json').is_file()


@pytest.mark.slow
def test_no_reader_trips_over_a_damaged_file(monkeypatch):
    root = Path(d2lbert.__file__).resolve().parents[1]
    monkeypatch.setenv('PYTHONPATH', str(root))
    done = subprocess.run(
        [sys.executable, HERE / 'fuzz.py', '--inputs', '100000', '--seconds',
         '8', '--seed', '1'], capture_output=True, encoding='utf-8')
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-3000:]
    rows = [row.split() for row in done.stdout.splitlines()
            if re.fullmatch(r'\S+(?: +\d+){7}', row)]
    assert {row[0] for row in rows} == {*targets.TARGETS, 'all'}
    for name, inputs, refused, *found in rows:
        # A damaged store is built again
        assert int(inputs) >= 10 and (int(refused) or name == 'stored'), name
        assert not any(map(int, found)), name


@pytest.mark.slow
@pytest.mark.parametrize('clangs', [native.CLANGS, []])
def test_no_entry_of_compiled_code_leaves_its_arrays(monkeypatch, clangs):
    monkeypatch.setattr(native, 'CLANGS', clangs)
    found = native.fuzz(10_000_000, 90)
    if found is None:
        pytest.skip('no compiler has the sanitizers')
    rows, _, report = found
    assert not report
    assert len(rows) == 10
    for name, inputs, refused, found in rows:
        assert inputs > 500 and not found, name
        assert refused < inputs, name
        assert refused or name == 'text', name


@pytest.mark.slow
def test_a_check_that_is_missing_is_found(monkeypatch, tmp_path):
    kernels = tmp_path / 'kernels'
    shutil.copytree(native.KERNELS, kernels)
    path = kernels / 'types.cc'
    text = path.read_text('utf-8')
    check = '  require_range(types, size, -1, table_size);\n'
    assert check in text
    path.write_text(text.replace(check, ''), 'utf-8')
    monkeypatch.setattr(native, 'FLAGS', [
        *native.FLAGS[:-1], f'-I{kernels}'])
    found = native.fuzz(2_000_000, 120)
    if found is None:
        pytest.skip('no compiler has the sanitizers')
    assert 'look_up' in found[2]
