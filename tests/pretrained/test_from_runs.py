"""Runs of `pretrain` are exported as folders of BERT's relatives."""
import json
from types import SimpleNamespace

import loops
import numpy as onp
import pytest
import relatives
from closeness import WRITTEN, check_written_again, of_heads

from d2lbert.machine.backend import np
from d2lbert.pretrained.families.config import generation_fields_of_run
from d2lbert.pretrained.folders import (
    PretrainedError,
    load_pretrained,
    save_pretrained,
)
from d2lbert.training import pretraining
from d2lbert.training.evaluation import evaluate_run
from d2lbert.training.load import import_run
from d2lbert.training.settings import complete

#: Settings of `pretrain`, and the class of the exported model.
RELATIVES = {
    'AlbertForPreTraining': dict(
        objective='mlm+sop', architecture='published', embedding_size=6,
        share_layers=True),
    'DistilBertForMaskedLM': dict(objective='mlm', architecture='distilbert'),
}


def net_of(**keywords):
    """The net of a run, in which no weight has its initial value."""
    net = loops.prepared(pretraining._make_objective, complete(dict(
        corpus='sample', max_len=40, num_hiddens=8, ffn_num_hiddens=12,
        tokenizer='wordpiece', vocab_size=300, seed=1, **keywords))).net
    rng = onp.random.RandomState(0)
    for param in net.collect_params().values():
        param.set_data(np.array(rng.normal(0, 0.3, param.shape)))
    return net


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    """Folders of RELATIVES, {class: path}."""
    pytest.importorskip('tokenizers')
    place, found = tmp_path_factory.mktemp('folders'), {}
    for name, settings in RELATIVES.items():
        net, found[name] = net_of(**settings), place / name
        save_pretrained(net, net.vocab.tokenizer, found[name])
    return found


@pytest.mark.parametrize('name', RELATIVES)
def test_a_run_is_exported_in_its_family_and_imported(folders, name):
    config = json.loads((folders[name] / 'config.json').read_text())
    assert config['architectures'] == [name]
    net, _ = load_pretrained(folders[name])
    assert net.pretrained.differences == ()


@pytest.mark.parametrize('name', RELATIVES)
def test_an_imported_run_is_evaluated_by_its_heads(folders, name, tmp_path):
    import_run(folders[name], tmp_path / 'run')
    figures = evaluate_run(tmp_path / 'run', 'sample', devices='cpu')
    assert 0 < figures.mlm_loss < 99
    assert not hasattr(figures, 'nsp_loss')
    assert hasattr(figures, 'sop_loss') == (name == 'AlbertForPreTraining')


def check_heads(name, folder):
    """Check the outputs of a net against transformers."""
    worst = of_heads(folder)
    # Whose class 0 is "in order"
    assert ('nsp' in worst) == (name == 'AlbertForPreTraining')
    assert {'hidden', 'mlm'} <= set(worst)
    assert max(worst.values()) < 1e-4, (name, worst)


@pytest.mark.parametrize('name', RELATIVES)
def test_an_exported_run_has_the_outputs_of_transformers(name, tmp_path):
    check_heads(name, WRITTEN / name)
    check_written_again(WRITTEN / name, tmp_path / name)


def test_new_exported_runs_have_the_outputs_of_transformers(folders, ask):
    ask('score', *folders.values(), program=relatives.__file__)
    for name, folder in folders.items():
        check_heads(name, folder)
        said = json.loads((folder / 'peers.json').read_text())['said']
        assert said == []


def test_a_structure_without_a_family_is_refused(tmp_path):
    pytest.importorskip('tokenizers')
    net = net_of(architecture='published', share_layers=True)
    with pytest.raises(PretrainedError, match='num_groups=1'):
        save_pretrained(net, net.vocab.tokenizer, tmp_path / 'x')


@pytest.mark.parametrize('causal, trained_len, expected', [
    (True, None, {}), (True, 9, dict(max_length=9)),
    (False, None, dict(forced_eos_token_id=5)),
    (False, 9, dict(forced_eos_token_id=5, max_length=10))])
def test_a_run_generates_as_many_tokens_as_it_was_trained_on(
        causal, trained_len, expected):
    net = SimpleNamespace(config=dict(causal=causal), trained_len=trained_len,
                          generation_fields=None)
    assert generation_fields_of_run(net, SimpleNamespace(sep_id=5)) == expected
