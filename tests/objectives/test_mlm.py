"""Objectives without pairs: losses, gradients, runs, figures."""
import csv
import json
import math
import shutil

import loops
import numpy as onp
import pytest
import reference
from loops import step

import d2lbert as d2l
from d2lbert.corpus.masking import MaskedRows
from d2lbert.machine.backend import autograd, np, npx
from d2lbert.nn.steps import shards
from d2lbert.objectives.mlm import (
    MLM,
    POSITION_UNITS,
    BERTWithBoundary,
    MLMAndSBO,
)
from d2lbert.text import RESERVED, Vocab
from d2lbert.training import checkpoints, pretraining
from d2lbert.training.evaluation import evaluate_run
from d2lbert.training.saved_runs import RunError
from d2lbert.training.settings import complete

V, H, N, T, P = 25, 6, 2, 12, 5
TINY = dict(corpus='sample', batch_size=40, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, num_steps=5, seed=1)
OBJECTIVES = ['mlm', 'span']


def make_net(objective, **keywords):
    """A net whose weights are drawn anew, the same each time."""
    bert = d2l.BERTModel(V, H, 8, N, 1, 0.0, max_len=T, **keywords)
    bert.vocab = Vocab([[f'w{k}' for k in range(V - 5)]],
                       reserved_tokens=RESERVED)
    net = objective.net_to_train(bert)
    net.initialize()
    rng = onp.random.RandomState(0)
    for _, param in sorted(net._collect_params_with_prefix().items()):
        param.set_data(np.array(rng.normal(0, 0.4, param.shape)))
    return net


def make_batch(seed=0, B=5, hidden=True):
    """A `MaskedRows` of spans of one to three tokens; two rows have none."""
    rng = onp.random.RandomState(seed)
    lens = rng.randint(8, T + 1, B)
    columns = [onp.zeros((B, P), 'int32') for _ in range(4)]
    weights = onp.zeros((B, P), 'float32')
    for b in range(B if hidden else 0):
        spans = [(1, rng.randint(2, 4)), (5, rng.randint(6, 8))][:b % 3]
        preds = [(i, begin - 1, end) for begin, end in spans
                 for i in range(begin, end)]
        for k, (i, left, right) in enumerate(preds):
            for column, value in zip(columns, (
                    i, rng.randint(V), left, right)):
                column[b, k] = value
            weights[b, k] = 1
    positions, labels, left, right = columns
    return MaskedRows(rng.randint(0, V, (B, T)).astype('int32'),
                  lens.astype('float32'), positions, weights, labels, left,
                  right)


# The oracle: float64, a word after another

def gelu(X):
    return onp.vectorize(lambda x: x * (1 + math.erf(x / 2 ** 0.5)) / 2)(X)


def boundary_scores(params, X, k, row, batch):
    """Scores (V,) of the k-th prediction of a row, whose X is (T, H)."""
    left, right, i = (column[row, k] for column in (
        batch.left_X, batch.right_X, batch.pred_positions_X))
    head = reference.under(params, 'boundary')
    # i - s + 1 counts from 1, rows of a table from 0
    y = onp.concatenate([X[left], X[right],
                         head['positions.weight'][i - (left + 1)]])[None]
    for layer in ('0', '2'):
        y = reference.layer_norm(
            reference.under(head, f'mlp.{int(layer) + 1}'),
            gelu(reference.dense(reference.under(head, f'mlp.{layer}'), y)))
    embedding = params['bert.encoder.token_embedding.weight']
    return (y @ embedding.T)[0] + head['bias']


def expected_scores(params, batch):
    """[(label, MLM scores, SBO scores or None)] of all hidden words."""
    bert = reference.under(params, 'bert') or params
    X, mlm_Y_hat, _ = reference.bert(
        bert, N, batch.tokens_X, onp.zeros_like(batch.tokens_X),
        batch.valid_lens_x, batch.pred_positions_X)
    return [(batch.mlm_Y[row, k], mlm_Y_hat[row, k],
             None if bert is params else boundary_scores(
                 params, X[row], k, row, batch))
            for row, k in zip(*onp.nonzero(batch.mlm_weights_X))]


