"""Run a page of the book cell by cell, printing what it prints."""
import sys

from tqdm import tqdm

from d2lbert.book.comparison import Comparison
from d2lbert.book.kernel import Kernel, KernelError, Outputs
from d2lbert.book.pages import is_code, is_picture, printed_lines
from d2lbert.machine.terminal import is_quiet


class PageError(RuntimeError):
    """A cell of a page failed; the text names the cell and the line."""


def run_page(page, compare=False):
    """Execute a page; its notebook then has the outputs.

    Standard output gets what the cells print and show; with `compare`, that
    beside what the file has printed. A bar counts the cells on a terminal.
    Raises PageError at the first cell that fails, and KernelError.
    """
    cells = [(k, cell) for k, cell in enumerate(page.notebook.cells)
             if is_code(cell)]
    comparison = Comparison() if compare else None
    displays = {}
    # disable=None: no bar where standard error is no terminal
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
    """Execute cell k of the notebook; PageError where it fails."""
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
    """The sentence about a cell that failed, and the line of its code."""
    error = f'{reply.get("ename")}: {reply.get("evalue")}'
    if not place:
        return f'{where}: {error}'
    # IPython does not count empty lines at a cell's beginning
    skipped = next(k for k, line in enumerate(code) if line.strip())
    line = min(place[0][0] + skipped, len(code))
    where += f', line {line}'
    if first_line is not None:
        where += f' (line {first_line + line - 1} of the file)'
    if len(place) > 1:
        where += f', in {place[-1][1]}'
    return f'{where}: {error}\n    {code[line - 1].strip()}'


class Screen:
    """Where a page's outputs are printed, above the bar of its cells.

    silent: show nothing but standard error.
    """

    def __init__(self, bar, silent=False):
        self._bar, self.silent = bar, silent
        self._part = ''     # of a line of standard output, not yet ended

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
        """End a line that the page has begun."""
        if self._part:
            self._write('\n', sys.stdout)

    def refresh(self):
        """Let the bar show the time."""
        self._bar.refresh()

    def _write(self, text, stream):
        if stream is sys.stdout:
            text = self._part * self._held() + text
            self._part = text.rpartition('\n')[2]
            if self._held():    # a bar takes lines only
                text = text[:len(text) - len(self._part)]
        if text:
            tqdm.write(text, file=stream, end='')
            stream.flush()

    def _held(self):
        return not self._bar.disable
