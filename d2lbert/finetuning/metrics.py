"""How good guesses are, as each task's leaderboard counts it.

All are shares or coefficients (1 is best, not 100), floats, and refuse to
score nothing at all. GLUE: Wang et al. 2018, table 1; entities: the script
conlleval of CoNLL-2000 and 2003; answers: the scripts of SQuAD 1.1 and 2.0.
"""
import collections
import re
import string

import numpy as onp


def score(task, labels, guesses):
    """The metrics of a `Task`: a dictionary, in the order of `task.metrics`.

    labels, guesses: for 'classify' numbers of classes, for 'regress' numbers,
    for 'tag' lists of tags by name for each sentence, for 'span' lists of
    `Answer` or str for each question, and the guessed text for each.
    """
    return {name: METRICS[name](labels, guesses) for name in task.metrics}


def _arrays(labels, guesses):
    labels, guesses = onp.asarray(labels), onp.asarray(guesses)
    if labels.ndim != 1 or labels.shape != guesses.shape:
        raise ValueError('expected one guess for each label, got shapes '
                         f'{guesses.shape} and {labels.shape}')
    _check_some(labels)
    return labels, guesses


def _check_some(labels):
    if not len(labels):
        raise ValueError('there are no examples to score')


# Classes

def accuracy(labels, guesses):
    """Share of the guesses that are right. labels, guesses: (N,)."""
    labels, guesses = _arrays(labels, guesses)
    return float((labels == guesses).mean())


def f1(labels, guesses, positive=1):
    """F1 of the class `positive`: 2 hits / (guessed + there).

    labels, guesses: (N,). 0 where none is there and none guessed, as where
    there is no hit.
    """
    labels, guesses = _arrays(labels, guesses)
    there, guessed = labels == positive, guesses == positive
    return _f1((there & guessed).sum(), guessed.sum(), there.sum())


def _f1(hits, guessed, there):
    return float(2 * hits / (guessed + there)) if hits else 0.0


def matthews(labels, guesses):
    """Matthews' correlation coefficient, of two or more classes.

    labels, guesses: (N,). 0 where all labels or all guesses are the same.
    For more than two: Gorodkin 2004, "Comparing two K-category assignments
    by a K-category correlation coefficient".
    """
    labels, guesses = _arrays(labels, guesses)
    classes = onp.union1d(labels, guesses)[:, None]
    there, guessed = classes == labels, classes == guesses     # (C, N)
    n, hits = labels.size, float((labels == guesses).sum())
    t, g = there.sum(1).astype('f8'), guessed.sum(1).astype('f8')
    spread = (n * n - t @ t) * (n * n - g @ g)
    return float((n * hits - t @ g) / spread ** 0.5) if spread else 0.0


# Numbers

def pearson(labels, guesses):
    """Pearson's correlation coefficient of numbers, (N,).

    0 where all labels or all guesses are the same (there it is undefined),
    nan where one of them is not finite.
    """
    both = [x.astype('f8') for x in _arrays(labels, guesses)]
    if not all(onp.isfinite(x).all() for x in both):
        return float('nan')
    if any((x == x[0]).all() for x in both):
        return 0.0
    # By the largest first, so that no square is too large or small
    x, y = (d / onp.abs(d).max() for d in (x - x.mean() for x in both))
    r = (x @ y) / ((x @ x) * (y @ y)) ** 0.5
    return float(min(max(r, -1.0), 1.0))


def spearman(labels, guesses):
    """Spearman's: Pearson's of the ranks; equals share their mean rank.

    Constant and infinite input as for `pearson`, but infinities have ranks.
    """
    both = [x.astype('f8') for x in _arrays(labels, guesses)]
    if any(onp.isnan(x).any() for x in both):
        return float('nan')
    return pearson(*map(ranks, both))


def ranks(x):
    """The ranks of numbers from 1 on, (N,); equals share their mean."""
    _, which, counts = onp.unique(x, return_inverse=True, return_counts=True)
    return (onp.cumsum(counts) - (counts - 1) / 2)[which.reshape(-1)]


# Entities

#: The other letters for the same places in an entity
LETTERS = {'L': 'E', 'U': 'S', 'M': 'I'}
SCHEMES = {'IOB2': 'BIO', 'BIOES': 'BIOES'}


def entities(tags, scheme=None):
    """The entities of a sentence: a list of (type, begin, end) in words.

    tags: one for each word. scheme None: by the rules of conlleval, which
    take IOB1, IOB2 and BIOES (and BILOU, BMES) as they come: an entity begins
    at B, S, another type, or I and E that continue nothing, and ends at E, S
    and before whatever begins or is O. 'IOB2' or 'BIOES': strictly, so that
    only B-X I-X ... is one, or S-X and B-X I-X ... E-X. A tag that is of no
    such scheme, as a part of speech, is an entity of one word.
    """
    if scheme is not None:
        return _strict(tags, SCHEMES[scheme], scheme)
    found, kind, begin = [], None, 0

    def close(end):
        if kind is not None:
            found.append((kind, begin, end))
    for k, tag in enumerate(tags):
        letter, here = _parts(tag)
        if letter in ('B', 'S', 'O', '') or kind != here:
            close(k)
            kind, begin = None if letter == 'O' else here, k
        if letter in ('E', 'S', ''):
            close(k + 1)
            kind = None
    close(len(tags))
    return found


