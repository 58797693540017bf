"""One object for any model: what it returns, what it takes, what it refuses.

Vectors of whole words are compared with the book's `get_bert_encoding`,
similarities with NumPy, and the rest with the functions that the methods
call, on folders of every kind.
"""
import re
import shutil
import sys
from pathlib import Path

import numpy as onp
import published
import pytest

import d2lbert as d2l
from d2lbert.kernels import int8
from d2lbert.machine.backend import npx
from d2lbert.training import load

sys.path.insert(0, str(Path(__file__).resolve().parent / 'finetuning'))
import prose  # noqa: E402

TINY = dict(corpus='sample', batch_size=16, max_len=48, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=2, num_steps=2, seed=1)
TEXTS = ['a crane', 'the crane is flying', 'he just left']


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    """{kind: a folder with a model of this kind}."""
    root = tmp_path_factory.mktemp('models')
    found = dict(
        words=d2l.pretrain(**TINY, architecture='published',
                           out=root / 'words'),
        pieces=d2l.pretrain(**dict(TINY, max_len=300), vocab_size=200,
                            architecture='published', out=root / 'pieces',
                            tokenizer='wordpiece'),
        checkpoint=published.write(root / 'checkpoint'))
    found['tuned run'] = d2l.finetune(
        'sst2', prose.glue(root, 'sst2', 30), found['words'], num_epochs=1,
        batch_size=8, seed=1, out=root / 'tuned')
    for name, precision in (('tuned run', 'fp32'), ('words', 'int8')):
        if precision == 'int8' and int8.library() is None:
            continue    # not on this processor, or not compiled
        found[f'{name} {precision}'] = root / f'{name} {precision}'
        load.export_run(found[name], found[f'{name} {precision}'], precision)
    found['sentences'] = shutil.copytree(found['checkpoint'],
                                         root / 'sentences')
    net, tokenizer = d2l.load_pretrained(found['checkpoint'])
    tokenizer.pooling = tokenizer.pooling._replace(modes=('cls',),
                                                   normalize=True)
    shutil.rmtree(found['sentences'])
    d2l.save_pretrained(net, tokenizer, found['sentences'])
    return found


KINDS = {'words': load.RUN, 'pieces': load.RUN, 'checkpoint': load.PRETRAINED,
         'sentences': load.PRETRAINED, 'words int8': load.PRETRAINED,
         'tuned run': load.TUNED_RUN, 'tuned run fp32': load.TUNED}


@pytest.mark.parametrize('name', KINDS)
def test_each_kind_of_folder_is_found_and_encodes(name, folders):
    if name not in folders:
        pytest.skip(int8.INT8.reason or 'D2LBERT_KERNELS is off')
    found = load.load(folders[name], trainable=False)
    assert found.kind == KINDS[name]
    model = d2l.load_model(folders[name], trainable=False)
    assert str(model).splitlines()[1:] == [
        f'from {folders[name]}, a {KINDS[name]}',
        'can encode, similarity, search, attention, '
        + ('predict' if 'tuned' in name else 'fill') + ', save']
    vectors = model.encode(TEXTS)
    assert vectors.dtype == 'float32'
    assert vectors.shape == (3, model.config['num_hiddens'])
    assert onp.array_equal(vectors, d2l.encode(*model, TEXTS))
    onp.testing.assert_allclose(model.encode(TEXTS[1], batch_size=1),
                                vectors[1], atol=1e-5)
    assert len(model.vocab) == len(model.tokenizer)
    assert model.vocab['crane'] == model.tokenizer.token_to_idx.get(
        'crane', model.tokenizer.unk_id)
    tokens, weights = model.attention('the crane', 'he left')
    assert len(tokens) == weights.shape[-1] and weights.shape[0] == 2
    onp.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize('name', KINDS)
