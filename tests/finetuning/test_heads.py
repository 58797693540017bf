"""Heads: losses by NumPy, gradients by differences, padding unseen."""
from pathlib import Path

import models
import numpy as onp
import pytest
from models import LABELS

from d2lbert.finetuning.batches import run_encoder
from d2lbert.machine.backend import autograd, mx, np, npx
from d2lbert.pretrained.folders import load_pretrained
from d2lbert.pretrained.heads import FineTuned

FIXTURES = Path(__file__).parents[1] / 'pretrained' / 'fixtures'

KINDS = list(LABELS)


def loss_of(net, batch):
    X, begins, lens = run_encoder(net, batch, npx.cpu())
    return net.losses(X, begins, lens, batch.labels_Y)


def rows_of(net, batch):
    """(T, H) of each text by itself, float64."""
    found = []
    for tokens, segments, length in zip(batch.tokens_X, batch.segments_X,
                                        batch.valid_lens_x):
        X = net.encoder(tokens[None, :length], segments[None, :length],
                        onp.array([length]))
        found.append(X[0].asnumpy().astype('f8'))
    return found


def dense(layer, X):
    return (X @ layer.weight.data().asnumpy().T.astype('f8')
            + layer.bias.data().asnumpy())


def share(scores, k):
    """-log of the share that a softmax of scores gives the k-th."""
    return onp.log(onp.exp(scores).sum()) - scores[k]


def test_a_text_is_scored_by_the_hidden_layer_over_its_first_token(path):
    net, batch = models.tuned('classify'), models.batch('classify')
    scores = [dense(net.output, onp.tanh(dense(net.hidden, X[0])))
              for X in rows_of(net, batch)]
    loss, count = loss_of(net, batch)
    assert count == 4
    onp.testing.assert_allclose(float(loss), onp.mean(
        [share(s, k) for s, k in zip(scores, batch.labels_Y)]), 1e-5)
    onp.testing.assert_allclose(
        net(*batch[:3]).asnumpy(), scores, 1e-4, 1e-5)


def test_the_loss_of_numbers_is_the_mean_square(path):
    net, batch = models.tuned('regress'), models.batch('regress')
    scores = [dense(net.output, onp.tanh(dense(net.hidden, X[0])))[0]
              for X in rows_of(net, batch)]
    loss, count = loss_of(net, batch)
    onp.testing.assert_allclose(
        float(loss), onp.mean((scores - batch.labels_Y) ** 2), 1e-5)


def test_the_loss_of_tags_is_a_mean_over_tagged_tokens(path):
    net, batch = models.tuned('tag'), models.batch('tag')
    losses = [share(scores, k) for X, labels in zip(rows_of(net, batch),
                                                    batch.labels_Y)
              for scores, k in zip(dense(net.output, X), labels) if k >= 0]
    loss, count = loss_of(net, batch)
    assert count == len(losses) == (batch.labels_Y >= 0).sum() > 0
    onp.testing.assert_allclose(float(loss), onp.mean(losses), 1e-5)


def test_the_loss_of_spans_is_the_mean_of_both_ends_within_each_text(path):
    net, batch = models.tuned('span'), models.batch('span')
    losses = [(share(scores[:, 0], a) + share(scores[:, 1], b)) / 2
              for scores, (a, b) in zip(
                  [dense(net.output, X) for X in rows_of(net, batch)],
                  batch.labels_Y)]
    loss, count = loss_of(net, batch)
    assert count == 4
    onp.testing.assert_allclose(float(loss), onp.mean(losses), 1e-5)


def test_a_batch_without_tags_has_no_loss_and_a_gradient_of_zero():
    net, batch = models.tuned('tag'), models.batch('tag')
    batch = batch._replace(labels_Y=onp.full_like(batch.labels_Y, -1))
    with autograd.record():
        loss, count = loss_of(net, batch)
    loss.backward()
    assert (float(loss), count) == (0, 0)
    for param in net.collect_params().values():
        assert not param.grad().asnumpy().any()


