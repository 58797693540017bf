"""Facts about a file are kept as long as the file is unchanged."""
import json
import os
import time
from pathlib import Path

import pytest

from d2lbert.corpus import text_reader
from d2lbert.corpus.text_reader import FileFacts
from d2lbert.machine import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    root = tmp_path / 'cache'
    monkeypatch.setattr(cache, 'root', lambda: root)
    return root / 'tokens' / text_reader.FACTS_FILE


@pytest.fixture
def at_rest(monkeypatch):
    """As if every file had been written ten seconds ago."""
    monkeypatch.setattr(text_reader, 'TIME_RESOLUTION_NS', -10 ** 10)


def find_out(path):
    find_out.asked += 1
    return Path(path).read_text()


@pytest.fixture
def look_up(at_rest):
    """(The fact about `file`, whether it was known)."""
    find_out.asked = 0
    Path('file').write_text('one')

    def get(what='text', path='file'):
        before, facts = find_out.asked, FileFacts()
        fact = facts.get(what, path, find_out)
        facts.save()
        return fact, find_out.asked == before
    return get


def test_a_fact_is_found_out_once(look_up):
    assert look_up() == ('one', False)
    assert look_up() == ('one', True)
    assert look_up(path=os.path.abspath('file')) == ('one', True)
    assert look_up('something else') == ('one', False)
    assert look_up() == ('one', True)


def another_mtime():
    time.sleep(0.05)        # a clock of the kernel ticks meanwhile
    Path('file').write_text('two')


def mtime_set_back():
    before = os.stat('file')
    another_mtime()
    os.utime('file', ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat('file').st_mtime_ns == before.st_mtime_ns


def another_file():
    Path('file2').write_text('two')
    os.replace('file2', 'file')


def another_size():
    Path('file').write_text('two or three')


@pytest.mark.parametrize('change', [another_mtime, mtime_set_back,
                                    another_file, another_size])
def test_a_change_is_noticed(look_up, change):
    look_up()
    change()
    assert look_up() == (Path('file').read_text(), False)
    assert look_up()[1]


def test_a_file_written_lately_is_looked_at_again(look_up, monkeypatch):
    monkeypatch.setattr(text_reader, 'TIME_RESOLUTION_NS', 2 * 10 ** 9)
    assert not look_up()[1] and not look_up()[1]
    later = time.time_ns() + 3 * 10 ** 9
    monkeypatch.setattr(text_reader.time, 'time_ns', lambda: later)
    assert not look_up()[1] and look_up()[1]


def test_a_file_that_changes_while_it_is_read_is_not_remembered(look_up):
    facts = FileFacts()

    def change(path):
        Path(path).write_text('much longer')
        return 'one'
    facts.get('text', 'file', change)
    facts.save()
    assert look_up() == ('much longer', False)


@pytest.mark.parametrize('damage', [
    lambda text: '', lambda text: text[:-9], lambda text: '[1]',
    lambda text: '{"facts": 1}', lambda text: text.replace('one', 'two'),
    lambda text: json.dumps(dict(json.loads(text), version=0)),
], ids=['empty', 'cut', 'foreign', 'no facts', 'another fact', 'version'])
def test_a_damaged_index_is_ignored(look_up, own_cache, damage):
    look_up()
    own_cache.write_text(damage(own_cache.read_text()))
    assert look_up() == ('one', False)
    assert look_up() == ('one', True)


def test_the_index_is_bounded(look_up, own_cache, monkeypatch):
    monkeypatch.setattr(text_reader, 'MAX_FACTS', 5)
    for k in range(9):
        look_up(str(k))
    assert len(json.loads(own_cache.read_text())['facts']) == 5
    assert look_up('8')[1] and not look_up('3')[1]


def test_facts_of_another_process_are_kept(look_up):
    first, second = FileFacts(), FileFacts()
    for facts, what in ((first, 'a'), (second, 'b')):
        facts.get(what, 'file', find_out)
        facts.save()
    assert look_up('a')[1] and look_up('b')[1]


def test_the_index_can_be_off_or_unwritable(look_up, own_cache, monkeypatch):
    monkeypatch.setenv('D2LBERT_CACHE', 'off')
    assert not look_up()[1] and not look_up()[1]
    assert not own_cache.exists()
    monkeypatch.delenv('D2LBERT_CACHE')
    own_cache.parent.parent.write_text('a file where the folder should be')
    assert not look_up()[1] and not look_up()[1]
