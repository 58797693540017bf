"""Runs of the objectives that predict whole texts, clm and denoise."""
import collections
import csv
import shutil
import types

import numpy as onp
import pytest
from loops import prepared as prepared_run
from loops import result, step
from whole_texts import TINY

import d2lbert as d2l
from d2lbert.machine.backend import np, npx
from d2lbert.objectives.generative import CLM
from d2lbert.training import checkpoints, pretraining
from d2lbert.training.evaluation import evaluate_run
from d2lbert.training.settings import complete


@pytest.fixture(params=['clm', 'denoise'])
def run(request):
    return request.getfixturevalue(f'{request.param}_run')


@pytest.mark.parametrize('at', [1, 2])
def test_a_resumed_run_is_the_run_that_never_stopped(run, at, tmp_path):
    again = tmp_path / 'again'
    shutil.copytree(run, again)
    for path in (*checkpoints.all_of(again)[at:], again / 'model.params',
                 again / 'losses.csv'):
        path.unlink()
    d2l.pretrain(resume=again, devices='cpu')
    assert result(again) == result(run)


def test_evaluating_a_run_repeats_its_last_held_out_figures(run):
    *_, last = csv.DictReader((run / 'losses.csv').open())
    figures = evaluate_run(run, devices='cpu')
    assert 'perplexity' in figures._fields
    onp.testing.assert_allclose(
        figures, [float(last[f'held_out_{name}'])
                  for name in figures._fields], rtol=1e-6)


@pytest.mark.parametrize('unk, share, accuracy', [
    (None, 0.25, 2 / 3), (1, 0.5, 0.5), (2, 0.25, 1 / 3)])
def test_unknown_tokens_are_those_of_the_vocabulary(unk, share, accuracy):
    class Scored(CLM):
        """The scores and labels of a batch, as they are."""

        @staticmethod
        def states(net, shard, device):
            return shard.scores, shard.labels
    Batch = collections.namedtuple('Batch', 'scores labels')
    # The labels 0, 1, 1 and 2: the second and the last are ranked first
    batch = Batch(np.array([[0, 2, 1], [0, 2, 1], [3, 2, 1], [0, 1, 2]]),
                  onp.array([0, 1, 1, 2]))
    net = types.SimpleNamespace(
        mlm=types.SimpleNamespace(mlp=lambda X: X),
        vocab=None if unk is None else types.SimpleNamespace(unk=unk))
    figures = Scored.figures(net, [batch], [npx.cpu()])
    assert figures.accuracy == 0.5 and figures.unknown_share == share
    assert figures.known_accuracy == pytest.approx(accuracy)


@pytest.mark.parametrize('settings', TINY.values(), ids=TINY)
def test_a_batch_in_parts_and_on_devices_gives_the_same_gradients(settings):
    found = []
    for devices, accumulate in ('cpu', 1), ('cpu', 4), ('cpu:2', 1):
        one = prepared_run(
            pretraining._make_objective, complete(dict(
                settings, dropout=0.0, accumulate=accumulate,
                eval_every=None)),
            devices)
        found.append([step(one), one.net.encoder.token_embedding.weight.data(
            one.devices[0]).asnumpy()])
    for other in found[1:]:
        onp.testing.assert_allclose(other[0], found[0][0], rtol=1e-5)
        onp.testing.assert_allclose(other[1], found[0][1], atol=2e-4)


@pytest.mark.parametrize('more', [
    dict(TINY['clm']), dict(TINY['denoise'], noise='masking')],
    ids=['clm', 'denoise'])
def test_it_learns(more):
    one = prepared_run(pretraining._make_objective, complete(dict(
        more, num_hiddens=32, lr=0.02, num_steps=20, dropout=0.0,
        eval_every=None)), 'cpu')
    losses = [step(one)[0] for _ in range(20)]
    assert losses[-1] < losses[0] - 0.8
