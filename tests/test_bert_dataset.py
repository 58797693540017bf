"""The page "The Dataset for Pretraining BERT", against the book's package.

Some tests need no oracle. Rows with their labels put back are sentences of
the text. The shares of masked tokens are BERT's. Compiled and plain code
draw the same examples.
"""
import random
from pathlib import Path

import numpy as onp
import pytest
from batches import assert_same_columns, digest_of, fixed_text, prose

from d2lbert import bert_dataset, hub
from d2lbert.bert_dataset import (
    BatchLoader,
    _get_mlm_data_from_tokens,
    _get_next_sentence,
    _get_nsp_data_from_paragraph,
    _pad_bert_inputs,
    _read_wiki,
    _replace_mlm_tokens,
    _WikiTextDataset,
    get_dataloader_workers,
    load_data,
    load_data_wiki,
)
from d2lbert.machine.backend import gluon
from d2lbert.text import RESERVED, Vocab
from d2lbert.texts.examples import Batch

pytestmark = pytest.mark.usefixtures('own_cache')
CLS_ID, SEP_ID, MASK_ID = 3, 4, 2


@pytest.fixture
def folder(tmp_path):
    """A folder with a small wiki.train.tokens."""
    (tmp_path / hub.TRAIN_FILE).write_text(prose(60), encoding='utf-8')
    return tmp_path


def seeded(function, *args, **kwargs):
    """The result of a function after seeding, and Python's state."""
    random.seed(11)
    random.random()
    onp.random.seed(12)
    return function(*args, **kwargs), random.getstate()


def books_loader(book, monkeypatch, folder):
    monkeypatch.setattr(book, 'get_dataloader_workers', lambda: 0)
    monkeypatch.setattr(book, 'download_extract', lambda *_: str(folder))
    return book.load_data_wiki


def assert_the_books(book, monkeypatch, folder, batch_size, max_len,
                     passes=2):
    books_load = books_loader(book, monkeypatch, folder)
    (ours, vocab), state = seeded(load_data_wiki, batch_size, max_len,
                                  data_dir=folder)
    ours = [batch for _ in range(passes) for batch in ours]
    next_number = onp.random.random()
    (books, books_vocab), books_state = seeded(books_load, batch_size,
                                               max_len)
    books = [batch for _ in range(passes) for batch in books]
    assert vocab.idx_to_token == books_vocab.idx_to_token
    assert vocab.token_freqs == books_vocab.token_freqs
    assert state == books_state
    assert len(ours) == len(books)
    for ours_batch, books_batch in zip(ours, books):
        assert len(ours_batch) == len(books_batch) == 7
        assert_same_columns([field.asnumpy() for field in ours_batch],
                            [field.asnumpy() for field in books_batch])
    assert next_number == onp.random.random()
    return ours, vocab


@pytest.mark.parametrize('max_len', [5, 17, 64])
def test_batches_are_the_books_to_the_last_bit(book, monkeypatch, folder,
                                               max_len):
    assert_the_books(book, monkeypatch, folder, 16, max_len)


def test_plain_python_gives_the_books_batches_too(book, monkeypatch, folder,
                                                  plain):
    plain()
    assert_the_books(book, monkeypatch, folder, 16, 20)


@pytest.mark.wiki
def test_the_begin_of_wikitext2_gives_the_books_batches(
        book, monkeypatch, wiki_dir, tmp_path):
    lines = (wiki_dir / hub.TRAIN_FILE).read_bytes().splitlines(True)
    (tmp_path / hub.TRAIN_FILE).write_bytes(b''.join(lines[:5000]))
    assert_the_books(book, monkeypatch, tmp_path, 512, 64, 1)


@pytest.mark.wiki
@pytest.mark.slow
def test_wikitext2_gives_the_books_batches(book, monkeypatch, wiki_dir):
    _, vocab = assert_the_books(book, monkeypatch, wiki_dir, 512, 64, 1)
    assert len(vocab) == 20256


