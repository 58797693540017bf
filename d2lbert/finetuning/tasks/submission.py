"""Write submission files for GLUE's leaderboard.

Wang et al. 2018: a table `index`, `prediction` for each task, with labels as
in the training files.
"""
from pathlib import Path

from d2lbert.devices import parse_devices
from d2lbert.finetuning.batches import outputs_of
from d2lbert.finetuning.task_kinds import KINDS
from d2lbert.finetuning.tasks.catalog import (
    TASKS,
    answered,
    find,
    find_beside,
    read_task,
)
from d2lbert.machine.arguments import UsageError, check_out, writing
from d2lbert.machine.terminal import note
from d2lbert.progress import bar
from d2lbert.training.load import load_finetuned


def write_submission(folder, data, out, devices='auto', force=False,
                     precision=None):
    """Predict the test part of a run's task, and write GLUE's file for it.

    folder: a run of a task of GLUE. data: the folder with the test file. out:
    a folder, created if it is missing.

    For a run of MNLI, the mismatched part and the diagnostic set are
    predicted, too, if their files exist. Returns the paths of the files.
    Raises ValueError.
    """
    net, tokenizer = load_finetuned(folder, parse_devices(devices),
                                    trainable=False, precision=precision)
    task = TASKS.get(net.about.task)
    if task is None or not task.submitted:
        names = ', '.join(name for name, one in TASKS.items()
                          if one.submitted)
        raise UsageError(f'{folder} was not trained on a task of GLUE, whose '
                         f'test files --data names: it takes a run of one of '
                         f'{names}; predict other texts by --file')
    out, parts = Path(out), []
    if out.exists() and not out.is_dir():
        raise ValueError(f'--out {out} is a file: with --data name a folder, '
                         'where the files of the submission go')
    for one in answered(task):
        path = (find(one, data, 'test') if one is task
                else find_beside(one, data, 'test'))
        if path is None:
            note(f'{data} has no test part of {one.name}: '
                 f'{one.submitted} is not written')
            continue
        if out.is_dir():
            check_out(out / one.submitted, force, one.submitted, [path])
        found = read_task(one, path, 'test', labels=net.about.labels)
        if found.skipped:
            raise ValueError(
                f'{path} has {found.skipped:,} lines that are no examples, '
                'and a submission needs a prediction for each line: take the '
                'file as it is published')
        parts.append((one, found))
    kind = KINDS[net.about.kind](net.about, tokenizer)
    ready = [(one, predicted(net, kind, one, found))
             for one, found in parts]
    out.mkdir(parents=True, exist_ok=True)
    for one, lines in ready:
        with writing(out / one.submitted, force) as part:
            Path(part).write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return [out / one.submitted for one, _ in ready]


def predicted(net, kind, task, data):
    """The lines of the file, with a header."""
    inputs = kind.inputs(data._replace(labels=None))
    with bar(len(inputs.tokens), f'predicting {task.name}', 'examples'
             ) as shown:
        outputs = outputs_of(net, inputs, net.output.weight.list_ctx(),
                             shown.update)
    rows = [_written(task, one.label)
            for one in kind.predictions(outputs, inputs, data)]
    return ['index\tprediction',
            *(f'{k}\t{value}' for k, value in enumerate(rows))]


def _written(task, label):
    if task.kind == 'regress':      # similarities are from 0 to 5
        return f'{min(max(label, 0.0), 5.0):.3f}'
    if task.written is not None:
        return task.written[task.labels.index(label)]
    return label
