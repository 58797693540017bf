"""BART folders: outputs and generated texts equal those in transformers.

fixtures/ has small folders with random weights and their outputs in
transformers, which record.py wrote. If D2LBERT_PEERS names a Python with
torch and transformers, new folders are made and compared, too, and folders
saved here are loaded there.
"""
import json

import numpy as onp
import pytest
import seq2seq
from closeness import FIXTURES, WRITTEN, check_written_again, load, put
from safetensors.numpy import load_file, save_file
from test_families import CLOSE, check_learning, check_tokens, with_head

import d2lbert as d2l
from d2lbert.machine.backend import autograd, np
from d2lbert.pretrained.families.bart import (
    encode_text,
    teacher_forced_states,
)
from d2lbert.pretrained.folders import (
    PretrainedError,
    load_pretrained,
    save_pretrained,
)
from d2lbert.pretrained.generation import config_of, generated_ids
from d2lbert.training.load import export_run, import_run

SHAPES = list(map(str, range(len(seq2seq.SHAPES))))
SMALL = [f'bart-{name}' for name in SHAPES]


@pytest.fixture(scope='module')
def fresh(ask, tmp_path_factory):
    """Folders of all shapes, 0 and so on; 0-again and so on saved here."""
    place = tmp_path_factory.mktemp('bart')
    ask('make', place, 5, program=seq2seq.__file__)
    names = [*SHAPES, *(f'{name}-classify' for name in SHAPES)]
    again = [place / f'{name}-again' for name in names]
    for name, folder in zip(names, again):
        save_pretrained(*load(place / name), folder)
    train(place / 'run', place / 'trained')
    save_pretrained(*with_head(place / '1', 'span'), place / 'span')
    ask('score', *again, place / 'trained', place / 'span',
        program=seq2seq.__file__)
    return place


def train(run, folder):
    """Train a BART for a step, and save its folder."""
    d2l.pretrain(run, corpus='sample', objective='denoise',
                 tokenizer='wordpiece', vocab_size=200, num_layers=1,
                 num_hiddens=8, ffn_num_hiddens=8, num_steps=1, batch_size=4,
                 max_len=40, seed=1, devices='cpu')
    export_run(run, folder)


def close(ours, theirs, lens):
    """True if ours and theirs (B, T, ...) are close in valid places."""
    ours = ours.asnumpy()
    return all(abs(ours[b, :n] - theirs[b, :n]).max() < CLOSE
               for b, n in enumerate(lens))


def check_says(folder):
    """Check outputs against recorded ones, with and without padding."""
    net, _ = load_pretrained(folder)
    assert net.pretrained.differences == ()
    their = onp.load(folder / 'peers.npz')
    ids, lens, targets, target_lens = (their[name] for name in (
        'ids', 'lens', 'targets', 'target_lens'))
    places = onp.broadcast_to(onp.arange(ids.shape[1]), ids.shape)
    X, mlm, nsp = net(put(ids), None, put(lens), put(places))
    assert nsp is None
    assert close(X, their['hidden'], lens) and close(mlm, their['mlm'], lens)
    encoded = encode_text(net, put(ids), put(lens))
    assert close(encoded, their['encoded'], lens)
    decoded = teacher_forced_states(net, put(ids), put(lens), put(targets))
    assert close(decoded, their['decoded'], target_lens)
    assert close(net.mlm.mlp(decoded), their['scores'], target_lens)
    for b, (n, t) in enumerate(zip(lens, target_lens)):     # without padding
        text = put(ids[b:b + 1, :n])
        encoded = encode_text(net, text, None)
        assert close(encoded, their['encoded'][b:b + 1], [n])
        alone = teacher_forced_states(net, text, None,
                                      put(targets[b:b + 1, :t]))
        assert close(alone, their['decoded'][b:b + 1], [t])


