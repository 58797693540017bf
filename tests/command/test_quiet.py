"""Warnings of the package: logged, printed by commands, hidden on request."""
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import published
import pytest
import sentences

from d2lbert import progress
from d2lbert.command.cli import main
from d2lbert.machine import terminal

pytest.importorskip('tokenizers')
pytest.importorskip('safetensors')

LONG = ' '.join(['crane'] * 40)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return sentences.write_folder(tmp_path_factory.mktemp('x') / 'model')


@pytest.fixture
def headless(tmp_path):
    """A folder without heads, of which loading warns."""
    return published.write(tmp_path / 'headless', None, {
        name: tensor for name, tensor in published.draw(
            published.CONFIG).items() if not name.startswith('cls.')})


def test_the_library_prints_nothing_where_logging_is_set_up(headless):
    code = f'''
import logging
import d2lbert as d2l
assert not logging.getLogger('d2lbert').handlers
{{}}
d2l.load_pretrained({str(headless)!r})
'''
    def run(setup):
        return subprocess.run([sys.executable, '-c', code.format(setup)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              check=True)
    # Without any, Python prints it
    found = run('')
    assert b'are random' in found.stderr and found.stdout == b''
    quiet = "logging.getLogger('d2lbert').setLevel('ERROR')"
    assert (run(quiet).stdout, run(quiet).stderr) == (b'', b'')


@pytest.mark.parametrize('argv, warning', [
    (['encode', 'MODEL', LONG], 'were cut'),
    (['encode', 'MODEL', '鹤 crane'], 'unknown words, read as [UNK]: 鹤'),
    (['similar', 'MODEL', '鹤', '--file', 'x.txt'],
     'of the query are unknown words'),
    (['similar', 'MODEL', 'a', '--file', 'x.txt'],
     '1 of 13 tokens of the texts are unknown words'),
    (['encode', 'MODEL', '--file', 'gaps.txt', '--skip-empty'],
     '1 empty line was left out'),
    (['import', 'HEADLESS', 'run'], 'are random until')])
def test_quiet_hides_all_but_results_and_errors(argv, warning, folder,
                                                headless, tmp_path, capsys):
    (tmp_path / 'x.txt').write_text(f'a 山 crane\n{LONG}')
    (tmp_path / 'gaps.txt').write_text('a\n\nit is')
    argv = [{'MODEL': str(folder), 'HEADLESS': str(headless)}.get(part, part)
            for part in argv]
    assert main(argv) == 0
    loud = capsys.readouterr()
    assert warning in loud.err and 'Warning' not in loud.err
    argv = [part if part != 'run' else 'again' for part in argv]
    assert main([*argv, '--quiet']) == 0
    assert capsys.readouterr() == (loud.out, '')
    assert main([*argv[:1], 'none', *argv[2:], '-q']) == 1
    assert capsys.readouterr().err.count('\n') == 1


def test_a_quiet_run_shows_no_progress(capsys, tmp_path):
    argv = ['pretrain', '--corpus', 'sample', '--batch-size', '8',
            '--max-len', '24', '--num-hiddens', '8', '--ffn-num-hiddens', '8',
            '--num-layers', '1', '--num-steps', '1', '--seed', '1']
    assert main([*argv, '--out', 'loud']) == 0
    assert 'training' in capsys.readouterr().err
    assert main([*argv, '--out', 'run', '-q']) == 0
    out, err = capsys.readouterr()
    assert 'MLM loss' in out and err == ''
    assert 'quiet' not in json.loads(
        (tmp_path / 'run' / 'config.json').read_text())['training']


def test_a_command_leaves_warnings_and_logging_as_they_were(folder):
    before = (list(terminal.LOG.handlers), warnings.showwarning,
              list(warnings.filters), terminal.is_quiet())
    assert main(['encode', str(folder), 'a crane', '-q']) == 0
    assert main(['encode', 'none', 'a crane', '-q']) == 1
    assert before == (list(terminal.LOG.handlers), warnings.showwarning,
                      list(warnings.filters), terminal.is_quiet())


def test_evaluate_says_that_a_folder_is_no_run(folder, capsys):
    assert main(['evaluate', str(folder)]) == 1
    assert 'is not a run folder: its config.json does not describe a run' in (
        capsys.readouterr().err)


def test_long_work_on_texts_has_a_total(folder, tmp_path, capsys,
                                        monkeypatch):
    # A line as soon as there is something to count. The last one comes only
    # where the second text took a hundredth of the time of the first
    monkeypatch.setattr(progress.LineBar, 'INTERVAL', 0)
    (tmp_path / 'x.txt').write_text('a crane\nit is\n')
    bart = Path(__file__).parents[1] / 'pretrained' / 'fixtures' / 'bart-0'
    for argv in (['encode', folder, '--out', 'x.npy'], ['encode', folder],
                 ['similar', folder, 'a'], ['generate', bart]):
        argv = [*map(str, argv), '--file', 'x.txt']
        assert main(argv) == 0
        assert re.search(r'\b[12]/2 texts', capsys.readouterr().err)
