"""The files of a checkpoint folder: JSON, and tensors as safetensors.

Pickles are never loaded, because they can run any code. A damaged config.json
may describe a model of any size, but its tensors are no larger than their
file. So its sizes are checked against the tensors before a model is
constructed.
"""
import hashlib
import json
import math
import os
import stat
import struct
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, Optional

import numpy as onp

from d2lbert.machine import files
from d2lbert.nn.quantized import QuantizedWeight

WEIGHTS = 'model.safetensors'
INDEX = f'{WEIGHTS}.index.json'

#: NumPy dtypes of the supported tensor types. NumPy has no bfloat16, which
#: is the upper half of a float32.
TYPES = {'F32': '<f4', 'F16': '<f2', 'F64': '<f8', 'BF16': '<u2'}

#: The type of a quantized matrix, and the ending of the name of its scales.
QUANTIZED, SCALE = 'I8', '_scale'

#: The metadata entry with digests of the tensors: JSON, {name: BLAKE2b of 16
#: bytes, hexadecimal}.
DIGESTS = 'd2lbert.blake2b'

#: Checkpoint files in other formats, which are not supported.
OTHERS = ('pytorch_model.bin', 'pytorch_model.bin.index.json',
          'tf_model.h5', 'flax_model.msgpack', 'bert_model.ckpt.index')


class PretrainedError(ValueError):
    """A folder cannot be read or written; the text is one sentence."""


def safetensors():
    """The library `safetensors`; ImportError if it is missing."""
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            'checkpoint folders need the library safetensors, which cannot '
            f"be imported ({error}): pip install '.[pretrained]', or pip "
            "install 'safetensors<1'") from None
    return safetensors


def read_json(path, kind=dict):
    """The dict in a JSON file, or the list if `kind` is list."""
    try:
        found = files.read_json(path)
    except FileNotFoundError:
        raise PretrainedError(f'{Path(path).parent} has no {Path(path).name}:'
                              ' it is no folder of a pretrained model'
                              ) from None
    except OSError as error:
        raise PretrainedError(f'{path} cannot be read: {error.strerror}'
                              ) from None
    except ValueError as error:
        raise PretrainedError(f'{path} is damaged: {error}; fetch it again'
                              ) from None
    if not isinstance(found, kind):
        wanted = 'object of names and values' if kind is dict else 'list'
        raise PretrainedError(f'{path} is damaged: it holds no {wanted}; '
                              'fetch it again')
    return found


class Stored(NamedTuple):
    """The place of a tensor in a file."""

    path: Any
    name: str
    dtype: str          # as safetensors calls it
    shape: tuple
    begin: int          # of its first byte in the file
    digest: Optional[str]   # of its bytes, None if the file has none
    scale: Optional['Stored'] = None    # the scales of a quantized matrix

    def __str__(self):
        if self.scale is not None:
            return shown_quantized(self.shape)
        shape = shown(self.shape)
        return shape if self.dtype in TYPES else f'{shape} of {self.dtype}'


def shown(shape):
    """A shape as text: 30522 x 384."""
    return ' x '.join(map(str, shape)) or 'a number'


def shown_quantized(shape):
    """The shape of a quantized matrix as text."""
    return f'{shown(shape)} of {QUANTIZED} and scales'


def with_scales(tensors):
    """Join the quantized matrices of {name: `Stored`} with their scales.

    Scales that fit no matrix remain separate entries.
    """
    found = dict(tensors)
    for name, where in tensors.items():
        scale = tensors.get(name + SCALE)
        if (where.dtype == QUANTIZED and len(where.shape) == 2
                and scale is not None and scale.dtype == 'F32'
                and scale.shape == where.shape[:1]):
            found[name] = where._replace(scale=found.pop(name + SCALE))
    return found


