"""Predict with a fine-tuned model, evaluate it, and write GLUE submissions."""
from pathlib import Path
from typing import Any, Iterable, List, Optional

from d2lbert.devices import parse_devices
from d2lbert.finetuning.batches import outputs_of
from d2lbert.finetuning.datasets import folder_of, read_part
from d2lbert.finetuning.objective import digest, evaluated
from d2lbert.finetuning.task_kinds import KINDS, Prediction
from d2lbert.finetuning.tasks.catalog import (
    TASKS,
    answered,
    find,
    find_beside,
    read_task,
)
from d2lbert.finetuning.tasks.formats import Choices, Questions, Sentences
from d2lbert.finetuning.tasks.tables import (
    Columns,
    Examples,
    examples_of,
    head_of,
    is_csv,
    places_by_columns,
)
from d2lbert.machine.arguments import (
    ROW_FORMATS,
    PathLike,
    UsageError,
    check_out,
    check_rows_out,
    failures_of,
    items_of,
    short,
    write_rows,
    writing,
)
from d2lbert.machine.terminal import note
from d2lbert.pretrained.encoding import text_bar
from d2lbert.pretrained.tokenizers.tokenizer import as_tokenizer
from d2lbert.progress import bar
from d2lbert.texts.text_sources import Lines
from d2lbert.training.load import load_finetuned
from d2lbert.training.saved_runs import RunError, read_config


def predict(net: Any, tokenizer: Any, texts: Iterable,
            pairs: Optional[Iterable] = None,
            show_progress: Optional[bool] = None) -> List[Prediction]:
    """A list with a `Prediction` for each text, or each pair of texts.

    net, tokenizer: as `load_finetuned` returns them. texts: strings. For
    tags, strings with spaces between words, or lists of words. For answers,
    the questions.

    pairs: the second texts. For answers, the texts to search. For choices, a
    list of texts each, all of equal length. show_progress: as for `encode`.
    Raises ValueError and TypeError.
    """
    about, tokenizer = net.about, as_tokenizer(tokenizer)
    if about is None:
        raise ValueError('this model has no head that scores texts or words: '
                         'fine-tune it with d2l.finetune or d2lbert finetune')
    texts = items_of(texts)
    pairs = None if pairs is None else items_of(pairs, 'pairs')
    data = data_of(about, texts, pairs)
    for name, some in ('texts', texts), ('pairs', pairs):
        _check_not_empty(name, some)
    kind = KINDS[about.kind](about, tokenizer)
    inputs = kind.inputs(data)
    devices = net.output.weight.list_ctx()
    with text_bar(len(inputs.tokens), 'predicting', show_progress) as shown:
        outputs = outputs_of(net, inputs, devices, shown.update)
    return kind.predictions(outputs, inputs, data)


def _check_not_empty(name, texts):
    for k, text in enumerate(texts or ()):
        if not (text.strip() if isinstance(text, str) else text):
            raise ValueError(f'{name}[{k}] is empty: leave it out, or give '
                             'some words')


def data_of(about, texts, pairs=None, path='the texts'):
    """Texts in the form that `read_task` returns, without labels."""
    if about.pair not in (pairs is not None, None):
        what = f'task {about.task}' if about.task else 'this model'
        raise ValueError(
            f'{what} has ' + (
                'pairs of texts: give the second ones, too' if about.pair
                else 'one text each: give no second ones'))
    if pairs is not None and len(pairs) != len(texts):
        raise ValueError(f'{len(pairs)} second texts cannot be paired with '
                         f'{len(texts)} first ones: give as many')
    if not texts:
        raise ValueError('there is no text: give at least one')
    if about.kind == 'choice':
        return Choices(texts, _checked_endings(pairs), None, 0, path)
    if about.kind == 'tag':
        words = [text.split() if isinstance(text, str) else list(text)
                 for text in texts]
        return Sentences(words, None, about.labels, 0, path)
    if about.kind == 'span':
        return Questions(texts, pairs, None, list(map(str, range(len(texts)))),
                         about.null, 0, path)
    return Examples(texts, pairs, None, about.labels, 0, path)


def _checked_endings(pairs):
    """The endings of each text as tuples of equal length."""
    for some in pairs:
        if isinstance(some, str) or len(some) < 2 or not all(
                isinstance(one, str) and one.strip() for one in some):
            raise ValueError('each text needs a list of two or more texts '
                             f'that may follow it, not {short(some)}')
    if len({len(some) for some in pairs}) > 1:
        raise ValueError('all texts need as many endings: predict those with '
                         'more or fewer apart')
    return [tuple(some) for some in pairs]


