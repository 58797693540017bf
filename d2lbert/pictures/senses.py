"""Draw the vectors of a word, and measure how well they separate its senses.

L: the number of layers; H: the number of hidden units; n: a number of uses of
words; W: the number of words.
"""
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as onp

from d2lbert.nn.precision import set_precision
from d2lbert.pictures import sample_texts
from d2lbert.pictures.activations import (
    max_sentence_tokens,
    vectors_by_layer,
)
from d2lbert.pictures.run_records import STYLES, name_of
from d2lbert.pictures.sample_texts import (
    open_model,
    short_label,
    tokenizer_of,
)
from d2lbert.training import checkpoints

PANEL_INCHES = 4.2
FONT_POINTS, MARKER_POINTS = 7, 6       # a point is 1/72 inch

#: Maximum number of letters of a word in the label of a point.
MAX_WORD_LETTERS = 11

#: Markers of senses, which can be told apart without colours.
SENSE_MARKERS = 'osD^vP'

#: Positions of a label beside its marker, the best first: (points to the
#: right, points up, horizontal alignment, vertical alignment).
LABEL_POSITIONS = ((5, 0, 'left', 'center'), (-5, 0, 'right', 'center'),
                   (0, 5, 'center', 'bottom'), (0, -5, 'center', 'top'),
                   (4, 4, 'left', 'bottom'), (-4, 4, 'right', 'bottom'),
                   (4, -4, 'left', 'top'), (-4, -4, 'right', 'top'))


class SensePoints(NamedTuple):
    """The vectors of n uses of a word, projected to two dimensions."""

    word: str
    points: Any     # (L + 1, n, 2) float64, the embeddings first
    uses: list      # n `sample_texts.Use`s


def sense_points(net, tokenizer, word, uses):
    """Return the `SensePoints` of a word; uses: its `sample_texts.Use`s.

    The two dimensions are the first two principal components of a layer,
    rotated or mirrored to fit the layer below. Raises ValueError if fewer than
    three uses remain after `vectors_of` truncates the sentences.
    """
    uses, layer_vectors = vectors_of(net, tokenizer, uses)
    if len(uses) < 3:
        raise ValueError(f'{len(uses)} uses of {word!r} are in the first '
                         f'{max_sentence_tokens(net)} tokens of the '
                         'sentences: a picture needs at least three')
    points = []
    for X in layer_vectors:
        Y = _principal_components(X)
        points.append(_align(Y, points[-1]) if points else Y)
    return SensePoints(word, onp.stack(points), uses)


def vectors_of(net, tokenizer, uses):
    """Compute the vectors of `sample_texts.Use`s, one layer at a time.

    The vector of a use is the mean of the hidden states of its tokens. Returns
    (uses, layer_vectors): the n uses left after long sentences are truncated,
    and a generator of L + 1 arrays (n, H) float32, the embeddings first.
    """
    sentences = list(dict.fromkeys(use.sentence for use in uses))
    encoded = tokenizer.encode_batch(sentences,
                                     max_len=max_sentence_tokens(net))
    index_of = {sentence: k for k, sentence in enumerate(sentences)}
    kept, kept_tokens = [], []
    for use in uses:
        k = index_of[use.sentence]
        word_indices = encoded[k].words     # None for special tokens
        tokens = [t for t, (begin, end) in enumerate(encoded[k].offsets)
                  if word_indices[t] is not None
                  and begin < use.end and end > use.begin]
        if tokens:
            kept.append(use)
            kept_tokens.append((k, tokens))
    return kept, (
        onp.stack([states[k][tokens].mean(axis=0)
                   for k, tokens in kept_tokens])
        for states in vectors_by_layer(net, encoded, tokenizer.pad_id))


def _principal_components(X):
    """Project X (n, H) to its first two principal components: (n, 2)."""
    X = X.astype('float64') - X.mean(axis=0)
    U, S, _ = onp.linalg.svd(X, full_matrices=False)
    return (U * S)[:, :2]


def _align(Y, below):
    """Rotate or mirror points Y to fit the points `below`, both (n, 2).

    This solves the orthogonal Procrustes problem.
    """
    U, _, Vt = onp.linalg.svd(Y.T @ below)
    return Y @ U @ Vt


