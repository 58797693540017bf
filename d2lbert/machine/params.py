"""Read MXNet's .params files into NumPy, with all sizes checked.

MXNet's own reader trusts every count and size in a file. Source of the
format: `NDArray::Save` and `NDArray::Load` of Apache MXNet 1.9. All numbers
are little-endian.

A file consists of

- the magic number LIST and a reserved number, 8 bytes each;
- the number of arrays, 8 bytes, and the arrays;
- the number of names, 8 bytes, and the names: a length, 8 bytes, and UTF-8.

An array consists of these fields, 4 bytes each unless noted:

- the format: V1, V2 or V3;
- V2 and V3 only: the storage type (0: dense);
- the number of axes, and the length of each axis (8 bytes each);
- type and number of the device;
- the dtype, and the data.

Before V1, the number of axes comes first, and lengths have 4 bytes.
"""
import math
import os
import stat
from typing import NamedTuple

import numpy as onp

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


def stored(path):
    """{name: `Stored`} of a .params file, without reading the data.

    Raises OSError, and ValueError for a damaged file.
    """
    # Opening a pipe would block
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError('it is no file')
    with open(path, 'rb') as file:
        return _Reader(file).arrays()


def read(path):
    """{name: array} of a .params file; raises as `stored` does."""
    arrays = {}
    found = stored(path)
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
        if self._size < 24 or self._number(8) != LIST:
            raise ValueError('it is no .params file')
        self._number(8)
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

    def _number(self, size, signed=False):
        return int.from_bytes(self._bytes(size), 'little', signed=signed)

    def _count(self, least, what):
        """Read a count; each item takes at least `least` bytes."""
        count = self._number(8)
        if count > self._left // least:
            raise ValueError(f'it tells of {count} {what}, which its '
                             f'{self._size} bytes cannot hold')
        return count

    def _array(self):
        form = self._number(4)
        if form in (V2, V3):
            kind = self._number(4, signed=True)
            if kind != 0:
                raise ValueError('it holds a sparse array, and only dense '
                                 'ones are read')
        is_old = form not in (V1, V2, V3)
        axes = form if is_old else self._number(4, signed=True)
        # Only V3 has arrays without axes (scalars)
        if not (form != V3) <= axes <= MAX_AXES:
            raise ValueError('it holds an array without numbers' if axes in
                             (-1, 0) else f'it holds an array of {axes} axes')
        shape = tuple(self._number(4) if is_old else
                      self._number(8, signed=True) for _ in range(axes))
        self._bytes(8)      # the device
        kind = self._number(4, signed=True)
        if kind not in TYPES:
            raise ValueError(f'it holds numbers of the unknown type {kind}')
        begin = self._file.tell()
        num_bytes = math.prod(shape) * onp.dtype(TYPES[kind]).itemsize
        if min(shape, default=0) < 0 or num_bytes > self._left:
            raise ValueError('it holds an array of the shape '
                             f'{"x".join(map(str, shape))}, which its '
                             f'{self._size} bytes cannot hold')
        self._file.seek(num_bytes, 1)
        return Stored(TYPES[kind], shape, begin)

    def _name(self):
        try:
            return self._bytes(self._number(8)).decode('utf-8')
        except UnicodeDecodeError:
            raise ValueError('a name in it is not UTF-8') from None
