"""This module lists devices, as the book's page "GPUs" of chapter 5 does."""
import warnings
from collections.abc import Iterable

from d2lbert.machine import backend
from d2lbert.machine.arguments import short_repr, split_devices
from d2lbert.machine.backend import mx, npx

# The GPUs that warnings have named so far
_warned_gpus = set()


def _usable_gpus():
    """Return the indices of the GPUs that MXNet can compute on.

    Warns once in a process of each GPU that mxnet-cu112 cannot use. MXNet's
    `num_gpus` counts such a GPU, too, but the first operator on it fails.
    """
    usable = []
    for gpu in backend.gpus():
        if gpu.is_usable:
            usable.append(gpu.index)
        elif gpu not in _warned_gpus:
            _warned_gpus.add(gpu)
            warnings.warn(
                f'GPU {gpu.index} ({gpu.name}) is left out: {gpu.reason}; '
                'other GPUs or the CPU are used instead',
                RuntimeWarning, stacklevel=3)
    if not usable:
        return []
    try:
        num_gpus = npx.num_gpus()
    except mx.base.MXNetError:  # CUDA and the driver do not fit together
        num_gpus = 0
    # MXNet may see fewer GPUs than the driver; its CPU build sees none
    return [index for index in usable if index < num_gpus]


def try_gpu(i=0):
    """Return gpu(i) if MXNet can compute on it, else cpu()."""
    return npx.gpu(i) if i in _usable_gpus() else npx.cpu()


def try_all_gpus():
    """Return a list of the GPUs that MXNet can compute on, or else [cpu()]."""
    return [npx.gpu(i) for i in _usable_gpus()] or [npx.cpu()]


def device_list(devices, user):
    """Return the devices that a function takes, an iterable, as a list.

    user: the name of the function. Raises ValueError for None and for an empty
    iterable, and TypeError for anything else that has no devices.
    """
    found = [] if devices is None else _items(devices)
    is_list = not isinstance(devices, mx.Context) and _are_devices(found)
    if found and is_list:
        return found
    raise (TypeError if found else ValueError)(
        f'{user} needs a list of at least one device, as try_all_gpus() '
        f'gives, not {short_repr(devices)}')


def devices_of_net(ctx):
    """Return a list of the devices on which a net is loaded.

    ctx: a device or an iterable of devices, the CPU if None or empty. Raises
    TypeError for anything else.
    """
    found = [] if ctx is None else _items(ctx)
    if not _are_devices(found):
        raise TypeError('a net can be loaded on a device or a list of '
                        'devices, as try_gpu() or try_all_gpus() gives, not '
                        f'on {short_repr(ctx)}')
    return found or [npx.cpu()]


def _items(devices):
    """The items of an iterable as a list; for anything else, [devices]."""
    return list(devices) if isinstance(devices, Iterable) else [devices]


def _are_devices(items):
    return all(isinstance(item, mx.Context) for item in items)


def parse_devices(text):
    """Return the list of devices that a command line names.

    text: 'auto' (every usable GPU, else the CPU), 'cpu', 'cpu:2' (the CPU
    as two devices), 'gpu' (every usable GPU) or 'gpu:0,1'. Raises ValueError
    for any other text, for a GPU that is not usable or named twice, and for
    'gpu' if no GPU is usable.
    """
    # numbers: [2] for 'cpu:2', [0, 1] for 'gpu:0,1', [] without a colon
    kind, numbers = split_devices(text)
    if kind == 'auto':
        return try_all_gpus()
    if kind == 'cpu':
        return [npx.cpu(i) for i in range(numbers[0] if numbers else 1)]
    usable = _usable_gpus()
    wanted = numbers or usable
    missing = [i for i in wanted if i not in usable]
    if missing or not usable:
        names = ', '.join(f'gpu:{i}' for i in usable) or 'none'
        raise ValueError(f'devices are {text!r}, and MXNet can use these '
                         f"GPUs here: {names}; choose 'cpu', or let "
                         '`d2lbert doctor` explain')
    if len(set(wanted)) < len(wanted):
        raise ValueError(f'devices are {text!r}, which names a GPU twice')
    return [npx.gpu(i) for i in wanted]
