"""The same folders in transformers, in a separate environment.

D2LBERT_PEERS names a Python that has torch and transformers; D2LBERT_WEIGHTS
a folder with minilm/ and tiny/, real checkpoints.
"""
import json
import os
import subprocess
from pathlib import Path

import numpy as onp
import peers
import published
import pytest
from closeness import FIXTURES, WRITTEN, check_written_again

import d2lbert as d2l
from d2lbert.machine.backend import init
from d2lbert.pretrained.families.tensor_names import HEADS
from d2lbert.pretrained.folders import (
    PretrainedError,
    load_pretrained,
    save_pretrained,
)
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords, WordPiece
from d2lbert.text import RESERVED, Vocab

#: Nets that are saved here and loaded by transformers.
NETS = [dict(tie_embeddings=True, activation='gelu', layer_norm_eps=1e-12),
        dict(tie_embeddings=False, num_segments=3),
        dict(tie_embeddings=True, activation='gelu_new', layer_norm_eps=1e-3)]
#: Real checkpoints, and the heads that they have.
REAL = {'tiny': ('mlm',), 'minilm': ('pooler',)}


@pytest.fixture(scope='module')
def scored(ask, tmp_path_factory):
    """A folder of folders whose outputs transformers has recorded.

    0 to 9 have the ten shapes. net-0 to net-2 were saved here; words has the
    whole words of a run. tiny and minilm are real checkpoints; tiny-again
    and minilm-again are copies, saved here.
    """
    place = tmp_path_factory.mktemp('peers')
    ask('make', place)
    written = models_of_ours(tmp_path_factory.mktemp('text'))
    for name in REAL:
        folder = Path(os.environ.get('D2LBERT_WEIGHTS', ''), name)
        if os.environ.get('D2LBERT_WEIGHTS') and folder.is_dir():
            (place / name).mkdir()
            for file in folder.iterdir():
                (place / name / file.name).symlink_to(file)
            written[f'{name}-again'] = load_pretrained(folder)
    for name, model in written.items():
        save_pretrained(*model, place / name)
        files = {path.name for path in (place / name).iterdir()}
        expected = {'config.json', 'model.safetensors', 'tokenizer.json',
                    'tokenizer_config.json', 'vocab.txt'}
        # The pooling of sentence-transformers is saved in further files
        pooled = model[1].pooling and model[1].pooling.files
        assert expected < files if pooled else files == expected, name
    ask('score', *place.iterdir())
    return place, written


def models_of_ours(place):
    """{name: (net, tokenizer)} of models for transformers."""
    found = {}
    (place / 'text').write_text('the crane is flying he just left ' * 9)
    for i, keywords in enumerate(NETS):
        tokenizer = WordPiece.train([str(place / 'text')], 40)
        found[f'net-{i}'] = random_net(len(tokenizer), keywords), tokenizer
    words = WholeWords(Vocab(['the crane is flying, <mask> a'.split()],
                             reserved_tokens=RESERVED), 37)
    found['words'] = random_net(len(words), NETS[0]), words
    return found


def random_net(num_tokens, keywords):
    net = d2l.BERTModel(num_tokens, 12, 20, 3, 2, 0.1, 37,
                        embedding_norm=True, **keywords)
    net.initialize(init.Normal(0.5))
    for name, param in net.collect_params().items():
        if name.endswith(('bias', 'beta', 'gamma')):
            param.set_data(onp.random.RandomState(0).normal(
                name.endswith('gamma'), 0.3, param.shape))
    return net


def said(folder):
    return json.loads((folder / 'peers.json').read_text())['said']


