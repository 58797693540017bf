"""Checkpoint folders of BERT and its relatives: loading and saving.

The format is the one of Hugging Face's libraries: config.json, weights as
safetensors, the tokenizer. Folders are read from disk and never downloaded.
"""
import json
from pathlib import Path
from typing import NamedTuple

import numpy as onp

from d2lbert.machine.array_files import count_not_finite, warn_not_finite
from d2lbert.machine.backend import init, mx
from d2lbert.machine.files import new_folder, write_text
from d2lbert.machine.terminal import warn
from d2lbert.nn.checks import on_device
from d2lbert.nn.layers import fill_later
from d2lbert.nn.precision import check_precision, set_precision
from d2lbert.nn.quantized import (
    Layout,
    QuantizedEncoder,
    QuantizedWeight,
    check_layout,
    is_quantized,
)
from d2lbert.pretrained import tensor_files
from d2lbert.pretrained.families import config as configs
from d2lbert.pretrained.families import tensor_names
from d2lbert.pretrained.families.family import family_of
from d2lbert.pretrained.families.nets import net_of
from d2lbert.pretrained.families.tensor_names import HEADS, PARTS
from d2lbert.pretrained.sentence_transformers import files_of, load_pooling
from d2lbert.pretrained.size_checks import check_layers
from d2lbert.pretrained.tensor_files import PretrainedError
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


def load_pretrained(folder, ctx=None, heads=HEADS, trainable=True,
                    precision=None):
    """Load the net and tokenizer of a folder on disk: (net, tokenizer).

    config.json names the family, BERT or a relative in `family.FAMILIES`.
    ctx: a device or a list of devices; None is the CPU. Weights become
    float32. Heads that are missing in the folder are drawn at random, with
    its initializer_range. A warning is logged if they are among `heads`
    ('pooler', 'mlm', 'nsp'). `print(net.pretrained)` lists all tensors that
    are missing or left over. trainable=False saves the memory of gradients,
    for inference. precision: 'bf16' or 'int8' for faster inference, see
    `precision.set_precision`. None is the precision of the folder: int8 if
    its weights are quantized, else fp32.

    Raises `PretrainedError` for a folder that cannot be read; its text has
    the same list if tensors do not fit. Raises ImportError without the
    libraries `tokenizers` and `safetensors`.
    """
    check_precision(precision)
    opened = open_folder(folder)
    net, tokenizer = fill_net(
        opened, tensor_names.table(opened.keywords, opened.config['skip']),
        lambda: net_of(opened.keywords), ctx, trainable, precision)
    _warn_of_differences(net.pretrained, heads)
    return net, tokenizer


class Opened(NamedTuple):
    """A folder with a valid config.json."""

    folder: Path
    keywords: dict      # of `BERTModel` or `BARTModel`
    config: dict        # the fields of config.json, see `config.keywords`
    current: dict       # {name in the table: `tensor_files.Stored`}