@pytest.mark.parametrize('kind', KINDS)
def test_gradients_are_those_of_finite_differences(kind):
    net, batch = models.tuned(kind, num_layers=1), models.batch(kind)
    with autograd.record():
        loss, _ = loss_of(net, batch)
    loss.backward()
    rng = onp.random.RandomState(3)
    for name, param in net._collect_params_with_prefix().items():
        gradient = param.grad().asnumpy().astype('f8')
        assert gradient.any() or name.endswith('W_k.bias'), name
        # Along the gradient and a random direction beside it
        for direction in (gradient, rng.normal(size=gradient.shape)):
            direction = direction / (onp.linalg.norm(direction) + 1e-30)
            before, step = param.data().asnumpy(), 2e-2
            ends = []
            for sign in (1, -1):
                param.set_data(np.array(before + sign * step * direction))
                ends.append(float(loss_of(net, batch)[0]))
            param.set_data(np.array(before))
            measured = (ends[0] - ends[1]) / (2 * step)
            expected = float((gradient * direction).sum())
            assert abs(measured - expected) < 2e-2 * (
                onp.linalg.norm(gradient) + 0.02), name


@pytest.mark.parametrize('kind', KINDS)
def test_padding_and_neighbours_change_nothing(kind, path):
    net, batch = models.tuned(kind), models.batch(kind)
    scores = net(*batch[:3]).asnumpy()
    wide = [onp.pad(X, ((0, 0), (0, 6)), constant_values=1)
            for X in batch[:2]]
    padded = net(*wide, batch.valid_lens_x).asnumpy()
    alone = [net(*[X[b:b + 1, :n] for X in batch[:2]],
                 batch.valid_lens_x[b:b + 1]).asnumpy()[0]
             for b, n in enumerate(batch.valid_lens_x)]
    for b, n in enumerate(batch.valid_lens_x):
        real = slice(None) if scores.ndim == 2 else slice(n)
        for other in (padded[b], alone[b]):
            onp.testing.assert_allclose(scores[b][real], other[real], 1e-4,
                                        1e-5)


@pytest.mark.parametrize('kind', KINDS)
def test_a_net_with_a_hook_gives_the_padded_twin(kind):
    """Loss and gradients of a net that is called block by block."""
    found = []
    for hooked in False, True:
        net, batch = models.tuned(kind), models.batch(kind)
        calls = []
        if hooked:
            net.encoder.blks[0].register_forward_hook(
                lambda *_: calls.append(1))
        with autograd.record():
            loss, _ = loss_of(net, batch)
        loss.backward()
        assert bool(calls) == hooked
        found.append([loss.asnumpy(), *(
            param.grad().asnumpy()
            for param in net._collect_params_with_prefix().values())])
    for a, b in zip(*found):
        onp.testing.assert_allclose(a, b, 1e-3, 1e-5)


def test_weights_without_a_loss_are_dropped():
    bert = models.bert()
    whole, each = (set(FineTuned(bert, kind, 2)._collect_params_with_prefix())
                   for kind in ('classify', 'tag'))
    assert whole - each == {'hidden.weight', 'hidden.bias'}
    assert {name.split('.')[0] for name in each} == {'encoder', 'output'}


def test_the_first_editions_hidden_layer_is_taken_along():
    net = models.tuned('classify', positional='sinusoidal',
                       embedding_norm=False)
    batch = models.batch('classify')
    with autograd.record():
        loss, _ = loss_of(net, batch)
    loss.backward()
    assert net.hidden.weight.grad().asnumpy().any()


def test_new_weights_follow_the_seed_and_others_are_kept():
    found = []
    for _ in range(2):
        bert = models.bert()
        before = bert.encoder.token_embedding.weight.data().asnumpy()
        net = FineTuned(bert, 'classify', 2)
        mx.random.seed(7)
        net.begin([npx.cpu()])
        onp.testing.assert_array_equal(
            net.encoder.token_embedding.weight.data().asnumpy(), before)
        found.append(net.output.weight.data().asnumpy())
        assert not net.output.bias.data().asnumpy().any()
    onp.testing.assert_array_equal(*found)
    assert 0.01 < found[0].std() < 0.04


def test_a_kind_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="not 'rank'"):
        FineTuned(models.bert(), 'rank', 2)


def test_a_roberta_head_applies_dropout_before_its_hidden_layer():
    bert, _ = load_pretrained(FIXTURES / 'roberta-0', heads=())
    H = bert.config['num_hiddens']
    net = FineTuned(bert, 'classify', H, dropout=0.5)
    for layer in net.hidden, net.output:
        layer.initialize()
        layer.weight.set_data(np.eye(H))
        layer.bias.set_data(np.zeros(H))
    X = np.ones((200, H))
    with autograd.record():
        scores = net.score(X, onp.arange(200)).asnumpy()
    # Kept values are doubled before tanh, and again after it
    stays = scores != 0
    assert 0.2 < stays.mean() < 0.3
    onp.testing.assert_allclose(scores[stays], 2 * onp.tanh(2), rtol=1e-5)
