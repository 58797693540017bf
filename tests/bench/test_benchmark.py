"""What the benchmarks do beside measuring."""
import argparse
import contextlib
import os
import re
import subprocess
import sys

import bench_directions
import bench_embed
import bench_finetune
import bench_recipes
import benchmark
import benchmark_published
import numpy as onp
import published
import pytest
from batches import random_batch
from benchmark_worker import FIELDS

from d2lbert.machine.processor import find_processor


def test_a_profile_is_written_beside_the_columns_alone(tmp_path):
    rng = onp.random.RandomState(0)
    batch = random_batch(rng, rng.randint(3, 8, 6), onp.ones((6, 2)), 8, 30)
    path = tmp_path / 'columns.npz'
    onp.savez(str(path), **{f'text.{field}': column
                            for field, column in zip(FIELDS, batch)})
    with contextlib.closing(benchmark.Peer('ours', 'ours', sys.executable,
                                           str(path))) as peer:
        peer.ask('build', vocab_size=30, sizes=(8, 12, 2, 1, 0.0),
                 precision='fp32')
        answer = peer.ask('profile', batch=('text', 0, 6))
    assert any('adam' in name for name, _, _ in answer['operators'])
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {'columns.npz', 'columns.npz.profile.json'}


def test_a_recipe_is_tried_with_other_settings():
    text = 'num_layers=3 lr=0.0015 dynamic=False pre_norm=True decay=cosine'
    assert bench_recipes.overrides(text) == (text, dict(
        num_layers=3, lr=0.0015, dynamic=False, pre_norm=True,
        decay='cosine'))
    args = argparse.Namespace(
        tries=[bench_recipes.overrides('lr=1'),
               bench_recipes.overrides('num_steps=7')],
        tries_alone=False, by_clock=True, minutes=2.5, data='here')
    given = dict(recipe='learn', data_dir='here')
    assert list(bench_recipes.recipes(args)) == [
        ('learn', dict(given, minutes=2.5)),
        ('lr=1', dict(given, lr=1.0, minutes=2.5)),
        ('num_steps=7', dict(given, num_steps=7))]


def test_curves_are_read_from_what_a_run_printed():
    text = (
        'learn 1:  1.00 min, step 1158: mlm_loss 6.1406, perplexity 464.3, '
        'mlm_accuracy 0.1282, nsp_loss 0.5849, nsp_accuracy 0.6878, '
        'unknown_share 0.0694, known_accuracy 0.1221\n'
        'torch:  1.01 min, step 26: mlm_loss 7.1119, perplexity 1226.4, '
        'mlm_accuracy 0.0464, nsp_loss 0.6933, nsp_accuracy 0.5079, '
        'unknown_share nan, known_accuracy nan\n'
        'Held-out figures after 10 minutes of training\n')
    curves = bench_recipes.kept_curves(text)
    assert list(curves) == [('learn', 'learn 1'), ('torch', 'torch')]
    (minutes, step, figures), = curves['learn', 'learn 1']
    assert (minutes, step) == (1.0, 1158)
    assert (figures.mlm_loss, figures.nsp_accuracy) == (6.1406, 0.6878)


def test_kept_losses_of_two_objectives_are_listed_and_drawn(
        tmp_path, capsys):
    for name, losses in ('mlm', (6.5, 5.25)), ('clm', (6.25, 4.5)):
        (tmp_path / f'{name}.csv').write_text(
            f'step,{name}_loss,{name},held_out_{name}_loss\n10,8,7.5,\n'
            + ''.join(f'{step},7,6.75,{loss}\n' for step, loss
                      in zip((20, 40), losses)))
    kept = bench_directions.read(tmp_path)
    bench_directions.report(kept)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[-2:] == [['20', '6.500', '6.250'], ['40', '5.250', '4.500']]
    bench_directions.draw(kept, tmp_path / 'both.png')
    assert (tmp_path / 'both.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize('text, message', [
    ('colour=1', "'colour=1' is no setting=value"),
    ('lr', "'lr' is no setting=value"), ('lr=fast', 'fast'),
    ('dynamic=1', "dynamic must be True or False, not '1'"),
    ('minutes=1 num_steps=2', 'both set the length of a run')])
def test_settings_that_cannot_be_tried_are_named(text, message):
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        bench_recipes.overrides(text)


