"""Nets at eight bits and in bfloat16: where answers come from them."""
import numpy as onp
import pytest
import sentences
from commands import refusal

import d2lbert as d2l
from d2lbert import kernels
from d2lbert.command import flags
from d2lbert.command.cli import main
from d2lbert.kernels import int8
from d2lbert.machine.backend import autograd, nn, np
from d2lbert.nn import packed, precision
from d2lbert.nn.precision import set_precision
from d2lbert.pretrained.heads import About, FineTuned

H = 20


@pytest.fixture(scope='module')
def tokenizer():
    return sentences.whole_words()


@pytest.fixture(scope='module')
def texts():
    return sentences.texts(100)


@pytest.fixture
def compiled(compiler):
    if int8.library() is None:
        pytest.skip(int8.INT8.reason or 'D2LBERT_KERNELS is off')


def two_nets(tokenizer, **keywords):
    """One net in float32, and the same at eight bits."""
    net, quantized = (sentences.build_net(len(tokenizer), **keywords)
                      for _ in range(2))
    return net, set_precision(quantized, 'int8')


def cosines(X, Y):
    X, Y = (a.reshape(-1, a.shape[-1]).astype('float64') for a in (X, Y))
    return (X * Y).sum(axis=1) / onp.sqrt((X * X).sum(axis=1)
                                          * (Y * Y).sum(axis=1))


def relatives():
    """Keywords of BERT's relatives that normalize after each half."""
    return [dict(), dict(activation='relu', num_segments=0),
            dict(activation='gelu_new', embedding_size=12, num_groups=1,
                 num_layers=3),
            dict(positional='sinusoidal', embedding_norm=False)]


@pytest.mark.parametrize('keywords', relatives())
def test_vectors_are_near_those_of_float32(tokenizer, texts, compiled,
                                           keywords):
    net, quantized = two_nets(tokenizer, **keywords)
    for layer in (0, 1, -1):
        wanted, found = (onp.concatenate(d2l.encode(
            one, tokenizer, texts, None, layer)) for one in (net, quantized))
        assert cosines(wanted, found).min() > 0.99
    assert onp.abs(wanted - found).max() > 1e-4     # it is at work


def test_a_text_has_one_vector_in_any_batch(tokenizer, texts, compiled):
    _, net = two_nets(tokenizer)
    wanted = d2l.encode(net, tokenizer, texts)
    for batch_size in (1, 7, 100):
        onp.testing.assert_array_equal(wanted, d2l.encode(
            net, tokenizer, texts, batch_size=batch_size))
    # With more rows than one thread's, in another thread than this
    many = d2l.encode(net, tokenizer, texts * 9)
    onp.testing.assert_array_equal(many, onp.tile(wanted, (9, 1)))


def test_all_ways_into_the_encoder_give_the_same(tokenizer, texts, compiled):
    _, net = two_nets(tokenizer)
    encoded = [tokenizer.encode(text) for text in texts[:9]]
    lens = onp.array([len(one.ids) for one in encoded])
    ids = onp.zeros((9, lens.max()), 'int32')
    for row, one in zip(ids, encoded):
        row[:len(one.ids)] = one.ids
    inputs = np.array(ids), np.zeros_like(np.array(ids)), np.array(lens)
    X, _, nsp = (array if array is None else array.asnumpy()
                 for array in net(*inputs))
    rows, begins, of_rows, _ = packed.encode(net, *inputs)
    rows = rows.asnumpy()
    vectors = d2l.encode(net, tokenizer, texts[:9], None)
    for b, (begin, vector) in enumerate(zip(begins, vectors)):
        onp.testing.assert_array_equal(X[b, :lens[b]], vector)
        onp.testing.assert_array_equal(rows[begin:begin + lens[b]], vector)
        assert not X[b, lens[b]:].any()
    onp.testing.assert_array_equal(
        packed.encode_first_tokens(net.encoder, *inputs).asnumpy(), X[:, 0])
    onp.testing.assert_allclose(of_rows.asnumpy(), nsp, atol=1e-5)
    whole = net.encoder(*inputs[:2], None).asnumpy()
    onp.testing.assert_array_equal(
        whole[lens == lens.max()], X[lens == lens.max()])


