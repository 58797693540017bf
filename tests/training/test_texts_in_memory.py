"""`pretrain` of texts in memory, its callback, and the history as arrays.

A run of texts in memory equals a run of a file; a run that a callback ends
equals a run of as many steps.
"""
import inspect
import json

import numpy as onp
import pytest
import reference

import d2lbert as d2l
from d2lbert.hub import sample_dir
from d2lbert.training.evaluation import evaluate_run
from d2lbert.training.settings import SETTINGS

TINY = dict(batch_size=16, max_len=48, num_hiddens=8, ffn_num_hiddens=8,
            num_layers=1, num_steps=4, seed=1)


@pytest.fixture(scope='module')
def texts():
    lines = (sample_dir() / 'wiki.train.tokens').read_text('utf-8')
    return [line for line in lines.split('\n') if line.count(' . ') > 1]


def check_same(run, other):
    reference.check_same(d2l.load_run(run)[0], d2l.load_run(other)[0])


def test_texts_in_memory_train_as_their_file_does(texts, tmp_path):
    (tmp_path / 'x.txt').write_text('\n\n'.join(texts), 'utf-8')
    wanted = d2l.pretrain(tmp_path / 'wanted', corpus=tmp_path / 'x.txt',
                          **TINY)
    forms = [texts, (text for text in texts), onp.array(texts, object)]
    for k, form in enumerate(forms):
        run = d2l.pretrain(tmp_path / f'{k}', texts=form, **TINY)
        check_same(run, wanted)
    config = json.loads((run / 'config.json').read_text('utf-8'))
    assert config['training']['corpus'] == str(run / 'texts.txt')


def test_a_run_of_texts_in_memory_goes_on(texts, tmp_path):
    whole = d2l.pretrain(tmp_path / 'whole', texts=texts, **TINY)
    part = d2l.pretrain(tmp_path / 'part', texts=texts, save_every=2,
                        **dict(TINY, num_steps=2))
    check_same(d2l.pretrain(resume=part, num_steps=4), whole)


def test_its_folder_may_be_moved(texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = d2l.pretrain('here', texts=texts, eval_every=2, save_every=2, **TINY)
    wanted = evaluate_run(run)
    run.rename('there')
    (tmp_path / 'here').mkdir()
    monkeypatch.chdir('here')
    assert evaluate_run('../there') == wanted
    longer = d2l.pretrain(resume='../there', num_steps=5)
    check_same(longer, d2l.pretrain('longer', texts=texts, eval_every=2,
                                    **dict(TINY, num_steps=5)))


@pytest.mark.parametrize('given, said', [
    (dict(texts='a b'), 'texts must be a list of texts, not one'),
    (dict(texts=['a', 3]), r'texts\[1\] must be a string, not 3'),
    (dict(texts=[' ', '']), 'texts has no text with a word'),
    (dict(texts=['a'], corpus='sample'), 'texts and corpus exclude each'
     ' other'),
    (dict(texts=['a'], resume='run'), 'a resumed run keeps its text'),
    (dict(corpus='sample', callback=3), 'callback must be a function of')])
def test_impossible_arguments_are_refused_and_leave_no_folder(given, said,
                                                              tmp_path):
    out = {} if 'resume' in given else dict(out=tmp_path / 'run')
    with pytest.raises((TypeError, ValueError), match=said):
        d2l.pretrain(**{**TINY, **given}, **out)
    assert not (tmp_path / 'run').exists()


def test_a_callback_sees_each_step_and_changes_nothing(texts, tmp_path):
    rows = []
    run = d2l.pretrain(tmp_path / 'run', texts=texts, callback=rows.append,
                       eval_every=2, **TINY)
    check_same(run, d2l.pretrain(tmp_path / 'alone', texts=texts,
                                 eval_every=2, **TINY))
    history = d2l.read_history(run)
    assert history['step'].tolist() == [row['step'] for row in rows] == [
        1, 2, 3, 4]
    for k, row in enumerate(rows):
        for name, column in history.items():
            assert row.get(name, onp.nan) == column[k] or onp.isnan(column[k])
    assert onp.isfinite(history['held_out_mlm_loss']).tolist() == [
        False, True, False, True]


@pytest.mark.parametrize('last', [1, 3])
def test_a_callback_ends_the_run(last, texts, tmp_path, capsys):
    run = d2l.pretrain(tmp_path / 'run', texts=texts, eval_every=2,
                       log_interval=2, save_every=4,
                       callback=lambda row: onp.int64(row['step']) == last,
                       **TINY)
    assert f'ended the run after step {last}' in capsys.readouterr().out
    check_same(run, d2l.pretrain(
        tmp_path / 'short', texts=texts, eval_every=2,
        **dict(TINY, num_steps=last)))
    history = d2l.read_history(run)
    assert history['step'][-1] == last and onp.isfinite(
        [column[-1] for column in history.values()]).all()
    # Its checkpoint goes on to the end
    check_same(d2l.pretrain(resume=run), d2l.pretrain(
        tmp_path / 'whole', texts=texts, eval_every=2, **TINY))


def test_a_true_number_does_not_end_a_run(texts, tmp_path):
    run = d2l.pretrain(tmp_path / 'run', texts=texts, callback=lambda row: 1,
                       **TINY)
    assert d2l.read_history(run)['step'][-1] == 4


def test_the_history_is_that_of_the_file(texts, tmp_path):
    run = d2l.pretrain(tmp_path / 'run', texts=texts, eval_every=2,
                       log_interval=3, **TINY)
    wanted = onp.genfromtxt(run / 'losses.csv', delimiter=',', names=True)
    history = d2l.read_history(run)
    assert tuple(history) == wanted.dtype.names
    assert history['step'].dtype == 'int64'
    for name, column in history.items():
        onp.testing.assert_array_equal(column, wanted[name])
    assert d2l.read_history(d2l.History(['mlm'])) == {}
    (run / 'losses.csv').write_text('step,mlm\n,1.0\n')
    with pytest.raises(ValueError, match='the history of .*run is damaged'):
        d2l.read_history(run)


def test_the_signature_has_all_settings_with_their_defaults():
    parameters = inspect.signature(d2l.pretrain).parameters
    for name, setting in SETTINGS.items():
        assert parameters[name].default == setting.default
        assert setting.help.split()[0] in d2l.pretrain.__doc__
        assert f'\n{name}: ' in d2l.pretrain.__doc__
    assert 'keywords' not in parameters
