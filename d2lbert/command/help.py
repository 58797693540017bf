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

from d2lbert.command.flags import MAX_WIDTH
from d2lbert.machine.arguments import UsageError, did_you_mean

MANUAL = Path(__file__).resolve().parents[1] / 'manual'

#: Name of the page with the table of contents.
CONTENTS = 'index'

#: Escape sequences that change and reset the style of a terminal's text.
BOLD, UNDERLINE, PLAIN = '\x1b[1m', '\x1b[4m', '\x1b[0m'

#: The heading level of title rows of tables: it has no line of = or - below.
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


def run(args, command_parsers):
    """Show a page, or the flags of a command; returns the exit status."""
    # Of a page and a command with the same name, show the page
    if args.topic not in topics() and args.topic in command_parsers:
        show(command_parsers[args.topic].format_help())
        return 0
    page = find_page(args.topic, command_parsers)
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
    show(render(page.read_text('utf-8'), width,
                use_escapes=_is_capable_terminal()))
    return 0


def topics():
    """Return the names of the pages, sorted, without `CONTENTS`."""
    return sorted(path.stem for path in MANUAL.glob('*.md')
                  if path.stem != CONTENTS)


def find_page(topic, commands):
    """Return the file of the page whose name is, or begins with, `topic`.

    If no page or several pages begin with it, raises UsageError, which may
    suggest a page or one of `commands`.
    """
    names, start = [CONTENTS, *topics()], topic.lower()
    matches = [start] if start in names else [
        name for name in names if name.startswith(start)]
    if len(matches) == 1:
        return MANUAL / f'{matches[0]}.md'
    hint = did_you_mean(topic, [*names, *commands])     # ends with '?', or ''
    raise UsageError(f'the manual has no page {topic!r}'
                     + (f'{hint} The' if hint else ': the')
                     + f' pages are {", ".join(topics())}')


def show(text):
    """Print a text; on a terminal, show it in a pager if there is one."""
    pager = _pager_command() if _is_capable_terminal() else None
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


def _is_capable_terminal():
    """Return True if standard output is a terminal that knows escapes."""
    return (sys.stdout.isatty()
            and os.environ.get('TERM', 'dumb') not in ('', 'dumb'))


def _pager_command():
    try:
        command = shlex.split(os.environ.get('PAGER', '')) or ['less']
    except ValueError:      # an unclosed quote: as if there were no pager
        return None
    return command if shutil.which(command[0]) else None


def render(text, width=80, use_escapes=False):
    """Convert Markdown to text for a terminal of `width` columns.

    Headings and blocks of code are not wrapped. use_escapes: True to mark
    headings and `code` by escape sequences.
    """
    text = re.sub(r'<!--.*?-->\n?', '', text, flags=re.DOTALL)
    style, output, previous_kind = _Style(use_escapes), '', None
    for kind, lines in _blocks(text):
        # An empty line between blocks, except between items of a list
        if previous_kind is not None:
            output += '\n' if kind == previous_kind == 'item' else '\n\n'
        output += _render_block(kind, lines, width, style)
        previous_kind = kind
    return output + '\n'


def _render_block(kind, lines, width, style):
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
        if self.use_escapes:
            return f'{BOLD}{UNDERLINE * (level == 1)}{title}{PLAIN}'
        line_char = {1: '=', 2: '-'}.get(level)
        return f'{title}\n{line_char * len(title)}' if line_char else title

    def mark_code(self, text):
        if not self.use_escapes:
            return text
        return re.sub('`([^`]+)`', rf'{BOLD}\1{PLAIN}', text)

    def shown_len(self, text):
        """Return the number of characters that `mark_code(text)` shows."""
        num_backticks = 2 * len(re.findall('`[^`]+`', text))
        return len(text) - num_backticks * self.use_escapes

    def pad(self, text, width):
        """Append blanks until `mark_code(text)` shows `width` characters."""
        return text + ' ' * (width - self.shown_len(text))


