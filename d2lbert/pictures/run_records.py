"""Read the losses and accuracies that a run has logged, and draw them."""
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

#: Markers of accuracies, which can be told apart without colours.
ACCURACY_MARKERS = 'os^Dv'

#: The first loss of each objective of `pretrain`, in nats per token. These
#: share a panel, so that runs with different objectives can be compared.
TOKEN_LOSSES = 'mlm', 'clm', 'denoise'


class RunRecord(NamedTuple):
    """The history of a run.

    A curve is a pair of lists of equal length, (steps, values).
    """

    name: str           # of the run folder; '' for a `History`
    losses: dict        # {name of a loss: (curve of the loss at each logged
                        # step, curve of the mean since step 1)}
    held_out: dict      # {metric, without the prefix held_out_: curve};
                        # the loss of a fine-tuning run is task_loss
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
    held_out = {column[len('held_out_'):]: curve
                for column, curve in curves.items()
                if column.startswith('held_out_')}
    # Fine-tuning logs its loss as task_loss, but its held-out loss as
    # held_out_loss
    held_out = {'task_loss' if metric == 'loss' else metric: curve
                for metric, curve in held_out.items()}
    # For example, column mlm_loss is the loss at a step, and column mlm is the
    # mean of mlm_loss since step 1
    losses = {}
    for column, curve in curves.items():
        if column.endswith('_loss') and not column.startswith('held_out_'):
            loss_name = column[:-len('_loss')]
            losses[loss_name] = curve, curves.get(loss_name, ([], []))
    return RunRecord(name, losses, held_out, config, log)


def plot_history(run: Any, *others: Any,
                 figsize: Optional[Tuple[float, float]] = None) -> Any:
    """Draw the losses and accuracies of one or several runs over steps.

    run, others: run folders, finished or not, or results of `train_bert`.
    Returns a matplotlib figure with a panel for each loss, and one for
    held-out accuracies, if there are any. The losses of masked, next and
    restored tokens share a panel. A loss is drawn as its mean since step 1,
    as in the book. If the run has held-out losses, they are drawn, too. If
    there is only one run, its loss at each logged step is drawn, too. Raises
    `RunError` for a run that has not logged a finite loss.
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
    has_several_runs = len(records) > 1
    num_panels = len(panels) + bool(accuracy_names)
    fig = Picture(figsize=figsize or (4.6 * num_panels, 3.7),
                  layout='constrained')
    axes = fig.subplots(1, num_panels, squeeze=False)[0]
    for ax, names in zip(axes, panels):
        for k, record in enumerate(records):
            for name in names:
                _plot_loss(ax, record, name, k, has_several_runs,
                           f'{_title(name)}, ' if len(names) > 1 else '')
        ax.set(xlabel='step', ylabel='loss, nats',
               title=f'{" and ".join(map(_title, names))} loss')
    if accuracy_names:
        for k, record in enumerate(records):
            for i, name in enumerate(accuracy_names):
                if name not in record.held_out:
                    continue
                label = _legend_label(record, name.replace('_', ' '),
                                      has_several_runs)
                axes[-1].plot(*record.held_out[name],
                              ACCURACY_MARKERS[i % len(ACCURACY_MARKERS)],
                              markersize=4, **STYLES[k % len(STYLES)],
                              label=label)
        axes[-1].set(xlabel='step', ylabel='share', title='held-out accuracy')
    # There is no label if no curve has a step with a finite mean
    max_letters = max((len(label) for ax in axes for label
                       in ax.get_legend_handles_labels()[1]), default=0)
    # Two columns of labels with 25 letters are as wide as a panel
    num_columns = 2 if max_letters <= 25 else 1
    for ax in axes:
        ax.grid(alpha=0.3)
        ax.locator_params(nbins=5)
        ax.locator_params('x', integer=True)
        if not ax.get_legend_handles_labels()[1]:
            continue
        # The legend is below the panel, where it covers no curve
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


def _title(name):
    """Return the title of a loss: an acronym, such as MLM, is in capitals."""
    # The other names are words of at least four letters, such as task
    return name.upper() if len(name) < 4 else name


def _plot_loss(ax, record, name, k, has_several_runs, label_prefix):
    """Draw the loss `name` of the record with index k, if it has this loss.

    label_prefix: text before 'mean since step 1' and 'held out' in the legend.
    """
    if name not in record.losses:
        return
    each_step, mean = record.losses[name]
    style = STYLES[k % len(STYLES)]
    if not has_several_runs:
        ax.plot(*each_step, color='#9a9a9a', linewidth=0.8, label='each step',
                **_marker_options(each_step))
    if mean[0]:     # the curve has steps
        ax.plot(*mean, **style, label=_legend_label(
            record, f'{label_prefix}mean since step 1', has_several_runs),
            **_marker_options(mean))
    held_out = record.held_out.get(f'{name}_loss')
    if held_out:
        ax.plot(*held_out, 'o', markersize=4, **dict(style, linestyle=':'),
                label=_legend_label(record, f'{label_prefix}held out',
                                    has_several_runs))


def _marker_options(curve):
    """Return options of `plot` that make a curve of one point visible."""
    return POINT if len(curve[0]) == 1 else {}


def _legend_label(record, label, has_several_runs):
    """Return the label; if there are several runs, 'NAME: ' and the label.

    NAME is the name of the run folder, or 'this' for a `History`.
    """
    if not has_several_runs:
        return label
    return f'{record.name or "this"}: {label}'
