"""Runs of fine-tuning: split up, resumed, repeated, kept, scored again."""
import csv
import json
import re
import shutil
from pathlib import Path

import loops
import models
import numpy as onp
import pytest
from loops import result, step
from safetensors.numpy import load_file, save_file

import d2lbert as d2l
from d2lbert import kernels
from d2lbert.command.cli import main
from d2lbert.finetuning import finetuning, seed_runs
from d2lbert.finetuning.settings import complete
from d2lbert.kernels import int8
from d2lbert.machine.backend import mx, npx
from d2lbert.training import checkpoints, loop
from d2lbert.training.interrupts import Stopped
from d2lbert.training.saved_runs import RunError

#: Five batches an epoch of the 40 examples.
TINY = dict(num_epochs=2, batch_size=8, lr=1e-2, max_len=48, seed=1,
            log_interval=1, stride=8)
TASKS = 'sst2', 'stsb', 'rte', 'tag', 'span'


@pytest.fixture
def given(folder, data):
    """The keywords of a small run for a task."""
    return lambda task='sst2', **more: dict(
        TINY, task=task, data=str(data[task]), model=str(folder), **more)


def figures_of(out):
    return json.loads((out / 'config.json').read_text())['figures']


def prepared(given, devices='cpu', **keywords):
    return loops.prepared(finetuning._make_objective,
                          complete(given(**keywords)), devices)


# What is learnt

@pytest.mark.parametrize('task', TASKS)
def test_evaluation_after_reloading_equals_the_printed_metrics(
        task, given, tmp_path, capsys):
    out = d2l.finetune(**given(task), out=tmp_path / 'run')
    printed = capsys.readouterr().out
    figures = d2l.evaluate_finetuned(out)
    assert d2l.evaluate_finetuned(out, part='train')._fields == figures._fields
    assert figures._asdict() == figures_of(out)
    line = 'dev ' + ', '.join(f'{name} {value:.4f}' for name, value
                              in figures._asdict().items())
    assert f'\n{line} after epoch ' in printed
    with open(out / 'losses.csv') as file:
        rows = [row for row in csv.DictReader(file)
                if row['held_out_loss']]
    assert len(rows) == 2
    assert {name: value for name, value in figures._asdict().items()} in [
        {name: float(row[f'held_out_{name}']) for name in figures._fields}
        for row in rows]


@pytest.mark.skipif(not kernels.bf16_supported(),
                    reason='this CPU does not multiply in bfloat16')
def test_a_run_in_bf16_is_near_one_in_fp32(given, tmp_path):
    used = kernels.products.chosen()
    # On a processor where they are not faster, products stay fp32
    kernels.products.use(used._replace(bf16='pairs'))
    try:
        first, exact = (
            d2l.finetune(**given(precision=precision), out=tmp_path / name)
            for name, precision in (('bf16', 'bf16'), ('fp32', 'fp32')))
    finally:
        kernels.products.use(used)
    losses = [onp.array([float(row['task_loss']) for row in csv.DictReader(
        (out / 'losses.csv').read_text().splitlines())][:3])
        for out in (first, exact)]
    assert (losses[0] != losses[1]).any()
    onp.testing.assert_allclose(*losses, rtol=0.05)
    net, _ = d2l.load_finetuned(first)
    assert net.config['precision'] == net.output.precision == 'bf16'
    with pytest.raises(ValueError, match="fp32 or bf16, not"):
        d2l.finetune(**given(precision='int8'), out=tmp_path / 'x')
    assert not (tmp_path / 'x').exists()


@pytest.mark.skipif(int8.library() is None, reason='needs the C++')
def test_a_run_is_evaluated_at_eight_bits(given, tmp_path, capsys):
    out = d2l.finetune(**given('stsb'), out=tmp_path / 'run')
    exact, rounded = (d2l.evaluate_finetuned(out, precision=precision)
                      for precision in (None, 'int8'))
    assert exact != rounded
    assert abs(exact.loss - rounded.loss) < 0.1 * exact.loss
    capsys.readouterr()
    assert main(['evaluate', str(out), '--precision', 'int8']) == 0
    assert f'loss {rounded.loss:.4f}\n' in capsys.readouterr().out


