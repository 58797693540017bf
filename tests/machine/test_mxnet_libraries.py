"""Replacements for libraries that MXNet's Arm wheel links."""
import ctypes
import platform
import subprocess
import sys

import pytest

from d2lbert.machine import mxnet_libraries

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith('linux')
    or platform.machine() not in mxnet_libraries.ELF_MACHINES,
    reason='an ELF library for this machine is to be loaded')


def test_an_empty_library_is_taken_for_the_one_that_is_missing(tmp_path):
    name = 'libd2lbert_missing.so'
    empty, user = tmp_path / name, tmp_path / 'user.so'
    empty.write_bytes(mxnet_libraries.empty_library(name, platform.machine()))
    source = tmp_path / 'user.c'
    source.write_text('int seven(void) { return 7; }\n')
    try:
        subprocess.run(['cc', '-shared', '-fPIC', '-o', str(user),
                        str(source), f'-L{tmp_path}', '-Wl,--no-as-needed',
                        '-ld2lbert_missing'], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f'no C compiler: {error}')
    with pytest.raises(OSError, match=name):
        ctypes.CDLL(str(user))
    ctypes.CDLL(str(empty), ctypes.RTLD_GLOBAL)
    empty.unlink()
    assert ctypes.CDLL(str(user)).seven() == 7


def test_without_linear_algebra_the_package_is_named(monkeypatch):
    monkeypatch.setattr(mxnet_libraries, '_try_load', lambda name: False)
    with pytest.raises(ImportError, match=r'libopenblas\.so\.0.*apt-get'):
        mxnet_libraries.load_arm()


def test_existing_libraries_need_no_replacement(monkeypatch, tmp_path):
    asked = []

    def is_there(name):
        asked.append(name)
        return name.startswith(str(tmp_path))    # beside libmxnet.so
    monkeypatch.setattr(mxnet_libraries, '_try_load', is_there)
    mxnet_libraries.load_arm([tmp_path])
    assert mxnet_libraries.LINEAR_ALGEBRA[0] not in asked
    assert str(tmp_path / mxnet_libraries.ARM_LIBRARIES[0]) in asked
