"""Texts of files, folders, pipes and standard input."""
import bz2
import gzip
import io
import json
import lzma
import os
import threading
import types
from pathlib import Path

import pytest
from test_text_files import PACKED

from d2lbert.texts import text_files, text_sources
from d2lbert.texts.text_files import TextFileError
from d2lbert.texts.text_sources import Lines, pieces, sources

LINES = ['a crane flies', 'the öld tree', 'it sleeps']
PLAIN = '\n'.join(LINES).encode()


def read(path='x', **choices):
    return [line.text for line in Lines(path, **choices)]


def write(data, name='x'):
    Path(name).write_bytes(data)
    return name


FORMS = {
    'plain': PLAIN,
    'a line end at the end': PLAIN + b'\n',
    'a byte order mark': b'\xef\xbb\xbf' + PLAIN,
    'Windows': PLAIN.replace(b'\n', b'\r\n') + b'\r\n',
    'old Macs': PLAIN.replace(b'\n', b'\r'),
    '.gz': gzip.compress(PLAIN), '.bz2': bz2.compress(PLAIN),
    '.xz': lzma.compress(PLAIN), '.tar': PACKED['.tar'](PLAIN)}


class Drip(io.BytesIO):
    """A pipe into which single bytes are written."""

    def readinto(self, buffer):
        return super().readinto(memoryview(buffer)[:1])


@pytest.mark.parametrize('chunk', [1, 7, 1 << 16])
@pytest.mark.parametrize('data', FORMS.values(), ids=FORMS)
def test_a_text_is_read_in_any_form_from_any_place(data, chunk, monkeypatch,
                                                   tmp_path):
    monkeypatch.setattr(text_sources, 'READ_BYTES', chunk)
    assert read(write(data)) == LINES
    for single_pass in True, False:
        for stream in io.BytesIO(data), io.BufferedReader(Drip(data)):
            monkeypatch.setattr('sys.stdin', types.SimpleNamespace(
                buffer=stream))
            assert read('-', single_pass=single_pass) == LINES
        if not Path('pipe').exists():
            os.mkfifo('pipe')
        thread = threading.Thread(target=Path('pipe').write_bytes,
                                  args=[data])
        thread.start()
        assert read('pipe', single_pass=single_pass) == LINES
        thread.join()


def test_a_pipe_can_be_read_twice():
    reading, writing = os.pipe()
    os.write(writing, PLAIN)
    os.close(writing)
    lines = Lines(f'/dev/fd/{reading}')
    assert lines.count() == 3 and [line.text for line in lines] == LINES
    assert next(iter(lines)).name == f'/dev/fd/{reading}, line 1'
    os.close(reading)


def test_a_folder_gives_the_texts_of_its_files():
    Path('in/below').mkdir(parents=True)
    for name, data in {'in/c.txt': b'c', 'in/a.txt': b'a\nb',
                       'in/below/x': b'x', 'in/.hidden': b'\xff',
                       'in/.git/y': b'y'}.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(data)
    assert [tuple(line) for line in Lines('in')] == [
        ('in/a.txt, line 1', 'a'), ('in/a.txt, line 2', 'b'),
        ('in/below/x, line 1', 'x'), ('in/c.txt, line 1', 'c')]
    Path('empty').mkdir()
    with pytest.raises(TextFileError, match='empty is a folder without fi'):
        sources('empty')


@pytest.mark.parametrize('empty', ['', ' \t', '\ufeff'])
def test_empty_lines_are_named_or_left_out_and_counted(empty):
    write(f'a\n{empty}\nb\n\n'.encode())
    if empty.strip():
        empty = None    # a mark that is not at the beginning is a letter
        assert read(skip_empty=True) == ['a', '\ufeff', 'b']
        return
    found, lines = [], Lines('x')
    with pytest.raises(TextFileError, match='^x, line 2 is empty: .*--skip-e'):
        for some in lines.batches():
            found += some
    assert [line.text for line in found] == ['a']
    lines = Lines('x', skip_empty=True)
    assert [line.name for line in lines] == ['x, line 1', 'x, line 3']
    assert lines.skipped_note() == ('2 empty lines were left out, the first '
                                    'x, line 2')
    with pytest.raises(TextFileError, match='x holds no text'):
        read(write(b'\n \n'), skip_empty=True)


JSON_LINES = ''.join(json.dumps({'n': k, 'text': f' {text}\n '}) + '\n'
                     for k, text in enumerate(LINES)).encode()


