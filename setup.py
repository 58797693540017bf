"""Install d2lbert with the build of MXNet that this machine can use.

D2LBERT_MXNET=auto (the default) takes the CUDA build where the NVIDIA
driver shows a GPU that it has kernels for, and the CPU build elsewhere;
D2LBERT_MXNET=cpu and D2LBERT_MXNET=cu112 choose outright.
"""
import importlib.util
import os
import platform
import re
import sys
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent


def load_machine():
    """The module alone: the package needs what is not here yet."""
    spec = importlib.util.spec_from_file_location(
        '_d2lbert_machine',
        str(HERE / 'd2lbert' / 'machine' / 'hardware.py'))
    machine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(machine)
    return machine


def choose_build(machine, timeout=30):
    """(build, reason): 'cpu' or 'cu112', and why it was chosen."""
    wanted = os.environ.get('D2LBERT_MXNET', '').strip().lower() or 'auto'
    if wanted not in ('auto', *machine.WHEELS):
        sys.exit(f'D2LBERT_MXNET is {wanted!r}; it must be cpu, cu112 or '
                 'auto (the default)')
    system = f'{platform.system()} {platform.machine()}'
    if system != 'Linux x86_64':
        if wanted == 'cu112':
            sys.exit('D2LBERT_MXNET is cu112, and that build of MXNet exists '
                     f'for Linux x86_64 only, not for {system}; install with '
                     'D2LBERT_MXNET=cpu')
        needs = (f', which needs OpenBLAS: {machine.ARM_PACKAGES}'
                 if system == 'Linux aarch64' else '')
        return 'cpu', f'the only one for {system}{needs}'
    if wanted != 'auto':
        return wanted, f'D2LBERT_MXNET={wanted}'
    driver = machine.probe_driver(timeout)
    for gpu in driver.gpus:
        if gpu.usable:
            return 'cu112', (f'GPU {gpu.index} ({gpu.name}) has compute '
                             'capability {}.{}'.format(*gpu.capability))
    return 'cpu', '; '.join(
        [f'GPU {gpu.index} ({gpu.name}) cannot be used: {gpu.reason}'
         for gpu in driver.gpus] or [driver.problem])


def mxnet_requirements(timeout=30):
    """The wheels to install for MXNet, said in one line on stderr."""
    machine = load_machine()
    build, reason = choose_build(machine, timeout)
    print(f'd2lbert: the {build} build of MXNet ({reason})', file=sys.stderr)
    requirements = [f'{machine.WHEELS[build]}=={machine.MXNET_VERSION}']
    if build == 'cu112':
        for library in machine.CUDA_LIBRARIES:
            if library.requirement not in requirements:
                requirements.append(library.requirement)
    return requirements


def requirements():
    """Everything that d2lbert needs to run on this machine."""
    if sys.version_info >= (3, 13):
        # MXNet 1.9.1 works with no NumPy that has wheels for it. pip would
        # compile one before it gets to python_requires below.
        return []
    return [
        *mxnet_requirements(),
        # Up to 3.11, NumPy 1.23 still has the names that MXNet uses; 3.12
        # has no such NumPy, and d2lbert/machine/backend.py fills the gap
        "numpy>=1.17,<1.24; python_version < '3.12'",
        "numpy>=1.26,<2; python_version >= '3.12'",
        # MXNet imports distutils, which left CPython in 3.12
        "setuptools<90; python_version >= '3.12'",
        'matplotlib>=3.7,<4',
        'tqdm>=4.57,<5',
    ]


def version():
    text = (HERE / 'd2lbert' / '_version.py').read_text(encoding='utf-8')
    return re.search("__version__ = '(.+)'", text).group(1)


def readme():
    """README.md as the page of a package index can show it.

    There is no address that its pictures and relative links could lead to
    from there: pictures are left out, and of links the text is kept.
    """
    path = HERE / 'README.md'
    text = path.read_text(encoding='utf-8') if path.exists() else ''
    parts = re.split('(^```.*?^```$)', text, flags=re.DOTALL | re.MULTILINE)
    for k in range(0, len(parts), 2):   # between blocks of code
        parts[k] = re.sub(r'!\[[^]]*\]\((?!https?:)[^)]*\)\n*', '', parts[k])
        parts[k] = re.sub(r'\[([^]]*)\]\((?!https?:)[^)]*\)', r'\1', parts[k])
    return ''.join(parts)


if __name__ == '__main__':
    setup(
        name='d2lbert',
        version=version(),
        description="The BERT chapter of 'Dive into Deep Learning' in MXNet",
        long_description=readme(),
        long_description_content_type='text/markdown',
        author='d2lbert authors',
        license='MIT',
        packages=[*find_packages(include=['d2lbert', 'd2lbert.*']),
                  'd2lbert.sample'],
        package_dir={'d2lbert.sample': 'data/sample'},
        package_data={'d2lbert.kernels': ['*.cc', '*.h'],
                      'd2lbert.pictures': ['*.html', '*.css', '*.js'],
                      'd2lbert.sample': ['*']},
        python_requires='>=3.8,<3.13',
        install_requires=requirements(),
        extras_require={
            'browser': ['selenium>=4.10,<5'],
            'notebook': ['ipykernel>=6,<8', 'nbformat>=5.1,<6',
                         'notebook>=6,<8'],
            # Later ones need NumPy 2
            'parquet': ["pyarrow>=8,<18; python_version < '3.13'",
                        "pyarrow>=18,<30; python_version >= '3.13'"],
            'pretrained': ['safetensors>=0.3,<1', 'tokenizers>=0.13,<1'],
            'punkt': ['nltk>=3.8,<4'],
            'test': ['ipykernel>=6,<8', 'nbclient>=0.6,<1',
                     'nbformat>=5.1,<6', 'nltk>=3.8,<4', 'pytest>=7,<10',
                     'pytest-xdist>=3,<4', 'safetensors>=0.3,<1',
                     'tokenizers>=0.13,<1'],
            'zstd': ['zstandard>=0.19,<1'],
        },
        entry_points={
            'console_scripts': ['d2lbert = d2lbert.__main__:main']},
        zip_safe=False,
    )
