"""Attention weights, hidden states, neighbours and mask predictions of a net.

`plot_attention` draws the attention weights, a panel for each layer and head.

T tokens of a text with its special tokens, H hiddens, L blocks, N heads.
"""
import math
from typing import Any, Iterable, List, NamedTuple, Optional, Tuple, Union

import numpy as onp

from d2lbert.attention import DotProductAttention, keep_attention
from d2lbert.bert import get_tokens_and_segments
from d2lbert.machine.backend import autograd
from d2lbert.nn.checks import on_device
from d2lbert.pictures.sample_texts import short, vocab_of
from d2lbert.pretrained.fill_mask import Guess, likeliest, probabilities_at
from d2lbert.progress import bar
from d2lbert.text import special_of
from d2lbert.texts.examples import pad_rows

#: Most tokens in a batch whose hidden states are computed.
TOKENS = 1 << 12

#: Most tokens in a batch in which masks are filled.
MASKED_TOKENS = 1 << 13

#: Guesses that are kept for each masked token.
TOP = 10

#: Font size in points, smallest side of a panel and largest side of a
#: figure in inches.
POINTS, PANEL, SIDE = 7, 1.3, 18


def attention_of(net, ids, segments=None):
    """The attention weights of one text: (L, N, T, T) float32 in NumPy.

    ids, segments: lists of the T token ids and their segments. Entry
    [l, n, i, j] is the weight with which token i attends to token j in head
    n of block l + 1; rows sum to one. Raises ValueError for a block without
    exactly one `DotProductAttention`.
    """
    T = len(ids)
    found = []
    # The fused operators never store the weights, so blocks run with
    # `keep_attention`. They run one at a time, so that the device holds the
    # weights of a single block
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
    """The only `DotProductAttention` in a block of any class."""
    found = []
    blk.apply(lambda block: isinstance(block, DotProductAttention)
              and found.append(block))
    if len(found) != 1:
        raise ValueError(f'a block of this net ({type(blk).__name__}) has '
                         f'{len(found)} DotProductAttention in it; attention '
                         'weights can only be shown for blocks with one')
    return found[0]


def clearest_head(weights, special):
    """(layer, head), from 0, in which words attend to few other words.

    weights: (L, N, T, T); special: T booleans, true for special tokens.
    Returns the head with the largest sum of squared weights from words to
    other words, or (0, 0) for a text of one word. Heads that attend to all
    tokens alike, to special tokens or from each token to itself score low.
    """
    words = onp.flatnonzero(~onp.asarray(special))
    between = weights[:, :, words][:, :, :, words] ** 2
    between *= 1 - onp.eye(len(words), dtype=between.dtype)
    scores = between.sum(axis=(2, 3))
    return tuple(map(int, onp.unravel_index(scores.argmax(), scores.shape)))


def plot_attention(net: Any, tokens: Union[str, List[str]],
                   tokens_b: Union[str, List[str], None] = None, *,
                   tokenizer: Any = None, vocab: Any = None,
                   layers: Union[int, Iterable[int], None] = None,
                   heads: Union[int, Iterable[int], None] = None,
                   hide_special: bool = False,
                   figsize: Optional[Tuple[float, float]] = None) -> Any:
    """Draw the attention weights of a text, a panel for each head.

    tokens: a list of tokens in `vocab` (default: the net's vocabulary), as
    for `get_bert_encoding`. With a tokenizer of `load_model`: a text.
    tokens_b: the second text of a pair. layers, heads: a number or a list of
    numbers, counted from 1 (default: all). hide_special: leave out <cls> and
    <sep>, without rescaling the other weights.

    Returns a matplotlib figure. A row of a panel is the token that attends,
    a column the token that is attended to. All panels share one scale, up to
    the largest weight shown. In a long text only some tokens have a label.
    """
    from d2lbert.pictures.figures import Picture
    ids, segments, names, special = _encoded(net, tokens, tokens_b,
                                             tokenizer, vocab)
    weights = attention_of(net, ids, segments)          # (L, N, T, T)
    layers = _checked(layers, weights.shape[0], 'layers')
    heads = _checked(heads, weights.shape[1], 'heads')
    if hide_special:
        kept = [t for t, is_special in enumerate(special) if not is_special]
        if not kept:
            raise ValueError('the text has only special tokens: without '
                             'them there is nothing to show')
        weights = weights[:, :, kept][:, :, :, kept]
        names = [names[t] for t in kept]
    height = POINTS * 1.25 / 72         # inches of a line
    side = min(max(PANEL, len(names) * height),
               SIDE / max(len(layers), len(heads)))
    margin = 0.25 + min(max(map(len, names)), 14) * POINTS * 0.65 / 72
    fig = Picture(figsize=figsize or (
        margin + len(heads) * (side + 0.15) + 0.7,
        margin + len(layers) * (side + 0.3)), layout='constrained')
    axes = fig.subplots(len(layers), len(heads), squeeze=False)
    if figsize is not None:
        side = min((figsize[0] - margin - 0.7) / len(heads),
                   (figsize[1] - margin) / len(layers))
    every = max(1, math.ceil(len(names) * height / max(side, 0.1)))
    ticks = list(range(0, len(names), every))
    labels = [short(names[t]) for t in ticks]
    shown = [[weights[layer - 1, head - 1] for head in heads]
             for layer in layers]
    most = max(panel.max() for row in shown for panel in row)
    for row, layer in zip(axes, layers):
        for ax, head in zip(row, heads):
            image = ax.imshow(weights[layer - 1, head - 1], vmin=0, vmax=most,
                              cmap='Greys', interpolation='nearest')
            ax.set_xticks(ticks)
            ax.set_yticks(ticks)
            ax.tick_params(labelsize=POINTS, length=2, labelleft=head ==
                           heads[0], labelbottom=layer == layers[-1])
            if head == heads[0]:
                ax.set_yticklabels(labels)
                ax.set_ylabel(f'layer {layer}', fontsize=POINTS + 1)
            if layer == layers[-1]:
                ax.set_xticklabels(labels, rotation=90)
            if layer == layers[0]:
                ax.set_title(f'head {head}', fontsize=POINTS + 1)
    bar = fig.colorbar(image, ax=axes, shrink=0.8, pad=0.02,
                       aspect=30)
    bar.ax.tick_params(labelsize=POINTS)
    bar.set_label('attention weight', fontsize=POINTS + 1)
    return fig


