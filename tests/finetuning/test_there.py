"""Fine-tuned nets as transformers reads them, and its own training.

D2LBERT_PEERS names a Python that has torch and transformers.
"""
import json
import os
import subprocess

import models
import numpy as onp
import pytest
import there

import d2lbert as d2l
from d2lbert.__main__ import main
from d2lbert.finetuning import finetuning
from d2lbert.finetuning.batches import inputs_of
from d2lbert.finetuning.scoring import outputs_of
from d2lbert.finetuning.settings import complete
from d2lbert.machine.backend import npx
from d2lbert.training import loop

SETTINGS = dict(num_epochs=1, batch_size=8, lr=1e-3, max_len=48, seed=1,
                stride=8)
AUTO = {'sst2': 'AutoModelForSequenceClassification',
        'stsb': 'AutoModelForSequenceClassification',
        'tag': 'AutoModelForTokenClassification',
        'span': 'AutoModelForQuestionAnswering'}
TEXTS = ['mei paints a gentle boat in Oslo .', 'grim', 'a b c ' * 4]
STEPS = 15


def carry_out(jobs, place):
    python = os.environ.get('D2LBERT_PEERS')
    if not python:
        pytest.skip('D2LBERT_PEERS does not name a Python that has torch and '
                    'transformers')
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


@pytest.fixture(scope='module')
def left(folder, data, tmp_path_factory):
    """{task: (net, tokenizer, folder)} of fine-tuned nets that left."""
    place, found = tmp_path_factory.mktemp('left'), {}
    for task in AUTO:
        run = d2l.finetune(task=task, data=data[task], model=folder,
                           out=place / 'runs' / task, **SETTINGS)
        assert main(['export', str(run), str(place / task)]) == 0
        found[task] = (*d2l.load_finetuned(run), place / task)
    return found


def undropped(folder, data):
    """A run that is ready to train, without dropout."""
    run = loop.Run(finetuning._objective, complete(dict(
        SETTINGS, data=str(data['sst2']), model=str(folder), task='sst2',
        num_epochs=3, lr=0.02, clip=0.3, weight_decay=1.0, bucket=16)), 'cpu')
    run.prepare()
    run.net.apply(lambda block: setattr(block, '_rate', 0)
                  if hasattr(block, '_rate') else None)
    return run


@pytest.fixture(scope='module')
def theirs(left, folder, data, tmp_path_factory):
    """Results of transformers for these folders and for training."""
    place = tmp_path_factory.mktemp('there')
    run = undropped(folder, data)
    d2l.save_pretrained(run.net, run.objective.tokenizer, place / 'begin')
    batches = run.batches()
    train = dict(
        auto=AUTO['sst2'], folder=str(place / 'begin'), lr=0.02, clip=0.3,
        weight_decay=1.0, rates=[run.updater.rate(k + 1)
                                 for k in range(STEPS)],
        batches=[[column.tolist() for column in next(batches)]
                 for _ in range(STEPS)])
    return dict(zip((*left, 'train'), carry_out([
        *(dict(auto=AUTO[task], folder=str(folder), texts=texts_of(net))
          for task, (net, _, folder) in left.items()), train], place)))


@pytest.mark.parametrize('task', AUTO)
def test_a_fine_tuned_net_is_the_same_in_transformers(task, left, theirs):
    net, tokenizer, _ = left[task]
    found = theirs[task]
    assert found['said'] == []
    encoded = [tokenizer.encode(*texts) for texts in texts_of(net)]
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


def test_training_takes_the_steps_of_transformers(folder, data, theirs):
    """Loss by loss: AdamW, its bias correction, decay, clipping, rates."""
    run = undropped(folder, data)
    losses = []
    for _, (read, _) in zip(range(STEPS), run.steps()):
        run.history.add(read, 1)
        losses.append(read()[0])
    onp.testing.assert_allclose(losses, theirs['train']['losses'], 2e-3)
    assert onp.std(losses) > 0.04      # they did change the weights


def test_exported_folders_describe_the_task(left):
    """Without transformers: names, shapes and labels in the folder."""
    from safetensors.numpy import load_file
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
