"""A reader of NumPy's files; NumPy is the oracle."""
import io
import os
import struct
import zipfile

import numpy as onp
import pytest

from d2lbert.machine import array_files

ARRAYS = {'a/b.c': onp.arange(6, dtype='float32').reshape(2, 3),
          'f': onp.asfortranarray(onp.arange(6, dtype='int64').reshape(3, 2)),
          'text': onp.frombuffer(b'words', 'uint8'), 'none': onp.zeros((0, 4)),
          'one': onp.array(3.5, '>f8'), 'yes': onp.array([True, False])}


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        onp.testing.assert_array_equal(found[name], array)


def test_it_reads_what_numpy_writes(tmp_path):
    onp.savez(tmp_path / 'a.npz', **ARRAYS)
    assert_same(array_files.read_npz(tmp_path / 'a.npz'), ARRAYS)


def test_an_array_is_mapped(tmp_path):
    for name in 'a/b.c', 'f', 'text', 'yes':
        onp.save(tmp_path / 'a.npy', ARRAYS[name])
        assert_same({'': array_files.map_npy(tmp_path / 'a.npy')},
                    {'': ARRAYS[name]})


def test_compressed_members_are_refused(tmp_path):
    path = tmp_path / 'a.npz'
    onp.savez_compressed(path, zeros=onp.zeros(1 << 24))
    assert path.stat().st_size < 1 << 18
    with pytest.raises(ValueError, match='it is compressed'):
        array_files.read_npz(path)


def archive_with(path, header, data=b''):
    member = (array_files.MAGIC + b'\1\0'
              + struct.pack('<H', len(header)) + header + data)
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('a.npy', member)


@pytest.mark.parametrize('header, reason', [
    (b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000,), }",
     'larger than the file'),
    (b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b'9, ' * 40
     + b')}', 'larger than the file'),
    (b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
     'no header'),
    (b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
     'no header'),
    (b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), ",
     'no header'),
    (b"{'descr': [['f', 1]]", 'no header'), (b'(' * 9000, 'no header'),
    (b'\0' * 60, 'no header'), (b'"""', 'no header'),
    (b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
     'larger than the file')])
def test_headers_are_not_believed(tmp_path, header, reason):
    archive_with(tmp_path / 'a.npz', header)
    with pytest.raises(ValueError, match=reason):
        array_files.read_npz(tmp_path / 'a.npz')


def test_more_bytes_than_the_array_has_are_refused(tmp_path):
    archive_with(tmp_path / 'a.npz', b"{'descr': '|u1', 'fortran_order': "
                 b"False, 'shape': (1,), }", b'abc')
    with pytest.raises(ValueError, match='bytes follow the end of a'):
        array_files.read_npz(tmp_path / 'a.npz')


def test_a_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / 'a.npz'
    onp.savez(path, ones=onp.ones(1000))
    data = bytearray(path.read_bytes())
    data[4000] ^= 1
    path.write_bytes(data)
    with pytest.raises(zipfile.BadZipFile, match='CRC'):
        array_files.read_npz(path)


def test_members_that_share_their_bytes_are_refused(tmp_path):
    """Many entries of one place: a small file, and large arrays."""
    out = io.BytesIO()
    onp.savez(out, ones=onp.ones(1000))
    data = out.getvalue()
    begin = data.index(b'PK\1\2')
    end = data.index(b'PK\5\6')
    entry = data[begin:end]
    tail = data[end:]
    many = b''.join(entry.replace(b'ones.npy', b'%04d.npy' % k)
                    for k in range(50))
    tail = (tail[:8] + struct.pack('<HHI', 50, 50, len(many)) + tail[16:])
    path = tmp_path / 'a.npz'
    path.write_bytes(data[:begin] + many + tail)
    with pytest.raises((ValueError, zipfile.BadZipFile)):
        array_files.read_npz(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / 'a.npz')
    with pytest.raises(ValueError, match='it is no file'):
        array_files.read_npz(tmp_path / 'a.npz')
