"""Folders of pretrained BERTs, against names and numbers written out."""
import hashlib
import json
import math
import os
import resource
import struct
import sys
import threading

import numpy as onp
import published
import pytest
from published import CONFIG, VOCAB
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import d2lbert as d2l
from d2lbert.machine.backend import init, mx, np
from d2lbert.nn import packed
from d2lbert.pretrained import tensor_files
from d2lbert.pretrained.families.config import read_keywords_and_fields
from d2lbert.pretrained.families.family import ACTIVATIONS
from d2lbert.pretrained.families.tensor_names import current_names
from d2lbert.pretrained.families.tensor_names import table as table_of
from d2lbert.pretrained.folders import (
    PretrainedError,
    load_pretrained,
    save_pretrained,
)

LENS = onp.array([9, 4])


def texts(config, seed=1):
    """ids, segments (B, T) of random texts for a config.json."""
    rng = onp.random.RandomState(seed)
    config = {**CONFIG, **config}
    shape = len(LENS), max(LENS)
    return (rng.randint(0, config['vocab_size'], shape),
            rng.randint(0, config['type_vocab_size'], shape))


def check_numbers(folder, config, tensors, tolerance=2e-5):
    """Check the outputs of a folder against NumPy."""
    net, _ = load_pretrained(folder)
    ids, segments = texts(config)
    for b, found in enumerate(published.scores(net, ids, segments, LENS)):
        n = LENS[b]
        hidden, pooled, mlm, nsp = published.forward(
            config, tensors, ids[b, :n], segments[b, :n])
        # The book's class 1 is "b follows a", published BERT's 0
        for ours, theirs in zip(found, (hidden[-1], pooled, mlm, nsp[::-1])):
            onp.testing.assert_allclose(ours, theirs, tolerance, tolerance)
    return net


@pytest.mark.parametrize('config', [
    {}, dict(hidden_act='gelu_new'), dict(hidden_act='relu'),
    dict(layer_norm_eps=0.05), dict(type_vocab_size=1),
    dict(type_vocab_size=4), dict(num_attention_heads=1),
    dict(num_hidden_layers=1, hidden_size=6, vocab_size=31),
    dict(max_position_embeddings=20), dict(tie_word_embeddings=False)],
    ids=str)
def test_a_folder_gives_the_numbers_of_the_published_equations(
        config, tmp_path, capsys):
    tensors = published.draw({**CONFIG, **config})
    net = check_numbers(published.write(tmp_path / 'x', config, tensors),
                        config, tensors)
    assert capsys.readouterr().err == ''
    assert net.pretrained.differences == ()
    assert str(net.pretrained) == (f'{tmp_path / "x"} holds every tensor, '
                                   'and no other')


def test_the_hidden_states_behind_each_block_are_theirs(tmp_path):
    tensors = published.draw(CONFIG)
    net, _ = load_pretrained(published.write(tmp_path / 'x', None, tensors))
    ids, segments = texts({})
    for layer in range(-3, 3):
        X, begins, _, _ = packed.encode(net, ids, segments, LENS, layer=layer)
        for b, n in enumerate(LENS):
            hidden = published.forward({}, tensors, ids[b, :n],
                                       segments[b, :n])[0]
            onp.testing.assert_allclose(
                X.asnumpy()[begins[b]:begins[b] + n], hidden[layer], 2e-5,
                2e-5)


def test_dropouts_are_those_of_the_folder(tmp_path):
    net, _ = load_pretrained(published.write(tmp_path / 'x'))
    block = net.encoder.blks[0]
    assert block.attention.attention.dropout._rate == 0.2
    assert {part.dropout._rate for part in (block.addnorm1, block.addnorm2)
            } == {net.encoder.embedding_dropout._rate} == {0.1}


# Other names of tensors

def without_prefix(tensors):
    return {name.replace('bert.', ''): tensor
            for name, tensor in tensors.items()}


def with_old_names(tensors):
    return {name.replace('Norm.weight', 'Norm.gamma')
            .replace('Norm.bias', 'Norm.beta'): tensor
            for name, tensor in tensors.items()}


def with_what_is_known(tensors):
    decoder = {'cls.predictions.decoder.weight':
               tensors['bert.embeddings.word_embeddings.weight'],
               'cls.predictions.decoder.bias':
               tensors['cls.predictions.bias']}
    return {**tensors, **decoder,
            'bert.embeddings.position_ids': onp.arange(9)[None]}


def with_a_bias_of_the_decoder_alone(tensors):
    return {name.replace('predictions.bias', 'predictions.decoder.bias'):
            tensor for name, tensor in tensors.items()}


