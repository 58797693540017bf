"""Words hidden one by one and in spans, in rows of full sentences."""
import copy
import random

import numpy as onp
import pytest
from texts import make_wiki, write

from d2lbert.corpus.corpus import open_corpus
from d2lbert.corpus.masking import (
    SINGLE_TOKENS,
    SPANBERT,
    WHOLE_WORDS,
    MaskedRows,
    SpanMasking,
    geometric,
    mask_spans,
)
from d2lbert.corpus.stored_text import full_sentences
from d2lbert.kernels import draw
from d2lbert.text import CLS, MASK, PAD, RESERVED, SEP

NUM_TOKENS = 100_000


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    """A text of more than 100,000 words, some of them special tokens."""
    rng = random.Random(0)
    words = [f'w{k}' for k in range(800)]
    lines = []
    for article in range(150):
        lines.append(f' \n = Title {article} = \n ')
        lines += [' ' + ' . '.join(
            ' '.join(rng.choice(words) if rng.random() > 0.002
                     else rng.choice([MASK, SEP, CLS, PAD])
                     for _ in range(rng.randint(1, 30)))
            for _ in range(rng.randint(2, 9))) + ' . '
            for _ in range(rng.randint(1, 20))]
    path = write(tmp_path_factory.mktemp('text') / 'text',
                 '\n'.join(lines) + '\n')
    return open_corpus(path, min_freq=1, progress=False)


def rows_of(text, spans, max_len=64, **how):
    """All rows of an epoch, `MaskedRows` columns."""
    return MaskedRows(*map(onp.concatenate, zip(*(
        batch for _, batch in text.train.batches(
            500, max_len, spans=spans, **{'seed': 1, **how})))))


def spans_of(rows):
    """(row, begin, end) of each span; each begins left and ends right of it.
    """
    found = set()
    for row, k in zip(*onp.nonzero(rows.mlm_weights_X)):
        begin, end = rows.left_X[row, k] + 1, rows.right_X[row, k]
        assert begin <= rows.pred_positions_X[row, k] < end
        found.add((row, begin, end))
    assert sum(end - begin for _, begin, end in found) == (
        rows.mlm_weights_X.sum())
    return sorted(found)


def restored(rows):
    tokens = rows.tokens_X.copy()
    row, k = onp.nonzero(rows.mlm_weights_X)
    tokens[row, rows.pred_positions_X[row, k]] = rows.mlm_Y[row, k]
    return tokens


def in_pieces(text, begins_word):
    """The text as if some of its words only went on with the one before."""
    vocab = copy.copy(text.vocab)
    vocab.begins_word = begins_word
    vocab.mask_flags = onp.where(begins_word, 0, draw.GOES_ON).astype('uint8')
    vocab.mask_flags[vocab[RESERVED]] = draw.FIXED
    vocab.replacement_ids = onp.flatnonzero(
        vocab.mask_flags != draw.FIXED).astype('int32')
    train = copy.copy(text.train)
    train.kept = text.train     # or its file is closed
    train.vocab = vocab
    return text._replace(train=train, vocab=vocab)


def of_kind(kind, text):
    """(SpanMasking, text): what is hidden, and in what."""
    if kind.endswith('pieces'):
        text = in_pieces(text, onp.random.RandomState(3).rand(
            len(text.vocab)) > 0.4)
    spans = {'tokens': SINGLE_TOKENS, 'spans': SPANBERT,
             'spans of pieces': SPANBERT, 'words of pieces': WHOLE_WORDS}
    return spans[kind], text


KINDS = ['tokens', 'spans', 'spans of pieces', 'words of pieces']


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('max_len', [9, 40])
def test_compiled_and_plain_spans_agree(compiled, plain, kind, max_len):
    path = write('small', make_wiki(60)[0])
    text = open_corpus(path, min_freq=1, progress=False)
    spans, text = of_kind(kind, text)

    def drawn():
        rng = random.Random(5)
        rows, parts = full_sentences(text.train, 0, 1, max_len, rng)
        return (*mask_spans(text.train, rows, parts, spans, max_len, rng),
                rng.random())
    ours = drawn()
    plain()
    for a, b in zip(ours, drawn()):
        assert onp.asarray(a).dtype == onp.asarray(b).dtype
        onp.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('kind', KINDS)
def test_fifteen_per_cent_are_masked(text, kind):
    spans, text = of_kind(kind, text)
    rows = rows_of(text, spans)
    assert rows.valid_lens_x.sum() > NUM_TOKENS
    hidden = rows.mlm_weights_X.sum()
    # The last row may owe a span
    assert 0 <= hidden - 0.15 * rows.valid_lens_x.sum() <= 30
    # ... and each row has about its own share
    for lens, count in zip(rows.valid_lens_x, rows.mlm_weights_X.sum(1)):
        assert abs(count - 0.15 * lens) <= (
            1 if kind == 'tokens' else 10 if kind == 'spans' else 30)


def test_lengths_of_spans_obey_the_geometric_law(text):
    lengths = [end - begin for _, begin, end in spans_of(
        rows_of(text, SPANBERT))]
    law = [0.2 * 0.8 ** k for k in range(10)]
    law = onp.array(law) / sum(law)
    assert SPANBERT.length_probs == pytest.approx(law)
    assert len(SPANBERT.length_probs) == 10
    mean = (law * onp.arange(1, 11)).sum()
    assert mean == pytest.approx(3.8, abs=0.01)
    n = len(lengths)
    assert n > 0.15 * NUM_TOKENS / 4
    assert onp.mean(lengths) == pytest.approx(mean, abs=5 * 2.7 / n ** 0.5)
    counts = onp.bincount(lengths, minlength=11)
    assert counts[0] == 0 and len(counts) == 11
    # Chi-square with 9 degrees of freedom: 33.7 with probability 0.0001
    assert ((counts[1:] - n * law) ** 2 / (n * law)).sum() < 33.7


