"""BERT's relatives: outputs of their folders equal those in transformers.

fixtures/ has small folders with random weights and their outputs in
transformers, which record.py wrote. The folders in fixtures/written were
saved here and loaded there. If D2LBERT_PEERS names a Python with torch and
transformers, new folders are made and compared, too.
"""
import functools
import json

import numpy as onp
import pytest
import relatives
from closeness import (
    FIXTURES,
    WRITTEN,
    check_written_again,
    load,
    of_heads,
    of_learning,
)
from safetensors.numpy import load_file

import d2lbert as d2l
from d2lbert.machine.backend import np, npx
from d2lbert.pretrained.folders import (
    PretrainedError,
    load_finetuned_folder,
    load_pretrained,
    save_pretrained,
)
from d2lbert.pretrained.heads import About, FineTuned

ALL = relatives.ALL

#: Models that get heads for tokens, and the labels of these heads.
EACH, LABELS = [f'{family}-1' for family in relatives.SHAPES], ('a', 'b', 'O')

#: The tolerance of all comparisons.
CLOSE = 1e-4


@pytest.fixture(scope='module')
def peers(ask):
    """A function that runs relatives.py in D2LBERT_PEERS."""
    return functools.partial(ask, program=relatives.__file__)


@pytest.fixture(scope='module')
def fresh(peers, tmp_path_factory):
    """Folders of all shapes, made there, and copies of them, saved here.

    The former are FAMILY-I and FAMILY-I-classify; copies end in -again.
    """
    place = tmp_path_factory.mktemp('relatives')
    peers('make', place, 7)
    names = [*ALL, *(f'{name}-classify' for name in ALL),
             *relatives.ENCODERS]
    for name in names:
        save_pretrained(*load(place / name), place / f'{name}-again')
    asked = [place / f'{name}-again' for name in names]
    for name in EACH:
        for kind in 'tag', 'span':
            asked.append(place / f'{name}-{kind}')
            save_pretrained(*with_head(place / name, kind), asked[-1])
    peers('score', *asked)
    return place


def with_head(folder, kind):
    """A folder's encoder with a new layer over each token, and tokenizer."""
    bert, tokenizer = load(folder)
    labels = LABELS if kind == 'tag' else None
    net = FineTuned(bert, kind, 2 if labels is None else len(labels))
    net.about = About('', kind, None, labels, (), 12, 4, False, 0.1)
    net.begin([npx.cpu()])
    return net, tokenizer


def check_tokens(folder):
    """That a net scores tokens as it is written there."""
    their = onp.load(folder / 'peers.npz')
    net, _ = load_finetuned_folder(folder)
    scores = net(*(np.array(their[what], dtype='int32')
                   for what in ('ids', 'segments', 'lens'))).asnumpy()
    is_tagger = net.about.kind == 'tag'
    expected = their['mlm'] if is_tagger else onp.stack(
        [their['first'], their['last']], axis=-1)
    assert net.about.labels == (LABELS if is_tagger else None)
    for b, n in enumerate(their['lens']):
        assert abs(scores[b, :n] - expected[b, :n]).max() < CLOSE


def check_heads(folder):
    """Check outputs against recorded ones, with and without padding."""
    worst = of_heads(folder)
    assert {'hidden', 'pooled' if 'encoder' in folder.name else 'mlm'
            } <= set(worst)
    assert max(worst.values()) < CLOSE, worst


def check_learning(folder):
    """That scores, losses and gradients are theirs around one step."""
    worst = of_learning(folder)
    assert set(worst) == {'scores', 'loss', 'norm'}
    assert max(worst.values()) < CLOSE, worst


def check_written(folder, again):
    """Check that a folder saved here has the tensors of its original."""
    there, here = (load_file(str(path / 'model.safetensors'))
                   for path in (folder, again))
    # Folders with only an encoder leave out the prefix
    there = {'roberta.' * ('encoder' in folder.name) + name: tensor
             for name, tensor in there.items()}
    assert set(here) == set(there)
    for name in there:
        expected = there[name]
        if name == 'lm_head.bias':
            # Without tied weights the output layer has another bias
            expected = there.get('lm_head.decoder.bias', expected)
        if name == 'roberta.embeddings.position_embeddings.weight':
            # Rows that belong to no token are saved as zeros
            pad = json.loads((folder / 'config.json').read_text()
                             )['pad_token_id']
            expected = onp.pad(expected[pad + 1:], ((pad + 1, 0), (0, 0)))
        assert (here[name] == expected).all(), name


@pytest.mark.parametrize('name', [*ALL, *relatives.ENCODERS])
def test_a_folder_says_what_it_says_in_transformers(name, tmp_path):
    check_heads(FIXTURES / name)
    save_pretrained(*load(FIXTURES / name), tmp_path / 'again')
    check_written(FIXTURES / name, tmp_path / 'again')


@pytest.mark.parametrize('name', ALL)
def test_a_step_of_fine_tuning_equals_transformers(name, tmp_path):
    folder = FIXTURES / f'{name}-classify'
    check_learning(folder)
    save_pretrained(*load(folder), tmp_path / 'classify')
    check_written(folder, tmp_path / 'classify')


