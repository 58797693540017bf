"""This module splits paragraphs into sentences and words, by three rules.

The book's rule ends a sentence at ' . '. There are two rules for running text.
`prose_sentences` ends sentences at marks that are always an end, in many
scripts. At . ! and ? it decides by rules (see `_is_end`): for example, the
full stop of an abbreviation or an initial ends no sentence. From a text,
NLTK's Punkt (Kiss and Strunk 2006) learns which full stops end no sentence.
Punkt knows no marks except . ! ?, so `split_at_sure_ends` first splits a text
at the marks of other scripts.

A cutter is an object whose method `cut` splits the lines of a
`text_reader.Stretch` into sentences and words. A class of cutters applies one
rule, or chooses between two for each file.

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

# The constants up to KANA are written for use between the [] of a regular
# expression. ENDS: characters with Unicode's property Sentence_Terminal, of
# some scripts that are in use today, without .!? and WIDE_STOP
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
_END = re.compile(
    rf'(?:[{ENDS}]|{WIDE_STOP}(?!\d))[{ENDS}{WIDE_STOP}{ELLIPSIS}.!?]*'
    rf'[{CLOSING}]*'
    # ASCII ! and ?, but not the full stop, before a Chinese or Japanese
    # character: these scripts have no blanks after marks
    rf'|[!?]+[{CLOSING}]*(?=[{IDEOGRAPHS}{KANA}])'
    rf'|{ELLIPSIS}+[{CLOSING}]*(?=\s)')

# The numbers of characters in which to look for the next letter after a mark,
# and for the last word before it. They keep the time for a long text linear
LOOK_AHEAD, LOOK_BACK = 80, 40


def split_at_sure_ends(text, is_tokenized=False):
    """Yield pieces of a text. A sentence surely ends at the end of each piece.

    Other sentences may end within a piece. is_tokenized: True for a tokenized
    text, in which a mark ends a sentence only before a blank.
    """
    begin = 0
    for match in _END.finditer(text):
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
    """A table for str.translate: put blanks around some characters.

    These are the punctuation marks, symbols and Chinese characters, each of
    which is a word (see `pretrained.tokenizers.encoded.is_word_alone`).
    """

    def __missing__(self, code):
        char = chr(code)
        self[code] = f' {char} ' if is_word_alone(char) else char
        return self[code]


#: Abbreviations before a name or a number. Their full stop ends no sentence,
#: even if a capital letter follows.
BEFORE_NAMES = frozenset(
    'mr mrs ms mx dr prof st sr sra messrs mme mlle gen adm col maj capt cmdr '
    'lt sgt cpl pvt rev fr hon gov sen rep pres supt insp mt ft vs cf eg ie '
    'viz ca bzw hr fam'.split())
#: Abbreviations whose full stop ends no sentence if a number follows.
BEFORE_NUMBERS = frozenset(
    'no nos nr vol vols fig figs eq eqs sec sect ch chap art p pp par para '
    'tab approx est jan feb mar apr jun jul aug sep sept oct nov dec'.split())

# Quotation marks, brackets and marks that may begin a sentence
_OPENING = '"\'\u2018\u201c\u00ab\u2039(\\[{\u00bf\u00a1'
# Marks that may end a sentence, and the closing quotation marks and brackets
# after them. In French a space precedes the closing quotation mark
_MARKS = re.compile(
    rf'[.!?]+(?:[{CLOSING}]|[ \u00a0\u202f]\u00bb)*(?=\s)')
# The first letter or digit after the marks
_NEXT_CHAR = re.compile(rf'\s*[{_OPENING}\u2013\u2014-]*\s*(\w)')
# The last word before the marks
_LAST_WORD = re.compile(r"[\w'\u2019&-]+(?:\.[\w'\u2019&-]+)*$")
# Single letters with full stops between them, as in U.S.
_DOTTED_LETTERS = re.compile(r'[^\W\d_](\.[^\W\d_])+')


def prose_sentences(text):
    """Yield the sentences of a paragraph, without changing any character."""
    has_capitals = text != text.lower()
    for piece in split_at_sure_ends(text):
        begin = 0
        for match in _MARKS.finditer(piece):
            if _is_end(piece, begin, match, has_capitals):
                yield piece[begin:match.end()]
                begin = match.end()
        if piece[begin:].strip():
            yield piece[begin:]


def _is_end(piece, begin, match, has_capitals):
    """True if a sentence ends at some marks and another begins after them.

    begin: the begin of the sentence in `piece`. match: the marks, a match of
    `_MARKS`. has_capitals: True if the paragraph has capital letters; then
    only ' . ' ends a sentence before a small letter.
    """
    next_match = _NEXT_CHAR.match(piece, match.end(),
                                  match.end() + LOOK_AHEAD)
    if not next_match:
        return False            # no word follows that could begin a sentence
    next_char = next_match[1]
    is_spaced = piece[match.start() - 1:match.start()].isspace()
    if is_spaced and match[0] == '.':
        return True             # as by the book's rule
    if next_char.islower() and has_capitals:
        return False
    if match[0] != '.':
        return True
    # A single full stop may belong to the last word
    word_match = _LAST_WORD.search(
        piece, max(begin, match.start() - LOOK_BACK), match.start())
    if not word_match:
        return True
    word = word_match[0]
    if word.isdigit():
        # A number that begins a sentence is the "1." of an item of a list
        begins_sentence = not piece[begin:word_match.start()].strip()
        return not begins_sentence
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

    texts: the paragraphs, strings, from which Punkt learns abbreviations.
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
    """Return the module nltk; raise ImportError if it is not installed."""
    try:
        import nltk.tokenize.punkt
    except ImportError as error:
        raise ImportError("split='punkt' needs NLTK, which cannot be "
                          f"imported ({error}): pip install 'nltk>=3.8,<4'"
                          ) from None
    return nltk


# Punkt learns from at most this number of characters, which takes 30 seconds
PUNKT_CHARS = 1 << 20

# The first part of the key under which the cache `FileFacts` keeps a result of
# `has_spaced_marks`. Increase the number in it when the function changes
MARKS_KEY = "the book's form 1"

# The number of bytes at a file's begin that `has_spaced_marks` reads
MARKS_BYTES = 1 << 20

# One of . ! ? between blanks
_SPACED_MARK = re.compile(rb'(?<=\s)[.!?](?=\s|$)')
# One or more of them right after a word, with any closing ASCII quotation
# marks or brackets
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
        kept_sentences: a list of sentences for each kept paragraph. lower:
        convert words to lower case.
        """
        tokens = tokens_of_paragraphs(
            [[sentence.lower() if lower else sentence
              for sentence in sentences] for sentences in kept_sentences])
        # The number of words of each paragraph that is left out
        left_out_lens = [len(text.split()) for text, is_kept in zip(
            paragraphs.texts, kept) if not is_kept]
        num_left_out = onp.count_nonzero(left_out_lens)
        return cls(tokens.types, tokens.sentences, tokens.paragraphs,
                   _indices_among_kept(paragraphs.articles, kept),
                   ''.join(f'{name}\n' for name in tokens.names).encode(),
                   onp.array([num_left_out, sum(left_out_lens)], 'int64'))


