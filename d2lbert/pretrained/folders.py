"""Load and save checkpoint folders of BERT and its relatives.

A folder has the format of Hugging Face's libraries: config.json, weights as
safetensors, and a tokenizer. Folders are read from disk, never downloaded.
A net has the heads of pretraining or, after fine-tuning, a task head.
"""
import json
from pathlib import Path
from typing import Any, Optional, Sequence, Tuple

import numpy as onp

from d2lbert.devices import devices_of_net
from d2lbert.machine.arguments import PathLike, check_model, names_among
from d2lbert.machine.backend import init, mx
from d2lbert.machine.files import new_folder, write_text
from d2lbert.nn.checks import on_device
from d2lbert.nn.layers import fill_on_first_read
from d2lbert.nn.precision import check_precision, set_precision
from d2lbert.nn.quantized import Layout, QuantizedEncoder, QuantizedWeight
from d2lbert.pretrained import tensor_files
from d2lbert.pretrained.contents import (
    name_in_quantized_encoder,
    open_folder,
    warn_of_differences,
)
from d2lbert.pretrained.families import config as configs
from d2lbert.pretrained.families import tensor_names
from d2lbert.pretrained.families.family import family_of
from d2lbert.pretrained.families.nets import net_of
from d2lbert.pretrained.families.tensor_names import HEADS, PARTS
from d2lbert.pretrained.heads import TEXT_KINDS, About, FineTuned
from d2lbert.pretrained.pooling import files_of
from d2lbert.pretrained.tensor_files import (
    INDEX,
    UNSUPPORTED_FILES,
    WEIGHTS,
    PretrainedError,
)
from d2lbert.pretrained.tokenizers.tokenizer import as_tokenizer

#: Tokens between the starts of successive windows of a long text, as in the
#: published BERT's code for SQuAD.
STRIDE = 128


# Load a pretrained net

def load_pretrained(folder: PathLike, ctx: Any = None,
                    heads: Sequence[str] = HEADS, trainable: bool = True,
                    precision: Optional[str] = None) -> Tuple[Any, Any]:
    """Load the net and tokenizer of a folder on disk: (net, tokenizer).

    config.json names the family, BERT or a relative in `family.FAMILIES`.
    ctx: a device or a list of devices; None means the CPU. Weights become
    float32. Weights of heads that the folder lacks are random, with the
    standard deviation initializer_range of config.json. But a RoBERTa or
    CamemBERT whose folder has no pooler gets no pooler. heads: names among
    'pooler', 'mlm' and 'nsp'; a warning names those with random weights, and
    the folder's tensors that the net does not use. `print(net.pretrained)`
    lists all missing and unused tensors. trainable=False saves the memory of
    gradients. precision: 'fp32', or 'bf16' or 'int8' for faster inference, see
    `precision.set_precision`; None: int8 if the folder's weights are
    quantized, else fp32.

    Raises `PretrainedError` for a folder that cannot be read. If tensors do
    not fit, the message lists the differences. Raises ImportError without the
    libraries `tokenizers` and `safetensors`.
    """
    heads = names_among(HEADS, 'heads', heads)
    check_precision(precision)
    return load_opened(open_folder(folder), ctx, heads, trainable, precision)


def load_opened(opened, ctx=None, heads=HEADS, trainable=True,
                precision=None):
    """As `load_pretrained`, with an `OpenFolder` in place of the path."""
    net, tokenizer = _load_net_and_tokenizer(
        opened, opened.table(), lambda: net_of(opened.keywords), ctx,
        trainable, precision)
    warn_of_differences(net.pretrained, heads)
    return net, tokenizer


def _load_net_and_tokenizer(opened, table, make_net, ctx, trainable,
                            precision,
                            required_parts=('encoder', 'decoder')):
    """Load an `OpenFolder` into the net make_net(): (net, tokenizer).

    table: the `TensorSpec`s of the net. Raises `PretrainedError` if a tensor
    of required_parts, values of `TensorSpec.part`, is missing. If other
    tensors are missing, their parameters get initial values.
    """
    ctx = devices_of_net(ctx)
    pretrained = opened.check(table, required_parts)
    tokenizer = opened.tokenizer()
    net = make_net()
    if not trainable:
        net.collect_params().setattr('grad_req', 'null')
    params = net._collect_params_with_prefix()
    stays_int8 = opened.stores_int8 and precision in (None, 'int8')
    encoder_params = {}     # {name within the encoder: values}
    for spec, values in opened.values(table):
        _set_values(params[spec.param_name], values, ctx,
                    opened.fields['initializer_range'])
        if stays_int8 and spec.part == 'encoder':
            _, _, name_in_encoder = spec.param_name.partition('.')
            encoder_params[name_in_encoder] = values
    if stays_int8:
        net.encoder.quantized = QuantizedEncoder(
            Layout.of_config(opened.keywords), encoder_params)
    net.pretrained = pretrained
    return set_precision(net, precision), tokenizer