@pytest.mark.parametrize('kind', ['tag', 'span'])
@pytest.mark.parametrize('name', EACH)
def test_heads_over_each_token_say_what_they_say_there(name, kind, tmp_path):
    check_tokens(WRITTEN / f'{name}-{kind}')
    check_written_again(WRITTEN / f'{name}-{kind}', tmp_path / f'x-{kind}')


@pytest.mark.parametrize('name', ALL)
def test_fresh_folders_agree_and_are_read_there_without_a_word(name, fresh):
    for again in '', '-again':
        check_heads(fresh / f'{name}{again}')
        check_learning(fresh / f'{name}-classify{again}')
        for kind in '', '-classify':
            assert json.loads((fresh / f'{name}{kind}{again}' / 'peers.json'
                               ).read_text())['said'] == []


@pytest.mark.parametrize('name', EACH)
def test_heads_over_each_token_are_read_there_without_a_word(name, fresh):
    for kind in 'tag', 'span':
        folder = fresh / f'{name}-{kind}'
        check_tokens(folder)
        assert json.loads((folder / 'peers.json').read_text())['said'] == []


@pytest.mark.parametrize('name', relatives.ENCODERS)
def test_fresh_encoders_agree_and_go_out_with_their_pooler_alone(name,
                                                                 fresh):
    for again in '', '-again':
        check_heads(fresh / f'{name}{again}')
    said = json.loads((fresh / f'{name}-again' / 'peers.json').read_text())
    assert said['said'] == []


def test_an_unknown_family_is_refused_with_those_that_are_known(tmp_path):
    (tmp_path / 'config.json').write_text('{"model_type": "t5"}')
    with pytest.raises(PretrainedError) as error:
        load_pretrained(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/config.json: model_type is 't5', expected one of "
        'albert, bart, bert, camembert, distilbert, flaubert, roberta, as '
        'no other family of models is supported')


@pytest.mark.parametrize('field, value, expected', [
    ('summary_type', 'mean', "'first', as scores of another token"),
    ('summary_activation', 'tanh', 'None, as an activation of scores')])
def test_another_head_of_flaubert_is_refused(field, value, expected,
                                             tmp_path):
    for path in (FIXTURES / 'flaubert-0-classify').iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / 'config.json').read_text())
    (tmp_path / 'config.json').write_text(json.dumps(
        {**config, field: value}))
    with pytest.raises(PretrainedError,
                       match=f'{field} is {value!r}, expected {expected}'):
        load_pretrained(tmp_path)


@pytest.mark.parametrize('keywords, said', [
    (dict(family='flaubert', activation='gelu_new', heads=['mlm'],
          num_segments=0, mlm_hidden=False, final_norm=False),
     "activation='gelu_new', but the folders of FlauBERT can only represent "
     'gelu and relu'),
    (dict(pre_norm=True), 'pre_norm=True, but the folders of BERT can only '
     'represent False'),
    (dict(num_segments=0), 'num_segments=0, .* of at least 1'),
    (dict(embedding_size=3), 'embedding_size=3, .* represent None'),
    (dict(heads=['mlm']), r"heads=\('mlm',\), .*mlm and nsp and pooler"),
    (dict(family='albert', embedding_size=3), 'num_groups=None, .* least 1'),
    (dict(family='distilbert', heads=['mlm']), 'num_segments=2, .*resent 0')])
def test_a_net_that_its_family_cannot_represent_is_refused(keywords, said,
                                                           tmp_path):
    _, tokenizer = load(FIXTURES / 'roberta-0')
    net = d2l.BERTModel(**{**dict(
        vocab_size=90, num_hiddens=4, ffn_num_hiddens=16, num_heads=1,
        num_layers=1, dropout=0.1, max_len=9, embedding_norm=True,
        layer_norm_eps=1e-12), **keywords})
    net.initialize()
    with pytest.raises(PretrainedError, match=f'^this net has {said}'):
        save_pretrained(net, tokenizer, tmp_path / 'x')
    assert not any(tmp_path.iterdir())


def test_albert_base_has_its_parameters():
    net = d2l.BERTModel(
        30000, 768, 3072, 12, 12, 0.0, 512, activation='gelu_new',
        layer_norm_eps=1e-12, embedding_norm=True, tie_embeddings=True,
        family='albert', embedding_size=128, num_groups=1)
    # Nothing is allocated: the net is not initialized
    sizes = {id(p): onp.prod(p.shape) for part in (net.encoder, net.hidden)
             for p in part.collect_params().values()}
    H, F, E = 768, 4 * 768, 128
    block = 4 * (H * H + H) + H * F + F + F * H + H + 2 * 2 * H
    assert sum(sizes.values()) == (
        (30000 + 512 + 2) * E + 2 * E + E * H + H + block + H * H + H)
    assert round(sum(sizes.values()) / 1e6, 1) == 11.7