def test_words_that_tell_are_learnt(given, tmp_path):
    out = d2l.finetune(**dict(given(), num_epochs=12),
                       out=tmp_path / 'run')
    assert figures_of(out)['accuracy'] > 0.9
    net, tokenizer = d2l.load_finetuned(out)
    glad, sad = d2l.predict(net, tokenizer, [
        'mei paints a gentle boat in Oslo .', 'lars sells the grim clock .'])
    assert (glad.label, sad.label) == ('positive', 'negative')
    assert glad.score == max(glad.shares.values()) > 0.5
    assert abs(sum(glad.shares.values()) - 1) < 1e-9


def test_the_weights_of_the_best_epoch_are_kept(given, tmp_path, monkeypatch):
    """Evaluation gives these metrics, whatever was printed after them."""
    kept = {}
    save_if_best = loop.BestWeights.save_if_best

    def noted(best, step):
        save_if_best(best, step)
        kept[step] = {name: param.data().asnumpy() for name, param in
                      best.net._collect_params_with_prefix().items()}
    monkeypatch.setattr(loop.BestWeights, 'save_if_best', noted)
    # At such a rate it gets worse again
    out = d2l.finetune(**dict(given(), num_epochs=6, lr=0.05, decay='none'),
                       out=tmp_path / 'run')
    config = json.loads((out / 'config.json').read_text())
    with open(out / 'losses.csv') as file:
        scores = {int(row['step']): float(row['held_out_accuracy'])
                  for row in csv.DictReader(file)
                  if row['held_out_accuracy']}
    best = max(scores.values())
    first = min(step for step, score in scores.items() if score == best)
    assert config['best_epoch'] == first // 5
    assert first < 30, 'the last epoch is the best: choose other settings'
    net, _ = d2l.load_run(out)
    for name, param in net._collect_params_with_prefix().items():
        onp.testing.assert_array_equal(param.data().asnumpy(),
                                       kept[first][name])
    assert not (out / 'best.params').exists()


def test_the_first_examples_alone(given, tmp_path):
    run = prepared(given, num_examples=11)
    assert len(run.objective.train_inputs.tokens) == 11
    assert run.schedule.num_steps == 4
    whole = prepared(given).objective.train_inputs
    for a, b in zip(run.objective.train_inputs.tokens, whole.tokens):
        onp.testing.assert_array_equal(a, b)


# Split up

@pytest.mark.parametrize('task', TASKS)
def test_devices_and_accumulation_do_not_change_the_result(task, given):
    """The same steps, except for rounding; without dropout."""
    found = []
    for more in (dict(), dict(devices='cpu:2'), dict(accumulate=4),
                 dict(devices='cpu:3', accumulate=2)):
        run = prepared(given, task=task, clip=0.5, **more)
        for block in run.net._children.values():
            block.apply(lambda b: setattr(b, '_rate', 0)
                        if hasattr(b, '_rate') else None)
        losses = [step(run) for _ in range(3)]
        found.append((losses, run.objective.evaluate(run.net, run.devices), [
            param.data().asnumpy() for param in
            run.net._collect_params_with_prefix().values()]))
    (losses, figures, params), *others = found
    for other in others:
        onp.testing.assert_allclose(other[0], losses, 1e-4)
        onp.testing.assert_allclose(other[1][0], figures[0], 1e-3)
        # Adam makes a whole step of the smallest gradient
        far = [(onp.abs(a - b) > 1e-3).mean()
               for a, b in zip(params, other[2])]
        assert onp.mean(far) < 0.01


def test_each_example_is_trained_on_once_in_an_epoch(given):
    run = prepared(given)
    for epoch in range(2):
        rows = sorted(
            tuple(tokens[:n]) for _, batch in
            run.objective.batches(epoch, (0, 0))
            for tokens, n in zip(batch.tokens_X, batch.valid_lens_x))
        assert rows == sorted(map(tuple, run.objective.train_inputs.tokens))


