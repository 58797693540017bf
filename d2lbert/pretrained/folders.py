"""This module loads and saves checkpoint folders of BERT and its relatives.

A folder has the format of Hugging Face's libraries: config.json, weights as
safetensors, and a tokenizer. Folders are read from disk, never downloaded.
The net of a folder is pretrained, or fine-tuned with a task head.
"""
import json
from pathlib import Path
from typing import Any, Optional, Sequence, Tuple

import numpy as onp

from d2lbert.machine.arguments import PathLike
from d2lbert.machine.backend import init, mx
from d2lbert.machine.files import new_folder, write_text
from d2lbert.nn.checks import on_device
from d2lbert.nn.layers import fill_on_first_read
from d2lbert.nn.precision import check_precision, set_precision
from d2lbert.nn.quantized import Layout, QuantizedEncoder, QuantizedWeight
from d2lbert.pretrained import tensor_files
from d2lbert.pretrained.contents import (
    open_folder,
    quantized_name,
    warn_of_differences,
)
from d2lbert.pretrained.families import config as configs
from d2lbert.pretrained.families import tensor_names
from d2lbert.pretrained.families.family import family_of
from d2lbert.pretrained.families.nets import net_of
from d2lbert.pretrained.families.tensor_names import HEADS
from d2lbert.pretrained.heads import TEXT_KINDS, About, FineTuned
from d2lbert.pretrained.pooling import files_of
from d2lbert.pretrained.tensor_files import (
    INDEX,
    UNSUPPORTED_FILES,
    WEIGHTS,
    PretrainedError,
)
from d2lbert.pretrained.tokenizers.tokenizer import as_tokenizer

#: Tokens between the starts of successive windows of a long text.
STRIDE = 128


def load_pretrained(folder: PathLike, ctx: Any = None,
                    heads: Sequence[str] = HEADS, trainable: bool = True,
                    precision: Optional[str] = None) -> Tuple[Any, Any]:
    """Load the net and tokenizer of a folder on disk: (net, tokenizer).

    config.json names the family, BERT or a relative in `family.FAMILIES`.
    ctx: a device or a list of devices; None means the CPU. Weights become
    float32. Weights of heads that the folder lacks are random, with the
    standard deviation initializer_range of config.json. A warning is logged
    if such a head is in the argument `heads` ('pooler', 'mlm', 'nsp').
    `print(net.pretrained)` lists the tensors that the folder lacks and the
    tensors that the net does not use. trainable=False saves the memory of
    gradients, for inference. precision: 'bf16' or 'int8' for faster
    inference, see `precision.set_precision`. None means the precision of the
    folder: int8 if the weights are quantized, else fp32.

    Raises `PretrainedError` for a folder that cannot be read. If tensors do
    not fit, the message lists the differences. Raises ImportError without the
    libraries `tokenizers` and `safetensors`.
    """
    check_precision(precision)
    return load_opened(open_folder(folder), ctx, heads, trainable, precision)


def load_opened(opened, ctx=None, heads=HEADS, trainable=True,
                precision=None):
    """As `load_pretrained`, but with an `OpenFolder` in place of a path."""
    net, tokenizer = load_net_and_tokenizer(
        opened, tensor_names.table(opened.keywords, opened.config['skip']),
        lambda: net_of(opened.keywords), ctx, trainable, precision)
    warn_of_differences(net.pretrained, heads)
    return net, tokenizer


def load_net_and_tokenizer(opened, table, make_net, ctx=None, trainable=True,
                           precision=None,
                           required_parts=('encoder', 'decoder')):
    """Load the weights of an `OpenFolder` into a new net: (net, tokenizer).

    make_net() constructs the net. table: the net's `tensor_names.Tensor`s.
    ctx, trainable, precision: as for `load_pretrained`. Raises
    `PretrainedError` if a tensor of a required part is missing; missing
    tensors of other parts become random.
    """
    pretrained = opened.check(table, required_parts)
    tokenizer = opened.tokenizer()
    net = make_net()
    if not trainable:
        net.collect_params().setattr('grad_req', 'null')
    encoder_values = _fill_parameters(net, opened, table, ctx or mx.cpu())
    if opened.is_quantized and precision in (None, 'int8'):
        net.encoder.quantized = QuantizedEncoder(
            Layout.of_config(opened.keywords), encoder_values)
    net.pretrained = pretrained
    return set_precision(net, precision), tokenizer


