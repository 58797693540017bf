"""The command `d2lbert`, mostly in this process, where it must as another."""
import inspect
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as onp
import pytest
from commands import refusal

import d2lbert as d2l
from d2lbert import hub
from d2lbert.__main__ import main
from d2lbert.command import cli
from d2lbert.command import pretrain as pretrain_command
from d2lbert.command import vectors as encoder
from d2lbert.command.pretrain import RUN_FLAGS
from d2lbert.command.vector_files import vectors_file
from d2lbert.objectives import text_objective
from d2lbert.pretrained import encoding
from d2lbert.texts import text_sources
from d2lbert.training import pretraining
from d2lbert.training.settings import PATHS, SETTINGS, complete

ROOT = str(Path(d2l.__file__).resolve().parents[1])
TINY = ['--corpus', 'sample', '--batch-size', '16', '--max-len', '24',
        '--num-hiddens', '8', '--ffn-num-hiddens', '8', '--num-layers', '1',
        '--num-steps', '2', '--seed', '1']
PRINTED = (r'MLM loss \d+\.\d{3}, NSP loss \d+\.\d{3}\n'
           r'\d+\.\d sentence pairs/sec on \[cpu\(0\)\]\n'
           r'last 1 step: MLM loss \d+\.\d{3}, NSP loss \d+\.\d{3}\n')


def start(*arguments, options=(), **kwargs):
    """Start `python -m d2lbert` with this package, wherever it runs."""
    paths = [ROOT, *filter(None, [os.environ.get('PYTHONPATH')])]
    return subprocess.Popen(
        [sys.executable, *options, '-m', 'd2lbert', *map(str, arguments)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths)),
        **{**dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                  stderr=subprocess.PIPE, encoding='utf-8'), **kwargs})


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob('*') if path.is_file()}


def fails(capsys, *arguments):
    """Run a command that fails; returns its one line on standard error."""
    return refusal(capsys, *arguments)[1]


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """The run folder of a command that ran as a process of its own."""
    folder = tmp_path_factory.mktemp('place')
    process = start('pretrain', *TINY, '--out', 'runs/first', cwd=folder)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert re.fullmatch(PRINTED, out)
    assert re.fullmatch(r'sample: .* are unknown\n'
                        r'training [\d,]+ parameters: 2 steps of 16 sentence '
                        r'pairs on \[cpu\(0\)\]\n'
                        'run folder runs/first\n', err)
    assert (folder / 'runs/first/log.txt').read_text('utf-8') == out
    return folder / 'runs' / 'first'


def test_pretrain_leaves_a_run_folder_and_nothing_else(run):
    assert sorted(contents(run.parent.parent)) == [
        f'runs/first/{name}' for name in (
            'config.json', 'log.txt', 'losses.csv', 'losses.png',
            'model.params', 'vocab.txt')]


def test_a_seed_repeats_a_run_in_another_process(run, tmp_path, capsys):
    assert main(['pretrain', *TINY, '--out', 'again']) == 0
    again = contents(tmp_path / 'again')
    for name in ('model.params', 'losses.csv', 'vocab.txt', 'config.json'):
        assert again[name] == contents(run)[name], name
    assert re.fullmatch(PRINTED, capsys.readouterr().out)


def test_version_and_help_are_told(capsys):
    for arguments, said in ((['--version'], f'd2lbert {d2l.__version__}'),
                            (['--help'], '  encode      print or write'),
                            (['encode', '--help'], '--pair TEXT')):
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        assert exit.value.code == 0
        assert said in capsys.readouterr().out


