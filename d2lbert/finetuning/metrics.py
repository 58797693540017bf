"""Compute the metrics of labelled tasks, as each task's authors define them.

The best value of a metric is 1 (not 100). Without examples, metrics raise
ValueError. Metrics of classes and numbers are GLUE's (Wang et al. 2018, table
1). Metrics of entities are from the script conlleval of CoNLL-2000 and 2003.
Metrics of answers are from the scripts of SQuAD 1.1 and 2.0. labels: the true
values; guesses: the predictions; N: the number of examples.
"""
import collections
import re
import string

import numpy as onp


def score(task, labels, guesses):
    """The metrics of a task: {name: value}, in the order of `task.metrics`.

    task: a `Task` (tasks/catalog.py). labels, guesses: for 'classify' class
    indices; for 'choice' indices of endings; for 'regress' numbers; for 'tag'
    a list of tag names for each sentence. For 'span', a label is a list of
    answers, each an `Answer` (tasks/formats.py) or a str; a guess is a str.
    """
    return {name: METRICS[name](labels, guesses) for name in task.metrics}


def _checked_arrays(labels, guesses):
    """Return labels and guesses as arrays (N,), N > 0, or raise ValueError."""
    labels, guesses = onp.asarray(labels), onp.asarray(guesses)
    if labels.ndim != 1 or labels.shape != guesses.shape:
        raise ValueError('expected one guess for each label, got shapes '
                         f'{guesses.shape} and {labels.shape}')
    _check_not_empty(labels)
    return labels, guesses


def _check_not_empty(labels):
    if not len(labels):
        raise ValueError('there are no examples to score')


# Classes

def accuracy(labels, guesses):
    """Fraction of correct guesses. labels, guesses: (N,)."""
    labels, guesses = _checked_arrays(labels, guesses)
    return float((labels == guesses).mean())


def f1(labels, guesses, positive=1):
    """F1 of the class `positive`; 0 without a true positive.

    labels, guesses: (N,).
    """
    labels, guesses = _checked_arrays(labels, guesses)
    is_actual, is_predicted = labels == positive, guesses == positive
    return _f1((is_actual & is_predicted).sum(), is_predicted.sum(),
               is_actual.sum())


def _f1(hits, predicted, actual):
    """F1 of the numbers of true positives, predicted and actual positives."""
    return float(2 * hits / (predicted + actual)) if hits else 0.0


def matthews(labels, guesses):
    """Matthews' correlation coefficient, for C >= 2 classes.

    labels, guesses: (N,). Returns 0 if all labels or all guesses are equal.
    The definition for more than two classes is from Gorodkin 2004, "Comparing
    two K-category assignments by a K-category correlation coefficient".
    """
    labels, guesses = _checked_arrays(labels, guesses)
    classes = onp.union1d(labels, guesses)[:, None]
    is_actual, is_predicted = classes == labels, classes == guesses  # (C, N)
    N, hits = labels.size, float((labels == guesses).sum())
    actual = is_actual.sum(1).astype('f8')                          # (C,)
    predicted = is_predicted.sum(1).astype('f8')
    # The covariance of labels and guesses, times N^2
    covariance = N * hits - actual @ predicted
    # The product of their variances, times N^4. After the root, N^2 cancels
    variances = (N * N - actual @ actual) * (N * N - predicted @ predicted)
    return float(covariance / variances ** 0.5) if variances else 0.0


# Numbers

def pearson(labels, guesses):
    """Pearson's correlation coefficient of numbers, (N,).

    Returns 0 if all labels or all guesses are equal, and nan if a number is
    not finite.
    """
    arrays = [x.astype('f8') for x in _checked_arrays(labels, guesses)]
    if not all(onp.isfinite(x).all() for x in arrays):
        return float('nan')
    if any((x == x[0]).all() for x in arrays):
        return 0.0
    deviations = [x - x.mean() for x in arrays]
    # Divide by the maximum first, so that squares do not overflow
    x, y = (d / onp.abs(d).max() for d in deviations)
    r = (x @ y) / ((x @ x) * (y @ y)) ** 0.5
    return float(min(max(r, -1.0), 1.0))    # |r| may exceed 1 by rounding


