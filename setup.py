"""Install d2lbert with the build of MXNet that this machine can use.

D2LBERT_MXNET=auto (the default) takes the CUDA build if the NVIDIA driver
shows a GPU that this build has kernels for, else the CPU build.
D2LBERT_MXNET=cpu and D2LBERT_MXNET=cu112 set the build.
"""
import importlib
import os
import platform
import re
import sys
import types
from pathlib import Path

from setuptools import __version__ as setuptools_version
from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent

#: Commands of setuptools whose result names the MXNet of this machine
INSTALL_COMMANDS = {'bdist_wheel', 'develop', 'dist_info', 'editable_wheel',
                    'install'}


def load(name):
    """Import d2lbert.machine.NAME without d2lbert, which imports MXNet."""
    package = types.ModuleType('d2lbert')
    package.__path__ = [str(HERE / 'd2lbert')]
    saved = take_modules()
    sys.modules['d2lbert'] = package
    try:
        return importlib.import_module(f'd2lbert.machine.{name}')
    finally:
        take_modules()
        sys.modules.update(saved)


def take_modules():
    """Remove the modules of d2lbert from sys.modules; return them."""
    return {name: sys.modules.pop(name) for name in list(sys.modules)
            if name.split('.')[0] == 'd2lbert'}


def choose_build(hardware, timeout=30):
    """(build, reason): 'cpu' or 'cu112', and why it was chosen."""
    wanted = os.environ.get('D2LBERT_MXNET', '').strip().lower() or 'auto'
    if wanted not in ('auto', *hardware.WHEELS):
        sys.exit(f'D2LBERT_MXNET is {wanted!r}; it must be cpu, cu112 or '
                 'auto (the default)')
    system = f'{platform.system()} {platform.machine()}'
    if system != 'Linux x86_64':
        if wanted == 'cu112':
            sys.exit('D2LBERT_MXNET is cu112, and that build of MXNet exists '
                     f'for Linux x86_64 only, not for {system}; install with '
                     'D2LBERT_MXNET=cpu')
        needs = (f', which needs OpenBLAS: {hardware.ARM_PACKAGES}'
                 if system == 'Linux aarch64' else '')
        return 'cpu', f'the only one for {system}{needs}'
    if wanted != 'auto':
        return wanted, f'D2LBERT_MXNET={wanted}'
    driver = hardware.probe_driver(timeout)
    for gpu in driver.gpus:
        if gpu.is_usable:
            return 'cu112', (f'GPU {gpu.index} ({gpu.name}) has compute '
                             'capability {}.{}'.format(*gpu.capability))
    return 'cpu', '; '.join(
        [f'GPU {gpu.index} ({gpu.name}) cannot be used: {gpu.reason}'
         for gpu in driver.gpus] or [driver.problem])


def mxnet_projects(timeout=30):
    """MXNet's project, and the requirements of the CUDA libraries it needs."""
    hardware = load('hardware')
    build, reason = choose_build(hardware, timeout)
    print(f'd2lbert: the {build} build of MXNet ({reason})', file=sys.stderr)
    libraries = hardware.CUDA_LIBRARIES if build == 'cu112' else []
    return [hardware.WHEELS[build], *dict.fromkeys(
        library.requirement for library in libraries)]


def requirements():
    """Requirements on this machine; makes MXNet's wheel if there is none."""
    project, *libraries = mxnet_projects()
    wheels = load('mxnet_wheel')
    try:
        wheel = wheels.find_or_make(project)
    except wheels.WheelError as error:
        sys.exit(f'd2lbert: {error}')
    return [f'{project} @ {wheel.as_uri()}', *libraries, *PACKAGES]


def pip_command(parent=None):
    """[sub-command] of the pip that runs this build, or [] if not found.

    parent: the process id of this pip; None: of the parent process.
    """
    try:
        path = Path('/proc', str(parent or os.getppid()), 'cmdline')
        words = os.fsdecode(path.read_bytes()).split('\0')
    except OSError:
        return []
    pips = [k for k, word in enumerate(words) if re.match(
        r'(.*/)?pip[\d.]*$|.*/pip/__(main|pip-runner)__\.py$', word)]
    # Options of pip that come first may have values, as --log FILE
    return [word for k in pips[:1] for word in words[k + 1:]
            if word in ('download', 'install', 'lock', 'wheel')][:1]


def exit_if_wheel_is_kept(folder):
    """Exit unless the wheel built in `folder` is installed here at once.

    It requires MXNet by the path of a file on this machine.
    """
    runs_in_pip = {'PIP_BUILD_TRACKER', 'PIP_REQ_TRACKER'} & set(os.environ)
    if runs_in_pip:
        is_kept = 'wheel' in pip_command()      # else `pip install`
    else:       # uv installs from its cache, a folder with a CACHEDIR.TAG
        is_kept = not any((above / 'CACHEDIR.TAG').exists()
                          for above in Path(folder).resolve().parents)
    if is_kept:
        sys.exit('d2lbert: a built wheel would name the MXNet of this machine '
                 'and could not be installed on another: run python -m build '
                 '--sdist, and install the archive that it makes')


