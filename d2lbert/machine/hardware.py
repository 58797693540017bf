"""Find the GPUs, the CPU cores, the free memory, and the installed MXNet.

This module imports only the standard library. setup.py runs it before MXNet
and NumPy are installed, `mxnet_wheel.py` copies it into MXNet's package, and
`launch/guard.py` executes its source on the hosts of workers.
"""
import contextlib
import ctypes
import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

MXNET_VERSION = '1.9.1'
#: {build of MXNet: name of its wheel}; cu112 is the build for CUDA 11.2.
WHEELS = {'cpu': 'mxnet', 'cu112': 'mxnet-cu112'}
# Installs OpenBLAS and LAPACKE for the Arm wheel; see mxnet_libraries.load_arm
ARM_PACKAGES = 'apt-get install libopenblas0 liblapacke (Debian and Ubuntu)'
# mxnet-cu112 contains machine code for compute capabilities 5.0, 6.0, 7.0,
# 8.0 and 8.6, and no PTX code. Machine code runs only on GPUs with the same
# major version and the same or a higher minor version
FIRST_CAPABILITY, LAST_CAPABILITY = (5, 0), (8, 9)
OLDEST_CUDA = (11, 0)  # a driver for 11.0 also runs programs for a later 11.x


class CudaLibrary(NamedTuple):
    """A library that mxnet-cu112 links, and the wheel that contains it."""

    folder: str  # nvidia/<folder>/lib/<file> in site-packages
    file: str
    requirement: str


# In loading order: a library comes before the libraries that link it
CUDA_LIBRARIES = [CudaLibrary(*row) for row in (
    ('cuda_runtime', 'libcudart.so.11.0',
     'nvidia-cuda-runtime-cu11==11.8.89'),
    ('cuda_nvrtc', 'libnvrtc.so.11.2', 'nvidia-cuda-nvrtc-cu11==11.8.89'),
    ('nvtx', 'libnvToolsExt.so.1', 'nvidia-nvtx-cu11==11.8.86'),
    ('cublas', 'libcublasLt.so.11', 'nvidia-cublas-cu11==11.11.3.6'),
    ('cublas', 'libcublas.so.11', 'nvidia-cublas-cu11==11.11.3.6'),
    ('cufft', 'libcufft.so.10', 'nvidia-cufft-cu11==10.9.0.58'),
    ('curand', 'libcurand.so.10', 'nvidia-curand-cu11==10.3.0.86'),
    ('cusolver', 'libcusolver.so.11', 'nvidia-cusolver-cu11==11.4.1.48'),
    ('nccl', 'libnccl.so.2', 'nvidia-nccl-cu11==2.21.5'),
    ('cudnn', 'libcudnn.so.8', 'nvidia-cudnn-cu11==8.9.6.50'),
)]


class Gpu(NamedTuple):
    """One GPU; index: the GPU's number in the driver."""

    index: int
    name: str
    capability: Tuple[int, int]     # (major, minor); (0, 0): unknown
    is_usable: bool     # True if mxnet-cu112, installed or not, can use it
    reason: str         # why it is not usable, or ''


class Driver(NamedTuple):
    """The NVIDIA driver and its GPUs."""

    cuda: Optional[Tuple[int, int]]  # the newest supported; None: unknown
    gpus: List[Gpu]
    problem: str  # why there is no GPU, or ''


NO_DRIVER = 'no NVIDIA driver (libcuda.so.1)'
NO_GPU = 'the NVIDIA driver shows no GPU to this process'
_LINE_START = 'd2lbert driver: '  # libcuda may print other lines


def _print_driver():
    """Print one line about the driver, which `probe_driver` parses."""
    version, gpus, problem = 0, [], ''
    count = ctypes.c_int()

    def call(function_name, *args):
        code = getattr(libcuda, function_name)(*args)
        if code:
            raise OSError(code, f'{function_name} returned an error')

    def try_call(function_name, *args):
        try:
            call(function_name, *args)
        except (AttributeError, OSError):
            return False
        return True

    def query(function_name, *args):
        value = ctypes.c_int()
        is_stored = try_call(function_name, ctypes.byref(value), *args)
        return value.value if is_stored else 0

    try:
        libcuda = ctypes.CDLL('libcuda.so.1')
        call('cuInit', 0)
        call('cuDeviceGetCount', ctypes.byref(count))
        version = query('cuDriverGetVersion')
        for index in range(count.value):
            device, name = ctypes.c_int(), ctypes.create_string_buffer(128)
            if not try_call('cuDeviceGet', ctypes.byref(device), index):
                gpus.append(['', [0, 0]])       # unknown name and capability
                continue
            try_call('cuDeviceGetName', name, 127, device)
            # Attributes 75 and 76: compute capability, major and minor
            gpus.append([name.value.decode('utf-8', 'replace'), [
                query('cuDeviceGetAttribute', attribute, device)
                for attribute in (75, 76)]])
        if not gpus:
            problem = NO_GPU
    except (AttributeError, OSError) as error:
        problem = f'libcuda.so.1 does not work: {error}'
        if 'libcuda.so.1: cannot open' in problem:
            problem = NO_DRIVER
        elif getattr(error, 'errno', None) == 100:  # CUDA_ERROR_NO_DEVICE
            problem = NO_GPU
    answer = {'version': version, 'gpus': gpus, 'problem': problem}
    print(_LINE_START + json.dumps(answer), flush=True)


