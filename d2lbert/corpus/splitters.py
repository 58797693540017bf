"""Paragraphs cut into sentences and words: the book's rule, ours, Punkt's."""
import contextlib
import itertools
import os
import re
import threading
from typing import NamedTuple

import numpy as onp

from d2lbert.corpus import prose, punkt, text_reader
from d2lbert.kernels import cut, draw
from d2lbert.machine.file_facts import Unchanged
from d2lbert.progress import bar
from d2lbert.texts import text_sources
from d2lbert.texts.words import STOP, paragraphs_of_lines, tokens_of_paragraphs

# Characters of a text from which Punkt learns abbreviations; half a minute
PUNKT_CHARS = 1 << 20

# The fact whether a file has the book's form; the number is to be raised when
# another answer comes out
FORM = "the book's form 1"

# How much of a file tells that
FORM_BYTES = 1 << 20

# Full stops and the like that are words of their own, and that are not
_APART = re.compile(rb'(?<=\s)[.!?](?=\s|$)')
_JOINED = re.compile(rb'[^\s.!?][.!?]+["\')\]]*(?=\s|$)')


class Cut(NamedTuple):
    """A stretch of a text cut into words.

    As in `words.TokenizedText`, and articles (titles,) int64: the paragraphs
    with which one begins, or that would come next; names: a line for each
    different word, bytes; passed (2,) int64: the paragraphs without an inner
    sentence end, which are left out, and their words.
    """

    types: onp.ndarray
    sentences: onp.ndarray
    paragraphs: onp.ndarray
    articles: onp.ndarray
    names: bytes
    passed: onp.ndarray

    @classmethod
    def of(cls, paragraphs, parted, kept, lower):
        """The `Cut` of `reading.Paragraphs` that were cut into sentences.

        parted: lists of sentences, only of those paragraphs that are kept;
        kept: whether each is.
        """
        tokens = tokens_of_paragraphs(
            [[sentence.lower() if lower else sentence
              for sentence in sentences] for sentences in parted])
        passed = [len(text.split()) for text, keep in zip(
            paragraphs.texts, kept) if not keep]
        return cls(*tokens[:3], _among_kept(paragraphs.articles, kept),
                   ''.join(f'{name}\n' for name in tokens.names).encode(),
                   onp.array([onp.count_nonzero(passed), sum(passed)],
                             'int64'))


class BookCutter:
    """Splits sentences at ' . ' and words at blanks."""

    # Advice about a text in which no paragraph has two sentences
    remedy = ("with split='book' a sentence ends at ' . ', its full stop "
              "between blanks; split='prose' is for text as people write it")

    @staticmethod
    def version():
        """A key of the rules; another key may give other words."""
        return 'book'

    def __init__(self, files, progress, lower=True):
        self.lower = lower
        # The number of threads that may call `cut`; None is one per core
        self.num_threads = 1 if draw.library() is None else None
        self._own = threading.local()

    def cut(self, stretch):
        """The `Cut` of a `Stretch`; any thread may call it."""
        found = None
        if draw.library() is not None:
            if not hasattr(self._own, 'room'):
                self._own.room = cut.Room()
            found = cut.text(stretch.whole,
                             cut.WIKI if stretch.is_wiki else cut.PARTS,
                             self.lower, text_reader.MAX_WORDS, self._own.room)
        if found is None:
            # Python also reports what is wrong with a text
            return self.cut_plainly(stretch)
        found = Cut(*found)
        return found._replace(articles=onp.concatenate([
            onp.zeros(int(stretch.is_first), 'int64'), found.articles]))

    def cut_plainly(self, stretch):
        """`cut` without compiled code."""
        paragraphs = stretch.paragraphs()
        kept = [STOP in text for text in paragraphs.texts]
        return Cut.of(paragraphs, paragraphs_of_lines(
            itertools.compress(paragraphs.texts, kept), self.lower), kept,
            lower=False)


