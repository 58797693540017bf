"""C++ compiled once, at first use, into the user's cache."""

import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

# NaN and infinity keep their meaning: no -ffast-math.
FLAGS = ['-std=c++17', '-O3', '-march=native', '-fopenmp', '-fPIC',
         '-fno-math-errno', '-fno-trapping-math', '-ffp-contract=fast']


class BuildError(RuntimeError):
    """The reason, in one sentence, why there is no compiled library."""


def cache_dir():
    """The folder of compiled libraries, created when it is missing."""
    root = os.environ.get('D2LBERT_CACHE')
    if not root or root == 'off':       # compiled code has to lie somewhere
        base = os.environ.get('XDG_CACHE_HOME') or os.path.join(
            os.path.expanduser('~'), '.cache')
        root = os.path.join(base, 'd2lbert')
    folder = pathlib.Path(root) / 'kernels'
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f'the cache folder {folder} cannot be created '
                         f'({error.strerror}): set D2LBERT_CACHE to a '
                         f'folder you can write') from error
    return folder


def _compiler():
    """The command of the C++ compiler and its version line."""
    names = [os.environ['CXX']] if os.environ.get('CXX') else ['g++', 'c++']
    for name in names:
        command = name.split()  # CXX may carry a launcher: 'ccache g++'
        if command and shutil.which(command[0]):
            done = subprocess.run(command + ['--version'],
                                  stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            text = done.stdout.decode(errors='replace').strip()
            if done.returncode == 0 and text:
                return command, text.splitlines()[0]
    raise BuildError(f'no C++ compiler found as {" or ".join(names)}: '
                     f'install g++ or name one in CXX')


def _cpu():
    """What -march=native depends on: the processor's own feature list."""
    try:
        with open('/proc/cpuinfo') as info:
            for line in info:
                if line.startswith(('flags', 'Features')):
                    return line
    except OSError:
        pass
    return f'{platform.machine()} {platform.processor()}'


def _mxnet_parts():
    """Include folder, interface source and version of MXNet at hand."""
    from d2lbert._mxnet import mx  # a library without MXNet needs none of it
    root = pathlib.Path(mx.__file__).parent
    include, source = root / 'include', root / 'src' / 'lib_api.cc'
    if not source.exists() or not (include / 'mxnet' / 'lib_api.h').exists():
        raise BuildError(f'MXNet {mx.__version__} in {root} comes without '
                         f'its extension interface (src/lib_api.cc)')
    return include, source, mx.__version__


def library(name, sources, mxnet=False):
    """The path of a shared library, compiled if no earlier call did.

    name: the start of the file's name; sources: paths of C++ files, whose
    folders' headers (*.h) count as sources too; mxnet: build against
    MXNet's extension interface. Raises BuildError where there is no
    compiler or it refuses the source.
    """
    sources = [pathlib.Path(source) for source in sources]
    command, version = _compiler()
    flags = list(FLAGS)
    key = hashlib.sha256()
    texts = list(sources)
    for folder in sorted({source.parent for source in sources}):
        texts += sorted(folder.glob('*.h'))
    for part in [*command, version, _cpu(), *flags]:
        key.update(part.encode() + b'\0')
    if mxnet:
        include, interface, release = _mxnet_parts()
        flags.append(f'-I{include}')
        key.update(release.encode() + b'\0')
        sources.append(interface)
        texts += [interface, include / 'mxnet' / 'lib_api.h']
    for text in texts:
        key.update(text.name.encode() + b'\0' + text.read_bytes())
    folder = cache_dir()
    target = folder / f'{name}-{key.hexdigest()[:16]}.so'
    if not target.exists():
        with _Lock(target.with_suffix('.lock')):
            if not target.exists():  # another process may have built it
                _compile([*command, *flags], sources, target)
    return target


def _compile(command, sources, target):
    try:
        work = tempfile.TemporaryDirectory(prefix=f'{target.stem}-',
                                           dir=target.parent)
    except OSError as error:
        raise BuildError(f'nothing can be written to {target.parent} '
                         f'({error.strerror}): set D2LBERT_CACHE to a '
                         f'folder you can write') from error
    with work as folder:
        objects = [os.path.join(folder, f'{i}.o')
                   for i in range(len(sources))]
        _run([[*command, '-c', str(source), '-o', made]
              for source, made in zip(sources, objects)], sources)
        whole = os.path.join(folder, target.name)
        _run([[*command, '-shared', *objects, '-o', whole]], [target])
        # A reader sees the whole file or none, whoever else is building.
        os.replace(whole, target)


def _run(commands, subjects):
    """Runs commands side by side; the first that fails is the error."""
    running = [subprocess.Popen(command, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)
               for command in commands]
    said = [process.communicate()[0] for process in running]
    for process, output, subject in zip(running, said, subjects):
        if process.returncode:
            raise BuildError(f'{process.args[0]} cannot build '
                             f'{subject.name}: '
                             f'{_first_error(process, output)}')


def _first_error(process, output):
    lines = output.decode(errors='replace').strip().splitlines()
    for line in lines:
        if 'error' in line:
            return line.strip()
    return lines[0].strip() if lines else f'exit {process.returncode}'


class _Lock:
    """Keeps a second process waiting rather than compiling the same.

    Only a courtesy (file systems without locks do without): the rename in
    `_compile` is what keeps the library whole.
    """

    def __init__(self, path):
        self.path, self.file = path, None

    def __enter__(self):
        try:
            self.file = open(self.path, 'w')
            if fcntl:
                fcntl.flock(self.file, fcntl.LOCK_EX)
        except OSError:
            pass
        return self

    def __exit__(self, *exception):
        if self.file:
            self.file.close()
