"""A figure of attention weights, with a panel for each layer and head."""
import math

from d2lbert.bert import get_tokens_and_segments
from d2lbert.pictures.activations import attention_of
from d2lbert.pictures.sample_texts import short, vocab_of
from d2lbert.text import special_of

#: Font size in points, smallest side of a panel and largest side of a
#: figure in inches.
POINTS, PANEL, SIDE = 7, 1.3, 18


def plot_attention(net, tokens, tokens_b=None, *, tokenizer=None, vocab=None,
                   layers=None, heads=None, hide_special=False,
                   figsize=None):
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
        kept = [t for t, is_one in enumerate(special) if not is_one]
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
