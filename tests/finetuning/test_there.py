"""Fine-tuned nets as transformers reads them, and its own training.

fixtures/ keeps small nets and what transformers said of them, as
tests/pretrained/record.py wrote it. Where D2LBERT_PEERS names a Python that
has torch and transformers, new nets are compared, too.
"""
import json
import os
import shutil
import subprocess
from pathlib import Path

import models
import numpy as onp
import prose
import pytest
import there
from safetensors.numpy import load_file

import d2lbert as d2l
from d2lbert.__main__ import main
from d2lbert.finetuning import finetuning
from d2lbert.finetuning.batches import inputs_of, outputs_of
from d2lbert.finetuning.settings import complete
from d2lbert.machine.backend import npx
from d2lbert.pretrained.folders import load_finetuned_folder
from d2lbert.training import loop

FIXTURES = Path(__file__).with_name('fixtures')
ANSWERS = FIXTURES / 'answers.json'
SETTINGS = dict(num_epochs=1, batch_size=8, lr=1e-3, max_len=48, seed=1,
                stride=8)
AUTO = {'sst2': 'AutoModelForSequenceClassification',
        'stsb': 'AutoModelForSequenceClassification',
        'tag': 'AutoModelForTokenClassification',
        'span': 'AutoModelForQuestionAnswering'}
TEXTS = ['mei paints a gentle boat in Oslo .', 'grim', 'a b c ' * 4]
STEPS = 15


def carry_out(python, jobs, place):
    """The answers of transformers to these jobs."""
    for k, job in enumerate(jobs):
        job['out'] = str(place / f'{k}.json')
    (place / 'jobs.json').write_text(json.dumps(jobs))
    subprocess.run(
        [python, there.__file__, str(place / 'jobs.json')], check=True,
        env=dict(os.environ, HF_HUB_OFFLINE='1', PYTHONPATH=''))
    return [json.loads((place / f'{k}.json').read_text())
            for k in range(len(jobs))]


def texts_of(net):
    return [[text, f'{text} in Oslo'] if net.about.pair else [text]
            for text in TEXTS]


def leave(folder, data, place):
    """Fine-tune nets, export each as `place`/TASK; returns their runs."""
    found = {}
    for task in AUTO:
        found[task] = d2l.finetune(task=task, data=data[task], model=folder,
                                   out=place / 'runs' / task, **SETTINGS)
        assert main(['export', str(found[task]), str(place / task)]) == 0
    return found


@pytest.fixture(scope='module')
def left(folder, data, tmp_path_factory):
    """{task: (net, tokenizer, folder)} of fine-tuned nets that left."""
    place = tmp_path_factory.mktemp('left')
    return {task: (*d2l.load_finetuned(run), place / task)
            for task, run in leave(folder, data, place).items()}


def undropped(folder, data):
    """A run that is ready to train, without dropout."""
    run = loop.Run(finetuning._make_objective, complete(dict(
        SETTINGS, data=str(data['sst2']), model=str(folder), task='sst2',
        num_epochs=3, lr=0.02, clip=0.3, weight_decay=1.0, bucket=16)), 'cpu')
    run.prepare()
    run.net.apply(lambda block: setattr(block, '_rate', 0)
                  if hasattr(block, '_rate') else None)
    return run


def asked_of(python, folders, begin, run, place):
    """What transformers says of folders, and its losses from `begin` on.

    folders: {task: the folder of a fine-tuned net}. run: its batches and
    rates are used.
    """
    batches = run.batches()
    train = dict(
        auto=AUTO['sst2'], folder=str(begin), lr=0.02, clip=0.3,
        weight_decay=1.0, rates=[run.updater.rate(k + 1)
                                 for k in range(STEPS)],
        batches=[[column.tolist() for column in next(batches)]
                 for _ in range(STEPS)])
    return dict(zip((*folders, 'train'), carry_out(python, [
        *(dict(auto=AUTO[task], folder=str(folder), texts=texts_of(
            load_finetuned_folder(folder)[0]))
          for task, folder in folders.items()), train], place)))


def record(python, place):
    """Write the folders and the answers of `FIXTURES`."""
    folder = models.write_folder(place / 'small')
    data = prose.write_tasks(place / 'data')
    shutil.rmtree(FIXTURES, ignore_errors=True)
    leave(folder, data, place)
    for task in AUTO:
        shutil.copytree(place / task, FIXTURES / task)
    run = undropped(folder, data)
    d2l.save_pretrained(run.net, run.objective.tokenizer, FIXTURES / 'begin')
    said = asked_of(python, {task: FIXTURES / task for task in AUTO},
                    FIXTURES / 'begin', run, place)
    ANSWERS.write_text(json.dumps(said) + '\n')


@pytest.fixture(scope='module')
def recorded():
    return json.loads(ANSWERS.read_text())


