"""`d2lbert help`, and Markdown on a terminal."""
import contextlib
import os
import pty
import re
import subprocess
import sys
import time

import pytest
from commands import refusal, status_of

from d2lbert.command import help
from d2lbert.command.help import render

ALL = [help.CONTENTS, *help.topics()]


def test_without_a_topic_it_prints_the_contents(capsys):
    assert status_of(['help']) == 0
    out, err = capsys.readouterr()
    assert err == '' and out.startswith('The manual of d2lbert\n====')
    for topic in help.topics():
        assert re.search(rf'^{topic}\b', out, re.M), topic


@pytest.mark.parametrize('topic', ALL)
@pytest.mark.parametrize('width', [60, 90])
def test_a_page_fits_the_width_and_loses_no_word(topic, width):
    text = (help.MANUAL / f'{topic}.md').read_text('utf-8')
    shown = render(text, width)
    for line in shown.splitlines():
        # Code is not wrapped, and a long word has no place to break
        assert (len(line) <= width or line.startswith('    ')
                or ' ' not in line.strip() or line.count('`') > 1), line
    assert '<!--' not in shown and '](' not in shown and '|---' not in shown
    # Fences, headers of two columns, comments and addresses may go
    kept = re.sub(r'^```\w*$|^\|[^\n|]*\|[^\n|]*\|\n(?=\| ?-)|<!--.*?-->'
                  r'|\]\([^)]*\)', ' ', text,
                  flags=re.DOTALL | re.MULTILINE)
    assert set(re.findall(r'\w+', kept)) <= set(re.findall(r'\w+', shown))


def test_markdown_is_rendered_by_hand():
    text = '''\
# A title

Some *plain* words and **bold** ones, a
[page](install.md#x), a [site](https://d2l.ai) and `a b`.

<!-- begin x -->
| a | b |
|---|---|
| 1 \\| 2 | `x` |
<!-- end -->

- one
- two
  goes on

```bash
d2lbert pretrain     # long
```
'''
    assert render(text, 50) == '''\
A title
=======

Some plain words and bold ones, a page (d2lbert
help install), a site <https://d2l.ai> and `a b`.

a      b
1 | 2  `x`

- one
- two goes on

    d2lbert pretrain     # long
'''


def test_a_wide_table_becomes_a_list():
    text = ('| flag | default | |\n|---|---|---|\n'
            '| `--a` | 1 | the first one of them |\n| `--b` | | last |\n')
    assert render(text, 20) == '''\
(flag)
`--a`
    default: 1
    the first one of
    them
`--b`
    last
'''
    # A title above the first row has no empty line before it
    titled = ('| | |\n|---|---|\n| **a** | |\n| a long first cell | b |\n'
              '| **b** | |\n| c | d |\n')
    assert render(titled, 19) == '''\
a
a long first cell
    b

b
c
    d
'''


def test_a_short_first_column_stays_beside_the_second():
    text = '| | |\n|---|---|\n| [ab](ab.md) | one two *three* |\n| `c` | d |\n'
    assert render(text, 14) == '''\
ab   one two
     three
`c`  d
'''


@pytest.mark.parametrize('width', [9, 30])
def test_a_row_with_one_cell_is_a_title(width):
    text = ('| | |\n|---|---|\n| **first part** | |\n| `a` | one two |\n'
            '| **second** | |\n| `b` | x |\n')
    two = ['one', '   two'] if width == 9 else ['one two']
    assert render(text, width).splitlines() == [
        'first part', f'`a`  {two[0]}', *(f'  {line}' for line in two[1:]),
        '', 'second', '`b`  x']


def test_escape_sequences_take_no_column():
    text = '# T\n\n| | |\n|---|---|\n| `ab` | x |\n| `c` | y |\n'
    shown = render(text, 40, use_escapes=True)
    plain = re.sub(r'\x1b\[\d+m', '', shown)
    assert shown.startswith('\x1b[1m\x1b[4mT\x1b[0m\n')
    assert '\x1b[1mab\x1b[0m' in shown
    assert [line.index(end) for line, end in zip(
        plain.splitlines()[2:], 'xy')][0] == 4


@pytest.mark.parametrize('second', ['long ' * 12, 'short'])
def test_columns_stay_straight_where_backticks_become_bold(second):
    text = render(f'| name | text |\n|---|---|\n| `code` | {second} |\n'
                  f'| word | {second} |\n', 60, use_escapes=True)
    shown = re.sub('\x1b\\[[0-9]*m', '', text)
    begins = {line.index(second.split()[0]) for line in shown.splitlines()
              if line.startswith(('code', 'word'))}
    assert len(begins) == 1


