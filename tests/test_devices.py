"""Devices, with drivers that this machine does not have."""
import warnings

import pytest

from d2lbert import devices
from d2lbert.machine import backend
from d2lbert.machine.backend import mx, npx
from d2lbert.machine.hardware import Gpu

AMPERE = ('NVIDIA A100', (8, 0), True, '')
HOPPER = ('NVIDIA H200', (9, 0), False, 'it has compute capability 9.0')


@pytest.fixture
def gpus(monkeypatch):
    """A function that sets the GPUs that driver and MXNet report."""
    monkeypatch.setattr(devices, '_warned_gpus', set())

    def have(*rows, count=None):
        monkeypatch.setattr(backend, 'gpus', lambda: [
            Gpu(index, *row) for index, row in enumerate(rows)])
        monkeypatch.setattr(
            npx, 'num_gpus', lambda: len(rows) if count is None else count)
    have()
    return have


def test_without_a_gpu_everything_is_the_cpu(gpus):
    assert devices.try_gpu() == devices.try_gpu(3) == npx.cpu()
    assert devices.try_all_gpus() == [npx.cpu()]


def test_usable_gpus_are_all_given(gpus):
    gpus(AMPERE, AMPERE)
    assert devices.try_gpu() == npx.gpu(0)
    assert devices.try_gpu(1) == npx.gpu(1)
    assert devices.try_gpu(2) == npx.cpu()
    assert devices.try_all_gpus() == [npx.gpu(0), npx.gpu(1)]


def test_a_gpu_without_kernels_is_named_once_and_left_out(gpus):
    gpus(HOPPER)
    with pytest.warns(RuntimeWarning, match='H200.*capability 9.0') as seen:
        assert devices.try_all_gpus() == [npx.cpu()]
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert devices.try_gpu() == npx.cpu()


def test_usable_gpus_keep_their_numbers(gpus):
    gpus(HOPPER, AMPERE)
    with pytest.warns(RuntimeWarning):
        assert devices.try_all_gpus() == [npx.gpu(1)]
    assert devices.try_gpu(0) == npx.cpu()
    assert devices.try_gpu(1) == npx.gpu(1)


def test_a_gpu_that_mxnet_does_not_see_is_left_out(gpus, monkeypatch):
    gpus(AMPERE, count=0)
    assert devices.try_all_gpus() == [npx.cpu()]

    def fail():
        raise mx.base.MXNetError('CUDA driver version is insufficient')
    monkeypatch.setattr(npx, 'num_gpus', fail)
    assert devices.try_all_gpus() == [npx.cpu()]


@pytest.mark.parametrize('text, expected', [
    ('cpu', [npx.cpu()]), ('cpu:1', [npx.cpu()]),
    ('cpu:2', [npx.cpu(0), npx.cpu(1)]), ('auto', [npx.gpu(0), npx.gpu(1)]),
    ('gpu', [npx.gpu(0), npx.gpu(1)]), ('gpu:1', [npx.gpu(1)]),
    (' gpu:1,0 ', [npx.gpu(1), npx.gpu(0)])])
def test_the_command_line_names_devices(gpus, text, expected):
    gpus(AMPERE, AMPERE)
    assert devices.parse_devices(text) == expected


def test_auto_without_a_gpu_is_the_cpu(gpus):
    assert devices.parse_devices('auto') == [npx.cpu()]


@pytest.mark.parametrize('text', [
    '', 'tpu', 'cpu:', 'cpu:0', 'cpu:two', 'cpu:1,2', 'gpu:', 'gpu:-1',
    'gpu:0,', 'gpu:0, 1', 'auto:2'])
def test_an_unknown_device_is_refused(gpus, text):
    gpus(AMPERE, AMPERE)
    with pytest.raises(ValueError, match="must be 'auto', 'cpu'") as refused:
        devices.parse_devices(text)
    assert repr(text) in str(refused.value)


def test_a_missing_or_repeated_gpu_is_refused(gpus):
    with pytest.raises(ValueError, match='GPUs here: none'):
        devices.parse_devices('gpu')
    gpus(AMPERE)
    with pytest.raises(ValueError, match='GPUs here: gpu:0;'):
        devices.parse_devices('gpu:0,1')
    with pytest.raises(ValueError, match='twice'):
        devices.parse_devices('gpu:0,0')


def test_a_net_is_loaded_on_devices_alone():
    two = [npx.cpu(0), npx.cpu(1)]
    for given, expected in (
            (None, two[:1]), ([], two[:1]), (two[1], two[1:]), (two, two),
            (tuple(two), two), (iter(two), two)):
        assert devices.devices_of_net(given) == expected
    for given in 'gpu', 0, ['cpu'], [None], npx.cpu:
        with pytest.raises(TypeError, match='^a net can be loaded on a device '
                                            'or a list of devices, as try_g'):
            devices.devices_of_net(given)


@pytest.mark.parametrize('given', [npx.cpu(), [npx.cpu()], 0, None])
def test_the_devices_of_a_run_are_named_by_a_string(given):
    with pytest.raises(TypeError, match="^devices must be a string such as "
                                        "'auto', .*, not "):
        devices.parse_devices(given)
