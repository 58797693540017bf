"""What goes on inside a net: attention weights, and vectors by layer.

T tokens of a text with the special ones, H hiddens, L blocks, N heads.
"""
import numpy as onp

from d2lbert.attention import DotProductAttention, keep_attention
from d2lbert.machine.backend import autograd
from d2lbert.nn.checks import on_device
from d2lbert.texts.token_rows import pad_rows

#: Tokens of the texts that go through the net together.
TOKENS = 1 << 12


def attention_of(net, ids, segments=None):
    """The attention weights of one text: (L, N, T, T) float32, on the host.

    ids, segments: its T tokens, as lists. Entry l, n, i, j is the weight
    that head n of block l + 1 gives token j where it works on token i; rows
    sum to one. The operators in C++ never store them, so each block is
    called as the page does, with its weights kept (`keep_attention`), one
    after another: no more than one block's are on the device at a time.
    """
    T = len(ids)
    found = []
    with autograd.pause():
        X = _embedded(net, [ids], [segments or [0] * T], [T])[0]
        for blk in net.encoder.blks.up_to(-1):
            attention = _attention_in(blk)
            with keep_attention(blk):
                X = blk(X, None)
            found.append(attention.attention_weights.asnumpy())
            if not attention.keeps_weights:
                attention.attention_weights = None
    return onp.stack(found).astype('float32', copy=False)


def _attention_in(blk):
    """The one attention of a block, which may be of a class of one's own."""
    found = []
    blk.apply(lambda block: isinstance(block, DotProductAttention)
              and found.append(block))
    if len(found) != 1:
        raise ValueError(f'a block of this net ({type(blk).__name__}) has '
                         f'{len(found)} DotProductAttention in it: only '
                         'where there is one can its weights be shown')
    return found[0]


def vectors_by_layer(net, encoded, pad_id=0):
    """The vectors of many texts, a layer at a time, the embeddings first.

    encoded: a list of a tokenizer's `Encoded`. Yields for each of L + 1
    layers a list of arrays (T, H) float32, one a text, in that order. What
    `encode(..., layer=l)` gives each text, to rounding, but with every block
    computed once, and one layer in memory.
    """
    batches, state = _batches(encoded, pad_id), []
    if net.encoder.quantized is not None:
        # It has no blocks to call one by one
        for layer in range(net.encoder.blks.num_layers + 1):
            with autograd.pause():
                yield _rows(batches, [
                    (net.encoder(ids, segments, onp.array(lens), layer), lens)
                    for _, ids, segments, lens in batches])
        return
    with autograd.pause():
        for rows, ids, segments, lens in batches:
            state.append(_embedded(net, ids, segments, lens))
    yield _rows(batches, state)
    for layer, blk in enumerate(net.encoder.blks.up_to(-1), 1):
        with autograd.pause():
            state = [(blk(X, lens), lens) for X, lens in state]
            finished = [(net.encoder.finish(X, layer), lens)
                        for X, lens in state]
        yield _rows(batches, finished)


def _embedded(net, ids, segments, lens):
    """X (B, T, H) as the first block takes it, and its valid lengths."""
    X = net.encoder(onp.array(ids, 'int32'), onp.array(segments, 'int32'),
                    None, 0)
    return X, on_device(lens, X.ctx, 'float32')


def _batches(encoded, pad_id):
    """Texts of like length together: (their places, ids, segments, lens)."""
    batches, some = [], []
    for k in sorted(range(len(encoded)), key=lambda k: len(encoded[k].ids)):
        if some and len(encoded[k].ids) * (len(some) + 1) > TOKENS:
            batches.append(_padded(encoded, some, pad_id))
            some = []
        some.append(k)
    if some:
        batches.append(_padded(encoded, some, pad_id))
    return batches


def _padded(encoded, some, pad_id):
    ids = pad_rows([encoded[k].ids for k in some], pad_id)
    segments = pad_rows([encoded[k].segments for k in some])
    return some, ids, segments, [len(encoded[k].ids) for k in some]


def _rows(batches, state):
    """A layer's (T, H) of each text, in the order of the texts."""
    found = {}
    for (some, _, _, lens), (X, _) in zip(batches, state):
        X = X.asnumpy()
        found.update((k, X[b, :lens[b]]) for b, k in enumerate(some))
    return [found[k] for k in range(len(found))]
