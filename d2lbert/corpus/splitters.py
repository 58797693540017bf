"""This module splits paragraphs into sentences and words, by three rules.

By the book's rule, ' . ' ends a sentence. For running text there are two
rules: `prose_sentences` decides at each . ! and ? by its surroundings, and
NLTK's Punkt (Kiss and Strunk 2006) learns from the text which full stops end
no sentence. Before both, `split_at_sure_ends` splits a text at the marks that
always end a sentence, in many scripts.

A cutter splits the lines of a `text_reader.Stretch` into sentences and words.
Its class applies one rule, or chooses between two for each file.

A blank is any white space. A tokenized text has blanks around each word and
each punctuation mark. A file has spaced marks if most of its marks . ! ? are
between blanks, see `has_spaced_marks`.
"""
import contextlib
import itertools
import os
import re
import threading
from typing import NamedTuple

import numpy as onp

from d2lbert.corpus import text_reader
from d2lbert.corpus.text_reader import FileFacts
from d2lbert.kernels import cut as compiled
from d2lbert.kernels import draw
from d2lbert.pretrained.tokenizers.encoded import IDEOGRAPHS, is_word_alone
from d2lbert.progress import bar
from d2lbert.texts import text_sources
from d2lbert.texts.numbered_text import (
    STOP,
    paragraphs_of_lines,
    tokens_of_paragraphs,
)

# Increase this when `ProseCutter` or `MixedCutter` gives other sentences or
# words for the same text
PROSE_VERSION = 1

# ENDS to KANA are for use between the [] of regular expressions. ENDS: some
# characters with Unicode's property Sentence_Terminal, of scripts in use today
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
    '\u203c\u203d\u2047\u2048\u2049'    # pairs of ! and ?
    '\u3002\uff01\uff1f\uff61'          # Chinese and Japanese
    '\ufe52\ufe56\ufe57')               # small forms of . ? and !
WIDE_STOP = '\uff0e'    # fullwidth full stop; a decimal point before a digit
ELLIPSIS = '\u2026'
# Quotation marks and brackets that may follow the end of a sentence
CLOSING = '"\'\u2019\u201d\u00bb\u203a)\\]}\u3009\u300b\u300d\u300f\u3011' \
          '\u3015\u3017\uff09\uff3d\uff5d\uff63'
KANA = '\u3041-\u30ff'     # Japanese syllables

# Marks after which a sentence ends, unless `split_at_sure_ends` skips them
_SURE_END = re.compile(
    rf'(?:[{ENDS}]|{WIDE_STOP}(?!\d))[{ENDS}{WIDE_STOP}{ELLIPSIS}.!?]*'
    rf'[{CLOSING}]*'
    # ASCII ! and ?, but not the full stop, before a Chinese or Japanese
    # character: these scripts have no blanks after marks
    rf'|[!?]+[{CLOSING}]*(?=[{IDEOGRAPHS}{KANA}])'
    rf'|{ELLIPSIS}+[{CLOSING}]*(?=\s)')

# Limits in characters of the search for the next letter after a mark, and for
# the last word before it. They keep the time linear in the length of a text
LOOK_AHEAD, LOOK_BACK = 80, 40


def split_at_sure_ends(text, is_tokenized=False):
    """Split a text after marks that surely end a sentence: yield the pieces.

    A piece may have several sentences. is_tokenized: True for a tokenized
    text, in which a mark ends a sentence only before a blank.
    """
    begin = 0
    for match in _SURE_END.finditer(text):
        end = match.end()
        if is_tokenized and not text[end:end + 1].isspace():
            continue
        next_text = text[end:end + LOOK_AHEAD].lstrip()
        if match[0][0] == ELLIPSIS and next_text[:1].islower():
            continue        # before a small letter, '…' is only a pause
        yield text[begin:end]
        begin = end
    if text[begin:].strip():
        yield text[begin:]


class SpacedPunctuation(dict):
    """A table for str.translate that puts blanks around some characters.

    These are punctuation, symbols and Chinese characters (`is_word_alone`).
    """

    def __missing__(self, code):
        char = chr(code)
        self[code] = f' {char} ' if is_word_alone(char) else char
        return self[code]


#: Abbreviations, most of them before names, whose full stop ends no sentence.
BEFORE_NAMES = frozenset(
    'mr mrs ms mx dr prof st sr sra messrs mme mlle gen adm col maj capt cmdr '
    'lt sgt cpl pvt rev fr hon gov sen rep pres supt insp mt ft vs cf eg ie '
    'viz ca bzw hr fam'.split())
