"""GLUE's and SNLI's files as they are published, and where they lie."""
import gzip
import os
import shutil
from pathlib import Path

import pytest
from prose import glue, write, write_rows

from d2lbert.finetuning.tasks import catalog
from d2lbert.finetuning.tasks.catalog import PARTS, TASKS, TaskError, read_task

MRPC = 'Quality #1_ID #2_ID #1_String #2_String'


def named(header):
    return header.replace('_', ' ') if '#' in header else header


def table(path, header, *rows):
    """A table with tabs; blanks in `header` part the names."""
    return write(path, '\n'.join(
        ['\t'.join(named(name) for name in header.split())] * bool(header)
        + ['\t'.join(row) for row in rows]) + '\n')


A, B = 'he said "so', "it 's \"\"odd\"\" ."
SNLI = ('gold_label sentence1_binary_parse sentence2_binary_parse '
        'sentence1_parse sentence2_parse sentence1 sentence2 captionID pairID '
        'label1 label2 label3 label4 label5')
SNLI_GLUE = ('index captionID pairID sentence1_binary_parse '
             'sentence2_binary_parse sentence1_parse sentence2_parse '
             'sentence1 sentence2 label1 gold_label')
STSB = ('index genre filename year old_index source1 source2 sentence1 '
        'sentence2 score')

MNLI = ('index promptID pairID genre sentence1_binary_parse '
        'sentence2_binary_parse sentence1_parse sentence2_parse sentence1 '
        'sentence2')
MNLI_ROW = ['0', '63735', '63735n', 'slate', '( x )', '( y )', '(R)', '(R)',
            A, B]

# task, file, header, a row, what comes of it
LAYOUTS = [
    ('sst2', 'SST-2/train.tsv', 'sentence label', [A, '1'], (A, None, 1)),
    ('sst2', 'SST-2/test.tsv', 'index sentence', ['0', A], (A, None, None)),
    ('cola', 'CoLA/dev.tsv', '', ['gj04', '0', '*', A], (A, None, 0)),
    ('cola', 'CoLA/test.tsv', 'index sentence', ['0', A], (A, None, None)),
    ('mrpc', 'MRPC/train.tsv', MRPC, ['1', '70', '80', A, B], (A, B, 1)),
    ('mrpc', 'MRPC/test.tsv', MRPC.replace('Quality', 'index'),
     ['0', '70', '80', A, B], (A, B, None)),
    ('mrpc', 'MRPC/msr_paraphrase_train.txt', '\ufeff' + MRPC,
     ['1', '70', '80', A, B + '\r'], (A, B, 1)),
    ('mrpc', 'MRPC/msr_paraphrase_test.txt', '\ufeff' + MRPC,
     ['0', '70', '80', A, B + '\r'], (A, B, 0)),
    ('qqp', 'QQP/train.tsv',
     'id qid1 qid2 question1 question2 is_duplicate',
     ['133273', '213221', '213222', A, B, '0'], (A, B, 0)),
    ('qqp', 'QQP/test.tsv', 'id question1 question2', ['0', A, B],
     (A, B, None)),
    ('stsb', 'STS-B/dev.tsv', STSB,
     ['4', 'main-captions', 'MSRvid', '2012test', '0009', 'none', 'none', A,
      B, '4.250'], (A, B, 4.25)),
    ('stsb', 'STS-B/test.tsv', STSB[:-6],
     ['4', 'main-captions', 'MSRvid', '2012test', '0009', 'none', 'none', A,
      B], (A, B, None)),
    ('qnli', 'QNLI/train.tsv', 'index question sentence label',
     ['0', A, B, 'not_entailment'], (A, B, 1)),
    ('qnli', 'QNLI/test.tsv', 'index question sentence', ['0', A, B],
     (A, B, None)),
    ('rte', 'RTE/dev.tsv', 'index sentence1 sentence2 label',
     ['57', A, B, 'entailment'], (A, B, 0)),
    ('rte', 'RTE/test.tsv', 'index sentence1 sentence2', ['0', A, B],
     (A, B, None)),
    ('snli', 'SNLI/train.tsv', SNLI_GLUE,
     ['0', 'c', 'p', '( x )', '( y )', '(R)', '(R)', A, B, 'neutral',
      'neutral'], (A, B, 2)),
    ('snli', 'SNLI/test.tsv', SNLI_GLUE,
     ['0', 'c', 'p', '( x )', '( y )', '(R)', '(R)', A, B, 'entailment',
      'entailment'], (A, B, 0)),
    ('wnli', 'WNLI/dev.tsv', 'index sentence1 sentence2 label',
     ['0', A, B, '1'], (A, B, 1)),
    ('wnli', 'WNLI/test.tsv', 'index sentence1 sentence2', ['0', A, B],
     (A, B, None)),
    ('mnli', 'MNLI/train.tsv', f'{MNLI} label1 gold_label',
     [*MNLI_ROW, 'neutral', 'neutral'], (A, B, 1)),
    ('mnli', 'MNLI/dev_matched.tsv',
     f'{MNLI} label1 label2 label3 label4 label5 gold_label',
     [*MNLI_ROW, *['neutral'] * 5, 'contradiction'], (A, B, 2)),
    ('mnli', 'MNLI/test_matched.tsv', MNLI, MNLI_ROW, (A, B, None)),
    ('mnli_mm', 'MNLI/dev_mismatched.tsv',
     f'{MNLI} label1 label2 label3 label4 label5 gold_label',
     [*MNLI_ROW, *['neutral'] * 5, 'entailment'], (A, B, 0)),
    ('mnli_mm', 'MNLI/test_mismatched.tsv', MNLI, MNLI_ROW, (A, B, None)),
    ('ax', 'test/diagnostic.tsv', 'index sentence1 sentence2',
     ['0', A, B], (A, B, None)),
    # Some lines have fewer judgements, and end there
    ('snli', 'snli_1.0/snli_1.0_dev.txt', SNLI,
     ['contradiction', '( x )', '( y )', '(R)', '(R)', A, B, 'c', 'p',
      'contradiction'], (A, B, 1)),
]
IDS = [f'{name}-{Path(file).name}' for name, file, *_ in LAYOUTS]