def stored(folder):
    """{name: `Stored`} of the tensors of a folder, one file or shards."""
    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        return _stored_in(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _stored_in_shards(folder / INDEX)
    for name in OTHERS:
        if (folder / name).is_file():
            raise PretrainedError(_way_to_convert(folder, name))
    raise PretrainedError(f'{folder} has no {WEIGHTS}: it holds no weights')


def _way_to_convert(folder, name):
    """The error message for weights in the unsupported file `name`."""
    if name != 'pytorch_model.bin':
        return (f'{folder} has its weights in {name}, but only {WEIGHTS} is '
                'supported: where transformers and the library of this '
                'format are installed, load the folder and save it again '
                'with save_pretrained(...)')
    program = ('import torch, safetensors.torch as s; '
               f"w = torch.load('{name}', 'cpu', weights_only=True); "
               's.save_file({k: v.clone().contiguous() for k, v in '
               "w.items()}, 'model.safetensors', {'format': 'pt'})")
    return (f'{folder / name} is a pickle, which may run any program when it '
            'is loaded, and is not supported: where torch and safetensors are '
            f'installed, convert it with cd {quote(str(folder))} && python '
            f'-c "{program}"')


def _stored_in_shards(index):
    shards = read_json(index).get('weight_map')
    if not isinstance(shards, dict) or not all(
            isinstance(shard, str) and Path(shard).name == shard
            for shard in shards.values()):
        raise PretrainedError(f'{index} is damaged: its weight_map does not '
                              'give each tensor the name of a file beside it; '
                              'fetch it again')
    found = {}
    for shard in sorted(set(shards.values())):
        path = index.with_name(shard)
        if not os.path.isfile(path):    # False if the name is too long
            raise PretrainedError(f'{index} names {shard[:200]}, which is not '
                                  'there: fetch all files of the folder')
        found.update((name, where) for name, where
                     in _stored_in(path).items() if shards.get(name) == shard)
    for name in shards:
        if name not in found:
            raise PretrainedError(f'{index} lists {name} in {shards[name]}, '
                                  'which does not have it: fetch both again')
    return found


def _stored_in(path):
    """{name: `Stored`} of one file, after the library has checked it."""
    library = safetensors()
    try:
        with library.safe_open(str(path), 'np'):
            pass
        with open(path, 'rb') as file:
            header_size, = struct.unpack('<Q', file.read(8))
            header = files.parse_json(file.read(header_size))
            digests = _digests(header.pop('__metadata__', {}), header)
            data = 8 + header_size      # the position of the first tensor
            num_bytes = file.seek(0, 2) - data
        # Old versions of the library do not check this
        if num_bytes < max((entry['data_offsets'][1] for entry
                            in header.values()), default=0):
            raise ValueError('its end is missing')
    except (library.SafetensorError, OSError, ValueError) as error:
        raise PretrainedError(f'{path} is no whole safetensors file: {error}; '
                              'fetch it again') from None
    return {name: Stored(path, name, entry['dtype'], tuple(entry['shape']),
                         data + entry['data_offsets'][0], digests.get(name))
            for name, entry in header.items()}


def _digests(metadata, header):
    """{name: digest} of a file; {} if another program wrote it."""
    if DIGESTS not in metadata:
        return {}
    digests = files.parse_json(metadata[DIGESTS])
    if not isinstance(digests, dict) or digests.keys() != header.keys():
        raise ValueError('its digests are not those of its tensors')
    return digests


def _digest(array):
    return hashlib.blake2b(array.reshape(-1).view('uint8'),
                           digest_size=16).hexdigest()


def read(where):
    """Read a `Stored` tensor as float32, on the host.

    Raises `PretrainedError` if its bytes do not match their digest.
    """
    found = _values(where, TYPES[where.dtype])
    if where.dtype == 'BF16':
        found = (found.astype('<u4') << 16).view('<f4')
    return found.astype('float32', copy=False).reshape(where.shape)


def read_quantized(where):
    """Read a quantized matrix as a `QuantizedWeight`, on the host.

    Raises `PretrainedError` if its bytes do not match their digest, if a
    weight is -128, or if a scale is negative, infinite or NaN.
    """
    weight = QuantizedWeight(_values(where, 'int8').reshape(where.shape),
                             read(where.scale))
    # On some processors int8.cc multiplies absolute values of seven bits
    if (weight.q == -128).any() or not (
            onp.isfinite(weight.scale) & (weight.scale >= 0)).all():
        raise PretrainedError(
            f'{where.path} is damaged: {where.name} has the number -128 or '
            'a scale that is negative, infinite or NaN; fetch it again')
    return weight


def _values(where, dtype):
    """The values of a tensor in the order of the file, checked, 1-D."""
    with open(where.path, 'rb') as file:
        file.seek(where.begin)
        count = int(onp.prod(where.shape, dtype='int64'))
        found = onp.fromfile(file, dtype, count)
    if len(found) < count:
        raise PretrainedError(f'{where.path} became shorter while it was '
                              'read: fetch it again')
    if where.digest is not None and _digest(found) != where.digest:
        raise PretrainedError(f'{where.path} is damaged: the digest of '
                              f'{where.name} does not match its values; fetch '
                              'it again')
    return found


def write(path, tensors, name):
    """Write {name: float32 or int8 array} as one safetensors file.

    Its metadata has a digest of each tensor. name: the name of the file in
    error messages.
    """
    library, path = safetensors(), Path(path)
    path.touch()
    mode = path.stat().st_mode      # by the umask, which the library ignores
    try:
        tensors = {name: onp.ascontiguousarray(
            array, 'int8' if array.dtype == 'int8' else '<f4')
                   for name, array in tensors.items()}
        digests = {name: _digest(array) for name, array in tensors.items()}
        # Some versions of transformers reject files without 'format'
        library.numpy.save_file(tensors, str(path), metadata={
            'format': 'pt', DIGESTS: json.dumps(digests)})
        path.chmod(stat.S_IMODE(mode))
    except library.SafetensorError as error:
        raise OSError(f'{name} cannot be written: {error}') from None


#: Arguments of the models that are at most the longest side of a tensor.
WIDTHS = ('vocab_size', 'num_hiddens', 'ffn_num_hiddens', 'num_heads',
          'embedding_size', 'num_segments', 'decoder_ffn', 'decoder_heads',
          'start_id')

#: Most layers of a model in which groups of layers share tensors.
SHARED_LAYERS = 1000

#: Most values in a table of sinusoidal positions, which is never stored.
POSITIONS = 1 << 26


def check_layers(config, count):
    """Raise ValueError if `count` tensors are too few for the layers.

    config: arguments of a `BERTModel` or a `BARTModel`.
    """
    layers, groups, inner, decoder = (
        value if isinstance(value, int) else 0 for value in map(
            config.get, ('num_layers', 'num_groups', 'inner_group_num',
                         'decoder_layers')))
    if groups and layers > SHARED_LAYERS:
        raise ValueError(f'{layers} layers are more than the {SHARED_LAYERS} '
                         'that may share their tensors')
    layers = (groups or layers) * max(inner, 1) + decoder
    if layers > count:
        raise ValueError(f'{count} tensors cannot be {layers} layers')


def check_sizes(config, shapes):
    """As `check_layers`; raise also for a size that no tensor can have.

    shapes: the shapes of all tensors.
    """
    shapes = list(shapes)
    check_layers(config, len(shapes))
    widest = max((size for shape in shapes for size in shape), default=0)
    for name in WIDTHS:
        value = config.get(name)
        if isinstance(value, int) and value > widest:
            raise ValueError(f'{name} is {value}, but no tensor has more '
                             f'than {widest} rows or columns')
    length, width = config.get('max_len'), config.get('num_hiddens')
    if isinstance(length, int) and isinstance(width, int):
        most = max([POSITIONS, *map(math.prod, shapes)])
        if length * width > most:
            raise ValueError(f'max_len is {length}, which is too long for '
                             'the tensors')