#: Abbreviations whose full stop ends no sentence if a number follows.
BEFORE_NUMBERS = frozenset(
    'no nos nr vol vols fig figs eq eqs sec sect ch chap art p pp par para '
    'tab approx est jan feb mar apr jun jul aug sep sept oct nov dec'.split())

# Marks and brackets that may begin a sentence
_OPENING = '"\'\u2018\u201c\u00ab\u2039(\\[{\u00bf\u00a1'
# Marks that may end a sentence, with closing quotation marks and brackets. In
# French a space precedes the closing quotation mark
_POSSIBLE_END = re.compile(
    rf'[.!?]+(?:[{CLOSING}]|[ \u00a0\u202f]\u00bb)*(?=\s)')
# The first letter or digit after the marks
_NEXT_CHAR = re.compile(rf'\s*[{_OPENING}\u2013\u2014-]*\s*(\w)')
_LAST_WORD = re.compile(r"[\w'\u2019&-]+(?:\.[\w'\u2019&-]+)*$")
_DOTTED_LETTERS = re.compile(r'[^\W\d_](\.[^\W\d_])+')      # as in U.S.


def prose_sentences(text):
    """Yield the sentences of a paragraph, without changing any character."""
    has_capitals = text != text.lower()
    for piece in split_at_sure_ends(text):
        begin = 0
        for marks in _POSSIBLE_END.finditer(piece):
            if _is_end(piece, begin, marks, has_capitals):
                yield piece[begin:marks.end()]
                begin = marks.end()
        if piece[begin:].strip():
            yield piece[begin:]


def _is_end(piece, sentence_begin, marks, has_capitals):
    """True if a sentence ends at some marks and another begins after them.

    marks: a match of `_POSSIBLE_END`. has_capitals: False for a paragraph
    without capital letters, in which a small letter may begin a sentence.
    """
    next_match = _NEXT_CHAR.match(piece, marks.end(), marks.end() + LOOK_AHEAD)
    if not next_match:
        return False            # no word follows that could begin a sentence
    next_char = next_match[1]
    is_spaced = piece[marks.start() - 1:marks.start()].isspace()
    if is_spaced and marks[0] == '.':
        return True             # as by the book's rule
    if next_char.islower() and has_capitals:
        return False
    if marks[0] != '.':
        return True
    # A single full stop may belong to the last word
    word_match = _LAST_WORD.search(
        piece, max(sentence_begin, marks.start() - LOOK_BACK), marks.start())
    if not word_match:
        return True
    word = word_match[0]
    if word.isdigit():
        is_item_number = not piece[sentence_begin:word_match.start()].strip()
        return not is_item_number       # "1." before an item of a list
    if next_char.isdigit() and word.lower() in BEFORE_NUMBERS:
        return False
    if len(word) == 1 and word.isupper() and word != 'I':
        return False            # an initial; I is more often the pronoun
    if _DOTTED_LETTERS.fullmatch(word):
        # Of dotted abbreviations, only a.m. and p.m. often end a sentence
        return word.lower() in ('a.m', 'p.m')
    return word.lower() not in BEFORE_NAMES


# Increase this when `PunktSplitter` gives other sentences for the same text
PUNKT_VERSION = 3

# WikiText's decimal point, and its replacement while Punkt reads the text:
# Punkt could end a sentence at the full stop in '@.@'
DECIMAL_POINT, HIDDEN_POINT = '@.@', '@\ue000@'


class PunktSplitter:
    """Splits paragraphs into sentences by NLTK's Punkt.

    texts: strings, from which Punkt learns abbreviations.
    """

    def __init__(self, texts):
        punkt = import_nltk().tokenize.punkt
        trainer = punkt.PunktTrainer()
        for text in texts:
            trainer.train(text.replace(DECIMAL_POINT, HIDDEN_POINT),
                          finalize=False)
        trainer.finalize_training()
        self._punkt = punkt.PunktSentenceTokenizer(trainer.get_params())
        self._spaced_punctuation = SpacedPunctuation()

    def sentences(self, text, is_tokenized):
        """Return a paragraph's sentences, with blanks between all words.

        is_tokenized: True if the text has these blanks already.
        """
        text = text.replace(DECIMAL_POINT, HIDDEN_POINT)
        sentences = []
        for piece in split_at_sure_ends(text, is_tokenized):
            sentences += self._punkt.tokenize(piece)
        sentences = [sentence.replace(HIDDEN_POINT, DECIMAL_POINT)
                     for sentence in sentences]
        if is_tokenized:
            return sentences
        return [sentence.translate(self._spaced_punctuation)
                for sentence in sentences]


def import_nltk():
    try:
        import nltk.tokenize.punkt
    except ImportError as error:
        raise ImportError("split='punkt' needs NLTK, which cannot be "
                          f"imported ({error}): pip install 'nltk>=3.8,<4'"
                          ) from None
    return nltk


