"""Files read as lines and paragraphs, in any form they come in."""
import gzip

import numpy as onp
import pytest
from texts import (
    VALID,
    book_vocab,
    book_words,
    known,
    make_wiki,
    words_of,
    write,
)

from d2lbert import hub
from d2lbert.corpus import cut_text, splitters, text_reader, text_store
from d2lbert.corpus.corpus import open_corpus
from d2lbert.texts import numbered_text
from d2lbert.texts.numbered_text import NumberedText


@pytest.mark.parametrize('block', [64, 1000, 1 << 22])
def test_a_streamed_text_is_the_books_text(block, monkeypatch):
    monkeypatch.setattr(text_reader, 'BLOCK_BYTES', block)
    monkeypatch.setattr(cut_text, 'BLOCK_WORDS', block)
    monkeypatch.setattr(text_store, 'BLOCK_WORDS', block)
    path = hub.sample_dir() / hub.TRAIN_FILE
    if block < 1000:
        path = write('head', ''.join(
            path.read_text(encoding='utf-8').splitlines(True)[:150]))
    lines = path.read_text(encoding='utf-8').split('\n')
    text = open_corpus(path, progress=False)
    paragraphs = book_words(lines)
    vocab = book_vocab(paragraphs)
    assert text.vocab.idx_to_token == vocab.idx_to_token
    assert words_of(text.train) == known(paragraphs, vocab)
    assert text.valid is None


@pytest.mark.wiki
def test_wikitext2_is_the_books_in_one_chunk(wiki_dir):
    text = open_corpus(wiki_dir / hub.TRAIN_FILE, progress=False,
                       valid_paths=wiki_dir / 'wiki.valid.tokens')
    tokens = numbered_text.read_tokens(wiki_dir / hub.TRAIN_FILE)
    book = NumberedText.of_tokens(
        tokens, onp.arange(len(tokens.paragraphs) - 1), 5)
    assert text.vocab.idx_to_token == book.vocab.idx_to_token
    assert (text.train.ids == book.ids).all()
    assert (text.train.sentences == book.sentences).all()
    assert (text.train.paragraphs == book.paragraphs).all()
    assert (len(text.train.articles), len(text.valid.articles)) == (600, 60)
    assert text.train.num_chunks(64) == 1


def test_blank_lines_separate_paragraphs_of_plain_text():
    path = write('plain.txt', '\n\nOne two . three\nfour . Five\n \t\n'
                 'no end here\n\nsix . seven .\n')
    text = open_corpus(path, min_freq=1, progress=False)
    assert words_of(text.train) == [
        [['one', 'two'], ['three', 'four'], ['five']],
        [['six'], ['seven', '.']]]


@pytest.mark.parametrize('change', [
    lambda data: data.replace(b'\n', b'\r\n'),
    lambda data: data.replace(b'\n', b'\r'),
    lambda data: b'\xef\xbb\xbf' + data,
    lambda data: data.rstrip(b'\n'),
], ids=['CRLF', 'CR', 'BOM', 'no last line end'])
@pytest.mark.parametrize('block', [11, 1 << 22])
def test_line_ends_and_a_bom_change_nothing(change, block, monkeypatch):
    monkeypatch.setattr(text_reader, 'BLOCK_BYTES', block)
    data = ('Eins . zwei\ndrei . é\n\n' * 7 + 'a . b c\nd . e\n').encode()
    texts = [open_corpus(write(name, content), min_freq=1, progress=False)
             for name, content in (('a', data), ('b', change(data)))]
    assert words_of(texts[0].train) == words_of(texts[1].train)


def test_files_are_concatenated(tmp_path):
    first, second = make_wiki(5, 1)[0], make_wiki(6, 2)[0]
    several = open_corpus([write('a', first), write('b', second)],
                          progress=False)
    one = open_corpus(write('c', first + second), progress=False)
    assert several.vocab.idx_to_token == one.vocab.idx_to_token
    assert words_of(several.train) == words_of(one.train)
    assert several.train.articles.tolist() == one.train.articles.tolist()
    assert len(several.train.articles) == 11


def test_rows_of_tables_begin_no_article():
    path = write('wiki', ' \n = First = \n \n a . b \n = Wins ; L = \n c . d '
                 '\n = = Second level = = \n \n e . f \n \n = Second = \n \n'
                 ' g . h \n')
    text = open_corpus(path, min_freq=1, progress=False)
    assert text.train.articles.tolist() == [0, 3]


