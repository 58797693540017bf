"""Run a page of the book; print its outputs, or compare them with stored ones.

The page runs in a Jupyter kernel: a process of the same Python, in which
`import d2l` gives d2lbert. pages.py reads the outputs of an earlier run.
"""
import ast
import itertools
import json
import queue
import shutil
import sys
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager
from nbformat import v4
from tqdm import tqdm

from d2lbert.book.pages import is_code, is_picture, printed_lines
from d2lbert.machine.terminal import is_quiet

START_TIMEOUT = 120     # seconds

# The first code in a kernel. `exec` hides the set-up's names from the page
_SET_UP_TEMPLATE = '''\
exec({code!r}, {{'init_path': {init_path!r}, 'ip': get_ipython()}})
'''
# Import this copy of d2lbert, even if another copy is installed
_SET_UP_CODE = '''\
import importlib.util, os, sys
if 'd2lbert' not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        'd2lbert', init_path,
        submodule_search_locations=[os.path.dirname(init_path)])
    sys.modules['d2lbert'] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules['d2lbert'])
from d2lbert import load_ipython_extension
load_ipython_extension(ip)
'''
# An expression: an import statement would add a name to the page
_TRACEBACK_EXPRESSION = ("__import__('d2lbert.book.imports', "
                         "fromlist=['cell_traceback']).cell_traceback()")


class KernelError(RuntimeError):
    """A kernel did not start, cannot use d2lbert, or ended unexpectedly."""


class _ThisPythonSpecs(KernelSpecManager):
    """Ignore the kernels that are installed for Jupyter: run this Python."""

    def get_kernel_spec(self, kernel_name):
        return KernelSpec(
            argv=[sys.executable, '-m', 'ipykernel_launcher', '-f',
                  '{connection_file}', '--log-level=ERROR',
                  '--HistoryManager.hist_file=:memory:'],
            display_name='Python 3', language='python')


class OutputCollector:
    """Collect the outputs of one cell, as Jupyter does.

    outputs_by_display_id: shared by all cells of the page, because a later
    cell may change an output with a display_id.
    """

    def __init__(self, outputs_by_display_id):
        self.outputs, self.execution_count = [], None
        self._outputs_by_display_id = outputs_by_display_id
        self._is_clear_pending = False

    def add(self, message):
        """Process a message of the kernel; return its new output, or None."""
        kind, content = message['msg_type'], message['content']
        display_id = content.get('transient', {}).get('display_id')
        if kind == 'execute_input':
            self.execution_count = content['execution_count']
        elif kind == 'clear_output':
            self._is_clear_pending = True
            if not content.get('wait'):
                self._clear_if_pending()
        elif kind == 'update_display_data':
            for output in self._outputs_by_display_id.get(display_id, ()):
                output.update(data=content['data'],
                              metadata=content['metadata'])
        elif kind in ('stream', 'display_data', 'execute_result', 'error'):
            self._clear_if_pending()
            output = v4.output_from_msg(message)
            if display_id is not None:
                self._outputs_by_display_id.setdefault(
                    display_id, []).append(output)
            self._append_or_extend(output)
            return output
        return None

    def _clear_if_pending(self):
        if self._is_clear_pending:
            self.outputs.clear()
            self._is_clear_pending = False

    def _append_or_extend(self, output):
        last = self.outputs[-1] if self.outputs else None
        if (last is not None and output.output_type == 'stream'
                and last.output_type == 'stream'
                and last.name == output.name):
            last.text += output.text
        else:
            self.outputs.append(output)


