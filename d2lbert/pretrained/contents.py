"""The content of a checkpoint folder, read and checked without MXNet.

config.json, tensors and tokenizer, and the differences between the tensors
and the table of a net, a list of `tensor_names.Tensor`. folders.py loads the
content into an MXNet net, `load_quantized` into an int8 encoder.
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
    state: str          # missing, left over or misshapen
    expected: str       # the shape in the table, '' if left over
    found: str          # the shape in the folder, '' if missing
    part: str           # a key of tensor_names.PARTS, '' if left over


class Pretrained(NamedTuple):
    """The origin of a net; str() of it is the table of differences."""

    folder: Path
    config: dict        # the fields of config.json
    differences: tuple

    def lacking(self, part):
        """True if tensors of this part are missing, and drawn at random.

        part: a key of `tensor_names.PARTS`.
        """
        return any(line.state == 'missing' and line.part == part
                   for line in self.differences)

    def __str__(self):
        return format_table(self.differences) or (
            f'{self.folder} holds every tensor, and no other')


def format_table(differences):
    """`Difference`s as text, one line each, in aligned columns."""
    lines = [('tensor', 'state', 'expected', 'found'),
             *(line[:4] for line in differences)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return '\n'.join(
        '  '.join(map(str.ljust, line, widths)).rstrip()
        for line in lines) if differences else ''


class Opened(NamedTuple):
    """A folder with a valid config.json."""

    folder: Path
    keywords: dict      # of `BERTModel` or `BARTModel`
    config: dict        # the fields of config.json, see `config.keywords`
    current: dict       # {name in the table: `tensor_files.Stored`}

    @property
    def is_quantized(self):
        """True if the matrices of its encoder are int8."""
        return self.config.get(configs.QUANTIZATION) is not None

    def check(self, lines, needed=('encoder', 'decoder')):
        """Compare its tensors with the table of a net: a `Pretrained`.

        lines: the table. needed: parts of which no tensor may be missing.
        Raises `PretrainedError` with the list if tensors do not fit.
        """
        differences = _compare(lines, self.current, self.is_quantized)
        _check(self.folder, family_of(self.keywords), differences, needed)
        return Pretrained(self.folder, self.config, tuple(differences))

    def tokenizer(self):
        """Its tokenizer, with its pooling; raises `PretrainedError`."""
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

    def values(self, lines):
        """Read its tensors: yield each line of a table and its values.

        The values are an array, a `QuantizedWeight`, or None for a missing
        tensor. A warning at the end names tensors that contain NaN or
        infinity.
        """
        counts = {}
        for line in lines:
            where = self.current.get(line.alias) or self.current.get(line.name)
            if where is None:
                yield line, None
            elif where.scale is not None:
                yield line, tensor_files.read_quantized(where)
            else:
                found = tensor_files.read(where)
                counts[where.name] = count_not_finite(found)
                yield line, (found[::-1] if line.reversed
                             else found)[line.skip:]
        warn_not_finite(self.folder, counts)


def open_folder(folder):
    """Read the `Opened` of a folder on disk; raises `PretrainedError`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise PretrainedError(
            f'there is no folder {folder}: name one on this disk that holds '
            'config.json, model.safetensors and tokenizer.json or vocab.txt '
            '(models are never downloaded by name)')
    keywords, config = configs.read_keywords(folder / 'config.json')
    found = tensor_files.stored(folder)
    try:
        check_layers(keywords, len(found))
    except ValueError as error:
        raise PretrainedError(f'{folder} does not hold what its config.json '
                              f'describes: {error}') from None
    family = family_of(keywords)
    renamed = tensor_names.current_names(found, family)
    current = {name: found[theirs] for name, theirs in renamed.items()}
    if config.get(configs.QUANTIZATION) is not None:
        current = tensor_files.with_scales(current)
    _drop_copies(folder, family, current)
    if not _drop_tied(keywords, current):
        keywords['tie_embeddings'] = False
    _drop_missing_heads(keywords, family, current, config['skip'])
    return Opened(folder, keywords, config, current)


def _drop_missing_heads(keywords, family, current, skip):
    """Remove the optional heads that the folder lacks from the keywords."""
    lost = {part for part in family.optional_heads
            if not any(line.name in current
                       for line in tensor_names.table(keywords, skip)
                       if line.part == part)}
    if lost:
        keywords['heads'] = tuple(part for part in keywords['heads']
                                  if part not in lost)


def _drop_copies(folder, family, current):
    """Remove copies of the token embedding; raise if one differs."""
    shared = f'{family.names["encoder.token_embedding"]}.weight'
    for name in [f'{copy}.weight' for copy in family.embedding_copies]:
        if name not in current:
            continue
        copy = current.pop(name)
        # A folder may have copies only: the first is then the embedding
        if not _are_equal(copy, current.setdefault(shared, copy)):
            raise PretrainedError(
                f'{folder}: {name} is another tensor than {shared}, but a '
                f'{family.title} here has a single token embedding')


