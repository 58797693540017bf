"""Losses, training and encodings against NumPy and the book's package."""
import csv
import random
import re
from pathlib import Path

import numpy as onp
import pytest
import reference
from batches import random_batch

import d2lbert as d2l
from d2lbert import bert_pretraining, hub, kernels, progress
from d2lbert.bert_pretraining import _page_losses
from d2lbert.kernels import draw, ops
from d2lbert.machine.backend import autograd, gluon, init, mx, np, npx
from d2lbert.text import RESERVED
from d2lbert.texts.examples import Batch

V, H, F, N, MAX_LEN = 40, 8, 12, 2, 12
LOSS = gluon.loss.SoftmaxCELoss()
DEVICES = {'one device': [npx.cpu()], 'two devices': [npx.cpu(0), npx.cpu(1)]}


class Batches(list):
    """Batches with the vocabulary that they are numbered by."""

    vocab = d2l.Vocab([[f'word{i}' for i in range(V - 5)]],
                      reserved_tokens=RESERVED)


def host_batch(seed=0, B=5, T=9, P=3):
    """A `Batch` of NumPy arrays: some padding, some weights of zero."""
    rng = onp.random.RandomState(seed)
    lens = rng.randint(3, T, B)
    lens[0] = T
    weights = rng.choice([1, 1, 0.5], (B, P))
    weights[1:, -1] = 0
    return random_batch(rng, lens, weights, T, V)


def on_device(batch):
    return Batch(*(np.array(X, dtype=X.dtype) for X in batch))


def batches(num=3, **sizes):
    return Batches(on_device(host_batch(seed, **sizes)) for seed in range(num))


def build(module=d2l, dropout=0.0, devices=None, net_class=None, **kwargs):
    """A net with weights that are neither zero nor one, always the same."""
    net = (net_class or module.BERTModel)(V, H, F, N, 2, dropout,
                                          max_len=MAX_LEN, **kwargs)
    net.initialize(ctx=devices)
    for device in devices or [npx.cpu()]:
        net(*(X.as_in_ctx(device) for X in on_device(host_batch())[:4]))
    rng = onp.random.RandomState(0)
    for _, param in sorted(net._collect_params_with_prefix().items()):
        param.set_data(np.array(rng.normal(0, 0.3, param.shape)))
    return net


def losses_and_gradients(net, batch, losses=None):
    """MLM loss, NSP loss, and the gradient of the sum by parameter name."""
    params = net._collect_params_with_prefix()
    net.collect_params().zero_grad()
    with autograd.record():
        if losses is None:
            shards = d2l._get_batch_bert(on_device(batch), [npx.cpu()])
            (mlm_l,), (nsp_l,), (total,) = d2l._get_batch_loss_bert(
                net, LOSS, V, *shards)
        else:
            mlm_l, nsp_l = losses(net, LOSS, V, *on_device(batch))
            total = mlm_l + nsp_l
    total.backward()
    return float(mlm_l), float(nsp_l), {
        name: param.grad().asnumpy() for name, param in params.items()}


def same(ours, theirs):
    onp.testing.assert_allclose(ours[0], theirs[0], rtol=2e-6)
    # MXNet's log_softmax is off by so much; ours is held to float64 where
    # the operators are tested
    onp.testing.assert_allclose(ours[1], theirs[1], rtol=2e-6, atol=4e-6)
    for name, gradient in theirs[2].items():
        onp.testing.assert_allclose(ours[2][name], gradient, atol=2e-6,
                                    err_msg=name)


@pytest.fixture
def packed(monkeypatch):
    """Let a test fail that leaves the path without padding."""
    def fail(*args):
        raise AssertionError("the page's path was taken")
    monkeypatch.setattr(bert_pretraining, '_page_losses', fail)


@pytest.fixture
def plain(monkeypatch):
    """A list that grows when the path of the page is taken."""
    taken, losses = [], bert_pretraining._page_losses

    def spy(*args):
        taken.append(args)
        return losses(*args)
    monkeypatch.setattr(bert_pretraining, '_page_losses', spy)
    return taken


# Shards and losses

def test_a_batch_is_spread_unevenly_and_in_order():
    batch = host_batch()
    shards = d2l._get_batch_bert(batch, DEVICES['two devices'])
    assert len(shards) == 7
    for field, parts in zip(batch, shards):
        assert [part.ctx for part in parts] == DEVICES['two devices']
        assert [len(part) for part in parts] == [3, 2]
        onp.testing.assert_array_equal(
            onp.concatenate([part.asnumpy() for part in parts]), field)
        assert all(part.dtype == field.dtype for part in parts)