class ProseCutter:
    """Sentences end where `prose` says, punctuation marks are words.

    A file of WikiText in the book's form is cut by the book's rule.
    """

    remedy = ('expected running text, a blank line between paragraphs, in '
              'each some sentences that end with a full stop')

    @staticmethod
    def version():
        return f'prose {prose.VERSION}'

    def __init__(self, files, progress, lower=True):
        self.lower, self.num_threads = lower, 1
        self._book = BookCutter(files, progress, lower)
        self._apart, self._forms = prose.SpacedPunctuation(), {}

    def cut(self, stretch):
        if self._is_books(stretch):
            return self._book.cut(stretch)
        paragraphs = stretch.paragraphs()
        parted = [list(prose.sentences(text)) for text in paragraphs.texts]
        kept = [len(sentences) > 1 for sentences in parted]
        return Cut.of(
            paragraphs, [[sentence.translate(self._apart)
                          for sentence in sentences]
                         for sentences in itertools.compress(parted, kept)],
            kept, self.lower)

    def _is_books(self, stretch):
        return stretch.is_wiki and self._has_form(stretch.path)

    def _has_form(self, path):
        name = os.fspath(path)
        if name not in self._forms:
            self._forms[name] = has_books_form(path)
        return self._forms[name]


class MixedCutter(ProseCutter):
    """The book's rule for files that have its form, `prose` for others."""

    @staticmethod
    def version():
        return f'mixed {prose.VERSION}'

    def _is_books(self, stretch):
        return self._has_form(stretch.path)


class PunktCutter:
    """Splits sentences by Punkt, which learns from the text."""

    remedy = 'expected running text, a blank line between paragraphs'

    @staticmethod
    def version():
        return punkt.version()

    def __init__(self, files, progress, lower=True):
        self.lower, self.num_threads = lower, 1
        with bar(PUNKT_CHARS, 'learning', 'B', unit_scale=True,
                 quiet=not progress) as shown:
            self.splitter = punkt.Splitter(_beginning(files, shown.update))

    def cut(self, stretch):
        paragraphs = stretch.paragraphs()
        parted = [self.splitter.sentences(text, paragraphs.is_cut)
                  for text in paragraphs.texts]
        kept = [len(sentences) > 1 for sentences in parted]
        return Cut.of(paragraphs, itertools.compress(parted, kept), kept,
                      self.lower)


#: Where one asks for 'auto', `cutters` chooses.
CUTTERS = {'book': BookCutter, 'prose': ProseCutter, 'punkt': PunktCutter}
SPLITS = 'auto', *CUTTERS


def cutters(split, files):
    """The class that cuts files as `split`, one of SPLITS, says.

    files: `texts.Source`s. auto: by the book's rule, if all of them have the
    book's form; otherwise those that have not by `prose`.
    """
    if split != 'auto':
        return CUTTERS[split]
    unchanged = Unchanged()
    forms = [unchanged.get(f'{FORM} of {file.digest_name}', file,
                           has_books_form) for file in files]
    unchanged.save()
    return BookCutter if all(forms) else MixedCutter


def has_books_form(path):
    """True if most sentences of a file's beginning end with ' . '.

    Without any full stops, if it has WikiText's titles.
    """
    pieces = text_sources.pieces(path, size=FORM_BYTES)
    with contextlib.closing(pieces) as found:
        data = next(found)[:FORM_BYTES]
    apart, joined = (len(marks.findall(data)) for marks in (_APART, _JOINED))
    return apart > joined or not joined and text_reader.has_title(data)


def _among_kept(places, kept):
    """The new places of places in a list that loses some items."""
    return onp.cumsum([0, *kept], dtype='int64')[places]


def _beginning(files, advance):
    """Yield the first paragraphs of a text, PUNKT_CHARS characters in all.

    advance: called with the number of characters of each.
    """
    left = PUNKT_CHARS
    for path in files:
        for paragraphs in text_reader.paragraphs_of(
                path, lambda num_bytes: None):
            for text in paragraphs.texts:
                if not left:
                    return
                text = text[:left]
                yield text
                advance(len(text))
                left -= len(text)
