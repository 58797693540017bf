"""Settings by which a run may learn more, each against what it means."""
import json

import loops
import numpy as onp
import pytest
import reference
from loops import step

import d2lbert as d2l
from d2lbert.nn import steps
from d2lbert.objectives.initializers import topic_vectors
from d2lbert.texts.examples import num_predictions
from d2lbert.training import checkpoints, pretraining, updater
from d2lbert.training.checkpoints import CheckpointError
from d2lbert.training.evaluation import evaluate_run
from d2lbert.training.schedule import grown_batch_size
from d2lbert.training.settings import complete

TINY = dict(corpus='sample', batch_size=100, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=2, num_steps=6, seed=1,
            dropout=0.0)


def prepared(**keywords):
    return loops.prepared(pretraining._make_objective,
                          complete(dict(TINY, **keywords)))


def arrays(net):
    return {name: param.data().asnumpy() for name, param
            in net._collect_params_with_prefix().items()}


# What is minimized

@pytest.mark.parametrize('accumulate', [1, 2])
def test_a_loss_counts_by_its_weight_and_is_told_without(accumulate):
    def found(weight):
        run = prepared(nsp_weight=weight, accumulate=accumulate)
        batch = next(run.batches())
        losses = run.updater.totals(run.updater.gradients(batch))
        return losses, {name: param.grad().asnumpy() for name, param
                        in run.net._collect_params_with_prefix().items()}
    (losses, mlm), (_, both), (told, much) = map(found, (0, 1, 3))
    assert told == losses
    for name, grad in mlm.items():
        if name.endswith('W_k.bias'):
            # What is added to all keys moves no share of attention: there
            # is nothing but rounding
            assert abs(much[name]).max() < 1e-7
            continue
        onp.testing.assert_allclose(
            much[name], grad + 3 * (both[name] - grad), rtol=1e-3,
            atol=3e-6 * abs(much[name]).max() + 1e-8, err_msg=name)
    assert abs(mlm['nsp.output.weight']).max() == 0


@pytest.mark.parametrize('share', [0.05, 0.15, 0.4])
@pytest.mark.parametrize('objective', ['mlm+nsp', 'mlm', 'span'])
def test_so_many_tokens_are_hidden_and_the_held_out_ones_stay(objective,
                                                              share):
    run = prepared(objective=objective, mask_share=share, eval_every=1)
    hidden = tokens = 0
    for _, batch in run.objective.batches(0, (0, 0)):
        hidden += batch.mlm_weights_X.sum()
        tokens += batch.valid_lens_x.sum()
        if objective == 'mlm+nsp':
            assert batch.mlm_Y.shape[1] == num_predictions(32, share)
    assert hidden / tokens == pytest.approx(share, rel=0.1)
    plain = prepared(objective=objective, eval_every=1)
    for ours, others in zip(*(
            run.objective.held_out_batches(run.objective.corpus.valid, 50, 32)
            for run in (run, plain))):
        for a, b in zip(ours, others):
            onp.testing.assert_array_equal(a, b)


# The weights at first

@pytest.mark.parametrize('others', [
    {}, dict(pre_norm=True), dict(objective='span'), dict(objective='denoise'),
    dict(objective='mlm', architecture='distilbert'),
    dict(architecture='published', embedding_size=16, share_layers=True)],
    ids=repr)
@pytest.mark.parametrize('initializer', ['mimetic', 'topical'])
def test_tokens_begin_by_looking_at_ones_like_themselves(initializer, others):
    H, heads = 64, 4
    net = prepared(initializer=initializer, num_hiddens=H, num_heads=heads,
                   ffn_num_hiddens=128, max_len=200, **others).net
    first = arrays(net)
    wide = {name: values.std() for name, values in first.items()}
    X = onp.random.RandomState(2).normal(size=(500, H))
    X /= X.std(1, keepdims=True)
    # One class of weights each; how wide is written here a second time
    seen = []
    for name, values in first.items():
        if name.endswith('W_k.weight'):
            W = first[name.replace('W_k', 'W_q')]
            assert (values == W).all(), name
            Q = (X @ W.T).reshape(500, heads, -1)
            scores = (Q ** 2).sum(-1) / (H / heads) ** 0.5
            assert scores.mean() == pytest.approx(3.5, rel=0.15), name
            seen.append('scores')
        elif name.endswith(('W_v.weight', 'W_o.weight', 'dense1.weight',
                            'dense2.weight')):
            assert wide[name] == pytest.approx(
                0.02 * (768 / H) ** 0.5, rel=0.15), name
            seen.append('matrices')
        elif name.endswith(('token_embedding.weight', 'projection.weight')):
            assert wide[name] == pytest.approx(0.02, rel=0.15), name
            seen.append('tokens')
        elif name.endswith(('encoder.pos_embedding',
                            'segment_embedding.weight')):
            assert wide[name] == pytest.approx(0.01, rel=0.3), name
            seen.append('places')
    assert set(seen) == {'scores', 'matrices', 'tokens', 'places'}