def expected_losses(params, batch):
    scored = expected_scores(params, batch)
    return [onp.mean([reference.cross_entropy(scores[j], scores[0])
                      for scores in scored])
            for j in (1, 2) if scored[0][j] is not None]


def losses_of(objective, net, batch, devices=None):
    (shard,) = objective.shard_losses(net, batch, devices or [npx.cpu()])
    return [loss for loss, _ in shard], [count for _, count in shard]


@pytest.mark.parametrize('objective', [MLM, MLMAndSBO])
@pytest.mark.parametrize('keywords', [{}, dict(embedding_size=4)])
def test_losses_are_the_equations(objective, keywords, path):
    net, batch = make_net(objective, **keywords), make_batch()
    losses, counts = losses_of(objective, net, batch)
    assert counts == [batch.mlm_weights_X.sum()] * len(losses)
    assert counts == list(objective.counts(batch))
    assert len(losses) == len(objective.losses)
    onp.testing.assert_allclose(
        [float(loss) for loss in losses],
        expected_losses(reference.parameters(net), batch), rtol=1e-5)


def test_the_boundary_head_is_as_published():
    net = make_net(MLMAndSBO)
    shapes = {name: param.shape for name, param in
              net.boundary._collect_params_with_prefix().items()}
    assert POSITION_UNITS == 200
    assert shapes == {
        'positions.weight': (10, 200), 'bias': (V,),
        'mlp.0.weight': (H, 2 * H + 200), 'mlp.0.bias': (H,),
        'mlp.1.gamma': (H,), 'mlp.1.beta': (H,),
        'mlp.2.weight': (H, H), 'mlp.2.bias': (H,),
        'mlp.3.gamma': (H,), 'mlp.3.beta': (H,)}


@pytest.mark.parametrize('objective', [MLM, MLMAndSBO])
@pytest.mark.parametrize('tied', [False, True])
def test_gradients_are_finite_differences(objective, tied, path):
    net, batch = make_net(objective, tie_embeddings=tied), make_batch(1, B=3)
    with autograd.record():
        losses, _ = losses_of(objective, net, batch)
        total = sum(losses[1:], losses[0])
    total.backward()
    params = reference.parameters(net)
    table = 'encoder.token_embedding.weight'
    decoder = 'mlm.mlp.2.weight'
    if objective is MLMAndSBO:
        table, decoder = f'bert.{table}', f'bert.{decoder}'
    if tied:
        params[decoder] = params[table]
    rng, eps = onp.random.RandomState(5), 1e-5
    for name, param in net._collect_params_with_prefix().items():
        if param.grad_req == 'null' or tied and name == decoder:
            continue
        grad = param.grad().asnumpy()
        # The largest, and another one
        places = {int(abs(grad).argmax()), rng.randint(grad.size)}
        for place in places:
            at = onp.unravel_index(place, grad.shape)
            value, found = params[name][at], []
            for change in (eps, -eps):
                params[name][at] = value + change
                found.append(sum(expected_losses(params, batch)))
            params[name][at] = value
            expected = (found[0] - found[1]) / (2 * eps)
            assert grad[at] == pytest.approx(expected, rel=2e-3, abs=2e-5), (
                name, at)


@pytest.mark.parametrize('objective', [MLM, MLMAndSBO])
def test_nothing_hidden_is_no_loss_and_no_gradient(objective):
    net, batch = make_net(objective), make_batch(hidden=False)
    with autograd.record():
        losses, counts = losses_of(objective, net, batch)
        total = sum(losses[1:], losses[0])
    total.backward()
    assert counts == [0] * len(losses) and float(total) == 0
    for name, param in net._collect_params_with_prefix().items():
        if param.grad_req != 'null':
            assert not param.grad().asnumpy().any(), name
            # Gluon refuses to update what was not reached
            assert param.data()._fresh_grad


