"""The requirements of setup.py on machines with all kinds of drivers."""
import ast
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ('Linux', 'x86_64'),
    reason='the CUDA build of MXNet exists for Linux x86_64 only')

# The few functions of the driver that the choice rests on; CAPABILITIES
# lists one number a GPU: 86 is compute capability 8.6
DRIVER = r'''
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static const int gpus[] = {CAPABILITIES};
int cuInit(unsigned flags) { START; return CODE; }
int cuDriverGetVersion(int *v) { *v = VERSION; return 0; }
int cuDeviceGetCount(int *n) { *n = sizeof gpus / sizeof *gpus - 1; return 0; }
int cuDeviceGet(int *device, int i) { *device = i; return gpus[i] < 0; }
int cuDeviceGetName(char *s, int n, int device) {
    snprintf(s, n, "Stub %d", device); return 0; }
int cuDeviceGetAttribute(int *v, int attribute, int device) {
    if (attribute == 75) *v = gpus[device] / 10;
    else if (attribute == 76) *v = gpus[device] % 10;
    else return 1;
    return 0; }
'''


@pytest.fixture
def stub(tmp_path):
    """A function that makes a driver library and returns its folder."""
    gcc = shutil.which('gcc') or shutil.which('cc')
    if gcc is None:
        pytest.skip('a stub driver needs a C compiler')

    def make(*capabilities, start='', code=0, version=12020):
        source = tmp_path / 'driver.c'
        source.write_text(DRIVER)
        values = ','.join(map(str, [*capabilities, 0]))
        subprocess.run(
            [gcc, '-shared', '-fPIC', f'-DCAPABILITIES={values}',
             f'-DSTART={start}', f'-DCODE={code}', f'-DVERSION={version}',
             '-o', str(tmp_path / 'libcuda.so.1'), str(source)], check=True)
        return tmp_path
    return make


def choose(library_path=None, wanted=None, timeout=30):
    """Run setup.py's choice in a process of its own, as pip would."""
    environ = {key: value for key, value in os.environ.items()
               if key not in ('D2LBERT_MXNET', 'LD_LIBRARY_PATH')}
    if library_path is not None:
        environ['LD_LIBRARY_PATH'] = str(library_path)
    if wanted is not None:
        environ['D2LBERT_MXNET'] = wanted
    code = ('import runpy, sys; names = runpy.run_path(sys.argv[1]); '
            f'print(names["mxnet_projects"]({timeout}))')
    return subprocess.run(
        [sys.executable, '-c', code, str(ROOT / 'setup.py')], env=environ,
        capture_output=True, text=True)


def chosen(*args, **kwargs):
    """(first requirement, all requirements, printed text)."""
    done = choose(*args, **kwargs)
    assert done.returncode == 0, done.stderr
    requirements = ast.literal_eval(done.stdout)
    return requirements[0], requirements, done.stderr


@pytest.mark.parametrize('capability', [50, 52, 61, 70, 75, 80, 86, 89])
def test_a_gpu_from_maxwell_to_ada_brings_the_cuda_build(stub, capability):
    first, requirements, said = chosen(stub(capability))
    assert first == 'mxnet-cu112'
    assert 'nvidia-cudnn-cu11==8.9.6.50' in requirements
    assert len(requirements) == len(set(requirements)) == 10
    assert f'{capability // 10}.{capability % 10}' in said


@pytest.mark.parametrize('capability', [37, 90, 100, 120])
def test_a_gpu_without_kernels_brings_the_cpu_build_and_is_named(
        stub, capability):
    _, requirements, said = chosen(stub(capability))
    assert requirements == ['mxnet']
    assert f'compute capability {capability // 10}.{capability % 10}' in said
    assert said.count('\n') == 1 and 'Stub 0' in said


def test_one_usable_gpu_among_others_is_enough(stub):
    first, _, said = chosen(stub(90, -1, 86))
    assert first == 'mxnet-cu112'
    assert 'GPU 2' in said


