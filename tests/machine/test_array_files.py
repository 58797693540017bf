"""Files of arrays, read with all sizes checked."""
import io
import os
import struct
import zipfile

import numpy as onp
import pytest
from legacy import legacy_mode

from d2lbert.machine import array_files
from d2lbert.machine.backend import mx, np, npx

TYPES = ['float32', 'float64', 'float16', 'uint8', 'int32', 'int8', 'int64',
         'bool']


def some(dtype, shape):
    values = onp.random.RandomState(0).randint(0, 2, shape)
    return values.astype(dtype)


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        onp.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize('dtype', TYPES)
def test_files_that_mxnet_writes(tmp_path, dtype):
    arrays = {f'{dtype}.{k}.é': some(dtype, shape) for k, shape in enumerate(
        [(), (1,), (3, 4), (2, 1, 5), (0, 2)])}
    npx.save(str(tmp_path / 'a.params'), {
        name: np.array(array, dtype=dtype) for name, array in arrays.items()})
    assert_same(array_files.read_params(tmp_path / 'a.params'), arrays)


def test_files_of_the_older_arrays(tmp_path):
    """Without NumPy's shapes MXNet writes another version of the format."""
    arrays = {'w.weight': some('float32', (3, 4)), 'b.bias': some('int8', 5)}
    with legacy_mode():
        mx.nd.save(str(tmp_path / 'a.params'), {
            name: mx.nd.array(array, dtype=array.dtype)
            for name, array in arrays.items()})
    data = (tmp_path / 'a.params').read_bytes()
    assert struct.unpack('<I', data[24:28])[0] == array_files.V2
    assert_same(array_files.read_params(tmp_path / 'a.params'), arrays)


def file_of(arrays, form):
    """A file as versions of MXNet before 1.0 wrote it, for float32."""
    parts = [struct.pack('<QQQ', array_files.LIST_MAGIC, 0, len(arrays))]
    for array in arrays.values():
        if form == array_files.V1:
            parts.append(struct.pack('<I', form))
        parts.append(struct.pack('<I', array.ndim))
        parts.append(onp.array(array.shape, '<i8' if form == array_files.V1
                               else '<u4').tobytes())
        parts.append(struct.pack('<iii', 1, 0, 0) + array.tobytes())
    parts.append(struct.pack('<Q', len(arrays)))
    for name in arrays:
        parts.append(struct.pack('<Q', len(name)) + name.encode())
    return b''.join(parts)


@pytest.mark.parametrize('form', [array_files.V1, 0])
def test_files_of_early_versions(tmp_path, form):
    arrays = {'arg:w': some('float32', (3, 4)), 'b': some('float32', (5,))}
    path = tmp_path / 'a.params'
    path.write_bytes(file_of(arrays, form))
    with legacy_mode():
        oracle = mx.nd.load(str(path))
    assert_same(array_files.read_params(path), {name: array.asnumpy()
                                    for name, array in oracle.items()})


@pytest.fixture
def whole(tmp_path):
    npx.save(str(tmp_path / 'whole.params'), {
        'a.weight': np.ones((3, 4)), 'a.bias': np.zeros(3)})
    return (tmp_path / 'whole.params').read_bytes()


@pytest.mark.parametrize('place, number, reason', [
    (0, b'\x13', 'not a .params file'),
    (16, struct.pack('<Q', 20_000_000), 'contain 20000000 arrays'),
    (16, struct.pack('<Q', 1 << 63), 'contain 9223372036854775808 arrays'),
    (24, struct.pack('<I', 33), 'array of 33 axes'),
    (28, struct.pack('<i', 1), 'sparse'),
    (32, struct.pack('<i', -1), 'without numbers'),
    (32, struct.pack('<i', 1 << 30), 'array of 1073741824 axes'),
    (36, struct.pack('<q', 1 << 61), 'cannot hold'),
    (36, struct.pack('<q', -3), 'cannot hold'),
    (60, struct.pack('<i', 99), 'unknown type 99')])
def test_numbers_are_held_against_the_file(tmp_path, whole, place, number,
                                           reason):
    path = tmp_path / 'bad.params'
    path.write_bytes(whole[:place] + number + whole[place + len(number):])
    with pytest.raises(ValueError, match=reason):
        array_files.read_params(path)


def test_every_cut_is_refused(tmp_path, whole):
    path = tmp_path / 'cut.params'
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError):
            array_files.stored_params(path)
    path.write_bytes(whole + b'\0')
    with pytest.raises(ValueError, match='1 bytes follow its end'):
        array_files.stored_params(path)


def test_every_changed_byte_is_read_or_refused(tmp_path, whole):
    path = tmp_path / 'flipped.params'
    rng = onp.random.RandomState(1)
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << rng.randint(8)
        path.write_bytes(data)
        try:
            array_files.read_params(path)
        except ValueError:      # of which UnicodeDecodeError is one
            pass


def test_names_and_arrays_are_as_many(tmp_path):
    path = tmp_path / 'twice.params'
    data = file_of({'a.a': some('float32', 2), 'a.b': some('float32', 2)}, 0)
    path.write_bytes(data.replace(b'a.b', b'a.a'))
    with pytest.raises(ValueError, match='its 2 arrays have 1 names'):
        array_files.stored_params(path)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match='it is no file'):
        array_files.stored_params(tmp_path)
    with pytest.raises(FileNotFoundError):
        array_files.stored_params(tmp_path / 'none')


def test_a_name_that_is_no_text_is_refused(tmp_path, whole):
    path = tmp_path / 'bad.params'
    path.write_bytes(whole.replace(b'a.bias', b'\xff.bias'))
    with pytest.raises(ValueError, match='a name in it is not UTF-8'):
        array_files.stored_params(path)


ARRAYS = {'a/b.c': onp.arange(6, dtype='float32').reshape(2, 3),
          'f': onp.asfortranarray(onp.arange(6, dtype='int64').reshape(3, 2)),
          'text': onp.frombuffer(b'words', 'uint8'), 'none': onp.zeros((0, 4)),
          'one': onp.array(3.5, '>f8'), 'yes': onp.array([True, False])}


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
    member = (array_files.NPY_MAGIC + b'\1\0'
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


@pytest.mark.parametrize('read', [
    array_files.read_npz, array_files.map_npy, array_files.read_params])
def test_a_pipe_is_not_waited_for(read, tmp_path):
    os.mkfifo(tmp_path / 'a.npz')
    with pytest.raises(ValueError, match='it is no file'):
        read(tmp_path / 'a.npz')
