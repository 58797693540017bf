"""Settings that runs of earlier versions did not store."""
from d2lbert.bert_dataset import MIN_FREQ
from d2lbert.training.settings import EARLIER, complete


def complete_saved(settings):
    """All settings of a run from its stored settings.

    Runs of earlier versions cut every text as the book does, and with the
    vocabulary of the book. Some settings had other names.
    """
    settings = {EARLIER.get(name, name): value
                for name, value in settings.items()}
    of_words = (settings.get('tokenizer', 'words') == 'words'
                and settings.get('vocab') is None)
    return complete({'min_freq': MIN_FREQ if of_words else None,
                     'split': 'book', **settings})