def test_a_batch_smaller_than_the_devices_leaves_the_last_without():
    devices = [npx.cpu(i) for i in range(7)]
    for parts in d2l._get_batch_bert(on_device(host_batch()), devices):
        assert [part.ctx for part in parts] == devices[:5]


@pytest.mark.parametrize('positional', ['learnable', 'sinusoidal'])
def test_losses_are_the_equations(positional, path):
    net = build(positional=positional)
    for seed in range(3):
        batch = host_batch(seed)
        expected = reference.losses(reference.parameters(net), N, batch)
        ours = losses_and_gradients(net, batch)
        onp.testing.assert_allclose(ours[:2], expected, rtol=1e-5)


@pytest.mark.parametrize('positional', ['learnable', 'sinusoidal'])
def test_gradients_are_finite_differences(positional, path):
    net, batch, step = build(positional=positional), host_batch(), 1e-5
    params = reference.parameters(net)
    gradients = losses_and_gradients(net, batch)[2]
    for name, gradient in gradients.items():
        at = onp.unravel_index(abs(gradient).argmax(), gradient.shape)
        sums = []
        for sign in (1, -1):
            changed = dict(params, **{name: params[name].copy()})
            changed[name][at] += sign * step
            sums.append(sum(reference.losses(changed, N, batch)))
        expected = (sums[0] - sums[1]) / (2 * step)
        assert gradient[at] == pytest.approx(expected, rel=1e-3, abs=1e-5), (
            name)


def test_gradients_reach_every_parameter(path):
    batch = host_batch(T=MAX_LEN - 2)
    gradients = losses_and_gradients(build(), batch)[2]
    for name, gradient in gradients.items():
        # Softmax does not see a bias that all keys share
        assert (abs(gradient).max() > 1e-5) != name.endswith('W_k.bias'), name
    by_position = abs(gradients['encoder.pos_embedding'][0]).max(axis=1)
    assert (by_position[:MAX_LEN - 2] > 0).all()
    assert (by_position[MAX_LEN - 2:] == 0).all()


@pytest.mark.parametrize('positional', ['learnable', 'sinusoidal'])
def test_leaving_out_the_padding_changes_nothing(positional, packed, path):
    def loss(scores, labels, weights=None):
        # LOSS by the operator that sentence pairs have without padding: the
        # gradient of MXNet's log_softmax is off by 2.1e-6 on AMD Zen 5
        if weights is None:
            weights = np.ones(len(labels))
        return ops.softmax_ce(scores, labels.astype('int32'),
                              weights.reshape(-1))

    def page_losses(net, _, *arguments):
        return _page_losses(net, loss, *arguments)
    net = build(positional=positional)
    for seed in range(3):
        batch = host_batch(seed)
        same(losses_and_gradients(net, batch),
             losses_and_gradients(net, batch, page_losses))


def test_without_padding_there_are_no_attention_weights_to_look_at(packed):
    net, batch = build(), host_batch(B=2)
    batch.valid_lens_x[:] = 6, 4    # ten rows look like two times five
    batch.mlm_weights_X[batch.pred_positions_X > 3] = 0
    d2l._get_batch_loss_bert(net, LOSS, V,
                             *([X] for X in on_device(batch)))
    assert net.encoder.blks[0].attention.attention.attention_weights is None


@pytest.mark.parametrize('training', [False, True])
def test_attention_weights_are_kept_where_that_is_asked_for(
        book, path, training):
    net, theirs = build(), build(book)
    batch = on_device(host_batch())
    theirs(*batch[:4])
    with d2l.keep_attention(net):
        if training:
            with autograd.record():
                d2l._get_batch_loss_bert(net, LOSS, V,
                                         *([X] for X in batch))
        else:
            net(*batch[:4])
        for block, its in zip(net.encoder.blks, theirs.encoder.blks):
            onp.testing.assert_allclose(
                block.attention.attention.attention_weights.asnumpy(),
                its.attention.attention.attention_weights.asnumpy(),
                atol=2e-6)
    net(*batch[:4])
    assert all(block.attention.attention.attention_weights is None
               for block in net.encoder.blks)


