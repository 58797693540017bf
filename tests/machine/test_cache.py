"""Where things are kept between runs, whose they are, and their removal."""
import os
import pwd
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from d2lbert import hub
from d2lbert.__main__ import main
from d2lbert.bert_dataset import load_data
from d2lbert.corpus.corpus import open_corpus
from d2lbert.kernels import build
from d2lbert.machine import cache, files

ROOT = Path(cache.__file__).resolve().parents[2]
DAY = 86400


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache of each test's own."""
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path / 'cache'))
    return tmp_path / 'cache'


@pytest.fixture
def usual(tmp_path, monkeypatch):
    """The usual place, in a home folder of the test's own."""
    for name in ('D2LBERT_CACHE', 'XDG_CACHE_HOME'):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / 'home'
    home.mkdir()
    monkeypatch.setenv('HOME', str(home))
    return home / '.cache' / 'd2lbert'


@pytest.fixture
def homeless(tmp_path, monkeypatch, usual):
    """No HOME, and a user whom the system has no name for."""
    def unknown(number):
        raise KeyError(f'getpwuid(): uid not found: {number}')
    monkeypatch.delenv('HOME')
    monkeypatch.setattr(pwd, 'getpwuid', unknown)
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    cache._temporary_root.cache_clear()
    yield tmp_path / f'd2lbert-{os.geteuid()}'
    cache._temporary_root.cache_clear()


def age(path, days):
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def fill(root):
    """Put something of each kind into a cache, 1000 bytes each."""
    paths = {'kernels': root / 'kernels' / f'ops-{"0" * 16}.so',
             'tokens': root / 'tokens' / f'{"1" * 32}.npz',
             'corpora': root / 'corpora' / ('2' * 32) / 'train' / 'ids.npy',
             'data': root / 'data' / 'wikitext-2' / hub.TRAIN_FILE,
             'wheels': root / 'wheels' / 'mxnet-1.9.1+d2lbert.0-any.whl'}
    for path in paths.values():
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(1000))
    return paths


# Where

def test_the_usual_places(usual, monkeypatch, tmp_path):
    assert cache.root() == usual and not cache.is_root_temporary()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    for value in ('', 'off', 'OFF'):
        monkeypatch.setenv('D2LBERT_CACHE', value)
        assert cache.root() == tmp_path / 'd2lbert'
        assert cache.enabled() == (not value)
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path / 'mine'))
    assert cache.root() == tmp_path / 'mine' and cache.enabled()


