"""The precision of a net that answers: fp32, bf16 or int8."""
from d2lbert import kernels
from d2lbert.kernels import ops
from d2lbert.machine.backend import np
from d2lbert.machine.terminal import warn
from d2lbert.nn.quantized import TOKENS, QuantizedEncoder

PRECISIONS = 'fp32', 'bf16', 'int8'


def check_precision(precision):
    """Raise ValueError for a precision that is unknown or not for this CPU.

    None is the precision in which the weights are stored.
    """
    if precision is not None and precision not in PRECISIONS:
        raise ValueError("precision must be 'fp32', 'bf16' or 'int8', not "
                         f'{precision!r}')
    if precision == 'bf16':
        ops.check_precision(precision)


def set_precision(net, precision, weights=None):
    """Let a net with an `encoder` compute at a precision; returns it.

    'fp32' changes nothing. 'bf16' multiplies matrices in bfloat16, and warns
    where that is not faster here. 'int8' quantizes the encoder as it is now,
    see `QuantizedEncoder`; heads stay as they are, except for token
    embeddings that they share. weights: those of `QuantizedEncoder` that the
    net was loaded from; with them None is 'int8', without them 'fp32'.
    Raises ValueError where that cannot be.
    """
    if precision is None:
        precision = 'fp32' if weights is None else 'int8'
    check_precision(precision)
    if precision == 'bf16':
        net.apply(_to_bf16)
        if hasattr(net, 'config'):
            net.config['precision'] = precision
        if kernels.products.chosen().bf16 == 'plain':
            warn('d2lbert: bf16 is not faster than fp32 on this CPU, so '
                 'that products stay fp32')
    elif precision == 'int8':
        if getattr(net, 'decoder', None) is not None:
            raise ValueError("precision='int8' is for nets of an encoder "
                             "alone, and this one has a decoder: take "
                             "'fp32'")
        quantized = QuantizedEncoder(net.encoder, weights)
        # A head that shares them gives what it will give once it is exported
        net.encoder.token_embedding.weight.set_data(
            np.array(quantized.weights[TOKENS].values()))
        net.encoder.quantized = quantized
    return net


def _to_bf16(block):
    if hasattr(block, 'precision'):
        block.precision = 'bf16'