def test_a_model_of_any_kind_is_loaded_on_devices_alone(name, folders):
    if name not in folders:
        pytest.skip(int8.INT8.reason or 'D2LBERT_KERNELS is off')
    for ctx in 'gpu', 0, [1]:
        with pytest.raises(TypeError, match='^a net can be loaded on a device '
                                            'or a list of devices, as .*, not '
                                            f'on {re.escape(repr(ctx))}$'):
            d2l.load_model(folders[name], ctx=ctx)
    for ctx in (npx.cpu(),), [npx.cpu()]:
        net = d2l.load_model(folders[name], ctx=ctx).net
        assert net.encoder.token_embedding.weight.list_ctx() == [npx.cpu()]
        assert net.encoder.token_embedding.weight.list_data()


def test_vectors_of_a_run_are_the_means_of_the_books_vectors(folders):
    net, vocab = d2l.load_run(folders['words'])
    wanted = [d2l.get_bert_encoding(net, text.split())[0].asnumpy().mean(0)
              for text in TEXTS]
    for model in (d2l.load_model(folders['words']),
                  d2l.TextModel(net, vocab)):
        onp.testing.assert_allclose(model.encode(TEXTS), wanted, atol=1e-5)
    # A vocabulary serves where a tokenizer is expected
    onp.testing.assert_allclose(d2l.encode(net, vocab, TEXTS), wanted,
                                atol=1e-5)
    assert d2l.fill_mask(net, vocab, 'a <mask>') == d2l.load_model(
        folders['words']).fill('a <mask>')


def test_similarities_and_search_are_those_of_numpy(folders):
    model = d2l.load_model(folders['checkpoint'])
    X = model.encode(TEXTS).astype('float64')
    lengths = onp.linalg.norm(X, axis=1)
    wanted = X @ X.T / onp.outer(lengths, lengths)
    found = model.similarity(TEXTS, TEXTS)
    assert found.dtype == 'float32'
    onp.testing.assert_allclose(found, wanted, atol=1e-6)
    onp.testing.assert_allclose(model.similarity(TEXTS[0], X), wanted[:1],
                                atol=1e-6)
    hits = model.search(TEXTS, TEXTS, k=2)
    for hits_of_one, row in zip(hits, wanted):
        best = onp.argsort(-row, kind='stable')[:2]
        assert [hit.index for hit in hits_of_one] == list(best)
        assert [hit.text for hit in hits_of_one] == [TEXTS[i] for i in best]
        onp.testing.assert_allclose([hit.score for hit in hits_of_one],
                                    row[best], atol=1e-6)
    assert model.search(TEXTS[1], TEXTS, 2, vectors=X.astype('float32')
                        ) == hits[1]
    # Equal texts keep their order; k may exceed their number
    assert [hit.index for hit in model.search('he left', ['a', 'a'])] == [0, 1]
    with pytest.raises(ValueError, match='3 vectors of 2 texts'):
        model.search('a', ['b', 'c'], vectors=X)


def test_one_vector_counts_as_one_text(folders):
    model = d2l.load_model(folders['checkpoint'])
    x, X = model.encode(TEXTS[0]), model.encode(TEXTS)
    assert x.ndim == 1
    wanted = model.similarity(TEXTS[0], X)
    assert onp.array_equal(model.similarity(x, X), wanted)
    assert onp.array_equal(model.similarity(x, TEXTS), wanted)
    assert onp.array_equal(model.similarity(X, x), wanted.T)
    assert model.search(x, TEXTS) == model.search(TEXTS[0], TEXTS)
    assert model.search('a', TEXTS[:1], vectors=x) == model.search(
        'a', TEXTS[:1])
    with pytest.raises(ValueError, match='1 vectors of 12 texts'):
        model.search('a', TEXTS * 4, vectors=x)
    for other in X[:, :2], X[None]:
        with pytest.raises(ValueError, match='cannot be compared: give an '
                           'array') as refused:
            model.similarity(other, X)
        assert '\n' not in str(refused.value)


def test_predictions_are_those_of_predict(folders):
    found = [d2l.load_model(folders[name]).predict(TEXTS)
             for name in ('tuned run', 'tuned run fp32')]
    net, tokenizer = d2l.load_finetuned(folders['tuned run'])
    assert found == [d2l.predict(net, tokenizer, TEXTS)] * 2
    alone = d2l.load_model(folders['tuned run']).predict(TEXTS[0])
    assert alone.label == found[0][0].label
    assert alone.shares == pytest.approx(found[0][0].shares)


