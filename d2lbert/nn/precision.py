"""Set the precision of a net: fp32, bf16, or int8 for inference only."""
from d2lbert import kernels
from d2lbert.kernels import int8, ops
from d2lbert.machine.backend import np
from d2lbert.machine.terminal import warn
from d2lbert.nn.layers import is_unmodified
from d2lbert.nn.quantized import (
    POSITIONS,
    TOKENS,
    Layout,
    QuantizedEncoder,
    check_layout,
    int8_quantizes,
    quantize,
)

PRECISIONS = 'fp32', 'bf16', 'int8'


def check_precision(precision):
    """Raise ValueError for an unknown precision, or for bf16 without support.

    None is accepted: it is the precision in which the weights are stored.
    `check_layout` checks the support for int8.
    """
    if precision is not None and precision not in PRECISIONS:
        raise ValueError("precision must be 'fp32', 'bf16' or 'int8', not "
                         f'{precision!r}')
    if precision == 'bf16':
        ops.check_precision(precision)


def set_precision(net, precision):
    """Set the precision of a net with an `encoder`; return the net.

    'fp32' and None leave the net as it is. 'bf16' multiplies matrices in
    bfloat16, or warns and uses fp32 if bfloat16 is not faster on this CPU.
    'int8' quantizes the current weights of the encoder, unless they are
    quantized already. Heads are not quantized, but token embeddings that they
    share with the encoder are rounded. Raises ValueError if the net, a weight
    or this machine does not allow the precision.
    """
    check_precision(precision)
    if precision == 'bf16':
        net.apply(_to_bf16)
        if hasattr(net, 'config'):
            net.config['precision'] = precision
        if kernels.products.chosen().bf16 == 'plain':   # multiplies in fp32
            warn('d2lbert: bf16 is not faster than fp32 on this CPU, so '
                 'matrices are multiplied in fp32')
    elif precision == 'int8' and net.encoder.quantized is None:
        quantized = _quantize_encoder(net)
        # A head that shares the token embeddings must give the same scores
        # now as after an export, which stores the quantized embeddings
        net.encoder.token_embedding.weight.set_data(
            np.array(quantized.weights[TOKENS].dequantized()))
        net.encoder.quantized = quantized
    return net


def _quantize_encoder(net):
    encoder = net.encoder
    act = _shared_activation(encoder) if is_unmodified(encoder) else 'none'
    if act == 'none':
        raise ValueError(
            "precision='int8' needs an encoder without modified blocks: use "
            "'fp32'")
    blocks = list(encoder.blks)
    # Layers may share blocks, and a layer may have several blocks
    layers = [[blocks.index(block) for block in encoder.blks.of_layer(layer)]
              for layer in range(1, encoder.blks.num_layers + 1)]
    any_block = blocks[0]       # all blocks have the settings below
    layout = Layout(
        any_block.attention.num_heads, act, any_block.addnorm1.ln._epsilon,
        layers, factor=encoder.scale(1.0),
        pre_norm=any_block.pre_norm, causal=any_block.attention.causal,
        has_decoder=getattr(net, 'decoder', None) is not None)
    check_layout(layout)
    params = {}
    for name, param in encoder._collect_params_with_prefix().items():
        values = param.data(param.list_ctx()[0]).asnumpy()
        params[name] = (quantize(values, param.name)
                        if int8_quantizes(name) else values)
    if not encoder.learns_positions:
        params[POSITIONS] = encoder.pos_encoding.P.asnumpy()
    return QuantizedEncoder(layout, params)


def _shared_activation(encoder):
    """The activation of all feed-forward networks; 'none' if int8 lacks it."""
    ffns = [block.ffn for block in encoder.blks]
    acts = {ffn.dense1.fused_activation() for ffn in ffns}
    is_shared = len(acts) == 1 and all(ffn.dense2.act is None for ffn in ffns)
    return acts.pop() if is_shared and acts <= {*int8.ACTS} else 'none'


def _to_bf16(block):
    if hasattr(block, 'precision'):
        block.precision = 'bf16'
