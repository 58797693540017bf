"""Runs and checkpoint folders: one way in, and the ways between the two."""
import json
import shutil

import numpy as onp
import published
import pytest
import reference
from safetensors.numpy import load_file

import d2lbert as d2l
from d2lbert.machine.backend import mx, npx
from d2lbert.pretrained.fill_mask import fill_mask
from d2lbert.pretrained.folders import PretrainedError, load_pretrained
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords, WordPiece
from d2lbert.text_model import load_model
from d2lbert.training.evaluation import evaluate_run
from d2lbert.training.load import (
    export_run,
    import_run,
    load_run,
)
from d2lbert.training.saved_runs import RunError

TINY = dict(corpus='sample', batch_size=16, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, num_steps=2, seed=1)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """The runs of both architectures, by its name."""
    folder = tmp_path_factory.mktemp('runs')
    return {name: d2l.pretrain(**TINY, architecture=name, out=folder / name)
            for name in ('book', 'published')}


@pytest.fixture
def folder(tmp_path):
    return published.write(tmp_path / 'folder')


def test_the_architecture_is_a_setting(runs):
    models = {name: json.loads((run / 'config.json').read_text())['model']
              for name, run in runs.items()}
    assert models['book']['embedding_norm'] is False
    assert models['published'] == {
        **models['book'], 'max_len': 512, 'activation': 'gelu',
        'layer_norm_eps': 1e-12, 'embedding_norm': True,
        'tie_embeddings': True}


def test_a_run_comes_with_the_whole_words_that_it_learnt(runs):
    net, tokenizer = load_model(runs['book'])
    assert isinstance(tokenizer, WholeWords)
    other, vocab = load_run(runs['book'])
    reference.check_same(net, other)
    assert tokenizer.idx_to_token == vocab.idx_to_token
    assert net.pretrained is None


def test_a_folder_comes_as_load_pretrained_gives_it(folder, capsys):
    net, tokenizer = load_model(str(folder), [mx.cpu(1)])
    assert isinstance(tokenizer, WordPiece)
    assert net.hidden.weight.list_ctx() == [mx.cpu(1)]
    reference.check_same(net, load_pretrained(folder)[0])
    (folder / 'model.safetensors').rename(folder / 'away')
    with pytest.raises(PretrainedError, match='has no model.safetensors'):
        load_model(folder)


@pytest.mark.parametrize('kind', ['words', 'pieces', 'folder'])
def test_a_net_that_is_only_asked_has_no_gradients(kind, runs, folder,
                                                   tmp_path):
    path = runs['book'] if kind == 'words' else folder
    if kind == 'pieces':
        path = tmp_path / 'run'
        import_run(folder, path)
    net, _ = load_model(path, trainable=False)
    reference.check_same(net, load_model(path)[0])
    for param in net.collect_params().values():
        assert param.grad_req == 'null' and param._grad is None
    for param in load_model(path)[0].collect_params().values():
        assert param.grad() is not None


@pytest.mark.parametrize('what, said', [
    ('nothing', 'there is no folder .*: name the folder of a run or of'),
    ('file', 'there is no folder'), ('empty', 'has no config.json'),
    ('unfinished', 'was not finished')])
def test_what_is_neither_is_refused_in_one_sentence(what, said, runs,
                                                    tmp_path):
    path = tmp_path / 'x'
    if what == 'file':
        path.touch()
    elif what == 'empty':
        path.mkdir()
    elif what == 'unfinished':
        shutil.copytree(runs['book'], path)
        (path / 'model.params').unlink()
    with pytest.raises((PretrainedError, RunError), match=said) as error:
        load_model(path)
    assert '\n' not in str(error.value)


def test_a_folder_becomes_a_run_and_a_folder_again(folder, tmp_path):
    import_run(folder, tmp_path / 'run')
    assert sorted(path.name for path in (tmp_path / 'run').iterdir()) == [
        'config.json', 'model.params', 'tokenizer.json',
        'tokenizer_config.json', 'vocab.txt']
    net, tokenizer = load_model(tmp_path / 'run')
    before = load_pretrained(folder)
    reference.check_same(net, before[0])
    assert tokenizer.idx_to_token == before[1].idx_to_token
    stored = npx.load(str(tmp_path / 'run' / 'model.params'))
    assert onp.array_equal(
        stored['encoder.blks.1.attention.W_k.weight'].asnumpy(),
        load_file(folder / 'model.safetensors')[
            'bert.encoder.layer.1.attention.self.key.weight'])
    export_run(tmp_path / 'run', tmp_path / 'again')
    after = load_file(tmp_path / 'again' / 'model.safetensors')
    tensors = published.draw(published.CONFIG)
    assert after.keys() == tensors.keys()
    for name in tensors:
        assert onp.array_equal(after[name], tensors[name]), name


def test_heads_that_an_import_made_are_not_exported(tmp_path):
    tensors = {name: tensor
               for name, tensor in published.draw(published.CONFIG).items()
               if not name.startswith('cls.')}
    published.write(tmp_path / 'folder', {}, tensors)
    import_run(tmp_path / 'folder', tmp_path / 'run')
    export_run(tmp_path / 'run', tmp_path / 'again')
    assert load_file(tmp_path / 'again' / 'model.safetensors'
                     ).keys() == tensors.keys()
    assert load_model(tmp_path / 'again')[0].has_random('mlm')


