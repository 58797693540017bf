"""Sentences and words of running text, for split='punkt'.

NLTK's Punkt (Kiss and Strunk 2006) learns from a text which full stops do
not end a sentence. Unambiguous sentence ends of all scripts are found before
Punkt, which only knows ends of the Latin script with a blank after them.
"""
import re
import unicodedata

# To be raised when the same text gives other sentences or words
VERSION = 2

# Unicode's Sentence_Terminal, without .!? and without historic scripts
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
    """Yield the text in parts that end at unambiguous sentence ends.

    is_cut: the words have blanks between them, so a blank must follow.
    """
    begin = 0
    for found in _END.finditer(text):
        end = found.end()
        rest = text[end:end + 80].lstrip()
        if (is_cut and not text[end:end + 1].isspace()
                # Before a small letter an ellipsis is only a pause
                or found[0][0] == ELLIPSIS and rest[:1].islower()):
            continue
        yield text[begin:end]
        begin = end
    if text[begin:].strip():
        yield text[begin:]


class SpacedPunctuation(dict):
    """A table for str.translate that puts blanks around some characters.

    These are Unicode's punctuation and symbols and the Chinese characters,
    as in the published BERT.
    """

    def __missing__(self, code):
        letter = chr(code)
        apart = (unicodedata.category(letter)[0] in 'PS'
                 or _IDEOGRAPH.match(letter))
        self[code] = f' {letter} ' if apart else letter
        return self[code]


class Splitter:
    """Splits paragraphs into sentences; learns from `texts`."""

    def __init__(self, texts):
        punkt = nltk().tokenize.punkt
        learner = punkt.PunktTrainer()
        for text in texts:
            learner.train(text, finalize=False)
        learner.finalize_training()
        self._punkt = punkt.PunktSentenceTokenizer(learner.get_params())
        self._apart = SpacedPunctuation()

    def sentences(self, text, is_cut):
        """The sentences of a paragraph, with blanks between words.

        is_cut: the paragraph has blanks between words already.
        """
        return [sentence if is_cut else sentence.translate(self._apart)
                for piece in parted(text, is_cut)
                for sentence in self._punkt.tokenize(piece)]


def version():
    """A key of the rules; another key may give other words."""
    return f'punkt {VERSION} {nltk().__version__}'


def nltk():
    try:
        import nltk.tokenize.punkt
    except ImportError as error:
        raise ImportError("split='punkt' needs NLTK, which cannot be "
                          f"imported ({error}): pip install 'nltk>=3.8,<4'"
                          ) from None
    return nltk