@pytest.mark.parametrize('command', ['pretrain', 'fill . a'])
def test_the_error_of_loading_mxnet_is_printed_once(command, tmp_path,
                                                    monkeypatch):
    monkeypatch.setenv('OMP_NUM_THREADS', 'abc')
    process = start(*command.split(), cwd=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 1 and out == '' and err.count('\n') == 1
    assert err.startswith(f"d2lbert {command.split()[0]}: OMP_NUM_THREADS is "
                          "'abc' and must be a number")


SLOW = {'mxnet', 'numpy', 'matplotlib', 'tqdm'}


def test_version_and_help_wait_for_no_library():
    status, out, err = python(f'''
sys.argv[:] = ['/usr/bin/d2lbert']
from d2lbert.__main__ import main, parser
commands = [[name] for name in parser()._subparsers._group_actions[0].choices]
assert ['pretrain'] in commands
for command in [[], *commands]:
    for flag in ['--help'] + ['--version'] * (not command):
        try:
            main([*command, flag])
        except SystemExit as error:
            assert error.code == 0
assert not {SLOW} & set(sys.modules), {SLOW} & set(sys.modules)
# Whoever asks for a name gets it
import d2lbert as d2l
from d2lbert import BERTModel
assert 'mxnet' in sys.modules and d2l.BERTModel is BERTModel
assert d2l._get_batch_bert and not hasattr(d2l, 'nothing')
''')
    assert (status, err) == (0, '') and out.count('usage: ') > 5


def test_the_module_is_the_command_too():
    process = start('--version', options=['-X', 'importtime'])
    out, err = process.communicate()
    assert out == f'd2lbert {d2l.__version__}\n'
    imported = {line.split('|')[-1].strip() for line in err.splitlines()}
    assert 'd2lbert.__main__' in imported or 'd2lbert' in imported
    assert not SLOW & imported


def test_the_library_brings_its_names_and_mxnet_but_no_matplotlib(tmp_path):
    status, out, err = python('''
import d2lbert as d2l
assert 'mxnet' in sys.modules and 'matplotlib' not in sys.modules
from mxnet import gluon, np
x = np.array([1, 2])
assert x[x > 1].tolist() == [2]         # as NumPy has it
assert {'BERTModel', '_get_batch_bert', 'train_bert'} < set(dir(d2l))
import pickle
vocab = d2l.Vocab([['a', 'b']])
assert pickle.loads(pickle.dumps(vocab)).idx_to_token == vocab.idx_to_token
assert pickle.loads(pickle.dumps(d2l.BERTModel)) is d2l.BERTModel
try:
    d2l.nothing
except AttributeError as error:
    assert str(error) == "module 'd2lbert' has no attribute 'nothing'"
names = {}
exec('from d2lbert import *', names)
assert names['BERTModel'] is d2l.BERTModel
''')
    assert (status, out, err) == (0, '', '')


def test_without_a_command_it_prints_an_overview(capsys):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == '' and len(out.splitlines()) < 16
    for line in re.findall(r'^  (d2lbert .*?)  ', out, re.M):
        words = shlex.split(line.replace('...', ''))
        if words[-1] not in ('--help', 'help'):
            cli.parser().parse_args(words[1:])


@pytest.fixture
def asked(monkeypatch):
    """A list of the keywords that `pretrain` was called with."""
    calls = []
    monkeypatch.setattr(pretraining, 'pretrain', lambda **keywords: (
        calls.append(keywords), 'a folder')[1])
    return calls


def test_every_flag_of_pretrain_is_a_keyword_and_the_reverse(asked,
                                                             monkeypatch):
    # Some flags need others beside them
    for name in ('check_flags', 'check_devices_and_out'):
        monkeypatch.setattr(pretrain_command, name, lambda *_: None)
    for name, setting in {**SETTINGS, **{
            setting.name: setting for setting in RUN_FLAGS}}.items():
        kind = str if setting.kind == PATHS else setting.kind
        value = str([*setting.choices, 1][0])
        main(['pretrain', '--corpus', 'sample', '--' + name.replace('_', '-'),
              *([] if kind is bool else [value])])
        given = asked.pop()[name]
        assert given == ['1'] if setting.several else (
            given == kind(value) and type(given) is kind)
    assert [setting.name for setting in RUN_FLAGS] == [
        'devices', 'out', 'force', 'resume']
    assert set(inspect.signature(d2l.pretrain).parameters) == {
        'devices', 'out', 'force', 'resume', 'wanted', 'texts', 'callback',
        *SETTINGS}


def test_without_flags_it_is_the_chapters_run(asked):
    main(['pretrain', '--corpus', 'sample'])
    assert asked == [dict(corpus=['sample'])]
    chapter = dict(
        batch_size=512, max_len=64, num_hiddens=128, ffn_num_hiddens=256,
        num_heads=2, num_layers=2, dropout=0.2, lr=0.01, num_steps=50,
        log_interval=1)
    assert chapter.items() <= complete(asked[0]).items()


@pytest.fixture
def no_wikitext(monkeypatch, tmp_path):
    """A machine without WikiText-2 whose network leads nowhere."""
    with socket.socket() as unused:
        unused.bind(('127.0.0.1', 0))
        nowhere = f'http://127.0.0.1:{unused.getsockname()[1]}'
    for name in ('http_proxy', 'https_proxy', 'HTTP_PROXY', 'HTTPS_PROXY'):
        monkeypatch.setenv(name, nowhere)
    for name in ('no_proxy', 'NO_PROXY', 'D2LBERT_DATA'):
        monkeypatch.delenv(name, raising=False)
    # urllib remembers the proxies of its first use
    monkeypatch.setattr(urllib.request, '_opener', None)
    monkeypatch.setattr(hub, '_data_folders', lambda: [tmp_path / 'empty'])


def test_without_wikitext_the_sample_is_used_with_a_note(
        no_wikitext, asked, capsys):
    assert main(['pretrain']) == 0
    assert asked[0]['corpus'] == 'sample'
    err = capsys.readouterr().err
    for word in ('WikiText-2 is not on this machine', 'empty', 'https://',
                 'D2LBERT_DATA', 'Training on the small sample corpus'):
        assert word in err


def test_a_run_notes_that_its_text_is_a_substitute(no_wikitext, tmp_path,
                                                   capsys):
    without = TINY[TINY.index('sample') + 1:]
    assert main(['pretrain', *without, '--save-every', '1', '--out', 'run',
                 '--keep', '0']) == 0
    reason = capsys.readouterr().err.splitlines()[2]
    assert reason.startswith('WikiText-2 is not on this machine')

    def check(steps):
        config = json.loads((tmp_path / 'run' / 'config.json').read_text())
        assert config['wanted'] == dict(corpus='wikitext-2', reason=reason)
        assert config['training']['corpus'] == 'sample'
        assert config['training']['num_steps'] == steps
        first, *lines = (tmp_path / 'run' / 'log.txt').read_text(
            ).splitlines()
        assert first == ('trained on another corpus than wikitext-2, which '
                         f'could not be had: {reason}')
        assert len(lines) == 3 and lines[0].startswith('MLM loss ')
    check(2)
    assert main(['pretrain', '--resume', 'run', '--num-steps', '3']) == 0
    check(3)
    # A text that was chosen is no substitute
    assert main(['pretrain', *TINY, '--out', 'other']) == 0
    assert 'wanted' not in json.loads(
        (tmp_path / 'other' / 'config.json').read_text())
    with pytest.raises(ValueError, match='leave wanted out'):
        pretraining.pretrain(resume='run', wanted={})


def test_wikitext_that_was_asked_for_is_never_swapped(no_wikitext, asked):
    main(['pretrain', '--corpus', 'wikitext-2'])
    assert asked[0]['corpus'] == ['wikitext-2']
    with pytest.raises(hub.HubError, match='not on this machine'):
        text_objective.read_corpus(complete(asked[0]))


def test_a_folder_that_was_named_is_never_swapped(asked, capsys):
    assert 'there is no file or folder nowhere' in fails(
        capsys, 'pretrain', '--data-dir', 'nowhere')
    Path('empty').mkdir()
    assert "'empty' holds neither" in fails(capsys, 'pretrain',
                                            '--data-dir', 'empty')
    assert asked == []


@pytest.mark.parametrize('arguments, message', [
    (['--batch-size', '0'], 'batch_size must be'),
    (['--max-len', '4'], 'max_len must be a whole number of at least 5'),
    (['--num-heads', '3'], '3 heads do not divide 8 hiddens'),
    (['--num-hiddens', '0'], 'num_hiddens must be'),
    (['--num-layers', '0'], 'num_layers must be'),
    (['--dropout', '1'], 'dropout must be'),
    (['--num-steps', '0'], 'num_steps must be'),
    (['--log-interval', '0'], 'log_interval must be'),
    (['--devices', 'tpu'], "devices are 'tpu'"),
    (['--corpus', 'nowhere.txt'], 'there is no file or folder nowhere.txt'),
    (['--corpus', 'wikitext-2', '--data-dir', 'nowhere'],
     'there is no file or folder nowhere')])
def test_errors_of_pretrain_are_one_line(arguments, message, capsys,
                                         tmp_path):
    for out in ['--out', 'run'], []:
        err = fails(capsys, 'pretrain', *TINY, *out, *arguments)
        assert err.startswith('d2lbert pretrain: ') and message in err
        assert not os.listdir(tmp_path)


def test_an_existing_run_needs_force(run, capsys):
    before = contents(run)
    assert 'exists already' in fails(capsys, 'pretrain', *TINY, '--out', run)
    assert contents(run) == before


def test_any_text_in_the_format_can_be_trained_on(tmp_path, capsys):
    text = tmp_path / 'text.txt'
    text.write_text(''.join(f' The {i} birds sing . They fly . They sing . \n'
                            for i in range(9)), encoding='utf-8')
    assert main(['pretrain', *TINY, '--corpus', str(text)]) == 0
    folder, = tmp_path.glob('runs/*')
    assert 'birds' in (folder / 'vocab.txt').read_text('utf-8').split()


def test_ctrl_c_ends_with_one_line_and_the_run_can_go_on(tmp_path, capsys):
    process = start('pretrain', *TINY, '--out', 'runs/run', '--num-steps',
                    '1000000', '--save-every', '3', cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob('runs/run/checkpoints/*')):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    stopped = re.fullmatch(r'(?s)sample: .*\nstopped at step (\d+); go on '
                           'with: d2lbert pretrain --resume runs/run',
                           err.strip())
    assert stopped and out == '' and process.returncode == 130, err
    assert 'was not finished' in fails(capsys, 'encode', 'runs/run', 'a')
    last = str(int(stopped.group(1)) + 1)
    assert main(['pretrain', '--resume', 'runs/run', '--num-steps', last]
                ) == 0
    steps = (tmp_path / 'runs/run/losses.csv').read_text('utf-8').split()
    assert steps[-1].startswith(f'{last},')


def python(code):
    """Run code where this package is; (status, output, errors)."""
    done = subprocess.run(
        [sys.executable, '-c', 'import os, signal, sys\n' + code], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding='utf-8')
    return done.returncode, done.stdout, done.stderr


def test_ctrl_c_during_the_import_is_one_line_too():
    assert python(
        'sys.argv[:] = ["d2lbert", "pretrain"]\n'
        # Stopped where the package asks for MXNet, which takes seconds
        'class Interrupted:\n'
        '    def find_spec(self, name, path=None, target=None):\n'
        '        if name == "mxnet":\n'
        '            os.kill(os.getpid(), signal.SIGINT)\n'
        'sys.meta_path.insert(0, Interrupted())\n'
        'from d2lbert.__main__ import main\n'
        'main()\n') == (130, '', '\nstopped\n')


@pytest.mark.parametrize('place', [
    'argparse.ArgumentParser.parse_args',       # before the work
    'builtins.print'])      # an impatient second one, while a word is said
def test_ctrl_c_ends_quietly_wherever_it_comes(place):
    status, out, err = python(
        'sys.argv[:] = ["d2lbert", "cache"]\n'
        'import argparse, builtins\n'
        'from d2lbert.__main__ import main\n'
        'from d2lbert.machine import cache\n'
        'def interrupt(*_, **__):\n'
        '    os.kill(os.getpid(), signal.SIGINT)\n'
        'cache.main = interrupt\n'
        f'{place} = interrupt\n'
        'main()\n')
    assert (status, out) == (130, '') and err.strip() in ('stopped', '')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM,
                                    signal.SIGHUP])
