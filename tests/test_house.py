"""The house: rooms in an order, and imports that go one way.

What a module imports is read from its text, inside functions, too, and so
are names of modules in strings, as `importlib` and `needs` take them.
"""
import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / 'd2lbert'

#: Rooms and modules, lowest first. Each may import from itself and from those
#: before it.
ORDER = [
    '_version',
    'machine',          # the door to MXNet, cores, GPUs, cache, whole files
    'kernels',          # operators in C++ and their plain twins
    'progress', 'devices', 'text',      # the book's tools
    'nn',               # below the pages: checks, layers, rows without padding
    'texts',            # below the pages: words, vocabularies, files of text
    'hub', 'attention', 'transformer', 'bert',      # the book's pages
    'bert_dataset', 'bert_pretraining',
    'multi_device', 'natural_language_inference',
    'pretrained',       # BERT as released
    'corpus',           # texts of any size
    'objectives',       # what a batch asks, its losses and figures
    'training',         # a run one can trust
    'finetuning',       # labelled tasks, heads, predictions
    'pictures',         # attention, senses, the page that shows them
    'text_model',       # a loaded model and its methods
    'names',            # the flat public names
    'book',             # the book's own files, run unchanged
    '__init__',
    'launch',           # several processes and machines
    'command',          # the command, a file for each sub-command
    '__main__',
]

def name_of(path):
    parts = path.relative_to(PACKAGE).with_suffix('').parts
    return '.'.join(parts[:-1] if len(parts) > 1 and parts[-1] == '__init__'
                    else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob('*.py'))}


def module_of(dotted):
    """The module of the package that a dotted name is, or None."""
    _, _, name = dotted.partition('d2lbert.')
    return name if dotted == f'd2lbert.{name}' and name in MODULES else None


def imports(text):
    """The modules of the package that a module's text imports."""
    found, tree = set(), ast.parse(text)
    started = {id(after) for node in ast.walk(tree)
               if isinstance(node, (ast.Tuple, ast.List))
               for option, after in zip(node.elts, node.elts[1:])
               if getattr(option, 'value', None) == '-m'}
    for node in ast.walk(tree):
        if id(node) in started:
            continue            # what another process runs
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.add('__init__' if alias.name == 'd2lbert'
                          else module_of(alias.name))
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, 'imports name the whole way'
            room = module_of(node.module) or (
                '__init__' if node.module == 'd2lbert' else None)
            for alias in node.names:
                found.add(module_of(f'{node.module}.{alias.name}') or room)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(module_of(node.value))
    return found - {None}


@pytest.fixture(scope='module')
def arrows():
    """For each module those that it imports, but for itself."""
    return {name: imports(path.read_text('utf-8')) - {name}
            for name, path in MODULES.items()}


def place(module):
    return ORDER.index(module.split('.')[0])


def test_each_module_has_a_place_in_the_order():
    assert {name.split('.')[0] for name in MODULES} == set(ORDER)


def test_imports_go_one_way(arrows):
    upwards = {(module, other) for module, others in arrows.items()
               for other in others if place(other) > place(module)}
    assert not upwards


def test_there_is_no_circle(arrows):
    waiting = dict(arrows)
    while waiting:
        free = [name for name, others in waiting.items()
                if not others & set(waiting)]
        assert free, f'in or above a circle: {sorted(waiting)}'
        for name in free:
            del waiting[name]


def test_all_ways_to_import_are_seen():
    assert imports('''
import d2lbert
import d2lbert.text
from d2lbert import hub, BERTModel
def later():
    from d2lbert.machine import files
    from d2lbert.training.load import load_run
    importlib.import_module('d2lbert.command.doctor')
    print('see d2lbert.progress', 'd2lbert')
    subprocess.run([sys.executable, '-m', 'd2lbert.devices'])
''') == {'__init__', 'text', 'hub', 'machine.files',
         'training.load', 'command.doctor'}


def test_no_class_is_long():
    lengths = {f'{module}.{node.name}': node.end_lineno - node.lineno
               for module, path in MODULES.items()
               for node in ast.walk(ast.parse(path.read_text('utf-8')))
               if isinstance(node, ast.ClassDef)}
    assert len(lengths) > 100
    assert not {name for name, length in lengths.items() if length > 250}


def test_the_order_is_that_of_the_guide_for_contributors():
    guide = (PACKAGE.parent / '.github' / 'CONTRIBUTING.md').read_text('utf-8')
    table = guide[guide.index('| | |'):guide.index('Limits:')]
    named = [name for row in table.splitlines()[2:] if row
             for name in re.findall(r'`(\w+)(?:\.py|/)`', row.split('|')[1])]
    assert named == [name for name in ORDER
                     if name not in ('_version', '__main__')]
    for link in re.findall(r'\]\(([^)]+)\)', guide):
        assert (PACKAGE.parent / '.github' / link).exists(), link
    for path in re.findall(r'`?((?:tests/|\.ci/)[\w/.]+)', guide):
        assert (PACKAGE.parent / path).exists(), path
    for name in re.findall(r'`((?:\w+/)*\w+\.(?:py|cc|h))`', guide):
        if 'NAME' not in name:
            assert list(PACKAGE.parent.rglob(name)), name


def test_a_fixture_that_deselects_tests_has_a_name_of_its_own():
    # pytest_collection_modifyitems knows fixtures by their names alone
    tests = Path(__file__).parent
    conftest = (tests / 'conftest.py').read_text('utf-8')
    needed = ast.literal_eval(re.search(r'^NEEDED = (\{.*?\})', conftest,
                                        re.DOTALL | re.MULTILINE).group(1))
    places = [(name, path.relative_to(tests).as_posix())
              for path in tests.rglob('*.py')
              for name in re.findall(r'@pytest\.fixture.*\ndef (\w+)',
                                     path.read_text('utf-8'))]
    assert sorted(place for place in places if place[0] in needed) == [
        ('ask', 'pretrained/conftest.py'), ('peers_python', 'conftest.py'),
        ('released', 'pictures/test_inside.py'),
        ('released', 'pretrained/test_wordpiece.py')]


def test_what_the_checks_install_is_pinned():
    root = PACKAGE.parent
    for path in (root / '.github' / 'workflows').glob('*.yml'):
        used = re.findall(r'uses: *(\S+)', path.read_text('utf-8'))
        assert used
        for action in used:
            # A tag can be moved to another commit
            assert re.fullmatch(r'[\w./-]+@[0-9a-f]{40}', action), action
    updates = (root / '.github' / 'dependabot.yml').read_text('utf-8')
    assert 'github-actions' in updates
    for line in (root / '.ci' / 'run').read_text('utf-8').splitlines():
        assert 'd2l==' not in line
    oracle = (root / '.ci' / 'oracle.txt').read_text('utf-8')
    assert re.search(r'^d2l==0\.17\.6 \\\n +--hash=sha256:[0-9a-f]{64}$',
                     oracle, re.M)