def test_gradients_can_be_accumulated(path):
    net, batches_ = build(), batches(2)
    apart = [losses_and_gradients(net, batch)[2] for batch in batches_]
    net.collect_params().setattr('grad_req', 'add')
    net.collect_params().zero_grad()
    for batch in batches_:
        with autograd.record():
            _, _, (total,) = d2l._get_batch_loss_bert(
                net, LOSS, V, *([X] for X in batch))
        total.backward()
    for name, param in net._collect_params_with_prefix().items():
        onp.testing.assert_allclose(
            param.grad().asnumpy(), apart[0][name] + apart[1][name],
            atol=2e-6, err_msg=name)


def test_a_frozen_encoder_stays_as_it_is(path):
    net = build()
    net.encoder.collect_params().setattr('grad_req', 'null')
    before = reference.parameters(net)
    d2l.train_bert(batches(), net, LOSS, V, [npx.cpu()], 2)
    for name, value in reference.parameters(net).items():
        same = (value == before[name]).all()
        assert same == name.startswith('encoder.'), name


def test_the_losses_are_those_of_the_books_code(book, path):
    def book_losses(net, loss, vocab_size, *fields):
        (mlm_l,), (nsp_l,), _ = book._get_batch_loss_bert(
            net, loss, vocab_size, *([X] for X in fields))
        return mlm_l, nsp_l
    batch = host_batch()
    same(losses_and_gradients(build(), batch),
         losses_and_gradients(build(book), batch, book_losses))


def test_the_first_step_starts_from_the_books_initial_weights(book, path):
    seen = []
    for module in (d2l, book):
        mx.random.seed(3)
        net = module.BERTModel(V, H, F, N, 2, 0.0, max_len=MAX_LEN)
        net.initialize(init.Xavier())
        mlm_ls, nsp_ls, _ = module._get_batch_loss_bert(
            net, LOSS, V, *([X] for X in on_device(host_batch())))
        seen.append((float(mlm_ls[0]), float(nsp_ls[0]),
                     reference.parameters(net)))
    same(*seen)


def test_a_weight_of_zero_drops_a_prediction(path):
    net, batch = build(), host_batch()
    assert batch.mlm_weights_X[1, -1] == 0
    before = losses_and_gradients(net, batch)
    batch.mlm_Y[1, -1] = (batch.mlm_Y[1, -1] + 1) % V
    batch.pred_positions_X[1, -1] = 2
    same(losses_and_gradients(net, batch), before)


def test_weights_of_zero_alone_give_a_loss_of_zero(path):
    batch = host_batch()
    batch.mlm_weights_X[:] = 0
    mlm_l, nsp_l, _ = losses_and_gradients(build(), batch)
    assert mlm_l == 0 and nsp_l > 0


@pytest.mark.parametrize('field, shape', [
    ('nsp_y', (-1, 1)), ('mlm_Y', -1), ('mlm_weights_X', -1)])
def test_columns_of_other_shapes_count_as_on_the_page(field, shape, path):
    net, batch = build(), host_batch()
    column = getattr(batch, field).reshape(shape)
    same(losses_and_gradients(net, batch._replace(**{field: column})),
         losses_and_gradients(net, batch, _page_losses))


@pytest.mark.parametrize('change', ['an empty row', 'in the padding'])
def test_what_cannot_be_packed_takes_the_path_of_the_page(change, plain):
    net, batch = build(), host_batch()
    if change == 'an empty row':
        batch.valid_lens_x[2] = 0
    else:
        batch.pred_positions_X[1, 0] = 8
        assert batch.valid_lens_x[1] < 9
    ours = losses_and_gradients(net, batch)
    assert len(plain) == 1
    if change == 'an empty row':
        assert onp.isfinite(ours[:2]).all()
    else:
        expected = reference.losses(reference.parameters(net), N, batch)
        onp.testing.assert_allclose(ours[:2], expected, rtol=1e-5)


class Louder(d2l.BERTModel):
    """A reader's own model: every score is five times as large."""

    def forward(self, *args):
        encoded_X, mlm_Y_hat, nsp_Y_hat = super().forward(*args)
        return encoded_X, 5 * mlm_Y_hat, 5 * nsp_Y_hat


def test_a_readers_own_forward_is_respected(plain):
    batch = host_batch()
    louder = losses_and_gradients(build(net_class=Louder), batch)
    assert len(plain) == 1
    assert louder[0] > 1.1 * losses_and_gradients(build(), batch)[0]


