"""`d2lbert finetune`, `predict` and `evaluate`, as a user types them."""
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import prose
import pytest
from commands import refusal, status_of

import d2lbert as d2l
from d2lbert.__main__ import main, parser
from d2lbert.finetuning.settings import SETTINGS

FLAGS = ['--num-epochs', '1', '--batch-size', '8', '--lr', '1e-2', '--max-len',
         '48', '--stride', '8', '--seed', '1', '--devices', 'cpu']

#: A model of transformers, for single texts and for pairs
FOLDER = str(Path(__file__).parents[1] / 'pretrained' / 'fixtures'
             / 'roberta-0-classify')


@pytest.fixture(scope='module')
def runs(folder, data, tmp_path_factory):
    """A function that gives a finished run of a task, as the command left it.
    """
    found = {}

    def get(task):
        if task not in found:
            out = tmp_path_factory.mktemp('runs') / task
            assert main(['finetune', '--task', task, '--data',
                         str(data[task]), '--model', str(folder), '--out',
                         str(out), *FLAGS]) == 0
            found[task] = str(out)
        return found[task]
    return get


def said(capsys, *argv):
    """The output of a command that succeeds."""
    capsys.readouterr()
    assert main(list(argv)) == 0
    return capsys.readouterr().out


def refused(capsys, *argv):
    """The one line that a command ends with."""
    capsys.readouterr()
    assert status_of(argv) in (1, 2)
    out, err = capsys.readouterr()
    line, = [line for line in err.splitlines() if line.startswith('d2lbert ')]
    assert out == '' and 'Traceback' not in err
    return line


def test_each_setting_has_a_flag():
    text = parser().parse_args(['finetune', '--task', 'sst2'])
    assert text.task == 'sst2'
    with pytest.raises(SystemExit):
        parser().parse_args(['finetune', '--recipe', 'learn'])
    for name in SETTINGS:
        value = {'task': 'rte', 'decay': 'none',
                 'precision': 'bf16'}.get(name, '1')
        args = parser().parse_args(
            ['finetune', '--' + name.replace('_', '-'), value])
        assert str(getattr(args, name)) in (value, '1.0')


def test_help_needs_no_library(tmp_path):
    for name in 'numpy', 'mxnet', 'tokenizers':
        (tmp_path / f'{name}.py').write_text('raise SystemExit("loaded")')
    for command in 'finetune', 'predict':
        done = subprocess.run(
            [sys.executable, '-m', 'd2lbert', command, '--help'],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(
                map(str, (tmp_path, Path(d2l.__file__).parents[1])))))
        assert done.returncode == 0, done.stdout.decode()


@pytest.mark.parametrize('task', ['sst2', 'stsb', 'tag', 'span'])
def test_evaluate_prints_the_figures_of_the_run(task, runs, capsys):
    figures = d2l.evaluate_finetuned(runs(task))
    assert said(capsys, 'evaluate', runs(task)) == ''.join(
        f'{name} {value:.4f}\n' for name, value
        in figures._asdict().items())


def test_json_has_what_python_gives(runs, tmp_path, capsys):
    def rows(*argv):
        return [json.loads(line)
                for line in said(capsys, *argv, '--json').splitlines()]
    figures, = rows('evaluate', runs('sst2'))
    expected = d2l.evaluate_finetuned(runs('sst2'))._asdict()
    assert figures.pop('task') == 'sst2' and figures == expected
    texts = ['a grim clock', 'the warm song']
    (tmp_path / 'x.txt').write_text('\n'.join(texts))
    model = d2l.load_finetuned(runs('sst2'))
    for text, row, found in zip(texts, rows(
            'predict', runs('sst2'), '--file', 'x.txt'), d2l.predict(
                *model, texts)):
        assert row == dict(text=text, label=found.label,
                           score=float(found.score))
    row, = rows('predict', runs('sst2'), texts[0])
    found, = d2l.predict(*model, texts[:1])
    assert row['shares'] == {name: float(share)
                             for name, share in found.shares.items()}
    assert rows('predict', runs('tag'), 'mei in Oslo')[0]['word'] == 'mei'


