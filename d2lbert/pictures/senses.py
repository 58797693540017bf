"""The uses of a word as a figure: points, with a mark for each sense."""
from d2lbert.pictures import sample_texts
from d2lbert.pictures.inputs import short, tokenizer_of
from d2lbert.pictures.run_records import STYLES
from d2lbert.pictures.sense_points import sense_points

#: Points of a label, inches of a panel's side, letters of a word in a label.
POINTS, PANEL, LETTERS = 7, 4.2, 11

#: Shapes of senses, full and hollow in turn: they differ without colours.
MARKERS = 'osD^vP'

#: Where a label may stand beside its point: in points to the right and up,
#: and which of its sides is there.
PLACES = ((5, 0, 'left', 'center'), (-5, 0, 'right', 'center'),
          (0, 5, 'center', 'bottom'), (0, -5, 'center', 'top'),
          (4, 4, 'left', 'bottom'), (-4, 4, 'right', 'bottom'),
          (4, -4, 'left', 'top'), (-4, -4, 'right', 'top'))


def plot_senses(net, word, sentences=None, *, senses=None, tokenizer=None,
                vocab=None, layer=-1, label=True, figsize=None):
    """A matplotlib figure of where the vectors of a word lie, by its uses.

    sentences: strings, of which those that have the word are shown, with its
    first use in each (the uses in the sample corpus whose senses are noted).
    senses: a name for each sentence, or None. tokenizer: as `load_model`
    gives it; else that of the net's own vocabulary, or of `vocab`. layer:
    the block whose outcome is shown, 0 for the embeddings, -1 for the last,
    or a list of them, a panel each. label: write the words on either side
    of a use beside its point, where there is room for them.

    A point is the vector of a use along the two principal components of its
    layer, so only how points lie to each other says anything.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from d2lbert.pictures.figures import Picture
    uses = _uses(word, sentences, senses)
    found = sense_points(net, tokenizer_of(net, tokenizer, vocab), word, uses)
    layers = _chosen(layer, len(found.points))
    names = list(dict.fromkeys(sorted(
        (use.sense for use in found.uses), key=lambda name: name or '')))
    fig = Picture(figsize=figsize or (PANEL * len(layers) + 0.2, PANEL + 0.6),
                 layout='constrained')
    canvas = FigureCanvasAgg(fig)
    axes = fig.subplots(1, len(layers), squeeze=False)[0]
    for ax, number in zip(axes, layers):
        _plot(ax, found.points[number], found.uses, names)
        ax.set_title(f'{short(word)}, ' + (
            f'layer {number}' if number else 'the embeddings'),
            fontsize=POINTS + 3)
    if names != [None]:
        axes[0].legend(loc='upper left', bbox_to_anchor=(0, -0.01),
                       ncol=len(names), frameon=False, borderpad=0,
                       fontsize=POINTS + 2, handletextpad=0.2)
    if label:
        canvas.draw()       # which puts the panels in their places
        for ax, number in zip(axes, layers):
            _label(ax, canvas.get_renderer(), found.points[number],
                   found.uses)
    return fig


def _uses(word, sentences, senses):
    """The uses that were asked for."""
    if not isinstance(word, str) or not word.strip():
        raise TypeError(f'word must be a word, not {word!r}')
    if sentences is None:
        found = sample_texts.noted(word)
        if not found:
            raise ValueError(f'the sample corpus notes no senses of {word!r}: '
                             'give sentences that have it')
        return found
    if isinstance(sentences, str):
        raise TypeError('sentences must be a list of strings, not one: '
                        f'{sentences[:40]!r}')
    sentences = list(sentences)
    if senses is not None and len(senses) != len(sentences):
        raise ValueError(f'there are {len(senses)} senses for '
                         f'{len(sentences)} sentences: give one for each')
    return sample_texts.uses_of(word, sentences, senses)


def _chosen(wanted, count):
    """Numbers of layers from 0 to count - 1, as a list."""
    wanted = [wanted] if isinstance(wanted, int) else list(wanted)
    for number in wanted:
        if number not in range(-count, count):
            raise ValueError(f'layers are counted from 0, the embeddings, to '
                             f'{count - 1}, and one of those asked for is '
                             f'{number!r}')
    if not wanted:
        raise ValueError(f'layer names none: give some from 0 to {count - 1}')
    return [number % count for number in wanted]


def _plot(ax, points, uses, names):
    for k, name in enumerate(names):
        some = points[[use.sense == name for use in uses]]
        color = STYLES[k % len(STYLES)]['color']
        ax.plot(*some.T, MARKERS[k % len(MARKERS)], color=color, markersize=6,
                markerfacecolor=color if k % 2 == 0 else 'none',
                label=None if name is None else short(name, 30))
    ax.set(xticks=[], yticks=[])
    ax.margins(0.12)


def _label(ax, renderer, points, uses):
    """Write what stands around each use, where nothing else is."""
    inside = ax.get_window_extent(renderer)
    corners = ax.transData.transform(points)
    size = 4 * renderer.points_to_pixels(1)         # half of a mark
    taken = [(x - size, y - size, x + size, y + size) for x, y in corners]
    for point, use in zip(points, uses):
        for right, up, ha, va in PLACES:
            text = ax.annotate(_around(use), point, (right, up),
                               textcoords='offset points', ha=ha, va=va,
                               fontsize=POINTS, color='0.25')
            text.set_in_layout(False)
            box = text.get_window_extent(renderer).extents
            if (inside.x0 <= box[0] and box[2] <= inside.x1
                    and inside.y0 <= box[1] and box[3] <= inside.y1
                    and not any(_overlap(box, other) for other in taken)):
                taken.append(box)
                break
            text.remove()


def _overlap(one, other):
    return (one[0] < other[2] and other[0] < one[2]
            and one[1] < other[3] and other[1] < one[3])


def _around(use):
    """The words before and behind a use, a dash for itself."""
    around = [*use.sentence[:use.begin].split()[-1:], '\u2013',
              *use.sentence[use.end:].split()[:1]]
    return ' '.join(short(word, LETTERS) for word in around)
