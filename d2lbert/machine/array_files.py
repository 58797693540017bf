"""Read MXNet's .params files and NumPy's .npy and .npz files safely.

Unlike MXNet, this module checks each count and size in a file against the size
of the file. Unlike `numpy.load`, it accepts only headers in the form that
NumPy writes, not any Python literal. Callers add the path to error messages,
in which "it" is the file. The formats are defined by `NDArray::Save` and
`NDArray::Load` of Apache MXNet 1.9, and by NumPy Enhancement Proposal 1.

A .params file consists of the following; all integers are little-endian:

- the magic number LIST_MAGIC and a reserved field, 8 bytes each;
- the count of arrays, 8 bytes, and the arrays;
- the count of names, 8 bytes, and the names. A name has a length, 8 bytes, and
  a text in UTF-8.

An array consists of these fields, which have 4 bytes unless noted:

- the version of the format: V1, V2 or V3;
- the storage type (0: dense), in V2 and V3 only;
- the count of axes, and the length of each axis (8 bytes each);
- type and index of the device;
- the number of the dtype (a key of TYPES), and the data.

Arrays older than V1 have no version field: they begin with the count of axes,
and the length of an axis has 4 bytes.
"""
import math
import os
import re
import stat
import zipfile
from typing import NamedTuple

import numpy as onp

from d2lbert.machine.terminal import warn

LIST_MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA

#: {MXNet's number of a dtype: NumPy's name of it}.
TYPES = {0: '<f4', 1: '<f8', 2: '<f2', 3: '|u1', 4: '<i4', 5: '|i1',
         6: '<i8', 7: '|b1', 8: '<i2', 9: '<u2', 10: '<u4', 11: '<u8'}

#: The limit of NumPy before 2.0.
MAX_AXES = 32


def _check_regular(path):
    """Return os.stat(path); raise ValueError for a pipe, which would block."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError('it is no file')
    return status


class StoredArray(NamedTuple):
    """Type, shape and position of an array in a .params file."""

    dtype: str      # a value of TYPES
    shape: tuple
    offset: int     # of the data in the file, in bytes


def stored_params(path):
    """{name: `StoredArray`} of a .params file; the data are not read.

    Raises OSError, and ValueError for a damaged file.
    """
    _check_regular(path)
    with open(path, 'rb') as file:
        return _ParamsReader(file).stored_arrays()


def read_params(path):
    """{name: array} of a .params file; raises OSError or ValueError."""
    arrays = {}
    stored = stored_params(path)
    with open(path, 'rb') as file:
        for name, (dtype, shape, offset) in stored.items():
            file.seek(offset)
            values = onp.fromfile(file, dtype, math.prod(shape))
            if values.size < math.prod(shape):
                raise ValueError('it became shorter while it was read')
            arrays[name] = values.reshape(shape)
    return arrays


class _ParamsReader:
    """Read an open .params file; check each count against the file's size."""

    def __init__(self, file):
        self._file = file
        self._size = file.seek(0, 2)
        file.seek(0)

    def stored_arrays(self):
        # 24 bytes: the magic number, the reserved field, the count of arrays
        if self._size < 24 or self._read_integer(8) != LIST_MAGIC:
            raise ValueError('it is not a .params file')
        self._read_integer(8)       # reserved
        num_arrays = self._read_count('arrays', min_bytes_each=4)
        stored = [self._read_stored_array() for _ in range(num_arrays)]
        num_names = self._read_count('names', min_bytes_each=8)
        names = [self._read_name() for _ in range(num_names)]
        if len(names) != len(stored) or len(set(names)) != len(names):
            raise ValueError(f'its {len(stored)} arrays have '
                             f'{len(set(names))} names')
        if self._bytes_left:
            raise ValueError(f'{self._bytes_left} bytes follow its end')
        return dict(zip(names, stored))

    @property
    def _bytes_left(self):
        return self._size - self._file.tell()

    def _read(self, num_bytes):
        if num_bytes > self._bytes_left:
            raise ValueError('its end is missing')
        return self._file.read(num_bytes)

    def _read_integer(self, num_bytes, signed=False):
        return int.from_bytes(self._read(num_bytes), 'little', signed=signed)

    def _read_count(self, what, min_bytes_each):
        count = self._read_integer(8)
        if count > self._bytes_left // min_bytes_each:
            raise ValueError(f'it should contain {count} {what}, which its '
                             f'{self._size} bytes cannot hold')
        return count

    def _read_stored_array(self):
        """Read the fields of an array, and skip its data."""
        version = self._read_integer(4)     # or num_axes, in an old array
        if version in (V2, V3):
            storage_type = self._read_integer(4, signed=True)
            if storage_type != 0:
                raise ValueError('it holds a sparse array, and only dense '
                                 'arrays are supported')
        is_old = version not in (V1, V2, V3)
        num_axes = version if is_old else self._read_integer(4, signed=True)
        # Only V3 has arrays without axes (scalars). For an array without
        # data, MXNet writes -1 axes in V3, and 0 axes in earlier versions
        min_axes = 0 if version == V3 else 1
        if not min_axes <= num_axes <= MAX_AXES:
            raise ValueError(
                'it holds an array without numbers' if num_axes in (-1, 0)
                else f'it holds an array of {num_axes} axes')
        bytes_per_axis = 4 if is_old else 8
        shape = tuple(self._read_integer(bytes_per_axis, signed=not is_old)
                      for _ in range(num_axes))
        self._read(8)       # type and index of the device
        type_number = self._read_integer(4, signed=True)
        if type_number not in TYPES:
            raise ValueError('it holds numbers of the unknown type '
                             f'{type_number}')
        dtype = TYPES[type_number]
        offset = self._file.tell()
        num_bytes = math.prod(shape) * onp.dtype(dtype).itemsize
        if min(shape, default=0) < 0 or num_bytes > self._bytes_left:
            raise ValueError('it holds an array of the shape '
                             f'{"x".join(map(str, shape))}, which its '
                             f'{self._size} bytes cannot hold')
        self._file.seek(num_bytes, 1)
        return StoredArray(dtype, shape, offset)

    def _read_name(self):
        try:
            return self._read(self._read_integer(8)).decode('utf-8')
        except UnicodeDecodeError:
            raise ValueError('a name in it is not UTF-8') from None