def test_finetune_prints_one_object(folder, data, tmp_path, capsys):
    argv = ['finetune', '--task', 'sst2', '--data', str(data['sst2']),
            '--model', str(folder), *FLAGS, '--json', '--num-examples', '16']
    found = json.loads(said(capsys, *argv, '--out', 'one'))
    assert found == dict(run='one', figures=json.loads(
        (tmp_path / 'one' / 'config.json').read_text())['figures'])
    found = json.loads(said(capsys, *argv, '--out', 'two', '--seeds', '2'))
    assert found['run'] == 'two' and found['seeds'] == [1, 2]
    assert len(found['figures']) == 2 and 'mean' in found['summary']['loss']


def test_evaluate_takes_other_data(runs, data, capsys):
    path = str(data['sst2'] / 'train.tsv')
    other = said(capsys, 'evaluate', runs('sst2'), '--data', path)
    assert other != said(capsys, 'evaluate', runs('sst2'))
    assert re.match(r'loss \d\.\d{4}\naccuracy \d\.\d{4}\n$', other)


def test_predict_prints_each_label_with_its_share(runs, capsys):
    lines = said(capsys, 'predict', runs('sst2'), 'a grim clock').split('\n')
    shares = [float(line.split('\t')[1]) for line in lines[:2]]
    assert {line.split('\t')[0] for line in lines[:2]} == {'positive',
                                                           'negative'}
    assert shares == sorted(shares, reverse=True)
    assert abs(sum(shares) - 1) < 2e-4 and lines[2:] == ['']


def test_predict_prints_a_number_tags_and_an_answer(runs, capsys):
    assert re.match(r'-?\d\.\d{4}\n$', said(
        capsys, 'predict', runs('stsb'), 'a boat', '--pair', 'a song'))
    lines = said(capsys, 'predict', runs('tag'), 'mei in Oslo').splitlines()
    assert [line.split('\t')[0] for line in lines] == ['mei', 'in', 'Oslo']
    context = 'mei paints a boat in Oslo .'
    assert said(capsys, 'predict', runs('span'), 'Where?', '--pair', context
                ).strip() in context


@pytest.mark.parametrize('task, lines', [
    ('sst2', ['a grim clock', 'the warm song', 'a grim clock\r']),
    ('stsb', ['a boat\ta song', 'a clock\ta clock']),
    ('tag', ['mei in Oslo', 'Ines Vega sings']),
    ('span', ['Where?\tmei paints in Oslo .', 'Who?\tlars sells a boat .'])])
def test_predictions_of_a_file_equal_predictions_of_its_lines(
        task, lines, runs, tmp_path, capsys, monkeypatch):
    path, out = tmp_path / 'texts', tmp_path / 'out'
    path.write_text('\n'.join(lines) + '\n')
    assert said(capsys, 'predict', runs(task), '--file', str(path), '--out',
                str(out)) == ''
    text = out.read_text()
    assert said(capsys, 'predict', runs(task), '--file', str(path)) == text
    monkeypatch.setattr(sys, 'stdin', types.SimpleNamespace(
        buffer=io.BytesIO(path.read_bytes())))
    assert said(capsys, 'predict', runs(task), '--file', '-') == text
    net, tokenizer = d2l.load_run(runs(task))
    parts = [line.rstrip('\r').split('\t') for line in lines]
    found = d2l.predict(net, tokenizer, [one[0] for one in parts],
                        [one[1] for one in parts] if net.about.pair else None)
    rows = text.split('\n\n')[:-1] if task == 'tag' else text.splitlines()
    assert len(rows) == len(lines) == len(found)
    for row, one in zip(rows, found):
        if task == 'tag':
            assert [line.split('\t')[1] for line in row.split('\n')
                    ] == one.label
        elif task == 'stsb':
            assert row == f'{one.label:.4f}'
        else:
            assert row.split('\t')[0] == one.label


@pytest.mark.parametrize('task, lines, names', [
    ('sst2', ['a grim clock', 'the "warm", song'], ['text', 'label', 'score']),
    ('stsb', ['a boat\ta song'], ['text', 'value']),
    ('tag', ['mei in Oslo', 'Ines'], ['text', 'word', 'tag']),
    ('span', ['Where?\tmei paints in Oslo .'], ['text', 'answer'])])
