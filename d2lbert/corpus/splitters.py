"""Paragraphs split into sentences and words, by the book's rule or Punkt."""
import itertools
import threading
from typing import NamedTuple

import numpy as onp

from d2lbert.corpus import punkt, text_reader
from d2lbert.kernels import cut, draw
from d2lbert.progress import bar
from d2lbert.texts.words import STOP, paragraphs_of_lines, tokens_of_paragraphs

# Characters of a text from which Punkt learns abbreviations; half a minute
PUNKT_CHARS = 1 << 20


class Cut(NamedTuple):
    """A stretch of a text cut into words.

    As in `words.TokenizedText`, and articles (titles,) int64: the paragraphs
    with which one begins, or that would come next; names: a line for each
    different word, bytes.
    """

    types: onp.ndarray
    sentences: onp.ndarray
    paragraphs: onp.ndarray
    articles: onp.ndarray
    names: bytes

    @classmethod
    def of_tokens(cls, tokens, articles):
        return cls(*tokens[:3], articles,
                   ''.join(f'{name}\n' for name in tokens.names).encode())


class BookCutter:
    """Splits sentences at ' . ' and words at blanks."""

    # Advice about a text in which no paragraph has two sentences
    remedy = ("with split='book' a sentence ends at ' . ', its full stop "
              "between blanks; split='punkt' is for text as people write it")

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
        return Cut.of_tokens(
            tokens_of_paragraphs(paragraphs_of_lines(itertools.compress(
                paragraphs.texts, kept), self.lower)),
            _among_kept(paragraphs.articles, kept))


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
        return Cut.of_tokens(
            tokens_of_paragraphs(
                [[sentence.lower() if self.lower else sentence
                  for sentence in sentences]
                 for sentences in itertools.compress(parted, kept)]),
            _among_kept(paragraphs.articles, kept))


CUTTERS = {'book': BookCutter, 'punkt': PunktCutter}


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
