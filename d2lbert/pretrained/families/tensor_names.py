"""List a net's tensors, with their names and shapes in a checkpoint folder.

V: tokens in the vocabulary. L: positions. S: segments. E: size of a token's
embedding. H: size of a token's vector in a block. F: hidden units of the
feed-forward networks. Weights of dense layers have shape (outputs, inputs).
"""
import re
from typing import NamedTuple, Optional

from d2lbert.nn.variant import BOOK
from d2lbert.pretrained.families.family import BERT, family_of

#: {part of a net: its title in messages}
PARTS = {'encoder': 'encoder', 'decoder': 'decoder', 'pooler': 'pooler',
         'mlm': 'masked language model head', 'nsp': 'next sentence head'}

#: All heads. A `config` without an entry 'heads' means all.
HEADS = BOOK.heads


class TensorSpec(NamedTuple):
    """The name and shape of a tensor in a folder, and the net's parameter."""

    name: str               # in the folder
    param_name: str         # in the net
    shape: tuple            # in the folder; a leading 1 may be missing here or
                            # in the parameter's shape
    part: str               # a key of PARTS, or 'head' in a fine-tuned net
    is_reversed: bool = False   # the folder has the rows in reverse order
    alias: Optional[str] = None     # a second name of the tensor in the folder
    num_skipped_rows: int = 0   # first rows in the folder, which the parameter
                                # lacks
    is_optional: bool = False   # the folder may lack the tensor, because the
                                # parameter's initial value is right