def test_predictions_are_written_in_the_format_of_the_name(
        task, lines, names, runs, tmp_path, capsys):
    path = tmp_path / 'texts'
    path.write_text('\n'.join(lines) + '\n')
    argv = ['predict', runs(task), '--file', str(path)]
    printed = said(capsys, *argv).splitlines()
    if task == 'tag':
        printed = [row for row in printed if row]
    for name in 'x.csv', 'x.jsonl':
        said(capsys, *argv, '--out', name)
    with open('x.csv', newline='', encoding='utf-8') as file:
        rows = list(csv.DictReader(file))
    found = [json.loads(row) for row
             in (tmp_path / 'x.jsonl').read_text().splitlines()]
    assert [list(row) for row in (*rows, *found)] == [names] * 2 * len(rows)
    assert [[str(cell) for cell in row.values()] for row in found] == [
        list(row.values()) for row in rows]
    assert len(found) == len(printed)
    for row, line in zip(found, printed):
        cells = [row[name] for name in names[1:]]
        assert line == '\t'.join(cell if isinstance(cell, str)
                                 else f'{cell:.4f}' for cell in cells)
    if task != 'tag':
        assert [row['text'] for row in found] == [
            line.split('\t')[0] for line in lines]


def test_predict_takes_the_text_of_json_lines(runs, tmp_path, capsys):
    (tmp_path / 'a').write_text('a grim clock\nthe warm song\n')
    (tmp_path / 'b').write_text('{"t": "a grim\\nclock"}\n'
                                '{"t": "the warm song"}\n')
    argv = ['predict', runs('sst2'), '--file']
    wanted = said(capsys, *argv, 'a')
    assert said(capsys, *argv, 'b', '--text-field', 't') == wanted
    assert "(--text-field), one of 't'" in refused(capsys, *argv, 'b')
    argv[1] = runs('stsb')
    assert 'this model takes pairs' in refused(capsys, *argv, 'b',
                                               '--text-field', 't')


def test_predict_takes_the_columns_of_a_table_that_it_learnt_from(
        folder, runs, tmp_path, capsys):
    for part in 'train', 'dev':
        (tmp_path / f'{part}.csv').write_text(
            'id,review,mood\n1,"a grim, clock",bad\n2,the warm song,good\n')
    run = str(tmp_path / 'run')
    said(capsys, 'finetune', '--task', 'classify', '--data', str(tmp_path),
         '--columns', 'text=review,label=mood', '--model', str(folder),
         '--out', run, *FLAGS)
    (tmp_path / 'x.csv').write_text('review;id\n"a grim, clock";7\n'
                                    'the warm song;8\n'.replace(', ', ' '))
    (tmp_path / 'x.txt').write_text('a grim clock\nthe warm song\n')
    wanted = said(capsys, 'predict', run, '--file', 'x.txt')
    assert wanted.count('\n') == 2
    # The header was taken for a text, and whole lines for texts
    assert said(capsys, 'predict', run, '--file', 'x.csv') == wanted
    assert 'leave them out' in refused(
        capsys, 'predict', run, '--file', 'x.csv', '--skip-empty')
    assert 'there is no file or folder no.csv: name an' in refused(
        capsys, 'predict', run, '--file', 'no.csv')
    for other in runs('sst2'), FOLDER:
        assert f'x.csv is a table, and {other} was not trained' in refused(
            capsys, 'predict', other, '--file', 'x.csv')


def test_a_tab_separates_pairs_for_a_model_that_takes_single_texts_too(
        tmp_path, capsys):
    def predicted(*lines):
        (tmp_path / 'x').write_text('\n'.join(lines))
        return said(capsys, 'predict', FOLDER, '--file', 'x', '--top', '3')

    net, tokenizer = d2l.load_finetuned(FOLDER)
    texts, pairs = ['The crane', 'it was'], ['it was late.', 'The crane']
    for wanted, lines in (
            (d2l.predict(net, tokenizer, texts), texts),
            (d2l.predict(net, tokenizer, texts, pairs),
             ['\t'.join(pair) for pair in zip(texts, pairs)])):
        rows = predicted(*lines).splitlines()
        for row, prediction in zip(rows, wanted):
            cells = row.split('\t')
            assert dict(zip(cells[::2], cells[1::2])) == {
                name: f'{share:.4f}' for name, share
                in prediction.shares.items()}
        assert len(rows) == 2
    (tmp_path / 'x').write_text('The crane\tit was late.\nThe crane\n')
    assert 'x, line 2 has 0 tabs: expected two texts with one' in refused(
        capsys, 'predict', FOLDER, '--file', 'x')