def test_the_pages_own_steps_give_the_same_batches(folder):
    def by_steps(batch_size, max_len):
        data = _WikiTextDataset(_read_wiki(folder), max_len)
        return gluon.data.DataLoader(
            data, batch_size, shuffle=True,
            num_workers=get_dataloader_workers()), data.vocab
    (theirs, vocab), _ = seeded(by_steps, 16, 20)
    theirs = list(theirs)
    (ours, our_vocab), _ = seeded(load_data_wiki, 16, 20, data_dir=folder)
    ours = list(ours)
    assert vocab.idx_to_token == our_vocab.idx_to_token
    for ours_batch, batch in zip(ours, theirs):
        assert_same_columns([field.asnumpy() for field in ours_batch],
                            [field.asnumpy() for field in batch])
    assert len(ours) == len(theirs)


def test_the_bundled_corpus_makes_batches():
    try:
        path = hub.sample_dir() / hub.TRAIN_FILE
    except FileNotFoundError:
        pytest.skip('the bundled corpus is not in this checkout')
    batches, vocab = load_data(path, 64, 64)
    assert len(batches) >= 10
    assert len(vocab) > 500


@pytest.mark.parametrize('seed', range(6))
def test_compiled_and_plain_draws_agree(compiled, plain, tmp_path, seed):
    path = tmp_path / 'text'
    path.write_text(prose(40, seed, num_words=3 + seed * 20,
                          max_words=1 + seed * 4), encoding='utf-8')
    results = []
    for switch in (lambda: None, plain):
        switch()
        rng = random.Random(seed)
        for _ in range(seed):
            rng.random()
        batches, vocab = load_data(path, 8, 5 + seed * 9, 2, rng)
        results.append((batches.dataset.columns, vocab.token_freqs,
                        rng.getstate(), rng.gauss(0, 1)))
    assert_same_columns(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]


@pytest.mark.parametrize('way', ['compiled', 'plain'])
def test_a_seed_gives_these_batches_for_ever(way, request, plain, tmp_path):
    plain() if way == 'plain' else request.getfixturevalue(way)
    (tmp_path / hub.TRAIN_FILE).write_text(fixed_text())
    (batches, vocab), _ = seeded(load_data_wiki, 16, 24, tmp_path, 3)
    assert len(vocab) == 64
    batches = [[field.asnumpy() for field in batch]
               for _ in range(2) for batch in batches]
    assert digest_of(batches) == (
        '63f409022223a81f3290584c48bb905607b1155582328556b19c84ba3dfd06ed')


def test_another_generator_draws_through_its_own_methods(folder):
    class Counting(random.Random):
        calls = 0

        def random(self):
            self.calls += 1
            return super().random()

    rng = Counting(0)
    load_data_wiki(8, 32, folder, rng=rng)
    assert rng.calls > 100


# The page's helpers, called one by one as the page does

def test_read_wiki_gives_shuffled_lists_of_sentences(tmp_path):
    (tmp_path / hub.TRAIN_FILE).write_text(
        ' \n = Heading = \n The Crane flies . It sings . \n One only . \n'
        'A . B', encoding='utf-8')
    orders = {str(_read_wiki(tmp_path)) for _ in range(100)}
    assert len(orders) == 6
    assert sorted(_read_wiki(str(tmp_path))) == [
        ['a', 'b'], ['one only .'], ['the crane flies', 'it sings .']]


