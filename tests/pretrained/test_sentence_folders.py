"""Folders of sentence-transformers, as their modules.json says."""
import json
import os
import subprocess
from pathlib import Path

import numpy as onp
import pytest
import sentences
from sentences import NEW, OLD

import d2lbert as d2l
from d2lbert.pretrained.pooling import Pooling, load_pooling
from d2lbert.pretrained.tensor_files import PretrainedError
from d2lbert.text_model import load_model
from d2lbert.training.load import export_run, import_run


def changed(files, name, **values):
    """A copy of the files with changed values in one; None removes a value.
    """
    content = {**files.get(name, {}), **values}
    return {**files, name: {key: value for key, value in content.items()
                            if value is not None}}


def listing(files, *kinds):
    """The files with these modules."""
    return {**files, 'modules.json': [
        {'idx': i, 'name': str(i), 'path': '' if not i else f'{i}_{kind}',
         'type': f'sentence_transformers.models.{kind}'}
        for i, kind in enumerate(kinds)]}


POOLING = '1_Pooling/config.json'
PROMPTS = 'config_sentence_transformers.json'


@pytest.mark.parametrize('files, wanted', [
    ({}, Pooling()),
    (OLD, Pooling(('mean',), True, 12)),
    (NEW, Pooling(('cls',), False, None)),
    (listing(OLD, 'Transformer', 'Pooling'), Pooling(('mean',), False, 12)),
    (changed(OLD, POOLING, pooling_mode_max_tokens=True),
     Pooling(('max', 'mean'), True, 12)),
    (changed(OLD, POOLING, pooling_mode_mean_tokens=False,
             pooling_mode_lasttoken=True), Pooling(('lasttoken',), True, 12)),
    (changed(OLD, POOLING, pooling_mode_mean_tokens=False),
     Pooling(('mean',), True, 12)),
    (changed(NEW, POOLING, pooling_mode=['cls', 'weightedmean']),
     Pooling(('cls', 'weightedmean'))),
    (changed(OLD, 'sentence_bert_config.json', max_seq_length=None,
             do_lower_case=True),
     Pooling(('mean',), True, None, lowercase=True)),
    (changed(NEW, PROMPTS, prompts={'query': 'find: '},
             default_prompt_name='query'), Pooling(('cls',), prompt='find: ')),
    (changed(NEW, PROMPTS, prompts={'query': 'find: '}), Pooling(('cls',)))])
def test_the_pooling_of_a_folder_is_loaded(files, wanted, tmp_path):
    sentences.write_files(tmp_path, files)
    assert load_pooling(tmp_path)._replace(files=None) == wanted


def test_the_transformer_may_be_in_a_separate_folder(tmp_path):
    files = {**OLD, '0_Transformer/sentence_roberta_config.json':
             {'max_seq_length': 7}}
    del files['sentence_bert_config.json']
    files['modules.json'] = [dict(files['modules.json'][0],
                                  path='0_Transformer'),
                             *files['modules.json'][1:]]
    sentences.write_files(tmp_path, files)
    assert load_pooling(tmp_path).max_len == 7


@pytest.mark.parametrize('files, reason', [
    (listing(OLD, 'Transformer', 'Pooling', 'Dense', 'Normalize'),
     'are Transformer, Pooling, Dense, Normalize, but only'),
    (listing(OLD, 'Transformer'), 'are Transformer, but only'),
    (listing(OLD, 'Transformer', 'Transformer', 'Pooling'),
     'are Transformer, Transformer, Pooling, but only'),
    ({'modules.json': []}, 'are none, but only'),
    (changed(changed(NEW, PROMPTS, prompts={'query': 'find: '},
                     default_prompt_name='query'), POOLING,
             include_prompt=False), "puts 'find: ' before each text")])
def test_unsupported_modules_are_named_in_the_refusal(files, reason, tmp_path):
    sentences.write_files(tmp_path, files)
    assert reason in load_pooling(tmp_path).refusal


@pytest.mark.parametrize('files, reason', [
    ({'modules.json': {}}, 'modules.json is damaged: it holds no list'),
    ({'modules.json': [{'path': ''}]}, 'module must have a type and a path'),
    ({'modules.json': ['Pooling']}, 'module must have a type and a path'),
    ({name: OLD[name] for name in ('modules.json',)},
     '1_Pooling has no config.json'),
    (changed(NEW, POOLING, pooling_mode='median'),
     "has the unknown pooling 'median': supported are cls, mean"),
    (changed(NEW, POOLING, pooling_mode=[]), r'has the unknown pooling \[\]'),
    (changed(NEW, POOLING, pooling_mode=3), 'has the unknown pooling 3'),
    (changed(OLD, 'sentence_bert_config.json', max_seq_length='long'),
     "max_seq_length must be a number of tokens, not 'long'"),
    (changed(OLD, 'sentence_bert_config.json', max_seq_length=0), 'not 0'),
    (changed(NEW, PROMPTS, default_prompt_name='query'),
     "its default prompt 'query'"),
    (changed(NEW, PROMPTS, default_prompt_name='query', prompts=[]),
     "its default prompt 'query'"),
    (changed(NEW, PROMPTS, default_prompt_name=['query'], prompts={}),
     r"its default prompt \['query'\]")])
