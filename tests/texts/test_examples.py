"""Examples, rows of token ids, and seeds."""
import hashlib
import random

import numpy as onp
import pytest
from batches import assert_same_columns, prose

from d2lbert.texts import numbered_text
from d2lbert.texts.examples import (
    derive_bytes,
    derive_seed,
    derive_shuffler,
    draw_examples,
    pad_rows,
    truncate_pair,
)
from d2lbert.texts.numbered_text import NumberedText, shuffled_paragraphs


def remove_one_by_one(first, second, room, first_loses_ties):
    while first + second > room:
        if first > second or first == second and first_loses_ties:
            first -= 1
        else:
            second -= 1
    return first, second


@pytest.mark.parametrize('odd_to_first', [False, True])
def test_the_longer_text_loses_tokens_first(odd_to_first):
    first, second = (lens.ravel() for lens in onp.mgrid[:9, :9])
    for room in range(9):
        kept = truncate_pair(first, second, room, odd_to_first)
        expected = [remove_one_by_one(a, b, room, not odd_to_first)
                    for a, b in zip(first.tolist(), second.tolist())]
        assert list(zip(*kept)) == expected


def test_rows_are_padded_on_the_right():
    rows = pad_rows([[3, 4, 5], onp.array([6]), []], pad_id=1)
    assert rows.dtype == 'int32'
    assert rows.tolist() == [[3, 4, 5], [6, 1, 1], [1, 1, 1]]
    assert pad_rows([[7], [8, 9]]).tolist() == [[7, 0], [8, 9]]


def test_a_seed_depends_on_every_argument_and_nothing_else():
    seeds = {derive_seed('dropout', seed, step)
             for seed in range(10) for step in range(100)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 1 << 31 for seed in seeds)
    assert derive_seed('a', 1) == derive_seed('a', 1) != derive_seed('a', 2)


def test_the_bits_are_a_hash_that_any_machine_computes():
    assert derive_bytes('rows', 1) == hashlib.sha256(b"('rows', 1)").digest()


def test_a_shuffler_has_its_own_stream():
    first, again, other = (derive_shuffler('chunks', k).permutation(50)
                           for k in (0, 0, 1))
    assert (first == again).all() and (first != other).any()


def drawn(seed=0, **how):
    """(columns, text, state of the generator) of a short text."""
    rng = random.Random(seed)
    tokens = numbered_text.tokens_of_lines(
        prose(60, seed, max_words=12).split('\n'))
    order = shuffled_paragraphs(len(tokens.paragraphs) - 1, rng)
    text = NumberedText.of_tokens(tokens, order, 2)
    return draw_examples(text, order, 24, rng, **how), text, rng.getstate()


@pytest.mark.parametrize('how', [
    {}, dict(swap=True), dict(mask_share=0.4),
    dict(first=10, last=20)], ids=str)
def test_compiled_and_plain_draws_agree(compiled, plain, how):
    columns, _, state = drawn(3, **how)
    plain()
    others, _, other_state = drawn(3, **how)
    assert len(columns.tokens_X) > 10
    assert_same_columns(columns, others)
    assert state == other_state


@pytest.mark.parametrize('way', ['compiled', 'plain'])
def test_swap_exchanges_half_of_the_neighbours(way, request, plain):
    plain() if way == 'plain' else request.getfixturevalue(way)
    swapped = total = 0
    for seed in range(5):
        columns, text, _ = drawn(seed, swap=True)
        ids, ends = text.ids.tolist(), text.sentences.tolist()
        sentences = [tuple(ids[a:b]) for a, b in zip(ends, ends[1:])]
        neighbours = set(zip(sentences, sentences[1:]))
        rows = columns.tokens_X.copy()
        row, k = onp.nonzero(columns.mlm_weights_X)
        rows[row, columns.pred_positions_X[row, k]] = columns.mlm_Y[row, k]
        for tokens, segments, length, in_order in zip(
                rows.tolist(), columns.segments_X, columns.valid_lens_x,
                columns.nsp_y):
            second = int(segments.argmax())
            pair = (tuple(tokens[1:second - 1]),
                    tuple(tokens[second:int(length) - 1]))
            assert (pair if in_order else pair[::-1]) in neighbours
            swapped += not in_order
            total += 1
    assert total > 300 and abs(swapped / total - .5) < .1