def _set_values(param, values, ctx, initializer_range):
    """Set a parameter to values that `OpenFolder.values` yields.

    None means the values of an untrained net.
    """
    if values is None:
        # Only matrices become random: biases and LayerNorms have their own
        # initializers, which default_init does not replace
        param.initialize(ctx=ctx, default_init=init.Normal(initializer_range))
    elif isinstance(values, QuantizedWeight):
        fill_on_first_read(param, values.dequantized, ctx)
    else:
        param._load_init(on_device(values.reshape(param.shape), mx.cpu()),
                         ctx)


# Load a fine-tuned net

def load_finetuned_folder(folder, ctx=None, trainable=True, precision=None):
    """Load a folder with a task head: (`FineTuned` net, tokenizer).

    config.json must name a class in `Family.finetuned`. The folder of a run of
    `finetune` is loaded by training/load.py instead. The arguments are as for
    `load_pretrained`. Raises `PretrainedError` if there is no task head.
    """
    opened = open_folder(folder)
    if head_kind(opened) is None:
        raise PretrainedError(
            f'{folder} has no head that scores texts or words (its '
            'config.json names no class of a fine-tuned model): fine-tune '
            'it with d2lbert finetune')
    return load_opened_finetuned(opened, ctx, trainable, precision)


def load_opened_finetuned(opened, ctx=None, trainable=True, precision=None):
    """As `load_finetuned_folder`, for an `OpenFolder` with a task head."""
    kind = head_kind(opened)
    about = _about_of(opened, kind)
    table = tensor_names.finetuned_table(
        opened.keywords, kind, about.num_scores,
        opened.fields['num_skipped_rows'])
    net, tokenizer = _load_net_and_tokenizer(
        opened, table,
        lambda: FineTuned.of_config(opened.keywords, kind, about.num_scores,
                                    about.dropout),
        ctx, trainable, precision,
        required_parts=('encoder', 'decoder', 'pooler', 'head'))
    if tokenizer.max_len:
        about = about._replace(max_len=min(about.max_len, tokenizer.max_len))
    net.about = about
    return net, tokenizer


def head_kind(opened):
    """The kind of the folder's task head, one of `heads.KINDS`, or None."""
    kinds = opened.head_kinds
    # 'classify' and 'regress' share a class
    if 'regress' in kinds and len(labels_of(opened.fields)) == 1:
        return 'regress'
    return kinds[0] if kinds else None


def labels_of(fields):
    """The names of the labels by class index; fields: of config.json."""
    # Without the field, transformers assumes two labels
    id2label = fields.get('id2label') or {'0': 'LABEL_0', '1': 'LABEL_1'}
    try:
        names = {int(index): str(name) for index, name in id2label.items()}
        return tuple(names[k] for k in range(len(names)))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise PretrainedError(
            'id2label in config.json must map the class indices 0, 1, ... to '
            f'the names of the labels, not {id2label!r}') from None


def _about_of(opened, kind):
    """The `About` of a task head; max_len is the number of positions."""
    fields = opened.fields
    scores_whole_texts = kind in TEXT_KINDS
    problem = fields.get('problem_type')
    if scores_whole_texts and problem == 'multi_label_classification' or (
            kind == 'classify' and problem == 'regression'):
        items = 'numbers' if problem == 'regression' else 'labels'
        raise PretrainedError(
            f'{opened.folder} gives texts several {items} at once '
            f'(problem_type is {problem!r}), which is not supported')
    # Each is (field of config.json, default); either may be None
    text_dropout, token_dropout = family_of(opened.keywords).dropouts
    field, default = text_dropout if scores_whole_texts else token_dropout
    dropout = fields.get(field)
    if dropout is None:
        dropout = opened.keywords['dropout'] if default is None else default
    return About(
        task='', kind=kind,
        # None for 'classify' and 'regress': single texts or pairs
        pair={'tag': False, 'span': True, 'choice': True}.get(kind),
        labels=labels_of(fields) if kind in ('classify', 'tag') else None,
        metrics=(), max_len=opened.keywords['max_len'], stride=STRIDE,
        null=False, dropout=dropout)


def has_weights(folder):
    """True if a folder has weights, even in an unsupported format."""
    return any((Path(folder) / name).is_file()
               for name in (WEIGHTS, INDEX, *UNSUPPORTED_FILES))


# Save a net

