"""What BERT's relatives have otherwise, in the net itself."""
import numpy as onp
import pytest
from test_bert import MAX_LEN, F, H, N, V, host_batch, on_device

import d2lbert as d2l
from d2lbert.machine.backend import autograd, init, mx
from d2lbert.nn import packed

#: The structures of the families, small.
RELATIVES = {
    'distilbert': dict(num_segments=0, heads=('mlm',)),
    'roberta': dict(num_segments=1, heads=('pooler', 'mlm')),
    'albert': dict(embedding_size=5, num_groups=2, inner_group_num=2),
    'flaubert': dict(num_segments=0, heads=('mlm',), mlm_hidden=False),
    'flaubert large': dict(num_segments=0, heads=('mlm',), mlm_hidden=False,
                           pre_norm=True, final_norm=False),
    'pre-norm': dict(pre_norm=True)}


def build(num_layers=4, seed=0, dropout=0.0, **keywords):
    """A net with weights that are neither zero nor one."""
    net = d2l.BERTModel(V, H, F, N, num_layers, dropout, MAX_LEN,
                        embedding_norm=True, **keywords)
    mx.random.seed(seed)
    net.initialize(init.Normal(0.3))
    rng = onp.random.RandomState(seed)
    for name, param in net.collect_params().items():
        if name.endswith(('bias', 'beta', 'gamma')):
            param.set_data(rng.normal(name.endswith('gamma'), 0.3,
                                      param.shape))
    return net


def gradients(net, times=1):
    """{name: gradient} of a sum over what a net says, recorded `times`."""
    tokens, segments, valid_lens, places = on_device(host_batch())
    for _ in range(times):
        with autograd.record(train_mode=False):
            X, mlm, _ = net(tokens, segments, valid_lens, places)
            # Every part of it by itself, as LayerNorm's sum is no news
            loss = (X ** 2 * mx.np.arange(H)).sum() + (mlm ** 2).mean()
        loss.backward()
    return {name: param.grad().asnumpy() for name, param
            in net._collect_params_with_prefix().items()
            if param.grad_req != 'null'}


@pytest.mark.parametrize('num_groups, inner, num_layers', [(1, 1, 12),
                                                           (2, 2, 6)])
def test_gradients_of_shared_blocks_add_up(num_groups, inner, num_layers,
                                           path):
    shared = build(num_layers, num_groups=num_groups, inner_group_num=inner)
    alone = build(num_layers * inner)
    params = alone._collect_params_with_prefix()
    used = shared.encoder.blks.up_to(-1)
    assert len(used) == num_layers * inner
    assert len(set(map(id, used))) == num_groups * inner
    own = {id(blk): k for k, blk in enumerate(shared.encoder.blks)}
    places = [own[id(blk)] for blk in used]
    theirs = shared._collect_params_with_prefix()
    for name, param in params.items():
        _, is_blk, rest = name.partition('encoder.blks.')
        if is_blk:
            k, _, rest = rest.partition('.')
            name = f'encoder.blks.{places[int(k)]}.{rest}'
        param.set_data(theirs[name].data())
    for net in shared, alone:
        net.hidden.collect_params().setattr('grad_req', 'null')
        net.nsp.collect_params().setattr('grad_req', 'null')
    expected = {}
    for name, gradient in gradients(alone).items():
        _, is_blk, rest = name.partition('encoder.blks.')
        if is_blk:
            k, _, rest = rest.partition('.')
            name = f'encoder.blks.{places[int(k)]}.{rest}'
        expected[name] = expected.get(name, 0) + gradient.astype('float64')

    def check(found, factor):
        assert set(found) == set(expected)
        for name, gradient in expected.items():
            size = abs(gradient).max() + 1e-6
            assert abs(found[name] / factor - gradient).max() < (
                1e-4 * size), name
    check(gradients(shared), 1)
    check(gradients(shared), 1)         # and nothing is left of the last
    for param in theirs.values():
        if param.grad_req != 'null':
            param.grad_req = 'add'
    check(gradients(shared, 3), 3)


