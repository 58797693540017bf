"""What the README shows is what happens."""
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from d2lbert import hub
from d2lbert.__main__ import parser

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / 'README.md').read_text(encoding='utf-8')


def blocks(language):
    return re.findall(rf'```{language}\n(.*?)```', README, re.DOTALL)


def test_the_python_block_runs_as_printed(tmp_path, monkeypatch):
    # The sample corpus stands in for WikiText-2, and 2 steps for 50
    folder = tmp_path / 'wikitext-2'
    shutil.copytree(hub.sample_dir(), folder)
    monkeypatch.setenv('D2LBERT_DATA', str(tmp_path))
    code = blocks('python')[0]
    assert code.count(', 50)') == 1
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    done = subprocess.run(
        [sys.executable, '-c', code.replace(', 50)', ', 2)')],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        timeout=300)
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0, done.stderr.decode()
    assert re.fullmatch(r'MLM loss \d+\.\d{3}, NSP loss \d+\.\d{3}', lines[0])
    assert re.fullmatch(r'\d+\.\d sentence pairs/sec on \[.*\]', lines[1])
    assert lines[2] == '(1, 6, 128)'


def test_every_command_shown_is_one_that_exists(capsys):
    names = set(re.findall(r'd2lbert ([a-z]+)', ' '.join(
        blocks('bash') + re.findall(r'`(d2lbert [^`]*)`', README))))
    assert names
    for name in names:
        with pytest.raises(SystemExit) as stopped:
            parser().parse_args([name, '--help'])
        assert stopped.value.code == 0
        capsys.readouterr()


def test_every_flag_shown_is_one_that_exists(capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(['pretrain', '--help'])
    known = capsys.readouterr().out
    table = README[README.index('## Longer runs'):README.index('### Several')]
    flags = re.findall(r'`(--[a-z-]+)', table)
    assert len(flags) > 5
    for flag in flags:
        assert flag in known, flag


def test_every_file_and_folder_named_is_there():
    links = re.findall(r'\]\(([^)#:]+)\)', README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
    table = README[README.index('## The files'):README.index('## GPUs')]
    for name in re.findall(r'`([\w/]+\.py)`', table):
        assert (ROOT / name).exists() or (ROOT / 'd2lbert' / name).exists()


def test_an_index_shows_neither_broken_pictures_nor_broken_links():
    shown = runpy.run_path(str(ROOT / 'setup.py'))['readme']()

    def prose(text):
        return re.sub('^```.*?^```$', '', text, flags=re.DOTALL | re.M)
    # As the text of a link, it would have a relative address, or an anchor,
    # which an index gives no heading
    targets = re.findall(r'\]\(([^)]*)\)', prose(shown))
    assert [to for to in targets if not to.startswith('https://')] == []
    assert '![' not in prose(shown) and '<img' not in shown
    # Nothing else is gone
    for pattern in '^```.*?^```$', '^#+ .*?$', r'(?<=\]\()https:[^)]*':
        assert (re.findall(pattern, shown, re.DOTALL | re.M)
                == re.findall(pattern, README, re.DOTALL | re.M))

    def words(text):
        text = re.sub(r'!\[[^]]*\]\([^)]*\)', '', prose(text))
        return re.sub(r'\]\([^)]*\)|\[|\]', '', text).split()
    assert words(shown) == words(README)


def test_a_workspace_has_what_the_readme_says_is_needed():
    described = json.loads((ROOT / '.devcontainer' / 'devcontainer.json')
                           .read_text('utf-8'))
    assert re.fullmatch(r'python:3\.(8|9|10|11|12)-\w+', described['image'])
    assert described['postCreateCommand'] == "pip install -e '.[test]'"
    named = set(described['onCreateCommand'].split())
    needed = re.findall(r'`apt-get\s+install\s+(lib[^`]*)`', README)
    assert needed
    for packages in needed:
        assert set(packages.split()) <= named
    assert 'g++' in named
