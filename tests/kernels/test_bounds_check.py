"""Numbers that point outside of an array: refused by C++ (bounds_check.h)."""
import random
import types

import numpy as onp
import pytest

from d2lbert.corpus import masking
from d2lbert.kernels import cut, draw
from d2lbert.text import RESERVED, Vocab
from d2lbert.texts.examples import draw_examples
from d2lbert.texts.numbered_text import NumberedText


@pytest.fixture(autouse=True)
def library(compiler):
    if draw.library() is None:
        pytest.skip('nothing is compiled')
    return draw.library()


def ints(*numbers):
    return onp.array(numbers, 'int32')


def longs(*numbers):
    return onp.array(numbers, 'int64')


outside = pytest.raises(ValueError, match='points outside of its tables')


@pytest.mark.parametrize('lines', [b'abc', b'a\nb', b'\n' * 4000])
def test_names_are_lines_and_fit(lines):
    with outside:
        cut.Names().add(lines)


def test_each_name_is_kept_or_left_out():
    names = cut.Names()
    assert names.add(b'a\nb\n', onp.array([True, False])).tolist() == [0, -1]
    with outside:
        names.add(b'aa\nbb\ncc\n', onp.array([True]))
    for first in (-1, 9):
        with outside:
            names.text(first)


def pieces(**more):
    return cut.Pieces({'a': 5, 'x': 6, **more}, {'b': 7}, 1, 100, True)


@pytest.mark.parametrize('count', [1, 300])
def test_a_line_feed_in_a_piece_moves_no_number(count):
    # As many as read beyond the end of the numbers, where lines are counted
    damaged = {'x' + '\n' * (k + 1): 100 + k for k in range(count)}
    found = pieces(**damaged, z=9).cut(b'abb\nx\nz\nq\n')
    assert [array.tolist() for array in found] == [
        [3, 1, 1, 1], [5, 7, 7, 6, 9, 1]]


def test_each_piece_has_one_number(library):
    for lines, numbers in ((b'a\n', 2), (b'a\nb\n', 1), (b'a\nb', 1)):
        with outside:
            library.pieces_new(lines, len(lines), ints(*range(numbers)),
                               numbers, b'', 0, ints(), 0, 1, 100, 0,
                               cut.ctypes.c_void_p())
    with outside:
        pieces().cut(b'ab')     # no line


@pytest.mark.parametrize('dtype', ['uint16', 'int32'])
@pytest.mark.parametrize('wrong', [-2, 3, 1 << 30])
def test_tables_have_an_entry_for_each_number(dtype, wrong):
    table = onp.arange(3).astype(dtype)
    assert cut.look_up(table, ints(2, -1)).tolist() == [2, 2]
    with outside:
        cut.look_up(table, ints(0, wrong))
    for numbers in (None, ints(0, 1, 2)):
        with outside:
            cut.count_types(ints(0, wrong), 3, numbers)


@pytest.mark.parametrize('begins, lengths, numbers, ends, size', [
    ([0, -1], [1, 1], [0, 1], [2], 2),      # before the table
    ([0, 2], [1, 3], [0, 1], [2], 4),       # after it
    ([0, 2], [1, -1], [0, 1], [2], 2),
    ([0, 2], [1, 1], [0, 2], [2], 2),       # no such type
    ([0, 2], [1, 1], [0, -1], [2], 2),
    ([0, 2], [1, 2], [0, 1], [2], 2),       # more numbers than expected
    ([0, 2], [1, 1], [0, 1], [3], 2),       # an end after the last type
    ([0, 2], [1, 1], [0, 1], [2, 1], 2)])
@pytest.mark.parametrize('dtype', ['uint16', 'int32'])
def test_numbers_are_spread_within_their_arrays(dtype, begins, lengths,
                                                numbers, ends, size):
    table = onp.arange(4 + cut.SPARE).astype(dtype)
    arguments = longs(0, 2), ints(1, 2), ints(0, 1), longs(2), 3
    assert cut.spread(table, *arguments)[0].tolist() == [0, 2, 3]
    with outside:
        cut.spread(table, longs(*begins), ints(*lengths), ints(*numbers),
                   longs(*ends), size)


@pytest.mark.parametrize('dtype', ['uint16', 'int32'])
@pytest.mark.parametrize('numbers, lengths', [
    ([0, 1, 2], [3]), ([0, 1, 1], [2, 2]), ([0, 1, 1], [4, -1])])
def test_first_places_are_those_of_known_words(dtype, numbers, lengths):
    with outside:
        cut.first_places(onp.array(numbers, dtype), longs(*lengths),
                         longs(*([0] * len(lengths))), longs(9, 9))


def corpus(**changed):
    """Four paragraphs of three sentences of two words, or something else."""
    vocab = Vocab([['a', 'b']] * 5, min_freq=1, reserved_tokens=RESERVED)
    arrays = dict(types=onp.arange(24, dtype='uint16') % 2,
                  numbers=onp.array(vocab[['a', 'b']], 'int32'),
                  sentences=onp.arange(0, 25, 2),
                  paragraphs=onp.arange(0, 13, 3))
    for name, (place, value) in changed.items():
        arrays[name][place] = value
    return NumberedText(vocab=vocab, **arrays)


@pytest.mark.parametrize('changed', [
    dict(types=(5, 2)), dict(numbers=(0, 99)), dict(numbers=(1, -1)),
    dict(sentences=(4, -10 ** 6)),
    dict(sentences=(slice(11, 13), [10 ** 7, 10 ** 7 + 2])),
    dict(sentences=(5, 1 << 62)), dict(paragraphs=(1, 10 ** 8)),
    dict(paragraphs=(2, 3)), dict(paragraphs=(1, -3))])
def test_examples_are_drawn_within_a_text(changed):
    order = onp.arange(4, dtype='int32')
    draw_examples(corpus(), order, 16, random.Random(0))
    with outside:
        # Each number is come upon sooner or later
        for seed in range(50):
            draw_examples(corpus(**changed), order, 16, random.Random(seed))


@pytest.mark.parametrize('place, wrong', [(0, -1), (3, 4)])
def test_an_order_of_unknown_paragraphs_is_refused(place, wrong):
    order = onp.arange(4, dtype='int32')
    order[place] = wrong
    text = corpus()
    with outside:
        draw.draw_pairs(order, 0, 0, text.paragraphs, text.sentences, 16,
                        random.Random(0))
        for seed in range(50):
            draw.library().draw_pairs(
                onp.array(random.Random(seed).getstate()[1], 'uint32'), 4,
                order, 0, 4, text.paragraphs, 4, text.sentences, 12, 16, 0,
                onp.empty((8, 4), 'int64'), onp.empty(8, 'uint8'), 8,
                cut.ctypes.c_int64())


@pytest.mark.parametrize('rows, parts', [
    ([0, 2], [[0, 2]]), ([1, 0], [[0, 2]]), ([0, 1], [[0, 25]]),
    ([0, 1], [[-1, 2]]), ([0, 1], [[4, 2]]), ([0, 1], [[0, 20]])])
def test_spans_are_hidden_within_rows(rows, parts):
    text = corpus()
    text = types.SimpleNamespace(
        types=text.types, numbers=text.numbers, vocab=text.vocab,
        gather=lambda parts: (text.types, parts))
    arguments = longs(0, 1), longs([0, 2])
    masking.mask_spans(text, *arguments, masking.SPANBERT, 16,
                       random.Random(0))
    with outside:
        masking.mask_spans(text, longs(*rows), longs(*parts),
                           masking.SPANBERT, 16, random.Random(0))
