"""`import d2l` as d2lbert, before and after the extension is loaded."""
import pytest
from processes import in_a_process

from d2lbert.book.imports import adapt_lines

pytest.importorskip('IPython')

SHELL = '''
import os, sys
sys.path.insert(0, {folder!r})
from IPython.core.interactiveshell import InteractiveShell
ip = InteractiveShell.instance()
def run(code):
    result = ip.run_cell(code, silent=True)
    return result.error_before_exec or result.error_in_exec
'''


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """A function: the output of a shell next to an installed d2l."""
    monkeypatch.setenv('IPYTHONDIR', str(tmp_path / 'ipython'))
    package = tmp_path / 'installed' / 'd2l'
    package.mkdir(parents=True)
    (package / '__init__.py').write_text('installed = True\n')
    (package / 'mxnet.py').write_text('installed = True\n')
    (package / 'torch.py').write_text('installed = True\n')
    return lambda script: in_a_process(
        SHELL.format(folder=str(package.parent)) + script)


def test_an_installed_d2l_is_found_until_the_extension_is_loaded(shell):
    assert shell('''
import d2lbert
from d2lbert.book import imports
import d2l, d2l.mxnet
assert d2l.installed and d2l.mxnet.installed
assert run('%load_ext d2lbert') is None
assert run('from d2l import mxnet as d2l') is None
ours = ip.user_ns['d2l']
assert ours.BERTModel is d2lbert.BERTModel
assert ours._read_wiki is d2lbert._read_wiki and not hasattr(ours, 'nope')
assert ours.DATA_HUB is d2lbert.DATA_HUB
assert run('import d2l; d2l.train_bert; d2l.mxnet.train_bert;') is None
assert run('from d2l.mxnet import BERTModel, try_gpu') is None
assert run('from d2l import _get_batch_bert') is None
assert run('from d2l.mxnet import *; MaskLM;') is None
assert ip.user_ns['MaskLM'] is d2lbert.MaskLM
assert run('%unload_ext d2lbert') is None
assert run('from d2l import torch, mxnet as d2l') is None
assert ip.user_ns['torch'].installed and ip.user_ns['d2l'].installed
assert 'BookFinder' not in str(sys.meta_path)
assert run('%load_ext d2lbert') is None         # and again
assert run('import d2l; d2l.BERTModel;') is None
print('done')
''') == 'done\n'


def test_a_missing_name_is_named(shell):
    printed = shell('''
run('%load_ext d2lbert')
for code in ('import d2l; d2l.train_ch3', 'from d2l.mxnet import train_ch3',
             'from d2l import mxnet as d2l; d2l.train_ch3()',
             'from d2l import torch as d2l', 'import d2l.tensorflow'):
    ip.showtraceback = lambda *args, **kwargs: None
    error = run(code)
    print('>', type(error).__name__, str(error))
''')
    errors = [line for line in printed.splitlines() if line.startswith('>')]
    for k, kind in enumerate(['AttributeError', 'ImportError',
                              'AttributeError']):
        assert errors[k] == (
            f'> {kind} d2l.train_ch3 is not in d2lbert, which has the names '
            "of the book's BERT chapters")
    for line, name in zip(errors[3:], ['torch', 'tensorflow']):
        assert line == (f'> ImportError d2l.{name} is for another framework: '
                        'd2lbert runs the MXNet version of a page')
    assert len(errors) == 5


def test_importing_d2lbert_does_not_redirect_d2l(shell):
    shell('''
import d2lbert
from d2lbert.book import imports
assert 'BookFinder' not in str(sys.meta_path)
import d2l
assert d2l.installed
print('done')
''') == 'done\n'


def adapted(text):
    lines = adapt_lines(text.splitlines(keepends=True))
    assert len(lines) == len(text.splitlines())
    return ''.join(lines)


@pytest.mark.parametrize('line', [
    '!pip install d2l==0.17.6', '!pip3 install -U mxnet-cu112==1.9.1',
    '    %pip install "d2l"', '!python3 -m pip install d2l',
    '!pip install git+https://github.com/d2l-ai/d2l-en@release',
    '!pip uninstall -y mxnet'])
def test_the_book_and_mxnet_are_not_installed_by_a_page(line, capsys):
    code = adapted(f'if True:\n    {line}\n')
    exec(code, {})
    assert capsys.readouterr().out == (
        f'skipped, d2lbert replaces d2l and MXNet: {line.strip()}\n')


@pytest.mark.parametrize('text', [
    '!pip install d2lbert pandas\n', '!pip install d2lbook\n',
    '%matplotlib inline\n', '#@tab pytorch\nx = 1\n', '!ls d2l\n',
    '"""\nmxnet d2l\n"""\n', '%load_ext autoreload\n', ''])
def test_other_lines_stay(text):
    assert adapted(text) == text


def test_cells_of_another_tab_are_left_out():
    assert adapted('\n%%tab mxnet, jax\nx = 1\n') == (
        '\n# %%tab mxnet, jax\nx = 1\n')
    assert adapted('%%tab all\nx = 1\n').endswith('\nx = 1\n')
    code = adapted('%%tab jax\nimport jax\n  !ls\n')
    assert all(line.startswith('# ') for line in code.splitlines())


def test_the_tab_of_d2lbook_is_ours():
    names = {}
    exec(adapted("%load_ext d2lbook.tab\ntab.interact_select('mxnet')\n"),
         names)
    assert names['tab'].selected('mxnet')
