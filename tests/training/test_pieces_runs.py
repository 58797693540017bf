"""Runs on word pieces: kept, resumed, read back, encoded with, evaluated."""
import json
import shutil
import subprocess
import sys

import numpy as onp
import pytest

import d2lbert as d2l
from d2lbert.objectives import mlm, text_objective
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text_model import load_model
from d2lbert.training import checkpoints
from d2lbert.training.evaluation import evaluate_run
from d2lbert.training.saved_runs import RunError
from d2lbert.training.settings import complete

pytest.importorskip('tokenizers')

TINY = dict(corpus='sample', batch_size=16, max_len=64, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, num_steps=4,
            tokenizer='wordpiece', vocab_size=400, whole_word_masking=True,
            dynamic=True, eval_every=2, save_every=2, seed=1)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    return d2l.pretrain(**TINY, out=tmp_path_factory.mktemp('runs') / 'run')


@pytest.fixture
def half(run, tmp_path):
    """A copy of the run that was stopped behind its second step."""
    folder = shutil.copytree(run, tmp_path / 'half')
    for name in ('model.params', 'tokenizer.json', 'losses.png',
                 'checkpoints/step-00000004.npz'):
        (folder / name).unlink()
    return folder


def test_the_folder_holds_the_tokenizer_beside_the_weights(run):
    found = sorted(path.name for path in run.iterdir())
    assert found == ['checkpoints', 'config.json', 'log.txt', 'losses.csv',
                     'losses.png', 'model.params', 'tokenizer.json',
                     'tokenizer_config.json', 'vocab.txt']
    tokenizer = WordPiece.load(run)
    assert len(tokenizer) == 400
    config = json.loads((run / 'config.json').read_text('utf-8'))
    assert config['model']['vocab_size'] == 400
    assert (run / 'vocab.txt').read_text('utf-8').split('\n')[:6] == [
        '[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', "'"]


def same_run(run, other):
    for name in ('model.params', 'losses.csv', 'tokenizer.json',
                 'tokenizer_config.json', 'vocab.txt', 'config.json'):
        assert (run / name).read_bytes() == (other / name).read_bytes(), name


def test_a_resumed_run_is_the_run_that_never_stopped(run, half):
    d2l.pretrain(resume=half)
    same_run(run, half)


def test_a_run_goes_on_with_its_own_pieces_whatever_is_learnt_now(
        run, half, monkeypatch, own_cache):
    learn = WordPiece.of_counts

    def of_counts(counts, vocab_size):
        """As another version of the library may."""
        return learn(counts, vocab_size - 40)
    monkeypatch.setattr(WordPiece, 'of_counts', of_counts)
    d2l.pretrain(resume=half)
    same_run(run, half)
    figures = evaluate_run(run)
    assert figures == evaluate_run(half)


def test_the_vocabulary_of_a_checkpoint_is_that_of_the_run(run):
    path = checkpoints.all_of(run)[-1]
    _, arrays = checkpoints.load(path)
    vocab = checkpoints.vocab_of(path, arrays)
    _, expected = d2l.load_run(run)
    assert isinstance(vocab, PieceVocab)
    assert vocab.tokenizer.description() == expected.tokenizer.description()
    assert vocab.tokenizer.max_len == expected.tokenizer.max_len


def test_the_same_seed_gives_the_same_run_again(run, tmp_path, own_cache):
    again = d2l.pretrain(**TINY, out=tmp_path / 'again')
    same_run(run, again)
    other = d2l.pretrain(**{**TINY, 'whole_word_masking': False},
                         out=tmp_path / 'other')
    assert (run / 'losses.csv').read_bytes() != (
        other / 'losses.csv').read_bytes()


def test_a_reloaded_run_says_what_it_said(run):
    figures = evaluate_run(run)
    line = [line for line in (run / 'log.txt').read_text('utf-8').split('\n')
            if line.startswith('step 4')][0]
    assert f'held-out MLM loss {figures.mlm_loss:.3f}' in line
    assert figures.unknown_share == 0       # [UNK] is never hidden
    other = evaluate_run(run, corpus='sample')
    assert onp.isfinite(other.mlm_loss)


