"""The processor and the machine, as /proc/cpuinfo describes them."""
import platform

import pytest

from d2lbert.machine.processor import describe_machine, find_processor

INTEL = '''\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 173
model name\t: Intel(R) Xeon(R) 6985P-C
flags\t\t: fpu sse2 avx avx2 avx512f avx512_bf16 amx_bf16 amx_tile
'''
OLD = '''\
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 60
model name\t: Intel(R) Core(TM) i7-4770
flags\t\t: fpu sse2 avx avx2

vendor_id\t: another
'''
AMD = '''\
vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC
flags\t\t: fpu sse2 avx avx2 avx512f avx512_bf16
'''
ARM = '''\
processor\t: 0
Features\t: fp asimd sve bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd40
'''


@pytest.mark.parametrize('text, machine, slug, sets', [
    (INTEL, 'x86_64', 'intel-family-6-model-173-avx512-bf16-amx',
     ['AVX-512', 'bf16', 'AMX']),
    (OLD, 'x86_64', 'intel-family-6-model-60-avx2', ['AVX2']),
    (AMD, 'x86_64', 'amd-family-26-model-2-avx512-bf16',
     ['AVX-512', 'bf16']),
    (ARM, 'aarch64', 'arm-family-8-model-0xd40-neon-bf16-sve',
     ['NEON', 'bf16', 'SVE'])])
def test_its_kind_and_instructions_are_read(text, machine, slug, sets,
                                            tmp_path):
    (tmp_path / 'cpuinfo').write_text(text)
    found = find_processor(tmp_path / 'cpuinfo', machine)
    assert (found.machine, found.slug) == (machine, slug)
    assert found.instruction_sets == sets
    assert found.kind in str(found) and ', '.join(sets) in str(found)


def test_one_that_says_nothing_of_itself_still_has_a_name(tmp_path):
    found = find_processor(tmp_path / 'nothing', 'riscv64')
    assert found.slug == 'riscv64' and 'unknown' in str(found)


def test_a_machine_is_told_in_a_line(tmp_path):
    (tmp_path / 'proc').mkdir()
    (tmp_path / 'proc' / 'cpuinfo').write_text(
        'processor : 0\nmodel name\t: Some Processor 9\nflags : x\n' * 2)
    told = describe_machine(str(tmp_path))
    assert told.startswith('Some Processor 9, ') and ' core' in told
    assert platform.machine() in told and '\n' not in told
    assert platform.machine() in describe_machine(str(tmp_path / 'none'))
