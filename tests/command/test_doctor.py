"""The report about machines that are well and machines that are not."""
import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from d2lbert import hub, kernels
from d2lbert.__main__ import main
from d2lbert.command import doctor
from d2lbert.kernels import draw, int8
from d2lbert.machine import cache, hardware

ROOT = Path(__file__).resolve().parents[2]


def row(name):
    return next(row for row in doctor.report() if row.name == name)


def driver(monkeypatch, *gpus, problem='', cuda=(12, 2), build='cpu'):
    answer = hardware.Driver(cuda, list(gpus), problem)
    monkeypatch.setattr(hardware, 'driver', lambda: answer)
    monkeypatch.setattr(hardware, 'build', lambda: build)


def test_every_row_that_is_not_well_has_a_remedy():
    for name, status, value, remedy in doctor.report():
        assert status in (doctor.OK, doctor.WARN, doctor.BAD)
        assert value, name
        assert bool(remedy) == (status != doctor.OK), name


def test_a_machine_that_is_well_gives_status_0(capsys):
    assert doctor.print_report() == 0
    said = capsys.readouterr().out
    assert '1.9.1' in said and 'MKLDNN' in said
    assert said.endswith('`d2lbert pretrain` can run.\n')


@pytest.mark.parametrize('columns', [79, 40])
def test_the_table_is_aligned_and_fits_the_terminal(columns, capsys,
                                                    monkeypatch):
    monkeypatch.setenv('COLUMNS', str(columns))
    monkeypatch.setattr(doctor, 'report', lambda build: [
        doctor.Row('a', doctor.OK, 'first'),
        doctor.Row('longer', doctor.BAD, 'word ' * 40, 'do ' * 40)])
    assert doctor.print_report() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == 'ok    a       first'
    assert lines[1].startswith('bad   longer  word word')
    assert lines[2].startswith('              word word')
    assert any(line.startswith('              -> do') for line in lines)
    assert max(map(len, lines[:-1])) <= columns
    assert 'cannot run yet: see longer' in lines[-1]


def test_a_gpu_without_kernels_is_named_with_its_capability(monkeypatch):
    driver(monkeypatch, hardware.Gpu(0, 'NVIDIA H200', (9, 0), False,
                                     'it is too new'))
    said = row('GPU 0')
    assert said.status == doctor.WARN
    assert 'NVIDIA H200' in said.value and '9.0' in said.value
    assert 'it is too new' in said.remedy


def test_an_unknown_capability_is_not_given_as_a_number(monkeypatch):
    driver(monkeypatch, hardware.Gpu(0, 'NVIDIA GPU', (0, 0), False,
                                     'the driver does not answer for it'))
    assert row('GPU 0').value == (
        'NVIDIA GPU, compute capability unknown: not usable')


def test_a_gpu_beside_the_cpu_build_asks_for_the_cuda_build(monkeypatch):
    driver(monkeypatch, hardware.Gpu(0, 'NVIDIA A100', (8, 0), True, ''))
    assert 'D2LBERT_MXNET=cu112' in row('GPU 0').remedy
    assert row('driver').value == 'NVIDIA, for CUDA up to 12.2'


def test_a_broken_driver_is_distinguished_from_a_missing_one(monkeypatch):
    driver(monkeypatch, problem='libcuda.so.1 does not work: no', cuda=None)
    assert row('driver').status == doctor.WARN
    driver(monkeypatch, problem=hardware.NO_DRIVER, cuda=None)
    assert row('driver').status == doctor.OK


def test_missing_cuda_libraries_are_named_with_their_wheels(monkeypatch):
    driver(monkeypatch, build='cu112')
    files = [library.file for library in hardware.CUDA_LIBRARIES]
    monkeypatch.setattr(hardware, 'cuda_libraries', lambda: [
        (file, None if 'nccl' in file else f'/{file}') for file in files])
    said = row('CUDA libraries')
    assert '9 of 10' in said.value and 'libnccl.so.2' in said.value
    assert 'nvidia-nccl-cu11==2.21.5' in said.remedy
    monkeypatch.setattr(hardware, 'cuda_libraries', lambda: [
        (file, f'/{file}') for file in files])
    assert row('CUDA libraries').status == doctor.OK


