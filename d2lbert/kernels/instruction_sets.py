"""For which instruction set the C++ is compiled.

For what the processor has, unless the environment variable D2LBERT_ISA names
a lower one: so that a build for older processors runs, and is tested, on any
newer one.
"""
import os
from typing import NamedTuple, Tuple

from d2lbert.machine.processor import processor


class InstructionSet(NamedTuple):
    """How to compile for one, and who can run that."""

    machines: Tuple[str, ...]   # platform.machine()
    flags: Tuple[str, ...]
    needs: str      # the features, as Linux lists them


# What GCC and clang of any age understand: names of processors and of single
# features, where x86-64-v3 is younger than they may be
_HASWELL = 'avx2 fma bmi1 bmi2 f16c movbe abm'
SETS = {
    'avx512': InstructionSet(
        ('x86_64',), ('-march=haswell', '-mavx512f', '-mavx512bw',
                      '-mavx512cd', '-mavx512dq', '-mavx512vl'),
        f'{_HASWELL} avx512f avx512bw avx512cd avx512dq avx512vl'),
    'avx2': InstructionSet(('x86_64',), ('-march=haswell',), _HASWELL),
    'avx': InstructionSet(('x86_64',), ('-march=x86-64', '-mavx'), 'avx'),
    'sse': InstructionSet(('x86_64',), ('-march=x86-64',), ''),
    'neon': InstructionSet(('aarch64', 'arm64'), ('-march=armv8-a',), ''),
}


def chosen():
    """The value of D2LBERT_ISA: native, or the name of a lower set.

    Raises ValueError for one that is unknown, or that this processor lacks.
    """
    name = os.environ.get('D2LBERT_ISA') or 'native'
    if name == 'native':
        return name
    if name not in SETS:
        raise ValueError(f'D2LBERT_ISA is {name!r}: it must be native, '
                         + ', '.join(list(SETS)[:-1])
                         + f' or {list(SETS)[-1]}')
    this, wanted = processor(), SETS[name]
    if this.machine not in wanted.machines:
        raise ValueError(f'D2LBERT_ISA is {name}, a set of instructions of '
                         f'{wanted.machines[0]}, and this processor is '
                         f'{this.machine}: unset it')
    missing = [feature for feature in wanted.needs.split()
               if feature not in this.features]
    if missing:
        raise ValueError(f'D2LBERT_ISA is {name}, and this processor lacks '
                         f'{", ".join(missing)}: name a lower one, or unset '
                         'it for what it has')
    return name


def flags():
    """The compiler's flags for the set that is chosen, as a list."""
    name = chosen()
    return ['-march=native'] if name == 'native' else [*SETS[name].flags]
