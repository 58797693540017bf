"""Measure a loop and show its progress.

`Timer`, `Accumulator` and `Animator` are the book's tools. `bar` is the
progress bar of all commands.
"""
import functools
import html
import io
import sys
import time
from pathlib import Path

from d2lbert.machine.files import replacing
from d2lbert.machine.terminal import is_quiet

#: Options of `plot` for a curve of one point, invisible without a marker.
POINT = dict(marker='o', markersize=4, clip_on=False)


class Timer:
    """A clock that records several durations, in seconds."""

    def __init__(self):
        self.times = []
        self.start()

    def start(self):
        """Start the clock."""
        self.tik = time.perf_counter()

    def stop(self):
        """Record and return the time since the clock was started."""
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
    """Running sums of n variables."""

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
    """True in the kernel of a notebook."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    # None outside of IPython; in a terminal, IPython has no kernel
    return hasattr(get_ipython(), 'kernel')


class LineBar:
    """A progress bar for a log file: a line of text every few seconds.

    The time between two lines is at least INTERVAL seconds, and at least a
    hundredth of the time since the start, so that the log of a long run stays
    short. The arguments are as for `bar`. n, total, `update`,
    `set_postfix_str` and `close` have the meaning that they have in tqdm.
    """

    INTERVAL = 5

    def __init__(self, total=None, what='', unit='it', unit_scale=False):
        self.total, self.n, self._unit_scale = total, 0, unit_scale
        if what:        # 'reading 3/50 files'
            self._prefix, self._unit = what, unit
        else:           # 'step 3/50'
            self._prefix, self._unit = unit, ''
        self._postfix = ''
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start(self):
        """Start the clock; the time left is estimated from later items."""
        self._started_at = self._written_at = time.perf_counter()
        self._start_n = self.n

    def set_postfix_str(self, text='', refresh=True):
        """Set the text after the count in the next line; ignore refresh."""
        self._postfix = text

    def update(self, n=1):
        """Count n more items, and write a line if one is due."""
        self.n += n
        now = time.perf_counter()
        elapsed = now - self._started_at
        if now - self._written_at >= max(self.INTERVAL, elapsed / 100):
            self._written_at = now
            self.write_line(self._line(elapsed))

    def write_line(self, line):
        if sys.stderr is not None:      # None if closed before Python started
            print(line, file=sys.stderr, flush=True)

    def close(self):
        """Do nothing: the lines stay."""

    def _line(self, elapsed):
        counts = [self.n] if self.total is None else [self.n, self.total]
        as_text = _tqdm().format_sizeof if self._unit_scale else '{:,}'.format
        count = '/'.join(map(as_text, counts))
        num_since_start, time_left = self.n - self._start_n, ''
        if self.total and num_since_start > 0:
            seconds = elapsed / num_since_start * max(self.total - self.n, 0)
            time_left = f'{_duration(seconds)} left'
        line = ' '.join(filter(None, (self._prefix, count, self._unit)))
        details = ', '.join(filter(None, (self._postfix, time_left)))
        return f'{line}: {details}' if details else line


def _tqdm():
    """The class tqdm, imported late because the import takes time."""
    from tqdm import tqdm
    return tqdm


def _duration(seconds):
    """Format a duration as '8 s', '12 min' or '3 h 5 min'."""
    if round(seconds) < 60:
        return f'{seconds:.0f} s'
    hours, minutes = divmod(round(seconds / 60), 60)
    return f'{hours} h {minutes} min' if hours else f'{minutes} min'


class NotebookBar(LineBar):
    """A progress bar below a notebook's cell; `close` removes it.

    Unlike tqdm's bar for notebooks, it needs no ipywidgets.
    """

    INTERVAL = 0.2

    def __init__(self, total=None, what='', unit='it', unit_scale=False,
                 delay=0):
        self._display = None
        super().__init__(total, what, unit, unit_scale)
        # `update` shows nothing before delay + INTERVAL seconds
        self._written_at += delay

    def write_line(self, line):
        """Show the bar, with a line of text beside it."""
        from IPython.display import HTML, display
        # Without attributes, <progress> is a bar of unknown length
        attributes = (f' value="{self.n}" max="{self.total}"' if self.total
                      else '')
        element = HTML(
            f'<progress{attributes}></progress> {html.escape(line)}')
        if self._display is None:
            self._display = display(element, display_id=True)
        else:
            self._display.update(element)

    def close(self):
        if self._display is not None:
            from IPython.display import HTML
            self._display.update(HTML(''))
            self._display = None


class _SilentBar(LineBar):
    def write_line(self, line):
        pass


def bar(total=None, what='', unit='it', unit_scale=False, leave=False,
        quiet=False, delay=0):
    """Open a progress bar: below a notebook's cell, or on standard error.

    If standard error is no terminal, a `LineBar` writes lines to it instead.

    total: the number of items, None if unknown. what: a label, such as
    'reading'. unit: such as 'B'. unit_scale: abbreviate counts, as in 1.2M.
    leave: keep the bar on a terminal after `close`. delay: seconds before the
    bar appears; at least one in a notebook, ignored by a `LineBar`.

    Returns a context manager with `update(n)`, `set_postfix_str(text)`, `n`
    and `close()`: tqdm's bar, or a `LineBar`.
    """
    if quiet or is_quiet():
        return _SilentBar(total, what, unit, unit_scale)
    if in_notebook():
        return NotebookBar(total, what, unit, unit_scale, max(delay, 1))
    if sys.stderr is not None and sys.stderr.isatty():
        return _tqdm()(total=total, desc=what or None, unit=unit, delay=delay,
                       unit_scale=unit_scale, leave=leave, dynamic_ncols=True)
    return LineBar(total, what, unit, unit_scale)


def with_progress(items, what, unit='it', total=None):
    """Yield the items of an iterable and show their progress in a `bar`."""
    with bar(total, what, unit) as progress_bar:
        for item in items:
            yield item
            progress_bar.update(1)


class Animator:
    """Curves that grow while a loop runs.

    A notebook shows them as one figure, redrawn in place. A terminal shows a
    progress bar with the latest values, and a log file gets a line of text
    every few seconds. `save` writes the figure to a file. xlim: (first x, last
    x); the progress bar ends at the last x. fmts: matplotlib's formats of the
    curves. quiet: show neither a figure nor a bar.
    """

    def __init__(self, xlabel=None, ylabel=None, legend=None, xlim=None,
                 ylim=None, xscale='linear', yscale='linear',
                 fmts=('-', 'm--', 'g-.', 'r:'), nrows=1, ncols=1,
                 figsize=(3.5, 2.5), quiet=False):
        self._grid, self._figsize, self._quiet = (nrows, ncols), figsize, quiet
        self.legend, self.fmts = list(legend or []), fmts
        self.xlabel = xlabel
        self.X, self.Y = None, None     # `add` sets a list for each curve
        self._axes_settings = dict(xlabel=xlabel, ylabel=ylabel,
                                   xscale=xscale, yscale=yscale)
        # matplotlib warns of equal limits, which a loop of one step has
        if xlim is not None and xlim[0] < xlim[1]:
            self._axes_settings['xlim'] = tuple(xlim)
        if ylim is not None:
            self._axes_settings['ylim'] = tuple(ylim)
        self._last_x = xlim[1] if xlim is not None else None
        self._display, self._bar, self.has_begun = None, None, False
        self._shows_figure = in_notebook() and not quiet
        self._drawn_at = -float('inf')
        self._pause = 0.0               # seconds to wait after a drawing
        self._has_undrawn_points = False

    @functools.cached_property
    def fig(self):
        """The matplotlib figure."""
        # pyplot would open a window, or show the figure again below the cell
        from matplotlib.figure import Figure
        return Figure(figsize=self._figsize, layout='constrained')

    @functools.cached_property
    def axes(self):
        """All axes of the figure, a list; the curves are in the first."""
        return list(self.fig.subplots(*self._grid, squeeze=False).flat)

    def begin(self, line):
        """Open the bar, and start its clock; in a log file, write `line`.

        A resumed loop adds its earlier points before this call, so that speed
        and time left are estimated without them.
        """
        self.has_begun = True
        if self._shows_figure:
            return
        self._ensure_bar()
        if isinstance(self._bar, LineBar):
            self._bar.write_line(line)
            self._bar.start()
        elif self._bar.n:       # tqdm's bar, of a resumed loop
            earlier = self._bar.n
            self._bar.reset()
            self._bar.n = self._bar.initial = earlier
            self._bar.last_print_n = earlier

    def _ensure_bar(self):
        if self._bar is None:
            self._bar = bar(self._last_x, unit=self.xlabel or 'it',
                            leave=True, quiet=self._quiet)

    def add(self, x, y):
        """Add a point to each curve.

        x, y: a number, or a list with an entry for each curve, where None adds
        no point. If x is a number, all points have this x.
        """
        y = list(y) if hasattr(y, '__len__') else [y]
        x = list(x) if hasattr(x, '__len__') else [x] * len(y)
        self.X, self.Y = self.X or [], self.Y or []
        for _ in range(len(y) - len(self.Y)):
            self.X.append([])
            self.Y.append([])
        for xs, ys, new_x, new_y in zip(self.X, self.Y, x, y):
            if new_x is not None and new_y is not None:
                xs.append(new_x)
                ys.append(new_y)
        largest_x = max((new_x for new_x in x if new_x is not None),
                        default=None)
        if largest_x is None:
            return
        if self._shows_figure:
            self._update_figure(largest_x)
        else:
            self._update_bar(largest_x)

    def _update_figure(self, x):
        self._has_undrawn_points = True
        is_last = self._last_x is not None and x >= self._last_x
        if is_last or time.perf_counter() - self._drawn_at > self._pause:
            self._redraw()

    def _redraw(self):
        from IPython import get_ipython
        from IPython.display import SVG, display
        start = time.perf_counter()
        picture = SVG(self.svg())
        if self._display is None:
            self._display = display(picture, display_id=True)
            get_ipython().events.register('post_run_cell', self._finish_figure)
        else:
            self._display.update(picture)
        self._drawn_at, self._has_undrawn_points = time.perf_counter(), False
        # So drawing takes at most a tenth of the time of the loop
        self._pause = 10 * (self._drawn_at - start)

    def _finish_figure(self, *_):
        from IPython import get_ipython
        get_ipython().events.unregister('post_run_cell', self._finish_figure)
        if self._has_undrawn_points:
            self._redraw()

    def _update_bar(self, x):
        self._ensure_bar()
        self._bar.set_postfix_str(
            ', '.join(f'{name} {ys[-1]:.3f}' for name, ys
                      in zip(self.legend, self.Y) if ys),
            refresh=False)
        self.move(x)

    def move(self, x):
        """Move the bar to x without adding a point; a figure has no bar."""
        if not self._shows_figure:
            self._ensure_bar()
            # Rounded, since the bar shows all digits of a fractional epoch
            self._bar.update(round(x, 2) - self._bar.n)

    def print_line(self, line):
        """Print a line above the progress bar."""
        _tqdm().write(line, file=sys.stdout)

    def close(self):
        """End the progress bar; a figure stays as it is."""
        if self._bar is not None:
            self._bar.close()

    def draw(self):
        """Draw all curves into `fig` and return it."""
        axes = self.axes[0]
        axes.cla()
        legend_curves, legend_names = [], []
        for k, (xs, ys, fmt) in enumerate(zip(self.X or [], self.Y or [],
                                              self.fmts)):
            curve, = axes.plot(xs, ys, fmt, **POINT if len(xs) == 1 else {})
            if xs and k < len(self.legend):
                legend_curves.append(curve)
                legend_names.append(self.legend[k])
        axes.set(**self._axes_settings)
        if len(legend_names) > 2:       # more do not fit into the axes
            axes.legend(legend_curves, legend_names, loc='upper left',
                        bbox_to_anchor=(0, -0.25),      # below the axes
                        ncol=2, frameon=False, borderaxespad=0,
                        fontsize='small')
        elif legend_names:
            axes.legend(legend_curves, legend_names)
        axes.grid()
        return self.fig

    def svg(self):
        """The figure as SVG text."""
        text = io.StringIO()
        self.draw().savefig(text, format='svg')
        return text.getvalue()

    def save(self, path):
        """Write the figure to `path`, in the format of its suffix."""
        with replacing(path) as partial_path:
            self.draw().savefig(partial_path, format=Path(path).suffix[1:],
                                dpi=150)
