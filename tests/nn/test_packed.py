"""Padding is left out where every block is ours, and nowhere else."""
import numpy as onp
import pytest

import d2lbert as d2l
from d2lbert.machine.backend import autograd, gluon, nn, np
from d2lbert.nn import packed
from d2lbert.nn.layers import Dense

V, H, T, LENS = 30, 8, 9, [9, 3, 1, 6]


def build(**kwargs):
    net = d2l.BERTModel(V, H, 12, 2, 2, 0.0, max_len=T, **kwargs)
    net.initialize()
    randomize(net)
    return net


def randomize(net):
    rng = onp.random.RandomState(0)
    for _, param in sorted(net._collect_params_with_prefix().items()):
        param.set_data(np.array(rng.normal(0, 0.3, param.shape),
                                dtype=param.dtype))


@pytest.fixture
def batch():
    rng = onp.random.RandomState(1)
    return (np.array(rng.randint(0, V, (4, T)), dtype='int32'),
            np.array(rng.randint(0, 2, (4, T)), dtype='int32'),
            np.array(LENS, dtype='float32'))


def real(encoded_X):
    return onp.concatenate([X[:n] for X, n in zip(encoded_X.asnumpy(), LENS)])


def picked(X, begins):
    return onp.concatenate([X.asnumpy()[begin:begin + n]
                            for begin, n in zip(begins, LENS)])


@pytest.mark.parametrize('layer', [0, 1, -2])
def test_states_behind_any_block_are_those_of_the_net(layer, batch, path):
    net = build(activation='gelu', embedding_norm=True)
    X, begins, nsp, _ = packed.encode(net, *batch, layer=layer)
    onp.testing.assert_allclose(
        picked(X, begins), real(net.encoder(*batch, layer)), atol=2e-6)
    assert nsp is None
    net.encoder.blks[1].register_forward_hook(lambda *_: None)
    Y, begins, nsp, _ = packed.encode(net, *batch, layer=layer)
    assert len(Y) > len(X) and nsp is None
    onp.testing.assert_allclose(picked(Y, begins),
                                real(net.encoder(*batch, layer)),
                                atol=2e-6)


@pytest.mark.parametrize('positional', ['learnable', 'sinusoidal'])
def test_real_tokens_get_what_the_net_says_of_them(positional, batch, path,
                                                   rows):
    net = build(positional=positional)
    encoded_X, _, nsp_Y_hat = net(*batch)
    rows.clear()
    X, begins, nsp, _ = packed.encode(net, *batch)
    assert X.shape == (sum(LENS), H) and set(rows) == {sum(LENS), len(LENS)}
    onp.testing.assert_allclose(picked(X, begins), real(encoded_X),
                                atol=2e-6)
    onp.testing.assert_allclose(nsp.asnumpy(), nsp_Y_hat.asnumpy(),
                                atol=2e-6)


@pytest.mark.parametrize('layer', [1, -1])
@pytest.mark.parametrize('ours', [True, False])
def test_some_tokens_alone_are_as_among_all(ours, layer, batch, path):
    net = build()
    if not ours:
        net.encoder.blks[1].register_forward_hook(lambda *_: None)
    at = onp.array([3, 0, 2, 3]), onp.array([5, 8, 0, 5])
    X, begins, nsp, _ = packed.encode(net, *batch, layer)
    _, same, alone, some = packed.encode(net, *batch, layer, at)
    onp.testing.assert_array_equal(some.asnumpy(),
                                   X.asnumpy()[begins[at[0]] + at[1]])
    onp.testing.assert_array_equal(same, begins)
    assert (nsp is None) == (alone is None) == (layer != -1)
    if nsp is not None:
        onp.testing.assert_array_equal(alone.asnumpy(), nsp.asnumpy())


def own_block(net):
    class Doubling(gluon.Block):
        def forward(self, X, valid_lens):
            assert X.ndim == 3 and len(valid_lens) == len(LENS)
            return X * 2
    net.encoder.blks.add(Doubling())