def evaluate_finetuned(folder: PathLike, data: Optional[PathLike] = None,
                       devices: Any = 'auto', part: str = 'dev',
                       precision: Optional[str] = None) -> Any:
    """Evaluate a run on the development part of its task.

    data: a folder or a file that replaces the data of the run. precision: as
    for `load_pretrained`. Returns a named tuple: the mean loss and the task's
    metrics.
    """
    return next(evaluations(folder, data, devices, part, precision))[1]


def evaluations(folder, data=None, devices='auto', part='dev',
                precision=None):
    """Yield (task, metrics) of a run's task; see `evaluate_finetuned`.

    Then yield the metrics of further tasks of the same model, if their files
    exist: for MNLI the mismatched part and the diagnostic set.
    """
    contexts = parse_devices(devices)
    net, tokenizer = load_finetuned(folder, contexts, False, precision)
    config = read_config(Path(folder))
    try:
        training, fingerprint = dict(config['training']), config['fingerprint']
        where, columns = training['data'], training['columns']
        trained_on = fingerprint.split('-')[1]
    except (KeyError, TypeError, ValueError, AttributeError,
            IndexError) as error:
        raise RunError(f'{Path(folder) / "config.json"} does not describe a '
                       f'run: {error!r}') from None
    found = read_part(
        net.about.task, folder_of(net.about.task, where) if data is None
        else data, part, columns, tokenizer, net.about.labels)
    kind = KINDS[net.about.kind](net.about, tokenizer)
    inputs = kind.inputs(found)
    if inputs.labels is None:
        raise ValueError(f'{found.path} has no labels: name one that has '
                         '(--data)')
    if data is None and digest(inputs) != trained_on:
        raise RunError(f'{found.path} has changed since {folder} was trained:'
                       ' name a folder or file with --data')
    yield net.about.task, evaluated(net, kind, inputs, found, contexts,
                                    'evaluating')
    place = where if data is None else data
    if columns is not None or place is None or Path(place).is_file():
        return
    for side in answered(net.about.task)[1:]:
        path = find_beside(side, place, part)
        if path is None:
            continue
        found = read_task(side, path, part, labels=net.about.labels)
        kind = KINDS[side.kind](net.about._replace(
            task=side.name, metrics=side.metrics), tokenizer)
        yield side.name, evaluated(net, kind, kind.inputs(found), found,
                                   contexts, f'evaluating {side.name}')


# For the command

def predicted_lines(folder, text=None, pair=None, file=None, out=None,
                    devices='auto', force=False, skip_empty=False,
                    text_field=None, top=None, precision=None,
                    print_row=None):
    """Print or write predictions of the model in `folder`.

    Arguments as for `d2lbert predict`. print_row: a function that prints a
    dictionary, in place of lines of text.
    """
    if (text is None) == (file is None):
        raise UsageError('give a text, or --file FILE with a text on each '
                         'line' + (', not both' if file else ''))
    if file is None and out is not None:
        raise UsageError('--out goes with --file: the prediction of one '
                         'text is printed')
    if file is not None and pair is not None:
        raise UsageError('--pair goes with one text; in --file a tab parts '
                         'the two')
    if out is not None:
        check_out(out, force, 'labels.txt', [folder, file])
        check_rows_out(out)
    net, tokenizer = load_finetuned(folder, parse_devices(devices),
                                    trainable=False, precision=precision)
    about = net.about
    if file is None and about.kind == 'choice':
        raise UsageError('this model chooses among several texts: give '
                         '--file FILE with a text and those that may follow '
                         'it on each line, a tab before each of these')
    if file is None:
        found, = predict(net, tokenizer, [text],
                         None if pair is None else [pair])
        if print_row is not None:
            for row in _rows(about, [text], [found], has_shares=True,
                             top=top):
                print_row(row)
            return
        lines = (_share_lines(found, top) if found.shares
                 else _lines(about, text, found))
        print('\n'.join(lines))
        return
    if is_csv(file) and about.kind in ('classify', 'regress'):
        if skip_empty or text_field is not None:
            raise UsageError('--skip-empty and --text-field are for texts on '
                             f'lines, and {file} is a table: leave them out')
        texts, pairs = _of_table(file, Path(folder))
    else:
        texts, pairs = read_lines(file, about.pair, skip_empty, text_field,
                                  about.kind == 'choice')
    found = predict(net, tokenizer, texts, pairs, True)
    if out is not None and Path(out).suffix.lower() in ROW_FORMATS:
        with writing(out, force) as part:
            write_rows(part, Path(out).suffix.lower(), _rows(
                about, texts, found))
        return
    if out is None and print_row is not None:
        for row in _rows(about, texts, found, top is not None, top):
            print_row(row)
        return
    lines = [line for text, one in zip(texts, found)
             for line in (*_lines(about, text, one, top),
                          *[''] * (about.kind == 'tag'))]
    if out is None:
        print('\n'.join(lines))
        return
    with writing(out, force) as part:
        Path(part).write_text('\n'.join(lines) + '\n', encoding='utf-8')


