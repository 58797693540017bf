"""Identify this machine's processor, and find the C++ compiler.

The C++ code is compiled for the instruction set of the processor, unless the
environment variable D2LBERT_ISA names a lower set, for example to test the
code for older processors. This module imports neither MXNet nor NumPy.
"""
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import FrozenSet, NamedTuple, Tuple

from d2lbert.machine.hardware import physical_cores

#: {id of a vendor in /proc/cpuinfo: vendor's name}. On Arm, ids are numbers
#: (Arm Architecture Reference Manual, MIDR_EL1, "Implementer").
VENDORS = {'GenuineIntel': 'Intel', 'AuthenticAMD': 'AMD', '0x41': 'Arm',
           '0x61': 'Apple', '0xc0': 'Ampere', '0x48': 'HiSilicon',
           '0x4e': 'NVIDIA', '0x46': 'Fujitsu', '0x6d': 'Microsoft'}

#: {feature in /proc/cpuinfo: name of an instruction set for matrix products}.
#: In VECTOR_SETS the best comes first.
VECTOR_SETS = {'avx512f': 'AVX-512', 'avx2': 'AVX2', 'avx': 'AVX',
               'sse2': 'SSE', 'asimd': 'NEON'}
EXTRA_SETS = {'avx512_bf16': 'bf16', 'bf16': 'bf16', 'amx_bf16': 'AMX',
              'sve': 'SVE'}


class Processor(NamedTuple):
    """Model and features of a processor; unknown fields are empty."""

    machine: str    # platform.machine(), for example x86_64 or aarch64
    vendor: str
    family: str     # on Arm the architecture version
    model: str      # on Arm the part number
    name: str       # for example AMD EPYC 7763 64-Core Processor
    features: FrozenSet[str]    # by their names in /proc/cpuinfo

    @property
    def instruction_sets(self):
        """Names of the best of its VECTOR_SETS, and of its EXTRA_SETS."""
        vector_sets = [name for feature, name in VECTOR_SETS.items()
                       if feature in self.features]
        extra_sets = [name for feature, name in EXTRA_SETS.items()
                      if feature in self.features]
        return vector_sets[:1] + extra_sets

    @property
    def kind(self):
        """A text such as 'AMD family 26 model 2'; if unknown, `machine`."""
        return ' '.join(filter(None, [
            self.vendor, self.family and f'family {self.family}',
            self.model and f'model {self.model}'])) or self.machine

    @property
    def slug(self):
        """A part of file names, such as amd-family-26-model-2-avx512-bf16."""
        words = ' '.join([self.kind, *self.instruction_sets]).replace('-', '')
        return re.sub('[^a-z0-9]+', '-', words.lower())

    def __str__(self):
        name = f'{self.name} ' if self.name else ''
        sets = ', '.join(self.instruction_sets) or 'instructions unknown'
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

    def first_value(*names):
        return next((fields[name] for name in names if fields.get(name)), '')

    # Of two names, the first is used on x86-64, the second on Arm
    vendor_id = first_value('vendor_id', 'CPU implementer')
    return Processor(
        machine, VENDORS.get(vendor_id, vendor_id),
        first_value('cpu family', 'CPU architecture'),
        first_value('model', 'CPU part'),
        first_value('model name') or platform.processor(),
        frozenset(first_value('flags', 'Features').split()))


def describe_machine(root='/'):
    """One line about this machine. root: the folder of proc and sys."""
    processor = find_processor(Path(root, 'proc/cpuinfo'))
    num_cores = physical_cores(root=root)
    return (f'{processor.name or processor.machine}, '
            f'{num_cores} core{"s" if num_cores > 1 else ""}, '
            f'{platform.system()} {processor.machine}')


class Isa(NamedTuple):
    """An instruction set that D2LBERT_ISA can name."""

    machines: Tuple[str, ...]   # possible values of platform.machine()
    flags: Tuple[str, ...]
    required_features: str      # names in /proc/cpuinfo, with blanks between


# Features that -march=haswell needs. The similar x86-64-v3 is unknown to old
# versions of GCC and clang
_HASWELL = 'avx2 fma bmi1 bmi2 f16c movbe abm'
ISAS = {
    'avx512': Isa(
        ('x86_64',), ('-march=haswell', '-mavx512f', '-mavx512bw',
                      '-mavx512cd', '-mavx512dq', '-mavx512vl'),
        f'{_HASWELL} avx512f avx512bw avx512cd avx512dq avx512vl'),
    'avx2': Isa(('x86_64',), ('-march=haswell',), _HASWELL),
    'avx': Isa(('x86_64',), ('-march=x86-64', '-mavx'), 'avx'),
    'sse': Isa(('x86_64',), ('-march=x86-64',), ''),
    'neon': Isa(('aarch64', 'arm64'), ('-march=armv8-a',), ''),
}


def chosen_isa():
    """The value of D2LBERT_ISA: 'native' (the default) or a key of ISAS.

    Raises ValueError for other values, and if this processor lacks the set.
    """
    name = os.environ.get('D2LBERT_ISA') or 'native'
    if name == 'native':
        return name
    if name not in ISAS:
        *first, last = ISAS
        raise ValueError(f'D2LBERT_ISA is {name!r}: it must be native, '
                         f'{", ".join(first)} or {last}')
    processor, chosen = find_processor(), ISAS[name]
    if processor.machine not in chosen.machines:
        raise ValueError(f'D2LBERT_ISA is {name}, an instruction set of '
                         f'{chosen.machines[0]}, and this processor is '
                         f'{processor.machine}: unset D2LBERT_ISA')
    missing = [feature for feature in chosen.required_features.split()
               if feature not in processor.features]
    if missing:
        raise ValueError(f'D2LBERT_ISA is {name}, and this processor lacks '
                         f'{", ".join(missing)}: name a lower set, or unset '
                         'D2LBERT_ISA to use all that the processor has')
    return name


def isa_flags():
    name = chosen_isa()
    if name == 'native':
        return ['-march=native']
    return list(ISAS[name].flags)


#: Seconds for a compiler to print its version; a slower compiler is not used.
VERSION_SECONDS = 30


def find_compiler():
    """Find the C++ compiler; return its command and its version.

    command: a list of words. version: the first line that --version prints.
    Raises LookupError, with the names that were tried, if no compiler works.
    """
    names = [os.environ['CXX']] if os.environ.get('CXX') else ['g++', 'c++']
    for name in names:
        # CXX may be blank, a path with spaces, or a path and options
        command = [name] if shutil.which(name) else name.split()
        path = shutil.which(command[0]) if command else None
        if not path:
            continue
        try:
            # A path and close_fds=False make even Python 3.8 use posix_spawn:
            # after a fork, the tokenizers library would print a warning
            process = subprocess.run(
                [*command, '--version'], executable=path, close_fds=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=VERSION_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            continue
        lines = process.stdout.decode(errors='replace').strip().splitlines()
        if process.returncode == 0 and lines:
            return command, lines[0]
    raise LookupError(' or '.join(names))
