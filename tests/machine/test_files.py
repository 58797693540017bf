"""Files that appear whole, their names, and locks."""
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from d2lbert.machine import files
from d2lbert.machine.files import (
    MXNetPath,
    locked,
    new_folder,
    replacing,
    write_text,
)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_appears_when_all_is_written(tmp_path):
    path = tmp_path / 'x.txt'
    path.write_text('before')
    with replacing(path) as part:
        part.write_text('after')
        assert path.read_text() == 'before'
    assert path.read_text() == 'after'
    assert [*tmp_path.iterdir()] == [path]


def test_a_folder_appears_when_all_is_written(tmp_path):
    path = tmp_path / 'a' / 'x'
    with new_folder(path) as part:
        (part / 'y').write_text('all')
        assert not path.exists() and part.parent == path.parent
    assert [*path.parent.iterdir()] == [path]
    assert [*path.iterdir()] == [path / 'y']


def test_a_folder_that_goes_wrong_leaves_nothing(tmp_path):
    for error in (ValueError('no'), KeyboardInterrupt(), OSError(28, 'full')):
        with pytest.raises(type(error)) as raised:
            with new_folder(tmp_path / 'a' / 'x') as part:
                (part / 'y').write_text('some')
                raise error
        assert raised.value is error and not [*tmp_path.iterdir()]
    assert str(error) == f"[Errno 28] full: '{tmp_path / 'a' / 'x'}'"


def test_an_error_in_a_new_folder_names_its_own_file_or_the_folder(tmp_path):
    path, source = tmp_path / 'a' / 'x', tmp_path / 'source'
    for name, named in ((source, source), ('.', path), ('y', path)):
        with pytest.raises(OSError) as raised:
            with new_folder(path) as part:
                (part / name).read_bytes()
        assert raised.value.filename == str(named)
    with pytest.raises(OSError) as raised:
        with new_folder('/proc/none/x'):    # no folder can be made in /proc
            raise AssertionError
    assert raised.value.filename == '/proc/none/x'


def test_a_new_folder_takes_the_place_of_an_empty_one_alone(tmp_path):
    (tmp_path / 'x').mkdir()
    with new_folder(tmp_path / 'x') as part:
        (part / 'y').touch()
    (tmp_path / 'link').symlink_to(tmp_path)
    for path in (tmp_path / 'x', tmp_path / 'x' / 'y', tmp_path / 'link'):
        with pytest.raises(FileExistsError, match='exists already: choose'):
            with new_folder(path):
                raise AssertionError
    assert [*(tmp_path / 'x').iterdir()] == [tmp_path / 'x' / 'y']


def test_a_failure_keeps_the_old_file(tmp_path):
    path = tmp_path / 'x.txt'
    path.write_text('before')
    with pytest.raises(RuntimeError):
        with replacing(path) as part:
            part.write_text('half')
            raise RuntimeError
    assert path.read_text() == 'before'
    assert [*tmp_path.iterdir()] == [path]


def test_a_temporary_file_is_new_and_has_a_random_name(tmp_path):
    names = set()
    for _ in range(3):
        with replacing(tmp_path / 'x') as part:
            assert part.is_file() and part.match('.x.*.part')
            assert not part.stat().st_size
            names.add(part.name)
    assert len(names) == 3
    assert not any(str(os.getpid()) in name.split('.') for name in names)


def test_a_link_at_the_parts_name_is_not_followed(tmp_path, monkeypatch):
    names = iter(['first', 'second'])
    monkeypatch.setattr(files.secrets, 'token_hex', lambda n: next(names))
    victim = tmp_path / 'victim'
    (tmp_path / '.x.first.part').symlink_to(victim)
    with replacing(tmp_path / 'x') as part:
        part.write_text('mine')
    assert part.name == '.x.second.part'
    assert (tmp_path / 'x').read_text() == 'mine' and not victim.exists()


@pytest.mark.parametrize('mask, wanted', [(0o022, 0o644), (0o077, 0o600)])
def test_the_mode_is_that_of_any_new_file(tmp_path, mask, wanted):
    before = os.umask(mask)
    try:
        write_text(tmp_path / 'x', 'text')
    finally:
        os.umask(before)
    assert mode(tmp_path / 'x') == wanted