@pytest.mark.parametrize('name', RELATIVES)
def test_a_relative_is_the_same_called_as_on_the_page(name, path):
    net = build(**RELATIVES[name])
    batch = host_batch()
    tokens, segments, valid_lens, places = on_device(batch)
    X, mlm, nsp = net(tokens, segments, valid_lens, places)
    rows, begins, packed_nsp, _ = packed.encode(
        net, tokens, segments, valid_lens)
    firsts = packed.encode_first_tokens(net.encoder, tokens, segments,
                                        valid_lens)
    # A hook on a child, and every child is called with its padding
    net.encoder.blks[0].register_forward_hook(lambda *args: None)
    net.encoder.token_embedding.register_forward_hook(lambda *args: None)
    slow, slow_mlm, slow_nsp = net(tokens, segments, valid_lens, places)
    for b, n in enumerate(map(int, batch[2])):
        for found in (X[b, :n], rows[begins[b]:begins[b] + n]):
            onp.testing.assert_allclose(found.asnumpy(),
                                        slow[b, :n].asnumpy(), 0, 1e-5)
        onp.testing.assert_allclose(firsts[b].asnumpy(),
                                    slow[b, 0].asnumpy(), 0, 1e-5)
    onp.testing.assert_allclose(mlm.asnumpy(), slow_mlm.asnumpy(), 0, 1e-4)
    has_nsp = 'heads' not in RELATIVES[name]
    assert (nsp is not None) == (packed_nsp is not None) == has_nsp
    if has_nsp:
        onp.testing.assert_allclose(packed_nsp.asnumpy(),
                                    slow_nsp.asnumpy(), 0, 1e-5)


@pytest.mark.parametrize('name', ['distilbert', 'roberta'])
def test_segments_are_not_looked_at_where_there_are_fewer_than_two(name):
    net = build(**RELATIVES[name])
    tokens, segments, valid_lens, _ = on_device(host_batch())
    for encoded in (net(tokens, segments, valid_lens)[0],
                    net(tokens, segments + 5, valid_lens)[0]):
        assert (encoded == net(tokens, segments * 0, valid_lens)[0]).all()
    if name == 'distilbert':
        assert not any('segment' in name for name
                       in net._collect_params_with_prefix())


def test_layers_are_counted_and_not_blocks():
    net = build(6, num_groups=2, inner_group_num=2)
    tokens, segments, valid_lens, _ = on_device(host_batch())

    def behind(layer):
        return net.encoder(tokens, segments, valid_lens, layer).asnumpy()
    blks, X = net.encoder.blks, net.encoder.embed(tokens, segments)
    assert (len(blks), blks.num_layers) == (4, 6)
    for layer, group in enumerate([0, 0, 0, 1, 1, 1], 1):
        for blk in list(blks)[2 * group:2 * group + 2]:
            X = blk(X, valid_lens)
        assert (behind(layer) == X.asnumpy()).all()
    assert (behind(-1) == X.asnumpy()).all()
    with pytest.raises(ValueError, match='between -7 and 6'):
        behind(7)


def test_the_last_layer_has_its_number_where_norms_come_first():
    encoder = d2l.BERTEncoder(9, 8, 16, 2, 3, 0.0, 12, pre_norm=True)
    encoder.initialize(init.Normal(0.5))
    tokens = onp.arange(9).reshape(1, 9)
    last, third, second = (encoder(tokens, 0 * tokens, None, layer).asnumpy()
                           for layer in (-1, 3, 2))
    onp.testing.assert_array_equal(third, last)
    # It alone is normalized
    onp.testing.assert_allclose(last.std(axis=-1), 1, rtol=1e-2)
    assert abs(second.std(axis=-1) - 1).max() > 0.1
