"""This module reads and checks a checkpoint folder without MXNet.

A folder has a config.json, tensors and a tokenizer. The table of a net is a
list of `tensor_names.TensorSpec`s, the tensors that its folder should have.
folders.py loads a folder into an MXNet net.
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
    int8_quantizes,
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
    expected: str       # shape, and type if int8; '' if left over
    found: str          # shape, and type unless it is in `tensor_files.TYPES`;
                        # '' if missing
    part: str           # as in `TensorSpec`; '' if left over


class Pretrained(NamedTuple):
    """The folder that a net comes from; str() lists the differences."""

    folder: Path
    fields: dict        # of config.json; see `read_keywords_and_fields`
    differences: tuple  # of `Difference`s

    def lacks(self, part):
        """True if at least one tensor of a part is missing.

        part: a key of `tensor_names.PARTS`.
        """
        return any(difference.state == 'missing' and difference.part == part
                   for difference in self.differences)

    def __str__(self):
        return _format_differences(self.differences) or (
            f'{self.folder} holds every tensor, and no other')


def _format_differences(differences):
    """`Difference`s as a text of aligned columns, or ''."""
    if not differences:
        return ''
    rows = [('tensor', 'state', 'expected', 'found'),
            *(difference[:4] for difference in differences)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return '\n'.join('  '.join(map(str.ljust, row, widths)).rstrip()
                     for row in rows)


class OpenFolder(NamedTuple):
    """A checkpoint folder with a valid config.json."""

    folder: Path
    keywords: dict      # keyword arguments of `BERTModel` or `BARTModel`
    fields: dict        # of config.json; see `read_keywords_and_fields`
    tensors: dict       # {current name: `tensor_files.StoredTensor`}, see
                        # `tensor_names.current_names`

    @property
    def stores_int8(self):
        """True if the matrices of the encoder are int8."""
        return self.fields.get(configs.QUANTIZATION) is not None

    @property
    def head_kinds(self):
        """The kinds of task head that config.json may mean; [] for none."""
        finetuned = family_of(self.keywords).finetuned
        for class_name in self.fields.get('architectures') or ():
            kinds = [kind for kind, name in finetuned.items()
                     if name == class_name]
            if kinds:
                return kinds
        return []

    def table(self):
        """The table of the net without a task head."""
        return tensor_names.table(self.keywords,
                                  self.fields['num_skipped_rows'])

    def check(self, table, required_parts=('encoder', 'decoder')):
        """Compare the folder's tensors with a table; return a `Pretrained`.

        Raises `PretrainedError`, which lists the differences, if a tensor has
        a wrong shape or type, or if a tensor of a required part is missing.
        """
        differences = _compare(table, self.tensors, self.stores_int8)
        _raise_for_differences(differences, self.folder,
                               family_of(self.keywords), required_parts)
        return Pretrained(self.folder, self.fields, tuple(differences))

    def tokenizer(self):
        """Load the tokenizer with its `pooling`; raises `PretrainedError`."""
        folder, vocab_size = self.folder, self.keywords['vocab_size']
        try:
            tokenizer = WordPiece.load(folder)
            tokenizer.pooling = load_pooling(folder)
        except (ValueError, OSError) as error:
            raise PretrainedError(str(error)) from None
        if len(tokenizer) > vocab_size:
            raise PretrainedError(
                f'the tokenizer of {folder} has {len(tokenizer)} tokens, but '
                f'the model only {vocab_size}: they belong to different '
                'models')
        return tokenizer

    def values(self, table):
        """Read the tensors of a table: yield (`TensorSpec`, values).

        The values are None for a missing tensor, a `QuantizedWeight`, or an
        array with the rows of the net's parameter, in the parameter's order.
        At the end, a warning names tensors that contain NaN or infinity.
        """
        not_finite_counts = {}
        for spec in table:
            tensor = _find_tensor(spec, self.tensors)
            if tensor is None:
                yield spec, None
            elif tensor.scale is not None:
                yield spec, tensor_files.read_quantized(tensor)
            else:
                values = tensor_files.read(tensor)
                not_finite_counts[tensor.name] = count_not_finite(values)
                if spec.is_reversed:
                    values = values[::-1]
                yield spec, values[spec.num_skipped_rows:]
        warn_not_finite(self.folder, not_finite_counts)


def _find_tensor(spec, tensors):
    """The tensor of a `TensorSpec`, or None."""
    # As in transformers, the alias wins
    return tensors.get(spec.alias) or tensors.get(spec.name)


def open_folder(folder):
    """Return the `OpenFolder` of a path; raises `PretrainedError`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise PretrainedError(
            f'there is no folder {folder}: name one on this disk that holds '
            'config.json, model.safetensors and tokenizer.json or vocab.txt '
            '(models are never downloaded by name)')
    keywords, fields = configs.read_keywords_and_fields(folder / 'config.json')
    stored = tensor_files.list_tensors(folder)
    try:
        check_layers(keywords, len(stored))
    except ValueError as error:
        raise PretrainedError(f'{folder} does not hold what its config.json '
                              f'describes: {error}') from None
    family = family_of(keywords)
    tensors = {current_name: stored[name] for current_name, name
               in tensor_names.current_names(stored, family).items()}
    if fields.get(configs.QUANTIZATION) is not None:
        tensors = tensor_files.with_scales(tensors)
    _drop_copies(folder, family, tensors)
    keywords['tie_embeddings'] = _tie_weights(keywords, tensors)
    if keywords['tie_embeddings']:
        # A copy of the token embedding, which the table lacks
        tensors.pop(f'{family.names["mlm.output"]}.weight', None)
    opened = OpenFolder(folder, keywords, fields, tensors)
    _drop_missing_heads(opened)
    return opened


