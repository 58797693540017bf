"""How numbers come to a device: against NumPy, and without waiting."""
import numpy as onp
import pytest

from d2lbert.machine.backend import mx, np, npx
from d2lbert.nn.checks import on_device


@pytest.mark.parametrize('dtype', [None, 'int32', 'float32', 'int64', 'bool'])
@pytest.mark.parametrize('X', [
    onp.arange(24, dtype='int32').reshape(2, 3, 4),
    onp.arange(24, dtype='float32').reshape(4, 6)[::2, 1:].T,
    onp.arange(7, dtype='int64') % 2 == 0, onp.float32(2.5),
    onp.zeros((0, 3), 'int32'), onp.broadcast_to(onp.arange(3), (4, 3)),
    onp.arange(3.0), [[1, 2], [3, 4]]])
def test_they_are_the_same_there(X, dtype):
    found = on_device(X, npx.cpu(), dtype)
    expected = onp.asarray(X, dtype)
    assert isinstance(found, np.ndarray) and found.ctx == npx.cpu()
    assert found.shape == expected.shape
    assert found.asnumpy().dtype == found.dtype == expected.dtype
    onp.testing.assert_array_equal(found.asnumpy(), expected)
    # And they are numbers like any others: operators read and write them
    onp.testing.assert_array_equal((found + found).asnumpy(),
                                   expected + expected)


def test_what_comes_from_the_host_is_a_copy():
    X = onp.arange(6, dtype='float32')
    found = on_device(X, npx.cpu())
    X[:] = 0
    del X
    onp.testing.assert_array_equal(found.asnumpy(), onp.arange(6))


def test_what_is_on_a_device_stays_there():
    X = np.arange(6, dtype='float32', ctx=npx.cpu(1))
    assert on_device(X, npx.cpu(0)) is X
    assert on_device(X, npx.cpu(0), 'int32').ctx == npx.cpu(1)


def test_without_a_device_it_is_the_current_one():
    with mx.Context(npx.cpu(1)):
        assert on_device([1, 2]).ctx == npx.cpu(1)


def test_nothing_at_work_is_waited_for(monkeypatch):
    """What MXNet would queue behind it: copies, and waits for arrays."""
    for name in ('MXNDArraySyncCopyFromCPU', 'MXNDArrayWaitToWrite',
                 'MXNDArrayWaitToRead', 'MXNDArrayWaitAll'):
        monkeypatch.setattr(mx.base._LIB, name, None)
    on_device(onp.arange(6, dtype='int32'), npx.cpu())