def test_a_run_of_whole_words_comes_back_as_one(runs, tmp_path):
    (tmp_path / 'text').write_text(
        '\n\n'.join(['the crane is flying . he just left . a b c .'] * 9))
    export_run(runs['published'], tmp_path / 'folder')
    import_run(tmp_path / 'folder', tmp_path / 'run')
    assert sorted(path.name for path in (tmp_path / 'run').iterdir()) == [
        'config.json', 'model.params', 'vocab.txt']
    vocabs = [(run / 'vocab.txt').read_bytes()
              for run in (runs['published'], tmp_path / 'run')]
    assert vocabs[0] == vocabs[1]
    reference.check_same(load_model(runs['published'])[0],
               load_model(tmp_path / 'run')[0])
    before, after = (evaluate_run(run, [str(tmp_path / 'text')])
                     for run in (runs['published'], tmp_path / 'run'))
    # In batches of other sizes, so to rounding
    assert after == pytest.approx(before, rel=1e-6)


def test_a_model_that_was_imported_is_evaluated_on_texts_that_are_named(
        folder, tmp_path, capsys):
    (tmp_path / 'text').write_text(
        '\n\n'.join(['the crane is flying . he just left . a b c .'] * 9))
    import_run(folder, tmp_path / 'run')
    figures = evaluate_run(tmp_path / 'run', [str(tmp_path / 'text')])
    assert 0 < figures.mlm_loss < 99 and 0 < figures.nsp_loss < 99
    assert 'random' not in capsys.readouterr().err
    with pytest.raises(RunError, match='was imported without a text'):
        evaluate_run(tmp_path / 'run')


def test_figures_of_a_head_that_an_import_made_come_with_a_line(tmp_path,
                                                                capsys):
    tensors = {name: tensor
               for name, tensor in published.draw(published.CONFIG).items()
               if 'seq_relationship' not in name}
    published.write(tmp_path / 'folder', {}, tensors)
    import_run(tmp_path / 'folder', tmp_path / 'run')
    capsys.readouterr()
    (tmp_path / 'text').write_text(
        '\n\n'.join(['the crane is flying . he just left . a b c .'] * 9))
    evaluate_run(tmp_path / 'run', [str(tmp_path / 'text')])
    assert 'had no next sentence head, so' in capsys.readouterr().err


def test_a_tokenizer_of_another_model_is_refused(folder, tmp_path):
    import_run(folder, tmp_path / 'run')
    published.write(tmp_path / 'larger', dict(vocab_size=24), None,
                    [*published.VOCAB, 'more'])
    import_run(tmp_path / 'larger', tmp_path / 'other')
    shutil.copy(tmp_path / 'other' / 'tokenizer.json', tmp_path / 'run')
    with pytest.raises(RunError, match='has 24 tokens, but the model 23'):
        load_model(tmp_path / 'run')


def test_heads_that_a_folder_lacks_are_drawn_once(tmp_path, capsys):
    tensors = {name: tensor for name, tensor
               in published.draw(published.CONFIG).items()
               if not name.startswith('cls.')}
    folder = published.write(tmp_path / 'x', None, tensors)
    import_run(folder, tmp_path / 'run')
    assert 'which are random' in capsys.readouterr().err
    reference.check_same(load_model(tmp_path / 'run')[0],
               load_model(tmp_path / 'run')[0])
    assert capsys.readouterr().err == ''


def test_a_run_leaves_as_a_folder(runs, tmp_path):
    export_run(runs['published'], tmp_path / 'x')
    net, tokenizer = load_model(tmp_path / 'x')
    other, words = load_model(runs['published'])
    reference.check_same(net, other)
    text = 'He left . The crane <mask> flying'
    assert tokenizer.encode(text).ids == words.encode(text).ids
    assert tokenizer.mask_id in tokenizer.encode(text).ids


def test_a_run_of_word_pieces_leaves_with_them(tmp_path):
    settings = dict(TINY, max_len=128, tokenizer='wordpiece', vocab_size=400)
    run = d2l.pretrain(**settings, architecture='published',
                       out=tmp_path / 'run')
    export_run(run, tmp_path / 'x')
    net, tokenizer = load_model(tmp_path / 'x')
    other, pieces = load_model(run)
    reference.check_same(net, other)
    text = 'Unaffably, the crane [MASK] flying.'
    assert tokenizer.encode(text) == pieces.encode(text)
    assert len(fill_mask(net, tokenizer, text)) == 1


def test_the_chapters_net_cannot_leave(runs, folder, tmp_path):
    for run, said in ((runs['book'], 'has no LayerNorm after its embed'),
                      (folder, 'is no folder of a run'),
                      (tmp_path / 'none', 'is no folder of a run')):
        with pytest.raises(PretrainedError, match=said) as error:
            export_run(run, tmp_path / 'x')
        assert '\n' not in str(error.value)
    assert not (tmp_path / 'x').exists()


def test_a_run_is_never_replaced(folder, runs):
    before = {path: path.read_bytes() for path in runs['book'].iterdir()}
    with pytest.raises(FileExistsError, match='exists already'):
        import_run(folder, runs['book'])
    assert before == {path: path.read_bytes()
                      for path in runs['book'].iterdir()}
