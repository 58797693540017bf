"""Find devices; `try_gpu` and `try_all_gpus` are of the book's page "GPUs"."""
import warnings
from collections.abc import Iterable

from d2lbert.machine import backend
from d2lbert.machine.arguments import short_repr, split_devices
from d2lbert.machine.backend import mx, npx

_warned_gpus = set()


def _usable_gpus():
    """Return the indices of the GPUs that MXNet can compute on.

    Warn once in a process about each GPU that mxnet-cu112 cannot use. MXNet's
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


def device_list(devices, caller):
    """Return, as a list, the argument `devices` of the function `caller`.

    Raises ValueError for None or an empty iterable, and TypeError for a single
    device and for anything else.
    """
    items = _as_list(devices)
    is_single = isinstance(devices, mx.Context)
    if items and not is_single and _are_devices(items):
        return items
    raise (TypeError if items else ValueError)(
        f'{caller} needs a list of at least one device, as try_all_gpus() '
        f'gives, not {short_repr(devices)}')


def devices_of_net(ctx):
    """Return, as a list, the argument `ctx` of a function that loads a net.

    ctx: a device or an iterable of devices, the CPU if None or empty. Raises
    TypeError for anything else.
    """
    items = _as_list(ctx)
    if not _are_devices(items):
        raise TypeError('a net can be loaded on a device or a list of '
                        'devices, as try_gpu() or try_all_gpus() gives, not '
                        f'on {short_repr(ctx)}')
    return items or [npx.cpu()]


def _as_list(devices):
    if devices is None:
        return []
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
    kind, numbers = split_devices(text)     # numbers after the colon, or []
    if kind == 'auto':
        return try_all_gpus()
    if kind == 'cpu':
        num_devices, = numbers or [1]
        return [npx.cpu(i) for i in range(num_devices)]
    usable = _usable_gpus()
    indices = numbers or usable
    if not usable or not set(indices) <= set(usable):
        usable_names = ', '.join(f'gpu:{i}' for i in usable) or 'none'
        raise ValueError(f'devices are {text!r}, and MXNet can use these '
                         f"GPUs here: {usable_names}; choose 'cpu', or let "
                         '`d2lbert doctor` explain')
    if len(set(indices)) < len(indices):
        raise ValueError(f'devices are {text!r}, which names a GPU twice')
    return [npx.gpu(i) for i in indices]