# Punkt learns from at most this number of characters, which takes 30 seconds
PUNKT_CHARS = 1 << 20

# The name of a result of `has_spaced_marks` in the cache `FileFacts`. Increase
# its number when the function changes
MARKS_KEY = "the book's form 1"

# The number of bytes at a file's begin that `has_spaced_marks` reads
MARKS_BYTES = 1 << 20

_SPACED_MARK = re.compile(rb'(?<=\s)[.!?](?=\s|$)')
# Marks right after a word, with any closing ASCII quotation marks or brackets
_ATTACHED_MARK = re.compile(rb'[^\s.!?][.!?]+["\')\]]*(?=\s|$)')


class Cut(NamedTuple):
    """The output of a cutter: the words of some consecutive paragraphs.

    By the book's rule, paragraphs without ' . ' are left out; by the other
    rules, paragraphs of a single sentence. types, sentences and paragraphs are
    as in `numbered_text.TokenizedText`.
    """

    types: onp.ndarray
    sentences: onp.ndarray
    paragraphs: onp.ndarray
    articles: onp.ndarray   # (articles that begin here,) int64: the index of
                            # each article's first kept paragraph or, if it has
                            # none, of the next kept paragraph
    names: bytes            # the different words, one per line
    left_out: onp.ndarray   # (2,) int64: the number of left-out paragraphs
                            # with words, and of their words, split at blanks

    @classmethod
    def of(cls, paragraphs, kept, kept_sentences, lower):
        """Return the `Cut` of `text_reader.Paragraphs`.

        kept: a boolean for each paragraph, False if it is left out.
        kept_sentences: a list of sentences for each kept paragraph.
        """
        tokens = tokens_of_paragraphs(
            [[sentence.lower() if lower else sentence
              for sentence in sentences] for sentences in kept_sentences])
        left_out_lens = [len(text.split()) for text, is_kept in zip(
            paragraphs.texts, kept) if not is_kept]
        num_left_out = onp.count_nonzero(left_out_lens)
        # Entry k: the number of kept paragraphs before paragraph k
        num_kept_before = onp.cumsum([0, *kept], dtype='int64')
        return cls(tokens.types, tokens.sentences, tokens.paragraphs,
                   num_kept_before[paragraphs.articles],
                   ''.join(f'{name}\n' for name in tokens.names).encode(),
                   onp.array([num_left_out, sum(left_out_lens)], 'int64'))


class BookCutter:
    """A cutter by the book's rule: ' . ' ends sentences, blanks end words.

    Each class of cutters has these arguments, the methods `version` and `cut`,
    and the attributes `remedy` and `num_threads`. lower: convert words to
    lower case. files (`text_sources.Source`s) and progress (show a bar) are
    for `PunktCutter`, which learns from the files.
    """

    # The end of the error message if no paragraph has two sentences
    remedy = ("with split='book' a sentence ends at ' . ', a full stop "
              "between blanks; split='prose' is for text as people write it")

    @staticmethod
    def version():
        """A stored text is cut again if this string has changed."""
        return 'book'

    def __init__(self, files, progress, lower=True):
        self.lower = lower
        # The number of threads in which to call `cut`; None: one per core.
        # Only compiled code runs without the global interpreter lock
        self.num_threads = 1 if draw.library() is None else None
        self._thread_local = threading.local()

    def cut(self, stretch):
        """Return the `Cut` of a `Stretch`; any thread may call this method."""
        fields = None
        if draw.library() is not None:
            if not hasattr(self._thread_local, 'memory'):
                self._thread_local.memory = compiled.TextMemory()
            fields = compiled.text(
                stretch.all_bytes,
                compiled.WIKI if stretch.is_wiki else compiled.PARTS,
                self.lower, text_reader.MAX_WORDS, self._thread_local.memory)
        if fields is None:
            # No library is loaded; or a paragraph has more than MAX_WORDS
            # bytes, and perhaps too many words; or bytes are not UTF-8, and
            # an error must name their line
            return self.cut_plainly(stretch)
        cut = Cut(*fields)
        if not stretch.is_first:
            return cut
        # The first paragraph of a file begins an article
        return cut._replace(articles=onp.append(0, cut.articles))

    def cut_plainly(self, stretch):
        """`cut` without compiled code."""
        paragraphs = stretch.paragraphs()
        kept = [STOP in text for text in paragraphs.texts]
        # `paragraphs_of_lines` keeps the same paragraphs, and applies `lower`
        sentence_lists = paragraphs_of_lines(paragraphs.texts, self.lower)
        return Cut.of(paragraphs, kept, sentence_lists, lower=False)


