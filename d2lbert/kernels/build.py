"""Compile C++ once, at first use, into the user's cache.

A library is loaded from the cache only if no other user can have written it
and its content has the digest in the file beside it. A truncated library would
end the process.
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile

from d2lbert.machine import cache
from d2lbert.machine.files import locked
from d2lbert.machine.processor import find_compiler, find_processor, set_flags
from d2lbert.machine.terminal import warn

# NaN and infinity keep their meaning: no -ffast-math.
FLAGS = ['-std=c++17', '-O3', '-fopenmp', '-fPIC', '-fno-math-errno',
         '-fno-trapping-math', '-ffp-contract=fast']


class BuildError(RuntimeError):
    """The reason, in one sentence, why there is no compiled library."""


def compiler():
    """The command of the C++ compiler and its version line.

    Raises BuildError if there is none.
    """
    try:
        return find_compiler()
    except LookupError as error:
        raise BuildError(f'no C++ compiler found as {error}: install g++ or '
                         'name one in CXX') from error


def _cpu():
    """The features of the processor, which -march=native depends on."""
    this = find_processor()
    return ' '.join(sorted(this.features)) or f'{this.machine} {this.name}'


def _mxnet_parts():
    """Include folder and interface source of MXNet, and its version."""
    from d2lbert.machine.backend import (
        mx,  # a library without MXNet needs none of it
    )
    root = pathlib.Path(mx.__file__).parent
    include, source = root / 'include', root / 'src' / 'lib_api.cc'
    if not source.exists() or not (include / 'mxnet' / 'lib_api.h').exists():
        raise BuildError(f'MXNet {mx.__version__} in {root} comes without '
                         f'its extension interface (src/lib_api.cc)')
    return include, source, mx.__version__


# A compiler and its child processes would go on after this process is killed.
# So each command runs in a process group with a watcher, which kills the group
# at the end of standard input. That is a pipe, whose other end this process
# holds until it closes the pipe or is killed.
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
    """Return the path of a shared library; compile it if it is missing.

    name: the start of its file name. sources: paths of C++ files; headers
    (*.h) in the same folders count as sources too. mxnet: build against the
    extension interface of MXNet. what, takes: a description and a duration
    for the progress line. compiling=False: return None if the library is
    missing. options: further options of the compiler. Raises BuildError if
    there is no compiler, if it rejects the source, or if the cache folder
    cannot be trusted.
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
            if alone:       # no other process is compiling here
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
    """Yield a path that opens the library whose digest was checked.

    The path goes through the open folder, where only this user and root can
    write. So no other library can take its name in the meantime. Raises
    BuildError if the library has changed since the check.
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
    """Print a line on standard error at once."""
    warn(f'd2lbert: {line}')


def _recipe(name, sources, mxnet, options=()):
    """Compiler command, all sources, and a file name with their digest."""
    sources = [pathlib.Path(source) for source in sources]
    command, version = compiler()
    flags = [*set_flags(), *FLAGS, *options]
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
    """True if a trusted user wrote the library and its digest is right."""
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
    """Move a library and its digest to their places, each atomically."""
    digest = _digest_file(whole)
    with open(whole, 'rb') as file:
        digest.write_text(_sha256(file))
    # A common umask would let the user's group write
    whole.chmod(stat.S_IMODE(whole.stat().st_mode) & ~0o022)
    os.replace(whole, target)
    os.replace(digest, _digest_file(target))


def _run(commands, subjects, folder):
    """Run commands in parallel; raise BuildError for the first that fails.

    No command outlives this call, or this process. subjects: the file that
    each command builds, for the error. folder: for temporary files.
    """
    env = dict(os.environ, TMPDIR=folder, LC_ALL='C')
    read_end, write_end = os.pipe()
    running = []
    try:
        for command in commands:
            running.append(subprocess.Popen(
                ['/bin/sh', '-c', GUARD, 'sh', *command], stdin=read_end,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                start_new_session=True))
        outputs = [process.communicate()[0] for process in running]
    finally:
        os.close(read_end)
        os.close(write_end)
        for process in running:
            with contextlib.closing(process.stdout):
                process.wait()
    for command, process, output, subject in zip(commands, running, outputs,
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
