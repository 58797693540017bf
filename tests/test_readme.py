"""What the README shows is what happens."""
import json
import re
import runpy
import subprocess
import sys

import manual_world
import pytest
from manual_world import NOT_RUN, ROOT, blocks, commands

README = (ROOT / 'README.md').read_text('utf-8')


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp('readme')
    manual_world.make(folder)
    return folder


@pytest.fixture
def here(world, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.setenv('D2LBERT_DATA', str(world / 'data'))
    return world


def test_it_can_be_read_in_five_minutes():
    assert len(README.splitlines()) <= 250


def test_the_python_block_runs_as_printed(here, monkeypatch):
    # The sample corpus is in the place of WikiText-2; 2 steps, not 50
    code, = blocks(README, 'python')
    assert code.count(', 50)') == 1
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    done = subprocess.run(
        [sys.executable, '-c', code.replace(', 50)', ', 2)')], cwd=here,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0, done.stderr.decode()
    assert re.fullmatch(r'MLM loss \d+\.\d{3}, NSP loss \d+\.\d{3}', lines[0])
    assert re.fullmatch(r'\d+\.\d sentence pairs/sec on \[.*\]', lines[1])
    assert lines[2] == '(1, 6, 128)'


def test_the_commands_run(here, capsys):
    first, = [line for line in commands(README) if not NOT_RUN.match(line)]
    assert manual_world.run(first, here) == 0
    printed, = blocks(README, 'text')
    shapes = [re.sub(r'\d+', r'\\d+', re.escape(line))
              for line in printed.splitlines()]
    for shape, line in zip(shapes, capsys.readouterr().out.splitlines()):
        assert re.fullmatch(shape, line)
    shown = re.findall(r'^\| [^|]* \| `(d2lbert [^`]*)` \|', README, re.M)
    assert len(shown) > 10
    for line in shown:
        assert manual_world.run(line, here) == 0, line


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
    needed = re.findall(r'`apt-get\s+install\s+([^`]*)`', README)
    assert any('libgomp1' in packages for packages in needed)
    for packages in needed:
        assert set(packages.split()) <= named
