"""The samples of the guide for contributors, each against an oracle."""
import importlib
import inspect
import json
import re
import shutil
import sys
from pathlib import Path

import loops
import numpy as onp
import published
import pytest
import reference
import sample_family
import sample_objective
import sample_operator
from safetensors.numpy import load_file

import d2lbert as d2l
from d2lbert import hub, kernels
from d2lbert.bert_dataset import load_data
from d2lbert.machine.backend import autograd, gluon, np, npx
from d2lbert.pretrained.families.family import FAMILIES
from d2lbert.pretrained.folders import (
    PretrainedError,
    load_pretrained,
    save_pretrained,
)
from d2lbert.training import checkpoints, pretraining
from d2lbert.training.loop import Run
from d2lbert.training.run_folder import RunFolder
from d2lbert.training.settings import complete

# The way of a batch

GUIDE = Path(__file__).parents[2] / '.github' / 'CONTRIBUTING.md'


def code_of(name):
    """The code of a function, by its name below `d2lbert`."""
    path, found = 'd2lbert', None
    for part in name.split('.'):
        path = f'{path}.{part}'
        try:
            found = importlib.import_module(path)
        except ModuleNotFoundError:
            found = getattr(found, part)
    return inspect.unwrap(found).__code__


def test_a_batch_passes_every_breakpoint_of_the_guide(tmp_path):
    diagram = re.search('```text\n(.*?)```', GUIDE.read_text('utf-8'),
                        re.DOTALL).group(1)
    names = set(re.findall(r'(?<![\w.])[a-z_]+(?:\.\w+)+', diagram))
    assert len(names) > 20
    if not kernels.load():
        names.remove('kernels.fused.call')
    codes = {code_of(name): name for name in names}
    assert len(codes) == len(names)

    def note(frame, event, arg):
        if event == 'call':
            codes.pop(frame.f_code, None)
    sys.setprofile(note)
    try:
        batches, vocab = load_data(hub.sample_dir() / hub.TRAIN_FILE, 8, 32)
        net = d2l.BERTModel(len(vocab), 8, 8, 2, 1, 0.0, max_len=32)
        net.initialize()
        d2l.train_bert(batches, net, gluon.loss.SoftmaxCELoss(),
                       len(vocab), [npx.cpu()], 1, out=tmp_path / 'page')
        d2l.pretrain(**dict(SETTINGS, objective='mlm+nsp', num_steps=1),
                     devices='cpu', out=tmp_path / 'run')
    finally:
        sys.setprofile(None)
    assert not codes


# The objective

SETTINGS = dict(objective='mlm', corpus='sample', batch_size=40, max_len=32,
                num_hiddens=8, ffn_num_hiddens=8, num_layers=1, num_steps=4,
                seed=1)


def prepared(devices='cpu', **keywords):
    return loops.prepared(sample_objective.make_objective,
                          complete(dict(SETTINGS, **keywords)), devices)


def test_losses_of_the_objective_are_its_equations():
    run = prepared(dropout=0.0)
    batch = next(run.batches())
    ((mlm_l, count), (z_l, z_count)), = run.objective.shard_losses(
        run.net, batch, [npx.cpu()])
    assert count == z_count == batch.mlm_weights_X.sum()
    _, logits, _ = reference.bert(
        reference.parameters(run.net), 2, batch.tokens_X,
        onp.zeros_like(batch.tokens_X), batch.valid_lens_x,
        batch.pred_positions_X)
    masked = batch.mlm_weights_X > 0
    log_z = onp.log(onp.exp(logits[masked]).sum(-1))
    right = logits[masked, batch.mlm_Y[masked]]
    assert float(mlm_l) == pytest.approx(onp.mean(log_z - right), rel=1e-5)
    assert float(z_l) == pytest.approx(onp.mean(log_z ** 2), rel=1e-5)


def gradients(devices='cpu', **keywords):
    """Losses and gradients of a first batch."""
    run = prepared(devices, dropout=0.0, **keywords)
    losses = run.updater.totals(run.updater.gradients(next(run.batches())))
    run.updater.trainer.allreduce_grads()
    return losses, {name: param.grad(run.devices[0]).asnumpy()
                    for name, param in run.net.collect_params().items()
                    if param.grad_req != 'null'}


def test_parts_and_devices_give_the_gradients_of_the_whole_batch():
    losses, parts = gradients('cpu:3', accumulate=2)
    expected, whole = gradients()
    onp.testing.assert_allclose(losses, expected, rtol=1e-5)
    for ours, theirs in zip(parts.values(), whole.values()):
        onp.testing.assert_allclose(ours, theirs, rtol=1e-4,
                                    atol=1e-6 * abs(theirs).max() + 1e-8)


