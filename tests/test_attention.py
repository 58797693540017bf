"""Attention against NumPy loops in float64."""
import numpy as onp
import pytest
import reference

import d2lbert as d2l
from d2lbert.machine.backend import autograd, init, nn, np

LENGTHS = {'no lengths': None, 'a length a row': [3, 1, 5],
           'a length a query': [[1, 2, 3, 4, 5], [5, 3, 1, 5, 2],
                                [2, 2, 2, 2, 2]]}


@pytest.fixture(params=LENGTHS.values(), ids=LENGTHS)
def valid_lens(request):
    return request.param


def on_device(valid_lens):
    return None if valid_lens is None else np.array(valid_lens)


def test_masked_softmax_is_softmax_over_the_valid_keys(draw, valid_lens):
    X = 10 * draw(3, 5, 7)
    Y = d2l.masked_softmax(np.array(X), on_device(valid_lens)).asnumpy()
    expected = reference.masked_softmax(X, valid_lens)
    onp.testing.assert_allclose(Y, expected, atol=1e-6)
    assert (Y[expected == 0] == 0).all()


def test_without_a_valid_key_all_keys_count_alike(draw):
    Y = d2l.masked_softmax(np.array(draw(2, 3, 4)), np.array([0, 4]))
    onp.testing.assert_allclose(Y[0].asnumpy(), 1 / 4, atol=1e-6)


@pytest.mark.parametrize('beyond, within', [(-2, 0), (9, 4)])
def test_lengths_beyond_the_keys_count_as_the_nearest(draw, beyond, within):
    X = np.array(draw(2, 3, 4))
    onp.testing.assert_array_equal(
        d2l.masked_softmax(X, np.array([3, beyond])).asnumpy(),
        d2l.masked_softmax(X, np.array([3, within])).asnumpy())


def test_dot_product_attention_is_the_equation(draw, valid_lens):
    queries, keys, values = draw(3, 5, 2), draw(3, 6, 2), draw(3, 6, 4)
    attention = d2l.DotProductAttention(dropout=0.5)
    assert attention.attention_weights is None
    output = attention(np.array(queries), np.array(keys), np.array(values),
                       on_device(valid_lens))
    weights, expected = reference.attention(queries, keys, values, valid_lens)
    onp.testing.assert_allclose(output.asnumpy(), expected, atol=1e-6)
    onp.testing.assert_allclose(attention.attention_weights.asnumpy(),
                                weights, atol=1e-6)


def test_attention_weights_are_those_before_dropout(draw):
    attention = d2l.DotProductAttention(dropout=0.5)
    with autograd.record():
        output = attention(np.array(draw(2, 3, 4)), np.array(draw(2, 6, 4)),
                           np.ones((2, 6, 8)))
    onp.testing.assert_allclose(
        attention.attention_weights.asnumpy().sum(axis=-1), 1, atol=1e-6)
    assert abs(output.asnumpy() - 1).max() > 0.1


@pytest.fixture(params=[True, False], ids=['bias', 'no bias'])
def multi_head(request):
    attention = d2l.MultiHeadAttention(6, 3, 0.5, use_bias=request.param)
    attention.initialize(init.Normal(0.5))
    # Parameters exist after the first call, and later calls differ
    attention(*[np.zeros((1, 1, 6))] * 3, None)
    if request.param:
        for name in ('W_q', 'W_k', 'W_v', 'W_o'):
            getattr(attention, name).bias.set_data(np.random.normal(size=6))
    return attention


def test_self_attention_is_attention_head_by_head(multi_head, draw,
                                                  valid_lens, path):
    X = draw(3, 5, 6)
    output = multi_head(*[np.array(X)] * 3, on_device(valid_lens))
    expected = reference.multi_head(reference.parameters(multi_head), 3,
                                    X, X, X, valid_lens)
    onp.testing.assert_allclose(output.asnumpy(), expected, atol=2e-6)


def test_a_length_of_zero_gives_numbers_and_spoils_no_other_row(
        multi_head, draw, path):
    X = draw(3, 5, 6)
    output = multi_head(*[np.array(X)] * 3, np.array([3, 0, 5])).asnumpy()
    assert onp.isfinite(output).all()
    expected = reference.multi_head(reference.parameters(multi_head), 3,
                                    X, X, X, [3, 5, 5])
    onp.testing.assert_allclose(output[::2], expected[::2], atol=2e-6)


def test_cross_attention_is_attention_head_by_head(multi_head, draw,
                                                   valid_lens, path):
    queries, keys, values = draw(3, 5, 6), draw(3, 6, 6), draw(3, 6, 6)
    output = multi_head(np.array(queries), np.array(keys), np.array(values),
                        on_device(valid_lens))
    expected = reference.multi_head(reference.parameters(multi_head), 3,
                                    queries, keys, values, valid_lens)
    onp.testing.assert_allclose(output.asnumpy(), expected, atol=2e-6)


def test_the_weights_of_every_head_can_be_looked_at(multi_head, draw, path):
    X, valid_lens = draw(3, 5, 6), [3, 1, 5]
    with d2l.keep_attention(multi_head):
        multi_head(*[np.array(X)] * 3, np.array(valid_lens))
    weights = multi_head.attention.attention_weights.asnumpy()
    assert weights.shape == (9, 5, 5)
    params = reference.parameters(multi_head)
    Q, K = (reference.dense(reference.under(params, name), X)
            for name in ('W_q', 'W_k'))
    for head in range(3):
        columns = slice(2 * head, 2 * head + 2)
        expected, _ = reference.attention(Q[..., columns], K[..., columns],
                                          X, valid_lens)
        onp.testing.assert_allclose(weights[head::3], expected, atol=2e-6)


def test_a_block_with_two_parents_stops_keeping_weights(multi_head):
    net = nn.Block()
    net.once, net.again = multi_head, multi_head
    with d2l.keep_attention(net):
        assert multi_head.attention.keeps_weights
    assert not multi_head.attention.keeps_weights


def test_transpose_qkv_gives_each_head_its_columns(draw):
    X = draw(2, 4, 6)
    heads = d2l.transpose_qkv(np.array(X), 3).asnumpy()
    for b in range(2):
        for n in range(3):
            onp.testing.assert_array_equal(heads[3 * b + n],
                                           X[b, :, 2 * n:2 * n + 2])


def test_transpose_output_undoes_transpose_qkv(draw):
    X = np.array(draw(2, 4, 6))
    onp.testing.assert_array_equal(
        d2l.transpose_output(d2l.transpose_qkv(X, 3), 3).asnumpy(),
        X.asnumpy())


@pytest.mark.parametrize('num_heads', [4, 0])
def test_heads_must_divide_the_hidden_units(num_heads):
    with pytest.raises(ValueError, match=f'{num_heads} heads .* 6 hiddens'):
        d2l.MultiHeadAttention(6, num_heads, 0.0)