def test_a_readers_hooks_are_called(plain):
    net, seen = build(), []
    net.mlm.register_forward_hook(
        lambda block, inputs, output: seen.append(output.shape))
    losses_and_gradients(net, host_batch())
    assert seen == [(5, 3, V)]


def blocks_of(block, name='net'):
    """Every block that a training step of the page calls, with its name."""
    for key, child in block._children.items():
        inner = f'{name}.{key}'
        # The encoder takes its blocks out of their Sequential by itself
        if inner != 'net.encoder.blks':
            yield inner, child
        yield from blocks_of(child, inner)


@pytest.mark.parametrize('positional', ['learnable', 'sinusoidal'])
@pytest.mark.parametrize('how', ['hook', 'pre-hook', 'patch'])
def test_whatever_a_reader_attaches_to_a_block_is_called(how, positional):
    net, batch = build(positional=positional), host_batch()
    expected = losses_and_gradients(net, batch)
    names = dict(blocks_of(net))
    assert len(names) > 25 and 'net.encoder.blks.1.attention.W_q' in names
    for name, block in [('net', net), *names.items()]:
        seen, forward = [], block.forward

        def patched(*args):
            seen.append(args)
            return forward(*args)
        if how == 'patch':
            block.forward = patched
        elif how == 'hook':
            handle = block.register_forward_hook(
                lambda block, inputs, output: seen.append(inputs))
        else:
            handle = block.register_forward_pre_hook(
                lambda block, inputs: seen.append(inputs))
        losses = losses_and_gradients(net, batch)[:2]
        if how == 'patch':
            del block.forward
        else:
            handle.detach()
        assert len(seen) == 1, name
        onp.testing.assert_allclose(losses, expected[:2], rtol=1e-5,
                                    err_msg=name)
    same(losses_and_gradients(net, batch), expected)


def test_a_subclass_that_changes_nothing_is_as_fast(plain):
    class Named(d2l.BERTModel):
        """With a name of its own."""
    losses_and_gradients(build(net_class=Named), host_batch())
    assert plain == []


def test_a_block_of_the_readers_own_takes_the_place_of_ours(plain):
    class Silent(gluon.nn.Dense):
        def hybrid_forward(self, F, X, weight, bias=None):
            return super().hybrid_forward(F, X, weight, bias) * 0
    net, batch = build(), host_batch()
    net.mlm.mlp._children['2'] = Silent(V, flatten=False, in_units=H)
    net.mlm.mlp[2].initialize()
    assert losses_and_gradients(net, batch)[0] == pytest.approx(
        onp.log(V), rel=1e-5)
    assert len(plain) == 1


def test_a_readers_activation_of_the_scores_is_applied(path):
    net, batch = build(), host_batch()
    before = losses_and_gradients(net, batch)[0]
    net.mlm.mlp[2].act = gluon.nn.Activation('tanh')
    net.mlm.register_forward_hook(lambda *_: None)
    expected = losses_and_gradients(net, batch)[0]
    net.mlm._forward_hooks.clear()
    assert losses_and_gradients(net, batch)[0] == pytest.approx(expected,
                                                                rel=1e-5)
    assert abs(before - expected) > 0.005


def test_a_readers_own_loss_is_respected(path):
    class Doubled(gluon.loss.SoftmaxCELoss):
        def hybrid_forward(self, *args):
            return 2 * super().hybrid_forward(*args)
    net = build()
    shards = d2l._get_batch_bert(host_batch(), [npx.cpu()])
    once, twice = (float(d2l._get_batch_loss_bert(
        net, loss, V, *shards)[2][0]) for loss in (LOSS, Doubled()))
    assert twice == pytest.approx(2 * once, rel=1e-6)


@pytest.mark.parametrize('field, value, message', [
    ('tokens_X', V, 'token 40 is out of range: it must be 0 to 39'),
    ('tokens_X', -1, 'token -1 is out of range'),
    ('segments_X', 2, 'segment 2 is out of range: it must be 0 to 1'),
    ('pred_positions_X', 9, 'position 9 is out of range: it must be 0 to 8'),
    ('pred_positions_X', -1, 'position -1 is out of range'),
    ('mlm_Y', V, 'label 40 is out of range: it must be 0 to 39'),
    ('mlm_Y', -1, 'label -1 is out of range'),
    ('nsp_y', 2, 'nsp_y 2.* is out of range: it must be 0 to 1')])