def test_the_batches_of_two_epochs_differ(given):
    run = prepared(given)
    first, second = (
        [batch.tokens_X.tolist() for _, batch in
         run.objective.batches(epoch, (0, 0))] for epoch in range(2))
    assert first != second


@pytest.mark.parametrize('pooled', [True, False])
def test_a_seed_gives_the_same_run_whatever_came_before(
        pooled, given, folder, tmp_path):
    model = shutil.copytree(folder, tmp_path / 'model')
    if not pooled:      # then the hidden layer is drawn, too
        path = str(model / 'model.safetensors')
        save_file({name: tensor for name, tensor in load_file(path).items()
                   if 'pooler' not in name}, path, {'format': 'pt'})
    found = []
    for k in range(2):
        mx.random.seed(k)
        found.append(result(d2l.finetune(
            **dict(given(), model=model, num_epochs=1),
            out=tmp_path / str(k))))
    assert found[0] == found[1]


# Resumed

def killed_behind(step, monkeypatch):
    """Let the next run end after a step as if it was killed."""
    class Killed(BaseException):
        pass
    after = loop.Run._after

    def then_killed(run, k):
        after(run, k)
        if k == step:
            raise Killed
    monkeypatch.setattr(loop.Run, '_after', then_killed)
    return Killed


@pytest.mark.parametrize('task, behind', [
    ('sst2', 4), ('sst2', 5), ('sst2', 14), ('tag', 7)])
def test_a_resumed_run_is_the_run_that_never_stopped(task, behind, given,
                                                     tmp_path, monkeypatch):
    # Such a rate that the best epoch is not the last
    keywords = dict(given(task), num_epochs=3, save_every=1, lr=0.05,
                    decay='none')
    whole = d2l.finetune(**keywords, out=tmp_path / 'whole')
    with monkeypatch.context() as patch:
        with pytest.raises(killed_behind(behind, patch)):
            d2l.finetune(**keywords, out=tmp_path / 'cut')
    # All that lies beside the checkpoints may be older or lost
    (tmp_path / 'cut' / 'best.params').unlink(missing_ok=True)
    cut = d2l.finetune(resume=tmp_path / 'cut')
    assert result(cut) == result(whole)
    assert figures_of(cut) == figures_of(whole)


def test_a_run_goes_on_where_its_model_is_gone(given, folder, data, tmp_path,
                                               monkeypatch):
    keywords = dict(given(), save_every=3)
    whole = d2l.finetune(**keywords, out=tmp_path / 'whole')
    shutil.copytree(folder, tmp_path / 'model')
    with monkeypatch.context() as patch:
        with pytest.raises(killed_behind(4, patch)):
            d2l.finetune(**dict(keywords, model=tmp_path / 'model'),
                         out=tmp_path / 'cut')
    shutil.rmtree(tmp_path / 'model')
    shutil.copytree(data['sst2'], tmp_path / 'moved')
    cut = d2l.finetune(resume=tmp_path / 'cut', data=tmp_path / 'moved')
    assert result(cut) == result(whole)


def test_a_run_resumed_with_more_epochs_trains_on(given, tmp_path):
    out = d2l.finetune(**given(), save_every=5, out=tmp_path / 'run')
    d2l.finetune(resume=out, num_epochs=3)
    assert json.loads((out / 'config.json').read_text())['training'][
        'num_epochs'] == 3
    rows = (out / 'losses.csv').read_text().splitlines()
    assert len(rows) == 16
    with pytest.raises(ValueError, match='end at step 5, .* of step 15:'):
        d2l.finetune(resume=out, num_epochs=1)


@pytest.mark.parametrize('change, words', [
    (dict(lr=1.0), 'lr cannot be changed, only'),
    (dict(task='rte'), 'task cannot be changed, only')])
def test_a_resumed_run_keeps_its_settings(change, words, given, tmp_path):
    out = d2l.finetune(**given(), save_every=5, out=tmp_path / 'run')
    with pytest.raises(ValueError, match=words):
        d2l.finetune(resume=out, **change)


