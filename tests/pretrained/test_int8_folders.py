"""Folders at eight bits: what is written, and what of it is read again."""
import json
import shutil
import subprocess
import sys

import numpy as onp
import pytest
import sentences
from commands import refusal
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import d2lbert as d2l
from d2lbert.command.cli import main
from d2lbert.kernels import int8
from d2lbert.machine.backend import mx, np
from d2lbert.nn.precision import set_precision
from d2lbert.pretrained.contents import load_quantized
from d2lbert.pretrained.heads import About, FineTuned
from d2lbert.pretrained.tensor_files import PretrainedError

WEIGHTS = 'model.safetensors'
QUERY = 'bert.encoder.layer.1.attention.self.query.weight'


@pytest.fixture(autouse=True)
def compiled(compiler):
    if int8.library() is None:
        pytest.skip(int8.INT8.reason or 'D2LBERT_KERNELS is off')


@pytest.fixture(scope='module')
def texts():
    return sentences.texts(40)


@pytest.fixture(scope='module')
def source(tmp_path_factory):
    """A folder in float32, of a net and a tokenizer with pooling."""
    pytest.importorskip('tokenizers')
    return sentences.write_folder(tmp_path_factory.mktemp('x') / 'model',
                                  sentences.OLD)


@pytest.fixture(scope='module')
def folder(source, tmp_path_factory, compiler):
    """The same at eight bits, by the command."""
    found = tmp_path_factory.mktemp('x') / 'int8'
    assert main(['export', str(source), str(found), '--precision',
                 'int8']) == 0
    return found


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / 'copy')


def change(folder, change, digests=False):
    """Change the tensors of a folder; without `digests` as others write."""
    path = folder / WEIGHTS
    tensors = load_file(path)
    with safe_open(path, 'np') as file:
        metadata = file.metadata()
    change(tensors)
    save_file(tensors, path, metadata if digests else {'format': 'pt'})


def refused(folder, **keywords):
    with pytest.raises(PretrainedError) as caught:
        d2l.load_pretrained(folder, heads=(), **keywords)
    return str(caught.value)


def everything(net, tokenizer, texts):
    """Vectors, and words for a mask by the head that shares embeddings."""
    guesses, = d2l.fill_mask(net, tokenizer, 'a [MASK] flies', 5)
    return [d2l.encode(net, tokenizer, texts),
            *d2l.encode(net, tokenizer, texts, None),
            [guess.probability for guess in guesses]]