def test_numbers_out_of_range_are_refused(field, value, message, path):
    batch = host_batch()
    column = getattr(batch, field)
    column[(0,) * column.ndim] = value
    with pytest.raises(ValueError, match=message):
        losses_and_gradients(build(), batch)


@pytest.mark.parametrize('value', [0.5, float('nan')])
@pytest.mark.parametrize('field, name', [
    ('tokens_X', 'token'), ('segments_X', 'segment'),
    ('valid_lens_x', 'valid length'), ('mlm_Y', 'label'), ('nsp_y', 'nsp_y'),
    ('pred_positions_X', 'prediction position')])
def test_numbers_that_are_not_whole_are_refused(field, name, value, path):
    batch = host_batch()
    batch = batch._replace(**{field: getattr(batch, field).astype('float32')})
    net = build()
    whole = losses_and_gradients(net, batch)
    assert onp.isfinite(whole[:2]).all()
    column = getattr(batch, field)
    column[(0,) * column.ndim] = value
    with pytest.raises(ValueError, match=f'{name} {value} is not a whole'):
        losses_and_gradients(net, batch)


def test_each_sequence_has_a_length(path):
    batch = host_batch()
    batch = batch._replace(valid_lens_x=batch.valid_lens_x[:4])
    with pytest.raises(ValueError, match=re.escape(
            'valid_lens (4,) do not fit tokens (5, 9): give one number')):
        losses_and_gradients(build(), batch)


def test_more_tokens_than_positions_are_refused(path):
    with pytest.raises(ValueError, match='13 tokens .* 12 positions'):
        losses_and_gradients(build(), host_batch(T=MAX_LEN + 1))


def test_the_vocabulary_must_be_the_nets(path):
    shards = d2l._get_batch_bert(host_batch(), [npx.cpu()])
    with pytest.raises(ValueError, match='vocab_size is 20, .* 40'):
        d2l._get_batch_loss_bert(build(), LOSS, 20, *shards)


# Training

def book_training(book, net, batches, devices, num_steps, learning_rate):
    """What the page's loop sees with the book's losses: (mlm, nsp) a step."""
    trainer = gluon.Trainer(net.collect_params(), 'adam',
                            {'learning_rate': learning_rate})
    seen = []
    for step in range(num_steps):
        shards = [gluon.utils.split_and_load(X, devices, even_split=False)
                  for X in batches[step % len(batches)]]
        with autograd.record():
            mlm_ls, nsp_ls, ls = book._get_batch_loss_bert(net, LOSS, V,
                                                           *shards)
        for total in ls:
            total.backward()
        trainer.step(1)
        seen.append([onp.mean(list(map(float, losses)))
                     for losses in (mlm_ls, nsp_ls)])
    return onp.array(seen)


@pytest.mark.parametrize('devices', DEVICES.values(), ids=DEVICES)
def test_eight_steps_of_adam_stay_with_the_book(book, devices, path):
    ours, theirs = build(devices=devices), build(book, devices=devices)
    history = d2l.train_bert(batches(), ours, LOSS, V, devices, 8)
    expected = book_training(book, theirs, batches(), devices, 8, 0.01)
    onp.testing.assert_allclose(
        onp.transpose([history.mlm_loss, history.nsp_loss]), expected,
        rtol=1e-4)
    ours, theirs = map(reference.parameters, (ours, theirs))
    for name in ours:
        onp.testing.assert_allclose(ours[name], theirs[name], atol=2e-3,
                                    err_msg=name)


def test_history_holds_the_means_since_step_1_and_those_of_each_step():
    history = d2l.train_bert(batches(), build(), LOSS, V, [npx.cpu()], 5)
    assert history.step == [1, 2, 3, 4, 5]
    for means, losses in ((history.mlm, history.mlm_loss),
                          (history.nsp, history.nsp_loss)):
        onp.testing.assert_allclose(means, onp.cumsum(losses) / history.step)
    assert history.pairs_per_sec == 25 / history.seconds


def test_a_history_says_how_many_steps_were_taken_before_any_is_logged():
    history = d2l.History()
    assert repr(history) == '<History of 0 steps>'
    for step in (1, 2):
        history.add(lambda: [2.0, 1.0], 5)
        assert repr(history) == f'<History of {step} steps>'
    history.log(2)
    assert repr(history) == '<History of 2 steps: mlm 2.000, nsp 1.000>'