def test_damaged_files_are_named(files, reason, tmp_path):
    sentences.write_files(tmp_path, files)
    with pytest.raises(PretrainedError, match=reason):
        load_pooling(tmp_path)


def test_a_loaded_tokenizer_has_the_pooling_of_its_folder(tmp_path):
    pytest.importorskip('tokenizers')
    pytest.importorskip('safetensors')
    net, tokenizer = d2l.load_pretrained(
        sentences.write_folder(tmp_path / 'model'))
    assert tokenizer.pooling._replace(files=None) == Pooling(
        ('mean',), True, 12)
    text = 'the grey crane flies over the old tree under the river wing'
    (own,) = d2l.encode(net, tokenizer, [text])
    (mean,) = d2l.encode(net, tokenizer, [text], 'mean', max_len=12)
    onp.testing.assert_allclose(own, mean / onp.linalg.norm(mean), atol=1e-6)
    # A requested pooling is not normalized by default
    assert abs(onp.linalg.norm(mean) - 1) > 0.1


# Saving

PROMPTED = changed(changed(
    OLD, 'sentence_bert_config.json', do_lower_case=True), PROMPTS, prompts={
        'query': 'The bird ', 'other': 'A '}, default_prompt_name='query',
    similarity_fn_name='dot')
KINDS = {
    'plain': {}, 'old': OLD, 'new': NEW, 'prompted': PROMPTED,
    'joined': changed(OLD, POOLING, pooling_mode_max_tokens=True),
    'others': changed(NEW, POOLING, pooling_mode=[
        'mean_sqrt_len_tokens', 'lasttoken', 'weightedmean']),
    'without': listing(OLD, 'Transformer', 'Pooling'),
    'elsewhere': {**{name: content for name, content in OLD.items()
                     if name == 'modules.json'},
                  '0_Transformer/sentence_bert_config.json':
                      OLD['sentence_bert_config.json'],
                  '../pooling/config.json': OLD[POOLING],
                  'modules.json': [
                      dict(OLD['modules.json'][0], path='0_Transformer'),
                      dict(OLD['modules.json'][1], path='../pooling'),
                      OLD['modules.json'][2]]}}
TEXTS = [*sentences.texts(20), 'A Crane ' * 30]


def exported(folder, tmp_path):
    """Two copies: through Python, and through a run."""
    d2l.save_pretrained(*d2l.load_pretrained(folder), tmp_path / 'python')
    import_run(folder, tmp_path / 'run')
    export_run(tmp_path / 'run', tmp_path / 'command')
    return tmp_path / 'python', tmp_path / 'command'


@pytest.mark.parametrize('kind', KINDS)
def test_a_saved_folder_gives_the_same_vectors(kind, tmp_path):
    pytest.importorskip('tokenizers')
    pytest.importorskip('safetensors')
    folder = sentences.write_folder(tmp_path / 'in' / 'model', KINDS[kind])
    net, tokenizer = d2l.load_pretrained(folder)
    wanted = d2l.encode(net, tokenizer, TEXTS)
    for copy in exported(folder, tmp_path):
        net, tokenizer = d2l.load_pretrained(copy)
        onp.testing.assert_allclose(d2l.encode(net, tokenizer, TEXTS), wanted,
                                    atol=1e-6)
        assert (copy / 'modules.json').is_file() == bool(KINDS[kind])
        if kind == 'prompted':
            assert json.loads((copy / PROMPTS).read_text()) == PROMPTED[
                PROMPTS]


def test_a_custom_pooling_is_saved(tmp_path):
    pytest.importorskip('tokenizers')
    net, tokenizer = d2l.load_pretrained(
        sentences.write_folder(tmp_path / 'model'))
    for number, pooling in enumerate([
            tokenizer.pooling._replace(normalize=False),
            tokenizer.pooling._replace(prompt='The ', max_len=9),
            Pooling(('weightedmean', 'cls'), True, lowercase=True),
            Pooling(('cls', 'max'), max_len=7)]):
        tokenizer.pooling = pooling
        d2l.save_pretrained(net, tokenizer, tmp_path / f'{number}')
        _, again = d2l.load_pretrained(tmp_path / f'{number}')
        assert again.pooling._replace(files=None) == pooling._replace(
            files=None)


def test_a_folder_with_unsupported_modules_is_not_saved(tmp_path):
    pytest.importorskip('tokenizers')
    folder = sentences.write_folder(tmp_path / 'model', listing(
        OLD, 'Transformer', 'Pooling', 'Dense', 'Normalize'))
    net, tokenizer = d2l.load_pretrained(folder)
    import_run(folder, tmp_path / 'run')
    for write in (lambda: d2l.save_pretrained(net, tokenizer,
                                              tmp_path / 'out'),
                  lambda: export_run(tmp_path / 'run', tmp_path / 'out')):
        with pytest.raises(PretrainedError, match='give different vectors'):
            write()
    assert not (tmp_path / 'out').exists()
    # A run has no modules.json: the message names the folder
    with pytest.raises(ValueError, match='the modules of .*run are Transf'):
        load_model(tmp_path / 'run').encode('a bird')
    tokenizer.pooling = None
    d2l.save_pretrained(net, tokenizer, tmp_path / 'out')
    assert not (tmp_path / 'out' / 'modules.json').exists()