def _fill_parameters(net, opened, table, ctx):
    """Set each parameter to its values in the folder, or to random values.

    Returns {name within the encoder: values} of the encoder's parameters for
    a quantized folder, else {}.
    """
    params, encoder_values = net._collect_params_with_prefix(), {}
    for line, values in opened.values(table):
        param = params[line.ours]
        part, _, name_in_part = line.ours.partition('.')
        if opened.is_quantized and part == 'encoder':
            encoder_values[name_in_part] = values
        if values is None:
            # Only matrices become Normal; biases become 0, gammas become 1
            param.initialize(ctx=ctx, default_init=init.Normal(
                opened.config['initializer_range']))
        elif isinstance(values, QuantizedWeight):
            # `values.dequantized` is called when `param` is first read
            fill_on_first_read(param, values.dequantized, ctx)
        else:
            param._load_init(on_device(values.reshape(param.shape), mx.cpu()),
                             ctx)
    return encoder_values


def has_weights(folder):
    """True if a folder has weights of a checkpoint, in any known format."""
    return any((Path(folder) / name).is_file()
               for name in (WEIGHTS, INDEX, *UNSUPPORTED_FILES))


# Fine-tuned models

def load_finetuned_folder(folder, ctx=None, trainable=True, precision=None):
    """Load a folder with a task head: (`FineTuned` net, tokenizer).

    The folder must be written by `transformers` or `save_pretrained`, and hold
    a model of a class *ForSequenceClassification, *ForTokenClassification,
    *ForQuestionAnswering or *ForMultipleChoice. In the `about` of the net,
    `task` is ''. The folder of a run of `finetune` is loaded by
    training/load.py instead.

    The arguments are as for `load_pretrained`. Raises `PretrainedError` if the
    folder has no task head.
    """
    opened = open_folder(folder)
    if kind_of(opened) is None:
        raise PretrainedError(
            f'{folder} has no head that scores texts or words (its '
            'config.json names no class of a fine-tuned model): fine-tune '
            'it with d2lbert finetune')
    return load_opened_finetuned(opened, ctx, trainable, precision)


def load_opened_finetuned(opened, ctx=None, trainable=True, precision=None):
    """Load an `OpenFolder` with a task head: (`FineTuned` net, tokenizer).

    The other arguments are as for `load_pretrained`.
    """
    kind = kind_of(opened)
    about = about_of(opened, kind)
    net, tokenizer = load_net_and_tokenizer(
        opened, tensor_names.finetuned(opened.keywords, kind, about.num_scores,
                                       opened.config['skip']),
        lambda: FineTuned.of_config(opened.keywords, kind, about.num_scores,
                                    about.dropout),
        ctx, trainable, precision,
        required_parts=('encoder', 'decoder', 'pooler', 'head'))
    net.about = about._replace(max_len=min(
        about.max_len, tokenizer.max_len or about.max_len))
    return net, tokenizer


def kind_of(opened):
    """The kind of an `OpenFolder`'s task head, one of `heads.KINDS`, or None.
    """
    family = family_of(opened.keywords)
    for name in opened.config.get('architectures') or ():
        for kind, class_name in family.finetuned.items():
            if class_name == name:
                # 'classify' and 'regress' share a class
                is_regression = (kind in ('classify', 'regress')
                                 and len(labels_of(opened.config)) == 1)
                return 'regress' if is_regression else kind
    return None


def labels_of(config):
    """The names of the labels, a tuple by class index.

    config: the fields of config.json.
    """
    # Without the field, a model of transformers has two labels
    id2label = config.get('id2label') or {'0': 'LABEL_0', '1': 'LABEL_1'}
    try:
        names = {int(index): str(name) for index, name in id2label.items()}
        return tuple(names[k] for k in range(len(names)))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise PretrainedError(
            'id2label in config.json must map the class indices 0, 1, ... to '
            f'the names of the labels, not {id2label!r}') from None


def about_of(opened, kind):
    """The `About` of an `OpenFolder` with a task head of this kind."""
    config, family = opened.config, family_of(opened.keywords)
    scores_text = kind in TEXT_KINDS
    problem = config.get('problem_type')
    if scores_text and problem == 'multi_label_classification':
        raise PretrainedError(
            f'{opened.folder} gives texts several labels at once '
            f'(problem_type is {problem!r}), which is not supported')
    # Each has a field of config.json, and the default of this field
    of_texts, of_tokens = family.dropouts
    field, default = of_texts if scores_text else of_tokens
    dropout = config.get(field)
    if dropout is None:
        dropout = opened.keywords['dropout'] if default is None else default
    return About(
        task='', kind=kind,
        # None for 'classify' and 'regress': single texts or pairs
        pair={'tag': False, 'span': True, 'choice': True}.get(kind),
        labels=labels_of(config) if kind in ('classify', 'tag') else None,
        metrics=(), max_len=opened.keywords['max_len'], stride=STRIDE,
        null=False, dropout=dropout)


# Saving

