"""Figures of matplotlib that a notebook shows."""
import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure that a notebook shows as the outcome of a cell.

    matplotlib's own needs `%matplotlib inline` before that.
    """

    def _repr_png_(self):
        picture = io.BytesIO()
        self.savefig(picture, format='png', bbox_inches='tight')
        return picture.getvalue()
