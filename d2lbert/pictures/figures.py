"""Show matplotlib figures in notebooks, and save them as files.

This module imports matplotlib, so other modules import it only in the
functions that draw.
"""
import io
from pathlib import Path

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from d2lbert.machine.arguments import UsageError, check_out, writing


class Picture(Figure):
    """A figure that a notebook displays if it is the result of a cell.

    A notebook displays a plain `Figure` only after `%matplotlib inline`.
    """

    def _repr_png_(self):   # IPython calls this method
        file = io.BytesIO()
        self.savefig(file, format='png', bbox_inches='tight')
        return file.getvalue()


def check_figure(out, force, reads=()):
    """Raise an error if a figure must not be written to the file `out`.

    Call this before a long computation. force, reads: as for `check_out`.
    Raises ValueError or FileExistsError as `check_out` does, and UsageError
    if matplotlib cannot write the format that the extension names.
    """
    check_out(out, force, 'figure.png', reads)
    if _format(out) not in FigureCanvasBase.get_supported_filetypes():
        raise UsageError(f'--out {out} does not end in the name of a format '
                         'for pictures: use .png, .svg or .pdf')


def save_figure(fig, out, force):
    """Write a figure to the file `out`, completely or not at all.

    force: replace an existing file.
    """
    with writing(out, force) as temporary:
        fig.savefig(temporary, format=_format(out), dpi=150)


def _format(out):
    """Return the format that a file's extension names, for example 'png'."""
    return Path(out).suffix[1:].lower()