def test_a_block_of_ones_own_after_quantizing_is_still_called(
        tokenizer, compiled):
    _, net = two_nets(tokenizer)
    wanted = d2l.encode(net, tokenizer, ['a bird'])
    seen = []
    net.encoder.register_forward_hook(lambda *_: seen.append(1))
    onp.testing.assert_array_equal(d2l.encode(net, tokenizer, ['a bird']),
                                   wanted)
    assert seen


class MyEmbedding(nn.Embedding):
    def forward(self, X):
        return 2 * super().forward(X)


def of_my_own(net):
    net.encoder.segment_embedding = MyEmbedding(2, H)


def activation_of_my_own(blocks, layer, act):
    def change(net):
        for block in list(net.encoder.blks)[blocks]:
            getattr(block.ffn, layer).act = nn.Activation(act)
    return change


def not_a_number(net):
    weight = net.encoder.blks[1].ffn.dense1.weight
    values = weight.data().asnumpy()
    values[3, 4] = onp.nan
    weight.set_data(np.array(values))


@pytest.mark.parametrize('keywords, change, why', [
    (dict(pre_norm=True), None, 'LayerNorm after each half'),
    (dict(causal=True), None, 'attend to earlier tokens only'),
    (dict(), of_my_own, 'without modified blocks'),
    *((dict(activation='relu'), activation_of_my_own(*where),
       'without modified blocks') for where in (
           (slice(1), 'dense1', 'sigmoid'), (slice(1, 2), 'dense1', 'tanh'),
           (slice(2), 'dense1', 'tanh'), (slice(1, 2), 'dense2', 'relu'))),
    (dict(), not_a_number, 'weight has numbers that are NaN or infinite')])
def test_a_net_that_cannot_be_quantized_is_refused(
        tokenizer, compiled, keywords, change, why):
    net = sentences.build_net(len(tokenizer), **keywords)
    if change:
        change(net)
    with pytest.raises(ValueError, match=why):
        set_precision(net, 'int8')
    assert net.encoder.quantized is None


def test_a_decoder_is_refused(tokenizer):
    net = sentences.build_net(len(tokenizer))
    net.decoder = nn.Dense(2)
    with pytest.raises(ValueError, match='has a decoder'):
        set_precision(net, 'int8')


def test_it_needs_the_compiled_encoder(tokenizer, monkeypatch):
    net = sentences.build_net(len(tokenizer))
    monkeypatch.setenv('D2LBERT_KERNELS', 'off')
    with pytest.raises(ValueError, match="C.., which is not there "
                                         r"\(D2LBERT_KERNELS is off\)"):
        set_precision(net, 'int8')


def test_it_gives_no_gradients(tokenizer, compiled):
    _, net = two_nets(tokenizer)
    ids = np.ones((2, 5), 'int32')
    with autograd.record(), pytest.raises(ValueError, match='no gradients'):
        net.encoder(ids, ids * 0, None)


def test_it_takes_one_valid_length_for_each_text(tokenizer, compiled):
    _, net = two_nets(tokenizer)
    ids = np.ones((2, 5), 'int32')
    with pytest.raises(ValueError, match=r'one valid length .* \(2, 5\)'):
        net.encoder(ids, ids * 0, ids)


def test_an_unknown_precision_is_refused(tokenizer, tmp_path, capsys):
    for call in (lambda: set_precision(None, 'int4'),
                 lambda: d2l.load_pretrained(tmp_path, precision='int4'),
                 lambda: d2l.load_model(tmp_path, precision='int4'),
                 lambda: d2l.load_finetuned(tmp_path, precision='int4')):
        with pytest.raises(ValueError, match="'fp32', 'bf16' or 'int8', not "
                                             "'int4'"):
            call()
    said = refusal(capsys, 'encode', 'x', 'y', '--precision', 'int4')[1]
    assert 'int4' in said and 'fp32' in said


def test_bf16_is_for_loaded_nets_too(tokenizer, texts, compiled):
    if not kernels.bf16_supported():
        pytest.skip('this CPU does not multiply in bfloat16')
    used = kernels.products.chosen()
    kernels.products.use(used._replace(bf16='pairs'))
    try:
        net = sentences.build_net(len(tokenizer))
        built = sentences.build_net(len(tokenizer), precision='bf16')
        wanted = d2l.encode(built, tokenizer, texts)
        onp.testing.assert_array_equal(wanted, d2l.encode(
            set_precision(net, 'bf16'), tokenizer, texts))
        assert net.config == built.config
    finally:
        kernels.products.use(used)