def test_a_batch_is_dealt_out_once():
    batch = make_batch(B=5)
    dealt = shards(batch, [npx.cpu(0), npx.cpu(1), npx.cpu(2)])
    assert [device for _, device in dealt] == [npx.cpu(k) for k in range(3)]
    for columns in zip(batch, *(part for part, _ in dealt)):
        onp.testing.assert_array_equal(onp.concatenate(columns[1:]),
                                       columns[0])
    assert len(shards(make_batch(B=1), [npx.cpu(0), npx.cpu(1)])) == 1


@pytest.mark.parametrize('objective', [MLM, MLMAndSBO])
def test_figures_are_those_of_float64(objective, path):
    net = make_net(objective)
    batches = [make_batch(seed) for seed in (3, 4)]
    batches.append(make_batch(5, hidden=False))
    figures = objective.figures(net, batches, [npx.cpu()])
    scored = [entry for batch in batches[:2] for entry in expected_scores(
        reference.parameters(net), batch)]
    for j, name in ((1, 'mlm'), (2, 'sbo')):
        if scored[0][j] is None:
            assert objective is MLM and not hasattr(figures, 'sbo_loss')
            continue
        assert getattr(figures, f'{name}_loss') == pytest.approx(onp.mean(
            [reference.cross_entropy(scores[j], scores[0])
             for scores in scored]), rel=1e-5)
        assert getattr(figures, f'{name}_accuracy') == pytest.approx(
            onp.mean([scores[j].argmax() == scores[0] for scores in scored]))
    known = [scores for scores in scored if scores[0] != 0]
    assert figures.unknown_share == pytest.approx(
        1 - len(known) / len(scored))
    assert figures.known_accuracy == pytest.approx(
        onp.mean([scores[1].argmax() == scores[0] for scores in known]))
    assert figures.perplexity == pytest.approx(math.exp(figures.mlm_loss))
    with pytest.raises(ValueError, match='no word of the text was masked'):
        objective.figures(net, batches[2:], [npx.cpu()])


# Runs

def prepared(objective, devices='cpu', **keywords):
    return loops.prepared(
        pretraining._make_objective,
        complete(dict(TINY, objective=objective, **keywords)), devices)


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_only_what_next_sentences_need_stays_as_it_was(objective):
    run = prepared(objective, weight_decay=0.1, accumulate=2)
    before = reference.parameters(run.net)
    for _ in range(2):
        step(run)
    names = set()
    for name, value in reference.parameters(run.net).items():
        same = (value == before[name]).all()
        of_nsp = name.replace('bert.', '').startswith(('hidden.', 'nsp.'))
        assert same == of_nsp, name
        names.add(name)
    assert sum('hidden' in name or 'nsp' in name for name in names) == 4


def gradients(objective, devices='cpu', **keywords):
    run = prepared(objective, devices, dropout=0.0, **keywords)
    batch = next(run.batches())
    losses = run.updater.totals(run.updater.gradients(batch))
    run.updater.trainer.allreduce_grads()
    return losses, {
        name: param.grad(run.devices[0]).asnumpy() for name, param
        in run.net._collect_params_with_prefix().items()
        if param.grad_req != 'null'}


@pytest.mark.parametrize('objective', OBJECTIVES)
@pytest.mark.parametrize('devices, accumulate, batch_size', [
    ('cpu', 4, 40), ('cpu:3', 1, 40), ('cpu:2', 2, 40), ('cpu:3', 2, 2)])
def test_a_batch_in_parts_gives_the_gradients_of_the_whole(
        objective, devices, accumulate, batch_size):
    assert_equal_to_rounding(
        gradients(objective, devices, accumulate=accumulate,
                  batch_size=batch_size),
        gradients(objective, batch_size=batch_size))


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_gradients_of_a_tied_table_are_added_up(objective):
    published = dict(architecture='published')
    assert_equal_to_rounding(
        gradients(objective, 'cpu:2', accumulate=4, **published),
        gradients(objective, **published))


