"""Texts of any size: the store, and the batches drawn from it."""
import bz2
import errno
import gc
import gzip
import json
import lzma
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as onp
import pytest
from batches import digest_of, fixed_text

from d2lbert import bert_dataset, hub
from d2lbert.bert_dataset import Batch
from d2lbert.corpus import textfiles, whole
from d2lbert.corpus.whole import open_corpus
from d2lbert.machine import cache, files, unchanged
from d2lbert.text import CLS, MASK, PAD, RESERVED, SEP, UNK, Vocab

WORDS = [f'w{k}' for k in range(60)] + ['é', 'Ärger', 'Σ', '日本', 'A']


def make_paragraph(rng, least=1):
    """One paragraph; Zipf's law, roughly."""
    return ' . '.join(
        ' '.join(rng.choice(WORDS[:rng.randint(1, len(WORDS))])
                 for _ in range(rng.randint(1, 9)))
        for _ in range(rng.randint(least, 6))) + ' .'


def make_wiki(num_articles, seed=0, mark=''):
    """A text in WikiText's format, and its articles (lists of lines)."""
    rng = random.Random(seed)
    articles = [
        [f'{mark}{k} ' + make_paragraph(rng, 2)
         for _ in range(rng.randint(1, 5))] for k in range(num_articles)]
    text = ''.join(
        f' \n = Title {k} = \n \n' + f' \n = = Part = = \n \n {lines[0]} \n'
        + ''.join(f' {line} \n' for line in lines[1:])
        for k, lines in enumerate(articles))
    return text, articles


def write(name, text):
    path = Path(name)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


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
def no_build(monkeypatch):
    def refuse():
        def build(*args):
            raise AssertionError('the store was built again')
        monkeypatch.setattr(whole, '_build', build)
    return refuse


def words_of(part):
    """The part as paragraphs of sentences of words."""
    words = part.vocab.to_tokens(part.ids.tolist())
    sentences = [words[a:b] for a, b in zip(part.sentences.tolist(),
                                            part.sentences.tolist()[1:])]
    return [sentences[a:b] for a, b in zip(part.paragraphs.tolist(),
                                           part.paragraphs.tolist()[1:])]


def book_words(lines):
    """What the page makes of the lines of a text."""
    return [[sentence.split() for sentence in
             line.strip().lower().split(' . ')]
            for line in lines if len(line.split(' . ')) > 1]


def book_vocab(paragraphs, min_freq=5):
    return Vocab([sentence for paragraph in paragraphs
                  for sentence in paragraph], min_freq, RESERVED)


def known(paragraphs, vocab):
    return [[[word if word in vocab.token_to_idx else UNK
              for word in sentence] for sentence in paragraph]
            for paragraph in paragraphs]


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert a.tobytes() == b.tobytes()


def manifest(root):
    store, = (path for path in root.iterdir() if path.is_dir())
    return json.loads((store / whole.MANIFEST).read_text())


# The store

@pytest.mark.parametrize('block', [64, 1000, 1 << 22])
def test_a_streamed_text_is_the_books_text(block, monkeypatch):
    monkeypatch.setattr(whole, 'BLOCK_BYTES', block)
    monkeypatch.setattr(whole, 'BLOCK_WORDS', block)
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
    tokens = bert_dataset._read_tokens(wiki_dir / hub.TRAIN_FILE)
    book = bert_dataset.Corpus.of_tokens(
        tokens, onp.arange(len(tokens.paragraphs) - 1))
    assert text.vocab.idx_to_token == book.vocab.idx_to_token
    assert (text.train.ids == book.ids).all()
    assert (text.train.sentences == book.sentences).all()
    assert (text.train.paragraphs == book.paragraphs).all()
    assert (text.train.num_articles, text.valid.num_articles) == (600, 60)
    assert text.train.num_chunks == 1


def test_compiled_and_plain_code_write_the_same_bytes(
        wiki, own_cache, tmp_path, monkeypatch):
    if bert_dataset._library() is None:
        pytest.skip('there is no compiled code here')
    open_corpus(wiki, valid_share=0.2, progress=False)
    compiled = manifest(own_cache)
    monkeypatch.setattr(cache, 'root', lambda: tmp_path / 'other')
    monkeypatch.setattr(bert_dataset, '_library', lambda: None)
    open_corpus(wiki, valid_share=0.2, progress=False)
    assert manifest(tmp_path / 'other' / 'corpora') == compiled


def test_blank_lines_part_the_paragraphs_of_plain_text():
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
    monkeypatch.setattr(whole, 'BLOCK_BYTES', block)
    data = ('Eins . zwei\ndrei . é\n\n' * 7 + 'a . b c\nd . e\n').encode()
    texts = [open_corpus(write(name, content), min_freq=1, progress=False)
             for name, content in (('a', data), ('b', change(data)))]
    assert words_of(texts[0].train) == words_of(texts[1].train)


@pytest.mark.parametrize('pack', [gzip.compress, bz2.compress,
                                  lzma.compress])