@pytest.mark.parametrize('others', [
    {}, dict(objective='denoise'),
    dict(architecture='published', embedding_size=16)], ids=repr)
def test_tokens_begin_near_those_of_the_same_topics(others):
    run, plain = (prepared(initializer=initializer, num_hiddens=64, **others)
                  for initializer in ('topical', 'mimetic'))
    weight, other = (one.net.encoder.token_embedding.weight.data(
        ).asnumpy() for one in (run, plain))
    text = run.objective.corpus.train
    tokens, vectors = topic_vectors(text, weight.shape[1])
    assert 0.5 < len(tokens) / len(weight) < 1
    unit = weight / onp.linalg.norm(weight, axis=1, keepdims=True)
    assert ((unit[tokens] * vectors).sum(1) > 0.9).all()
    rest = onp.setdiff1d(onp.arange(len(weight)), tokens)
    onp.testing.assert_array_equal(weight[rest], other[rest])


def test_queries_and_keys_are_alike_at_first_alone():
    run = prepared(initializer='mimetic')
    step(run)
    weights = arrays(run.net)
    assert (weights['encoder.blks.0.attention.W_q.weight']
            != weights['encoder.blks.0.attention.W_k.weight']).any()


# The model

@pytest.mark.parametrize('levers', [
    dict(tie_embeddings=True), dict(pre_norm=True),
    dict(tie_embeddings=True, pre_norm=True)], ids=repr)
def test_the_model_is_the_one_that_was_asked_for(levers, path):
    run = prepared(**levers)
    plain = prepared()
    table = run.net.encoder.token_embedding.weight
    tied = 'tie_embeddings' in levers
    assert (run.net.mlm.mlp[-1].weight is table) == tied
    more = 2 * 8 * ('pre_norm' in levers) - table.shape[0] * 8 * tied
    assert (steps.num_parameters(run.net)
            == steps.num_parameters(plain.net) + more)
    for _ in range(2):
        step(run)
    batch = next(run.batches())
    onp.testing.assert_allclose(
        run.updater.totals(run.updater.gradients(batch)),
        reference.losses(reference.parameters(run.net), 2, batch), rtol=1e-5)


@pytest.mark.parametrize('architecture', ['book', 'published'])
def test_a_run_of_another_model_is_loaded_as_that(architecture, tmp_path):
    out = d2l.pretrain(**TINY, architecture=architecture, devices='cpu',
                       tie_embeddings=True, pre_norm=True,
                       out=tmp_path / 'run')
    net, _ = d2l.load_run(out)
    assert net.config['pre_norm'] and net.config['tie_embeddings']
    assert d2l.load_run(out)[0].encoder.norm is not None


# Batches that grow

@pytest.mark.parametrize('whole, sizes', [
    (64, (8, 16, 32)), (100, (13, 25, 50)), (3, (1, 1, 2)), (1, (1, 1, 1))])
def test_a_batch_is_an_eighth_a_quarter_and_half(whole, sizes):
    for growing in (0.3, 0.9):
        shares = [growing * k / 300 for k in (0, 99, 101, 199, 201, 299)]
        assert [grown_batch_size(whole, growing, share)
                for share in shares] == [
            size for size in sizes for _ in range(2)]
        assert grown_batch_size(whole, growing, growing) == whole
    assert grown_batch_size(whole, 0.0, 0.0) == whole
    # 3 times this quotient is rounded up to 3
    assert grown_batch_size(whole, 0.17, onp.nextafter(0.17, 0)) == sizes[-1]


def test_batches_grow_in_thirds_and_no_example_is_lost():
    run = prepared(num_steps=30, grow_batch=0.6, batch_size=40)
    batches, found = run.batches(), []
    for _ in range(30):
        found.append(next(batches))
        run.history.add(lambda: (0.0, 0.0), 1)      # a step was taken
    sizes = [len(batch.tokens_X) for batch in found]
    # Steps 1 to 6, to 12 and to 18; the last part of a batch may be smaller
    assert (sizes[:6], sizes[6:12], sizes[12:18]) == (
        [5] * 6, [10] * 6, [20, 10, 20, 20, 20, 20])
    assert {40} <= set(sizes[18:]) and max(sizes) == 40
    whole = prepared(num_steps=30, batch_size=40)
    expected = (row for batch in whole.batches()
                for row in batch.tokens_X.tolist())
    for batch in found:
        for row in batch.tokens_X.tolist():
            assert row == next(expected)


