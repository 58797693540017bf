"""MXNet in whole and in broken environments, each a process of its own."""
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from d2lbert.machine import hardware, mxnet_libraries, mxnet_wheel

PACKAGE = Path(__file__).resolve().parents[2] / 'd2lbert'
SETTINGS = ('OMP_NUM_THREADS', 'MXNET_OMP_MAX_THREADS', 'OMP_THREAD_LIMIT',
            'OMP_DYNAMIC', 'OMP_MAX_ACTIVE_LEVELS', 'D2LBERT_MALLOC',
            'MXNET_CUDNN_LIB_CHECKING', 'LD_LIBRARY_PATH', 'PYTHONPATH')

# Only d2lbert.machine.backend: the package itself would import everything else
ALONE = f'''
import sys, types
package = types.ModuleType('d2lbert')
package.__path__ = [{str(PACKAGE)!r}]
sys.modules['d2lbert'] = package
'''

FAKE_MXNET = '''
import os, types
autograd = gluon = init = np = npx = types.SimpleNamespace(
    nn=None, set_np=lambda: None)
util = types.SimpleNamespace(
    np_array=lambda active: None, set_np_shape=lambda active: None,
    _NumpyArrayScope=types.SimpleNamespace())
__version__ = '1.9.1'
print({name: os.environ.get(name) for name in (
    'OMP_NUM_THREADS', 'MXNET_OMP_MAX_THREADS')})
'''


def python(code, *flags, **environ):
    """Run code in a fresh process with a clean environment."""
    clean = {key: value for key, value in os.environ.items()
             if key not in SETTINGS}
    return subprocess.run([sys.executable, *flags, '-c', ALONE + code],
                          env={**clean, **environ}, capture_output=True,
                          text=True)


@pytest.fixture
def site(tmp_path):
    """An empty site-packages with what MXNet needs besides itself."""
    (tmp_path / 'numpy').mkdir()
    (tmp_path / 'numpy' / '__init__.py').write_text(
        "__version__ = '1.23.5'")
    return tmp_path


def install(site, wheel='mxnet', version='1.9.1', code=FAKE_MXNET):
    """Write the folder mxnet (code None: empty it) and pip's record."""
    info = site / f'{wheel.replace("-", "_")}-{version}.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(
        f'Metadata-Version: 2.1\nName: {wheel}\nVersion: {version}\n')
    module = site / 'mxnet' / '__init__.py'
    module.parent.mkdir(exist_ok=True)
    if code is not None:
        module.write_text(code)
        module.with_name('_compat.py').touch()


def import_from(site, **environ):
    """Import d2lbert.machine.backend with only this site-packages."""
    return python('import d2lbert.machine.backend', '-S', PYTHONPATH=str(site),
                  **environ)


def refusal(site, **environ):
    """The one sentence of the ImportError."""
    done = import_from(site, **environ)
    assert done.returncode == 1
    assert 'During handling' not in done.stderr
    assert 'direct cause' not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith('ImportError: ')
    return last[len('ImportError: '):]


def test_shards_are_made_where_warnings_are_errors():
    done = python("""
from d2lbert.machine.backend import gluon, mx, np
gluon.utils.split_and_load(np.ones((2, 3)), [mx.cpu()])
""", PYTHONWARNINGS='error')
    assert done.returncode == 0, done.stderr


def test_mxnet_imports_without_a_warning_and_leaves_the_environment():
    done = python('''
import os, warnings
before = dict(os.environ)
warnings.simplefilter('error')
from d2lbert.machine.backend import autograd, gluon, init, mx, nn, np, npx
import numpy
warnings.simplefilter('ignore')
assert mx.__version__ == '1.9.1' and nn is gluon.nn and np is mx.np
npx.set_np()
x = np.array([1, 2])
assert x[x > 1].tolist() == [2]
assert os.environ == before
''')
    assert done.returncode == 0, done.stderr
    assert not done.stdout and not done.stderr


@pytest.mark.skipif(platform.system() != 'Linux', reason='asks libgomp')
@pytest.mark.parametrize('environ, threads', [
    ({}, hardware.physical_cores()), ({'OMP_NUM_THREADS': '1'}, 1),
    ({'OMP_NUM_THREADS': '3'}, 3)])
