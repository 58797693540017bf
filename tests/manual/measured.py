"""Figures of tests/bench/results, by command, table, row and column."""
import json
import re
import statistics
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / 'tests' / 'bench' / 'results'
ZEN5 = 'amd-family-26-model-2-avx512-bf16.txt'
ZEN4 = 'amd-family-25-model-17-avx512-bf16.txt'
ZEN3 = 'amd-family-25-model-1-avx2.txt'
XEON = 'intel-family-6-model-85-avx512.txt'
AMX = 'intel-family-6-model-207-avx512-bf16-amx.txt'


class Section(NamedTuple):
    """What one command left in a file of results."""

    command: str
    lines: list

    def table(self, title):
        """{row: {column: text}} of the table below a title."""
        starts = [i for i, line in enumerate(self.lines)
                  if line.startswith(title)]
        assert len(starts) == 1, (self.command, title, starts)
        rows = self.lines[starts[0] + 1:]
        rows = rows[:rows.index('')] if '' in rows else rows
        header, *rows = [_cells(row) for row in rows
                         if re.search(r'\S\s{2,}\S', row)]
        names = {}
        for end, name in header:
            names[end] = f'ratio {name}' if name in names.values() else name
        # Numbers end where the name of their column does
        return {name: {names[end]: value for end, value in values
                       if end in names} for (_, name), *values in rows}

    def match(self, pattern):
        """The groups of the one line in which the pattern is found."""
        found = [hit for hit in map(re.compile(pattern).search, self.lines)
                 if hit]
        assert len(found) == 1, (self.command, pattern, found)
        return found[0].groups()


def _cells(line):
    """(end, text) of each cell; two blanks part them."""
    return [(cell.end(), cell.group())
            for cell in re.finditer(r'\S+(?: \S+)*', line)]


def section(file, *words, without=(), is_last=False):
    """The only section of a file whose command has all `words`.

    without: words that the command must not have. is_last: of several
    sections take the last.
    """
    parts = re.split('^## ', (RESULTS / file).read_text('utf-8'),
                     flags=re.MULTILINE)[1:]
    found = []
    for part in parts:
        command, *lines = part.splitlines()
        if (set(words) <= set(command.split())
                and not set(without) & set(command.split())):
            found.append(Section(command, lines))
    assert len(found) == 1 or found and is_last, (
        file, words, [section.command for section in found])
    return found[-1]


def ratio(row):
    """How many times as fast, with the range: '9.8× (8.8–12.2)'."""
    least, most = row['ratio min to max'].split(' to ')
    return (f'{significant(row["ratio"])}× ({float(least):.1f}–'
            f'{float(most):.1f})')


def significant(text):
    """A number to two or three digits, as the tables show it."""
    value = float(text)
    return f'{value:.0f}' if value >= 20 else f'{value:.1f}'


def seconds(text):
    return f'{float(text):#.3g} s'


def finetuned(task, ours, metric):
    """'mean (standard deviation)' of a metric over seeds, and their number.
    """
    runs = json.loads((RESULTS / 'finetune.json').read_text('utf-8'))
    values = [figures[metric] for figures, _ in runs[task][ours]]
    return (f'{statistics.mean(values):.3f} '
            f'({statistics.stdev(values):.3f})', len(values))