def test_a_packed_file_is_the_same_text(wiki, no_build, pack):
    plain = open_corpus(wiki, progress=False)
    packed = write('wiki.anything', pack(wiki.read_bytes()))
    no_build()
    assert open_corpus(packed, progress=False).fingerprint == (
        plain.fingerprint)


@pytest.mark.parametrize('pack', [gzip.compress, bz2.compress,
                                  lzma.compress])
def test_a_packed_file_is_cut_as_it_is(pack):
    data = make_wiki(9)[0].encode()
    plain = bert_dataset._read_tokens(write('plain', data))
    packed = bert_dataset._read_tokens(write('packed', pack(data)))
    assert packed.names == plain.names
    assert_same(packed[:3], plain[:3])


def test_files_follow_on_each_other(tmp_path):
    first, second = make_wiki(5, 1)[0], make_wiki(6, 2)[0]
    several = open_corpus([write('a', first), write('b', second)],
                          progress=False)
    one = open_corpus(write('c', first + second), progress=False)
    assert several.vocab.idx_to_token == one.vocab.idx_to_token
    assert words_of(several.train) == words_of(one.train)
    assert several.train.articles.tolist() == one.train.articles.tolist()
    assert several.train.num_articles == 11


def test_rows_of_tables_begin_no_article():
    path = write('wiki', ' \n = First = \n \n a . b \n = Wins ; L = \n c . d '
                 '\n = = Second level = = \n \n e . f \n \n = Second = \n \n'
                 ' g . h \n')
    text = open_corpus(path, min_freq=1, progress=False)
    assert text.train.articles.tolist() == [0, 3]


def test_a_store_is_built_once(wiki, no_build):
    first = open_corpus(wiki, progress=False)
    no_build()
    again = open_corpus(wiki, progress=False)
    assert again.fingerprint == first.fingerprint
    assert_same([again.train.ids], [first.train.ids])
    assert again.vocab.idx_to_token == first.vocab.idx_to_token
    with pytest.raises(AssertionError, match='built again'):
        open_corpus(wiki, min_freq=4, progress=False)


def test_a_text_at_rest_is_not_read_again(wiki, own_cache, monkeypatch):
    monkeypatch.setattr(unchanged, 'REST_NS', -10 ** 10)
    paths = dict(paths=gzipped(wiki), valid_paths=write('valid', VALID))
    first = open_corpus(progress=False, **paths)
    open_corpus(progress=False, **paths)    # after it was built: one check

    def refuse(*args):
        raise AssertionError('read again')
    for module, name in ((textfiles, 'pieces'), (whole, '_size_and_sum')):
        monkeypatch.setattr(module, name, refuse)
    again = open_corpus(progress=False, **paths)
    assert again.fingerprint == first.fingerprint
    assert_same([again.train.ids], [first.train.ids])
    ids = own_cache / first.fingerprint / 'train' / 'ids.npy'
    ids.touch()
    with pytest.raises(AssertionError, match='read again'):
        open_corpus(progress=False, **paths)


def gzipped(path):
    return write(f'{path.name}.gz', gzip.compress(path.read_bytes()))