def test_a_signal_leaves_no_partial_file_of_vectors(number, run, tmp_path,
                                                    monkeypatch, capsys):
    before = signal.signal(number, signal.SIG_DFL if number != signal.SIGINT
                           else signal.default_int_handler)
    try:
        monkeypatch.setattr(encoder, '_encoder',
                            lambda *_, **__: signal.raise_signal(number))
        assert main(['encode', str(run), 'a bird', '--out', 'x.npy']) == (
            128 + number)
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == '\nstopped\n'
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize('name', ['-m', 'script.py'])
def test_after_the_import_ctrl_c_is_the_callers(name):
    _, _, err = python(f'sys.argv[:] = [{name!r}]; import d2lbert\n'
                       'os.kill(os.getpid(), signal.SIGINT)\n'
                       'signal.pause()\n')
    assert err.rstrip().endswith('KeyboardInterrupt')


def test_ctrl_c_before_the_first_step_leaves_nothing(tmp_path, monkeypatch,
                                                     capsys):
    def interrupted(*args):
        raise KeyboardInterrupt
    monkeypatch.setattr(text_objective, 'read_corpus', interrupted)
    assert main(['pretrain', *TINY, '--out', 'run']) == 130
    out, err = capsys.readouterr()
    assert out == '' and err.strip() == 'stopped'
    assert os.listdir(tmp_path) == []


