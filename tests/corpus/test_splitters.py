"""Sentences and words of text as people write it, by Punkt."""
import sys

import pytest
from texts import words_of, write

from d2lbert.corpus.corpus import open_corpus

PROSE = (
    'Dr. Smith keeps cranes. He said: "They don\'t sleep!" Then he left.\n'
    'Nobody followed Dr. Smith.\n\nA heading\n\n'
    'Prices rose by 3.5% (see Dr. Brown). The end came soon.\n\n'
    'As soon as the brown cranes left the field they sleep. Smith left it '
    'to them and Brown followed him.\n\n')


def test_punkt_learns_abbreviations_from_the_text():
    pytest.importorskip('nltk')
    path = write('prose.txt', PROSE * 20)
    text = open_corpus(path, split='punkt', min_freq=1, progress=False)
    assert words_of(text.train)[:2] == [
        ['dr . smith keeps cranes .'.split(),
         'he said : " they don \' t sleep ! "'.split(),
         'then he left .'.split(),
         'nobody followed dr . smith .'.split()],
        ['prices rose by 3 . 5 % ( see dr . brown ) .'.split(),
         'the end came soon .'.split()]]


def test_punkt_leaves_wikitexts_words_as_they_are():
    pytest.importorskip('nltk')
    path = write('wiki', ' \n = Crane = \n \n Half @-@ open <unk> . It is . '
                 '\n \n = = Life = = \n \n No end here \n' * 20)
    text = open_corpus(path, split='punkt', min_freq=1, progress=False)
    assert words_of(text.train)[0] == [
        'half @-@ open <unk> .'.split(), 'it is .'.split()]
    assert text.train.num_paragraphs == len(text.train.articles) == 20


def test_punkt_cuts_text_without_blanks():
    pytest.importorskip('nltk')
    path = write('zh.txt', '我喜欢鹤。它们会飞！\n你呢？\n\n没有句号\n\n'
                 '是 BERT。好。' * 9)
    text = open_corpus(path, split='punkt', min_freq=1, progress=False)
    assert words_of(text.train)[:2] == [
        [list('我喜欢鹤。'), list('它们会飞！'), list('你呢？')],
        [['是', 'bert', '。'], list('好。'), list('我喜欢鹤。'),
         list('它们会飞！'), list('你呢？')]]


def test_missing_nltk_is_reported(wiki, monkeypatch):
    monkeypatch.setitem(sys.modules, 'nltk', None)
    monkeypatch.setitem(sys.modules, 'nltk.tokenize', None)
    monkeypatch.setitem(sys.modules, 'nltk.tokenize.punkt', None)
    with pytest.raises(ImportError, match='needs NLTK.*pip install') as error:
        open_corpus(wiki, split='punkt', progress=False)
    assert '\n' not in str(error.value)
