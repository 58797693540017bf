"""This module reads and writes the JSON and safetensors files of a checkpoint.

Pickles are never loaded, because they can run any code. A damaged config.json
may describe a model too large for the memory. So its sizes are compared with
the tensors, which are no larger than their file, before a model is made.
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

#: {tensor type in safetensors: NumPy dtype}. BF16 is the upper half of a
#: float32. NumPy lacks this type, so it is read as an integer.
TYPES = {'F32': '<f4', 'F16': '<f2', 'F64': '<f8', 'BF16': '<u2'}

#: The type of a quantized matrix. The scales of matrix NAME are the tensor
#: NAME_scale.
QUANTIZED_TYPE, SCALE_SUFFIX = 'I8', '_scale'

#: The key of the tensors' digests in a file's metadata. The value is JSON:
#: {name of a tensor: its BLAKE2b digest of 16 bytes, hexadecimal}.
DIGESTS = 'd2lbert.blake2b'

UNSUPPORTED_FILES = (
    'pytorch_model.bin', 'pytorch_model.bin.index.json', 'tf_model.h5',
    'flax_model.msgpack', 'bert_model.ckpt.index')


class PretrainedError(ValueError):
    """A checkpoint folder cannot be read or written.

    The message is a sentence, perhaps followed by a list of tensors.
    """


def safetensors():
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            'checkpoint folders need the library safetensors, which cannot '
            f"be imported ({error}): pip install '.[pretrained]', or pip "
            "install 'safetensors<1'") from None
    return safetensors


def read_json(path, expected_type=dict):
    """Read a JSON file; expected_type: dict or list."""
    try:
        value = files.read_json(path)
    except FileNotFoundError:
        raise PretrainedError(f'{Path(path).parent} has no {Path(path).name}:'
                              ' it is no folder of a pretrained model, name '
                              'another or fetch this file') from None
    except OSError as error:
        raise PretrainedError(f'{path} cannot be read: {error.strerror}'
                              ) from None
    except ValueError as error:
        raise PretrainedError(f'{path} is damaged: {error}; fetch it again'
                              ) from None
    if not isinstance(value, expected_type):
        expected = ('object of names and values' if expected_type is dict
                    else 'list')
        raise PretrainedError(f'{path} is damaged: it holds no {expected}; '
                              'fetch it again')
    return value


class StoredTensor(NamedTuple):
    """A tensor in a file, whose values are not read yet."""

    path: Any
    name: str
    dtype: str              # the name of the type in safetensors
    shape: tuple
    begin: int              # offset in the file, in bytes
    digest: Optional[str]   # of its bytes; None if the file has no digests
    scale: Optional['StoredTensor'] = None      # scales of a quantized matrix

    def __str__(self):
        if self.scale is not None:
            return format_quantized_shape(self.shape)
        shape = format_shape(self.shape)
        return shape if self.dtype in TYPES else f'{shape} of {self.dtype}'


def format_shape(shape):
    """A shape as text: 30522 x 384."""
    return ' x '.join(map(str, shape)) or 'a number'


def format_quantized_shape(shape):
    return f'{format_shape(shape)} of {QUANTIZED_TYPE} and scales'


def with_scales(tensors):
    """Store the scales of each quantized matrix as its `scale`: a new dict.

    tensors: {name: `StoredTensor`}. Scales that fit no matrix remain entries.
    """
    joined = dict(tensors)
    for name, tensor in tensors.items():
        scale = tensors.get(name + SCALE_SUFFIX)
        if (tensor.dtype == QUANTIZED_TYPE and len(tensor.shape) == 2
                and scale is not None and scale.dtype == 'F32'
                and scale.shape == tensor.shape[:1]):
            joined[name] = tensor._replace(scale=scale)
            del joined[name + SCALE_SUFFIX]
    return joined


def list_tensors(folder):
    """{name: `StoredTensor`} of model.safetensors or of its shards."""
    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        return _list_file(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _list_shards(folder / INDEX)
    for name in UNSUPPORTED_FILES:
        if (folder / name).is_file():
            raise PretrainedError(_unsupported_message(folder, name))
    if files.is_run(folder):
        raise PretrainedError(f'{folder} is a run, and no folder of a '
                              'pretrained model: load it with load_model, or '
                              'write such a folder of it with d2lbert export')
    raise PretrainedError(f'{folder} has no {WEIGHTS}: it holds no weights, '
                          'fetch this file')


def _unsupported_message(folder, name):
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


def _list_shards(index_path):
    """{name: `StoredTensor`} of all shards."""
    shard_of = read_json(index_path).get('weight_map')
    # A name with a folder in it could lead out of the checkpoint folder
    if not isinstance(shard_of, dict) or not all(
            isinstance(shard, str) and Path(shard).name == shard != ''
            for shard in shard_of.values()):
        raise PretrainedError(f'{index_path} is damaged: its weight_map must '
                              'map each tensor to a file in the same folder; '
                              'fetch it again')
    tensors = {}
    for shard in sorted(set(shard_of.values())):
        path = index_path.with_name(shard)
        # Path.is_file would raise OSError for a name that is too long
        if not os.path.isfile(path):
            raise PretrainedError(f'{index_path} names {shard[:200]}, which '
                                  'is not in the folder: fetch all its files')
        tensors.update(
            (name, tensor) for name, tensor in _list_file(path).items()
            if shard_of.get(name) == shard)
    for name in shard_of:
        if name not in tensors:
            raise PretrainedError(f'{index_path} lists {name} in '
                                  f'{shard_of[name]}, which does not have it: '
                                  'fetch both again')
    return tensors


def _list_file(path):
    """{name: `StoredTensor`} of one file."""
    library = safetensors()
    try:
        with library.safe_open(str(path), 'np'):
            pass        # the library raises an error for a damaged header
        with open(path, 'rb') as file:
            header = _read_header(file)
            metadata = header.pop('__metadata__', {})
            digests = _stored_digests(metadata, header.keys())
            data_begin = file.tell()
            data_size = file.seek(0, os.SEEK_END) - data_begin
        # data_offsets: begin and end of a tensor, in bytes from data_begin
        needed_size = max((entry['data_offsets'][1]
                           for entry in header.values()), default=0)
        # Old versions of the library do not check the length of the file
        if data_size < needed_size:
            raise ValueError('its end is missing')
    except (library.SafetensorError, OSError, ValueError) as error:
        raise PretrainedError(f'{path} is no whole safetensors file: {error}; '
                              'fetch it again') from None
    return {name: StoredTensor(
        path, name, entry['dtype'], tuple(entry['shape']),
        begin=data_begin + entry['data_offsets'][0],
        digest=digests.get(name)) for name, entry in header.items()}


def _read_header(file):
    """Read the header of an open safetensors file, up to the tensors' bytes.
    """
    size, = struct.unpack('<Q', file.read(8))
    return files.parse_json(file.read(size))


def _stored_digests(metadata, tensor_names):
    """{name: digest}; {} if the file has no digests."""
    if DIGESTS not in metadata:
        return {}
    digests = files.parse_json(metadata[DIGESTS])
    if not isinstance(digests, dict) or digests.keys() != tensor_names:
        raise ValueError('its digests do not match the names of its '
                         'tensors')
    return digests


def _digest(array):
    return hashlib.blake2b(array.reshape(-1).view('uint8'),
                           digest_size=16).hexdigest()


def read(tensor):
    """Read the values of a `StoredTensor` as a float32 NumPy array.

    Raises `PretrainedError` if bytes are missing or do not match the digest.
    """
    values = _read_flat(tensor, TYPES[tensor.dtype])
    if tensor.dtype == 'BF16':      # the integers are the upper halves
        values = (values.astype('<u4') << 16).view('<f4')
    return values.astype('float32', copy=False).reshape(tensor.shape)


def read_quantized(matrix):
    """Read a `StoredTensor` with scales as a `QuantizedWeight`.

    Raises `PretrainedError` as `read` does, and for values that quantizing
    cannot give.
    """
    weight = QuantizedWeight(
        _read_flat(matrix, 'int8').reshape(matrix.shape), read(matrix.scale))
    # Quantizing gives -127 to 127, so -128 is a sign of damage
    if (weight.q == -128).any() or not (
            onp.isfinite(weight.scale) & (weight.scale >= 0)).all():
        raise PretrainedError(
            f'{matrix.path} is damaged: {matrix.name} has the number -128 or '
            'a scale that is negative, infinite or NaN; fetch it again')
    return weight


def _read_flat(tensor, dtype):
    """Read the values of a `StoredTensor`: a 1-D array of this NumPy dtype."""
    with open(tensor.path, 'rb') as file:
        file.seek(tensor.begin)
        num_values = int(onp.prod(tensor.shape, dtype='int64'))
        values = onp.fromfile(file, dtype, num_values)
    if len(values) < num_values:
        raise PretrainedError(f'{tensor.path} became shorter while it was '
                              'read: fetch it again')
    if tensor.digest is not None and _digest(values) != tensor.digest:
        raise PretrainedError(f'{tensor.path} is damaged: the digest of '
                              f'{tensor.name} does not match its values; '
                              'fetch it again')
    return values


def write(path, tensors, displayed_path):
    """Write {name: float32 or int8 array} as one safetensors file.

    Equal tensors give equal bytes. displayed_path: for error messages, since
    `path` may be temporary.
    """
    library, path = safetensors(), Path(path)
    # The library ignores the umask: its file gets the mode of this empty file
    path.touch()
    mode = path.stat().st_mode
    try:
        tensors = {name: onp.ascontiguousarray(
            array, 'int8' if array.dtype == 'int8' else '<f4')
                   for name, array in tensors.items()}
        digests = {name: _digest(array) for name, array in tensors.items()}
        # Some versions of transformers reject files without 'format'
        library.numpy.save_file(tensors, str(path), metadata={
            'format': 'pt', DIGESTS: json.dumps(digests)})
        _sort_metadata(path)
        path.chmod(stat.S_IMODE(mode))
    except library.SafetensorError as error:
        raise OSError(f'{displayed_path} cannot be written: {error}') from None


def _sort_metadata(path):
    """Sort the metadata of a file, which the library writes in random order.
    """
    with open(path, 'r+b') as file:
        header = _read_header(file)
        header_end = file.tell()
        header['__metadata__'] = dict(sorted(header['__metadata__'].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(',', ':'))
        file.seek(8)
        file.write(text.encode().ljust(header_end - 8))


#: Arguments of a net that are at most the longest axis of its tensors.
LIMITED_BY_AXES = (
    'vocab_size', 'num_hiddens', 'ffn_num_hiddens', 'num_heads',
    'embedding_size', 'num_segments', 'decoder_ffn', 'decoder_heads',
    'start_id')

#: A limit, since any number of layers can share the same tensors.
MAX_SHARED_LAYERS = 1000

#: A position embedding with this many elements is accepted even if no tensor
#: is so large, because tables of sinusoidal positions are not stored.
MAX_POSITION_VALUES = 1 << 26


def check_layers(config, num_tensors):
    """Raise ValueError if a `config` has too many layers for its tensors.

    config: keyword arguments of a `BERTModel` or a `BARTModel`.
    """
    def int_or_0(name):
        value = config.get(name)
        return value if isinstance(value, int) else 0
    layers, groups = int_or_0('num_layers'), int_or_0('num_groups')
    if groups and layers > MAX_SHARED_LAYERS:
        raise ValueError(f'{layers} layers are more than the '
                         f'{MAX_SHARED_LAYERS} that may share their tensors')
    # The layers of a group share the tensors of its inner_group_num blocks.
    # Without groups, each block is a layer
    stored_blocks = ((groups or layers) * max(int_or_0('inner_group_num'), 1)
                     + int_or_0('decoder_layers'))
    if stored_blocks > num_tensors:
        raise ValueError(f'{num_tensors} tensors are too few for '
                         f'{stored_blocks} {"blocks" if groups else "layers"}')


def check_against_tensors(config, shapes):
    """Raise ValueError if tensors are too few or too small for a `config`.

    config: as for `check_layers`. shapes: the shapes of all tensors, an
    iterable.
    """
    shapes = list(shapes)
    check_layers(config, len(shapes))
    longest = max((size for shape in shapes for size in shape), default=0)
    for name in LIMITED_BY_AXES:
        value = config.get(name)
        if isinstance(value, int) and value > longest:
            raise ValueError(f'{name} is {value}, but no tensor has more '
                             f'than {longest} rows or columns')
    max_len, num_hiddens = config.get('max_len'), config.get('num_hiddens')
    if isinstance(max_len, int) and isinstance(num_hiddens, int):
        max_position_values = max([MAX_POSITION_VALUES,
                                   *map(math.prod, shapes)])
        if max_len * num_hiddens > max_position_values:
            raise ValueError(f'max_len is {max_len}, which is too long for '
                             'the tensors')
