"""Load the model, the tokenizer and the sample of sentences for a picture.

The page of `d2lbert show` searches the sample for the uses of a word, and for
tokens similar to a token of the page's texts.
"""
import collections
import csv
import functools
import os
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

#: Limits of `pick_sentences`: sentences from the whole sample, and sentences
#: with each word.
MAX_SENTENCES, MAX_PER_WORD = 250, 20

#: Limits of `sentences_of`: characters in all, and words of a sentence.
MAX_CHARS, MAX_SENTENCE_WORDS = 1 << 24, 48

#: White space after the end of a sentence, in text without ' . '.
_SENTENCE_GAP = re.compile(r'(?<=[.!?\u3002\uff01\uff1f])\s+')

#: The label in senses.tsv for a use with neither of the two senses of a word.
OTHER_SENSE = 'other'

#: Irregular plurals in senses.tsv, {plural: singular}.
IRREGULAR_PLURALS = {'mice': 'mouse'}


def open_model(model, precision=None, ctx=None):
    """Return (net, tokenizer, folder) of a model.

    model: the folder of a run or of a pretrained model, or a pair (net,
    tokenizer or vocabulary), for which the folder is None. precision, ctx: as
    for `d2lbert.load_model`; both are ignored for a pair.
    """
    if isinstance(model, (tuple, list)) and len(model) == 2:
        net, tokenizer = model
        return net, as_tokenizer(tokenizer), None
    folder = Path(model)
    loaded = load(folder, ctx, heads=(), trainable=False, precision=precision)
    return loaded.net, loaded.tokenizer, folder


def tokenizer_of(net, tokenizer=None, vocab=None):
    """Return `tokenizer` or, if it is None, a tokenizer for the vocabulary.

    `tokenizer` may be a `Vocab`, too.
    """
    if tokenizer is None:
        tokenizer = vocab_of(net, vocab)
    return as_tokenizer(tokenizer)


def vocab_of(net, vocab=None):
    """Return `vocab` or, if it is None, net.vocab, which `load_run` sets."""
    vocab = getattr(net, 'vocab', None) if vocab is None else vocab
    if vocab is None:
        raise ValueError('this net has no vocabulary: load it with load_run, '
                         'or give tokenizer= or vocab=')
    return vocab


def short_label(name, max_letters=14):
    """Return a label for matplotlib, truncated to `max_letters`."""
    if len(name) > max_letters:
        name = name[:max_letters - 1] + '\u2026'
    # Escaped, since a dollar sign would begin a formula
    return name.replace('$', r'\$')


class Sample(NamedTuple):
    """Sentences, and the name of their source for the page of `show`."""

    name: str
    sentences: list


class Use(NamedTuple):
    """A use of a word in a sentence: sentence[begin:end] is the word."""

    sentence: str
    begin: int
    end: int
    sense: Optional[str] = None     # a label, or None without labels


def sample_of_run(folder):
    """Return the `Sample` of the training text of the run in `folder`.

    If that text cannot be read again, or has no sentence, this logs a warning
    and returns `bundled_sample()`.
    """
    settings = dict(read_config(Path(folder)).get('training', {}))
    corpus = settings.get('corpus')     # a name, a path or several paths
    if corpus in (None, 'sample'):
        return bundled_sample()
    if corpus == 'wikitext-2':
        # data_dir holds the file, or the folder wikitext-2 with the file
        data_dir = settings.get('data_dir') or hub.find_wikitext2()
        candidates = [] if data_dir is None else [
            Path(data_dir, hub.TRAIN_FILE),
            Path(data_dir, 'wikitext-2', hub.TRAIN_FILE)]
        paths = [path for path in candidates if path.is_file()][:1]
        name = 'WikiText-2'
    else:
        paths = [corpus] if isinstance(corpus, str) else list(corpus)
        name = ', '.join(Path(path).name for path in paths)
    expanded = [Path(os.path.expanduser(path)) for path in paths]
    # Standard input and pipes cannot be read again
    can_read = paths and all(path.is_file() or path.is_dir()
                             for path in expanded)
    if not can_read:
        warn(f'the text of {folder} ({corpus}) is no longer on this '
             'machine: the page searches the sample corpus')
        return bundled_sample()
    sentences = sentences_of(text_sources.sources(
        paths, settings.get('text_field')))
    if not sentences:
        warn(f'the text of {folder} ({corpus}) has no sentence of 3 to '
             f'{MAX_SENTENCE_WORDS} words between blanks: the page searches '
             'the sample corpus, give --file to search another text')
        return bundled_sample()
    return Sample(name, sentences)


def bundled_sample():
    return Sample('the sample corpus',
                  sentences_of([hub.sample_dir() / hub.TRAIN_FILE]))


def sample_of_file(path, text_field=None):
    """Return the `Sample` whose sentences are the lines of a file.

    text_field: the field that holds the text, if the lines are JSON. Raises
    ValueError for an invalid line, and for a file that has no text or cannot
    be read.
    """
    lines = text_sources.Lines(path, text_field, skip_empty=True,
                               single_pass=True)
    return Sample(Path(path).name, [line.text for line in lines])