def test_data_that_have_changed_are_no_data_to_go_on_with(given, data,
                                                          tmp_path):
    out = d2l.finetune(**given(), save_every=5, out=tmp_path / 'run')
    shutil.copytree(data['sst2'], tmp_path / 'other')
    for part in 'train', 'dev':
        path = tmp_path / 'other' / f'{part}.tsv'
        before = path.read_text()
        path.write_text(before.replace('boat', 'song'))
        with pytest.raises(RunError, match='the data of .* has changed'):
            d2l.finetune(resume=out, data=tmp_path / 'other')
        path.write_text(before)
    d2l.finetune(resume=out, data=tmp_path / 'other')


def test_a_run_is_not_resumed_with_other_labels(given, data, tmp_path):
    shutil.copytree(data['sst2'], tmp_path / 'data')
    out = d2l.finetune(**dict(given(), task='classify', data=tmp_path / 'data',
                              columns='sentence,label'),
                       save_every=5, out=tmp_path / 'run')
    for path in (tmp_path / 'data').iterdir():
        lines = path.read_text().splitlines(True)
        path.write_text(''.join(line.replace('\t1\n', '\tgood\n')
                                for line in lines))
    with pytest.raises(RunError, match=r"labels was \('0', '1'\) and is "
                                       r"\('0', 'good'\)\): resume with the "
                                       'original data'):
        d2l.finetune(resume=out)


def test_a_run_is_not_evaluated_on_changed_data(given, data, tmp_path):
    shutil.copytree(data['sst2'], tmp_path / 'data')
    out = d2l.finetune(**dict(given(), data=tmp_path / 'data'),
                       out=tmp_path / 'run')
    path = tmp_path / 'data' / 'dev.tsv'
    path.write_text(path.read_text().replace('boat', 'song'))
    with pytest.raises(RunError, match='has changed since .* --data'):
        d2l.evaluate_finetuned(out)
    d2l.evaluate_finetuned(out, tmp_path / 'data')


def test_each_kind_of_run_is_resumed_by_its_own_command(given, tmp_path):
    out = d2l.finetune(**given(), save_every=5, out=tmp_path / 'run')
    with pytest.raises(RunError, match='go on with d2lbert finetune'):
        d2l.pretrain(resume=out)
    with pytest.raises(RunError, match='go on with d2lbert finetune'):
        d2l.pretrain(resume=checkpoints.all_of(out)[0])


# Several seeds

def test_seeds_are_so_many_runs_with_mean_and_spread(given, tmp_path, capsys):
    out = d2l.finetune(**given(), seeds=3, out=tmp_path / 'several')
    printed = capsys.readouterr().out
    one = d2l.finetune(**dict(given(), seed=2), out=tmp_path / 'one')
    assert result(one) == result(out / 'seed-2')
    found = json.loads((out / 'seeds.json').read_text())
    assert found['seeds'] == [1, 2, 3]
    values = [figures_of(out / f'seed-{k}')['loss'] for k in (1, 2, 3)]
    assert len(set(values)) == 3
    onp.testing.assert_allclose(found['summary']['loss']['mean'],
                                onp.mean(values))
    onp.testing.assert_allclose(found['summary']['loss']['spread'],
                                onp.std(values, ddof=1))
    assert re.search(r'\naccuracy 0\.\d{4} ± 0\.\d{4} \(0\.\d{4}, 0\.\d{4}, '
                     r'0\.\d{4}\)\n$', printed)
    with pytest.raises(ValueError, match='name one of its runs, as .*seed-1'):
        d2l.evaluate_finetuned(out)


