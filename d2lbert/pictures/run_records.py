"""The recorded history of a run, and a figure of it."""
import math
import os
from pathlib import Path
from typing import Any, NamedTuple, Optional, Tuple

from d2lbert.machine.files import read_json
from d2lbert.nn.steps import History
from d2lbert.progress import POINT
from d2lbert.training.history import history_rows
from d2lbert.training.saved_runs import RunError

#: Styles of lines, which also differ in black and white.
STYLES = (dict(linestyle='-', color='#1f3a5f'),
          dict(linestyle='--', color='#c1620a'),
          dict(linestyle='-.', color='#5c8a3a'),
          dict(linestyle=':', color='#8a4f9e'))


#: Losses in nats a token, which share a panel when several runs are drawn.
TOKEN_LOSSES = 'mlm', 'clm', 'denoise'


class RunRecord(NamedTuple):
    """The history of a run; a column is a pair of lists, steps and values."""

    name: str
    losses: dict        # {name: (column of the loss at each logged step,
                        # column of its running mean)}
    held_out: dict      # {name of a figure without held_out_: column}
    config: dict        # config.json; {} for a `History`
    log: str            # log.txt, or ''


def read_record(run):
    """The `RunRecord` of a run folder, finished or not, or of a `History`.

    Raises `RunError`, a ValueError, for a folder without a history.
    """
    rows = history_rows(run)
    if isinstance(run, History):
        return _record('', rows, {}, ''.join(run.log_lines))
    folder = Path(run)
    try:
        config = dict(read_json(folder / 'config.json'))
        return _record(name_of(folder), rows, config, _text(folder))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f'the history of {folder} is damaged: {error}'
                       ) from None


def name_of(folder):
    """The last part of a folder's absolute path."""
    return os.path.basename(os.path.abspath(folder)) or str(folder)


def _text(folder):
    path = folder / 'log.txt'
    return path.read_text('utf-8') if path.is_file() else ''


def _record(name, rows, config, log):
    """The `RunRecord` of rows, {name: value}; it leaves out NaN and infinity.
    """
    # The row of a step has the loss as mlm_loss, its running mean as mlm
    columns = {}
    for row in rows:
        for column, value in row.items():
            if math.isfinite(value):
                steps, values = columns.setdefault(column, ([], []))
                steps.append(row['step'])
                values.append(value)
    held_out = {column[len('held_out_'):]: found
                for column, found in columns.items()
                if column.startswith('held_out_')}
    losses = {column[:-len('_loss')]: (found, columns.get(
                  column[:-len('_loss')], ([], [])))
              for column, found in columns.items()
              if column.endswith('_loss')
              and not column.startswith('held_out_')}
    return RunRecord(name, losses, held_out, config, log)


def plot_history(run: Any, *others: Any,
                 figsize: Optional[Tuple[float, float]] = None) -> Any:
    """Draw the losses and accuracies of one run, or of several, over steps.

    run, others: run folders, finished or not, or results of `train_bert`.
    The matplotlib figure has a panel for each loss and one for held-out
    accuracies; losses of masked, next and restored tokens share a panel. A
    loss is drawn as its mean since step 1, as in the book. The held-out loss
    is drawn if the run evaluated it, and the loss at each step for a single
    run. Raises
    `RunError` for a run without a logged step.
    """
    from d2lbert.pictures.figures import Picture
    records = [read_record(one) for one in (run, *others)]
    for one, record in zip((run, *others), records):
        if not record.losses:
            raise RunError(f'{one} has no step in its history yet: leave it '
                           'out until it has logged one')
    names = list(dict.fromkeys(
        name for record in records for name in record.losses))
    rates = list(dict.fromkeys(
        name for record in records for name in record.held_out
        if 'accuracy' in name))
    panels = _panels(names)
    count = len(panels) + bool(rates)
    fig = Picture(figsize=figsize or (4.6 * count, 3.7), layout='constrained')
    axes = fig.subplots(1, count, squeeze=False)[0]
    for ax, together in zip(axes, panels):
        for k, record in enumerate(records):
            for name in together:
                _plot_loss(ax, record, name, k, len(records) > 1,
                           f'{_title(name)}, ' * (len(together) > 1))
        title = ' and '.join(map(_title, together))
        ax.set(xlabel='step', ylabel='loss, nats',
               title=title if title == together[0] else f'{title} loss')
    if rates:
        for k, record in enumerate(records):
            for number, name in enumerate(rates):
                if name in record.held_out:
                    axes[-1].plot(
                        *record.held_out[name], 'os^Dv'[number % 5],
                        markersize=4, **STYLES[k % len(STYLES)],
                        label=_labelled(record, name.replace('_', ' '),
                                        len(records) > 1))
        axes[-1].set(xlabel='step', ylabel='share', title='held-out accuracy')
    longest = max(len(name) for ax in axes for name
                  in ax.get_legend_handles_labels()[1])
    columns = 2 if longest <= 25 else 1     # as wide as a panel
    for ax in axes:
        ax.grid(alpha=0.3)
        ax.locator_params(nbins=5)
        ax.locator_params('x', integer=True)
        # Below the panel, where it covers no curve
        ax.legend(fontsize=8, loc='upper left', bbox_to_anchor=(0, -0.2),
                  ncol=columns, frameon=False, borderaxespad=0)
    return fig


def _panels(names):
    """The names of the losses of each panel, a list of lists."""
    shared = [name for name in names if name in TOKEN_LOSSES]
    return [shared if name in shared else [name] for name in names
            if name not in shared[1:]]


def _title(name):
    return name.upper() if len(name) < 5 else name


def _plot_loss(ax, record, name, k, several, before=''):
    """Draw a loss of record k, if it has it; before: begins the labels."""
    if name not in record.losses:
        return
    each, mean = record.losses[name]
    style = STYLES[k % len(STYLES)]
    if not several:
        ax.plot(*each, color='#9a9a9a', linewidth=0.8, label='each step',
                **_point(each))
    if mean[0]:
        ax.plot(*mean, **style, label=_labelled(
            record, f'{before}mean since step 1', several), **_point(mean))
    held_out = record.held_out.get(f'{name}_loss')
    if held_out:
        ax.plot(*held_out, 'o', markersize=4, **dict(style, linestyle=':'),
                label=_labelled(record, f'{before}held out', several))


def _point(column):
    """Options that make a column with one point visible."""
    return POINT if len(column[0]) == 1 else {}


def _labelled(record, name, several):
    return f'{record.name or "this"}: {name}' if several else name