def table(config, num_skipped_rows=0):
    """The `TensorSpec`s of a net that is not fine-tuned, a list.

    num_skipped_rows: see `config.num_skipped_rows`.
    """
    names = family_of(config).names
    V, L, S, H, F = (config[name] for name in (
        'vocab_size', 'max_len', 'num_segments', 'num_hiddens',
        'ffn_num_hiddens'))
    heads = config.get('heads', HEADS)
    E = config.get('embedding_size') or H

    # key: of Family.names. layer: the layer's name in the net. block_numbers:
    # values for {i}, {group} and {inner} in names[key]
    def embedding(key, shape):
        return TensorSpec(f'{names[key]}.weight', f'{key}.weight', shape,
                          'encoder')

    def dense(key, layer, shape, part='encoder', is_reversed=False,
              **block_numbers):
        name = names[key].format(**block_numbers)
        return [TensorSpec(f'{name}.weight', f'{layer}.weight', shape, part,
                           is_reversed),
                TensorSpec(f'{name}.bias', f'{layer}.bias', shape[:1], part,
                           is_reversed)]

    def norm(key, layer, size, part='encoder', **block_numbers):
        name = names[key].format(**block_numbers)
        return [TensorSpec(f'{name}.weight', f'{layer}.gamma', (size,), part),
                TensorSpec(f'{name}.bias', f'{layer}.beta', (size,), part)]

    def position_embedding(key, width, part):
        return TensorSpec(f'{names[key]}.weight', key,
                          (num_skipped_rows + L, width), part,
                          num_skipped_rows=num_skipped_rows)

    specs = [embedding('encoder.token_embedding', (V, E)),
             position_embedding('encoder.pos_embedding', E, 'encoder')]
    if S:
        specs.append(embedding('encoder.segment_embedding', (S, E)))
    specs += norm('encoder.embedding_norm', 'encoder.embedding_norm', E)
    if config.get('embedding_size'):
        specs += dense('encoder.projection', 'encoder.projection', (H, E))
    # ALBERT's layers share the blocks of num_groups groups
    group_size = config.get('inner_group_num', 1)
    num_groups = config.get('num_groups') or config['num_layers']
    for i in range(group_size * num_groups):
        numbers = dict(i=i, group=i // group_size, inner=i % group_size)
        for make_specs, key, shape_or_size in (
                *((dense, f'attention.W_{x}', (H, H)) for x in 'qkvo'),
                (norm, 'addnorm1.ln', H), (dense, 'ffn.dense1', (F, H)),
                (dense, 'ffn.dense2', (H, F)), (norm, 'addnorm2.ln', H)):
            specs += make_specs(key, f'encoder.blks.{i}.{key}', shape_or_size,
                                **numbers)
    num_decoder_layers = config.get('decoder_layers', 0)
    if num_decoder_layers:
        specs.append(position_embedding('decoder.pos_embedding', H, 'decoder'))
        specs += norm('decoder.embedding_norm', 'decoder.embedding_norm', H,
                      'decoder')
    for i in range(num_decoder_layers):
        decoder_F = config['decoder_ffn']
        for make_specs, key, shape_or_size in (
                *((dense, f'attention{k}.W_{x}', (H, H))
                  for k in (1, 2) for x in 'qkvo'),
                *((norm, f'addnorm{k}.ln', H) for k in (1, 2, 3)),
                (dense, 'ffn.dense1', (decoder_F, H)),
                (dense, 'ffn.dense2', (H, decoder_F))):
            specs += make_specs(f'decoder.{key}', f'decoder.blks.{i}.{key}',
                                shape_or_size, 'decoder', i=i)
    if 'pooler' in heads:
        specs += dense('hidden', 'hidden', (H, H), 'pooler')
    output_layer = 'mlm.mlp.0'
    if config.get('mlm_hidden', True):
        specs += [*dense('mlm.hidden', 'mlm.mlp.0', (E, H), 'mlm'),
                  *norm('mlm.norm', 'mlm.mlp.1', E, 'mlm')]
        output_layer = 'mlm.mlp.2'
    # Folders have the output layer's bias under one of these names, or both
    bias_name, alias = names['mlm.bias'], f'{names["mlm.output"]}.bias'
    # In folders of BART, the only family with a decoder, this bias has shape
    # (1, V) and may be missing
    is_bart = family_of(config).has_decoder
    specs.append(TensorSpec(
        bias_name, f'{output_layer}.bias', (1, V) if is_bart else (V,), 'mlm',
        alias=alias if alias != bias_name else None,
        is_optional=is_bart))
    if not config['tie_embeddings']:
        specs.append(TensorSpec(f'{names["mlm.output"]}.weight',
                                f'{output_layer}.weight', (V, E), 'mlm'))
    if 'nsp' in heads:
        # In folders class 0 means "b follows a", in the book class 1 does
        specs += dense('nsp.output', 'nsp.output', (2, H), 'nsp',
                       is_reversed=True)
    return specs


def finetuned_table(config, kind, num_scores, num_skipped_rows=0):
    """The `TensorSpec`s of a `FineTuned` net (../heads.py), a list."""
    head, H = family_of(config).head_of(kind), config['num_hiddens']
    parts = ['encoder', 'decoder']
    head_layers = {}    # {name in the folder: (name in the net, shape)}
    output_name = {'tag': 'classifier', 'span': 'qa_outputs'}.get(kind)
    if output_name is None:     # the head scores whole texts
        output_name = head.output_name
        if head.hidden_name:
            head_layers[head.hidden_name] = 'hidden', (H, H)
        elif head.activation:   # the hidden layer is the pooler
            parts.append('pooler')
    head_layers[output_name] = 'output', (num_scores, H)
    specs = [spec for spec in table(config, num_skipped_rows)
             if spec.part in parts]
    for name, (layer, shape) in head_layers.items():
        specs += [TensorSpec(f'{name}.weight', f'{layer}.weight', shape,
                             'head'),
                  TensorSpec(f'{name}.bias', f'{layer}.bias', shape[:1],
                             'head')]
    return specs


def current_names(names, family=BERT):
    """{current name: name in a folder}, except buffers such as position_ids.

    `table` has the current names. Names in a folder may lack the prefix of the
    family. In old checkpoints, weight and bias of LayerNorm are gamma and
    beta.
    """
    prefix = family.prefix
    # The first parts of names without the prefix, such as 'embeddings'
    modules = {name[len(prefix):].split('.')[0]
               for name in family.names.values() if name.startswith(prefix)}
    is_buffer = re.compile(rf'{re.escape(prefix)}(embeddings\.)?'
                           r'(position|token_type)_ids').fullmatch
    current = {name: _current_name(name, prefix, modules) for name in names}
    found = {}
    # Names that are current come first. If the folder has a tensor under its
    # current and its old name, the old name maps to itself
    for name in sorted(names, key=lambda name: (current[name] != name, name)):
        if not is_buffer(current[name]):
            found[name if current[name] in found else current[name]] = name
    return found


def _current_name(name, prefix, modules):
    if name.split('.')[0] in {*modules, 'position_ids'}:
        name = prefix + name
    for old, new in (('gamma', 'weight'), ('beta', 'bias')):
        name = re.sub(rf'(^|\.)LayerNorm\.{old}$', rf'\1LayerNorm.{new}',
                      name)
    return name