def test_every_core_is_used_unless_the_user_says_otherwise(environ, threads):
    done = python('''
import ctypes
from d2lbert.machine.backend import mx
mx.np.ones((4, 4)).wait_to_read()
print(ctypes.CDLL('libgomp.so.1').omp_get_max_threads())
''', **environ)
    assert done.stdout == f'{threads}\n', done.stderr


def test_threads_are_told_to_mxnet_only(site):
    install(site)
    cores = str(hardware.physical_cores())
    told = {'OMP_NUM_THREADS': cores, 'MXNET_OMP_MAX_THREADS': cores}
    assert import_from(site).stdout == f'{told}\n'
    told = {'OMP_NUM_THREADS': '7', 'MXNET_OMP_MAX_THREADS': None}
    assert import_from(site, OMP_NUM_THREADS='7').stdout == f'{told}\n'


CORES = hardware.physical_cores()


@pytest.mark.parametrize('environ, openmp, mxnet', [
    ({'OMP_NUM_THREADS': '2,1'}, 2, None),
    ({'OMP_NUM_THREADS': ' 03 , 2 '}, 3, None),
    ({'OMP_NUM_THREADS': ''}, CORES, CORES),
    ({'MXNET_OMP_MAX_THREADS': '2,1'}, None, 2),
    ({'OMP_THREAD_LIMIT': '1'}, 1, 1),
    ({'OMP_THREAD_LIMIT': '4294967295'}, CORES, CORES),
    ({'OMP_NUM_THREADS': '5', 'OMP_THREAD_LIMIT': '1'}, 1, 1),
    ({'OMP_NUM_THREADS': '2', 'MXNET_OMP_MAX_THREADS': '9',
      'OMP_THREAD_LIMIT': '3'}, 2, 3),
    ({'OMP_NUM_THREADS': '5', 'OMP_MAX_ACTIVE_LEVELS': '0'}, 1, 1),
])
def test_threads_are_as_many_as_openmp_will_give(site, environ, openmp,
                                                 mxnet):
    install(site)
    told = {'OMP_NUM_THREADS': openmp and str(openmp),
            'MXNET_OMP_MAX_THREADS': mxnet and str(mxnet)}
    done = import_from(site, **environ)
    assert done.stdout == f'{told}\n', done.stderr


@pytest.mark.parametrize('name', ['OMP_NUM_THREADS', 'MXNET_OMP_MAX_THREADS',
                                  'OMP_THREAD_LIMIT'])
@pytest.mark.parametrize('value', ['abc', '0', '-1', '2,', '1.5', '9' * 30])
def test_an_invalid_number_of_threads_is_refused(site, name, value):
    install(site)
    said = refusal(site, **{name: value})
    assert said.startswith(f'{name} is {value!r} and must be a number of '
                           'threads from 1 to ')
    assert said.endswith(f': unset {name}, or set it to {CORES}, one for '
                         'each core')


@pytest.mark.skipif(platform.system() != 'Linux', reason='asks libgomp')
@pytest.mark.parametrize('environ, threads', [
    ({'OMP_THREAD_LIMIT': '1'}, 1), ({'OMP_MAX_ACTIVE_LEVELS': '0'}, 1),
    ({'OMP_DYNAMIC': ' True'}, 4), ({'OMP_NUM_THREADS': '3,2'}, 3)])
