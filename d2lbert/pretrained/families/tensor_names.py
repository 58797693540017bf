"""The table of a net's tensors: names in folders, names here, shapes.

V vocabulary, L positions, S segment types, E embedding size, H hiddens, F
feed-forward hiddens. Weights of dense layers are (out, in), here and there.
"""
import re
from typing import NamedTuple

from d2lbert.nn.variant import BOOK
from d2lbert.pretrained.families.family import BERT, family_of

#: The parts of a checkpoint and their titles. Many checkpoints lack heads.
PARTS = {'encoder': 'encoder', 'decoder': 'decoder', 'pooler': 'pooler',
         'mlm': 'masked language model head', 'nsp': 'next sentence head'}
HEADS = BOOK.heads


class Tensor(NamedTuple):
    """A line of the table."""

    name: str               # in the folder
    ours: str               # the parameter of `BERTModel`
    shape: tuple            # in the folder; ours may have a leading 1
    part: str               # a key of PARTS
    reversed: bool = False  # the folder has the rows in reverse order
    also: str = None        # a second name of the same tensor
    skip: int = 0           # rows that belong to no token, before ours
    spare: bool = False     # optional: the initial value is correct


def table(config, skip=0):
    """The table of a `BERTModel` with this `config`: a list of `Tensor`.

    skip: rows of the folder's positions that belong to no token.
    """
    names = family_of(config).names
    V, L, S, H, F = (config[name] for name in (
        'vocab_size', 'max_len', 'num_segments', 'num_hiddens',
        'ffn_num_hiddens'))
    heads = config.get('heads', HEADS)
    E = config.get('embedding_size') or H

    # key: in Family.names; ours: the parameter of the net, or its block
    def rows(key, ours, shape, part='encoder'):
        return Tensor(f'{names[key]}.weight', ours, shape, part)

    def dense(key, ours, shape, part='encoder', is_reversed=False,
              **places):
        name = names[key].format(**places)
        return [Tensor(f'{name}.weight', f'{ours}.weight', shape, part,
                       is_reversed),
                Tensor(f'{name}.bias', f'{ours}.bias', shape[:1], part,
                       is_reversed)]

    def norm(key, ours, size, part='encoder', **places):
        name = names[key].format(**places)
        return [Tensor(f'{name}.weight', f'{ours}.gamma', (size,), part),
                Tensor(f'{name}.bias', f'{ours}.beta', (size,), part)]

    lines = [rows('encoder.token_embedding',
                  'encoder.token_embedding.weight', (V, E)),
             rows('encoder.pos_embedding', 'encoder.pos_embedding',
                  (skip + L, E))._replace(skip=skip)]
    if S:
        lines.append(rows('encoder.segment_embedding',
                          'encoder.segment_embedding.weight', (S, E)))
    lines += norm('encoder.embedding_norm', 'encoder.embedding_norm', E)
    if config.get('embedding_size'):
        lines += dense('encoder.projection', 'encoder.projection', (H, E))
    inner = config.get('inner_group_num', 1)
    for i in range(inner * (config.get('num_groups') or config['num_layers'])):
        places = dict(i=i, group=i // inner, inner=i % inner)
        for kind, key, size in (
                *((dense, f'attention.W_{x}', (H, H)) for x in 'qkvo'),
                (norm, 'addnorm1.ln', H), (dense, 'ffn.dense1', (F, H)),
                (dense, 'ffn.dense2', (H, F)), (norm, 'addnorm2.ln', H)):
            lines += kind(key, f'encoder.blks.{i}.{key}', size, **places)
    for i in range(config.get('decoder_layers', 0)):
        if not i:
            lines.append(rows('decoder.pos_embedding',
                              'decoder.pos_embedding', (skip + L, H),
                              'decoder')._replace(skip=skip))
            lines += norm('decoder.embedding_norm', 'decoder.embedding_norm',
                          H, 'decoder')
        F = config['decoder_ffn']
        for kind, key, size in (
                *((dense, f'attention{k}.W_{x}', (H, H))
                  for k in (1, 2) for x in 'qkvo'),
                *((norm, f'addnorm{k}.ln', H) for k in (1, 2, 3)),
                (dense, 'ffn.dense1', (F, H)), (dense, 'ffn.dense2', (H, F))):
            lines += kind(f'decoder.{key}', f'decoder.blks.{i}.{key}', size,
                          'decoder', i=i)
    if 'pooler' in heads:
        lines += dense('hidden', 'hidden', (H, H), 'pooler')
    last = 0
    if config.get('mlm_hidden', True):
        lines += [*dense('mlm.hidden', 'mlm.mlp.0', (E, H), 'mlm'),
                  *norm('mlm.norm', 'mlm.mlp.1', E, 'mlm')]
        last = 2
    decoder, bias = f'{names["mlm.output"]}.bias', names['mlm.bias']
    # In BART folders this bias is optional, and (1, V)
    spare = family_of(config).generates
    lines.append(Tensor(bias, f'mlm.mlp.{last}.bias', (1, V) if spare
                        else (V,), 'mlm', spare=spare,
                        also=decoder if decoder != bias else None))
    if not config['tie_embeddings']:
        lines.append(Tensor(f'{names["mlm.output"]}.weight',
                            f'mlm.mlp.{last}.weight', (V, E), 'mlm'))
    if 'nsp' in heads:
        # Class 0 of folders is "b follows a", which is class 1 of the book
        lines += dense('nsp.output', 'nsp.output', (2, H), 'nsp',
                       is_reversed=True)
    return lines


def finetuned(config, kind, num_scores, skip=0):
    """The table of a `pretrained.heads.FineTuned`: a list of `Tensor`."""
    head, H = family_of(config).head_of(kind), config['num_hiddens']
    parts, new = ['encoder', 'decoder'], {}
    output = {'tag': 'classifier', 'span': 'qa_outputs'}.get(kind)
    if output is None:
        output = head.output
        if head.name:
            new[head.name] = 'hidden', (H, H)
        elif head.act:
            parts.append('pooler')
    new[output] = 'output', (num_scores, H)
    return [line for line in table(config, skip) if line.part in parts] + [
        Tensor(f'{name}.{suffix}', f'{ours}.{suffix}', size, 'head')
        for name, (ours, shape) in new.items()
        for suffix, size in (('weight', shape), ('bias', shape[:1]))]


def current_names(names, family=BERT):
    """Map names in the table to names in a folder, a dict.

    Encoder tensors may lack the prefix of the family. Old checkpoints have
    gamma and beta for the weight and bias of a LayerNorm; other tensors keep
    these names. Unknown names map to themselves. Buffers of old checkpoints,
    as position_ids, are left out.
    """
    prefix = family.prefix
    first = {name[len(prefix):].split('.')[0]
             for name in family.names.values() if name.startswith(prefix)}
    found = {}

    def current(name):
        return _current(name, prefix, first)
    for name in sorted(names, key=lambda name: (current(name) != name, name)):
        if re.fullmatch(rf'{re.escape(prefix)}(embeddings\.)?'
                        r'(position|token_type)_ids', current(name)):
            continue
        # The second of two names for one tensor is left over
        found[name if current(name) in found else current(name)] = name
    return found


def _current(name, prefix, first):
    if name.split('.')[0] in {*first, 'position_ids'}:
        name = prefix + name
    for old, new in (('gamma', 'weight'), ('beta', 'bias')):
        name = re.sub(rf'(^|\.)LayerNorm\.{old}$', rf'\1LayerNorm.{new}',
                      name)
    return name