def test_a_missing_compiler_is_only_slower(monkeypatch):
    monkeypatch.setenv('CXX', 'no-such-compiler')
    said = row('compiler')
    assert said.status == doctor.WARN and 'no-such-compiler' in said.value


# The compiled libraries and the cache

@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """No library is compiled yet, and compiling makes a tiny one."""
    if kernels.mode() == 'off':
        pytest.skip('D2LBERT_KERNELS is off')
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(kernels.Library, '_has_warned', False)
    source = tmp_path / 'seven.cc'
    source.write_text('extern "C" int seven() { return 7; }\n')
    seven = SimpleNamespace(d2lbert_isa=lambda: b'SSE',
                            d2lbert_vector=lambda: 4,
                            int8_product=lambda: b'fingers')
    for module, name in ((kernels, 'OPERATORS'), (draw, 'DRAW'),
                         (int8, 'INT8')):
        library = kernels.Library('seven', [source], lambda path: seven,
                                  what='the trifle', takes='a moment')
        monkeypatch.setattr(module, name, library)
    return source


def test_missing_libraries_are_reported_and_not_compiled(fresh, capsys):
    said = row('fast operators')
    assert said[1:3] == (doctor.WARN, 'not compiled yet')
    assert 'd2lbert doctor --build, which takes a moment' in said.remedy
    for name in 'fast reading', 'eight bits':
        assert row(name)[1:3] == said[1:3]
    assert not [*cache.folder('kernels').iterdir()]
    assert main(['doctor']) == 0
    assert 'compiling' not in capsys.readouterr().err


def test_build_compiles_all(fresh, compiler, capsys):
    assert main(['doctor', '--build']) == 0
    said = capsys.readouterr()
    assert said.err == ('d2lbert: compiling the trifle, once: a moment ...\n')
    assert said.out.count('loaded from') == 3
    assert row('eight bits').value.endswith('; multiplies by fingers')
    assert main(['doctor']) == 0
    assert capsys.readouterr().out == said.out


def test_build_fails_where_nothing_can_be_compiled(fresh, capsys,
                                                   monkeypatch):
    fresh.write_text('int f() { return nothing; }')
    assert main(['doctor']) == 0
    assert main(['doctor', '--build']) == 1
    said = capsys.readouterr().out
    assert said.endswith('Not all compiled libraries can be used.\n')
    assert 'cannot build seven.cc' in said or 'no C++ compiler' in said
    monkeypatch.setenv('D2LBERT_KERNELS', 'off')
    assert main(['doctor', '--build']) == 1
    assert 'D2LBERT_KERNELS is off' in row('fast operators').value


def test_what_is_required_and_cannot_be_had_is_bad(fresh, compiler, capsys,
                                                     monkeypatch):
    monkeypatch.setenv('D2LBERT_KERNELS', 'require')
    assert row('fast operators')[1:3] == (doctor.WARN, 'not compiled yet')
    monkeypatch.setenv('CXX', 'no-such-compiler')
    said = row('fast operators')
    assert said.status == doctor.BAD
    assert row('eight bits').status == doctor.WARN
    assert 'D2LBERT_KERNELS=require; unset D2LBERT_KERNELS' in said.remedy
    assert main(['doctor']) == 1
    assert 'cannot run yet' in capsys.readouterr().out


def test_a_folder_that_is_not_trusted_is_a_remedy_not_a_crash(
        fresh, monkeypatch):
    monkeypatch.setattr(cache, 'is_trusted', lambda found: False)
    said = row('fast operators')
    assert said.status == doctor.WARN and 'another user' in said.value


