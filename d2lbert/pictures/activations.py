"""Compute the numbers that the pictures of a net show.

They are attention weights, the hidden states of all layers, predictions for
masked tokens, and the most similar tokens of other texts. `plot_attention`
draws attention weights.

B: the number of texts in a batch; T: the number of tokens of a text, special
tokens included; H: the number of hidden units; L: the number of layers; N: the
number of attention heads; V: the number of scores of the net for a token. For
attention weights, L counts blocks: a layer of an ALBERT may have several.
"""
import math
from typing import Any, Iterable, List, NamedTuple, Optional, Tuple, Union

import numpy as onp

from d2lbert.attention import DotProductAttention, keep_attention
from d2lbert.bert import get_tokens_and_segments
from d2lbert.machine.backend import autograd
from d2lbert.nn.checks import on_device
from d2lbert.pictures.sample_texts import short_label, vocab_of
from d2lbert.pretrained.fill_mask import Guess, likeliest, probabilities_at
from d2lbert.progress import bar
from d2lbert.text import special_of
from d2lbert.texts.examples import pad_rows

#: Maximum number of tokens in a batch of `vectors_by_layer`, padding included,
#: and in a batch of `guesses_of`. A longer text forms a batch alone.
MAX_TOKENS, MAX_GUESS_TOKENS = 1 << 12, 1 << 13

#: Number of guesses that are kept for each masked token.
NUM_GUESSES = 10

FONT_POINTS = 7     # a point is 1/72 inch

#: For figures without figsize: the minimum side of a panel, and the maximum
#: sum of the sides in a row or column, which has priority.
MIN_PANEL_INCHES, MAX_ROW_INCHES = 1.3, 18


def attention_of(net, ids, segments=None):
    """Return the attention weights of one text: (L, N, T, T) float32, NumPy.

    ids: a list of T token ids. segments: a list of their segments; None if all
    are 0. Entry [l, n, i, j] is the weight with which token i attends to token
    j in block l and head n, all counted from 0. So each row [l, n, i] sums to
    one. Raises ValueError if a block does not have exactly one
    `DotProductAttention`.
    """
    T = len(ids)
    weights = []
    # Blocks run one at a time, so that the device never holds the weights of
    # all blocks
    with autograd.pause():
        X, _ = _embed(net, [ids], [segments or [0] * T], [T])
        for blk in net.encoder.blks.up_to(-1):      # all blocks
            attention = _find_attention(blk)
            with keep_attention(blk):
                X = blk(X, None)        # None: there is no padding
            # (N, T, T), since the batch has a single text
            weights.append(attention.attention_weights.asnumpy())
            # Free the memory, unless the net keeps its weights anyway
            if not attention.keeps_weights:
                attention.attention_weights = None
    return onp.stack(weights).astype('float32', copy=False)


def _find_attention(blk):
    """Return the only `DotProductAttention` within a block of the encoder."""
    found = []

    def visit(part):
        if isinstance(part, DotProductAttention):
            found.append(part)
    blk.apply(visit)
    if len(found) != 1:
        raise ValueError(f'a block of this net ({type(blk).__name__}) has '
                         f'{len(found)} DotProductAttention in it; attention '
                         'weights can only be shown for blocks with one')
    return found[0]