def _parts(tag):
    """(Letter of the place, type) of a tag; ('', tag) outside a scheme."""
    letter, _, kind = tag.partition('-')
    letter = LETTERS.get(letter, letter)
    return (letter, kind) if letter in ('B', 'I', 'O', 'E', 'S') else ('', tag)


def _strict(tags, letters, scheme):
    found, kind, begin = [], None, 0    # kind: of the one that may go on
    for k, tag in enumerate([*tags, 'O']):
        letter, here = _parts(tag)
        if not letter or letter not in letters:
            raise ValueError(f'the tag {tag!r} is not of the scheme {scheme}')
        goes_on = letter in 'IE' and here == kind
        # In IOB2 an entity ends where the next word does not go on
        if kind is not None and not goes_on and 'E' not in letters:
            found.append((kind, begin, k))
        if goes_on and letter == 'E':
            found.append((kind, begin, k + 1))
        if letter == 'S':
            found.append((here, k, k + 1))
        if letter == 'B':
            kind, begin = here, k
        elif not (goes_on and letter == 'I'):
            kind = None
    return found


def _entity_counts(labels, guesses, scheme):
    """(Hits, guessed, there) of entities over sentences."""
    if len(labels) != len(guesses):
        raise ValueError(f'expected tags for {len(labels)} sentences, got '
                         f'those of {len(guesses)}')
    _check_some(labels)
    counts = onp.zeros(3, 'i8')
    for k, (tags, guess) in enumerate(zip(labels, guesses)):
        if len(tags) != len(guess):
            raise ValueError(f'sentence {k} has {len(tags)} words and '
                             f'{len(guess)} guessed tags')
        there, guessed = (set(entities(t, scheme)) for t in (tags, guess))
        counts += len(there & guessed), len(guessed), len(there)
    return counts


def entity_f1(labels, guesses, scheme=None):
    """F1 of whole entities: right are those with borders and type right.

    labels, guesses: lists of tags for each sentence. scheme: see `entities`.
    0 where there is no hit, also where no entity is there or guessed.
    """
    return _f1(*_entity_counts(labels, guesses, scheme))


def entity_precision(labels, guesses, scheme=None):
    """Share of the guessed entities that are right; 0 if none is guessed."""
    hits, guessed, _ = _entity_counts(labels, guesses, scheme)
    return float(hits / guessed) if guessed else 0.0


def entity_recall(labels, guesses, scheme=None):
    """Share of the entities there that are found; 0 if there is none."""
    hits, _, there = _entity_counts(labels, guesses, scheme)
    return float(hits / there) if there else 0.0


def tag_accuracy(labels, guesses):
    """Share of the words whose tag is right. Lists as for `entity_f1`."""
    _entity_counts(labels, guesses, None)   # are they of the same shape?
    return accuracy([tag for tags in labels for tag in tags],
                    [tag for tags in guesses for tag in tags])


# Answers

def normalized(answer):
    """An answer as SQuAD compares it.

    Lower case, without ASCII's punctuation, then without the words a, an and
    the, then with one blank between words.
    """
    text = ''.join(c for c in answer.lower() if c not in string.punctuation)
    return ' '.join(re.sub(r'\b(a|an|the)\b', ' ', text).split())


def exact_match(answers, guesses):
    """Share of the questions whose guess is one of the answers, `normalized`.

    answers: a list of `Answer` or str for each question; [] for one that has
    none, to which '' is the right guess. guesses: str.
    """
    return _mean_of_best(lambda answer, guess: float(answer == guess),
                         answers, guesses)


def token_f1(answers, guesses):
    """F1 of words of guess and answer, the best answer's, the mean of all.

    Arguments as for `exact_match`. Where the answer or the guess has no words
    it is 1 if neither has any, and 0 otherwise, as in SQuAD 2.0.
    """
    return _mean_of_best(_shared_words, answers, guesses)


def _shared_words(answer, guess):
    answer, guess = answer.split(), guess.split()
    if not answer or not guess:
        return float(answer == guess)
    both = collections.Counter(answer) & collections.Counter(guess)
    return _f1(sum(both.values()), len(guess), len(answer))


def _mean_of_best(compare, answers, guesses):
    if len(answers) != len(guesses):
        raise ValueError(f'expected guesses for {len(answers)} questions, '
                         f'got {len(guesses)}')
    _check_some(answers)
    best = []
    for some, guess in zip(answers, guesses):
        texts = [normalized(getattr(answer, 'text', answer))
                 for answer in some]
        # One of punctuation and articles alone is none, if there are others
        best.append(max(compare(text, normalized(guess))
                        for text in [t for t in texts if t] or ['']))
    return sum(best) / len(best)


METRICS = {function.__name__: function for function in (
    accuracy, f1, matthews, pearson, spearman, entity_f1, entity_precision,
    entity_recall, tag_accuracy, exact_match, token_f1)}
