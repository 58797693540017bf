"""Sentences of text as people write it, by a library: split='punkt'.

NLTK's Punkt (Kiss and Strunk 2006) learns from a text which full stops end
no sentence. It knows the ends of Latin script, which a blank follows; other
scripts' ends are found before it, by `prose.parted`.
"""
from d2lbert.corpus.prose import SpacedPunctuation, parted

# To be raised when the same text gives other sentences or words
VERSION = 2


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