#: The first bytes of a .npy array.
NPY_MAGIC = b'\x93NUMPY'

# In bytes; NumPy has the same limit
_MAX_HEADER_TEXT = 10000

_HEADER_TEXT = re.compile(
    rb"\{'descr': '([<>|=]?[biuf][1248])', 'fortran_order': (False|True), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\),? ?\}\s*")


def read_npy_header(file, max_bytes):
    """Read the header of a .npy array: (dtype, shape, order).

    file: positioned at the start of the array. max_bytes: maximum size of
    header and data. order: 'F' or 'C'. Raises ValueError if the header is
    invalid, or if the array has too many axes or bytes.
    """
    prefix = file.read(8)
    magic, version = prefix[:6], prefix[6:]
    if magic != NPY_MAGIC or version not in (b'\1\0', b'\2\0', b'\3\0'):
        raise ValueError('an array has no header of NumPy')
    length_bytes = 2 if version == b'\1\0' else 4
    length = int.from_bytes(file.read(length_bytes), 'little')
    match = (length <= _MAX_HEADER_TEXT
             and _HEADER_TEXT.fullmatch(file.read(length)))
    if not match:
        raise ValueError('an array has no header of NumPy')
    dtype = onp.dtype(match.group(1).decode())
    shape = tuple(int(n) for n in match.group(3).split(b',') if n.strip())
    header_bytes = len(prefix) + length_bytes + length
    data_bytes = math.prod(shape) * dtype.itemsize
    if len(shape) > MAX_AXES or header_bytes + data_bytes > max_bytes:
        raise ValueError(f'an array of the shape {shape} has more than '
                         f'{MAX_AXES} axes, or is larger than the file')
    return dtype, shape, 'F' if match.group(2) == b'True' else 'C'


def map_npy(path):
    """Memory-map the array of a .npy file, read-only.

    Raises OSError, and ValueError for a damaged file.
    """
    _check_regular(path)
    with open(path, 'rb') as file:
        file_size = os.fstat(file.fileno()).st_size
        dtype, shape, order = read_npy_header(file, file_size)
        return onp.memmap(file, dtype, 'r', file.tell(), shape, order)


def read_array(file, max_bytes):
    """Read a .npy array from the current position of a file.

    max_bytes: as for `read_npy_header`. Raises ValueError for a damaged array.
    """
    dtype, shape, order = read_npy_header(file, max_bytes)
    array = onp.empty(math.prod(shape), dtype)
    data = array.view('uint8')
    num_read = 0
    while num_read < data.size:
        chunk = file.read(min(1 << 20, data.size - num_read))
        if not chunk:
            raise ValueError('the end of an array is missing')
        data[num_read:num_read + len(chunk)] = onp.frombuffer(chunk, 'uint8')
        num_read += len(chunk)
    return array.reshape(shape, order=order)


def read_npz(path):
    """{name: array} of a .npz file with uncompressed members.

    Raises OSError if the file cannot be read, ValueError if it is compressed,
    and ValueError or an exception of `zipfile` if it is damaged.
    """
    file_size = _check_regular(path).st_size
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED
               or member.file_size != member.compress_size
               for member in members):
            raise ValueError('it is compressed')
        if sum(member.file_size for member in members) > file_size:
            raise ValueError('its members are larger than the file')
        for member in members:
            name = re.sub(r'\.npy$', '', member.filename)
            if name in arrays:
                raise ValueError(f'it holds {name} twice')
            with archive.open(member) as file:
                arrays[name] = read_array(file, member.file_size)
                # zipfile checks the CRC only if a member is read to its end
                if file.read(1):
                    raise ValueError(f'bytes follow the end of {name}')
    return arrays


def count_not_finite(array):
    """The number of NaN and infinite values in an array."""
    is_float = array.dtype.kind == 'f'
    # If a sum is finite, so are all values; it takes less time than isfinite
    with onp.errstate(over='ignore', invalid='ignore'):
        if not is_float or onp.isfinite(array.sum()):
            return 0
    return array.size - int(onp.count_nonzero(onp.isfinite(array)))


_MAX_SHOWN_TENSORS = 4


def warn_not_finite(path, counts):
    """Log one warning if any tensor has NaN or infinite values.

    counts: {name of a tensor: number of NaN and infinite values in it}.
    """
    names = [f'{name} ({count:,})' for name, count in counts.items() if count]
    if not names:
        return
    shown, others = names[:_MAX_SHOWN_TENSORS], names[_MAX_SHOWN_TENSORS:]
    more = f' and {len(others)} more tensors' if others else ''
    warn(f'{path} holds numbers that are NaN or infinite: '
         f'{", ".join(shown)}{more}; what the model computes will be NaN, '
         'too: fetch the file again, or train with a lower lr (--lr)')