@pytest.mark.parametrize('pooling', [
    3, [], {'modules.json': 3}, {'modules.json': OLD['modules.json'],
                                 POOLING: []}, {'../x': []},
    {**OLD, '../x': {}}])
def test_a_run_whose_pooling_is_damaged_is_refused(pooling, tmp_path):
    pytest.importorskip('tokenizers')
    import_run(sentences.write_folder(tmp_path / 'model'), tmp_path / 'run')
    path = tmp_path / 'run' / 'config.json'
    path.write_text(json.dumps(dict(json.loads(path.read_text()),
                                    pooling=pooling)))
    with pytest.raises(PretrainedError, match='damaged'):
        load_model(tmp_path / 'run')


# Comparison with the library

ORACLE = '''
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device='cpu')
np.save(sys.argv[3], model.encode(json.load(open(sys.argv[2]))))
if len(sys.argv) > 4:
    model.save(sys.argv[4])
'''


@pytest.fixture
def peer(tmp_path, ask):
    """A function that returns the library's vectors of texts."""
    python = os.environ['D2LBERT_PEERS']

    def vectors(folder, texts, save=None):
        (tmp_path / 'texts.json').write_text(json.dumps(texts))
        subprocess.run(
            [python, '-c', ORACLE, folder, 'texts.json', 'x.npy',
             *([save] if save else [])], check=True, cwd=str(tmp_path),
            env={**os.environ, 'HF_HUB_OFFLINE': '1', 'OMP_NUM_THREADS': '1'},
            stderr=subprocess.DEVNULL)
        return onp.load(tmp_path / 'x.npy')
    return vectors


FIXTURES = Path(__file__).with_name('fixtures')

HARD = ['A crane is flying over the river.', 'Ünïcödé, naïve café',
        '鹤在飞 over the river', 'an emoji 🐦!', 'word ' * 400,
        'x' * 300, 'Tabs\tand  blanks ']


def test_minilm_has_the_vectors_of_its_library(peer):
    folder = Path(os.environ.get('D2LBERT_WEIGHTS', ''), 'minilm')
    if not os.environ.get('D2LBERT_WEIGHTS') or not folder.is_dir():
        pytest.skip('D2LBERT_WEIGHTS names no folder with minilm/')
    net, tokenizer = d2l.load_pretrained(folder, heads=())
    texts = HARD + sentences.texts(20)
    found = d2l.encode(net, tokenizer, texts)
    onp.testing.assert_allclose(found, peer(folder, texts), atol=1e-5)
    onp.testing.assert_allclose(onp.linalg.norm(found, axis=1), 1, atol=1e-6)


PEER_FILES = dict(
    plain={}, old=OLD, new=NEW,
    joined=changed(OLD, POOLING, pooling_mode_max_tokens=True,
                   pooling_mode_cls_token=True),
    others=changed(NEW, POOLING, pooling_mode=[
        'mean_sqrt_len_tokens', 'lasttoken', 'weightedmean']),
    prompt=changed(changed(OLD, 'sentence_bert_config.json',
                           do_lower_case=True),
                   PROMPTS, prompts={'query': 'The bird '},
                   default_prompt_name='query'))
PEER_TEXTS = [*sentences.texts(20), 'A Crane ' * 30]


def check_vectors(folders, wanted):
    """Check the vectors of texts in each folder."""
    for folder in folders:
        net, tokenizer = d2l.load_pretrained(folder, heads=())
        onp.testing.assert_allclose(
            d2l.encode(net, tokenizer, PEER_TEXTS), wanted, atol=1e-5)


@pytest.mark.parametrize('name', PEER_FILES)
def test_a_folder_gives_the_vectors_that_its_library_gave(name, tmp_path):
    folder = sentences.write_folder(tmp_path / 'model', PEER_FILES[name])
    recorded = FIXTURES / 'sentences' / name
    # The folder that the library saved, and copies saved here
    check_vectors([folder, recorded, *exported(folder, tmp_path)],
                  onp.load(recorded.with_suffix('.npy')))


@pytest.mark.parametrize('name', PEER_FILES)
def test_a_folder_of_ours_gives_the_vectors_of_its_library(peer, name,
                                                           tmp_path):
    folder = sentences.write_folder(tmp_path / 'model', PEER_FILES[name])
    wanted = peer(folder, PEER_TEXTS, save='again')
    check_vectors([folder, tmp_path / 'again'], wanted)
    for path in exported(folder, tmp_path):
        onp.testing.assert_allclose(peer(path, PEER_TEXTS), wanted, atol=1e-5)