def with_the_embedding_in_the_decoder_alone(tensors):
    # As safetensors.torch.save_model writes a RoBERTa: of two equal tensors,
    # it keeps the one whose name is first
    return {name.replace('bert.embeddings.word_embeddings',
                         'cls.predictions.decoder'): tensor
            for name, tensor in tensors.items()}


@pytest.mark.parametrize('renamed', [
    without_prefix, with_old_names, with_what_is_known,
    with_a_bias_of_the_decoder_alone, with_the_embedding_in_the_decoder_alone])
def test_other_names_for_the_same_tensors_are_known(renamed, tmp_path,
                                                    capsys):
    tensors = published.draw(CONFIG)
    net = check_numbers(published.write(tmp_path / 'x', None,
                                        renamed(tensors)), {}, tensors)
    assert net.config['tie_embeddings'] and not net.pretrained.differences
    assert capsys.readouterr().err == ''


def test_a_decoder_with_weights_of_its_own_is_not_tied(tmp_path):
    tensors = published.draw(dict(CONFIG, tie_word_embeddings=False))
    folder = published.write(tmp_path / 'x', None, tensors)
    assert 'tie_word_embeddings' not in (folder / 'config.json').read_text()
    net = check_numbers(folder, {}, tensors)
    assert net.config['tie_embeddings'] is False


def test_gamma_and_beta_are_renamed_inside_layer_norm_only():
    assert current_names(['LayerNorm.gamma', 'encoder.layer.0.LayerNorm.beta',
                     'bert.x.LayerNorm.gamma', 'scale.gamma', 'beta',
                     'MyLayerNorm.gamma', 'LayerNorm.gamma.x']) == {
        'LayerNorm.weight': 'LayerNorm.gamma',
        'bert.encoder.layer.0.LayerNorm.bias':
            'encoder.layer.0.LayerNorm.beta',
        'bert.x.LayerNorm.weight': 'bert.x.LayerNorm.gamma',
        'scale.gamma': 'scale.gamma', 'beta': 'beta',
        'MyLayerNorm.gamma': 'MyLayerNorm.gamma',
        'LayerNorm.gamma.x': 'LayerNorm.gamma.x'}


def test_of_two_names_for_one_tensor_the_older_is_left_over():
    new, old = 'bert.pooler.LayerNorm.bias', 'bert.pooler.LayerNorm.beta'
    for names in ([new, old], [old, new]):
        assert current_names(names) == {new: new, old: old}


# Types of numbers

def as_bf16(tensors, path):
    """Write tensors as bfloat16, and return their rounded values."""
    header, data = {}, b''
    for name, tensor in tensors.items():
        upper = (tensor.view('<u4') >> 16).astype('<u2')
        header[name] = dict(
            dtype='BF16', shape=tensor.shape,
            data_offsets=[len(data), len(data) + upper.nbytes])
        data += upper.tobytes()
        tensors[name] = (upper.astype('<u4') << 16).view('<f4')
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(text)) + text + data)
    return tensors


def test_16_bit_weights_become_float32(tmp_path):
    tensors = published.draw(CONFIG)
    folder = published.write(tmp_path / 'x', dict(dtype='bfloat16'))
    net = check_numbers(folder, {}, as_bf16(
        dict(tensors), folder / 'model.safetensors'))
    assert {onp.dtype(param.dtype) for param
            in net.collect_params().values()} == {onp.dtype('float32')}
    for kind in ('float16', 'float64'):
        other = {name: tensor.astype(kind)
                 for name, tensor in tensors.items()}
        check_numbers(published.write(tmp_path / kind, None, other), {},
                      other)


def shard(folder, parts=3):
    """Cut the weights of a folder into files with an index."""
    tensors = load_file(folder / 'model.safetensors')
    (folder / 'model.safetensors').unlink()
    index = {}
    for i in range(parts):
        file = f'model-{i + 1:05}-of-{parts:05}.safetensors'
        names = sorted(tensors)[i::parts]
        save_file({name: tensors[name] for name in names}, folder / file)
        index.update(dict.fromkeys(names, file))
    (folder / 'model.safetensors.index.json').write_text(
        json.dumps(dict(metadata={}, weight_map=index)))
    return folder


def test_weights_in_shards_are_loaded(tmp_path):
    tensors = published.draw(CONFIG)
    check_numbers(shard(published.write(tmp_path / 'x', None, tensors)), {},
                  tensors)


# Missing, left over and misshapen tensors

