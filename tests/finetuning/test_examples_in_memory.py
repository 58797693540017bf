"""`finetune` of a model and examples in memory equals a run of files."""
import csv
import inspect
import json

import numpy as onp
import prose
import pytest
import reference

import d2lbert as d2l
from d2lbert.finetuning.settings import SETTINGS

SHORT = dict(num_epochs=2, batch_size=8, lr=1e-3, seed=3,
             max_len=32)


def examples(task, seed):
    if task == 'tag':
        return [tuple(zip(*rows)) for rows in prose.tagged(24, seed)]
    return prose.moods(24, seed) if task == 'classify' else [
        (text, f'{text} again', float(k % 5)) for k, (text, _)
        in enumerate(prose.moods(24, seed))]


@pytest.fixture(scope='module', params=['classify', 'regress', 'tag'])
def task(request):
    return request.param


@pytest.fixture(scope='module')
def parts(task):
    """The training and development part, each a tuple of columns."""
    return [tuple(map(list, zip(*examples(task, seed)))) for seed in (0, 1)]


@pytest.fixture(scope='module')
def files(task, parts, tmp_path_factory):
    """The same in files, and the keywords of `finetune` that name them."""
    root = tmp_path_factory.mktemp('files')
    for name, columns in zip(('train', 'dev'), parts):
        if task == 'tag':
            prose.conll(root / f'{name}.conll', [
                list(zip(*rows)) for rows in zip(*columns)])
            continue
        with open(root / f'{name}.csv', 'w', newline='') as file:
            csv.writer(file).writerows(zip(*columns))
    places = {'classify': 'text=0,label=1', 'regress': 'text=0,pair=1,label=2'}
    return dict(task=task, data=root, **(
        {} if task == 'tag' else dict(columns=places[task])))


def check_same(run, other):
    reference.check_same(d2l.load_run(run)[0], d2l.load_run(other)[0])


def test_examples_in_memory_train_as_their_files_do(parts, files, folder,
                                                    tmp_path):
    wanted = d2l.finetune(**files, model=folder, out=tmp_path / 'wanted',
                          **SHORT)
    model = d2l.load_model(folder)
    before = model.encode(['a fine film'])
    train, valid = parts
    run = d2l.finetune(model, train=train, valid=valid,
                       out=tmp_path / 'run', **SHORT)
    check_same(run, wanted)
    assert onp.array_equal(model.encode(['a fine film']), before)
    by_folder = d2l.finetune(folder, train=train, valid=iter_of(valid),
                             out=tmp_path / 'by_folder', **SHORT)
    check_same(by_folder, wanted)
    figures, others = (json.loads((one / 'config.json').read_text())['figures']
                       for one in (run, wanted))
    assert figures == others == d2l.evaluate_finetuned(run)._asdict()


def iter_of(columns):
    return tuple(iter(column) for column in columns)


def test_a_run_of_examples_in_memory_goes_on(parts, folder, tmp_path):
    keywords = dict(train=parts[0], valid=parts[1], decay='none', warmup=0.0)
    whole = d2l.finetune(d2l.load_model(folder), out=tmp_path / 'whole',
                         **{**SHORT, **keywords})
    part = d2l.finetune(d2l.load_model(folder), out=tmp_path / 'part',
                        save_every=3, **{**SHORT, **keywords,
                                         'num_epochs': 1})
    check_same(d2l.finetune(resume=part, num_epochs=2), whole)


def test_a_callback_ends_a_run_with_its_best_weights(parts, folder,
                                                     tmp_path):
    rows = []

    def callback(row):
        rows.append(row)
        return row['step'] == 4
    run = d2l.finetune(folder, train=parts[0], valid=parts[1],
                       callback=callback, out=tmp_path / 'run', **SHORT)
    config = json.loads((run / 'config.json').read_text())
    assert len(rows) == 4 and config['best_epoch'] in (1, 2)
    assert config['figures'] == d2l.evaluate_finetuned(run)._asdict()
    history = d2l.read_history(run)
    assert history['step'][-1] == 4
    assert history['held_out_loss'][-1] == history['held_out_loss'][-1]


