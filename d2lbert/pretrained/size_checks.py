"""Checks of a model's sizes against its tensors, before it is constructed.

A damaged description may ask for any amount of memory; its tensors cannot.
"""
import math

#: Arguments of the models that are numbers of rows or columns.
WIDTHS = ('vocab_size', 'num_hiddens', 'ffn_num_hiddens', 'num_heads',
          'embedding_size', 'num_segments', 'decoder_ffn', 'decoder_heads',
          'start_id')

#: Most layers that may share the tensors of a group.
SHARED_LAYERS = 1000

#: Most numbers in a table of sinusoidal positions, which is never stored.
POSITIONS = 1 << 26


def check_layers(config, count):
    """Raise ValueError if `count` tensors are too few for the layers.

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
    """As `check_layers`, and raise if a size is larger than all tensors.

    shapes: the shapes of all tensors.
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
