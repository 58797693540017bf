"""Text as people write it: its sentences, its form, how much is used."""
import numpy as onp
import pytest
from texts import words_of, write

from d2lbert.corpus import splitters
from d2lbert.corpus.corpus import open_corpus, report
from d2lbert.corpus.cut_text import usual_min_freq
from d2lbert.corpus.splitters import prose_sentences


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


PROSE = 'Dr. Smith left. He was {}!\n\nA heading\n\nIt rained. We slept.\n\n'
BOOK = 'dr. smith left . he was tall . \n\na heading\n\nit rained . then not .'
WIKI = ' = Crane = \n \n It flies @-@ high . It lands . \n \n = = Life = = \n'


def test_one_paragraph_in_the_books_form_does_not_hide_the_others():
    # All but that paragraph was left out in silence
    path = write('prose.txt', ''.join(map(PROSE.format, range(50)))
                 + 'The crane flew . It landed .\n')
    text = open_corpus(path, min_freq=1, progress=False).train
    assert text.num_paragraphs == 101
    assert words_of(text)[0] == ['dr . smith left .'.split(),
                                 'he was 0 !'.split()]
    assert words_of(text)[-1] == ['the crane flew .'.split(),
                                  'it landed .'.split()]


@pytest.mark.parametrize('content, is_books', [
    (PROSE, False), (BOOK, True), (WIKI, True), (' = A = \n \n b \n', True),
    (' = A = \n \n Dr. Smith left. He ran. \n', False), ('a\n\nb', False)])
def test_the_books_form_is_recognized(content, is_books):
    assert splitters.has_books_form(write('some.txt', content)) == is_books


def test_files_of_both_forms_are_cut_each_by_its_own_rule():
    paths = [write('a.txt', PROSE), write('b.txt', BOOK), write('c', WIKI)]
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


@pytest.mark.parametrize('content, split, passed', [
    (PROSE, 'auto', (1, 2)), (BOOK, 'auto', (1, 2)), (WIKI, 'auto', (0, 0)),
    (WIKI + ' No end\xa0here \n', 'book', (1, 3)),
    (PROSE + BOOK, 'book', (4, 14))])
def test_what_is_left_out_is_counted(content, split, passed, plain):
    path = write('some.txt', content)
    cut = open_corpus(path, min_freq=1, split=split,
                      progress=False).train.counts
    assert (cut.passed, cut.passed_words) == passed
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
        'words (instead of 5 times, as the text is small); 0.0% of the words '
        'are <unk>\n')
    with pytest.raises(ValueError, match='no word of three.txt occurs 5 time'):
        report(open_corpus(path, progress=False), dict(min_freq=5))


@pytest.mark.parametrize('freqs, expected', [
    ([910] + [2] * 30 + [1] * 30, 5), ([850] + [2] * 60 + [1] * 30, 2),
    ([850] + [4] * 37 + [1] * 2, 4), ([850] + [1] * 150, 1), ([], 5),
    ([850_000] + [1] * 150_000, 5)])
def test_min_freq_falls_as_far_as_a_tenth_of_the_words_needs(freqs, expected):
    assert usual_min_freq(onp.array(freqs, 'int64')) == expected


def test_little_use_of_a_text_is_warned_of(caplog):
    path = write('some', PROSE * 9 + BOOK)
    settings = dict(min_freq=1, split='book', corpus='some')
    report(open_corpus(path, split='book', min_freq=1, progress=False),
           settings)
    assert [record.getMessage()[:44] for record in caplog.records] == [
        '110 of 122 words of some are left out, since']
    caplog.clear()
    path = write('rare', PROSE * 9 + 'One more comes. Another one goes.\n')
    report(open_corpus(path, max_vocab=9, progress=False), settings)
    message, = [record.getMessage() for record in caplog.records]
    assert 'of rare are unknown, and read as <unk>: word pieces' in message