def spearman(labels, guesses):
    """Spearman's correlation coefficient: `pearson` of the `ranks`.

    Returns 0 if all labels or all guesses are equal, and nan if a number is
    nan. Infinities have ranks like other numbers.
    """
    arrays = [x.astype('f8') for x in _checked_arrays(labels, guesses)]
    if any(onp.isnan(x).any() for x in arrays):
        return float('nan')
    return pearson(*map(ranks, arrays))


def ranks(x):
    """Ranks (N,) of the numbers x (N,), from 1; ties get their mean rank."""
    _, inverse, counts = onp.unique(x, return_inverse=True, return_counts=True)
    # The last rank of the k-th distinct number is onp.cumsum(counts)[k]
    mean_ranks = onp.cumsum(counts) - (counts - 1) / 2
    return mean_ranks[inverse.reshape(-1)]


# Entities. A tag such as B-PER is a letter and an entity type. The letters are
# B for the first word of an entity, I for an inner word, E for the last word,
# S for a single word, and O for a word outside entities. Schemes without E and
# S use I for the last word and B for a single word. IOB1 uses I for most first
# words, too

#: {letter of the schemes BILOU or BMES: letter of BIOES with this meaning}
BIOES_LETTERS = {'L': 'E', 'U': 'S', 'M': 'I'}
#: {value of the argument `scheme` of `entities`: letters of the scheme}
SCHEMES = {'IOB2': {*'BIO'}, 'BIOES': {*'BIOES'}}


def entities(tags, scheme=None):
    """The entities of a sentence: a list of (type, begin, end) in words.

    begin is the first word, and end the word after the last. tags: one for
    each word.

    scheme None: the rules of conlleval, for IOB1, IOB2, BIOES, BILOU and BMES.
    An entity begins at B or S, and at an I or E that does not continue an
    entity of its type. It ends at E or S, before O or the next entity, and
    with the sentence. A tag outside these schemes, for example a part of
    speech, is an entity of one word.

    scheme 'IOB2' or 'BIOES': strict rules. An entity in IOB2 is B-X I-X ...;
    in BIOES it is S-X or B-X I-X ... E-X. Other sequences are no entities.
    BILOU and BMES are read as BIOES. Other letters raise ValueError.
    """
    if scheme is not None:
        return _strict_entities(tags, scheme)
    found = []
    open_type, begin = None, 0      # open_type None: no entity is open

    def add_if_open(end):
        if open_type is not None:
            found.append((open_type, begin, end))
    for k, tag in enumerate(tags):
        letter, tag_type = _split_tag(tag)
        if letter in ('B', 'S', 'O', '') or open_type != tag_type:
            add_if_open(k)
            open_type = None if letter == 'O' else tag_type
            begin = k
        if letter in ('E', 'S', ''):
            add_if_open(k + 1)
            open_type = None
    add_if_open(len(tags))
    return found


def _split_tag(tag):
    """(letter of BIOES, type) of a tag; ('', tag) if it is in no scheme."""
    letter, _, tag_type = tag.partition('-')
    letter = BIOES_LETTERS.get(letter, letter)
    is_known = letter in ('B', 'I', 'O', 'E', 'S')
    return (letter, tag_type) if is_known else ('', tag)


def _strict_entities(tags, scheme):
    letters, found = SCHEMES[scheme], []
    open_type, begin = None, 0      # open_type None: no entity is open
    for k, tag in enumerate([*tags, 'O']):      # O ends the last entity
        letter, tag_type = _split_tag(tag)
        if letter not in letters:
            raise ValueError(f'the tag {tag!r} is not of the scheme {scheme}')
        continues_entity = letter in 'IE' and tag_type == open_type
        # In BIOES, an entity that ends without E is incomplete, and dropped
        if ('E' not in letters and open_type is not None
                and not continues_entity):
            found.append((open_type, begin, k))
        if continues_entity and letter == 'E':
            found.append((open_type, begin, k + 1))
        if letter == 'S':
            found.append((tag_type, k, k + 1))
        if letter == 'B':
            open_type, begin = tag_type, k
        elif not (continues_entity and letter == 'I'):
            open_type = None
    return found


