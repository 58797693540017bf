"""Tables of users: columns, quotes, labels, and errors in them."""
import bz2
import csv
import gzip
import io
from pathlib import Path

import pytest
from prose import write, write_rows

from d2lbert.finetuning.tasks.catalog import read_task
from d2lbert.finetuning.tasks.tables import (
    ColumnIndices,
    Columns,
    TaskError,
    examples_of,
    is_csv,
    rows_of,
)
from d2lbert.texts import text_files


def cells(path):
    return [row for _, row in rows_of(path)]


# Rows

def test_quotes_are_letters_between_tabs():
    path = write_file('x.tsv', 'a "b\tc\r\n"\t""\n')
    assert cells(path) == [['a "b', 'c'], ['"', '""']]


def write_file(name, content):
    return write(Path(name), content)


@pytest.mark.parametrize('odd', ['\x0b', '\x0c', '\x1c', '\x85', '\u2028',
                                 '\r', '\xa0', '\0'])
def test_nothing_but_a_line_feed_ends_a_line_between_tabs(odd):
    path = write_file('x.tsv', f'a{odd}b\t1\n'.encode())
    if odd == '\0':
        with pytest.raises(ValueError, match='its byte 2 is zero'):
            cells(path)
    else:
        assert cells(path) == [[f'a{odd}b', '1']]


def test_commas_follow_the_rules_of_csv():
    rows = [['te"xt', 'a,b', 'x\ny'], ['', '"', 'é'], ['1', '2', '3\r\n4']]
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    assert cells(write_file('x.csv', out.getvalue())) == rows
    numbers = [number for number, _ in rows_of('x.csv')]
    assert numbers == [1, 3, 4]
    packed = gzip.compress(out.getvalue().encode())
    assert cells(write_file('x.CSV.gz', packed)) == rows


@pytest.mark.parametrize('content', ['a,b\n"c,d\ne,f\n', 'a,b\n"c"d,e\n'])
def test_a_quote_that_does_not_fit_is_named_with_its_line(content):
    with pytest.raises(TaskError, match='x.csv, line 2: .*close its quotes'):
        cells(write_file('x.csv', content))


def test_a_text_of_a_csv_file_may_have_any_length():
    limit = csv.field_size_limit()
    try:
        csv.field_size_limit(131072)        # the default
        rows = [['text', 'label'], ['a ' * 70000, 'x'], ['"\n' * 70000, 'y']]
        out = io.StringIO()
        csv.writer(out).writerows(rows)
        assert cells(write_file('x.csv', out.getvalue())) == rows
        # An unclosed quote is named with its own line at any length
        write_file('y.csv', 'a,b\n"c,d\n' + 'e,f\n' * 70000)
        with pytest.raises(TaskError, match='y.csv, line 2: .*close its quot'):
            cells('y.csv')
    finally:
        csv.field_size_limit(limit)


def test_lines_are_those_of_the_whole_file(monkeypatch):
    text = '\ufeff' + '\n'.join('äb' * k for k in range(40)) + '\n\nend'
    expected = text[1:].split('\n')
    path = write_file('x.tsv', text)
    for size in (1, 2, 7, 1 << 20):
        monkeypatch.setattr(text_files.pieces, '__defaults__',
                            (lambda num_bytes: None, size))
        assert list(text_files.lines(path)) == expected
    assert list(text_files.lines(write_file('y', '\n\na\n'))) == ['', '', 'a']
    write_file('z', b'a\n' * 9 + b'b\xff\n')
    with pytest.raises(ValueError, match=r'z, line 10: byte 2 \(0xff\)'):
        list(text_files.lines('z'))


def test_the_file_name_decides_the_separator():
    assert is_csv('a.csv') and is_csv('A.CSV.bz2') and is_csv('a.csv.xz')
    assert not any(map(is_csv, ['a.tsv', 'csv', 'a.csv.tsv', 'a.txt']))


# Columns

@pytest.mark.parametrize('given, expected', [
    ('text=1,label=0', (1, None, 0, None)),
    ('label=0, text=1, header=yes', (1, None, 0, True)),
    ('1,0,header=no', (1, None, 0, False)),
    ('sentence,label', ('sentence', None, 'label', True)),
    ('a,b,c', ('a', 'b', 'c', True)),
    ('review', ('review', None, None, True)),
    ('text=a,pair=b', ('a', 'b', None, True)),
    ('text=a,label=2', ('a', None, 2, True)),
    (['a, b', 'label'], ('a, b', None, 'label', True)),
    ({'text': 0, 'label': 'a=b'}, (0, None, 'a=b', True)),
    ({'text': 0, 'label': None, 'header': False}, (0, None, None, False)),
    (Columns('a'), ('a', None, None, None)),
])
def test_columns_come_by_role_or_in_order(given, expected):
    assert Columns.parse(given) == expected