def part_of(file):
    return next(part for part in PARTS
                if part in Path(file).name or part in Path(file).parts)


@pytest.mark.parametrize('name, file, header, row, expected', LAYOUTS,
                         ids=IDS)
def test_the_published_layouts_are_read_as_they_are(
        tmp_path, name, file, header, row, expected):
    path = table(tmp_path / file, header, row)
    found = read_task(name, path.parent, part_of(file))
    assert (found.texts_a[0], found.texts_b and found.texts_b[0],
            found.labels and found.labels[0]) == expected
    assert len(found.texts_a) == 1 and found.skipped == 0
    assert found.labels_names == catalog.task_of(name).labels
    assert found.path == str(path)


@pytest.mark.parametrize('name, file, header, row, expected', LAYOUTS,
                         ids=IDS)
def test_a_header_may_be_missing_or_its_columns_in_another_order(
        tmp_path, name, file, header, row, expected, capsys):
    part = part_of(file)
    if not header:      # then it may be there
        header = 'source label mark sentence'
        again = table(tmp_path / 'a.tsv', header, row)
        assert read_task(name, again, part).texts_a == [A]
    names = header.replace('\ufeff', '').split()
    row = row + [''] * (len(names) - len(row))
    turned = table(tmp_path / 'b.tsv', ' '.join(names[::-1]), row[::-1])
    found = read_task(name, turned, part)
    assert (found.texts_a[0], found.labels and found.labels[0]) == (
        expected[0], expected[2])
    # SNLI's layout of GLUE is read by its header alone
    if header is not SNLI_GLUE:
        bare = table(tmp_path / 'c.tsv', '', row)
        if (name, part) == ('mrpc', 'test') and 'Quality' not in header:
            # As many columns as with labels: an index replaces the label
            row[0] = '1'
        found = read_task(name, bare, part)
        assert found.texts_a == [expected[0]]


def test_each_task_is_completely_described():
    for name, task in TASKS.items():
        assert task.name == name
        if task.text_columns:
            assert task.pair == (len(task.text_columns) == 2)
            assert (task.labels is None) == (task.kind == 'regress')
            assert task.file_labels in (None, ('0', '1'))
            for order in task.column_orders:
                assert set(task.text_columns) <= set(order)
            assert task.label_column in task.column_orders[0]
            assert len(task.files) == 3


def test_folders_of_any_spelling_are_found(tmp_path):
    row = ['x', '1']
    for parent, name in (('a', 'SST-2'), ('a/glue', 'sst2'),
                         ('a/GLUE', 'SST2'), ('a/glue_', 'sst_2')):
        home = tmp_path / name.lower() / parent
        table(home / name / 'train.tsv', 'sentence label', row)
        for folder in (home / name, home, home.parent):
            if folder == home.parent and parent == 'a':
                continue
            assert read_task('sst2', folder).path == str(
                home / name / 'train.tsv')