def test_pairs_are_as_short_as_they_are_asked_to_be():
    texts = benchmark.Texts.__new__(benchmark.Texts)
    rng = onp.random.RandomState(0)
    lens = rng.randint(5, 40, 4000)
    batch = random_batch(rng, lens, onp.ones((4000, 2)), 40, 30)
    texts.columns = {'40': list(batch)}
    assert texts.shorten(40, (9.0, 5.0), (2.0, 1.0), 3) == '40 short'
    tokens, segments, lens, *_, labels = texts.columns['40 short']
    place = onp.arange(40)
    assert abs(lens.mean() - 9 - 5 - 3) < 0.2
    assert abs(segments.sum(1).mean() - 5 - 1) < 0.1
    assert not segments[place >= lens[:, None]].any()
    assert (tokens[place >= lens[:, None]] == 1).all()
    assert set(labels) == {0, 1, 2}
    assert [X.dtype for X in texts.columns['40 short']] == [
        X.dtype for X in batch]


@pytest.mark.parametrize('kind, typed', [('ours', False), ('ours', True),
                                         ('book', True)])
def test_a_classifier_takes_steps(kind, typed, tmp_path, request):
    if kind == 'book':
        request.getfixturevalue('book')
    rng = onp.random.RandomState(0)
    batch = random_batch(rng, rng.randint(3, 8, 6), onp.ones((6, 2)), 8, 30)
    path = tmp_path / 'columns.npz'
    onp.savez(str(path), **{f'text.{field}': column
                            for field, column in zip(FIELDS, batch)})
    with contextlib.closing(benchmark.Peer(kind, kind, sys.executable,
                                           str(path))) as peer:
        peer.ask('build_classifier', vocab_size=30, typed=typed,
                 sizes=(8, 12, 2, 1, 0.0), max_len=16)
        answers = [peer.ask('train', batches=[('text', 0, 6)] * 20,
                            step='fine_tune') for _ in range(2)]
    losses = [answer['losses'][0] for answer in answers]
    # Of six examples, as a sum; and it falls
    assert 2 < losses[1] < losses[0] < 20 and answers[0]['seconds'] > 0


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Run a benchmark of one table as a command with these words."""
    monkeypatch.setattr(benchmark, 'RESULTS', tmp_path / 'results')

    def run(*words, rate='1', fails=False):
        def main():
            parser = argparse.ArgumentParser()
            parser.add_argument('--rows')
            parser.add_argument('--torch-python')
            benchmark.parse(parser)
            benchmark.table('Speed', ('', 'pairs/s'), [['ours', rate]])
            if fails:
                sys.exit('not measured')
        monkeypatch.setattr(sys, 'argv', ['bench_it.py', *words])
        benchmark.run(main)
        return {path.name: path.read_text('utf-8')
                for path in (tmp_path / 'results').glob('*')}
    return run


def test_what_a_benchmark_prints_is_kept_under_the_processor(command,
                                                             capsys):
    assert command() == {}
    kept = command('--keep', '--torch-python', f'{os.sep}opt{os.sep}python')
    printed = capsys.readouterr().out
    (name, text), = kept.items()
    assert name == f'{find_processor().slug}.txt'
    lines = text.splitlines()
    assert lines[0] == str(find_processor())
    assert lines[2] == '## bench_it.py --torch-python PATH'
    assert re.fullmatch(r'\d{4}-\d\d-\d\d', lines[3])
    assert 'cores' in lines[4] and 'load' in lines[4]
    assert '\n  ours        1\n' in text and '\n  ours        1\n' in printed
    assert printed.splitlines()[-1].startswith('kept in ')


def test_a_benchmark_replaces_what_the_same_command_left(command):
    command('--keep', '--rows', 'chapter', rate='1')
    command('--keep', '--rows', 'bf16', rate='2')
    text, = command('--rows', 'chapter', '--keep', rate='3').values()
    heads = [line for line in text.splitlines() if line.startswith('## ')]
    assert heads == ['## bench_it.py --rows bf16',
                     '## bench_it.py --rows chapter']
    rates = re.findall(r'  ours +(\d)', text)
    assert rates == ['2', '3']
    with pytest.raises(SystemExit):
        command('--keep', '--rows', 'bf16', rate='4', fails=True)
    assert command('--rows', 'bf16') == {find_processor().slug + '.txt': text}


def test_every_benchmark_can_keep_what_it_prints():
    for path in benchmark.HERE.glob('bench_*.py'):
        text = path.read_text('utf-8')
        assert 'benchmark.parse(' in text, path.name
        assert text.endswith('    benchmark.run(main)\n'), path.name


def test_all_peers_are_held_to_the_same_instructions(monkeypatch):
    for name in benchmark.HELD['avx2']:
        monkeypatch.setenv(name, '')
    monkeypatch.setattr(sys, 'argv', ['bench_it.py', '--isa', 'avx2'])
    args = benchmark.parse(benchmark.parser(''))
    assert args.isa == 'avx2' == os.environ['D2LBERT_ISA']
    assert os.environ['ONEDNN_MAX_CPU_ISA'] == 'AVX2'
    with subprocess.Popen([sys.executable, '-c', (
            'import os; print(os.environ["ATEN_CPU_CAPABILITY"])')],
            stdout=subprocess.PIPE) as child:
        assert child.communicate()[0].split() == [b'avx2']


def test_a_comparison_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    trained = []

    class Job:
        def __init__(self, name, data):
            self.task = argparse.Namespace(metrics=['accuracy'])

        def ours(self, model, seed, folder, precision):
            assert precision == 'fp32'
            trained.append(('ours', seed))
            if len(trained) == 3:
                raise KeyboardInterrupt
            return {'accuracy': 0.5 + seed / 10}, 30.0

        def theirs(self, python, model, seed, folder):
            trained.append(('torch', seed))
            return {'accuracy': 0.75}, 10.0
    monkeypatch.setattr(bench_finetune, 'Job', Job)
    args = argparse.Namespace(
        tasks=['sst2'], data='', model='', torch_python='', seeds=2,
        who=['ours', 'torch'], json=str(tmp_path / 'kept.json'))
    with pytest.raises(KeyboardInterrupt):
        bench_finetune.compare(args, tmp_path)
    bench_finetune.compare(args, tmp_path)
    assert trained == [('ours', 1), ('torch', 1), ('ours', 2), ('ours', 2),
                       ('torch', 2)]
    ours, torch = capsys.readouterr().out.splitlines()[-2:]
    assert ours.split() == ['sst2', 'ours', 'accuracy', '0.6500', '0.0707',
                            '30.0']
    assert torch.split() == ['sst2', 'torch', 'accuracy', '0.7500', '0.0000',
                             '10.0', '3.00']


def test_a_recipe_trains_by_the_steps_of_runs():
    ours = bench_recipes.Ours('learn', 'learn', num_hiddens=8,
                              ffn_num_hiddens=8, num_heads=2, num_layers=1,
                              batch_size=4, num_steps=3)
    before = ours.figures()
    _, steps = ours.train(60)
    assert steps == 3 and ours.figures() != before


def test_fine_tuning_is_timed_on_the_steps_of_runs(tmp_path):
    published.write(tmp_path / 'model', dict(
        published.CONFIG, max_position_embeddings=128))
    lines = ['sentence\tlabel', 'the crane\t0', 'he is flying\t1',
             'he left\t0', 'just fly\t1']
    for part in ('train', 'dev'):
        path = tmp_path / 'SST-2' / f'{part}.tsv'
        path.parent.mkdir(exist_ok=True)
        path.write_text('\n'.join(lines) + '\n', 'utf-8')
    take = bench_finetune.Job('sst2', tmp_path).steps(
        tmp_path / 'model', 'fp32')
    seconds, examples = take(2)
    assert seconds > 0 and examples == 8


@pytest.mark.parametrize('text', ['', '[]', '{"sst2": {"ours": []}}',
                                  '{"sst2": {"ours": [1], "torch": []}}'])
def test_a_file_of_another_benchmark_is_no_comparison(text, tmp_path):
    path = tmp_path / 'kept.json'
    path.write_text(text, encoding='utf-8')
    with pytest.raises(SystemExit, match='kept.json does not hold what a comp'
                                         '.*name another file'):
        bench_finetune.kept(path)
    assert path.read_text(encoding='utf-8') == text


def test_necessary_operations_are_those_of_a_bert_of_a_layer():
    # As sentences of 4 and 6 tokens with the special ones
    class Encoded:
        def __init__(self, T):
            self.ids = [0] * T
    assert bench_embed.necessary_flops(
        dict(hidden_size=8, intermediate_size=16, num_hidden_layers=1),
        [Encoded(4), Encoded(6)]) == (
            2 * 10 * (4 * 8 * 8 + 2 * 8 * 16) + 2 * 2 * 8 * (16 + 36))


@pytest.mark.parametrize('precision', ['fp32', 'bf16'])
def test_a_published_net_computes_and_learns(precision):
    net = benchmark_published.Published()
    net.build(60, (16, 32, 2, 1, 0.), precision)
    _, columns = benchmark_published.mixed_lengths(
        onp.random.RandomState(0), 8, 12, 60)
    shards = net.batch(columns)
    net.forward(shards, False)
    losses = [net.step(shards)[0] for _ in range(3)]
    assert onp.isfinite(losses).all() and len(set(losses)) == 3