def test_mxnet_computes_rightly_with_fewer_threads(environ, threads):
    done = python('''
import ctypes, os, threading
before = dict(os.environ)
from d2lbert.machine.backend import autograd, mx, np, npx
import numpy
assert os.environ == before
npx.set_np()
rng = numpy.random.RandomState(0)
X, W, up = (rng.randn(*shape).astype('float32') for shape in (
    (512, 128), (64, 128), (512, 64)))
x, w = np.array(X), np.array(W)
w.attach_grad()
with autograd.record():
    y = npx.fully_connected(x, w, no_bias=True, num_hidden=64)
y.backward(np.array(up))
assert abs(y.asnumpy() - X @ W.T).max() < 1e-3
assert abs(w.grad.asnumpy() - up.T @ X).max() < 1e-3
openmp = ctypes.CDLL('libgomp.so.1')
thread = threading.Thread(target=lambda: print(
    openmp.omp_get_max_threads(), openmp.omp_get_dynamic()))
thread.start()
thread.join()
''', **{'OMP_NUM_THREADS': '4', **environ})
    assert done.stdout == f'{threads} 0\n', done.stderr
    said = done.stderr.splitlines()
    if 'OMP_DYNAMIC' in environ:
        assert len(said) == 1 and said[0].startswith('d2lbert: OMP_DYNAMIC=')
    else:
        assert not said


@pytest.mark.parametrize('given, changed', [
    ({}, {}), ({'OMP_DYNAMIC': ' True'}, {'OMP_DYNAMIC': 'false'}),
    ({'OMP_DYNAMIC': 'false'}, {})])
def test_threads_that_openmp_may_take_away_are_asked_for(monkeypatch, given,
                                                         changed):
    for name in ('OMP_DYNAMIC', 'OMP_THREAD_LIMIT', 'OMP_MAX_ACTIVE_LEVELS',
                 'MXNET_OMP_MAX_THREADS'):
        monkeypatch.delenv(name, raising=False)
    for name, value in dict(given, OMP_NUM_THREADS='3').items():
        monkeypatch.setenv(name, value)
    assert mxnet_libraries.thread_settings() == {
        'OMP_NUM_THREADS': '3', **changed}


@pytest.mark.skipif(platform.system() != 'Linux', reason='asks libgomp')
def test_openmp_that_is_loaded_already_cannot_be_mended(site):
    install(site)
    (site / 'early.py').write_text("__import__('ctypes').CDLL('libgomp.so.1')")
    code = 'import early, d2lbert.machine.backend'
    for environ in ({'OMP_DYNAMIC': 'true'}, {'OMP_MAX_ACTIVE_LEVELS': '0'},
                    {'OMP_THREAD_LIMIT': '1', 'OMP_NUM_THREADS': '2'}):
        done = python(code, '-S', PYTHONPATH=str(site), **environ)
        said = done.stderr.splitlines()[-1]
        assert said.startswith('ImportError: OpenMP was loaded before d2lbert')
    for environ in ({}, {'OMP_THREAD_LIMIT': '2', 'OMP_NUM_THREADS': '2'}):
        done = python(code, '-S', PYTHONPATH=str(site), **environ)
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='of glibc')
def test_freed_memory_is_used_again_without_new_pages():
    # 40 MB is above any size that glibc keeps by default
    code = '''
import ctypes, resource
import d2lbert.machine.backend
libc = ctypes.CDLL(None)
libc.malloc.restype, size = ctypes.c_void_p, 40 << 20
def use():
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size)))
    libc.memset(block, 1, ctypes.c_size_t(size))
    libc.free(block)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
'''
    # 20 to 10,240 page faults a block, huge pages or small ones
    assert int(python(code).stdout) < 20
    assert int(python(code, D2LBERT_MALLOC='default').stdout) > 150


def test_mxnet_that_is_missing_is_named(site):
    assert refusal(site).startswith('MXNet is not installed: ')


@pytest.mark.skipif(sys.version_info >= (3, 12), reason='refused anyway')
def test_a_stock_mxnet_works_beside_an_old_numpy(site):
    install(site)
    (site / 'mxnet' / '_compat.py').unlink()
    assert import_from(site).returncode == 0


@pytest.mark.parametrize('version', ['1.24.0', '2.5.5'])
def test_a_stock_mxnet_beside_a_new_numpy_is_refused(site, version):
    install(site)
    (site / 'mxnet' / '_compat.py').unlink()
    (site / 'numpy' / '__init__.py').write_text(f'__version__ = {version!r}')
    said = refusal(site)
    assert f'NumPy {version}' in said and 'the stock one' in said
    assert said.endswith('install d2lbert again with pip install .')
    (site / 'mxnet' / '_compat.py').touch()
    assert import_from(site).returncode == 0


