"""Sentences and words of running text, by our rules and by Punkt."""
import re
import sys
import unicodedata

import numpy as onp
import pytest
from texts import words_of, write

from d2lbert import progress
from d2lbert.corpus import splitters
from d2lbert.corpus.corpus import open_corpus, report
from d2lbert.corpus.cut_text import usual_min_freq
from d2lbert.corpus.splitters import (
    PunktSplitter,
    SpacedPunctuation,
    prose_sentences,
    split_at_sure_ends,
)

PUNKT_TEXT = (
    'Dr. Smith keeps cranes. He said: "They don\'t sleep!" Then he left. '
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
    text = PUNKT_TEXT + '我喜欢鹤。它们 会飞！ Wait… What? 你呢？」 ok'
    assert ''.join(split_at_sure_ends(text)) == text


def test_split_words_stay_whole():
    assert list(split_at_sure_ends('鶴。飛ぶ 。 終', is_tokenized=True)) == [
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
    return PunktSplitter([PUNKT_TEXT] * 20)


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


@pytest.mark.parametrize('expected', [
    ['Dr. Smith left.', 'He was tall.'],
    ['He said: "They don\'t sleep!"', 'Then he left.'],
    ['"Stop!" he said.', 'Nobody did?', 'No.'],
    ['J. R. Smith paid $3.50 to Mrs. Brown.', 'She left at 5 p.m.',
     'It was No. 7 of vol. 3.', '7 men came.'],
    ['It came, e.g. Tuesday, from the U.S. Army.', 'Then it left.'],
    ['1. First comes this.', '2. Then that.'],
    ['Well... perhaps.', 'Really...', 'Yes!!', 'And so did I.', 'He too.'],
    ['he left home.', 'it was late.'],
    ['The crane flew .', 'it landed here .', 'It slept .'],
    ['Ça va.', 'Été comme hiver.', '\u00ab Oui. \u00bb', 'Non.'],
    ['他很高。', 'Yes.', 'No.'],
    ['no end here'],
], ids=lambda expected: expected[0])
def test_sentences_end_where_a_reader_ends_them(expected):
    text = ' '.join(expected)
    assert [sentence.strip() for sentence in prose_sentences(text)] == expected
    assert ''.join(prose_sentences(text)) == text


PLAIN = 'Dr. Smith left. He was {}!\n\nA heading\n\nIt rained. We slept.\n\n'
BOOK = 'dr. smith left . he was tall . \n\na heading\n\nit rained . then not .'
WIKI = ' = Crane = \n \n It flies @-@ high . It lands . \n \n = = Life = = \n'


def test_one_paragraph_with_spaced_marks_does_not_hide_the_others():
    # All but that paragraph was left out in silence
    path = write('prose.txt', ''.join(map(PLAIN.format, range(50)))
                 + 'The crane flew . It landed .\n')
    text = open_corpus(path, min_freq=1, progress=False).train
    assert text.num_paragraphs == 101
    assert words_of(text)[0] == ['dr . smith left .'.split(),
                                 'he was 0 !'.split()]
    assert words_of(text)[-1] == ['the crane flew .'.split(),
                                  'it landed .'.split()]


@pytest.mark.parametrize('content, is_spaced', [
    (PLAIN, False), (BOOK, True), (WIKI, True), (' = A = \n \n b \n', True),
    (' = A = \n \n Dr. Smith left. He ran. \n', False), ('a\n\nb', False)])
def test_spaced_marks_are_recognized(content, is_spaced):
    assert splitters.has_spaced_marks(
        write('some.txt', content)) == is_spaced


def test_files_of_both_forms_are_cut_each_by_its_own_rule():
    paths = [write('a.txt', PLAIN), write('b.txt', BOOK), write('c', WIKI)]
    text = open_corpus(paths, min_freq=1, progress=False).train
    assert words_of(text) == [
        ['dr . smith left .'.split(), 'he was { } !'.split()],
        ['it rained .'.split(), 'we slept .'.split()],
        ['dr. smith left'.split(), 'he was tall .'.split()],
        ['it rained'.split(), 'then not .'.split()],
        ['it flies @-@ high'.split(), 'it lands .'.split()]]
    book = open_corpus(paths[1], min_freq=1, progress=False)
    assert book.fingerprint == open_corpus(
        paths[1], min_freq=1, split='book', progress=False).fingerprint


@pytest.mark.parametrize('content, split, left_out', [
    (PLAIN, 'auto', (1, 2)), (BOOK, 'auto', (1, 2)), (WIKI, 'auto', (0, 0)),
    (WIKI + ' No end\xa0here \n', 'book', (1, 3)),
    (PLAIN + BOOK, 'book', (4, 14))])
def test_what_is_left_out_is_counted(content, split, left_out, plain):
    path = write('some.txt', content)
    cut = open_corpus(path, min_freq=1, split=split,
                      progress=False).train.counts
    assert (cut.left_out, cut.left_out_words) == left_out
    plain()
    path = write('other.txt', content + '\n')
    assert open_corpus(path, min_freq=1, split=split,
                       progress=False).train.counts == cut


def test_three_sentences_give_words(capsys):
    path = write('three.txt', 'The crane flew. It was cold. Nobody saw it.\n')
    text = open_corpus(path, min_freq=None, progress=False)
    assert 'crane' in text.vocab.token_to_idx
    assert text.train.counts.min_freq == 1
    report(text, dict(min_freq=None, split='auto', corpus='three.txt'))
    assert capsys.readouterr().err == (
        'three.txt: 1 paragraph used; 12 words; vocabulary of 14 with all '
        'words (min_freq lowered from 5, as the text is small); 0.0% of the '
        'words are unknown\n')
    report(open_corpus(path, min_freq=1, max_vocab=9, progress=False), dict(
        min_freq=1, vocab_size=9, split='auto', corpus='three.txt'))
    assert '; vocabulary of 9; ' in capsys.readouterr().err
    with pytest.raises(ValueError, match='three.txt occurs at least 5 times'):
        report(open_corpus(path, progress=False), dict(min_freq=5))
    words = write('words.txt', '<unk>\n<pad>\n<mask>\n<cls>\n<sep>\n')
    with pytest.raises(ValueError, match='vocabulary for three.txt has only '
                                         'special tokens: name a vocab'):
        report(open_corpus(path, vocab=str(words), progress=False), {})


@pytest.mark.parametrize('freqs, expected', [
    ([910] + [2] * 30 + [1] * 30, 5), ([850] + [2] * 60 + [1] * 30, 2),
    ([850] + [4] * 37 + [1] * 2, 4), ([850] + [1] * 150, 1), ([], 5),
    ([850_000] + [1] * 150_000, 5)])
def test_min_freq_falls_as_far_as_a_tenth_of_the_words_needs(freqs, expected):
    assert usual_min_freq(onp.array(freqs, 'int64')) == expected


def test_little_use_of_a_text_is_warned_of(caplog):
    path = write('some', PLAIN * 9 + BOOK)
    settings = dict(min_freq=1, split='book', corpus='some')
    report(open_corpus(path, split='book', min_freq=1, progress=False),
           settings)
    assert [record.getMessage()[:44] for record in caplog.records] == [
        '110 of 122 words of some are left out, since']
    caplog.clear()
    path = write('rare', PLAIN * 9 + 'One more comes. Another one goes.\n')
    report(open_corpus(path, max_vocab=9, progress=False), settings)
    message, = [record.getMessage() for record in caplog.records]
    assert 'of rare are unknown: fewer are' in message
    caplog.clear()
    vocab = open_corpus(write('latin', 'crane flies . it sings'),
                        split='book', pieces=40, progress=False).vocab
    path = write('mixed', 'crane 鹤 . 龟 龠')
    report(open_corpus(path, split='book', vocab=vocab, progress=False),
           settings)
    message, = [record.getMessage() for record in caplog.records]
    assert 'of the tokens of mixed are unknown' in message
    assert '(--vocab)' in message and '--tokenizer' not in message
    caplog.clear()
    report(open_corpus(path, split='book', vocab=vocab, progress=False),
           dict(settings, teacher='run'))
    message, = [record.getMessage() for record in caplog.records]
    assert '(--teacher)' in message and '--vocab' not in message


def test_words_left_out_are_compared_with_words_not_with_pieces(caplog):
    # 5 words in a paragraph that is used, 10 in one that is left out
    path = write('some', 'crane flies . it sings low\n\n' + 'a crane ' * 5)
    text = open_corpus(path, split='book', pieces=30, progress=False)
    assert text.train.counts.words > 10
    report(text, dict(min_freq=None, split='book', corpus='some'))
    assert [record.getMessage()[:43] for record in caplog.records] == [
        '10 of about 15 words of some are left out, ']


PROSE = (
    'Dr. Smith keeps cranes. He said: "They don\'t sleep!" Then he left.\n'
    'Nobody followed Dr. Smith.\n\nA heading\n\n'
    'Prices rose by 3.5% (see Dr. Brown). The end came soon.\n\n'
    'As soon as the brown cranes left the field they sleep. Smith left it '
    'to them and Brown followed him.\n\n')


def test_the_bar_of_punkt_counts_characters(monkeypatch, capfd):
    pytest.importorskip('nltk')
    monkeypatch.setattr(progress.LineBar, 'INTERVAL', 0)
    path = write('prose.txt', 'Er übt. Sie hört.\n\n' * 100)
    splitters.PunktCutter([path], progress=True)
    last_line = capfd.readouterr().err.splitlines()[-1]
    assert re.match(r'learning 1\.\d\dk/1\.05M characters: ', last_line)


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


def test_punkt_ends_no_sentence_at_wikitexts_decimal_point(splitter):
    text = 'It is 3 @.@ 5 m long . It flies .'
    assert splitter.sentences(text, True) == [
        'It is 3 @.@ 5 m long .', 'It flies .']


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
