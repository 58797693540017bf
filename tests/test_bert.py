"""The model against NumPy in float64 and against the book's package."""
import re

import numpy as onp
import pytest
import reference

import d2lbert as d2l
from d2lbert import kernels
from d2lbert.machine.backend import autograd, gluon, init, mx, np, npx
from d2lbert.training.saved_runs import load_parameters, save_parameters

V, H, F, N, MAX_LEN = 30, 8, 12, 2, 12
EDITIONS = ['learnable', 'sinusoidal']

VALID_LENS = [7., 4., 3., 1.]


def build(module=d2l, num_layers=2, **kwargs):
    return module.BERTModel(V, H, F, N, num_layers, 0.0, max_len=MAX_LEN,
                            **kwargs)


def host_batch(seed=0, B=4, T=7, P=3):
    """tokens, segments, valid_lens, pred_positions as NumPy arrays."""
    rng = onp.random.RandomState(seed)
    return (rng.randint(0, V, (B, T)), rng.randint(0, 2, (B, T)),
            onp.array(VALID_LENS[:B], 'float32'),
            rng.randint(0, T, (B, P)))


def on_device(batch):
    return tuple(np.array(X, dtype=X.dtype) for X in batch)


def with_random_weights(net, seed=0):
    """The net with weights that are neither zero nor one, as a reader of
    its parameters."""
    net.initialize()
    net(*on_device(host_batch()))       # shapes are known after a call
    rng = onp.random.RandomState(seed)
    for _, param in sorted(net._collect_params_with_prefix().items()):
        param.set_data(np.array(rng.normal(0, 0.4, param.shape)))
    return net


@pytest.fixture(params=EDITIONS)
def net(request):
    return with_random_weights(build(positional=request.param))


def test_tokens_and_segments_are_those_of_the_page():
    assert d2l.get_tokens_and_segments(['a', 'crane'], ['he']) == (
        ['<cls>', 'a', 'crane', '<sep>', 'he', '<sep>'], [0, 0, 0, 0, 1, 1])
    assert d2l.get_tokens_and_segments(['a']) == (
        ['<cls>', 'a', '<sep>'], [0, 0, 0])
    assert d2l.get_tokens_and_segments(iter('ab'), iter('c')) == (
        ['<cls>', 'a', 'b', '<sep>', 'c', '<sep>'], [0, 0, 0, 0, 1, 1])


def test_every_shape_on_the_page_comes_out():
    encoder = d2l.BERTEncoder(10000, 768, 1024, 4, 2, 0.2)
    encoder.initialize()
    tokens = np.random.randint(0, 10000, (2, 8))
    segments = np.array([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1]])
    encoded_X = encoder(tokens, segments, None)
    assert encoded_X.shape == (2, 8, 768)
    mlm = d2l.MaskLM(10000, 768)
    mlm.initialize()
    mlm_Y_hat = mlm(encoded_X, np.array([[1, 5, 2], [6, 1, 5]]))
    assert mlm_Y_hat.shape == (2, 3, 10000)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    mlm_Y = np.array([[7, 8, 9], [10, 20, 30]])
    mlm_l = loss(mlm_Y_hat.reshape((-1, 10000)), mlm_Y.reshape(-1))
    assert mlm_l.shape == (6,)
    # The page hands all positions to the head, which flattens them, and the
    # first edition's head takes the first of them
    for nsp, num_inputs in ((d2l.NextSentencePred(), 8 * 768),
                            (d2l.NextSentencePred(768), 768)):
        nsp.initialize()
        nsp_Y_hat = nsp(encoded_X)
        assert nsp_Y_hat.shape == (2, 2)
        assert loss(nsp_Y_hat, np.array([0, 1])).shape == (2,)
        first = next(iter(nsp.collect_params().values()))
        assert first.shape[1] == num_inputs


@pytest.mark.parametrize('valid_lens', [None, VALID_LENS, [99., 7., 8., 1.]],
                         ids=['no lengths', 'lengths', 'beyond the row'])
