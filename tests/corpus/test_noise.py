"""Noise in rows of full sentences: what is read, and what was there."""
import random

import numpy as onp
import pytest
from test_spans import NUM_TOKENS, in_pieces
from test_spans import text as make_text
from texts import make_wiki, write

from d2lbert.corpus.corpus import open_corpus
from d2lbert.corpus.masking import (
    INFILLING,
    LENGTH_PROBS,
    Noise,
    NoisyRows,
    poisson,
)
from d2lbert.corpus.stored_text import full_sentences
from d2lbert.text import CLS, MASK, PAD, SEP

text = make_text        # a fixture
TOKEN_KINDS = ['masking', 'deletion', 'infilling']


def rows_of(text, kinds, max_len=128, whole_words=False, **how):
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
        return (*Noise(tuple(kind.split('+'))).drawn(
            corpus, rows, parts, 40, rng, 0.3), rng.random())
    ours = drawn()
    plain()
    for a, b in zip(ours, drawn()):
        onp.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('kind', ['masking', 'deletion'])
def test_thirty_per_cent_are_masked_or_deleted(text, kind):
    rows, mask = rows_of(text, kind), text.vocab[MASK]
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
    rows = rows_of(text, 'infilling')
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
    assert LENGTH_PROBS == pytest.approx(law)
    assert LENGTH_PROBS == poisson(3, 10)
    assert sum(INFILLING.length_probs) == pytest.approx(1)
    counts = onp.bincount(lengths, minlength=11)
    assert len(counts) == 11
    assert onp.mean(lengths) == pytest.approx(3, abs=0.05)
    for k, share in enumerate(law):
        # A long one that finds no room is drawn shorter
        assert abs(counts[k] / n - share) < (
            5 * (share * (1 - share) / n) ** 0.5 + 0.003)


def test_thirty_per_cent_are_in_spans(text):
    rows, mask = rows_of(text, 'infilling'), text.vocab[MASK]
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
    rows = list(zip(*both(rows_of(text, 'sentences'))))
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
        rows = rows_of(text, kind)
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
    rows = rows_of(text, 'deletion', whole_words=True)
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
    one, same = (rows_of(text, 'infilling+sentences', epoch=2)
                 for _ in range(2))
    other = rows_of(text, 'infilling+sentences', epoch=3)
    for a, b in zip(one, same):
        onp.testing.assert_array_equal(a, b)
    assert one.tokens_X.shape != other.tokens_X.shape or (
        one.tokens_X != other.tokens_X).any()