def subclass(net):
    class Louder(d2l.EncoderBlock):
        def forward(self, X, valid_lens):
            return super().forward(X, valid_lens) * 2
    net.encoder.blks._children['1'] = block = Louder(H, 12, 2, 0.0, True)
    block.initialize()


def hook(net):
    net.encoder.blks[0].ffn.dense1.register_forward_hook(
        lambda block, inputs, output: None)


def patch(net):
    net.encoder.blks[1].forward = lambda X, valid_lens: X * 2


def added_layer(net):
    net.mlm.mlp.add(nn.Dense(V, flatten=False, in_units=V))
    net.mlm.mlp[-1].initialize()


def other_layer(net):
    block = net.encoder.blks[0].attention
    block.W_q = Dense(H, activation='tanh', in_units=H)
    block.W_q.initialize()


def other_bias(net):
    block = net.encoder.blks[0]
    block.attention.W_o = Dense(H, use_bias=False, in_units=H)
    block.ffn.dense1 = Dense(12, activation='relu', use_bias=False, in_units=H)
    for layer in block.attention.W_o, block.ffn.dense1:
        layer.initialize()


def head_without_bias(net):
    net.mlm.mlp._children['2'] = Dense(V, use_bias=False, in_units=H)
    net.mlm.mlp[2].initialize()


def head_with_activation(net):
    net.mlm.mlp._children['2'] = Dense(V, activation='tanh', in_units=H)
    net.mlm.mlp[2].initialize()


def wanted_weights(net):
    net.encoder.blks[0].attention.attention.keeps_weights = True


def shared_dropout(net):
    net.encoder.blks[0].addnorm1.dropout = nn.Dropout(0.5, axes=(1,))


def no_change(net):
    pass


CHANGES = [own_block, subclass, hook, patch, added_layer, other_layer,
           other_bias, head_without_bias, head_with_activation,
           wanted_weights]


@pytest.mark.parametrize('change', [*CHANGES, shared_dropout],
                         ids=lambda f: f.__name__)
def test_what_a_reader_changed_is_served_on_padded_arrays(change, batch,
                                                          path, rows):
    net = build()
    change(net)
    randomize(net)
    encoded_X, _, nsp_Y_hat = net(*batch)
    rows.clear()
    X, begins, nsp, _ = packed.encode(net, *batch)
    assert len(LENS) * T in rows
    onp.testing.assert_array_equal(picked(X, begins), real(encoded_X))
    onp.testing.assert_array_equal(nsp.asnumpy(), nsp_Y_hat.asnumpy())


@pytest.mark.parametrize('change', [*CHANGES, no_change],
                         ids=lambda f: f.__name__)
def test_the_losses_are_those_of_the_changed_net(change, batch, path):
    net, loss = build(), gluon.loss.SoftmaxCELoss()
    change(net)
    randomize(net)
    positions = np.array([[2, 5], [1, 0], [0, 0], [4, 0]], dtype='int32')
    weights = np.array([[1, 1], [1, 0], [0, 0], [1, 0]])
    labels = np.array([[7, 9], [3, 0], [0, 0], [8, 0]], dtype='int32')
    nsp_y = np.array([1, 0, 0, 1])
    with autograd.record():
        (mlm_l,), (nsp_l,), _ = d2l._get_batch_loss_bert(
            net, loss, V, *([X] for X in (*batch, positions, weights, labels,
                                          nsp_y)))
    _, mlm_Y_hat, nsp_Y_hat = net(*batch, positions)
    wanted = loss(mlm_Y_hat.reshape(-1, V), labels.reshape(-1),
                  weights.reshape(-1, 1)).sum() / weights.sum()
    onp.testing.assert_allclose(float(mlm_l), float(wanted), rtol=1e-5)
    onp.testing.assert_allclose(
        float(nsp_l), float(loss(nsp_Y_hat, nsp_y).mean()), rtol=1e-5)


