"""`d2lbert encode` and `d2lbert similar` with a pretrained model."""
import subprocess
import sys
from pathlib import Path

import numpy as onp
import pytest
import sentences
from commands import refusal

import d2lbert as d2l
from d2lbert.command import vectors
from d2lbert.command.cli import main

pytest.importorskip('tokenizers')
pytest.importorskip('safetensors')

LINES = ['a crane flies over the river', 'the old tree', 'it sleeps',
         'a grey bird flies over the river', 'the wing of the crane']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return sentences.write_folder(tmp_path_factory.mktemp('x') / 'model')


@pytest.fixture(scope='module')
def model(folder):
    return d2l.load_pretrained(folder)


@pytest.fixture
def lines(tmp_path):
    (tmp_path / 'lines.txt').write_text('\n'.join(LINES) + '\n')
    return 'lines.txt'


def numbers(text):
    return onp.array([line.split() for line in text.splitlines()], 'float32')


def fails(capsys, *argv):
    return refusal(capsys, *argv)[1]


def test_encode_writes_the_vector_of_each_line(
        folder, model, lines, capsys, tmp_path):
    assert main(['encode', str(folder), '--file', lines, '--out',
                 'x.npy']) == 0
    assert capsys.readouterr() == ('', '')
    found = onp.load('x.npy')
    onp.testing.assert_array_equal(found, d2l.encode(*model, LINES))
    onp.testing.assert_allclose(onp.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert main(['encode', str(folder), '--file', lines]) == 0
    onp.testing.assert_allclose(numbers(capsys.readouterr().out), found,
                                atol=6e-5)
    assert main(['encode', str(folder), LINES[2], '--out', 'one.npy']) == 0
    onp.testing.assert_array_equal(onp.load('one.npy'), found[2:3])


def test_encode_takes_another_pooling_layer_and_length(folder, model, lines,
                                                       capsys):
    flags = ['--pool', 'cls', '--layer', '1', '--max-len', '5']
    assert main(['encode', str(folder), '--file', lines, *flags, '--out',
                 'x.npy']) == 0
    assert capsys.readouterr().err == (
        '3 of 5 texts have more than 5 tokens and were cut; 9 tokens were '
        'left out; --overlap would keep them\n')
    onp.testing.assert_array_equal(
        onp.load('x.npy'), d2l.encode(*model, LINES, 'cls', 1, max_len=5))
    capsys.readouterr()
    assert main(['encode', str(folder), '--file', lines, '--max-len', '5',
                 '--overlap', '1', '--out', 'x.npy', '--force']) == 0
    assert capsys.readouterr().err == ''
    onp.testing.assert_array_equal(
        onp.load('x.npy'), d2l.encode(*model, LINES, max_len=5, overlap=1))


def test_encode_prints_the_pieces_and_unknown_ones_as_they_stand(
        folder, model, capsys):
    text = 'The crane 鹤 Sleeps'
    assert main(['encode', str(folder), text, '--pool', 'none']) == 0
    out, err = capsys.readouterr()
    tokens = model[1].encode(text).tokens
    assert tokens.count('[UNK]') == 1
    tokens[tokens.index('[UNK]')] = '鹤'
    assert [line.split()[0] for line in out.splitlines()] == tokens
    assert err == ('1 of 4 tokens are unknown words, read as '
                   '[UNK]: 鹤\n')


def test_similar_prints_the_nearest_lines(folder, model, lines, capsys):
    query = 'the bird flies'
    wanted = d2l.encode(*model, LINES) @ d2l.encode(*model, [query])[0]
    order = (-wanted).argsort()
    for flags, count in ([], 5), (['--top', '2'], 2):
        assert main(['similar', str(folder), query, '--file', lines,
                     *flags]) == 0
        out, err = capsys.readouterr()
        assert err == '' and out.splitlines() == [
            f'{wanted[i]:.4f} {LINES[i]}' for i in order[:count]]


def test_similar_compares_directions_and_keeps_the_first_of_equals(
        folder, model, capsys, tmp_path):
    (tmp_path / 'x.txt').write_text('it is\nthe tree\nit is\nthe tree\n')
    assert main(['similar', str(folder), 'the tree', '--file', 'x.txt',
                 '--pool', 'mean', '--top', '3']) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == second == '1.0000 the tree' and third.endswith(' it is')
    cls = d2l.encode(*model, ['it is', 'the tree'], 'mean')
    cosine = cls[0] @ cls[1] / onp.prod(onp.linalg.norm(cls, axis=1))
    assert abs(float(third.split()[0]) - cosine) < 6e-5


def test_similar_counts_truncated_texts_without_the_query(folder, lines,
                                                          capsys):
    argv = ['similar', str(folder), 'the tree', '--file', lines, '--max-len',
            '5', '--vectors', 'x.npy']
    assert main(argv) == 0
    assert capsys.readouterr().err == (
        '3 of 5 texts have more than 5 tokens and were cut; 9 tokens were '
        'left out; --overlap would keep them\n')
    # Only the query, and some texts for a check, are encoded now
    assert main(argv) == 0
    assert capsys.readouterr().err == ''
    argv[2] = LINES[0]
    assert main(argv) == 0
    assert capsys.readouterr().err == (
        'the query has more than 5 tokens and was cut; 3 tokens were left '
        'out; --overlap would keep them\n')


def test_similar_puts_vectors_of_nan_behind_all_others(folder, model, capsys,
                                                       tmp_path):
    texts = LINES * 4
    (tmp_path / 'x.txt').write_text('\n'.join(texts))
    X = d2l.encode(*model, texts)
    X[[1, 3, 6, 12, 14]] = onp.nan      # no row that is checked
    onp.save('x.npy', X)
    x = d2l.encode(*model, ['the tree'])[0].astype('float64')
    scores = onp.array([x @ y / onp.sqrt((x @ x) * (y @ y))
                        for y in X.astype('float64')])
    wanted = [f'{scores[i]:.4f} {texts[i]}'
              for i in onp.argsort(-scores, kind='stable')]
    for top in 3, 17, 20:
        assert main(['similar', str(folder), 'the tree', '--file', 'x.txt',
                     '--vectors', 'x.npy', '--top', str(top)]) == 0
        assert capsys.readouterr().out.splitlines() == wanted[:top]


def test_similar_reads_standard_input(folder):
    done = subprocess.run(
        [sys.executable, '-m', 'd2lbert', 'similar', str(folder), 'the tree',
         '--file', '-', '--top', '1'], input='it is\nthe tree\n',
        stdout=subprocess.PIPE, universal_newlines=True, check=True)
    assert done.stdout == '1.0000 the tree\n'


def test_similar_works_with_a_run(tmp_path, capsys):
    # A run of whole words has no pooling of its own: the mean
    d2l.pretrain(corpus='sample', batch_size=8, max_len=64, num_hiddens=8,
                 ffn_num_hiddens=8, num_layers=1, num_steps=1, out='run')
    (tmp_path / 'x.txt').write_text('a crane\nthe old bird\n' + 'a ' * 1200)
    capsys.readouterr()
    assert 'line 3: 1202 tokens are more than the 1000 positions' in fails(
        capsys, 'similar', 'run', 'a crane', '--file', 'x.txt')
    assert main(['similar', 'run', 'a crane', '--file', 'x.txt', '--overlap',
                 '9', '--top', '1']) == 0
    assert capsys.readouterr().out == '1.0000 a crane\n'


@pytest.mark.parametrize('argv, reason', [
    (['similar', 'MODEL', ' ', '--file', 'lines.txt'], 'query is empty'),
    (['similar', 'MODEL', 'a', '--file', 'nowhere'],
     'there is no file or folder nowhere: name an existing one for --file'),
    (['similar', 'nowhere', 'a', '--file', 'lines.txt'],
     'there is no folder nowhere'),
    (['similar', 'MODEL', 'a', '--file', 'lines.txt', '--top', '0'],
     '--top: 0 must be at least 1'),
    (['encode', 'MODEL', '--file', 'lines.txt', '--pool', 'none', '--out',
      'x.npy'], 'give --pool cls or --pool mean'),
    (['encode', 'MODEL', 'a', '--max-len', '41'],
     'max_len=41 is more than the 40 positions of this model: lower it'),
    (['encode', 'MODEL', 'a', '--overlap', '11'],
     'overlap=11 must be at least 0 and less than 10, the tokens'),
    (['encode', 'MODEL', 'a', '--layer', '7'], 'layer must lie between')])
def test_impossible_requests_are_one_line(argv, reason, folder, lines,
                                          capsys, tmp_path):
    assert reason in fails(capsys, *(
        folder if part == 'MODEL' else part for part in argv))
    assert [path.name for path in tmp_path.iterdir()] == ['lines.txt']


# Vectors that are kept

def answers(capsys, folder, *argv):
    assert main(['similar', str(folder), 'the bird flies', '--file',
                 'lines.txt', *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ''
    return out


@pytest.mark.parametrize('maker', ['similar', 'encode', 'numpy'])
def test_similar_takes_kept_vectors(maker, folder, model, lines, capsys,
                                    monkeypatch):
    wanted = answers(capsys, folder)
    if maker == 'similar':
        assert answers(capsys, folder, '--vectors', 'x.npy') == wanted
    elif maker == 'encode':
        assert main(['encode', str(folder), '--file', lines, '--out',
                     'x.npy']) == 0
    else:
        onp.save('x.npy', d2l.encode(*model, LINES))
    onp.testing.assert_array_equal(onp.load('x.npy'),
                                   d2l.encode(*model, LINES))
    # The query, and some texts for a check, are all that is encoded now
    monkeypatch.setattr(vectors, 'NUM_CHECKED', 2)
    encoded, encode = [], vectors.TextEncoder.encode
    monkeypatch.setattr(vectors.TextEncoder, 'encode', lambda self, texts: (
        encoded.extend(texts), encode(self, texts))[1])
    assert answers(capsys, folder, '--vectors', 'x.npy') == wanted
    assert [text.text for text in encoded] == [
        'the bird flies', LINES[0], LINES[-1]]


def test_kept_vectors_must_belong_to_the_texts_and_the_model(
        folder, lines, capsys, tmp_path):
    argv = ['similar', folder, 'the bird flies', '--file', lines,
            '--vectors', 'x.npy']
    answers(capsys, folder, '--vectors', 'x.npy')
    for flags in ['--pool', 'cls'], ['--layer', '1'], ['--max-len', '4']:
        assert 'was not made by this model with these settings' in refusal(
            capsys, *argv, *flags)[1]
    content = Path('x.npy').read_bytes()
    onp.load('x.npy', mmap_mode='r+')[-1, -1] = onp.nan
    assert 'is another vector' in refusal(capsys, *argv)[1]
    Path('x.npy').write_bytes(content)
    other, tokenizer = tmp_path / 'other', sentences.word_pieces()
    d2l.save_pretrained(sentences.build_net(
        len(tokenizer), 40, num_layers=1), tokenizer, other)
    sentences.write_files(other, sentences.OLD)
    assert 'was not made by this model' in refusal(
        capsys, argv[0], other, *argv[2:])[1]
    (tmp_path / lines).write_text('\n'.join(
        [LINES[0], 'the new tree', *LINES[2:]]))
    assert 'was made from other texts' in refusal(capsys, *argv)[1]
    (tmp_path / lines).write_text('\n'.join(LINES[:-1]))
    assert 'has 5 rows, and the file has 4 texts' in refusal(
        capsys, *argv)[1]
    (tmp_path / 'x.npy').write_text('no array')
    assert 'is no .npy file of vectors' in refusal(capsys, *argv)[1]
    with open('x.npy', 'wb') as file:
        onp.save(file, onp.zeros((4, 8), 'float32'))
        onp.save(file, onp.frombuffer(b'[]', 'uint8'))
    assert ('is no .npy file of vectors: its second array is no JSON object '
            'about the vectors') in refusal(capsys, *argv)[1]
    onp.save('x.npy', onp.zeros(4, 'float32'))
    assert 'it does not contain a matrix of floats' in refusal(
        capsys, *argv)[1]


# Empty lines

@pytest.mark.parametrize('argv', [
    ['encode', 'MODEL', '--out', 'x.npy'], ['encode', 'MODEL'],
    ['similar', 'MODEL', 'a bird', '--vectors', 'x.npy']])
def test_an_empty_line_is_found_before_any_work(argv, folder, capsys,
                                                monkeypatch, tmp_path):
    (tmp_path / 'gaps.txt').write_text('a crane\n\nit is\n \n')
    argv = [folder if part == 'MODEL' else part for part in argv]
    with monkeypatch.context() as patched:
        patched.setattr(vectors, '_encoder', None)
        assert 'gaps.txt, line 2 is empty' in refusal(
            capsys, *argv, '--file', 'gaps.txt')[1]
    assert main([*map(str, argv), '--file', 'gaps.txt', '--skip-empty']) == 0
    assert capsys.readouterr().err == (
        '2 empty lines were left out, the first gaps.txt, line 2\n')
    if 'x.npy' in argv:
        assert len(onp.load('x.npy')) == 2


def test_lines_with_one_vector_come_in_the_order_of_the_file(folder, capsys,
                                                             tmp_path):
    lines = ['a crane', 'A crane', 'a CRANE', 'it is']
    (tmp_path / 'x.txt').write_text('\n'.join(lines))
    for top in 2, 3:
        assert main(['similar', str(folder), 'a crane', '--file',
                     str(tmp_path / 'x.txt'), '--top', str(top)]) == 0
        found = [line.split(' ', 1)[1]
                 for line in capsys.readouterr().out.splitlines()]
        assert found == lines[:top]
