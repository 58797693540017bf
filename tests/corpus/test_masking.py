"""Rows of one text: masked tokens, words and spans, and noise."""
import copy
import random

import numpy as onp
import pytest
from texts import make_wiki, write

from d2lbert.corpus.corpus import open_corpus
from d2lbert.corpus.masking import (
    INFILLING,
    POISSON_PROBS,
    SINGLE_TOKENS,
    SPANBERT,
    WHOLE_WORDS,
    MaskedRows,
    Noise,
    NoisyRows,
    SpanMasking,
    geometric,
    mask_spans,
    poisson,
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


TOKEN_KINDS = ['masking', 'deletion', 'infilling']


def noisy_rows(text, kinds, max_len=128, whole_words=False, **how):
    """All rows of an epoch, `NoisyRows` columns."""
    noise = Noise(tuple(kinds.split('+')), whole_words)
    return NoisyRows(*map(onp.concatenate, zip(*(
        batch for _, batch in text.train.batches(
            500, max_len, spans=noise,
            **{'seed': 1, 'mask_share': 0.3, **how})))))


def lists(tokens, lens):
    return [row[:int(n)].tolist() for row, n in zip(tokens, lens)]


def both(rows):
    """Noisy and original rows, two lists."""
    return (lists(rows.tokens_X, rows.valid_lens_x),
            lists(rows.targets_Y, rows.target_lens_y))


def aligned(read, there, mask):
    """The number of tokens that each mask of a row replaces, or None.

    The row's other tokens are those that were there, in their order; where a
    mask could stand for several runs there is None.
    """
    lengths, at = [], 0
    for k, token in enumerate(read):
        if token != mask:
            if at < len(there) and there[at] == token:
                at += 1
                continue
            return None
        # The run up to where the next tokens that were kept come again
        kept = []
        for other in read[k + 1:]:
            if other == mask:
                break
            kept.append(other)
        found = [n for n in range(0, 30) if there[at + n:at + n + len(kept)]
                 == kept and kept]
        if len(found) != 1:
            return None
        lengths.append(found[0])
        at += found[0]
    return lengths if at == len(there) else None


@pytest.mark.parametrize('kind', [*TOKEN_KINDS, 'infilling+sentences'])
def test_compiled_and_plain_noise_agree(compiled, plain, kind):
    corpus = open_corpus(write('small', make_wiki(60)[0]), min_freq=1,
                         progress=False).train

    def drawn():
        rng = random.Random(5)
        rows, parts = full_sentences(corpus, 0, 1, 40, rng)
        return (*Noise(tuple(kind.split('+'))).draw_rows(
            corpus, rows, parts, 40, rng, 0.3), rng.random())
    ours = drawn()
    plain()
    for a, b in zip(ours, drawn()):
        onp.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('kind', ['masking', 'deletion'])
def test_thirty_per_cent_are_masked_or_deleted(text, kind):
    rows, mask = noisy_rows(text, kind), text.vocab[MASK]
    total = rows.target_lens_y.sum()
    assert total > NUM_TOKENS
    read, there = both(rows)
    if kind == 'masking':
        gone = [sum(a != b for a, b in zip(*pair))
                for pair in zip(read, there)]
        for a, b in zip(read, there):
            assert len(a) == len(b)
            assert all(x in (mask, y) for x, y in zip(a, b))
    else:
        gone = [len(b) - len(a) for a, b in zip(read, there)]
        for a, b in zip(read, there):
            rest = iter(b)
            assert all(token in rest for token in a)    # in their order
    assert 0 <= sum(gone) - 0.3 * total <= 1
    for count, row in zip(gone, there):
        assert abs(count - 0.3 * len(row)) <= 1


def test_spans_are_as_long_as_poisson_s_law_says(text):
    # Where only one run of words fits, the mask replaces that run
    rows = noisy_rows(text, 'infilling')
    mask = text.vocab[MASK]
    lengths, count = [], 0
    for read, there in zip(*both(rows)):
        if mask in there:       # the text has some of its own
            continue
        count += len(there)
        lengths += aligned(read, there, mask) or []
    n = len(lengths)
    assert count > 0.8 * NUM_TOKENS and n > 0.05 * NUM_TOKENS
    law = onp.array([onp.exp(-3) * 3 ** k / onp.prod(onp.arange(1.0, k + 1))
                     for k in range(11)])
    law /= law.sum()
    assert POISSON_PROBS == pytest.approx(law)
    assert POISSON_PROBS == poisson(3, 10)
    assert sum(INFILLING.length_probs) == pytest.approx(1)
    counts = onp.bincount(lengths, minlength=11)
    assert len(counts) == 11
    assert onp.mean(lengths) == pytest.approx(3, abs=0.05)
    for k, share in enumerate(law):
        # A long one that finds no room is drawn shorter
        assert abs(counts[k] / n - share) < (
            5 * (share * (1 - share) / n) ** 0.5 + 0.003)


def test_thirty_per_cent_are_in_spans(text):
    rows, mask = noisy_rows(text, 'infilling'), text.vocab[MASK]
    total = rows.target_lens_y.sum()
    masks = sum(row.count(mask) for row in both(rows)[0])
    masks -= sum(row.count(mask) for row in both(rows)[1])
    gone = total - rows.valid_lens_x.sum() + masks      # words in spans
    assert gone / total == pytest.approx(0.3, abs=0.005)
    # ... in spans of 3 on average, including empty spans
    assert gone / masks == pytest.approx(3, abs=0.05)


def test_sentences_come_in_another_order_and_stay_whole(text):
    ids, ends = text.train.ids.tolist(), text.train.sentences.tolist()
    known = {tuple(ids[a:b]) for a, b in zip(ends, ends[1:])}
    sep, moved, sentences, left = text.vocab[SEP], 0, 0, 0
    rows = list(zip(*both(noisy_rows(text, 'sentences'))))
    for a, b in rows:
        assert sorted(a) == sorted(b)
        a, b = cut(a[1:], sep), cut(b[1:], sep)
        if list(map(sorted, a)) != list(map(sorted, b)):
            left += 1           # one in 2,000 words is a <sep>, too
            continue
        for part, was in zip(map(spelt, a), b):
            place, begin = 0, 0
            while begin < len(was) - 1:
                n = max((n for n in range(1, 40)
                         if tuple(was[begin:begin + n]) in known), default=0)
                if not n:
                    break       # one that has a <sep> in it
                sentence = spelt(was[begin:begin + n])
                assert sentence in part
                sentences += 1
                moved += not part[place:].startswith(sentence)
                place, begin = place + len(sentence) - 1, begin + n
    # No sentence leaves its article
    assert sentences > 5000 and left < 0.1 * len(rows)
    assert moved > 0.6 * sentences      # some parts have few


def spelt(tokens):
    """A list as a text in which other lists can be looked for."""
    return ''.join(f' {token}' for token in tokens) + ' '


def cut(tokens, stop):
    """Lists of tokens, each up to a stop."""
    found = [[]]
    for token in tokens:
        found[-1].append(token)
        if token == stop:
            found.append([])
    return found


def test_special_tokens_are_kept(text):
    cls, sep, pad, mask = text.vocab[[CLS, SEP, PAD, MASK]]
    for kind in (*TOKEN_KINDS, 'infilling+sentences'):
        rows = noisy_rows(text, kind)
        for read, there in zip(*both(rows)):
            assert read[0] == cls and read[-1] in (sep, mask)
            assert read.count(sep) == there.count(sep)
        assert (rows.targets_Y[:, 0] == cls).all()
        for tokens, lens in (rows.tokens_X, rows.valid_lens_x), (
                rows.targets_Y, rows.target_lens_y):
            padding = onp.arange(tokens.shape[1]) >= lens[:, None]
            assert (tokens[padding] == pad).all()


def test_words_in_pieces_are_deleted_whole(text):
    text = in_pieces(text, onp.random.RandomState(3).rand(
        len(text.vocab)) > 0.4)
    begins = text.vocab.begins_word
    rows = noisy_rows(text, 'deletion', whole_words=True)
    words = {tuple(word) for row in lists(
        rows.targets_Y, rows.target_lens_y) for word in in_words(row, begins)}
    odd = total = 0
    for row in lists(rows.tokens_X, rows.valid_lens_x):
        for word in in_words(row, begins):
            total += 1
            odd += tuple(word) not in words
    assert not odd and total > 10_000


def in_words(row, begins):
    """The words of a row, lists of pieces; the first may be the rest of one.
    """
    found = [[]]
    for token in row:
        if begins[token] or token < 5:
            found.append([])
        found[-1].append(token)
    return [word for word in found[1:] if begins[word[0]] and word[0] >= 5]


def test_noise_depends_only_on_seed_and_epoch(text):
    one, same = (noisy_rows(text, 'infilling+sentences', epoch=2)
                 for _ in range(2))
    other = noisy_rows(text, 'infilling+sentences', epoch=3)
    for a, b in zip(one, same):
        onp.testing.assert_array_equal(a, b)
    assert one.tokens_X.shape != other.tokens_X.shape or (
        one.tokens_X != other.tokens_X).any()
