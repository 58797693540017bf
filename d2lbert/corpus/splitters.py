"""Paragraphs split into sentences and words.

The book's rule ends a sentence at ' . '. There are two rules for running text.
`prose_sentences` ends sentences at marks that are always an end, in whatever
script, and at full stops that follow neither an abbreviation nor an initial.
NLTK's Punkt (Kiss and Strunk 2006) learns from a text which full stops end no
sentence. It finds only ends before a blank, as in Latin script. So
`split_at_sure_ends` finds the ends of other scripts first.
"""
import contextlib
import itertools
import os
import re
import threading
from typing import NamedTuple

import numpy as onp

from d2lbert.corpus import text_reader
from d2lbert.corpus.text_reader import Unchanged
from d2lbert.kernels import cut, draw
from d2lbert.pretrained.tokenizers.encoded import IDEOGRAPHS, is_word_alone
from d2lbert.progress import bar
from d2lbert.texts import text_sources
from d2lbert.texts.numbered_text import (
    STOP,
    paragraphs_of_lines,
    tokens_of_paragraphs,
)

# Increase this when the same text gives other sentences or words
PROSE_VERSION = 1

# Unicode's Sentence_Terminal, without .!? and without the marks of scripts
# that are no longer written
ENDS = (
    '\u0589'                            # Armenian
    '\u061d\u061e\u061f\u06d4'          # Arabic, Urdu
    '\u0700\u0701\u0702'                # Syriac
    '\u07f9'                            # N'Ko
    '\u0964\u0965'                      # danda: Hindi, Bengali and others
    '\u104a\u104b'                      # Burmese
    '\u1362\u1367\u1368'                # Ethiopic
    '\u17d4\u17d5'                      # Khmer
    '\u1803\u1809'                      # Mongolian
    '\u1c7e\u1c7f'                      # Ol Chiki
    '\u203c\u203d\u2047\u2048\u2049'    # doubled ! and ?
    '\u3002\uff01\uff1f\uff61'          # Chinese and Japanese
    '\ufe52\ufe56\ufe57')               # the same, small
WIDE_STOP = '\uff0e'                    # before a digit it is a decimal point
ELLIPSIS = '\u2026'
CLOSING = '"\'\u2019\u201d\u00bb\u203a)\\]}\u3009\u300b\u300d\u300f\u3011' \
          '\u3015\u3017\uff09\uff3d\uff5d\uff63'

KANA = '\u3041-\u30ff'

_END = re.compile(
    rf'(?:[{ENDS}]|{WIDE_STOP}(?!\d))[{ENDS}{WIDE_STOP}{ELLIPSIS}.!?]*'
    rf'[{CLOSING}]*'
    # In Chinese no blank follows; a full stop may be a decimal point
    rf'|[!?]+[{CLOSING}]*(?=[{IDEOGRAPHS}{KANA}])'
    rf'|{ELLIPSIS}+[{CLOSING}]*(?=\s)')


def split_at_sure_ends(text, is_cut=False):
    """The text in pieces, each of which ends where a sentence surely does.

    is_cut: True if blanks separate the words. Then a blank must follow an end.
    """
    begin = 0
    for found in _END.finditer(text):
        end = found.end()
        rest = text[end:end + 80].lstrip()
        if (is_cut and not text[end:end + 1].isspace()
                # Before a small letter the dots are only a pause
                or found[0][0] == ELLIPSIS and rest[:1].islower()):
            continue
        yield text[begin:end]
        begin = end
    if text[begin:].strip():
        yield text[begin:]


class SpacedPunctuation(dict):
    """A table for str.translate: blanks around characters that are words.

    See `is_word_alone`.
    """

    def __missing__(self, code):
        letter = chr(code)
        self[code] = f' {letter} ' if is_word_alone(letter) else letter
        return self[code]


#: Abbreviations that a name or a number follows, so that a capital letter
#: after their full stop begins no sentence.
BEFORE_NAMES = frozenset(
    'mr mrs ms mx dr prof st sr sra messrs mme mlle gen adm col maj capt cmdr '
    'lt sgt cpl pvt rev fr hon gov sen rep pres supt insp mt ft vs cf eg ie '
    'viz ca bzw hr fam'.split())
#: Abbreviations that end no sentence where a number follows.
BEFORE_NUMBERS = frozenset(
    'no nos nr vol vols fig figs eq eqs sec sect ch chap art p pp par para '
    'tab approx est jan feb mar apr jun jul aug sep sept oct nov dec'.split())

