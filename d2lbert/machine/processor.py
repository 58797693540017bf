"""This machine's processor: who made it, and what instructions it has.

Read off /proc/cpuinfo; nothing here needs MXNet or NumPy.
"""
import platform
import re
from typing import FrozenSet, NamedTuple

#: Makers by what /proc/cpuinfo calls them: x86's names, Arm's numbers (Arm
#: Architecture Reference Manual, MIDR_EL1, "Implementer").
MAKERS = {'GenuineIntel': 'Intel', 'AuthenticAMD': 'AMD', '0x41': 'Arm',
          '0x61': 'Apple', '0xc0': 'Ampere', '0x48': 'HiSilicon',
          '0x4e': 'NVIDIA', '0x46': 'Fujitsu', '0x6d': 'Microsoft'}

#: Instruction sets that products of matrices use, by the feature that Linux
#: lists: the widest of WIDTHS, and whatever there is of EXTRAS.
WIDTHS = {'avx512f': 'AVX-512', 'avx2': 'AVX2', 'avx': 'AVX', 'sse2': 'SSE',
          'asimd': 'NEON'}
EXTRAS = {'avx512_bf16': 'bf16', 'bf16': 'bf16', 'amx_bf16': 'AMX',
          'sve': 'SVE'}


class Processor(NamedTuple):
    """What tells one kind of processor from another."""

    machine: str    # as platform.machine(): x86_64, aarch64
    maker: str
    family: str     # on Arm the architecture's version
    model: str      # on Arm the part's number
    name: str       # as it calls itself, which may say little, or ''
    features: FrozenSet[str]    # as Linux names them; empty where unknown

    @property
    def sets(self):
        """Names of the instruction sets that matter, as a list."""
        return [*[name for feature, name in WIDTHS.items()
                  if feature in self.features][:1],
                *[name for feature, name in EXTRAS.items()
                  if feature in self.features]]

    @property
    def kind(self):
        """Maker, family and model in words, as one kind has them all."""
        return ' '.join(filter(None, [
            self.maker, self.family and f'family {self.family}',
            self.model and f'model {self.model}'])) or self.machine

    @property
    def slug(self):
        """The same as a file's name: amd-family-26-model-2-avx512-bf16."""
        words = ' '.join([self.kind, *self.sets]).replace('-', '')
        return re.sub('[^a-z0-9]+', '-', words.lower())

    def __str__(self):
        """One line: what it is called, its kind and its instructions."""
        name = f'{self.name} ' if self.name else ''
        sets = ', '.join(self.sets) or 'instructions unknown'
        return f'{name}({self.kind}; {sets})'


def processor(path='/proc/cpuinfo', machine=None):
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
