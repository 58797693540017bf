"""List a net's tensors, with their names and shapes in a checkpoint folder.

V: the number of tokens in the vocabulary, L: of positions, S: of segments, E:
of elements of a token's embedding, H: of elements of a token's vector in a
block, F: of hidden units of the feed-forward networks. Weights of dense layers
have shape (outputs, inputs).
"""
import re
from typing import NamedTuple

from d2lbert.nn.variant import BOOK
from d2lbert.pretrained.families.family import BERT, family_of

#: {part of a checkpoint: its title}. Many checkpoints lack pooler or heads.
PARTS = {'encoder': 'encoder', 'decoder': 'decoder', 'pooler': 'pooler',
         'mlm': 'masked language model head', 'nsp': 'next sentence head'}

#: The heads of the book's model, and of a net whose `config` does not name any
HEADS = BOOK.heads


class Tensor(NamedTuple):
    """A tensor of a folder, and the parameter of the net that holds it."""

    name: str               # in the folder
    ours: str               # the parameter's name in the net
    shape: tuple            # in the folder; one of this shape and the
                            # parameter's may begin with another 1
    part: str               # a key of PARTS, or 'head' in a fine-tuned net
    reversed: bool = False  # the folder has the rows in reverse order
    alias: str = None       # a second name of the same tensor in the folder
    skip: int = 0           # number of first rows of a position embedding in
                            # the folder that no token has; the parameter
                            # lacks these rows
    optional: bool = False  # True if a folder may lack the tensor, as the
                            # parameter's initial value is right


