"""Batches without their padding: the one place where it is left out.

B sequences, T tokens, R real ones of all sequences together, H hiddens.
"""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.kernels import ops
from d2lbert.machine.backend import np
from d2lbert.nn.checks import check_whole, on_device
from d2lbert.nn.layers import is_ours


class Rows(NamedTuple):
    """Where each sequence lies in an (R, H) array of token rows.

    Sequence b owns rows offsets[b] to offsets[b+1]; its first lens[b] rows
    are real tokens, which are all that its queries may look at. `length` is
    the number of rows that every sequence owns, None where it differs.
    """

    offsets: Any        # (B+1,) int32
    lens: Any           # (B,) int32
    length: Any = None

    @classmethod
    def padded(cls, batch_size, num_tokens, valid_lens, ctx):
        """Rows of a (B, T, H) array, padding included."""
        offsets = onp.arange(batch_size + 1, dtype='int32') * num_tokens
        if valid_lens is None:
            lens = np.full((batch_size,), num_tokens, dtype='int32', ctx=ctx)
        else:
            lens = valid_lens.astype('int32')
        return cls(on_device(offsets, ctx), lens, num_tokens)


class Places(NamedTuple):
    """The tokens that are no padding, one after another."""

    tokens: Any         # (R,) int32
    segments: Any       # (R,) int32
    positions: Any      # (R,) int32, each token's within its sequence
    rows: Rows


def at_real_places(net, tokens, segments, valid_lens, layer=-1, at=None):
    """What a net says of real tokens: X (R, H), begins (B,), nsp (B, 2).

    tokens, segments (B, T) and valid_lens (B,), as for the net itself. Token
    t of sequence b is row begins[b] + t of X, for every t below
    valid_lens[b]; begins is on the host. A net in which every block is
    exactly ours computes nothing on padding. Any other is called as the page
    does, and there are rows for its padding, too. layer: as
    for `BERTEncoder`; of any but -1, nsp is None. at: sequences (S,) and
    tokens (S,) within them, on the host, where X is to be (S, H) of those
    tokens alone.
    """
    check_whole(valid_lens, 'valid length')
    lens = host(valid_lens).reshape(-1).astype('int32')
    if not is_ours(net) or lens.min() < 1:
        inputs = tokens, segments, valid_lens.reshape(-1)
        if layer == -1:
            encoded_X, _, nsp_Y_hat = net(*inputs)
        else:
            encoded_X, nsp_Y_hat = net.encoder(*inputs, layer), None
        B, T, H = encoded_X.shape
        X, begins = encoded_X.reshape(B * T, H), onp.arange(B) * T
        if at is not None:
            X, = ops.take_rows(X, _rows_of(at, begins, X.ctx))
        return X, begins, nsp_Y_hat
    places, begins = _real_places(net.encoder, tokens, segments, lens)
    if at is None:
        X, nsp_Y_hat = net.encode_rows(places, layer)
    else:
        X, nsp_Y_hat = net.encode_rows(
            places, layer, _rows_of(at, begins, places.tokens.ctx))
    return X, begins, nsp_Y_hat


def _rows_of(at, begins, device):
    """Rows (S,) of tokens of sequences that begin there, on a device."""
    sequences, tokens = at
    return on_device(begins[sequences] + tokens, device, 'int32')


def at_first_places(encoder, tokens, segments, valid_lens):
    """What an encoder says of the first token of each sequence, (B, H).

    Arguments as for `BERTEncoder`. One in which every block is exactly ours
    computes nothing else that this does not ask for; any other is called as
    a page does.
    """
    if valid_lens is None:
        lens = onp.full(len(tokens), tokens.shape[1], 'int32')
    else:
        check_whole(valid_lens, 'valid length')
        lens = host(valid_lens).reshape(-1).astype('int32')
    if not is_ours(encoder) or lens.min() < 1:
        return encoder(tokens, segments, valid_lens)[:, 0, :]
    places, _ = _real_places(encoder, tokens, segments, lens)
    return encoder.encode_firsts(places)


def _real_places(encoder, tokens, segments, lens):
    """`Places` of tokens (B, T), and on the host where each row begins.

    lens (B,) int32 on the host, all above 0.
    """
    tokens, segments = encoder.check(tokens, segments)
    T = tokens.shape[1]
    real = onp.arange(T) < lens[:, None]                # (B, T)
    offsets = onp.concatenate([[0], onp.cumsum(onp.minimum(lens, T))])

    def put(A):
        return on_device(A, tokens.ctx, 'int32')
    return Places(put(host(tokens)[real]), put(host(segments)[real]),
                  put(onp.nonzero(real)[1]),
                  Rows(put(offsets), put(onp.diff(offsets)))), offsets[:-1]


def host(X):
    """X, a host or device array, as an array on the host."""
    return X.asnumpy() if isinstance(X, np.ndarray) else onp.asarray(X)
