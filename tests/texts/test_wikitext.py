"""Descriptions of files that should be WikiText-2's."""
import hashlib
import random
import re
import shutil

import pytest

from d2lbert import hub
from d2lbert.hub import TRAIN_FILE, Published, flaw_of, git_hash

ARTICLES = [f' \n = Title {k} = \n \n' + ''.join(
    f' It is no. {k} @-@ {j} of <unk> . It stays . \n' for j in range(9))
    for k in range(50)]
TEXT = ''.join(ARTICLES).encode()
VALID = b' \n = Crane = \n \n The crane flies . \n'


def blob(data):
    return hashlib.sha1(b'blob %d\0' % len(data) + data).hexdigest()


@pytest.fixture(autouse=True)
def published(monkeypatch):
    """A small text takes WikiText-2's place."""
    for name, data in ((TRAIN_FILE, TEXT), (hub.VALID_FILE, VALID)):
        monkeypatch.setitem(hub.PUBLISHED, name, Published(
            len(data), data.count(b'\n'), len(data.split()), blob(data)))


@pytest.fixture
def train(tmp_path):
    def write(data):
        (tmp_path / TRAIN_FILE).write_bytes(data)
        return tmp_path / TRAIN_FILE
    return write


def reordered():
    return ''.join(random.Random(0).sample(ARTICLES, len(ARTICLES))).encode()


@pytest.mark.parametrize('data', [
    TEXT, reordered(), TEXT.replace(b'\n', b'\r\n')],
    ids=['as published', 'reordered', 'CRLF'])
@pytest.mark.parametrize('thorough', [False, True])
def test_nothing_is_wrong_with_the_same_articles(train, data, thorough):
    assert flaw_of(train(data), TRAIN_FILE, thorough) == ''


@pytest.mark.parametrize('data, said', [
    (b'', 'empty'),
    (TEXT[:7000], f'WikiText-2, but cut: 7,000 of {len(TEXT):,} bytes'),
    (reordered()[:-1], 'WikiText-2, but cut: .* bytes'),
    (b'\n<!DOCTYPE html>\n<p>403', 'a web page of 23 bytes, not WikiText-2'),
    (b'<?xml version="1.0"?><Error>', 'a web page of 28 bytes, .*'),
    (b'<unk> is here .', 'another text of 15 bytes, .*'),
    (VALID, "WikiText-2's wiki.valid.tokens"),
    (b'my own text .\n' * 9,
     rf'another text of 126 bytes, not WikiText-2 \({len(TEXT):,} bytes\)'),
    (TEXT * 2, f'another text of {len(TEXT) * 2:,} bytes, .*'),
    (TEXT + b'x', f'another text of {len(TEXT) + 1:,} bytes, .*'),
])
def test_another_file_is_described(train, data, said):
    path = train(data)
    for thorough in (False, True):
        assert re.fullmatch(said, flaw_of(path, TRAIN_FILE, thorough))


def test_another_text_of_the_same_size_is_found_when_looked_for(train):
    path = train(TEXT.replace(b'. It stays', b'  It stays'))
    assert flaw_of(path, TRAIN_FILE) == ''
    assert flaw_of(path, TRAIN_FILE, thorough=True) == (
        f'another text of the same {len(TEXT):,} bytes')


def test_a_file_of_the_right_size_is_not_read_at_each_run(train, monkeypatch):
    path = train(reordered())
    monkeypatch.setattr(hub, 'git_hash', None)
    monkeypatch.setattr(hub, '_counts', None)
    monkeypatch.setattr(hub, '_describe_other_text', None)
    assert flaw_of(path, TRAIN_FILE) == ''


def test_what_cannot_be_read_is_said(tmp_path):
    assert flaw_of(tmp_path / 'nowhere', TRAIN_FILE, True) == (
        'unreadable (No such file or directory)')


@pytest.mark.wiki
def test_the_published_facts_of_wikitext2_are_right(wiki_dir, monkeypatch,
                                                    tmp_path):
    monkeypatch.undo()
    assert hub.wikitext2_flaws(wiki_dir, thorough=True) == []
    for name in (hub.VALID_FILE, hub.TEST_FILE):
        assert git_hash(wiki_dir / name) == hub.PUBLISHED[name].git_hash
    for name, known in hub.PUBLISHED.items():
        assert hub._counts(wiki_dir / name) == known[:3]
    with open(wiki_dir / TRAIN_FILE, 'rb') as f:
        (tmp_path / TRAIN_FILE).write_bytes(f.read(3000000))
    shutil.copyfile(wiki_dir / hub.VALID_FILE,
                    tmp_path / hub.TEST_FILE)
    assert hub.wikitext2_flaws(tmp_path) == [
        f'{tmp_path / TRAIN_FILE} is WikiText-2, but cut: 3,000,000 of '
        '10,797,148 bytes',
        f"{tmp_path / hub.TEST_FILE} is WikiText-2's wiki.valid.tokens"]
