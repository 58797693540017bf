"""BERT's relatives: their folders say here what they say in transformers.

In fixtures/ lie small folders of random weights with what transformers says
of them, as relatives.py has written them there. D2LBERT_PEERS names a Python
with torch and transformers: then others are made and compared, too, and what
is written here is read there.
"""
import json
import os
import subprocess

import numpy as onp
import pytest
import relatives
from closeness import FIXTURES, load, of_heads, of_learning
from safetensors.numpy import load_file

import d2lbert as d2l
from d2lbert.pretrained.folders import (
    PretrainedError,
    load_pretrained,
    save_pretrained,
)

ALL = [f'{family}-{i}' for family, shapes in relatives.SHAPES.items()
       for i in range(len(shapes))]

#: How close every number is to theirs.
CLOSE = 1e-4


@pytest.fixture(scope='module')
def peers():
    """Runs relatives.py where transformers is."""
    python = os.environ.get('D2LBERT_PEERS')
    if not python:
        pytest.skip('D2LBERT_PEERS does not name a Python that has torch and '
                    'transformers')

    def run(*arguments):
        subprocess.run(
            [python, relatives.__file__, *map(str, arguments)], check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=dict(os.environ, HF_HUB_OFFLINE='1', PYTHONPATH=''))
    return run


@pytest.fixture(scope='module')
def fresh(peers, tmp_path_factory):
    """Folders of all shapes made there, and what was written here of each.

    Those are FAMILY-I and FAMILY-I-classify, these with -again behind it.
    """
    place = tmp_path_factory.mktemp('relatives')
    peers('make', place, 7)
    names = [*ALL, *(f'{name}-classify' for name in ALL)]
    for name in names:
        save_pretrained(*load(place / name), place / f'{name}-again')
    peers('score', *(place / f'{name}-again' for name in names))
    return place


def check_heads(folder):
    """That a net says of texts, padded and not, what is written there."""
    worst = of_heads(folder)
    assert {'hidden', 'mlm'} <= set(worst)
    assert max(worst.values()) < CLOSE, worst


def check_learning(folder):
    """That scores, losses and gradients are theirs around one step."""
    worst = of_learning(folder)
    assert set(worst) == {'scores', 'loss', 'norm'}
    assert max(worst.values()) < CLOSE, worst


def check_written(folder, again):
    """That a folder written here holds what the one it was read from holds.
    """
    there, here = (load_file(str(path / 'model.safetensors'))
                   for path in (folder, again))
    assert set(here) == set(there)
    for name in there:
        expected = there[name]
        if name == 'roberta.embeddings.position_embeddings.weight':
            # Rows that no token has do not come back
            pad = json.loads((folder / 'config.json').read_text()
                             )['pad_token_id']
            expected = onp.pad(expected[pad + 1:], ((pad + 1, 0), (0, 0)))
        assert (here[name] == expected).all(), name


@pytest.mark.parametrize('name', relatives.SMALL)
def test_a_folder_says_what_it_says_in_transformers(name, tmp_path):
    check_heads(FIXTURES / name)
    save_pretrained(*load(FIXTURES / name), tmp_path / 'again')
    check_written(FIXTURES / name, tmp_path / 'again')


@pytest.mark.parametrize('name', relatives.SMALL)
def test_a_step_of_fine_tuning_is_theirs(name, tmp_path):
    folder = FIXTURES / f'{name}-classify'
    check_learning(folder)
    save_pretrained(*load(folder), tmp_path / 'classify')
    check_written(folder, tmp_path / 'classify')


@pytest.mark.parametrize('name', ALL)
def test_fresh_folders_agree_and_are_read_there_without_a_word(name, fresh):
    for again in '', '-again':
        check_heads(fresh / f'{name}{again}')
        check_learning(fresh / f'{name}-classify{again}')
        for kind in '', '-classify':
            assert json.loads((fresh / f'{name}{kind}{again}' / 'peers.json'
                               ).read_text())['said'] == []


def test_an_unknown_family_is_refused_with_those_that_are_known(tmp_path):
    (tmp_path / 'config.json').write_text('{"model_type": "t5"}')
    with pytest.raises(PretrainedError) as error:
        load_pretrained(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/config.json: model_type is 't5', but expected is one of "
        'albert, bert, camembert, distilbert, flaubert, roberta, as another '
        'family of models cannot be served here')


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
