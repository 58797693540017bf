"""The vectors of a word in many sentences, and figures of them.

`sense_accuracy` measures, for each layer, how well the vectors separate the
senses of words in the sample corpus. W words with labelled senses, n uses of
a word, L blocks, H hiddens.
"""
from typing import Any, List, NamedTuple, Optional, Tuple

import numpy as onp

from d2lbert.nn.precision import set_precision
from d2lbert.pictures import sample_texts
from d2lbert.pictures.activations import vectors_by_layer
from d2lbert.pictures.run_records import STYLES, name_of
from d2lbert.pictures.sample_texts import open_model, short, tokenizer_of
from d2lbert.training import checkpoints

#: Most tokens of a sentence.
LENGTH = 128

#: Font size in points, side of a panel in inches, letters of a word in a
#: label.
POINTS, PANEL, LETTERS = 7, 4.2, 11

#: Markers of senses, full and hollow in turn: they differ without colours.
MARKERS = 'osD^vP'

#: Positions of a label beside its point: the offset to the right and up in
#: points, and the side of the label that is there.
OFFSETS = ((5, 0, 'left', 'center'), (-5, 0, 'right', 'center'),
           (0, 5, 'center', 'bottom'), (0, -5, 'center', 'top'),
           (4, 4, 'left', 'bottom'), (-4, 4, 'right', 'bottom'),
           (4, -4, 'left', 'top'), (-4, -4, 'right', 'top'))


class SensePoints(NamedTuple):
    """The vectors of n uses of a word in two dimensions, by layer."""

    word: str
    points: Any     # (L + 1, n, 2) float64, the embeddings first
    uses: list      # n `sample_texts.Use`s


def sense_points(net, tokenizer, word, uses):
    """The `SensePoints` of a word, given its `sample_texts.Use`s.

    The two dimensions are the principal components of each layer, rotated to
    fit the layer below. Long sentences are truncated, and uses in the part
    that is cut off are left out. Raises ValueError if fewer than three remain.
    """
    uses, layers = vectors_of(net, tokenizer, uses)
    if len(uses) < 3:
        raise ValueError(f'{word!r} is in {len(uses)} of the sentences: '
                         'a picture needs at least three')
    found = []
    for X in layers:
        found.append(_aligned(_principal(X), found[-1] if found else None))
    return SensePoints(word, onp.stack(found), uses)


def vectors_of(net, tokenizer, uses):
    """The vectors of words in sentences, one layer at a time.

    uses: a list of `sample_texts.Use`. The vector of a use is the mean of
    the hidden states of its tokens. Returns the n uses that are left when
    long sentences are truncated, and a generator of L + 1 arrays (n, H)
    float32, the embeddings first.
    """
    sentences = list(dict.fromkeys(use.sentence for use in uses))
    encoded = tokenizer.encode_batch(
        sentences, max_len=min(net.encoder.max_len, LENGTH))
    row_of = {sentence: k for k, sentence in enumerate(sentences)}
    kept, tokens_of = [], []
    for use in uses:
        one = encoded[row_of[use.sentence]]
        tokens = [t for t, (begin, end) in enumerate(one.offsets)
                  if one.words[t] is not None and begin < use.end
                  and end > use.begin]
        if tokens:
            kept.append(use)
            tokens_of.append((row_of[use.sentence], tokens))
    return kept, (
        onp.stack([rows[k][tokens].mean(axis=0) for k, tokens in tokens_of])
        for rows in vectors_by_layer(net, encoded, tokenizer.pad_id))


def _principal(X):
    """The first two principal components of X (n, H): (n, 2)."""
    X = X.astype('float64') - X.mean(axis=0)
    U, S, _ = onp.linalg.svd(X, full_matrices=False)
    return (U * S)[:, :2]


def _aligned(Y, previous):
    """Y (n, 2), rotated or mirrored for the best fit to the previous layer.
    """
    if previous is None:
        return Y
    U, _, V = onp.linalg.svd(Y.T @ previous)
    return Y @ U @ V