def save_pretrained(net: Any, tokenizer: Any, folder: PathLike,
                    parts: Optional[Sequence[str]] = None) -> None:
    """Write net and tokenizer as a new folder, whole or not at all.

    `transformers.BertForPreTraining` and `AutoTokenizer` load the folder. A
    fine-tuned net is loaded by BertForSequenceClassification,
    BertForTokenClassification, BertForQuestionAnswering or
    BertForMultipleChoice, with the names of its labels. Relatives of BERT are
    loaded by the classes of their family. Weights are float32, in one file,
    without copies of tied weights. The `pooling` of the tokenizer is written
    as the files of sentence-transformers. A net with precision='int8' is
    written with int8 weights, in about a quarter of the size; other libraries
    cannot load such a folder. parts: the parts of the net to write, keys of
    `tensor_names.PARTS`; None for all.

    Raises `PretrainedError` if `folder` is not empty, or if the format
    cannot represent the net. The format cannot represent sinusoidal positions,
    embeddings without LayerNorm, parameters that the family does not have, or
    unsupported modules of sentence-transformers.
    """
    tokenizer = as_tokenizer(tokenizer)
    config = configs.config_of_net(net, tokenizer)
    if len(tokenizer) > config['vocab_size']:
        raise PretrainedError(
            f'the tokenizer has {len(tokenizer)} tokens, but the net only '
            f'{config["vocab_size"]}: they belong to different models')
    write_folder(folder, config, _tensors(net, tokenizer.pad_id, parts),
                 tokenizer, configs.generation_of_net(net, tokenizer),
                 # A fine-tuned net does not pool its token vectors
                 {} if net.about else files_of(
                     tokenizer.pooling, net.config['num_hiddens']))


def _tensors(net, pad_id, parts):
    """The tensors of a net under their names in the folder, a dict.

    pad_id: the id of the padding token. parts: as for `save_pretrained`.
    """
    params = net._collect_params_with_prefix()
    kind, family = net.kind, family_of(net.config)
    skip = configs.num_skipped_rows(family, pad_id)
    if kind is None:    # not fine-tuned
        table = tensor_names.table(net.config, skip)
    else:
        table = tensor_names.finetuned(net.config, kind, net.num_scores, skip)
    expected = {line.ours for line in table}
    if net.config['tie_embeddings'] and kind is None:
        # The table lacks this weight, since it is the token embedding
        expected.add(f'mlm.mlp.{len(net.mlm.mlp) - 1}.weight')
    different = sorted(expected ^ set(params))
    if different:
        raise PretrainedError(
            f'a folder of {family.title} cannot hold this net, because these '
            'parameters are missing or unexpected: '
            f'{", ".join(different[:4])}')
    tensors, quantized = {}, net.encoder.quantized
    for line in table:
        is_wanted = parts is None or line.part in parts
        if not is_wanted or (
                line.part == 'mlm' and configs.omits_mlm_head(net)):
            continue
        name_in_encoder = quantized_name(line.ours)
        if quantized is not None and name_in_encoder is not None:
            weight = quantized.weights[name_in_encoder]
            tensors[line.name] = weight.q
            tensors[line.name + tensor_files.SCALE_SUFFIX] = weight.scale
            continue
        try:
            values = params[line.ours].data(
                params[line.ours].list_ctx()[0]).asnumpy()
        except RuntimeError:        # not initialized, or of unknown shape
            raise PretrainedError(f'the net has no values yet ({line.ours} '
                                  'is not initialized): nothing to save'
                                  ) from None
        # -1: the parameter lacks the first `skip` rows of the tensor
        values = values.reshape(-1, *line.shape[1:])
        if line.skip:
            values = onp.pad(values, ((line.skip, 0), (0, 0)))
        tensors[line.name] = values[::-1] if line.reversed else values
        # Only the output bias of the MLM head has an alias. transformers reads
        # the bias under the alias if the weights are not tied
        if line.alias and not net.config['tie_embeddings']:
            tensors[line.alias] = values
    return tensors


def write_folder(folder, config, tensors, tokenizer, generation=None,
                 more_files=()):
    """Write a folder of config.json, model.safetensors and a tokenizer.

    config: the fields of config.json. generation: the fields of
    generation_config.json, or None for no such file. tensors: {name: array}.
    more_files: {name: content} of further JSON files. The folder appears only
    when all files are written.
    """
    # Raise ImportError, if at all, before a file is written
    tensor_files.safetensors()
    with new_folder(folder) as partial_folder:
        for name, content in (('config.json', config),
                              (configs.GENERATION, generation),
                              *dict(more_files).items()):
            if content is not None:
                (partial_folder / name).parent.mkdir(exist_ok=True)
                write_text(partial_folder / name, json.dumps(
                    content, indent=2, sort_keys=True) + '\n')
        tokenizer.save(partial_folder)
        tensor_files.write(partial_folder / WEIGHTS, tensors,
                           displayed_path=Path(folder, WEIGHTS))
