"""Sentences in which the words of a text are looked for: the sample.

That of a run comes from the text it was trained on; that of any other model
from a file, or from the corpus that comes with the package.
"""
import collections
import csv
import functools
import re
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, Optional

from d2lbert import hub
from d2lbert.corpus.text_reader import paragraphs_of
from d2lbert.machine.terminal import warn
from d2lbert.texts import text_sources
from d2lbert.texts.words import STOP
from d2lbert.training.saved_runs import read_config

#: Sentences from all over a text, and for each word asked for.
SENTENCES, OF_A_WORD = 250, 20

#: How much of a text is looked at, in characters, and how long a sentence
#: may be, in words.
CHARS, WORDS = 1 << 24, 48

#: Where a sentence ends in text as people write it.
_END = re.compile(r'(?<=[.!?\u3002\uff01\uff1f])\s+')


#: What senses.tsv says of a use that has neither sense of its word, and
#: the forms in it that no rule leads back to their words.
OTHER, IRREGULAR = 'other', {'mice': 'mouse'}


class Sample(NamedTuple):
    """Sentences, and what they are called."""

    name: str
    sentences: list


class Use(NamedTuple):
    """A use of a word in a sentence, and its sense, where one is noted."""

    sentence: str
    begin: int      # in characters
    end: int
    sense: Optional[str] = None


def of_run(folder):
    """The sample of the text that the run in `folder` was trained on.

    Where it is not on this machine any more, a line on standard error says
    so, and the sample is that of the package.
    """
    training = dict(read_config(Path(folder)).get('training', {}))
    corpus = training.get('corpus')
    if corpus == 'wikitext-2':
        found = training.get('data_dir') or hub.find_wikitext2()
        paths = [] if found is None else [
            path for path in (Path(found, hub.TRAIN_FILE), Path(
                found, 'wikitext-2', hub.TRAIN_FILE)) if path.is_file()][:1]
        name = 'WikiText-2'
    elif corpus in (None, 'sample'):
        return bundled()
    else:
        paths = [corpus] if isinstance(corpus, str) else list(corpus)
        name = ', '.join(Path(path).name for path in paths)
    # Standard input and pipes are not here any more
    if not paths or not all(
            path.is_file() or path.is_dir() for path in (
                Path(path).expanduser() for path in paths)):
        warn(f'the text of {folder} is not here any more ({corpus}): '
             'neighbours are from the sample corpus')
        return bundled()
    return Sample(name, sentences_of(text_sources.sources(
        paths, training.get('text_field'))))


def bundled():
    """The sample corpus that comes with the package."""
    return Sample('the sample corpus',
                  sentences_of([hub.sample_dir() / hub.TRAIN_FILE]))


def of_file(path, text_field=None):
    """The lines of a file, each a text; ValueError names what is wrong."""
    lines = text_sources.Lines(path, text_field, skip_empty=True, twice=False)
    return Sample(Path(path).name, [line.text for line in lines])


def sentences_of(paths):
    """The sentences at the beginning of text files, CHARS in all."""
    found, left = [], CHARS
    for path in paths:
        for paragraphs in paragraphs_of(path, lambda num_bytes: None):
            for text in paragraphs.texts:
                left -= len(text)
                if left < 0:
                    return found
                found += _sentences(text, paragraphs.is_cut)
    return found


def _sentences(text, is_cut):
    text = text.strip()
    parts = text.split(STOP) if is_cut or STOP in text else _END.split(text)
    return [part for part in map(str.strip, parts)
            if 3 <= len(part.split()) <= WORDS]


def chosen(sample, words):
    """Some sentences of a `Sample`: from all over it, and with the words.

    words: lower-case strings. A list without repetitions, in the order of
    the text.
    """
    sentences = sample.sentences
    kept = set(_spread(range(len(sentences)), SENTENCES))
    places = {word: [] for word in words}
    for k, sentence in enumerate(sentences):
        for word in set(sentence.lower().split()):
            if word in places:
                places[word].append(k)
    for found in places.values():
        kept.update(_spread(found, OF_A_WORD))
    return list(dict.fromkeys(sentences[k] for k in sorted(kept)))


def common(sample):
    """Words that more than one of 30 sentences has: they say little."""
    some = _spread(sample.sentences, 3000)
    counts = collections.Counter(
        word for sentence in some for word in set(sentence.lower().split()))
    return {word for word, count in counts.items() if count * 30 > len(some)}


def _spread(items, count):
    """At most so many of the items, evenly spread."""
    if len(items) <= count:
        return list(items)
    return [items[k * len(items) // count] for k in range(count)]


def uses_of(word, sentences, senses=None, most=60):
    """The `Use`s of a word: its first one in each sentence that has it.

    Capitals do not matter. senses: a name for each of the sentences, or
    None. At most so many, evenly spread.
    """
    found = []
    for sentence, sense in zip(sentences, senses or repeat(None)):
        span = _first_use(word, sentence)
        if span is not None:
            found.append(Use(sentence, *span, sense))
    return _spread(found, most)


def _first_use(word, sentence):
    """Where a word first stands in a sentence, apart from others, or None."""
    sentence, word, at = sentence.lower(), word.lower(), -1
    while True:
        at = sentence.find(word, at + 1)
        if at < 0:
            return None
        end = at + len(word)
        if not (sentence[at - 1:at].isalnum() or sentence[end:end + 1]
                .isalnum()):
            return at, end


def noted(word):
    """The `Use`s of a word in the sample corpus whose sense is noted."""
    return _noted().get(word.lower(), [])


def noted_words():
    """{word: its `Use`s in all of its forms}, of the sample corpus.

    Without the few whose sense is neither of the two.
    """
    found, forms = {}, _noted()
    for form, uses in forms.items():
        found.setdefault(_base(form, forms), []).extend(
            use for use in uses if use.sense != OTHER)
    return dict(sorted(found.items()))


def _base(form, forms):
    """What a dictionary has for one of the forms."""
    if form in IRREGULAR:
        return IRREGULAR[form]
    return next((form[:-k] for k in (1, 2) if form[-k:] in ('s', 'es')
                 and form[:-k] in forms), form)


@functools.lru_cache(1)
def _noted():
    """{form of a word: its `Use`s}, of data/sample/senses.tsv."""
    folder = hub.sample_dir()
    lines = (folder / hub.TRAIN_FILE).read_text('utf-8').split('\n')
    uses = {}
    with open(folder / 'senses.tsv', encoding='utf-8', newline='') as file:
        for row in csv.DictReader(file, delimiter='\t'):
            words, at = lines[int(row['line']) - 1].split(), int(row['token'])
            stops = [k for k, word in enumerate(words) if word == '.']
            first = max((k + 1 for k in stops if k < at), default=0)
            last = min((k for k in stops if k >= at), default=len(words))
            begin = sum(len(word) + 1 for word in words[first:at])
            uses.setdefault(row['word'].lower(), []).append(
                Use(' '.join(words[first:last]), begin,
                    begin + len(words[at]), row['sense']))
    return uses