def test_numpy_that_is_missing_is_named(site):
    install(site)
    shutil.rmtree(str(site / 'numpy'))
    assert refusal(site).endswith('pip install numpy')


def test_both_wheels_in_one_folder_are_explained(site):
    install(site)
    install(site, 'mxnet-cu112')
    said = refusal(site)
    assert 'installed last' in said
    assert 'pip uninstall -y mxnet mxnet-cu112' in said


def test_a_wheel_hidden_in_another_folder_does_no_harm(site):
    front, back = site / 'front', site / 'back'
    front.mkdir()
    back.mkdir()
    install(front)
    install(back, 'mxnet-cu112')
    path = os.pathsep.join(map(str, (front, back, site)))
    assert import_from(path).returncode == 0


@pytest.mark.parametrize('wheel', ['mxnet', 'mxnet-cu112'])
@pytest.mark.parametrize('leave_folder', [True, False])
def test_a_folder_emptied_by_uninstalling_the_other_wheel_is_explained(
        site, wheel, leave_folder):
    install(site, wheel, code=None)
    if not leave_folder:
        (site / 'mxnet').rmdir()
    said = refusal(site)
    assert f'pip lists {wheel} but' in said and said.endswith(
        'install d2lbert again with pip install .')


@pytest.mark.parametrize('error', [
    "RuntimeError('Cannot find the MXNet library.\\nList of candidates:')",
    "ModuleNotFoundError('No module named mxnet.base', name='mxnet.base')"])
def test_a_folder_with_some_files_gone_is_explained(site, error):
    install(site, code=f'raise {error}')
    assert 'pip lists mxnet but files' in refusal(site)


def test_another_version_of_mxnet_is_refused_before_it_is_imported(site):
    install(site, version='1.5.0', code='raise SystemError')
    said = refusal(site)
    assert said.startswith('mxnet 1.5.0 is installed and d2lbert needs '
                           '1.9.1: pip uninstall ')


def test_another_version_that_pip_does_not_list_is_refused(site):
    install(site, code=FAKE_MXNET.replace('1.9.1', '2.0.0'))
    shutil.rmtree(str(site / 'mxnet-1.9.1.dist-info'))
    assert 'MXNet 2.0.0' in refusal(site)


@pytest.mark.parametrize('library', ['libgomp.so.1', 'libquadmath.so.0'])
def test_a_missing_system_library_names_the_debian_packages(site, library):
    install(site, code=f"raise OSError('{library}: cannot open shared object "
                       "file: No such file or directory')")
    said = refusal(site)
    assert library in said
    assert 'apt-get install libgomp1 libquadmath0' in said


def test_a_python_without_docstrings_is_explained(site):
    install(site, code="raise TypeError('sequence item 0: expected str')")
    said = refusal(site, PYTHONOPTIMIZE='2')
    assert 'docstrings' in said and said.endswith('unset PYTHONOPTIMIZE')
    assert 'docstrings' not in refusal(site)


def test_a_driver_without_the_functions_of_cuda_11_is_explained(site):
    install(site, code="raise OSError('/mxnet/libmxnet.so: undefined symbol: "
                       "cuGraphNodeGetType')")
    said = refusal(site)
    assert 'cuGraphNodeGetType' in said
    assert said.endswith('update the NVIDIA driver')


def test_a_missing_python_package_is_named(site):
    install(site, code='import graphviz')
    assert refusal(site).endswith('pip install graphviz')


def test_any_other_failure_of_mxnet_keeps_its_first_line(site):
    install(site, code="raise ValueError('first\\nsecond')")
    said = refusal(site)
    assert '(ValueError: first)' in said and 'second' not in said


@pytest.mark.skipif(platform.system() != 'Linux', reason='CUDA on Linux')
def test_the_cuda_build_without_a_driver_is_explained(site):
    install(site, 'mxnet-cu112')
    (site / 'libcuda.so.1').write_text('not a library')
    said = refusal(site, LD_LIBRARY_PATH=str(site))
    assert 'NVIDIA driver' in said and 'D2LBERT_MXNET=cpu' in said