def _encoded(net, tokens, tokens_b, tokenizer, vocab):
    """Lists: ids, segments, tokens, and true for each special token."""
    if tokenizer is not None:
        encoded = tokenizer.encode(tokens, tokens_b)
        return (encoded.ids, encoded.segments, encoded.tokens,
                [word is None for word in encoded.words])
    if isinstance(tokens, str):
        raise TypeError(f'tokens must be a list of tokens, not the string '
                        f'{tokens!r}: give {tokens!r}.split(), or a '
                        'tokenizer=')
    vocab = vocab_of(net, vocab)
    _, _, cls, sep = special_of(vocab)
    names, segments = get_tokens_and_segments(tokens, tokens_b, cls, sep)
    return (vocab[names], segments, names,
            [name in (cls, sep) for name in names])


def _checked(wanted, count, name):
    """A list of numbers from 1 to count; ValueError for others."""
    if wanted is None:
        return list(range(1, count + 1))
    wanted = [wanted] if isinstance(wanted, int) else list(wanted)
    for number in wanted:
        if number not in range(1, count + 1):
            raise ValueError(f'{name} must be 1 to {count}, not {number!r}')
    if not wanted:
        raise ValueError(f'{name} is empty: give some from 1 to {count}')
    return wanted


def vectors_by_layer(net, encoded, pad_id=0):
    """The hidden states of many texts, one layer at a time.

    encoded: a list of a tokenizer's `Encoded`. Yields L + 1 lists, the
    embeddings first; each has an array (T, H) float32 for each text, in the
    order of `encoded`. Layer l equals `encode(..., layer=l)` up to rounding,
    but each block runs once and one layer is in memory.
    """
    batches = _batches(encoded, pad_id)
    if net.encoder.quantized is not None:
        # A quantized encoder has no blocks that can run one by one
        for layer in range(net.encoder.blks.num_layers + 1):
            with autograd.pause():
                yield _in_order(batches, [
                    (net.encoder(batch.ids, batch.segments,
                                 onp.array(batch.lens), layer), batch.lens)
                    for batch in batches])
        return
    with autograd.pause():
        state = [_embedded(net, batch.ids, batch.segments, batch.lens)
                 for batch in batches]
    yield _in_order(batches, state)
    for layer, blk in enumerate(net.encoder.blks.up_to(-1), 1):
        with autograd.pause():
            state = [(blk(X, lens), lens) for X, lens in state]
            finished = [(net.encoder.finish(X, layer), lens)
                        for X, lens in state]
        yield _in_order(batches, finished)


def _embedded(net, ids, segments, lens):
    """The input X (B, T, H) of the first block, and the valid lengths."""
    X = net.encoder(onp.array(ids, 'int32'), onp.array(segments, 'int32'),
                    None, 0)
    return X, on_device(lens, X.ctx, 'float32')


class _Batch(NamedTuple):
    indices: list       # of its B texts among all texts
    ids: Any            # (B, T) int32, padded
    segments: Any       # (B, T) int32
    lens: list          # B lengths without padding


def _batches(encoded, pad_id):
    """A list of `_Batch`es, each of texts of similar length."""
    batches, indices = [], []
    for k in sorted(range(len(encoded)), key=lambda k: len(encoded[k].ids)):
        if indices and len(encoded[k].ids) * (len(indices) + 1) > TOKENS:
            batches.append(_padded(encoded, indices, pad_id))
            indices = []
        indices.append(k)
    if indices:
        batches.append(_padded(encoded, indices, pad_id))
    return batches


def _padded(encoded, indices, pad_id):
    return _Batch(indices, pad_rows([encoded[k].ids for k in indices], pad_id),
                  pad_rows([encoded[k].segments for k in indices]),
                  [len(encoded[k].ids) for k in indices])


