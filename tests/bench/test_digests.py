"""Digests: the list of cases, one of them, and what a change does to it."""
import json
import subprocess
import sys
from pathlib import Path

import numpy as onp
import pytest
from digests import digest

HERE = Path(__file__).resolve().parent
CASE = ['--only', 'data']


def script(*arguments):
    """Run the script; (status, standard output, standard error)."""
    done = subprocess.run(
        [sys.executable, str(HERE / 'digests.py'), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding='utf-8')
    return done.returncode, done.stdout, done.stderr


def test_the_list_has_each_objective_on_both_devices_with_both_operators():
    status, out, _ = script('--list')
    names = out.splitlines()
    assert status == 0 and len(set(names)) == len(names)
    for objective in 'mlm+nsp', 'mlm+sop', 'mlm', 'span', 'denoise':
        for kernels in 'kernels', 'no kernels':
            for devices in 'one device', 'two devices':
                assert f'pretrain {objective}, {kernels}, {devices}' in names


def test_a_case_is_equal_until_a_digest_changes(tmp_path):
    path = tmp_path / 'digests.json'
    assert script('--write', path, *CASE)[0] == 0
    status, out, _ = script('--compare', path, *CASE)
    assert status == 0 and out.endswith('\n1 of 1 cases are equal\n')
    content = json.loads(path.read_text())
    content['digests']['data'] = '0' * 64
    path.write_text(json.dumps(content))
    status, out, _ = script('--compare', path, *CASE)
    assert status == 1 and '\nDIFFERS  data\n' in out


@pytest.mark.parametrize('change', [
    dict(a=onp.zeros((2, 3))), dict(a=onp.zeros(6, 'float32')),
    dict(b=onp.zeros((2, 3), 'float32')), dict(a=b'\0' * 24), {},
    dict(a=onp.full((2, 3), -0., 'float32')),
    dict(a=onp.zeros((2, 3), 'float32'), b=b'')])
def test_a_digest_covers_name_type_shape_and_bytes(change):
    assert digest(dict(a=onp.zeros((2, 3), 'float32'))) != digest(change)


def test_a_digest_does_not_depend_on_the_order_of_names():
    assert digest(dict(a=b'1', b=b'2')) == digest(dict(b=b'2', a=b'1'))


@pytest.mark.parametrize('content, reason', [
    ('[]', 'is no file of --write'),
    ('{"machine": {}, "digests": {}}', 'was written on another machine')])
def test_a_file_of_another_kind_or_machine_is_refused(tmp_path, content,
                                                      reason):
    path = tmp_path / 'before.json'
    path.write_text(content)
    status, out, err = script('--compare', path)
    assert (status, out) == (2, '') and reason in err
    assert 'Traceback' not in err


def test_a_file_is_never_replaced(tmp_path):
    path = tmp_path / 'before.json'
    path.write_text('kept')
    status, _, err = script('--write', path, *CASE)
    assert status == 2 and 'exists' in err and path.read_text() == 'kept'