def test_a_text_that_changed_is_noticed_whatever_its_times(wiki, monkeypatch):
    monkeypatch.setattr(unchanged, 'REST_NS', -10 ** 10)
    first = open_corpus(wiki, progress=False)
    before = os.stat(wiki)
    time.sleep(0.05)        # a clock of the kernel ticks meanwhile
    wiki.write_bytes(wiki.read_bytes().replace(b'w1 ', b'w2 '))
    os.utime(wiki, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(wiki).st_size == before.st_size
    second = open_corpus(wiki, progress=False)
    assert second.fingerprint != first.fingerprint
    assert 'w1' not in second.vocab.token_to_idx


@pytest.mark.parametrize('name', ['CHUNK_PAIRS', 'VERSION', 'MAX_WORDS'])
def test_what_decides_what_is_drawn_is_in_the_fingerprint(wiki, name,
                                                          monkeypatch):
    first = open_corpus(wiki, progress=False)
    monkeypatch.setattr(whole, name, getattr(whole, name) + 1)
    assert open_corpus(wiki, progress=False).fingerprint != first.fingerprint


def test_texts_that_are_opened_often_leave_nothing_open(wiki):
    if not Path('/proc/self/fd').is_dir():
        pytest.skip('open files cannot be counted here')

    def used():
        gc.collect()
        maps = Path('/proc/self/maps').read_text()
        return len(os.listdir('/proc/self/fd')), maps.count('ids.npy')
    open_corpus(wiki, valid_share=0.1, progress=False)
    before = used()
    for _ in range(20):
        text = open_corpus(wiki, valid_share=0.1, progress=False)
        next(text.train.batches(4, 32, seed=0))
    assert used()[0] > before[0] and used()[1] == before[1] + 2
    del text
    assert used() == before


@pytest.mark.parametrize('file', [
    'train/ids.npy', 'valid/sentences.npy', 'vocab.txt', 'manifest.json'])
@pytest.mark.parametrize('damage', [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(b'{}'),
    lambda path: path.write_bytes(
        path.read_bytes()[:-3] + b'\xff' + path.read_bytes()[-2:]),
], ids=['missing', 'short', 'foreign', 'one byte'])
def test_a_damaged_store_is_built_again(wiki, own_cache, file, damage):
    text = open_corpus(wiki, valid_share=0.1, progress=False)
    before = manifest(own_cache)
    ids = text.train.ids.tolist()
    damage(own_cache / text.fingerprint / file)
    text = open_corpus(wiki, valid_share=0.1, progress=False)
    assert text.train.ids.tolist() == ids
    assert manifest(own_cache) == before


@pytest.mark.parametrize('locks', [True, False])
def test_builds_at_the_same_time_do_not_meet(wiki, own_cache, locks,
                                             monkeypatch):
    if not locks:
        monkeypatch.setattr(files, 'fcntl', None)
    texts = []

    def work():
        texts.append(open_corpus(wiki, progress=False))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 4
    for text in texts:
        assert_same([text.train.ids], [texts[0].train.ids])
    assert whole._sound(own_cache / texts[0].fingerprint)
    assert not list(own_cache.glob('*.part'))


@pytest.mark.slow  # for the imports; the threads above take the same locks
def test_two_processes_can_build_at_the_same_time(wiki, tmp_path):
    code = ('import sys; from d2lbert.corpus.whole import open_corpus; '
            'print(int(open_corpus(sys.argv[1], progress=False)'
            '.train.ids.astype(int).sum()))')
    env = dict(os.environ, D2LBERT_CACHE=str(tmp_path / 'both'),
               D2LBERT_KERNELS='off', PYTHONPATH=os.pathsep.join(
                   [str(Path(whole.__file__).parents[2]), *sys.path]))
    running = [subprocess.Popen([sys.executable, '-c', code, wiki], env=env,
                                stdout=subprocess.PIPE) for _ in range(2)]
    printed = {process.communicate(timeout=120)[0] for process in running}
    assert not any(process.returncode for process in running)
    assert printed == {b'%d\n' % open_corpus(
        wiki, progress=False).train.ids.astype(int).sum()}


def test_what_a_killed_build_left_is_removed(wiki, own_cache):
    text = open_corpus(wiki, progress=False)
    left = own_cache / f'{text.fingerprint}.0123.part'
    left.mkdir()
    (own_cache / text.fingerprint / whole.VOCAB).unlink()
    open_corpus(wiki, progress=False)
    assert not left.exists()


def test_an_interrupted_build_leaves_nothing(wiki, own_cache, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt
    monkeypatch.setattr(whole, '_write_part', interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_corpus(wiki, progress=False)
    assert not [path for path in own_cache.iterdir() if path.is_dir()]


def test_a_full_disk_is_told(wiki, own_cache, monkeypatch):
    def fill(*args):
        raise OSError(errno.ENOSPC, 'No space left on device')
    monkeypatch.setattr(whole, '_write_part', fill)
    with pytest.raises(OSError, match='no room left.*D2LBERT_CACHE'):
        open_corpus(wiki, progress=False)
    assert not [path for path in own_cache.iterdir() if path.is_dir()]


def test_without_a_cache_the_store_goes_with_its_text(
        wiki, own_cache, tmp_path, monkeypatch):
    monkeypatch.setenv('D2LBERT_CACHE', 'off')
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'temp'))
    (tmp_path / 'temp').mkdir()
    text = open_corpus(wiki, progress=False)
    assert text.train.num_words and not own_cache.exists()
    assert list((tmp_path / 'temp').iterdir())
    del text
    gc.collect()
    assert not list((tmp_path / 'temp').iterdir())


def test_progress_is_for_terminals_and_can_be_left_out(wiki, capsys,
                                                       monkeypatch):
    open_corpus(wiki, min_freq=3)
    assert capsys.readouterr().err == ''
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
    open_corpus(wiki, min_freq=2, progress=False)
    assert capsys.readouterr().err == ''
    open_corpus(wiki)
    assert 'cutting' in capsys.readouterr().err


# The vocabulary

def test_the_vocabulary_can_be_bounded(wiki):
    free = open_corpus(wiki, progress=False).vocab
    bounded = open_corpus(wiki, max_vocab=20, progress=False).vocab
    assert bounded.idx_to_token == free.idx_to_token[:20]
    rare = open_corpus(wiki, min_freq=40, progress=False).vocab
    assert 5 < len(rare) < len(free)
    assert rare.idx_to_token == free.idx_to_token[:len(rare)]


def test_a_vocabulary_can_be_given(wiki):
    vocab = Vocab([['w3', 'w1', 'é']], 0, RESERVED)
    vocab.save('vocab.txt')
    by_path = open_corpus(wiki, vocab='vocab.txt', progress=False)
    by_object = open_corpus(wiki, vocab=vocab, progress=False)
    assert by_path.vocab.idx_to_token == vocab.idx_to_token
    assert by_object.fingerprint == by_path.fingerprint
    paragraphs = book_words(wiki.read_text(encoding='utf-8').split('\n'))
    assert words_of(by_path.train) == known(paragraphs, vocab)


def test_more_words_than_two_bytes_can_number_take_four():
    many = ' '.join(f'x{k}' for k in range(70000))
    path = write('many.txt', f'{many} . {many}\n\n{many} . {many}')
    text = open_corpus(path, min_freq=1, progress=False)
    assert text.train.ids.dtype == 'int32' and len(text.vocab) == 70005
    assert text.train.ids[-1] == 70004
    assert open_corpus(path, min_freq=5, progress=False
                       ).train.ids.dtype == 'uint16'


def test_rare_words_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(whole, 'MAX_TYPES', 100)
    monkeypatch.setattr(whole, 'BLOCK_BYTES', 1000)
    rng = random.Random(0)
    # Every other word is new
    text = ''.join(
        ' . '.join(' '.join((f'often{rng.randrange(20)}', f'x{k * 40 + j}'))
                   for j in range(20)) + '\n\n' for k in range(100))
    path = write('new.txt', text)
    opened = open_corpus(path, min_freq=2, valid_share=0.1, progress=False)
    truth = {str(paragraph[0][1]): paragraph
             for paragraph in book_words(text.split('\n'))}
    for part in opened[:2]:
        for got in words_of(part):
            # Numbers are right where a word is not forgotten
            want = [w for w in truth.values() if len(w) == len(got) and all(
                g in (UNK, t) for a, b in zip(got, w) for g, t in zip(a, b))]
            assert want
    assert set(opened.vocab.idx_to_token) == {
        UNK, *RESERVED, *(f'often{k}' for k in range(20))}
    unknown = (opened.train.ids == 0).mean()
    assert 0.5 <= unknown < 0.55


# What is held out

def test_articles_are_held_out_whole(tmp_path):
    content, articles = make_wiki(50)
    path = write('wiki', content)
    text = open_corpus(path, valid_share=0.1, min_freq=1, progress=False)
    assert (text.train.num_articles, text.valid.num_articles) == (45, 5)
    # The first word of each paragraph is the number of its article
    numbers = [[int(line.split()[0]) for line in article]
               for article in articles]
    held = {paragraph.split()[0] for article in articles
            for paragraph in article} - {
        paragraph[0][0] for paragraph in words_of(text.train)}
    held = {int(number) for number in held}
    assert len(held) == 5
    # One of each tenth of the text
    assert sorted(number // 10 for number in held) == [0, 1, 2, 3, 4]
    assert text.valid.num_paragraphs == sum(
        len(article) for article in numbers if article[0] in held)
    assert (text.train.num_paragraphs + text.valid.num_paragraphs
            == sum(map(len, numbers)))


def test_the_vocabulary_is_that_of_the_training_part(tmp_path):
    content, articles = make_wiki(50)
    text = open_corpus(write('wiki', content), valid_share=0.2, min_freq=1,
                       progress=False)
    train = words_of(text.train)
    assert book_vocab(train, 1).idx_to_token == text.vocab.idx_to_token
    # The articles' numbers are words that occur nowhere else
    assert {paragraph[0][0] for paragraph in words_of(text.valid)} == {UNK}


def test_the_same_share_is_held_out_each_time(wiki, own_cache, tmp_path,
                                              monkeypatch):
    open_corpus(wiki, valid_share=0.1, progress=False)
    first = manifest(own_cache)
    monkeypatch.setattr(cache, 'root', lambda: tmp_path / 'other')
    open_corpus(wiki, valid_share=0.1, progress=False)
    assert manifest(tmp_path / 'other' / 'corpora') == first


def test_blocks_of_a_text_without_articles_are_held_out(tmp_path):
    path = write('plain.txt', '\n\n'.join(
        f'p{k} one . two' for k in range(400)))
    text = open_corpus(path, valid_share=0.05, min_freq=1, progress=False)
    held = sorted({f'p{k}' for k in range(400)} - {
        paragraph[0][0] for paragraph in words_of(text.train)})
    assert len(held) == text.valid.num_paragraphs == 20
    numbers = sorted(int(word[1:]) for word in held)
    assert numbers == [k for start in numbers[::5]
                       for k in range(start, start + 5)]


def test_held_out_files_are_numbered_by_the_training_vocabulary(wiki):
    valid = write('valid.txt', 'w1 strange . W2\n\nw1 . é .')
    text = open_corpus(wiki, valid_paths=[valid], progress=False)
    assert text.vocab.idx_to_token == open_corpus(
        wiki, progress=False).vocab.idx_to_token
    vocab = text.vocab
    assert words_of(text.valid) == known(
        [[['w1', 'strange'], ['w2']], [['w1'], ['é', '.']]], vocab)


def test_a_file_is_not_both_trained_on_and_held_out(wiki):
    twin = write('twin.gz', gzip.compress(wiki.read_bytes()))
    with pytest.raises(ValueError, match='twin.gz.*wiki.tokens.*same conten'):
        open_corpus(wiki, valid_paths=twin, progress=False)


# Batches

def rows_of(batches):
    """All rows of some batches, one `Batch`."""
    return Batch(*map(onp.concatenate, zip(*(batch for _, batch in batches))))


def restored(rows):
    """The tokens before any was hidden."""
    tokens = rows.tokens_X.copy()
    row, k = onp.nonzero(rows.mlm_weights_X)
    tokens[row, rows.pred_positions_X[row, k]] = rows.mlm_Y[row, k]
    return tokens


def pairs_of(rows, vocab):
    """(first, second, is_next) of each row, tuples of words."""
    cls, sep, pad = vocab[[CLS, SEP, PAD]]
    for tokens, segments, length, is_next in zip(
            restored(rows), rows.segments_X, rows.valid_lens_x.astype(int),
            rows.nsp_y):
        second = length - segments.sum()
        assert tokens[0] == cls and tokens[second - 1] == sep
        assert tokens[length - 1] == sep
        assert (tokens[length:] == pad).all()
        assert not segments[:second].any() and segments[second:length].all()
        yield (tuple(vocab.to_tokens(tokens[1:second - 1].tolist())),
               tuple(vocab.to_tokens(tokens[second:length - 1].tolist())),
               bool(is_next))


@pytest.fixture
def big(tmp_path):
    """A text that gives some thousands of pairs."""
    return open_corpus(write('big', make_wiki(400)[0]), min_freq=2,
                       progress=False)


def test_columns_are_those_of_load_data(tmp_path):
    path = hub.sample_dir() / hub.TRAIN_FILE
    batches, vocab = bert_dataset.load_data(path, 16, 40)
    theirs = next(iter(batches))
    text = open_corpus(path, progress=False)
    _, ours = next(text.train.batches(16, 40, seed=0))
    for a, b in zip(ours, theirs):
        assert isinstance(a, onp.ndarray)
        assert a.dtype == b.dtype and a.shape == b.shape


def test_examples_are_neighbours_or_random_sentences(big):
    rows = rows_of(big.train.batches(64, 64, seed=1))
    paragraphs = [[tuple(sentence) for sentence in paragraph]
                  for paragraph in words_of(big.train)]
    neighbours = sorted(pair for paragraph in paragraphs
                        for pair in zip(paragraph, paragraph[1:]))
    sentences = {sentence for paragraph in paragraphs
                 for sentence in paragraph}
    drawn = list(pairs_of(rows, big.vocab))
    # Each sentence that has a neighbour comes first, once
    assert sorted(a for a, _, _ in drawn) == [a for a, _ in neighbours]
    assert {(a, b) for a, b, is_next in drawn if is_next} <= set(neighbours)
    assert {b for _, b, is_next in drawn if not is_next} <= sentences
    # 5 standard deviations
    assert abs(rows.nsp_y.mean() - 0.5) < 2.5 / len(drawn) ** 0.5
    neighbours = set(neighbours)
    others = [(a, b) for a, b, is_next in drawn if not is_next]
    assert sum(pair in neighbours for pair in others) < len(others) / 20


def test_partners_come_from_the_whole_text(big):
    # Words w... of a first word that is the article's number
    firsts = [b[0] for _, b, is_next in pairs_of(
        rows_of(big.train.batches(512, 64, seed=2)), big.vocab)
        if not is_next and b and b[0].isdigit()]
    assert onp.std([int(number) for number in firsts]) > 80


def test_pairs_that_do_not_fit_are_dropped(big):
    free = rows_of(big.train.batches(64, 64, seed=3))
    tight = rows_of(big.train.batches(64, 12, seed=3))
    assert tight.tokens_X.shape[1] == 12
    assert len(tight.nsp_y) == (free.valid_lens_x <= 12).sum()
    assert tight.valid_lens_x.max() == 12


@pytest.mark.parametrize('fill', [False, True])
def test_words_are_hidden_as_the_book_says(big, fill):
    rows = rows_of([pair for epoch in range(3) for pair in
                    big.train.batches(64, 64, seed=4, epoch=epoch,
                                      fill=fill)])
    lengths = rows.valid_lens_x.astype(int)
    num_preds = rows.mlm_weights_X.sum(1)
    assert num_preds.tolist() == [max(1, round(n * 0.15)) for n in lengths]
    real = onp.arange(rows.mlm_weights_X.shape[1]) < num_preds[:, None]
    assert (rows.mlm_weights_X == real).all()
    assert not rows.mlm_Y[~real].any()
    assert not rows.pred_positions_X[~real].any()
    steps = onp.diff(rows.pred_positions_X, axis=1)
    assert (steps[real[:, 1:]] > 0).all()
    special = set(big.vocab[[CLS, SEP, PAD, MASK]])
    assert not special & set(rows.mlm_Y[real].tolist())
    shown = onp.take_along_axis(rows.tokens_X, rows.pred_positions_X, 1)[real]
    labels = rows.mlm_Y[real]
    masked = shown == big.vocab[MASK]
    n, vocab_size = len(labels), len(big.vocab)
    assert abs(masked.mean() - 0.8 - 0.1 / vocab_size) < 2 / n ** 0.5
    assert abs((shown == labels).mean() - 0.1) < 0.01 + 2 / n ** 0.5
    other = shown[~masked & (shown != labels)]
    assert len(set(other.tolist())) > 0.9 * vocab_size
    assert abs(other.mean() / vocab_size - 0.5) < 0.06
    # Every place is as likely as any other
    place = (rows.pred_positions_X / (lengths[:, None] - 1))[real]
    assert abs(place.mean() - 0.5) < 0.02


def test_the_share_of_hidden_words_can_be_chosen(big):
    rows = rows_of(big.train.batches(64, 64, seed=4, mask_share=0.4))
    assert rows.mlm_Y.shape[1] == round(64 * 0.4)
    assert rows.mlm_weights_X.sum(1).tolist() == [
        max(1, round(n * 0.4)) for n in rows.valid_lens_x.astype(int)]


@pytest.mark.parametrize('settings', [
    {}, {'dynamic': False}, {'fill': True}], ids=str)
def test_a_run_goes_on_from_any_position(big, settings, monkeypatch):
    monkeypatch.setattr(whole, 'CHUNK_PAIRS', 700)
    assert big.train.num_chunks > 3
    settings = dict(settings, seed=5, epoch=2)
    everything = list(big.train.batches(100, 32, **settings))
    positions = [position for position, _ in everything]
    assert positions[-1] == (big.train.num_chunks, 0)
    assert len({chunk for chunk, _ in positions}) == (
        big.train.num_chunks + 1)
    for k, position in enumerate(positions, 1):
        rest = list(big.train.batches(100, 32, start=position, **settings))
        assert [p for p, _ in rest] == positions[k:]
        for (_, ours), (_, theirs) in zip(rest, everything[k:]):
            assert_same(ours, theirs)


def test_chunks_hold_together_all_examples(big, monkeypatch):
    firsts = [sorted(a for a, _, _ in pairs_of(rows_of(
        big.train.batches(50, 64, seed=0)), big.vocab))]
    monkeypatch.setattr(whole, 'CHUNK_PAIRS', 300)
    firsts.append(sorted(a for a, _, _ in pairs_of(rows_of(
        big.train.batches(50, 64, seed=0)), big.vocab)))
    assert firsts[0] == firsts[1]


def in_order(rows):
    return sorted(zip(*(column.tolist() for column in rows)))


@pytest.mark.parametrize('fill', [False, True])
def test_static_examples_come_again_in_another_order(big, fill, monkeypatch):
    monkeypatch.setattr(whole, 'CHUNK_PAIRS', 700)
    first, second = (rows_of(big.train.batches(
        64, 32, seed=6, epoch=epoch, dynamic=False, fill=fill))
        for epoch in (0, 1))
    assert in_order(first) == in_order(second)
    assert (first.tokens_X != second.tokens_X).any(1).mean() > 0.9


@pytest.mark.parametrize('fill', [False, True])
def test_dynamic_examples_are_new_each_epoch(big, fill):
    first, second = ({repr(row) for row in in_order(rows_of(
        big.train.batches(64, 32, seed=6, epoch=epoch, fill=fill)))}
        for epoch in (0, 1))
    assert len(first & second) < len(first) / 5


def test_a_seed_gives_one_stream(big):
    def rows(seed):
        return rows_of(big.train.batches(64, 32, seed=seed))
    assert_same(rows(7), rows(7))
    assert in_order(rows(7)) != in_order(rows(8))


@pytest.mark.parametrize('settings, digest', [
    (dict(dynamic=False),
     '835ffcdf0ce744ccf43b534840883a42fa6cc1bce687eb8d2a86510a08c8daad'),
    (dict(dynamic=True),
     'c71bc7fa64c49994f8b857c3f00e7353a0101401f70d76047d65b8c820d1bfb9'),
    (dict(dynamic=False, fill=True),
     'e9633111dec5700cb25a0d859a4973ded5bcf5ce6caeb857f0c79e91b57aeed7'),
    (dict(dynamic=True, fill=True),
     '14ecd384a9338dbe5bf8a4d837e6ea1e99580491259ed5a5af0d3c5f873d0ab6'),
    (dict(dynamic=True, mask_share=0.4),
     '4f31b53d4b6e6ee573c22cac5868dc504b98eb435ddad509454996cc5be5b58f'),
], ids=['static', 'dynamic', 'static, filled', 'dynamic, filled',
        'more hidden'])
def test_a_seed_gives_these_batches_for_ever(settings, digest, monkeypatch):
    monkeypatch.setattr(whole, 'CHUNK_PAIRS', 30)
    text = open_corpus(write('fixed', fixed_text()), min_freq=3,
                       progress=False)
    assert text.train.num_chunks == 3
    positions, batches = zip(*(
        pair for epoch in (0, 1) for pair in text.train.batches(
            16, 24, seed=11, epoch=epoch, **settings)))
    assert digest_of(batches) == digest


def test_examples_do_not_depend_on_the_batch_size(big):
    small, large = (rows_of(big.train.batches(size, 32, seed=9))
                    for size in (7, 1000))
    assert_same(small, large)


def test_filled_rows_waste_little(big):
    rows = rows_of(big.train.batches(64, 32, seed=10, fill=True))
    assert rows.valid_lens_x.max() == 32
    assert rows.valid_lens_x.mean() > 26
    neighbours = rows_of(big.train.batches(64, 32, seed=10))
    assert rows.valid_lens_x.mean() > neighbours.valid_lens_x.mean() + 8
    assert abs(rows.nsp_y.mean() - 0.5) < 2.5 / len(rows.nsp_y) ** 0.5
    # Length does not tell what follows
    means = [rows.segments_X[rows.nsp_y == k].sum(1).mean() for k in (0, 1)]
    assert abs(means[0] - means[1]) < 0.05 * means[1]


def test_filled_rows_are_runs_of_sentences(big):
    articles = big.train.articles.tolist() + [big.train.num_paragraphs]
    paragraphs = words_of(big.train)
    texts = [' '.join(word for paragraph in paragraphs[a:b]
                      for sentence in paragraph for word in sentence)
             for a, b in zip(articles, articles[1:])]
    everything = '\n'.join(f' {text} ' for text in texts)
    covered = 0
    for a, b, is_next in list(pairs_of(rows_of(
            big.train.batches(64, 32, seed=11, fill=True)), big.vocab))[:300]:
        parts = [' '.join((*a, *b))] if is_next else map(' '.join, (a, b))
        for part in parts:
            assert f' {part} ' in everything
        covered += len(a) + len(b)
    assert covered > 300 * 20


@pytest.mark.parametrize('max_len', [23, 32, 64])
def test_filled_rows_hold_whole_sentences_and_as_many_as_fit(max_len):
    # Each sentence has words of its own
    rng, articles, sentences = random.Random(0), [], []
    for _ in range(60):
        begin, paragraphs = len(sentences), []
        for _ in range(rng.randint(1, 4)):
            paragraphs.append([])
            for _ in range(rng.randint(2, 6)):
                paragraphs[-1].append(tuple(
                    f's{len(sentences)}x{j}'
                    for j in range(rng.randint(1, 9))))
                sentences.append(paragraphs[-1][-1])
        articles.append((range(begin, len(sentences)), paragraphs))
    path = write('marked', ''.join(
        ' \n = Title = \n \n' + ''.join(
            f' {" . ".join(map(" ".join, paragraph))}\n'
            for paragraph in paragraphs)
        for _, paragraphs in articles))
    part = open_corpus(path, min_freq=1, progress=False).train
    article_of = {k: numbers for numbers, _ in articles for k in numbers}

    def numbers_of(words):
        """The sentences that the words are, no word more nor less."""
        numbers = sorted({int(word[1:].split('x')[0]) for word in words})
        assert words == sum((sentences[k] for k in numbers), ())
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert numbers[-1] in article_of[numbers[0]]
        return numbers

    kinds = set()
    for a, b, is_next in pairs_of(rows_of(
            part.batches(64, max_len, seed=12, fill=True)), part.vocab):
        first, second = numbers_of(a), numbers_of(b)
        kinds.add(is_next)
        if is_next:
            assert second[0] == first[-1] + 1
            after = second[-1] + 1
            if after in article_of[first[0]]:
                assert len(a) + len(b) + len(sentences[after]) + 3 > max_len
    assert kinds == {False, True}


def test_long_sentences_are_cut_where_runs_are_asked_for():
    long = ' '.join(f'x{k}' for k in range(30))
    path = write('long.txt', f'{long} . {long}\n\n{long} . {long}')
    text = open_corpus(path, min_freq=1, progress=False)
    with pytest.raises(ValueError, match='long.txt.*max_len=16'):
        list(text.train.batches(4, 16, seed=0))
    rows = rows_of(text.train.batches(4, 16, seed=0, fill=True))
    assert (rows.valid_lens_x == 16).all()
    for a, b, _ in pairs_of(rows, text.vocab):
        assert a == tuple(f'x{k}' for k in range(30 - len(a), 30))
        assert b == tuple(f'x{k}' for k in range(len(b)))


# Bad input

VALID = b'a . b\n\nc . d\n'
BAD_FILES = {
    'empty.txt': (b'', 'empty.txt is empty'),
    'empty.gz': (gzip.compress(b''), 'empty.gz is empty'),
    'blank.txt': (b'\n \n', 'blank.txt: no paragraph has two sentences'),
    'latin.txt': (b'a . b\n\nc . d\nna\xefve . e\n',
                  r'latin.txt, line 4: byte 3 \(0xef\) is not UTF-8'),
    'utf16.txt': ('a . b\n\nc'.encode('utf-16'),
                  r'utf16.txt, line 1: byte 1 \(0xff\) is not UTF-8'),
    'million.txt': (b'a . b\n\n' + b'word ' * 10 ** 6 + b'\n\nc . d',
                    'million.txt, line 3: the paragraph that begins here has '
                    '1,000,000 words'),
    'million.tokens': (b' \n = T = \n \n a . b\n' + b'word ' * 10 ** 6,
                       'million.tokens, line 5: .* 1,000,000 words'),
    'unparted.txt': (b'a line of words\n' * 10 ** 5,
                     'unparted.txt, line 1: .* 400,000 words'),
    'one.txt': (b'only one sentence here\n\nand here\n',
                "one.txt: no paragraph has two sentences.*split='punkt'"),
    'cut.gz': (gzip.compress(VALID * 99)[:-9],
               'cut.gz is a broken .gz file .*end'),
    'zeros.gz': (gzip.compress(VALID)[:10] + bytes(50),
                 'zeros.gz is a broken .gz file'),
    'paper.txt': (b'%PDF-1.4\n' + VALID, 'paper.txt is a PDF file, not text'),
    'sum.gz': (gzip.compress(VALID)[:-8] + bytes(8),
               'sum.gz is a broken .gz file'),
}


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
    monkeypatch.setattr(whole, 'BLOCK_BYTES', 1000)
    monkeypatch.setattr(whole, 'MAX_BYTES', 5000)
    path = write('endless.txt', b'a . b\n\n' + b'x' * 6500)
    with pytest.raises(ValueError, match='endless.txt, line 3: .*more than 5'):
        open_corpus(path, progress=False)


def test_paths_that_are_no_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match='nowhere.txt is no file'):
        open_corpus('nowhere.txt')
    with pytest.raises(IsADirectoryError, match='is a folder'):
        open_corpus(tmp_path)
    with pytest.raises(ValueError, match='name at least one'):
        open_corpus([])
    with pytest.raises(FileNotFoundError, match='nothing.txt is no file'):
        open_corpus(write('a', VALID), vocab='nothing.txt')


@pytest.mark.parametrize('settings, message', [
    (dict(split='words'), "split='words' is unknown: 'book' or 'punkt'"),
    (dict(valid_share=1.0), 'valid_share=1.0 is no share'),
    (dict(valid_share=-.1), 'valid_share=-0.1 is no share'),
    (dict(valid_share=0.9), 'leaves nothing to train on'),
    (dict(valid_share=0.1, valid_paths='b'), 'both say what to hold out'),
    (dict(max_vocab=5), 'max_vocab=5 leaves no room'),
])
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        open_corpus(write('a', VALID), progress=False, **settings)


def test_a_vocabulary_without_the_reserved_tokens_is_refused():
    path = write('a', VALID)
    write('words.txt', '<unk>\n<pad>\nthe\n')
    with pytest.raises(ValueError, match="words.txt, line 3:.*'<mask>'"):
        open_corpus(path, vocab='words.txt')
    with pytest.raises(ValueError, match="token 1 .*'<pad>', not 'the'"):
        open_corpus(path, vocab=Vocab([['the']]))
    with pytest.raises(ValueError, match="token 1 .*'<pad>', not nothing"):
        open_corpus(path, vocab=Vocab())


@pytest.mark.parametrize('settings, message', [
    (dict(batch_size=0), 'batch_size=0'),
    (dict(max_len=4), 'max_len=4'),
    (dict(mask_share=0), 'mask_share=0 is no share'),
    (dict(start=(9, 0)), r'start=\(9, 0\) lies outside of .*wiki.tokens'),
    (dict(start=(0, 999)), r'start=\(0, 999\) lies outside of .*wiki.tokens'),
])
def test_batches_that_cannot_be_are_refused(wiki, settings, message):
    part = open_corpus(wiki, progress=False).train
    with pytest.raises(ValueError, match=message):
        next(part.batches(**{**dict(batch_size=4, max_len=32, seed=0),
                             **settings}))


def test_a_file_that_changes_meanwhile_is_refused(wiki, own_cache,
                                                  monkeypatch):
    build = whole._build

    def build_late(*args):
        wiki.write_bytes(wiki.read_bytes() + b' x . y \n')
        build(*args)
    monkeypatch.setattr(whole, '_build', build_late)
    with pytest.raises(ValueError, match='wiki.tokens was changed'):
        open_corpus(wiki, progress=False)
    assert not [path for path in own_cache.iterdir() if path.is_dir()]


# Punkt

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
    assert text.train.num_paragraphs == text.train.num_articles == 20


def test_punkt_cuts_text_without_blanks():
    pytest.importorskip('nltk')
    path = write('zh.txt', '我喜欢鹤。它们会飞！\n你呢？\n\n没有句号\n\n'
                 '是 BERT。好。' * 9)
    text = open_corpus(path, split='punkt', min_freq=1, progress=False)
    assert words_of(text.train)[:2] == [
        [list('我喜欢鹤。'), list('它们会飞！'), list('你呢？')],
        [['是', 'bert', '。'], list('好。'), list('我喜欢鹤。'),
         list('它们会飞！'), list('你呢？')]]


def test_punkts_absence_is_told(wiki, monkeypatch):
    monkeypatch.setitem(sys.modules, 'nltk', None)
    monkeypatch.setitem(sys.modules, 'nltk.tokenize', None)
    monkeypatch.setitem(sys.modules, 'nltk.tokenize.punkt', None)
    with pytest.raises(ImportError, match='needs NLTK.*pip install') as error:
        open_corpus(wiki, split='punkt', progress=False)
    assert '\n' not in str(error.value)