def check_scores(net, folder, heads=HEADS, tolerance=1e-4):
    """Check the outputs of a net against those recorded in `folder`."""
    their = onp.load(folder / 'peers.npz')
    found = published.scores(net, their['ids'], their['segments'],
                             onp.array(peers.LENS))
    for b, n in enumerate(peers.LENS):
        hidden, pooled, mlm, nsp = found[b]
        for part, ours, theirs in (
                (None, hidden, their['hidden'][b, :n]),
                ('pooler', pooled, their['pooled'][b]),
                ('mlm', mlm, their['mlm'][b, :n]),
                ('nsp', nsp, their['nsp'][b, ::-1])):
            if part is None or part in heads:
                onp.testing.assert_allclose(ours, theirs, 0, tolerance)


def check_tokens(tokenizer, folder):
    """Check ids of texts against those recorded in `folder`."""
    told = json.loads((folder / 'peers.json').read_text())
    for text, ids in zip(told['texts'], told['tokens']):
        assert tokenizer.encode(text, 'a ab').ids == ids


@pytest.mark.parametrize('number', range(len(peers.SHAPES)))
def test_models_have_the_outputs_of_transformers(number, capsys):
    folder = FIXTURES / 'bert' / str(number)
    net, tokenizer = load_pretrained(folder)
    assert net.pretrained.differences == () == tuple(capsys.readouterr().err)
    check_scores(net, folder)
    check_tokens(tokenizer, folder)


@pytest.mark.parametrize('name', [*(f'net-{i}' for i in range(len(NETS))),
                                  'words'])
def test_models_saved_here_have_the_outputs_of_transformers(name, tmp_path):
    net, tokenizer = load_pretrained(WRITTEN / name)
    check_scores(net, WRITTEN / name)
    check_tokens(tokenizer, WRITTEN / name)
    if name != 'words':     # its tokenizer is loaded as another kind
        check_written_again(WRITTEN / name, tmp_path / name)


@pytest.mark.parametrize('number', range(len(peers.SHAPES)))
def test_new_models_have_the_outputs_of_transformers(number, scored, capsys):
    folder = scored[0] / str(number)
    net, _ = load_pretrained(folder)
    assert net.pretrained.differences == () == tuple(capsys.readouterr().err)
    check_scores(net, folder)


@pytest.mark.parametrize('name', REAL)
def test_real_checkpoints_have_the_outputs_of_transformers(name, scored):
    folder = scored[0] / name
    if not folder.is_dir():
        pytest.skip(f'D2LBERT_WEIGHTS does not name a folder with {name}/')
    net, _ = load_pretrained(folder)
    assert {part for part in HEADS if not net.pretrained.lacks(part)
            } == set(REAL[name])
    check_scores(net, folder, REAL[name])
    # transformers reports missing tensors
    for what in 'LOAD REPORT', 'missing_keys':
        assert any(what in line for line in said(folder))


@pytest.mark.parametrize('name', [
    *(f'net-{i}' for i in range(len(NETS))), 'words',
    *(f'{name}-again' for name in REAL)])
def test_transformers_loads_saved_folders_without_warnings(name, scored):
    place, written = scored
    if name not in written:
        pytest.skip(f'D2LBERT_WEIGHTS does not name a folder for {name}')
    net, tokenizer = written[name]
    assert said(place / name) == []
    check_scores(net, place / name)
    check_tokens(tokenizer, place / name)


def test_the_command_in_the_refusal_converts_a_pickle(ask, tmp_path):
    folder = published.write(tmp_path / 'it is')
    weights = (folder / 'model.safetensors').read_bytes()
    program = tmp_path / 'program.py'
    program.write_text('import torch, safetensors.torch as s\n'
                       'torch.save(s.load_file("model.safetensors"), '
                       '"pytorch_model.bin")\n')
    ask(program=program, cwd=folder)
    (folder / 'model.safetensors').unlink()
    with pytest.raises(PretrainedError) as error:
        load_pretrained(folder)
    line = str(error.value).split('convert it with ')[1]
    python = os.environ['D2LBERT_PEERS']
    subprocess.run(line.replace('python -c', f'{python} -c'), shell=True,
                   check=True)
    assert (folder / 'model.safetensors').read_bytes() == weights
    load_pretrained(folder)
