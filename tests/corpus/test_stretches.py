"""Stretches of a text cut in C++ and in Python, by any number of threads."""
import gzip
import random
import threading
import time

import numpy as onp
import pytest
from texts import make_wiki, write

from d2lbert.corpus import (
    cut_text,
    splitters,
    text_reader,
    text_store,
    word_types,
)
from d2lbert.corpus.corpus import open_corpus
from d2lbert.corpus.cut_text import HEADER_BYTES, CutText
from d2lbert.corpus.word_types import PlainNames, WordTypes
from d2lbert.kernels import cut
from d2lbert.machine import hardware
from d2lbert.texts.numbered_text import (
    paragraphs_of_lines,
    tokens_of_paragraphs,
)

# Characters that resemble a blank, a line end, a full stop or a letter
PARTS = [' ', '  ', ' . ', ' .  . ', '. ', ' .', '\t', '\x0b', '\x1c', '\x85',
         '\xa0', '\u2028', '\u3000', '\0', '\x01', '\u200b', 'Σ', 'ΑΣ',
         '\u212a', 'İ', 'Ⱥ', 'é', 'É', '日本', '😀', 'a', 'B', 'abcdefg',
         'Abcdefgh', 'abcdefgh\0', 'ninecharsX', 'AB12', "it's", '=', '= ',
         ' = ', '\ufeff']


def random_text(rng, ends):
    lines = []
    for _ in range(rng.randint(0, 14)):
        kind = rng.random()
        if kind < 0.3:
            line = rng.choice(['', ' ', '\u3000', '\t '])
        elif kind < 0.45:
            line = rng.choice([' = T = ', '= T =', ' = = S = = ', ' = = ',
                               ' = Σ . b = '])
        else:
            line = ''.join(rng.choice(PARTS)
                           for _ in range(rng.randint(1, 9)))
        lines.append(line)
    end = rng.choice(ends)
    return end.join(lines) + rng.choice(['', end])


def cut_file(path, folder, lower=True):
    """The words of a `CutText`, their ends and articles."""
    found = CutText(folder, [path], splitters.BookCutter([path], False, lower),
                    False)
    names = found.word_types.names
    assert found.word_types.counts.tolist() == onp.bincount(
        onp.fromfile(folder / 'ids', 'int32', offset=HEADER_BYTES),
        minlength=len(names)).tolist()
    return (names, *((folder / name).read_bytes() for name in (
        'ids', 'sentences', 'paragraphs')), found.articles.tolist())


