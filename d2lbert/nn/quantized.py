"""Encoders at eight bits: smaller numbers for texts that are only encoded.

Weights are quantized once, each output's by its largest; token embeddings,
too, each token's; activations as they come, each token's by its largest. So
the vectors of a text depend on the text alone: not on its batch, the number
of threads or the processor.

B sequences, R rows of their tokens one after another, H hiddens, N rows and K
columns of a matrix.
"""
import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.kernels import int8
from d2lbert.machine.backend import autograd
from d2lbert.nn.checks import on_device
from d2lbert.nn.layers import is_unmodified

__all__ = ['QuantizedEncoder', 'QuantizedWeight', 'is_quantized']

#: Rows of a batch that another thread is worth.
AHEAD = 1 << 9

TOKENS = 'token_embedding.weight'
_QUANTIZED = re.compile(
    r'token_embedding\.weight|projection\.weight|'
    r'blks\.\d+\.(attention\.W_[qkvo]|ffn\.dense[12])\.weight')


def is_quantized(name):
    """True if this parameter of a `BERTEncoder` is kept at eight bits."""
    return _QUANTIZED.fullmatch(name) is not None


class QuantizedWeight(NamedTuple):
    """A matrix as whole numbers and a scale for each row."""

    q: Any          # (N, K) int8, from -127 to 127
    scale: Any      # (N,) float32

    def values(self):
        """The matrix q * scale, (N, K) float32."""
        return self.q * self.scale[:, None]


class QuantizedEncoder:
    """A `BERTEncoder` at eight bits, with the weights that it has now.

    encoder: one in which every block is exactly this package's, and which
    normalizes after each half of a block, not before, and whose tokens attend
    to all others. weights: {name: `QuantizedWeight`} of its parameters that
    `is_quantized` names, where they have been quantized before; else they
    are quantized now. Raises ValueError for any other encoder, for weights
    that are NaN or infinite, and where the C++ cannot be compiled.
    """

    def __init__(self, encoder, weights=None):
        _check(encoder)
        if weights is None:
            weights = _quantize(encoder)
        self.weights = weights
        blocks = list(encoder.blks)
        segments = encoder.segment_embedding
        self._order = onp.array([blocks.index(block) for block in
                                 encoder.blks.up_to(-1)], 'int32')
        tokens = encoder.scale(weights[TOKENS].values())
        positions = (_values(encoder.pos_embedding) if encoder.learnable
                     else encoder.pos_encoding.P.asnumpy())[0]
        norm = encoder.embedding_norm
        projection = encoder.projection
        self._encoder = int8.Encoder(
            (tokens, segments and _values(segments.weight), positions),
            norm and _norm(norm),
            projection and _dense(weights, {'projection': projection}),
            [_block(weights, f'blks.{i}', block)
             for i, block in enumerate(blocks)],
            blocks[0].attention.num_heads, blocks[0].ffn.dense1.folded(),
            blocks[0].addnorm1.ln._epsilon)
        self._blocks_in, self._ahead = encoder.blks, None

    def encode(self, offsets, ids, segments, layer=-1, firsts=False):
        """Encode sequences, ids and segments (R,) one after another: (R, H).

        offsets (B + 1,): where each begins, and the last ends; layer: as for
        `BERTEncoder`. firsts: the vectors of each sequence's first token
        alone, (B, H). All are arrays on the host. Raises ValueError for
        numbers that the encoder does not have.
        """
        count = len(self._blocks_in.up_to(layer))
        return self._encoder.encode(
            onp.ascontiguousarray(offsets, 'int64'),
            onp.ascontiguousarray(ids, 'int32'),
            onp.ascontiguousarray(segments, 'int32'), self._order[:count],
            firsts)

    def begin(self, *arguments):
        """Begin `encode` in another thread: a future of its rows, and begins.

        For work that Python does meanwhile, on batches of enough rows.
        begins (B,): the rows at which sequences begin.
        """
        _check_not_recording()
        offsets = arguments[0]
        if offsets[-1] < AHEAD:
            done = Future()
            done.set_result(self.encode(*arguments))
            return done, offsets[:-1]
        if self._ahead is None:
            self._ahead = ThreadPoolExecutor(1)
        return self._ahead.submit(self.encode, *arguments), offsets[:-1]

    def encode_rows(self, places, layer=-1, firsts=False):
        """Encode `packing.Places`: an array (R, H), or (B, H), on its device.
        """
        _check_not_recording()
        return on_device(self.encode(
            *(array.asnumpy() for array in (
                places.rows.offsets, places.tokens, places.segments)),
            layer, firsts), places.tokens.ctx)

    def padded(self, tokens, segments, valid_lens, layer=-1):
        """Encode a batch as `BERTEncoder` does, with zeros at padding.

        tokens, segments (B, T); valid_lens (B,) or None. Returns (B, T, H).
        """
        _check_not_recording()
        B, T = tokens.shape
        lens = (onp.full(B, T) if valid_lens is None
                else valid_lens.asnumpy().astype('int64').clip(1, T))
        real = onp.arange(T) < lens[:, None]
        rows = self.encode(
            onp.concatenate([[0], onp.cumsum(lens)]),
            tokens.asnumpy()[real], segments.asnumpy()[real], layer)
        X = onp.zeros((B, T, rows.shape[1]), 'float32')
        X[real] = rows
        return on_device(X, tokens.ctx)