def table(config, skip=0):
    """The list of `Tensor`s of a net with this `config`, not fine-tuned.

    config: the net's keywords, a dict. skip: the number of first rows of the
    folder's position embedding that no token has as its position.
    """
    names = family_of(config).names
    V, L, S, H, F = (config[name] for name in (
        'vocab_size', 'max_len', 'num_segments', 'num_hiddens',
        'ffn_num_hiddens'))
    heads = config.get('heads', HEADS)
    E = config.get('embedding_size') or H

    # key: a key of Family.names; ours: name of the parameter or layer in the
    # net; block_numbers: values for {i}, {group} and {inner} in the name
    def embedding(key, ours, shape, part='encoder'):
        return Tensor(f'{names[key]}.weight', ours, shape, part)

    def dense(key, ours, shape, part='encoder', is_reversed=False,
              **block_numbers):
        name = names[key].format(**block_numbers)
        return [Tensor(f'{name}.weight', f'{ours}.weight', shape, part,
                       is_reversed),
                Tensor(f'{name}.bias', f'{ours}.bias', shape[:1], part,
                       is_reversed)]

    def norm(key, ours, size, part='encoder', **block_numbers):
        name = names[key].format(**block_numbers)
        return [Tensor(f'{name}.weight', f'{ours}.gamma', (size,), part),
                Tensor(f'{name}.bias', f'{ours}.beta', (size,), part)]

    tensors = [embedding('encoder.token_embedding',
                         'encoder.token_embedding.weight', (V, E)),
               embedding('encoder.pos_embedding', 'encoder.pos_embedding',
                         (skip + L, E))._replace(skip=skip)]
    if S:
        tensors.append(embedding('encoder.segment_embedding',
                                 'encoder.segment_embedding.weight', (S, E)))
    tensors += norm('encoder.embedding_norm', 'encoder.embedding_norm', E)
    if config.get('embedding_size'):
        tensors += dense('encoder.projection', 'encoder.projection', (H, E))
    # In the loops below, `size` is the shape of a dense layer's weight, or the
    # number of elements of a LayerNorm
    inner = config.get('inner_group_num', 1)
    # ALBERT's layers share the blocks of num_groups groups, `inner` in each
    for i in range(inner * (config.get('num_groups') or config['num_layers'])):
        numbers = dict(i=i, group=i // inner, inner=i % inner)
        for layer, key, size in (
                *((dense, f'attention.W_{x}', (H, H)) for x in 'qkvo'),
                (norm, 'addnorm1.ln', H), (dense, 'ffn.dense1', (F, H)),
                (dense, 'ffn.dense2', (H, F)), (norm, 'addnorm2.ln', H)):
            tensors += layer(key, f'encoder.blks.{i}.{key}', size, **numbers)
    for i in range(config.get('decoder_layers', 0)):
        if i == 0:      # the tensors before the blocks
            tensors.append(embedding('decoder.pos_embedding',
                                     'decoder.pos_embedding', (skip + L, H),
                                     'decoder')._replace(skip=skip))
            tensors += norm('decoder.embedding_norm', 'decoder.embedding_norm',
                            H, 'decoder')
        decoder_F = config['decoder_ffn']
        for layer, key, size in (
                *((dense, f'attention{k}.W_{x}', (H, H))
                  for k in (1, 2) for x in 'qkvo'),
                *((norm, f'addnorm{k}.ln', H) for k in (1, 2, 3)),
                (dense, 'ffn.dense1', (decoder_F, H)),
                (dense, 'ffn.dense2', (H, decoder_F))):
            tensors += layer(f'decoder.{key}', f'decoder.blks.{i}.{key}', size,
                             'decoder', i=i)
    if 'pooler' in heads:
        tensors += dense('hidden', 'hidden', (H, H), 'pooler')
    output_index = 0    # of the output layer in mlm.mlp
    if config.get('mlm_hidden', True):
        tensors += [*dense('mlm.hidden', 'mlm.mlp.0', (E, H), 'mlm'),
                    *norm('mlm.norm', 'mlm.mlp.1', E, 'mlm')]
        output_index = 2
    # Folders may have the bias of the output layer under both of these names
    bias, layer_bias = names['mlm.bias'], f'{names["mlm.output"]}.bias'
    # In BART folders alone, this bias has shape (1, V) and may be missing
    is_bart = family_of(config).generates
    tensors.append(Tensor(
        bias, f'mlm.mlp.{output_index}.bias', (1, V) if is_bart else (V,),
        'mlm', alias=layer_bias if layer_bias != bias else None,
        optional=is_bart))
    if not config['tie_embeddings']:
        tensors.append(Tensor(
            f'{names["mlm.output"]}.weight', f'mlm.mlp.{output_index}.weight',
            (V, E), 'mlm'))
    if 'nsp' in heads:
        # In folders class 0 means "b follows a", in the book class 1 does
        tensors += dense('nsp.output', 'nsp.output', (2, H), 'nsp',
                         is_reversed=True)
    return tensors


def finetuned(config, kind, num_scores, skip=0):
    """The list of `Tensor`s of a `FineTuned` net (../heads.py).

    kind: the kind of its task; num_scores: the number of outputs of its output
    layer. config and skip are as for `table`.
    """
    head, H = family_of(config).head_of(kind), config['num_hiddens']
    parts = ['encoder', 'decoder']
    head_layers = {}    # {name in the folder: (name in the net, shape)}
    output_name = {'tag': 'classifier', 'span': 'qa_outputs'}.get(kind)
    if output_name is None:
        output_name = head.output_name
        if head.hidden_name:
            head_layers[head.hidden_name] = 'hidden', (H, H)
        elif head.activation:
            parts.append('pooler')
    head_layers[output_name] = 'output', (num_scores, H)
    kept = [tensor for tensor in table(config, skip) if tensor.part in parts]
    return kept + [
        Tensor(f'{name}.{suffix}', f'{ours}.{suffix}', tensor_shape, 'head')
        for name, (ours, shape) in head_layers.items()
        for suffix, tensor_shape in (('weight', shape), ('bias', shape[:1]))]


def current_names(names, family=BERT):
    """Map the names in `table` to the names in a folder; returns a dict.

    names: all names in the folder. There, encoder tensors may lack the prefix
    of the family, and in old checkpoints the weight and the bias of LayerNorm
    are gamma and beta. Other names map to themselves. Buffers of old
    checkpoints, such as position_ids, are left out.
    """
    prefix = family.prefix
    # The first parts of names without the prefix, such as 'embeddings'
    modules = {name[len(prefix):].split('.')[0]
               for name in family.names.values() if name.startswith(prefix)}
    found = {}

    def current(name):
        return _current_name(name, prefix, modules)
    for name in sorted(names, key=lambda name: (current(name) != name, name)):
        if re.fullmatch(rf'{re.escape(prefix)}(embeddings\.)?'
                        r'(position|token_type)_ids', current(name)):
            continue
        # Current names come first in this order. If the folder has a tensor
        # under its current and its old name, the old name maps to itself
        found[name if current(name) in found else current(name)] = name
    return found


def _current_name(name, prefix, modules):
    """The current name of a tensor that may have an old name or no prefix."""
    if name.split('.')[0] in {*modules, 'position_ids'}:
        name = prefix + name
    for old, new in (('gamma', 'weight'), ('beta', 'bias')):
        name = re.sub(rf'(^|\.)LayerNorm\.{old}$', rf'\1LayerNorm.{new}',
                      name)
    return name
