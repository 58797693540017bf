"""Read MXNet's .params and NumPy's .npy and .npz files, all sizes checked.

MXNet's own reader trusts every count and size in a file, and `numpy.load`
evaluates the header as Python. Sources of the formats: `NDArray::Save` and
`NDArray::Load` of Apache MXNet 1.9; NumPy Enhancement Proposal 1.

A .params file consists of the following; all integers are little-endian:

- the magic number LIST and a reserved field, 8 bytes each;
- the count of arrays, 8 bytes, and the arrays;
- the count of names, 8 bytes, and the names: a length, 8 bytes, and UTF-8.

An array consists of these fields, 4 bytes each unless noted:

- the format: V1, V2 or V3;
- V2 and V3 only: the storage type (0: dense);
- the count of axes, and the length of each axis (8 bytes each);
- type and index of the device;
- the dtype, and the data.

The format before V1 has no format field: it begins with the count of axes, and
each length has 4 bytes.
"""
import math
import os
import re
import stat
import zipfile
from typing import NamedTuple

import numpy as onp

from d2lbert.machine.terminal import warn

LIST = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA

#: NumPy's names of MXNet's dtypes.
TYPES = {0: '<f4', 1: '<f8', 2: '<f2', 3: '|u1', 4: '<i4', 5: '|i1',
         6: '<i8', 7: '|b1', 8: '<i2', 9: '<u2', 10: '<u4', 11: '<u8'}

#: NumPy's maximum number of axes.
MAX_AXES = 32


class Stored(NamedTuple):
    """The place of an array in a .params file."""

    dtype: str
    shape: tuple
    begin: int      # offset of the data, in bytes


def stored_params(path):
    """{name: `Stored`} of a .params file, without reading the data.

    Raises OSError, and ValueError for a damaged file.
    """
    # Opening a pipe would block
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError('it is no file')
    with open(path, 'rb') as file:
        return _Reader(file).arrays()


def read_params(path):
    """{name: array} of a .params file; raises as `stored_params` does."""
    arrays = {}
    found = stored_params(path)
    with open(path, 'rb') as file:
        for name, (dtype, shape, begin) in found.items():
            file.seek(begin)
            values = onp.fromfile(file, dtype, math.prod(shape))
            if values.size < math.prod(shape):
                raise ValueError('it became shorter while it was read')
            arrays[name] = values.reshape(shape)
    return arrays


class _Reader:
    """Read an open file, with every size checked against its end."""

    def __init__(self, file):
        self._file = file
        self._size = file.seek(0, 2)
        file.seek(0)

    def arrays(self):
        """{name: `Stored`} of the whole file."""
        if self._size < 24 or self._integer(8) != LIST:
            raise ValueError('it is no .params file')
        self._integer(8)    # reserved
        found = [self._array() for _ in range(self._count(4, 'arrays'))]
        names = [self._name() for _ in range(self._count(8, 'names'))]
        if len(names) != len(found) or len(set(names)) != len(names):
            raise ValueError(f'its {len(found)} arrays have {len(set(names))} '
                             'names')
        if self._left:
            raise ValueError(f'{self._left} bytes follow its end')
        return dict(zip(names, found))

    @property
    def _left(self):
        return self._size - self._file.tell()

    def _bytes(self, count):
        if count > self._left:
            raise ValueError('its end is missing')
        return self._file.read(count)

    def _integer(self, size, signed=False):
        return int.from_bytes(self._bytes(size), 'little', signed=signed)

    def _count(self, least, what):
        """Read a count; each item takes at least `least` bytes."""
        count = self._integer(8)
        if count > self._left // least:
            raise ValueError(f'it tells of {count} {what}, which its '
                             f'{self._size} bytes cannot hold')
        return count

    def _array(self):
        form = self._integer(4)
        if form in (V2, V3):
            storage = self._integer(4, signed=True)
            if storage != 0:
                raise ValueError('it holds a sparse array, and only dense '
                                 'ones are read')
        is_old = form not in (V1, V2, V3)
        axes = form if is_old else self._integer(4, signed=True)
        # Only V3 has arrays without axes (scalars). For an array without
        # data, MXNet writes -1 axes in V3, and 0 before
        if not (0 if form == V3 else 1) <= axes <= MAX_AXES:
            raise ValueError('it holds an array without numbers' if axes in
                             (-1, 0) else f'it holds an array of {axes} axes')
        shape = tuple(self._integer(4) if is_old else
                      self._integer(8, signed=True) for _ in range(axes))
        self._bytes(8)      # the device
        code = self._integer(4, signed=True)
        if code not in TYPES:
            raise ValueError(f'it holds numbers of the unknown type {code}')
        begin = self._file.tell()
        num_bytes = math.prod(shape) * onp.dtype(TYPES[code]).itemsize
        if min(shape, default=0) < 0 or num_bytes > self._left:
            raise ValueError('it holds an array of the shape '
                             f'{"x".join(map(str, shape))}, which its '
                             f'{self._size} bytes cannot hold')
        self._file.seek(num_bytes, 1)
        return Stored(TYPES[code], shape, begin)

    def _name(self):
        try:
            return self._bytes(self._integer(8)).decode('utf-8')
        except UnicodeDecodeError:
            raise ValueError('a name in it is not UTF-8') from None


