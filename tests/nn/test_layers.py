"""What each parameter asks of its gradient, alone and beside the others."""
import itertools

import numpy as onp
import pytest

import d2lbert as d2l
from d2lbert import kernels
from d2lbert.bert_pretraining import _get_batch_loss_bert
from d2lbert.machine.backend import autograd, gluon, init, nn, np, npx
from d2lbert.nn import layers

REQUESTS = 'null', 'write', 'add'


def gradients(block, requests, run, passes=2):
    """{name: gradient or None} of these parameters after backward passes.

    requests: {name: grad_req}; all other parameters of the block ask for
    nothing.
    """
    params = block._collect_params_with_prefix()
    for name, param in params.items():
        param.grad_req = requests.get(name, 'null')
    for name, request in requests.items():
        if request != 'null':
            params[name].grad()[:] = 0
    for _ in range(passes):
        with autograd.record():
            loss = run()
        if any(request != 'null' for request in requests.values()):
            loss.backward()
    return {name: None if request == 'null'
            else params[name].grad().asnumpy()
            for name, request in requests.items()}


def check(block, names, run, wanted, combinations=None):
    """Every combination of requests gives what each asks for by itself.

    wanted: {name: the gradient of one pass}; two passes are made.
    """
    for requests in combinations or itertools.product(REQUESTS,
                                                      repeat=len(names)):
        requests = dict(zip(names, requests))
        got = gradients(block, requests, run)
        for name, request in requests.items():
            if request == 'null':
                assert got[name] is None
                continue
            times = 2 if request == 'add' else 1
            onp.testing.assert_allclose(
                got[name], times * wanted[name], rtol=2e-3,
                atol=1e-7 + 2e-5 * onp.abs(wanted[name]).max(),
                err_msg=f'{name} where {requests}')


def array(values):
    return np.array(onp.asarray(values, dtype='float32'))


@pytest.mark.parametrize('hybrid', [False, True])
@pytest.mark.parametrize('act', [None, 'relu', 'tanh'])
@pytest.mark.parametrize('flatten', [True, False])
def test_weights_and_bias_of_dense_learn_by_themselves(path, draw,
                                                       flatten, act,
                                                       hybrid):
    X, up = draw(9, 5), draw(9, 4)
    layer = layers.Dense(4, act, flatten=flatten,
                         bias_initializer=init.Normal(1))
    layer.initialize(init.Normal(1))
    layer(array(X))
    if hybrid:
        layer.hybridize()
    Z = (X.astype('float64') @ layer.weight.data().asnumpy().T
         + layer.bias.data().asnumpy())
    slope = {None: 1, 'relu': Z > 0, 'tanh': 1 - onp.tanh(Z) ** 2}[act]
    check(layer, ['weight', 'bias'],
          lambda: (layer(array(X)) * array(up)).sum(),
          {'weight': (up * slope).T @ X, 'bias': (up * slope).sum(0)})


def test_gamma_and_beta_of_layer_norm_learn_by_themselves(path, draw):
    X, up = draw(9, 5), draw(9, 5)
    layer = layers.LayerNorm()
    layer.initialize()
    layer(array(X))
    centred = X.astype('float64') - X.mean(1, keepdims=True)
    hat = centred / onp.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    check(layer, ['gamma', 'beta'],
          lambda: (layer(array(X)) * array(up)).sum(),
          {'gamma': (up * hat).sum(0), 'beta': up.sum(0)})


@pytest.mark.parametrize('make_act', [
    lambda: nn.Dropout(0.5), lambda: nn.LeakyReLU(0.1), layers.LayerNorm,
    lambda: layers.Dense(3, 'relu', in_units=4),
    lambda: nn.Activation('relu')],
    ids=['dropout', 'leaky', 'norm', 'dense', 'relu'])
def test_an_activation_of_the_readers_own_is_called(path, draw, make_act):
    X = array(draw(9, 5))
    layer, act = layers.Dense(4, in_units=5), make_act()
    for block in layer, act:
        block.initialize(init.Normal(1))
    expected = act(layer(X)).asnumpy()
    layer.act = act
    onp.testing.assert_allclose(layer(X).asnumpy(), expected, atol=1e-6)


