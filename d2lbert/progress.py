"""The book's tools for watching a loop: Timer, Accumulator, Animator."""
import io
import sys
import time
from pathlib import Path

from matplotlib.figure import Figure
from tqdm import tqdm

from d2lbert.files import replacing


class Timer:
    """Record several running times, in seconds."""

    def __init__(self):
        self.times = []
        self.start()

    def start(self):
        """Start the clock."""
        self.tik = time.perf_counter()

    def stop(self):
        """Stop the clock; record and return what it shows."""
        self.times.append(time.perf_counter() - self.tik)
        return self.times[-1]

    def avg(self):
        """The mean of all recorded times."""
        return self.sum() / len(self.times)

    def sum(self):
        """The sum of all recorded times."""
        return sum(self.times)

    def cumsum(self):
        """The running sums of the recorded times, a list."""
        sums, total = [], 0.0
        for seconds in self.times:
            total += seconds
            sums.append(total)
        return sums


class Accumulator:
    """Sums over n variables."""

    def __init__(self, n):
        self.data = [0.0] * n

    def add(self, *args):
        """Add one number to each sum."""
        self.data = [a + float(b) for a, b in zip(self.data, args)]

    def reset(self):
        """Set every sum to zero."""
        self.data = [0.0] * len(self.data)

    def __getitem__(self, idx):
        return self.data[idx]


def in_notebook():
    """Whether this code runs in a notebook, which can show a figure."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), 'kernel')


class Animator:
    """Lines that grow while a loop runs.

    In a notebook they are one figure, redrawn in place; in a terminal a
    progress bar with the latest values, and nothing at all where standard
    error is not a terminal. `save` keeps the picture.
    """

    def __init__(self, xlabel=None, ylabel=None, legend=None, xlim=None,
                 ylim=None, xscale='linear', yscale='linear',
                 fmts=('-', 'm--', 'g-.', 'r:'), nrows=1, ncols=1,
                 figsize=(3.5, 2.5)):
        # Not from pyplot: a figure of its own opens no window and is not
        # shown a second time when the notebook's cell ends
        self.fig = Figure(figsize=figsize, layout='constrained')
        self.axes = list(self.fig.subplots(nrows, ncols,
                                           squeeze=False).flat)
        self.legend, self.fmts = list(legend or []), fmts
        self.xlabel, self.X, self.Y = xlabel, None, None
        self._settings = dict(xlabel=xlabel, ylabel=ylabel, xscale=xscale,
                              yscale=yscale)
        if xlim is not None and xlim[0] < xlim[1]:
            self._settings['xlim'] = tuple(xlim)
        if ylim is not None:
            self._settings['ylim'] = tuple(ylim)
        self._end = xlim[1] if xlim is not None else None
        self._display = self._bar = None
        self._notebook = in_notebook()
        self._drawn_at, self._cost, self._stale = -float('inf'), 0.0, False

    def add(self, x, y):
        """Add a point to each line; x and y are numbers or lists of them."""
        y = list(y) if hasattr(y, '__len__') else [y]
        x = list(x) if hasattr(x, '__len__') else [x] * len(y)
        self.X, self.Y = self.X or [], self.Y or []
        for _ in range(len(y) - len(self.Y)):
            self.X.append([])
            self.Y.append([])
        for xs, ys, a, b in zip(self.X, self.Y, x, y):
            if a is not None and b is not None:
                xs.append(a)
                ys.append(b)
        if self._notebook:
            self._show_figure(x)
        else:
            self._show_bar(x)

    def _show_figure(self, x):
        # A picture costs about 50 ms, so draw one when ten such have passed
        self._stale = True
        last = self._end is not None and max(x) >= self._end
        if last or time.perf_counter() - self._drawn_at > 10 * self._cost:
            self._redraw()

    def _redraw(self):
        from IPython import get_ipython
        from IPython.display import SVG, display
        start = time.perf_counter()
        picture = SVG(self.svg())
        if self._display is None:
            self._display = display(picture, display_id=True)
            # The cell may end between two pictures
            get_ipython().events.register('post_run_cell', self._flush)
        else:
            self._display.update(picture)
        self._drawn_at, self._stale = time.perf_counter(), False
        self._cost = self._drawn_at - start

    def _flush(self, *_):
        from IPython import get_ipython
        get_ipython().events.unregister('post_run_cell', self._flush)
        if self._stale:
            self._redraw()

    def _show_bar(self, x):
        if self._bar is None:
            # disable=None: no bar where standard error is not a terminal
            self._bar = tqdm(total=self._end, unit=self.xlabel or 'it',
                             disable=None, dynamic_ncols=True)
        self._bar.set_postfix_str(
            ', '.join(f'{name} {ys[-1]:.3f}' for name, ys
                      in zip(self.legend, self.Y) if ys),
            refresh=False)
        self._bar.update(max(x) - self._bar.n)

    def say(self, line):
        """Print a line above the progress bar."""
        tqdm.write(line, file=sys.stdout)

    def close(self):
        """End the progress bar; a figure stays as it is."""
        if self._bar is not None:
            self._bar.close()

    def draw(self):
        """Draw all lines into `fig` and return it."""
        axes = self.axes[0]
        axes.cla()
        for xs, ys, fmt in zip(self.X or [], self.Y or [], self.fmts):
            axes.plot(xs, ys, fmt)
        axes.set(**self._settings)
        if self.legend:
            axes.legend(self.legend)
        axes.grid()
        return self.fig

    def svg(self):
        """The figure as the text of an SVG picture."""
        text = io.StringIO()
        self.draw().savefig(text, format='svg')
        return text.getvalue()

    def save(self, path):
        """Write the figure to `path`, in the format of its ending."""
        with replacing(path) as part:
            self.draw().savefig(part, format=Path(path).suffix[1:], dpi=150)