def _drop_missing_heads(opened):
    """Remove from `opened.keywords` each optional head without tensors."""
    keywords = opened.keywords
    present = {spec.part for spec in opened.table()
               if spec.name in opened.tensors}
    missing = set(family_of(keywords).optional_heads) - present
    if missing:
        keywords['heads'] = tuple(head for head in keywords['heads']
                                  if head not in missing)


def _drop_copies(folder, family, tensors):
    """Remove copies of the token embedding from `tensors`.

    Raises `PretrainedError` if a copy differs.
    """
    embedding_name = f'{family.names["encoder.token_embedding"]}.weight'
    for name in [f'{layer}.weight' for layer in family.embedding_copies]:
        if name not in tensors:
            continue
        copy = tensors.pop(name)
        # If a folder has copies only, the first copy becomes the embedding
        if not _are_equal(copy, tensors.setdefault(embedding_name, copy)):
            raise PretrainedError(
                f'{folder}: {name} differs from {embedding_name}, '
                f'but a {family.title} here has a single token embedding: '
                'choose a model in which they are equal')


def _tie_weights(keywords, tensors):
    """Return True if the last layer of the MLM head has tied weights.

    As in transformers 5, weights that differ from the token embedding are not
    tied, even if tie_word_embeddings is true. If only the last layer's are
    stored, they are added to `tensors` as the token embedding.
    """
    names = family_of(keywords).names
    output = tensors.get(f'{names["mlm.output"]}.weight')
    if not keywords['tie_embeddings'] or output is None:
        return keywords['tie_embeddings']
    embedding = tensors.setdefault(
        f'{names["encoder.token_embedding"]}.weight', output)
    return _are_equal(output, embedding)


def _are_equal(a, b):
    """True if two `StoredTensor`s of supported types are equal."""
    return (a.shape == b.shape
            and {a.dtype, b.dtype} <= set(tensor_files.TYPES)
            and onp.array_equal(tensor_files.read(a), tensor_files.read(b)))


def _compare(table, tensors, stores_int8):
    """List the `Difference`s between a table and an `OpenFolder`'s tensors."""
    differences = []
    for spec in table:
        tensor = _find_tensor(spec, tensors)
        is_int8 = stores_int8 and (
            name_in_quantized_encoder(spec.param_name) is not None)
        expected = (tensor_files.format_quantized_shape(spec.shape) if is_int8
                    else tensor_files.format_shape(spec.shape))
        if tensor is None:
            if not spec.is_optional:
                differences.append(Difference(spec.name, 'missing', expected,
                                              '', spec.part))
            continue
        has_right_type = (
            tensor.scale is not None if is_int8
            else tensor.dtype in tensor_files.TYPES)
        if tensor.shape != spec.shape or not has_right_type:
            differences.append(Difference(tensor.name, 'misshapen', expected,
                                          str(tensor), spec.part))
    used_names = {name for spec in table for name in (spec.name, spec.alias)}
    return differences + [
        Difference(tensor.name, 'left over', '', str(tensor), '')
        for name, tensor in tensors.items() if name not in used_names]


