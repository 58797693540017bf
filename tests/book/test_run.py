"""`d2lbert run`: execute, print, write, compare and refuse pages."""
import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip('nbformat')
pytest.importorskip('ipykernel')

import d2lbert  # noqa: E402
from d2lbert.__main__ import main  # noqa: E402
from d2lbert.book import execution  # noqa: E402
from d2lbert.book.execution import side_by_side  # noqa: E402

v4 = nbformat.v4
ROOT = Path(d2lbert.__file__).resolve().parent.parent

OLD = '''\
# A page of an old edition

```{.python .input  n=1}
from mxnet import np, npx
import d2l
import os
npx.set_np()
```

```{.python .input  n=2}
# Saved in the d2l package for later use
def shape(net):
    return net(np.ones((2, 4)), np.zeros((2, 4)))[0].shape
```

```{.python .input  n=3}
net = d2l.BERTModel(20, num_hiddens=8, ffn_num_hiddens=8, num_heads=2,
                    num_layers=1, dropout=0.1)
net.initialize()
print('begin', end=' ')
print('end')
shape(net)
```

```{.python .input  n=4}
!pip install d2l==0.17.6
open('beside.txt').read()
```
'''

NEW = '''\
```{.python .input}
%load_ext d2lbook.tab
tab.interact_select('mxnet', 'pytorch')
```

```{.python .input}
%%tab mxnet
%matplotlib inline
from d2l import mxnet as d2l
from d2l.mxnet import Animator
```

```{.python .input}
%%tab pytorch
from d2l import torch as d2l
```

```{.python .input}
%%tab all
if tab.selected('pytorch'):
    import torch
animator = Animator(xlabel='x')
for x in 1, 2, 3:
    animator.add(x, x * x)
print('drawn')
```
'''

FAILING = '''\
```{.python .input}

#@tab mxnet
def f(x):
    return 1 / x

def g(x):
    return f(x)
```

Text.

```{.python .input}
print('before')
1
g(0)
print('after')
```

```{.python .input}
print('later')
```
'''


def run(*args):
    return main(['run', *map(str, args)])


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / 'chapter'
    folder.mkdir()
    (folder / 'beside.txt').write_text('read')
    (folder / 'old.md').write_text(OLD)
    return folder / 'old.md'


def test_a_source_is_printed_and_written_as_a_notebook(old, tmp_path, capsys):
    (tmp_path / 'new.md').write_text(NEW)
    assert run(old, 'new.md', '--out', 'executed') == 0
    out, err = capsys.readouterr()
    assert out == f'''\
{old}:
begin end
(2, 4, 8)
skipped, d2lbert replaces d2l and MXNet: !pip install d2l==0.17.6
'read'

new.md:
drawn
(cell 3 drew a picture)
'''
    assert not err
    first, second = [nbformat.read(tmp_path / 'executed' / name, 4)
                     for name in ('old.ipynb', 'new.ipynb')]
    for nb in first, second:
        nbformat.validate(nb)
        counts = [cell.execution_count for cell in nb.cells
                  if cell.cell_type == 'code']
        assert counts == list(range(1, len(counts) + 1))
    printed, value = first.cells[3].outputs
    assert printed.text == 'begin end\n' and value.data == {
        'text/plain': '(2, 4, 8)'}
    # Of a picture that was drawn three times, the last state is kept
    kinds = [output.get('data', {}).keys() for output in
             second.cells[-1].outputs]
    assert [list(keys) for keys in kinds if keys] == [
        ['image/svg+xml', 'text/plain']]
    assert '%%tab all' in second.cells[-1].source
    # The notebook is a page like any other
    capsys.readouterr()
    assert run('executed/new.ipynb', '--compare') == 0
    assert capsys.readouterr().out == '''\
cell 3, as in the file:
drawn
(a picture)
1 cell with outputs: 1 as in the file, 0 different
'''
    assert {path.name for path in tmp_path.iterdir()} == {
        'chapter', 'executed', 'new.md'}


def test_the_first_error_ends_the_run_and_names_its_line(tmp_path, capsys):
    (tmp_path / 'page.md').write_text(FAILING)
    assert run('page.md', '--out', 'x.ipynb') == 1
    out, err = capsys.readouterr()
    assert out == 'before\n'
    assert err == ('d2lbert run: page.md, cell 2, line 3 (line 16 of the '
                   'file), in f: ZeroDivisionError: division by zero\n'
                   '    g(0)\n')
    assert FAILING.split('\n')[16 - 1] == 'g(0)'
    assert [path.name for path in tmp_path.iterdir()] == ['page.md']


@pytest.fixture(scope='module')
def started_kernel(tmp_path_factory):
    with execution.Kernel(tmp_path_factory.mktemp('kernel')) as kernel:
        yield kernel