@pytest.mark.parametrize('name', ['words', 'pieces', 'checkpoint',
                                  'tuned run', 'tuned run fp32',
                                  'sentences'])
def test_a_saved_model_gives_the_same_vectors(name, folders, tmp_path):
    model = d2l.load_model(folders[name])
    model.save(tmp_path / 'copy')
    again = d2l.load_model(tmp_path / 'copy')
    assert onp.array_equal(model.encode(TEXTS), again.encode(TEXTS))
    assert str(again).splitlines()[::2] == str(model).splitlines()[::2]


@pytest.mark.parametrize('name', ['words', 'pieces'])
def test_a_run_is_saved_as_load_run_returns_it(name, folders, tmp_path):
    d2l.save_pretrained(*d2l.load_run(folders[name]), tmp_path / 'copy')
    found = [d2l.encode(*d2l.load_model(folder), TEXTS)
             for folder in (folders[name], tmp_path / 'copy')]
    assert onp.array_equal(*found)


def test_texts_come_in_many_forms(folders):
    model = d2l.load_model(folders['checkpoint'])
    wanted = model.encode(TEXTS)
    forms = [tuple(TEXTS), iter(TEXTS), (text for text in TEXTS),
             onp.array(TEXTS), onp.array(TEXTS, object), dict.fromkeys(TEXTS
                                                                       ).keys()]
    try:
        import pandas
    except ImportError:
        pass
    else:
        table = pandas.DataFrame(dict(text=TEXTS))
        forms += [table['text'], table.text[::-1][::-1]]
        with pytest.raises(TypeError, match='texts must be a list of texts, '
                           'not a DataFrame: give one column of it'):
            model.encode(table)
        with pytest.raises(TypeError, match=r'texts\[1\] must be a string'):
            model.encode(pandas.Series(['a', None]))
    for form in forms:
        assert onp.array_equal(model.encode(form), wanted)
    assert onp.array_equal(model.encode(onp.array([TEXTS[:2], TEXTS[1:]])),
                           model.encode([tuple(TEXTS[:2]), tuple(TEXTS[1:])]))
    with pytest.raises(TypeError, match='not a dict: give one column'):
        model.encode(dict(a=1))


@pytest.mark.parametrize('name, call, said', [
    ('tuned run', lambda model: model.fill('a <mask>'),
     'no trained head for masked words'),
    ('words', lambda model: model.predict(['a']),
     'no head that scores texts or words: fine-tune it'),
    ('words', lambda model: model.generate(['a']), 'can generate nothing'),
    ('checkpoint', lambda model: model.attention('a ' * 20),
     'the text has 22 tokens, but this model only 9 positions'),
    ('words', lambda model: model.similarity(['a', 'a b'], 'a', pooling=None),
     'pooling=None gives a vector of each token'),
    ('words', lambda model: model.search('a', ['a', 'a b'], pooling=None),
     'pooling=None gives a vector of each token'),
    ('checkpoint', lambda model: model.search('a', ['b'], 0),
     'k=0 must be at least 1')])
def test_what_a_model_cannot_do_is_one_sentence(name, call, said, folders):
    with pytest.raises(ValueError, match=said) as refused:
        call(d2l.load_model(folders[name]))
    assert '\n' not in str(refused.value)


def test_the_head_of_a_fine_tuned_folder_can_be_left_out(folders):
    found = load.load(folders['tuned run fp32'], heads=(), task_head=False)
    assert found.kind == load.PRETRAINED
    assert type(found.net) is d2l.BERTModel
    # The head changes no vector
    assert onp.array_equal(
        d2l.encode(found.net, found.tokenizer, TEXTS),
        d2l.load_model(folders['tuned run']).encode(TEXTS))
    with pytest.raises(load.RunError, match='holds a fine-tuned model'):
        load.load(folders['tuned run'], task_head=False)
