"""Stores of texts: found again when complete, else built again."""
import bz2
import errno
import gc
import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from texts import VALID, assert_same, write

from d2lbert.corpus import text_reader, text_store
from d2lbert.corpus.corpus import open_corpus
from d2lbert.machine import cache, files
from d2lbert.texts import text_files


@pytest.fixture
def no_build(monkeypatch):
    def refuse():
        def build(*args):
            raise AssertionError('the store was built again')
        monkeypatch.setattr(text_store, 'build', build)
    return refuse


def manifest(root):
    folder, = (path for path in root.iterdir() if path.is_dir())
    return json.loads((folder / text_store.MANIFEST).read_text())


def test_compiled_and_plain_code_write_the_same_bytes(
        wiki, own_cache, tmp_path, monkeypatch, compiled, plain):
    open_corpus(wiki, valid_share=0.2, progress=False)
    first = manifest(own_cache)
    monkeypatch.setattr(cache, 'root', lambda: tmp_path / 'other')
    plain()
    open_corpus(wiki, valid_share=0.2, progress=False)
    assert manifest(tmp_path / 'other' / 'corpora') == first


@pytest.mark.parametrize('pack', [gzip.compress, bz2.compress,
                                  lzma.compress])
def test_a_packed_file_is_the_same_text(wiki, no_build, pack):
    plain = open_corpus(wiki, progress=False)
    packed = write('wiki.anything', pack(wiki.read_bytes()))
    no_build()
    assert open_corpus(packed, progress=False).fingerprint == (
        plain.fingerprint)


def test_a_store_is_built_once(wiki, no_build):
    first = open_corpus(wiki, progress=False)
    no_build()
    again = open_corpus(wiki, progress=False)
    assert again.fingerprint == first.fingerprint
    assert_same([again.train.ids], [first.train.ids])
    assert again.vocab.idx_to_token == first.vocab.idx_to_token
    with pytest.raises(AssertionError, match='built again'):
        open_corpus(wiki, min_freq=4, progress=False)


def shared(folder):
    for path in (folder, *folder.rglob('*')):
        path.chmod(path.stat().st_mode | 0o020)


def given_away(folder):
    if os.geteuid():
        pytest.skip('only root can give files away')
    for path in (folder, *folder.rglob('*')):
        os.chown(path, 12345, -1)


@pytest.mark.parametrize('spoil', [shared, given_away])
def test_a_store_that_another_user_can_have_written_is_built_again(
        wiki, own_cache, spoil):
    first = open_corpus(wiki, progress=False)
    folder, = (path for path in own_cache.iterdir() if path.is_dir())
    assert text_store.is_complete(folder)
    spoil(folder)
    assert not text_store.is_complete(folder)
    again = open_corpus(wiki, progress=False)
    assert_same([again.train.ids], [first.train.ids])
    assert text_store.is_complete(folder)


def test_a_store_is_found_again_whatever_the_umask(wiki, own_cache,
                                                   no_build):
    before = os.umask(0o002)
    try:
        open_corpus(wiki, progress=False)
        no_build()
        open_corpus(wiki, progress=False)
    finally:
        os.umask(before)


def test_a_text_at_rest_is_not_read_again(wiki, own_cache, monkeypatch):
    monkeypatch.setattr(text_reader, 'TIME_RESOLUTION_NS', -10 ** 10)
    paths = dict(paths=gzipped(wiki), valid_paths=write('valid', VALID))
    first = open_corpus(progress=False, **paths)
    open_corpus(progress=False, **paths)    # after it was built: one check

    def refuse(*args):
        raise AssertionError('read again')
    for module, name in ((text_files, 'pieces'), (text_store, 'size_and_crc')):
        monkeypatch.setattr(module, name, refuse)
    again = open_corpus(progress=False, **paths)
    assert again.fingerprint == first.fingerprint
    assert_same([again.train.ids], [first.train.ids])
    ids = own_cache / first.fingerprint / 'train' / 'ids.npy'
    ids.touch()
    with pytest.raises(AssertionError, match='read again'):
        open_corpus(progress=False, **paths)


def gzipped(path):
    return write(f'{path.name}.gz', gzip.compress(path.read_bytes()))


