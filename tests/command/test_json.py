"""`--json` prints what the functions of Python return."""
import json
import subprocess
import sys

import numpy as onp
import published
import pytest
import sentences
from commands import refusal

import d2lbert as d2l
from d2lbert.__main__ import main

pytest.importorskip('tokenizers')
pytest.importorskip('safetensors')
TEXTS = ['a crane', 'it is a crane', 'is']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return str(sentences.write_folder(tmp_path_factory.mktemp('x') / 'model'))


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / 'x.txt'
    path.write_text('\n'.join(TEXTS))
    return str(path)


def rows(capsys, *argv):
    """The objects that a command prints, one on each line."""
    capsys.readouterr()
    assert main([*argv, '--json']) == 0
    return [json.loads(line) for line in
            capsys.readouterr().out.splitlines()]


def test_encode_prints_vectors_to_the_last_bit(folder, lines, capsys):
    model = d2l.load_pretrained(folder)
    found = rows(capsys, 'encode', folder, '--file', lines)
    assert [row['text'] for row in found] == TEXTS
    onp.testing.assert_array_equal(
        onp.array([row['vector'] for row in found], 'float32'),
        d2l.encode(*model, TEXTS))
    row, = rows(capsys, 'encode', folder, TEXTS[0], '--pool', 'none')
    expected, = d2l.encode(*model, TEXTS[:1], pooling=None)
    assert len(row['tokens']) == len(expected)
    onp.testing.assert_array_equal(onp.array(row['vectors'], 'float32'),
                                   expected)
    assert rows(capsys, 'encode', folder, '--file', lines, '--max-len', '3',
                '--out', 'x.npy') == [dict(out='x.npy', texts=3, truncated=2)]


def test_similar_prints_the_rows_of_the_texts(folder, lines, capsys):
    found = rows(capsys, 'similar', folder, TEXTS[1], '--file', lines,
                 '--top', '2')
    assert found[0]['row'] == 1 and len(found) == 2
    assert found[0]['similarity'] == pytest.approx(1)
    assert all(TEXTS[row['row']] == row['text'] for row in found)


def test_fill_takes_a_file_and_standard_input(tmp_path, capsys):
    folder = published.write(tmp_path / 'folder')
    texts = ['the [MASK] is [MASK]', 'it [MASK] here']
    (tmp_path / 'x.txt').write_text('\n'.join(texts))
    model = d2l.load_pretrained(folder)
    expected = [d2l.fill_mask(*model, text, 2) for text in texts]
    argv = ['fill', str(folder), '--top', '2', '--file']
    assert rows(capsys, *argv, 'x.txt') == [
        dict(text=text, mask=k, guesses=[one._asdict() for one in guesses])
        for text, masks in zip(texts, expected)
        for k, guesses in enumerate(masks)]
    assert main([*argv, 'x.txt']) == 0
    blocks = ['\n'.join(f'{one.token} {one.probability:.4f}'
                        for one in guesses)
              for masks in expected for guesses in masks]
    shown = (f'{texts[0]}\n{blocks[0]}\n\n{blocks[1]}\n\n{texts[1]}\n'
             f'{blocks[2]}\n')
    out, said = capsys.readouterr()
    assert out == shown
    assert said == ('2 of 3 tokens are unknown words, read as '
                    '[UNK]: it, here\n')
    done = subprocess.run([sys.executable, '-m', 'd2lbert', *argv, '-'],
                          input='\n'.join(texts).encode(),
                          stdout=subprocess.PIPE)
    assert done.stdout.decode() == shown
    (tmp_path / 'x.txt').write_text('no mask')
    assert 'x.txt, line 1: the text has no [MASK]' in refusal(
        capsys, *argv, 'x.txt')[1]
    assert 'not both' in refusal(capsys, *argv, 'x.txt', 'a [MASK]')[1]


def test_doctor_and_cache_print_one_object(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path / 'cache'))
    found, = rows(capsys, 'cache')
    assert found['folder'] == str(tmp_path / 'cache')
    assert {kind['kind'] for kind in found['kinds']} > {'kernels', 'data'}
    found, = rows(capsys, 'cache', '--clear')
    assert set(found) == {'folder', 'removed', 'bytes'}
    main(['doctor', '--json'])
    found = json.loads(capsys.readouterr().out)
    assert found['version'] == d2l.__version__
    assert {'name', 'status', 'value', 'remedy'} == set(found['rows'][0])


def test_a_command_computes_on_one_device(folder, lines, capsys):
    for command in (['encode', folder, 'a'], ['fill', folder, '[MASK]'],
                    ['similar', folder, 'a', '--file', lines],
                    ['generate', folder, 'a'], ['senses', folder],
                    ['show', folder, '--out', 'x.html']):
        assert 'names 2 devices, and this command computes on one' in refusal(
            capsys, *command, '--devices', 'cpu:2')[1]
        assert "devices are 'tpu'" in refusal(
            capsys, *command, '--devices', 'tpu')[1]
    one = rows(capsys, 'encode', folder, 'a', '--devices', 'cpu')
    assert one == rows(capsys, 'encode', folder, 'a')
