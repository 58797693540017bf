"""What the chapter's objective trains on is what the page trains on."""
import csv
import random

import numpy as onp
import pytest
from batches import assert_same_columns, prose

import d2lbert as d2l
from d2lbert import hub
from d2lbert.bert_dataset import load_data_wiki
from d2lbert.machine.backend import gluon, init, mx, npx
from d2lbert.objectives.mlm import MLMAndNSP
from d2lbert.objectives.text_objective import read_corpus
from d2lbert.text import RESERVED, Vocab
from d2lbert.training.settings import complete

pytestmark = pytest.mark.usefixtures('own_cache')


def settings_of(folder, **settings):
    return complete(dict(settings, corpus='wikitext-2', data_dir=folder))


def assert_the_pages(settings, vocab, page_batches, num_epochs):
    """The objective's batches are those of a loader, epoch by epoch."""
    objective = MLMAndNSP(settings)
    assert objective.vocab.idx_to_token == vocab.idx_to_token
    for epoch in range(num_epochs):
        batches = [batch for _, batch in objective.batches(epoch, (0, 0))]
        theirs = list(page_batches)
        assert len(batches) == len(theirs)
        for ours, batch in zip(batches, theirs):
            assert_same_columns(ours, [field.asnumpy() for field in batch])


def seed_all(seed):
    random.seed(seed)
    onp.random.seed(seed)


@pytest.fixture
def folder(tmp_path):
    """A folder with a small text under WikiText-2's name."""
    (tmp_path / hub.TRAIN_FILE).write_text(
        ' \n = Title = \n \n' + prose(120, num_words=300), encoding='utf-8')
    return tmp_path


@pytest.mark.parametrize('way', ['compiled', 'plain'])
@pytest.mark.parametrize('seed', [0, 1, 2 ** 32 - 1])
def test_a_seed_gives_the_examples_of_load_data_wiki(folder, seed, way,
                                                     request, plain):
    plain() if way == 'plain' else request.getfixturevalue(way)
    settings = settings_of(folder, batch_size=32, max_len=24, seed=seed)
    seed_all(seed)
    batches, vocab = load_data_wiki(32, 24, folder)
    assert_the_pages(settings, vocab, batches, 3)


def books_load(book, monkeypatch, folder):
    monkeypatch.setattr(book, 'get_dataloader_workers', lambda: 0)
    monkeypatch.setattr(book, 'download_extract', lambda *_: str(folder))
    return book.load_data_wiki


def test_a_seed_gives_the_books_examples(book, monkeypatch, folder):
    settings = settings_of(folder, batch_size=32, max_len=24, seed=7)
    seed_all(7)
    batches, vocab = books_load(book, monkeypatch, folder)(32, 24)
    assert_the_pages(settings, vocab, batches, 2)


@pytest.mark.wiki
def test_the_chapters_run_has_the_examples_of_load_data_wiki(wiki_dir):
    """Which tests/test_bert_dataset.py compares with the book's, all of them.
    """
    settings = settings_of(wiki_dir, seed=7)
    seed_all(7)
    batches, vocab = load_data_wiki(512, 64, wiki_dir)
    assert_the_pages(settings, vocab, batches, 1)
    assert len(vocab) == 20256


def test_a_run_loses_what_the_pages_loop_loses(folder, tmp_path):
    settings = settings_of(
        folder, batch_size=64, max_len=24, num_hiddens=8, num_steps=12,
        ffn_num_hiddens=8, seed=5, dropout=0.0)
    run = d2l.pretrain(**settings, devices='cpu', out=tmp_path / 'run')
    seed_all(5)
    mx.random.seed(5)
    batches, vocab = load_data_wiki(64, 24, folder)
    net = d2l.BERTModel(len(vocab), 8, 8, 2, 2, 0.0)
    net.initialize(init.Xavier(), ctx=[npx.cpu()])
    history = d2l.train_bert(batches, net, gluon.loss.SoftmaxCELoss(),
                             len(vocab), [npx.cpu()], 12)
    with open(run / 'losses.csv', newline='') as file:
        rows = [(float(row['mlm_loss']), float(row['nsp_loss']))
                for row in csv.DictReader(file)]
    assert len(batches) < 6     # so that there are several epochs
    onp.testing.assert_allclose(
        rows, list(zip(history.mlm_loss, history.nsp_loss)), rtol=1e-6)


def test_another_seed_numbers_equally_frequent_words_otherwise(folder):
    first, second = (MLMAndNSP(settings_of(folder, max_len=24, seed=seed))
                     for seed in (1, 2))
    assert first.fingerprint == second.fingerprint
    assert first.vocab.idx_to_token != second.vocab.idx_to_token
    freqs = [dict(text.vocab.token_freqs) for text in (first, second)]
    assert freqs[0] == freqs[1]
    assert [freqs[0].get(token) for token in first.vocab.idx_to_token] == [
        freqs[0].get(token) for token in second.vocab.idx_to_token]
    words = [[text.vocab.to_tokens(text.corpus.train.ids.tolist())]
             for text in (first, second)]
    assert words[0] == words[1]


def test_a_vocabulary_that_is_given_has_the_last_word(folder):
    first, second = (read_corpus(settings_of(folder, max_len=24, seed=seed))
                     for seed in (1, 2))
    ids = first.train.ids.tolist()
    again = read_corpus(settings_of(folder, max_len=24, seed=2), first.vocab)
    assert again.vocab is again.train.vocab is first.vocab
    assert again.train.ids.tolist() == ids != second.train.ids.tolist()
    assert again.fingerprint == second.fingerprint
    few = Vocab([['w1']], reserved_tokens=RESERVED)
    numbers = second.numbered_by(few).train.ids
    assert set(numbers.tolist()) == {0, 3, 4, 5}    # <cls>, <sep>, w1
    words = [first.vocab.to_tokens(k) for k in ids]
    assert (numbers == 5).tolist() == [word == 'w1' for word in words]


def test_dynamic_examples_begin_as_the_pages(folder):
    settings = settings_of(folder, batch_size=32, max_len=24, seed=3,
                           dynamic=True)
    seed_all(3)
    batches, vocab = load_data_wiki(32, 24, folder)
    assert_the_pages(settings, vocab, batches, 1)


def test_held_out_text_has_the_runs_vocabulary(folder):
    (folder / hub.VALID_FILE).write_text(
        ' \n = Title = \n \n' + prose(30, 5, num_words=300),
        encoding='utf-8')
    objective = MLMAndNSP(settings_of(folder, max_len=24, seed=1,
                                      eval_every=1))
    text = objective.corpus
    assert text.valid.vocab is text.train.vocab is objective.vocab
    paragraphs = (folder / hub.VALID_FILE).read_text('utf-8').split('\n')
    words = [word if word in text.vocab.token_to_idx else '<unk>'
             for line in paragraphs if ' . ' in line
             for sentence in line.strip().lower().split(' . ')
             for word in sentence.split()]
    assert text.vocab.to_tokens(text.valid.ids.tolist()) == words