def test_several_seeds_go_on_where_they_stopped(given, tmp_path,
                                                monkeypatch):
    keywords = given()
    whole = d2l.finetune(**keywords, seeds=2, out=tmp_path / 'whole')
    count = [0]
    after = loop.Run._after

    def stopping(run, k):
        count[0] += 1
        if count[0] == 13:      # in the second run
            run.stop.signal = 2
        after(run, k)
    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, '_after', stopping)
        with pytest.raises(Stopped, match=r'run 2 of 2; go on with: d2lbert '
                           r'finetune --resume \S*cut$'):
            d2l.finetune(**keywords, seeds=2, out=tmp_path / 'cut')
    with pytest.raises(RunError, match='to go on with them: --resume'):
        d2l.finetune(**keywords, seeds=2, out=tmp_path / 'cut')
    out = d2l.finetune(resume=tmp_path / 'cut')
    for name in 'seed-1', 'seed-2':
        assert result(out / name) == result(whole / name)
    summary = [json.loads((path / 'seeds.json').read_text())['summary']
               for path in (out, whole)]
    assert summary[0] == summary[1]


def stop_in_run_2(monkeypatch, step):
    """Let runs of two seeds stop after this step of the second run."""
    after = loop.Run._after

    def stopping(run, k):
        if run.out.name == 'seed-2' and k == step:
            run.stop.signal = 2
        after(run, k)
    monkeypatch.setattr(loop.Run, '_after', stopping)


def test_several_seeds_go_on_with_changed_settings(given, tmp_path,
                                                   monkeypatch):
    out = d2l.finetune(**given(), seeds=2, out=tmp_path / 'run')
    before = (out / 'seeds.json').read_text()
    with pytest.raises(ValueError, match='devices'):
        d2l.finetune(resume=out, num_epochs=3, devices='cpu:0')
    for epochs in 0, '5':
        with pytest.raises((ValueError, TypeError), match='num_epochs must b'):
            d2l.finetune(resume=out, num_epochs=epochs)
    assert (out / 'seeds.json').read_text() == before
    with monkeypatch.context() as patch:
        stop_in_run_2(patch, 12)        # in epoch 3, of five steps each
        with pytest.raises(Stopped, match='stopped in run 2 of 2'):
            d2l.finetune(resume=out, num_epochs=onp.int64(3))
    d2l.finetune(resume=out)
    for name in 'seed-1', 'seed-2':
        config = json.loads((out / name / 'config.json').read_text())
        assert config['training']['num_epochs'] == 3
        assert (out / name / 'model.params').is_file()
    found = json.loads((out / 'seeds.json').read_text())
    assert found['settings']['num_epochs'] == 3
    assert found['figures'] == [figures_of(out / name)
                                for name in ('seed-1', 'seed-2')]


def test_several_seeds_that_cannot_begin_leave_nothing(given, tmp_path,
                                                       monkeypatch):
    (tmp_path / 'here').mkdir()
    monkeypatch.chdir(tmp_path / 'here')
    with pytest.raises(ValueError, match='batch_size'):
        d2l.finetune(**dict(given(), batch_size=0), seeds=2)
    with pytest.raises((ValueError, OSError), match='nowhere'):
        d2l.finetune(**dict(given(), data=tmp_path / 'nowhere'), seeds=2)
    assert not list(Path().iterdir())


def test_force_moves_runs_of_several_seeds_aside(given, tmp_path,
                                                       monkeypatch):
    out = d2l.finetune(**given(), seeds=2, out=tmp_path / 'run')
    before = result(out / 'seed-1')
    with pytest.raises(RunError, match='exists already.*give --force'):
        d2l.finetune(**given(), seeds=2, out=out)
    # Runs that cannot begin take nothing from the runs in the folder
    found = (out / 'seeds.json').read_text()
    with pytest.raises(ValueError, match='there is no folder nowhere'):
        d2l.finetune(**dict(given(), data='nowhere'), seeds=2, out=out,
                     force=True)
    assert (out / 'seeds.json').read_text() == found
    assert result(out / 'seed-1') == before
    d2l.finetune(**given(), seeds=3, out=tmp_path / 'three')
    shutil.copytree(tmp_path / 'three' / 'seed-3', out / 'seed-3')
    # The first gets its name back from a run that ends before its end
    with monkeypatch.context() as patch:
        with pytest.raises(killed_behind(2, patch)):
            d2l.finetune(**dict(given(), seed=5), seeds=2, out=out,
                         force=True)
    assert result(out / 'seed-1') == before
    d2l.finetune(resume=out)
    assert result(out / 'seed-1.old') == before
    assert result(out / 'seed-1') != before
    assert sorted(path.name for path in out.glob('seed-?')) == [
        'seed-1', 'seed-2']
    assert (out / 'seed-3.old').is_dir()
    one = d2l.finetune(**dict(given(), seed=5), out=tmp_path / 'one')
    assert result(one) == result(out / 'seed-1')