@pytest.mark.parametrize('library', [kernels.OPERATORS, draw.DRAW],
                         ids=['operators', 'draw'])
def test_what_is_compiled_is_not_counted_as_training(library, monkeypatch):
    clock, get, net = [0.0], kernels.Library.get, build()
    waiting = [1000.0]

    def compiled(self):
        if self is library and waiting:
            clock[0] += waiting.pop()
        return get(self)
    monkeypatch.setattr(kernels.Library, 'get', compiled)

    def tick():
        clock[0] += 1
        return clock[0]
    monkeypatch.setattr(progress.time, 'perf_counter', tick)

    class Drawn(Batches):
        def __iter__(self):
            draw.library()      # as batches that are drawn on the way do
            return super().__iter__()
    history = d2l.train_bert(Drawn(batches()), net, LOSS, V, [npx.cpu()], 2)
    assert not waiting and 0 < history.seconds < 100


def test_exactly_the_books_two_lines_are_printed(capsys):
    history = d2l.train_bert(batches(), build(), LOSS, V, [npx.cpu()], 2)
    output = capsys.readouterr()
    assert re.fullmatch(
        r'MLM loss \d+\.\d{3}, NSP loss \d+\.\d{3}\n'
        r'\d+\.\d sentence pairs/sec on \[cpu\(0\)\]\n', output.out)
    assert output.out.startswith(f'MLM loss {history.mlm[-1]:.3f}, '
                                 f'NSP loss {history.nsp[-1]:.3f}\n')
    assert output.err.startswith('training ')       # no terminal is there
    assert output.err.count('\n') == 1


@pytest.fixture
def trainers(monkeypatch):
    """A list of (optimizer, its arguments) of every trainer made."""
    made, trainer = [], gluon.Trainer

    def spy(params, optimizer, arguments):
        made.append((optimizer, arguments))
        return trainer(params, optimizer, arguments)
    monkeypatch.setattr(gluon, 'Trainer', spy)
    return made


@pytest.mark.parametrize('args, keywords, steps, learning_rate', [
    ((2, 4), {}, [2, 4], 0.001),                        # first edition
    ((), dict(log_interval=2, num_steps=4), [2, 4], 0.001),
    ((2,), dict(num_steps=4), [2, 4], 0.001),
    ((3,), {}, [1, 2, 3], 0.01),                        # later editions
    ((), dict(num_steps=3), [1, 2, 3], 0.01),
    ((7, 3), {}, [3], 0.001),               # the last step is always there
    ((2, 3), {}, [2, 3], 0.001),
    ((3,), dict(learning_rate=0.1, optimizer='sgd'), [1, 2, 3], 0.1)])
def test_both_orders_of_the_book_have_its_learning_rates(
        args, keywords, steps, learning_rate, trainers):
    history = d2l.train_bert(batches(), build(), LOSS, V, [npx.cpu()], *args,
                             **keywords)
    assert history.step == steps
    assert trainers == [(keywords.get('optimizer', 'adam'),
                         {'learning_rate': learning_rate})]


def test_the_devices_may_be_named(trainers):
    history = d2l.train_bert(batches(), build(), LOSS, V, num_steps=1,
                             devices=[npx.cpu()])
    assert history.step == [1]


def test_losses_are_read_only_where_they_are_logged(monkeypatch):
    events, read = [], np.ndarray.__float__

    class Watched(Batches):
        def __iter__(self):
            for batch in super().__iter__():
                events.append('batch')
                yield batch
    monkeypatch.setattr(np.ndarray, '__float__', lambda array: (
        events.append('read'), read(array))[1])
    d2l.train_bert(Watched(batches()), build(), LOSS, V, [npx.cpu()], 5, 7)
    assert events == (['batch'] * 5 + ['read'] * 10
                      + ['batch'] * 2 + ['read'] * 4)


def test_a_batch_smaller_than_the_devices_trains_them_all_alike(path):
    devices = [npx.cpu(i) for i in range(3)]
    many, one = build(devices=devices), build()
    small = batches(2, B=2)
    for net, ctx in ((many, devices), (one, devices[:2])):
        if net is one:
            net.collect_params().reset_ctx(ctx)
        d2l.train_bert(small, net, LOSS, V, ctx, 3)
    expected = reference.parameters(one)
    for name, param in many._collect_params_with_prefix().items():
        for device in devices:
            onp.testing.assert_allclose(param.data(device).asnumpy(),
                                        expected[name], atol=1e-6)