def test_a_beginning_is_enough_and_a_command_shows_its_flags(capsys):
    assert status_of(['help', 'vect']) == 0
    assert capsys.readouterr().out.startswith('Vectors and search\n')
    assert status_of(['help', 'encode']) == 0
    assert capsys.readouterr().out.startswith('usage: d2lbert encode')


@pytest.mark.parametrize('topic, hint', [
    ('speeed', 'did you mean speed? '), ('encod', 'did you mean encode? '),
    ('qqq', ': the pages are book, checkpoints'), ('s', ': the pages are')])
def test_an_unknown_topic_is_refused_with_the_nearest(topic, hint, capsys):
    status, err = refusal(capsys, 'help', topic)
    assert status == 2 and f'no page {topic!r}' in err and hint in err


def test_a_page_waits_for_no_library():
    code = ('import sys; sys.argv[:] = ["/usr/bin/d2lbert", "help", "start"]\n'
            'from d2lbert.__main__ import main\nmain()\n'
            'assert not {"mxnet", "matplotlib"} & set(sys.modules)')
    done = subprocess.run([sys.executable, '-c', code],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b'')
    assert done.stdout.startswith(b'Quick start\n')


def on_a_terminal(tmp_path, **environment):
    """What `d2lbert help speed` shows on a terminal of 70 columns."""
    main, side = pty.openpty()
    env = {**os.environ, 'COLUMNS': '70', 'TERM': 'xterm', **environment}
    process = subprocess.Popen(
        [sys.executable, '-m', 'd2lbert', 'help', 'speed'], stdout=side,
        stdin=side, stderr=subprocess.STDOUT, env=env)
    os.close(side)
    shown = b''
    try:
        while True:
            part = os.read(main, 65536)
            if not part:
                break
            shown += part
    except OSError:
        pass                    # the other end has closed
    os.close(main)
    return process.wait(60), shown.decode('utf-8')


def test_on_a_terminal_the_pager_shows_it(tmp_path):
    pager = tmp_path / 'pager'
    pager.write_text('#!/bin/sh\necho "paged, LESS=$LESS"\ncat\n')
    pager.chmod(0o755)
    status, shown = on_a_terminal(tmp_path, PAGER=f'{pager} -x')
    assert status == 0 and shown.startswith('paged, LESS=FRX\r\n\x1b[1m')
    assert 'Training and inference' in shown


def test_a_pager_that_leaves_early_or_is_missing_is_no_error(tmp_path):
    status, shown = on_a_terminal(tmp_path, PAGER='true')
    assert status == 0 and 'rror' not in shown
    for pager in '/no/pager', 'less "':
        status, shown = on_a_terminal(tmp_path, PAGER=pager)
        assert status == 0 and 'Training and inference' in shown


def test_a_dumb_terminal_gets_plain_text(tmp_path):
    status, shown = on_a_terminal(tmp_path, PAGER='false', TERM='dumb')
    assert status == 0 and shown.startswith('Speed\r\n=====\r\n')
    assert '\x1b' not in shown


def test_only_the_pager_obeys_ctrl_c(tmp_path):
    pager = tmp_path / 'pager'
    pager.write_text(
        f'#!{sys.executable}\nimport signal, sys\n'
        'signal.signal(signal.SIGINT,\n'
        '              lambda *_: print("caught", flush=True))\n'
        'sys.stdin.read()\nprint("ready", flush=True)\n'
        'open("/dev/tty").readline()\n')
    pager.chmod(0o755)
    # Each Ctrl-C counts, not only one in two seconds
    code = ('import sys\nfrom d2lbert.training import interrupts\n'
            'from d2lbert.command.cli import main\n'
            'interrupts.CLEANUP_SECONDS = 0\nsys.exit(main())')
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, '-c', code, 'help',
                                   'speed'],
                  {**os.environ, 'PAGER': str(pager), 'TERM': 'xterm'})
    shown = ''
    for awaited, keys in ('ready', '\x03'), ('caught', '\x03'), (
            'caught', '\n'), ('', ''):
        with contextlib.suppress(OSError):      # the other end has closed
            while awaited not in shown or not awaited:
                shown += os.read(terminal, 65536).decode('utf-8')
            shown = ''
            # `Popen.communicate` waits for 0.25 s after Ctrl-C
            time.sleep(0.5)
            os.write(terminal, keys.encode())
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert (status, shown.strip()) == (0, '')