def check_learns(folder):
    """Check the loss and the gradient norm against recorded ones."""
    net, _ = load_pretrained(folder)
    their = onp.load(folder / 'peers.npz')
    targets, target_lens = their['targets'], their['target_lens']
    b, t = onp.nonzero(onp.arange(targets.shape[1]) < target_lens[:, None])
    with autograd.record(train_mode=False):
        X = teacher_forced_states(net, put(their['ids']),
                                  put(their['lens']), put(targets))
        rows = X.reshape(-1, X.shape[-1]).take(
            put(b * targets.shape[1] + t), axis=0)
        loss = net.mlm.loss(rows, put(targets[b, t]), np.ones(len(b)))
    loss.backward()
    params = {id(p): p for p in net.collect_params().values()
              if p.grad_req != 'null'}.values()
    norm = sum((p.grad().asnumpy().astype('float64') ** 2).sum()
               for p in params) ** 0.5
    assert float(loss) == pytest.approx(float(their['loss']), abs=CLOSE)
    assert norm == pytest.approx(float(their['norm']), rel=CLOSE)


def check_generates(folder, said_beams=seq2seq.SAID['num_beams']):
    """Check generated ids against recorded ones, with and without cache."""
    net, tokenizer = load_pretrained(folder)
    their = onp.load(folder / 'peers.npz')
    texts = [ids[:n].tolist() for ids, n in zip(their['ids'], their['lens'])]
    names = {field: ours for field, ours in (
        ('num_beams', 'num_beams'), ('min_length', 'min_len'),
        ('length_penalty', 'length_penalty'),
        ('no_repeat_ngram_size', 'no_repeat_ngram'),
        ('early_stopping', 'early_stopping'))}
    said = config_of(net, tokenizer)
    plain = said._replace(num_beams=1, min_len=0, length_penalty=1.0,
                          no_repeat_ngram=0, early_stopping=False,
                          max_len=seq2seq.MAX_LENGTH)
    hows = {name: plain._replace(**{names[field]: value for field, value
                                    in how.items()})
            for name, how in seq2seq.HOW.items()}
    if said_beams is not None:      # the folder limits lengths
        hows['folder'] = said
        assert said.num_beams == said_beams
    for name, how in hows.items():
        expected = [ids.tolist() for ids in their[f'ids_{name}']]
        for use_cache in {True, name not in ('greedy', 'apart')}:
            found = generated_ids(net, texts, how.validated(net), use_cache,
                                  tokenizer.pad_id)
            width = len(expected[0])
            assert [ids + [tokenizer.pad_id] * (width - len(ids))
                    for ids in found] == expected, (name, use_cache)


def check_written(folder, again):
    """Check that a folder saved here has the tensors of its original."""
    there, here = (load_file(str(path / 'model.safetensors'))
                   for path in (folder, again))
    assert set(here) == set(there)
    for name in there:
        expected = there[name]
        if name.endswith('embed_positions.weight'):
            # Rows that belong to no token are saved as zeros
            expected = onp.pad(expected[2:], ((2, 0), (0, 0)))
        assert (here[name] == expected).all(), name


CHECKS = check_says, check_learns, check_generates


@pytest.mark.parametrize('check', CHECKS)
@pytest.mark.parametrize('name', SMALL)
def test_a_folder_has_the_outputs_of_transformers(name, check, path):
    check(FIXTURES / name)


@pytest.mark.parametrize('name', SMALL)
def test_a_saved_folder_has_the_same_tensors(name, tmp_path):
    folder = FIXTURES / name
    save_pretrained(*load_pretrained(folder), tmp_path / 'again')
    check_written(folder, tmp_path / 'again')
    one, again = (json.loads((some / 'generation_config.json').read_text())
                  for some in (folder, tmp_path / 'again'))
    assert {**one, **again} == one and set(seq2seq.SAID) <= set(again)


def test_an_imported_run_generates_as_its_folder(tmp_path):
    folder, run, again = FIXTURES / 'bart-1', tmp_path / 'run', tmp_path / 'x'
    import_run(folder, run)
    export_run(run, again)
    settings = [config_of(*d2l.load_model(some)) for some in (
        folder, run, again)]
    assert settings[0] == settings[1] == settings[2]
    assert settings[0].no_repeat_ngram and settings[0].first_id is not None


