"""Run `d2lbert help`: render the manual's Markdown pages for a terminal."""
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from d2lbert.machine.arguments import UsageError, did_you_mean

MANUAL = Path(__file__).resolve().parents[1] / 'manual'

#: Name of the page with the table of contents.
CONTENTS = 'index'

#: Maximum columns of a page: longer lines are hard to read.
MAX_WIDTH = 90

#: Escape sequences that change and reset the style of a terminal's text.
BOLD, UNDERLINE, PLAIN = '\x1b[1m', '\x1b[4m', '\x1b[0m'

#: The heading level of a title row of a table, see `_is_title`. A heading of
#: this level gets no line of = or - below it.
TABLE_TITLE_LEVEL = 3


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


def run(args, parsers):
    """Show a page, or the flags of a command; returns the exit status.

    parsers: {name of a sub-command: its parser}.
    """
    # Of a page and a command with the same name, show the page
    if args.topic not in topics() and args.topic in parsers:
        show(parsers[args.topic].format_help())
        return 0
    page = find_page(args.topic, suggestions=parsers)
    is_terminal = sys.stdout.isatty()
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
    show(render(page.read_text('utf-8'), width, is_styled=is_terminal))
    return 0


def topics():
    """Return the names of the pages, sorted, without `CONTENTS`."""
    return sorted(path.stem for path in MANUAL.glob('*.md')
                  if path.stem != CONTENTS)


def find_page(topic, suggestions=()):
    """Return the file of the page `topic`.

    Without such a page, `topic` may be the start of the name of one page.
    Raises UsageError if no page begins with `topic`, or if several do.
    suggestions: words that the error may suggest, besides the names of pages.
    """
    names, start = [CONTENTS, *topics()], topic.lower()
    matches = [start] if start in names else [
        name for name in names if name.startswith(start)]
    if len(matches) == 1:
        return MANUAL / f'{matches[0]}.md'
    hint = did_you_mean(topic, [*names, *suggestions])  # ends with '?', or ''
    raise UsageError(f'the manual has no page {topic!r}'
                     + (f'{hint} The' if hint else ': the')
                     + f' pages are {", ".join(topics())}')


def show(text):
    """Print a text; on a terminal, show it in a pager if there is one."""
    pager = _pager() if sys.stdout.isatty() else None
    if pager is None:
        print(text, end='')
        return
    # As in git: exit if the text fits (F), show colours (R), never clear (X)
    environment = {'LESS': 'FRX', 'LESSCHARSET': 'utf-8', **os.environ}
    with subprocess.Popen(pager, stdin=subprocess.PIPE,
                          env=environment) as process:
        # Ctrl-C goes to the pager, too, and less handles it
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.communicate(text.encode('utf-8'))
        except BrokenPipeError:
            pass                # the user has closed the pager
        finally:
            # None: the handler was not installed by Python code
            signal.signal(signal.SIGINT, handler or signal.SIG_DFL)


def _pager():
    """Return the command of the pager, a list, or None without a pager."""
    command = shlex.split(os.environ.get('PAGER', '')) or ['less']
    return command if shutil.which(command[0]) else None


def render(text, width=80, is_styled=False):
    """Convert Markdown to text for a terminal of `width` columns.

    Paragraphs are wrapped; headings and blocks of code are not, and these
    blocks are indented. For tables, see `_render_table`. is_styled: mark
    headings and `code` in a line by escape sequences for a terminal.
    """
    text = re.sub(r'<!--.*?-->\n?', '', text, flags=re.DOTALL)
    style, output, previous_kind = _Style(is_styled), '', None
    for kind, lines in _blocks(text):
        # An empty line between blocks, except between items of a list
        if previous_kind is not None:
            output += '\n' if kind == previous_kind == 'item' else '\n\n'
        output += _render_block(kind, lines, width, style)
        previous_kind = kind
    return output + '\n'


def _render_block(kind, lines, width, style):
    """Return the text of a block; kind, lines: as `_blocks` returns them."""
    if kind == 'code':
        return '\n'.join(f'    {line}'.rstrip() for line in lines)
    if kind == 'heading':
        hashes, _, title = lines[0].partition(' ')
        return style.heading(_plain_text(title), len(hashes))
    if kind == 'table':
        return _render_table(lines, width, style)
    if kind == 'item':
        text = ' '.join(lines)[2:]      # without '- '
        return '\n'.join(_wrap(text, width, style, '- ', '  '))
    return '\n'.join(_wrap(' '.join(lines), width, style))


class _Style:
    """Mark headings and `code`: by escape sequences, or =, - and backticks."""

    def __init__(self, use_escapes):
        self.use_escapes = use_escapes

    def heading(self, title, level):
        """Return a heading in bold, or with a line of = or - below it.

        level: 1 is the title of a page. From level 3 on, there is no line.
        """
        if self.use_escapes:
            return f'{BOLD}{UNDERLINE * (level == 1)}{title}{PLAIN}'
        line_char = {1: '=', 2: '-'}.get(level)
        return f'{title}\n{line_char * len(title)}' if line_char else title

    def code(self, text):
        """Return a text with its `code` in bold, without the backticks.

        Without escape sequences, return the text unchanged.
        """
        if not self.use_escapes:
            return text
        return re.sub('`([^`]+)`', rf'{BOLD}\1{PLAIN}', text)

    def width(self, text):
        """Return the number of characters that `code(text)` shows."""
        num_dropped = 2 * len(re.findall('`[^`]+`', text))
        return len(text) - num_dropped * self.use_escapes

    def pad(self, text, width):
        """Append blanks, so that `code(text)` shows `width` characters."""
        return text + ' ' * (width - self.width(text))