def test_labels_of_any_type_have_names():
    pandas = pytest.importorskip('pandas')
    from d2lbert.finetuning.datasets import DataInMemory
    table = pandas.DataFrame(dict(text=['a, "b"', 'c\nd'], label=[1, 0]))
    found = DataInMemory.of((table.text, table.label),
                            (onp.array(['e', 'f']), onp.array([True, False])))
    assert found == ('classify', 'text,label', {
        'train.csv': 'text,label\n"a, ""b""",1\n"c\nd",0\n',
        'dev.csv': 'text,label\ne,True\nf,False\n'})
    assert DataInMemory.of((['a'], onp.float32([.1])), (['a'], [1])).files[
        'train.csv'] == 'text,label\na,0.10000000149011612\n'


def test_a_lone_carriage_return_comes_back(tmp_path):
    from d2lbert.finetuning.datasets import DataInMemory
    data = ['a\rb', 'c\r', 'd'], ['x', 'y\rz', 'x']
    found = DataInMemory.of(data, data)
    assert found.files['train.csv'] == (
        'text,label\n"a\rb",x\n"c\r","y\rz"\nd,x\n')
    (tmp_path / 'train.csv').write_bytes(found.files['train.csv'].encode())
    read = d2l.read_task('classify', tmp_path, columns=found.columns)
    assert (read.texts_a, read.labels_names) == (data[0], ('x', 'y\rz'))


@pytest.mark.parametrize('kind', [float, onp.float16, onp.float32,
                                  onp.float64])
def test_labels_of_any_kind_of_float_are_numbers(kind):
    from d2lbert.finetuning.datasets import DataInMemory
    labels = [kind(.5), kind(1.5)]
    found = DataInMemory.of((['a', 'b'], labels), (['c', 'd'], labels))
    assert found.task == 'regress'
    assert found.files['train.csv'] == 'text,label\na,0.5\nb,1.5\n'


class NA:
    """A missing value that compares as pandas.NA does."""

    def __ne__(self, other):
        return self

    def __bool__(self):
        raise TypeError('boolean value of NA is ambiguous')

    def __repr__(self):
        return '<NA>'


@pytest.mark.parametrize('label', [None, float('nan'), onp.datetime64('NaT'),
                                   ' ', NA()])
def test_a_missing_label_of_any_kind_is_named(label):
    from d2lbert.finetuning.datasets import DataInMemory
    with pytest.raises(ValueError, match='label 1 of train is missing '):
        DataInMemory.of((['a', 'b'], ['x', label]), (['a'], ['x']))


def test_a_missing_label_of_pandas_is_named():
    pandas = pytest.importorskip('pandas')
    from d2lbert.finetuning.datasets import DataInMemory
    labels = pandas.Series(['x', pandas.NA], dtype='string')
    with pytest.raises(ValueError, match=r'1 of train is missing \(<NA>\)'):
        DataInMemory.of((['a', 'b'], labels), (['a'], ['x']))


def test_words_and_tags_may_be_arrays():
    from d2lbert.finetuning.datasets import DataInMemory
    lists = [['mei', 'in', 'Oslo'], ['.']], [['O', 'O', 'B-LOC'], ['O']]
    arrays = tuple([onp.array(row) for row in rows] for rows in lists)
    found = DataInMemory.of(arrays, arrays)
    assert found == DataInMemory.of(lists, lists) and found.task == 'tag'


def test_examples_in_memory_move_with_their_runs(folder, tmp_path,
                                                 monkeypatch):
    train, valid = (tuple(zip(*examples('classify', seed)))
                    for seed in (0, 1))
    (tmp_path / 'there').mkdir()
    monkeypatch.chdir(tmp_path)
    for seeds in 1, 2:
        out = d2l.finetune(folder, train=train, valid=valid, seeds=seeds,
                           out=f'runs-{seeds}', save_every=3,
                           **dict(SHORT, num_epochs=1))
        moved = out.rename(tmp_path / 'there' / f'moved-{seeds}')
        run = moved if seeds == 1 else moved / 'seed-2'
        config = json.loads((run / 'config.json').read_text())
        assert config['figures'] == d2l.evaluate_finetuned(run)._asdict()
        d2l.finetune(resume=moved, num_epochs=2)
        config = json.loads((run / 'config.json').read_text())
        assert config['training']['data'] == str(moved / 'data')
        with pytest.raises(ValueError, match='there is no folder'):
            d2l.finetune(resume=moved, num_epochs=3, data='nowhere')