def test_predict_names_as_many_labels_as_are_asked_for(runs, tmp_path, capsys):
    (tmp_path / 'x').write_text('a grim clock\n')
    run = runs('sst2')
    all_lines = said(capsys, 'predict', run, 'a grim clock').splitlines()
    assert len(all_lines) == 2
    assert said(capsys, 'predict', run, 'a grim clock', '--top',
                '1').splitlines() == all_lines[:1]
    assert said(capsys, 'predict', run, '--file', 'x', '--top',
                '2') == '\t'.join(all_lines) + '\n'
    for name in 'x.csv', 'x.jsonl':
        assert f'--top 2: a row of {name} has only one label' in refused(
            capsys, 'predict', run, '--file', 'x', '--top', '2', '--out', name)
    for task in 'stsb', 'tag', 'span':
        assert '--top is for the probabilities of labels' in refused(
            capsys, 'predict', runs(task), 'a grim clock', '--top', '1')


def test_predictions_replace_nothing_unasked(runs, tmp_path, capsys):
    path = tmp_path / 'texts'
    path.write_text('a grim clock\n')
    argv = ['predict', runs('sst2'), '--file', str(path), '--out']
    for flags in [], ['--force']:
        assert 'which this command reads' in refused(capsys, *argv, str(path),
                                                     *flags)
    assert path.read_text() == 'a grim clock\n'
    (tmp_path / 'there').write_text('precious')
    assert 'give --force to replace it' in refused(capsys, *argv, 'there')
    assert (tmp_path / 'there').read_text() == 'precious'
    said(capsys, *argv, 'there', '--force')
    assert (tmp_path / 'there').read_text() != 'precious'
    for name in 'x.npy', 'x.parquet':
        assert 'predictions are not written as' in refused(capsys, *argv,
                                                           name)


def test_force_moves_no_run_that_the_new_one_reads(
        runs, folder, data, tmp_path, capsys):
    run = tmp_path / 'run'
    shutil.copytree(runs('sst2'), run)
    (run / 'model').mkdir()
    (run / 'config.json.part').write_text('')
    for model in run, run / 'model.params':
        assert 'which this run reads, so --force does not' in refused(
            capsys, 'finetune', '--task', 'sst2', '--data',
            str(data['sst2']), '--model', str(model), '--out', str(run),
            '--force')
    for name in 'vocab.txt', '.':
        assert 'which this run reads, so --force does not' in refused(
            capsys, 'pretrain', '--corpus', str(run / name), '--out',
            str(run), '--force')
    (run / 'wiki.train.tokens').write_text(' a . b . \n' * 9)
    assert 'which this run reads, so --force does not' in refused(
        capsys, 'pretrain', '--data-dir', str(run), '--out', str(run),
        '--force')
    assert (run / 'model.params').is_file()


def test_invalid_requests_to_predict_are_one_line(runs, tmp_path,
                                                  capsys):
    path = tmp_path / 'texts'
    path.write_text('a\n\nb\n')
    run = runs('sst2')
    assert 'texts, line 2 is empty: put a text on each line' in refused(
        capsys, 'predict', run, '--file', str(path))
    said(capsys, 'predict', run, '--file', str(path), '--skip-empty')
    assert len(said(capsys, 'predict', run, '--file', str(path),
                    '--skip-empty').splitlines()) == 2
    assert 'give a text, or --file' in refused(capsys, 'predict', run)
    assert 'not both' in refused(capsys, 'predict', run, 'a', '--file', 'x')
    assert 'not both' in refused(capsys, 'predict', run, 'a', '--file', '')
    assert 'are for the lines of --file: leave them out' in refused(
        capsys, 'predict', run, 'a', '--skip-empty')
    assert '--out goes with --file' in refused(capsys, 'predict', run, 'a',
                                               '--out', 'x')
    assert 'give no second texts' in refused(capsys, 'predict', run, 'a',
                                            '--pair', 'b')
    assert 'there is no file or folder nowhere' in refused(
        capsys, 'predict', run, '--file', 'nowhere')
    assert 'there is no folder nowhere' in refused(
        capsys, 'predict', 'nowhere', 'a')
    path.write_text('a\n')
    assert 'no folder' in refused(capsys, 'predict', run, '--file', str(path),
                                  '--out', str(tmp_path / 'x' / 'y'))
    assert '0 tabs: expected two texts' in refused(
        capsys, 'predict', runs('stsb'), '--file', str(path))
    path.write_bytes(b'a\n\xff\n')
    assert 'line 2' in refused(capsys, 'predict', run, '--file', str(path))


