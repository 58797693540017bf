"""Held-out figures against float64 NumPy, and against what must not matter."""
import csv
import math
import types

import numpy as onp
import pytest
import reference
from batches import random_batch

import d2lbert as d2l
from d2lbert import hub
from d2lbert.machine.backend import autograd, mx, np, npx
from d2lbert.objectives import text_objective
from d2lbert.objectives.text_objective import read_corpus
from d2lbert.text import Vocab
from d2lbert.texts.examples import Batch
from d2lbert.training.evaluation import evaluate_run
from d2lbert.training.history import RunHistory
from d2lbert.training.saved_runs import RunError
from d2lbert.training.settings import complete

V, H, F, N, T, P = 40, 8, 12, 2, 9, 3
CPU = [npx.cpu()]


def make_net(devices=CPU, scale=0.3):
    """A net whose weights are drawn anew, the same each time."""
    net = d2l.BERTModel(V, H, F, N, 1, 0.5, max_len=T)
    net.initialize(ctx=devices)
    for device in devices:
        ones = np.ones((1, 2), dtype='int32', ctx=device)
        net(ones, ones, None, ones)
    rng = onp.random.RandomState(0)
    for _, param in sorted(net._collect_params_with_prefix().items()):
        param.set_data(np.array(rng.normal(0, 1, param.shape) * scale))
    return net


def make_batch(seed=0, B=7):
    """A `Batch` with padding behind valid_lens and weights of 0 and 1."""
    rng = onp.random.RandomState(seed)
    lens = rng.randint(P, T + 1, B)
    weights = onp.arange(P) < rng.randint(1, P + 1, (B, 1))
    return random_batch(rng, lens, weights, T, V)


def expected_figures(net, batches):
    """The same figures by loops in float64, one score after another."""
    params = reference.parameters(net)
    mlm, mlm_hits, known_hits, nsp, nsp_hits = [], [], [], [], []
    for batch in batches:
        _, mlm_Y_hat, nsp_Y_hat = reference.bert(
            params, N, batch.tokens_X, batch.segments_X, batch.valid_lens_x,
            batch.pred_positions_X)
        for row in zip(mlm_Y_hat, batch.mlm_Y, batch.mlm_weights_X):
            for scores, label, weight in zip(*row):
                if weight:
                    mlm.append(reference.cross_entropy(scores, label))
                    mlm_hits.append(scores.argmax() == label)
                    if label != 0:      # <unk>
                        known_hits.append(scores.argmax() == label)
        for scores, label in zip(nsp_Y_hat, batch.nsp_y):
            nsp.append(reference.cross_entropy(scores, label))
            nsp_hits.append(scores.argmax() == label)
    mlm_loss = math.fsum(mlm) / len(mlm)
    return (mlm_loss, math.e ** mlm_loss, onp.mean(mlm_hits),
            math.fsum(nsp) / len(nsp), onp.mean(nsp_hits),
            1 - len(known_hits) / len(mlm_hits), onp.mean(known_hits))


def close(figures, expected, rtol=1e-5):
    onp.testing.assert_allclose(tuple(figures), tuple(expected), rtol=rtol)


def test_figures_are_those_of_a_float64_computation(path):
    net = make_net()
    batches = [make_batch(0), make_batch(1, B=3)]
    # Some labels that the net gets right
    batches[0].mlm_Y[:2] = reference.bert(
        reference.parameters(net), N, *batches[0][:4])[1][:2].argmax(-1)
    batches[1].mlm_Y[:, 0] = 0
    expected = expected_figures(net, batches)
    assert expected[2] > 0 and 0 < expected[4] < 1
    assert 0 < expected[5] < 1 and expected[6] > expected[2]
    close(d2l.evaluate(net, batches, CPU), expected)


def test_dropout_is_off_and_nothing_of_the_net_changes():
    net, batch = make_net(), make_batch()
    before = reference.parameters(net)
    first, second = (d2l.evaluate(net, [batch], CPU) for _ in range(2))
    assert first == second
    for name, value in reference.parameters(net).items():
        onp.testing.assert_array_equal(value, before[name])


