"""Define encoders with 8-bit integer weights (int8), for inference only.

The weights of dense layers are quantized once, with a scale for each output,
and token embeddings with a scale for each token. The inputs of dense layers
are quantized during encoding, with a scale for each token and not for a batch:
the vectors of a text must not depend on the other texts of the batch. Nor do
they depend on the number of threads or the processor.

This file must not import MXNet, since that takes longer than encoding a text.

B: the number of sequences. T: the length of a padded sequence. R: the number
of rows, one for each token of all sequences, without padding. H: the number of
hidden units. N, K: the numbers of rows and columns of a weight.
"""
import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.kernels import int8
from d2lbert.nn.variant import Variant, num_layers_up_to

__all__ = ['Layout', 'QuantizedEncoder', 'QuantizedWeight', 'check_layout',
           'int8_quantizes', 'quantize']

#: `encode_async` uses another thread for batches of at least this many tokens,
#: so that a small batch does not wait for the thread.
MIN_ASYNC_ROWS = 1 << 9

#: Names of the embeddings among the parameters of a `BERTEncoder`.
TOKENS, SEGMENTS, POSITIONS = (
    'token_embedding.weight', 'segment_embedding.weight', 'pos_embedding')
#: Names of the parameters that int8 quantizes.
_QUANTIZED = re.compile(
    r'token_embedding\.weight|projection\.weight|'
    r'blks\.\d+\.(attention\.W_[qkvo]|ffn\.dense[12])\.weight')


def int8_quantizes(name):
    """True if int8 quantizes the parameter `name` of a `BERTEncoder`."""
    return _QUANTIZED.fullmatch(name) is not None


class QuantizedWeight(NamedTuple):
    """A matrix as 8-bit integers, with a scale for each row."""

    q: Any          # (N, K) int8, from -127 to 127
    scale: Any      # (N,) float32

    def dequantized(self):
        """The matrix (N, K) float32 that the integers and scales represent."""
        return self.q * self.scale[:, None]


class Layout(NamedTuple):
    """Settings of an encoder that its parameters do not contain."""

    num_heads: int
    act: str            # activation function of the feed-forward networks
    epsilon: float      # of each LayerNorm
    layers: list        # for each layer a list of the indices of its blocks
    factor: float = 1.0         # by which token embeddings are multiplied
    pre_norm: bool = False      # as in `Variant`
    causal: bool = False        # as in `Variant`
    has_decoder: bool = False

    @classmethod
    def of_config(cls, config):
        """The layout of a net; config: the keywords of its constructor."""
        # A copy, since `Variant.of` removes keywords
        variant = Variant.of(None, dict(config))
        factor = (config['num_hiddens'] ** 0.5 if variant.scale_embedding
                  else 1.0)
        return cls(config['num_heads'], variant.activation,
                   variant.layer_norm_eps,
                   variant.blocks_of_layers(config['num_layers']),
                   factor, variant.pre_norm, variant.causal,
                   bool(config.get('decoder_layers')))


def check_layout(layout):
    """Raise ValueError if int8 does not support the layout, or has no C++."""
    if layout.has_decoder:
        raise ValueError("precision='int8' is for nets without a decoder, and "
                         "this one has a decoder: take 'fp32'")
    if layout.pre_norm:
        raise ValueError(
            "precision='int8' is for nets with LayerNorm after each half of "
            "a block, and this one has it before (pre_norm): take 'fp32'")
    if layout.causal:
        raise ValueError(
            "precision='int8' is for nets whose tokens attend to all tokens, "
            "and here they attend to earlier tokens only: take 'fp32'")
    if int8.library() is None:
        raise ValueError(
            "precision='int8' needs the package's C++, which is not there "
            f'({int8.INT8.reason or "D2LBERT_KERNELS is off"}): take '
            "'fp32'")


