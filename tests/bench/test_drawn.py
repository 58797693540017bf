"""The rows that drawn.py keeps, and the table that it makes of them."""
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.version_info < (3, 9),
                                reason='ast.unparse came with Python 3.9')
PLACE = 'd2lbert/calls.py'
TEXT = 'def call(a, b):\n    return max(a, b) < 3\n'


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """The module, for a checkout with one source file."""
    import drawn
    (tmp_path / 'd2lbert').mkdir()
    (tmp_path / PLACE).write_text(TEXT)
    monkeypatch.setattr(drawn, 'ROOT', tmp_path)
    monkeypatch.setattr(drawn.mutants, 'tracked', lambda root: [PLACE])
    return drawn


def test_a_second_call_goes_on_with_the_draw_of_the_first(drawn, tmp_path):
    rows = drawn.Rows(tmp_path / 'rows')
    changes = rows.draw(5, 1)
    rows.add_verdict(1, 'caught', 'tests/test_x.py::test_y', 2.0)
    # Lines above move it, and more code would give another draw
    (tmp_path / PLACE).write_text('a = b + 1 < 2\n\n' + TEXT)
    again = drawn.Rows(tmp_path / 'rows')
    moved, = again.draw(5, 1)
    assert moved[:2] == changes[0][:2] and moved[3:5] == changes[0][3:5]
    assert moved.line == changes[0].line + 2
    assert again.verdicts == {1: ('caught', 'tests/test_x.py::test_y', 2)}
    with pytest.raises(drawn.mutants.Broken, match='of seed 5, not 1 of seed '
                       '6: name another file'):
        again.draw(6, 1)
    (tmp_path / PLACE).write_text('def call(a, b):\n    return 3\n')
    with pytest.raises(drawn.mutants.Broken, match='has no line'):
        drawn.Rows(tmp_path / 'rows').draw(5, 1)


def test_lines_of_a_change_are_those_of_its_statement(drawn):
    text = ('x = f(\n    1)\n\ndef call(a=2):\n    """It."""\n'
            '    if (a\n            and 3):\n        return 4\n    return 5\n')
    found = {change.old: drawn.lines_of(change, text)
             for change in drawn.of_python('d2lbert/x.py', text)
             if change.operator == 'off by one'}
    # None: on import, for all tests
    assert found == {'1': None, '2': None, '3': range(6, 8),
                     '4': range(8, 9), '5': range(9, 10)}


def test_the_table_says_why_a_survivor_does_not_matter(drawn, monkeypatch):
    changes = list(drawn.of_python(PLACE, TEXT))[:4]
    numbered = dict(enumerate(changes, 1))
    monkeypatch.setattr(drawn, 'EQUAL', {changes[1].name: 'it is equal'})
    verdicts = {1: ('caught', 'a test', 1), 2: ('SURVIVED', '', 1),
                3: ('hung', 'another', 1)}
    lines, share = drawn.table(7, numbered, verdicts)
    assert share == 2 / 3 and lines[0] == 'seed 7, 3 mistakes'
    assert '66.7% caught; of the others 1 change nothing that counts' in lines
    assert lines[-4:-2] == [lines[-4], '    it is equal']
    assert lines[-4].startswith('2 SURVIVED: d2lbert/calls.py: ')