_OPENING = '"\'\u2018\u201c\u00ab\u2039(\\[{\u00bf\u00a1'
# In French a space precedes the closing quotation mark
_MARK = re.compile(
    rf'[.!?]+(?:[{CLOSING}]|[ \u00a0\u202f]\u00bb)*(?=\s)')
_FIRST = re.compile(rf'\s*[{_OPENING}\u2013\u2014-]*\s*(\w)')
_LAST = re.compile(r"[\w'\u2019&-]+(?:\.[\w'\u2019&-]+)*$")
_LETTERS = re.compile(r'[^\W\d_](\.[^\W\d_])+')


def prose_sentences(text):
    """Yield the sentences of a paragraph, without changing any character."""
    has_capitals = text != text.lower()
    for piece in split_at_sure_ends(text):
        begin = 0
        for mark in _MARK.finditer(piece):
            if _is_end(piece, begin, mark, has_capitals):
                yield piece[begin:mark.end()]
                begin = mark.end()
        if piece[begin:].strip():
            yield piece[begin:]


def _is_end(piece, begin, mark, has_capitals):
    """True if the sentence piece[begin:mark.end()] is complete.

    mark: a match of `_MARK`; has_capitals: True if the paragraph has capital
    letters, so that a small letter means no new sentence.
    """
    first = _FIRST.match(piece, mark.end(), mark.end() + 80)
    if not first:
        return False
    stop, after = mark[0], first[1]
    is_apart = piece[mark.start() - 1:mark.start()].isspace()
    if is_apart and stop == '.':
        return True             # the book's form: a word of its own
    if after.islower() and has_capitals:
        return False
    if stop != '.' or is_apart:
        return True
    word = _LAST.search(piece, max(begin, mark.start() - 40), mark.start())
    if not word:
        return True
    last = word[0]
    if last.isdigit():          # of a list: "1. First"
        return bool(piece[begin:word.start()].strip())
    if after.isdigit() and last.lower() in BEFORE_NUMBERS:
        return False
    if len(last) == 1 and last.isupper() and last != 'I':
        return False            # an initial
    if _LETTERS.fullmatch(last):
        return last.lower() in ('a.m', 'p.m')
    return last.lower() not in BEFORE_NAMES


# Increase this, as PROSE_VERSION
PUNKT_VERSION = 3

# WikiText's decimal point, and its replacement while Punkt reads
POINT, HIDDEN_POINT = '@.@', '@\ue000@'


class PunktSplitter:
    """Splits paragraphs into sentences; learns from `texts`."""

    def __init__(self, texts):
        punkt = nltk().tokenize.punkt
        learner = punkt.PunktTrainer()
        for text in texts:
            learner.train(text.replace(POINT, HIDDEN_POINT), finalize=False)
        learner.finalize_training()
        self._punkt = punkt.PunktSentenceTokenizer(learner.get_params())
        self._apart = SpacedPunctuation()

    def sentences(self, text, is_cut):
        """The sentences of a paragraph, with blanks between words.

        is_cut: the paragraph has blanks between words already.
        """
        text = text.replace(POINT, HIDDEN_POINT)
        sentences = [sentence.replace(HIDDEN_POINT, POINT)
                     for piece in split_at_sure_ends(text, is_cut)
                     for sentence in self._punkt.tokenize(piece)]
        return sentences if is_cut else [
            sentence.translate(self._apart) for sentence in sentences]


def punkt_version():
    """A name of the rules; rules with another name may split otherwise."""
    return f'punkt {PUNKT_VERSION} {nltk().__version__}'


def nltk():
    try:
        import nltk.tokenize.punkt
    except ImportError as error:
        raise ImportError("split='punkt' needs NLTK, which cannot be "
                          f"imported ({error}): pip install 'nltk>=3.8,<4'"
                          ) from None
    return nltk


# Characters from which Punkt learns abbreviations, which takes 30 seconds
PUNKT_CHARS = 1 << 20

# The name in `Unchanged` of the fact that a file has the book's form. Increase
# the number when `has_books_form` changes
FORM = "the book's form 1"

# The number of bytes that are read to recognize it
FORM_BYTES = 1 << 20

# Sentence marks between blanks, and sentence marks that follow a word
_APART = re.compile(rb'(?<=\s)[.!?](?=\s|$)')
_JOINED = re.compile(rb'[^\s.!?][.!?]+["\')\]]*(?=\s|$)')