def _in_order(batches, state):
    """The hidden states (T, H) of each text, in the order of the texts.

    state: the padded states (B, T, H) of a layer for each batch, and lengths.
    """
    found = {}
    for batch, (X, _) in zip(batches, state):
        X = X.asnumpy()
        found.update((k, X[b, :batch.lens[b]])
                     for b, k in enumerate(batch.indices))
    return [found[k] for k in range(len(found))]


class MaskGuesses(NamedTuple):
    """The prediction of a model for one masked token."""

    guesses: Any        # a list of `Guess`, the most probable first
    own: Guess          # the token that the text has there
    rank: int           # of this token, 1 for the most probable


def guesses_of(net, tokenizer, encoded, top=TOP):
    """A list with `MaskGuesses` for each token of an `Encoded`.

    Entry t equals the result of `fill_mask` for the text in which only token
    t is masked; it is None for special tokens.
    """
    T, vocab_size = len(encoded.ids), len(tokenizer)
    words = [t for t in range(T) if encoded.words[t] is not None]
    found = [None] * T
    step = max(1, MASKED_TOKENS // T)
    with bar(len(words), 'guessing', 'tokens', quiet=T < 40) as shown:
        for first in range(0, len(words), step):
            masked = onp.array(words[first:first + step])
            rows = onp.arange(len(masked))
            ids = onp.tile(onp.array(encoded.ids, 'int32'), (len(masked), 1))
            ids[rows, masked] = tokenizer.mask_id
            segments = onp.tile(onp.array(encoded.segments, 'int32'),
                                (len(masked), 1))
            probabilities = probabilities_at(net, ids, segments, rows, masked)
            own = onp.array(encoded.ids)[masked]
            of_own = probabilities[rows, own]
            ranks = 1 + (probabilities[:, :vocab_size] > of_own[:, None]
                         ).sum(axis=1)
            for k, guesses in enumerate(likeliest(probabilities, tokenizer,
                                                  top)):
                found[masked[k]] = MaskGuesses(
                    guesses, Guess(tokenizer.idx_to_token[own[k]],
                                   float(of_own[k])), int(ranks[k]))
            shown.update(len(masked))
    return found


#: Neighbours that are kept for each token and layer.
NUM_NEIGHBOURS = 6

#: Most tokens of a sample sentence.
MAX_LENGTH = 128


class SampleToken(NamedTuple):
    """A token of the sample."""

    sentence: int   # index of its sentence
    begin: int      # its first character in the sentence
    end: int        # after its last character; 0 for special tokens


class Neighbours(NamedTuple):
    """The nearest sample tokens of a token in a layer, nearest first."""

    indices: Any    # in the list of `SampleToken`s
    cosines: Any


def neighbours_of(net, tokenizer, texts, sentences, top=NUM_NEIGHBOURS):
    """Find the nearest sample tokens of every token of some texts.

    texts: a list of `Encoded`; sentences: the sample, a list of strings.
    Returns (sample tokens, found). found[k][l][t] belongs to token t of text
    k in layer l, 0 for the embeddings. It is a pair of `Neighbours`: among
    all sample tokens, and among occurrences of the same token. Nearest means
    the largest cosine similarity in that layer. A special token is only
    compared to the same special token, other tokens only to tokens that are
    not special.
    """
    encoded = tokenizer.encode_batch(
        list(sentences), max_len=min(net.encoder.max_len, MAX_LENGTH))
    sample_tokens = [SampleToken(s, *span) for s, one in enumerate(encoded)
                     for span in one.offsets]
    ids = onp.concatenate([one.ids for one in encoded])
    special = onp.concatenate([[word is None for word in one.words]
                               for one in encoded])
    first = len(texts)
    found = [[] for _ in texts]
    for rows in vectors_by_layer(net, [*texts, *encoded], tokenizer.pad_id):
        sample = _unit(onp.concatenate(rows[first:]))
        for k, text in enumerate(texts):
            cosines = _unit(rows[k]) @ sample.T         # (T, sample tokens)
            layer = []
            for t, idx in enumerate(text.ids):
                same = ids == idx
                kind = same if text.words[t] is None else ~special
                layer.append((_nearest(cosines[t], kind, top),
                              _nearest(cosines[t], same & kind, top)))
            found[k].append(layer)
    return sample_tokens, found


def _unit(X):
    """The rows of X (n, H), scaled to length one."""
    lengths = onp.sqrt((X * X).sum(axis=1, keepdims=True))
    return X / onp.maximum(lengths, 1e-12)


def _nearest(cosines, allowed, top):
    indices = onp.flatnonzero(allowed)
    allowed_cosines = cosines[indices]
    if len(indices) > top:
        best = onp.argpartition(-allowed_cosines, top - 1)[:top]
        # Of equal cosines the first in the text
        best = best[onp.lexsort((indices[best], -allowed_cosines[best]))]
    else:
        best = onp.lexsort((indices, -allowed_cosines))
    return Neighbours(indices[best].tolist(), allowed_cosines[best].tolist())