# encode

def words_and_vectors(text):
    lines = [line.split() for line in text.splitlines()]
    return ([line[0] for line in lines],
            onp.array([line[1:] for line in lines], float))


def expected_vectors(run, *texts):
    return d2l.get_bert_encoding(d2l.load_run(run)[0], *texts)[0].asnumpy()


def test_encode_prints_each_token_and_its_vector(run, capsys):
    assert main(['encode', str(run), 'An old Crane IS']) == 0
    out, err = capsys.readouterr()
    tokens, vectors = words_and_vectors(out)
    assert tokens == ['<cls>', 'an', 'old', 'crane', 'is', '<sep>']
    onp.testing.assert_allclose(
        vectors, expected_vectors(run, ['an', 'old', 'crane', 'is']),
        atol=5.1e-5)
    assert err == ''


def test_encode_takes_a_pair_and_writes_a_file(run, capsys, tmp_path):
    assert main(['encode', str(run), 'a crane', '--pair', 'it is',
                 '--out', 'x.npy']) == 0
    assert capsys.readouterr() == ('', '')
    vectors = onp.load(tmp_path / 'x.npy')
    assert vectors.shape == (7, 8) and vectors.dtype == 'float32'
    onp.testing.assert_array_equal(
        vectors, expected_vectors(run, ['a', 'crane'], ['it', 'is']))
    assert os.listdir(tmp_path) == ['x.npy']


