"""Read NumPy's .npy and .npz files, with all sizes checked.

`numpy.load` evaluates the header as Python and trusts the sizes in it.
Source of the format: NumPy Enhancement Proposal 1.
"""
import math
import os
import re
import stat
import zipfile

import numpy as onp

MAGIC = b'\x93NUMPY'

#: Maximum size of a header in bytes; NumPy has the same limit.
MAX_HEADER = 10000

_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[biuf][1248])', 'fortran_order': (False|True), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\),? ?\}\s*")


def header(file, size):
    """Read the header of an array: (dtype, shape, order).

    file: at the start of the array. size: maximum bytes of header and data.
    Raises ValueError if the array would need more.
    """
    begin = file.read(8)
    if begin[:6] != MAGIC or begin[6:] not in (b'\1\0', b'\2\0', b'\3\0'):
        raise ValueError('an array has no header of NumPy')
    width = 2 if begin[6] == 1 else 4
    length = int.from_bytes(file.read(width), 'little')
    text = file.read(length) if length <= MAX_HEADER else b''
    found = _HEADER.fullmatch(text)
    if found is None:
        raise ValueError('an array has no header of NumPy')
    dtype = onp.dtype(found.group(1).decode())
    shape = tuple(int(n) for n in found.group(3).split(b',') if n.strip())
    if (len(shape) > 32 or math.prod(shape) * dtype.itemsize
            > size - 8 - width - length):
        raise ValueError(f'an array of the shape {shape} is larger than the '
                         'file')
    return dtype, shape, 'F' if found.group(2) == b'True' else 'C'


def mapped(path):
    """Memory-map the array of a .npy file, read-only.

    Raises OSError and ValueError.
    """
    with open(path, 'rb') as file:
        dtype, shape, order = header(file, os.fstat(file.fileno()).st_size)
        return onp.memmap(file, dtype, 'r', file.tell(), shape, order)


def read_array(file, size):
    """Read the array at the current position; raises as `header` does.

    size: maximum bytes of the array.
    """
    dtype, shape, order = header(file, size)
    array = onp.empty(math.prod(shape), dtype)
    target = array.view('uint8')
    filled = 0
    while filled < target.size:
        piece = file.read(min(1 << 20, target.size - filled))
        if not piece:
            raise ValueError('the end of an array is missing')
        target[filled:filled + len(piece)] = onp.frombuffer(piece, 'uint8')
        filled += len(piece)
    return array.reshape(shape, order=order)


def read(path):
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
                if file.read(1):    # at the end zipfile compares checksums
                    raise ValueError(f'bytes follow the end of {name}')
    return arrays