def test_a_net_of_other_numbers_is_served_on_padded_arrays(batch, rows):
    net = build()
    fine, _, _ = net(*batch)
    net.cast('float64')
    rows.clear()
    X, begins, nsp, _ = packed.encode(net, *batch)
    assert X.dtype == onp.float64 and len(LENS) * T in rows
    onp.testing.assert_allclose(picked(X, begins), real(fine), atol=1e-5)


def test_a_sequence_of_nothing_is_served_on_padded_arrays(batch, rows):
    net = build()
    tokens, segments, valid_lens = batch
    valid_lens[1] = 0
    X, begins, _, _ = packed.encode(net, tokens, segments, valid_lens)
    assert begins.tolist() == [0, T, 2 * T, 3 * T]
    assert onp.isfinite(X.asnumpy()).all()


def test_all_sizes_are_known_before_the_first_call():
    for positional in ('learnable', 'sinusoidal'):
        net = d2l.BERTModel(V, H, 12, 2, 1, 0.1, positional=positional)
        assert all(0 not in param.shape
                   for param in net.collect_params().values())


@pytest.mark.parametrize('positional', ['learnable', 'sinusoidal'])
def test_the_first_tokens_are_those_of_all_places(positional, batch, path,
                                                  rows):
    net = build(positional=positional)
    encoded_X, _, _ = net(*batch)
    del rows[:]
    cls_X = packed.encode_first_tokens(net.encoder, *batch)
    onp.testing.assert_allclose(cls_X.asnumpy(), encoded_X[:, 0].asnumpy(),
                                atol=1e-6)
    assert max(rows) == sum(LENS) and rows[-3:] == [len(LENS)] * 3


def test_first_tokens_of_a_batch_that_has_no_padding(batch):
    net = build()
    for lens in (None, np.full((4,), T)):
        cls_X = packed.encode_first_tokens(net.encoder, *batch[:2], lens)
        onp.testing.assert_allclose(
            cls_X.asnumpy(), net.encoder(*batch[:2], None)[:, 0].asnumpy(),
            atol=1e-6)


def test_a_sequence_of_no_token_has_a_first_one_all_the_same(batch):
    net, lens = build(), np.array([2, 0, 1, 5], dtype='float32')
    onp.testing.assert_array_equal(
        packed.encode_first_tokens(net.encoder, *batch[:2], lens).asnumpy(),
        net.encoder(*batch[:2], lens)[:, 0].asnumpy())


def test_bad_ids_and_lengths_are_refused_there_too(batch):
    net, (tokens, segments, lens) = build(), batch
    with pytest.raises(ValueError, match='token 30 is out of range'):
        packed.encode_first_tokens(net.encoder, tokens * 0 + V, segments, lens)
    for length in 9.5, onp.inf:
        with pytest.raises(ValueError,
                           match=f'valid length {length} is not a whole'):
            packed.encode_first_tokens(net.encoder, tokens, segments,
                                       lens * 0 + length)
    for call, block in ((packed.encode, net),
                        (packed.encode_first_tokens, net.encoder)):
        with pytest.raises(ValueError, match=r'one row .* of shape \(0, 9\)'):
            call(block, tokens[:0], segments[:0], lens[:0])


def test_dropout_follows_sinusoidal_positions(path):
    encoder = d2l.BERTEncoder(9, 64, 16, 2, 1, 0.5, 40,
                              positional='sinusoidal')
    encoder.initialize()
    tokens = np.array(onp.random.RandomState(0).randint(0, 9, (4, 40)))
    inputs = tokens, np.zeros_like(tokens), None
    whole = encoder(*inputs, 0).asnumpy()
    with autograd.record():
        dropped = encoder(*inputs, 0).asnumpy()
    stays = dropped != 0
    assert 0.45 < stays.mean() < 0.55
    onp.testing.assert_allclose(dropped[stays], 2 * whole[stays], rtol=1e-6)
