"""The Transformer encoder against NumPy loops in float64."""
import numpy as onp
import pytest
import reference

import d2lbert as d2l
from d2lbert.machine.backend import autograd, init, np
from d2lbert.nn.layers import Dense, LayerNorm


def ready(block, *inputs):
    """Initialize a block with weights that are neither zero nor one."""
    block.initialize(init.Normal(0.5))
    block(*inputs)      # parameters exist after the first call
    for param in block.collect_params().values():
        param.set_data(np.random.normal(0, 0.5, param.shape))
    return reference.parameters(block)


def test_layer_norm_is_the_equation(draw, path):
    X = draw(3, 4, 6)
    block = LayerNorm()
    params = ready(block, np.array(X))
    onp.testing.assert_allclose(block(np.array(X)).asnumpy(),
                                reference.layer_norm(params, X), atol=2e-6)


def test_a_constant_row_is_normalized_to_beta(path):
    block = LayerNorm()
    params = ready(block, np.ones((2, 5)))
    onp.testing.assert_allclose(block(np.full((2, 5), 7.)).asnumpy(),
                                onp.stack([params['beta']] * 2), atol=1e-6)


@pytest.mark.parametrize('shape', [(3, 4, 6), (3, 1, 6), (4, 6)])
def test_add_norm_normalizes_the_sum(draw, shape, path):
    X, Y = draw(3, 4, 6), draw(*shape)      # a smaller Y is broadcast
    block = d2l.AddNorm(0.5)
    params = reference.under(ready(block, np.array(X), np.array(Y)), 'ln')
    onp.testing.assert_allclose(block(np.array(X), np.array(Y)).asnumpy(),
                                reference.layer_norm(params, X + Y),
                                atol=2e-6)


@pytest.mark.parametrize('is_hooked', [False, True])
def test_add_norm_drops_from_the_second_input_alone(draw, path, is_hooked):
    X, Y = np.array(draw(3, 4, 6)), np.array(draw(3, 4, 6))
    block = d2l.AddNorm(0.5)
    if is_hooked:       # and so called as the page calls it
        block.ln.register_forward_hook(lambda *call: None)
    ready(block, X, Y)
    with autograd.train_mode():
        first, second = block(X, Y).asnumpy(), block(X, Y).asnumpy()
        silent = block(X, np.zeros_like(X)).asnumpy()
    assert abs(first - second).max() > 0.1
    onp.testing.assert_allclose(silent, block(X, np.zeros_like(X)).asnumpy(),
                                atol=1e-6)


def test_position_wise_ffn_is_two_dense_layers(draw, path):
    X = draw(2, 3, 4)
    block = d2l.PositionWiseFFN(5, 7)
    params = ready(block, np.array(X))
    output = block(np.array(X)).asnumpy()
    assert output.shape == (2, 3, 7)
    onp.testing.assert_allclose(output, reference.ffn(params, X), atol=2e-6)


@pytest.mark.parametrize('valid_lens', [None, [5, 2, 1]],
                         ids=['no lengths', 'lengths'])
@pytest.mark.parametrize('use_bias', [True, False], ids=['bias', 'no bias'])
def test_an_encoder_block_is_its_equations(draw, valid_lens, use_bias, path):
    X = draw(3, 5, 6)
    lens = valid_lens and np.array(valid_lens)
    block = d2l.TransformerEncoderBlock(6, 10, 3, 0.5, use_bias)
    params = ready(block, np.array(X), lens)
    assert ('attention.W_q.bias' in params) == use_bias
    output = block(np.array(X), lens).asnumpy()
    expected = reference.encoder_block(params, 3, X, valid_lens)
    onp.testing.assert_allclose(output, expected, atol=1e-5)


GLUONS = {'sigmoid': lambda X: 1 / (1 + onp.exp(-X)),
          'softrelu': lambda X: onp.log1p(onp.exp(X)),
          'softsign': lambda X: X / (1 + abs(X)), 'tanh': onp.tanh}