def test_seeds_that_cannot_begin_leave_nothing(given, tmp_path):
    with pytest.raises(ValueError, match='there is no folder'):
        d2l.finetune(**dict(given(), data='nowhere'), seeds=2,
                     out=tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


# Loading

def test_load_run_loads_a_fine_tuned_run(given, tmp_path):
    out = d2l.finetune(**given('tag'), out=tmp_path / 'run')
    net, tokenizer = d2l.load_run(out)
    assert net.about.labels == ('B-LOC', 'B-PER', 'I-LOC', 'I-PER', 'O')
    words = ['Ines', 'Vega', 'sings', 'in', 'Oslo']
    text, given_words = d2l.predict(net, tokenizer,
                                    [' '.join(words), words])
    assert text == given_words
    assert len(text.label) == len(text.score) == 5
    assert d2l.load_model(out).predict([words]) == [text]


def test_a_run_of_whole_words_is_fine_tuned_and_loaded(given, tmp_path):
    start = d2l.pretrain(corpus='sample', num_steps=1, num_hiddens=8,
                         ffn_num_hiddens=8, num_layers=1, max_len=32, seed=1,
                         out=tmp_path / 'start')
    out = d2l.finetune(**dict(given(), model=start), out=tmp_path / 'run')
    assert d2l.evaluate_finetuned(out)._asdict() == figures_of(out)


@pytest.mark.parametrize('task', TASKS)
def test_predictions_do_not_depend_on_their_neighbours(task, given, tmp_path):
    out = d2l.finetune(**dict(given(task), num_epochs=1),
                       out=tmp_path / 'run')
    net, tokenizer = d2l.load_finetuned(out)
    texts = [f'mei paints {n} boats' + ' in Oslo' * n for n in range(9)]
    pairs = [text + ' .' for text in texts] if net.about.pair else None
    together = d2l.predict(net, tokenizer, texts, pairs)
    for k, text in enumerate(texts):
        alone, = d2l.predict(net, tokenizer, [text], pairs and [pairs[k]])
        if task == 'stsb':
            assert abs(alone.label - together[k].label) < 1e-4
        else:
            assert alone.label == together[k].label


def test_words_that_were_cut_off_get_the_tag_o(given, tmp_path):
    out = d2l.finetune(**dict(given('tag'), max_len=6), out=tmp_path / 'run')
    net, tokenizer = d2l.load_finetuned(out)
    found, = d2l.predict(net, tokenizer, ['Oslo ' * 30])
    assert len(found.label) == 30
    assert set(found.label[4:]) == {'O'} and not any(found.score[4:])


def test_an_answer_is_at_its_stated_position(given, tmp_path):
    out = d2l.finetune(**given('span'), out=tmp_path / 'run')
    net, tokenizer = d2l.load_finetuned(out)
    context = 'mei paints a boat in New Lagos . ' * 5
    found, = d2l.predict(net, tokenizer, ['Where is what one paints?'],
                         [context])
    assert context[slice(*found.place)] == found.label


# Bad input

@pytest.mark.parametrize('change, words', [
    (dict(task=None), r'needs a task, as sst2 \(--task sst2\)$'),
    (dict(task='sst3'), "task must be sst2, .*not 'sst3': did you mean sst2"),
    (dict(data=None), 'needs the folder with the files of the task'),
    (dict(model=None), 'needs the folder of the model to fine-tune'),
    (dict(model='nowhere'), 'there is no folder nowhere'),
    (dict(data='nowhere'), 'there is no folder nowhere'),
    (dict(data=['a', 'b']), 'data takes one path, not 2: give one'),
    (dict(data=__file__), 'is a file, but training and evaluation'),
    (dict(max_len=65), 'more than the 64 positions of the model'),
    (dict(max_len=3), 'max_len must be a whole number of at least 4'),
    (dict(num_epochs=0), 'num_epochs must be'),
    (dict(accumulate=3), 'accumulate=3 does not divide batch_size=8'),
    (dict(epochs=3), 'unknown setting epochs'),
    (dict(columns='text=9,label=1'), 'no examples|columns'),
    (dict(seeds=0), 'seeds must be a whole number of at least 1'),
    (dict(devices='cpu:0'), "devices are 'cpu:0'")])
def test_impossible_runs_are_refused_and_leave_no_files(
        change, words, given, tmp_path):
    with pytest.raises((ValueError, TypeError), match=words) as refused:
        d2l.finetune(**dict(given(), **change), out=tmp_path / 'run')
    assert '\n' not in str(refused.value)
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('part', ['train', 'dev'])
def test_questions_without_answers_are_not_trained_on(part, given, data,
                                                      tmp_path):
    shutil.copytree(data['span'], tmp_path / 'data')
    path = next((tmp_path / 'data').glob(f'{part}*.json'))
    content = json.loads(path.read_text())
    for article in content['data']:
        for paragraph in article['paragraphs']:
            for qa in paragraph['qas']:
                qa.pop('answers', None)
                qa.pop('is_impossible', None)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f'{path.name} has no answers'):
        d2l.finetune(**dict(given('span'), data=tmp_path / 'data'),
                     out=tmp_path / 'run')


