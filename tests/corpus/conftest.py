"""Fixtures for the tests of texts of any size."""
import pytest
from texts import make_wiki, write

from d2lbert.corpus.corpus import open_corpus
from d2lbert.machine import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A store of each test's own; compiled code is shared."""
    root = tmp_path / 'cache'
    monkeypatch.setattr(cache, 'root', lambda: root)
    return root / 'corpora'


@pytest.fixture
def wiki(tmp_path):
    return write('wiki.tokens', make_wiki(40)[0])


@pytest.fixture
def big(tmp_path):
    """A text that gives some thousands of pairs."""
    return open_corpus(write('big', make_wiki(400)[0]), min_freq=2,
                       progress=False)