def _unusable_reason(capability, driver_cuda):
    """The reason why mxnet-cu112 cannot use a GPU, or ''."""
    major, minor = capability
    if not major:
        return 'the driver does not return its compute capability'
    if not FIRST_CAPABILITY <= capability <= LAST_CAPABILITY:
        return (f'it has compute capability {major}.{minor}, and MXNet '
                f'{MXNET_VERSION} runs only on {FIRST_CAPABILITY[0]}.'
                f'{FIRST_CAPABILITY[1]} to {LAST_CAPABILITY[0]}.'
                f'{LAST_CAPABILITY[1]}')
    if driver_cuda is not None and driver_cuda < OLDEST_CUDA:
        return (f'its driver supports CUDA up to {driver_cuda[0]}.'
                f'{driver_cuda[1]}, and MXNet {MXNET_VERSION} needs a driver '
                f'for {OLDEST_CUDA[0]}.{OLDEST_CUDA[1]} or newer')
    return ''


def probe_driver(timeout=30):
    """Ask libcuda.so.1 for its GPUs; return a `Driver`, even on failure.

    A separate process loads the library, because a stub library or a partly
    updated driver may crash, or hang for more than `timeout` seconds.
    """
    if not sys.platform.startswith('linux') or not sys.executable:
        return Driver(None, [], NO_DRIVER)
    # -I and -S: do not import modules from this folder or from site-packages
    process = subprocess.Popen(
        [sys.executable, '-I', '-S', os.path.abspath(__file__)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL)
    try:
        output = process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            pass  # stuck in the kernel: even SIGKILL does not end it
        return Driver(None, [], 'libcuda.so.1 does not work: no answer in '
                                f'{timeout} seconds')
    lines = [line for line in output.decode('utf-8', 'replace').splitlines()
             if line.startswith(_LINE_START)]
    if not lines:
        return Driver(None, [], 'libcuda.so.1 does not work: the process '
                                'that loads it ended with status '
                                f'{process.returncode}')
    answer = json.loads(lines[0][len(_LINE_START):])
    version = answer['version']     # 11020 for CUDA 11.2; 0 if unknown
    cuda = (version // 1000, version % 1000 // 10) if version else None
    gpus = []
    for index, (name, capability) in enumerate(answer['gpus']):
        reason = _unusable_reason(tuple(capability), cuda)
        gpus.append(Gpu(index, name or 'NVIDIA GPU', tuple(capability),
                        not reason, reason))
    return Driver(cuda, gpus, answer['problem'])


@functools.lru_cache(maxsize=None)
def driver():
    return probe_driver()


def gpus():
    """The GPUs that the NVIDIA driver shows this process."""
    return list(driver().gpus)


def mxnet_folders():
    """The folders of the package mxnet that an import would find: a list.

    Files may be missing: to uninstall one of MXNet's wheels removes the files
    of the other, too.
    """
    spec = importlib.util.find_spec('mxnet')
    if spec is None:
        return []
    return [Path(folder) for folder in spec.submodule_search_locations or ()]


def mxnet_wheels():
    """{wheel: version} of the installed wheels of the package mxnet."""
    import_sites = {folder.resolve().parent for folder in mxnet_folders()}
    found = {}
    for wheel in WHEELS.values():
        try:
            distribution = metadata.distribution(wheel)
        except metadata.PackageNotFoundError:
            continue
        wheel_site = Path(str(distribution.locate_file(''))).resolve()
        # A wheel in another folder of sys.path is never imported. If there is
        # no folder mxnet, any wheel may be the one that lost it
        if not import_sites or wheel_site in import_sites:
            found[wheel] = distribution.version
    return found


def build():
    """The installed build of MXNet, 'cpu' or 'cu112'; 'cpu' without MXNet."""
    return 'cu112' if WHEELS['cu112'] in mxnet_wheels() else 'cpu'


def cuda_libraries():
    """[(file name, path or None if missing)] for CUDA_LIBRARIES."""
    spec = importlib.util.find_spec('nvidia')
    roots = spec.submodule_search_locations if spec else ()
    files_and_paths = []
    for library in CUDA_LIBRARIES:
        paths = [os.path.join(root, library.folder, 'lib', library.file)
                 for root in roots]
        files_and_paths.append((library.file,
                                next(filter(os.path.exists, paths), None)))
    return files_and_paths


def _control_groups(root, controller):
    """Yield (folder, is_version_1) for the control groups of this process.

    Parent groups are included, since their limits apply, too. controller:
    'cpu' or 'memory'. root: the folder that contains proc and sys, / except in
    tests.
    """
    try:
        lines = Path(root, 'proc/self/cgroup').read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(':', 2)
        # Only version 2 of control groups has a line without controllers
        is_version_1 = bool(controllers)
        if is_version_1 and controller not in controllers.split(','):
            continue
        mount = Path(root, 'sys/fs/cgroup', controller if is_version_1 else '')
        path = Path(group.lstrip('/'))
        for folder in [path, *path.parents]:
            yield mount / folder, is_version_1


def _cpu_quota(root):
    """The CPU quota of the control groups, such as 1.5 CPUs; None: no quota.

    root: as in `_control_groups`.
    """
    quotas = []     # in CPUs
    for folder, is_version_1 in _control_groups(root, 'cpu'):
        names = (['cpu.cfs_quota_us', 'cpu.cfs_period_us'] if is_version_1
                 else ['cpu.max'])
        # A missing file means no quota
        with contextlib.suppress(OSError, ValueError):
            cpu_time, period = ''.join(     # both in microseconds
                (folder / name).read_text() for name in names).split()
            # Without a quota, `cpu_time` is 'max' or '-1': not only digits
            if cpu_time.isdigit() and period.isdigit() and int(period):
                quotas.append(int(cpu_time) / int(period))
    return min(quotas) if quotas else None


def _page_cache(folder, is_version_1):
    """The bytes of a control group that the system frees when it needs them.

    They are mostly contents of files that were read. The group's used memory
    includes them.
    """
    name = 'total_inactive_file' if is_version_1 else 'inactive_file'
    with contextlib.suppress(OSError, ValueError):
        lines = (folder / 'memory.stat').read_text().splitlines()
        return int(dict(line.split() for line in lines).get(name, 0))
    return 0


def available_memory(root='/'):
    """The free memory in bytes; None: unknown.

    root: as in `_control_groups`.
    """
    free = []       # bytes that the system and each control group allow
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(root, 'proc/meminfo').read_text().splitlines():
            if line.startswith('MemAvailable:'):
                free.append(1024 * int(line.split()[1]))
    for folder, is_version_1 in _control_groups(root, 'memory'):
        names = (('memory.limit_in_bytes', 'memory.usage_in_bytes')
                 if is_version_1 else ('memory.max', 'memory.current'))
        # The text 'max' (a ValueError) or a missing file means no limit
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((folder / name).read_text()) for name in names)
            free.append(limit - used + _page_cache(folder, is_version_1))
    return min(free) if free else None


def require_memory(num_bytes, activity, remedy):
    """Raise ValueError if `num_bytes` exceeds the available memory."""
    free = available_memory()
    if free is not None and num_bytes > free:
        raise ValueError(f'{activity} takes {num_bytes / 2 ** 30:.1f} GiB of '
                         f'memory, and {free / 2 ** 30:.1f} GiB are free: '
                         f'{remedy}')


def available_cpus():
    """A sorted list of the CPUs that this process may run on."""
    if hasattr(os, 'sched_getaffinity'):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores(cpus=None, root='/'):
    """The number of cores that the CPUs belong to, at least 1.

    cpus: indices of CPUs; None for all available CPUs. The CPUs of a core, its
    hardware threads, count once, because they share its arithmetic units. The
    CPU quota of a container, rounded up, is an upper bound. root: as in
    `_control_groups`.
    """
    cpus = available_cpus() if cpus is None else cpus
    cores = set()       # for each core, the list of its threads as a text
    for cpu in cpus:
        topology = Path(root, f'sys/devices/system/cpu/cpu{cpu}/topology')
        try:
            cores.add((topology / 'thread_siblings_list').read_text())
        except OSError:
            cores.add(cpu)      # unknown: count the CPU as a core
    quota = _cpu_quota(root)
    if quota is not None:
        return max(1, min(len(cores), math.ceil(quota)))
    return max(1, len(cores))


if __name__ == '__main__':
    _print_driver()