def test_the_model_is_its_equations(net, valid_lens, path):
    tokens, segments, _, positions = host_batch()
    lens = None if valid_lens is None else np.array(valid_lens)
    outputs = net(np.array(tokens), np.array(segments), lens,
                  np.array(positions))
    expected = reference.bert(
        reference.parameters(net), N, tokens, segments,
        None if valid_lens is None else onp.minimum(valid_lens, 7), positions)
    for output, answer in zip(outputs, expected):
        onp.testing.assert_allclose(output.asnumpy(), answer, atol=2e-5)


# The published architecture

PUBLISHED = dict(activation='gelu', layer_norm_eps=1e-12, num_segments=3,
                 embedding_norm=True, tie_embeddings=True)


@pytest.mark.parametrize('activation', ['gelu', 'gelu_new', 'relu'])
def test_the_published_model_is_its_equations(activation, path):
    net = with_random_weights(build(**{**PUBLISHED,
                                       'activation': activation}))
    tokens, segments, lens, positions = host_batch()
    segments[0, 0] = 2
    outputs = net(*on_device((tokens, segments, lens, positions)))
    expected = reference.bert(
        reference.parameters(net), N, tokens, segments, lens, positions,
        reference.ACTS[activation], 1e-12)
    for output, answer in zip(outputs, expected):
        onp.testing.assert_allclose(output.asnumpy(), answer, atol=5e-5)


def test_epsilon_reaches_every_norm(path):
    net = with_random_weights(build(**{**PUBLISHED, 'layer_norm_eps': 0.5}))
    tokens, segments, lens, positions = host_batch()
    outputs = net(*on_device((tokens, segments, lens, positions)))
    expected = reference.bert(reference.parameters(net), N, tokens, segments,
                              lens, positions, reference.gelu, 0.5)
    for output, answer in zip(outputs, expected):
        onp.testing.assert_allclose(output.asnumpy(), answer, atol=2e-5)


@pytest.mark.parametrize('layer, num_blocks', [
    (0, 0), (1, 1), (2, 2), (-1, 2), (-2, 1), (-3, 0)])
def test_the_states_behind_each_block_can_be_had(layer, num_blocks, path):
    net = with_random_weights(build(**PUBLISHED))
    tokens, segments, lens, positions = host_batch()
    X = net.encoder(*on_device((tokens, segments, lens)), layer)
    answer, _, _ = reference.bert(
        reference.parameters(net), N, tokens, segments, lens, positions,
        reference.gelu, 1e-12, num_blocks)
    onp.testing.assert_allclose(X.asnumpy(), answer, atol=5e-5)


@pytest.mark.parametrize('layer', [3, -4])
def test_a_layer_that_is_not_there_is_named(layer):
    net = with_random_weights(build())
    with pytest.raises(ValueError, match='layer must lie between -3 and 2'):
        net.encoder(*on_device(host_batch()[:3]), layer)


@pytest.mark.parametrize('request_', ['write', 'add'])
def test_a_tied_embedding_gets_both_gradients(request_, path):
    """They are the sum of those of a net that has the weight twice."""
    tied = with_random_weights(build(**PUBLISHED))
    apart = with_random_weights(build(**{**PUBLISHED,
                                         'tie_embeddings': False}))
    for name, param in apart._collect_params_with_prefix().items():
        param.set_data(tied._collect_params_with_prefix()[name].data())
    tied.collect_params().setattr('grad_req', request_)
    batch = on_device(host_batch())
    labels = np.array(onp.arange(4 * 3) % V)

    def gradients(net):
        for _ in range(2 if request_ == 'add' else 1):
            with autograd.record():
                encoded_X, _, nsp = net(*batch[:3])
                rows = encoded_X.reshape(-1, H)[:12]
                loss = net.mlm.loss(rows, labels.astype('int32'),
                                    np.ones(12)) + nsp.sum()
            loss.backward()
            if net is apart:
                break
        return {name: param.grad().asnumpy() for name, param
                in net._collect_params_with_prefix().items()}
    wanted, got = gradients(apart), gradients(tied)
    wanted['encoder.token_embedding.weight'] += wanted['mlm.mlp.2.weight']
    wanted['mlm.mlp.2.weight'] = wanted['encoder.token_embedding.weight']
    assert got.keys() == wanted.keys()
    times = 2 if request_ == 'add' else 1
    for name, gradient in wanted.items():
        onp.testing.assert_allclose(got[name], times * gradient, atol=2e-5,
                                    err_msg=name)


