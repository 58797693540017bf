"""A text split into words, by C++ and by Python."""
import bz2
import gzip
import lzma

import numpy as onp
import pytest
from batches import prose

from d2lbert.texts import numbered_text
from d2lbert.texts.numbered_text import read_tokens

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
    cut = numbered_text.tokens_of_lines(lines)
    plain()
    assert_same(cut, numbered_text.tokens_of_lines(lines))


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