def test_encode_names_unknown_words_on_standard_error(run, capsys):
    main(['encode', str(run), 'a zyzzyva crane', '--pair', 'qwertz zyzzyva'])
    out, err = capsys.readouterr()
    assert err == ('3 of 5 tokens are unknown words, read as '
                   '<unk>: zyzzyva, qwertz\n')
    tokens, vectors = words_and_vectors(out)
    assert tokens.count('zyzzyva') == 2
    onp.testing.assert_allclose(
        vectors, expected_vectors(run, ['a', '<unk>', 'crane'],
                                  ['<unk>', '<unk>']), atol=5.1e-5)


def test_encode_needs_a_run_and_words_and_room(run, capsys):
    assert 'no folder nowhere' in fails(capsys, 'encode', 'nowhere', 'a')
    assert 'text is empty' in fails(capsys, 'encode', run, ' ')
    assert '--pair is empty' in fails(capsys, 'encode', run, 'a',
                                      '--pair', '')
    assert '1003 tokens' in fails(capsys, 'encode', run, 'a ' * 1001)


@pytest.mark.parametrize('out, reason', [
    ('.', 'is a folder: name a file, as x.npy'),
    ('nowhere/x.npy', 'cannot be written: there is no folder nowhere'),
    ('/proc/x.npy', 'cannot be written: '),
    ('/dev/full', 'cannot be written: No space left on device')])