@pytest.mark.parametrize('given, words', [
    ('', 'expected --columns'), ('label=1', 'expected --columns'),
    ('a,b,c,d', 'expected --columns'), ('text=1,1', 'expected --columns'),
    ('tekst=1', 'expected --columns'), ('text=', 'expected --columns'),
    ('text=1,,', 'expected --columns'), ([], 'expected --columns'),
    ({'text': None, 'label': 1}, 'expected --columns'),
    ('text=1,label=1', 'one column two roles'),
    ('text=1,text=2', 'gives a role twice'),
    ('text=1,header=maybe', 'header=maybe in --columns: expected yes or no'),
    ('text=a,header=no', 'without a header give their numbers'),
])
def test_columns_that_say_nothing_are_refused(given, words):
    with pytest.raises(TaskError, match=words):
        Columns.parse(given)


def read(path, columns, task='classify', part='train', **keywords):
    return read_task(task, path, part, columns, **keywords)


def test_columns_are_found_by_number_and_by_name(tmp_path):
    rows = [('1', 'good "', 'x'), ('0', 'bad', 'y'), ('1', '', 'z')]
    write_rows(tmp_path / 'a.tsv', rows)
    write_rows(tmp_path / 'b.tsv', rows, 'mark text other')
    for found in (read(tmp_path / 'a.tsv', 'text=1,label=0'),
                  read(tmp_path / 'b.tsv', 'text,mark'),
                  read(tmp_path / 'b.tsv', Columns('text', label='mark')),
                  read(tmp_path / 'b.tsv', '1,0,header=yes'),
                  read(tmp_path / 'b.tsv', 'text=text,label=0')):
        assert found[:5] == (['good "', 'bad', ''], None, [1, 0, 1],
                             ('0', '1'), 0)
    found = read(tmp_path / 'b.tsv', 'text,other,mark', labels=('1', '0'))
    assert found[:4] == (['good "', 'bad', ''], ['x', 'y', 'z'], [0, 1, 0],
                         ('1', '0'))
    found = read(tmp_path / 'b.tsv', 'text=text', part='test')
    assert found.labels is None and len(found.texts_a) == 3
    found = read(tmp_path / 'a.tsv', 'text=1,label=0', 'regress')
    assert found[2:4] == ([1., 0., 1.], None)


def test_label_names_are_sorted_and_the_training_part_has_them_all(tmp_path):
    write_rows(tmp_path / 'train.tsv', [('t', 'no'), ('u', 'maybe'),
                                        ('v', 'no '), ('w', 'yes')])
    write_rows(tmp_path / 'valid.tsv', [('t', 'yes'), ('u', 'No')])
    train = read(tmp_path, '0,1')
    assert train.labels_names == ('maybe', 'no', 'yes')
    assert train.labels == [1, 0, 1, 2]
    with pytest.raises(TaskError, match="valid.tsv, line 2: the label is 'No'"
                       "; expected one of 'maybe', 'no', 'yes'"):
        read(tmp_path, '0,1', part='dev', labels=train.labels_names)


