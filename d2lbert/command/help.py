"""`d2lbert help`: the manual, a page for each topic."""
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from d2lbert.command.markdown import render
from d2lbert.machine.arguments import UsageError, did_you_mean

MANUAL = Path(__file__).resolve().parents[1] / 'manual'
CONTENTS = 'index'

#: Columns of a page at most: longer lines are hard to read.
WIDTH = 90


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
    hint = did_you_mean(topic, [*names, *commands]) or ':'
    raise UsageError(f'the manual has no page {topic!r}{hint} '
                     f'The pages are {", ".join(topics())}')


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