class Cut(NamedTuple):
    """A stretch of a text cut into words.

    types, sentences and paragraphs are as in `TokenizedText`. articles
    (articles,) int64: the first paragraph of each article that begins here.
    names: the different words, one per line. Paragraphs without an inner
    sentence end are left out. passed (2,) int64: the number of these
    paragraphs, and the number of their words.
    """

    types: onp.ndarray
    sentences: onp.ndarray
    paragraphs: onp.ndarray
    articles: onp.ndarray
    names: bytes
    passed: onp.ndarray

    @classmethod
    def of(cls, paragraphs, parted, kept, lower):
        """The `Cut` of `text_reader.Paragraphs`.

        kept: True or False for each paragraph; parted: the list of sentences
        of each paragraph that is kept.
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
        """A name of the rules; rules with another name may split otherwise."""
        return 'book'

    def __init__(self, files, progress, lower=True):
        self.lower = lower
        # The number of threads that may call `cut`; None is one per core
        self.num_threads = 1 if draw.library() is None else None
        self._own = threading.local()   # a buffer for each thread

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
            # Python reports a fault in the text, or splits long paragraphs
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
    """Splits sentences by `prose_sentences`; punctuation marks are words.

    A file of WikiText in the book's form is cut by the book's rule.
    """

    remedy = ('expected running text, a blank line between paragraphs, in '
              'each some sentences that end with a full stop')

    @staticmethod
    def version():
        return f'prose {PROSE_VERSION}'

    def __init__(self, files, progress, lower=True):
        self.lower, self.num_threads = lower, 1
        self._book = BookCutter(files, progress, lower)
        self._apart, self._forms = SpacedPunctuation(), {}

    def cut(self, stretch):
        if self._uses_books_rule(stretch):
            return self._book.cut(stretch)
        paragraphs = stretch.paragraphs()
        parted = [list(prose_sentences(text)) for text in paragraphs.texts]
        kept = [len(sentences) > 1 for sentences in parted]
        return Cut.of(
            paragraphs, [[sentence.translate(self._apart)
                          for sentence in sentences]
                         for sentences in itertools.compress(parted, kept)],
            kept, self.lower)

    def _uses_books_rule(self, stretch):
        return stretch.is_wiki and self._has_form(stretch.path)

    def _has_form(self, path):
        name = os.fspath(path)
        if name not in self._forms:
            self._forms[name] = has_books_form(path)
        return self._forms[name]


class MixedCutter(ProseCutter):
    """The book's rule for files in its form, `ProseCutter` for others."""

    @staticmethod
    def version():
        return f'mixed {PROSE_VERSION}'

    def _uses_books_rule(self, stretch):
        return self._has_form(stretch.path)


class PunktCutter:
    """Splits sentences by Punkt, which learns from the text."""

    remedy = 'expected running text, a blank line between paragraphs'

    @staticmethod
    def version():
        return punkt_version()

    def __init__(self, files, progress, lower=True):
        self.lower, self.num_threads = lower, 1
        with bar(PUNKT_CHARS, 'learning', 'B', unit_scale=True,
                 quiet=not progress) as shown:
            self.splitter = PunktSplitter(_beginning(files, shown.update))

    def cut(self, stretch):
        paragraphs = stretch.paragraphs()
        parted = [self.splitter.sentences(text, paragraphs.is_cut)
                  for text in paragraphs.texts]
        kept = [len(sentences) > 1 for sentences in parted]
        return Cut.of(paragraphs, itertools.compress(parted, kept), kept,
                      self.lower)


#: The cutters by name; for 'auto', `cutters` chooses one.
CUTTERS = {'book': BookCutter, 'prose': ProseCutter, 'punkt': PunktCutter}
SPLITS = 'auto', *CUTTERS


def cutters(split, files):
    """The class that cuts files by the rule `split`, one of SPLITS.

    files: `text_sources.Source`s. auto: the book's rule for files in the
    book's form, and `ProseCutter` for the others.
    """
    if split != 'auto':
        return CUTTERS[split]
    unchanged = Unchanged()
    forms = [unchanged.get(f'{FORM} of {file.digest_name}', file,
                           has_books_form) for file in files]
    unchanged.save()
    return BookCutter if all(forms) else MixedCutter


def has_books_form(path):
    """True if most sentence marks at a file's start are separate words.

    A file without any has the form if it has WikiText's titles.
    """
    pieces = text_sources.pieces(path, size=FORM_BYTES)
    with contextlib.closing(pieces) as found:
        data = next(found)[:FORM_BYTES]
    apart, joined = (len(marks.findall(data)) for marks in (_APART, _JOINED))
    return apart > joined or not joined and text_reader.has_title(data)


def _among_kept(places, kept):
    """The indices `places` in a list, after only kept items are left."""
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
