"""Caches of a case's own, and a compiler that takes no time, for faults.py.
"""
import os
import shutil

from faults_processes import TRAINED, fork

from d2lbert.machine import cache

#: Hands out what was compiled before, $SLOWLY seconds later.
COMPILER = '''#!/bin/sh
[ "$*" = --version ] && echo 'a compiler 1.0' && exit
for last; do :; done
case $last in
*.so) sleep ${SLOWLY:-0}; name=${last##*/}; cp "HERE/${name%%-*}.so" "$last";;
*) : > "$last";;
esac
'''


def compiler(place):
    """The path of `COMPILER`, or None where there is none to begin with."""
    def make():
        folder = place.folder()
        if fork(folder, ['doctor', '--build']).wait().status:
            print('nothing can be compiled here')
            return None
        # Older ones of the same name are of other sources
        for path in sorted(cache.folder('kernels').glob('*-*.so'),
                           key=lambda path: path.stat().st_mtime):
            shutil.copy2(path, folder / f'{path.name.split("-")[0]}.so')
        path = folder / 'c++'
        path.write_text(COMPILER.replace('HERE', str(folder)))
        path.chmod(0o755)
        return path
    return place.once('compiler', make)


def own_cache(place, folder, empty=False):
    """Variables for a cache in `folder`, with compiled libraries in it.

    empty: without them, so that they have to be compiled.
    """
    path = compiler(place)
    variables = {'D2LBERT_CACHE': str(folder / 'cache')}
    if path is None:
        return {**variables, 'D2LBERT_KERNELS': 'off'}
    variables['CXX'] = str(path)
    if not empty:
        shutil.copytree(place.once('filled', lambda: _filled(place)),
                        folder / 'cache' / 'kernels')
    return variables


def _filled(place):
    folder = place.folder()
    variables = own_cache(place, folder, empty=True)
    end = fork(folder, TRAINED, using(variables)).wait()
    assert end.status == 0 and 'compiling' in end.err, end.err
    return folder / 'cache' / 'kernels'


def using(variables):
    """A function that sets variables, for `fork`."""
    return lambda: os.environ.update(variables)
