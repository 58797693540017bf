"""Accuracy of a model at telling the senses of words apart, by layer.

W words of the sample corpus with labelled senses, L blocks.
"""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.nn.precision import set_precision
from d2lbert.pictures import sample_texts
from d2lbert.pictures.inputs import open_model, tokenizer_of
from d2lbert.pictures.run_records import STYLES, name_of
from d2lbert.pictures.senses import vectors_of
from d2lbert.training import checkpoints

#: Cosines that differ by less count as equal; rounding makes equal vectors
#: differ.
EQUAL = 1e-12

#: Markers of models, so that they differ in black and white.
MARKERS = 'os^Dv'


class SenseAccuracy(NamedTuple):
    """The share of uses whose nearest other use has the same sense."""

    words: list     # W
    counts: Any     # (W,) uses that were compared
    chances: Any    # (W,) share of the more frequent sense among them
    rates: Any      # (L + 1, W) float64, the embeddings first

    @property
    def chance(self):
        """The share of the more frequent sense, over all uses."""
        return float(self.counts @ self.chances / self.counts.sum())

    @property
    def all_rates(self):
        """The rates over all uses, (L + 1,)."""
        return self.rates @ self.counts / self.counts.sum()


def sense_accuracy(net, words=None, *, tokenizer=None, vocab=None):
    """The accuracy of a model at labelled senses of words, by layer.

    words: a word or a list of words (default: all 32); all forms of a word
    count as its uses. tokenizer, vocab: as for `plot_senses`. Returns a
    `SenseAccuracy`.

    Each use is compared with the nearest other use of the word, by cosine
    similarity. Uses in the same sentence are not compared, since they attend
    to each other. Equally near uses count in equal parts. The baseline
    `chances` always answers the more frequent sense. Raises ValueError for a
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
    """The `SenseAccuracy` of {word: its n uses}.

    layers: for each layer the vectors of all uses in their order, (n, H).
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


def sense_report(folder, words=None, precision=None):
    """The `SenseReport` of a run folder, or of a released model."""
    net, tokenizer, folder = open_model(folder, precision)
    report = SenseReport(name_of(folder), sense_accuracy(
        net, words, tokenizer=tokenizer), {})
    for path in checkpoints.all_of(folder):
        step = checkpoints.load_weights(path, net)
        set_precision(net, precision)   # quantizes the new weights
        report.steps[step] = sense_accuracy(net, words, tokenizer=tokenizer)
    return report


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
        ax.plot(x, rates, MARKERS[k % len(MARKERS)], markersize=5,
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
