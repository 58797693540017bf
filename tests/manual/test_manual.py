"""The manual: its pages name what exists, and show what happens."""
import ast
import inspect
import re
import runpy
import shlex

import manual_world
import pytest
import stub
from blocks import BLOCK, PAGES, WRITERS, written
from manual_world import NOT_RUN, ROOT, commands

from d2lbert import __version__, names
from d2lbert.__main__ import parser
from d2lbert.command import cli, help

TEXTS = {page: page.read_text('utf-8') for page in PAGES}
MANUAL = [page for page in PAGES if page.parent.name == 'manual']
by_name = pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)


@by_name
def test_what_programs_write_is_as_they_write_it(page):
    assert written(TEXTS[page]) == TEXTS[page], (
        'python tests/manual/blocks.py writes it again')


def test_editors_are_told_the_public_names_and_all_settings():
    found = stub.STUB.read_text('utf-8')
    assert found == stub.text(), (
        'python tests/manual/blocks.py writes it again')
    tree = ast.parse(found)
    told = {alias.asname for node in tree.body
            if isinstance(node, ast.ImportFrom) for alias in node.names}
    functions = {node.name: node for node in tree.body
                 if isinstance(node, ast.FunctionDef)}
    assert told - {None} | set(functions) == set(names.__all__)
    for name, function in functions.items():
        wanted = inspect.signature(getattr(names, name)).parameters
        arguments = function.args.args + function.args.kwonlyargs
        assert [argument.arg for argument in arguments] == list(wanted)
        defaults = function.args.defaults + function.args.kw_defaults
        assert [ast.literal_eval(default) for default in defaults] == [
            parameter.default for parameter in wanted.values()]
    assert (stub.STUB.parent / 'py.typed').is_file()


def test_each_writer_has_its_place():
    used = [name for text in TEXTS.values()
            for _, name, _, _ in BLOCK.findall(text)]
    assert sorted(used) == sorted(WRITERS)
    for text in TEXTS.values():
        assert text.count('<!-- begin') == len(BLOCK.findall(text))


@by_name
def test_no_measured_figure_is_typed_by_hand(page):
    text = re.sub('```.*?```', '', BLOCK.sub('', TEXTS[page]),
                  flags=re.DOTALL)
    typed = re.findall(r'\d[\d.,]*(?: to [\d.]+)?\s?(?:×|times as|pairs/s|'
                       r'texts/s|GFLOP|MiB|MB/s|s a step)', text)
    assert not typed


def slug(title):
    """The anchor that a heading gets."""
    return re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-')


@by_name
def test_links_lead_somewhere(page):
    prose = re.sub('^```.*?^```$', '', TEXTS[page], flags=re.DOTALL | re.M)
    for link in re.findall(r'\]\(([^)]+)\)', prose):
        if link.startswith('https://'):
            continue
        path, _, anchor = link.partition('#')
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            titles = re.findall('^#+ (.*)$', target.read_text('utf-8'), re.M)
            assert anchor in map(slug, titles), link


def test_the_contents_and_the_readme_list_each_page():
    index = (help.MANUAL / 'index.md').read_text('utf-8')
    assert re.findall(r'^\| \[(\w+)\]\((\w+)\.md\)', index, re.M) == [
        (name, name) for name in re.findall(r'\]\((\w+)\.md\)', index)]
    named = set(re.findall(r'\]\((\w+)\.md\)', index))
    assert named == set(help.topics())
    in_readme = set(re.findall(r'd2lbert/manual/(\w+)\.md',
                               TEXTS[ROOT / 'README.md']))
    assert in_readme == named


def test_every_command_is_listed():
    table = (help.MANUAL / 'commands.md').read_text('utf-8')
    for command in sum(cli.GROUPS.values(), ()):
        name = command.__name__.rpartition('.')[2]
        assert re.search(rf'^\| .*`{name}[ `]', table, re.M), name


def words_of(line):
    return shlex.split(re.split(r' (?:<|\\?\|) ', line)[0])[1:]


@by_name
def test_commands_and_their_flags_exist(page, capsys):
    shown = commands(TEXTS[page]) + [
        line for line in re.findall(r'`(d2lbert [^`]*)`', TEXTS[page])
        if not re.search(r'[A-Z…]{3}', line) and ' ' in line[8:]]
    for line in shown:
        if line.startswith('d2lbert '):
            try:
                parser().parse_args(words_of(line))
            except SystemExit as stopped:
                assert stopped.code == 0, (line, capsys.readouterr().err)
        else:
            assert NOT_RUN.match(line), line


