"""This module reads and checks a checkpoint folder without MXNet.

A folder has a config.json, tensors and a tokenizer. The table of a net is a
list of `tensor_names.Tensor`, the tensors that a folder should have. The
tensors in the folder are compared with the table. folders.py loads a folder
into an MXNet net. `load_quantized` loads a folder into an int8 encoder.
"""
from pathlib import Path
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.machine.array_files import count_not_finite, warn_not_finite
from d2lbert.machine.terminal import warn
from d2lbert.nn.quantized import (
    Layout,
    QuantizedEncoder,
    QuantizedWeight,
    check_layout,
    is_quantized,
    quantize,
)
from d2lbert.pretrained import tensor_files
from d2lbert.pretrained.families import config as configs
from d2lbert.pretrained.families import tensor_names
from d2lbert.pretrained.families.family import family_of
from d2lbert.pretrained.families.tensor_names import PARTS
from d2lbert.pretrained.pooling import load_pooling
from d2lbert.pretrained.tensor_files import PretrainedError, check_layers
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece


class Difference(NamedTuple):
    """A tensor that differs between a folder and the table of a net."""

    name: str
    state: str          # 'missing', 'left over', or 'misshapen' (of a wrong
                        # shape or type)
    expected: str       # the shape in the table, '' if left over
    found: str          # the shape in the folder, '' if missing
    part: str           # the `part` of a tensor_names.Tensor, '' if left over


class Pretrained(NamedTuple):
    """The folder that a net comes from; str() lists the differences."""

    folder: Path
    config: dict        # fields of config.json, see `config.read_keywords`
    differences: tuple  # of `Difference`s

    def lacking(self, part):
        """True if the folder lacks tensors of a part, which are then random.

        part: a key of `tensor_names.PARTS`.
        """
        return any(difference.state == 'missing' and difference.part == part
                   for difference in self.differences)

    def __str__(self):
        return format_table(self.differences) or (
            f'{self.folder} holds every tensor, and no other')