@pytest.mark.parametrize('driver', [
    {'code': 803}, {'code': 999}, {'start': 'abort()'},
    {'start': '*(volatile int *)0 = 1'}, {'start': '_exit(0)'},
    {'start': 'puts("noise"); exit(0)'}])
def test_a_broken_driver_brings_the_cpu_build(stub, driver):
    first, _, said = chosen(stub(86, **driver))
    assert first == 'mxnet'
    assert 'libcuda.so.1 does not work' in said


def test_a_driver_that_hangs_is_left_alone_after_the_timeout(stub):
    first, _, said = chosen(stub(86, start='for (;;) sleep(60)'), timeout=1)
    assert first == 'mxnet'
    assert 'no answer in 1 seconds' in said


def test_a_driver_without_gpus_brings_the_cpu_build(stub):
    for code in (0, 100):  # 100 is CUDA_ERROR_NO_DEVICE
        first, _, said = chosen(stub(code=code))
        assert first == 'mxnet'
        assert 'no GPU' in said


def test_a_driver_older_than_cuda_11_brings_the_cpu_build(stub):
    first, _, said = chosen(stub(75, version=10020))
    assert first == 'mxnet'
    assert '10.2' in said


def test_a_file_that_is_no_library_brings_the_cpu_build(tmp_path):
    (tmp_path / 'libcuda.so.1').write_text('not a library')
    first, _, said = chosen(tmp_path)
    assert first == 'mxnet'
    assert 'libcuda.so.1 does not work' in said


@pytest.mark.parametrize('wanted, first', [
    ('cpu', 'mxnet'), ('cu112', 'mxnet-cu112'),
    (' CPU ', 'mxnet')])
def test_the_variable_overrides_the_driver(stub, wanted, first):
    for capability in (86, 90):
        assert chosen(stub(capability), wanted=wanted)[0] == first


@pytest.mark.parametrize('wanted', ['', 'auto'])
def test_auto_is_the_default(stub, wanted):
    assert chosen(stub(86), wanted=wanted)[0] == 'mxnet-cu112'


def test_another_value_of_the_variable_is_refused_in_one_sentence():
    done = choose(wanted='cu118')
    assert done.returncode == 1
    assert done.stderr == ("D2LBERT_MXNET is 'cu118'; it must be cpu, cu112 "
                           'or auto (the default)\n')


def test_the_sample_corpus_and_the_kernels_are_in_the_built_package(tmp_path):
    for name in ('setup.py', 'd2lbert', 'data/sample'):
        target = tmp_path / 'source' / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(
            str(ROOT / name), str(target))
    subprocess.run(
        [sys.executable, 'setup.py', '--quiet', 'build', '--build-lib',
         str(tmp_path / 'lib')], cwd=str(tmp_path / 'source'), check=True,
        env={**os.environ, 'D2LBERT_MXNET': 'cpu'}, stderr=subprocess.PIPE)
    built = {str(path.relative_to(tmp_path / 'lib'))
             for path in (tmp_path / 'lib').rglob('*') if path.is_file()}
    expected = {f'd2lbert/{path.name}'
                for path in (ROOT / 'd2lbert').glob('*.py')}
    expected |= {f'd2lbert/kernels/{path.name}'
                 for path in (ROOT / 'd2lbert' / 'kernels').glob('*.*')
                 if path.suffix in ('.py', '.cc', '.h')}
    expected |= {f'd2lbert/sample/{path.name}'
                 for path in (ROOT / 'data' / 'sample').iterdir()}
    assert expected <= built


def run_setup(source, *arguments):
    return subprocess.run(
        [sys.executable, 'setup.py', '--quiet', *arguments], cwd=str(source),
        env={**{key: value for key, value in os.environ.items()
                if not key.startswith('PIP_')}, 'D2LBERT_MXNET': 'cpu'},
        capture_output=True, text=True)


@pytest.fixture
def source(tmp_path):
    """A copy of the checkout, in which setup.py may write."""
    copy = tmp_path / 'source'
    shutil.copytree(str(ROOT), str(copy), ignore=shutil.ignore_patterns(
        '.git', '__pycache__', '*.egg-info', 'runs', '.venv', 'build',
        'dist', '.pytest_cache', '.ruff_cache'))
    return copy


