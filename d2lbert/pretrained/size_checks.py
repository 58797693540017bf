"""Sizes that a file describes, compared with its tensors before a net is made.

A description can name any number of layers; the tensors beside it cannot.
"""
import math

#: Arguments of the nets that are rows or columns of a tensor.
WIDTHS = ('vocab_size', 'num_hiddens', 'ffn_num_hiddens', 'num_heads',
          'embedding_size', 'num_segments', 'decoder_ffn', 'decoder_heads',
          'start_id')

#: Layers that may share the tensors of a group.
SHARED_LAYERS = 1000

#: Numbers of a table of sinusoidal positions, which no file holds.
POSITIONS = 1 << 26


def check_layers(config, count):
    """Raise ValueError where `count` tensors cannot be a net's layers.

    config: arguments of a `BERTModel` or a `BARTModel`.
    """
    layers, groups, inner, decoder = (
        value if isinstance(value, int) else 0 for value in map(
            config.get, ('num_layers', 'num_groups', 'inner_group_num',
                         'decoder_layers')))
    if groups and layers > SHARED_LAYERS:
        raise ValueError(f'{layers} layers are more than the {SHARED_LAYERS} '
                         'that may share their tensors')
    layers = (groups or layers) * max(inner, 1) + decoder
    if layers > count:
        raise ValueError(f'{count} tensors cannot be {layers} layers')


def check_sizes(config, shapes):
    """The same, and where no tensor has a size that the net is to have.

    shapes: those of all tensors.
    """
    shapes = list(shapes)
    check_layers(config, len(shapes))
    widest = max((size for shape in shapes for size in shape), default=0)
    for name in WIDTHS:
        value = config.get(name)
        if isinstance(value, int) and value > widest:
            raise ValueError(f'{name} is {value}, but no tensor has more '
                             f'than {widest} rows or columns')
    length, width = config.get('max_len'), config.get('num_hiddens')
    if isinstance(length, int) and isinstance(width, int):
        most = max([POSITIONS, *map(math.prod, shapes)])
        if length * width > most:
            raise ValueError(f'max_len is {length}, which is too long for '
                             'the tensors')