def test_encode_checks_out_before_any_work(out, reason, run, monkeypatch,
                                           capsys, tmp_path):
    if not Path(out).parent.exists() and out.startswith('/'):
        pytest.skip(f'there is no {out} here')
    monkeypatch.setattr(encoder, '_encoder', None)
    assert fails(capsys, 'encode', run, 'a', '--out', out).startswith(
        f'd2lbert encode: --out {out} {reason}')
    assert os.listdir(tmp_path) == []


LINES = ['A crane is flying', 'an old bird', 'the', 'it is a zyzzyva']


@pytest.fixture
def lines(tmp_path):
    """A file of four texts, one of them with an unknown word."""
    (tmp_path / 'texts').mkdir()
    path = tmp_path / 'texts' / 'lines.txt'
    path.write_text('\n'.join(LINES), encoding='utf-8')
    return path


def test_encode_prints_the_tokens_of_each_line_of_a_file(run, lines, capsys):
    assert main(['encode', str(run), '--file', str(lines)]) == 0
    out, err = capsys.readouterr()
    assert err == ('3 of 12 tokens are unknown words, read as '
                   '<unk>: flying, bird, zyzzyva\n')
    *blocks, end = out.split('\n\n')
    assert len(blocks) == 4 and end == ''
    for line, block in zip(LINES, blocks):
        tokens, vectors = words_and_vectors(block)
        assert tokens == ['<cls>', *line.lower().split(), '<sep>']
        onp.testing.assert_allclose(
            vectors, expected_vectors(run, tokens[1:-1]), atol=6e-5)


@pytest.mark.parametrize('at_once', [1, 3, 64])
@pytest.mark.parametrize('pool', ['cls', 'mean'])
def test_encode_pools_each_text_into_one_vector(run, lines, capsys, tmp_path,
                                                monkeypatch, pool, at_once):
    monkeypatch.setattr(encoding, 'MAX_TOKENS', at_once)
    flags = ['--file', str(lines), '--pool', pool]
    assert main(['encode', str(run), *flags, '--out', 'x.npy']) == 0
    vectors = onp.load(tmp_path / 'x.npy')
    assert vectors.shape == (4, 8) and vectors.dtype == 'float32'
    for line, vector in zip(LINES, vectors):
        tokens = expected_vectors(run, line.lower().split())
        onp.testing.assert_allclose(
            vector, tokens[0] if pool == 'cls' else tokens.mean(0),
            atol=1e-5)
    capsys.readouterr()
    assert main(['encode', str(run), *flags]) == 0
    onp.testing.assert_allclose(
        [[float(x) for x in line.split()]
         for line in capsys.readouterr().out.splitlines()], vectors,
        atol=6e-5)
    assert main(['encode', str(run), LINES[0], '--pool', pool, '--out',
                 'one.npy']) == 0
    onp.testing.assert_allclose(onp.load('one.npy'), vectors[:1], atol=1e-5)


def test_encode_writes_the_means_of_a_run_into_one_array(run, lines, capsys,
                                                         tmp_path):
    out = tmp_path / 'x.npy'
    assert main(['encode', str(run), '--file', str(lines), '--out',
                 str(out)]) == 0
    texts = [line for line in lines.read_text('utf-8').splitlines() if line]
    onp.testing.assert_array_equal(onp.load(out), d2l.encode(
        *d2l.load_run(run), texts, 'mean'))


