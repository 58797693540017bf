"""This machine's processor: vendor, model and instruction sets.

Read from /proc/cpuinfo; this module imports neither MXNet nor NumPy.
"""
import platform
import re
from typing import FrozenSet, NamedTuple

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
