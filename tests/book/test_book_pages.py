"""Reading pages: the MXNet cells in every notation of the book."""
import json

import pytest

nbformat = pytest.importorskip('nbformat')

from d2lbert.book.pages import (  # noqa: E402
    PICTURE,
    read_page,
    tab,  # noqa: E402
)

v4 = nbformat.v4

PAGE = '''\
# Title

Before.

```{.python .input  n=3}
none = 1
```

```{.python .input}
#@tab pytorch
torch = 1
```

:begin_tab:`pytorch, tensorflow`
Text for others.
:end_tab:

:begin_tab:`mxnet`
Text for MXNet.
:end_tab:

```bash
not = code
```

```{.python .input}
#@tab mxnet, pytorch
two = 1
```
```{.python .input #some-name}

# @tab mxnet
older = 1
```

```{.python .input #other-name  n=12}
%%tab all
#@save
every = 1
```

```{.python .input}
%%tab tensorflow, jax
jax = 1
```
The end.
'''


def code(page):
    return [cell.source for cell in page.notebook.cells
            if cell.cell_type == 'code']


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding='utf-8')
    return path


def notebook(*cells, **metadata):
    return nbformat.writes(v4.new_notebook(cells=list(cells),
                                           metadata=metadata))


def test_a_source_gives_the_cells_of_its_mxnet_tab(tmp_path):
    page = read_page(write(tmp_path / 'page.md', PAGE))
    names = [source.split(' = ')[0].split('\n')[-1] for source in code(page)]
    assert names == ['none', 'two', 'older', 'every']
    prose = '\n'.join(cell.source for cell in page.notebook.cells
                      if cell.cell_type == 'markdown')
    assert 'Before.' in prose and 'The end.' in prose
    assert 'Text for MXNet.' in prose and 'begin_tab' not in prose
    assert 'others' not in prose and 'not = code' in prose
    lines = PAGE.split('\n')
    for cell, number in zip(page.notebook.cells, page.first_line_numbers):
        if number is not None:
            source = cell.source.split('\n')
            assert lines[number - 1:number - 1 + len(source)] == source
    nbformat.validate(page.notebook)


def test_windows_line_ends_give_the_same_cells(tmp_path):
    plain = read_page(write(tmp_path / 'page.md', PAGE))
    path = tmp_path / 'windows.md'
    path.write_bytes(b'\xef\xbb\xbf' + PAGE.replace('\n', '\r\n').encode())
    assert code(read_page(path)) == code(plain)
    assert all('\r' not in cell.source
               for cell in read_page(path).notebook.cells)


def test_outputs_of_the_living_edition_are_read_from_their_folder(tmp_path):
    source = write(tmp_path / 'chapter/page.md', PAGE)
    assert set(read_page(source).stored_lines) == {None}
    write(tmp_path / 'outputs/mxnet/chapter/page.json', json.dumps({
        'cells': {
            'some-name': {'outputs': [
                {'type': 'display_data', 'mime': 'image/svg+xml',
                 'asset': 'page/1.svg'},
                {'type': 'stream', 'name': 'stdout', 'text': 'a\nb\n'},
                {'type': 'stream', 'name': 'stderr', 'text': 'c\n'},
                {'type': 'execute_result', 'text': '(1,\n 2)'}]},
            'other-name': {'outputs': []}}}))
    page = read_page(source)
    printed = dict(zip([cell.source for cell in page.notebook.cells],
                       page.stored_lines))
    none, two, older, every = code(page)
    assert printed[older] == ['a', 'b', '(1,', ' 2)', PICTURE]
    assert printed[every] == []
    assert printed[none] is None and printed[two] is None
    write(tmp_path / 'outputs/mxnet/chapter/page.json', '{"cells": [1]}')
    with pytest.raises(ValueError, match='page.json does not hold'):
        read_page(source)


def test_a_notebook_keeps_its_cells_and_loses_its_outputs(tmp_path):
    cells = [
        v4.new_markdown_cell('# Title'),
        v4.new_code_cell('1', execution_count=7, outputs=[
            v4.new_output('stream', name='stdout', text='no line end'),
            v4.new_output('execute_result', data={'text/plain': '1'})]),
        v4.new_code_cell('#@tab pytorch\n2')]
    page = read_page(write(tmp_path / 'x.ipynb', notebook(*cells)))
    assert code(page) == ['1', '#@tab pytorch\n2']
    assert page.stored_lines == [None, ['no line end', '1'], []]
    assert page.notebook.cells[1].outputs == []
    assert page.notebook.cells[1].execution_count is None
    # Without any output the file does not show what cells print
    cells[1].outputs = []
    page = read_page(write(tmp_path / 'x.ipynb', notebook(*cells)))
    assert page.stored_lines == [None, None, None]


REFUSED = {
    'page.txt': ('x', 'page.txt is not a page of the book'),
    'empty.md': ('', 'empty.md is empty'),
    'prose.md': ('# Title\n', 'prose.md has no code cells'),
    'open.md': ('\n```{.python .input}\nx = 1\n', 'open.md, line 2: the code '
                'cell that begins here has no end'),
    'other.md': ('```{.python .input}\n#@tab pytorch, jax\n1\n```\n',
                 'other.md has no MXNet code, only code for jax, pytorch'),
    'broken.ipynb': ('{', 'broken.ipynb is not a notebook: '),
    'list.ipynb': ('[1]', 'list.ipynb is not a notebook: '),
    'r.ipynb': (notebook(v4.new_code_cell('1'), kernelspec={
        'name': 'ir', 'display_name': 'R', 'language': 'R'}),
        'r.ipynb is a notebook in r, not in Python'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_invalid_pages_are_refused_in_one_sentence(name, tmp_path):
    text, sentence = REFUSED[name]
    with pytest.raises(ValueError) as error:
        read_page(write(tmp_path / name, text))
    assert sentence in str(error.value) and '\n' not in str(error.value)


def test_a_missing_page_is_named(tmp_path):
    with pytest.raises(ValueError, match='page .*no.md cannot be read: No '
                                         'such file'):
        read_page(tmp_path / 'no.md')


def test_the_tab_of_a_page_is_mxnet():
    tab.interact_select('pytorch', 'mxnet')
    tab.interact_select(['mxnet', 'jax'])
    assert tab.selected('mxnet') and tab.selected('jax', 'mxnet')
    assert not tab.selected('pytorch')
    with pytest.raises(ValueError, match='no MXNet code, only code for jax'):
        tab.interact_select(['jax'])