@pytest.mark.parametrize('kind', KINDS)
def test_a_span_is_masked_replaced_or_kept_as_a_whole(text, kind):
    spans, text = of_kind(kind, text)
    rows, count = rows_of(text, spans), {}
    mask, before = text.vocab[MASK], restored(rows)
    sizes, kept_by_chance = onp.zeros(3), 0
    for row, begin, end in spans_of(rows):
        now, was = rows.tokens_X[row, begin:end], before[row, begin:end]
        if (now == was).all():
            fate = 'kept'
        elif (now == mask).all():
            fate = 'masked'
        else:
            fate = 'random'
            kept_by_chance += (now == was).sum() + (now == mask).sum()
        count[fate] = count.get(fate, 0) + 1
        sizes[['masked', 'kept', 'random'].index(fate)] += end - begin
    n = sum(count.values())
    for fate, share in (('masked', 0.8), ('kept', 0.1), ('random', 0.1)):
        # 5 standard deviations; 1 in 800 random words is the one before
        assert abs(count[fate] / n - share) < 5 * (
            share * (1 - share) / n) ** 0.5 + 0.001
    assert sizes / sizes.sum() == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    # Each token of a span has a random word of its own
    assert kept_by_chance < 30


@pytest.mark.parametrize('kind', KINDS)
def test_special_tokens_are_never_masked(text, kind):
    spans, text = of_kind(kind, text)
    rows = rows_of(text, spans)
    special = text.vocab[[CLS, SEP, MASK, PAD]]
    hidden = rows.mlm_Y[rows.mlm_weights_X > 0]
    assert not onp.isin(hidden, special).any()
    before = restored(rows)
    # They are in the text, too
    assert (before == special[2]).sum() > 20
    assert (before[:, 0] == special[0]).all()
    for row, begin, end in spans_of(rows):
        assert end < rows.valid_lens_x[row]
        assert not onp.isin(before[row, begin:end], special).any()


def test_all_words_are_masked_with_the_same_probability(text):
    hidden = onp.zeros(64)
    for epoch in range(5):
        rows = rows_of(text, SINGLE_TOKENS, epoch=epoch)
        full = rows.valid_lens_x >= 60
        row, k = onp.nonzero(rows.mlm_weights_X * full[:, None])
        hidden += onp.bincount(rows.pred_positions_X[row, k], minlength=64)
    assert hidden[0] == 0
    inner = hidden[1:58]
    assert abs(inner / inner.mean() - 1).max() < 5 / inner.mean() ** 0.5


def test_spans_do_not_touch(text):
    for kind in ('spans', 'spans of pieces'):
        spans, its_text = of_kind(kind, text)
        found = spans_of(rows_of(its_text, spans))
        for (row, _, end), (next_row, begin, _) in zip(found, found[1:]):
            assert row != next_row or end < begin


@pytest.mark.parametrize('kind', ['spans of pieces', 'words of pieces'])
def test_spans_are_of_whole_words(text, kind):
    spans, text = of_kind(kind, text)
    rows = rows_of(text, spans)
    before, special = restored(rows), text.vocab[[CLS, SEP, MASK, PAD]]
    begins, lengths = text.vocab.begins_word, []
    for row, begin, end in spans_of(rows):
        words = begins[before[row, begin:end]]
        # The rest of a word may begin a row whose sentence was cut, and
        # follow what is special; nothing else
        assert words[0] or onp.isin(before[row, begin - 1], special)
        assert onp.isin(before[row, end], special) or begins[
            before[row, end]]
        lengths.append(max(1, words.sum() + (not words[0])))
        assert end - begin <= spans.max_tokens(text.vocab)
    if kind == 'words of pieces':
        assert set(lengths) == {1}
    else:
        assert max(lengths) == 10
        assert onp.mean(lengths) == pytest.approx(3.8, abs=0.2)


def test_a_word_of_too_many_pieces_is_left_alone():
    path = write('one', 'x ' + 'y ' * 29 + '. x a b .\n')
    text = open_corpus(path, min_freq=1, progress=False)
    text = in_pieces(text, onp.array(
        [token != 'y' for token in text.vocab.idx_to_token]))
    assert WHOLE_WORDS.max_tokens(text.vocab) == 21
    for seed in range(20):
        rows = rows_of(text, WHOLE_WORDS, 40, seed=seed)
        y = text.vocab['y']
        assert rows.mlm_weights_X.sum() and not (rows.mlm_Y == y).any()


def test_rows_too_short_for_a_span_have_shorter_ones():
    path = write('short', 'a b . c .\n')
    text = open_corpus(path, min_freq=1, progress=False)
    always_ten = SpanMasking((0.0,) * 9 + (1.0,), True, True)
    rows = rows_of(text, always_ten, 40)
    assert spans_of(rows) in ([(0, 1, 5)], [(0, 1, 4)])
    rows = rows_of(text, always_ten, 5)
    assert rows.mlm_weights_X.sum(1).max() <= 3


def test_probabilities_are_truncated_and_scaled():
    assert geometric(0.5, 2) == pytest.approx((2 / 3, 1 / 3))
    assert sum(geometric(0.2, 10)) == pytest.approx(1)