def test_a_text_that_changed_is_noticed_whatever_its_times(wiki, monkeypatch):
    monkeypatch.setattr(text_reader, 'TIME_RESOLUTION_NS', -10 ** 10)
    first = open_corpus(wiki, progress=False)
    before = os.stat(wiki)
    time.sleep(0.05)        # a clock of the kernel ticks meanwhile
    wiki.write_bytes(wiki.read_bytes().replace(b'w1 ', b'w2 '))
    os.utime(wiki, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(wiki).st_size == before.st_size
    second = open_corpus(wiki, progress=False)
    assert second.fingerprint != first.fingerprint
    assert 'w1' not in second.vocab.token_to_idx


@pytest.mark.parametrize('file', [
    'train/ids.npy', 'valid/sentences.npy', 'vocab.txt', 'manifest.json'])
@pytest.mark.parametrize('damage', [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(b'{}'),
    lambda path: path.write_bytes(
        path.read_bytes()[:-3] + b'\xff' + path.read_bytes()[-2:]),
], ids=['missing', 'short', 'foreign', 'one byte'])
def test_a_damaged_store_is_built_again(wiki, own_cache, file, damage):
    text = open_corpus(wiki, valid_share=0.1, progress=False)
    before = manifest(own_cache)
    ids = text.train.ids.tolist()
    damage(own_cache / text.fingerprint / file)
    text = open_corpus(wiki, valid_share=0.1, progress=False)
    assert text.train.ids.tolist() == ids
    assert manifest(own_cache) == before


@pytest.mark.parametrize('gone', ['', 'train', 'train/paragraphs.npy',
                                  'valid', 'freqs.npy'])
def test_a_store_that_is_cleared_before_it_is_open_is_built_again(
        wiki, own_cache, monkeypatch, gone):
    expected = open_corpus(wiki, valid_share=0.2, seed=1)
    find, cleared = text_store.find_or_build, []

    def find_and_clear(key, build):
        folder, owned = find(key, build)
        if len(cleared) < 2:
            cleared.append(folder)
            path = folder / gone
            path.unlink() if path.is_file() else shutil.rmtree(path)
        return folder, owned
    monkeypatch.setattr(text_store, 'find_or_build', find_and_clear)
    text = open_corpus(wiki, valid_share=0.2, seed=1)
    assert len(cleared) == 2 and text.fingerprint == expected.fingerprint
    assert text.vocab.idx_to_token == expected.vocab.idx_to_token
    for part, other in zip(text[:2], expected[:2]):
        assert part.num_paragraphs == other.num_paragraphs


def test_a_store_that_is_always_removed_is_reported(wiki, own_cache,
                                                    monkeypatch):
    find = text_store.find_or_build

    def find_and_clear(key, build):
        folder, owned = find(key, build)
        shutil.rmtree(folder)
        return folder, owned
    monkeypatch.setattr(text_store, 'find_or_build', find_and_clear)
    with pytest.raises(FileNotFoundError):
        open_corpus(wiki)


@pytest.mark.parametrize('locks', [True, False])
def test_builds_at_the_same_time_do_not_meet(wiki, own_cache, locks,
                                             monkeypatch):
    if not locks:
        monkeypatch.setattr(files, 'fcntl', None)
    texts = []

    def work():
        texts.append(open_corpus(wiki, progress=False))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 4
    for text in texts:
        assert_same([text.train.ids], [texts[0].train.ids])
    assert text_store.is_complete(own_cache / texts[0].fingerprint)
    assert not list(own_cache.glob('*.part'))


@pytest.mark.slow  # for the imports; the threads above take the same locks
def test_two_processes_can_build_at_the_same_time(wiki, tmp_path):
    code = ('import sys; from d2lbert.corpus.corpus import open_corpus; '
            'print(int(open_corpus(sys.argv[1], progress=False)'
            '.train.ids.astype(int).sum()))')
    env = dict(os.environ, D2LBERT_CACHE=str(tmp_path / 'both'),
               D2LBERT_KERNELS='off', PYTHONPATH=os.pathsep.join(
                   [str(Path(text_store.__file__).parents[2]), *sys.path]))
    running = [subprocess.Popen([sys.executable, '-c', code, wiki], env=env,
                                stdout=subprocess.PIPE) for _ in range(2)]
    printed = {process.communicate(timeout=120)[0] for process in running}
    assert not any(process.returncode for process in running)
    assert printed == {b'%d\n' % open_corpus(
        wiki, progress=False).train.ids.astype(int).sum()}


def test_what_a_killed_build_left_is_removed(wiki, own_cache):
    text = open_corpus(wiki, progress=False)
    left = own_cache / f'{text.fingerprint}.0123.part'
    left.mkdir()
    (own_cache / text.fingerprint / text_store.VOCAB).unlink()
    open_corpus(wiki, progress=False)
    assert not left.exists()


def test_an_interrupted_build_leaves_nothing(wiki, own_cache, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt
    monkeypatch.setattr(text_store, 'write_numbers', interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_corpus(wiki, progress=False)
    assert not [path for path in own_cache.iterdir() if path.is_dir()]


@pytest.mark.parametrize('place', ['mkdir', 'write_numbers'])
def test_a_full_disk_is_reported(wiki, own_cache, monkeypatch, place):
    def fill(*args):
        raise OSError(errno.ENOSPC, 'No space left on device')
    own_cache.mkdir(parents=True)
    if place == 'mkdir':
        monkeypatch.setattr(text_store.Path, 'mkdir', fill)
    else:
        monkeypatch.setattr(text_store, 'write_numbers', fill)
    with pytest.raises(OSError, match='no room left.*D2LBERT_CACHE'):
        open_corpus(wiki, progress=False)
    assert not [path for path in own_cache.iterdir() if path.is_dir()]


def test_without_a_cache_the_store_goes_with_its_text(
        wiki, own_cache, tmp_path, monkeypatch):
    monkeypatch.setenv('D2LBERT_CACHE', 'off')
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'temp'))
    (tmp_path / 'temp').mkdir()
    text = open_corpus(wiki, progress=False)
    assert text.train.num_words and not own_cache.exists()
    assert list((tmp_path / 'temp').iterdir())
    del text
    gc.collect()
    assert not list((tmp_path / 'temp').iterdir())


def test_the_same_share_is_held_out_each_time(wiki, own_cache, tmp_path,
                                              monkeypatch):
    open_corpus(wiki, valid_share=0.1, progress=False)
    first = manifest(own_cache)
    monkeypatch.setattr(cache, 'root', lambda: tmp_path / 'other')
    open_corpus(wiki, valid_share=0.1, progress=False)
    assert manifest(tmp_path / 'other' / 'corpora') == first


def test_a_file_that_changes_meanwhile_is_refused(wiki, own_cache,
                                                  monkeypatch):
    build = text_store.build

    def build_late(*args):
        wiki.write_bytes(wiki.read_bytes() + b' x . y \n')
        build(*args)
    monkeypatch.setattr(text_store, 'build', build_late)
    with pytest.raises(ValueError, match='wiki.tokens was changed'):
        open_corpus(wiki, progress=False)
    assert not [path for path in own_cache.iterdir() if path.is_dir()]