def test_errors_name_the_file_and_not_its_part(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        write_text(tmp_path / 'missing' / 'x', '')
    assert raised.value.filename == str(tmp_path / 'missing' / 'x')
    with pytest.raises(OSError) as raised:
        with replacing(tmp_path / 'x'):
            raise OSError(errno.ENOSPC, 'No space left on device')
    assert raised.value.filename == str(tmp_path / 'x')
    with pytest.raises(IsADirectoryError) as raised:
        write_text(tmp_path, '')
    assert raised.value.filename == str(tmp_path)
    assert raised.value.filename2 is None
    assert ' -> ' not in str(raised.value)


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    path = tmp_path / 'pipe'
    os.mkfifo(path)
    read = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_text(path, 'text')
    assert os.read(read, 9) == b'text' and stat.S_ISFIFO(path.stat().st_mode)
    os.close(read)


def test_undecodable_bytes_of_a_name_pass_through_json(tmp_path):
    name = os.fsdecode(b'caf\xe9')
    write_text(tmp_path / 'x.json', json.dumps([name, '鹤'],
                                               ensure_ascii=False))
    text = (tmp_path / 'x.json').read_text('utf-8')
    assert json.loads(text) == [name, '鹤'] and '鹤' in text


def test_a_name_encodes_as_the_file_system_does(tmp_path):
    for raw in (b'x', '鹤'.encode(), b'caf\xe9'):
        path = tmp_path / os.fsdecode(raw)
        assert MXNetPath(path).encode('utf-8') == os.fsencode(path)
        assert MXNetPath(path) == str(path)


# Locks

def test_a_lock_keeps_threads_out_and_leaves_no_file(tmp_path):
    path, inside, most = tmp_path / 'x.lock', [], []

    def work():
        for _ in range(20):
            with locked(path) as alone:
                assert alone
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 120 and max(most) == 1
    assert not [*tmp_path.iterdir()]


def test_a_process_that_waited_for_a_killed_one_holds_the_lock(tmp_path):
    path, waiting, inside, most = tmp_path / 'x.lock', [], [], []
    held = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)

    def work():
        with locked(path, before_wait=lambda: waiting.append(1)):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.05)
            inside.pop()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(waiting) < 3:
        time.sleep(0.001)
    os.close(held)      # as the system does, and leaves the file
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


def test_without_waiting_a_held_lock_raises(tmp_path):
    path, told = tmp_path / 'x.lock', []
    with locked(path):
        with pytest.raises(BlockingIOError):
            with locked(path, wait=False):
                pass
        def wait():
            with locked(path, before_wait=lambda: told.append(path)):
                pass
        thread = threading.Thread(target=wait)
        thread.start()
        while not told:
            time.sleep(0.001)
        assert path.exists()
    thread.join()
    assert told == [path]


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / 'x.lock'
    code = '''
        import importlib.util, sys, time
        spec = importlib.util.spec_from_file_location('files', sys.argv[1])
        files = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(files)
        with files.locked(sys.argv[2]):
            print('locked', flush=True)
            time.sleep(60)
    '''
    process = subprocess.Popen(
        [sys.executable, '-c', textwrap.dedent(code), files.__file__, path],
        stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b'locked\n'
        with pytest.raises(BlockingIOError):
            with locked(path, wait=False):
                pass
        process.kill()
    assert path.exists()
    with locked(path) as alone:
        assert alone
    assert not path.exists()


@pytest.mark.parametrize('how', ['no fcntl', 'no locks', 'no folder'])
def test_where_locks_do_not_work_that_is_told(tmp_path, monkeypatch, how):
    path = tmp_path / 'x.lock'
    if how == 'no fcntl':
        monkeypatch.setattr(files, 'fcntl', None)
    elif how == 'no locks':
        def flock(*_):
            raise OSError(errno.ENOLCK, 'No locks available')
        monkeypatch.setattr(files.fcntl, 'flock', flock)
    else:
        path = Path(tmp_path, 'missing', 'x.lock')
    with locked(path) as alone:
        assert not alone
    assert not [*tmp_path.iterdir()]


def test_a_lock_that_cannot_be_opened_stays_with_its_holder(tmp_path,
                                                            monkeypatch):
    def fail(*_):
        raise OSError(errno.EMFILE, 'Too many open files', path)
    path = tmp_path / 'x.lock'
    with locked(path):
        with monkeypatch.context() as patch:
            patch.setattr(files.os, 'open', fail)
            with locked(path) as alone:
                assert not alone
        assert path.exists()


def test_a_link_is_no_lock(tmp_path):
    (tmp_path / 'x.lock').symlink_to(tmp_path / 'victim')
    with locked(tmp_path / 'x.lock') as alone:
        assert not alone
    assert not (tmp_path / 'victim').exists()