def test_where_bf16_gains_nothing_a_line_says_so(tokenizer, compiled,
                                                 capsys):
    if not kernels.bf16_supported():
        pytest.skip('this CPU does not multiply in bfloat16')
    used = kernels.products.chosen()
    kernels.products.use(used._replace(bf16='plain'))
    try:
        set_precision(sentences.build_net(len(tokenizer)), 'bf16')
    finally:
        kernels.products.use(used)
    assert 'bf16 is not faster than fp32' in capsys.readouterr().err


# The command

@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    pytest.importorskip('tokenizers')
    pytest.importorskip('safetensors')
    return sentences.write_folder(tmp_path_factory.mktemp('x') / 'model')


def test_the_commands_know_the_precisions_of_the_package():
    found = {}
    flags.add_precision(lambda name, **rest: found.update({name: rest}))
    assert tuple(found['--precision']['choices']) == precision.PRECISIONS


def test_commands_answer_at_eight_bits(folder, compiled, tmp_path, capsys):
    net, tokenizer = d2l.load_pretrained(folder, precision='int8')
    texts = ['a grey bird flies', 'the old tree', 'it sleeps']
    lines = tmp_path / 'lines.txt'
    lines.write_text('\n'.join(texts) + '\n')
    out = tmp_path / 'x.npy'
    assert main(['encode', str(folder), '--file', str(lines), '--out',
                 str(out), '--precision', 'int8']) == 0
    vectors = onp.load(out)
    onp.testing.assert_array_equal(vectors, d2l.encode(net, tokenizer, texts))
    capsys.readouterr()
    assert main(['similar', str(folder), texts[1], '--file', str(lines),
                 '--vectors', str(out), '--precision', 'int8']) == 0
    assert capsys.readouterr().out.startswith(f'1.0000 {texts[1]}\n')
    assert main(['fill', str(folder), 'a [MASK] flies', '--precision',
                 'int8']) == 0
    guess, = d2l.fill_mask(net, tokenizer, 'a [MASK] flies')
    assert capsys.readouterr().out.startswith(
        f'{guess[0].token} {guess[0].probability:.4f}\n')
    assert main(['senses', str(folder), '--word', 'crane', '--precision',
                 'int8']) == 0
    found = d2l.sense_accuracy(net, 'crane', tokenizer=tokenizer)
    rates = capsys.readouterr().out.splitlines()[1].split()[-3:]
    onp.testing.assert_allclose([float(rate) for rate in rates],
                                onp.ravel(found.rates), atol=0.006)


def test_vectors_of_another_precision_are_refused(folder, compiled, tmp_path,
                                                  capsys):
    lines = tmp_path / 'lines.txt'
    lines.write_text('a grey bird flies\nthe old tree\n')
    out = str(tmp_path / 'x.npy')
    assert main(['encode', str(folder), '--file', str(lines), '--out',
                 out]) == 0
    said = refusal(capsys, 'similar', str(folder), 'a bird', '--file',
                   str(lines), '--vectors', out, '--precision', 'int8')[1]
    assert 'was not made by this model with these settings' in said


def test_a_fine_tuned_net_predicts_at_eight_bits(compiled, tmp_path, capsys):
    pytest.importorskip('tokenizers')
    tokenizer = sentences.word_pieces()
    bert = sentences.build_net(len(tokenizer), max_len=30)
    net = FineTuned(bert, 'classify', 2)
    net.output.initialize()
    # With a random head, one answer in six has the same digits at both
    net.output.weight.set_data(np.array(
        onp.random.RandomState(0).normal(size=(2, H)), dtype='float32'))
    net.about = About('', 'classify', None, ('no', 'yes'), (), 30, 8, False,
                      0.1)
    d2l.save_pretrained(net, tokenizer, tmp_path / 'model')
    found = {}
    for name in ('fp32', 'int8'):
        assert main(['predict', str(tmp_path / 'model'), 'a grey bird',
                     '--precision', name]) == 0
        found[name] = capsys.readouterr().out
    net, tokenizer = d2l.load_finetuned(tmp_path / 'model', precision='int8')
    prediction, = d2l.predict(net, tokenizer, ['a grey bird'])
    shares = sorted(line.split()[-1] for line in found['int8'].splitlines())
    assert shares == sorted(f'{share:.4f}' for share in
                            dict(prediction.shares).values())
    assert found['int8'] != found['fp32']
