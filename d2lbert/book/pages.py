"""Read pages of the book, notebooks or Markdown sources, as notebooks.

A cell's first line names its tabs, which are frameworks: `#@tab mxnet`,
`# @tab mxnet, pytorch` or `%%tab all`. A cell without such a line is for every
framework or, in old editions, for MXNet.
"""
import re
import warnings
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import v4

from d2lbert.machine.arguments import failures_of
from d2lbert.machine.files import parse_json
from d2lbert.texts.text_files import read_text

TAB = 'mxnet'
_MARK = re.compile(r'\s*(?:#\s*@tab|%%tab)\s+(.+)')


def tabs_of(code):
    """A list of the tabs in the first line of a cell, or None."""
    first = next(filter(str.strip, code.split('\n')), '')
    match = _MARK.match(first)
    return match and split_tabs(match.group(1))


def split_tabs(text):
    """Split a text such as 'mxnet, pytorch' into names."""
    return re.findall(r'\w+', text)


def is_ours(tabs):
    """True if MXNet is among the tabs; None means all tabs."""
    return tabs is None or TAB in tabs or 'all' in tabs


class Tabs:
    """The object `tab` of pages that run `%load_ext d2lbook.tab`."""

    def interact_select(self, *frameworks):
        """Raise ValueError if the page has no MXNet tab."""
        names = _flat(frameworks)
        if not is_ours(names):
            raise ValueError('this page has no MXNet code, only code for '
                             + ', '.join(names))

    def selected(self, *frameworks):
        """True if MXNet is among the frameworks."""
        return is_ours(_flat(frameworks))


def _flat(frameworks):
    return [name for group in frameworks
            for name in ([group] if isinstance(group, str) else group)]


tab = Tabs()


PICTURE = '(a picture)'
#: The folder with the outputs of Markdown sources in the living edition.
OUTPUTS = Path('outputs', TAB)
_CODE = re.compile(r'```\s*\{\.python \.input\s*(?:#([\w.:-]+))?[^}]*\}\s*$')
_TEXT_IN_TABS = re.compile(
    r'^:begin_tab:`([^`]*)`[^\n]*\n(.*?)^:end_tab:[^\n]*$', re.M | re.S)


class Page(NamedTuple):
    """A page of the book.

    notebook: its text and its MXNet code for nbformat, without outputs.
    line_numbers: for each cell, the number of its first line in the Markdown
    source, or None. printed: for each cell, the output lines in the file, or
    None if the file has no outputs for it.
    """

    path: Path
    notebook: nbformat.NotebookNode
    line_numbers: list
    printed: list


def read_page(path):
    """Read a page of the book, .ipynb or .md; ValueError if invalid."""
    path = Path(path)
    readers = {'.ipynb': _read_notebook, '.md': _read_markdown}
    if path.suffix not in readers:
        raise ValueError(f'{path} is not a page of the book: expected a '
                         'notebook (.ipynb) or a Markdown source (.md)')
    with failures_of('page', path, 'read'):
        text = read_text(path).replace('\r\n', '\n')
        page = readers[path.suffix](path, text)
    if not any(is_code(cell) for cell in page.notebook.cells):
        raise ValueError(f'{path} has no code cells')
    return page


def is_code(cell):
    """True if a cell has code."""
    return cell.cell_type == 'code' and bool(cell.source.strip())


def printed_lines(outputs):
    """The lines that outputs of a cell show, without standard error."""
    text, pictures = '', 0
    for output in outputs:
        if output.output_type == 'stream' and output.name == 'stdout':
            text += output.text
        elif 'data' in output and is_picture(output):
            pictures += 1
        elif 'data' in output:
            text += '\n' * (text[-1:] not in ('', '\n'))
            text += output.data.get('text/plain', '') + '\n'
    return text.splitlines() + [PICTURE] * pictures


def is_picture(output):
    """True if an output has a picture."""
    return any(kind.startswith('image/') for kind in output.get('data', ()))


def _read_notebook(path, text):
    try:
        with warnings.catch_warnings():
            # nbformat adds the cell ids that old notebooks lack
            warnings.simplefilter('ignore')
            notebook = nbformat.reads(text, as_version=4)
            nbformat.validate(notebook)
    except Exception as error:      # also classes of the validator
        reason = str(error).strip().split('\n')[0]
        raise ValueError(f'{path} is not a notebook: {reason}') from None
    language = notebook.metadata.get('kernelspec', {}).get(
        'language', 'python').lower()
    if language != 'python':
        raise ValueError(f'{path} is a notebook in {language}, not in '
                         'Python')
    printed = [printed_lines(cell.outputs) if cell.cell_type == 'code'
               else None for cell in notebook.cells]
    if not any(printed):            # saved without outputs
        printed = [None] * len(printed)
    for cell in notebook.cells:
        if cell.cell_type == 'code':
            cell.outputs, cell.execution_count = [], None
    return Page(path, notebook, [None] * len(printed), printed)


def _read_markdown(path, text):
    notebook = v4.new_notebook(metadata={
        'kernelspec': {'display_name': 'Python 3', 'language': 'python',
                       'name': 'python3'},
        'language_info': {'name': 'python'}})
    stored, numbers, printed, others = _stored_outputs(path), [], [], []

    def add(cell, number=None, lines=None):
        notebook.cells.append(cell)
        numbers.append(number)
        printed.append(lines)

    prose, rest = [], enumerate(text.split('\n'), 1)
    for number, line in rest:
        begins = _CODE.match(line)
        if not begins:
            prose.append(line)
            continue
        code = []
        for _, line in rest:    # goes on after the line that begins the cell
            if line.rstrip() == '```':
                break
            code.append(line)
        else:
            raise ValueError(f'{path}, line {number}: the code cell that '
                             'begins here has no end (```)')
        tabs = tabs_of('\n'.join(code))
        if not is_ours(tabs):
            others += tabs
            continue
        _add_prose(add, prose)
        add(v4.new_code_cell('\n'.join(code)), number + 1,
            stored.get(begins.group(1)))
    _add_prose(add, prose)
    if others and not any(map(is_code, notebook.cells)):
        raise ValueError(f'{path} has no MXNet code, only code for '
                         + ', '.join(sorted(set(others))))
    return Page(path, notebook, numbers, printed)


def _add_prose(add, lines):
    """Add a text cell of `lines`, without other tabs; then clear `lines`."""
    text = _TEXT_IN_TABS.sub(
        lambda match: (match.group(2).rstrip('\n')
                       if is_ours(split_tabs(match.group(1))) else ''),
        '\n'.join(lines)).strip('\n')
    lines.clear()
    if text.strip():
        add(v4.new_markdown_cell(text))


def _stored_outputs(path):
    """{name of a cell: its printed lines}; {} outside the living edition."""
    path = path.resolve()
    for root in path.parents:
        stored = root / OUTPUTS / path.relative_to(root).with_suffix('.json')
        if stored.is_file():
            return _read_outputs(stored)
    return {}


def _read_outputs(path):
    try:
        cells = parse_json(read_text(path))['cells']
        return {name: printed_lines(map(_as_nbformat, cell['outputs']))
                for name, cell in cells.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f'{path} does not hold the outputs of a page: '
                         f'{type(error).__name__}: {error}') from None


def _as_nbformat(output):
    """Convert an output of the living edition to nbformat."""
    kind = output['type']
    if kind == 'stream':
        return v4.new_output(kind, name=output['name'], text=output['text'])
    if kind == 'error':
        return v4.new_output(kind)
    return v4.new_output(kind, data={
        output.get('mime', 'text/plain'): output.get('text', '')})