def name_in_quantized_encoder(param_name):
    """The key of a net's parameter in `QuantizedEncoder.weights`.

    None if int8 does not quantize the parameter.
    """
    part, _, name_in_part = param_name.partition('.')
    return (name_in_part if part == 'encoder'
            and int8_quantizes(name_in_part) else None)


def _raise_for_differences(differences, folder, family, required_parts):
    """Raise `PretrainedError` as `OpenFolder.check` does."""
    num_misshapen = sum(difference.state == 'misshapen'
                        for difference in differences)
    missing = [difference for difference in differences
               if difference.state == 'missing'
               and difference.part in required_parts]
    if num_misshapen:
        reason = (f'{num_misshapen} tensors do not have the shape or type '
                  'that its config.json asks for')
    elif missing:
        missing_parts = {difference.part for difference in missing}
        parts = ' and the '.join(part for part in required_parts
                                 if part in missing_parts)
        reason = f'{len(missing)} tensors of the {parts} are missing'
    else:
        return
    raise PretrainedError(f'{folder} does not hold the {family.title} '
                          f'that its config.json describes: {reason}; '
                          'fetch config.json and the weights again:\n'
                          f'{_format_differences(differences)}')


def warn_of_differences(pretrained, heads):
    """Warn in one line of incomplete heads and unused tensors.

    heads: the heads that should be complete, keys of `tensor_names.PARTS`.
    """
    notes = []
    incomplete = [PARTS[part] for part in heads if pretrained.lacks(part)]
    if incomplete:
        parts = ' and the '.join(incomplete)
        notes.append(f'it lacks tensors of the {parts}, which are random '
                     'until they are trained')
    unused = [difference.name for difference in pretrained.differences
              if difference.state == 'left over']
    if unused:
        more = f' and {len(unused) - 4} more' if len(unused) > 4 else ''
        notes.append(f'left over and not used: {", ".join(unused[:4])}{more}')
    if notes:
        warn(f'{pretrained.folder}: {"; ".join(notes)} '
             '(print(net.pretrained) lists these tensors)')


class QuantizedModel(NamedTuple):
    """A net without heads, which `encoding.TextEncoder` accepts."""

    encoder: QuantizedEncoder
    config: dict        # the keywords of the net, as in `OpenFolder`
    pretrained: Any     # a `Pretrained`


def load_quantized(folder, precision=None):
    """Load a folder as (`QuantizedModel`, tokenizer), or return None.

    This function does not import MXNet: the import takes longer than loading
    an int8 encoder and encoding a text. The vectors equal those of a net that
    `load_pretrained` loads with int8, to the bit.

    precision: 'int8' quantizes the weights of any folder. With None, the
    result is None for a folder without quantized weights. Raises
    `PretrainedError`, and ValueError for a net that cannot be quantized.
    """
    config_path = Path(folder, 'config.json')
    # Do not list the tensors of a folder that gives None. If config.json is
    # missing, `open_folder` raises the error
    if precision is None and config_path.is_file():
        _, fields = configs.read_keywords_and_fields(config_path)
        if fields.get(configs.QUANTIZATION) is None:
            return None
    opened = open_folder(folder)
    layout = Layout.of_config(opened.keywords)
    check_layout(layout)
    table = opened.table()
    pretrained, tokenizer = opened.check(table), opened.tokenizer()
    params = {}
    for spec, values in opened.values([spec for spec in table
                                       if spec.part == 'encoder']):
        _, _, name_in_encoder = spec.param_name.partition('.')
        if int8_quantizes(name_in_encoder) and not isinstance(
                values, QuantizedWeight):
            values = quantize(values, spec.name)
        params[name_in_encoder] = values
    if not opened.head_kinds:   # a task head does not change vectors
        warn_of_differences(pretrained, ())
    return QuantizedModel(QuantizedEncoder(layout, params), opened.keywords,
                          pretrained), tokenizer
