"""The notebooks: as committed, and executed anew with small sizes."""
import ast
import re
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip('nbformat')
nbclient = pytest.importorskip('nbclient')
pytest.importorskip('ipykernel')

from jupyter_client.kernelspec import (  # noqa: E402
    KernelSpec,
    KernelSpecManager,
)
from jupyter_client.manager import KernelManager  # noqa: E402

import d2lbert  # noqa: E402

ROOT = Path(d2lbert.__file__).resolve().parent.parent
FOLDER = Path(__file__).resolve().parent.parent / 'notebooks'
PAGES = 'bert', 'bert-dataset', 'bert-pretraining', 'first-edition'

#: Notebooks of what the pages do not show, on the package's own names.
BEYOND = ('recipe', 'context', 'inference', 'search', 'finetuning',
          'checkpoints', 'exercises')
NAMES = *PAGES, *BEYOND

# What a test may shrink: the names that the parameters cell assigns
NET = dict(vocab_size=50, num_hiddens=16, ffn_num_hiddens=24, num_heads=2,
           dropout=0.1, seed=1)
DATA = dict(batch_size=20, max_len=32, corpus='sample', seed=1)
PARAMETERS = {
    'bert': dict(NET, num_blks=1),
    'bert-dataset': DATA,
    'bert-pretraining': dict(DATA, num_steps=3),
    'first-edition': dict(DATA, **NET, num_layers=1, log_interval=1,
                          num_steps=3),
    'recipe': dict(book_steps=2, num_steps=3, eval_every=2, vocab_size=200,
                   corpus='sample', seed=1),
    'context': dict(num_steps=4, save_every=2, vocab_size=200,
                    corpus='sample', width=8, min_count=4, seed=1),
    'inference': dict(num_train=60, num_test=30, num_epochs=1,
                      weights='minilm', seed=1),
    'search': dict(texts_file=None, num_texts=120, weights='minilm', seed=1),
    'finetuning': dict(sizes=[20, 40], num_dev=20, num_cola=40, num_chosen=8,
                       num_epochs=1, weights='minilm', seed=1),
    'checkpoints': dict(num_train=40, num_epochs=1, weights='minilm', seed=1),
    'exercises': dict(corpus='sample', max_vocab=200, num_steps=6,
                      gelu_steps=4, piece_sizes=[300, 600], large=False,
                      length=32, fetch=False, seed=1),
}

# How the package spells what the first edition's definitions give
FIRST_EDITION = '''
import functools
BERTEncoder = functools.partial(BERTEncoder, positional='sinusoidal')
BERTModel = functools.partial(BERTModel, positional='sinusoidal')
'''


def read(name):
    return nbformat.read(FOLDER / f'{name}.ipynb', as_version=4)


def code_cells(nb, tag=None):
    return [cell for cell in nb.cells if cell.cell_type == 'code'
            and (tag is None or tag in cell.metadata.get('tags', ()))]


def text_below(cell):
    """What a cell printed, however it was cut up, and shows as its value."""
    return ''.join(output.get('text') or output['data'].get('text/plain')
                   for output in cell.outputs
                   if output.output_type in ('stream', 'execute_result')
                   and output.get('name') != 'stderr')


def pictures(nb):
    return [output.data for cell in code_cells(nb) for output in cell.outputs
            if output.output_type == 'display_data']


def assigned(source):
    """The names that a cell's assignments bind, in order."""
    return [name.id for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Assign) for target in node.targets
            for name in getattr(target, 'elts', [target])]


def defined(cell):
    return [node.name for node in ast.parse(cell.source).body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef))]


class ThisPython(KernelSpecManager):
    """Kernels of the Python that runs the tests, installed or not."""

    def get_kernel_spec(self, kernel_name):
        return KernelSpec(
            argv=[sys.executable, '-m', 'ipykernel_launcher', '-f',
                  '{connection_file}'],
            display_name='Python 3', language='python')


def execute(name, folder, monkeypatch, without_definitions=False):
    """Run a notebook in `folder` with small sizes; returns it with outputs."""
    nb = read(name)
    (parameters,) = code_cells(nb, 'parameters')
    assert sorted(assigned(parameters.source)) == sorted(PARAMETERS[name])
    parameters.source = '\n'.join(
        f'{key} = {value!r}' for key, value in PARAMETERS[name].items())
    if without_definitions:
        definitions = code_cells(nb, 'definition')
        names = [n for cell in definitions for n in defined(cell)]
        definitions[0].source = f'from d2lbert import {", ".join(names)}'
        if name == 'first-edition':
            definitions[0].source += FIRST_EDITION
        nb.cells = [cell for cell in nb.cells
                    if cell not in definitions[1:]]
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    nbclient.NotebookClient(
        nb, km=KernelManager(kernel_spec_manager=ThisPython()), timeout=300,
        resources={'metadata': {'path': str(folder)}},
    ).execute(cleanup_kc=True)
    return nb