def test_a_tied_weight_is_one_parameter_and_is_saved_once(tmp_path):
    net = with_random_weights(build(**PUBLISHED))
    assert net.mlm.mlp[2].weight is net.encoder.token_embedding.weight
    save_parameters(net, tmp_path / 'net.params')
    names = {'mlm.mlp.2.weight', 'encoder.token_embedding.weight'}
    assert len(names & set(npx.load(str(tmp_path / 'net.params')))) == 1
    other = build(**PUBLISHED)
    load_parameters(other, tmp_path / 'net.params')
    for name, value in reference.parameters(net).items():
        onp.testing.assert_array_equal(reference.parameters(other)[name],
                                       value)


@pytest.mark.parametrize('make, millions', [
    (d2l.bert_base, 109482240), (d2l.bert_large, 335141888)])
def test_the_published_sizes_have_the_published_parameters(make, millions):
    net = make(30522)
    assert sum(onp.prod(param.shape) for block in (net.encoder, net.hidden)
               for param in block.collect_params().values()) == millions
    assert net.config['dropout'] == 0.1 and net.encoder.max_len == 512
    assert make(7, max_len=9, dropout=0.0).config['max_len'] == 9


@pytest.mark.parametrize('name', ['num_layers', 'num_blks'])
def test_other_sizes_replace_the_published_ones(name):
    net = d2l.bert_base(V, num_hiddens=H, num_heads=N, **{name: 3})
    assert len(net.encoder.blks) == net.config['num_layers'] == 3


def test_the_embedding_is_dropped_in_training_alone():
    net = build(**{**PUBLISHED, 'attention_dropout': 0.0})
    net.encoder.embedding_dropout._rate = 0.5
    net = with_random_weights(net)
    batch = on_device(host_batch()[:3])
    with autograd.train_mode():
        dropped = net.encoder(*batch, 0).asnumpy()
    whole = net.encoder(*batch, 0).asnumpy()
    kept = dropped != 0
    assert 0.2 < kept.mean() < 0.8
    onp.testing.assert_allclose(dropped[kept], 2 * whole[kept], rtol=1e-5)


def test_attention_has_a_dropout_of_its_own():
    net = build(num_layers=1, attention_dropout=0.25)
    blk = net.encoder.blks[0]
    assert blk.attention.attention.dropout._rate == 0.25
    assert blk.addnorm1.dropout._rate == 0.0


def test_a_length_of_zero_gives_numbers(net, path):
    tokens, segments, _, positions = on_device(host_batch())
    for output in net(tokens, segments, np.array([0., 4., 0., 1.]),
                      positions):
        assert onp.isfinite(output.asnumpy()).all()


def test_without_positions_nothing_is_predicted(net):
    tokens, segments, _, _ = on_device(host_batch())
    encoded_X, mlm_Y_hat, nsp_Y_hat = net(tokens, segments)
    assert encoded_X.shape == (4, 7, H) and nsp_Y_hat.shape == (4, 2)
    assert mlm_Y_hat is None


def test_host_arrays_and_lists_give_what_device_arrays_give(net):
    batch = host_batch()
    answer = net(*on_device(batch))
    older_arrays = [mx.nd.array(X, dtype=X.dtype) for X in batch]
    for inputs in (batch, [X.tolist() for X in batch], older_arrays):
        for output, expected in zip(net(*inputs), answer):
            onp.testing.assert_array_equal(output.asnumpy(),
                                           expected.asnumpy())