@pytest.fixture
def one_kernel(started_kernel, monkeypatch):
    """All pages run in one kernel: to start one takes seconds."""
    monkeypatch.setattr(execution, 'Kernel', lambda working_folder:
                        contextlib.nullcontext(started_kernel))


ERRORS = {
    'syntax': ('\n\nx = 1\nx = = 2', 'line 4: SyntaxError: .*\n    x = = 2'),
    'missing': ('from d2l import mxnet as d2l\nd2l.train_ch3(1)',
                'line 2: AttributeError: d2l.train_ch3 is not in d2lbert.*\n'
                r'    d2l.train_ch3\(1\)'),
    'framework': ('1\nfrom d2l import torch as d2l',
                  'line 2: ImportError: d2l.torch is for another framework.*'
                  '\n    from d2l import torch as d2l'),
    'question': ('input()', 'line 1.*: StdinNotImplementedError: .*\n.*'),
}


@pytest.mark.parametrize('name', ERRORS)
def test_an_error_in_a_notebook_names_its_line(name, tmp_path, capsys,
                                               one_kernel):
    source, expected = ERRORS[name]
    nb = v4.new_notebook(cells=[v4.new_markdown_cell('x'),
                                v4.new_code_cell(source)])
    nbformat.write(nb, tmp_path / 'x.ipynb')
    assert run('x.ipynb') == 1
    out, err = capsys.readouterr()
    assert not out
    assert re.fullmatch(f'd2lbert run: x.ipynb, cell 1, {expected}\n', err)


def test_the_end_of_the_kernel_is_an_error(tmp_path, capsys):
    nbformat.write(v4.new_notebook(cells=[
        v4.new_code_cell('import os\nos._exit(3)')]), tmp_path / 'x.ipynb')
    assert run('x.ipynb') == 1
    assert capsys.readouterr() == (
        '', 'd2lbert run: x.ipynb, cell 1: the Python process that runs the '
            'page has ended\n')


@pytest.mark.parametrize('source, expected', [
    ('%%time\nx = 1\n1 / 0', r'line 3: ZeroDivisionError: .*\n    1 / 0'),
    ('\n%%time\n\ndef f():\n    1 / 0\nf()',
     r'line 6, in f: ZeroDivisionError: .*\n    f\(\)'),
    ('%%time\nx = 1\nx = = 2', r'line 3: SyntaxError: .*\n    x = = 2'),
    ('%%tab mxnet\nexec("1 / 0")',
     r'line 2: ZeroDivisionError: .*\n    exec\("1 / 0"\)')])
def test_an_error_below_a_magic_command_names_its_line(
        source, expected, tmp_path, capsys, one_kernel):
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell(source)]),
                   tmp_path / 'x.ipynb')
    assert run('x.ipynb') == 1
    assert re.fullmatch(f'd2lbert run: x.ipynb, cell 1, {expected}\n',
                        capsys.readouterr().err)


def test_old_and_new_outputs_are_printed_side_by_side(tmp_path, capsys,
                                                monkeypatch):
    monkeypatch.setenv('COLUMNS', '40')
    sources = 'print("a\\nb")', '1', '"x" * 40', 'None'
    printed = ['a\nc\n'], ['1'], ['y'], []
    cells = [v4.new_code_cell(source, outputs=[
        v4.new_output('stream', name='stdout', text=text) for text in texts])
        for source, texts in zip(sources, printed)]
    nbformat.write(v4.new_notebook(cells=cells), tmp_path / 'x.ipynb')
    assert run('x.ipynb', '--compare') == 0
    assert capsys.readouterr().out == f'''\
cell 1:
in the file | now
a             a
c           | b
cell 2, as in the file:
1
cell 3:
in the file:
  y
now:
  {"x" * 40!r}
3 cells with outputs: 1 as in the file, 2 different
'''


def test_columns_are_as_wide_as_their_lines():
    assert side_by_side(['long line here', 'x'], ['long'], 21) == [
        'in the file    | now', 'long line here | long', 'x              |']
    assert side_by_side(['long line here'], ['long'], 20)[0] == 'in the file:'


@pytest.fixture
def nothing_runs(monkeypatch):
    monkeypatch.setattr(execution, 'run_page', None)