@pytest.fixture
def cuda_site(site):
    """mxnet-cu112 with a stub driver and stub CUDA libraries.

    Each library says its name when it is loaded.
    """
    gcc = shutil.which('gcc') or shutil.which('cc')
    if gcc is None or platform.system() != 'Linux':
        pytest.skip('stub libraries need Linux and a C compiler')
    source = site / 'stub.c'
    source.write_text('#include <stdio.h>\n'
                      '__attribute__((constructor)) static void loaded(void)'
                      '{ puts(NAME); fflush(stdout); }')
    install(site, 'mxnet-cu112')
    targets = [site / 'driver' / 'libcuda.so.1']
    targets += [site / 'nvidia' / library.folder / 'lib' / library.file
                for library in hardware.CUDA_LIBRARIES]
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([gcc, '-shared', '-fPIC', f'-DNAME="{target.name}"',
                        '-o', str(target), str(source)], check=True)
    return site


def test_the_cuda_libraries_load_in_order_from_the_environment(cuda_site):
    done = import_from(cuda_site, LD_LIBRARY_PATH=str(cuda_site / 'driver'))
    assert done.returncode == 0, done.stderr
    # cuBLAS asks for cuBLASLt, cuSOLVER for cuBLAS, cuDNN for both
    assert re.findall(r'^lib(\w+)', done.stdout, re.M) == [
        'cuda', 'cudart', 'nvrtc', 'nvToolsExt', 'cublasLt', 'cublas',
        'cufft', 'curand', 'cusolver', 'nccl', 'cudnn']


def test_mxnet_alone_loads_the_cuda_libraries_too(cuda_site):
    for source, name in mxnet_wheel.ADDED.items():
        (cuda_site / 'mxnet' / name).write_bytes(
            mxnet_wheel.module_bytes(source))
    done = python("""
import os
from mxnet._libraries import libraries_ready
before = dict(os.environ)
with libraries_ready():
    print(os.environ['MXNET_CUDNN_LIB_CHECKING'])
assert dict(os.environ) == before
""", '-S', PYTHONPATH=str(cuda_site),
                  LD_LIBRARY_PATH=str(cuda_site / 'driver'))
    assert done.returncode == 0, done.stderr
    said = re.findall(r'^lib\w+', done.stdout, re.M)
    assert (said[0], said[-1], len(said)) == ('libcuda', 'libcudnn', 11)
    assert '\n0\n' in done.stdout


def test_missing_cuda_libraries_are_named_with_their_wheels(cuda_site):
    for folder in ('nccl', 'cublas'):
        shutil.rmtree(str(cuda_site / 'nvidia' / folder))
    said = refusal(cuda_site, LD_LIBRARY_PATH=str(cuda_site / 'driver'))
    assert 'libcublasLt.so.11, libcublas.so.11, libnccl.so.2' in said
    assert said.endswith('pip install nvidia-cublas-cu11==11.11.3.6 '
                         'nvidia-nccl-cu11==2.21.5')


def test_a_cuda_library_of_the_system_will_do(cuda_site):
    (cuda_site / 'nvidia' / 'nccl' / 'lib' / 'libnccl.so.2').rename(
        cuda_site / 'driver' / 'libnccl.so.2')
    done = import_from(cuda_site, LD_LIBRARY_PATH=str(cuda_site / 'driver'))
    assert done.returncode == 0, done.stderr


def test_a_cuda_library_that_cannot_be_loaded_is_named(cuda_site):
    broken = cuda_site / 'nvidia' / 'cudnn' / 'lib' / 'libcudnn.so.8'
    broken.write_text('half a download')
    said = refusal(cuda_site, LD_LIBRARY_PATH=str(cuda_site / 'driver'))
    assert str(broken) in said
    assert said.endswith('nvidia-cudnn-cu11==8.9.6.50')


def machine(tmp_path, siblings, **files):
    """A root folder with the topology and the control groups of a machine.

    siblings: for each CPU, the hardware threads of its core.
    """
    for cpu, threads in enumerate(siblings):
        folder = tmp_path / f'sys/devices/system/cpu/cpu{cpu}/topology'
        folder.mkdir(parents=True)
        (folder / 'thread_siblings_list').write_text(f'{threads}\n')
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


