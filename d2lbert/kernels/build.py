"""C++ compiled once, at first use, into the user's cache.

A library is taken from the cache only if nobody else can have written it
and its content has the digest that lies beside it: a library that lost its
end would take the process down with it.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import shutil
import stat
import subprocess
import tempfile

from d2lbert.kernels import instruction_sets
from d2lbert.machine import cache
from d2lbert.machine.files import locked
from d2lbert.machine.terminal import warn

# NaN and infinity keep their meaning: no -ffast-math.
FLAGS = ['-std=c++17', '-O3', '-fopenmp', '-fPIC', '-fno-math-errno',
         '-fno-trapping-math', '-ffp-contract=fast']


class BuildError(RuntimeError):
    """The reason, in one sentence, why there is no compiled library."""


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
    from d2lbert.machine.backend import (
        mx,  # a library without MXNet needs none of it
    )
    root = pathlib.Path(mx.__file__).parent
    include, source = root / 'include', root / 'src' / 'lib_api.cc'
    if not source.exists() or not (include / 'mxnet' / 'lib_api.h').exists():
        raise BuildError(f'MXNet {mx.__version__} in {root} comes without '
                         f'its extension interface (src/lib_api.cc)')
    return include, source, mx.__version__


# A compiler's own children outlive it. So each command has a process group
# of its own, and in it a watcher who kills the group when standard input
# ends: this process holds the other end, and does not even have to notice
# that it is killed.
GUARD = '''\
exec 3<&0 </dev/null
{ read -r end <&3; kill -9 0; } >/dev/null 2>&1 &
exec 3<&-
"$@"
status=$?
{ kill -9 $!; wait $!; } 2>/dev/null
exit $status
'''


def library(name, sources, mxnet=False, what='', takes='a few seconds',
            compiling=True, options=()):
    """The path of a shared library, compiled if no earlier call did.

    name: the start of the file's name; sources: paths of C++ files, whose
    folders' headers (*.h) count as sources too; mxnet: build against
    MXNet's extension interface; what, takes: what it is and how long that
    takes, for the line that says that it is being compiled; compiling:
    whether to do that at all, or to return None for a library that is not
    there; options: more of the compiler's options. Raises BuildError where
    there is no compiler or it refuses the source, or no folder that can be
    trusted.
    """
    command, sources, name = _recipe(name, sources, mxnet, options)
    try:
        folder = cache.folder('kernels')
    except OSError as error:
        raise BuildError(str(error)) from error
    target = folder / name
    if not _is_sound(target) and not compiling:
        return None
    if not _is_sound(target):
        with locked(folder / 'build.lock', waiting=lambda: say(
                'waiting for another process that compiles')) as alone:
            if alone:       # whoever was at work here is no more
                for stale in folder.glob('.*.part'):
                    shutil.rmtree(stale, ignore_errors=True)
            if not _is_sound(target):   # another process may have built it
                say(f'compiling {what or name}, once: {takes} ...')
                _compile(command, sources, target)
        if not _is_sound(target):
            raise BuildError(f'{target} is not what was just written to it: '
                             'is the disk full or failing?')
    cache.used(target)
    return target


@contextlib.contextmanager
def held(library):
    """Yield a path by which the library that was checked is opened.

    It goes through the open folder, in which only this user and root can
    write, so no other library can come by that name meanwhile. Raises
    BuildError if it is no longer what was checked.
    """
    try:
        folder = os.open(library.parent, os.O_RDONLY)
    except OSError as error:
        raise BuildError(f'{library.parent} cannot be read '
                         f'({error.strerror})') from error
    try:
        path = pathlib.Path(f'/proc/self/fd/{folder}', library.name)
        if not path.exists():   # not Linux
            path = library
        if not (cache.is_trusted(os.fstat(folder)) and _is_sound(path)):
            raise BuildError(f'{library} was changed while it was opened: '
                             'try again')
        yield path
    finally:
        os.close(folder)


def say(line):
    """Print a line on standard error, even before a minute of silence."""
    warn(f'd2lbert: {line}')


def _recipe(name, sources, mxnet, options=()):
    """Compiler command, all sources, and a file name that tells of both."""
    sources = [pathlib.Path(source) for source in sources]
    command, version = _compiler()
    flags = [*instruction_sets.flags(), *FLAGS, *options]
    key = hashlib.sha256()
    texts = list(sources)
    for folder in sorted({source.parent for source in sources}):
        texts += sorted(folder.glob('*.h'))
    for part in [*command, version, _cpu(), *flags]:
        key.update(os.fsencode(part) + b'\0')
    if mxnet:
        include, interface, release = _mxnet_parts()
        flags.append(f'-I{include}')
        key.update(release.encode() + b'\0')
        sources.append(interface)
        texts += [interface, include / 'mxnet' / 'lib_api.h']
    for text in texts:
        key.update(text.name.encode() + b'\0' + text.read_bytes())
    return [*command, *flags], sources, f'{name}-{key.hexdigest()[:16]}.so'


def _digest_file(library):
    return library.with_name(library.name + '.sha256')


def _is_sound(library):
    """Whether a library is there, as it was written and by whom we trust."""
    try:
        with open(library, 'rb') as file:
            found = os.fstat(file.fileno())
            return (stat.S_ISREG(found.st_mode) and cache.is_trusted(found)
                    and _sha256(file) == _digest_file(library).read_text())
    except (OSError, ValueError):
        return False


def _sha256(file):
    return hashlib.sha256(file.read()).hexdigest()


def _compile(command, sources, target):
    try:
        work = tempfile.TemporaryDirectory(
            prefix=f'.{target.stem}-', suffix='.part', dir=target.parent)
    except OSError as error:
        raise BuildError(f'nothing can be written to {target.parent} '
                         f'({error.strerror}): set D2LBERT_CACHE to a '
                         f'folder you can write') from error
    with work as folder:
        objects = [os.path.join(folder, f'{i}.o')
                   for i in range(len(sources))]
        _run([[*command, '-c', str(source), '-o', made]
              for source, made in zip(sources, objects)], sources, folder)
        whole = pathlib.Path(folder, target.name)
        _run([[*command, '-shared', *objects, '-o', str(whole)]], [target],
             folder)
        try:
            _put(whole, target)
        except OSError as error:
            raise BuildError(f'{target} cannot be written '
                             f'({error.strerror})') from error


def _put(whole, target):
    """Let a library and its digest take their places, each whole."""
    digest = _digest_file(whole)
    with open(whole, 'rb') as file:
        digest.write_text(_sha256(file))
    # A common umask would let the user's group write
    whole.chmod(stat.S_IMODE(whole.stat().st_mode) & ~0o022)
    os.replace(whole, target)
    os.replace(digest, _digest_file(target))


def _run(commands, subjects, folder):
    """Runs commands side by side; the first that fails is the error.

    None of them outlives this call, or this process. folder: for their
    temporary files.
    """
    env = dict(os.environ, TMPDIR=folder, LC_ALL='C')
    watched, held = os.pipe()
    running = []
    try:
        for command in commands:
            running.append(subprocess.Popen(
                ['/bin/sh', '-c', GUARD, 'sh', *command], stdin=watched,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                start_new_session=True))
        said = [process.communicate()[0] for process in running]
    finally:
        os.close(watched)
        os.close(held)
        for process in running:
            with contextlib.closing(process.stdout):
                process.wait()
    for command, process, output, subject in zip(commands, running, said,
                                                 subjects):
        if process.returncode:
            raise BuildError(f'{command[0]} cannot build {subject.name}: '
                             f'{_first_error(process, output)}')


def _first_error(process, output):
    lines = output.decode(errors='replace').strip().splitlines()
    for line in lines:
        if 'error' in line:
            return line.strip()
    return lines[0].strip() if lines else f'exit {process.returncode}'
