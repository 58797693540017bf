"""The instruction set for which the C++ code is compiled.

It is the set of the processor, unless the environment variable D2LBERT_ISA
names a lower one. So a build for older processors can run on a newer one, for
example in tests.
"""
import os
from typing import NamedTuple, Tuple

from d2lbert.machine.processor import processor


class InstructionSet(NamedTuple):
    """Compiler flags of an instruction set, and processors that have it."""

    machines: Tuple[str, ...]   # platform.machine()
    flags: Tuple[str, ...]
    needs: str      # the features, as Linux lists them


# Old versions of GCC and clang know this name of a processor, and names of
# features, but not x86-64-v3
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

    Raises ValueError for an unknown set, or a set that this processor lacks.
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
    """The compiler flags for the chosen set, as a list."""
    name = chosen()
    return ['-march=native'] if name == 'native' else [*SETS[name].flags]