def test_commands_tell_the_kinds_of_runs_apart(runs, tmp_path, capsys):
    run = runs('sst2')
    status, err = refusal(capsys, 'evaluate', run, '--corpus', 'x')
    assert status == 2 and '--data, not with --corpus' in err
    status, err = refusal(capsys, 'evaluate', run, '--text-field', 'x')
    assert status == 2 and 'leave --text-field out' in err
    assert main(['encode', str(run), 'a']) == 0     # the model under the head
    assert capsys.readouterr().out.startswith('[CLS] ')
    assert 'no trained head for masked words' in refused(
        capsys, 'fill', run, 'a [MASK]')
    start = str(tmp_path / 'start')
    main(['pretrain', '--corpus', 'sample', '--num-steps', '1',
          '--num-hiddens', '4', '--num-layers', '1', '--max-len', '32',
          '--out', start])
    status, err = refusal(capsys, 'evaluate', start, '--data', 'x')
    assert status == 2 and '--corpus, not with --data' in err
    status, err = refusal(capsys, 'evaluate', start, '--text-field', 'x')
    assert status == 2
    assert '--text-field is for the files of --corpus: name them' in err
    assert 'is no run of d2lbert finetune' in refused(
        capsys, 'predict', start, 'a')
    assert 'has no checkpoint to resume from' in refused(
        capsys, 'finetune', '--resume', start)


def test_columns_of_a_table_of_ones_own(folder, tmp_path, capsys):
    for seed, part in enumerate(('train', 'dev')):
        prose.write_rows(tmp_path / f'{part}.tsv', [
            (('sad', 'glad')[label], text)
            for text, label in prose.moods(24, seed)], 'mood line')
    out = str(tmp_path / 'run')
    assert main(['finetune', '--task', 'classify', '--data', str(tmp_path),
                 '--columns', 'text=line,label=mood', '--model', str(folder),
                 '--out', out, *FLAGS]) == 0
    assert said(capsys, 'predict', out, 'x').split('\t')[0] in ('glad', 'sad')
    assert 'accuracy' in said(capsys, 'evaluate', out)


def test_a_mistake_leaves_nothing_behind(folder, data, tmp_path, capsys):
    out = tmp_path / 'run'
    line = refused(capsys, 'finetune', '--task', 'sst2', '--data',
                   str(data['rte']), '--model', str(folder), '--out',
                   str(out))
    assert 'train.tsv' in line and not out.exists()


def rows_of(path):
    """Rows of a submission's file, whose header is as the server has it."""
    header, *rows = path.read_text().splitlines()
    assert header == 'index\tprediction'
    rows = [row.split('\t') for row in rows]
    assert [index for index, _ in rows] == [str(k) for k in range(len(rows))]
    return [value for _, value in rows]


def test_a_run_of_mnli_answers_both_parts_and_the_diagnostic_set(
        folder, tmp_path, capsys):
    place = prose.mnli(tmp_path / 'glue')
    run, out = str(tmp_path / 'run'), tmp_path / 'submission'
    assert main(['finetune', '--task', 'mnli', '--data', str(place),
                 '--model', str(folder), '--out', run, *FLAGS]) == 0
    lines = said(capsys, 'evaluate', run).splitlines()
    assert [line.rsplit(' ', 1)[0] for line in lines] == [
        'loss', 'accuracy', 'mnli_mm loss', 'mnli_mm accuracy', 'ax loss',
        'ax matthews']
    other = said(capsys, 'evaluate', run, '--data',
                 str(place / 'dev_mismatched.tsv'))
    assert other.splitlines() == [line[8:] for line in lines[2:4]]
    said(capsys, 'predict', run, '--data', str(place), '--out', str(out))
    assert sorted(path.name for path in out.iterdir()) == [
        'AX.tsv', 'MNLI-m.tsv', 'MNLI-mm.tsv']
    net, tokenizer = d2l.load_run(run)
    for name, seed in ('MNLI-m', 3), ('MNLI-mm', 4), ('AX', 9):
        told = prose.pairs(30, seed)
        found = d2l.predict(net, tokenizer, [a for a, _, _ in told],
                            [b for _, b, _ in told])
        assert rows_of(out / f'{name}.tsv') == [one.label for one in found]
    # A file has the examples of a single test
    said(capsys, 'predict', run, '--data', str(place / 'test_matched.tsv'),
         '--out', str(tmp_path / 'matched'))
    written, = (tmp_path / 'matched').iterdir()
    assert written.name == 'MNLI-m.tsv'
    assert written.read_text() == (out / 'MNLI-m.tsv').read_text()
    assert 'exists already' in refused(
        capsys, 'predict', run, '--data', str(place), '--out', str(out))
    assert '--data needs --out FOLDER' in refused(
        capsys, 'predict', run, 'a text', '--data', str(place))
    for flags in ['--top', '1'], ['--skip-empty']:
        assert '--skip-empty or --top' in refused(
            capsys, 'predict', run, '--data', str(place), '--out', 'new',
            *flags)