def test_a_relative_xdg_cache_home_is_ignored(usual, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', 'relative')
    assert cache.root() == usual


def test_a_tilde_is_the_home_folder(usual, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', '~/xdg')
    assert cache.root() == Path.home() / 'xdg' / 'd2lbert'
    monkeypatch.setenv('D2LBERT_CACHE', '~/mine')
    assert cache.root() == Path.home() / 'mine'


def test_a_relative_name_stays_where_it_was_first_asked_for(
        tmp_path, monkeypatch):
    monkeypatch.setenv('D2LBERT_CACHE', f'relative-{os.getpid()}')
    there = tmp_path / f'relative-{os.getpid()}'
    assert cache.root() == there
    (tmp_path / 'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path / 'elsewhere')
    assert cache.root() == there


def test_a_library_in_a_relative_cache_can_be_opened(compiler, monkeypatch):
    import ctypes
    monkeypatch.setenv('D2LBERT_CACHE', 'caches')
    path = build.library('seven', [compiler])
    assert path.is_absolute() and ctypes.CDLL(str(path)).seven() == 7


def test_without_a_home_there_is_a_private_temporary_folder(homeless):
    assert cache.root() == homeless and cache.is_root_temporary()
    assert stat.S_IMODE(homeless.stat().st_mode) == 0o700
    assert cache.folder('kernels').parent == homeless


@pytest.mark.parametrize('trap', ['link', 'writable'])
def test_a_temporary_folder_that_somebody_else_laid_is_not_taken(
        homeless, tmp_path, monkeypatch, trap):
    if trap == 'link':
        (tmp_path / 'theirs').mkdir()
        homeless.symlink_to(tmp_path / 'theirs')
    else:
        homeless.mkdir()
        monkeypatch.setattr(cache, 'is_trusted', lambda found: False)
    assert cache.root().name.startswith('d2lbert-')
    assert cache.root() != homeless and cache.root() == cache.root()
    assert not [*homeless.iterdir()]


def test_an_unwritable_home_is_not_used(usual, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    cache._temporary_root.cache_clear()
    monkeypatch.setattr(os, 'access', lambda path, mode: False)
    assert cache.is_root_temporary() and cache.root().parent == tmp_path
    usual.mkdir(parents=True)       # what is there can be read
    assert cache.root() == usual
    cache._temporary_root.cache_clear()


def test_the_home_of_an_unknown_user_is_an_error(homeless, monkeypatch):
    monkeypatch.setenv('D2LBERT_CACHE', '~/mine')
    with pytest.raises(cache.CacheError, match="'~/mine'.*absolute"):
        cache.root()
    monkeypatch.delenv('D2LBERT_DATA', raising=False)
    monkeypatch.setattr(hub, '_repository', lambda: None)
    assert hub.find_wikitext2() is None


def test_the_package_works_without_a_home(tmp_path):
    code = '''
        import pwd, sys
        def unknown(number):
            raise KeyError(number)
        pwd.getpwuid = pwd.getpwnam = unknown
        from d2lbert.__main__ import main
        sys.exit(main(['doctor']))
    '''
    env = {name: value for name, value in os.environ.items() if name not in (
        'HOME', 'XDG_CACHE_HOME', 'XDG_CONFIG_HOME', 'D2LBERT_CACHE')}
    done = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(code)], encoding='utf-8',
        capture_output=True, env=dict(env, TMPDIR=str(tmp_path), COLUMNS='300',
                                      PYTHONPATH=str(ROOT)))
    assert (done.returncode, done.stderr) == (0, '')
    assert f'{tmp_path}/d2lbert-{os.geteuid()}, 0.0 MB: there is no home' \
        in done.stdout
    assert 'install d2lbert again' not in done.stdout


# Whose

def test_a_new_folder_is_for_this_user_alone(own_cache):
    before = os.umask(0)
    try:
        cache.folder('tokens')
    finally:
        os.umask(before)
    for path in (own_cache, own_cache / 'tokens'):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_the_owner_and_mode_of_a_folder_are_checked():
    def found(uid, mode):
        return os.stat_result((mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))
    me = os.geteuid()
    assert cache.is_trusted(found(me, 0o40700))
    assert cache.is_trusted(found(0, 0o40755))
    for uid, mode in ((me + 1, 0o40700), (me, 0o40770), (me, 0o40707),
                      (0, 0o41777)):
        assert not cache.is_trusted(found(uid, mode))


def foreign(path):
    if os.geteuid():
        pytest.skip('only root can give files away')
    os.chown(path, 12345, -1, follow_symlinks=False)


@pytest.mark.parametrize('spoil', [
    foreign, lambda path: path.chmod(0o777), lambda path: path.chmod(0o775)])
def test_a_folder_above_that_others_can_exchange_is_refused(
        tmp_path, monkeypatch, spoil):
    monkeypatch.setattr(cache, '_is_own_group', lambda number: False)
    above = tmp_path / 'above'
    path = cache.private_folder(above / 'cache' / 'tokens')
    (path / 'some').touch()
    assert cache.is_trusted_path(path) and cache.is_trusted_path(path / 'some')
    spoil(above)
    with pytest.raises(cache.CacheError, match=f'because {above} belongs'):
        cache.private_folder(path)
    assert not cache.is_trusted_path(path)
    assert not cache.is_trusted_path(path / 'some')


def test_folders_above_may_be_sticky_or_of_ones_own_group(tmp_path,
                                                          monkeypatch):
    above = tmp_path / 'above'
    path = cache.private_folder(above / 'cache')
    above.chmod(0o1777)
    assert cache.private_folder(path) == path
    above.chmod(0o775)
    monkeypatch.setattr(cache, '_is_own_group', lambda number: True)
    assert cache.private_folder(path) == path and cache.is_trusted_path(path)


@pytest.mark.parametrize('spoiled', ['link', 'folder'])
def test_links_are_followed_to_their_targets(tmp_path, monkeypatch,
                                             spoiled):
    monkeypatch.setattr(cache, '_is_own_group', lambda number: False)
    (tmp_path / 'a' / 'b').mkdir(parents=True)
    (tmp_path / 'link').symlink_to('a/../a')
    path = cache.private_folder(tmp_path / 'link' / 'b' / 'cache')
    if spoiled == 'link':
        foreign(tmp_path / 'link')
    else:
        (tmp_path / 'a').chmod(0o777)
    with pytest.raises(cache.CacheError, match='not trusted, because'):
        cache.private_folder(path)


def test_a_file_that_another_user_could_write_is_not_trusted(tmp_path):
    store = cache.private_folder(tmp_path / 'store')
    (store / 'train').mkdir()
    ids = store / 'train' / 'ids'
    ids.touch()
    cache.make_private(store)
    assert cache.is_trusted_path(store)
    for path in (ids, ids.parent):
        path.chmod(0o777)
        assert not cache.is_trusted_path(store)
        cache.make_private(store)
        assert cache.is_trusted_path(store)
    foreign(ids)
    assert not cache.is_trusted_path(store)


def test_a_home_in_the_folder_of_another_is_not_used(usual, monkeypatch,
                                                     tmp_path):
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    monkeypatch.setattr(cache, '_is_own_group', lambda number: False)
    cache._temporary_root.cache_clear()
    usual.parent.mkdir(parents=True, exist_ok=True)
    assert cache.root() == usual
    usual.parent.chmod(0o777)
    assert cache.is_root_temporary() and cache.root().parent == tmp_path
    cache._temporary_root.cache_clear()


# Lifetime

def test_names_of_all_cached_files_are_known(own_cache, compiler):
    path = hub.sample_dir() / hub.TRAIN_FILE
    load_data(path, 8, 40)
    open_corpus(path, progress=False)
    build.library('seven', [compiler])
    found = [(entry.kind, len(entry.paths)) for entry in cache.entries()
             if not entry.is_temporary]
    # `tokens` holds the index of facts about files
    assert found == [('kernels', 2), ('tokens', 1), ('corpora', 1)]
    # and there are only the folders of the kinds
    paths = {path for entry in cache.entries() for path in entry.paths}
    assert {path for path in own_cache.glob('*/*')} == paths
    assert cache.size() == sum(
        path.stat().st_size for path in own_cache.rglob('*')
        if path.is_file())


def test_use_is_noted(own_cache, compiler):
    library = build.library('seven', [compiler])
    text = hub.sample_dir() / hub.TRAIN_FILE
    load_data(text, 8, 40)
    open_corpus(text, progress=False)
    for path in own_cache.rglob('*'):
        age(path, 40)
    assert all(entry.last_used < time.time() - 39 * DAY
               for entry in cache.entries())
    assert build.library('seven', [compiler]) == library
    load_data(text, 8, 40)
    open_corpus(text, progress=False)
    assert all(entry.last_used > time.time() - DAY for entry in cache.entries()
               if not entry.is_temporary)


def test_nothing_outside_of_the_cache_is_noted(own_cache, tmp_path):
    (tmp_path / 'mine').touch()
    age(tmp_path / 'mine', 40)
    cache.mark_used(tmp_path / 'mine')
    assert (tmp_path / 'mine').stat().st_mtime < time.time() - DAY


def test_the_command_lists_by_kind(own_cache, capsys):
    for path in fill(own_cache).values():
        path.write_bytes(bytes(1200000))
    age(own_cache / 'tokens' / f'{"1" * 32}.npz', 400)
    assert main(['cache']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(own_cache)
    assert lines[1].split() == ['kind', 'number', 'size', 'last', 'used']
    assert [line.split()[:4] for line in lines[2:]] == [
        [kind, '1', '1.2', 'MB'] for kind in cache.KINDS]
    today = time.strftime('%Y-%m-%d')
    assert lines[2].split()[-1] == today != lines[3].split()[-1]
    assert main(['cache', '--kind', 'tokens', '--older-than', '399']) == 0
    line, = capsys.readouterr().out.splitlines()[2:]
    assert line.split()[:2] == ['tokens', '1']
    assert main(['cache', '--kind', 'data', '--older-than', '399']) == 0
    line, = capsys.readouterr().out.splitlines()[2:]
    assert line.split() == ['data', '0', '0.0', 'MB']


def test_clear_removes_kinds_that_can_be_recomputed(own_cache, capsys):
    paths = fill(own_cache)
    assert main(['cache', '--clear']) == 0
    assert [kind for kind, path in paths.items() if path.exists()] == [
        'data', 'wheels']
    said = capsys.readouterr().out
    assert '--kind data' in said and said.endswith('0.0 MB freed\n')
    assert main(['cache', '--clear', '--kind', 'data', 'wheels', 'data']) == 0
    assert capsys.readouterr().out.count('data') == 1
    assert not paths['data'].exists() and not paths['wheels'].exists()
    assert not [path for path in own_cache.glob('*/*')]


def test_all_that_the_hub_fetches_is_listed_and_removed(own_cache):
    for url, _ in hub.DATA_HUB.values():
        archive = own_cache / 'data' / url.split('/')[-1]
        unpacked = archive.with_name(archive.stem.replace('-v1', ''))
        unpacked.mkdir(parents=True)
        (unpacked / 'part').write_bytes(bytes(10))
        archive.write_bytes(bytes(100))
    number = 2 * len(hub.DATA_HUB)
    assert len([*cache.entries(['data'])]) == number
    assert cache.clear('data') == (number, 110 * len(hub.DATA_HUB))
    assert not [*(own_cache / 'data').iterdir()]


def test_only_old_entries_are_cleared(own_cache):
    paths = fill(own_cache)
    for path in (paths['tokens'], paths['corpora'], paths['corpora'].parent,
                 paths['corpora'].parents[1]):
        age(path, 31)
    for path in paths['kernels'].parent.iterdir():
        age(path, 29)
    assert cache.clear('tokens', 30) == (1, 1000)
    assert cache.clear('corpora', 30) == (1, 1000)
    assert cache.clear('kernels', 30) == (0, 0)
    assert paths['kernels'].exists() and not paths['corpora'].exists()


@pytest.mark.parametrize('name', ['wiki.txt', 'notes', 'x.so', '.hidden',
                                  f'{"1" * 31}.npz', 'wikitext-2-mine',
                                  'poetry.lock', 'film.part'])
def test_files_of_other_programs_are_never_removed(own_cache, name):
    for kind in cache.KINDS:
        (own_cache / kind).mkdir(parents=True)
        (own_cache / kind / name).write_text('mine')
        age(own_cache / kind / name, 400)
    (own_cache / 'elsewhere').mkdir()
    assert main(['cache', '--clear', '--kind', *cache.KINDS]) == 0
    assert all((own_cache / kind / name).is_file() for kind in cache.KINDS)
    assert (own_cache / 'elsewhere').is_dir() and not cache.size()


def test_links_are_not_followed(own_cache, tmp_path, capsys):
    mine = tmp_path / 'mine'
    paths = fill(mine)
    (own_cache / 'corpora').mkdir(parents=True)
    (own_cache / 'tokens').symlink_to(mine / 'tokens')
    (own_cache / 'corpora' / ('3' * 32)).symlink_to(mine / 'corpora')
    (own_cache / 'corpora' / ('4' * 32)).mkdir()
    (own_cache / 'corpora' / ('4' * 32) / 'x').symlink_to(mine / 'data')
    assert main(['cache']) == 0
    assert f'a link to {mine / "tokens"}, never' in capsys.readouterr().out
    assert main(['cache', '--clear', '--kind', *cache.KINDS]) == 0
    assert all(path.exists() for path in paths.values())
    assert not [*(own_cache / 'corpora').iterdir()]


def test_entries_in_use_are_not_removed(own_cache, capsys):
    paths = fill(own_cache)
    with files.locked(own_cache / 'corpora' / f'{"5" * 32}.lock'):
        assert main(['cache', '--clear']) == 1
        assert 'another process' in capsys.readouterr().err
        assert paths['corpora'].exists() and not paths['kernels'].exists()
    assert main(['cache', '--clear']) == 0
    assert not paths['corpora'].exists()


def test_old_temporary_files_are_removed(own_cache):
    names = {'kernels': '.ops-ab.part', 'tokens': '.x.npz.ab.part',
             'corpora': f'{"2" * 32}.ab.part', 'data': '.fetch-ab'}
    for kind, name in names.items():
        for which, days in (('new', 0.01), ('old', 2)):
            path = own_cache / kind / name.replace('ab', which)
            path.mkdir(parents=True)
            (path / 'x').write_text('x')
            age(path / 'x', days)
            age(path, days)
    for kind in names:
        cache.folder(kind)
    left = [path.name for path in own_cache.glob('*/*')]
    assert len(left) == 4 and not any('old' in name for name in left)


def test_a_lock_that_is_held_is_never_swept(own_cache):
    path = own_cache / 'corpora' / f'{"5" * 32}.lock'
    path.parent.mkdir(parents=True)
    with files.locked(path):
        age(path, 2)
        cache.remove_leftovers('corpora')
        assert path.exists()
    path.touch()
    age(path, 2)
    cache.remove_leftovers('corpora')
    assert not path.exists()


@pytest.mark.parametrize('arguments, complaint', [
    (['--kind', 'runs'], "--kind: 'runs' is not kernels, "),
    (['--older-than', 'ever'], 'invalid float'),
    (['--older-than', '-1'], '--older-than: -1 must be'),
    (['--older-than', 'nan'], '--older-than: nan must be')])
def test_bad_arguments_remove_nothing(own_cache, arguments, complaint,
                                      capsys):
    paths = fill(own_cache)
    try:
        status = main(['cache', '--clear', *arguments])
    except SystemExit as stopped:
        status = stopped.code
    assert status
    assert complaint in capsys.readouterr().err
    assert all(path.exists() for path in paths.values())


def test_an_empty_cache_is_no_trouble(own_cache, capsys):
    for arguments in ([], ['--clear']):
        assert main(['cache', *arguments]) == 0
    assert not own_cache.exists()