def test_several_seeds_share_examples_in_memory(folder, tmp_path):
    train, valid = (tuple(zip(*examples('classify', seed)))
                    for seed in (0, 1))
    out = d2l.finetune(folder, train=train, valid=valid, seeds=2,
                       out=tmp_path / 'runs', **dict(SHORT, num_epochs=1))
    for k in 1, 2:
        config = json.loads((out / f'seed-{k}' / 'config.json').read_text())
        assert config['training']['data'] == str(out / 'data')
    with pytest.raises(ValueError, match='valid|accuracy|label|task'):
        d2l.finetune(folder, train=train, valid=(['a'], ['unknown']),
                     seeds=2, out=tmp_path / 'x', **SHORT)
    assert not (tmp_path / 'x').exists()


TEXTS = ['a', 'b'], ['x', 'y']


@pytest.mark.parametrize('given, said', [
    (dict(train=TEXTS), 'needs valid='),
    (dict(valid=TEXTS), 'give train, too'),
    (dict(train='a', valid=TEXTS), r'train must be a pair \(texts, labels\)'),
    (dict(train=(['a'], []), valid=TEXTS), 'train has 1 texts and 0 labels'),
    (dict(train=(['a', None], ['x', 'y']), valid=TEXTS),
     'text 1 of train is None'),
    (dict(train=(['a', 'b\0'], ['x', 'y']), valid=TEXTS),
     'text 1 of train is .* has no zero character'),
    (dict(train=(['a b\0'], [['O', 'O']]), valid=(['a'], [['O']])),
     'expected words and tags without blanks and zero characters'),
    (dict(train=(['a', '\ud800'], ['x', 'y']), valid=TEXTS),
     'half of a surrogate pair'),
    (dict(train=(['a', 'b'], ['x', '\udce9']), valid=TEXTS), 'not UTF-8'),
    (dict(train=(['a'], [['\ud800']]), valid=TEXTS), 'half of a surrogate'),
    (dict(train=TEXTS, valid=(['a', 'b'], ['x', None])),
     'label 1 of valid is missing'),
    (dict(train=TEXTS, valid=(*TEXTS, ['z', 'z'])), 'both have second texts'),
    (dict(train=TEXTS, valid=TEXTS, data='x'), 'leave data out'),
    (dict(train=TEXTS, valid=TEXTS, columns='a'), 'leave columns out'),
    (dict(train=TEXTS, valid=TEXTS, task='sst2'), "task 'sst2' takes its"),
    (dict(train=TEXTS, valid=TEXTS, task='regress'),
     "label 0 of train is 'x': expected a number"),
    (dict(train=(['a'], [onp.bool_(1)]), valid=TEXTS, task='regress'),
     'label 0 of train is .*True.*: expected a number'),
    (dict(train=(['-DOCSTART- b'], [['O', 'O']]), valid=(['a'], [['O']])),
     'text 0 of train has the word -DOCSTART-'),
    (dict(train=(['a'], [['O']]), valid=(['a b'], [['O']])),
     'text 0 of valid has 2 words and 1 tags'),
    (dict(train=(['a b'], [['O']]), valid=(['a'], [['O']])),
     'has 2 words and 1 tags'),
    (dict(train=(['a', 'b'], ['x', 'x']), valid=TEXTS), "has the label 'x' a"),
    (dict(train=TEXTS, valid=(['a'], ['z'])), "the label is 'z'"),
    (dict(train=TEXTS, valid=TEXTS, model=3), 'model must be a folder, a mo')])
def test_impossible_examples_are_refused_and_leave_no_folder(
        given, said, folder, tmp_path):
    with pytest.raises((TypeError, ValueError), match=said) as refused:
        d2l.finetune(**{'model': folder, **given, **SHORT},
                     out=tmp_path / 'run')
    assert '\n' not in str(refused.value)
    assert not (tmp_path / 'run').exists()


def test_models_that_cannot_be_trained_are_refused(folder, tmp_path):
    run = d2l.finetune(folder, train=TEXTS, valid=TEXTS, num_epochs=1,
                       max_len=32, out=tmp_path / 'run')
    with pytest.raises(ValueError, match='fine-tuned already'):
        d2l.finetune(d2l.load_model(run), train=TEXTS, valid=TEXTS)
    with pytest.raises(ValueError, match='is for one new run'):
        d2l.finetune(d2l.load_model(folder), train=TEXTS, valid=TEXTS,
                     seeds=2)


def test_the_signature_has_all_settings_with_their_defaults():
    parameters = inspect.signature(d2l.finetune).parameters
    for name, setting in SETTINGS.items():
        assert parameters[name].default == setting.default
        assert f'\n{name}: ' in d2l.finetune.__doc__
    assert 'keywords' not in parameters