def save_pretrained(net: Any, tokenizer: Any, folder: PathLike,
                    parts: Optional[Sequence[str]] = None) -> None:
    """Write net and tokenizer as a new folder, whole or not at all.

    `transformers` loads the folder by `AutoTokenizer` and the classes of the
    family. For a BERT these are BertForPreTraining or, after fine-tuning,
    BertForSequenceClassification, BertForTokenClassification,
    BertForQuestionAnswering or BertForMultipleChoice, with the names of the
    labels. Weights are float32, in one file, without copies of tied weights.
    A net with precision='int8' is written with int8 weights, in about a
    quarter of the size; other libraries cannot load such a folder. Unless the
    net is fine-tuned, the `pooling` of the tokenizer is written as the files
    of sentence-transformers. parts: the parts of the net to write, keys of
    `tensor_names.PARTS`, or 'head' for a task head; None: all. If
    `config.omits_mlm_head` is true, no MLM head is written.

    Raises FileExistsError if `folder` exists and is not an empty folder.
    Raises `PretrainedError` for what the format cannot represent: sinusoidal
    positions, embeddings without LayerNorm, parameters that the family does
    not have, or unsupported modules of sentence-transformers.
    """
    tokenizer = as_tokenizer(tokenizer)
    check_model(net, tokenizer)
    if parts is not None:
        parts = names_among([*PARTS, 'head'], 'parts', parts)
    fields = configs.fields_of_net(net, tokenizer)
    if len(tokenizer) > fields['vocab_size']:
        raise PretrainedError(
            f'the tokenizer has {len(tokenizer)} tokens, but the net only '
            f'{fields["vocab_size"]}: they belong to different models')
    tensors = _tensors(net, tokenizer.pad_id, parts)
    json_files = {'config.json': fields}
    generation_fields = configs.generation_fields_of_net(net, tokenizer)
    if generation_fields is not None:
        json_files[configs.GENERATION_FILE] = generation_fields
    if net.about is None:       # a fine-tuned net does not pool its vectors
        json_files.update(files_of(tokenizer.pooling,
                                   net.config['num_hiddens']))
    _write_folder(folder, json_files, tensors, tokenizer,
                  net.encoder.num_segments > 1)


def _tensors(net, pad_id, parts):
    """{name in the folder: array}; parts: as for `save_pretrained`."""
    params = net._collect_params_with_prefix()
    quantized = net.encoder.quantized       # a `QuantizedEncoder`, or None
    tensors = {}
    for spec in _checked_table(net, params, pad_id):
        if parts is not None and spec.part not in parts:
            continue
        if spec.part == 'mlm' and configs.omits_mlm_head(net):
            continue
        quantized_name = name_in_quantized_encoder(spec.param_name)
        if quantized is not None and quantized_name is not None:
            weight = quantized.weights[quantized_name]
            tensors[spec.name] = weight.q
            tensors[spec.name + tensor_files.SCALE_SUFFIX] = weight.scale
            continue
        param = params[spec.param_name]
        values = tensors[spec.name] = _folder_values(param, spec)
        # Only the bias of the MLM head's output layer has an alias.
        # transformers reads the alias if this layer has its own weight
        if spec.alias and not net.config['tie_embeddings']:
            tensors[spec.alias] = values
    return tensors


def _checked_table(net, params, pad_id):
    """List the `TensorSpec`s of a net; params: {name: parameter} of the net.

    Raises `PretrainedError` if a parameter is missing or unexpected.
    """
    kind, family = net.kind, family_of(net.config)
    num_skipped_rows = configs.num_skipped_rows(family, pad_id)
    if kind is None:    # not fine-tuned
        table = tensor_names.table(net.config, num_skipped_rows)
    else:
        table = tensor_names.finetuned_table(net.config, kind, net.num_scores,
                                             num_skipped_rows)
    expected = {spec.param_name for spec in table}
    if net.config['tie_embeddings'] and kind is None:
        # The weight of the MLM head's output layer is the token embedding,
        # which the table lists once
        expected.add(f'mlm.mlp.{len(net.mlm.mlp) - 1}.weight')
    different = sorted(expected ^ set(params))
    if different:
        raise PretrainedError(
            f'a folder of {family.title} cannot hold this net, because these '
            'parameters are missing or unexpected: '
            f'{", ".join(different[:4])}')
    return table


def _folder_values(param, spec):
    """The values of a parameter in the order and shape of its `TensorSpec`."""
    try:
        values = param.data(param.list_ctx()[0]).asnumpy()
    except RuntimeError:        # not initialized, or of unknown shape
        raise PretrainedError(
            f'the net has no values yet ({spec.param_name} is not '
            'initialized): nothing to save') from None
    # -1, not spec.shape[0], which also counts the skipped rows
    values = values.reshape(-1, *spec.shape[1:])
    if spec.num_skipped_rows:
        values = onp.pad(values, ((spec.num_skipped_rows, 0), (0, 0)))
    return values[::-1] if spec.is_reversed else values


def _write_folder(folder, json_files, tensors, tokenizer, has_segments):
    """Write a new folder; json_files: {name: content}."""
    # Raise ImportError, if at all, before a file is written
    tensor_files.safetensors()
    with new_folder(folder) as partial_folder:
        for name, content in json_files.items():
            (partial_folder / name).parent.mkdir(exist_ok=True)
            write_text(partial_folder / name, json.dumps(
                content, indent=2, sort_keys=True) + '\n')
        # Without these names, the class and version of a tokenizer of
        # `transformers` decide whether it gives segments (token_type_ids)
        tokenizer.save(partial_folder, model_input_names=[
            'input_ids', *['token_type_ids'] * has_segments,
            'attention_mask'])
        tensor_files.write(partial_folder / WEIGHTS, tensors,
                           displayed_path=Path(folder, WEIGHTS))