def test_the_caches_size_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path))
    tokens = tmp_path / 'tokens' / f'{"0" * 32}.npz'
    tokens.parent.mkdir()
    tokens.write_bytes(bytes(2500000))
    assert row('cache')[1:3] == (doctor.OK, f'{tmp_path}, 2.5 MB')
    monkeypatch.setattr(cache, 'is_root_temporary', lambda: True)
    assert row('cache').status == doctor.WARN
    monkeypatch.setenv('D2LBERT_CACHE', '~nobody-of-that-name/x')
    assert 'does not work' in row('cache').value


def test_without_any_text_the_main_job_cannot_run(monkeypatch, capsys):
    def missing():
        raise FileNotFoundError
    monkeypatch.setattr(hub, 'sample_dir', missing)
    monkeypatch.setattr(hub, 'find_wikitext2', lambda: None)
    assert row('sample corpus').status == doctor.BAD
    assert doctor.print_report() == 1
    monkeypatch.setattr(hub, 'find_wikitext2', lambda: Path('/wikitext-2'))
    assert row('sample corpus').status == doctor.WARN
    assert doctor.print_report() == 0
    assert '/wikitext-2' in capsys.readouterr().out


def test_a_text_that_is_not_wikitext2_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, 'find_wikitext2', lambda: tmp_path)
    path = tmp_path / hub.TRAIN_FILE
    path.write_bytes(b'<!DOCTYPE html>')
    said = row('WikiText-2')
    assert said.status == doctor.WARN and 'fetched' in said.remedy
    assert said.value == f'{path} is a web page of 15 bytes, not WikiText-2'
    path.write_bytes(bytes(hub.PUBLISHED[hub.TRAIN_FILE].size))
    assert row('WikiText-2').value == (
        f'{path} is another text of the same 10,797,148 bytes')


def test_mxnet_that_does_not_import_is_a_bad_row(monkeypatch):
    def broken(name, real=importlib.import_module):
        if name == 'd2lbert.machine.backend':
            raise ImportError('MXNet is not installed: pip install mxnet')
        return real(name)
    monkeypatch.setattr(doctor.importlib, 'import_module', broken)
    said = row('MXNet')
    assert said[1:] == (doctor.BAD, 'MXNet is not installed',
                        'pip install mxnet')
    assert doctor.print_report() == 1


def test_the_command_reports_where_neither_mxnet_nor_numpy_is_installed():
    # -S: without site-packages
    done = subprocess.run(
        [sys.executable, '-S', '-W', 'ignore', '-m', 'd2lbert', 'doctor'],
        cwd=str(ROOT), capture_output=True, text=True)
    assert done.returncode == 1
    assert not done.stderr
    assert 'pip install numpy' in done.stdout
    assert 'cannot run yet' in done.stdout


# The processor

def test_the_report_names_the_instructions_of_the_operators(monkeypatch):
    if not kernels.load():
        pytest.skip(kernels.state().reason)
    name, floats = kernels.compiled_for()
    assert f'operators for {name}, {floats} floats' in row('processor').value
    monkeypatch.setenv('D2LBERT_ISA', 'avx3')
    said = row('processor')
    assert said.status == doctor.BAD and "'avx3'" in said.value


def test_an_unknown_instruction_set_is_bad_only_where_one_is_used(
        monkeypatch, capsys):
    monkeypatch.setenv('D2LBERT_ISA', 'avx3')
    monkeypatch.setenv('D2LBERT_KERNELS', 'off')
    said = row('processor')
    assert said.status == doctor.WARN and "'avx3'" in said.value
    assert 'while D2LBERT_KERNELS is off' in said.remedy
    assert main(['doctor']) == 0
    for mode in 'require', 'of':
        monkeypatch.setenv('D2LBERT_KERNELS', mode)
        assert row('processor').status == doctor.BAD
    assert main(['doctor']) == 1
    assert 'cannot run yet' in capsys.readouterr().out