@pytest.mark.parametrize('task, header, name', [
    ('sst2', 'index sentence', 'SST-2.tsv'),
    ('stsb', 'index genre filename year old_index source1 source2 sentence1 '
     'sentence2', 'STS-B.tsv'),
    ('rte', 'index sentence1 sentence2', 'RTE.tsv')])
def test_submissions_have_labels_as_the_server_expects_them(
        task, header, name, runs, tmp_path, capsys):
    columns = header.split()
    prose.write_rows(tmp_path / 'test.tsv', [
        [k if column == 'index' else f'a warm song {k}' if 'sentence' in column
         else 'x' for column in columns] for k in range(5)], header)
    said(capsys, 'predict', runs(task), '--data', str(tmp_path), '--out',
         str(tmp_path / 'out'))
    values = rows_of(tmp_path / 'out' / name)
    assert len(values) == 5
    if task == 'stsb':
        assert all(re.match(r'[0-5]\.\d{3}$', value) for value in values)
    else:
        assert set(values) <= {'sst2': {'0', '1'}, 'rte': {
            'entailment', 'not_entailment'}}[task]
    assert '/dev/null/x cannot be written: Not a directory' in refused(
        capsys, 'predict', runs(task), '--data', str(tmp_path), '--out',
        '/dev/null/x')
    prose.write_rows(tmp_path / 'test.tsv', [['0']], header)
    assert 'no examples' in refused(
        capsys, 'predict', runs(task), '--data', str(tmp_path), '--out',
        str(tmp_path / 'new'))
    assert not (tmp_path / 'new').exists()


def test_a_task_that_glue_has_not_is_not_submitted(runs, tmp_path, capsys):
    assert 'not trained on a task of GLUE' in refused(
        capsys, 'predict', runs('tag'), '--data', str(tmp_path), '--out',
        str(tmp_path / 'out'))


def test_predict_in_python_takes_lists_of_texts_with_words(runs):
    net, tokenizer = d2l.load_run(runs('sst2'))
    with pytest.raises(TypeError, match="texts must be a list of texts, not "
                       r"one: give \['a fine film'\]"):
        d2l.predict(net, tokenizer, 'a fine film')
    for empty in '', ' \n':
        with pytest.raises(ValueError, match=r'texts\[1\] is empty'):
            d2l.predict(net, tokenizer, ['a fine film', empty])
    net, tokenizer = d2l.load_run(runs('stsb'))
    with pytest.raises(TypeError, match='pairs must be a list of texts'):
        d2l.predict(net, tokenizer, ['a'], 'b')
    with pytest.raises(ValueError, match=r'pairs\[0\] is empty'):
        d2l.predict(net, tokenizer, ['a'], [''])


def test_one_class_alone_is_refused(folder, tmp_path, capsys):
    for part in 'train', 'dev':
        prose.write(tmp_path / f'{part}.tsv', 'good\tpositive\nfine\t'
                    'positive\n')
    assert "the label 'positive' alone" in refused(
        capsys, 'finetune', '--task', 'classify', '--data', str(tmp_path),
        '--columns', 'text=0,label=1', '--model', str(folder), '--out',
        str(tmp_path / 'run'))
    assert not (tmp_path / 'run').exists()