def _rows(about, texts, found, has_shares=False, top=None):
    """Predictions as dictionaries with equal keys.

    has_shares: include the probabilities of the `top` likeliest labels.
    """
    for number, (text, one) in enumerate(zip(texts, found), 1):
        if about.kind == 'tag':
            for word, tag in zip(text.split(), one.label):
                yield dict(text=number, word=word, tag=tag)
        elif about.kind == 'regress':
            yield dict(text=text, value=float(one.label))
        elif about.kind == 'span':
            yield dict(text=text, answer=one.label)
        else:
            row = dict(text=text, label=one.label, score=float(one.score))
            if has_shares and one.shares:
                row['shares'] = dict(sorted(
                    ((name, float(share)) for name, share
                     in one.shares.items()), key=lambda pair: -pair[1])[:top])
            yield row


def _share_lines(found, top=None):
    """A line for each of the `top` likeliest labels."""
    return [f'{name}\t{share:.4f}' for name, share in sorted(
        found.shares.items(), key=lambda one: -one[1])[:top]]


def _lines(about, text, found, top=None):
    """The lines that report the `Prediction` of a text."""
    if about.kind == 'tag':
        return [f'{word}\t{tag}'
                for word, tag in zip(text.split(), found.label)]
    if about.kind == 'regress':
        return [f'{found.label:.4f}']
    if about.kind == 'span':
        # Put an answer of several lines on one line
        return [' '.join(found.label.split())]
    if top is not None and found.shares:
        return ['\t'.join(_share_lines(found, top))]
    return [f'{found.label}\t{found.score:.4f}']


def _of_table(file, folder):
    """The texts of a CSV file, and the second texts or None.

    The file has the same columns as the training data of the run.
    """
    columns = dict(read_config(folder)['training']).get('columns')
    if columns is None:
        raise ValueError(f'{file} is a table, and {folder} was not trained '
                         'on --columns of one: give a file with a text on '
                         'each line')
    columns = Columns.parse(columns)._replace(label=None)
    with failures_of('--file', file, 'read'):
        found = examples_of(file, places_by_columns(file, head_of(file),
                                                    columns))
    return found.texts_a, found.texts_b


def read_lines(file, pair, skip_empty=False, text_field=None, choice=False):
    """The texts of a file, one per line, and the second texts or None.

    choice: True if the second texts are lists of two texts or more.
    """
    if pair and text_field is not None:
        raise UsageError('--text-field is for one text, and this model takes '
                         'pairs: give lines with a tab between the two')
    lines = Lines(file, text_field, skip_empty)
    texts = list(lines)
    if lines.skipped:
        note(lines.skipped_words())
    if not pair:
        return [line.text for line in texts], None
    for name, text in texts:
        if choice and text.count('\t') < 2:
            raise ValueError(f'{name} has {text.count(chr(9))} tabs: expected '
                             'a text and two or more that may follow it, '
                             'with a tab before each of these')
        if not choice and text.count('\t') != 1:
            raise ValueError(f'{name} has {text.count(chr(9))} tabs: expected '
                             'two texts with one tab between them')
    parts = [line.text.split('\t') for line in texts]
    if choice:
        return [a for a, *_ in parts], [rest for _, *rest in parts]
    return [a for a, _ in parts], [b for _, b in parts]


# Submissions for GLUE's leaderboard

def write_submission(folder, data, out, devices='auto', force=False,
                     precision=None):
    """Predict the test part of a run's task, and write GLUE's file for it.

    The file is a table with the columns `index` and `prediction`. Labels are
    written as in the training files (Wang et al. 2018).

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
    ready = [(one, _submission(net, kind, one, found))
             for one, found in parts]
    out.mkdir(parents=True, exist_ok=True)
    for one, lines in ready:
        with writing(out / one.submitted, force) as part:
            Path(part).write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return [out / one.submitted for one, _ in ready]


def _submission(net, kind, task, data):
    """The lines of a submission file, with a header."""
    inputs = kind.inputs(data._replace(labels=None))
    with bar(len(inputs.tokens), f'predicting {task.name}', 'examples'
             ) as shown:
        outputs = outputs_of(net, inputs, net.output.weight.list_ctx(),
                             shown.update)
    rows = [_submitted_label(task, one.label)
            for one in kind.predictions(outputs, inputs, data)]
    return ['index\tprediction',
            *(f'{k}\t{value}' for k, value in enumerate(rows))]


def _submitted_label(task, label):
    if task.kind == 'regress':      # similarities are from 0 to 5
        return f'{min(max(label, 0.0), 5.0):.3f}'
    if task.written is not None:
        return task.written[task.labels.index(label)]
    return label