def open_folder(folder):
    """Read the `Opened` of a folder on disk; raises `PretrainedError`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise PretrainedError(
            f'there is no folder {folder}: name one on this disk that holds '
            'config.json, model.safetensors and tokenizer.json or vocab.txt '
            '(models are never downloaded by name)')
    keywords, config = configs.keywords(folder / 'config.json')
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
    if not _is_tied(keywords, current):
        keywords['tie_embeddings'] = False
    _drop_missing_heads(keywords, family, current, config['skip'])
    return Opened(folder, keywords, config, current)


def fill_net(opened, lines, make, ctx=None, trainable=True, precision=None,
             needed=('encoder', 'decoder')):
    """Load the weights of a folder into a net: (net, tokenizer).

    lines: the table of the net that make() constructs. precision: as for
    `load_pretrained`. needed: parts whose tensors may not be missing; other
    parts may be drawn at random.
    """
    folder, keywords, config, current = opened
    quantized = config.get(configs.QUANTIZATION) is not None
    differences = _compare(lines, current, quantized)
    _check(folder, family_of(keywords), differences, needed)
    try:
        tokenizer = WordPiece.load(folder)
        tokenizer.pooling = load_pooling(folder)
    except (ValueError, OSError) as error:
        raise PretrainedError(str(error)) from None
    if len(tokenizer) > keywords['vocab_size']:
        raise PretrainedError(
            f'the tokenizer of {folder} has {len(tokenizer)} tokens, but the '
            f'model only {keywords["vocab_size"]}: they belong to different '
            'models')
    net = make()
    if not trainable:
        net.collect_params().setattr('grad_req', 'null')
    values, counts = _read(lines, current)
    _fill(net, lines, values, config['initializer_range'], ctx or mx.cpu())
    if quantized and precision in (None, 'int8'):
        layout = Layout.of_config(keywords)
        check_layout(layout)
        net.encoder.quantized = QuantizedEncoder(layout, _of_encoder(values))
    warn_not_finite(folder, counts)
    net.pretrained = Pretrained(folder, config, tuple(differences))
    return set_precision(net, precision), tokenizer


def _drop_missing_heads(keywords, family, current, skip):
    """Remove the optional heads that the folder lacks from the keywords."""
    lost = {part for part in family.optional
            if not any(line.name in current
                       for line in tensor_names.table(keywords, skip)
                       if line.part == part)}
    if lost:
        keywords['heads'] = tuple(part for part in keywords['heads']
                                  if part not in lost)


def _drop_copies(folder, family, current):
    """Remove copies of the token embedding; raise if one differs."""
    shared = f'{family.names["encoder.token_embedding"]}.weight'
    for name in [f'{copy}.weight' for copy in family.copies]:
        if name not in current:
            continue
        copy = current.pop(name)
        if not _are_equal(copy, current.setdefault(shared, copy)):
            raise PretrainedError(
                f'{folder}: {name} is another tensor than {shared}, but a '
                f'{family.title} here has a single token embedding')


def _are_equal(a, b):
    """True if two `Stored` tensors have equal shapes and values."""
    return (a.shape == b.shape
            and {a.dtype, b.dtype} <= set(tensor_files.TYPES)
            and onp.array_equal(tensor_files.read(a), tensor_files.read(b)))


def _is_tied(keywords, current):
    """True if the last layer of the MLM head has tied weights.

    As in transformers 5, weights that differ from the token embedding are
    not tied, even if config.json says so.
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
    differences, strangers = [], dict(current)
    for line in lines:
        # The second name wins, as in transformers
        one = strangers.pop(line.name, None)
        where = strangers.pop(line.also, None) or one
        is_int8 = quantized and _quantized_name(line.ours) is not None
        expected = (tensor_files.shown_quantized if is_int8
                    else tensor_files.shown)(line.shape)
        if where is None:
            if not line.spare:
                differences.append(Difference(line.name, 'missing', expected,
                                              '', line.part))
        elif where.shape != line.shape or not (
                where.scale is not None if is_int8
                else where.dtype in tensor_files.TYPES):
            differences.append(Difference(where.name, 'misshapen', expected,
                                          str(where), line.part))
    return differences + [Difference(where.name, 'left over', '', str(where),
                                     '') for where in strangers.values()]


def _quantized_name(ours):
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


def _read(lines, current):
    """Read the tensors of a table: {name here: array or `QuantizedWeight`}.

    Returns them, and {name in the folder: count of values that are NaN or
    infinite}.
    """
    values, counts = {}, {}
    for line in lines:
        where = current.get(line.also) or current.get(line.name)
        if where is None:
            continue
        if where.scale is not None:
            values[line.ours] = tensor_files.read_quantized(where)
            continue
        found = tensor_files.read(where)
        counts[where.name] = count_not_finite(found)
        values[line.ours] = (found[::-1] if line.reversed
                             else found)[line.skip:]
    return values, counts


def _of_encoder(values):
    """{name in the encoder: value} of the values in a net."""
    parts = {name.partition('.')[::2]: found for name, found in values.items()}
    return {name: found for (part, name), found in parts.items()
            if part == 'encoder'}


def _fill(net, lines, values, spread, ctx):
    """Set each parameter to its value; draw parameters without one."""
    params = net._collect_params_with_prefix()
    for line in lines:
        param, found = params[line.ours], values.get(line.ours)
        if found is None:
            # Biases and LayerNorms have their usual initial values
            param.initialize(ctx=ctx, default_init=init.Normal(spread))
        elif isinstance(found, QuantizedWeight):
            fill_later(param, found.values, ctx)
        else:
            param._load_init(on_device(found.reshape(param.shape), mx.cpu()),
                             ctx)