def test_missing_heads_are_drawn_and_listed_tensor_by_tensor(tmp_path, capsys):
    tensors = {name: tensor for name, tensor in published.draw(CONFIG).items()
               if 'pooler' not in name and 'seq' not in name
               and 'predictions.transform' not in name}
    tensors['classifier.weight'] = onp.ones((3, 12), 'float32')
    tensors['classifier.bias'] = onp.ones(3, 'float32')
    folder = published.write(
        tmp_path / 'x', dict(initializer_range=0.5, hidden_size=12), tensors)
    net, _ = load_pretrained(folder)
    assert capsys.readouterr().err == (
        f'{folder}: it lacks tensors of the pooler and the masked language '
        'model head and the next sentence head, which are random until they '
        'are trained; left over and not used: classifier.bias, '
        'classifier.weight (print(net.pretrained) lists these tensors)\n')
    assert [line.split() for line in str(net.pretrained).splitlines()] == [
        ['tensor', 'state', 'expected', 'found'],
        ['bert.pooler.dense.weight', 'missing', '12', 'x', '12'],
        ['bert.pooler.dense.bias', 'missing', '12'],
        ['cls.predictions.transform.dense.weight', 'missing', '12', 'x',
         '12'],
        ['cls.predictions.transform.dense.bias', 'missing', '12'],
        ['cls.predictions.transform.LayerNorm.weight', 'missing', '12'],
        ['cls.predictions.transform.LayerNorm.bias', 'missing', '12'],
        ['cls.seq_relationship.weight', 'missing', '2', 'x', '12'],
        ['cls.seq_relationship.bias', 'missing', '2'],
        ['classifier.bias', 'left', 'over', '3'],
        ['classifier.weight', 'left', 'over', '3', 'x', '12']]
    drawn = onp.concatenate([
        layer.weight.data().asnumpy().ravel()
        for layer in (net.hidden, net.mlm.mlp[0], net.nsp.output)])
    assert abs(drawn.std() - 0.5) < 0.1 and len(set(drawn)) == len(drawn)
    assert not net.hidden.bias.data().asnumpy().any()
    assert (net.mlm.mlp[1].gamma.data().asnumpy() == 1).all()
    assert [net.pretrained.lacks(part)
            for part in ('encoder', 'pooler', 'mlm', 'nsp')] == [
        False, True, True, True]


def test_only_missing_heads_that_are_used_cause_a_warning(tmp_path, capsys):
    tensors = {name: tensor for name, tensor in published.draw(CONFIG).items()
               if 'pooler' not in name and 'seq' not in name}
    folder = published.write(tmp_path / 'x', None, tensors)
    for heads, said in (((), ''), (('mlm',), ''),
                        (('nsp',), 'of the next sentence head, which')):
        load_pretrained(folder, heads=heads)
        err = capsys.readouterr().err
        assert said in err and bool(said) == bool(err)
        assert 'pooler' not in err


@pytest.mark.parametrize('heads, kind, said', [
    (['mlm', 'poler'], ValueError, "among pooler, mlm, nsp, not 'poler'"),
    ('poler', ValueError, "among pooler, mlm, nsp, not 'poler'"),
    (None, TypeError, 'heads must be a list of names, not None')])
@pytest.mark.parametrize('load', [d2l.load_pretrained, d2l.load_model])
def test_an_unknown_head_is_refused(load, heads, kind, said, tmp_path):
    with pytest.raises(kind, match=said):
        load(published.write(tmp_path / 'x'), heads=heads)


def refused(folder, *arguments):
    """The text of the error of a folder that is not loaded."""
    with pytest.raises(PretrainedError) as error:
        load_pretrained(folder, *arguments)
    return str(error.value)


def test_a_tensor_of_another_shape_is_refused_with_the_table(tmp_path):
    tensors = published.draw(CONFIG)
    tensors['bert.pooler.dense.bias'] = onp.ones(5, 'float32')
    tensors['bert.embeddings.LayerNorm.bias'] = onp.ones(12, 'int8')
    del tensors['cls.seq_relationship.bias']
    folder = published.write(tmp_path / 'x', None, tensors)
    first, *table = refused(folder).splitlines()
    assert first == (
        f'{folder} does not hold the BERT that its config.json describes: 2 '
        'tensors do not have the shape or type that its config.json asks for; '
        'fetch config.json and the weights again:')
    assert [line.split() for line in table[1:]] == [
        ['bert.embeddings.LayerNorm.bias', 'misshapen', '12', '12', 'of',
         'I8'],
        ['bert.pooler.dense.bias', 'misshapen', '12', '5'],
        ['cls.seq_relationship.bias', 'missing', '2']]


def test_an_incomplete_encoder_is_refused_with_the_table(tmp_path):
    tensors = published.draw(CONFIG)
    name = 'bert.encoder.layer.1.attention.self.key.bias'
    tensors[name + 'es'] = tensors.pop(name)
    text = refused(published.write(tmp_path / 'x', None, tensors))
    assert 'describes: 1 tensors of the encoder are missing; fetch' in text
    assert [line.split() for line in text.splitlines()[2:]] == [
        [name, 'missing', '12'], [name + 'es', 'left', 'over', '12']]


