"""Batches split into parts, for gradient accumulation and for devices."""
from d2lbert.machine.backend import npx
from d2lbert.nn.checks import on_device


def row_ranges(num_rows, num_parts):
    """(begin, end) of nearly equal parts of rows, a list of num_parts."""
    ends = [k * num_rows // num_parts for k in range(num_parts + 1)]
    return list(zip(ends, ends[1:]))


def part_of(batch, k, num_parts):
    """The k-th of num_parts nearly equal parts of a batch's rows.

    batch: a named tuple of columns with a row for each example.
    """
    begin, end = row_ranges(len(batch[0]), num_parts)[k]
    return type(batch)(*(column[begin:end] for column in batch))


def shards(batch, devices):
    """(part of a batch, device) for each device that gets an example.

    A batch smaller than the number of devices leaves the last ones out.
    """
    devices = devices[:len(batch[0])]
    return [(part_of(batch, k, len(devices)), device)
            for k, device in enumerate(devices)]


def spread(X, devices, dtype=None):
    """Parts of an array (B, ...), each on its device: a list of arrays."""
    devices = devices[:len(X)]
    return [on_device(X[begin:end], device, dtype).as_in_ctx(device)
            for (begin, end), device in zip(row_ranges(len(X), len(devices)),
                                            devices)]


def wait_for_step_before():
    """Wait until the devices are idle; call before each forward pass.

    Its batch may already be on the devices. But memory that it takes while
    the step before it is freed becomes fragmented: large arrays no longer
    fit, and more memory is used.
    """
    npx.waitall()