def _warn_of_differences(described, heads):
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


def save_pretrained(net, tokenizer, folder, parts=None):
    """Write net and tokenizer as a new folder, whole or not at all.

    `transformers.BertForPreTraining` and `AutoTokenizer` load the folder. A
    fine-tuned net is loaded by BertForSequenceClassification,
    BertForTokenClassification or BertForQuestionAnswering, with the names of
    its labels. Relatives of BERT have the classes of their family. Weights
    are float32, in one file, without copies of tied weights. The `pooling`
    of the tokenizer is written as the files of sentence-transformers. The
    folder of a net with precision='int8' has int8 weights and a quarter of
    the size; other libraries cannot load it. parts: keys of
    `tensor_names.PARTS`, the only ones to write; None for all.

    Raises `PretrainedError` if `folder` is not empty, or if the format
    cannot represent the net: without LayerNorm after its embeddings, with
    sinusoidal positions, with other parameters than a `BERTModel`, or with
    unsupported modules of sentence-transformers.
    """
    config = configs.of_net(net, tokenizer)
    if len(tokenizer) > config['vocab_size']:
        raise PretrainedError(
            f'the tokenizer has {len(tokenizer)} tokens, but the net only '
            f'{config["vocab_size"]}: they belong to different models')
    write_folder(folder, config, _tensors(net, tokenizer.pad_id, parts),
                 tokenizer, configs.generation_of_net(net, tokenizer),
                 {} if net.about else files_of(
                     tokenizer.pooling, net.config['num_hiddens']))


def _tensors(net, pad_id, parts):
    """The tensors of a net under their names in the folder, a dict."""
    params = net._collect_params_with_prefix()
    kind = net.kind
    skip = configs.skipped(family_of(net.config), pad_id)
    lines = tensor_names.table(net.config, skip) if kind is None else (
        tensor_names.finetuned(net.config, kind, net.num_scores, skip))
    ours = {line.ours for line in lines}
    if net.config['tie_embeddings'] and kind is None:
        ours.add(f'mlm.mlp.{len(net.mlm.mlp) - 1}.weight')
    strange = sorted(ours ^ set(params))
    if strange:
        raise PretrainedError(
            'this net is not exactly a BERTModel, so that a folder of BERT '
            f'cannot hold it: it has or lacks {", ".join(strange[:4])}')
    tensors, quantized = {}, net.encoder.quantized
    for line in lines:
        if parts is not None and line.part not in parts or (
                line.part == 'mlm' and configs.is_encoder_alone(net)):
            continue
        name = quantized and _quantized_name(line.ours)
        if name is not None:
            weight = quantized.weights[name]
            tensors[line.name] = weight.q
            tensors[line.name + tensor_files.SCALE] = weight.scale
            continue
        try:
            values = params[line.ours].data(
                params[line.ours].list_ctx()[0]).asnumpy()
        except RuntimeError:        # not initialized, or of unknown shape
            raise PretrainedError(f'the net has no values yet ({line.ours} '
                                  'is not initialized): nothing to save'
                                  ) from None
        values = values.reshape(-1, *line.shape[1:])
        if line.skip:
            values = onp.pad(values, ((line.skip, 0), (0, 0)))
        tensors[line.name] = values[::-1] if line.reversed else values
        # Without tied weights transformers reads the bias by this name
        if line.also and not net.config['tie_embeddings']:
            tensors[line.also] = values
    return tensors


def write_folder(folder, config, tensors, tokenizer, generation=None,
                 others=()):
    """Write a folder of config.json, model.safetensors and a tokenizer.

    config: a dict; tensors: {name: array}; generation: the content of
    generation_config.json, or None; others: {name: JSON} of more files. The
    folder appears when all files are written.
    """
    tensor_files.safetensors()       # before anything is done
    with new_folder(folder) as part:
        for name, content in (('config.json', config),
                              (configs.GENERATION, generation),
                              *dict(others).items()):
            if content is not None:
                (part / name).parent.mkdir(exist_ok=True)
                write_text(part / name, json.dumps(
                    content, indent=2, sort_keys=True) + '\n')
        tokenizer.save(part)
        tensor_files.write(part / tensor_files.WEIGHTS, tensors,
                      Path(folder, tensor_files.WEIGHTS))
