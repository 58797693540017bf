"""A checkpoint folder as an int8 encoder, without MXNet.

`import mxnet` takes longer than loading such an encoder and encoding a text.
So the commands that need nothing but vectors load it by this module.
"""
from pathlib import Path
from typing import Any, NamedTuple

from d2lbert.nn.quantized import (
    Layout,
    QuantizedEncoder,
    QuantizedWeight,
    check_layout,
    is_quantized,
    quantize,
)
from d2lbert.pretrained.contents import open_folder, warn_of_differences
from d2lbert.pretrained.families import config as configs
from d2lbert.pretrained.families import tensor_names


class QuantizedModel(NamedTuple):
    """An encoder for `encoding.TextEncoder`: a net without heads."""

    encoder: QuantizedEncoder
    config: dict        # keyword arguments of the net
    pretrained: Any     # a `Pretrained`


def load(folder, precision=None):
    """The `QuantizedModel` and the tokenizer of a folder, or None.

    None: precision is None and the folder is not quantized. Its vectors are
    equal to the ones of `load_pretrained`, to the bit. Raises
    `PretrainedError`, and ValueError for a net that cannot be quantized.
    """
    config = Path(folder, 'config.json')
    if (precision is None and config.is_file() and configs.keywords(
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
