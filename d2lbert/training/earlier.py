"""Settings that runs of earlier versions did not keep."""
from d2lbert.bert_dataset import MIN_FREQ
from d2lbert.training.settings import complete


def complete_saved(settings):
    """All settings of a run that kept these; it may be of earlier versions.

    Those cut every text in the book's way, with the book's vocabulary.
    """
    of_words = (settings.get('tokenizer', 'words') == 'words'
                and settings.get('vocab') is None)
    return complete({'min_freq': MIN_FREQ if of_words else None,
                     'split': 'book', **settings})
