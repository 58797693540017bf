"""Read a page of the book as a notebook.

A page is a notebook or a Markdown source. The book shows cells in tabs, one
tab for each framework. The first line of a cell names its tabs: `#@tab mxnet`,
`# @tab mxnet, pytorch` or `%%tab all`. A cell without such a line is for every
framework or, in old editions, for MXNet. Of a Markdown source, only cells for
MXNet are read. A notebook is read whole. When it runs, imports.py skips cells
whose line `%%tab` names only other frameworks.
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

MXNET_TAB = 'mxnet'
_TAB_LINE = re.compile(r'\s*(?:#\s*@tab|%%tab)\s+(.+)')


def tabs_of(code):
    """Return the tabs that the first nonblank line names, or None."""
    first_line = next(filter(str.strip, code.split('\n')), '')
    match = _TAB_LINE.match(first_line)
    return None if match is None else split_tabs(match.group(1))


def split_tabs(text):
    """Split a text such as 'mxnet, pytorch' into a list of names."""
    return re.findall(r'\w+', text)


def has_mxnet(tabs):
    """True if a cell of these tabs has MXNet code; None: it names no tabs."""
    return tabs is None or MXNET_TAB in tabs or 'all' in tabs


class Tabs:
    """The class of `tab`, which `%load_ext d2lbook.tab` defines in a page."""

    def interact_select(self, *frameworks):
        """Raise ValueError unless `selected(*frameworks)`."""
        names = _flatten(frameworks)
        if not has_mxnet(names):
            raise ValueError('this page has no MXNet code, only code for '
                             + ', '.join(names))

    def selected(self, *frameworks):
        """True if MXNet is among the frameworks, names or lists of names."""
        return has_mxnet(_flatten(frameworks))


def _flatten(frameworks):
    return [name for group in frameworks
            for name in ([group] if isinstance(group, str) else group)]


tab = Tabs()    # pages import it, see imports.py


PICTURE = '(a picture)'
#: The folder with the outputs of Markdown sources, in a checkout of the living
#: edition (see manual/book.md).
OUTPUTS_FOLDER = Path('outputs', MXNET_TAB)
# The line before the code of a cell
_CELL_START = re.compile(
    r'```\s*\{\.python \.input\s*(?:#(?P<name>[\w.:-]+))?[^}]*\}\s*$')
# A paragraph for some frameworks
_TEXT_IN_TABS = re.compile(
    r'^:begin_tab:`(?P<tabs>[^`]*)`[^\n]*\n(?P<text>.*?)^:end_tab:[^\n]*$',
    re.M | re.S)


class Page(NamedTuple):
    """A page of the book.

    notebook: the text and the code, without outputs. first_line_numbers: for
    each cell, the number of its first line of code in the Markdown source, or
    None. stored_lines: for each cell, the `printed_lines` of its outputs in an
    earlier run; None for text, and for code whose outputs were not stored.
    """

    path: Path
    notebook: nbformat.NotebookNode
    first_line_numbers: list
    stored_lines: list


def read_page(path):
    """Read an .ipynb or .md file as a `Page`; raise ValueError if invalid."""
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
    """True if a cell has code, and not only blank lines."""
    return cell.cell_type == 'code' and bool(cell.source.strip())


def printed_lines(outputs):
    """Return the lines of a cell's nbformat outputs.

    Standard error and errors are left out. For each picture, a line PICTURE is
    at the end.
    """
    text, num_pictures = '', 0
    for output in outputs:
        if output.output_type == 'stream' and output.name == 'stdout':
            text += output.text
        elif 'data' in output and is_picture(output):
            num_pictures += 1
        elif 'data' in output:
            if text and not text.endswith('\n'):
                text += '\n'
            text += output.data.get('text/plain', '') + '\n'
    return text.splitlines() + [PICTURE] * num_pictures


def is_picture(output):
    return any(mime.startswith('image/') for mime in output.get('data', ()))


def _read_notebook(path, text):
    try:
        with warnings.catch_warnings():
            # Old notebooks lack cell ids: nbformat adds them, with a warning
            warnings.simplefilter('ignore')
            notebook = nbformat.reads(text, as_version=4)
            nbformat.validate(notebook)
    except Exception as error:      # nbformat raises errors of many classes
        reason = str(error).strip().split('\n')[0]
        raise ValueError(f'{path} is not a notebook: {reason}') from None
    language = notebook.metadata.get('kernelspec', {}).get(
        'language', 'python').lower()
    if language != 'python':
        raise ValueError(f'{path} is a notebook in {language}, not in '
                         'Python')
    stored_lines = [printed_lines(cell.outputs) if cell.cell_type == 'code'
                    else None for cell in notebook.cells]
    if not any(stored_lines):       # saved without outputs
        stored_lines = [None] * len(notebook.cells)
    for cell in notebook.cells:
        if cell.cell_type == 'code':
            cell.outputs, cell.execution_count = [], None
    first_line_numbers = [None] * len(notebook.cells)
    return Page(path, notebook, first_line_numbers, stored_lines)


def _read_markdown(path, text):
    notebook = v4.new_notebook(metadata={
        'kernelspec': {'display_name': 'Python 3', 'language': 'python',
                       'name': 'python3'},
        'language_info': {'name': 'python'}})
    stored_lines_by_name = _stored_lines_by_name(path)
    first_line_numbers, stored_lines = [], []
    prose, omitted_tabs = [], []

    def add(cell, first_line_number=None, stored=None):
        notebook.cells.append(cell)
        first_line_numbers.append(first_line_number)
        stored_lines.append(stored)

    def add_prose():
        prose_for_mxnet = _without_other_frameworks('\n'.join(prose))
        prose.clear()
        if prose_for_mxnet.strip():
            add(v4.new_markdown_cell(prose_for_mxnet))

    numbered_lines = enumerate(text.split('\n'), 1)
    for number, line in numbered_lines:
        start_match = _CELL_START.match(line)
        if not start_match:
            prose.append(line)
            continue
        code_lines = []
        # The outer loop goes on after the lines that this loop takes
        for _, code_line in numbered_lines:
            if code_line.rstrip() == '```':
                break
            code_lines.append(code_line)
        else:
            raise ValueError(f'{path}, line {number}: the code cell that '
                             'begins here has no end (```)')
        code = '\n'.join(code_lines)
        tabs = tabs_of(code)
        if not has_mxnet(tabs):
            omitted_tabs += tabs
            continue
        add_prose()
        add(v4.new_code_cell(code), number + 1,
            stored_lines_by_name.get(start_match['name']))
    add_prose()
    if omitted_tabs and not any(map(is_code, notebook.cells)):
        raise ValueError(f'{path} has no MXNet code, only code for '
                         + ', '.join(sorted(set(omitted_tabs))))
    return Page(path, notebook, first_line_numbers, stored_lines)


def _without_other_frameworks(prose):
    return _TEXT_IN_TABS.sub(
        lambda match: (match['text'].rstrip('\n')
                       if has_mxnet(split_tabs(match['tabs'])) else ''),
        prose).strip('\n')


def _stored_lines_by_name(path):
    """Return {cell name: stored lines}, or {} if no outputs are stored."""
    path = path.resolve()
    for root in path.parents:
        stored_path = (root / OUTPUTS_FOLDER
                       / path.relative_to(root).with_suffix('.json'))
        if stored_path.is_file():
            return _read_outputs(stored_path)
    return {}


def _read_outputs(stored_path):
    try:
        cells = parse_json(read_text(stored_path))['cells']
        return {name: printed_lines(map(_as_nbformat, cell['outputs']))
                for name, cell in cells.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f'{stored_path} does not hold the outputs of a page: '
                         f'{type(error).__name__}: {error}') from None


def _as_nbformat(output):
    """Convert an output from a file in OUTPUTS_FOLDER to nbformat's format."""
    kind = output['type']
    if kind == 'stream':
        return v4.new_output(kind, name=output['name'], text=output['text'])
    if kind == 'error':
        return v4.new_output(kind)      # empty: `printed_lines` omits errors
    return v4.new_output(kind, data={
        output.get('mime', 'text/plain'): output.get('text', '')})