def test_a_decoder_of_another_shape_is_refused(tmp_path):
    tensors = published.draw(CONFIG)
    tensors['cls.predictions.decoder.weight'] = onp.ones((7, 12), 'float32')
    text = refused(published.write(tmp_path / 'x', None, tensors))
    assert text.splitlines()[-1].split() == [
        'cls.predictions.decoder.weight', 'misshapen', '23', 'x', '12', '7',
        'x', '12']


# config.json

@pytest.mark.parametrize('field, value, expected', [
    ('model_type', 'gpt2', 'one of albert, bart, bert, camembert, '
     'distilbert, flaubert, roberta, as no other family'),
    ('position_embedding_type', 'relative_key', "'absolute', as positions"),
    ('is_decoder', True, 'False, as a decoder'),
    ('add_cross_attention', True, 'False, as attention to a second text'),
    ('pruned_heads', {'0': [1]}, '{}, as attention heads'),
    ('quantization_config', {'bits': 4}, 'None, as quantized weights'),
    ('hidden_act', 'silu', 'one of gelu, gelu_python, gelu_new'),
    ('hidden_act', None, 'one of gelu'),
    ('hidden_size', 0, 'a whole number of at least 1'),
    ('num_hidden_layers', 2.0, 'a whole number of at least 1'),
    ('vocab_size', '23', 'a whole number of at least 1'),
    ('type_vocab_size', True, 'a whole number of at least 1'),
    ('layer_norm_eps', '1e-12', 'a number from 0 to less than 1'),
    ('hidden_dropout_prob', 1.0, 'a number from 0 to less than 1'),
    ('attention_probs_dropout_prob', None, 'a number from 0 to less than 1'),
    ('layer_norm_eps', float('nan'), 'a number from 0 to less than 1'),
    ('tie_word_embeddings', 'yes', 'true or false'),
    ('architectures', 'BertModel', 'a list'),
    ('dtype', 32, 'a name'), ('torch_dtype', ['float32'], 'a name'),
    ('initializer_range', -1, 'a number of at least 0'),
    ('initializer_range', float('inf'), 'a number'),
    ('classifier_dropout', float('nan'), 'a number from 0 to less'),
    ('classifier_dropout', 2, 'a number from 0 to less'),
    ('pad_token_id', 23, 'one of the 23 token ids')])
def test_an_unsupported_field_is_refused_by_name(field, value, expected,
                                                 tmp_path):
    folder = published.write(tmp_path / 'x', {field: value},
                             published.draw(CONFIG))
    text = refused(folder)
    assert text.startswith(f'{folder}/config.json: {field} is {value!r}, '
                           f'expected {expected}')
    assert '\n' not in text


def test_heads_that_do_not_divide_the_hiddens_are_refused(tmp_path):
    assert refused(published.write(
        tmp_path / 'x', dict(num_attention_heads=5))).endswith(
        'num_attention_heads is 5, which does not divide hidden_size, 12')


def test_fields_that_are_missing_have_published_values(tmp_path):
    (tmp_path / 'config.json').write_text('{"hidden_size": 240}')
    found, config = read_keywords_and_fields(tmp_path / 'config.json')
    assert found == dict(
        vocab_size=30522, num_hiddens=240, ffn_num_hiddens=3072,
        num_heads=12, num_layers=12, max_len=512, num_segments=2,
        dropout=0.1, attention_dropout=0.1, layer_norm_eps=1e-12,
        activation='gelu', embedding_norm=True, tie_embeddings=True)
    assert config['initializer_range'] == 0.02


def by_a_tanh(x):
    return x / 2 * (1 + onp.tanh((2 / onp.pi) ** 0.5
                                 * (x + 0.044715 * x ** 3)))


def by_erf(x):
    return x / 2 * (1 + onp.vectorize(math.erf)(x / 2 ** 0.5))


EQUATIONS = dict(gelu=by_erf, gelu_python=by_erf, gelu_new=by_a_tanh,
                 gelu_fast=by_a_tanh, gelu_pytorch_tanh=by_a_tanh,
                 relu=lambda x: onp.maximum(x, 0))