def assert_equal_to_rounding(parts, whole):
    onp.testing.assert_allclose(parts[0], whole[0], rtol=1e-5)
    assert parts[1].keys() == whole[1].keys()
    for name, grad in whole[1].items():
        onp.testing.assert_allclose(parts[1][name], grad, rtol=1e-4,
                                    atol=1e-6 * abs(grad).max() + 1e-8,
                                    err_msg=name)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """A finished run of each objective, with all its checkpoints."""
    found = {}
    for objective in OBJECTIVES:
        found[objective] = d2l.pretrain(
            **TINY, objective=objective, dropout=0.3, accumulate=2,
            eval_every=2, weight_decay=0.1, clip=0.5, devices='cpu',
            save_every=1, keep=0,
            out=tmp_path_factory.mktemp('runs') / objective)
    return found


def result(run):
    return {path.name: path.read_bytes() for path in run.iterdir()
            if path.suffix == '.params' or path.name == 'losses.csv'}


@pytest.mark.parametrize('objective', OBJECTIVES)
@pytest.mark.parametrize('at', [1, 4])
def test_a_resumed_run_is_the_run_that_never_stopped(runs, objective, at,
                                                     tmp_path):
    run, again = runs[objective], tmp_path / 'again'
    shutil.copytree(run, again)
    for path in (*checkpoints.all_of(again)[at:],
                 *again.glob('*.params'), again / 'losses.csv'):
        path.unlink()
    d2l.pretrain(resume=again, devices='cpu')
    assert result(again) == result(run)
    assert set(result(run)) == {'losses.csv', 'model.params'} | (
        {'boundary.params'} if objective == 'span' else set())
    with pytest.raises(ValueError, match='objective cannot be changed'):
        d2l.pretrain(resume=again, devices='cpu', objective='mlm+nsp')


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_evaluating_a_run_repeats_its_last_held_out_figures(runs, objective):
    run = runs[objective]
    with open(run / 'losses.csv', newline='') as file:
        rows = list(csv.DictReader(file))
    figures = evaluate_run(run, devices='cpu')
    assert [row['step'] for row in rows if row['held_out_mlm_loss']] == [
        '2', '4', '5']
    onp.testing.assert_allclose(
        figures, [float(rows[-1][f'held_out_{name}'])
                  for name in figures._fields], rtol=1e-6)
    onp.testing.assert_allclose(figures, evaluate_run(run, devices='cpu:3'),
                                rtol=1e-5)
    other = evaluate_run(run, 'sample', devices='cpu')
    assert other.mlm_loss != figures.mlm_loss


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_a_run_folder_holds_the_model_as_any_other(runs, objective):
    net, vocab = d2l.load_run(runs[objective])
    assert type(net) is d2l.BERTModel
    config = json.loads((runs[objective] / 'config.json').read_text())
    assert config['training']['objective'] == objective
    assert net.config['vocab_size'] == len(vocab)
    assert d2l.get_bert_encoding(net, ['the', 'sea']).shape == (1, 4, 8)
    # All of it can be trained on
    assert all(param.grad_req == 'write'
               for param in net.collect_params().values())


@pytest.mark.parametrize('architecture', ['book', 'published'])
def test_a_boundary_head_has_the_width_of_the_embeddings(architecture,
                                                         tmp_path):
    run = d2l.pretrain(**TINY, objective='span', embedding_size=4,
                       architecture=architecture, eval_every=5,
                       devices='cpu', out=tmp_path / 'run')
    with open(run / 'losses.csv', newline='') as file:
        *_, last = csv.DictReader(file)
    assert math.isfinite(float(last['sbo_loss']))
    figures = evaluate_run(run, devices='cpu')
    assert figures.sbo_loss == pytest.approx(
        float(last['held_out_sbo_loss']), rel=1e-6)


