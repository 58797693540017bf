"""Examples from a numbered text: plain and compiled draws, swapped pairs."""
import random

import numpy as onp
import pytest
from batches import assert_same_columns, prose

from d2lbert.texts import numbered_text
from d2lbert.texts.examples import draw_examples
from d2lbert.texts.numbered_text import NumberedText, shuffled_paragraphs


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