def test_encode_answers_standard_input_line_by_line(run):
    process = start('encode', run, '--file', '-', '--pool', 'cls',
                    stdin=subprocess.PIPE)
    for line in LINES[:3]:
        process.stdin.write(line + '\n')
        process.stdin.flush()
        vector = [float(x) for x in process.stdout.readline().split()]
        onp.testing.assert_allclose(
            vector, expected_vectors(run, line.lower().split())[0], atol=6e-5)
    assert process.communicate() == ('', '2 of 8 tokens are unknown words, '
                                     'read as <unk>: '
                                     'flying, bird\n')
    assert process.returncode == 0


@pytest.mark.parametrize('data, reason', [
    (b'a\n\nb\n', 'lines.txt, line 2 is empty: put a text on each line'),
    (b'a\n\xff\n', 'lines.txt, line 2: byte 1 (0xff) is not UTF-8: convert'),
    (b'', 'lines.txt is empty: expected lines of text'),
    (b'a\n' + b'a ' * 999, 'lines.txt, line 2: 1001 tokens are more than the '
     '1000 positions of this model: cut the text'),
    (b'a' * 99999, 'lines.txt, line 1 is longer than 0 MiB: put each text')])
def test_a_line_that_cannot_be_encoded_is_named(run, data, reason, capsys,
                                                tmp_path, monkeypatch):
    monkeypatch.setattr(text_sources, 'MAX_LINE_BYTES', 1998)
    (tmp_path / 'lines.txt').write_bytes(data)
    assert reason in fails(capsys, 'encode', run, '--file', 'lines.txt',
                           '--pool', 'cls', '--out', 'x.npy')
    assert os.listdir(tmp_path) == ['lines.txt']


@pytest.mark.parametrize('flags, reason', [
    ([], 'give a text, or --file FILE with a text on each line'),
    (['a', '--file', 'x'], 'not both'), (['a', '--file', ''], 'not both'),
    (['a', '--text-field', 'x'], 'are for the lines of --file: leave them'),
    (['a', '--skip-empty'], 'are for the lines of --file: leave them out'),
    (['--file', 'x', '--pair', 'a'], '--pair goes with one text'),
    (['--file', 'x', '--out', 'x.npy', '--pool', 'none'],
     'give --pool cls or --pool mean'),
    (['--file', 'nowhere'], 'there is no file or folder nowhere'),
    (['a', '--out', ''], '--out  is a folder: name a file')])
def test_encode_refuses_conflicting_arguments(flags, reason, run, capsys):
    assert reason in fails(capsys, 'encode', run, *flags)


def test_encode_writes_into_a_pipe(run, tmp_path):
    data, _ = start('encode', run, 'a crane', '--out', '/dev/stdout',
                    encoding=None).communicate()
    onp.testing.assert_array_equal(onp.load(io.BytesIO(data)),
                                   expected_vectors(run, ['a', 'crane']))


def test_a_file_of_rows_is_numpys_own(tmp_path):
    rows = onp.random.RandomState(0).normal(size=(70, 5)).astype('float32')
    with vectors_file(tmp_path / 'x.npy') as file:
        for k in range(0, 70, 7):
            assert os.listdir(tmp_path) != ['x.npy']
            file.add([''] * 7, rows[k:k + 7])
    onp.testing.assert_array_equal(onp.load(tmp_path / 'x.npy'), rows)
    onp.testing.assert_array_equal(
        onp.load(tmp_path / 'x.npy', mmap_mode='r')[3:9], rows[3:9])


def test_encode_into_a_closed_pipe_says_nothing(run, tmp_path):
    # More than a pipe holds
    (tmp_path / 'texts').write_text(('a ' * 900 + '\n') * 10)
    process = start('encode', run, '--file', tmp_path / 'texts')
    process.stdout.readline()
    process.stdout.close()
    # A slow machine shows how far it is
    said = [line for line in process.stderr.read().splitlines()
            if not line.startswith('encoding ')]
    assert process.wait() == 1 and not said