@pytest.mark.parametrize('name', ACTIVATIONS)
def test_each_name_of_an_activation_means_its_equation(name, tmp_path):
    (tmp_path / 'config.json').write_text(json.dumps(dict(hidden_act=name)))
    found = read_keywords_and_fields(tmp_path / 'config.json')[0]['activation']
    x = onp.linspace(-4, 4, 101)
    dense = d2l.TransformerEncoderBlock(
        1, 1, 1, 0.0, activation=found).ffn.dense1
    dense.initialize(init.One())
    ours = dense(np.array(x.reshape(-1, 1), 'float32')).asnumpy()
    # The two forms of GELU are up to 5e-4 apart
    onp.testing.assert_allclose(ours[:, 0], EQUATIONS[name](x), 0, 2e-5)


# Damaged folders

def bad_json(folder):
    (folder / 'config.json').write_text('{"vocab_size": ')
    return 'config.json is damaged: Expecting value'


def listed_json(folder):
    (folder / 'config.json').write_text('[]')
    return 'config.json is damaged: it holds no object'


def no_config(folder):
    (folder / 'config.json').unlink()
    return ('has no config.json: it is no folder of a pretrained model, name '
            'another or fetch this file')


def countless_layers(folder):
    path = folder / 'config.json'
    path.write_text(path.read_text().replace(
        '"num_hidden_layers": 2', '"num_hidden_layers": 2000000000'))
    return '46 tensors are too few for 2000000000 layers'


def no_weights(folder):
    (folder / 'model.safetensors').unlink()
    return 'has no model.safetensors: it holds no weights, fetch this file'


def a_run(folder):
    (folder / 'model.safetensors').unlink()
    (folder / 'model.params').touch()
    return 'is a run, and no folder of a pretrained model: load it with'


def cut_weights(folder):
    path = folder / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:-10])
    return 'model.safetensors is no whole safetensors file: '


def error_page(folder):
    (folder / 'model.safetensors').write_text('<html>404 Not Found</html>')
    return 'model.safetensors is no whole safetensors file: '


def pointer(folder):
    (folder / 'model.safetensors').write_bytes(b'')
    return 'model.safetensors is no whole safetensors file: '


def a_shard_is_missing(folder):
    (shard(folder) / 'model-00002-of-00003.safetensors').unlink()
    return ('index.json names model-00002-of-00003.safetensors, which is not '
            'in the folder: fetch all its files')


def an_index_lies(folder):
    path = shard(folder) / 'model.safetensors.index.json'
    index = json.loads(path.read_text())
    index['weight_map']['new'] = 'model-00001-of-00003.safetensors'
    path.write_text(json.dumps(index))
    return ('lists new in model-00001-of-00003.safetensors, which does not '
            'have it')


def an_index_leads_elsewhere(folder):
    path = shard(folder) / 'model.safetensors.index.json'
    path.write_text(path.read_text().replace('model-00001', '../model'))
    return 'must map each tensor to a file in the same folder'


def an_index_names_no_file(folder):
    path = shard(folder) / 'model.safetensors.index.json'
    path.write_text('{"weight_map": {"x": ""}}')
    return 'must map each tensor to a file in the same folder'


def an_index_is_none(folder):
    (shard(folder) / 'model.safetensors.index.json').write_text('{}')
    return 'must map each tensor to a file in the same folder'


def no_tokenizer(folder):
    (folder / 'vocab.txt').unlink()
    return 'holds no tokenizer'


def too_many_tokens(folder):
    with open(folder / 'vocab.txt', 'a') as file:
        file.write('one\nmore\n')
    return ('has 25 tokens, but the model only 23: they belong to different '
            'models')


@pytest.mark.parametrize('damage', [
    bad_json, listed_json, no_config, countless_layers, no_weights,
    a_run, cut_weights, error_page,
    pointer, a_shard_is_missing, an_index_lies, an_index_leads_elsewhere,
    an_index_names_no_file, an_index_is_none, no_tokenizer, too_many_tokens])
def test_a_damaged_folder_is_refused_in_one_sentence(damage, tmp_path):
    folder = published.write(tmp_path / 'x')
    said = damage(folder)
    text = refused(folder)
    assert said in text and str(folder) in text and '\n' not in text


def test_a_name_that_is_no_folder_is_not_downloaded(tmp_path):
    assert refused('bert-base-uncased') == (
        'there is no folder bert-base-uncased: name one on this disk that '
        'holds config.json, model.safetensors and tokenizer.json or '
        'vocab.txt (models are never downloaded by name)')


def test_pickles_are_refused_with_the_way_to_convert_them(tmp_path):
    folder = published.write(tmp_path / 'x')
    (folder / 'model.safetensors').unlink()
    (folder / 'pytorch_model.bin').write_bytes(b'never read')
    text = refused(folder)
    assert text.startswith(f'{folder}/pytorch_model.bin is a pickle')
    assert 'weights_only=True' in text and '\n' not in text
    (folder / 'pytorch_model.bin').unlink()
    (folder / 'tf_model.h5').write_bytes(b'never read')
    assert 'has its weights in tf_model.h5, but only' in refused(folder)


