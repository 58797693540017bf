"""Batches split into parts, for gradient accumulation and for devices."""
from d2lbert.machine.backend import gluon, npx
from d2lbert.nn.checks import on_device


def part_of(batch, k, num_parts):
    """The k-th of num_parts nearly equal parts of a batch's rows.

    batch: a named tuple of columns with a row for each example.
    """
    rows = len(batch[0])
    begin, end = (j * rows // num_parts for j in (k, k + 1))
    return type(batch)(*(column[begin:end] for column in batch))


def shards(batch, devices):
    """(part of a batch, device) for each device that gets an example.

    A batch smaller than the number of devices leaves the last ones out.
    """
    devices = devices[:len(batch[0])]
    return [(part_of(batch, k, len(devices)), device)
            for k, device in enumerate(devices)]


def spread(X, devices, dtype=None):
    """Parts of an array (B, ...), each on its device: a list of arrays.

    Split as the book's pages do it, by Gluon: the first parts may have a row
    more. A batch smaller than the number of devices leaves the last ones
    out.
    """
    devices = devices[:len(X)]
    return gluon.utils.split_and_load(on_device(X, devices[0], dtype),
                                      devices, even_split=False)


def wait_for_step_before():
    """Wait until the devices are idle; call before each forward pass.

    Its batch may already be on the devices. But memory that it takes while
    the step before it is freed becomes fragmented: large arrays no longer
    fit, and more memory is used.
    """
    npx.waitall()