class Kernel:
    """A Jupyter kernel, as a context manager that starts and ends it."""

    def __init__(self, working_folder):
        self._manager = KernelManager(
            kernel_spec_manager=_ThisPythonSpecs())
        self._client = None
        self._working_folder = str(working_folder)

    def __enter__(self):
        self._manager.start_kernel(cwd=self._working_folder)
        try:
            self._client = self._manager.client()
            self._client.start_channels()
            try:
                self._client.wait_for_ready(timeout=START_TIMEOUT)
            except RuntimeError as error:
                raise KernelError('the Jupyter kernel does not start: '
                                  f'{error}') from None
            init_path = Path(__file__).resolve().parents[1] / '__init__.py'
            reply = self.execute(
                _SET_UP_TEMPLATE.format(code=_SET_UP_CODE,
                                        init_path=str(init_path)),
                silent=True)
            if reply['status'] != 'ok':
                raise KernelError(reply['evalue'])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._client is not None:
            self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def execute(self, code, on_message=lambda message: None,
                on_wait=lambda: None, **options):
        """Run code; return the content of Jupyter's execute_reply.

        on_message: called with each message about outputs or the state of the
        kernel. on_wait: called at least once a second. options: keywords of
        jupyter_client's `execute`. Raises KernelError if the kernel ends.
        """
        client = self._client
        request_id = client.execute(code, allow_stdin=False,
                                    stop_on_error=False, **options)
        is_idle = False     # the kernel is idle after its last output
        while not is_idle:
            message = self._next_message(client.get_iopub_msg, on_wait)
            if message['parent_header'].get('msg_id') == request_id:
                is_idle = (message['msg_type'] == 'status' and
                           message['content']['execution_state'] == 'idle')
                on_message(message)
                on_wait()
        while True:
            message = self._next_message(client.get_shell_msg, on_wait)
            if message['parent_header'].get('msg_id') == request_id:
                return message['content']

    def _next_message(self, get_message, on_wait):
        while True:
            try:
                return get_message(timeout=1)
            except queue.Empty:
                if not self._manager.is_alive():
                    raise KernelError(
                        'the Python process that runs the page has ended'
                        ) from None
                on_wait()

    def cell_traceback(self):
        """Return the list of `imports.cell_traceback`, or [] if it fails."""
        reply = self.execute(
            '', silent=True, store_history=False,
            user_expressions={'traceback': _TRACEBACK_EXPRESSION})
        answer = reply.get('user_expressions', {}).get('traceback', {})
        if answer.get('status') != 'ok':
            return []
        # 'text/plain' has the repr of the result, a string of JSON
        return json.loads(ast.literal_eval(answer['data']['text/plain']))


class PageError(RuntimeError):
    """A cell of a page failed; the message names it, and its line if known."""


def run_page(page, compare=False):
    """Execute a `Page`, print its outputs and store them in `page.notebook`.

    compare: after each cell, print its outputs and, if they differ, the stored
    outputs beside them. Raises PageError at the first cell that fails, and
    KernelError if the kernel fails.
    """
    code_cells = [(index, cell)
                  for index, cell in enumerate(page.notebook.cells)
                  if is_code(cell)]
    comparison = Comparison() if compare else None
    outputs_by_display_id = {}
    # disable=None: show the bar only if standard error is a terminal
    with Kernel(page.path.resolve().parent) as kernel, tqdm(
            total=len(code_cells), desc=page.path.name, unit='cell',
            leave=False, disable=is_quiet() or None, file=sys.stderr) as bar:
        for number, (index, cell) in enumerate(code_cells, 1):
            # To compare, print standard output only after the cell has ended
            screen = Screen(bar, only_stderr=compare)
            collector = OutputCollector(outputs_by_display_id)
            _run_cell(kernel, page, index, number, collector, screen)
            cell.outputs = collector.outputs
            cell.execution_count = collector.execution_count
            screen.end_line()
            if compare:
                screen.only_stderr = False
                screen.print_lines(comparison.compare(
                    number, page.stored_lines[index],
                    printed_lines(cell.outputs)))
            else:
                num_pictures = sum(map(is_picture, cell.outputs))
                if num_pictures:
                    screen.print_lines([f'(cell {number} drew '
                                        f'{_pictures_text(num_pictures)})'])
            bar.update()
    if compare:
        print(comparison.summary(), flush=True)


def _pictures_text(num_pictures):
    return 'a picture' if num_pictures == 1 else f'{num_pictures} pictures'


def _run_cell(kernel, page, index, number, collector, screen):
    """Execute a cell; raise PageError if it fails.

    index: among all cells, from 0. number: among cells with code, from 1.
    """
    cell, location = page.notebook.cells[index], f'{page.path}, cell {number}'

    def on_message(message):
        output = collector.add(message)
        if output is not None:
            screen.print_output(output)
    try:
        reply = kernel.execute(cell.source, on_message, screen.refresh)
    except KernelError as error:
        raise KernelError(f'{location}: {error}') from None
    if reply['status'] == 'ok':
        return
    screen.end_line()
    raise PageError(_failure_message(
        location, cell.source.split('\n'), page.first_line_numbers[index],
        kernel.cell_traceback(), reply))