@pytest.mark.parametrize('library', ['safetensors', 'tokenizers'])
def test_without_the_library_a_sentence_names_the_extra(library, tmp_path,
                                                        monkeypatch):
    folder = published.write(tmp_path / 'x')
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError) as error:
        load_pretrained(folder)
    assert library in str(error.value)
    assert "pip install '.[pretrained]'" in str(error.value)


# Saving

@pytest.fixture(scope='module')
def loaded(tmp_path_factory):
    return load_pretrained(published.write(
        tmp_path_factory.mktemp('pretrained') / 'x'))


@pytest.mark.parametrize('config', [
    {}, dict(hidden_act='gelu_new', layer_norm_eps=1e-5, type_vocab_size=3),
    dict(tie_word_embeddings=False, hidden_act='relu')], ids=str)
def test_a_loaded_folder_is_saved_unchanged(config, tmp_path):
    config = {**CONFIG, **config}
    tensors = published.draw(config)
    if not config.get('tie_word_embeddings', True):
        # One bias here has two names there
        tensors['cls.predictions.bias'] = tensors[
            'cls.predictions.decoder.bias']
    before = published.write(tmp_path / 'before', config, tensors)
    save_pretrained(*load_pretrained(before), tmp_path / 'after')
    after = load_file(tmp_path / 'after' / 'model.safetensors')
    assert sorted(after) == sorted(published.shapes(config))
    for name, tensor in tensors.items():
        assert onp.array_equal(after[name], tensor), name
        assert after[name].dtype == onp.float32
    said = json.loads((tmp_path / 'after' / 'config.json').read_text())
    for field, value in config.items():
        assert said[field] == value, field
    assert said['tie_word_embeddings'] == config.get('tie_word_embeddings',
                                                     True)
    with open(tmp_path / 'after' / 'model.safetensors', 'rb') as file:
        size, = struct.unpack('<Q', file.read(8))
        metadata = json.loads(file.read(size))['__metadata__']
    assert sorted(metadata) == ['d2lbert.blake2b', 'format']
    assert metadata['format'] == 'pt'
    again, tokenizer = load_pretrained(tmp_path / 'after')
    assert tokenizer.idx_to_token == VOCAB


def test_a_net_is_saved_and_loaded_with_the_same_outputs(loaded, tmp_path):
    net = d2l.BERTModel(23, 8, 12, 2, 1, 0.3, 16, activation='relu',
                        embedding_norm=True, tie_embeddings=True)
    net.initialize(init.Normal(0.5))
    save_pretrained(net, loaded[1], tmp_path / 'x')
    back, _ = load_pretrained(tmp_path / 'x')
    assert {name: value for name, value in back.config.items()
            if value != net.config[name]} == dict(attention_dropout=0.3)
    theirs = back._collect_params_with_prefix()
    for name, param in net._collect_params_with_prefix().items():
        assert onp.array_equal(param.data().asnumpy(),
                               theirs[name].data().asnumpy()), name


def chapter_net(**keywords):
    net = d2l.BERTModel(23, 4, 4, 1, 1, 0.1, **keywords)
    net.initialize()
    return net


def extended_net():
    net = chapter_net(embedding_norm=True)
    net.extra = mx.gluon.nn.Dense(2, in_units=4)
    return net


@pytest.mark.parametrize('make, said', [
    (chapter_net, 'no LayerNorm after its embeddings'),
    (lambda: chapter_net(positional='sinusoidal'), 'sinusoidal positions'),
    (extended_net, 'missing or unexpected: extra.bias, extra.weight'),
    (lambda: d2l.BERTModel(23, 4, 4, 1, 1, 0.1, embedding_norm=True),
     'is not initialized): nothing to save'),
    (lambda: d2l.BERTModel(22, 4, 4, 1, 1, 0.1, embedding_norm=True),
     'the tokenizer has 23 tokens, but the net only 22')])
