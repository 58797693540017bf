"""The files that commands write: their formats, and what they never replace.
"""
import csv
import json
import os
import sys

import numpy as onp
import pytest
import sentences
from commands import refusal

import d2lbert as d2l
from d2lbert.command.cli import main
from d2lbert.command.vector_files import PARQUET_ROWS, vectors_file

pytest.importorskip('tokenizers')
pytest.importorskip('safetensors')

LINES = ['a crane', 'the "old", grey\ttree', 'it sleeps']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return sentences.write_folder(tmp_path_factory.mktemp('x') / 'model')


@pytest.fixture(scope='module')
def vectors(folder):
    return d2l.encode(*d2l.load_pretrained(folder), LINES)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / 'two.txt'
    path.write_text('\n'.join(LINES) + '\n')
    return path


def refused(capsys, *argv):
    return refusal(capsys, *argv)[1]


def read_npz(path):
    with onp.load(path) as found:
        assert list(found) == ['vectors']
        return None, found['vectors']


def read_table(path, dialect):
    with open(path, newline='', encoding='utf-8') as f:
        (name, *places), *rows = csv.reader(f, dialect)
    assert places == [str(k) for k in range(len(places))]
    return [[name, row[0]] for row in rows], onp.array(
        [row[1:] for row in rows], 'float32')


def read_json(path):
    rows = [json.loads(line) for line in path.read_text('utf-8').splitlines()]
    return [[name, row[name]] for row in rows for name in row
            if name != 'vector'], onp.array(
                [row['vector'] for row in rows], 'float32')


def read_parquet(path):
    parquet = pytest.importorskip('pyarrow.parquet')
    found = parquet.read_table(path)
    name, vector = found.column_names
    assert vector == 'vector'
    return [[name, text] for text in found[name].to_pylist()], onp.array(
        found[vector].to_pylist(), 'float32')


READERS = {'x.npy': lambda path: (None, onp.load(path)), 'x.npz': read_npz,
           'x.csv': lambda path: read_table(path, 'excel'),
           'x.TSV': lambda path: read_table(path, 'excel-tab'),
           'x.jsonl': read_json, 'x.parquet': read_parquet}


@pytest.mark.parametrize('name', READERS)
def test_vectors_are_written_in_the_format_of_the_name(
        name, folder, vectors, texts, tmp_path, capsys):
    if name.endswith('parquet'):
        pytest.importorskip('pyarrow')
    assert main(['encode', str(folder), '--file', str(texts), '--out',
                 name]) == 0
    names, found = READERS[name](tmp_path / name)
    onp.testing.assert_array_equal(found, vectors)
    assert names in (None, [['text', line] for line in LINES])
    assert main(['encode', str(folder), LINES[0], '--pool', 'none', '--out',
                 name, '--force']) == 0
    names, found = READERS[name](tmp_path / name)
    assert found.shape == (4, 20)
    assert names in (None, [['token', token] for token in
                            ('[CLS]', 'a', 'crane', '[SEP]')])


@pytest.mark.parametrize('name', ['x.csv', 'x.TSV'])
def test_a_lone_carriage_return_comes_back(name, folder, tmp_path):
    assert main(['encode', str(folder), 'a\rcrane', '--out', name]) == 0
    names, _ = READERS[name](tmp_path / name)
    assert names == [['text', 'a\rcrane']]


@pytest.mark.parametrize('name', ['x.parquet', 'x.npz', 'x.csv'])
def test_files_of_many_rows_are_whole(name, tmp_path):
    if name.endswith('parquet'):
        pytest.importorskip('pyarrow')
    rows = onp.random.RandomState(0).normal(size=(PARQUET_ROWS + 7, 3)).astype(
        'float32')
    with vectors_file(tmp_path / name) as file:
        for k in range(0, len(rows), 5):
            some = rows[k:k + 5]
            file.add(['\u00f6'] * len(some), some)
    _, found = READERS[name](tmp_path / name)
    onp.testing.assert_array_equal(found, rows)
    assert os.listdir(tmp_path) == [name]


def test_an_ending_that_is_no_format_is_refused(folder, texts, capsys,
                                                tmp_path):
    for name in 'x.txt', 'x', 'x.npy.gz':
        assert ('let it end in .npy, .npz, .csv, .tsv, .jsonl, .parquet'
                in refused(capsys, 'encode', folder, '--file', texts, '--out',
                           name))
    assert os.listdir(tmp_path) == ['two.txt']


def test_parquet_without_its_library_is_refused(folder, texts, capsys,
                                                monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'pyarrow', None)
    assert 'pip install pyarrow' in refused(
        capsys, 'encode', folder, '--file', texts, '--out', 'x.parquet')
    assert os.listdir(tmp_path) == ['two.txt']
    os.mkfifo(tmp_path / 'pipe.parquet')    # an existing pipe, too
    assert 'pip install pyarrow' in refused(
        capsys, 'encode', folder, '--file', texts, '--out', 'pipe.parquet')


@pytest.mark.parametrize('alias', ['itself', 'link', 'symlink'])
def test_no_command_writes_over_a_file_that_it_reads(alias, folder, capsys,
                                                     tmp_path):
    path = tmp_path / 'lines.csv'
    path.write_text('a crane\n')
    out = tmp_path / ('lines.csv' if alias == 'itself' else 'other.csv')
    if alias == 'link':
        os.link(path, out)
    elif alias == 'symlink':
        out.symlink_to(path)
    for flags in [], ['--force']:
        assert 'which this command reads' in refused(
            capsys, 'encode', folder, '--file', path, '--out', out, *flags)
    assert path.read_text() == 'a crane\n'


def test_no_command_writes_over_the_model_that_it_reads(folder, capsys):
    weights = folder / 'model.safetensors'
    before = weights.read_bytes()
    named = folder / 'notes.npy'
    named.write_text('mine')
    assert 'which this command reads' in refused(
        capsys, 'encode', folder, 'a crane', '--out', named, '--force')
    for command in (['show', folder], ['senses', folder]):
        assert 'which this command reads' in refused(
            capsys, *command, '--out', weights, '--force')
    assert weights.read_bytes() == before
    named.unlink()


def test_a_file_is_replaced_with_force_alone(folder, texts, vectors, capsys,
                                             tmp_path):
    (tmp_path / 'x.npy').write_text('precious')
    argv = ['encode', folder, '--file', texts, '--out', 'x.npy']
    assert 'give --force to replace it' in refused(capsys, *argv)
    assert (tmp_path / 'x.npy').read_text() == 'precious'
    assert main([*map(str, argv), '--force']) == 0
    onp.testing.assert_array_equal(onp.load('x.npy'), vectors)


@pytest.mark.parametrize('linked', [True, False])
def test_a_file_that_came_meanwhile_stays(linked, tmp_path, monkeypatch):
    if not linked:
        def no_links(*_):
            raise PermissionError(1, 'Operation not permitted')
        monkeypatch.setattr(os, 'link', no_links)
    with pytest.raises(ValueError, match='x.npy cannot be written: File exi'):
        with vectors_file('x.npy') as file:
            file.add(['a'], onp.ones((1, 2), 'float32'))
            (tmp_path / 'x.npy').write_text('precious')
    assert (tmp_path / 'x.npy').read_text() == 'precious'
    assert os.listdir(tmp_path) == ['x.npy']
    with vectors_file('y.npy') as file:
        file.add(['a'], onp.ones((1, 2), 'float32'))
    assert onp.load('y.npy').shape == (1, 2)