MAGIC = b'\x93NUMPY'

#: Maximum size of a header in bytes; NumPy has the same limit.
MAX_HEADER = 10000

_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[biuf][1248])', 'fortran_order': (False|True), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\),? ?\}\s*")


def npy_header(file, size):
    """Read the header of an array: (dtype, shape, memory order C or F).

    file: at the start of the array. size: maximum bytes of header and data.
    Raises ValueError if the array would need more.
    """
    begin = file.read(8)
    if begin[:6] != MAGIC or begin[6:] not in (b'\1\0', b'\2\0', b'\3\0'):
        raise ValueError('an array has no header of NumPy')
    width = 2 if begin[6] == 1 else 4   # of the header's length, by version
    length = int.from_bytes(file.read(width), 'little')
    text = file.read(length) if length <= MAX_HEADER else b''
    found = _HEADER.fullmatch(text)
    if found is None:
        raise ValueError('an array has no header of NumPy')
    dtype = onp.dtype(found.group(1).decode())
    shape = tuple(int(n) for n in found.group(3).split(b',') if n.strip())
    if (len(shape) > MAX_AXES or math.prod(shape) * dtype.itemsize
            > size - 8 - width - length):
        raise ValueError(f'an array of the shape {shape} is larger than the '
                         'file')
    return dtype, shape, 'F' if found.group(2) == b'True' else 'C'


def map_npy(path):
    """Memory-map the array of a .npy file, read-only.

    Raises OSError and ValueError.
    """
    with open(path, 'rb') as file:
        dtype, shape, order = npy_header(file, os.fstat(file.fileno()).st_size)
        return onp.memmap(file, dtype, 'r', file.tell(), shape, order)


def read_array(file, size):
    """Read the array at the current position; raises as `npy_header` does.

    size: maximum bytes of the array.
    """
    dtype, shape, order = npy_header(file, size)
    array = onp.empty(math.prod(shape), dtype)
    target = array.view('uint8')    # the bytes of the same memory
    filled = 0
    while filled < target.size:
        piece = file.read(min(1 << 20, target.size - filled))
        if not piece:
            raise ValueError('the end of an array is missing')
        target[filled:filled + len(piece)] = onp.frombuffer(piece, 'uint8')
        filled += len(piece)
    return array.reshape(shape, order=order)


def read_npz(path):
    """{name: array} of a .npz file with uncompressed members.

    Raises ValueError, or an exception of `zipfile`, for a damaged file.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):     # opening a pipe would block
        raise ValueError('it is no file')
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED
               or member.file_size != member.compress_size
               for member in members):
            raise ValueError('it is compressed')
        if sum(member.file_size for member in members) > found.st_size:
            raise ValueError('its members are larger than the file')
        for member in members:
            name = re.sub(r'\.npy$', '', member.filename)
            if name in arrays:
                raise ValueError(f'it holds {name} twice')
            with archive.open(member) as file:
                arrays[name] = read_array(file, member.file_size)
                if file.read(1):    # at the end zipfile verifies the CRC
                    raise ValueError(f'bytes follow the end of {name}')
    return arrays


#: Maximum number of tensors that a warning lists.
MAX_NAMES = 4


def count_not_finite(array):
    """The number of NaN and infinite values in an array."""
    # A finite sum proves that all values are finite, and it is fast
    with onp.errstate(over='ignore', invalid='ignore'):
        if array.dtype.kind != 'f' or onp.isfinite(array.sum()):
            return 0
    return array.size - int(onp.count_nonzero(onp.isfinite(array)))


def warn_not_finite(path, counts):
    """Log one warning if any tensor has NaN or infinite values.

    counts: {tensor: number of NaN and infinite values}.
    """
    found = {name: count for name, count in counts.items() if count}
    if not found:
        return
    names = [f'{name} ({count:,})' for name, count in found.items()]
    more = (f' and {len(names) - MAX_NAMES} more tensors'
            if len(names) > MAX_NAMES else '')
    warn(f'{path} holds numbers that are NaN or infinite: '
         f'{", ".join(names[:MAX_NAMES])}{more}; what the model computes will '
         'be NaN, too: fetch the file again, or train with a lower lr (--lr)')