def _are_equal(a, b):
    """True if two `Stored` tensors have equal shapes and values."""
    return (a.shape == b.shape
            and {a.dtype, b.dtype} <= set(tensor_files.TYPES)
            and onp.array_equal(tensor_files.read(a), tensor_files.read(b)))


def _drop_tied(keywords, current):
    """True if the last layer of the MLM head has tied weights.

    If `current` has them a second time, they are removed from it. As in
    transformers 5, weights that differ from the token embedding are not
    tied, even if config.json says so.
    """
    names = family_of(keywords).names
    decoder_name = f'{names["mlm.output"]}.weight'
    decoder, embedding = current.get(decoder_name), current.get(
        f'{names["encoder.token_embedding"]}.weight')
    if not keywords['tie_embeddings'] or decoder is None:
        return keywords['tie_embeddings']
    # A wrong shape is refused later, with the table of differences
    if embedding is None or not _are_equal(decoder, embedding):
        return False
    del current[decoder_name]
    return True


def _compare(lines, current, quantized):
    """The `Difference`s between a table and {name in it: `Stored`}.

    quantized: True for a folder whose encoder has int8 weights.
    """
    differences, unused = [], dict(current)
    for line in lines:
        # The second name wins, as in transformers
        first = unused.pop(line.name, None)
        where = unused.pop(line.alias, None) or first
        is_int8 = quantized and quantized_name(line.ours) is not None
        expected = (tensor_files.shown_quantized if is_int8
                    else tensor_files.shown)(line.shape)
        if where is None:
            if not line.optional:
                differences.append(Difference(line.name, 'missing', expected,
                                              '', line.part))
        elif where.shape != line.shape or not (
                where.scale is not None if is_int8
                else where.dtype in tensor_files.TYPES):
            differences.append(Difference(where.name, 'misshapen', expected,
                                          str(where), line.part))
    return differences + [Difference(where.name, 'left over', '', str(where),
                                     '') for where in unused.values()]


def quantized_name(ours):
    """The name in the encoder of a parameter that int8 quantizes, or None."""
    part, _, name = ours.partition('.')
    return name if part == 'encoder' and is_quantized(name) else None


def _check(folder, family, differences, needed):
    """Raise for tensors of a wrong shape and incomplete needed parts."""
    misshapen = [line.name for line in differences
                 if line.state == 'misshapen']
    lost = [line.part for line in differences
            if line.state == 'missing' and line.part in needed]
    if misshapen or lost:
        parts = ' and the '.join(part for part in needed if part in lost)
        reason = (f'{len(misshapen)} tensors do not have the shape or type '
                  'in its config.json' if misshapen else
                  f'{len(lost)} tensors of the {parts} are missing')
        raise PretrainedError(f'{folder} does not hold the {family.title} '
                              f'that its config.json describes: {reason}:\n'
                              f'{format_table(differences)}')


def warn_of_differences(described, heads):
    """Warn in one line of missing and superfluous tensors."""
    notes = []
    lacking = [PARTS[part] for part in heads if described.lacking(part)]
    if lacking:
        notes.append('it lacks tensors of the ' + ' and the '.join(lacking)
                     + ', which are random until they are trained')
    over = [line.name for line in described.differences
            if line.state == 'left over']
    if over:
        more = f' and {len(over) - 4} more' if len(over) > 4 else ''
        notes.append(f'left over and not used: {", ".join(over[:4])}{more}')
    if notes:
        warn(f'{described.folder}: {"; ".join(notes)} (net.pretrained has the '
             'table)')


class QuantizedModel(NamedTuple):
    """An encoder for `encoding.TextEncoder`: a net without heads."""

    encoder: QuantizedEncoder
    config: dict        # keyword arguments of the net
    pretrained: Any     # a `Pretrained`


def load_quantized(folder, precision=None):
    """The `QuantizedModel` and the tokenizer of a folder, or None.

    `import mxnet` takes longer than loading such an encoder and encoding a
    text. So commands that only need vectors call this.

    precision: 'int8', or None. With None, the result is None for a folder
    that is not quantized. Vectors are the same as from `load_pretrained`, to
    the bit. Raises `PretrainedError`, and ValueError for a net that cannot be
    quantized.
    """
    config = Path(folder, 'config.json')
    if (precision is None and config.is_file() and configs.read_keywords(
            config)[1].get(configs.QUANTIZATION) is None):
        return None     # before a tensor is read: the caller loads a net
    opened = open_folder(folder)
    layout = Layout.of_config(opened.keywords)
    check_layout(layout)
    lines = tensor_names.table(opened.keywords, opened.config['skip'])
    pretrained, tokenizer = opened.check(lines), opened.tokenizer()
    params = {}
    for line, values in opened.values([line for line in lines
                                       if line.part == 'encoder']):
        name = line.ours.partition('.')[2]
        if is_quantized(name) and not isinstance(values, QuantizedWeight):
            values = quantize(values, line.name)
        params[name] = values
    warn_of_differences(pretrained, ())
    return QuantizedModel(QuantizedEncoder(layout, params), opened.keywords,
                          pretrained), tokenizer