def test_a_task_s_own_folder_goes_before_one_in_it_and_plain_before_packed(
        tmp_path):
    content = b'sentence\tlabel\nx\t1\n'
    write(tmp_path / 'SST-2' / 'train.tsv.gz', gzip.compress(content))
    assert read_task('sst2', tmp_path).path.endswith('.gz')
    write(tmp_path / 'SST-2' / 'train.tsv', content)
    assert read_task('sst2', tmp_path).path.endswith('SST-2/train.tsv')
    write(tmp_path / 'train.tsv', content)
    assert read_task('sst2', tmp_path).path == str(tmp_path / 'train.tsv')


def test_mrpc_s_own_files_hold_out_what_dev_ids_lists(tmp_path, capsys):
    rows = [[str(k % 2), str(k), str(9 + k), f'a{k}', f'b{k}']
            for k in range(6)]
    table(tmp_path / 'msr_paraphrase_train.txt', '\ufeff' + MRPC, *rows)
    test = table(tmp_path / 'msr_paraphrase_test.txt', '\ufeff' + MRPC,
                 ['1', '50', '51', 'c', 'd'])
    assert len(read_task('mrpc', tmp_path).texts_a) == 6
    assert not capsys.readouterr().err
    assert read_task('mrpc', tmp_path, 'dev').texts_a == ['c']
    assert capsys.readouterr().err == (
        f'{test}: taken for the development part, as there is no '
        'dev_ids.tsv\n')
    write_rows(tmp_path / 'dev_ids.tsv', [(1, 10), (4, 13), (2, 99)])
    dev = read_task('mrpc', tmp_path, 'dev')
    assert (dev.texts_a, dev.labels, dev.skipped) == (['a1', 'a4'], [1, 0], 0)
    assert read_task('mrpc', tmp_path).texts_a == ['a0', 'a2', 'a3', 'a5']
    zipped = tmp_path / 'zipped'
    zipped.mkdir()
    for path in tmp_path.glob('msr_*.txt'):
        (zipped / f'{path.name}.gz').write_bytes(
            gzip.compress(path.read_bytes()))
    assert read_task('mrpc', zipped, 'dev').texts_a == ['c']
    # The names may differ in case, and one file alone may be compressed
    (zipped / 'msr_paraphrase_test.txt.gz').unlink()
    shutil.copy(test, zipped / 'MSR_PARAPHRASE_TEST.TXT')
    assert read_task('mrpc', zipped, 'dev').texts_a == ['c']
    upper = zipped / 'MSR_PARAPHRASE_TRAIN.TXT.GZ'
    (zipped / 'msr_paraphrase_train.txt.gz').rename(upper)
    assert read_task('mrpc', upper, 'dev').texts_a == ['c']
    test.unlink()
    (tmp_path / 'dev_ids.tsv').unlink()
    with pytest.raises(TaskError, match='no dev part of task mrpc: expected '
                       'dev.tsv, dev_ids.tsv or msr_paraphrase_test.txt'):
        read_task('mrpc', tmp_path, 'dev')


def test_qqp_s_short_lines_are_skipped_and_counted(tmp_path, capsys):
    path = table(tmp_path / 'train.tsv',
                 'id qid1 qid2 question1 question2 is_duplicate',
                 ['1', '2', '3', 'a', 'b', '0'], ['4', '5', '6', 'c'],
                 ['d', '1'], ['7', '8', '9', 'e\rf', '', '1'])
    found = read_task('qqp', path)
    assert (found.texts_a, found.texts_b) == (['a', 'e\rf'], ['b', ''])
    assert (found.labels, found.skipped) == ([0, 1], 2)
    assert capsys.readouterr().err == (
        f'{path}: skipped 2 lines with missing or extra columns (the first '
        'is line 3, with 4 where 6 were expected)\n')


def test_snli_s_pairs_without_a_verdict_are_skipped(tmp_path, capsys):
    rows = [[label, *'bbpp', f'a{k}', 'b', 'c', 'd', *[''] * 5]
            for k, label in enumerate(['neutral', '-', 'entailment', '-'])]
    table(tmp_path / 'snli_1.0_train.txt', SNLI, *rows)
    found = read_task('snli', tmp_path)
    assert (found.texts_a, found.labels, found.skipped) == (
        ['a0', 'a2'], [2, 0], 2)
    assert "skipped 2 lines with the label '-'" in capsys.readouterr().err


@pytest.mark.parametrize('task, part, words', [
    ('sst3', 'train', "no task 'sst3': choose one of sst2, cola, mrpc, qqp"),
    ('sst2', 'valid', "no part 'valid': choose one of train, dev, test"),
    ('sst2', 'train', 'no train part of task sst2: expected train.tsv in it,'
     ' in .*SST-2 or in .*glue/SST-2'),
    ('mrpc', 'test', 'expected test.tsv or msr_paraphrase_test.txt in it'),
    ('tag', 'dev', 'expected eng.testa or dev.conll or'),
    ('span', 'dev', 'expected dev-v1.1.json or dev-v2.0.json or dev.json'),
    ('classify', 'dev', 'expected dev.tsv or dev.csv or'),
    ('ax', 'train', 'no train part of task ax: choose part dev or test'),
])
def test_missing_files_are_reported(tmp_path, task, part, words):
    with pytest.raises(TaskError, match=words):
        read_task(task, tmp_path, part)
    with pytest.raises(TaskError, match='no'):
        read_task(task, tmp_path / 'nowhere', part)