def test_a_net_that_the_format_cannot_represent_is_refused(make, said, loaded,
                                                           tmp_path):
    with pytest.raises(PretrainedError) as error:
        save_pretrained(make(), loaded[1], tmp_path / 'x')
    assert said in str(error.value) and '\n' not in str(error.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('change, kind, said', [
    (dict(parts=['encodr']), ValueError, 'parts must be names among encoder, '
     "decoder, pooler, mlm, nsp, head, not 'encodr'"),
    (dict(parts=3), TypeError, 'parts must be a list of names, not 3'),
    (dict(net=None), TypeError, 'net must be a net, such as load_model'),
    (dict(tokenizer='x'), TypeError, 'tokenizer must be a tokenizer, such')])
def test_a_wrong_argument_is_named_and_nothing_written(change, kind, said,
                                                       loaded, tmp_path):
    arguments = dict(zip(('net', 'tokenizer'), loaded), folder=tmp_path / 'x')
    with pytest.raises(kind, match=said):
        save_pretrained(**{**arguments, **change})
    with pytest.raises(TypeError, match='net and tokenizer are swapped'):
        save_pretrained(*reversed(loaded), tmp_path / 'x')
    assert not any(tmp_path.iterdir())


def test_a_part_is_written_by_its_name(loaded, tmp_path):
    for parts, name in (('mlm', 'x'), (['mlm'], 'y')):
        save_pretrained(*loaded, tmp_path / name, parts)
        names = load_file(str(tmp_path / name / 'model.safetensors'))
        assert names and all('cls.predictions' in name for name in names)


def test_a_folder_that_is_not_empty_is_not_written_to(loaded, tmp_path):
    (tmp_path / 'x').mkdir()
    (tmp_path / 'x' / 'mine').touch()
    for path in (tmp_path / 'x', tmp_path / 'x' / 'mine', tmp_path):
        with pytest.raises(FileExistsError, match='exists already: choose'):
            save_pretrained(*loaded, path)
    assert [path.name for path in (tmp_path / 'x').iterdir()] == ['mine']


def test_a_folder_is_written_whole_or_not_at_all(loaded, tmp_path,
                                                 monkeypatch):
    def fails(*args, **keywords):
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr(tensor_files, 'write', fails)
    path = tmp_path / 'new' / 'x'
    with pytest.raises(OSError) as error:
        save_pretrained(*loaded, path)
    assert str(error.value) == (f"[Errno 28] No space left on device: "
                                f"'{path}'")
    assert not any(tmp_path.iterdir())


def test_a_full_disk_is_named_by_the_folder(loaded, tmp_path):
    # This process may write 8 KB into a file, and no more
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(OSError) as error:
            save_pretrained(*loaded, tmp_path / 'x')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"{tmp_path / 'x'}" in str(error.value)
    assert '.part' not in str(error.value)
    assert not any(tmp_path.iterdir())


def test_the_umask_sets_the_permissions_of_a_folder(loaded, tmp_path):
    umask = os.umask(0)
    os.umask(umask)
    save_pretrained(*loaded, tmp_path / 'x')
    assert (tmp_path / 'x').stat().st_mode & 0o777 == 0o777 & ~umask
    for path in (tmp_path / 'x').iterdir():
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask, path


# Sizes

@pytest.mark.parametrize('make, without_heads', [
    (d2l.bert_base, 109_482_240), (d2l.bert_large, 335_141_888)])
def test_published_sizes_have_the_published_parameters(make, without_heads):
    net = make(30522)
    counted = {name: math.prod(param.shape) for name, param
               in net._collect_params_with_prefix().items()
               if name.startswith(('encoder.', 'hidden.'))}
    assert sum(counted.values()) == without_heads
    table = table_of(net.config)
    assert sum(math.prod(line.shape) for line in table
               if line.part in ('encoder', 'pooler')) == without_heads
    assert sorted(line.name for line in table) == sorted(published.shapes(
        dict(CONFIG, num_hidden_layers=net.config['num_layers'])))
    # The heads: a dense layer, a LayerNorm, a bias, two classes; 110 M and
    # 340 M in the paper
    H = net.config['num_hiddens']
    assert sum(math.prod(param.shape)
               for param in net.collect_params().values()
               ) - without_heads == H * H + H + 2 * H + 30522 + 2 * H + 2


def test_the_table_knows_each_parameter_and_its_shape():
    for tied in (True, False):
        net = d2l.bert_base(50, num_hiddens=24, ffn_num_hiddens=7,
                            num_layers=2, max_len=5, tie_embeddings=tied)
        params = net._collect_params_with_prefix()
        table = table_of(net.config)
        assert {line.param_name for line in table} == set(params) - (
            {'mlm.mlp.2.weight'} if tied else set())
        for line in table:
            shape = params[line.param_name].shape
            assert line.shape == (shape if line.param_name !=
                                  'encoder.pos_embedding' else shape[1:])
        assert {line.name: line.shape for line in table} == {
            name: shape for name, shape in published.shapes(dict(
                CONFIG, vocab_size=50, hidden_size=24, intermediate_size=7,
                num_hidden_layers=2, max_position_embeddings=5,
                tie_word_embeddings=tied)).items()
            if name != 'cls.predictions.decoder.bias'}


def test_devices_and_threads(tmp_path):
    folder = published.write(tmp_path / 'x')
    devices, found = [mx.cpu(0), mx.cpu(1)], []
    thread = threading.Thread(target=lambda: found.append(
        load_pretrained(folder, devices)[0]))
    thread.start()
    thread.join()
    net, = found
    weight = net.encoder.token_embedding.weight
    assert weight.list_ctx() == devices
    assert np.array_equal(*(weight.data(device).as_in_ctx(mx.cpu())
                            for device in devices))


# Damaged weights

def saved(tmp_path):
    """A folder that `save_pretrained` wrote."""
    published.write(tmp_path / 'theirs')
    d2l.save_pretrained(*load_pretrained(tmp_path / 'theirs'),
                        tmp_path / 'ours')
    return tmp_path / 'ours'


def test_every_flipped_bit_of_our_weights_is_refused(tmp_path):
    folder = saved(tmp_path)
    path = folder / 'model.safetensors'
    whole = path.read_bytes()
    begin = 8 + struct.unpack('<Q', whole[:8])[0]
    rng = onp.random.RandomState(0)
    for place in rng.randint(begin, len(whole), 40):
        data = bytearray(whole)
        data[place] ^= 1 << rng.randint(8)
        path.write_bytes(data)
        with pytest.raises(PretrainedError, match='the digest of .* does '
                           'not match its values; fetch it again$'):
            load_pretrained(folder)
    path.write_bytes(whole)
    load_pretrained(folder)


def test_digests_are_those_of_the_bytes(tmp_path):
    path = saved(tmp_path) / 'model.safetensors'
    with safe_open(path, 'np') as file:
        digests = json.loads(file.metadata()['d2lbert.blake2b'])
        assert file.metadata()['format'] == 'pt'
        assert digests == {name: hashlib.blake2b(
            file.get_tensor(name).tobytes(), digest_size=16).hexdigest()
            for name in file.keys()}


def test_equal_tensors_give_equal_bytes(tmp_path):
    found = set()
    for _ in range(8):      # the library orders the metadata at random
        tensor_files.write(tmp_path / 'x', {
            'a': onp.ones((2, 3), 'float32'),
            'größe "\n': onp.zeros(5, 'int8')}, 'x')
        found.add((tmp_path / 'x').read_bytes())
    assert len(found) == 1
    tensors = tensor_files._list_file(tmp_path / 'x')
    assert tensor_files.read(tensors['a']).tolist() == [[1, 1, 1], [1, 1, 1]]
    with safe_open(str(tmp_path / 'x'), 'np') as file:
        assert (file.get_tensor('größe "\n') == onp.zeros(5)).all()


def test_digests_of_other_tensors_are_refused(tmp_path):
    folder = saved(tmp_path)
    path = folder / 'model.safetensors'
    tensors = load_file(path)
    for digests in {}, {**dict.fromkeys(tensors, ''), 'more': ''}, []:
        save_file(tensors, path, {'d2lbert.blake2b': json.dumps(digests)})
        with pytest.raises(PretrainedError, match='its digests do not match'):
            load_pretrained(folder)
    save_file(tensors, path, {'d2lbert.blake2b': '[' * 10 ** 5})
    with pytest.raises(PretrainedError, match='nested too deeply'):
        load_pretrained(folder)


def test_weights_that_are_not_finite_are_named_once(tmp_path, capsys):
    tensors = published.draw(CONFIG)
    first, second, *_ = [name for name in tensors if 'query' in name]
    tensors[first][:3] = onp.nan
    tensors[second].reshape(-1)[0] = -onp.inf
    load_pretrained(published.write(tmp_path / 'x', None, tensors))
    (line,) = capsys.readouterr().err.splitlines()
    count = tensors[first][:3].size
    assert f'{first} ({count}), {second} (1); what the model' in line


def test_a_shard_whose_name_is_too_long_is_missing(tmp_path):
    folder = published.write(tmp_path / 'x')
    shard(folder)
    (folder / 'model.safetensors.index.json').write_text(
        json.dumps(dict(weight_map={'a': 'x' * 9999})))
    with pytest.raises(PretrainedError, match='names x{200}, which is not'):
        load_pretrained(folder)


def test_buffers_of_ids_are_no_weights(tmp_path):
    tensors = published.draw(published.CONFIG)
    folder = published.write(tmp_path / 'plain', None, tensors)
    net, _ = load_pretrained(folder)
    other = published.write(tmp_path / 'more', None, {
        **tensors,
        'bert.embeddings.token_type_ids': onp.zeros((1, 40), 'int64'),
        'bert.embeddings.position_ids': onp.arange(40).reshape(1, 40)})
    again, _ = load_pretrained(other)
    assert again.pretrained.differences == net.pretrained.differences == ()
