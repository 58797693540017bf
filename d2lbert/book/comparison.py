"""Outputs that a page has printed beside the outputs of today."""
import itertools
import shutil

#: Heads of the two columns.
BEFORE, NOW = 'in the file', 'now'


class Comparison:
    """The cells of a page whose outputs were compared."""

    def __init__(self):
        self._same = self._different = 0

    def rows(self, number, before, now):
        """The lines that compare a cell's outputs, lists of lines.

        before: None where the file does not say what the cell printed.
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
        return [f'cell {number}:', *beside(before, now, width())]

    def summary(self):
        """How many cells are the same."""
        total = self._same + self._different
        return (f'{total} {"cell" if total == 1 else "cells"} with outputs: '
                f'{self._same} as in the file, {self._different} different')


def width():
    """The columns of the terminal."""
    return shutil.get_terminal_size().columns


def beside(before, now, columns):
    """Two lists of lines in two columns, `|` between lines that differ.

    One below the other where they are too wide for that.
    """
    pairs = [(BEFORE, NOW), *itertools.zip_longest(before, now, fillvalue='')]
    left, right = (max(map(len, side)) for side in zip(*pairs))
    if left + 3 + right <= columns:
        return [f'{old:{left}} {"|" if old != new else " "} {new}'.rstrip()
                for old, new in pairs]
    return [f'{BEFORE}:', *(f'  {line}' for line in before),
            f'{NOW}:', *(f'  {line}' for line in now)]