class SourceDistribution(sdist):
    """The source with all that its tests need."""

    def make_distribution(self):
        folders = ('.ci', '.devcontainer', '.github', 'data/sample',
                   'notebooks', 'tests')
        found = [path for folder in folders
                 for path in (HERE / folder).rglob('*')]
        for path in sorted([*found, *HERE.glob('.*')]):
            name = path.relative_to(HERE)
            if path.is_file() and name.name != '.git' and not (
                    {'__pycache__', '.ipynb_checkpoints'} & set(name.parts)):
                self.filelist.append(str(name))
        super().make_distribution()


def version():
    text = (HERE / 'd2lbert' / '_version.py').read_text(encoding='utf-8')
    return re.search("__version__ = '(.+)'", text).group(1)


def readme():
    """README.md for the page of a package index.

    Relative paths lead nowhere there: such pictures are left out, and such
    links become plain text.
    """
    path = HERE / 'README.md'
    text = path.read_text(encoding='utf-8') if path.exists() else ''
    parts = re.split('(^```.*?^```$)', text, flags=re.DOTALL | re.MULTILINE)
    for k in range(0, len(parts), 2):   # between blocks of code
        parts[k] = re.sub(r'!\[[^]]*\]\((?!https?:)[^)]*\)\n*', '', parts[k])
        parts[k] = re.sub(r'\[([^]]*)\]\((?!https?:)[^)]*\)', r'\1', parts[k])
    return ''.join(parts)


def license_keyword():
    """{keyword: license}; setuptools 77 renamed the keyword."""
    is_renamed = int(setuptools_version.split('.')[0]) >= 77
    return {'license_expression' if is_renamed else 'license': 'MIT'}


PYARROW = 'pyarrow>=8,<30'
PRETRAINED = ['safetensors>=0.3,<1',
              # Later versions have no wheel for Python 3.8
              'tokenizers>=0.14,<0.21; python_version < "3.9"',
              'tokenizers>=0.14,<1; python_version >= "3.9"']
PUNKT = ['nltk>=3.8,<4']
ZSTD = ['zstandard>=0.19,<1']
KERNEL = ['ipykernel>=6,<8', 'nbformat>=5.1,<6']
PACKAGES = ['numpy>=1.17', 'matplotlib>=3.5,<4', 'tqdm>=4.57,<5']


def extras():
    """{NAME: what `pip install '.[NAME]'` adds}."""
    for_users = {
        'notebook': [*KERNEL, 'notebook>=6,<8', 'pandas>=1.1,<4', PYARROW,
                     *PRETRAINED, *PUNKT,
                     'matplotlib>=3.7,<4'],     # legends outside the axes
        'parquet': [PYARROW],
        'pretrained': PRETRAINED,
        'punkt': PUNKT,
        'zstd': ZSTD,
    }
    return {
        **for_users,
        'all': sorted({package for packages in for_users.values()
                       for package in packages}),
        'browser': ['selenium>=4.10,<5'],
        'test': [*KERNEL, *PRETRAINED, *PUNKT, *ZSTD, PYARROW,
                 'nbclient>=0.6,<1', 'pytest>=7,<10', 'pytest-xdist>=3,<4',
                 'setuptools>=61'],
    }


if __name__ == '__main__':
    if 'bdist_wheel' in sys.argv:
        exit_if_wheel_is_kept(next(
            (value for option, value in zip(sys.argv, sys.argv[1:])
             if option in ('--dist-dir', '-d')), 'dist'))
    setup(
        name='d2lbert',
        version=version(),
        description="The BERT chapter of 'Dive into Deep Learning' in MXNet",
        long_description=readme(),
        long_description_content_type='text/markdown',
        author='d2lbert authors',
        **license_keyword(),
        license_files=['LICENSE'],
        keywords=['BERT', 'MXNet', 'Gluon', 'Dive into Deep Learning',
                  'pretraining', 'sentence embeddings'],
        classifiers=[
            'Development Status :: 5 - Production/Stable',
            'Intended Audience :: Education',
            'Intended Audience :: Science/Research',
            'Operating System :: MacOS :: MacOS X',
            'Operating System :: POSIX :: Linux',
            'Programming Language :: C++',
            'Programming Language :: Python :: 3',
            *(f'Programming Language :: Python :: 3.{minor}'
              for minor in range(8, 15)),
            'Programming Language :: Python :: Implementation :: CPython',
            'Topic :: Scientific/Engineering :: Artificial Intelligence',
            'Topic :: Text Processing :: Linguistic',
        ],
        cmdclass={'sdist': SourceDistribution},
        packages=[*find_packages(include=['d2lbert', 'd2lbert.*']),
                  'd2lbert.sample'],
        package_dir={'d2lbert.sample': 'data/sample'},
        package_data={'d2lbert': ['manual/*.md', '*.pyi', 'py.typed'],
                      'd2lbert.kernels': ['*.cc', '*.h'],
                      'd2lbert.pictures': ['*.html', '*.css', '*.js'],
                      'd2lbert.sample': ['*']},
        python_requires='>=3.8',
        install_requires=(requirements() if INSTALL_COMMANDS & set(sys.argv)
                          else PACKAGES),
        extras_require=extras(),
        entry_points={
            'console_scripts': ['d2lbert = d2lbert.__main__:main']},
        zip_safe=False,
    )