def test_a_resumed_run_of_the_objective_is_the_run_that_never_stopped(
        tmp_path):
    run = Run(sample_objective.make_objective, complete(dict(
        SETTINGS, dropout=0.3, save_every=1, keep=0)), 'cpu')
    out = run.carry_out(RunFolder.create, tmp_path / 'run')
    again = tmp_path / 'again'
    shutil.copytree(out, again)
    for path in (*checkpoints.all_of(again)[2:], again / 'losses.csv',
                 again / 'model.params'):
        path.unlink()
    pretraining.reopen_run(again, {}, 'cpu', run_type=(
        pretraining.PRETRAINING._replace(
            make_objective=sample_objective.make_objective))).carry_out()
    assert loops.result(again) == loops.result(out)
    assert (out / 'losses.csv').read_text().startswith(
        'step,mlm_loss,z_loss,')


# The operator

def rms_norm(X, gamma, dY, eps):
    """Output, and gradients of X and gamma, by float64."""
    X, gamma, dY = (array.astype('float64') for array in (X, gamma, dY))
    scale = 1 / onp.sqrt((X ** 2).mean(-1, keepdims=True) + eps)
    hat, dhat = X * scale, dY * gamma
    return (hat * gamma,
            scale * (dhat - hat * (dhat * hat).mean(-1, keepdims=True)),
            (dY * hat).reshape(-1, X.shape[-1]).sum(0))


def check_operator(operator, shape, draw):
    """Compare an operator with float64, for one and for added gradients."""
    X, gamma, dY = draw(*shape), draw(shape[-1]), draw(*shape)
    arrays = [np.array(X), np.array(gamma)]
    for array in arrays:
        array.attach_grad('add')
    for _ in range(2):
        with autograd.record():
            Y = operator(*arrays, eps=0.1)
        Y.backward(np.array(dY))
    expected = rms_norm(X, gamma, dY, 0.1)
    for ours, theirs, times in zip(
            (Y, arrays[0].grad, arrays[1].grad), expected, (1, 2, 2)):
        onp.testing.assert_allclose(ours.asnumpy(), times * theirs, 1e-4,
                                    1e-5)


SHAPES = [(5, 16), (2, 3, 19), (700, 128)]


@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_the_definition_of_the_operator_is_the_equation(shape, draw):
    check_operator(sample_operator.rms_norm, shape, draw)


@pytest.mark.slow       # compiles for half a minute
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_the_compiled_operator_is_the_equation(shape, draw, compiler,
                                               monkeypatch):
    assert sample_operator.LIBRARY.get(), sample_operator.LIBRARY.reason
    operator, taken = sample_operator.declare(), []
    call = sample_operator.fused.call

    def spy(name, *args, **kwargs):
        taken.append(name)
        return call(name, *args, **kwargs)
    monkeypatch.setattr(sample_operator.fused, 'call', spy)
    check_operator(operator, shape, draw)
    assert taken == ['rms_norm'] * 2
    monkeypatch.setattr(kernels, 'enabled', lambda *arrays: False)
    check_operator(operator, shape, draw)
    assert taken == ['rms_norm'] * 2


# The family

@pytest.fixture
def ernie(monkeypatch):
    monkeypatch.setitem(FAMILIES, 'ernie', sample_family.ERNIE)


CONFIG = dict(published.CONFIG, model_type='ernie', use_task_id=False,
              architectures=['ErnieForPreTraining'])


def folder(path, **fields):
    """Write a small ERNIE; returns its path and its tensors in BERT's names.
    """
    tensors = published.draw(published.CONFIG)
    return published.write(path, dict(CONFIG, **fields), {
        f'ernie.{name[5:]}' if name.startswith('bert.') else name: tensor
        for name, tensor in tensors.items()}), tensors


def test_a_folder_of_the_family_gives_the_numbers_of_its_equations(
        ernie, tmp_path):
    path, tensors = folder(tmp_path / 'x')
    net, _ = load_pretrained(path)
    assert net.pretrained.differences == ()
    rng, n = onp.random.RandomState(0), 7
    ids, segments = rng.randint(0, 23, (1, n)), rng.randint(0, 2, (1, n))
    found, = published.scores(net, ids, segments, onp.array([n]))
    hidden, pooled, mlm, nsp = published.forward(
        published.CONFIG, tensors, ids[0], segments[0])
    # The book's class 1 is "b follows a", which is class 0 of the folder
    for ours, theirs in zip(found, (hidden[-1], pooled, mlm, nsp[::-1])):
        onp.testing.assert_allclose(ours, theirs, 2e-5, 2e-5)


def test_an_export_of_the_family_has_its_names(ernie, tmp_path):
    path, _ = folder(tmp_path / 'x')
    save_pretrained(*load_pretrained(path), tmp_path / 'y')
    before, after = (load_file(str(tmp_path / name / 'model.safetensors'))
                     for name in 'xy')
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        onp.testing.assert_array_equal(tensor, after[name], name)
    config = json.loads((tmp_path / 'y' / 'config.json').read_text())
    assert config['model_type'] == 'ernie'
    assert config['architectures'] == ['ErnieForPreTraining']


def test_what_the_family_cannot_represent_is_refused(ernie, tmp_path):
    path, _ = folder(tmp_path / 'x', use_task_id=True)
    with pytest.raises(PretrainedError, match='use_task_id is True, .* '
                       'embeddings of tasks cannot be represented'):
        load_pretrained(path)
