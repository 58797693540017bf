"""Replace the libraries that MXNet's Arm wheel needs but does not contain.

The wheel was linked with Arm's performance libraries, which no package index
offers. One of them is a linear algebra library; the other two only replace
functions of the C library. OpenBLAS and LAPACKE, which every distribution
packages, have the same functions under the same names.

The dynamic linker looks for file names before it looks for functions. It
accepts a library that is already loaded if the name stored in the library
(DT_SONAME) matches. So empty libraries with the required names satisfy it.
"""
import ctypes
import os
import platform
import struct
import sys
import tempfile

from d2lbert.machine.hardware import ARM_PACKAGES

#: The names that the wheel's libmxnet.so asks for.
NEEDED = ('libarmpl_lp64_mp.so', 'libamath.so', 'libastring.so')
#: Libraries with the functions of the first one; LAPACKE may be part of
#: OpenBLAS.
LINEAR_ALGEBRA = ('libopenblas.so.0', 'liblapacke.so.3')

MACHINES = {'aarch64': 183, 'x86_64': 62}   # e_machine of ELF


def is_arm():
    """True on 64-bit Arm Linux."""
    return sys.platform.startswith('linux') and (
        platform.machine() == 'aarch64')


def empty_library(name, machine):
    """The bytes of an empty shared library with the given name.

    System V ABI: an ELF header, two program headers, and a dynamic section
    with the name and an empty symbol table.
    """
    header, entry, symbol = 64, 56, 24
    strings = b'\0' + name.encode() + b'\0'
    strings_at = header + 2 * entry
    symbols_at = (strings_at + len(strings) + 7) // 8 * 8
    dynamic_at = symbols_at + symbol
    # DT_SONAME, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL
    dynamic = struct.pack('<12Q', 14, 1, 5, strings_at, 6, symbols_at, 10,
                          len(strings), 11, symbol, 0, 0)
    size = dynamic_at + len(dynamic)
    ident = b'\x7fELF' + bytes([2, 1, 1]) + bytes(9)    # 64 bits, LSB first
    return b''.join([
        ident, struct.pack('<HHIQQQIHHHHHH', 3, MACHINES[machine], 1, 0,
                           header, 0, 0, header, entry, 2, 0, 0, 0),
        # PT_LOAD: the whole file, writable because the linker stores
        # addresses in it. PT_DYNAMIC: the dynamic section
        struct.pack('<IIQQQQQQ', 1, 6, 0, 0, 0, size, size, 1 << 16),
        struct.pack('<IIQQQQQQ', 2, 6, dynamic_at, dynamic_at, dynamic_at,
                    len(dynamic), len(dynamic), 8),
        strings.ljust(symbols_at - strings_at, b'\0'), bytes(symbol),
        dynamic])


def _is_there(name):
    try:
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def load(folders=()):
    """Load the libraries that libmxnet.so needs, or replacements for them.

    folders: further folders to search; the wheel's own search path is the
    folder of libmxnet.so. Raises ImportError if no linear algebra library is
    found.
    """
    missing = [name for name in NEEDED if not _is_there(name) and not any(
        _is_there(os.path.join(folder, name)) for folder in folders)]
    if NEEDED[0] in missing and not _is_there(LINEAR_ALGEBRA[0]):
        raise ImportError(
            f'MXNet for Arm needs {LINEAR_ALGEBRA[0]}, which is not here: '
            + ARM_PACKAGES)
    if NEEDED[0] in missing:
        _is_there(LINEAR_ALGEBRA[1])    # without LAPACKE, only np.linalg fails
    for name in missing:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, name)
            with open(path, 'wb') as file:
                file.write(empty_library(name, platform.machine()))
            # The library stays loaded after its file is removed
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
