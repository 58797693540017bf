"""A run of an earlier version goes on with what that version took."""
import pytest

from d2lbert.training.saved_runs import complete_saved
from d2lbert.training.settings import complete


@pytest.mark.parametrize('keywords, min_freq', [
    ({}, 5), (dict(tokenizer='wordpiece'), None), (dict(vocab='v'), None)])
def test_earlier_runs_have_the_books_words(keywords, min_freq):
    saved = complete(dict(keywords, corpus='own.txt', seed=1))
    assert complete_saved(saved) == saved
    for name in 'split', 'min_freq':
        del saved[name]
    earlier = complete_saved(saved)
    assert (earlier['split'], earlier['min_freq']) == ('book', min_freq)
