"""Which tests reach which lines, as drawn.py asks.

A copy of this file is sitecustomize.py in the folder of PYTHONPATH, so that
each process of the tests loads it, and pytest takes it as a plugin, too.
reached.json beside the copy names the lines and the file of the rows.
Each row there is JSON: a test that reached a line, or how a test ended.
"""
import dis
import json
import os
import sys
import threading
from pathlib import Path

ASKED = json.loads(Path(__file__).with_name('reached.json').read_text('utf-8'))
#: {source file: {line: the numbers of the changes there}}
LINES = {place: {int(line): numbers for line, numbers in lines.items()}
         for place, lines in ASKED['lines'].items()}

_codes, _written = {}, set()


def _write(**row):
    with open(ASKED['rows'], 'a', encoding='utf-8') as file:
        file.write(json.dumps(row) + '\n')


def _at_call(frame, event, arg):
    code = frame.f_code
    lines = LINES.get(code.co_filename)
    if lines is None:
        return None
    if code not in _codes:
        _codes[code] = any(line in lines
                           for _, line in dis.findlinestarts(code))
    return _at_line if _codes[code] else None


def _at_line(frame, event, arg):
    numbers = LINES[frame.f_code.co_filename].get(frame.f_lineno)
    # pytest sets it; processes that a test starts have it, too
    current = os.environ.get('PYTEST_CURRENT_TEST')
    if numbers and current and (current, frame.f_lineno) not in _written:
        _written.add((current, frame.f_lineno))
        test, _, stage = current.rpartition(' ')
        _write(test=test, reached=numbers, shared=stage == '(setup)')
    return _at_line


def pytest_runtest_logreport(report):
    """Write how a stage of a test ended."""
    _write(test=report.nodeid, passed=report.passed, seconds=report.duration)


threading.settrace(_at_call)
sys.settrace(_at_call)
