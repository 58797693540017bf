"""Sentence order, and the structure of ALBERT, in runs of `pretrain`."""
import csv
import shutil

import loops
import numpy as onp
import pytest

import d2lbert as d2l
from d2lbert.training import pretraining
from d2lbert.training.checkpoints import all_of
from d2lbert.training.evaluation import evaluate_run
from d2lbert.training.settings import complete

TINY = dict(corpus='sample', batch_size=40, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=2, num_steps=4, seed=1,
            objective='mlm+sop')
ALBERT = dict(architecture='published', embedding_size=6, share_layers=True)


def prepared(**keywords):
    return loops.prepared(pretraining._make_objective,
                          complete(dict(TINY, **keywords)))


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """A finished run with its checkpoints."""
    return d2l.pretrain(**TINY, **ALBERT, dropout=0.3, eval_every=2,
                        dynamic=True, save_every=2, devices='cpu',
                        out=tmp_path_factory.mktemp('runs') / 'sop')


def test_a_resumed_run_is_the_run_that_never_stopped(run, tmp_path):
    again = tmp_path / 'again'
    shutil.copytree(run, again)
    for path in (all_of(again)[-1], again / 'model.params',
                 again / 'losses.csv'):
        path.unlink()
    d2l.pretrain(resume=again, devices='cpu')
    assert loops.result(again) == loops.result(run)


def test_what_it_prints_and_keeps_is_of_the_order(run):
    with open(run / 'losses.csv', newline='') as file:
        rows = list(csv.DictReader(file))
    assert {'sop_loss', 'sop', 'held_out_sop_loss',
            'held_out_sop_accuracy'} < set(rows[0])
    figures = evaluate_run(run, devices='cpu')
    onp.testing.assert_allclose(
        figures, [float(rows[-1][f'held_out_{name}'])
                  for name in figures._fields], rtol=1e-6)
    log = (run / 'log.txt').read_text()
    assert 'nsp' not in log.lower() and ', SOP loss 0.' in log
    assert f'; SOP loss {figures.sop_loss:.3f}, accuracy ' in log
    losses = [float(rows[-1][name]) for name in ('sop_loss', 'sop')]
    assert all(0.5 < loss < 1 for loss in losses)


def test_pairs_are_neighbours_in_training_and_in_held_out_text():
    objective = prepared(eval_every=4).objective
    for text, batches in (
            (objective.corpus.train,
             (batch for _, batch in objective.batches(0, (0, 0)))),
            (objective.corpus.valid, objective.held_out_batches(
                objective.corpus.valid, 40, 32))):
        lens, ends = onp.diff(text.sentences), text.paragraphs[1:]
        follows = onp.ones(len(lens), bool)
        follows[ends - 1] = False       # the last of a paragraph
        expected = lens[:-1][follows[:-1]] + lens[1:][follows[:-1]] + 3
        lens, labels = (onp.concatenate(column) for column in zip(*(
            (batch.valid_lens_x, batch.nsp_y) for batch in batches)))
        assert sorted(lens) == sorted(expected[expected <= 32])
        assert 0.3 < labels.mean() < 0.7


def test_layers_are_shared_and_embeddings_small(run):
    net, _ = d2l.load_run(run)
    assert len(net.encoder.blks) == 1 and net.encoder.blks.num_layers == 2
    assert net.encoder.token_embedding.weight.shape[1] == 6
    assert net.encoder.projection.weight.shape == (8, 6)
    assert net.config['family'] == 'albert'
    alone = prepared(share_layers=True).net
    assert len(alone.encoder.blks) == 1 and alone.encoder.projection is None
    groups = prepared(**dict(ALBERT, share_layers=False)).net
    assert len(groups.encoder.blks) == 2
    assert groups.config['num_groups'] == 2
