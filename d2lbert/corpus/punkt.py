"""Sentences and words of text as people write it, for split='punkt'.

NLTK's Punkt (Kiss and Strunk 2006) learns from a text which full stops end
no sentence. It knows the ends of Latin script, which a blank follows; those
that are an end and nothing else, in whatever script, are found before it.
"""
import re
import unicodedata

# To be raised when other sentences or words come out
VERSION = 2

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


class Splitter:
    """Cuts paragraphs into sentences; texts: those to learn from."""

    def __init__(self, texts):
        punkt = nltk().tokenize.punkt
        learner = punkt.PunktTrainer()
        for text in texts:
            learner.train(text, finalize=False)
        learner.finalize_training()
        self._punkt = punkt.PunktSentenceTokenizer(learner.get_params())
        self._apart = SpacedPunctuation()

    def sentences(self, text, is_cut):
        """The sentences of a paragraph, words between blanks.

        is_cut: they were so before, and stay as they are.
        """
        return [sentence if is_cut else sentence.translate(self._apart)
                for piece in parted(text, is_cut)
                for sentence in self._punkt.tokenize(piece)]


def version():
    """What sentences and words depend on, beside the text."""
    return f'punkt {VERSION} {nltk().__version__}'


def nltk():
    try:
        import nltk.tokenize.punkt
    except ImportError as error:
        raise ImportError("split='punkt' needs NLTK, which cannot be "
                          f"imported ({error}): pip install 'nltk>=3.8,<4'"
                          ) from None
    return nltk
