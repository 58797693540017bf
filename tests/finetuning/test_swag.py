"""SWAG: its files, the head that chooses an ending, and runs of it."""
import csv
import json
from pathlib import Path

import models
import numpy as onp
import prose
import pytest
from test_heads import dense, loss_of, rows_of, share

import d2lbert as d2l
from d2lbert.__main__ import main
from d2lbert.finetuning.batches import Batch, batch_of, choice_inputs
from d2lbert.finetuning.task_kinds import EndingCodec
from d2lbert.finetuning.tasks.catalog import read_task
from d2lbert.finetuning.tasks.formats import Choices, read_swag
from d2lbert.finetuning.tasks.tables import TaskError
from d2lbert.machine.backend import autograd, mx, np
from d2lbert.pretrained.heads import FineTuned
from d2lbert.training import load

HEADER = ',video-id,fold-ind,startphrase,sent1,sent2,gold-source'
FIXTURES = Path(__file__).parents[1] / 'pretrained' / 'fixtures'
FLAGS = ['--num-epochs', '1', '--batch-size', '8', '--seed', '1']


def write(path, num=24, labels=True, seed=0):
    """A file in the layout of SWAG: the right ending repeats the text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = onp.random.RandomState(seed)
    texts = [text for text, _ in prose.moods(4 * num, seed)]
    with path.open('w', newline='', encoding='utf-8') as file:
        rows = csv.writer(file)
        rows.writerow([*HEADER.split(','), *(f'ending{k}' for k in range(4)),
                       *['label'] * labels])
        for k in range(num):
            right = rng.randint(4)
            endings = [texts[4 * k + j] if j else 'is "here", now'
                       for j in range(4)]
            endings[0], endings[right] = endings[right], endings[0]
            rows.writerow([k, f'v{k}', k, 'A B', texts[4 * k], 'Someone',
                           'gold', *endings, *[right] * labels])
    return path


@pytest.fixture(scope='module')
def swag(tmp_path_factory):
    """The folder of SWAG's files."""
    folder = tmp_path_factory.mktemp('data') / 'swagaf'
    write(folder / 'SWAG' / 'train.csv')
    write(folder / 'SWAG' / 'val.csv', 12, seed=1)
    write(folder / 'SWAG' / 'test.csv', 12, False, seed=2)
    return folder


def test_the_files_are_read_as_published(swag):
    for part, num in ('train', 24), ('dev', 12), ('test', 12):
        found = read_task('swag', swag, part)
        assert len(found.texts) == len(found.endings) == num
        assert (found.labels is None) == (part == 'test')
        for k, endings in enumerate(found.endings):
            assert len(endings) == 4
            if part != 'test':
                assert endings[found.labels[k]] == 'Someone is "here", now'


@pytest.mark.parametrize('old, new, said', [
    ('ending3', 'ending4', 'no column ending3'),
    (',label', ',lable', 'no column label'),
    (',gold,', ',gold,more,', 'line 2: there are 13 columns, and the first '
     'line names 12'),
    ('\r\n0,v0', '\r\n\r\n0,v0', 'line 2: there are 0 columns')])
def test_a_file_of_another_layout_is_refused(old, new, said, tmp_path):
    path = write(tmp_path / 'train.csv', 3)
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new).encode())
    with pytest.raises(TaskError, match=said):
        read_swag(path)
    assert read_swag(write(path, 3), 'test').labels


def test_a_label_that_there_is_not_is_refused(tmp_path):
    path = write(tmp_path / 'train.csv', 3)
    lines = path.read_text().splitlines()
    lines[2] = lines[2][:-1] + '4'
    path.write_text('\n'.join(lines) + '\n')
    with pytest.raises(TaskError, match="line 3: the label is '4'"):
        read_swag(path)
    path.write_text(lines[0] + '\n')
    with pytest.raises(TaskError, match='has a header and no examples'):
        read_swag(path)
    with pytest.raises(TaskError, match='leave out --columns'):
        read_task('swag', tmp_path, columns='a,b')


def batch():
    """Two examples of three endings, of unlike lengths."""
    one = models.batch('classify', (7, 2, 5, 9, 3, 4))
    return Batch(one.tokens_X.reshape(2, 3, -1),
                 one.segments_X.reshape(2, 3, -1),
                 one.valid_lens_x.reshape(2, 3),
                 onp.array([2, 0])), one


def tuned(**keywords):
    net = FineTuned(models.bert(**keywords), 'choice', 1, 0.0)
    net.begin([mx.cpu()])
    net.output.weight.set_data(mx.np.random.normal(0, 0.5, (1, 12)))
    return net


def test_each_ending_has_a_score_and_a_softmax_joins_them(path):
    some, flat = batch()
    net = tuned(dropout=0.0)
    scores = onp.reshape([
        dense(net.output, onp.tanh(dense(net.hidden, X[0])))
        for X in rows_of(net, flat)], (2, 3))
    loss, count = loss_of(net, some)
    assert count == 2
    onp.testing.assert_allclose(float(loss), onp.mean(
        [share(s, k) for s, k in zip(scores, some.labels_Y)]), 1e-5)
    onp.testing.assert_allclose(net(*some[:3]).asnumpy(), scores, 1e-4, 1e-5)