def _check_sentences(labels, guesses):
    if len(labels) != len(guesses):
        raise ValueError(f'expected tags for {len(labels)} sentences, got '
                         f'tags for {len(guesses)}')
    _check_not_empty(labels)
    for k, (tags, guessed_tags) in enumerate(zip(labels, guesses)):
        if len(tags) != len(guessed_tags):
            raise ValueError(f'sentence {k} has {len(tags)} words and '
                             f'{len(guessed_tags)} guessed tags')


def _entity_counts(labels, guesses, scheme):
    """The numbers of hits, of predicted and of actual entities, (3,)."""
    _check_sentences(labels, guesses)
    counts = onp.zeros(3, 'i8')
    for tags, guessed_tags in zip(labels, guesses):
        actual = set(entities(tags, scheme))
        predicted = set(entities(guessed_tags, scheme))
        counts += len(actual & predicted), len(predicted), len(actual)
    return counts


def entity_f1(labels, guesses, scheme=None):
    """F1 of entities; a hit has the right begin, end and type.

    labels, guesses: a list of tags for each sentence. scheme: see `entities`.
    Returns 0 without a hit.
    """
    return _f1(*_entity_counts(labels, guesses, scheme))


def entity_precision(labels, guesses, scheme=None):
    """Fraction of predicted entities that are right; 0 without predictions."""
    hits, predicted, _ = _entity_counts(labels, guesses, scheme)
    return float(hits / predicted) if predicted else 0.0


def entity_recall(labels, guesses, scheme=None):
    """Fraction of actual entities that are found; 0 without entities."""
    hits, _, actual = _entity_counts(labels, guesses, scheme)
    return float(hits / actual) if actual else 0.0


def tag_accuracy(labels, guesses):
    """Fraction of words with the right tag.

    labels, guesses: as for `entity_f1`.
    """
    _check_sentences(labels, guesses)
    return accuracy([tag for tags in labels for tag in tags],
                    [tag for tags in guesses for tag in tags])


# Answers

def normalized(answer):
    """Normalize an answer as SQuAD does: lower case, one space between words.

    ASCII punctuation and the words a, an and the are removed.
    """
    text = ''.join(c for c in answer.lower() if c not in string.punctuation)
    return ' '.join(re.sub(r'\b(a|an|the)\b', ' ', text).split())


def exact_match(answers, guesses):
    """Fraction of questions whose guess equals an answer, both `normalized`.

    answers: for each question a list of answers, each an `Answer` or a str; []
    for no answer. guesses: a str for each question, '' for no answer.
    """
    return _mean_of_best(lambda answer, guess: float(answer == guess),
                         answers, guesses)


def token_f1(answers, guesses):
    """Mean over questions of the F1 of words, for the best-matching answer.

    Arguments are as for `exact_match`. If the answer or the guess has no
    words, F1 is 1 if neither has words, and 0 otherwise, as in SQuAD 2.0.
    """
    return _mean_of_best(_word_f1, answers, guesses)


def _word_f1(answer, guess):
    """F1 of the words of two `normalized` texts, see `token_f1`."""
    answer_words, guess_words = answer.split(), guess.split()
    if not answer_words or not guess_words:
        return float(answer_words == guess_words)
    shared = (collections.Counter(answer_words)
              & collections.Counter(guess_words))
    return _f1(sum(shared.values()), len(guess_words), len(answer_words))


def _mean_of_best(compare, answers, guesses):
    """The mean of each guess's score with the best-matching answer.

    compare(answer, guess): the score of two `normalized` texts.
    """
    if len(answers) != len(guesses):
        raise ValueError(f'expected guesses for {len(answers)} questions, '
                         f'got {len(guesses)}')
    _check_not_empty(answers)
    best_scores = []
    for accepted, guess in zip(answers, guesses):
        texts = [normalized(answer if isinstance(answer, str)
                            else answer.text) for answer in accepted]
        # Drop answers that normalize to ''. If no answer is left, '' is right
        texts = [t for t in texts if t] or ['']
        best_scores.append(max(compare(text, normalized(guess))
                               for text in texts))
    return sum(best_scores) / len(best_scores)


#: {name in `Task.metrics`: function}
METRICS = {function.__name__: function for function in (
    accuracy, f1, matthews, pearson, spearman, entity_f1, entity_precision,
    entity_recall, tag_accuracy, exact_match, token_f1)}