class BookCutter:
    """A cutter by the book's rule: ' . ' ends sentences, blanks end words.

    Each class of cutters has these arguments, the methods `version` and `cut`,
    and the attributes `remedy` and `num_threads`. files: the
    `text_sources.Source`s of the text. progress: show a bar if the cutter
    learns from the text. lower: convert words to lower case. Only
    `PunktCutter` learns; the other classes ignore files and progress.
    """

    # The end of the error message if no paragraph has two sentences
    remedy = ("with split='book' a sentence ends at ' . ', a full stop "
              "between blanks; split='prose' is for text as people write it")

    @staticmethod
    def version():
        """The name of the rule, then any versions of code that it depends on.

        A stored text is cut again if this string has changed.
        """
        return 'book'

    def __init__(self, files, progress, lower=True):
        self.lower = lower
        # The number of threads in which to call `cut`; None: one per core.
        # Only compiled code gains from threads, since it runs without Python's
        # global interpreter lock. draw.library() is the library of this code
        self.num_threads = 1 if draw.library() is None else None
        self._thread_local = threading.local()

    def cut(self, stretch):
        """Return the `Cut` of a `Stretch`; any thread may call this method."""
        fields = None
        if draw.library() is not None:
            if not hasattr(self._thread_local, 'memory'):
                self._thread_local.memory = compiled.TextMemory()
            # MAX_WORDS limits the bytes of a paragraph, and so its words.
            # PARTS: each line is a part of a paragraph
            fields = compiled.text(
                stretch.all_bytes,
                compiled.WIKI if stretch.is_wiki else compiled.PARTS,
                self.lower, text_reader.MAX_WORDS, self._thread_local.memory)
        if fields is None:
            # No library is loaded; or a paragraph has more bytes than
            # MAX_WORDS, and may have to be split; or bytes are not UTF-8, and
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
        # `paragraphs_of_lines` also leaves out the paragraphs without STOP,
        # and applies self.lower
        sentence_lists = paragraphs_of_lines(paragraphs.texts, self.lower)
        return Cut.of(paragraphs, kept, sentence_lists, lower=False)