def plot_senses(net: Any, word: str, sentences: Optional[List[str]] = None, *,
                senses: Optional[List[str]] = None, tokenizer: Any = None,
                vocab: Any = None, layer: Union[int, Sequence[int]] = -1,
                label: bool = True,
                figsize: Optional[Tuple[float, float]] = None) -> Any:
    """Draw the vectors of a word in many sentences as points.

    sentences: strings; the first use of the word in a sentence is drawn, for
    at most 60 of the sentences that contain the word. Default: all labelled
    uses of this form of the word in the sample corpus. senses: a label for
    each of the `sentences`, or None; ignored without `sentences`. tokenizer:
    the tokenizer of `load_model`; default: made from `vocab`, or from the
    net's vocabulary. layer: index of the layer, 0 for the embeddings, -1 for
    the last layer; or a list of indices, one panel for each. label: write the
    word before and the word after a use beside its point if there is space.

    Returns a matplotlib figure. The axes are the first two principal
    components of a layer, rotated or mirrored, so only distances between
    points have a meaning.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from d2lbert.pictures.figures import Picture
    uses = _uses_to_draw(word, sentences, senses)
    found = sense_points(net, tokenizer_of(net, tokenizer, vocab), word, uses)
    layers = _layers_to_draw(layer, len(found.points))
    # None, for uses without a label, comes first
    sense_names = sorted({use.sense for use in found.uses},
                         key=lambda sense: sense or '')
    fig = Picture(figsize=figsize or (PANEL_INCHES * len(layers) + 0.2,
                                      PANEL_INCHES + 0.6),
                  layout='constrained')
    canvas = FigureCanvasAgg(fig)
    axes = fig.subplots(1, len(layers), squeeze=False)[0]
    for ax, number in zip(axes, layers):
        _plot_points(ax, found.points[number], found.uses, sense_names)
        layer_name = f'layer {number}' if number else 'the embeddings'
        ax.set_title(f'{short_label(word)}, {layer_name}',
                     fontsize=FONT_POINTS + 3)
    if sense_names != [None]:
        axes[0].legend(loc='upper left', bbox_to_anchor=(0, -0.01),
                       ncol=len(sense_names), frameon=False, borderpad=0,
                       fontsize=FONT_POINTS + 2, handletextpad=0.2)
    if label:
        canvas.draw()       # computes the positions of the panels
        for ax, number in zip(axes, layers):
            _label_points(ax, canvas.get_renderer(), found.points[number],
                          found.uses)
    return fig


def _uses_to_draw(word, sentences, senses):
    """Check the arguments of `plot_senses`; return the `Use`s to draw."""
    if not isinstance(word, str) or not word.strip():
        raise TypeError(f'word must be a word, not {word!r}')
    if sentences is None:
        uses = sample_texts.labelled_uses(word)
        if not uses:
            raise ValueError('the sample corpus has no labelled senses of '
                             f'{word!r}: give sentences with the word')
        return uses
    if isinstance(sentences, str):
        raise TypeError('sentences must be a list of strings, not the '
                        f'string {sentences[:40]!r}')
    sentences = list(sentences)
    senses = None if senses is None else list(senses)
    if senses is not None and len(senses) != len(sentences):
        raise ValueError(f'there are {len(senses)} senses for '
                         f'{len(sentences)} sentences: give one for each')
    return sample_texts.uses_of(word, sentences, senses)


def _layers_to_draw(layers, count):
    """Return an index or indices of layers as a list of non-negative indices.

    count: L + 1, as the embeddings count as a layer.
    """
    layers = list(layers) if onp.iterable(layers) else [layers]
    for number in layers:
        if number not in range(-count, count):
            raise ValueError(f'layer must be {-count} to {count - 1} (0: the '
                             f'embeddings, -1: the last), not {number!r}')
    if not layers:
        raise ValueError(f'layer is empty: give some from 0 to {count - 1}')
    return [int(number) % count for number in layers]


def _plot_points(ax, points, uses, sense_names):
    for k, name in enumerate(sense_names):
        points_of_sense = points[[use.sense == name for use in uses]]
        color = STYLES[k % len(STYLES)]['color']
        ax.plot(*points_of_sense.T, SENSE_MARKERS[k % len(SENSE_MARKERS)],
                color=color, markersize=MARKER_POINTS,
                markerfacecolor=color if k % 2 == 0 else 'none',
                label=None if name is None else short_label(name, 30))
    ax.set(xticks=[], yticks=[])
    ax.margins(0.12)


def _label_points(ax, renderer, points, uses):
    """Label each point, at the first of `LABEL_POSITIONS` that is free.

    If none is free, the point gets no label.
    """
    panel = ax.get_window_extent(renderer)
    centers = ax.transData.transform(points)        # in pixels
    # A marker occupies a square; 1 is for its edge
    half_side = (MARKER_POINTS / 2 + 1) * renderer.points_to_pixels(1)
    occupied = [(x - half_side, y - half_side, x + half_side, y + half_side)
                for x, y in centers]
    for point, use in zip(points, uses):
        for right, up, ha, va in LABEL_POSITIONS:
            text = ax.annotate(_label_text(use), point, (right, up),
                               textcoords='offset points', ha=ha, va=va,
                               fontsize=FONT_POINTS, color='0.25')
            text.set_in_layout(False)   # else it could move the panels
            box = text.get_window_extent(renderer).extents
            is_in_panel = (panel.x0 <= box[0] and box[2] <= panel.x1
                           and panel.y0 <= box[1] and box[3] <= panel.y1)
            if (is_in_panel
                    and not any(_overlaps(box, other) for other in occupied)):
                occupied.append(box)
                break
            text.remove()


def _overlaps(one, other):
    """Return True if two boxes (x0, y0, x1, y1) overlap."""
    return (one[0] < other[2] and other[0] < one[2]
            and one[1] < other[3] and other[1] < one[3])


def _label_text(use):
    """Return the word before and the word after a use, around a dash."""
    words = [*use.sentence[:use.begin].split()[-1:], '\u2013',
             *use.sentence[use.end:].split()[:1]]
    return ' '.join(short_label(word, MAX_WORD_LETTERS) for word in words)


# Accuracy at labelled senses

#: Cosines that differ by at most this, a rounding error, count as equal.
COSINE_TOLERANCE = 1e-12

#: Markers of models, which can be told apart without colours.
MODEL_MARKERS = 'os^Dv'


class SenseAccuracy(NamedTuple):
    """The share of uses whose nearest other use has the same sense."""

    words: list     # W strings
    counts: Any     # (W,) the number of uses of each word
    chances: Any    # (W,) the share of the more frequent sense
    rates: Any      # (L + 1, W) float64, the accuracy by layer and word

    @property
    def chance(self):
        """The mean of `chances` over the uses of all words."""
        return float(self.counts @ self.chances / self.counts.sum())

    @property
    def mean_rates(self):
        """The mean of `rates` over the uses of all words: (L + 1,)."""
        return self.rates @ self.counts / self.counts.sum()


def sense_accuracy(net: Any, words: Any = None, *, tokenizer: Any = None,
                   vocab: Any = None) -> SenseAccuracy:
    """Measure how well a model separates labelled senses, by layer.

    words: a word or a list of words (default: all 32 words with labelled
    senses); all forms of a word are included. tokenizer, vocab: as for
    `plot_senses`. Raises ValueError for an empty list, for a word that is not
    one of the 32, and for a word that is left in fewer than two sentences
    after long sentences are truncated.

    Each use is compared with the nearest other use of the word, by cosine
    similarity. Uses in the same sentence are not compared, since their tokens
    attend to each other. If several uses are equally near, each counts for an
    equal part. In the result, `chances` is the baseline: the accuracy of
    always answering the more frequent sense.
    """
    uses_of_word = _labelled_uses_of(words)
    all_uses = [use for uses in uses_of_word.values() for use in uses]
    kept_uses, layer_vectors = vectors_of(
        net, tokenizer_of(net, tokenizer, vocab), all_uses)
    kept = set(kept_uses)
    uses_of_word = {word: [use for use in uses if use in kept]
                    for word, uses in uses_of_word.items()}
    for word, uses in uses_of_word.items():
        if len({use.sentence for use in uses}) < 2:
            raise ValueError(
                f'{word!r} is in fewer than two sentences of the sample '
                f'corpus, each cut at {max_sentence_tokens(net)} tokens: '
                'there is nothing to compare with')
    return _compute_accuracy(uses_of_word, layer_vectors)


def _labelled_uses_of(words):
    """Return {word: its labelled `Use`s}; words: as for `sense_accuracy`."""
    labelled = sample_texts.labelled_words()
    if words is None:
        return labelled
    words = [words] if isinstance(words, str) else list(words)
    if not words:
        raise ValueError('words is empty: give some, or None for all')
    for word in words:
        if word.lower() not in labelled:
            raise ValueError('the sample corpus has no labelled senses of '
                             f'{word!r}, or lists them under its base form: '
                             f'choose from {", ".join(labelled)}')
    return {word.lower(): labelled[word.lower()] for word in words}


def _compute_accuracy(uses_of_word, layer_vectors):
    """Return the `SenseAccuracy` for {word: list of `Use`s}.

    layer_vectors: for each layer the vectors (n, H) of all uses, in the order
    of `uses_of_word`.
    """
    senses_by_word, comparable_by_word = [], []
    for uses in uses_of_word.values():
        senses_by_word.append(onp.array([use.sense for use in uses]))
        comparable_by_word.append(onp.array(
            [[one.sentence != other.sentence for other in uses]
             for one in uses]))
    counts = onp.array([len(senses) for senses in senses_by_word])
    rates = []
    for vectors in layer_vectors:
        vectors_by_word = onp.split(vectors, onp.cumsum(counts)[:-1])
        rates.append(list(map(_nearest_accuracy, vectors_by_word,
                              senses_by_word, comparable_by_word)))
    chances = onp.array([
        onp.unique(senses, return_counts=True)[1].max() / len(senses)
        for senses in senses_by_word])
    return SenseAccuracy(list(uses_of_word), counts, chances,
                         onp.array(rates))


def _nearest_accuracy(X, senses, comparable):
    """Return the share of rows of X whose nearest row has the same sense.

    X: (n, H); senses: (n,) labels; comparable: (n, n), True for pairs of rows
    to compare.
    """
    X = X.astype('float64')
    # Scale each row to length 1; a row of zeros stays as it is
    X /= onp.maximum(onp.linalg.norm(X, axis=1, keepdims=True), 1e-300)
    cosines = onp.where(comparable, X @ X.T, -onp.inf)
    max_cosines = cosines.max(axis=1, keepdims=True)
    # (n, n); in a tie, a row has several nearest rows
    nearest = cosines >= max_cosines - COSINE_TOLERANCE
    has_same_sense = senses[:, None] == senses
    num_same = (nearest & has_same_sense).sum(axis=1)
    return float((num_same / nearest.sum(axis=1)).mean())


class SenseReport(NamedTuple):
    """The accuracies of a model and of the checkpoints of its run."""

    name: str       # of the model's folder
    accuracy: SenseAccuracy
    steps: dict     # {step: `SenseAccuracy` of its checkpoint}, in order


def sense_report(folder, words=None, precision=None, ctx=None):
    """Return the `SenseReport` of the folder of a run or a pretrained model.

    words: as for `sense_accuracy`; precision, ctx: as for `open_model`.
    """
    net, tokenizer, folder = open_model(folder, precision, ctx)
    report = SenseReport(name_of(folder), sense_accuracy(
        net, words, tokenizer=tokenizer), {})
    for path in checkpoints.all_of(folder):
        step = checkpoints.load_weights(path, net)
        # With precision int8, this quantizes the weights of the checkpoint
        set_precision(net, precision)
        report.steps[step] = sense_accuracy(net, words, tokenizer=tokenizer)
    return report


def as_dict(report):
    """Return a `SenseReport` as a dictionary for JSON."""
    def over_all_words(accuracy):
        return dict(uses=int(accuracy.counts.sum()), chance=accuracy.chance,
                    accuracy=accuracy.mean_rates.tolist())
    final = report.accuracy
    words = {}
    for word, count, chance, rates in zip(
            final.words, final.counts, final.chances, final.rates.T):
        words[word] = dict(uses=int(count), chance=float(chance),
                           accuracy=rates.tolist())
    steps = {str(step): over_all_words(accuracy)
             for step, accuracy in report.steps.items()}
    return dict(model=report.name, **over_all_words(final), words=words,
                steps=steps)


def table(report):
    """Return the lines of a table with a row for each word and checkpoint."""
    final = report.accuracy
    width = max(map(len, [*final.words, 'step']))
    layer_numbers = ''.join(f'{k:7}' for k in range(1, len(final.rates)))
    titles = f'  uses  chance  layer 0{layer_numbers}'
    lines = [f'{"word":{width}}{titles}']
    rows = [*zip(final.words, final.counts, final.chances, final.rates.T)]
    if len(rows) > 1:
        rows.append(('all', final.counts.sum(), final.chance,
                     final.mean_rates))
    for word, count, chance, rates in rows:
        lines.append(f'{word:{width}}  {count:4}  {chance:6.3f}'
                     + _format_rates(rates))
    if report.steps:
        lines += ['', f'{"step":{width}}{titles}']
    for step, accuracy in report.steps.items():
        lines.append(f'{step:<{width}}  {accuracy.counts.sum():4}  '
                     f'{accuracy.chance:6.3f}'
                     + _format_rates(accuracy.mean_rates))
    return lines


def _format_rates(rates):
    return '  ' + ''.join(f'{rate:7.3f}' for rate in rates)


def plot_reports(reports):
    """Draw the accuracies of some `SenseReport`s by layer.

    If a report has checkpoints, a second panel has the accuracy of the last
    layer by step. Returns a matplotlib figure.
    """
    from d2lbert.pictures.figures import Picture
    has_steps = any(report.steps for report in reports)
    num_panels = 2 if has_steps else 1
    fig = Picture(figsize=(4.6 * num_panels, 3.6), layout='constrained')
    axes = fig.subplots(1, num_panels, squeeze=False, sharey=True)[0]
    curves = []     # (panel, index of the report, x, rates)
    for k, report in enumerate(reports):
        curves.append((axes[0], k, range(len(report.accuracy.rates)),
                       report.accuracy.mean_rates))
        if report.steps:
            curves.append((axes[1], k, list(report.steps), [
                accuracy.mean_rates[-1]
                for accuracy in report.steps.values()]))
    for ax, k, x, rates in curves:
        ax.plot(x, rates, MODEL_MARKERS[k % len(MODEL_MARKERS)], markersize=5,
                label=reports[k].name, **STYLES[k % len(STYLES)])
    # Keep the line of chance, at least 0.5 for two senses, off the lower edge
    lowest = min(0.4, *(rate for *_, rates in curves for rate in rates))
    axes[0].set(xlabel='layer (0: embeddings)',
                title='nearest other use has the same sense',
                ylabel='share of uses', ylim=(lowest, 1.01))
    if has_steps:
        axes[1].set(xlabel='step', title='in the last layer')
        last_steps = [max(report.steps) for report in reports if report.steps]
        # On a linear axis, the curve of the shortest run could not be seen
        if max(last_steps) > 20 * min(last_steps):
            axes[1].set_xscale('log')
            axes[1].xaxis.set_major_formatter('{x:g}')
    for ax in axes:
        # The first report's chance only: all reports are about the same words,
        # and chances differ only if models truncate sentences differently
        ax.axhline(reports[0].accuracy.chance, color='0.4', linewidth=1,
                   linestyle=(0, (1, 2)), label='chance')
        ax.grid(alpha=0.3)
        if ax.get_xscale() == 'linear':
            ax.locator_params('x', integer=True, nbins=8)
    # Below the panels, where the legend covers no curve
    axes[0].legend(fontsize=8, ncol=min(4, 1 + len(reports)),
                   loc='upper left', bbox_to_anchor=(0, -0.16))
    return fig