def plot_senses(net: Any, word: str, sentences: Optional[List[str]] = None, *,
                senses: Optional[List[str]] = None, tokenizer: Any = None,
                vocab: Any = None, layer: int = -1, label: bool = True,
                figsize: Optional[Tuple[float, float]] = None) -> Any:
    """Draw the vectors of a word in many sentences as points.

    sentences: strings; the first use of the word in each is drawn, and
    sentences without it are left out. Default: the labelled uses in the
    sample corpus. senses: a label for each sentence, or None. tokenizer: the
    tokenizer of `load_model`; default: whole words of `vocab`, or of the
    net's vocabulary. layer: index of the block, 0 for the embeddings, -1 for
    the last, or a list with one panel for each. label: write the words
    before and after a use beside its point if there is room.

    Returns a matplotlib figure. The axes are the two principal components of
    a layer, so only distances between points have a meaning.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from d2lbert.pictures.figures import Picture
    uses = _checked_uses(word, sentences, senses)
    found = sense_points(net, tokenizer_of(net, tokenizer, vocab), word, uses)
    layers = _checked_layers(layer, len(found.points))
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
        canvas.draw()       # so that the panels have their positions
        for ax, number in zip(axes, layers):
            _label(ax, canvas.get_renderer(), found.points[number],
                   found.uses)
    return fig


def _checked_uses(word, sentences, senses):
    """A list of `Use`s of the word; TypeError or ValueError if invalid."""
    if not isinstance(word, str) or not word.strip():
        raise TypeError(f'word must be a word, not {word!r}')
    if sentences is None:
        found = sample_texts.labelled_uses(word)
        if not found:
            raise ValueError('the sample corpus has no labelled senses of '
                             f'{word!r}: give sentences with the word')
        return found
    if isinstance(sentences, str):
        raise TypeError('sentences must be a list of strings, not one: '
                        f'{sentences[:40]!r}')
    sentences = list(sentences)
    if senses is not None and len(senses) != len(sentences):
        raise ValueError(f'there are {len(senses)} senses for '
                         f'{len(sentences)} sentences: give one for each')
    return sample_texts.uses_of(word, sentences, senses)


def _checked_layers(wanted, count):
    """A list of layers from 0 to count - 1; ValueError for others."""
    wanted = [wanted] if isinstance(wanted, int) else list(wanted)
    for number in wanted:
        if number not in range(-count, count):
            raise ValueError(f'layer must be 0 (the embeddings) to '
                             f'{count - 1}, not {number!r}')
    if not wanted:
        raise ValueError(f'layer is empty: give some from 0 to {count - 1}')
    return [number % count for number in wanted]


def _plot(ax, points, uses, names):
    """Draw the points (n, 2) of a layer, one marker for each sense."""
    for k, name in enumerate(names):
        some = points[[use.sense == name for use in uses]]
        color = STYLES[k % len(STYLES)]['color']
        ax.plot(*some.T, MARKERS[k % len(MARKERS)], color=color, markersize=6,
                markerfacecolor=color if k % 2 == 0 else 'none',
                label=None if name is None else short(name, 30))
    ax.set(xticks=[], yticks=[])
    ax.margins(0.12)


def _label(ax, renderer, points, uses):
    """Write the words around each use where a label fits without overlap."""
    panel = ax.get_window_extent(renderer)
    corners = ax.transData.transform(points)
    size = 4 * renderer.points_to_pixels(1)         # half of a mark
    taken = [(x - size, y - size, x + size, y + size) for x, y in corners]
    for point, use in zip(points, uses):
        for right, up, ha, va in OFFSETS:
            text = ax.annotate(_around(use), point, (right, up),
                               textcoords='offset points', ha=ha, va=va,
                               fontsize=POINTS, color='0.25')
            text.set_in_layout(False)
            box = text.get_window_extent(renderer).extents
            if (panel.x0 <= box[0] and box[2] <= panel.x1
                    and panel.y0 <= box[1] and box[3] <= panel.y1
                    and not any(_overlap(box, other) for other in taken)):
                taken.append(box)
                break
            text.remove()


def _overlap(one, other):
    return (one[0] < other[2] and other[0] < one[2]
            and one[1] < other[3] and other[1] < one[3])


def _around(use):
    """The words before and after a use, with a dash in its place."""
    around = [*use.sentence[:use.begin].split()[-1:], '\u2013',
              *use.sentence[use.end:].split()[:1]]
    return ' '.join(short(word, LETTERS) for word in around)


#: Cosines that differ by less count as equal; rounding makes equal vectors
#: differ.
EQUAL = 1e-12

#: Markers of models, so that they differ in black and white.
RUN_MARKERS = 'os^Dv'


class SenseAccuracy(NamedTuple):
    """The share of uses whose nearest other use has the same sense."""

    words: list     # W
    counts: Any     # (W,) numbers of uses that were compared
    chances: Any    # (W,) shares of the more frequent sense among them
    rates: Any      # (L + 1, W) float64, the embeddings first

    @property
    def chance(self):
        """The share of the more frequent sense, over all uses."""
        return float(self.counts @ self.chances / self.counts.sum())

    @property
    def all_rates(self):
        """The rates over all uses, (L + 1,)."""
        return self.rates @ self.counts / self.counts.sum()


def sense_accuracy(net: Any, words: Any = None, *, tokenizer: Any = None,
                   vocab: Any = None) -> SenseAccuracy:
    """The accuracy of a model at labelled senses of words, by layer.

    words: a word or a list of words (default: all 32); all forms of a word
    count as its uses. tokenizer, vocab: as for `plot_senses`. Returns a
    `SenseAccuracy`.

    Each use is compared with the nearest other use of the word, by cosine
    similarity. Uses in the same sentence are not compared, since they attend
    to each other. If several uses are nearest, each counts for an equal part.
    `chances` is the baseline of always answering the more frequent sense.
    Raises ValueError for a
    word without labelled senses.
    """
    uses = _uses_of(words)
    kept, layers = vectors_of(net, tokenizer_of(net, tokenizer, vocab),
                              [use for word in uses for use in uses[word]])
    kept = set(kept)
    uses = {word: [use for use in some if use in kept]
            for word, some in uses.items()}
    return _accuracy(uses, layers)


def _uses_of(words):
    """{word: its labelled `Use`s}; all words for None."""
    labelled = sample_texts.labelled_words()
    if words is None:
        return labelled
    wanted = [words] if isinstance(words, str) else list(words)
    for word in wanted:
        if word.lower() not in labelled:
            raise ValueError('the sample corpus has no labelled senses of '
                             f'{word!r}: choose from '
                             f'{", ".join(labelled)}')
    return {word.lower(): labelled[word.lower()] for word in wanted}


def _accuracy(uses, layers):
    """The `SenseAccuracy` of {word: its uses}.

    layers: for each layer the vectors of all uses of the first word, then of
    the second, and so on; an array with H columns.
    """
    ends = onp.cumsum([len(some) for some in uses.values()])
    senses = [onp.array([use.sense for use in some])
              for some in uses.values()]
    apart = [onp.array([[one.sentence != other.sentence for other in some]
                        for one in some]) for some in uses.values()]
    rates = [[_nearest_agree(X, *both) for X, *both in zip(
        onp.split(vectors, ends[:-1]), senses, apart)]
        for vectors in layers]
    return SenseAccuracy(
        list(uses), onp.array([len(some) for some in senses]),
        onp.array([onp.unique(some, return_counts=True)[1].max() / len(some)
                   for some in senses]), onp.array(rates))


def _nearest_agree(X, senses, apart):
    """The share of rows of X (n, H) whose nearest row has the same sense.

    senses: (n,) labels; apart: (n, n), true for rows to compare.
    """
    X = X.astype('float64')
    X /= onp.maximum(onp.linalg.norm(X, axis=1, keepdims=True), 1e-300)
    cosines = onp.where(apart, X @ X.T, -onp.inf)
    nearest = cosines >= cosines.max(axis=1, keepdims=True) - EQUAL
    same = senses[:, None] == senses
    return float(((nearest & same).sum(axis=1) / nearest.sum(axis=1)).mean())


class SenseReport(NamedTuple):
    """The accuracies of a model and of the checkpoints of its run."""

    name: str
    accuracy: SenseAccuracy
    steps: dict     # {step: `SenseAccuracy`} of checkpoints, by step


def sense_report(folder, words=None, precision=None, ctx=None):
    """The `SenseReport` of a run folder, or of a released model.

    ctx: the device; None is the CPU.
    """
    net, tokenizer, folder = open_model(folder, precision, ctx)
    report = SenseReport(name_of(folder), sense_accuracy(
        net, words, tokenizer=tokenizer), {})
    for path in checkpoints.all_of(folder):
        step = checkpoints.load_weights(path, net)
        set_precision(net, precision)   # quantizes the new weights
        report.steps[step] = sense_accuracy(net, words, tokenizer=tokenizer)
    return report


def as_dict(report):
    """A `SenseReport` as a dictionary for JSON."""
    def rows(found):
        return dict(uses=int(found.counts.sum()), chance=found.chance,
                    accuracy=found.all_rates.tolist())
    found = report.accuracy
    return dict(model=report.name, **rows(found), words={
        word: dict(uses=int(count), chance=float(chance),
                   accuracy=rates.tolist())
        for word, count, chance, rates in zip(
            found.words, found.counts, found.chances, found.rates.T)},
        steps={str(step): rows(found)
               for step, found in report.steps.items()})


def table(report):
    """Lines of text: a row for each word, then one for each checkpoint."""
    found = report.accuracy
    width = max(map(len, [*found.words, 'step']))
    layers = ''.join(f'{number:7}' for number in range(len(found.rates)))
    lines = [f'{"word":{width}}  uses  chance  layer 0{layers[7:]}']
    rows = [*zip(found.words, found.counts, found.chances, found.rates.T)]
    if len(rows) > 1:
        rows.append(('all', found.counts.sum(), found.chance,
                     found.all_rates))
    for word, count, chance, rates in rows:
        lines.append(f'{word:{width}}  {count:4}  {chance:6.3f}'
                     + _numbers(rates))
    if report.steps:
        lines += ['', f'{"step":{width}}  uses  chance  layer 0{layers[7:]}']
    for step, found in report.steps.items():
        lines.append(f'{step:<{width}}  {found.counts.sum():4}  '
                     f'{found.chance:6.3f}' + _numbers(found.all_rates))
    return lines


def _numbers(rates):
    return '  ' + ''.join(f'{rate:7.3f}' for rate in rates)


def plot_reports(reports):
    """Draw some `SenseReport`s: accuracy by layer, and by step if known.

    Returns a matplotlib figure.
    """
    from d2lbert.pictures.figures import Picture
    learning = any(report.steps for report in reports)
    fig = Picture(figsize=(4.6 * (1 + learning), 3.6), layout='constrained')
    axes = fig.subplots(1, 1 + learning, squeeze=False, sharey=True)[0]
    lines = []
    for k, report in enumerate(reports):
        lines.append((axes[0], k, range(len(report.accuracy.rates)),
                      report.accuracy.all_rates))
        if report.steps:
            lines.append((axes[1], k, list(report.steps), [
                found.all_rates[-1] for found in report.steps.values()]))
    for ax, k, x, rates in lines:
        ax.plot(x, rates, RUN_MARKERS[k % len(RUN_MARKERS)], markersize=5,
                label=reports[k].name, **STYLES[k % len(STYLES)])
    axes[0].set(xlabel='layer (0: embeddings)',
                title='nearest other use has the same sense',
                ylabel='share of uses', ylim=(min(0.4, *(
                    rate for *_, rates in lines for rate in rates)), 1.01))
    if learning:
        axes[1].set(xlabel='step', title='in the last layer')
        ends = [max(report.steps) for report in reports if report.steps]
        if max(ends) > 20 * min(ends):  # a linear axis hides the short run
            axes[1].set_xscale('log')
            axes[1].xaxis.set_major_formatter('{x:g}')
    for ax in axes:
        ax.axhline(reports[0].accuracy.chance, color='0.4', linewidth=1,
                   linestyle=(0, (1, 2)), label='chance')
        ax.grid(alpha=0.3)
        if ax.get_xscale() == 'linear':
            ax.locator_params('x', integer=True, nbins=8)
    # Below the panels, where it covers no curve
    axes[0].legend(fontsize=8, ncol=min(4, 1 + len(reports)),
                   loc='upper left', bbox_to_anchor=(0, -0.16))
    return fig