@pytest.mark.parametrize('act', GLUONS)
def test_every_activation_of_gluon_is_applied(draw, act, path):
    X = draw(3, 5, 6)
    block = d2l.PositionWiseFFN(10, 6, activation=act)
    params = ready(block, np.array(X))
    onp.testing.assert_allclose(block(np.array(X)).asnumpy(),
                                reference.ffn(params, X, GLUONS[act]),
                                atol=1e-5)
    block = d2l.TransformerEncoderBlock(6, 10, 3, 0.0, activation=act)
    params = ready(block, np.array(X), None)
    onp.testing.assert_allclose(
        block(np.array(X), None).asnumpy(), reference.encoder_block(
            params, 3, X, None, GLUONS[act]), atol=1e-5)


@pytest.mark.parametrize('kind', ['hook', 'lengths by query', 'dropout'])
def test_an_encoder_block_of_any_kind_is_called_as_the_page_does(draw, kind,
                                                                 path):
    X, valid_lens, calls = draw(3, 5, 6), [5, 2, 1], []
    lens = np.array(valid_lens)
    if kind == 'lengths by query':
        lens = lens.reshape(3, 1).repeat(5, axis=1)
    block = d2l.TransformerEncoderBlock(
        6, 10, 3, 0.5, True, activation_dropout=0.5 * (kind == 'dropout'))
    params = ready(block, np.array(X), lens)
    if kind == 'hook':
        block.ffn.register_forward_hook(lambda *_: calls.append(kind))
    output = block(np.array(X), lens).asnumpy()
    expected = reference.encoder_block(params, 3, X, valid_lens)
    onp.testing.assert_allclose(output, expected, atol=1e-5)
    assert len(calls) == (kind == 'hook')


@pytest.mark.parametrize('use_bias', [True, False], ids=['bias', 'no bias'])
@pytest.mark.parametrize('name', [
    'attention.W_q', 'attention.W_v', 'attention.W_o', 'ffn.dense1',
    'ffn.dense2'])
def test_a_layer_with_another_bias_than_its_neighbours_is_applied(
        draw, name, use_bias, path):
    X = draw(3, 5, 6)
    part, _, layer = name.partition('.')
    block = d2l.TransformerEncoderBlock(6, 10, 3, 0.0, use_bias)
    old = getattr(getattr(block, part), layer)
    setattr(getattr(block, part), layer, Dense(
        old._units, use_bias=old.bias is None, in_units=old._in_units,
        activation='relu' if layer == 'dense1' else None))
    params = ready(block, np.array(X), None)
    assert (f'{name}.bias' in params) == (old.bias is None)
    onp.testing.assert_allclose(
        block(np.array(X), None).asnumpy(),
        reference.encoder_block(params, 3, X, None), atol=1e-5)


def test_both_names_of_the_encoder_block_are_one_class():
    assert d2l.EncoderBlock is d2l.TransformerEncoderBlock


@pytest.mark.parametrize('num_hiddens', [8, 7, 1])
def test_positions_are_sines_and_cosines(draw, num_hiddens):
    X = draw(2, 6, num_hiddens)
    output = d2l.PositionalEncoding(num_hiddens, 0.5, 10)(np.array(X))
    onp.testing.assert_allclose(
        output.asnumpy(), X + reference.sinusoids(6, num_hiddens), atol=1e-5)


def test_positional_encoding_drops_when_training():
    encoding = d2l.PositionalEncoding(64, 0.5)
    with autograd.train_mode():
        output = encoding(np.ones((1, 100, 64))).asnumpy()
    assert 0.45 < (output == 0).mean() < 0.55


def test_sequences_longer_than_the_positions_are_refused():
    encoding = d2l.PositionalEncoding(4, 0.0, max_len=5)
    with pytest.raises(ValueError, match='6 tokens .* 5 positions'):
        encoding(np.zeros((1, 6, 4)))