BAD_FILES = {
    'empty.txt': (b'', 'empty.txt is empty'),
    'empty.gz': (gzip.compress(b''), 'empty.gz is empty'),
    'blank.txt': (b'\n \n', 'blank.txt: no paragraph has two sentences'),
    'latin.txt': (b'a . b\n\nc . d\nna\xefve . e\n',
                  r'latin.txt, line 4: byte 3 \(0xef\) is not UTF-8'),
    'utf16.txt': ('a . b\n\nc'.encode('utf-16'),
                  r'utf16.txt, line 1: byte 1 \(0xff\) is not UTF-8'),
    'one.txt': (b'only one sentence here\n\nand here\n',
                'one.txt: no paragraph has two sentences: .* blank line'),
    'cut.gz': (gzip.compress(VALID * 99)[:-9],
               'cut.gz is a broken .gz file .*end'),
    'zeros.gz': (gzip.compress(VALID)[:10] + bytes(50),
                 'zeros.gz is a broken .gz file'),
    'paper.txt': (b'%PDF-1.4\n' + VALID, 'paper.txt is a PDF file, not text'),
    'sum.gz': (gzip.compress(VALID)[:-8] + bytes(8),
               'sum.gz is a broken .gz file'),
}


def test_a_text_without_pairs_is_named_before_pieces_are_learnt():
    path = write('one.txt', b'one sentence .\n\nand one\n')
    with pytest.raises(ValueError, match='^one.txt: no paragraph has two'):
        open_corpus(path, pieces=50, progress=False)


@pytest.mark.parametrize('name', BAD_FILES)
@pytest.mark.parametrize('role', ['train', 'valid'])
def test_bad_files_are_named(name, role, own_cache):
    content, message = BAD_FILES[name]
    bad, good = write(name, content), write('good.txt', VALID)
    paths = dict(paths=bad) if role == 'train' else dict(
        paths=good, valid_paths=bad)
    # The file goes by the name that it was given
    with pytest.raises(ValueError, match=f'^{message}') as error:
        open_corpus(progress=False, **paths)
    assert '\n' not in str(error.value)
    assert not own_cache.exists() or not [
        path for path in own_cache.iterdir() if path.is_dir()]


def test_a_line_without_an_end_takes_no_memory(monkeypatch):
    monkeypatch.setattr(text_reader, 'BLOCK_BYTES', 1000)
    monkeypatch.setattr(text_reader, 'MAX_BYTES', 5000)
    path = write('endless.txt', b'a . b\n\n' + b'x' * 6500)
    with pytest.raises(ValueError, match='endless.txt, line 3 .*more than 5'):
        open_corpus(path, progress=False)


@pytest.mark.parametrize('data, line', [
    (b'w v . ' * 3000 + b'\xff', 1),
    (b'a . b\n\n' + b'w v . ' * 3000 + b'\n\xff', 4),
    (b' ' * 6000 + b'a . b\xff', 1)])
def test_lines_after_a_cut_line_keep_their_numbers(data, line, monkeypatch):
    monkeypatch.setattr(text_reader, 'BLOCK_BYTES', 1000)
    monkeypatch.setattr(text_reader, 'MAX_BYTES', 5000)
    with pytest.raises(ValueError, match=rf'long.txt, line {line}: byte \d+ '):
        open_corpus(write('long.txt', data), progress=False)


def test_parts_of_a_long_paragraph_are_as_long_as_fits(monkeypatch):
    monkeypatch.setattr(text_reader, 'MAX_WORDS', 700)
    lines = [' '.join([f'w{k}'] * count) for k, count in enumerate(
        [300, 300, 300, 400, 1500, 100])]
    found = text_reader._join_lines('x', 1, lines)
    assert [len(part.split()) for part in found] == [
        600, 700, 700, 700, 100, 100]
    assert ' '.join(found) == ' '.join(lines)


@pytest.mark.parametrize('compiled', [True, False])
@pytest.mark.parametrize('data, line', [
    (b'w v . ' * 3000, 1),                                    # one line
    (b'a . b\n\n' + b'u w . v x\n' * 2000 + b'\nc . d', 3),
    (b' \n = T = \n \n a . b\n' + b'w v . ' * 3000, 5),    # WikiText's
    (b' \n = T = \n \n a . b\n' + b'w v . ' * 300, 5)])    # its last block
def test_long_paragraphs_are_cut_with_a_word(compiled, data, line,
                                             monkeypatch, caplog):
    monkeypatch.setattr(text_reader, 'BLOCK_BYTES', 1000)
    monkeypatch.setattr(text_reader, 'MAX_BYTES', 5000)
    monkeypatch.setattr(text_reader, 'MAX_WORDS', 700)
    if not compiled:
        monkeypatch.setattr(splitters.draw, 'library', lambda: None)
    text = open_corpus(write('long.txt', data), progress=False, min_freq=1)
    said, = [record.getMessage() for record in caplog.records]
    assert said.startswith(f'long.txt, line {line}: the paragraph')
    assert said.endswith('separate paragraphs by blank lines, or by line ends '
                         "in WikiText's format")
    # No word is lost: the book's rule leaves out full stops alone
    assert sum(word in tuple('uvwx') for sentences in words_of(text.train)
               for words in sentences for word in words) == sum(
        data.count(word) for word in (b'u', b'v', b'w', b'x'))