def _failure_message(location, code_lines, first_line_number, calls, reply):
    """Return the message for a cell that failed, with the line that failed.

    first_line_number: of code_lines[0] in the Markdown source, or None. calls:
    from `Kernel.cell_traceback`. reply: from `Kernel.execute`.
    """
    error = f'{reply.get("ename")}: {reply.get("evalue")}'
    if not calls:
        return f'{location}: {error}'
    line_number = _failed_line_number(code_lines, calls)
    location += f', line {line_number}'
    if first_line_number is not None:
        line_in_file = first_line_number + line_number - 1
        location += f' (line {line_in_file} of the file)'
    _, function = calls[-1]
    is_in_function = len(calls) > 1 and function != '<module>'
    if is_in_function:
        location += f', in {function}'
    return f'{location}: {error}\n    {code_lines[line_number - 1].strip()}'


def _failed_line_number(code_lines, calls):
    line_number, _ = calls[0]
    # IPython does not count empty lines at the start of a cell
    first_index = next(k for k, line in enumerate(code_lines) if line.strip())
    is_cell_magic = (line_number == 1
                     and code_lines[first_index].lstrip().startswith('%%'))
    if is_cell_magic and len(calls) > 1 and calls[1][1] == '<module>':
        # A magic command such as %%time has run the lines below it as a cell
        line_number, _ = calls[1]
        first_index = next((k for k in range(first_index + 1, len(code_lines))
                            if code_lines[k].strip()), first_index)
    # A syntax error may be reported after the last line
    return min(first_index + line_number, len(code_lines))


class Screen:
    """Print the outputs of a cell above the progress bar.

    only_stderr: True drops everything for standard output.
    """

    def __init__(self, bar, only_stderr=False):
        self._bar, self.only_stderr = bar, only_stderr
        self._unfinished = ''   # standard output after its last line feed

    def print_output(self, output):
        """Print one output of a cell, unless it is a picture or an error."""
        if output.output_type == 'stream':
            stream = sys.stderr if output.name == 'stderr' else sys.stdout
            if stream is sys.stderr or not self.only_stderr:
                self._write(output.text, stream)
        elif 'data' in output and not is_picture(output):
            self.print_lines([output.data.get('text/plain', '')])

    def print_lines(self, lines):
        if lines and not self.only_stderr:
            self.end_line()
            self._write(''.join(f'{line}\n' for line in lines), sys.stdout)

    def end_line(self):
        if self._unfinished:
            self._write('\n', sys.stdout)

    def refresh(self):
        """Update the time that the progress bar shows."""
        self._bar.refresh()

    def _write(self, text, stream):
        """Print text; if the bar is visible, hold back an unfinished line."""
        if stream is sys.stdout:
            is_bar_visible = not self._bar.disable
            if is_bar_visible:
                text = self._unfinished + text
            self._unfinished = text.rpartition('\n')[2]
            if is_bar_visible:
                # tqdm can show its bar only below whole lines
                text = text[:len(text) - len(self._unfinished)]
        if text:
            tqdm.write(text, file=stream, end='')
            stream.flush()


STORED_HEADING, NOW_HEADING = 'in the file', 'now'


class Comparison:
    """Compare the outputs of cells, and count equal and different cells."""

    def __init__(self):
        self._num_same = self._num_different = 0

    def compare(self, number, stored, now):
        """Return lines that compare the outputs of cell `number`.

        stored, now: lists of lines; stored is None if no outputs were stored.
        """
        if not stored and not now:
            return []
        if stored is None:
            return [f'cell {number}, not printed in the file:', *now]
        if stored == now:
            self._num_same += 1
            return [f'cell {number}, as in the file:', *now]
        self._num_different += 1
        return [f'cell {number}:', *side_by_side(
            stored, now, shutil.get_terminal_size().columns)]

    def summary(self):
        total = self._num_same + self._num_different
        return (f'{total} {"cell" if total == 1 else "cells"} with outputs: '
                f'{self._num_same} as in the file, '
                f'{self._num_different} different')


def side_by_side(stored, now, max_width):
    """Return lines that show two lists of lines side by side.

    Lines that differ have | between them. If this is wider than `max_width`
    characters, `now` is below `stored`.
    """
    pairs = [(STORED_HEADING, NOW_HEADING),
             *itertools.zip_longest(stored, now, fillvalue='')]
    old_width, new_width = (max(map(len, side)) for side in zip(*pairs))
    if old_width + len(' | ') + new_width <= max_width:
        return [
            f'{old:{old_width}} {"|" if old != new else " "} {new}'.rstrip()
            for old, new in pairs]
    return [f'{STORED_HEADING}:', *(f'  {line}' for line in stored),
            f'{NOW_HEADING}:', *(f'  {line}' for line in now)]
