"""A reader of .params files; MXNet's own reader and writer are the oracle."""
import struct

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
    parts = [struct.pack('<QQQ', array_files.LIST, 0, len(arrays))]
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
    (0, b'\x13', 'no .params file'),
    (16, struct.pack('<Q', 20_000_000), 'tells of 20000000 arrays'),
    (16, struct.pack('<Q', 1 << 63), 'tells of 9223372036854775808 arrays'),
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
