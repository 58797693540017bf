"""This machine's processor, its instruction sets, and the C++ compiler.

The C++ code is compiled for the instruction set of the processor, unless the
environment variable D2LBERT_ISA names a lower one. So a build for older
processors can run on a newer one, for example in tests. This module imports
neither MXNet nor NumPy.
"""
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import FrozenSet, NamedTuple, Tuple

from d2lbert.machine.hardware import physical_cores

#: Vendors by their ids in /proc/cpuinfo: names on x86, numbers on Arm (Arm
#: Architecture Reference Manual, MIDR_EL1, "Implementer").
MAKERS = {'GenuineIntel': 'Intel', 'AuthenticAMD': 'AMD', '0x41': 'Arm',
          '0x61': 'Apple', '0xc0': 'Ampere', '0x48': 'HiSilicon',
          '0x4e': 'NVIDIA', '0x46': 'Fujitsu', '0x6d': 'Microsoft'}

#: Instruction sets for matrix products, by their feature names in Linux.
#: The widest of WIDTHS is used, and all of EXTRAS.
WIDTHS = {'avx512f': 'AVX-512', 'avx2': 'AVX2', 'avx': 'AVX', 'sse2': 'SSE',
          'asimd': 'NEON'}
EXTRAS = {'avx512_bf16': 'bf16', 'bf16': 'bf16', 'amx_bf16': 'AMX',
          'sve': 'SVE'}


class Processor(NamedTuple):
    """The identity of a processor."""

    machine: str    # as platform.machine(): x86_64, aarch64
    maker: str
    family: str     # on Arm the architecture version
    model: str      # on Arm the part number
    name: str       # marketing name, may be vague or ''
    features: FrozenSet[str]    # as Linux names them; empty where unknown

    @property
    def sets(self):
        """A list of the relevant instruction sets, by name."""
        return [*[name for feature, name in WIDTHS.items()
                  if feature in self.features][:1],
                *[name for feature, name in EXTRAS.items()
                  if feature in self.features]]

    @property
    def kind(self):
        """Vendor, family and model in words."""
        return ' '.join(filter(None, [
            self.maker, self.family and f'family {self.family}',
            self.model and f'model {self.model}'])) or self.machine

    @property
    def slug(self):
        """A file name, for example amd-family-26-model-2-avx512-bf16."""
        words = ' '.join([self.kind, *self.sets]).replace('-', '')
        return re.sub('[^a-z0-9]+', '-', words.lower())

    def __str__(self):
        """One line: name, kind and instruction sets."""
        name = f'{self.name} ' if self.name else ''
        sets = ', '.join(self.sets) or 'instructions unknown'
        return f'{name}({self.kind}; {sets})'


def find_processor(path='/proc/cpuinfo', machine=None):
    """The `Processor` that the first entry of /proc/cpuinfo describes."""
    machine = machine or platform.machine()
    fields = {}
    try:
        with open(path, errors='replace') as lines:
            for line in lines:
                key, _, value = line.partition(':')
                fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass

    def first(*names):
        return next((fields[name] for name in names if fields.get(name)), '')
    maker = first('vendor_id', 'CPU implementer')
    return Processor(
        machine, MAKERS.get(maker, maker),
        first('cpu family', 'CPU architecture'), first('model', 'CPU part'),
        first('model name') or platform.processor(),
        frozenset(first('flags', 'Features').split()))


def described(root='/'):
    """A line about this machine: processor, cores and system."""
    this = find_processor(Path(root, 'proc/cpuinfo'))
    cores = physical_cores(root=root)
    return (f'{this.name or this.machine}, {cores} core{"s" * (cores > 1)}, '
            f'{platform.system()} {this.machine}')


class InstructionSet(NamedTuple):
    """Compiler flags of an instruction set, and processors that have it."""

    machines: Tuple[str, ...]   # platform.machine()
    flags: Tuple[str, ...]
    needs: str      # the features, as Linux lists them


# The features of -march=haswell. The flags below name processors and features,
# because old versions of GCC and clang do not know x86-64-v3
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


def chosen_set():
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
    this, wanted = find_processor(), SETS[name]
    if this.machine not in wanted.machines:
        raise ValueError(f'D2LBERT_ISA is {name}, a set of instructions of '
                         f'{wanted.machines[0]}, and this processor is '
                         f'{this.machine}: unset it')
    missing = [feature for feature in wanted.needs.split()
               if feature not in this.features]
    if missing:
        raise ValueError(f'D2LBERT_ISA is {name}, and this processor lacks '
                         f'{", ".join(missing)}: name a lower one, or unset '
                         'D2LBERT_ISA to use all that it has')
    return name


def set_flags():
    """The compiler flags for the chosen set, as a list."""
    name = chosen_set()
    return ['-march=native'] if name == 'native' else [*SETS[name].flags]


#: Seconds after which a compiler that prints no version counts as missing.
PATIENCE = 30


def find_compiler():
    """Return the command of the C++ compiler, a list, and its version line.

    The environment variable CXX names it; without CXX it is g++ or c++.
    Raises LookupError, with the names that were tried, if none works.
    """
    names = [os.environ['CXX']] if os.environ.get('CXX') else ['g++', 'c++']
    for name in names:
        command = name.split()  # CXX may hold a launcher: 'ccache g++'
        path = command and shutil.which(command[0])
        if not path:
            continue
        try:
            # With a path and close_fds=False, Python 3.8 does not fork here:
            # after a fork, the tokenizers library prints a warning
            done = subprocess.run(
                [*command, '--version'], executable=path, close_fds=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=PATIENCE)
        except (OSError, subprocess.TimeoutExpired):
            continue
        lines = done.stdout.decode(errors='replace').strip().splitlines()
        if done.returncode == 0 and lines:
            return command, lines[0]
    raise LookupError(' or '.join(names))