def test_read_wiki_searches_a_folder_as_load_data_wiki_does(tmp_path,
                                                            monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    folder = tmp_path / 'data' / 'wikitext-2'
    folder.mkdir(parents=True)
    (folder / hub.TRAIN_FILE).write_text('A . B\n', encoding='utf-8')
    for data_dir in ('~/data', '~/data/wikitext-2', folder.parent):
        assert _read_wiki(data_dir) == [['a', 'b']]
        load_data_wiki(1, 8, data_dir)


def test_half_of_the_next_sentences_are_replaced():
    paragraphs = [[['x'], ['y']]]
    got = [_get_next_sentence(['a'], ['b'], paragraphs, random.Random(seed))
           for seed in range(2000)]
    assert all(first == ['a'] for first, _, _ in got)
    assert all((second == ['b']) == is_next for _, second, is_next in got)
    assert abs(onp.mean([is_next for _, _, is_next in got]) - .5) < .05


def test_pairs_that_are_too_long_are_dropped():
    paragraph = [['a'], ['b', 'c'], ['d', 'e', 'f']]
    for max_len, most in ((9, 2), (6, 1)):
        examples = _get_nsp_data_from_paragraph(
            paragraph, [paragraph], None, max_len, random.Random(1))
        assert 1 <= len(examples) <= most
        for tokens, segments, is_next in examples:
            assert len(tokens) == len(segments) <= max_len
            assert tokens[0] == '<cls>' and tokens[-1] == '<sep>'
            assert isinstance(is_next, bool)


def test_masked_tokens_are_returned_with_their_positions():
    tokens = ['<cls>', 'this', 'crane', 'flies', '<sep>']
    vocab = Vocab([tokens])
    candidates = [1, 2, 3]
    hidden, preds = _replace_mlm_tokens(tokens, candidates, 2, vocab)
    assert len(preds) == 2
    assert sorted(candidates) == [1, 2, 3]
    assert all(tokens[position] == word for position, word in preds)
    changed = {i for i in range(5) if hidden[i] != tokens[i]}
    assert changed <= {position for position, _ in preds}
    assert tokens == ['<cls>', 'this', 'crane', 'flies', '<sep>']


def test_special_tokens_are_never_predicted():
    tokens = ['<cls>', *'abcdefgh', '<sep>', *'ijkl', '<sep>']
    vocab = Vocab([tokens], reserved_tokens=RESERVED)
    for seed in range(50):
        ids, positions, labels = _get_mlm_data_from_tokens(
            tokens, vocab, random.Random(seed))
        assert len(positions) == 2 and positions == sorted(positions)
        assert not {0, 9, 14} & set(positions)
        assert labels == [vocab[tokens[position]] for position in positions]
        assert len(ids) == len(tokens)


def test_short_rows_are_padded():
    vocab = Vocab(reserved_tokens=RESERVED)
    columns = _pad_bert_inputs(
        [([3, 2, 4, 0, 4], [1], [7], [0, 0, 0, 1, 1], True)], 10, vocab)
    expected = Batch(
        onp.array([[3, 2, 4, 0, 4, 1, 1, 1, 1, 1]], 'int32'),
        onp.array([[0, 0, 0, 1, 1, 0, 0, 0, 0, 0]], 'int32'),
        onp.array([5], 'float32'), onp.array([[1, 0]], 'int32'),
        onp.array([[1, 0]], 'float32'), onp.array([[7, 0]], 'int32'),
        onp.array([1], 'float32'))
    assert_same_columns(columns, expected)


def test_the_helpers_are_the_books(book, folder):
    def run(module):
        paragraphs = module._read_wiki(str(folder))
        paragraphs = [book.tokenize(p) for p in paragraphs]
        vocab = Vocab([s for p in paragraphs for s in p], 2, RESERVED)
        examples = []
        for paragraph in paragraphs:
            examples.extend(module._get_nsp_data_from_paragraph(
                paragraph, paragraphs, vocab, 24))
        data = [(*module._get_mlm_data_from_tokens(tokens, vocab), segments,
                 is_next) for tokens, segments, is_next in examples]
        return examples, data, module._pad_bert_inputs(data, 24, vocab)

    (ours, state), (books, books_state) = (
        seeded(run, module) for module in (bert_dataset, book))
    assert ours[:2] == books[:2]
    assert state == books_state
    for column, rows in zip(ours[2], books[2]):
        onp.testing.assert_array_equal(
            column, onp.array([row.asnumpy() for row in rows]))


# The data set as a whole

@pytest.fixture(scope='module')
def big():
    """Over 100,000 predictions from unique sentences, and those."""
    rng = onp.random.RandomState(0)
    words = [f'w{k}' for k in range(2000)]
    paragraphs = [[' '.join(words[k] for k in sentence)
                   for sentence in rng.randint(2000, size=(5, 28))]
                  for _ in range(3200)]
    random.seed(5)
    return _WikiTextDataset(paragraphs, 64), paragraphs


def test_80_10_10_of_the_predictions(big):
    dataset, _ = big
    tokens, _, _, positions, weights, labels, _ = dataset.columns
    rows, columns = weights.nonzero()
    assert len(rows) > 100000
    inputs = tokens[rows, positions[rows, columns]]
    labels = labels[rows, columns]
    masked = (inputs == MASK_ID).mean()
    kept = (inputs == labels).mean()
    # A random word is by chance the mask or the very word, hence 0.1 / V
    assert abs(masked - .8) < .005
    assert abs(kept - .1) < .005
    assert abs(1 - masked - kept - .1) < .005


def test_restored_rows_are_sentences_of_the_text(big):
    dataset, paragraphs = big
    follows, known = set(), set()
    for paragraph in paragraphs:
        sentences = [tuple(dataset.vocab[s.split()]) for s in paragraph]
        known.update(sentences)
        follows.update(zip(sentences, sentences[1:]))
    (tokens, segments, valid_lens, positions, weights, labels,
     nsp) = dataset.columns
    tokens = tokens.copy()
    rows, columns = weights.nonzero()
    tokens[rows, positions[rows, columns]] = labels[rows, columns]
    for k in range(0, len(dataset), 7):
        row, n = tokens[k].tolist(), int(valid_lens[k])
        second = int(segments[k].argmax())
        a, b = tuple(row[1:second - 1]), tuple(row[second:n - 1])
        assert row[0] == CLS_ID and row[second - 1] == row[n - 1] == SEP_ID
        assert a in known and b in known
        assert ((a, b) in follows) == nsp[k]


def test_half_of_the_pairs_follow_each_other(big):
    dataset, _ = big
    assert abs(dataset.nsp_labels.mean() - .5) < .015
    assert set(dataset.nsp_labels) == {0, 1}


def test_rows_are_padded_and_predictions_counted(folder):
    batches, vocab = load_data_wiki(8, 22, folder)
    (tokens, segments, valid_lens, positions, weights, labels,
     _) = batches.dataset.columns
    assert positions.shape[1] == 3  # round(0.15 * 22)
    beyond = onp.arange(22) >= valid_lens[:, None]
    assert (tokens[beyond] == vocab['<pad>']).all()
    assert (segments[beyond] == 0).all()
    for k, n in enumerate(valid_lens.astype(int)):
        real = int(weights[k].sum())
        words = n - 3 - sum(token in (CLS_ID, SEP_ID)
                            for token in _restored(batches.dataset, k)[1:n]
                            ) + 2
        assert real == min(words, max(1, round(0.15 * n)))
        assert (weights[k] == [1] * real + [0] * (3 - real)).all()
        assert not positions[k, real:].any() and not labels[k, real:].any()
        assert (onp.diff(positions[k, :real]) > 0).all()


def _restored(dataset, k):
    row = dataset.all_token_ids[k].copy()
    real = dataset.all_mlm_weights[k] > 0
    row[dataset.all_pred_positions[k][real]] = dataset.all_mlm_labels[k][real]
    return row


def test_batches_have_the_books_shapes_and_dtypes(folder):
    batches, _ = load_data_wiki(8, 40, data_dir=folder)
    sizes = [len(batch.nsp_y) for batch in batches]
    count = len(batches.dataset)
    assert len(batches) == len(sizes) == -(-count // 8)
    assert sizes == [8] * (count // 8) + [count % 8] * (count % 8 > 0)
    batch = next(iter(batches))
    assert [(field.shape, field.dtype) for field in batch] == [
        ((8, 40), 'int32'), ((8, 40), 'int32'), ((8,), 'float32'),
        ((8, 6), 'int32'), ((8, 6), 'float32'), ((8, 6), 'int32'),
        ((8,), 'float32')]


def test_an_item_is_a_row_of_each_column(folder):
    dataset = load_data_wiki(8, 40, data_dir=folder)[0].dataset
    item = dataset[3]
    assert len(item) == 7
    for field, column in zip(item, dataset.columns):
        onp.testing.assert_array_equal(field.asnumpy(), column[3])


def test_each_pass_has_all_examples_in_a_new_order(folder):
    batches, _ = load_data_wiki(16, 40, data_dir=folder)
    passes = [onp.concatenate([batch.tokens_X.asnumpy()
                               for batch in batches]).tolist()
              for _ in range(2)]
    assert passes[0] != passes[1]
    assert sorted(passes[0]) == sorted(passes[1])
    assert sorted(passes[0]) == sorted(
        batches.dataset.all_token_ids.tolist())


def test_the_order_comes_from_the_generator_that_is_given(folder):
    orders = []
    for seed in (1, 1, 2):
        random.seed(0)
        batches, _ = load_data_wiki(
            4, 40, data_dir=folder, shuffle_rng=onp.random.RandomState(seed))
        onp.random.seed(seed + 5)
        orders.append(next(iter(batches)).tokens_X.tolist())
    assert orders[0] == orders[1] != orders[2]


def test_min_freq_drops_rare_words(folder):
    freqs = load_data_wiki(8, 40, folder, min_freq=1)[1].token_freqs
    rarest = freqs[-1][1]
    full = len(load_data_wiki(8, 40, folder, min_freq=1)[1])
    some = len(load_data_wiki(8, 40, folder, min_freq=rarest + 1)[1])
    assert some < full


def test_draws_are_not_kept(folder):
    first, second = (load_data_wiki(8, 40, folder)[0].dataset.all_token_ids
                     for _ in range(2))
    assert first.tolist() != second.tolist()


# Bad input

@pytest.mark.parametrize('content, complaint', [
    (b'', 'is empty'),
    (b'word\n' * 5, 'no paragraph has two sentences'),
    (b' one sentence . \n' * 5, 'no paragraph has two sentences'),
    (b'a . b\nc . \xff\xfed . e\n', r'line 2: byte 5 \(0xff\) is not UTF-8'),
    (b'three words here . three words there\n',
     'not one pair of sentences fits max_len=8'),
])
@pytest.mark.parametrize('plainly', [False, True])
def test_a_text_without_examples_is_refused(tmp_path, plain, content,
                                            complaint, plainly):
    if plainly:
        plain()
    path = tmp_path / 'text'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=complaint) as error:
        load_data(path, 8, 8)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize('name', ['missing', '.'])
def test_a_missing_text_is_named(tmp_path, name):
    with pytest.raises(FileNotFoundError, match='is no file'):
        load_data(tmp_path / name, 8, 64)
    with pytest.raises(FileNotFoundError, match='wiki.train.tokens'):
        _read_wiki(tmp_path)


@pytest.mark.parametrize('batch_size, max_len, complaint', [
    (0, 64, 'batch_size=0'), (-1, 64, 'batch_size=-1'),
    (8, 4, 'max_len=4'), (8, -3, 'max_len=-3')])
def test_sizes_are_checked_before_anything_is_read(batch_size, max_len,
                                                   complaint):
    for load in (load_data_wiki, lambda *args: load_data(Path('x'), *args)):
        with pytest.raises(ValueError, match=complaint):
            load(batch_size, max_len)


@pytest.mark.parametrize('batch_size, max_len, complaint', [
    (8.0, 64, 'batch_size must be an integer, not 8.0'),
    ('8', 64, "batch_size must be an integer, not '8'"),
    (8, 64.0, 'max_len must be an integer, not 64.0'),
    (8, None, 'max_len must be an integer, not None')])
def test_sizes_are_integers(folder, batch_size, max_len, complaint):
    with pytest.raises(TypeError, match=f'^{complaint}$'):
        load_data_wiki(batch_size, max_len, data_dir=folder)
    sizes = onp.int64(8), onp.int32(64)
    assert load_data_wiki(*sizes, data_dir=folder)[0].batch_size == 8


def test_paragraphs_without_sentences_are_refused():
    with pytest.raises(ValueError, match='a paragraph is empty'):
        _WikiTextDataset([['a', 'b'], []], 16)
    with pytest.raises(ValueError, match='no paragraph has two'):
        _WikiTextDataset([], 16)
    with pytest.raises(ValueError, match='max_len=3'):
        _WikiTextDataset([['a', 'b']], 3)


def test_any_data_set_with_columns_can_be_batched(folder):
    dataset = load_data_wiki(8, 40, data_dir=folder)[0].dataset
    assert len(BatchLoader(dataset, len(dataset))) == 1
    with pytest.raises(ValueError, match='batch_size=0'):
        BatchLoader(dataset, 0)
