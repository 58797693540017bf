"""Paragraphs cut into sentences and words, by the book's rule or Punkt's."""
import itertools

import numpy as onp

from d2lbert.corpus import punkt
from d2lbert.corpus.reading import paragraphs_of
from d2lbert.progress import bar
from d2lbert.words import STOP, tokens_of_lines, tokens_of_paragraphs

# How much of a text Punkt learns its abbreviations from: half a minute's
# work for a text of any size
PUNKT_CHARS = 1 << 20


class BookCutter:
    """Sentences end at ' . ', blanks part the words."""

    # What to do about a text in which no paragraph has two sentences
    remedy = ("with split='book' a sentence ends at ' . ', its full stop "
              "between blanks; split='punkt' is for text as people write it")

    @staticmethod
    def version():
        """What sentences and words depend on, beside the text."""
        return 'book'

    def __init__(self, files, progress, lower=True):
        self.lower = lower

    def cut(self, paragraphs):
        """(Tokens, paragraphs at which articles begin) of `Paragraphs`."""
        kept = [STOP in text for text in paragraphs.texts]
        return (tokens_of_lines(list(itertools.compress(paragraphs.texts,
                                                        kept)), self.lower),
                _among_kept(paragraphs.articles, kept))


class PunktCutter:
    """Sentences end where Punkt says, which learns from the text itself."""

    remedy = 'expected running text, a blank line between paragraphs'

    @staticmethod
    def version():
        return punkt.version()

    def __init__(self, files, progress, lower=True):
        self.lower = lower
        with bar(PUNKT_CHARS, 'learning', 'B', unit_scale=True,
                 quiet=not progress) as shown:
            self.splitter = punkt.Splitter(_beginning(files, shown.update))

    def cut(self, paragraphs):
        cut = [self.splitter.sentences(text, paragraphs.is_cut)
               for text in paragraphs.texts]
        kept = [len(sentences) > 1 for sentences in cut]
        return (tokens_of_paragraphs(
                    [[sentence.lower() if self.lower else sentence
                      for sentence in sentences]
                     for sentences in itertools.compress(cut, kept)]),
                _among_kept(paragraphs.articles, kept))


CUTTERS = {'book': BookCutter, 'punkt': PunktCutter}


def _among_kept(places, kept):
    """What places in a list become when only some items are kept."""
    return onp.cumsum([0, *kept])[places]


def _beginning(files, advance):
    """The first paragraphs of a text, PUNKT_CHARS in all.

    advance: called with the number of characters of each.
    """
    left = PUNKT_CHARS
    for path in files:
        for paragraphs in paragraphs_of(path, lambda num_bytes: None):
            for text in paragraphs.texts:
                if not left:
                    return
                text = text[:left]
                yield text
                advance(len(text))
                left -= len(text)