def test_padding_never_changes_a_valid_row(net, path):
    tokens, segments, _, _ = host_batch()
    valid_lens = onp.array(VALID_LENS, int)
    answer = net(*on_device((tokens, segments, valid_lens)))
    wide_tokens, wide_segments, _, _ = host_batch(seed=1, T=MAX_LEN)
    for b, n in enumerate(valid_lens):
        wide_tokens[b, :n], wide_segments[b, :n] = tokens[b, :n], segments[b,
                                                                           :n]
    wide = net(*on_device((wide_tokens, wide_segments, valid_lens)))
    for b, n in enumerate(valid_lens):
        onp.testing.assert_allclose(wide[0][b, :n].asnumpy(),
                                    answer[0][b, :n].asnumpy(), atol=1e-6)
    onp.testing.assert_allclose(wide[2].asnumpy(), answer[2].asnumpy(),
                                atol=1e-6)


def test_other_rows_never_change_a_row(net, path):
    tokens, segments, valid_lens, positions = host_batch()
    outputs = net(*on_device((tokens, segments, valid_lens, positions)))
    for b in range(4):
        alone = net(*on_device((X[b:b + 1] for X in (
            tokens, segments, valid_lens, positions))))
        for output, single in zip(outputs, alone):
            onp.testing.assert_allclose(single[0].asnumpy(),
                                        output[b].asnumpy(), atol=1e-6)


def test_hybridizing_changes_no_output_and_spoils_none_later(net, path):
    batch = on_device(host_batch())
    expected = [output.asnumpy() for output in net(*batch)]
    net.hybridize(static_alloc=True, static_shape=True)
    net(*batch)
    outputs = net(*batch)
    net(*on_device(host_batch(seed=1, B=2, T=5)))
    for output, answer in zip(outputs, expected):
        onp.testing.assert_allclose(output.asnumpy(), answer, atol=1e-5)


def test_bf16_is_close_to_fp32_or_refused():
    if not kernels.bf16_supported():
        with pytest.raises(ValueError, match='bf16'):
            build(precision='bf16')
        return
    batch = on_device(host_batch())
    for rough, fine in zip(*(with_random_weights(build(precision=p))(*batch)
                             for p in ('bf16', 'fp32'))):
        error = abs(rough - fine).max() / abs(fine).max()
        assert 0 < float(error) < 0.03


def test_num_layers_and_num_blks_are_one_argument():
    first, second = (with_random_weights(
        d2l.BERTModel(V, H, F, N, dropout=0.0, max_len=MAX_LEN, **{name: 3}))
        for name in ('num_layers', 'num_blks'))
    batch = on_device(host_batch())
    for a, b in zip(first(*batch), second(*batch)):
        onp.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
    assert len(first.encoder.blks) == len(second.encoder.blks) == 3


# Against the book's package

def same_outputs(outputs, expected):
    for output, answer in zip(outputs, expected):
        onp.testing.assert_allclose(output.asnumpy(), answer.asnumpy(),
                                    atol=2e-5)


def test_one_seed_gives_the_books_initial_weights_and_outputs(book, path):
    nets, outputs = [build(), build(book)], []
    batch = on_device(host_batch())
    for one in nets:
        mx.random.seed(1)
        one.initialize(init.Xavier())
        outputs.append(one(*batch))
    ours, theirs = map(reference.parameters, nets)
    assert list(sorted(ours)) == list(sorted(theirs))
    for name in ours:
        onp.testing.assert_array_equal(ours[name], theirs[name], name)
    same_outputs(*outputs)


def test_parameter_files_go_both_ways(book, path, tmp_path):
    batch = on_device(host_batch())
    for giver, taker in ((d2l, book), (book, d2l)):
        source, target = with_random_weights(build(giver)), build(taker)
        source.save_parameters(str(tmp_path / 'model.params'))
        target.load_parameters(str(tmp_path / 'model.params'))
        same_outputs(target(*batch), source(*batch))


# Errors

KINDS = {'list': lambda X: X.tolist(), 'host': lambda X: X,
         'device': lambda X: np.array(X, dtype='int32'),
         'older array': lambda X: mx.nd.array(X, dtype='int32')}