def test_lines_that_do_not_fit_are_skipped_with_one_line(tmp_path, capsys):
    path = write(tmp_path / 'x.tsv', 'a\t1\nb\nc\t0\td\ne\t0\t\t\n\nf\t1\n')
    found = read(path, 'text=0,label=1')
    assert found.texts_a == ['a', 'e', 'f'] and found.skipped == 3
    assert capsys.readouterr().err == (
        f'{path}: skipped 3 lines with missing or extra columns (the first '
        'is line 2, with 1 where 2 were expected)\n')
    read(path, 'text=0,label=1')
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize('content, columns, task, words', [
    ('a\n', 'text=0,label=1', 'classify',
     'no examples: of its 1 rows 1 do not have 2 columns with tabs'),
    ('text\tlabel\na\n', 'text,label', 'classify', 'of its 1 rows 1 do not'),
    ('text\tlabel\n', 'text,label', 'classify', 'a header and no examples'),
    ('a\tb\t-\nc\n', 'text=0,pair=1,label=2', 'snli', 'no examples: of its 2 '
     "rows 1 do not have 3 columns with tabs between them and 1 have the la"
     "bel '-'$"),
    ('a\tb\t-\n', 'text=0,pair=1,label=2', 'snli',
     "no examples: of its 1 rows 1 have the label '-'$"),
    ('a\tb\nc\t0\n', 'text,label', 'classify', "no column 'text' in its fir"
     r"st line \('a', 'b'\): name its columns by --columns.*as text=1"),
    ('a\ta\nc\t0\n', 'text=a,label=1', 'classify', "several columns 'a'"),
    ('text\tlabel\na\t0\nb\t1\nc\t0\n', 'text=0,label=1', 'classify',
     "line 1: the label 'label' occurs nowhere else.*header=yes"),
    ('text\tscore\na\t0\n', 'text=0,label=1', 'regress',
     "line 1: the label is 'score'; expected a number.*header=yes"),
    ('a\t0\nb\tnan\n', 'text=0,label=1', 'regress', "line 2: .* 'nan'"),
    ('a\tb\n', 'text=0', 'classify', 'no labels, which part train needs'),
    ('', 'text=0', 'classify', 'is empty'),
    (b'a\xff\t1\n', 'text=0,label=1', 'classify', 'line 1: byte 2'),
    ('a\t1\n', 'text=0,pair=1,label=2', 'sst2', 'sst2 takes one text'),
    ('a\t1\n', 'text=0,label=1', 'mrpc', 'mrpc takes pairs'),
    ('a\t1\n', 'text=0,label=1', 'span', 'layout of its own'),
    ('a\t1\n', None, 'classify', 'no layout of its own'),
])
def test_an_invalid_table_is_refused_in_one_sentence(
        tmp_path, content, columns, task, words):
    path = write(tmp_path / 'x.tsv', content)
    with pytest.raises(ValueError, match=words) as error:
        read(path, columns, task)
    assert '\n' not in str(error.value) and len(str(error.value)) < 400


def test_a_first_example_with_a_label_of_its_own_can_be_meant(tmp_path):
    path = write(tmp_path / 'x.tsv', 'a\trare\nb\t1\nc\t1\n')
    found = read(path, 'text=0,label=1,header=no')
    assert found.labels == [1, 0, 0]


def test_a_task_s_own_names_or_numbers_do_in_a_table_of_one_s_own(tmp_path):
    path = write(tmp_path / 'x.csv', 'negative,"a, b"\npositive,c\n')
    found = read(path, 'text=1,label=0', 'sst2')
    assert found.labels == [0, 1]
    assert found == read(path, '1,0', 'sst2', labels=('negative', 'positive'))
    path = write(tmp_path / 'y.csv.bz2', bz2.compress(b'0,"a, b"\n1,c\n'))
    again = read(path, 'text=1,label=0', 'sst2')
    assert again._replace(path='') == found._replace(path='')


def test_labels_in_another_order_keep_their_meaning(tmp_path):
    path = tmp_path / 'train.tsv'
    path.write_text('sentence\tlabel\na grim clock\t0\na warm song\t1\n')
    for names in ('negative', 'positive'), ('positive', 'negative'):
        found = read_task('sst2', path, labels=names)
        assert [names[k] for k in found.labels] == ['negative', 'positive']


def test_semicolons_part_the_columns_of_a_csv_file_that_has_no_commas(
        tmp_path):
    path = write(tmp_path / 'x.csv', 'text;label\n"a; b, c";1\nd;0\n')
    found = read(path, 'text,label')
    assert found.texts_a == ['a; b, c', 'd'] and found.labels == [1, 0]


def test_rows_are_chosen_by_their_cells(tmp_path):
    path = write(tmp_path / 'x.tsv', 'a\t1\nb\t2\n')
    found = examples_of(path, ColumnIndices(0, None, 1, 2, False),
                        keep_row=lambda row: row[0] == 'b')
    assert found.texts_a == ['b'] and found.skipped == 0



def test_a_missing_label_is_no_class(tmp_path):
    path = tmp_path / 'train.tsv'
    path.write_text('good\tpositive\nodd\t\nbad\tnegative\n')
    for labels in None, ('negative', 'positive'):
        with pytest.raises(TaskError, match='line 2: the label is missing'):
            read_task('classify', path, columns='text=0,label=1',
                      labels=labels)
