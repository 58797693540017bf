"""Operators for older processors, and for Arm, on whatever this one is."""
import ctypes
import os
import platform
import shutil
import subprocess
from pathlib import Path

import emulation
import pytest

from d2lbert import kernels
from d2lbert.kernels import build
from d2lbert.machine import processor
from d2lbert.machine.processor import Processor, find_processor

HERE = Path(__file__).resolve().parent
X86 = Processor('x86_64', 'Intel', '6', '94', '', frozenset(
    processor.ISAS['avx2'].required_features.split()))


def runs_here(name):
    """Skip the test where this processor cannot run such a build."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv('D2LBERT_ISA', name)
            processor.chosen_isa()
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize('name, this, why', [
    ('avx3', X86, "'avx3': it must be native, avx512, avx2, avx, sse or neon"),
    ('neon', X86, 'instruction set of aarch64, and this processor is x86_64'),
    ('avx512', X86, 'lacks avx512f, avx512bw.*: name a lower set'),
    ('avx2', X86._replace(machine='aarch64'), 'this processor is aarch64')])
def test_what_this_processor_cannot_run_is_refused(name, this, why,
                                                   monkeypatch):
    monkeypatch.setattr(processor, 'find_processor', lambda: this)
    monkeypatch.setenv('D2LBERT_ISA', name)
    with pytest.raises(ValueError, match=f'D2LBERT_ISA is .*{why}'):
        processor.isa_flags()


def test_a_lower_set_is_allowed_and_another_library(monkeypatch, compiler):
    monkeypatch.setattr(processor, 'find_processor', lambda: X86)
    names = set()
    for name in ('', 'native', 'avx2', 'sse'):
        monkeypatch.setenv('D2LBERT_ISA', name)
        command, _, library = build._recipe('seven', [compiler], False)
        assert ('-march=native' in command) == (name in ('', 'native'))
        names.add(library)
    assert len(names) == 3


@pytest.mark.parametrize('name, said', [('avx2', ('AVX2', 8)),
                                        ('avx', ('AVX', 8)),
                                        ('sse', ('SSE', 4))])
def test_a_library_is_compiled_for_a_lower_set(name, said, monkeypatch,
                                               compiler, tmp_path):
    runs_here(name)
    monkeypatch.setenv('D2LBERT_ISA', name)
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path))
    # The names alone, without the minute that the operators take
    source = tmp_path / 'names.cc'
    text = (kernels.FOLDER / 'gemm.cc').read_text('utf-8')
    source.write_text(f'#include "{kernels.FOLDER}/simd.h"\n' + '\n'.join(
        line for line in text.splitlines()
        if line.startswith('extern "C"')))
    library = ctypes.CDLL(str(build.library('names', [source])))
    library.d2lbert_isa.restype = ctypes.c_char_p
    assert (library.d2lbert_isa().decode(), library.d2lbert_vector()) == said
    assert not library.d2lbert_bf16()


def test_the_operators_report_their_instruction_set():
    if not kernels.load():
        pytest.skip(kernels.state().reason)
    name, floats = kernels.compiled_for()
    known = find_processor().instruction_sets
    assert floats == {'AVX-512': 16, 'AVX2': 8, 'AVX': 8}.get(
        name.split(' with ')[0], 4)
    if processor.chosen_isa() == 'native' and known:
        assert name.startswith(known[0])


@pytest.mark.slow
@pytest.mark.parametrize('name', ['avx512', 'avx2', 'avx', 'sse'])
def test_the_operators_pass_their_tests_on_a_lower_set(compiler, name):
    runs_here(name)
    emulation.check_operators({'D2LBERT_ISA': name})


@pytest.mark.slow
def test_the_operators_on_an_emulated_arm(tmp_path):
    """Cross-compiled, without MXNet around them, against double precision.
    """
    cross = 'aarch64-linux-gnu-g++'
    native = platform.machine() == 'aarch64'
    emulator = next(filter(shutil.which, ('qemu-aarch64-static',
                                          'qemu-aarch64')), None)
    if not native and not (shutil.which(cross) and emulator):
        pytest.skip(f'needs {cross} and qemu-aarch64: apt-get install '
                    'g++-aarch64-linux-gnu qemu-user-static')
    include, interface, _ = build._mxnet_parts()
    program, flags = tmp_path / 'operators', build.FLAGS
    sources = [kernels.FOLDER / name for name in kernels.SOURCES]
    made = subprocess.run(
        ['g++' if native else cross,
         *processor.ISAS['neon'].flags, *flags, '-static',
         f'-I{include}', f'-I{kernels.FOLDER}',
         str(HERE / 'arm.cc'), *map(str, sources), str(interface), '-o',
         str(program)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert made.returncode == 0, made.stdout.decode()
    done = subprocess.run([*[emulator] * (not native), str(program)],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, 'OMP_NUM_THREADS': '2'})
    said = done.stdout.decode()
    assert done.returncode == 0, said
    assert said.startswith('NEON, 4 floats') and said.count('ok ') >= 20, said