@pytest.mark.parametrize('kind', KINDS.values(), ids=KINDS)
@pytest.mark.parametrize('field, value, message', [
    (0, V, r'token 30 is out of range: it must be 0 to 29'),
    (0, -1, r'token -1 is out of range: it must be 0 to 29'),
    (1, 2, r'segment 2 is out of range: it must be 0 to 1'),
    (3, 7, r'position 7 is out of range: it must be 0 to 6'),
    (3, -1, r'position -1 is out of range: it must be 0 to 6')])
def test_ids_out_of_range_are_named(kind, field, value, message, path):
    net = build()
    net.initialize()
    batch = [X.copy() for X in host_batch()]
    batch[field][1, 1] = value
    with pytest.raises(ValueError, match=message):
        net(*(kind(X) for X in batch))


@pytest.mark.parametrize('shape, message', [
    ((0, 7), r'at least one row .* not of shape \(0, 7\)'),
    ((2, 0), r'at least one row .* not of shape \(2, 0\)'),
    ((7,), r'\(B, T\), not of shape \(7,\)'),
    ((2, 13), '13 tokens .* 12 positions')])
def test_batches_of_a_wrong_shape_are_refused(shape, message):
    net = build()
    net.initialize()
    with pytest.raises(ValueError, match=message):
        net(onp.zeros(shape, int), onp.zeros(shape, int))


@pytest.mark.parametrize('shape', [(3,), (5,), (4, 1), (4, 6), ()])
def test_there_is_a_length_for_each_sequence(shape, net, path):
    tokens, segments, _, _ = host_batch()
    with pytest.raises(ValueError, match=re.escape(
            f'valid_lens {shape} do not fit tokens (4, 7): give one number')):
        net(tokens, segments, onp.ones(shape))


def test_segments_must_have_the_shape_of_the_tokens():
    net = build()
    net.initialize()
    with pytest.raises(ValueError, match=r'segments \(2, 3\) .* \(2, 4\)'):
        net(onp.zeros((2, 4), int), onp.zeros((2, 3), int))


@pytest.mark.parametrize('arguments, message', [
    (dict(num_heads=3), '3 heads do not divide 8 hiddens'),
    (dict(vocab_size=0), 'vocab_size must be .* not 0'),
    (dict(num_layers=0), 'num_layers must be .* not 0'),
    (dict(num_hiddens=7.5), 'num_hiddens must be .* not 7.5'),
    (dict(dropout=1.0), 'dropout must be .* less than 1, not 1.0'),
    (dict(dropout=-0.1), 'dropout must be .* not -0.1'),
    (dict(dropout=None), 'dropout must be .* not None'),
    (dict(dropout='a'), "dropout must be .* not 'a'"),
    (dict(positional='none'), "positional must be .* not 'none'"),
    (dict(precision='fp8'), 'precision .*fp8'),
    (dict(activation='swish'), "activation must be .* not 'swish'"),
    (dict(layer_norm_eps=-1), 'layer_norm_eps must be .* not -1'),
    (dict(num_segments=-1), 'num_segments must be .* not -1'),
    (dict(num_groups=3), 'num_groups=3 is more than the 2 layers'),
    (dict(heads=['mlm', 'nsp']), "'nsp' needs the head 'pooler'"),
    (dict(attention_dropout=2), 'attention_dropout must be .* not 2'),
    (dict(embedding_norm=True, positional='sinusoidal'),
     "embedding_norm=True needs .*positional='learnable'")])
def test_impossible_models_are_refused(arguments, message):
    settings = dict(vocab_size=V, num_hiddens=H, ffn_num_hiddens=F,
                    num_heads=N, num_layers=2, dropout=0.1)
    settings.update(arguments)
    with pytest.raises(ValueError, match=message):
        d2l.BERTModel(**settings)


@pytest.mark.parametrize('blocks', [dict(), dict(num_layers=2, num_blks=2)])
def test_the_number_of_blocks_is_given_once(blocks):
    with pytest.raises(TypeError, match='num_layers or as num_blks'):
        d2l.BERTModel(V, H, F, N, dropout=0.1, **blocks)
