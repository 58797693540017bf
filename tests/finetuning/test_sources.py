"""The book's own model and SNLI, as `finetune` fetches and reads them."""
import json

import nli_page
import pytest

import d2lbert as d2l
from d2lbert import hub
from d2lbert.finetuning.datasets import read_part
from d2lbert.finetuning.objective import FineTuning
from d2lbert.finetuning.settings import complete
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords

SETTINGS = dict(task='snli', model='bert.small', num_epochs=1, batch_size=8,
                max_len=24, seed=1)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Small archives of the layout of the book's, in $D2LBERT_DATA."""
    folder = tmp_path / 'archives'
    folder.mkdir()
    sums = nli_page.archives(folder)
    sums['SNLI'] = nli_page.pack(folder / 'snli_1.0.zip', {
        f'snli_1.0/snli_1.0_{part}.txt': nli_page.snli_text(
            nli_page.rows(24, seed)).encode()
        for seed, part in enumerate(('train', 'dev', 'test'))})
    monkeypatch.setenv('D2LBERT_DATA', str(folder))
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path / 'cache'))
    for name, sha1 in sums.items():
        monkeypatch.setitem(hub.DATA_HUB, name, (hub.DATA_HUB[name][0], sha1))
    return folder


def test_the_books_model_learns_snli_by_name_alone(here, tmp_path):
    out = d2l.finetune(**SETTINGS, out=tmp_path / 'run', save_every=2)
    config = json.loads((out / 'config.json').read_text())
    assert d2l.evaluate_finetuned(out)._asdict() == config['figures']
    net, tokenizer = d2l.load_run(out)
    assert net.about.labels == d2l.TASKS['snli'].labels
    assert net.config['num_hiddens'] == 256
    found, = d2l.predict(net, tokenizer, ['a man sleeps'], ['he is awake'])
    assert found.label in net.about.labels


def test_the_inputs_are_those_of_the_page(here):
    # The two cut long texts at different words
    inputs = FineTuning(complete(dict(SETTINGS, max_len=64))).train_inputs
    bert, vocab = d2l.load_pretrained_model('bert.small')
    page = d2l.SNLIBERTDataset(
        d2l.read_snli(d2l.download_extract('SNLI'), True), 64, vocab)
    assert len(page) == len(inputs.tokens)
    for k, (tokens, segments) in enumerate(zip(inputs.tokens,
                                               inputs.segments)):
        n = int(page.valid_lens[k])
        assert tokens.tolist() == page.all_token_ids[k][:n].tolist()
        assert segments.tolist() == page.all_segments[k][:n].tolist()
        assert inputs.labels[k] == page.labels[k]


def test_word_pieces_get_the_sentences_as_they_are_written(here):
    folder = d2l.download_extract('SNLI')
    whole = read_part('snli', folder, 'train', None, object())
    vocab = d2l.Vocab(reserved_tokens=['<pad>', '<mask>', '<cls>', '<sep>'])
    apart = read_part('snli', folder, 'train', None, WholeWords(vocab))
    assert whole.labels == apart.labels
    assert not any('(' in text for text in apart.texts_a)
    rows = [row for row in nli_page.rows(24, 0) if row[0] != '-']
    assert whole.texts_a == [row[1] for row in rows]
