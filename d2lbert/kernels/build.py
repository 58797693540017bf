"""Compile the package's C++ libraries, each once, into the user's cache.

A library is loaded from the cache only if no other user can have written it,
and if its digest equals the digest in the file beside it. Without the digest,
a truncated library would be loaded and crash the process.
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
from d2lbert.machine.processor import find_compiler, find_processor, isa_flags
from d2lbert.machine.terminal import warn

# No -ffast-math: it does not respect NaN and infinity
FLAGS = ['-std=c++17', '-O3', '-fopenmp', '-fPIC', '-fno-math-errno',
         '-fno-trapping-math', '-ffp-contract=fast']


class BuildError(RuntimeError):
    """A library cannot be compiled or opened; the message is one sentence."""


def compiler():
    """Return (command, version) as `find_compiler`, or raise BuildError."""
    try:
        return find_compiler()
    except LookupError as error:
        raise BuildError(f'no C++ compiler found (tried {error}): install '
                         'g++, or set CXX to another compiler') from error


def _native_cpu():
    """Text that identifies the processor for which -march=native compiles."""
    processor = find_processor()
    return (' '.join(sorted(processor.features))
            or f'{processor.machine} {processor.name}')


def _mxnet_parts():
    """MXNet's (include folder, source of the extension interface, version)."""
    # Imported here: a library with mxnet=False does not need MXNet
    from d2lbert.machine.backend import mx
    root = pathlib.Path(mx.__file__).parent
    include, source = root / 'include', root / 'src' / 'lib_api.cc'
    if not source.exists() or not (include / 'mxnet' / 'lib_api.h').exists():
        raise BuildError(f'MXNet {mx.__version__} in {root} comes without '
                         'its extension interface, src/lib_api.cc: install '
                         'MXNet from a wheel')
    return include, source, mx.__version__