def sentences_of(paths):
    """Return the sentences of text files, up to MAX_CHARS characters in all.

    paths: paths or `text_sources.Source`s. `_split_sentences` leaves out very
    short and very long sentences.
    """
    sentences, chars_left = [], MAX_CHARS
    for path in paths:
        for paragraphs in paragraphs_of(path, lambda num_bytes: None):
            for text in paragraphs.texts:
                chars_left -= len(text)
                if chars_left < 0:
                    return sentences
                sentences += _split_sentences(text, paragraphs.is_tokenized)
    return sentences


def _split_sentences(text, is_tokenized):
    """Return the sentences of 3 to MAX_SENTENCE_WORDS words in a paragraph.

    is_tokenized: True if punctuation marks have blanks around them.
    """
    text = text.strip()
    parts = (text.split(STOP) if is_tokenized or STOP in text
             else _SENTENCE_GAP.split(text))
    return [part for part in map(str.strip, parts)
            if 3 <= len(part.split()) <= MAX_SENTENCE_WORDS]


def pick_sentences(sample, words):
    """Pick sentences at even distances, and more that contain given words.

    words: lower-case strings, each of which gets up to MAX_PER_WORD sentences.
    A sentence is split into words at white space, so 'bank.' is not 'bank'.
    Returns a list without repetitions, in the order of the text.
    """
    sentences = sample.sentences
    picked_indices = set(_pick_evenly(range(len(sentences)), MAX_SENTENCES))
    indices_of = {word: [] for word in words}
    for k, sentence in enumerate(sentences):
        for word in set(sentence.lower().split()):
            if word in indices_of:
                indices_of[word].append(k)
    for indices in indices_of.values():
        picked_indices.update(_pick_evenly(indices, MAX_PER_WORD))
    return list(dict.fromkeys(sentences[k] for k in sorted(picked_indices)))


def stop_words(sample):
    """Return the set of words that are in more than 1/30 of the sentences."""
    sentences = _pick_evenly(sample.sentences, 3000)
    counts = collections.Counter(
        word for sentence in sentences
        for word in set(sentence.lower().split()))
    return {word for word, count in counts.items()
            if count * 30 > len(sentences)}


def _pick_evenly(items, max_items):
    """Return at most `max_items` of the items, at even distances."""
    if len(items) <= max_items:
        return list(items)
    return [items[k * len(items) // max_items] for k in range(max_items)]


def uses_of(word, sentences, senses=None, max_uses=60):
    """Find the first `Use` of a word in each sentence that has the word.

    Case is ignored. senses: a label for each sentence, or None. Returns at
    most `max_uses` uses, picked at even distances.
    """
    uses = []
    for sentence, sense in zip(sentences, senses or repeat(None)):
        span = _find_word(word, sentence)
        if span is not None:
            uses.append(Use(sentence, *span, sense))
    return _pick_evenly(uses, max_uses)


def _find_word(word, sentence):
    """Return (begin, end) of the first whole-word match, or None."""
    # Not sentence.lower(), in which 'İ' becomes two characters, so that
    # positions would differ. [^\W_] is a letter or a digit
    match = re.search(rf'(?<![^\W_]){re.escape(word)}(?![^\W_])', sentence,
                      re.IGNORECASE)
    return None if match is None else match.span()


def labelled_uses(word):
    """Return the labelled `Use`s of this form of a word in the sample corpus.

    Uses labelled OTHER_SENSE are included.
    """
    return _uses_by_form().get(word.lower(), [])


def labelled_words():
    """Return {base form of a word: labelled `Use`s of all its forms}, sorted.

    Uses labelled OTHER_SENSE are left out.
    """
    by_word, by_form = {}, _uses_by_form()
    for form, uses in by_form.items():
        by_word.setdefault(_base_form(form, by_form), []).extend(
            use for use in uses if use.sense != OTHER_SENSE)
    return dict(sorted(by_word.items()))


def _base_form(form, all_forms):
    """Return the singular of a plural; return any other form unchanged."""
    if form in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[form]
    for ending in ('s', 'es'):
        singular = form[:-len(ending)]
        if form.endswith(ending) and singular in all_forms:
            return singular
    return form


@functools.lru_cache(1)
def _uses_by_form():
    """Return {form of a word: its `Use`s} from data/sample/senses.tsv.

    The columns of that file are `line`, the number of a line of the sample
    corpus (from 1); `token`, the index of a token in this line (from 0);
    `word`, the token as text; and its `sense`.
    """
    folder = hub.sample_dir()
    lines = (folder / hub.TRAIN_FILE).read_text('utf-8').split('\n')
    by_form = {}
    with open(folder / 'senses.tsv', encoding='utf-8', newline='') as file:
        for row in csv.DictReader(file, delimiter='\t'):
            tokens = lines[int(row['line']) - 1].split()
            index = int(row['token'])
            # The sentence is the tokens between two full stops
            stops = [k for k, token in enumerate(tokens) if token == '.']
            first = max((k + 1 for k in stops if k < index), default=0)
            end = min((k for k in stops if k >= index), default=len(tokens))
            word_begin = sum(len(token) + 1 for token in tokens[first:index])
            by_form.setdefault(row['word'].lower(), []).append(
                Use(' '.join(tokens[first:end]), word_begin,
                    word_begin + len(tokens[index]), row['sense']))
    return by_form
