"""Encoders with 8-bit weights (int8), for inference only.

Weights are quantized once, with a scale for each output; token embeddings
have a scale for each token. Activations are quantized during encoding, with a
scale for each token. A scale follows from the largest absolute value. So the
vectors of a text depend on the text alone: not on its batch, the number of
threads or the processor.

This file needs only NumPy and the C++. MXNet is imported where a net is
quantized (`precision.py`) and where rows come from its arrays (`packed.py`).

B sequences, T tokens, R rows of the tokens of all sequences, H hiddens, N
rows and K columns of a matrix.
"""
import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.kernels import int8
from d2lbert.nn.variant import Variant, number_of_layers

__all__ = ['Layout', 'QuantizedEncoder', 'QuantizedWeight', 'check_layout',
           'is_quantized', 'quantize']

#: The least number of rows for which `begin` uses another thread.
AHEAD = 1 << 9

#: Parameters of a `BERTEncoder`.
TOKENS, SEGMENTS, POSITIONS = (
    'token_embedding.weight', 'segment_embedding.weight', 'pos_embedding')
_QUANTIZED = re.compile(
    r'token_embedding\.weight|projection\.weight|'
    r'blks\.\d+\.(attention\.W_[qkvo]|ffn\.dense[12])\.weight')


def is_quantized(name):
    """True if the parameter `name` of a `BERTEncoder` is quantized."""
    return _QUANTIZED.fullmatch(name) is not None


class QuantizedWeight(NamedTuple):
    """A matrix as whole numbers and a scale for each row."""

    q: Any          # (N, K) int8, from -127 to 127
    scale: Any      # (N,) float32

    def values(self):
        """The matrix q * scale, (N, K) float32."""
        return self.q * self.scale[:, None]


class Layout(NamedTuple):
    """Settings of an encoder, except its parameters."""

    num_heads: int
    act: str            # the activation of the feed-forward networks
    epsilon: float      # of each LayerNorm
    layers: list        # for each layer the indices of its blocks
    factor: float = 1.0     # scales token embeddings
    pre_norm: bool = False
    causal: bool = False
    has_decoder: bool = False

    @classmethod
    def of_config(cls, config):
        """The layout that the arguments of a net describe."""
        variant = Variant.of(None, dict(config))
        return cls(config['num_heads'], variant.activation,
                   variant.layer_norm_eps,
                   variant.blocks_of_layers(config['num_layers']),
                   config['num_hiddens'] ** 0.5 if variant.scale_embedding
                   else 1.0, variant.pre_norm, variant.causal,
                   bool(config.get('decoder_layers')))


def check_layout(layout):
    """Raise ValueError for an encoder that cannot be quantized."""
    if layout.has_decoder:
        raise ValueError("precision='int8' is for nets of an encoder alone, "
                         "and this one has a decoder: take 'fp32'")
    if layout.pre_norm:
        raise ValueError(
            "precision='int8' is for nets that normalize after each half of "
            "a block, as BERT does, and this one does so before: take 'fp32'")
    if layout.causal:
        raise ValueError(
            "precision='int8' is for nets whose tokens attend to all others, "
            "and in this one they attend to earlier ones alone: take 'fp32'")
    if int8.library() is None:
        raise ValueError(
            "precision='int8' needs the package's C++, which is not there "
            f'({int8.INT8.reason or "D2LBERT_KERNELS is off"}): take '
            "'fp32'")