FOUR_CORES = ['0,4', '1,5', '2,6', '3,7'] * 2


@pytest.mark.parametrize('cpus, cores', [
    (range(8), 4), ([0, 4], 1), ([0, 1, 2], 3), ([3], 1), ([3, 4, 7], 2)])
def test_two_hardware_threads_of_a_core_count_once(tmp_path, cpus, cores):
    root = machine(tmp_path, FOUR_CORES)
    assert hardware.physical_cores(cpus, root) == cores


def test_without_a_topology_each_cpu_is_a_core(tmp_path):
    assert hardware.physical_cores(range(6), str(tmp_path)) == 6


@pytest.mark.parametrize('limit, cores', [
    ('max 100000', 4), ('200000 100000', 2), ('150000 100000', 2),
    ('50000 100000', 1), ('900000 100000', 4), ('', 4)])
def test_a_cpu_quota_limits_the_cores(tmp_path, limit, cores):
    root = machine(tmp_path, FOUR_CORES, **{
        'proc/self/cgroup': '0::/user.slice/a job\n',
        'sys/fs/cgroup/user.slice/cpu.max': f'{limit}\n',
        'sys/fs/cgroup/user.slice/a job/cpu.max': 'max 100000\n'})
    assert hardware.physical_cores(range(8), root) == cores


@pytest.mark.parametrize('files, free', [
    ({}, None), ({'proc/meminfo': 'MemTotal: 9 kB\nMemAvailable: 7 kB\n'},
                 7168),
    ({'proc/meminfo': 'MemAvailable: 7 kB\n',
      'proc/self/cgroup': '0::/\n',
      'sys/fs/cgroup/memory.max': '5000\n',
      'sys/fs/cgroup/memory.current': '2000\n'}, 3000),
    ({'proc/meminfo': 'MemAvailable: 7 kB\n',
      'proc/self/cgroup': '0::/\n',
      'sys/fs/cgroup/memory.max': 'max\n',
      'sys/fs/cgroup/memory.current': '2000\n'}, 7168),
    ({'proc/self/cgroup': '0::/a job\n',       # of which 700 is page cache
      'sys/fs/cgroup/a job/memory.max': '5000\n',
      'sys/fs/cgroup/a job/memory.current': '2000\n',
      'sys/fs/cgroup/a job/memory.stat': 'inactive_anon 9\n'
                                         'inactive_file 700\n'}, 3700),
    ({'proc/self/cgroup': '0::/all/job\n',     # the limit of a parent
      'sys/fs/cgroup/all/job/memory.max': 'max\n',
      'sys/fs/cgroup/all/job/memory.current': '100\n',
      'sys/fs/cgroup/all/memory.max': '5000\n',
      'sys/fs/cgroup/all/memory.current': '4000\n'}, 1000),
    ({'proc/self/cgroup': '4:memory:/docker/1\n3:cpu:/\n0::/\n',
      'sys/fs/cgroup/memory/memory.limit_in_bytes': '900\n',
      'sys/fs/cgroup/memory/memory.usage_in_bytes': '200\n',
      'sys/fs/cgroup/memory/memory.stat': 'inactive_file 5\n'
                                          'total_inactive_file 50\n'},
     750)])
def test_memory_is_limited_by_machine_and_control_groups(tmp_path, files,
                                                         free):
    root = machine(tmp_path, [], **files)
    assert hardware.available_memory(root) == free


@pytest.mark.parametrize('quota, cores', [('-1', 4), ('300000', 3)])
def test_a_cpu_quota_of_the_older_control_groups_counts(
        tmp_path, quota, cores):
    root = machine(tmp_path, FOUR_CORES, **{
        'proc/self/cgroup': '4:memory:/x\n3:cpu,cpuacct:/docker/1\n0::/\n',
        'sys/fs/cgroup/cpu/cpu.cfs_quota_us': f'{quota}\n',
        'sys/fs/cgroup/cpu/cpu.cfs_period_us': '100000\n'})
    assert hardware.physical_cores(range(8), root) == cores
