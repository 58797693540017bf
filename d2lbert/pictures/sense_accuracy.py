"""Whether a model parts the senses of words: a figure for each layer.

W words of the sample corpus whose senses are noted, L blocks.
"""
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.nn.precision import set_precision
from d2lbert.pictures import sample_texts
from d2lbert.pictures.inputs import loaded, tokenizer_of
from d2lbert.pictures.run_records import STYLES, name_of
from d2lbert.pictures.sense_points import vectors_of
from d2lbert.training import checkpoints

#: Cosines that differ by less are equal, as those of equal vectors may.
EQUAL = 1e-12

#: Shapes of models in a figure, so that they differ in grey.
MARKERS = 'os^Dv'


class Parting(NamedTuple):
    """The share of uses whose nearest other use has the same sense."""

    words: list     # W
    counts: Any     # (W,) uses that were looked at
    chances: Any    # (W,) the share of the more frequent sense among them
    rates: Any      # (L + 1, W) float64, the embeddings first

    @property
    def chance(self):
        """That of all uses together."""
        return float(self.counts @ self.chances / self.counts.sum())

    @property
    def all_rates(self):
        """Those of all uses together, (L + 1,)."""
        return self.rates @ self.counts / self.counts.sum()


def sense_accuracy(net, words=None, *, tokenizer=None, vocab=None):
    """The `Parting` of words whose senses the sample corpus notes.

    words: a word, or a list of them (all 32); all forms of a word count as
    uses of it. tokenizer, vocab: as for `plot_senses`.

    For each use of a word the nearest other one is looked for, by the cosine
    of their vectors, in other sentences alone, since those of one sentence
    look at each other. Who knows of nothing but how frequent the senses are
    says the more frequent one, and is right as often as `chances` says.
    Where several uses are equally near, each counts for its part. Raises
    ValueError for a word that the corpus does not note.
    """
    uses = _asked(words)
    kept, layers = vectors_of(net, tokenizer_of(net, tokenizer, vocab),
                              [use for word in uses for use in uses[word]])
    kept = set(kept)
    uses = {word: [use for use in some if use in kept]
            for word, some in uses.items()}
    return _parting(uses, layers)


def _asked(words):
    """{word: its `Use`s} of the words asked for."""
    noted = sample_texts.noted_words()
    if words is None:
        return noted
    wanted = [words] if isinstance(words, str) else list(words)
    for word in wanted:
        if word.lower() not in noted:
            raise ValueError(f'the sample corpus notes no senses of {word!r}, '
                             f'but of {", ".join(noted)}')
    return {word.lower(): noted[word.lower()] for word in wanted}


def _parting(uses, layers):
    """The `Parting` of {word: its n uses} by vectors, (all n, H) a layer."""
    ends = onp.cumsum([len(some) for some in uses.values()])
    senses = [onp.array([use.sense for use in some])
              for some in uses.values()]
    apart = [onp.array([[one.sentence != other.sentence for other in some]
                        for one in some]) for some in uses.values()]
    rates = [[_nearest_agree(X, *both) for X, *both in zip(
        onp.split(vectors, ends[:-1]), senses, apart)]
        for vectors in layers]
    return Parting(
        list(uses), onp.array([len(some) for some in senses]),
        onp.array([onp.unique(some, return_counts=True)[1].max() / len(some)
                   for some in senses]), onp.array(rates))


def _nearest_agree(X, senses, apart):
    """How many of X (n, H) have the sense of the nearest one, a share.

    senses: (n,) names; apart (n, n): which ones are compared.
    """
    X = X.astype('float64')
    X /= onp.maximum(onp.linalg.norm(X, axis=1, keepdims=True), 1e-300)
    cosines = onp.where(apart, X @ X.T, -onp.inf)
    nearest = cosines >= cosines.max(axis=1, keepdims=True) - EQUAL
    same = senses[:, None] == senses
    return float(((nearest & same).sum(axis=1) / nearest.sum(axis=1)).mean())


class Told(NamedTuple):
    """What is said of a model, and of what it was while it learnt."""

    name: str
    parting: Parting
    steps: dict     # {step: its `Parting`} of checkpoints, in their order


def told_of(folder, words=None, precision='fp32'):
    """The `Told` of a run, with its checkpoints, or of a released model."""
    net, tokenizer, folder = loaded(folder, precision)
    told = Told(name_of(folder),
                sense_accuracy(net, words, tokenizer=tokenizer), {})
    for path in checkpoints.all_of(folder):
        step = checkpoints.load_weights(path, net)
        set_precision(net, precision)   # quantized anew
        told.steps[step] = sense_accuracy(net, words, tokenizer=tokenizer)
    return told


def table(told):
    """Lines of text: words by layers, and checkpoints by layers."""
    parting = told.parting
    width = max(map(len, [*parting.words, 'step']))
    layers = ''.join(f'{number:7}' for number in range(len(parting.rates)))
    lines = [f'{"word":{width}}  uses  chance  layer 0{layers[7:]}']
    rows = [*zip(parting.words, parting.counts, parting.chances,
                 parting.rates.T)]
    if len(rows) > 1:
        rows.append(('all', parting.counts.sum(), parting.chance,
                     parting.all_rates))
    for word, count, chance, rates in rows:
        lines.append(f'{word:{width}}  {count:4}  {chance:6.3f}'
                     + _numbers(rates))
    if told.steps:
        lines += ['', f'{"step":{width}}  uses  chance  layer 0{layers[7:]}']
    for step, parting in told.steps.items():
        lines.append(f'{step:<{width}}  {parting.counts.sum():4}  '
                     f'{parting.chance:6.3f}' + _numbers(parting.all_rates))
    return lines


def _numbers(rates):
    return '  ' + ''.join(f'{rate:7.3f}' for rate in rates)


def plot_parting(several):
    """A matplotlib figure of `Told`s: by layer, and by step where known."""
    from d2lbert.pictures.figures import Picture
    learning = any(one.steps for one in several)
    fig = Picture(figsize=(4.6 * (1 + learning), 3.6), layout='constrained')
    axes = fig.subplots(1, 1 + learning, squeeze=False, sharey=True)[0]
    lines = []
    for k, one in enumerate(several):
        lines.append((axes[0], k, range(len(one.parting.rates)),
                      one.parting.all_rates))
        if one.steps:
            lines.append((axes[1], k, list(one.steps), [
                parting.all_rates[-1] for parting in one.steps.values()]))
    for ax, k, places, rates in lines:
        ax.plot(places, rates, MARKERS[k % len(MARKERS)], markersize=5,
                label=several[k].name, **STYLES[k % len(STYLES)])
    axes[0].set(xlabel='layer, 0 for the embeddings',
                title='uses nearest to one of their sense',
                ylabel='share', ylim=(min(0.4, *(
                    rate for *_, rates in lines for rate in rates)), 1.01))
    if learning:
        axes[1].set(xlabel='step', title='the same in the last layer')
        ends = [max(one.steps) for one in several if one.steps]
        if max(ends) > 20 * min(ends):  # else the short run is but a point
            axes[1].set_xscale('log')
            axes[1].xaxis.set_major_formatter('{x:g}')
    for ax in axes:
        ax.axhline(several[0].parting.chance, color='0.4', linewidth=1,
                   linestyle=(0, (1, 2)), label='chance')
        ax.grid(alpha=0.3)
        if ax.get_xscale() == 'linear':
            ax.locator_params('x', integer=True, nbins=8)
    # Outside: a curve may go anywhere
    fig.legend(*axes[0].get_legend_handles_labels(), fontsize=8,
               loc='outside lower center', ncols=min(4, 1 + len(several)))
    return fig
