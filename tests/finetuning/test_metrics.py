"""Metrics against sklearn, scipy, cases by hand and second ways to count."""
import collections
import json
import math
import random
import re
import subprocess
from pathlib import Path

import numpy as onp
import pytest

from d2lbert.finetuning import metrics
from d2lbert.finetuning.metrics import entities
from d2lbert.finetuning.tasks.catalog import TASKS
from d2lbert.finetuning.tasks.formats import Answer

ORACLE = '''
import json, sys, warnings
warnings.simplefilter('ignore')
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
print(json.dumps([
    [float(function(a, b)) for function in (
        [accuracy_score, f1_score, matthews_corrcoef] if kind == 'binary' else
        [accuracy_score, matthews_corrcoef] if kind == 'classes' else
        [lambda a, b: pearsonr(a, b)[0], lambda a, b: spearmanr(a, b)[0]])]
    for kind, a, b in json.load(open(sys.argv[1]))]))
'''
FIXTURE = Path(__file__).with_name('metrics.json')
OURS = {'binary': ['accuracy', 'f1', 'matthews'],
        'classes': ['accuracy', 'matthews'],
        'numbers': ['pearson', 'spearman']}


def draws():
    rng = onp.random.RandomState(3)
    for n in (1, 2, 3, 10, 200):
        for k in range(6):
            yield 'binary', rng.randint(0, 2, n), rng.randint(0, 2, n)
            yield 'classes', rng.randint(0, 4, n), rng.randint(0, 5, n)
    yield 'binary', onp.zeros(9, int), onp.zeros(9, int)
    yield 'binary', onp.ones(9, int), onp.arange(9) % 2
    for n in (2, 3, 17, 400):
        for scale in (1, 1e-200, 1e200):
            x = rng.normal(size=n)
            yield 'numbers', x, scale * (x + rng.normal(size=n))
    for n in (4, 17, 400):      # with equals
        yield ('numbers', onp.arange(n) // 2 * 1.,
               onp.append(rng.randint(0, 2 + n // 3, n - 1) * 1., -1.))


def cases():
    """Labels and guesses, as stored in JSON."""
    return [(kind, a.tolist(), b.tolist()) for kind, a, b in draws()]


def check_scores(answers):
    """Metrics equal results of sklearn and scipy."""
    assert len(answers) == len(cases())
    for (kind, a, b), theirs in zip(cases(), answers):
        ours = [metrics.METRICS[name](a, b) for name in OURS[kind]]
        assert ours == pytest.approx(theirs, abs=1e-12), (kind, a, b)


def test_classes_and_numbers_score_as_sklearn_and_scipy_had_it():
    check_scores(json.loads(FIXTURE.read_text()))


def test_classes_and_numbers_score_as_sklearn_and_scipy_have_it(peers_python):
    done = subprocess.run(
        [peers_python, '-c', ORACLE, '/dev/stdin'], stdout=subprocess.PIPE,
        input=json.dumps(cases()), text=True, check=True)
    check_scores(json.loads(done.stdout))


def test_classes_and_numbers_by_hand():
    labels, guesses = [1, 1, 0, 0, 1], [1, 0, 0, 1, 1]
    assert metrics.accuracy(labels, guesses) == .6
    assert metrics.f1(labels, guesses) == pytest.approx(2 / 3)
    assert metrics.f1(labels, guesses, positive=0) == .5
    # (tp tn - fp fn) / sqrt((tp+fp)(tp+fn)(tn+fp)(tn+fn))
    assert metrics.matthews(labels, guesses) == pytest.approx(
        (2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    assert metrics.pearson([1, 2, 3], [1, 2, 4]) == pytest.approx(
        3 / math.sqrt(2 * 42 / 9))
    assert metrics.spearman([1, 2, 3], [5, 6, 1e9]) == 1
    assert metrics.ranks(onp.array([3., 1, 3, 2])).tolist() == [
        3.5, 1, 3.5, 2]


def test_undefined_metrics_are_zero():
    assert metrics.f1([0, 0], [0, 0]) == 0
    assert metrics.matthews([1, 1], [0, 1]) == 0
    assert metrics.matthews([0, 1], [1, 1]) == 0
    for correlation in metrics.pearson, metrics.spearman:
        assert correlation([2, 2, 2], [1, 2, 3]) == 0
        assert correlation([1, 2, 3], [.1, .1, .1]) == 0
        assert correlation([1], [2]) == 0
        assert math.isnan(correlation([1, 2], [3, math.nan]))
    assert metrics.entity_f1([['O']], [['O']]) == 0
    assert metrics.entity_precision([['B-X']], [['O']]) == 0
    assert metrics.entity_recall([['O']], [['B-X']]) == 0
    assert metrics.token_f1([['']], ['']) == 1


@pytest.mark.parametrize('name', sorted(metrics.METRICS))
def test_empty_or_mismatched_input_is_not_scored(name):
    metric = metrics.METRICS[name]
    with pytest.raises(ValueError, match='there are no examples to score'):
        metric([], [])
    some = {'e': [['O'], ['O']], 't': [['O'], ['O']]}.get(
        name[0], [['a'], ['b']] if name == 'exact_match' else [1, 2])
    if name == 'token_f1':
        some = [['a'], ['b']]
    with pytest.raises(ValueError, match='expected'):
        metric(some, some[:1])


def test_each_task_has_metrics_that_are_there():
    for task in TASKS.values():
        assert task.metrics and set(task.metrics) <= set(metrics.METRICS)
    assert metrics.score(TASKS['mrpc'], [1, 0], [1, 1]) == {
        'f1': pytest.approx(2 / 3), 'accuracy': .5}


# Entities

BY_HAND = [
    # IOB2
    ('B-PER I-PER O B-LOC', [('PER', 0, 2), ('LOC', 3, 4)]),
    ('B-PER B-PER I-PER', [('PER', 0, 1), ('PER', 1, 3)]),
    # IOB1: I begins, B only parts neighbours of a type
    ('I-PER I-PER B-PER O I-LOC', [('PER', 0, 2), ('PER', 2, 3),
                                   ('LOC', 4, 5)]),
    ('I-PER I-LOC', [('PER', 0, 1), ('LOC', 1, 2)]),
    ('B-PER I-LOC I-LOC', [('PER', 0, 1), ('LOC', 1, 3)]),
    # BIOES
    ('S-PER B-LOC I-LOC E-LOC S-LOC', [('PER', 0, 1), ('LOC', 1, 4),
                                       ('LOC', 4, 5)]),
    ('E-PER I-PER', [('PER', 0, 1), ('PER', 1, 2)]),
    ('S-PER I-PER E-PER', [('PER', 0, 1), ('PER', 1, 3)]),
    # BILOU, and a type with a hyphen in it
    ('U-geo-loc B-geo-loc L-geo-loc', [('geo-loc', 0, 1),
                                       ('geo-loc', 1, 3)]),
    # Without types, and parts of speech
    ('B I O B', [('', 0, 2), ('', 3, 4)]),
    ('NN NN VBZ', [('NN', 0, 1), ('NN', 1, 2), ('VBZ', 2, 3)]),
    ('O O', []),
    ('', []),
]


@pytest.mark.parametrize('tags, expected', BY_HAND)
def test_entities_by_hand(tags, expected):
    assert entities(tags.split()) == expected


def test_strict_schemes_skip_invalid_entities():
    assert entities('I-X B-X I-X I-Y B-Y'.split(), 'IOB2') == [
        ('X', 1, 3), ('Y', 4, 5)]
    assert entities('B-X I-X S-Y B-X E-Y B-X I-X E-X E-X'.split(),
                    'BIOES') == [('Y', 2, 3), ('X', 5, 8)]
    with pytest.raises(ValueError, match="'S-X' is not of the scheme IOB2"):
        entities(['S-X'], 'IOB2')


def spans_by_borders(tags):
    """Entities by the rules of conlleval: by neighbours, in two tables."""
    begins = {('O', 'I'), ('O', 'E'), ('E', 'E'), ('E', 'I'), ('S', 'E'),
              ('S', 'I')}
    ends = {('B', 'B'), ('B', 'S'), ('B', 'O'), ('I', 'B'), ('I', 'S'),
            ('I', 'O')}
    cut = [('O', None)] + [
        tuple(tag.split('-')) if '-' in tag else (tag, None) for tag in tags
    ] + [('O', None)]
    found, begin = set(), None
    for k, ((p, p_kind), (q, q_kind)) in enumerate(zip(cut, cut[1:])):
        if p != 'O' and (p in 'ES' or (p, q) in ends or p_kind != q_kind):
            found.add((p_kind, begin, k))
        if q != 'O' and (q in 'BS' or (p, q) in begins or p_kind != q_kind):
            begin = k
    return found


def by_pattern(tags, scheme):
    """Strict schemes as regular expressions over a letter a word."""
    found = set()
    for kind in {tag[2:] for tag in tags if tag != 'O'}:
        letters = ''.join(tag[0] if tag[2:] == kind else '.' for tag in tags)
        pattern = {'IOB2': 'BI*', 'BIOES': 'S|BI*E'}[scheme]
        found |= {(kind, match.start(), match.end())
                  for match in re.finditer(pattern, letters)}
    return found


def test_entities_equal_those_of_a_second_implementation():
    rng = random.Random(0)
    for k in range(3000):
        letters = rng.choice(['BIO', 'BIOES', 'IO'])
        tags = [tag if tag[0] != 'O' else 'O' for tag in (
            rng.choice(letters) + rng.choice(['-X', '-Y'])
            for _ in range(rng.randint(0, 8)))]
        assert set(entities(tags)) == spans_by_borders(tags), tags
        for scheme in ('BIOES', *['IOB2'] * (letters != 'BIOES')):
            assert set(entities(tags, scheme)) == by_pattern(tags, scheme)


def test_entity_scores_by_hand():
    labels = [['B-PER', 'I-PER', 'O', 'B-LOC'], ['B-LOC', 'O'], ['O']]
    guesses = [['B-PER', 'O', 'O', 'B-LOC'], ['B-PER', 'O'], ['B-LOC']]
    # One of four guessed is right, and one of three is found
    assert metrics.entity_precision(labels, guesses) == 1 / 4
    assert metrics.entity_recall(labels, guesses) == 1 / 3
    assert metrics.entity_f1(labels, guesses) == pytest.approx(2 / 7)
    assert metrics.tag_accuracy(labels, guesses) == 4 / 7
    with pytest.raises(ValueError, match='sentence 1 has 2 words and 1'):
        metrics.tag_accuracy([['O'], ['O', 'O']], [['O'], ['O']])


# Answers

def test_answers_by_hand():
    assert metrics.normalized(' The "Old"  Mill, an A.B. ') == 'old mill ab'
    assert metrics.normalized('theatre Anna') == 'theatre anna'
    answers = [[Answer('The Old Mill', 3), Answer('Mill', 11)], ['Oslo'],
               ['a b c'], []]
    guesses = ['old mill!', 'Bergen', 'b c d e', '']
    assert metrics.exact_match(answers, guesses) == 2 / 4
    # b c of b c and b c d e: precision 1/2, recall 1, since "a" goes
    assert metrics.token_f1(answers, guesses) == pytest.approx(
        (1 + 0 + 2 / 3 + 1) / 4)
    assert metrics.token_f1([[]], ['something']) == 0
    assert metrics.token_f1([['x x y']], ['x z x']) == pytest.approx(4 / 6)


def test_words_of_answers_are_counted_as_a_second_implementation_does():
    rng = random.Random(1)
    for k in range(500):
        gold, guess = (' '.join(rng.choice(['w', 'x', 'The', 'y.', '-'])
                                for _ in range(rng.randint(0, 6)))
                       for _ in range(2))
        a, b = ([word.strip('.') for word in text.split()
                 if word not in ('The', '-')] for text in (gold, guess))
        left, hits = collections.Counter(a), 0
        for word in b:
            if left[word]:
                left[word] -= 1
                hits += 1
        expected = (float(a == b) if not a or not b else 0 if not hits else
                    2 / (len(a) / hits + len(b) / hits))
        assert metrics.token_f1([[gold]], [guess]) == pytest.approx(expected)
        assert metrics.exact_match([[gold]], [guess]) == float(a == b)


def test_an_answer_of_punctuation_counts_where_it_is_the_only_one():
    for metric in metrics.exact_match, metrics.token_f1:
        assert metric([['.', 'crane']], ['']) == 0
        assert metric([['crane', '.']], ['crane']) == 1
        assert metric([['.']], ['']) == 1
        assert metric([[]], ['']) == 1
        assert metric([[]], ['the !']) == 1
        assert metric([[]], ['crane']) == 0
