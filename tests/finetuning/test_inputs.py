"""Examples in batches: each in one, like lengths together."""
import models
import numpy as onp
import pytest

from d2lbert.finetuning.batches import (
    MAX_EXAMPLES,
    MAX_TOKENS,
    Batch,
    Inputs,
    batch_of,
    scoring_batches,
    shuffled_batches,
)
from d2lbert.finetuning.objective import FineTuning
from d2lbert.finetuning.task_kinds import AnswerCodec
from d2lbert.finetuning.tasks.formats import Answer, Questions
from d2lbert.pretrained.heads import About
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords
from d2lbert.text import RESERVED, Vocab

LENS = onp.random.RandomState(0).randint(2, 60, 203)


@pytest.mark.parametrize('bucket', [1, 4, 1000])
def test_an_epoch_has_each_example_once(bucket):
    batches = shuffled_batches(LENS, 16, bucket, 1, 0)
    assert sorted(onp.concatenate(batches)) == list(range(203))
    sizes = sorted(map(len, batches))
    assert sizes == [203 % 16] + [16] * (203 // 16)


def test_the_seed_and_the_epoch_decide_the_batches():
    def drawn(*seed):
        return [list(some) for some in shuffled_batches(LENS, 16, 4, *seed)]
    assert drawn(1, 0) == drawn(1, 0)
    assert drawn(1, 0) != drawn(1, 1)
    assert drawn(1, 0) != drawn(2, 0)


def test_bucketing_leaves_less_to_be_padded():
    def padded(bucket):
        return sum(len(some) * LENS[some].max() - LENS[some].sum()
                   for some in shuffled_batches(LENS, 16, bucket, 1, 0))
    assert padded(8) < 0.5 * padded(1)


def test_batches_of_like_lengths_do_not_come_by_length():
    means = [LENS[some].mean()
             for some in shuffled_batches(LENS, 16, 1000, 1, 0)]
    assert means not in (sorted(means), sorted(means, reverse=True))


def test_batches_for_scoring_are_complete_and_bounded():
    lens = onp.concatenate([LENS, [MAX_TOKENS + 1, MAX_TOKENS, 1]])
    groups = list(scoring_batches(lens))
    assert sorted(onp.concatenate(groups)) == list(range(len(lens)))
    for some in groups:
        assert len(some) == 1 or (len(some) <= MAX_EXAMPLES
                                  and lens[some].sum() <= MAX_TOKENS)


@pytest.mark.parametrize('kind', models.LABELS)
def test_a_batch_is_the_examples_side_by_side(kind):
    whole = models.batch(kind)
    inputs = Inputs(*[[row[:n] for row, n in zip(X, whole.valid_lens_x)]
                      for X in whole[:2]],
                    [row[:n] for row, n in zip(whole.labels_Y,
                                               whole.valid_lens_x)]
                    if kind == 'tag' else whole.labels_Y)
    for a, b in zip(batch_of(inputs, range(4)), whole):
        onp.testing.assert_array_equal(a, b)
    # Of tags that are all as long, too
    some = batch_of(inputs, [2, 2])
    onp.testing.assert_array_equal(some.labels_Y, [
        whole.labels_Y[2][:5] if kind == 'tag' else whole.labels_Y[2]] * 2)


def test_a_part_of_a_batch_weighs_by_its_tagged_words():
    objective = object.__new__(FineTuning)
    batch = Batch(*3 * [onp.zeros((2, 4), 'int32')],
                  onp.array([[-1, 2, 0, -1], [-1, 1, -1, -1]]))
    for kind, count in ('tag', 3), ('classify', 2), ('span', 2):
        objective.about = About('', kind, None, (), (), 9, 4, False, 0.1)
        assert objective.counts(batch) == (count,)


def test_questions_with_lost_answers_are_neither_learnt_nor_in_the_loss():
    about = About('', 'span', True, None, (), 12, 4, False, 0.1)
    words = WholeWords(Vocab([['a', 'crane', 'flies']],
                             reserved_tokens=RESERVED))
    data = Questions(['a', 'a'], ['crane flies', 'crane flies'],
                     [[Answer('crane', 0)], [Answer('x', None)]], ['1', '2'],
                     False, 1, 'x.json')
    kind = AnswerCodec(about, words)
    assert len(kind.inputs(data, training=True).tokens) == 1
    dev = kind.inputs(data)
    assert [label.tolist() for label in dev.labels] == [[3, 3], [-1, -1]]
    first = onp.random.RandomState(0).normal(size=(6, 2)).astype('float32')
    shares = onp.exp(first) / onp.exp(first).sum(axis=0)
    for other in first, 9 * first:      # of which the loss knows nothing
        assert kind.loss([first, other], dev) == pytest.approx(
            -onp.log(shares[3]).mean(), rel=1e-5)