def test_evaluating_while_somebody_records_changes_nothing(path):
    net, batch = make_net(), make_batch()
    alone = d2l.evaluate(net, [batch], CPU)
    x = np.array([3.0])
    x.attach_grad()
    scores = []
    net.register_forward_hook(lambda *call: scores.append(call[2][2]))
    with autograd.record():
        y = x * x
        assert d2l.evaluate(net, [batch], CPU) == alone
        assert autograd.is_recording() and autograd.is_training()
        y = y * alone.mlm_loss
    y.backward()
    assert float(x.grad) == pytest.approx(6 * alone.mlm_loss, rel=1e-6)
    for score in scores:
        with pytest.raises(mx.MXNetError, match='not in a computational graph|'
                           'differentiate'):
            score.backward()    # no graph was kept


@pytest.mark.parametrize('size', [1, 2, 5])
def test_how_a_text_is_cut_into_batches_does_not_matter(size):
    net, batch = make_net(), make_batch()
    parts = [Batch(*(column[k:k + size] for column in batch))
             for k in range(0, 7, size)]
    close(d2l.evaluate(net, parts, CPU), d2l.evaluate(net, [batch], CPU))


@pytest.mark.parametrize('num_devices', [2, 3, 8])
def test_the_number_of_devices_does_not_matter(num_devices):
    devices = [npx.cpu(i) for i in range(num_devices)]
    batch = make_batch()
    close(d2l.evaluate(make_net(devices), [batch], devices),
          d2l.evaluate(make_net(), [batch], CPU))


def test_padding_does_not_count():
    net, batch = make_net(), make_batch()
    before = d2l.evaluate(net, [batch], CPU)
    padding = onp.arange(T) >= batch.valid_lens_x[:, None]
    weightless = batch.mlm_weights_X == 0
    assert padding.any() and weightless.any()
    changed = batch._replace(
        tokens_X=onp.where(padding, 17, batch.tokens_X),
        segments_X=onp.where(padding, 1, batch.segments_X),
        pred_positions_X=onp.where(weightless, 2, batch.pred_positions_X),
        mlm_Y=onp.where(weightless, 5, batch.mlm_Y))
    close(d2l.evaluate(net, [changed], CPU), before)


def test_a_net_that_knows_nothing_is_at_chance():
    batch = make_batch()
    batch.mlm_Y[:2] = 0
    figures = d2l.evaluate(make_net(scale=0), [batch], CPU)
    # All scores are equal, so the first one counts as the highest
    real = batch.mlm_Y[batch.mlm_weights_X > 0]
    close(figures, (math.log(V), V, (real == 0).mean(), math.log(2),
                    (batch.nsp_y == 0).mean(), (real == 0).mean(), 0))


def test_perplexity_beyond_all_numbers_is_infinite():
    net, batch = make_net(), make_batch()
    net.mlm.mlp[2].bias.data()[:] = np.arange(V) * (800 / (V - 1))
    batch.mlm_Y[:] = 0
    figures = d2l.evaluate(net, [batch], CPU)
    assert figures.mlm_loss > 710 and figures.perplexity == math.inf


def test_who_only_guesses_unknown_words_knows_no_word():
    net, batch = make_net(scale=0), make_batch()
    batch.mlm_Y[::2] = 0
    batch.mlm_Y[1::2] += batch.mlm_Y[1::2] == 0
    figures = d2l.evaluate(net, [batch], CPU)   # 0 comes first in a tie
    assert figures.mlm_accuracy == figures.unknown_share > 0.4
    assert figures.known_accuracy == 0
    batch.mlm_Y[:] = 0
    figures = d2l.evaluate(net, [batch], CPU)
    assert figures.mlm_accuracy == figures.unknown_share == 1
    assert math.isnan(figures.known_accuracy)


def test_figures_of_earlier_versions_can_be_read():
    history, again = (RunHistory(['mlm', 'nsp'], text_objective.Figures)
                      for _ in range(2))
    history.held_out[3] = (5.0, 148.4, 0.2, 0.6, 0.7)
    again.restore(types.SimpleNamespace(state=history.state()))
    assert again.held_out[3][:5] == history.held_out[3]
    assert math.isnan(again.held_out[3].known_accuracy)


