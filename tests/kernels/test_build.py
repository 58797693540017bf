"""Compiling, caching, checking and opening libraries."""
import contextlib
import ctypes
import errno
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
import types
from concurrent import futures
from pathlib import Path

import pytest

from d2lbert import kernels
from d2lbert.kernels import BuildError, build, draw, int8
from d2lbert.machine import cache, files
from d2lbert.texts import numbered_text


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache for each test; each test may print its own warning."""
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(kernels.Library, '_has_warned', False)
    return tmp_path / 'cache' / 'kernels'


def seven(path):
    return ctypes.CDLL(str(path)).seven()


def strange(path, monkeypatch):
    """Let a file or folder belong to another user."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, 'geteuid', lambda me=os.geteuid(): me + 1)


def alone(code, *arguments, **environment):
    """Start a script that imports d2lbert.kernels.build, but not MXNet."""
    package = Path(build.__file__).parents[1]
    head = '''
        import signal, sys, types
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name, folder in (('d2lbert', {!r}), ('d2lbert.kernels', {!r})):
            sys.modules[name] = module = types.ModuleType(name)
            module.__path__ = [folder]
        from d2lbert.machine import files
        from d2lbert.kernels import build
    '''.format(str(package), str(package / 'kernels'))
    return subprocess.Popen(
        [sys.executable, '-c', textwrap.dedent(head) + textwrap.dedent(code),
         *map(str, arguments)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding='utf-8',
        env={**os.environ, **environment})


# Compiling

def test_a_library_is_compiled_once_with_one_line(compiler, own_cache, capsys):
    path = build.library('seven', [compiler], what='the trifle',
                         takes='an age')
    assert capsys.readouterr().err == (
        'd2lbert: compiling the trifle, once: an age ...\n')
    inode = path.stat().st_ino
    assert path.parent == own_cache
    assert build.library('seven', [compiler]) == path
    assert path.stat().st_ino == inode
    assert seven(path) == 7
    assert sorted(file.name for file in own_cache.iterdir()) == [
        path.name, path.name + '.sha256']
    assert capsys.readouterr().err == ''


def test_another_source_or_header_is_another_library(compiler, tmp_path):
    source, header = tmp_path / 'a.cc', tmp_path / 'a.h'
    header.write_text('#define VALUE 1\n')
    source.write_text('#include "a.h"\nextern "C" int a() '
                      '{ return VALUE; }\n')
    first = build.library('a', [source])
    header.write_text('#define VALUE 2\n')
    second = build.library('a', [source])
    assert first != second
    assert ctypes.CDLL(str(second)).a() == 2


@pytest.mark.parametrize('locks', [True, False])
def test_processes_that_start_together_share_one_whole_library(
        compiler, own_cache, locks):
    code = '''
        import ctypes
        if sys.argv[1] == 'False':
            files.fcntl = None
        path = build.library('seven', [sys.argv[2]])
        print(ctypes.CDLL(str(path)).seven())
    '''
    started = [alone(code, locks, compiler) for _ in range(4)]
    said = [process.communicate() for process in started]
    assert [out for out, _ in said] == ['7\n'] * 4, said
    left = [path.suffix for path in own_cache.iterdir()]
    assert sorted(left) == ['.sha256', '.so']
    if locks:
        assert sum('compiling' in err for _, err in said) == 1


def test_a_source_that_does_not_compile_gives_the_first_error(compiler,
                                                              own_cache,
                                                              tmp_path):
    source = tmp_path / 'broken.cc'
    source.write_text('int f() { return nothing; }\n')
    with pytest.raises(BuildError, match='broken.cc.*nothing'):
        build.library('broken', [source])
    assert not [*own_cache.iterdir()]


@pytest.mark.parametrize('options', ['', ' -DUNUSED'])
def test_a_compiler_may_have_spaces_or_options(compiler, tmp_path, monkeypatch,
                                               options):
    script = tmp_path / ('cxx' if options else 'my cxx')
    command = ' '.join(build.compiler()[0])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv('CXX', f'{script}{options}')
    assert seven(build.library('seven', [compiler])) == 7


def test_a_compiler_that_cannot_be_started_is_reported(compiler, own_cache,
                                                       monkeypatch):
    def fail(*args, **keywords):
        raise OSError(errno.EAGAIN, 'Resource temporarily unavailable')
    # Not subprocess.Popen itself, which finds the compiler's version
    monkeypatch.setattr(build, 'subprocess', types.SimpleNamespace(
        Popen=fail, PIPE=None, STDOUT=None))
    with pytest.raises(BuildError, match='cannot be started .Resource temp'):
        build.library('seven', [compiler])
    assert not [*own_cache.iterdir()]


def test_a_cache_that_cannot_be_written_names_the_remedy(compiler, tmp_path,
                                                         monkeypatch):
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path / 'file'))
    with pytest.raises(BuildError, match='D2LBERT_CACHE'):
        build.library('seven', [compiler])