# The average

def test_the_average_is_scored_and_kept_and_training_goes_its_way(
        monkeypatch, tmp_path):
    weights, update = [], updater.Updater.update

    def note(self, step):
        if step == 1:
            weights.append(arrays(self.net))
        update(self, step)
        weights.append(arrays(self.net))
    monkeypatch.setattr(updater.Updater, 'update', note)
    settings = dict(TINY, devices='cpu', eval_every=2, dropout=0.5)
    runs = [d2l.pretrain(**settings, average=average,
                         out=tmp_path / f'{average}')
            for average in (0.0, 0.6)]
    plain, weights = weights[:7], weights[7:]
    for ours, others in zip(weights, plain):
        for name, weight in others.items():
            onp.testing.assert_array_equal(ours[name], weight)
    expected = {name: weight.astype('float64')
                for name, weight in weights[0].items()}
    for k, now in enumerate(weights[1:], 1):
        decay = min(0.6, (1 + k) / (10 + k))
        expected = {name: decay * average + (1 - decay) * now[name]
                    for name, average in expected.items()}
    last, averaged = (d2l.load_run(run)[0] for run in runs)
    for name, value in arrays(averaged).items():
        onp.testing.assert_allclose(value, expected[name], rtol=1e-5,
                                    atol=1e-7, err_msg=name)
    for name, value in arrays(last).items():
        onp.testing.assert_array_equal(value, plain[-1][name])
    # What was scored last is what was kept
    for run in runs:
        with open(run / 'losses.csv') as file:
            *_, row = file
        figures = evaluate_run(run)
        assert float(row.split(',')[5]) == pytest.approx(figures.mlm_loss,
                                                         rel=1e-6)


def test_frozen_and_tied_weights_are_averaged_once_or_not_at_all():
    run = prepared(objective='mlm', tie_embeddings=True, average=0.5)
    names = [name[len('average/'):] for name in run.average.arrays()]
    assert not any(name.startswith(('hidden', 'nsp')) for name in names)
    assert len(names) + 4 + 1 == len(arrays(run.net))


def test_an_average_on_several_devices_is_that_of_one():
    found = []
    for devices in ('cpu', 'cpu:2'):
        run = loops.prepared(pretraining._make_objective, complete(dict(
            TINY, average=0.6, lr=1e-4)), devices)
        step(run)
        with run.average.applied():
            found.append([value.asnumpy() for value in
                          run.net.hidden.weight.list_data()])
    onp.testing.assert_array_equal(*found[1])
    onp.testing.assert_allclose(found[0][0], found[1][0], atol=2e-6)


def test_a_checkpoint_without_its_average_is_damaged(tmp_path):
    run = d2l.pretrain(**TINY, average=0.5, save_every=1, devices='cpu',
                       out=tmp_path / 'run')
    path = checkpoints.all_of(run)[-1]
    with onp.load(path) as file:
        kept = {name: array for name, array in file.items()
                if name != 'average/hidden.weight'}
    onp.savez(path, **kept)
    with pytest.raises(CheckpointError, match=(
            r'lacks the average of hidden.weight, of the shape \(.*\): resume '
            'from the checkpoint before it with --resume ')):
        d2l.pretrain(resume=path, num_steps=7)
    assert json.loads((run / 'config.json').read_text())['training'][
        'average'] == 0.5


@pytest.mark.parametrize('objective', ['mlm', 'span'])
def test_the_weights_of_a_checkpoint_are_its_averages(objective, tmp_path):
    run = d2l.pretrain(**TINY, objective=objective, average=0.6, save_every=3,
                       devices='cpu', out=tmp_path / 'run')
    path = checkpoints.all_of(run)[0]
    net = d2l.load_run(run)[0]
    assert checkpoints.load_weights(path, net) == 3
    with onp.load(path) as file:
        prefix = 'average/' + 'bert.' * any(
            name.startswith('average/bert.') for name in file)
        assert ('bert' in prefix) == (objective == 'span')
        for name, value in arrays(net).items():
            # Of a weight with two names one has the average
            if prefix + name in file:
                onp.testing.assert_array_equal(value, file[prefix + name])
        name = f'{prefix}encoder.token_embedding.weight'
        assert (file[name] != file[name.replace('average', 'param')]).any()
