"""Inputs of pictures: models, tokenizers, labels, and the sample.

The sample is a list of sentences, in which neighbours and uses of words are
found. For a run they are from its training text, for other models from a file
or from the corpus of the package.
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
from d2lbert.pretrained.tokenizers.tokenizer import as_tokenizer
from d2lbert.texts import text_sources
from d2lbert.texts.numbered_text import STOP
from d2lbert.training.load import load
from d2lbert.training.saved_runs import read_config


def open_model(model, precision=None, ctx=None):
    """(net, tokenizer, folder) of a folder, or of a pair (net, tokenizer).

    precision, ctx: the precision in which the net of a folder computes, and
    its device. The folder of a pair is None.
    """
    if isinstance(model, (tuple, list)) and len(model) == 2:
        net, tokenizer = model
        return net, as_tokenizer(tokenizer), None
    folder = Path(model)
    found = load(folder, ctx, heads=(), trainable=False, precision=precision)
    return found.net, found.tokenizer, folder


def tokenizer_of(net, tokenizer=None, vocab=None):
    """The given tokenizer, else a tokenizer for the net's vocabulary."""
    return as_tokenizer(vocab_of(net, vocab) if tokenizer is None
                        else tokenizer)


def vocab_of(net, vocab=None):
    """The given vocabulary, else the vocabulary of a net of `load_run`."""
    vocab = getattr(net, 'vocab', None) if vocab is None else vocab
    if vocab is None:
        raise ValueError('this net has no vocabulary: load it with load_run, '
                         'or give tokenizer= or vocab=')
    return vocab


def short(name, letters=14):
    """A label for matplotlib, cut to a number of letters."""
    name = name if len(name) <= letters else name[:letters - 1] + '\u2026'
    # A dollar sign would begin a formula
    return name.replace('$', r'\$')


#: Most sentences to pick from a sample: from all of it, and for each word.
SENTENCES, OF_A_WORD = 250, 20

#: Most characters that are read, and most words in a sentence.
CHARS, WORDS = 1 << 24, 48

#: The end of a sentence in raw text.
_END = re.compile(r'(?<=[.!?\u3002\uff01\uff1f])\s+')

#: The label in senses.tsv for a use with neither sense of its word.
OTHER = 'other'

#: Forms in senses.tsv whose base form no rule of `_base` gives.
IRREGULAR = {'mice': 'mouse'}


class Sample(NamedTuple):
    """Sentences and the name of their source."""

    name: str
    sentences: list


class Use(NamedTuple):
    """A use of a word in a sentence, and its sense if that is labelled."""

    sentence: str
    begin: int      # in characters
    end: int
    sense: Optional[str] = None


def sample_of_run(folder):
    """The `Sample` of the training text of the run in `folder`.

    If that text is no longer on this machine, this prints a warning and
    returns the sample corpus of the package.
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
        return bundled_sample()
    else:
        paths = [corpus] if isinstance(corpus, str) else list(corpus)
        name = ', '.join(Path(path).name for path in paths)
    # Standard input and pipes cannot be read again
    if not paths or not all(
            path.is_file() or path.is_dir() for path in (
                Path(path).expanduser() for path in paths)):
        warn(f'the text of {folder} ({corpus}) is no longer on this '
             'machine: neighbours come from the sample corpus')
        return bundled_sample()
    return Sample(name, sentences_of(text_sources.sources(
        paths, training.get('text_field'))))


def bundled_sample():
    """The `Sample` of the corpus that comes with the package."""
    return Sample('the sample corpus',
                  sentences_of([hub.sample_dir() / hub.TRAIN_FILE]))


def sample_of_file(path, text_field=None):
    """The `Sample` with the lines of a file; ValueError if one is invalid.

    text_field: the field of JSON lines that holds the text.
    """
    lines = text_sources.Lines(path, text_field, skip_empty=True, twice=False)
    return Sample(Path(path).name, [line.text for line in lines])


def sentences_of(paths):
    """The sentences in the first CHARS characters of some text files.

    The paragraph that reaches the limit is left out.
    """
    found, left = [], CHARS
    for path in paths:
        for paragraphs in paragraphs_of(path, lambda num_bytes: None):
            for text in paragraphs.texts:
                left -= len(text)
                if left < 0:
                    return found
                found += _sentences(text, paragraphs.is_tokenized)
    return found


def _sentences(text, is_tokenized):
    """The sentences of a paragraph, tokenized (see `Paragraphs`) or not."""
    text = text.strip()
    parts = (text.split(STOP) if is_tokenized or STOP in text
             else _END.split(text))
    return [part for part in map(str.strip, parts)
            if 3 <= len(part.split()) <= WORDS]


def pick_sentences(sample, words):
    """Pick sentences of a `Sample`: some from all parts, some for each word.

    words: lower-case strings. Returns a list without repetitions, in the
    order of the text.
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