def test_without_compiling_only_a_compiled_library_is_returned(compiler):
    assert build.library('seven', [compiler], compiling=False) is None
    path = build.library('seven', [compiler])
    assert build.library('seven', [compiler], compiling=False) == path


# A compiler that never ends, and its child
SLOW = '''\
#!/bin/sh
[ "$1" = --version ] && { echo slow 1; exit; }
sleep 60 &
echo $! > "$PIDS/$!"
wait
'''


def is_running(pid):
    try:
        os.kill(pid, 0)
        state = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state.split()[0] != 'Z'      # a zombie has ended


def wait_for(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM,
                                    signal.SIGKILL])
def test_a_killed_compilation_leaves_no_compilers_and_no_folders(
        compiler, own_cache, tmp_path, number):
    slow, pids = tmp_path / 'slow', tmp_path / 'pids'
    slow.write_text(SLOW)
    slow.chmod(0o755)
    pids.mkdir()
    (tmp_path / 'two.cc').write_text('int two;')
    process = alone('build.library("x", sys.argv[1:])', compiler,
                    tmp_path / 'two.cc', CXX=str(slow), PIDS=str(pids))
    wait_for(lambda: len([*pids.iterdir()]) == 2)
    wait_for(lambda: all(path.read_text() for path in pids.iterdir()))
    assert all(is_running(int(path.name)) for path in pids.iterdir())
    process.send_signal(number)
    process.communicate()
    wait_for(lambda: not any(is_running(int(path.name))
                             for path in pids.iterdir()))
    if number == signal.SIGINT:
        assert not [*own_cache.iterdir()]
    build.library('seven', [compiler])
    assert sorted(path.suffix for path in own_cache.iterdir()) == [
        '.sha256', '.so']


# Libraries of the cache

def shortened(path):
    os.truncate(path, path.stat().st_size // 2)


def beheaded(path):
    os.truncate(path, 100)


def changed(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def emptied(path):
    path.write_bytes(b'')


def without_digest(path):
    path.with_name(path.name + '.sha256').unlink()


def writable_by_others(path):
    path.chmod(0o775)


@pytest.mark.parametrize('damage', [shortened, beheaded, changed, emptied,
                                    without_digest, writable_by_others])
def test_a_damaged_library_is_compiled_again(compiler, damage, capsys):
    path = build.library('seven', [compiler])
    damage(path)
    assert build.library('seven', [compiler], compiling=False) is None
    assert build.library('seven', [compiler]) == path
    assert capsys.readouterr().err.count('compiling') == 2
    assert seven(path) == 7
    assert not stat.S_IMODE(path.stat().st_mode) & 0o022


def test_a_library_that_comes_out_damaged_is_not_taken(compiler, monkeypatch):
    def move(built, target, real=build._move_with_digest):
        real(built, target)
        shortened(target)
    monkeypatch.setattr(build, '_move_with_digest', move)
    with pytest.raises(BuildError, match='disk full or failing'):
        build.library('seven', [compiler])


def test_a_library_of_another_user_is_not_taken(compiler, own_cache,
                                                monkeypatch):
    path = build.library('seven', [compiler])
    strange(path, monkeypatch)
    try:
        assert build.library('seven', [compiler]) == path
        assert path.stat().st_uid == 0
    except BuildError as error:     # not root: the folder is another's, too
        assert 'belongs to another user' in str(error)


def test_a_folder_of_another_user_is_refused(compiler, own_cache, monkeypatch):
    own_cache.mkdir(parents=True)
    strange(own_cache, monkeypatch)
    with pytest.raises(BuildError, match='another user.*D2LBERT_CACHE'):
        build.library('seven', [compiler])
    assert not [*own_cache.iterdir()]


def test_the_folder_is_private(compiler, own_cache):
    build.library('seven', [compiler])
    assert stat.S_IMODE(own_cache.stat().st_mode) == 0o700
    own_cache.chmod(0o775)      # as a umask of 002 would have made it
    build.library('seven', [compiler])
    assert stat.S_IMODE(own_cache.stat().st_mode) == 0o755


@pytest.fixture(scope='module', params=[kernels.OPERATORS, draw.DRAW,
                                        int8.INT8])
def library(request):
    """One of ours, compiled where the tests have theirs."""
    if request.param.get() is None:
        pytest.skip(f'not compiled here: {request.param.reason}')
    return request.param


@pytest.mark.parametrize('size', [100, 20000])
def test_a_cut_library_of_ours_is_not_opened(library, size, own_cache):
    own_cache.mkdir(parents=True)
    for path in library.path.parent.glob(library.path.name + '*'):
        shutil.copy(path, own_cache)
    again = kernels.Library(library.name, [path.name for path in
                                           library.sources], ctypes.CDLL,
                            library.mxnet, options=library.options)
    assert again.open_if_compiled()
    assert again.path == own_cache / library.path.name
    again.path = None
    # The copy is mapped into this process, so another takes its place
    cut = own_cache / 'cut'
    cut.write_bytes(library.path.read_bytes()[:size])
    os.replace(cut, own_cache / library.path.name)
    assert not again.open_if_compiled()


# Opening

def test_a_library_is_opened_from_the_folder_that_was_checked(compiler,
                                                              own_cache,
                                                              tmp_path,
                                                              monkeypatch):
    path = build.library('seven', [compiler])
    with build.checked(path) as name:
        # Another folder takes its place between check and opening
        own_cache.rename(tmp_path / 'moved')
        own_cache.mkdir()
        path.write_bytes(b'something else')
        if name == path:
            pytest.skip('no /proc here')
        assert seven(name) == 7
    with pytest.raises(BuildError, match='was changed while it was opened'):
        with build.checked(path):
            raise AssertionError


class Trifle(kernels.Library):
    """A library of one function."""

    def __init__(self, source, opened):
        super().__init__('seven', [source], opened, what='the trifle')


def failing(path):
    raise OSError(f'{path}: failed to map segment: Operation not permitted')


def lacking(path):
    return ctypes.CDLL(str(path)).eight


@pytest.mark.parametrize('opened, reason', [
    (failing, 'Operation not permitted.*noexec'),
    (lacking, 'undefined symbol: eight')])
def test_a_library_that_cannot_be_opened_is_reported_once(compiler, opened,
                                                          reason, capsys,
                                                          monkeypatch):
    monkeypatch.setenv('D2LBERT_KERNELS', 'auto')
    opens = []

    def counted(path):
        opens.append(path)
        return opened(path)
    library = Trifle(compiler, counted)
    for _ in range(3):
        assert library.get() is None
    assert Trifle(compiler, opened).get() is None
    lines = [line for line in capsys.readouterr().err.splitlines()
             if 'compiling' not in line]
    assert len(opens) == len(lines) == 1
    assert lines[0].startswith('d2lbert: slower without its compiled C++: ')
    assert re.search(reason, lines[0])
    monkeypatch.setenv('D2LBERT_KERNELS', 'require')
    with pytest.raises(BuildError, match=reason):
        library.get()


def test_threads_that_need_it_at_once_open_it_once(compiler):
    opens = []

    def slow(path):
        opens.append(path)
        time.sleep(0.1)
        return seven(path)
    library = Trifle(compiler, slow)
    with futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: library.get(), range(4))) == [7] * 4
    assert len(opens) == 1


