"""Damaged compiled libraries, for faults.py."""
import hashlib
import os
import shutil

from faults_cache import compiler, own_cache
from faults_processes import (
    TRAINED,
    complaints,
    cut,
    flipped,
    fork,
    left_behind,
    noise,
    obey_modes,
    result,
)

NOBODY = 65534


def damage_libraries(number, place, tally):
    """Damage what was compiled, then train twice."""
    if compiler(place) is None:
        return
    for damage in place.some(DAMAGES, number):
        folder = place.folder()
        variables = own_cache(place, folder)
        kernels = folder / 'cache' / 'kernels'
        library = place.rng.choice(sorted(kernels.glob('*.so')))
        become = damage(place.rng, library, folder, variables)
        if become is None:
            become = nothing

        def prepare(become=become, variables=variables):
            os.environ.update(variables)
            become()
        ends = []
        for _ in range(2):
            shutil.rmtree(folder / 'run', ignore_errors=True)
            ends.append(fork(folder, TRAINED, prepare).wait())
        name = damage.__name__.replace('_', ' ')
        tally.note(f'{library.name[:4]}: {name}',
                   judge(place, folder, damage, ends), ends[0])
        shutil.rmtree(folder)


def nothing():
    pass


def judge(place, folder, damage, ends):
    """Verdicts on two runs, the first of which found the damage."""
    verdicts = [verdict for end in ends for verdict in complaints(end, [0])]
    notes = [[line for line in end.err.splitlines()
              if line.startswith('d2lbert: ')] for end in ends]
    slow = ['slower without' in ''.join(some) for some in notes]
    # What is rebuilt is rebuilt at once, and once; what cannot be is told in
    # one line
    for some in notes:
        rest = [line for line in some if 'compiling' not in line]
        if len(rest) > 1 or len(rest) != any(slow):
            verdicts.append('unclear')
    if notes[1] and not any(slow):
        verdicts.append('unclear')
    expected = [result(place.done(TRAINED)[0] / 'run')]
    if any(slow):
        expected.append(result(place.done(TRAINED, prepare=do_without)[0]
                               / 'run'))
    verdicts.append('equal' if result(folder / 'run') in expected
                    else 'wrong result')
    if (folder / 'run').is_dir():
        verdicts += left_behind(folder, 'cache', 'tools')
    return verdicts


def do_without():
    os.environ['D2LBERT_KERNELS'] = 'off'


# Damages: each gets random numbers, a library, the case's folder and its
# variables, and returns what the command's process is to do first, or None

def digest_of(library):
    return library.with_name(library.name + '.sha256')


def cut_off(rng, library, *_):
    library.write_bytes(cut(rng, library.read_bytes()))


def bits_flipped(rng, library, *_):
    library.write_bytes(flipped(rng, library.read_bytes()))


def emptied(rng, library, *_):
    library.write_bytes(b'')


def noise_at_its_end(rng, library, *_):
    library.write_bytes(library.read_bytes() + noise(rng))


def a_text(rng, library, *_):
    library.write_text('no library\n')


def another_library(rng, library, *_):
    other = next(path for path in library.parent.glob('*.so')
                 if path != library)
    shutil.copy2(other, library)


def a_folder(rng, library, *_):
    library.unlink()
    library.mkdir()


def a_link(rng, library, folder, *_):
    library.unlink()
    library.symlink_to(rng.choice(['nowhere', library.name]))


def gone(rng, library, *_):
    library.unlink()


def digest_gone(rng, library, *_):
    digest_of(library).unlink()


def digest_wrong(rng, library, *_):
    digest_of(library).write_bytes(rng.choice([
        b'', b'0' * 64, noise(rng), b'\xff' * 64]))


def digest_of_another(rng, library, *_):
    other = next(path for path in library.parent.glob('*.so')
                 if path != library)
    shutil.copy2(digest_of(other), digest_of(library))


def a_text_with_its_digest(rng, library, *_):
    library.write_text('no library\n')
    _seal(library)


def another_library_with_its_digest(rng, library, *_):
    another_library(rng, library)
    _seal(library)


def _seal(library):
    digest_of(library).write_text(
        hashlib.sha256(library.read_bytes()).hexdigest())


def others_may_write_it(rng, library, *_):
    library.chmod(0o777)


def others_may_write_the_folder(rng, library, *_):
    library.parent.chmod(0o777)


def cut_in_a_folder_that_is_read_only(rng, library, *_):
    cut_off(rng, library)
    library.parent.chmod(0o555)
    return obey_modes


def whole_in_a_folder_that_is_read_only(rng, library, *_):
    library.parent.chmod(0o555)
    return obey_modes


def a_file_of_another(rng, library, *_):
    if os.geteuid() == 0:
        os.chown(library, NOBODY, NOBODY)


def a_folder_of_another(rng, library, *_):
    if os.geteuid() == 0:
        os.chown(library.parent, NOBODY, NOBODY)


def cut_and_no_compiler(rng, library, folder, variables):
    cut_off(rng, library)
    variables['CXX'] = 'no-such-compiler'


def cut_and_a_compiler_that_refuses(rng, library, folder, variables):
    tools = folder / 'tools'
    tools.mkdir()
    (tools / 'c++').write_text(
        '#!/bin/sh\n[ "$*" = --version ] && echo 1.0 && exit\n'
        'echo "error: not today"; exit 1\n')
    (tools / 'c++').chmod(0o755)
    variables['CXX'] = str(tools / 'c++')


def compiled_in_fact(rng, library, folder, variables):
    """The smaller library, by the real compiler."""
    for path in list(library.parent.glob('*')):
        path.unlink()
    variables['CXX'] = ''
    for path in (folder.parent / 'cache' / 'kernels').iterdir():
        if path.name.startswith(('ops-', 'draw-')):
            shutil.copy2(path, library.parent)
    for path in library.parent.glob('draw-*.so'):
        bits_flipped(rng, path)


DAMAGES = [
    cut_off, cut_off, bits_flipped, bits_flipped, emptied, noise_at_its_end,
    a_text, another_library, a_folder, a_link, gone, digest_gone,
    digest_wrong, digest_of_another, a_text_with_its_digest,
    another_library_with_its_digest, others_may_write_it,
    others_may_write_the_folder, cut_in_a_folder_that_is_read_only,
    whole_in_a_folder_that_is_read_only, a_file_of_another,
    a_folder_of_another, cut_and_no_compiler,
    cut_and_a_compiler_that_refuses, compiled_in_fact]