def test_texts_are_encoded_in_the_pieces_of_the_run(run, tmp_path):
    net, vocab = d2l.load_run(run)
    assert net.vocab is vocab
    pieces, pair = (vocab.tokenizer.encode(text).tokens[1:-1] for text in (
        'The cranes, unbelievably', 'fly'))
    assert len(pieces) > 4 and pieces[0] == 'the'
    expected = d2l.get_bert_encoding(net, pieces, pair)
    net, tokenizer = load_model(run)
    encoded = tokenizer.encode('The cranes, unbelievably', 'fly')
    found = net.encoder(
        onp.array([encoded.ids]), onp.array([encoded.segments]), None)
    onp.testing.assert_allclose(expected.asnumpy(), found.asnumpy(), 1e-4,
                                1e-5)
    done = subprocess.run(
        [sys.executable, '-m', 'd2lbert', 'encode', str(run),
         'The cranes, unbelievably', '--pair', 'fly', '--out', 'x.npy'],
        stderr=subprocess.PIPE, text=True)
    assert not done.returncode and not done.stderr
    onp.testing.assert_allclose(onp.load('x.npy'), expected[0].asnumpy(),
                                1e-4, 1e-5)


def test_vocab_txt_alone_gives_the_same_pieces(run):
    tokenizer = WordPiece.load(run)
    again = WordPiece.load(run / 'vocab.txt')
    text = 'Cranes fly, don\'t they? [MASK] 飛行'
    assert tokenizer.encode(text) == again.encode(text)


def test_pieces_of_a_folder_can_be_taken_over(run, tmp_path, own_cache):
    settings = {**TINY, 'vocab_size': None, 'vocab': str(run)}
    again = d2l.pretrain(**settings, out=tmp_path / 'again')
    for name in ('model.params', 'losses.csv', 'tokenizer.json'):
        assert (run / name).read_bytes() == (again / name).read_bytes(), name


def test_a_bound_for_words_is_one(tmp_path):
    out = d2l.pretrain(**{**TINY, 'tokenizer': 'words', 'vocab_size': 60,
                          'whole_word_masking': False}, out='run')
    assert len(d2l.load_run(out)[1]) == 60


@pytest.mark.parametrize('settings, message', [
    (dict(tokenizer='words'), 'whole_word_masking .* is for pieces'),
    (dict(vocab='x'), 'both determine the vocabulary'),
    (dict(tokenizer='bpe'), 'must be words or wordpiece'),
    (dict(vocab_size=5), 'at least 6'),
    (dict(vocab_size=40), 'vocab_size=40 is too small'),
    (dict(vocab_size=None, vocab='x'), 'x is neither a folder nor a file'),
    (dict(vocab_size=None, vocab='.'), 'holds no tokenizer'),
])
def test_what_cannot_be_is_said_before_there_is_a_folder(settings, message):
    with pytest.raises((ValueError, OSError), match=message):
        d2l.pretrain(**{**TINY, **settings}, out='run')
    with pytest.raises(RunError, match='there is no run folder'):
        d2l.load_run('run')


def test_a_run_without_its_tokenizer_is_refused_in_a_sentence(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / 'copy')
    (copy / 'tokenizer.json').write_text('{"model": 1}')
    with pytest.raises(ValueError, match='tokenizer.json'):
        d2l.load_run(copy)
    (copy / 'tokenizer.json').unlink()
    with pytest.raises(ValueError, match='vocab.txt, line 1'):
        d2l.load_run(copy)


def test_held_out_text_is_scored_with_masks_of_single_pieces():
    settings = complete(TINY)
    text = text_objective.read_corpus(settings)
    masks = [mlm.MLMAndNSP.held_out_batches(text.valid, 16, 64)
             for _ in range(2)]
    for ours, theirs in zip(*masks):
        assert (ours.tokens_X == theirs.tokens_X).all()