def clearest_head(weights, is_special):
    """Find the (layer, head) in which words attend most to few other words.

    weights: (L, N, T, T); is_special: T booleans. Words are the tokens that
    are not special. The result, counted from 0, has the largest sum of squared
    weights from words to other words; it is (0, 0) for fewer than two words.
    The sum is small for heads in which words attend to all tokens alike, to
    special tokens, or to themselves.
    """
    word_positions = onp.flatnonzero(~onp.asarray(is_special))
    squares = weights[:, :, word_positions][:, :, :, word_positions] ** 2
    squares *= 1 - onp.eye(len(word_positions), dtype=squares.dtype)
    scores = squares.sum(axis=(2, 3))                   # (L, N)
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
    for `get_bert_encoding`; or, with a tokenizer of `load_model`, a text.
    tokens_b: the second text of a pair. layers, heads: a number or a list of
    numbers, counted from 1 (default: all). hide_special: leave out the special
    tokens that are added to a text, such as <cls>, without rescaling the
    other weights.

    Returns a matplotlib figure. In a panel, the token of a row attends to the
    token of a column. All panels share one scale of colours, which ends at the
    largest weight shown. In a long text only some tokens have a label.
    """
    from d2lbert.pictures.figures import Picture
    ids, segments, strings, is_special = _encode(net, tokens, tokens_b,
                                                 tokenizer, vocab)
    weights = attention_of(net, ids, segments)          # (L, N, T, T)
    layers = _numbers_to_draw(layers, weights.shape[0], 'layers')
    heads = _numbers_to_draw(heads, weights.shape[1], 'heads')
    if hide_special:
        kept = [t for t in range(len(strings)) if not is_special[t]]
        if not kept:
            raise ValueError('the text has only special tokens: without '
                             'them there is nothing to show')
        weights = weights[:, :, kept][:, :, :, kept]
        strings = [strings[t] for t in kept]
    # Lengths are in inches
    line_height = FONT_POINTS * 1.25 / 72
    panel_side = min(max(MIN_PANEL_INCHES, len(strings) * line_height),
                     MAX_ROW_INCHES / max(len(layers), len(heads)))
    # `short_label` cuts labels to 14 letters. A letter is 0.65 times as wide
    # as the font is high
    label_letters = min(max(map(len, strings)), 14)
    margin = 0.25 + label_letters * FONT_POINTS * 0.65 / 72
    column_gap, row_gap, color_bar_width = 0.15, 0.3, 0.7
    fig = Picture(figsize=figsize or (
        margin + len(heads) * (panel_side + column_gap) + color_bar_width,
        margin + len(layers) * (panel_side + row_gap)), layout='constrained')
    axes = fig.subplots(len(layers), len(heads), squeeze=False)
    if figsize is not None:     # the side for which figsize leaves room
        panel_side = min(
            (figsize[0] - margin - color_bar_width) / len(heads),
            (figsize[1] - margin) / len(layers))
    # Label only every tick_step-th token if the labels would overlap. 0.1: a
    # small figsize may leave no room for a panel
    tick_step = max(1, math.ceil(
        len(strings) * line_height / max(panel_side, 0.1)))
    ticks = list(range(0, len(strings), tick_step))
    labels = [short_label(strings[t]) for t in ticks]
    max_weight = max(weights[layer - 1, head - 1].max()
                     for layer in layers for head in heads)
    for row, layer in zip(axes, layers):
        for ax, head in zip(row, heads):
            is_left, is_bottom = head == heads[0], layer == layers[-1]
            image = ax.imshow(weights[layer - 1, head - 1], vmin=0,
                              vmax=max_weight, cmap='Greys',
                              interpolation='nearest')
            ax.set_xticks(ticks)
            ax.set_yticks(ticks)
            ax.tick_params(labelsize=FONT_POINTS, length=2, labelleft=is_left,
                           labelbottom=is_bottom)
            if is_left:
                ax.set_yticklabels(labels)
                ax.set_ylabel(f'layer {layer}', fontsize=FONT_POINTS + 1)
            if is_bottom:
                ax.set_xticklabels(labels, rotation=90)
            if layer == layers[0]:
                ax.set_title(f'head {head}', fontsize=FONT_POINTS + 1)
    # All panels share one scale, so any image gives the color bar
    color_bar = fig.colorbar(image, ax=axes, shrink=0.8, pad=0.02, aspect=30)
    color_bar.ax.tick_params(labelsize=FONT_POINTS)
    color_bar.set_label('attention weight', fontsize=FONT_POINTS + 1)
    return fig


def _encode(net, tokens, tokens_b, tokenizer, vocab):
    """Return (ids, segments, strings, is_special), lists with T entries.

    The arguments are as for `plot_attention`.
    """
    if tokenizer is not None:
        encoded = tokenizer.encode(tokens, tokens_b)
        return (encoded.ids, encoded.segments, encoded.tokens,
                [word is None for word in encoded.words])
    for name, text in (('tokens', tokens), ('tokens_b', tokens_b)):
        if isinstance(text, str):
            raise TypeError(f'{name} must be a list of tokens, not the string '
                            f'{text!r}: give {text!r}.split(), or a '
                            'tokenizer=')
    vocab = vocab_of(net, vocab)
    _, _, cls, sep = special_of(vocab)
    strings, segments = get_tokens_and_segments(tokens, tokens_b, cls, sep)
    return (vocab[strings], segments, strings,
            [string in (cls, sep) for string in strings])


def _numbers_to_draw(numbers, count, name):
    """Return the numbers of layers or heads as a list, each from 1 to count.

    numbers: an int, ints, or None for all; name: the argument's name for
    messages.
    """
    if numbers is None:
        return list(range(1, count + 1))
    numbers = list(numbers) if onp.iterable(numbers) else [numbers]
    for number in numbers:
        if number not in range(1, count + 1):
            raise ValueError(f'{name} must be 1 to {count}, not {number!r}')
    if not numbers:
        raise ValueError(f'{name} is empty: give some from 1 to {count}')
    return list(map(int, numbers))


def vectors_by_layer(net, encoded, pad_id=0):
    """Yield the hidden states of many texts, one layer at a time.

    encoded: a list of a tokenizer's `Encoded`; pad_id: the id of the padding
    token. Yields L + 1 lists, the embeddings first; each has an array (T, H)
    float32 for each text, in the order of `encoded`. Layer l equals
    `encode(..., pooling=None, layer=l)` up to rounding. A call of `encode` for
    each layer would run the first blocks again.
    """
    batches = _make_batches(encoded, pad_id)
    if net.encoder.quantized is not None:
        # A `QuantizedEncoder` always starts from the tokens, so each layer
        # computes the layers before it again
        for layer in range(net.encoder.blks.num_layers + 1):
            with autograd.pause():
                outputs = [net.encoder(batch.ids, batch.segments,
                                       onp.array(batch.lens), layer)
                           for batch in batches]
            yield _states_by_text(batches, outputs)
        return
    with autograd.pause():
        # For each batch, the input of the next block and the lengths
        inputs = [_embed(net, batch.ids, batch.segments, batch.lens)
                  for batch in batches]
    yield _states_by_text(batches, [X for X, _ in inputs])
    blks = net.encoder.blks
    for layer in range(1, blks.num_layers + 1):
        with autograd.pause():
            for blk in blks.of_layer(layer):
                inputs = [(blk(X, lens), lens) for X, lens in inputs]
            # The final LayerNorm of a pre-LN encoder, after the last layer
            outputs = [net.encoder.finish(X, layer) for X, _ in inputs]
        yield _states_by_text(batches, outputs)


def _embed(net, ids, segments, lens):
    """Return the first block's input (B, T, H), and lens as a device array.

    ids, segments: (B, T); lens: the B lengths without padding.
    """
    X = net.encoder(onp.array(ids, 'int32'), onp.array(segments, 'int32'),
                    None, 0)
    return X, on_device(lens, X.ctx, 'float32')


class _Batch(NamedTuple):
    """A batch of B texts, padded to T tokens."""

    indices: list       # B indices in the list of all texts
    ids: Any            # (B, T) int32
    segments: Any       # (B, T) int32
    lens: list          # B lengths without padding


def _make_batches(encoded, pad_id):
    """Return a list of `_Batch`es, each of texts of similar length."""
    batches, indices = [], []
    for k in sorted(range(len(encoded)), key=lambda k: len(encoded[k].ids)):
        # The shortest texts come first, so text k would be the longest of its
        # batch and determine the padded length T
        if indices and len(encoded[k].ids) * (len(indices) + 1) > MAX_TOKENS:
            batches.append(_padded_batch(encoded, indices, pad_id))
            indices = []
        indices.append(k)
    if indices:
        batches.append(_padded_batch(encoded, indices, pad_id))
    return batches


def _padded_batch(encoded, indices, pad_id):
    return _Batch(indices, pad_rows([encoded[k].ids for k in indices], pad_id),
                  pad_rows([encoded[k].segments for k in indices]),
                  [len(encoded[k].ids) for k in indices])


def _states_by_text(batches, padded_states):
    """Return the hidden states (T, H) of each text, in the order of the texts.

    padded_states: for each batch the states (B, T, H) of one layer.
    """
    states_of_text = {}
    for batch, X in zip(batches, padded_states):
        X = X.asnumpy()
        for b, k in enumerate(batch.indices):
            states_of_text[k] = X[b, :batch.lens[b]]
    return [states_of_text[k] for k in range(len(states_of_text))]


class MaskGuesses(NamedTuple):
    """The prediction of a model for one masked token."""

    guesses: Any        # a list of `Guess`, the most probable first
    own: Guess          # the original token, with its predicted probability
    rank: int           # of the original token: 1 if it is the most probable


def guesses_of(net, tokenizer, encoded, top=NUM_GUESSES):
    """Mask each token of an `Encoded` in turn, and predict it.

    Returns a list of T entries: `MaskGuesses` with the `top` likeliest tokens,
    or None for special tokens. `fill_mask` returns the same guesses, but takes
    no pair.
    """
    T, vocab_size = len(encoded.ids), len(tokenizer)
    positions = [t for t in range(T) if encoded.words[t] is not None]
    found = [None] * T
    batch_size = max(1, MAX_GUESS_TOKENS // T)
    with bar(len(positions), 'guessing', 'tokens',
             quiet=T < 40) as progress:     # no bar for a short text
        for first in range(0, len(positions), batch_size):
            # Row b of the batch is the text with token masked[b] masked
            masked = onp.array(positions[first:first + batch_size])
            rows = onp.arange(len(masked))
            ids = onp.tile(onp.array(encoded.ids, 'int32'), (len(masked), 1))
            ids[rows, masked] = tokenizer.mask_id
            segments = onp.tile(onp.array(encoded.segments, 'int32'),
                                (len(masked), 1))
            probabilities = probabilities_at(net, ids, segments, rows,
                                             masked)            # (B, V)
            own_ids = onp.array(encoded.ids)[masked]            # (B,)
            own_probabilities = probabilities[rows, own_ids]    # (B,)
            # The net may have more outputs than the tokenizer has tokens
            ranks = 1 + (probabilities[:, :vocab_size]
                         > own_probabilities[:, None]).sum(axis=1)
            for b, guesses in enumerate(likeliest(probabilities, tokenizer,
                                                  top)):
                found[masked[b]] = MaskGuesses(
                    guesses, Guess(tokenizer.idx_to_token[own_ids[b]],
                                   float(own_probabilities[b])),
                    int(ranks[b]))
            progress.update(len(masked))
    return found


# Neighbours: the tokens of a sample with the most similar vectors. A sample is
# a list of sentences

#: Number of a token's neighbours in a layer, and of neighbours with its id.
NUM_NEIGHBOURS = 6

#: Sentences of a sample are truncated to this number of tokens, or to fewer.
MAX_SENTENCE_TOKENS = 128


def max_sentence_tokens(net):
    """The number of tokens to which sentences are truncated for a net."""
    return min(net.encoder.max_len, MAX_SENTENCE_TOKENS)


class SampleToken(NamedTuple):
    """A token of a sample sentence, and its characters in the sentence."""

    sentence: int   # index in the list of sentences
    begin: int      # index of the first character
    end: int        # index after the last character; 0 for special tokens


class Neighbours(NamedTuple):
    """The sample tokens that are nearest to a token in a layer."""

    indices: Any    # in the list of `SampleToken`s, the nearest first
    cosines: Any    # cosine similarities, the largest first


def neighbours_of(net, tokenizer, texts, sentences, top=NUM_NEIGHBOURS):
    """Find the nearest sample tokens of every token of some texts.

    texts: a list of `Encoded`; sentences: the sample, a list of strings.
    Returns (list of `SampleToken`s, neighbours). neighbours[k][l][t], for
    token t of text k in layer l (0: the embeddings), is a pair of
    `Neighbours`: among all sample tokens, and among sample tokens with the
    same id. Nearest means the largest cosine similarity. A special token is
    only compared with the same special token, and other tokens only with
    tokens that are not special.
    """
    sample = tokenizer.encode_batch(list(sentences),
                                    max_len=max_sentence_tokens(net))
    sample_tokens = [SampleToken(s, begin, end)
                     for s, encoded in enumerate(sample)
                     for begin, end in encoded.offsets]
    sample_ids = onp.concatenate([encoded.ids for encoded in sample])
    is_special = onp.concatenate([
        [word is None for word in encoded.words] for encoded in sample])
    neighbours = [[] for _ in texts]
    for states in vectors_by_layer(net, [*texts, *sample], tokenizer.pad_id):
        sample_vectors = _normalize(onp.concatenate(states[len(texts):]))
        for k, text in enumerate(texts):
            cosines = _normalize(states[k]) @ sample_vectors.T
            pairs = []      # of `Neighbours`, a pair for each token
            for t, token_id in enumerate(text.ids):
                same_id = sample_ids == token_id
                allowed = same_id if text.words[t] is None else ~is_special
                pairs.append((_nearest(cosines[t], allowed, top),
                              _nearest(cosines[t], same_id & allowed, top)))
            neighbours[k].append(pairs)
    return sample_tokens, neighbours


def _normalize(X):
    """Scale each row of X to length one."""
    lengths = onp.sqrt((X * X).sum(axis=1, keepdims=True))
    return X / onp.maximum(lengths, 1e-12)


def _nearest(cosines, allowed, top):
    """Return the `Neighbours` of a token: at most `top` sample tokens.

    cosines: the cosine similarity with each sample token; allowed: booleans,
    True for the sample tokens to choose from.
    """
    indices = onp.flatnonzero(allowed)
    if len(indices) > top:
        indices = indices[onp.argpartition(-cosines[indices], top - 1)[:top]]
    # The largest cosine first; equal cosines by index
    indices = indices[onp.lexsort((indices, -cosines[indices]))]
    return Neighbours(indices.tolist(), cosines[indices].tolist())
