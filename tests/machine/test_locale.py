"""A home with a Chinese name, where the locale knows ASCII only."""
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from d2lbert import hub, kernels
from d2lbert.__main__ import main

ROOT = Path(hub.__file__).resolve().parents[1]
TINY = ['--batch-size', '16', '--max-len', '24', '--num-hiddens', '8',
        '--ffn-num-hiddens', '8', '--num-layers', '1', '--seed', '1']


@pytest.fixture(scope='module')
def home(tmp_path_factory):
    """A home folder, with a text, a run of it and a cache of its own."""
    home = tmp_path_factory.mktemp('place') / '家'
    home.mkdir()
    shutil.copy(hub.sample_dir() / hub.TRAIN_FILE, home / '文.txt')
    if kernels.load():      # compiling takes too long for a test
        # Another process may be compiling into a folder *.part
        shutil.copytree(kernels.OPERATORS.path.parent,
                        home / '.cache' / 'd2lbert' / 'kernels',
                        ignore=shutil.ignore_patterns('*.part'))
    return home


def run(home, *arguments):
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(('LC_', 'XDG_', 'D2LBERT_CACHE'))}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True,
        encoding='utf-8', cwd=home, env=dict(
            env, HOME=str(home), LC_ALL='C', PYTHONUTF8='0', COLUMNS='300',
            PYTHONCOERCECLOCALE='0', PYTHONPATH=str(ROOT)))


def test_everything_works_in_this_process(home):
    # Several commands in one process, since its start takes seconds
    code = '''
        import sys
        assert sys.getfilesystemencoding() == 'ascii'
        from d2lbert.__main__ import main
        text, out, vectors, *tiny = sys.argv[1:]
        for arguments in (
                ['doctor'], ['cache'],
                ['pretrain', '--corpus', text, *tiny, '--num-steps', '2',
                 '--save-every', '1', '--eval-every', '2', '--out', out],
                ['pretrain', '--resume', out, '--num-steps', '3'],
                ['encode', out, 'a crane', '--out', vectors],
                ['evaluate', out]):
            print(arguments[0])
            status = main(arguments)
            assert status == 0, (arguments, status)
    '''
    out = home / '跑'
    done = run(home, '-c', textwrap.dedent(code), home / '文.txt', out,
               home / '鹤.npy', *TINY)
    assert done.returncode == 0, done.stderr
    if kernels.load():
        assert f'loaded from {home}/.cache/d2lbert/kernels/ops' in done.stdout
    assert 'mlm_accuracy' in done.stdout
    assert (out / 'model.params').is_file() and (home / '鹤.npy').is_file()
    # The files written there can be used here
    corpus = json.loads((out / 'config.json').read_text('utf-8'))['training'][
        'corpus']
    assert Path(corpus).samefile(home / '文.txt')


def test_the_command_understands_words(home):
    """It starts again in a mode in which they are text."""
    out = home / 'run'
    assert main(['pretrain', '--corpus', str(home / '文.txt'), *TINY,
                 '--num-steps', '1', '--out', str(out)]) == 0
    vocab = (out / 'vocab.txt').read_text('utf-8')
    (out / 'vocab.txt').write_text(vocab.replace('\nthe\n', '\n鹤\n'), 'utf-8')
    done = run(home, '-W', 'ignore', '-m', 'd2lbert', 'encode', out, '鹤 龟')
    assert (done.returncode, done.stderr) == (
        0, '1 of 2 tokens are unknown words, read as <unk>: 龟\n')
    assert done.stdout.splitlines()[1].startswith('鹤 ')