class QuantizedEncoder:
    """A `BERTEncoder` with quantized weights.

    layout: a `Layout`. params: {name: array on the host} of all parameters
    of a `BERTEncoder`; a name for which `is_quantized` is true has a
    `QuantizedWeight`; `POSITIONS` may be sinusoidal. Raises ValueError as
    `check_layout` does.
    """

    def __init__(self, layout, params):
        check_layout(layout)
        self.weights = {name: values for name, values in params.items()
                        if isinstance(values, QuantizedWeight)}
        self._layers = layout.layers
        self._order = onp.array([block for blocks in layout.layers
                                 for block in blocks], 'int32')
        positions = params[POSITIONS]
        self.max_len, self.num_hiddens = positions.shape[-2], len(
            params['blks.0.addnorm2.ln.gamma'])
        num_blocks = 1 + max(self._order)
        self._encoder = int8.Encoder(
            (self.weights[TOKENS], params.get(SEGMENTS),
             positions.reshape(-1, positions.shape[-1])),
            _norm(params, 'embedding_norm'),
            _dense(params, 'projection') if 'projection.weight' in params
            else None,
            [_block(params, f'blks.{i}') for i in range(num_blocks)],
            layout.num_heads, layout.act, layout.epsilon, layout.factor)
        self._ahead = None

    def encode(self, offsets, ids, segments, layer=-1, rows='all'):
        """Encode sequences, ids and segments (R,) one after another: (R, H).

        offsets (B + 1,): where each sequence begins, and where the last one
        ends. layer: as for `BERTEncoder`. rows='first' returns the vector of
        the first token of each sequence, (B, H); 'mean' the mean vector of
        its tokens, (B, H). All arrays are on the host. Raises ValueError for
        ids, segments or a layer that the encoder does not have.
        """
        count = sum(map(len, self._layers[:number_of_layers(
            layer, len(self._layers))]))
        return self._encoder.encode(
            onp.ascontiguousarray(offsets, 'int64'),
            onp.ascontiguousarray(ids, 'int32'),
            onp.ascontiguousarray(segments, 'int32'), self._order[:count],
            rows)

    def begin(self, offsets, *arguments):
        """Begin `encode` in another thread: a future of its vectors.

        Python can work meanwhile. A batch of fewer than AHEAD rows is encoded
        before this returns.
        """
        if offsets[-1] < AHEAD:
            done = Future()
            done.set_result(self.encode(offsets, *arguments))
            return done
        if self._ahead is None:
            self._ahead = ThreadPoolExecutor(1)
        return self._ahead.submit(self.encode, offsets, *arguments)

    def padded(self, tokens, segments, valid_lens, layer=-1):
        """Encode a batch as `BERTEncoder` does, with zeros at padding.

        tokens, segments (B, T); valid_lens (B,) or None. Returns (B, T, H).
        """
        B, T = tokens.shape
        lens = (onp.full(B, T) if valid_lens is None
                else valid_lens.astype('int64').clip(1, T))
        real = onp.arange(T) < lens[:, None]
        rows = self.encode(onp.concatenate([[0], onp.cumsum(lens)]),
                           tokens[real], segments[real], layer)
        X = onp.zeros((B, T, rows.shape[1]), 'float32')
        X[real] = rows
        return X


def quantize(values, name):
    """Quantize a matrix, which messages call `name`: a `QuantizedWeight`.

    Raises ValueError for numbers that are NaN or infinite.
    """
    if not onp.isfinite(values).all():
        raise ValueError(f'{name} has numbers that are NaN or infinite, which '
                         "have no scale: take 'fp32'")
    return QuantizedWeight(*int8.quantize(values))


def _norm(params, name):
    gamma = params.get(f'{name}.gamma')
    return None if gamma is None else (gamma, params[f'{name}.beta'])


def _dense(params, *names):
    """(q, scale, bias or None) of dense layers side by side."""
    parts = [params[f'{name}.weight'] for name in names]
    biases = [params[f'{name}.bias'] for name in names
              if f'{name}.bias' in params]
    if len(names) == 1:
        return (*parts[0], *(biases or [None]))
    return (*map(onp.concatenate, zip(*parts)),
            onp.concatenate(biases) if biases else None)


def _block(params, name):
    """The dense layers and the LayerNorms of a block, for `int8.Encoder`."""
    return ([_dense(params, *(f'{name}.{layer}' for layer in layers))
             for layers in (('attention.W_q', 'attention.W_k',
                             'attention.W_v'), ('attention.W_o',),
                            ('ffn.dense1',), ('ffn.dense2',))],
            [_norm(params, f'{name}.{norm}')
             for norm in ('addnorm1.ln', 'addnorm2.ln')])