@pytest.fixture(scope='module')
def theirs(peers_python, left, folder, data, tmp_path_factory):
    """Results of transformers for new nets and for training."""
    place = tmp_path_factory.mktemp('there')
    run = undropped(folder, data)
    d2l.save_pretrained(run.net, run.objective.tokenizer, place / 'begin')
    return asked_of(peers_python, {task: there for task, (_, _, there)
                                   in left.items()}, place / 'begin', run,
                    place)


def check_said(task, net, tokenizer, found, texts=None):
    assert found['said'] == []
    encoded = [tokenizer.encode(*one) for one in texts or texts_of(net)]
    ours = outputs_of(net, inputs_of(encoded), [npx.cpu()])
    for a, b in zip(ours, found['logits']):
        onp.testing.assert_allclose(a, b, 1e-4, 1e-4)
    labels = net.about.labels or (('LABEL_0',) if task == 'stsb' else None)
    if labels:
        assert found['labels'] == {str(k): name
                                   for k, name in enumerate(labels)}
        assert found['numbers'] == {name: k for k, name in enumerate(labels)}
    assert found['problem'] == {
        'sst2': 'single_label_classification', 'stsb': 'regression'}.get(task)


def check_losses(run, found):
    losses = []
    for _, (read, _) in zip(range(STEPS), run.steps()):
        run.history.add(read, 1)
        losses.append(read()[0])
    onp.testing.assert_allclose(losses, found['losses'], 2e-3)
    assert onp.std(losses) > 0.04      # they did change the weights


@pytest.mark.parametrize('task', AUTO)
def test_a_fine_tuned_net_says_what_it_said_in_transformers(task, recorded,
                                                            tmp_path):
    net, tokenizer = load_finetuned_folder(FIXTURES / task)
    check_said(task, net, tokenizer, recorded[task])
    # What transformers has read is what is written today
    d2l.save_pretrained(net, tokenizer, tmp_path / 'again')
    for name in 'config.json', 'tokenizer.json', 'tokenizer_config.json':
        assert (tmp_path / 'again' / name).read_bytes() == (
            FIXTURES / task / name).read_bytes()
    before, after = (load_file(str(folder / 'model.safetensors'))
                     for folder in (FIXTURES / task, tmp_path / 'again'))
    assert sorted(before) == sorted(after)
    for name, tensor in before.items():
        onp.testing.assert_array_equal(tensor, after[name])


@pytest.mark.parametrize('task', AUTO)
def test_a_new_net_is_the_same_in_transformers(task, left, theirs):
    net, tokenizer, there = left[task]
    # An exported regression takes pairs and single texts
    texts = texts_of(load_finetuned_folder(there)[0])
    check_said(task, net, tokenizer, theirs[task], texts)


def test_training_takes_the_steps_of_transformers(folder, data, recorded):
    """Loss by loss: AdamW, its bias correction, decay, clipping, rates."""
    run = undropped(folder, data)
    begin, _ = load_finetuned_folder(FIXTURES / 'begin')
    before, now = (net._collect_params_with_prefix()
                   for net in (begin, run.net))
    assert sorted(before) == sorted(now)
    for name, param in now.items():
        param.set_data(before[name].data())
    check_losses(run, recorded['train'])


def test_a_new_training_takes_the_steps_of_transformers(folder, data, theirs):
    check_losses(undropped(folder, data), theirs['train'])


def test_exported_folders_describe_the_task(left):
    """Names, shapes and labels in the folder."""
    heads = {'sst2': ('classifier', 2, True), 'stsb': ('classifier', 1, True),
             'tag': ('classifier', 5, False), 'span': ('qa_outputs', 2, False)}
    for task, (head, num_scores, pooled) in heads.items():
        net, _, folder = left[task]
        tensors = load_file(str(folder / 'model.safetensors'))
        onp.testing.assert_array_equal(tensors[f'{head}.weight'],
                                       net.output.weight.data().asnumpy())
        assert tensors[f'{head}.bias'].shape == (num_scores,)
        assert ('bert.pooler.dense.weight' in tensors) == pooled
        assert not [name for name in tensors if name.startswith('cls.')]
        config = json.loads((folder / 'config.json').read_text())
        assert config.get('id2label') == {
            'sst2': {'0': 'negative', '1': 'positive'},
            'stsb': {'0': 'LABEL_0'}, 'span': None, 'tag': {
                str(k): name for k, name in enumerate(
                    ['B-LOC', 'B-PER', 'I-LOC', 'I-PER', 'O'])}}[task]


def test_a_net_that_the_format_has_no_words_for_is_refused(tmp_path):
    net = models.tuned('tag', embedding_norm=False)
    with pytest.raises(ValueError, match='no LayerNorm after'):
        d2l.save_pretrained(net, models.tokenizer(), tmp_path / 'out')
    assert not (tmp_path / 'out').exists()