class ProseCutter:
    """A cutter by `prose_sentences`, with the words of `SpacedPunctuation`.

    A file with a title of WikiText's format (see `text_reader`) and spaced
    marks is cut by the book's rule.
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
        self._spaced_by_path = {}   # {path: the result of `has_spaced_marks`}

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
        if name not in self._spaced_by_path:
            self._spaced_by_path[name] = has_spaced_marks(path)
        return self._spaced_by_path[name]


class MixedCutter(ProseCutter):
    """A cutter by the book's rule for files with spaced marks.

    Other files are cut by `prose_sentences`.
    """

    @staticmethod
    def version():
        return f'mixed {PROSE_VERSION}'

    def _uses_books_rule(self, stretch):
        return self._has_spaced_marks(stretch.path)


class PunktCutter:
    """A cutter by Punkt, which learns from the first characters of `files`."""

    remedy = 'expected running text, a blank line between paragraphs'

    @staticmethod
    def version():
        return f'punkt {PUNKT_VERSION} {import_nltk().__version__}'

    def __init__(self, files, progress, lower=True):
        self.lower, self.num_threads = lower, 1
        with bar(PUNKT_CHARS, 'learning', 'characters', unit_scale=True,
                 quiet=not progress) as progress_bar:
            self.splitter = PunktSplitter(
                _first_texts(files, progress_bar.update))

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
    the begin has a title of WikiText's format.
    """
    pieces = text_sources.pieces(path, size=MARKS_BYTES)
    with contextlib.closing(pieces):
        data = next(pieces)[:MARKS_BYTES]
    num_spaced = len(_SPACED_MARK.findall(data))
    num_attached = len(_ATTACHED_MARK.findall(data))
    if num_spaced == num_attached == 0:
        return text_reader.has_title(data)
    return num_spaced > num_attached


def _indices_among_kept(indices, kept):
    """Convert indices of paragraphs to indices among the kept paragraphs.

    The index of a paragraph that is not kept becomes the index of the next
    kept paragraph.
    """
    return onp.cumsum([0, *kept], dtype='int64')[indices]


def _first_texts(files, advance):
    """Yield the files' paragraphs in order, at most PUNKT_CHARS characters.

    The last paragraph may be truncated. advance: called with the number of
    characters of each paragraph.
    """
    chars_left = PUNKT_CHARS
    for file in files:
        # The empty function ignores the number of bytes read
        for paragraphs in text_reader.paragraphs_of(
                file, lambda num_bytes: None):
            for text in paragraphs.texts:
                if not chars_left:
                    return
                text = text[:chars_left]
                yield text
                advance(len(text))
                chars_left -= len(text)