def _blocks(text):
    """Split Markdown into blocks (kind, lines).

    kind: 'code', 'heading', 'table', 'item' (of a list) or 'text'.
    """
    # An iterator, from which the inner loop takes the lines of a code block
    lines = iter(text.splitlines())
    blocks, kind, block_lines = [], None, []

    def end_block():
        nonlocal kind, block_lines
        if block_lines:
            blocks.append((kind, block_lines))
        kind, block_lines = None, []
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
            block_lines.append(line)
        elif line.startswith('- '):
            end_block()
            kind, block_lines = 'item', [line]
        else:
            kind = kind or 'text'   # a block that has begun keeps its kind
            block_lines.append(line.strip())
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
    words, page = match.groups()
    return page if words == page else f'{words} (d2lbert help {page})'


def _wrap(text, width, style, prefix='', later_indent=''):
    """Convert a paragraph of Markdown to lines wrapped to `width`."""
    # Replace blanks within code by \0, at which `textwrap` breaks no line
    text = re.sub('`[^`]+`', lambda match: match.group().replace(' ', '\0'),
                  _plain_text(text))
    lines = textwrap.wrap(text, width, initial_indent=prefix,
                          subsequent_indent=later_indent,
                          break_long_words=False, break_on_hyphens=False)
    lines = lines or [prefix.rstrip()]      # an empty text has no lines
    return [style.mark_code(line.replace('\0', ' ')) for line in lines]


def _cells(line):
    """Split a row of a table into cells; `\\|` is a bar within a cell."""
    cells = re.split(r'(?<!\\)\|', line.strip().strip('|'))
    return [cell.strip().replace('\\|', '|') for cell in cells]


def _render_table(lines, width, style):
    """Return the text of a table, in the first of three forms that fits.

    The forms are columns, two columns with the second wrapped, and a list.
    """
    header, _, *rows = map(_cells, lines)   # the second line is |---|---|
    has_header = any(header[1:])
    plain_rows = [[_plain_text(cell) for cell in row]
                  for row in ([header, *rows] if has_header else rows)]
    columns = zip(*(row for row in plain_rows if not _is_title(row)))
    column_widths = [max(map(style.shown_len, column)) for column in columns]
    gaps = 2 * (len(column_widths) - 1)
    if sum(column_widths) + gaps <= width:
        def one_line(row):
            line = '  '.join(map(style.pad, row, column_widths)).rstrip()
            return [style.mark_code(line)]
        return _join_rows(plain_rows, style, one_line)
    # A wrapped second column needs about two thirds of the width
    if len(column_widths) == 2 and column_widths[0] <= width // 3:
        indent = ' ' * (column_widths[0] + 2)
        return _join_rows(plain_rows, style, lambda row: _wrap(
            row[1], width, style, style.pad(row[0], len(indent)), indent))
    return _render_as_list(header, rows, width, style)


def _render_as_list(header, rows, width, style):
    def item(row):
        lines = _wrap(row[0], width, style)
        for name, cell in zip(header[1:], row[1:]):
            label = f'{name}: ' if name and len(row) > 2 else ''
            if cell:
                lines += _wrap(label + cell, width, style, '    ', '    ')
        return lines
    # Print header[0] once: cells of the first column get no label
    first_lines = (_wrap(f'({header[0]})', width, style)
                   if header[0] and len(header) > 2 else [])
    return _join_rows(rows, style, item, first_lines)


def _is_title(row):
    """Return True if only the first cell has text: the row is a title."""
    return not any(row[1:])


def _join_rows(rows, style, row_lines, first_lines=()):
    output = [*first_lines]
    for row in rows:
        if _is_title(row):
            title = style.heading(_plain_text(row[0]), TABLE_TITLE_LEVEL)
            output += ['', title] if output else [title]
        else:
            output += row_lines(row)
    return '\n'.join(output)