def test_predict_checks_the_arguments_of_the_task(given, tmp_path):
    net, tokenizer = d2l.load_finetuned(d2l.finetune(
        **given('rte'), out=tmp_path / 'run'))
    with pytest.raises(ValueError, match='takes pairs of texts: give'):
        d2l.predict(net, tokenizer, ['a'])
    with pytest.raises(ValueError, match='2 second texts cannot be paired'):
        d2l.predict(net, tokenizer, ['a'], ['b', 'c'])
    with pytest.raises(ValueError, match='there is no text'):
        d2l.predict(net, tokenizer, [], [])
    with pytest.raises(TypeError, match='a text must be a string'):
        d2l.predict(net, tokenizer, [1], ['b'])


def test_words_to_tag_come_in_any_list(given, tmp_path):
    model = d2l.load_model(d2l.finetune(**given('tag'), out=tmp_path / 'run'))
    words = ['mei', 'in', 'Oslo']
    expected = model.predict([words])
    assert expected == model.predict([onp.array(words)])
    assert expected == model.predict(iter([iter(words)]))
    with pytest.raises(TypeError, match=r'texts\[1\] must be a list of words'):
        model.predict([words, 1])
    with pytest.raises(ValueError, match=r'texts\[0\] is empty'):
        model.predict([iter([])])


@pytest.mark.parametrize('name, value, words', [
    ('kind', 'rank', 'does not describe a fine-tuned model'),
    ('labels', [], 'does not describe a fine-tuned model'),
    ('labels', ['a', 'b', 'c'], 'does not hold the parameters'),
    ('surplus', 1, 'does not describe a fine-tuned model')])
def test_a_damaged_description_is_refused(name, value, words, given,
                                          tmp_path):
    out = d2l.finetune(**given(), out=tmp_path / 'run')
    path = out / 'config.json'
    config = json.loads(path.read_text())
    config['finetuned'][name] = value
    path.write_text(json.dumps(config))
    with pytest.raises(RunError, match=words):
        d2l.load_finetuned(out)


def test_mean_and_sample_deviation_are_correct():
    found = seed_runs.means_and_deviations(
        [dict(x=1.0), dict(x=2.0), dict(x=6.0)])
    assert found == dict(x=(3.0, 7 ** 0.5))


def test_models_are_small():
    count = sum(onp.prod(param.shape) for param in models.tuned(
        'classify', devices=[npx.cpu()]).collect_params().values())
    assert count < 10000
