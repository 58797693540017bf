"""Run a page of the book, print its outputs, and compare them.

The page runs in a Jupyter kernel of this Python, in which `import d2l` gives
d2lbert.
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

#: Seconds in which a kernel must answer for the first time.
START_SECONDS = 120

# Let the kernel import this copy of d2lbert, not another installed one. The
# dict keeps the names of _CODE out of the page's namespace
_SET_UP = '''\
exec({code!r}, {{'path': {path!r}, 'ip': get_ipython()}})
'''
_CODE = '''\
import importlib.util, os, sys
if 'd2lbert' not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        'd2lbert', path, submodule_search_locations=[os.path.dirname(path)])
    sys.modules['d2lbert'] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules['d2lbert'])
from d2lbert import load_ipython_extension
load_ipython_extension(ip)
'''
_PLACE = ("__import__('d2lbert.book.imports', fromlist=['error_place'])"
          '.error_place()')


class KernelError(RuntimeError):
    """A kernel did not start, or ended unexpectedly."""


class _ThisPython(KernelSpecManager):
    """Kernel specs for the Python that runs d2lbert.

    It ignores the kernels that Jupyter has installed.
    """

    def get_kernel_spec(self, kernel_name):
        """The command that starts a kernel."""
        return KernelSpec(
            argv=[sys.executable, '-m', 'ipykernel_launcher', '-f',
                  '{connection_file}', '--log-level=ERROR',
                  '--HistoryManager.hist_file=:memory:'],
            display_name='Python 3', language='python')


class Outputs:
    """The outputs of one cell, collected as Jupyter does.

    displays: {identifier: outputs} of a page; later cells can update these.
    """

    def __init__(self, displays):
        self.outputs, self.execution_count = [], None
        self._displays, self._clear = displays, False

    def add(self, message):
        """Process a message of the kernel; return a new output or None."""
        kind, content = message['msg_type'], message['content']
        display = content.get('transient', {}).get('display_id')
        if kind == 'execute_input':
            self.execution_count = content['execution_count']
        elif kind == 'clear_output':
            self._clear = True
            if not content.get('wait'):
                self._clear_now()
        elif kind == 'update_display_data':
            for output in self._displays.get(display, ()):
                output.update(data=content['data'],
                              metadata=content['metadata'])
        elif kind in ('stream', 'display_data', 'execute_result', 'error'):
            self._clear_now()
            output = v4.output_from_msg(message)
            if display is not None:
                self._displays.setdefault(display, []).append(output)
            self._keep(output)
            return output
        return None

    def _clear_now(self):
        if self._clear:
            self.outputs.clear()
            self._clear = False

    def _keep(self, output):
        last = self.outputs[-1] if self.outputs else None
        if (last is not None and output.output_type == 'stream'
                and last.output_type == 'stream'
                and last.name == output.name):
            last.text += output.text
        else:
            self.outputs.append(output)


class Kernel:
    """A Jupyter kernel, a context manager that starts and ends it.

    folder: its working directory; Jupyter uses the folder of the page.
    """

    def __init__(self, folder):
        self._manager = KernelManager(kernel_spec_manager=_ThisPython())
        self._client = None
        self._folder = str(folder)

    def __enter__(self):
        self._manager.start_kernel(cwd=self._folder)
        try:
            self._client = self._manager.client()
            self._client.start_channels()
            try:
                self._client.wait_for_ready(timeout=START_SECONDS)
            except RuntimeError as error:
                raise KernelError('the Jupyter kernel does not start: '
                                  f'{error}') from None
            path = Path(__file__).resolve().parents[1] / '__init__.py'
            reply = self.execute(_SET_UP.format(code=_CODE, path=str(path)),
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

    def execute(self, code, hear=lambda message: None,
                tick=lambda: None, **options):
        """Run code; returns the execute_reply of the Jupyter protocol.

        hear: called with each message about outputs. tick: called at least
        once a second. Raises KernelError if the kernel ends.
        """
        client = self._client
        request = client.execute(code, allow_stdin=False, stop_on_error=False,
                                 **options)
        idle = False
        while not idle:
            message = self._next(client.get_iopub_msg, tick)
            if message['parent_header'].get('msg_id') == request:
                idle = (message['msg_type'] == 'status' and
                        message['content']['execution_state'] == 'idle')
                hear(message)
                tick()
        while True:
            message = self._next(client.get_shell_msg, tick)
            if message['parent_header'].get('msg_id') == request:
                return message['content']

    def _next(self, get, tick):
        """The next message of a channel; calls tick while it waits."""
        while True:
            try:
                return get(timeout=1)
            except queue.Empty:
                if not self._manager.is_alive():
                    raise KernelError(
                        'the Python process that runs the page has ended'
                        ) from None
                tick()

    def error_place(self):
        """The traceback of the last error, limited to code in cells.

        A list of [line number, function]; see `imports.error_place`.
        """
        reply = self.execute('', silent=True, store_history=False,
                             user_expressions={'place': _PLACE})
        place = reply.get('user_expressions', {}).get('place', {})
        if place.get('status') != 'ok':
            return []
        return json.loads(ast.literal_eval(place['data']['text/plain']))


#: Headings of the outputs in the file, and of the outputs of this run.
BEFORE, NOW = 'in the file', 'now'


class PageError(RuntimeError):
    """A cell of a page failed; the text names the cell and the line."""


def run_page(page, compare=False):
    """Execute a page and store the outputs in its notebook.

    Outputs also go to standard output; with `compare`, beside the outputs
    that the file had. A terminal shows a progress bar of the cells. Raises
    PageError at the first cell that fails, or KernelError.
    """
    # k counts all cells of the notebook; number, from 1, those with code
    cells = [(k, cell) for k, cell in enumerate(page.notebook.cells)
             if is_code(cell)]
    comparison = Comparison() if compare else None
    displays = {}
    # disable=None: no bar unless standard error is a terminal
    with Kernel(page.path.resolve().parent) as kernel, tqdm(
            total=len(cells), desc=page.path.name, unit='cell', leave=False,
            disable=is_quiet() or None, file=sys.stderr) as bar:
        for number, (k, cell) in enumerate(cells, 1):
            screen = Screen(bar, silent=compare)
            outputs = Outputs(displays)
            _run_cell(kernel, page, k, number, outputs, screen)
            cell.outputs = outputs.outputs
            cell.execution_count = outputs.execution_count
            screen.end_line()
            if compare:
                screen.silent = False
                screen.lines(comparison.rows(
                    number, page.printed[k], printed_lines(cell.outputs)))
            else:
                pictures = sum(map(is_picture, cell.outputs))
                screen.lines([f'(cell {number} drew '
                              f'{_pictures(pictures)})'] * bool(pictures))
            bar.update()
    if compare:
        print(comparison.summary(), flush=True)


def _pictures(count):
    return 'a picture' if count == 1 else f'{count} pictures'


def _run_cell(kernel, page, k, number, outputs, screen):
    """Execute cell k of the notebook; raises PageError if it fails."""
    cell, where = page.notebook.cells[k], f'{page.path}, cell {number}'

    def hear(message):
        output = outputs.add(message)
        if output is not None:
            screen.show(output)
    try:
        reply = kernel.execute(cell.source, hear, screen.refresh)
    except KernelError as error:
        raise KernelError(f'{where}: {error}') from None
    if reply['status'] == 'ok':
        return
    screen.end_line()
    raise PageError(_failure(
        where, cell.source.split('\n'), page.line_numbers[k],
        kernel.error_place(), reply))


def _failure(where, code, first_line, place, reply):
    """The message for a cell that failed, with the line of its code.

    first_line: its line number in the file, or None. place: the traceback.
    """
    error = f'{reply.get("ename")}: {reply.get("evalue")}'
    if not place:
        return f'{where}: {error}'
    # IPython does not count empty lines at the start of a cell
    skipped = next(k for k, line in enumerate(code) if line.strip())
    line = min(place[0][0] + skipped, len(code))
    where += f', line {line}'
    if first_line is not None:
        where += f' (line {first_line + line - 1} of the file)'
    if len(place) > 1:
        where += f', in {place[-1][1]}'
    return f'{where}: {error}\n    {code[line - 1].strip()}'


class Screen:
    """Print the outputs of a page above the progress bar.

    silent: print only standard error.
    """

    def __init__(self, bar, silent=False):
        self._bar, self.silent = bar, silent
        self._part = ''     # an unfinished line of standard output

    def show(self, output):
        """Print one output of a cell."""
        if output.output_type == 'stream':
            stream = sys.stderr if output.name == 'stderr' else sys.stdout
            if stream is sys.stderr or not self.silent:
                self._write(output.text, stream)
        elif 'data' in output and not is_picture(output):
            self.lines([output.data.get('text/plain', '')])

    def lines(self, lines):
        """Print whole lines."""
        if lines and not self.silent:
            self.end_line()
            self._write(''.join(f'{line}\n' for line in lines), sys.stdout)

    def end_line(self):
        """End an unfinished line."""
        if self._part:
            self._write('\n', sys.stdout)

    def refresh(self):
        """Update the time that the bar shows."""
        self._bar.refresh()

    def _write(self, text, stream):
        """Print text, except an unfinished line that must wait."""
        if stream is sys.stdout:
            text = self._part * self._holds_part() + text
            self._part = text.rpartition('\n')[2]
            if self._holds_part():
                text = text[:len(text) - len(self._part)]
        if text:
            tqdm.write(text, file=stream, end='')
            stream.flush()

    def _holds_part(self):
        """True if an unfinished line must wait: a bar moves by whole lines."""
        return not self._bar.disable


class Comparison:
    """Compare the outputs of cells, and count equal and different cells."""

    def __init__(self):
        self._same = self._different = 0

    def rows(self, number, before, now):
        """The lines that compare the outputs of a cell, old and new.

        before, now: lists of lines; before is None if the file stores no
        outputs for this cell.
        """
        if before is None:
            return [f'cell {number}, not printed in the file:',
                    *now] if now else []
        if not before and not now:
            return []
        if before == now:
            self._same += 1
            return [f'cell {number}, as in the file:', *now]
        self._different += 1
        return [f'cell {number}:', *beside(before, now,
                        shutil.get_terminal_size().columns)]

    def summary(self):
        """A sentence with the numbers of equal and different cells."""
        total = self._same + self._different
        return (f'{total} {"cell" if total == 1 else "cells"} with outputs: '
                f'{self._same} as in the file, {self._different} different')


def beside(before, now, columns):
    """Two lists of lines side by side, with `|` between different lines.

    Lists too wide for `columns` are returned one below the other.
    """
    pairs = [(BEFORE, NOW), *itertools.zip_longest(before, now, fillvalue='')]
    left, right = (max(map(len, side)) for side in zip(*pairs))
    if left + 3 + right <= columns:
        return [f'{old:{left}} {"|" if old != new else " "} {new}'.rstrip()
                for old, new in pairs]
    return [f'{BEFORE}:', *(f'  {line}' for line in before),
            f'{NOW}:', *(f'  {line}' for line in now)]
