"""Sentences and words of text as people write it.

Sentences end at marks that are an end and nothing else, in whatever script,
and at full stops that neither an abbreviation nor an initial explains.
"""
import re
import unicodedata

# To be raised when other sentences or words come out
VERSION = 1

# Unicode's Sentence_Terminal, without .!? and those of scripts that are no
# longer written
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
WIDE_STOP = '\uff0e'                    # in a number it is a point
ELLIPSIS = '\u2026'
CLOSING = '"\'\u2019\u201d\u00bb\u203a)\\]}\u3009\u300b\u300d\u300f\u3011' \
          '\u3015\u3017\uff09\uff3d\uff5d\uff63'

# Chinese characters, as the published BERT has them
IDEOGRAPHS = ('\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df'
              '\U0002a700-\U0002b73f\U0002b740-\U0002b81f'
              '\U0002b820-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f')
KANA = '\u3041-\u30ff'

_END = re.compile(
    rf'(?:[{ENDS}]|{WIDE_STOP}(?!\d))[{ENDS}{WIDE_STOP}{ELLIPSIS}.!?]*'
    rf'[{CLOSING}]*'
    # No blank follows .!? in Chinese, and a point may be in a number
    rf'|[!?]+[{CLOSING}]*(?=[{IDEOGRAPHS}{KANA}])'
    rf'|{ELLIPSIS}+[{CLOSING}]*(?=\s)')
_IDEOGRAPH = re.compile(f'[{IDEOGRAPHS}]')


def parted(text, is_cut=False):
    """The text in pieces, each of which ends where a sentence surely does.

    is_cut: blanks part the words, so that one must follow.
    """
    begin = 0
    for found in _END.finditer(text):
        end = found.end()
        rest = text[end:end + 80].lstrip()
        if (is_cut and not text[end:end + 1].isspace()
                # What goes on in small letters was only a pause
                or found[0][0] == ELLIPSIS and rest[:1].islower()):
            continue
        yield text[begin:end]
        begin = end
    if text[begin:].strip():
        yield text[begin:]


class SpacedPunctuation(dict):
    """For str.translate: blanks around what is a word by itself.

    That is each character that Unicode calls punctuation or symbol, and each
    Chinese character, as in the published BERT.
    """

    def __missing__(self, code):
        letter = chr(code)
        apart = (unicodedata.category(letter)[0] in 'PS'
                 or _IDEOGRAPH.match(letter))
        self[code] = f' {letter} ' if apart else letter
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
# In French a blank stands before the closing quotation mark
_MARK = re.compile(
    rf'[.!?]+(?:[{CLOSING}]|[ \u00a0\u202f]\u00bb)*(?=\s)')
_FIRST = re.compile(rf'\s*[{_OPENING}\u2013\u2014-]*\s*(\w)')
_LAST = re.compile(r"[\w'\u2019&-]+(?:\.[\w'\u2019&-]+)*$")
_LETTERS = re.compile(r'[^\W\d_](\.[^\W\d_])+')


def sentences(text):
    """Yield the sentences of a paragraph, as it has them."""
    has_capitals = text != text.lower()
    for piece in parted(text):
        begin = 0
        for mark in _MARK.finditer(piece):
            if _is_end(piece, begin, mark, has_capitals):
                yield piece[begin:mark.end()]
                begin = mark.end()
        if piece[begin:].strip():
            yield piece[begin:]


def _is_end(piece, begin, mark, has_capitals):
    """True if a sentence ends with a mark; begin: where it began."""
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