def test_a_source_distribution_brings_the_tests_and_names_no_file(source):
    done = run_setup(source, 'sdist', '--formats', 'zip')
    assert done.returncode == 0, done.stderr
    archive, = (source / 'dist').iterdir()
    with zipfile.ZipFile(archive) as opened:
        top = f'{archive.stem}/'
        names = {name[len(top):] for name in opened.namelist()}
        facts = opened.read(f'{top}PKG-INFO').decode('utf-8')
    for name in ('tests/machine/test_setup.py', 'notebooks/bert.ipynb',
                 'data/sample/README.md', '.ci/run', 'd2lbert/kernels/op.h',
                 'd2lbert/pictures/page.css', 'pyproject.toml', 'LICENSE',
                 'd2lbert/manual/index.md', '.github/CITATION.cff'):
        assert name in names, name
    assert not [name for name in names if '__pycache__' in name]
    assert '@ file:' not in facts
    assert 'Classifier: Programming Language :: Python :: 3.14' in facts
    assert re.search('^License(-Expression)?: MIT$', facts, re.MULTILINE)


def test_a_wheel_to_be_given_away_is_refused_in_one_sentence(source):
    done = run_setup(source, 'bdist_wheel')
    assert done.returncode == 1
    said, = done.stderr.splitlines()
    assert said.startswith('d2lbert: a built wheel would name the MXNet of ')
    assert 'python -m build --sdist' in said
    assert not (source / 'dist').exists()


@pytest.mark.skipif(not sys.platform.startswith('linux'),
                    reason='/proc is of Linux')
@pytest.mark.parametrize('words, first', [
    (['-m', 'pip', 'wheel', '.'], ['wheel']),
    (['/usr/bin/pip3.11', '--quiet', 'install', 'wheel'], ['install']),
    (['/site/pip/__pip-runner__.py', 'wheel', '.'], ['wheel']),
    (['-m', 'pip', '--log', 'x', 'wheel', '.'], ['wheel']),
    (['-m', 'pip', '--proxy', 'x', 'install', 'wheel'], ['install']),
    (['setup.py', 'bdist_wheel'], [])])
def test_the_command_of_pip_is_read_from_the_process(words, first):
    names = runpy.run_path(str(ROOT / 'setup.py'))
    process = subprocess.Popen(
        [sys.executable, '-uc', 'print(); input()', *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()       # it has begun
        assert names['pip_command'](process.pid) == first
    finally:
        process.communicate(b'\n')


@pytest.mark.skipif(not sys.platform.startswith('linux'),
                    reason='/proc is of Linux')
def test_pip_wheel_is_refused_as_well(source):
    # As pip does: the build is a child of the process with pip's words
    code = ('import subprocess, sys; sys.exit(subprocess.run('
            '[sys.executable, "setup.py", "bdist_wheel"]).returncode)')
    done = subprocess.run(
        [sys.executable, '-c', code, 'pip', 'wheel', '.'], cwd=str(source),
        env={**os.environ, 'PIP_BUILD_TRACKER': 'folder'},
        capture_output=True, text=True)
    assert done.returncode == 1
    said, = done.stderr.splitlines()
    assert said.startswith('d2lbert: a built wheel would name the MXNet of ')


def test_arm_gets_its_only_wheel_and_a_list_of_its_needs(monkeypatch):
    names = runpy.run_path(str(ROOT / 'setup.py'))
    monkeypatch.setattr(platform, 'machine', lambda: 'aarch64')
    monkeypatch.delenv('D2LBERT_MXNET', raising=False)
    build, reason = names['choose_build'](names['load']('hardware'))
    assert build == 'cpu' and 'Linux aarch64' in reason
    assert 'apt-get install libopenblas0 liblapacke' in reason
    monkeypatch.setenv('D2LBERT_MXNET', 'cu112')
    with pytest.raises(SystemExit, match='for Linux x86_64 only'):
        names['choose_build'](names['load']('hardware'))