@pytest.mark.parametrize('ends', [['\n'], ['\r\n', '\r']], ids=['LF', 'CR'])
def test_a_text_is_split_alike_in_stretches_of_any_size(tmp_path, monkeypatch,
                                                   compiled, plain, ends):
    rng = random.Random(len(ends))
    texts = [(random_text(rng, ends) or ' ').encode() for _ in range(16)]
    texts += [b'\xef\xbb\xbf' + text for text in texts[:4]]
    monkeypatch.setattr(hardware, 'physical_cores', lambda: 3)
    came = []
    for k, text in enumerate(texts):
        # A packed file may have zeros in it
        path = write(tmp_path / f'{k}.gz', gzip.compress(text))
        for size in range(1, len(text) + 1, 1 + len(text) // 40):
            monkeypatch.setattr(text_reader, 'BLOCK_BYTES', size)
            came.append((path, size, k % 3 > 0, cut_file(
                path, tmp_path / f'{k}-{size}', k % 3 > 0)))
    assert len(came) > 200 and sum(bool(found[0]) for *_, found in came) > 60
    plain()
    for path, size, lower, found in came:
        # In which format a file is, its first block says
        monkeypatch.setattr(text_reader, 'BLOCK_BYTES', size)
        assert found == cut_file(path, tmp_path / f'{path.stem}-{size}-plain',
                                 lower)


def test_both_ways_know_utf8(compiled):
    def is_utf8(data):
        try:
            return bool(data.decode()) or True
        except UnicodeDecodeError:
            return False
    edges = [0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1,
             0xc2, 0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff]
    rng = random.Random(0)
    seen = set()
    for _ in range(9000):
        data = bytes(rng.choice(edges) for _ in range(rng.randint(1, 4)))
        # At the end, and where eight bytes are looked at together
        data = data + b'a' * rng.choice([0, 0, 9])
        found = cut.text(data, cut.PARAGRAPHS, False)
        assert (found is not None) == is_utf8(data), data
        seen.add(found is None)
    assert seen == {True, False}


def test_words_of_any_length_are_split_as_by_python(compiled):
    rng = random.Random(0)
    letters = [*'abcXYZ', '!', '~', '\x7f', '\x01', 'é', 'É', 'İ', '\0']
    between = [' '] * 9 + ['  ', ' . ', ' . . ', '\t', '\x1f ', '\xa0',
                           '\u3000', '. ', ' .']
    for _ in range(400):
        lines = [''.join(''.join(rng.choices(letters[:rng.choice([3, 14])],
                                             k=rng.choice([1, 2, 7, 8, 9,
                                                           63, 64, 65])))
                         + rng.choice(between)
                         for _ in range(rng.randint(1, 40)))
                 for _ in range(3)]
        for lower in False, True:
            expected = tokens_of_paragraphs(paragraphs_of_lines(lines, lower))
            *found, _, names, _ = cut.text('\n'.join(lines).encode(),
                                           cut.PARAGRAPHS, lower)
            assert names.decode().split('\n')[:-1] == expected.names
            for ours, theirs in zip(found, expected[:3]):
                assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize('end', ['', '\n', '\n\n', '\n\u3000 \t\n',
                                 '\n\nd . e'])
def test_a_limit_is_of_a_paragraph_without_the_blank_line_after_it(compiled,
                                                                   end):
    paragraph = b'a . b\nb . c'
    data = paragraph + end.encode()
    found, unlimited = (cut.text(data, cut.PARTS, True, *limit)
                        for limit in ([len(paragraph)], []))
    assert found is not None
    assert list(map(list, found)) == list(map(list, unlimited))
    assert cut.text(data, cut.PARTS, True, len(paragraph) - 1) is None


def test_names_have_the_numbers_that_python_gives_them(compiled):
    rng = random.Random(0)
    ours, theirs = cut.Names(), PlainNames()
    for step in range(30):
        # Of seven, eight and nine letters, many that begin alike
        names = list(dict.fromkeys(
            rng.choice(['', 'abcdef', 'abcdefghijklmnop', 'é'])
            + f'{rng.randrange(4000):x}' for _ in range(1500)))
        lines = ''.join(f'{name}\n' for name in names).encode()
        kept = None if step % 2 else onp.array(
            [rng.random() < 0.5 for _ in names])
        assert ours.add(lines, kept).tolist() == theirs.add(
            lines, kept).tolist()
        assert (len(ours), ours.letters) == (len(theirs), theirs.letters)
    assert ours.text() == theirs.text() and len(ours) > 10000


def made_to_collide(size):
    """So many words of 32 letters that a fixed hash would not tell apart.

    The hash was h = mixed(h ^ block) over blocks of eight letters, from the
    number of letters on. Two blocks can reach the same h in many ways.
    """
    factor, rng = onp.uint64(0x9e3779b97f4a7c15), onp.random.RandomState(0)

    def mixed(h):
        h = h * factor
        return h ^ h >> onp.uint64(32)

    def halves(h, reached):
        first = rng.randint(33, 127, (1 << 20, 8)).astype('uint8')
        second = (mixed(h ^ first.view('uint64')) ^ reached).view('uint8')
        is_visible = ((second > 32) & (second < 127)).all(1)
        return onp.concatenate([first, second], 1)[is_visible][:int(
            size ** 0.5)].view('S16')
    begins = halves(onp.uint64(32), onp.uint64(0))
    ends = halves(mixed(onp.uint64(0)), onp.uint64(7))
    return [begin + end for begin in begins[:, 0] for end in ends[:, 0]]


def test_words_that_are_made_to_collide_take_no_longer(compiled):
    words = made_to_collide(40000)
    assert len(set(words)) > 35000
    lines, names = b''.join(word + b'\n' for word in words), cut.Names()
    begun = time.thread_time()
    assert names.add(lines).tolist() == list(range(len(words)))
    assert time.thread_time() - begun < 0.5     # seconds; it was 3


def test_the_same_words_are_pruned_by_both(monkeypatch, compiled):
    def types_of():
        types, rng = WordTypes(), onp.random.RandomState(0)
        became = []
        for step in range(20):
            names = [f'{step % 3}é{k}' for k in range(70)]
            numbers = rng.randint(0, 70, 300).astype('int32')
            table = types.add(''.join(f'{name}\n' for name in names
                                      ).encode())
            types.add_counts(table, word_types.count_types(numbers, 70, table))
            became.append(numbers.tolist())
            if types.too_many:
                became.append(types.prune().tolist())
        return became, types.names, types.counts.tolist()
    for name, most in (('MAX_TYPES', 100), ('MAX_LETTERS', 400)):
        with monkeypatch.context() as patched:
            patched.setattr(word_types, name, most)
            first = types_of()
            with pytest.MonkeyPatch.context() as slow:
                slow.setattr(word_types, 'Names', PlainNames)
                assert types_of() == first
        assert any(-1 in some for some in first[0])


@pytest.mark.parametrize('most', [70, 1 << 21])
@pytest.mark.parametrize('settings', [
    {}, dict(valid_share=0.2), dict(valid_share=0.2, pieces=130)], ids=str)
def test_any_number_of_threads_writes_the_same_bytes(
        tmp_path, monkeypatch, settings, most):
    if 'pieces' in settings:
        pytest.importorskip('tokenizers')
    for module, name, value in ((text_reader, 'BLOCK_BYTES', 900),
                                (cut_text, 'BLOCK_WORDS', 50),
                                (word_types, 'MAX_TYPES', most),
                                (text_store, 'WORDS_AT_A_TIME', 60)):
        monkeypatch.setattr(module, name, value)
    path = write('many', make_wiki(40)[0])
    written = []
    for threads in 1, 2, 5:
        monkeypatch.setenv('D2LBERT_CACHE', 'off')
        monkeypatch.setattr(hardware, 'physical_cores', lambda n=threads: n)
        text = open_corpus(path, min_freq=2, progress=False, **settings)
        written.append([(array.dtype, array.tolist())
                        for part in text[:2] if part for array in (
                            part.types, part.sentences, part.paragraphs,
                            part.articles)] + [text.vocab.idx_to_token])
    assert written[0] == written[1] == written[2]


def test_an_error_of_a_later_stretch_waits_for_its_turn(monkeypatch):
    monkeypatch.setattr(text_reader, 'BLOCK_BYTES', 64)
    monkeypatch.setattr(hardware, 'physical_cores', lambda: 4)
    path = write('bad.txt', b'a . b\n\n' * 40 + b'\xff\n\n' + b'a . b\n\n' * 9
                 + b'\xfe\n\n')
    with pytest.raises(ValueError, match=r'line 81: byte 1 \(0xff\)'):
        open_corpus(path, progress=False)


def test_an_interrupted_cutting_leaves_no_thread_and_no_file(
        monkeypatch, own_cache):
    monkeypatch.setattr(text_reader, 'BLOCK_BYTES', 64)
    monkeypatch.setattr(hardware, 'physical_cores', lambda: 4)

    def interrupt(self, some):
        raise KeyboardInterrupt
    monkeypatch.setattr(CutText, '_add', interrupt)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        open_corpus(write('a.txt', b'a . b\n\n' * 99), progress=False)
    assert threading.active_count() == before
    assert not [path for path in own_cache.iterdir() if path.is_dir()]
