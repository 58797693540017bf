"""Compile for instructions that this processor may lack."""
import hashlib
import os
import pathlib
import subprocess
import sys

import numpy
import pytest

from d2lbert import kernels
from d2lbert.kernels import build
from d2lbert.machine.processor import find_processor

HERE = pathlib.Path(__file__).parent


def variables(tiles=False, bf16=True):
    """Variables that compile for AVX-512, with bfloat16 or without.

    Returns {variable: value}. Emulated instructions replace those that the
    processor lacks. tiles: use emulated AMX tiles for all products. Skips the
    test if the emulation does not run here.
    """
    if kernels.mode() == 'off':
        pytest.skip('D2LBERT_KERNELS is off')
    if not {'avx2', 'fma'} <= set(find_processor().features):
        pytest.skip('the emulation needs a CPU with AVX2 and FMA')
    # The name of a library depends on its command, but not on these headers
    digest = hashlib.sha256(b''.join(
        (HERE / name).read_bytes() for name in ('avx512.h', 'amx_emulated.h'))
    ).hexdigest()[:16]
    command = [os.environ.get('CXX') or build.compiler()[0][0], '-include',
               'avx512.h', '-Wno-psabi', f'-DEMULATION={digest}']
    if tiles:
        command.append('-DD2LBERT_AMX_EMULATED=<amx_emulated.h>')
    if not bf16:
        command.append('-DAVX512_ALONE')
    folders = [str(HERE), str(kernels.FOLDER), os.environ.get('CPATH')]
    return {'CXX': ' '.join(command),
            'D2LBERT_ISA': '' if bf16 else _without_bf16(),
            # Unlike CXX, it may name folders that have spaces in their names
            'CPATH': os.pathsep.join(filter(None, folders)),
            'D2LBERT_AMX': 'require' if tiles else 'off'}


def _without_bf16():
    """A set without bfloat16, if the set of this processor has it."""
    return 'avx512' * ('avx512_bf16' in find_processor().features)


def library(name, sources, patch, tiles=False):
    """The path of C++ compiled that way; patch: a `pytest.MonkeyPatch`."""
    for variable, value in variables(tiles).items():
        patch.setenv(variable, value)
    return build.library(name, sources)


def check_operators(variables):
    """Run all tests of operators in a process with these variables."""
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider',
         str(HERE / 'test_kernels.py'), str(HERE / 'test_halves.py'), '-k',
         'not sanitizers'],
        env={**os.environ, **variables}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT)
    said = done.stdout.decode(errors='replace')
    assert done.returncode == 0, said


def flushed(x):
    """x without denormals: zeros of their sign."""
    return numpy.where(abs(x) < numpy.finfo('float32').tiny,
                       numpy.copysign(numpy.float32(0), x), x)