@pytest.mark.parametrize('name', SMALL)
def test_a_step_of_fine_tuning_equals_transformers(name, tmp_path, path):
    folder = FIXTURES / f'{name}-classify'
    check_learning(folder)
    save_pretrained(*load(folder), tmp_path / 'classify')
    check_written(folder, tmp_path / 'classify')


def test_vectors_of_a_fine_tuned_net_are_those_of_the_decoder():
    folder, texts = FIXTURES / 'bart-0-classify', ['the crane left', 'it']
    for pooling, layer in ('mean', -1), ('cls', -1), ('mean', 0), ('mean', 1):
        there, here = (d2l.encode(*load(folder), texts, pooling, layer)
                       for load in (load_pretrained, d2l.load_model))
        onp.testing.assert_array_equal(there, here)


def test_answers_have_the_scores_of_transformers(tmp_path):
    check_tokens(WRITTEN / 'bart-span')
    check_written_again(WRITTEN / 'bart-span', tmp_path / 'bart-span')


def test_a_model_trained_here_has_the_outputs_of_transformers(tmp_path):
    folder = WRITTEN / 'bart-trained'
    check_says(folder)
    check_learns(folder)
    check_generates(folder, None)
    check_written_again(folder, tmp_path / 'again')


@pytest.mark.parametrize('check', CHECKS)
@pytest.mark.parametrize('name', SHAPES)
def test_fresh_folders_agree(name, check, fresh):
    check(fresh / name)
    check_learning(fresh / f'{name}-classify')


def test_transformers_scores_answers_alike_without_warnings(fresh):
    check_tokens(fresh / 'span')
    assert json.loads((fresh / 'span' / 'peers.json').read_text()
                      )['said'] == []


def test_transformers_loads_a_model_trained_here_without_warnings(fresh):
    check_says(fresh / 'trained')
    check_learns(fresh / 'trained')
    check_generates(fresh / 'trained', None)
    assert json.loads((fresh / 'trained' / 'peers.json').read_text()
                      )['said'] == []


@pytest.mark.parametrize('name', SHAPES)
def test_transformers_loads_saved_folders_without_warnings(name, fresh):
    again = fresh / f'{name}-again'
    check_written(fresh / name, again)
    for check in CHECKS:
        check(again)
    classify = fresh / f'{name}-classify-again'
    check_learning(classify)
    for folder in again, classify:
        assert json.loads((folder / 'peers.json').read_text())['said'] == []


@pytest.mark.parametrize('name', [
    'decoder_layers', 'decoder_heads', 'decoder_ffn'])
def test_a_decoder_of_size_0_is_refused(name):
    with pytest.raises(ValueError, match=f'{name} must be .* not 0'):
        d2l.BARTModel(20, 8, 8, 2, 2, 0.1, **{name: 0})


@pytest.mark.parametrize('folder', ['bart-0', 'bart-0-classify'])
@pytest.mark.parametrize('name', [
    'model.encoder.embed_tokens.weight', 'model.decoder.embed_tokens.weight',
    'lm_head.weight'])
def test_separate_embeddings_are_refused(folder, name, tmp_path):
    for path in (FIXTURES / folder).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(str(tmp_path / 'model.safetensors'))
    shared = tensors['model.shared.weight']
    save_file({**tensors, name: shared.copy()},
              str(tmp_path / 'model.safetensors'))
    assert d2l.load_model(tmp_path)[0].pretrained.differences == ()
    for other in (shared + 1e-3, shared[1:].copy()):
        save_file({**tensors, name: other},
                  str(tmp_path / 'model.safetensors'))
        with pytest.raises(PretrainedError) as error:
            d2l.load_model(tmp_path)
        assert str(error.value) == (
            f'{tmp_path}: {name} differs from model.shared.weight, '
            'but a BART here has a single token embedding: choose a model in '
            'which they are equal')
