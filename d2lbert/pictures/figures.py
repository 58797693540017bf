"""Figures of matplotlib: shown in notebooks and saved as files.

It imports matplotlib, so other modules import it when they draw.
"""
import io
from pathlib import Path

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from d2lbert.machine.arguments import UsageError, check_out, writing


class Picture(Figure):
    """A figure that a notebook shows as the result of a cell.

    A plain `Figure` is only shown after `%matplotlib inline`.
    """

    def _repr_png_(self):
        picture = io.BytesIO()
        self.savefig(picture, format='png', bbox_inches='tight')
        return picture.getvalue()


def check_figure(out, force, reads=()):
    """Check the path of a figure before it is drawn, as `check_out` does.

    reads: the paths that are read for it. Raises UsageError, also for a name
    that does not end in a format of matplotlib.
    """
    check_out(out, force, 'figure.png', reads)
    if _format(out) not in FigureCanvasBase.get_supported_filetypes():
        raise UsageError(f'--out {out} does not end in the name of a format '
                         'for pictures: use .png, .svg or .pdf')


def save_figure(fig, out, force):
    """Write a figure; the file is complete or not there at all."""
    with writing(out, force) as part:
        fig.savefig(part, format=_format(out), dpi=150)


def _format(out):
    return Path(out).suffix[1:].lower()
