"""Ends of sentences in many scripts, and what is a word by itself."""
import unicodedata

import pytest

from d2lbert.corpus import splitters
from d2lbert.corpus.splitters import (
    PunktSplitter,
    SpacedPunctuation,
    split_at_sure_ends,
)

PROSE = ('Dr. Smith keeps cranes. He said: "They don\'t sleep!" Then he left. '
         'Nobody followed Dr. Smith. As soon as the brown cranes left the '
         'field they sleep. Smith left it to Dr. Brown. ')


@pytest.mark.parametrize('sentences', [
    ['我喜欢鹤。', '它们会飞！', '你呢？', '没有了'],
    ['他说：“你好。”', '然后走了。'],
    ['「鶴は飛ぶ。」', '彼は言った！？', 'ﾊｲ｡', '終わり。'],
    ['约１．５米高．', '很高。'],
    ['你好!', '我很好?', '好的。'],
    ['मैं सारस देखता हूँ। ', 'वह उड़ता है॥ ', 'क्या आप आएँगे?'],
    ['هل تطير الكراكي؟ ', 'نعم تطير.'],
    ['یہ سارس ہے۔ ', 'وہ اڑتا ہے۔'],
    ['Կռունկը թռչում է։ ', 'Այո։'],
    ['He waited… ', 'Then he left.'],
    ['“Really‽” ', 'She nodded.'],
], ids=lambda sentences: sentences[0])
def test_unambiguous_ends_split_sentences(sentences):
    pieces = list(split_at_sure_ends(''.join(sentences)))
    assert [piece.strip() for piece in pieces] == [
        sentence.strip() for sentence in sentences]


@pytest.mark.parametrize('text', [
    'Dr. Smith left. He was 1.5 m tall!', 'Well… perhaps not',
    'pages 3…5', '高１．５米', 'What?! No way', 'a "b!" c', '…', ' '])
def test_ambiguous_ends_are_left_to_punkt(text):
    assert list(split_at_sure_ends(text)) == [text] * bool(text.strip())


def test_nothing_is_lost():
    text = PROSE + '我喜欢鹤。它们 会飞！ Wait… What? 你呢？」 ok'
    assert ''.join(split_at_sure_ends(text)) == text


def test_split_words_stay_whole():
    assert list(split_at_sure_ends('鶴。飛ぶ 。 終', is_cut=True)) == [
        '鶴。飛ぶ 。', ' 終']


def test_each_end_is_punctuation():
    for letter in splitters.ENDS + splitters.WIDE_STOP + splitters.ELLIPSIS:
        # Python 3.8 has Unicode 12.1, where U+061D is not assigned yet
        known = {'Po'} if letter != '\u061d' else {'Po', 'Cn'}
        assert unicodedata.category(letter) in known, hex(ord(letter))


def test_chinese_characters_and_punctuation_are_words():
    def words(text):
        return text.translate(SpacedPunctuation()).split()
    assert words('我喜欢BERT，真的。') == [
        '我', '喜', '欢', 'BERT', '，', '真', '的', '。']
    assert words('東京タワーは高い𠀀') == [
        '東', '京', 'タワーは', '高', 'い', '𠀀']
    assert words("don't 서울에 é") == ['don', "'", 't', '서울에', 'é']


@pytest.fixture(scope='module')
def splitter():
    pytest.importorskip('nltk')
    return PunktSplitter([PROSE] * 20)


def test_punkt_works_between_the_ends(splitter):
    got = splitter.sentences('Dr. Smith left. He was tall. 他很高。Yes. No。',
                             False)
    assert [sentence.split() for sentence in got] == [
        'Dr . Smith left .'.split(), 'He was tall .'.split(),
        ['他', '很', '高', '。'], ['Yes', '.'], ['No', '。']]


def test_split_text_is_not_split_again(splitter):
    got = splitter.sentences("他很高 @-@ don't 。 Yes , I。am .", True)
    assert [sentence.split() for sentence in got] == [
        '他很高 @-@ don\'t 。'.split(), 'Yes , I。am .'.split()]