def same(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        onp.testing.assert_array_equal(a, b)


# What it gives

def test_it_gives_the_bits_of_quantizing_when_loaded(source, folder, texts):
    wanted = everything(*d2l.load_pretrained(source, heads=(),
                                             precision='int8'), texts)
    for precision in (None, 'int8'):
        net, tokenizer = d2l.load_pretrained(folder, heads=(),
                                             precision=precision)
        same(everything(net, tokenizer, texts), wanted)
    exact = everything(*d2l.load_pretrained(source, heads=()), texts)
    assert onp.abs(exact[0] - wanted[0]).max() > 1e-4


def test_nothing_is_quantized_when_it_is_loaded(folder, monkeypatch):
    monkeypatch.setattr(int8, 'quantize', None)
    net, _ = d2l.load_pretrained(folder, heads=())
    assert net.encoder.quantized is not None


def test_float32_weights_are_made_where_they_are_wanted(folder, texts):
    net, tokenizer = d2l.load_pretrained(folder, heads=())
    d2l.encode(net, tokenizer, texts)
    param = net.encoder.blks[1].attention.W_q.weight
    other = net.encoder.blks[0].attention.W_q.weight
    assert param._data is None and param.list_ctx()
    tensors = load_file(folder / WEIGHTS)
    wanted = tensors[QUERY] * tensors[f'{QUERY}_scale'][:, None]
    onp.testing.assert_array_equal(param.data().asnumpy(), wanted)
    onp.testing.assert_array_equal(param.list_data()[0].asnumpy(), wanted)
    other.set_data(np.zeros((20, 20)))
    assert not other.data().asnumpy().any()


def test_a_command_encodes_without_mxnet(source, folder):
    """Whose import takes longer than the answer."""
    for place, *flags in ((folder,), (source, '--precision', 'int8')):
        program = ("import sys; sys.modules['mxnet'] = None\n"
                   'from d2lbert.command.cli import main\n'
                   'sys.exit(main(sys.argv[1:]))')
        done = subprocess.run(
            [sys.executable, '-c', program, 'encode', str(place),
             'a grey bird', *flags], stdout=subprocess.PIPE, check=True,
            universal_newlines=True)
        net, tokenizer = d2l.load_pretrained(place, heads=(),
                                             precision='int8')
        vector, = d2l.encode(net, tokenizer, ['a grey bird'])
        assert done.stdout.split() == [f'{x:.4f}' for x in vector]


def test_commands_answer_at_eight_bits_unless_told_otherwise(
        source, folder, tmp_path, capsys):
    said = []
    for place, *flags in ((source, '--precision', 'int8'), (folder,),
                          (folder, '--precision', 'fp32')):
        assert main(['encode', str(place), 'a grey bird', *flags]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]


def test_fine_tuning_begins_with_its_weights(folder):
    bert, _ = d2l.load_pretrained(folder, heads=(), precision='fp32')
    net = FineTuned(bert, 'classify', 2)
    net.begin([mx.cpu(0), mx.cpu(1)])
    expected, _ = d2l.load_pretrained(folder, heads=(), precision='fp32')
    weight = expected.encoder.blks[0].attention.W_q.weight.data()
    for device in (mx.cpu(0), mx.cpu(1)):
        found = net.encoder.blks[0].attention.W_q.weight.data(device)
        onp.testing.assert_array_equal(found.asnumpy(), weight.asnumpy())


def test_in_float32_it_has_the_rounded_weights(folder):
    net, tokenizer = d2l.load_pretrained(folder, heads=(), precision='fp32')
    tensors = load_file(folder / WEIGHTS)
    assert net.encoder.quantized is None
    onp.testing.assert_array_equal(
        net.encoder.blks[1].attention.W_q.weight.data().asnumpy(),
        tensors[QUERY] * tensors[f'{QUERY}_scale'][:, None])


@pytest.mark.parametrize('keywords', [
    dict(family='albert', num_segments=2, embedding_size=12, num_groups=1,
         num_layers=3, mlm_hidden=True, activation='gelu_new',
         inner_group_num=1, heads=('pooler', 'mlm', 'nsp')),
    dict(tie_embeddings=False)])
def test_relatives_give_the_same_bits(keywords, tmp_path, texts):
    tokenizer = sentences.word_pieces()
    net = sentences.build_net(len(tokenizer), **keywords)
    d2l.save_pretrained(net, tokenizer, tmp_path / 'fp32')
    net, tokenizer = d2l.load_pretrained(tmp_path / 'fp32', precision='int8')
    d2l.save_pretrained(net, tokenizer, tmp_path / 'int8')
    again, _ = d2l.load_pretrained(tmp_path / 'int8')
    for name in ('fp32', 'int8'):
        same(d2l.encode(*load_quantized(tmp_path / name, 'int8'),
                        texts, None),
             d2l.encode(net, tokenizer, texts, None))
    same(everything(again, tokenizer, texts),
         everything(net, tokenizer, texts))


def test_a_model_of_one_segment_ignores_those_of_a_pair():
    tokenizer = sentences.word_pieces()
    net = set_precision(sentences.build_net(len(tokenizer), num_segments=1),
                        'int8')
    pair = tokenizer.encode('the crane', 'a bird')
    assert 1 in pair.segments
    wanted = net.encoder(onp.array([pair.ids]), onp.array([pair.segments]),
                         None)
    same(d2l.encode(net, tokenizer, [('the crane', 'a bird')], None),
         list(wanted.asnumpy()))


def test_a_fine_tuned_net_predicts_the_same(tmp_path, capsys):
    tokenizer = sentences.word_pieces()
    bert = sentences.build_net(len(tokenizer), max_len=30)
    net = FineTuned(bert, 'classify', 2)
    net.output.initialize()
    net.output.weight.set_data(np.array(
        onp.random.RandomState(0).normal(size=(2, 20)), dtype='float32'))
    net.about = About('', 'classify', None, ('no', 'yes'), (), 30, 8, False,
                      0.1)
    d2l.save_pretrained(net, tokenizer, tmp_path / 'fp32')
    assert main(['export', str(tmp_path / 'fp32'), str(tmp_path / 'int8'),
                 '--precision', 'int8']) == 0
    found = [d2l.predict(*d2l.load_finetuned(tmp_path / name, **keywords),
                         ['a grey bird'])
             for name, keywords in (('fp32', dict(precision='int8')),
                                    ('int8', {}), ('fp32', {}))]
    assert found[0] == found[1] != found[2]
    for name in 'fp32', 'int8':     # the head belongs there
        assert main(['encode', str(tmp_path / name), 'a grey bird',
                     '--precision', 'int8']) == 0
        assert 'left over' not in capsys.readouterr().err


# What is written

def test_a_copy_of_it_has_the_same_files(folder, tmp_path):
    d2l.save_pretrained(*d2l.load_pretrained(folder, heads=()),
                        tmp_path / 'again')
    names = [path.relative_to(folder) for path in folder.rglob('*')
             if path.is_file()]
    assert {str(name) for name in names} > {'config.json', WEIGHTS,
                                            'modules.json'}
    for name in names:
        one, again = folder / name, tmp_path / 'again' / name
        if str(name) == WEIGHTS:    # whose header is in any order
            one, again = load_file(one), load_file(again)
            assert one.keys() == again.keys()
            same([again[name] for name in one], list(one.values()))
        else:
            assert again.read_bytes() == one.read_bytes()


def test_its_matrices_have_eight_bits_and_a_scale_for_each_row(source,
                                                               folder):
    exact, found = (load_file(path / WEIGHTS) for path in (source, folder))
    quantized = {name for name, tensor in found.items()
                 if tensor.dtype == 'int8'}
    assert found.keys() - exact.keys() == {
        f'{name}_scale' for name in quantized}
    assert len(quantized) == 1 + 2 * 6
    for name, tensor in exact.items():
        if name not in quantized:
            onp.testing.assert_array_equal(found[name], tensor)
            continue
        scale = abs(tensor.astype('float64')).max(axis=1) / 127
        onp.testing.assert_allclose(found[f'{name}_scale'], scale, rtol=1e-6)
        assert (abs(found[name] * scale[:, None] - tensor)
                <= 0.5001 * scale[:, None]).all()
    config = json.loads((folder / 'config.json').read_text('utf-8'))
    assert config['quantization_config']['quant_method'] == 'd2lbert'
    assert config['quantization_config']['bits'] == 8


def test_heads_that_are_missing_stay_missing(source, tmp_path):
    bare = shutil.copytree(source, tmp_path / 'bare')

    def drop_heads(tensors):
        for name in [name for name in tensors if name.startswith('cls.')]:
            del tensors[name]
    change(bare, drop_heads)
    assert main(['export', str(bare), str(tmp_path / 'int8'), '--precision',
                 'int8']) == 0
    net, _ = d2l.load_pretrained(tmp_path / 'int8', heads=())
    assert [net.pretrained.lacks(part)
            for part in ('encoder', 'pooler', 'mlm', 'nsp')] == [
                False, False, True, True]


def test_it_has_about_a_quarter_of_the_size(tmp_path):
    tokenizer = sentences.word_pieces()
    net = sentences.build_net(4000, num_hiddens=128, ffn_num_hiddens=512)
    d2l.save_pretrained(net, tokenizer, tmp_path / 'fp32')
    assert main(['export', str(tmp_path / 'fp32'), str(tmp_path / 'int8'),
                 '--precision', 'int8']) == 0
    sizes = {name: (tmp_path / name / WEIGHTS).stat().st_size
             for name in ('fp32', 'int8')}
    assert sizes['int8'] < 0.3 * sizes['fp32']


# What is refused

def test_changed_numbers_are_noticed(copy):
    for name in (QUERY, f'{QUERY}_scale'):
        def one_more(tensors):
            tensors[name][2] += 1
        change(copy, one_more, digests=True)
        said = refused(copy)
        assert (f'{copy / WEIGHTS} is damaged: the digest of {name} '
                'does not match its values') in said
        assert '\n' not in said

        def one_less(tensors):
            tensors[name][2] -= 1
        change(copy, one_less, digests=True)


def test_a_cut_file_is_refused(copy):
    whole = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(whole[:len(whole) // 2])
    assert 'is no whole safetensors file' in refused(copy)


def low(tensors):
    tensors[QUERY][3, 4] = -128


def infinite(tensors):
    tensors[f'{QUERY}_scale'][3] = onp.inf


def negative(tensors):
    tensors[f'{QUERY}_scale'][3] *= -1


@pytest.mark.parametrize('damage', [low, infinite, negative])
def test_numbers_that_no_quantizing_gives_are_refused(copy, damage):
    change(copy, damage)
    assert (f'{copy / WEIGHTS} is damaged: {QUERY} has the number -128 or '
            'a scale that is negative, infinite or NaN') in refused(copy)


def without_scales(tensors):
    del tensors[f'{QUERY}_scale']


def fewer_scales(tensors):
    tensors[f'{QUERY}_scale'] = tensors[f'{QUERY}_scale'][1:]


def in_float32(tensors):
    tensors[QUERY] = tensors[QUERY].astype('float32')


def integer_norm(tensors):
    name = QUERY.replace('self.query.weight', 'output.LayerNorm.weight')
    tensors[name] = tensors[name].astype('int8')


@pytest.mark.parametrize('damage, found', [
    (without_scales, '20 x 20 of I8'), (fewer_scales, '20 x 20 of I8'),
    (in_float32, '20 x 20'), (integer_norm, '20 of I8')])
def test_tensors_of_other_types_are_refused_with_the_table(copy, damage,
                                                           found):
    change(copy, damage)
    said = refused(copy)
    line, = (line for line in said.splitlines()[2:] if 'misshapen' in line)
    assert line.endswith(f'  {found}')
    if damage is not integer_norm:
        assert '  20 x 20 of I8 and scales  ' in line


def config_of(folder, **fields):
    path = folder / 'config.json'
    config = dict(json.loads(path.read_text('utf-8')), **fields)
    path.write_text(json.dumps(config), 'utf-8')


def test_eight_bits_that_no_config_describes_are_refused(copy):
    config_of(copy, quantization_config=None)
    assert '13 tensors do not have the shape or type' in refused(copy)


def test_other_ways_of_quantizing_are_refused(copy):
    config_of(copy, quantization_config=dict(
        quant_method='d2lbert', format=2, bits=8))
    said = refused(copy)
    assert "quantization_config is {'quant_method': 'd2lbert', 'format': 2" \
        in said and 'as quantized weights cannot be represented' in said


def test_a_net_that_cannot_be_quantized_leaves_no_folder(tmp_path, capsys):
    tokenizer = sentences.word_pieces()
    net = sentences.build_net(
        len(tokenizer), family='flaubert', pre_norm=True, num_segments=0,
        ffn_num_hiddens=80, heads=('mlm',), mlm_hidden=False,
        final_norm=False)
    d2l.save_pretrained(net, tokenizer, tmp_path / 'fp32')
    said = refusal(capsys, 'export', str(tmp_path / 'fp32'),
                   str(tmp_path / 'int8'), '--precision', 'int8')[1]
    assert 'LayerNorm after each half of a block' in said
    assert not (tmp_path / 'int8').exists()


def test_in_float32_only_runs_are_exported(source, tmp_path, capsys):
    said = refusal(capsys, 'export', str(source), str(tmp_path / 'x'))[1]
    assert 'is no folder of a run' in said