def test_gradients_are_those_of_finite_differences():
    net, (some, _) = tuned(dropout=0.0, num_layers=1), batch()
    with autograd.record():
        loss, _ = loss_of(net, some)
    loss.backward()
    for param in (net.output.weight, net.hidden.weight,
                  net.encoder.token_embedding.weight):
        direction = param.grad().asnumpy()
        direction = direction / onp.linalg.norm(direction)
        before, ends = param.data().asnumpy(), []
        for sign in (1, -1):
            param.set_data(np.array(before + sign * 2e-2 * direction))
            ends.append(float(loss_of(net, some)[0]))
        param.set_data(np.array(before))
        assert (ends[0] - ends[1]) / 4e-2 == pytest.approx(
            float((param.grad().asnumpy() * direction).sum()), rel=2e-2)


def test_examples_of_unlike_lengths_share_a_batch():
    class One:
        def __init__(self, n):
            self.ids, self.segments = list(range(1, n + 1)), [0] * n
    inputs = choice_inputs([One(n) for n in (3, 1, 2, 6)], 2,
                           onp.array([1, 0]))
    assert inputs.lens.tolist() == [6, 12]
    some = batch_of(inputs, [1, 0])
    assert some.tokens_X.tolist() == [
        [[1, 2, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6]],
        [[1, 2, 3, 0, 0, 0], [1, 0, 0, 0, 0, 0]]]
    assert some.valid_lens_x.tolist() == [[2, 6], [3, 1]]
    assert some.labels_Y.tolist() == [0, 1]


def test_a_run_learns_is_evaluated_and_chooses(folder, swag, tmp_path,
                                               capsys):
    run = tmp_path / 'run'
    assert main(['finetune', '--task', 'swag', '--data', str(swag),
                 '--model', str(folder), '--out', str(run), '--lr', '1e-2',
                 '--max-len', '64', *FLAGS[2:], '--num-epochs', '6']) == 0
    figures = json.loads((run / 'config.json').read_text())['figures']
    assert figures['accuracy'] > 0.6        # chance is a quarter
    capsys.readouterr()
    assert main(['evaluate', str(run)]) == 0
    assert capsys.readouterr().out == ''.join(
        f'{name} {figures[name]:.4f}\n' for name in ('loss', 'accuracy'))
    data = read_task('swag', swag, 'dev')
    net, tokenizer = d2l.load_finetuned(run)
    found = d2l.predict(net, tokenizer, data.texts, data.endings)
    assert onp.mean([one.place == k for one, k in zip(found, data.labels)]
                    ) == pytest.approx(figures['accuracy'])
    assert all(sum(one.shares.values()) == pytest.approx(1) for one in found)
    lines = tmp_path / 'lines.txt'
    lines.write_text(''.join('\t'.join((text, *endings)) + '\n' for
                             text, endings in zip(data.texts, data.endings)))
    assert main(['predict', str(run), '--file', str(lines)]) == 0
    assert capsys.readouterr().out == ''.join(
        f'{one.label}\t{one.score:.4f}\n' for one in found)
    load.export_run(run, tmp_path / 'folder')
    config = json.loads((tmp_path / 'folder' / 'config.json').read_text())
    assert config['architectures'] == ['BertForMultipleChoice']
    assert d2l.predict(*d2l.load_finetuned(tmp_path / 'folder'), data.texts,
                       data.endings) == found
    for text, sentence in (
            ('a\tb\n', 'line 1 has 1 tabs'),
            ('a\tb\tc\nd\te\tf\tg\n', 'equally many endings')):
        lines.write_text(text)
        assert main(['predict', str(run), '--file', str(lines)]) == 1
        assert sentence in capsys.readouterr().err
    assert main(['predict', str(run), 'a text', '--pair', 'b']) == 2
    assert 'give --file FILE' in capsys.readouterr().err


def test_equal_endings_have_their_sum_as_one_probability():
    data = Choices(['it is'], [['late', 'left', 'late']], None, 0, 'x')
    scores = onp.log(onp.array([[.2, .5, .3]]))
    found, = EndingCodec(None, None).predictions(scores, None, data)
    assert found.label == 'left' and found.place == 1
    assert found.score == pytest.approx(.5)
    assert list(found.shares) == ['late', 'left']
    assert list(found.shares.values()) == pytest.approx([.5, .5])


@pytest.mark.parametrize('name, architecture', [
    ('roberta-0', 'RobertaForMultipleChoice'),
    ('distilbert-0', 'DistilBertForMultipleChoice'),
    ('albert-2', 'AlbertForMultipleChoice')])
def test_relatives_learn_it_too(name, architecture, swag, tmp_path):
    out = d2l.finetune(task='swag', data=str(swag), num_epochs=1,
                       model=str(FIXTURES / name), batch_size=12, max_len=11,
                       seed=1, out=tmp_path / 'run')
    load.export_run(out, tmp_path / 'folder')
    config = json.loads((tmp_path / 'folder' / 'config.json').read_text())
    assert config['architectures'] == [architecture]
    said = [d2l.predict(*d2l.load_finetuned(one), ['it is'],
                        [['late', 'the crane', 'left']])
            for one in (out, tmp_path / 'folder')]
    assert said[0] == said[1]


@pytest.mark.parametrize('name', ['flaubert-1', 'bart-0'])
def test_families_without_such_a_class_are_refused(name, swag, tmp_path):
    with pytest.raises(ValueError, match='needs a head for several endings'):
        d2l.finetune(task='swag', data=str(swag), model=str(FIXTURES / name),
                     max_len=11, out=tmp_path / 'run')
    assert not (tmp_path / 'run').exists()
