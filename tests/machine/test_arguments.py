"""Messages about the files that flags name."""
import csv

import pytest

from d2lbert.machine.arguments import (
    check_out_path,
    check_sizes,
    failures_of,
    write_rows,
    writing,
)


def test_a_failure_names_the_flag_the_file_and_the_reason(tmp_path):
    path = tmp_path / 'none.txt'
    with pytest.raises(ValueError) as failure, \
            failures_of('--file', path, 'read'):
        path.read_text()
    assert str(failure.value) == (
        f'--file {path} cannot be read: No such file or directory')
    # The other message is not printed, too
    assert failure.value.__suppress_context__


def test_errors_that_are_not_of_files_pass():
    with pytest.raises(KeyError), failures_of('--out', 'x', 'written'):
        raise KeyError('x')
    with failures_of('--out', 'x', 'written'):
        pass


@pytest.mark.parametrize('out', ['x.npy', './x.npy', './/x.npy'])
def test_a_failed_output_is_named_as_the_flag_has_it(out, tmp_path,
                                                     monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as failure, writing(out, False) as path:
        raise OSError(28, 'No space left on device', str(path))
    assert str(failure.value) == (
        f'--out {out} cannot be written: No space left on device')


def test_places_for_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_out_path('x.npy', 'x.npy')
    check_out_path(tmp_path / 'x.npy', 'x.npy')
    with pytest.raises(ValueError, match='--out . is a folder: name a file, '
                                         'as x.npy'):
        check_out_path('.', 'x.npy')
    with pytest.raises(ValueError, match='--out no/x cannot be written: '
                                         'there is no folder no'):
        check_out_path('no/x', 'x.npy')


def test_a_link_to_a_file_stays_and_its_target_is_replaced(tmp_path):
    path, link = tmp_path / 'a' / 'x.csv', tmp_path / 'stdout'
    path.parent.mkdir()
    path.write_text('before')
    link.symlink_to(path)
    with writing(link, force=True) as temporary:
        temporary.write_text('after')
        assert path.read_text() == 'before'
    assert link.is_symlink() and path.read_text() == 'after'
    with pytest.raises(ValueError, match=f'^--out {link} cannot be written: '
                                         'File exists'), \
            writing(link, force=False):
        pass


@pytest.mark.parametrize('size', [None, 'a', 1.5, 0, float('inf'),
                                  float('nan')])
def test_a_size_is_a_whole_number(size):
    check_sizes(height=1, width=2.0)
    with pytest.raises(ValueError, match='width must be a whole number of at '
                       'least 1, not'):
        check_sizes(height=1, width=size)


def test_the_cells_of_a_table_come_back(tmp_path):
    rows = [{'text': text, 'label': 'x'} for text in ('a\rb', 'c\nd', '"e"')]
    write_rows(tmp_path / 'x', '.csv', rows)
    assert (tmp_path / 'x').read_bytes().startswith(
        b'text,label\n"a\rb",x\n')
    with open(tmp_path / 'x', newline='') as file:
        assert list(csv.DictReader(file, strict=True)) == rows
