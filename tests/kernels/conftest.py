"""Fixtures of the tests of operators."""
import pytest

from d2lbert import kernels
from d2lbert.kernels import ops


@pytest.fixture(scope='session')
def fused(compiler):
    """The operators in C++, which must build where a compiler works."""
    if kernels.mode() == 'off':
        pytest.skip('D2LBERT_KERNELS is off')
    assert kernels.load(), kernels.state().reason
    return ops


@pytest.fixture
def bf16(fused):
    if not kernels.bf16_supported():
        pytest.skip('this CPU does not multiply in bfloat16')
    used = kernels.products.chosen()
    if used.bf16 == 'plain':    # where fp32 is faster
        kernels.products.use(used._replace(bf16='pairs'))
    yield
    kernels.products.use(used)