def test_json_lines_give_the_text_of_a_field(monkeypatch):
    write(JSON_LINES)
    assert read(text_field='text') == LINES
    monkeypatch.setattr('sys.stdin', types.SimpleNamespace(
        buffer=io.BufferedReader(Drip(JSON_LINES))))
    assert read('-', text_field='text', single_pass=True) == LINES
    assert b''.join(pieces(sources('x', 'text')[0])) == ''.join(
        f'{line}\n\n' for line in LINES).encode()
    # Half of a character, by an escape, is no text
    write(b'{"text": "a \\ud800 b"}\n')
    assert read(text_field='text') == ['a ? b']


@pytest.mark.parametrize('num_good', [3, 4, 5])
def test_texts_of_json_lines_before_an_error_are_given(num_good, monkeypatch):
    monkeypatch.setattr(text_sources, 'BATCH_TEXTS', 4)
    write(b'{"text": "a"}\n' * num_good + b'{"text": 3}\n{"text": "b"}\n')
    found = []
    with pytest.raises(TextFileError, match=f'^x, line {num_good + 1} has '
                                            'no text in a field'):
        for some in Lines('x', 'text').batches():
            found.append([line.text for line in some])
    assert [len(some) for some in found] == {
        3: [3], 4: [4], 5: [4, 1]}[num_good]
    assert all(text == 'a' for some in found for text in some)


@pytest.mark.parametrize('data, field, message', [
    (JSON_LINES, None, r"x holds JSON, not plain text: .*, one of 'text'$"),
    (JSON_LINES, 'body', "x, line 1 has no text in a field 'body': its fields "
                         "are 'n', 'text'"),
    (JSON_LINES, 'n', "x, line 1 has no text in a field 'n'"),
    (JSON_LINES + b'{"text"', 'text', 'x, line 4 is no JSON object'),
    (b'{\n "a": 1\n}', 'a', 'x, line 1 is no JSON object: expected one on'),
    (b'\xef\xbb\xbf {"a": 1}', None, 'x holds JSON'),
    (b'[{"text": "a"}]', None, 'x is a JSON list'),
    (PLAIN, 'text', "x does not hold JSON lines, so it has no field 'text'"),
    (b'<!DOCTYPE html>\n<p>a', None, 'x is HTML, not plain text: extract'),
    (b'\n<!-- a -->\n<HTML lang="en">', None, 'x is HTML'),
    (b'<?xml version="1.0"?>\n<a/>', None, 'x is XML, not plain'),
    (gzip.compress(b'<html>a', mtime=0), None, 'x is HTML')])
def test_html_and_json_are_refused_as_plain_text(data, field, message):
    write(data)
    for reader in (lambda: read(text_field=field),
                   lambda: list(pieces(sources('x', field)[0]))):
        with pytest.raises(TextFileError, match=f'^{message}') as error:
            reader()
        assert '\n' not in str(error.value)


@pytest.mark.parametrize('data', [
    b'{curly} braces are text', b'"quoted" text', b'[1] a note', b'<b>bold',
    b'{"no colon"}', b'a <html> tag in a text'])
def test_text_that_looks_alike_is_text(data):
    assert read(write(data)) == [data.decode()]


def test_a_file_without_permission_is_reported_with_its_reason(monkeypatch):
    def denied(*_):
        raise PermissionError(13, 'Permission denied', 'x')
    monkeypatch.setattr(text_files, '_open', denied)
    with pytest.raises(ValueError, match='--file x cannot be read: Permission '
                                         'denied'):
        read(write(b'a'))


def test_an_unreadable_file_is_reported_with_its_flag(monkeypatch):
    write(b'a')
    for path in 'no', '~no user/x', '':      # not the current folder
        with pytest.raises(ValueError, match=(
                f'^there is no file or folder {path}: name an existing one '
                'for --file$')):
            Lines(path)
    with pytest.raises(ValueError, match='--file x/y cannot be read: Not a'):
        Lines('x/y')
    with pytest.raises(TextFileError, match='x, line 2: byte 1 .* not UTF-8'):
        read(write(b'a\n\xff'))
    monkeypatch.setattr(text_sources, 'MAX_LINE_BYTES', 10)
    with pytest.raises(TextFileError, match='x, line 2 is longer than'):
        read(write(b'a\n' + b'b' * 100000))
    monkeypatch.setattr('sys.stdin', None)
    with pytest.raises(ValueError, match='- is standard input, which is clo'):
        Lines('-')


def test_line_ends_between_pieces_are_one_line_end():
    found = text_sources.with_line_feeds([b'a\r', b'\nb\r', b'c', b'\r'])
    assert b''.join(found) == b'a\nb\nc\n'