@by_name
def test_flags_in_the_prose_exist(page):
    known = ' '.join(
        sub.format_help() for sub in
        parser()._subparsers._group_actions[0].choices.values())
    known += ''.join(path.read_text('utf-8')
                     for path in (ROOT / 'tests/bench').glob('*.py'))
    prose = re.sub('^```.*?^```$', '', TEXTS[page], flags=re.DOTALL | re.M)
    for flag in re.findall(r'`(--[a-z][a-z-]+)', prose):
        assert flag in known or flag in ('--help', '--user'), flag


@by_name
def test_benchmarks_have_the_flags_that_are_shown(page):
    shared = ''.join(path.read_text('utf-8') for path in
                     (ROOT / 'tests' / 'bench').glob('bench*.py')
                     if path.stem.startswith('benchmark'))
    for line in re.findall(r'python (tests/\S+\.py[^`\n]*)', TEXTS[page]):
        program, *words = shlex.split(line)
        source = (ROOT / program).read_text('utf-8') + shared
        for word in words:
            if word.startswith('--'):
                assert f"'{word}'" in source, line


@by_name
def test_extras_that_are_named_exist(page):
    extras = runpy.run_path(str(ROOT / 'setup.py'))['extras']()
    for extra in re.findall(r"'\.\[(\w+)\]'", TEXTS[page]):
        assert extra in extras


def test_all_brings_what_any_command_uses():
    extras = runpy.run_path(str(ROOT / 'setup.py'))['extras']()
    for name in 'notebook', 'parquet', 'pretrained', 'punkt', 'zstd':
        assert set(extras[name]) <= set(extras['all'])
    for library in 'tokenizers', 'safetensors', 'pandas', 'ipykernel':
        assert any(package.startswith(library)
                   for package in extras['notebook'])


def test_every_environment_variable_is_listed():
    listed = set(re.findall(
        r'^\| `(D2LBERT_\w+)`', (help.MANUAL / 'environment.md')
        .read_text('utf-8'), re.M))
    macros = {'D2LBERT_AMX_EMULATED', 'D2LBERT_PLAIN_LOOP'}     # of C++
    sources = [path for top in ('d2lbert', 'tests', 'notebooks', '.ci')
               for path in (ROOT / top).rglob('*')
               if path.suffix in ('.py', '.ipynb', '') and path.is_file()]
    used = {name for path in [ROOT / 'setup.py', *sources]
            for name in re.findall(r'D2LBERT_[A-Z]+(?:_[A-Z]+)*\b',
                                   path.read_text('utf-8', 'replace'))}
    assert listed == used - macros


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / '.github' / 'CITATION.cff').read_text('utf-8')
    assert f'\nversion: {__version__}\n' in citation
    changes = (ROOT / '.github' / 'CHANGELOG.md').read_text('utf-8')
    assert re.findall('^## (.*)$', changes, re.M)[0] == __version__


@pytest.fixture
def world(tmp_path, monkeypatch):
    folder = tmp_path / 'world'
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv('D2LBERT_DATA', str(folder / 'data'))
    monkeypatch.setenv('MPLBACKEND', 'agg')
    manual_world.make(folder)
    return folder


def steps(text):
    """(language, code) of the lines and programs of a page, in order."""
    for language, code in re.findall(r'```(bash|python)\n(.*?)```', text,
                                     re.DOTALL):
        if language == 'python':
            yield language, code
        else:
            for line in commands(f'```bash\n{code}```'):
                if not NOT_RUN.match(line):
                    yield language, line


def outputs(line):
    """The folders that a command makes."""
    words = shlex.split(line)
    made = [after for word, after in zip(words, words[1:])
            if word == '--out']
    if words[1] in ('import', 'export'):
        made.append(words[-1])
    return set(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    'page', [page for page in MANUAL if list(steps(TEXTS[page]))],
    ids=lambda page: page.stem)
def test_the_manual_s_commands_run(page, world, monkeypatch, tmp_path):
    if "'bert.small'" in TEXTS[page]:
        # tests/test_natural_language_inference.py runs that program
        TEXTS[page] = re.sub(r'```python\n(?:(?!```).)*bert\.small.*?```',
                             '', TEXTS[page], flags=re.DOTALL)
    text = TEXTS[page]
    if 'generate bart' in text:
        manual_world.make_bart(world)
    (world / 'text.txt').write_text('cranes fly .\n' * 9)
    made = set()
    for language, code in steps(text):
        for run in sorted(set(re.findall(r'runs/\w+', code)) - made):
            if language == 'python' or run not in outputs(code):
                made.add(run)
                manual_world.make_run(run)
        if language == 'python':
            if 'WordPiece.train' in code:
                continue    # tests/pretrained/test_wordpiece.py runs it
            exec(compile(code, str(page), 'exec'), {})
            continue
        made |= outputs(code)
        with monkeypatch.context() as patch:
            if code.startswith('d2lbert cache'):
                patch.setenv('D2LBERT_CACHE', str(tmp_path / 'cache'))
            assert manual_world.run(code, world) == 0, code