@pytest.fixture
def model():
    """A tiny net, and a function that gives the loss of a tiny batch."""
    rng = onp.random.RandomState(0)
    V, T, P = 30, 8, 2
    net = d2l.BERTModel(V, 8, 12, 2, 1, 0.0, max_len=T)
    net.initialize(init.Normal(0.3))
    batch = [np.array(X, dtype=X.dtype) for X in (
        rng.randint(0, V, (4, T)).astype('int32'),
        rng.randint(0, 2, (4, T)).astype('int32'),
        onp.array([8, 5, 6, 3], 'float32'),
        rng.randint(0, 3, (4, P)).astype('int32'),
        onp.ones((4, P), 'float32'),
        rng.randint(0, V, (4, P)).astype('int32'),
        rng.randint(0, 2, 4).astype('float32'))]
    loss = gluon.loss.SoftmaxCELoss()

    def run():
        return _get_batch_loss_bert(net, loss, V, *([X] for X in batch))[2][0]
    run().wait_to_read()
    return net, run


@pytest.fixture
def by_mxnet(model, monkeypatch):
    """Gradients of all parameters by MXNet's own operators, all asked."""
    net, run = model
    names = net._collect_params_with_prefix()
    with monkeypatch.context() as patch:
        patch.setattr(kernels, 'enabled', lambda *arrays: False)
        return gradients(net, dict.fromkeys(names, 'write'), run, 1)


ATTENTION = [f'encoder.blks.0.attention.W_{part}' for part in 'qkv']


@pytest.mark.parametrize('names', [
    ['encoder.token_embedding.weight', 'encoder.segment_embedding.weight',
     'encoder.pos_embedding'],
    [f'{part}.weight' for part in ATTENTION],
    [f'{part}.bias' for part in ATTENTION],
    ['mlm.mlp.2.weight', 'mlm.mlp.2.bias'],
    ['hidden.weight', 'hidden.bias'],
    ['nsp.output.weight', 'nsp.output.bias'],
])
def test_parameters_of_one_operator_learn_by_themselves(by_mxnet, model,
                                                        path, names):
    net, run = model
    check(net, names, run, by_mxnet)


def test_any_parameters_of_the_model_learn_beside_any_others(by_mxnet, model,
                                                             path):
    net, run = model
    rng = onp.random.RandomState(1)
    check(net, by_mxnet, run, by_mxnet,
          [rng.choice(REQUESTS, len(by_mxnet)) for _ in range(12)])
    biases = [name for name in by_mxnet if name.endswith(('bias', 'beta'))]
    check(net, biases, run, by_mxnet, [['write'] * len(biases)])


@pytest.mark.parametrize('prefix', ['', 'arg:', 'aux:'])
def test_weights_with_names_of_old_versions_are_loaded(tmp_path, prefix):
    old, new = (gluon.nn.HybridSequential(prefix=name) for name in 'ab')
    for net in old, new:
        with net.name_scope():
            net.add(layers.Dense(3, in_units=4), layers.Dense(2, in_units=3))
        net.initialize(init.Normal(1))
    npx.save(str(tmp_path / 'old.params'), {
        prefix + name[len(old.prefix):]: param.data()
        for name, param in old.collect_params().items()})
    layers.load_parameters(new, tmp_path / 'old.params')
    expected, found = (net._collect_params_with_prefix()
                       for net in (old, new))
    assert len(found) == 4
    for name, param in found.items():
        onp.testing.assert_array_equal(param.data().asnumpy(),
                                       expected[name].data().asnumpy())


def test_the_first_editions_head_learns_its_bias_alone(path, draw):
    X = draw(4, 3, 6)
    head = d2l.NextSentencePred(5)
    head.initialize(init.Normal(1))
    head(array(X))
    names = list(head._collect_params_with_prefix())

    def run():
        return head(array(X)).sum()
    wanted = gradients(head, dict.fromkeys(names, 'write'), run, 1)
    biases = [name for name in names if name.endswith('bias')]
    check(head, biases, run, wanted)
    onp.testing.assert_allclose(wanted[biases[-1]], [4, 4])