def common_words(sample):
    """Stop words: the words in more than a thirtieth of the sentences."""
    some = _spread(sample.sentences, 3000)
    counts = collections.Counter(
        word for sentence in some for word in set(sentence.lower().split()))
    return {word for word, count in counts.items() if count * 30 > len(some)}


def _spread(items, count):
    """At most `count` of the items, evenly spread."""
    if len(items) <= count:
        return list(items)
    return [items[k * len(items) // count] for k in range(count)]


def uses_of(word, sentences, senses=None, most=60):
    """A list of `Use`s of a word: the first in each sentence that has it.

    Case is ignored. senses: a label for each sentence, or None. Returns at
    most `most` uses, evenly spread.
    """
    found = []
    for sentence, sense in zip(sentences, senses or repeat(None)):
        span = _first_use(word, sentence)
        if span is not None:
            found.append(Use(sentence, *span, sense))
    return _spread(found, most)


def _first_use(word, sentence):
    """The (begin, end) of the first whole-word match, or None."""
    sentence, word, at = sentence.lower(), word.lower(), -1
    while True:
        at = sentence.find(word, at + 1)
        if at < 0:
            return None
        end = at + len(word)
        if not (sentence[at - 1:at].isalnum() or sentence[end:end + 1]
                .isalnum()):
            return at, end


def labelled_uses(word):
    """The `Use`s of a form of a word that have a label in the sample corpus.
    """
    return _labelled_forms().get(word.lower(), [])


def labelled_words():
    """{base form: labelled `Use`s of all forms of the word}, sorted.

    Uses with neither of the two senses of the word are left out.
    """
    found, forms = {}, _labelled_forms()
    for form, uses in forms.items():
        found.setdefault(_base(form, forms), []).extend(
            use for use in uses if use.sense != OTHER)
    return dict(sorted(found.items()))


def _base(form, forms):
    """The base form of a word, as a dictionary lists it."""
    if form in IRREGULAR:
        return IRREGULAR[form]
    return next((form[:-k] for k in (1, 2) if form[-k:] in ('s', 'es')
                 and form[:-k] in forms), form)


@functools.lru_cache(1)
def _labelled_forms():
    """{form of a word: its `Use`s} from data/sample/senses.tsv."""
    folder = hub.sample_dir()
    lines = (folder / hub.TRAIN_FILE).read_text('utf-8').split('\n')
    uses = {}
    with open(folder / 'senses.tsv', encoding='utf-8', newline='') as file:
        for row in csv.DictReader(file, delimiter='\t'):
            words, at = lines[int(row['line']) - 1].split(), int(row['token'])
            # The sentence of the token is between two full stops
            stops = [k for k, word in enumerate(words) if word == '.']
            first = max((k + 1 for k in stops if k < at), default=0)
            last = min((k for k in stops if k >= at), default=len(words))
            begin = sum(len(word) + 1 for word in words[first:at])
            uses.setdefault(row['word'].lower(), []).append(
                Use(' '.join(words[first:last]), begin,
                    begin + len(words[at]), row['sense']))
    return uses