def test_a_net_with_nan_has_no_accuracy():
    net = make_net()
    batch = random_batch(onp.random.RandomState(1), onp.array([T, 5]),
                         onp.ones((2, P)), T, V)
    net.encoder.pos_embedding.data()[:] = float('nan')
    figures = d2l.evaluate(net, [batch], CPU)._asdict()
    assert 0 <= figures.pop('unknown_share') <= 1
    assert all(map(math.isnan, figures.values())), figures


def test_nothing_to_evaluate_on_is_said():
    with pytest.raises(ValueError, match='nothing to evaluate on'):
        d2l.evaluate(make_net(), [], CPU)


# Of a run

TINY = dict(corpus='sample', batch_size=100, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, num_steps=3, seed=1,
            devices='cpu')


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    return d2l.pretrain(**TINY, eval_every=2,
                        out=tmp_path_factory.mktemp('runs') / 'run')


def test_evaluating_a_run_repeats_its_last_held_out_figures(run):
    with open(run / 'losses.csv', newline='') as file:
        rows = list(csv.DictReader(file))
    assert [row['step'] for row in rows if row['held_out_mlm_loss']] == [
        '2', '3']
    close(evaluate_run(run, devices='cpu'),
          [float(rows[-1][f'held_out_{name}'])
           for name in text_objective.Figures._fields], rtol=1e-6)


def test_other_files_are_read_with_the_runs_own_vocabulary(run, tmp_path):
    text = tmp_path / 'other.txt'
    text.write_text('the birds of the north fly . they sing in it . \n\n'
                    'zyzzyva qwertz . the old man . \n' * 3, encoding='utf-8')
    net, vocab = d2l.load_run(run)
    assert 'zyzzyva' not in vocab.token_to_idx
    part = d2l.open_corpus([text], vocab=vocab).train
    batches = [batch for _, batch in part.batches(100, 32, seed=0,
                                                  dynamic=False)]
    close(evaluate_run(run, [text], 'cpu'),
          expected_figures(net, batches))


def test_what_was_trained_on_is_not_taken_for_held_out(tmp_path):
    run = d2l.pretrain(**TINY, out=tmp_path / 'run')
    with pytest.raises(RunError, match='no held-out text: name files with '
                                       '--corpus'):
        evaluate_run(run)


def test_figures_of_a_text_that_has_changed_are_refused(tmp_path):
    text = tmp_path / 'text.txt'
    text.write_text('birds sing . birds fly . they sing . \n\n' * 60,
                    encoding='utf-8')
    run = d2l.pretrain(**dict(TINY, corpus=text), eval_every=3,
                       out=tmp_path / 'run')
    text.write_text(text.read_text('utf-8') * 2, encoding='utf-8')
    with pytest.raises(RunError, match='corpus of .*run has changed'):
        evaluate_run(run)


def test_a_corpus_can_be_named_as_for_pretrain(run):
    net, vocab = d2l.load_run(run)
    path = hub.sample_dir() / hub.TRAIN_FILE
    part = d2l.open_corpus([path], vocab=vocab).train
    expected = expected_figures(net, [batch for _, batch in part.batches(
        100, 32, seed=0, dynamic=False)])
    for corpus in ('sample', ['sample'], path):
        close(evaluate_run(run, corpus, 'cpu'), expected)


def test_no_article_is_both_trained_on_and_held_out(tmp_path):
    titles = [f'article{k}' for k in range(40)]
    text = tmp_path / 'wiki.txt'
    text.write_text(''.join(
        f' \n = {title} = \n \n' + f' a {title} is it . it is {title} . \n' * 3
        for title in titles), encoding='utf-8')
    Vocab([titles], reserved_tokens=['<pad>', '<mask>', '<cls>', '<sep>']
          ).save(tmp_path / 'vocab.txt')
    text = read_corpus(complete(dict(
        corpus=text, vocab=tmp_path / 'vocab.txt', eval_every=1,
        valid_share=0.2)))
    trained, held_out = (
        {token for token in part.vocab.to_tokens(part.ids.tolist())
         if token.startswith('article')} for part in (text.train, text.valid))
    assert len(held_out) == 8 and not trained & held_out
    assert trained | held_out == set(titles)
