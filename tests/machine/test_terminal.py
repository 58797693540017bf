"""Terminals that fail cost no run; lines go to log.txt whatever happens."""
import io
import logging
import os
import subprocess
import sys

import pytest

from d2lbert.machine import terminal
from d2lbert.machine.terminal import (
    FailsafeStream,
    TextWarning,
    failsafe_output,
)

TINY = ['pretrain', '--corpus', 'sample', '--batch-size', '100', '--max-len',
        '32', '--num-hiddens', '8', '--ffn-num-hiddens', '8', '--num-layers',
        '1', '--num-steps', '4', '--eval-every', '2', '--devices', 'cpu',
        '--out', 'run']


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, text):
        raise OSError(28, 'No space left on device')


class Gone(io.StringIO):
    """A stream whose terminal was closed between writing and flushing."""

    def flush(self):
        raise BrokenPipeError(32, 'Broken pipe')


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize('make', [Full, Gone, closed, lambda: None])
def test_a_stream_that_fails_goes_silent(make, monkeypatch):
    monkeypatch.setattr(sys, 'stdout', make())
    monkeypatch.setattr(sys, 'stderr', make())
    with failsafe_output():
        for _ in range(3):
            print('hello', flush=True)
            print('hello', file=sys.stderr)
            assert sys.stdout.isatty() is False


def test_a_stream_that_works_is_written_to():
    stream = io.StringIO()
    steady = FailsafeStream(stream)
    print('hello', file=steady, flush=True)
    assert stream.getvalue() == 'hello\n'
    assert steady.closed is False


def test_a_child_inherits_streams_in_place_of_closed_ones():
    child = 'import sys; sys.exit(None in (sys.stdin, sys.stdout, sys.stderr))'
    script = ('import subprocess, sys\n'
              'from d2lbert.machine.terminal import fill_descriptors\n'
              'fill_descriptors()\n'
              f'sys.exit(subprocess.call([sys.executable, "-c", {child!r}]))')
    subprocess.run(
        ['bash', '-c', '"$@" <&- >&- 2>&-', '', sys.executable, '-c',
         'import sys; sys.argv = ["d2lbert"]\n' + script], check=True)


def test_a_character_outside_of_the_encoding_does_not_end_the_output():
    written = io.BytesIO()
    steady = FailsafeStream(io.TextIOWrapper(written, 'ascii'))
    print('naïve', file=steady)
    print('plain', file=steady, flush=True)
    assert written.getvalue() == b'na\\xefve\nplain\n'


@pytest.mark.skipif(not os.path.exists('/dev/full'),
                    reason='no /dev/full on this system')
@pytest.mark.parametrize('redirection', [
    '| head -c 0', '> /dev/full', '>&-', '2>&-', '>&- 2>&-',
    '2> /dev/full', '<&- >&- 2>&-'])
def test_a_failing_terminal_costs_no_run(redirection, tmp_path):
    command = ' '.join([sys.executable, '-m', 'd2lbert', *TINY])
    done = subprocess.run(
        ['bash', '-c', f'set -o pipefail; {command} {redirection}'],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0
    assert b'Traceback' not in done.stderr and b'Errno' not in done.stderr
    assert sorted(os.listdir(tmp_path / 'run')) == [
        'config.json', 'log.txt', 'losses.csv', 'losses.png',
        'model.params', 'vocab.txt']
    log = (tmp_path / 'run' / 'log.txt').read_text()
    assert len(log.splitlines()) == 5 and 'sentence pairs/sec' in log
    # No printed text is in a file
    assert (tmp_path / 'run' / 'losses.csv').read_text().startswith('step,')


def test_a_command_prints_a_warning_once(capsys, monkeypatch):
    """Some libraries give the root logger a handler."""
    handler = logging.StreamHandler(sys.stderr)
    monkeypatch.setattr(logging.getLogger(), 'handlers', [handler])
    with terminal.printed_warnings():
        terminal.warn('a line')
    assert capsys.readouterr().err == 'a line\n'
    assert terminal.LOG.propagate


def test_a_warning_names_the_line_that_called_the_package():
    import d2lbert as d2l
    net = d2l.BERTModel(6, 4, 4, 1, 1, 0.0)
    net.initialize()
    vocab = d2l.Vocab(['a'], 0, ['<pad>', '<mask>', '<cls>', '<sep>'])
    with pytest.warns(TextWarning, match='b') as caught:
        d2l.TextModel(net, vocab).similarity('a b', ['a'])
    assert caught[0].filename == __file__