def _blocks(text):
    """Split Markdown into blocks (kind, lines).

    kind: 'code', 'heading', 'table', 'item' (of a list) or 'text'.
    """
    # An iterator, from which the inner loop takes the lines of a code block
    lines = iter(text.splitlines())
    blocks, kind, block = [], None, []      # block: lines of the current block

    def end_block():
        nonlocal kind, block
        if block:
            blocks.append((kind, block))
        kind, block = None, []
    for line in lines:
        if line.startswith('```'):
            end_block()
            code_lines = []
            for code_line in lines:
                if code_line.startswith('```'):
                    break
                code_lines.append(code_line)
            blocks.append(('code', code_lines))
        elif not line.strip():
            end_block()
        elif re.match('#+ ', line):
            end_block()
            blocks.append(('heading', [line]))
        elif line.startswith('|'):
            if kind != 'table':
                end_block()
            kind = 'table'
            block.append(line)
        elif line.startswith('- '):
            end_block()
            kind, block = 'item', [line]
        else:
            kind = kind or 'text'   # a block that has begun keeps its kind
            block.append(line.strip())
    end_block()
    return blocks


def _plain_text(text):
    """Replace pictures and links by text, and remove the * of emphasis."""
    # In this order: ![description](file), [words](page.md#part),
    # [words](https://...), and any other [words](target)
    text = re.sub(r'!\[([^]]*)\]\([^)]*\)', r'[picture: \1]', text)
    text = re.sub(r'\[([^]]*)\]\((\w+)\.md(?:#[^)]*)?\)', _link_text, text)
    text = re.sub(r'\[([^]]*)\]\((https?:[^)]*)\)', r'\1 <\2>', text)
    text = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', text)
    parts = re.split('(`[^`]+`)', text)     # every second part is code
    parts[::2] = [re.sub(r'(\*\*?)([^*\s][^*]*)\1', r'\2', part)
                  for part in parts[::2]]
    return ''.join(parts)


def _link_text(match):
    """Return the words of a link to a page, and the command that opens it.

    If the words are the name of the page, return only this name.
    """
    words, name = match.groups()
    return name if words == name else f'{words} (d2lbert help {name})'


def _wrap(text, width, style, prefix='', later_indent=''):
    """Return the lines of a paragraph after a prefix, wrapped to `width`."""
    # Replace blanks within code by \0, at which `textwrap` breaks no line
    text = re.sub('`[^`]+`', lambda match: match.group().replace(' ', '\0'),
                  _plain_text(text))
    lines = textwrap.wrap(text, width, initial_indent=prefix,
                          subsequent_indent=later_indent,
                          break_long_words=False, break_on_hyphens=False)
    lines = lines or [prefix.rstrip()]
    return [style.code(line.replace('\0', ' ')) for line in lines]


def _cells(line):
    """Split a row of a table into cells; `\\|` is a bar within a cell."""
    cells = re.split(r'(?<!\\)\|', line.strip().strip('|'))
    return [cell.strip().replace('\\|', '|') for cell in cells]


def _render_table(lines, width, style):
    """Return the text of a table, in the first of three forms that fits.

    The forms are columns, two columns with the second wrapped, and a list.
    """
    header, _, *rows = map(_cells, lines)   # the second line is |---|---|
    plain_rows = [[_plain_text(cell) for cell in row]
                  for row in [header, *rows]]
    if not any(header[1:]):     # empty except perhaps its first cell
        plain_rows = plain_rows[1:]
    columns = zip(*(row for row in plain_rows if not _is_title(row)))
    column_widths = [max(map(style.width, column)) for column in columns]
    # Two blanks between columns
    if sum(column_widths) + 2 * (len(column_widths) - 1) <= width:
        def one_line(row):
            line = '  '.join(map(style.pad, row, column_widths)).rstrip()
            return [style.code(line)]
        return _join_rows(plain_rows, style, one_line)
    # A wrapped second column needs about two thirds of the width
    if len(column_widths) == 2 and column_widths[0] <= width // 3:
        indent = ' ' * (column_widths[0] + 2)
        return _join_rows(plain_rows, style, lambda row: _wrap(
            row[1], width, style, style.pad(row[0], len(indent)), indent))
    output = []
    if header[0] and len(header) > 2:
        # Print header[0] once: cells of the first column get no label
        output += _wrap(f'({header[0]})', width, style)
    for row in rows:
        if _is_title(row):
            title = _plain_text(row[0])
            output += ['', style.heading(title, TABLE_TITLE_LEVEL)]
            continue
        output += _wrap(row[0], width, style)
        for name, cell in zip(header[1:], row[1:]):
            label = f'{name}: ' if name and len(row) > 2 else ''
            if cell:
                output += _wrap(label + cell, width, style, '    ', '    ')
    return '\n'.join(output)


def _is_title(row):
    """Return True if a row of a table has text only in its first cell.

    Such a row is the title of the rows after it.
    """
    return not any(row[1:])


def _join_rows(rows, style, lines_of):
    """Return the text of a table; lines_of(row): the lines of a row.

    A title is a heading, after an empty line unless it is the first row.
    """
    output = []
    for row in rows:
        if _is_title(row):
            title = style.heading(row[0], TABLE_TITLE_LEVEL)
            output += ['', title] if output else [title]
        else:
            output += lines_of(row)
    return '\n'.join(output)
