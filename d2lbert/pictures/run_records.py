"""Read the losses and accuracies that a run has logged, and draw them."""
import itertools
import math
import os
from pathlib import Path
from typing import Any, NamedTuple, Optional, Tuple

from d2lbert.machine.files import read_json
from d2lbert.nn.steps import History
from d2lbert.progress import POINT
from d2lbert.training.history import history_rows
from d2lbert.training.saved_runs import RunError

#: Line styles of the runs, which can be told apart without colours.
STYLES = (dict(linestyle='-', color='#1f3a5f'),
          dict(linestyle='--', color='#c1620a'),
          dict(linestyle='-.', color='#5c8a3a'),
          dict(linestyle=':', color='#8a4f9e'))

ACCURACY_MARKERS = 'os^Dv'

#: The losses of predicting tokens, in nats. Each objective of `pretrain` has
#: one of them. They share a panel, so that objectives can be compared.
TOKEN_LOSSES = 'mlm', 'clm', 'denoise'


class RunRecord(NamedTuple):
    """The history of a run.

    A curve is a pair of lists of equal length, (steps, values).
    """

    name: str           # of the run folder; '' for a `History`
    losses: dict        # {name of a loss: (curve of the loss at each logged
                        # step, curve of the mean since step 1)}
    held_out: dict      # {metric: curve}, for example mlm_accuracy; the loss
                        # of a fine-tuning run is task_loss
    config: dict        # the content of config.json; {} for a `History`
    log: str            # the content of log.txt, or ''


def read_record(run):
    """Return the `RunRecord` of a run.

    run: a run folder, finished or not, or a `History` that `train_bert`
    returned. Raises `RunError`, a ValueError, for a folder without
    losses.csv or config.json, and if one of these or log.txt is damaged.
    """
    rows = history_rows(run)
    if isinstance(run, History):
        return _make_record('', rows, {}, ''.join(run.log_lines))
    folder = Path(run)
    try:
        config = dict(read_json(folder / 'config.json'))
        return _make_record(name_of(folder), rows, config, _read_log(folder))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f'the history of {folder} is damaged: {error}'
                       ) from None


def name_of(folder):
    """Return the last part of a folder's absolute path."""
    return os.path.basename(os.path.abspath(folder)) or str(folder)


def _read_log(folder):
    path = folder / 'log.txt'
    return path.read_text('utf-8') if path.is_file() else ''


def _make_record(name, rows, config, log):
    """Return a `RunRecord`, without values that are NaN or infinite.

    rows: a list of {column: value}, one for each logged or evaluated step.
    """
    curves = {}     # {column: curve}
    for row in rows:
        for column, value in row.items():
            if math.isfinite(value):
                steps, values = curves.setdefault(column, ([], []))
                steps.append(row['step'])
                values.append(value)
    losses, held_out = {}, {}
    for column, curve in curves.items():
        if column.startswith('held_out_'):
            metric = column[len('held_out_'):]
            # Fine-tuning logs its held-out task_loss as held_out_loss
            held_out['task_loss' if metric == 'loss' else metric] = curve
        elif column.endswith('_loss'):
            # Column mlm_loss is the loss at a step, mlm the mean since step 1
            loss_name = column[:-len('_loss')]
            losses[loss_name] = curve, curves.get(loss_name, ([], []))
    return RunRecord(name, losses, held_out, config, log)