def _check(encoder):
    """Raise ValueError for an encoder that cannot be quantized."""
    if not is_unmodified(encoder):
        raise ValueError(
            "precision='int8' needs an encoder without modified blocks: take "
            "'fp32'")
    if any(block.pre_norm for block in encoder.blks):
        raise ValueError(
            "precision='int8' is for nets that normalize after each half of "
            "a block, as BERT does, and this one does so before: take 'fp32'")
    if any(block.attention.causal for block in encoder.blks):
        raise ValueError(
            "precision='int8' is for nets whose tokens attend to all others, "
            "and in this one they attend to earlier ones alone: take 'fp32'")
    if int8.library() is None:
        raise ValueError(
            "precision='int8' needs the package's C++, which is not there "
            f'({int8.INT8.reason or "D2LBERT_KERNELS is off"}): take '
            "'fp32'")


def _check_not_recording():
    if autograd.is_recording():
        raise ValueError("a net with precision='int8' gives answers and no "
                         "gradients: load it with 'fp32' to train it")


def _values(param):
    return param.data(param.list_ctx()[0]).asnumpy()


def _quantize(encoder):
    """{name: `QuantizedWeight`} of the parameters that `is_quantized` names.
    """
    found = {}
    for name, param in encoder._collect_params_with_prefix().items():
        if is_quantized(name):
            values = _values(param)
            if not onp.isfinite(values).all():
                raise ValueError(f'{param.name} has numbers that are NaN or '
                                 "infinite, which have no scale: take 'fp32'")
            found[name] = QuantizedWeight(*int8.quantize(values))
    return found


def _norm(layer):
    return _values(layer.gamma), _values(layer.beta)


def _dense(weights, layers):
    """(q, scale, bias or None) of the layers {name: layer} side by side."""
    parts = [weights[f'{name}.weight'] for name in layers]
    biases = [layer.bias for layer in layers.values()]
    return (*map(onp.concatenate, zip(*parts)), None if None in biases
            else onp.concatenate([_values(bias) for bias in biases]))


def _block(weights, name, block):
    """The dense layers and the LayerNorms of a block, for `int8.Encoder`."""
    attention, ffn = block.attention, block.ffn
    layers = [{f'attention.{x}': getattr(attention, x) for x in some}
              for some in (('W_q', 'W_k', 'W_v'), ('W_o',))]
    layers += [{f'ffn.{x}': getattr(ffn, x)} for x in ('dense1', 'dense2')]
    return ([_dense(weights, {f'{name}.{inner}': layer
                              for inner, layer in some.items()})
             for some in layers],
            (_norm(block.addnorm1.ln), _norm(block.addnorm2.ln)))