# A shell script that runs the command "$@", with a watcher in the background.
# Standard input is a pipe. When Python closes the other end or is killed, the
# watcher kills the process group: script, compiler and child processes.
WATCHED_COMMAND = '''\
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

    name: the start of the library's file name. sources: paths of C++ files. If
    a source or a header (*.h) beside a source has changed, the library counts
    as missing. mxnet: True to build against the extension interface of MXNet.
    what, takes: a description of the library and the duration of its
    compilation, for the progress line. compiling=False: return None if the
    library is missing. options: further options of the compiler. Raises
    BuildError if there is no compiler, even if the library exists; if the
    compiler cannot be started or rejects a source; or if the cache folder, the
    compiled library or MXNet's interface cannot be used.
    """
    command, all_sources, file_name = _recipe(name, sources, mxnet, options)
    try:
        folder = cache.folder('kernels')
    except OSError as error:
        raise BuildError(str(error)) from error
    target = folder / file_name
    if not _is_sound(target):
        if not compiling:
            return None
        with locked(folder / 'build.lock', before_wait=lambda: print_line(
                'waiting for another process that compiles')) as is_locked:
            if is_locked:   # so a .part folder is a leftover
                for stale in folder.glob('.*.part'):
                    shutil.rmtree(stale, ignore_errors=True)
            if not _is_sound(target):   # another process may have built it
                print_line(f'compiling {what or name}, once: {takes} ...')
                _compile(command, all_sources, target)
        if not _is_sound(target):
            raise BuildError(f'{target} changed after it was written: is the '
                             'disk full or failing?')
    cache.mark_used(target)
    return target


@contextlib.contextmanager
def checked(library_path):
    """Check a library and its folder, and yield a path that opens the library.

    On Linux, the yielded path names the folder by an open file descriptor, as
    /proc/self/fd/N. So no other user can replace the library between the check
    and the use of the path. Raises BuildError if the folder cannot be read,
    if another user, except root, can write to it, or if the library is
    missing, damaged or not trusted.
    """
    try:
        folder_fd = os.open(library_path.parent, os.O_RDONLY)
    except OSError as error:
        raise BuildError(f'{library_path.parent} cannot be read '
                         f'({error.strerror})') from error
    try:
        path = pathlib.Path(f'/proc/self/fd/{folder_fd}', library_path.name)
        if not path.exists():   # not Linux
            path = library_path
        if not (cache.is_trusted(os.fstat(folder_fd)) and _is_sound(path)):
            raise BuildError(f'{library_path} was changed while it was '
                             'opened: try again')
        yield path
    finally:
        os.close(folder_fd)


def print_line(line):
    """Print a line on standard error, unless `--quiet` hides it."""
    warn(f'd2lbert: {line}')


def _recipe(name, sources, mxnet, options=()):
    """Return (compiler command, all sources, file name of the library).

    The file name has a hash of everything that the library depends on.
    """
    sources = [pathlib.Path(source) for source in sources]
    command, compiler_version = compiler()
    flags = [*isa_flags(), *FLAGS, *options]
    hasher = hashlib.sha256()
    hashed_files = list(sources)
    for folder in sorted({source.parent for source in sources}):
        hashed_files += sorted(folder.glob('*.h'))
    for part in [*command, compiler_version, _native_cpu(), *flags]:
        hasher.update(os.fsencode(part) + b'\0')
    if mxnet:
        include, interface, mxnet_version = _mxnet_parts()
        flags.append(f'-I{include}')
        hasher.update(mxnet_version.encode() + b'\0')
        sources.append(interface)
        hashed_files += [interface, include / 'mxnet' / 'lib_api.h']
    for path in hashed_files:
        hasher.update(path.name.encode() + b'\0' + path.read_bytes())
    return [*command, *flags], sources, f'{name}-{hasher.hexdigest()[:16]}.so'


def _digest_file(library_path):
    return library_path.with_name(library_path.name + '.sha256')


def _is_sound(library_path):
    """True if a library has its stored digest, and others cannot write it."""
    try:
        with open(library_path, 'rb') as file:
            status = os.fstat(file.fileno())
            if not (stat.S_ISREG(status.st_mode) and cache.is_trusted(status)):
                return False
            return _sha256(file) == _digest_file(library_path).read_text()
    except (OSError, ValueError):
        return False


def _sha256(file):
    return hashlib.sha256(file.read()).hexdigest()


def _compile(command, sources, target):
    """Compile and link sources to the library `target`."""
    try:
        work_folder = tempfile.TemporaryDirectory(
            prefix=f'.{target.stem}-', suffix='.part', dir=target.parent)
    except OSError as error:
        raise BuildError(f'nothing can be written to {target.parent} '
                         f'({error.strerror}): set D2LBERT_CACHE to a '
                         f'folder that you can write to') from error
    with work_folder as folder:
        objects = [os.path.join(folder, f'{i}.o')
                   for i in range(len(sources))]
        built = pathlib.Path(folder, target.name)
        try:
            _run([[*command, '-c', str(source), '-o', object_file]
                  for source, object_file in zip(sources, objects)], sources,
                 folder)
            _run([[*command, '-shared', *objects, '-o', str(built)]],
                 [target], folder)
        except OSError as error:
            raise BuildError(f'{command[0]} cannot be started '
                             f'({error.strerror}): end other processes, or '
                             'raise their limit') from error
        try:
            _move_with_digest(built, target)
        except OSError as error:
            raise BuildError(f'{target} cannot be written '
                             f'({error.strerror})') from error


def _move_with_digest(built, target):
    """Move a library to `target` and its digest beside it, each atomically."""
    built_digest_file = _digest_file(built)
    with open(built, 'rb') as file:
        built_digest_file.write_text(_sha256(file))
    # With the common umask 002, the user's group could change the library
    built.chmod(stat.S_IMODE(built.stat().st_mode) & ~0o022)
    os.replace(built, target)
    os.replace(built_digest_file, _digest_file(target))


def _run(commands, reported_files, temp_folder):
    """Run commands in parallel; raise BuildError if one fails.

    No command outlives this call or this process. reported_files: for each
    command, the file that the error names. Raises OSError if a command cannot
    be started.
    """
    env = dict(os.environ, TMPDIR=temp_folder, LC_ALL='C')
    read_end, write_end = os.pipe()
    processes = []
    try:
        for command in commands:
            processes.append(subprocess.Popen(
                ['/bin/sh', '-c', WATCHED_COMMAND, 'sh', *command],
                stdin=read_end, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env=env, start_new_session=True))
        outputs = [process.communicate()[0] for process in processes]
    finally:
        os.close(read_end)
        os.close(write_end)     # the watchers kill commands that still run
        for process in processes:
            with contextlib.closing(process.stdout):
                process.wait()
    for command, process, output, file in zip(
            commands, processes, outputs, reported_files):
        if process.returncode:
            raise BuildError(f'{command[0]} cannot build {file.name}: '
                             f'{_first_error(process, output)}')


def _first_error(process, output):
    lines = output.decode(errors='replace').strip().splitlines()
    for line in lines:
        if 'error' in line:
            return line.strip()
    return lines[0].strip() if lines else f'exit {process.returncode}'