@pytest.fixture(scope='module')
def sample():
    """Batches and vocabulary of the bundled corpus."""
    random.seed(0)
    return d2l.load_data(hub.sample_dir() / hub.TRAIN_FILE, 32, 32)


def train_on_sample(sample, num_steps, out=None):
    train_iter, vocab = sample
    onp.random.seed(0)
    mx.random.seed(0)
    net = d2l.BERTModel(len(vocab), 16, 32, 2, 1, 0.1)
    net.initialize(init.Xavier())
    return net, d2l.train_bert(train_iter, net, LOSS, len(vocab),
                               d2l.try_all_gpus(), num_steps, out=out)


def test_the_loss_falls_on_the_bundled_corpus(sample):
    _, history = train_on_sample(sample, 30)
    assert onp.mean(history.mlm_loss[-5:]) < history.mlm_loss[0] - 1


def test_one_seed_gives_one_history(sample, tmp_path):
    for name in ('first', 'second'):
        train_on_sample(sample, 3, out=tmp_path / name)
    files = [tmp_path / name / 'losses.csv' for name in ('first', 'second')]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_script_leaves_its_losses_in_a_run_folder(sample, tmp_path):
    net, history = train_on_sample(sample, 3)
    folder, = tmp_path.glob('runs/*')
    assert re.fullmatch(r'\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d', folder.name)
    assert sorted(p.name for p in folder.iterdir()) == ['losses.csv',
                                                        'losses.png']
    assert (folder / 'losses.png').read_bytes().startswith(b'\x89PNG')
    with open(folder / 'losses.csv', newline='') as file:
        rows = list(csv.DictReader(file))
    for name in ('step', 'mlm_loss', 'nsp_loss', 'mlm', 'nsp'):
        assert [float(row[name]) for row in rows] == getattr(history, name)


@pytest.mark.parametrize('change, error, message', [
    (dict(devices=[]), ValueError, 'at least one device'),
    (dict(devices=None), ValueError, 'at least one device, .*, not None'),
    *((dict(devices=devices), TypeError,
       'train_bert needs a list of at least one device, as try_all_gpus.* not '
       f'{re.escape(repr(devices))}$')
      for devices in ('gpu', ['cpu'], npx.cpu(), 0, [npx.cpu(), None])),
    (dict(num_steps=0), ValueError, 'num_steps must be .* not 0'),
    (dict(num_steps=2.5), ValueError, 'num_steps must be .* not 2.5'),
    (dict(num_steps=None), ValueError, 'num_steps must be .* not None'),
    (dict(num_steps=float('inf')), ValueError, 'num_steps must be .* not inf'),
    (dict(num_steps='5'), ValueError, "num_steps must be .* not '5'"),
    (dict(log_interval=0), ValueError, 'log_interval must be .* not 0'),
    (dict(ctx=[npx.cpu()]), TypeError, 'devices once'),
    (dict(vocab_size=V + 1), ValueError, 'vocab_size is 41, .* 40'),
    (dict(train_iter=[]), ValueError, 'no batch'),
    (dict(train_iter=[Batch(*(X[:0] for X in host_batch()))]), ValueError,
     '^a batch has no example: it must have at least one$')])
def test_what_training_cannot_do_is_said(change, error, message):
    arguments = dict(train_iter=batches(1), net=build(), loss=LOSS,
                     vocab_size=V, devices=[npx.cpu()], num_steps=1)
    arguments.update(change)
    with pytest.raises(error, match=message):
        d2l.train_bert(**arguments)
    assert not Path('runs').exists()


@pytest.mark.parametrize('num_steps', [4, 3])
def test_a_generator_is_read_once(num_steps):
    generator = (batch for batch in batches(3))
    if num_steps == 3:
        history = d2l.train_bert(generator, build(), LOSS, V, [npx.cpu()], 3)
        assert history.num_steps == 3
        return
    with pytest.raises(ValueError, match=(
            '^train_iter is used up after step 3, as a generator is, .*: give '
            'a list or a data loader, or lower num_steps to 3$')):
        d2l.train_bert(generator, build(), LOSS, V, [npx.cpu()], num_steps)


@pytest.mark.parametrize('args, keywords, message', [
    ((1, 1), dict(num_steps=1), 'num_steps was given twice'),
    ((1, 1, 1), {}, 'not 3 arguments')])