class QuantizedEncoder:
    """A `BERTEncoder` with quantized weights.

    layout: a `Layout`. params: {name: NumPy array} of all parameters of a
    `BERTEncoder`, with a `QuantizedWeight` for each name that
    `int8_quantizes` accepts. params[POSITIONS] may be a table of sinusoidal
    positions. Raises ValueError as `check_layout` does.

    Attributes: weights, the quantized part of params; max_len, the largest
    length of a sequence; num_hiddens, H.
    """

    def __init__(self, layout, params):
        check_layout(layout)
        self.weights = {name: values for name, values in params.items()
                        if isinstance(values, QuantizedWeight)}
        self._layers = layout.layers
        # The index of each block to apply; blocks that layers share recur
        self._order = onp.array([block for blocks in layout.layers
                                 for block in blocks], 'int32')
        positions = params[POSITIONS]
        self.max_len = positions.shape[-2]
        self.num_hiddens = len(params['blks.0.addnorm2.ln.gamma'])
        self._ignores_segments = len(params.get(SEGMENTS, ())) < 2
        num_blocks = 1 + max(self._order)
        self._encoder = int8.Encoder(
            (self.weights[TOKENS], params.get(SEGMENTS),
             positions.reshape(-1, positions.shape[-1])),
            _norm(params, 'embedding_norm'),
            _dense(params, 'projection') if 'projection.weight' in params
            else None,
            [_block(params, f'blks.{i}') for i in range(num_blocks)],
            layout.num_heads, layout.act, layout.epsilon, layout.factor)
        self._executor = None

    def encode(self, offsets, ids, segments, layer=-1, returned_rows='all'):
        """Encode sequences; return vectors, a NumPy array.

        offsets (B + 1,): the first row of each sequence, and R at the end.
        ids, segments (R,): the id and segment of each token. These three are
        NumPy arrays or lists. layer: as for `BERTEncoder.forward`.
        returned_rows: 'all' for the vectors of all tokens, (R, H); 'first' for
        the first token of each sequence, (B, H); 'mean' for the mean of each
        sequence, (B, H). Raises ValueError for ids, segments or a layer that
        the encoder lacks, and for an empty or too long sequence.
        """
        num_layers = num_layers_up_to(layer, len(self._layers))
        num_applied_blocks = sum(map(len, self._layers[:num_layers]))
        if self._ignores_segments:      # as `BERTEncoder.check` does
            segments = onp.zeros(len(segments), 'int32')
        return self._encoder.encode(
            onp.ascontiguousarray(offsets, 'int64'),
            onp.ascontiguousarray(ids, 'int32'),
            onp.ascontiguousarray(segments, 'int32'),
            self._order[:num_applied_blocks], returned_rows)

    def encode_async(self, offsets, *arguments):
        """Start `encode` in another thread, and return a future of its result.

        The arguments are as for `encode`. A batch of fewer than MIN_ASYNC_ROWS
        tokens is encoded before this method returns.
        """
        num_rows = offsets[-1]
        if num_rows < MIN_ASYNC_ROWS:
            finished = Future()
            finished.set_result(self.encode(offsets, *arguments))
            return finished
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1)
        return self._executor.submit(self.encode, offsets, *arguments)

    def encode_padded(self, tokens, segments, valid_lens, layer=-1):
        """Encode a batch with padding: (B, T, H), with zeros at padding.

        tokens, segments (B, T). valid_lens (B,): the number of tokens before
        the padding, where 0 counts as 1; None: no padding.
        """
        B, T = tokens.shape
        lens = (onp.full(B, T) if valid_lens is None
                else valid_lens.astype('int64').clip(1, T))
        is_real = onp.arange(T) < lens[:, None]
        vectors = self.encode(onp.concatenate([[0], onp.cumsum(lens)]),
                              tokens[is_real], segments[is_real], layer)
        X = onp.zeros((B, T, vectors.shape[1]), 'float32')
        X[is_real] = vectors
        return X


def quantize(values, name):
    """Quantize a matrix (N, K), and return a `QuantizedWeight`.

    Raises ValueError if a number is NaN or infinite. name: the name of the
    matrix in the message.
    """
    if not onp.isfinite(values).all():
        raise ValueError(f'{name} has numbers that are NaN or infinite, which '
                         "cannot be quantized: take 'fp32'")
    return QuantizedWeight(*int8.quantize(values))


def _norm(params, name):
    """(gamma, beta) of a LayerNorm, or None if params lacks it."""
    gamma = params.get(f'{name}.gamma')
    return None if gamma is None else (gamma, params[f'{name}.beta'])


def _dense(params, *names):
    """(q, scale, bias or None) of the dense layers `names`, joined to one."""
    weights = [params[f'{name}.weight'] for name in names]
    biases = [params[f'{name}.bias'] for name in names
              if f'{name}.bias' in params]
    if len(names) == 1:     # `concatenate` would copy the weight
        weight, = weights
        return weight.q, weight.scale, biases[0] if biases else None
    q = onp.concatenate([weight.q for weight in weights])
    scale = onp.concatenate([weight.scale for weight in weights])
    return q, scale, onp.concatenate(biases) if biases else None


def _block(params, name):
    """(dense layers, LayerNorms) of a block, as for `int8.Encoder`."""
    attention, ffn = f'{name}.attention', f'{name}.ffn'
    layers = [
        _dense(params, f'{attention}.W_q', f'{attention}.W_k',
               f'{attention}.W_v'),
        _dense(params, f'{attention}.W_o'),
        _dense(params, f'{ffn}.dense1'), _dense(params, f'{ffn}.dense2')]
    norms = [_norm(params, f'{name}.addnorm1.ln'),
             _norm(params, f'{name}.addnorm2.ln')]
    return layers, norms