def test_off_opens_nothing(compiler, monkeypatch):
    monkeypatch.setenv('D2LBERT_KERNELS', 'off')
    assert Trifle(compiler, ctypes.CDLL).get() is None
    assert not cache.root().exists()


def test_a_library_removed_before_it_is_open_is_built_again(compiler,
                                                            monkeypatch):
    monkeypatch.setenv('D2LBERT_KERNELS', 'auto')
    removed = []

    def opened(path):
        """Another process clears the cache once, at the worst moment."""
        if not removed:
            removed.append(path)
            os.unlink(path)
            raise OSError(f'{path}: No such file or directory')
        return ctypes.CDLL(str(path))
    library = Trifle(compiler, opened)
    assert library.get() is not None
    assert removed and library.path.exists() and library.reason is None


@pytest.mark.parametrize('opened', [kernels._open_operators,
                                    draw._open_library, int8._open_library])
def test_a_library_without_our_functions_is_refused(compiler, opened):
    path = build.library('seven', [compiler])
    with pytest.raises(AttributeError, match='undefined symbol'):
        opened(path)


def test_text_is_read_without_a_library_that_cannot_be_opened(monkeypatch,
                                                              capsys):
    monkeypatch.setenv('D2LBERT_KERNELS', 'auto')
    broken = kernels.Library('draw', ['draw.cc'], failing, what='loops')
    monkeypatch.setattr(draw, 'DRAW', broken)
    monkeypatch.setattr(build, 'library', lambda *_, **__: Path('/draw.so'))
    monkeypatch.setattr(build, 'checked', contextlib.nullcontext)
    tokens = numbered_text.tokens_of_lines(['a b . c'])
    assert tokens.names == ['a', 'b', 'c']
    assert 'noexec' in capsys.readouterr().err


def test_waiting_for_another_process_prints_a_line(compiler, own_cache,
                                                   capsys, monkeypatch):
    def locked(path, before_wait, real=files.locked):
        before_wait()
        return real(path)
    monkeypatch.setattr(build, 'locked', locked)
    build.library('seven', [compiler])
    assert 'waiting for another process' in capsys.readouterr().err