def test_arguments_that_are_too_many_are_counted(args, keywords, message):
    with pytest.raises(TypeError, match=message):
        d2l.train_bert(batches(1), build(), LOSS, V, [npx.cpu()], *args,
                       **keywords)


# Representing text

def test_training_binds_the_vocabulary_for_the_encodings():
    train_iter = batches(1)
    net = build()
    d2l.train_bert(train_iter, net, LOSS, V, [npx.cpu()], 1)
    assert net.vocab is train_iter.vocab
    ids = train_iter.vocab[['<cls>', 'word3', 'word1', '<sep>', 'word2',
                            '<sep>']]
    expected, _, _ = net(np.array([ids]), np.array([[0, 0, 0, 0, 1, 1]]),
                         np.array([6]))
    encoded = d2l.get_bert_encoding(net, ['word3', 'word1'], ['word2'])
    onp.testing.assert_array_equal(encoded.asnumpy(), expected.asnumpy())
    assert d2l.get_bert_encoding(net, ['word3']).shape == (1, 3, H)


def test_tokens_may_come_from_a_generator():
    net, texts = build(), (['word3', 'word1'], ['word2'])
    from_lists, from_generators = (
        d2l.get_bert_encoding(net, *inputs, vocab=Batches.vocab)
        for inputs in (texts, map(iter, texts)))
    onp.testing.assert_array_equal(from_generators.asnumpy(),
                                   from_lists.asnumpy())


def test_unknown_words_are_encoded_as_unk():
    net = build()
    known, unknown = (d2l.get_bert_encoding(net, [word], vocab=Batches.vocab)
                      for word in ('<unk>', 'albatross'))
    onp.testing.assert_array_equal(known.asnumpy(), unknown.asnumpy())


def test_the_books_own_net_can_be_encoded_with(book):
    ours, theirs = (d2l.get_bert_encoding(build(module), ['word3'],
                                          vocab=Batches.vocab)
                    for module in (d2l, book))
    onp.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), atol=2e-5)


def test_a_net_without_a_vocabulary_says_so():
    with pytest.raises(ValueError, match='no vocabulary'):
        d2l.get_bert_encoding(build(), ['word3'])


@pytest.mark.parametrize('texts, message', [
    (('a crane',), "tokens_a must .* give 'a crane'.split()"),
    ((['a'], 'a crane'), "tokens_b must .* give 'a crane'.split()"),
    ((['a', 3],), "tokens_a must be a list of strings, and .* 3, a int"),
    ((['a'], [b'a']), "tokens_b must be a list of strings, and .*, a bytes")])
def test_a_text_that_is_no_list_of_tokens_is_refused(texts, message):
    with pytest.raises(TypeError, match=message.replace('(', '[(]')
                       .replace(')', '[)]')):
        d2l.get_bert_encoding(build(), *texts, vocab=Batches.vocab)


def test_encoding_while_somebody_records_changes_nothing(path):
    net, tokens = build(dropout=0.5), ['word3', 'word1']
    net.vocab = Batches.vocab
    alone = d2l.get_bert_encoding(net, tokens)
    x = np.array([3.0])
    x.attach_grad()
    with autograd.record():
        y = x * x
        encoded = d2l.get_bert_encoding(net, tokens)
        assert autograd.is_recording() and autograd.is_training()
        y = y * encoded.sum()
    onp.testing.assert_array_equal(encoded.asnumpy(), alone.asnumpy())
    y.backward()
    assert float(x.grad) == pytest.approx(6 * float(alone.sum()), rel=1e-5)
    for param in net.collect_params().values():
        assert not param.grad().asnumpy().any()     # no graph led to it


def test_training_is_told_in_lines_where_there_is_no_terminal(
        monkeypatch, capfd):
    monkeypatch.setattr(progress.LineBar, 'INTERVAL', 0)
    net = build()
    d2l.train_bert(batches(1), net, LOSS, V, [npx.cpu()], 2, 4)
    out, err = capfd.readouterr()
    count = sum(p.data().size for p in net.collect_params().values())
    lines = err.splitlines()
    assert lines[0] == (f'training {count:,} parameters: 4 steps of 5 '
                        'sentence pairs on [cpu(0)]')
    assert [re.fullmatch(r'step (\d)/4: mlm \d\.\d{3}, nsp \d\.\d{3}, '
                         r'\d+ s left', line).group(1)
            for line in lines[1:]] == ['2', '4']
    assert out.startswith('MLM loss ') and out.count('\n') == 2
