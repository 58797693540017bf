"""`d2lbert help`: the manual, a page for each topic."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from d2lbert.machine.arguments import UsageError, did_you_mean

MANUAL = Path(__file__).resolve().parents[1] / 'manual'
CONTENTS = 'index'

#: Maximum columns of a page: longer lines are hard to read.
WIDTH = 90

BOLD, UNDERLINE, PLAIN = '\x1b[1m', '\x1b[4m', '\x1b[0m'


def add(commands):
    """Add this sub-command to the parser."""
    parser = commands.add_parser(
        'help', help='the manual', description='Show the manual: its table '
        'of contents, a page, or the flags of a command. On a terminal the '
        'text is paged by the program in PAGER, or by less.')
    parser.add_argument('topic', nargs='?', default=CONTENTS,
                        metavar='TOPIC', help='a page of the manual, or a '
                        'command (default: the table of contents)')
    parser.set_defaults(run=lambda args: run(args, commands.choices))


def run(args, commands):
    """Show a page; returns the exit status.

    commands: {name: parser} of all sub-commands.
    """
    if args.topic not in topics() and args.topic in commands:
        show(commands[args.topic].format_help())
        return 0
    page = find(args.topic, commands)
    is_terminal = sys.stdout.isatty()
    width = min(WIDTH, shutil.get_terminal_size().columns)
    show(render(page.read_text('utf-8'), width, is_styled=is_terminal))
    return 0


def topics():
    """The names of the pages, sorted, without the table of contents."""
    return sorted(path.stem for path in MANUAL.glob('*.md')
                  if path.stem != CONTENTS)


def find(topic, commands=()):
    """The file of a topic; a unique beginning of its name is enough.

    Raises UsageError, which names the nearest topic, if there is none.
    """
    names = [CONTENTS, *topics()]
    begins = [name for name in names if name.startswith(topic.lower())]
    if topic.lower() in names or len(begins) == 1:
        name = topic.lower() if topic.lower() in names else begins[0]
        return MANUAL / f'{name}.md'
    hint = did_you_mean(topic, [*names, *commands])
    raise UsageError(f'the manual has no page {topic!r}'
                     + (f'{hint} The' if hint else ': the')
                     + f' pages are {", ".join(topics())}')


def show(text):
    """Print a text, page by page on a terminal."""
    pager = _pager() if sys.stdout.isatty() else None
    if pager is None:
        print(text, end='')
        return
    # As git does: leave at once if the text fits, keep colours and screen
    environment = {'LESS': 'FRX', 'LESSCHARSET': 'utf-8', **os.environ}
    with subprocess.Popen(pager, stdin=subprocess.PIPE,
                          env=environment) as process:
        try:
            process.communicate(text.encode('utf-8'))
        except BrokenPipeError:
            pass                # the reader has left the pager
        except KeyboardInterrupt:
            process.wait()      # less handles Ctrl-C itself


def _pager():
    """The command of the pager, or None if there is none."""
    named = shlex.split(os.environ.get('PAGER', '')) or ['less']
    return named if shutil.which(named[0]) else None


def render(text, width=80, is_styled=False):
    """Markdown as lines of at most `width` columns.

    Code is indented and never wrapped. A table that is too wide becomes a
    list: the first cell of a row, and the others below it.

    is_styled: mark headings and code by escape sequences for a terminal.
    """
    text = re.sub(r'<!--.*?-->\n?', '', text, flags=re.DOTALL)
    styled, joined, before = _Style(is_styled), '', None
    for kind, lines in _blocks(text):
        if before is not None:
            joined += '\n' if kind == before == 'item' else '\n\n'
        joined += _rendered(kind, lines, width, styled)
        before = kind
    return joined + '\n'


def _rendered(kind, lines, width, styled):
    if kind == 'code':
        return '\n'.join(f'    {line}'.rstrip() for line in lines)
    if kind == 'heading':
        marks, _, title = lines[0].partition(' ')
        return styled.heading(_inline(title), len(marks))
    if kind == 'table':
        return _table(lines, width, styled)
    if kind == 'item':
        return '\n'.join(_lines(' '.join(lines)[2:], width, styled, '- ',
                                '  '))
    return '\n'.join(_lines(' '.join(lines), width, styled))


class _Style:
    """Marks of headings and code: escape sequences, or plain characters."""

    def __init__(self, is_on):
        self.is_on = is_on

    def heading(self, title, level):
        if self.is_on:
            return f'{BOLD}{UNDERLINE * (level == 1)}{title}{PLAIN}'
        mark = {1: '=', 2: '-'}.get(level)
        return f'{title}\n{mark * len(title)}' if mark else title

    def code(self, text):
        """Mark `code`; without escape sequences it keeps its backticks."""
        if not self.is_on:
            return text
        return re.sub('`([^`]+)`', rf'{BOLD}\1{PLAIN}', text)


def _blocks(text):
    """(kind, lines) of each block: code, heading, table, item or text."""
    blocks, lines = [], iter(text.splitlines())
    kind, block = None, []

    def close():
        nonlocal kind, block
        if block:
            blocks.append((kind, block))
        kind, block = None, []
    for line in lines:
        if line.startswith('```'):
            close()
            code = []
            for inner in lines:
                if inner.startswith('```'):
                    break
                code.append(inner)
            blocks.append(('code', code))
        elif not line.strip():
            close()
        elif re.match('#+ ', line):
            close()
            blocks.append(('heading', [line]))
        elif line.startswith('|'):
            if kind != 'table':
                close()
            kind = 'table'
            block.append(line)
        elif line.startswith('- '):
            close()
            kind, block = 'item', [line]
        else:
            kind = kind or 'text'
            block.append(line.strip())
    close()
    return blocks


def _inline(text):
    """Text with pictures, links and emphasis written out."""
    text = re.sub(r'!\[([^]]*)\]\([^)]*\)', r'[picture: \1]', text)
    text = re.sub(r'\[([^]]*)\]\((\w+)\.md(?:#[^)]*)?\)', _page, text)
    text = re.sub(r'\[([^]]*)\]\((https?:[^)]*)\)', r'\1 <\2>', text)
    text = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', text)
    parts = re.split('(`[^`]+`)', text)
    parts[::2] = [re.sub(r'(\*\*?)([^*\s][^*]*)\1', r'\2', part)
                  for part in parts[::2]]
    return ''.join(parts)


def _page(link):
    """A link to another page: its words, and how to open it."""
    words, name = link.groups()
    return name if words == name else f'{words} (d2lbert help {name})'


def _lines(text, width, styled, first='', later=''):
    """Wrap text; first, later: indents of the first line, of later lines."""
    # Do not break lines at blanks within code
    text = re.sub('`[^`]+`', lambda code: code.group().replace(' ', '\0'),
                  _inline(text))
    lines = textwrap.wrap(text, width, initial_indent=first,
                          subsequent_indent=later, break_long_words=False,
                          break_on_hyphens=False) or [first.rstrip()]
    return [styled.code(line.replace('\0', ' ')) for line in lines]


def _cells(line):
    """The cells of a row; `\\|` is a bar within one."""
    cells = re.split(r'(?<!\\)\|', line.strip().strip('|'))
    return [cell.strip().replace('\\|', '|') for cell in cells]


def _table(lines, width, styled):
    """Columns if they fit; two columns with the second wrapped; or a list."""
    header, _, *rows = map(_cells, lines)
    shown = [[_inline(cell) for cell in row] for row in [header, *rows]]
    if not any(header[1:]):
        shown = shown[1:]       # the header names no columns
    widths = [max(map(len, column)) for column in zip(*(
        row for row in shown if any(row[1:])))]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        # Pad cells before marking them: escape sequences take no column
        return _titled(shown, styled, lambda row: [styled.code('  '.join(
            cell.ljust(size) for cell, size in zip(row, widths)).rstrip())])
    if len(widths) == 2 and widths[0] <= width // 3:
        later = ' ' * (widths[0] + 2)
        return _titled(shown, styled, lambda row: _lines(
            row[1], width, styled, row[0].ljust(len(later)), later))
    entries = []
    if header[0] and len(header) > 2:
        entries += _lines(f'({header[0]})', width, styled)
    for row in rows:
        if not any(row[1:]):
            entries += ['', styled.heading(_inline(row[0]), 3)]
            continue
        entries += _lines(row[0], width, styled)
        for name, cell in zip(header[1:], row[1:]):
            label = f'{name}: ' if name and len(row) > 2 else ''
            if cell:
                entries += _lines(label + cell, width, styled, '    ', '    ')
    return '\n'.join(entries)


def _titled(rows, styled, lines):
    """Rows as lines; a row with one cell is a title with a line above it."""
    found = []
    for row in rows:
        if any(row[1:]):
            found += lines(row)
        else:
            found += [''] * bool(found) + [styled.heading(row[0], 3)]
    return '\n'.join(found)