@pytest.mark.parametrize('name', PAGES)
def test_notebook_runs_as_printed_and_on_the_packages_own_names(
        name, tmp_path, monkeypatch):
    printed = execute(name, tmp_path, monkeypatch)
    package = execute(name, tmp_path, monkeypatch, without_definitions=True)
    usage = [[cell for cell in code_cells(nb)
              if 'definition' not in cell.metadata.get('tags', ())]
             for nb in (printed, package)]
    assert len(usage[0]) == len(usage[1])
    if name in ('bert', 'bert-dataset'):
        # Shapes, and whatever Python's and NumPy's random numbers decide
        assert [*map(text_below, usage[0])] == [*map(text_below, usage[1])]
    else:
        for nb in printed, package:
            assert any('image/svg+xml' in data for data in pictures(nb))
            shown = ' '.join(
                ' '.join(map(text_below, code_cells(nb))).split())
            assert '((1, 6, 128), (1, 128), array([' in shown
            assert '((1, 10, 128), (1, 128), array([' in shown
    # Where a cell compares the two ways to do it, they agree
    assert not any('False' in text_below(cell) for nb in (printed, package)
                   for cell in code_cells(nb))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('name', BEYOND)
def test_notebook_runs_without_data_and_weights(name, tmp_path, monkeypatch):
    for variable in 'D2LBERT_DATA', 'D2LBERT_WEIGHTS':
        monkeypatch.delenv(variable, raising=False)
    committed, run = read(name), execute(name, tmp_path, monkeypatch)
    # All that it shows where there are some it shows here, too
    for there, here in zip(code_cells(committed), code_cells(run)):
        # Small models warn of words that they do not know
        shown = kinds(here) - {'stderr'}
        if 'weights' in here.metadata.get('tags', ()):
            # What only released weights show is left out, not replaced
            assert shown <= {'stdout'}
        else:
            assert kinds(there) == shown, here.source
        # Where a cell compares two ways, they agree
        assert not re.search(r'(^|: |, |\[)False\b', text_below(here))
    assert not list(tmp_path.iterdir())


def kinds(cell):
    """What a cell shows: names of streams, types of values and pictures."""
    return {kind for output in cell.outputs
            for kind in output.get('data') or [output.name]}


@pytest.mark.parametrize('name', NAMES)
def test_committed_notebook_was_run_from_top_to_bottom(name):
    nb = read(name)
    nbformat.validate(nb)
    cells = code_cells(nb)
    assert ([cell.execution_count for cell in cells]
            == list(range(1, len(cells) + 1)))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    for output in outputs:
        assert output.output_type != 'error'
        assert output.get('name') != 'stderr'


@pytest.mark.parametrize('name', NAMES)
def test_committed_notebook_begins_with_title_parameters_and_imports(name):
    nb = read(name)
    assert nb.cells[0].cell_type == 'markdown'
    assert nb.cells[0].source.startswith('# ')
    parameters, imports = code_cells(nb)[:2]
    assert parameters.metadata.tags == ['parameters']
    assert len(code_cells(nb, 'parameters')) == 1
    assert 'import d2lbert as d2l' in imports.source
    assert bool(code_cells(nb, 'definition')) == (name in PAGES)


@pytest.mark.parametrize('name', NAMES)
def test_committed_notebook_is_small_and_tells_nothing_of_a_machine(name):
    path = FOLDER / f'{name}.ipynb'
    text = path.read_text(encoding='utf-8')
    assert len(text.encode()) < 200_000
    assert not re.search(r'["\s\'(](/[a-z]+)+/\w|[A-Z]:\\\\|site-packages',
                         re.sub(r'https?://\S+', '', text))
    nb = read(name)
    assert nb.metadata == {
        'kernelspec': {'display_name': 'Python 3', 'language': 'python',
                       'name': 'python3'},
        'language_info': {'name': 'python'}}
    for cell in nb.cells:
        assert set(cell.metadata) <= {'tags'}
    for cell in code_cells(nb):
        assert max(map(len, cell.source.split('\n'))) <= 79


@pytest.mark.parametrize('name', NAMES)
def test_lines_in_committed_charts_are_seen(name):
    charts = [data['image/svg+xml'] for data in pictures(read(name))
              if 'image/svg+xml' in data]
    for chart in charts:
        lines = re.findall(r'<g id="line2d_\d+">(.*?)</g>', chart, re.DOTALL)
        assert len(lines) > 2       # the grid has some
        for line in lines:
            # One point has no length: only a marker shows it
            assert ' L ' in line or '<use ' in line


@pytest.mark.parametrize('name', ['bert-pretraining', 'first-edition'])
def test_prose_of_committed_notebook_states_the_losses_that_came_out(name):
    nb = read(name)
    (training,) = code_cells(nb, 'training')
    printed = re.search(r'MLM loss (\S+), NSP loss (\S+)\n'
                        r'(\S+) sentence pairs/sec', text_below(training))
    prose = '\n'.join(cell.source for cell in nb.cells
                      if cell.cell_type == 'markdown')
    assert ('| this notebook | {} | {} | {} |'.format(*printed.groups())
            in prose)
    assert any('image/svg+xml' in output.get('data', {})
               for output in training.outputs)


@pytest.mark.parametrize('name', BEYOND)
def test_figures_in_the_prose_are_those_that_came_out(name):
    nb = read(name)
    shown = ' '.join(map(text_below, [
        cell for cell in code_cells(nb) if cell.outputs]))
    prose = ' '.join(cell.source for cell in nb.cells
                     if cell.cell_type == 'markdown')
    told = re.findall(r'\d\.\d{3}\b', prose)
    assert told or name in ('checkpoints', 'search')
    assert not [number for number in told if number not in shown]