def test_out_never_overwrites_a_file(old, tmp_path, capsys, nothing_runs):
    page = tmp_path / 'page.ipynb'
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell('1')]), page)
    (tmp_path / 'there.ipynb').write_text('mine')
    (tmp_path / 'link.ipynb').symlink_to(page)
    (tmp_path / 'again').mkdir()
    (tmp_path / 'again' / 'page.md').write_text(OLD)
    before = page.read_bytes()
    for args, sentence in [
            (['page.ipynb', '--out', page, '--force'], 'is a page to run'),
            (['page.ipynb', '--out', 'link.ipynb', '--force'],
             'is a page to run'),
            (['page.ipynb', '--out', 'there.ipynb'], 'exists already'),
            (['page.ipynb', '--out', 'x.html'], 'does not end in .ipynb'),
            (['page.ipynb', '--out', 'chapter'],
             'is a folder: name a file, as chapter/page.ipynb'),
            (['page.ipynb', '--out', 'no/x.ipynb'], 'there is no folder no'),
            (['page.ipynb', old, '--out', 'there.ipynb'],
             'is a file: 2 pages need a folder'),
            (['page.ipynb', old, '--out', '.', '--force'],
             'is a page to run'),
            (['page.ipynb', 'again/page.md', '--out', 'new'],
             'would both be written to new/page.ipynb'),
            (['page.ipynb', old, '--out', 'no/new'],
             'there is no folder no')]:
        assert run(*args) in (1, 2)
        out, err = capsys.readouterr()
        assert not out and sentence in err and err.count('\n') == 1, err
    assert page.read_bytes() == before
    assert (tmp_path / 'there.ipynb').read_text() == 'mine'
    assert not (tmp_path / 'new').exists()


def test_all_pages_are_read_before_one_runs(old, capsys, nothing_runs):
    assert run(old, 'no.md') == 1
    assert 'page no.md cannot be read: No such file' in (
        capsys.readouterr().err)
    assert run(old, '--compare') == 1
    err = capsys.readouterr().err
    assert 'old.md has no outputs to compare with' in err


@pytest.mark.parametrize('name', ['nbformat', 'jupyter_client', 'ipykernel'])
def test_a_missing_package_is_named_with_its_remedy(
        name, old, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    assert run(old) == 1
    out, err = capsys.readouterr()
    assert not out and err.count('\n') == 1
    assert f'{name} cannot be imported' in err
    assert "pip install '.[notebook]'" in err


def test_a_kernel_that_cannot_import_d2lbert_says_why(old, capsys,
                                                    monkeypatch):
    monkeypatch.setattr(execution, '_SET_UP_CODE',
                        'raise ImportError("no MXNet")')
    assert run(old) == 1
    assert capsys.readouterr().err == 'd2lbert run: no MXNet\n'


def test_the_command_does_not_import_mxnet_itself(old):
    done = subprocess.run(
        [sys.executable, '-X', 'importtime', '-m', 'd2lbert', 'run', 'no.md'],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True,
        env={**os.environ, 'PYTHONPATH': str(ROOT)})
    assert done.returncode == 1 and 'no.md cannot be read' in done.stderr
    imported = {line.split('|')[-1].strip()
                for line in done.stderr.splitlines()}
    assert 'd2lbert.book.pages' in imported and 'mxnet' not in imported


#: Pages of a checkout of the book that need no data, and those that do.
CHAPTER = 'chapter_natural-language-processing-pretraining'


@pytest.fixture
def chapter():
    """The chapter in the checkout that D2LBERT_BOOK names."""
    folder = Path(os.environ.get('D2LBERT_BOOK') or os.devnull, CHAPTER)
    if not folder.is_dir():
        pytest.skip("D2LBERT_BOOK names no checkout of the book's repository "
                    f'with {CHAPTER}/')
    return folder


def test_the_page_bert_runs_as_the_book_ships_it(chapter, capsys):
    assert run(chapter / 'bert.md') == 0
    assert capsys.readouterr().out.split('\n')[:-1] == [
        '(2, 8, 768)', '(2, 3, 10000)', '(6,)', '(2, 2)', '(2,)']


def test_the_page_on_its_data_runs_as_the_book_ships_it(chapter, wiki_dir,
                                                        capsys):
    if 'parquet' in (chapter / 'bert-dataset.md').read_text('utf-8'):
        pytest.importorskip('pandas')
        pytest.importorskip('pyarrow')
    assert run(chapter / 'bert-dataset.md') == 0
    assert re.fullmatch(
        r'\(512, 64\) \(512, 64\) \(512,\) \(512, 10\) \(512, 10\) '
        r'\(512, 10\) \(512,\) 2025\d',
        ' '.join(capsys.readouterr().out.split('\n')[:-1]))


@pytest.mark.slow
def test_the_page_pretraining_runs_as_the_book_ships_it(chapter, wiki_dir,
                                                        capsys):
    assert run(chapter / 'bert-pretraining.md') == 0
    assert re.match(r'MLM loss \d+\.\d{3}, NSP loss \d\.\d{3}\n\d+\.\d '
                    r'sentence pairs/sec on \[', capsys.readouterr().out)