def test_a_boundary_head_that_is_lost_or_damaged_is_named(runs, tmp_path):
    run = tmp_path / 'run'
    shutil.copytree(runs['span'], run)
    path = run / 'boundary.params'
    content = path.read_bytes()
    for spoil, reason in (
            (lambda: path.write_bytes(content[:-20]), 'does not hold'),
            (path.unlink, 'cannot be read: No such file')):
        spoil()
        with pytest.raises(RunError, match=f'boundary.params {reason}'):
            evaluate_run(run, devices='cpu')
    d2l.load_run(run)


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_a_run_says_what_it_is(runs, objective):
    lines = (runs[objective] / 'log.txt').read_text().splitlines()
    assert lines[-3].startswith('MLM loss ') and 'NSP' not in lines[-3]
    assert ('SBO loss' in lines[-3]) == (objective == 'span')
    assert ' sequences/sec on ' in lines[-2]
    assert lines[0].startswith('step 2: held-out MLM loss ')
    assert 'nsp' not in (runs[objective] / 'losses.csv').read_text()


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_masks_are_drawn_anew_each_epoch_unless_told_not_to(objective):
    for dynamic in (None, False):
        given = {} if dynamic is None else dict(dynamic=dynamic)
        run = prepared(objective, **given)
        epochs = [sorted(row.tobytes() for _, batch in run.objective.batches(
            epoch, (0, 0)) for row in batch.tokens_X) for epoch in (0, 1)]
        assert (epochs[0] == epochs[1]) == (dynamic is False)


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_it_learns(objective):
    run = prepared(objective, num_hiddens=32, lr=0.02, batch_size=100,
                   num_steps=25, dropout=0.0)
    losses = [step(run) for _ in range(25)]
    for first, last in zip(losses[0], losses[-1]):
        assert last < first - 0.8


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_other_settings_hold_as_in_any_run(objective):
    settings = complete(dict(objective=objective, recipe='learn'))
    assert settings['fill_sequences'] and settings['dynamic']
    assert settings['num_steps'] == 4000
    with pytest.raises(ValueError, match='fill_sequences=False'):
        complete(dict(objective=objective, fill_sequences=False))
    assert complete(settings) == settings


def test_an_objective_that_is_unknown_is_refused():
    for name, kind in (('nsp', ValueError), (None, TypeError),
                       ([], TypeError)):
        with pytest.raises(kind, match='objective must be'):
            complete(dict(objective=name))


def test_two_workers_make_the_steps_of_one(tmp_path):
    settings = dict(TINY, objective='span', dropout=0.0, num_steps=3)
    losses = loops.by_one_and_two(settings, tmp_path)
    assert losses[0].shape == (3, 5)
    onp.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    nets = [reference.parameters(d2l.load_run(tmp_path / name)[0])
            for name in ('one', 'two')]
    for name, value in nets[0].items():
        if not name.endswith('W_k.bias'):   # its gradient is rounding
            onp.testing.assert_allclose(nets[1][name], value, atol=1e-3,
                                        err_msg=name)


def test_the_chapters_objective_is_the_default():
    settings = complete({})
    assert settings['objective'] == 'mlm+nsp'
    assert not settings['fill_sequences'] and not settings['dynamic']


def test_what_pieces_need_is_there(tmp_path):
    """The table of places within a span has a row for each piece."""
    pytest.importorskip('tokenizers')
    run = prepared('span', tokenizer='wordpiece', vocab_size=200)
    assert isinstance(run.net, BERTWithBoundary)
    assert run.net.boundary.positions.weight.shape == (30, 200)
    batch = next(run.batches())
    lengths = (batch.right_X - batch.left_X - 1)[batch.mlm_weights_X > 0]
    assert 10 < lengths.max() <= 30
    assert all(math.isfinite(loss) for loss in step(run))
