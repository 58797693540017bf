"""Cutting a text into words, in C++ and in Python, and keeping them."""
import bz2
import gzip
import lzma

import numpy as onp
import pytest
from batches import prose

from d2lbert.machine import cache, file_facts
from d2lbert.texts import text_files, words
from d2lbert.texts.words import read_tokens

pytestmark = pytest.mark.usefixtures('own_cache')


@pytest.fixture
def text(tmp_path):
    path = tmp_path / 'text'
    path.write_text(prose(60), encoding='utf-8')
    return path


def assert_same(tokens, others):
    assert tokens.names == others.names
    for a, b in zip(tokens[:3], others[:3]):
        assert a.dtype == b.dtype
        onp.testing.assert_array_equal(a, b)


def test_words_are_cut_alike_around_every_character(compiled, plain):
    lines = []
    for code in [*range(0xd800), *range(0xe000, 0x10000), 0x10400, 0x1f600]:
        c = chr(code)
        if c not in '\r\n':
            lines.append(f'{c}ΑΣ{c}b . c{c}{c}d. .{c}. {c}Ae{c}')
    lines += ['one line . ', ' . ', ' .  . ', 'no stop here.', '', ' ',
              'a . . b . c .', 'ΑΣ . ΑΣ', ' . x', 'a\0b . c']
    cut = words.tokens_of_lines(lines)
    plain()
    assert_same(cut, words.tokens_of_lines(lines))


def test_line_ends_of_any_system_give_one_text(tmp_path):
    texts = []
    for number, end in enumerate(['\n', '\r\n', '\r']):
        path = tmp_path / str(number)
        path.write_bytes(prose(5).replace('\n', end).encode())
        texts.append(read_tokens(path))
    assert texts[0].names == texts[1].names == texts[2].names
    assert len(texts[0].paragraphs) == 6


@pytest.mark.parametrize('pack', [gzip.compress, bz2.compress,
                                  lzma.compress])
def test_a_packed_file_is_cut_as_it_is(text, tmp_path, pack):
    packed = tmp_path / 'packed'
    packed.write_bytes(pack(text.read_bytes()))
    assert_same(read_tokens(packed), read_tokens(text))


# The cache

def test_a_text_is_cut_only_once(text, own_cache, monkeypatch):
    first = read_tokens(text)
    monkeypatch.setattr(words, 'tokens_of_lines', None)
    assert_same(read_tokens(text), first)
    assert len(list((own_cache / 'tokens').iterdir())) == 1


def test_a_text_at_rest_is_not_read_again(text, monkeypatch):
    monkeypatch.setattr(file_facts, 'REST_NS', -10 ** 10)
    first = read_tokens(text)
    monkeypatch.setattr(text_files, 'pieces', None)
    assert_same(read_tokens(text), first)


def test_another_text_is_cut_again(text, own_cache):
    before = read_tokens(text)
    with open(text, 'a', encoding='utf-8') as f:
        f.write('a new one . with words . \n')
    assert len(read_tokens(text).paragraphs) == len(before.paragraphs) + 1
    assert len(list((own_cache / 'tokens').iterdir())) == 2


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def garbled(path):
    path.write_bytes(b'garbage')


def emptied(path):
    path.write_bytes(b'')


def pointing_outside(path):
    with onp.load(path) as f:
        arrays = dict(f)
    arrays['types'][5] = 10 ** 9
    onp.savez(path, **arrays)


def offset_outside(path):
    with onp.load(path) as f:
        arrays = dict(f)
    arrays['sentences'][3] = 10 ** 12
    onp.savez(path, **arrays)


@pytest.mark.parametrize('damage', [truncated, garbled, emptied,
                                    pointing_outside, offset_outside])
def test_a_damaged_cache_is_written_again(text, own_cache, damage):
    first = read_tokens(text)
    path, = (own_cache / 'tokens').iterdir()
    damage(path)
    assert_same(read_tokens(text), first)
    assert words.load_tokens(path) is not None


def test_the_cache_can_be_off_or_unwritable(text, own_cache, monkeypatch):
    monkeypatch.setattr(cache, 'enabled', lambda: False)
    first = read_tokens(text)
    assert not own_cache.exists()
    monkeypatch.setattr(cache, 'enabled', lambda: True)
    own_cache.write_text('a file where the folder should be')
    assert_same(read_tokens(text), first)