@pytest.mark.parametrize('task, content, words', [
    ('sst2', 'x\t2\n', "line 1: the label is '2'; expected one of '0', '1'"),
    ('rte', 'index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n',
     "line 2: the label is 'maybe'; expected one of 'entailment', 'not_"),
    ('stsb', 'sentence1\tsentence2\tscore\na\tb\thigh\n',
     "line 2: the label is 'high'; expected a number$"),
    ('sst2', 'index\tsentence\n0\ta\n', "no column 'label'"),
    ('qnli', 'a\tb\n', 'not laid out as task qnli: its first line .* question'
     ', sentence, and none .* 4 or 3 columns'),
    ('sst2', 'a\tb\tc\n', 'and none of the first 100 lines has 2 columns '
     'with tabs between them; describe'),
    ('rte', 'index\tsentence1\tsentence2\tlabel\n1\ta\n', 'no examples'),
])
def test_another_layout_is_reported(tmp_path, task, content, words):
    path = write(tmp_path / 'train.tsv', content)
    with pytest.raises(TaskError, match=words) as error:
        read_task(task, path)
    assert str(path) in str(error.value)


def test_no_tabs_are_asked_of_a_csv_file(tmp_path):
    path = write(tmp_path / 'train.csv', 'a,b,c\n')
    with pytest.raises(TaskError, match='lines has 2 columns; describe'):
        read_task('sst2', path)


def test_no_column_of_tags_is_named_if_none_is_read(tmp_path):
    path = write(tmp_path / 'test.txt', 'Oslo O\n')
    with pytest.raises(TaskError, match='words in column 3, counted from 0'):
        read_task('tag', path, 'test', 'text=3')


def test_made_up_tasks_are_read_whole(tmp_path):
    for name in ('sst2', 'cola', 'stsb', 'rte'):
        glue(tmp_path / 'glue', name, 40)
        for part in ('train', 'dev'):
            found = read_task(name, tmp_path, part)
            assert len(found.texts_a) == len(found.labels) == 40
            assert len(set(found.labels)) > 1 and found.skipped == 0


@pytest.mark.parametrize('name, train, dev', [
    ('sst2', 67349, 872), ('cola', 7250, 1301), ('stsb', 5749, 1500),
    ('rte', 1244, 139)])
def test_the_real_files_are_read_whole(name, train, dev):
    folder = Path(os.environ.get('D2LBERT_DATA', ''), 'glue')
    if not os.environ.get('D2LBERT_DATA') or not folder.is_dir():
        pytest.skip('D2LBERT_DATA does not name a folder with glue/')
    for part, size in (('train', train), ('dev', dev)):
        found = read_task(name, folder.parent, part)
        assert len(found.texts_a) == len(found.labels) == size
        assert found.skipped == 0 and all(found.texts_a)
        assert (found.texts_b is None) == (name in ('sst2', 'cola'))
        if name == 'stsb':
            assert min(found.labels) == 0 and max(found.labels) == 5
        else:
            assert set(found.labels) == {0, 1}
            # As GLUE has it: cola and sst2 are mostly 1, rte about even
            assert .4 < sum(found.labels) / size < .75


AX = ('Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\t'
      'Domain\tPremise\tHypothesis\tLabel\n')


def test_the_diagnostic_set_is_read_with_its_labels(tmp_path):
    path = write(tmp_path / 'diagnostic' / 'diagnostic-full.tsv',
                 f'{AX}Quantifiers\t\tNegation\t\tNews\t{A}\t{B}\tneutral\n')
    for part in 'dev', 'test':
        found = read_task('ax', tmp_path, part)
        assert found.path == str(path) and found.labels == [1]
        assert (found.texts_a, found.texts_b) == ([A], [B])
    other = table(tmp_path / 'diagnostic' / 'diagnostic.tsv',
                  'index sentence1 sentence2', ['0', A, B])
    assert read_task('ax', tmp_path, 'test').path == str(other)
    beside = tmp_path / 'MNLI'
    found = catalog.find_file_nearby(catalog.EXTRA_TESTS['ax'], beside, 'dev')
    assert found == path
    with pytest.raises(TaskError, match='no train part of task ax'):
        read_task('ax', tmp_path, 'train')