def plot_history(run: Any, *others: Any,
                 figsize: Optional[Tuple[float, float]] = None) -> Any:
    """Draw the losses and accuracies of one or several runs over steps.

    run, others: run folders, finished or not, or results of `train_bert`.
    Returns a matplotlib figure with a panel for each loss, and one for
    held-out accuracies, if there are any. The losses of predicting tokens
    (mlm, clm, denoise) share a panel. A loss is drawn as its mean since step
    1, as in the book, with the held-out loss, if there is one. For a single
    run, the loss at each logged step is drawn, too. Raises `RunError` for a
    run that has not logged a finite loss.
    """
    from d2lbert.pictures.figures import Picture
    runs = (run, *others)
    records = [read_record(one_run) for one_run in runs]
    for one_run, record in zip(runs, records):
        if not record.losses:
            raise RunError(f'{one_run} has no finite loss in its history yet: '
                           'leave it out until it has logged one')
    loss_names = list(dict.fromkeys(
        name for record in records for name in record.losses))
    accuracy_names = list(dict.fromkeys(
        name for record in records for name in record.held_out
        if 'accuracy' in name))
    panels = _panels(loss_names)
    num_panels = len(panels) + bool(accuracy_names)
    fig = Picture(figsize=figsize or (4.6 * num_panels, 3.7),
                  layout='constrained')
    axes = fig.subplots(1, num_panels, squeeze=False)[0]
    # Labels begin with the name of the run if there are several
    prefixes = [f'{record.name or "this"}: ' if others else ''
                for record in records]
    styled_records = list(zip(records, itertools.cycle(STYLES), prefixes))
    for ax, names in zip(axes, panels):
        for record, style, prefix in styled_records:
            for name in names:
                loss_prefix = f'{_title(name)}, ' if len(names) > 1 else ''
                _plot_loss(ax, record, name, style, prefix + loss_prefix,
                           shows_each_step=not others)
        ax.set(xlabel='step', ylabel='loss, nats',
               title=f'{" and ".join(map(_title, names))} loss')
    if accuracy_names:
        for record, style, prefix in styled_records:
            for name, marker in zip(accuracy_names,
                                    itertools.cycle(ACCURACY_MARKERS)):
                if name in record.held_out:
                    axes[-1].plot(*record.held_out[name], marker, markersize=4,
                                  label=prefix + name.replace('_', ' '),
                                  **style)
        axes[-1].set(xlabel='step', ylabel='share', title='held-out accuracy')
    labels = [ax.get_legend_handles_labels()[1] for ax in axes]
    # 0 if no curve has a label, as when all means of several runs are infinite
    max_letters = max(map(len, itertools.chain(*labels)), default=0)
    # Two columns of labels with 25 letters are as wide as a panel
    num_columns = 2 if max_letters <= 25 else 1
    for ax, panel_labels in zip(axes, labels):
        ax.grid(alpha=0.3)
        ax.locator_params(nbins=5)
        ax.locator_params('x', integer=True)
        if panel_labels:
            # Below the panel, where the legend covers no curve
            ax.legend(fontsize=8, loc='upper left', bbox_to_anchor=(0, -0.2),
                      ncol=num_columns, frameon=False, borderaxespad=0)
    return fig


def _panels(loss_names):
    """Assign losses to panels; return a list of loss names for each panel."""
    token_losses = [name for name in loss_names if name in TOKEN_LOSSES]
    panels = []
    for name in loss_names:
        if name not in TOKEN_LOSSES:
            panels.append([name])
        elif name == token_losses[0]:   # the others share this panel
            panels.append(token_losses)
    return panels


def _title(loss_name):
    # 'mlm' is an acronym, 'task' is not
    return loss_name.upper() if len(loss_name) < 4 else loss_name


def _plot_loss(ax, record, name, style, label_prefix, shows_each_step):
    """Draw the loss `name` of a record, if the record has this loss."""
    if name not in record.losses:
        return
    each_step, mean = record.losses[name]
    if shows_each_step:
        ax.plot(*each_step, color='#9a9a9a', linewidth=0.8, label='each step',
                **_marker_options(each_step))
    if mean[0]:     # the curve has steps
        ax.plot(*mean, label=f'{label_prefix}mean since step 1', **style,
                **_marker_options(mean))
    held_out = record.held_out.get(f'{name}_loss')
    if held_out:
        ax.plot(*held_out, 'o', markersize=4, label=f'{label_prefix}held out',
                **dict(style, linestyle=':'))


def _marker_options(curve):
    """Return options of `plot` that make a curve of one point visible."""
    return POINT if len(curve[0]) == 1 else {}