class ProseCutter:
    """A cutter by `prose_sentences`, with the words of `SpacedPunctuation`.

    A file with WikiText's titles and spaced marks is cut by the book's rule.
    """

    remedy = ('expected running text, a blank line between paragraphs, and '
              'paragraphs of several sentences that end with full stops')

    @staticmethod
    def version():
        return f'prose {PROSE_VERSION}'

    def __init__(self, files, progress, lower=True):
        self.lower, self.num_threads = lower, 1
        self._book = BookCutter(files, progress, lower)
        self._spaced_punctuation = SpacedPunctuation()
        self._spaced_marks = {}     # {path: result of `has_spaced_marks`}

    def cut(self, stretch):
        if self._uses_books_rule(stretch):
            return self._book.cut(stretch)
        paragraphs = stretch.paragraphs()
        sentence_lists = [list(prose_sentences(text))
                          for text in paragraphs.texts]
        kept = [len(sentences) > 1 for sentences in sentence_lists]
        kept_sentences = [
            [sentence.translate(self._spaced_punctuation)
             for sentence in sentences]
            for sentences in itertools.compress(sentence_lists, kept)]
        return Cut.of(paragraphs, kept, kept_sentences, self.lower)

    def _uses_books_rule(self, stretch):
        return stretch.is_wiki and self._has_spaced_marks(stretch.path)

    def _has_spaced_marks(self, path):
        name = os.fspath(path)
        if name not in self._spaced_marks:
            self._spaced_marks[name] = has_spaced_marks(path)
        return self._spaced_marks[name]


class MixedCutter(ProseCutter):
    """Cuts files with spaced marks by the book's rule, others as prose."""

    @staticmethod
    def version():
        return f'mixed {PROSE_VERSION}'

    def _uses_books_rule(self, stretch):
        return self._has_spaced_marks(stretch.path)


class PunktCutter:
    """A cutter by Punkt, which learns from the first characters of `files`."""

    remedy = 'expected running text with a blank line between paragraphs'

    @staticmethod
    def version():
        return f'punkt {PUNKT_VERSION} {import_nltk().__version__}'

    def __init__(self, files, progress, lower=True):
        self.lower, self.num_threads = lower, 1
        with bar(PUNKT_CHARS, 'learning', 'characters', unit_scale=True,
                 quiet=not progress) as progress_bar:
            self.splitter = PunktSplitter(
                _first_paragraphs(files, progress_bar.update))

    def cut(self, stretch):
        paragraphs = stretch.paragraphs()
        sentence_lists = [
            self.splitter.sentences(text, paragraphs.is_tokenized)
            for text in paragraphs.texts]
        kept = [len(sentences) > 1 for sentences in sentence_lists]
        return Cut.of(paragraphs, kept,
                      itertools.compress(sentence_lists, kept), self.lower)


#: {setting `split`: class of cutters}. For 'auto', see `cutter_class`.
CUTTERS = {'book': BookCutter, 'prose': ProseCutter, 'punkt': PunktCutter}
SPLITS = 'auto', *CUTTERS


def cutter_class(split, files):
    """Return the class of cutters for a setting `split`, one of SPLITS.

    files: the `text_sources.Source`s of the text. 'auto' means the book's
    rule for files with spaced marks, and `prose_sentences` for other files.
    """
    if split != 'auto':
        return CUTTERS[split]
    facts = FileFacts()
    have_spaced_marks = [
        facts.get(f'{MARKS_KEY} of {file.digest_key}', file, has_spaced_marks)
        for file in files]
    facts.save()
    return BookCutter if all(have_spaced_marks) else MixedCutter


def has_spaced_marks(path):
    """True if most of the marks . ! ? at a file's begin are between blanks.

    Marks within a word, as in 3.5, do not count. If no mark counts, True if
    there is a title of WikiText's format.
    """
    pieces = text_sources.pieces(path, size=MARKS_BYTES)
    with contextlib.closing(pieces):
        head = next(pieces)[:MARKS_BYTES]
    num_spaced = len(_SPACED_MARK.findall(head))
    num_attached = len(_ATTACHED_MARK.findall(head))
    if num_spaced == num_attached == 0:
        return text_reader.has_title(head)
    return num_spaced > num_attached


def _first_paragraphs(files, advance):
    """Yield paragraphs of files, at most PUNKT_CHARS characters in all.

    advance: called with the number of characters of each paragraph.
    """
    chars_left = PUNKT_CHARS
    for file in files:
        for paragraphs in text_reader.paragraphs_of(
                file, lambda num_bytes: None):
            for text in paragraphs.texts:
                if not chars_left:
                    return
                text = text[:chars_left]
                yield text
                advance(len(text))
                chars_left -= len(text)