def format_table(differences):
    """`Difference`s as a text of aligned columns; '' if there are none."""
    lines = [('tensor', 'state', 'expected', 'found'),
             *(difference[:4] for difference in differences)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return '\n'.join(
        '  '.join(map(str.ljust, line, widths)).rstrip()
        for line in lines) if differences else ''


class OpenFolder(NamedTuple):
    """A checkpoint folder with a valid config.json."""

    folder: Path
    keywords: dict      # keyword arguments of `BERTModel` or `BARTModel`
    config: dict        # fields of config.json, see `config.read_keywords`
    tensors: dict       # {name in the table: `tensor_files.StoredTensor`}

    @property
    def is_quantized(self):
        """True if the matrices of the encoder are int8."""
        return self.config.get(configs.QUANTIZATION) is not None

    def check(self, table, required_parts=('encoder', 'decoder')):
        """Compare the folder's tensors with a table; return a `Pretrained`.

        Raises `PretrainedError`, which lists the differences, if a tensor has
        a wrong shape or type, or if a tensor of a required part is missing.
        """
        differences = _compare(table, self.tensors, self.is_quantized)
        _raise_for(differences, self.folder, family_of(self.keywords),
                   required_parts)
        return Pretrained(self.folder, self.config, tuple(differences))

    def tokenizer(self):
        """Load the tokenizer and set its `pooling`.

        Raises `PretrainedError`.
        """
        folder, size = self.folder, self.keywords['vocab_size']
        try:
            tokenizer = WordPiece.load(folder)
            tokenizer.pooling = load_pooling(folder)
        except (ValueError, OSError) as error:
            raise PretrainedError(str(error)) from None
        if len(tokenizer) > size:
            raise PretrainedError(
                f'the tokenizer of {folder} has {len(tokenizer)} tokens, but '
                f'the model only {size}: they belong to different models')
        return tokenizer

    def values(self, table):
        """Read the tensors of a table: yield (line of the table, values).

        The values are an array, a `QuantizedWeight`, or None for a missing
        tensor. At the end, a warning names tensors that contain NaN or
        infinity.
        """
        # {name of a tensor: its number of NaN and infinite values}
        not_finite_counts = {}
        for line in table:
            # A tensor under both names is read as the alias, see `_compare`
            tensor = (self.tensors.get(line.alias)
                      or self.tensors.get(line.name))
            if tensor is None:
                yield line, None
            elif tensor.scale is not None:
                yield line, tensor_files.read_quantized(tensor)
            else:
                values = tensor_files.read(tensor)
                not_finite_counts[tensor.name] = count_not_finite(values)
                yield line, (values[::-1] if line.reversed
                             else values)[line.skip:]
        warn_not_finite(self.folder, not_finite_counts)


def open_folder(folder):
    """Return the `OpenFolder` of a path; raises `PretrainedError`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise PretrainedError(
            f'there is no folder {folder}: name one on this disk that holds '
            'config.json, model.safetensors and tokenizer.json or vocab.txt '
            '(models are never downloaded by name)')
    keywords, config = configs.read_keywords(folder / 'config.json')
    stored = tensor_files.list_tensors(folder)
    try:
        check_layers(keywords, len(stored))
    except ValueError as error:
        raise PretrainedError(f'{folder} does not hold what its config.json '
                              f'describes: {error}') from None
    family = family_of(keywords)
    names = tensor_names.current_names(stored, family)
    tensors = {current: stored[name] for current, name in names.items()}
    if config.get(configs.QUANTIZATION) is not None:
        tensors = tensor_files.with_scales(tensors)
    _drop_copies(folder, family, tensors)
    keywords['tie_embeddings'] = _drop_tied_copy(keywords, tensors)
    _drop_missing_heads(keywords, family, tensors, config['skip'])
    return OpenFolder(folder, keywords, config, tensors)


def _drop_missing_heads(keywords, family, tensors, skip):
    """Remove from the keywords the optional heads that the folder lacks."""
    missing = {part for part in family.optional_heads
               if not any(line.name in tensors
                          for line in tensor_names.table(keywords, skip)
                          if line.part == part)}
    if missing:
        keywords['heads'] = tuple(part for part in keywords['heads']
                                  if part not in missing)


def _drop_copies(folder, family, tensors):
    """Remove copies of the token embedding from `tensors`.

    Raises `PretrainedError` if a copy differs.
    """
    embedding_name = f'{family.names["encoder.token_embedding"]}.weight'
    for name in [f'{copy}.weight' for copy in family.embedding_copies]:
        if name not in tensors:
            continue
        copy = tensors.pop(name)
        # A folder may have copies only: the first copy is then the embedding
        if not _are_equal(copy, tensors.setdefault(embedding_name, copy)):
            raise PretrainedError(
                f'{folder}: {name} is another tensor than {embedding_name}, '
                f'but a {family.title} here has a single token embedding')


def _are_equal(a, b):
    """True if two `StoredTensor`s have equal shapes and values."""
    return (a.shape == b.shape
            and {a.dtype, b.dtype} <= set(tensor_files.TYPES)
            and onp.array_equal(tensor_files.read(a), tensor_files.read(b)))


def _drop_tied_copy(keywords, tensors):
    """Remove a copy of tied weights from `tensors`.

    Returns True if the last layer of the MLM head has tied weights. As in
    transformers 5, weights that differ from the token embedding are not tied,
    even if config.json has tie_word_embeddings.
    """
    names = family_of(keywords).names
    output_name = f'{names["mlm.output"]}.weight'
    output, embedding = tensors.get(output_name), tensors.get(
        f'{names["encoder.token_embedding"]}.weight')
    if not keywords['tie_embeddings'] or output is None:
        return keywords['tie_embeddings']
    # If the embedding is missing, `OpenFolder.check` reports it later
    if embedding is None or not _are_equal(output, embedding):
        return False
    del tensors[output_name]
    return True


def _compare(table, tensors, folder_is_quantized):
    """List the `Difference`s between a table and an `OpenFolder`'s tensors."""
    differences, unused = [], dict(tensors)
    for line in table:
        # If the folder has the tensor under both names, `alias` wins, as in
        # transformers
        named = unused.pop(line.name, None)
        tensor = unused.pop(line.alias, None) or named
        is_int8 = folder_is_quantized and quantized_name(line.ours) is not None
        expected = (tensor_files.format_quantized_shape if is_int8
                    else tensor_files.format_shape)(line.shape)
        if tensor is None:
            if not line.optional:
                differences.append(Difference(line.name, 'missing', expected,
                                              '', line.part))
            continue
        has_type = (tensor.scale is not None if is_int8
                    else tensor.dtype in tensor_files.TYPES)
        if tensor.shape != line.shape or not has_type:
            differences.append(Difference(tensor.name, 'misshapen', expected,
                                          str(tensor), line.part))
    return differences + [
        Difference(tensor.name, 'left over', '', str(tensor), '')
        for tensor in unused.values()]


def quantized_name(ours):
    """The name within the encoder of a parameter that int8 quantizes.

    ours: the parameter's name in the net. Returns None for other parameters.
    """
    part, _, name = ours.partition('.')
    return name if part == 'encoder' and is_quantized(name) else None


def _raise_for(differences, folder, family, required_parts):
    """Raise `PretrainedError` as `OpenFolder.check` does."""
    num_misshapen = sum(difference.state == 'misshapen'
                        for difference in differences)
    missing_parts = [part for _, state, _, _, part in differences
                     if state == 'missing' and part in required_parts]
    if num_misshapen or missing_parts:
        parts = ' and the '.join(part for part in required_parts
                                 if part in missing_parts)
        reason = (f'{num_misshapen} tensors do not have the shape or type '
                  'that its config.json asks for' if num_misshapen else
                  f'{len(missing_parts)} tensors of the {parts} are missing')
        raise PretrainedError(f'{folder} does not hold the {family.title} '
                              f'that its config.json describes: {reason}:\n'
                              f'{format_table(differences)}')


def warn_of_differences(pretrained, heads):
    """Warn in one line of incomplete heads and unused tensors.

    pretrained: a `Pretrained`. heads: the heads that should be complete, keys
    of `tensor_names.PARTS`.
    """
    notes = []
    lacking = [PARTS[part] for part in heads if pretrained.lacking(part)]
    if lacking:
        notes.append('it lacks tensors of the ' + ' and the '.join(lacking)
                     + ', which are random until they are trained')
    unused = [difference.name for difference in pretrained.differences
              if difference.state == 'left over']
    if unused:
        more = f' and {len(unused) - 4} more' if len(unused) > 4 else ''
        notes.append(f'left over and not used: {", ".join(unused[:4])}{more}')
    if notes:
        warn(f'{pretrained.folder}: {"; ".join(notes)} (net.pretrained has '
             'the table)')


class QuantizedModel(NamedTuple):
    """A net without heads, which `encoding.TextEncoder` accepts."""

    encoder: QuantizedEncoder
    config: dict        # keyword arguments of the net
    pretrained: Any     # a `Pretrained`


def load_quantized(folder, precision=None):
    """Load a folder as (`QuantizedModel`, tokenizer), or return None.

    Commands that only need vectors call this, because `import mxnet` takes
    longer than loading an int8 encoder and encoding a text. The vectors equal
    those of a net that `load_pretrained` loads with int8, to the bit.

    precision: 'int8' quantizes the weights of any folder. With None, the
    result is None for a folder without quantized weights. Raises
    `PretrainedError`, and ValueError for a net that cannot be quantized.
    """
    config_path = Path(folder, 'config.json')
    if (precision is None and config_path.is_file() and configs.read_keywords(
            config_path)[1].get(configs.QUANTIZATION) is None):
        return None     # The caller loads a net. No tensors are read here
    opened = open_folder(folder)
    layout = Layout.of_config(opened.keywords)
    check_layout(layout)
    table = tensor_names.table(opened.keywords, opened.config['skip'])
    pretrained, tokenizer = opened.check(table), opened.tokenizer()
    params = {}
    for line, values in opened.values([line for line in table
                                       if line.part == 'encoder']):
        name = line.ours.partition('.')[2]
        if is_quantized(name) and not isinstance(values, QuantizedWeight):
            values = quantize(values, line.name)
        params[name] = values
    warn_of_differences(pretrained, ())
    return QuantizedModel(QuantizedEncoder(layout, params), opened.keywords,
                          pretrained), tokenizer
