"""Predict with a fine-tuned model, evaluate it, and write GLUE submissions.

`net.about` is the model's task, an `About` (pretrained/heads.py).
"""
from pathlib import Path
from typing import Any, Iterable, List, Optional

from d2lbert.devices import parse_devices
from d2lbert.finetuning.batches import outputs_of
from d2lbert.finetuning.datasets import (
    data_folder_of,
    moved_data,
    read_part,
)
from d2lbert.finetuning.objective import digest, evaluate
from d2lbert.finetuning.task_kinds import CODECS, Prediction
from d2lbert.finetuning.tasks.catalog import (
    TASKS,
    find_file,
    find_file_nearby,
    read_task,
    with_extra_tests,
)
from d2lbert.finetuning.tasks.formats import Choices, Questions, Sentences
from d2lbert.finetuning.tasks.tables import (
    Columns,
    Examples,
    examples_of,
    first_rows,
    indices_of_columns,
    is_csv,
)
from d2lbert.machine.arguments import (
    TABLE_EXTENSIONS,
    PathLike,
    UsageError,
    check_out,
    check_predictions_out,
    check_text_or_file,
    failures_of,
    items_of,
    short_repr,
    write_rows,
    writing,
)
from d2lbert.machine.files import is_run
from d2lbert.machine.terminal import note
from d2lbert.pretrained.encoding import text_bar
from d2lbert.pretrained.tokenizers.tokenizer import as_tokenizer
from d2lbert.progress import bar
from d2lbert.texts.text_sources import Lines, reading_failures
from d2lbert.training.load import load_finetuned
from d2lbert.training.saved_runs import RunError, read_config


def predict(net: Any, tokenizer: Any, texts: Iterable,
            pairs: Optional[Iterable] = None,
            show_progress: Optional[bool] = None) -> List[Prediction]:
    """Return a list with a `Prediction` for each text or pair of texts.

    net, tokenizer: as `load_finetuned` returns them. texts: strings; for
    tagging, strings with spaces between words, or lists of words; for question
    answering, the questions.

    pairs: the second texts; for question answering, the texts to search; for
    multiple choice, equally long lists of endings, one list for each text.
    show_progress: as for `encode` (pretrained/encoding.py). Raises ValueError
    or TypeError for texts that the model cannot take.
    """
    about, tokenizer = net.about, as_tokenizer(tokenizer)
    if about is None:
        raise ValueError('this model has no head that scores texts or words: '
                         'fine-tune it with d2l.finetune or d2lbert finetune')
    texts = items_of(texts)
    pairs = None if pairs is None else items_of(pairs, 'pairs')
    _check_counts(about, texts, pairs)
    if about.kind == 'tag':
        texts = [text.split() if isinstance(text, str)
                 else items_of(text, f'texts[{k}]', 'words')
                 for k, text in enumerate(texts)]
    data = _unlabelled_data(about, texts, pairs)
    _check_no_text_is_empty('texts', texts)
    _check_no_text_is_empty('pairs', pairs or ())
    codec = CODECS[about.kind](about, tokenizer)
    inputs = codec.inputs(data)
    devices = net.output.weight.list_ctx()
    with text_bar(len(inputs.tokens), 'predicting', show_progress) as progress:
        outputs = outputs_of(net, inputs, devices, progress.update)
    return codec.predictions(outputs, inputs, data)


def _check_no_text_is_empty(name, texts):
    """Raise ValueError for a blank text, or for an empty list of words."""
    for k, text in enumerate(texts):
        content = text.strip() if isinstance(text, str) else text
        if not content:
            raise ValueError(f'{name}[{k}] is empty: leave it out, or give '
                             'some words')


def _check_counts(about, texts, pairs):
    """Raise ValueError if there are too few or too many texts for the task."""
    has_pairs = pairs is not None
    takes_both = about.pair is None     # pairs and single texts
    if not takes_both and about.pair != has_pairs:
        owner = f'task {about.task}' if about.task else 'this model'
        raise ValueError(
            f'{owner} takes ' + (
                'pairs of texts: give the second texts, too' if about.pair
                else 'single texts: give no second texts'))
    if has_pairs and len(pairs) != len(texts):
        raise ValueError(f'{len(pairs)} second texts cannot be paired with '
                         f'{len(texts)} first texts: give equally many')
    if not texts:
        raise ValueError('there is no text: give at least one')


def _unlabelled_data(about, texts, pairs):
    """Convert texts to the type that `read_task` returns, without labels."""
    labels, num_skipped = None, 0
    path = 'the texts'      # for messages, in place of the path of a file
    if about.kind == 'choice':
        return Choices(texts, _checked_endings(pairs), labels, num_skipped,
                       path)
    if about.kind == 'tag':
        return Sentences(texts, labels, about.labels, num_skipped, path)
    if about.kind == 'span':
        answers, ids = None, list(map(str, range(len(texts))))
        return Questions(texts, pairs, answers, ids, about.null, num_skipped,
                         path)
    return Examples(texts, pairs, labels, about.labels, num_skipped, path)


def _checked_endings(endings_of_texts):
    """Return the endings of each text as a tuple, or raise ValueError."""
    for endings in endings_of_texts:
        if isinstance(endings, str) or len(endings) < 2 or not all(
                isinstance(ending, str) and ending.strip()
                for ending in endings):
            raise ValueError('each text needs a list of two or more '
                             f'endings, not {short_repr(endings)}')
    if len(set(map(len, endings_of_texts))) > 1:
        raise ValueError('all texts need equally many endings: predict texts '
                         'with more or fewer endings in another call')
    return list(map(tuple, endings_of_texts))


def evaluate_finetuned(folder: PathLike, data: Optional[PathLike] = None,
                       devices: Any = 'auto', part: str = 'dev',
                       precision: Optional[str] = None) -> Any:
    """Evaluate a run on the development part of its task, or another `part`.

    data: a folder or a file that replaces the data of the run. precision: as
    for `load_pretrained`. Returns a named tuple: the mean loss and the task's
    metrics.
    """
    _, figures = next(evaluations(folder, data, devices, part, precision))
    return figures


def evaluations(folder, data=None, devices='auto', part='dev',
                precision=None):
    """Yield (name, figures) of a run's task, then of each of its extra tests.

    Arguments are as for `evaluate_finetuned`. Raises `RunError` if the run's
    own development part is to be evaluated and has changed since training.

    Only MNLI has extra tests. An extra test without a file is left out. All
    are left out if `data` is a file, or if the run read a table with
    `columns`.
    """
    device_list = parse_devices(devices)
    net, tokenizer = load_finetuned(folder, device_list, trainable=False,
                                    precision=precision)
    config = read_config(Path(folder))
    try:
        settings, fingerprint = dict(config['training']), config['fingerprint']
        run_data, columns = settings['data'], settings['columns']
        dev_digest = fingerprint.split('-')[1]  # see `FineTuning.fingerprint`
    except (KeyError, TypeError, ValueError, AttributeError,
            IndexError) as error:
        raise RunError(f'{Path(folder) / "config.json"} does not describe a '
                       f'run: {error!r}') from None
    data_path = (data_folder_of(net.about.task, moved_data(run_data, folder))
                 if data is None else data)
    examples = read_part(net.about.task, data_path, part, columns, tokenizer,
                         net.about.labels)
    codec = CODECS[net.about.kind](net.about, tokenizer)
    inputs = codec.inputs(examples)
    if inputs.labels is None:
        raise ValueError(f'{examples.path} has no labels: name a folder or '
                         'file that has them (--data)')
    if data is None and part == 'dev' and digest(inputs) != dev_digest:
        raise RunError(f'{examples.path} has changed since {folder} was '
                       'trained: name a folder or file with --data')
    yield net.about.task, evaluate(net, codec, inputs, examples, device_list,
                                   'evaluating')
    # The files of extra tests have GLUE's layout, not `columns`
    if columns is not None or Path(data_path).is_file():
        return
    _, *extra_tests = with_extra_tests(net.about.task)
    for test in extra_tests:
        path = find_file_nearby(test, data_path, part)
        if path is None:
            continue
        examples = read_task(test, path, part, labels=net.about.labels)
        codec = CODECS[test.kind](net.about._replace(
            task=test.name, metrics=test.metrics), tokenizer)
        yield test.name, evaluate(net, codec, codec.inputs(examples), examples,
                                  device_list, f'evaluating {test.name}')


# For the command `d2lbert predict`

#: {kind of task without `Prediction.shares`: its predictions, for a message}
_WITHOUT_TOP = {'regress': 'a number', 'tag': 'a tag for each word',
                'span': 'an answer'}


def write_predictions(folder, text=None, pair=None, file=None, out=None,
                      devices='auto', force=False, skip_empty=False,
                      text_field=None, top=None, precision=None,
                      print_row=None):
    """Print or write predictions of the model in `folder`.

    Arguments are as for `d2lbert predict`. print_row: a function that prints
    a dictionary, called for each of the `_rows`; None: print lines of text.
    With `out`, nothing is printed.
    """
    check_text_or_file(text, file, text_field, skip_empty)
    if file is None and out is not None:
        raise UsageError('--out goes with --file: the prediction of one '
                         'text is printed')
    if file is not None and pair is not None:
        raise UsageError('--pair goes with one text; in --file a tab '
                         'separates the two texts')
    extension = '' if out is None else Path(out).suffix.lower()
    if out is not None:
        check_out(out, force, example='labels.txt', reads=[folder, file])
        check_predictions_out(out)
        if top is not None and extension in TABLE_EXTENSIONS:
            raise UsageError(f'--top {top}: a row of {out} has only one '
                             'label: print the labels with --json, or name '
                             'a .tsv or .txt file')
    net, tokenizer = load_finetuned(folder, parse_devices(devices),
                                    trainable=False, precision=precision)
    about = net.about
    if top is not None and about.kind in _WITHOUT_TOP:
        raise UsageError('--top is for the probabilities of labels, and this '
                         f'model predicts {_WITHOUT_TOP[about.kind]}: leave '
                         'it out')
    if file is None:
        if about.kind == 'choice':
            raise UsageError('this model chooses among several endings: give '
                             '--file FILE with a text and its possible '
                             'endings on each line, and a tab before each '
                             'ending')
        prediction, = predict(net, tokenizer, [text],
                              None if pair is None else [pair])
        _print_prediction(about, text, prediction, top, print_row)
        return
    texts, pairs = _read_file(file, folder, about, skip_empty, text_field)
    predictions = predict(net, tokenizer, texts, pairs, show_progress=True)
    if extension in TABLE_EXTENSIONS:
        with writing(out, force) as partial_path:
            write_rows(partial_path, extension,
                       _rows(about, texts, predictions))
        return
    if out is None and print_row is not None:
        for row in _rows(about, texts, predictions,
                         with_shares=top is not None, top=top):
            print_row(row)
        return
    content = '\n'.join(_lines_of_all(about, texts, predictions, top))
    if out is None:
        print(content)
        return
    with writing(out, force) as partial_path:
        Path(partial_path).write_text(content + '\n', encoding='utf-8')


def _print_prediction(about, text, prediction, top, print_row):
    """Print one prediction; print_row: as for `write_predictions`."""
    if print_row is not None:
        for row in _rows(about, [text], [prediction], with_shares=True,
                         top=top):
            print_row(row)
        return
    lines = (_labels_and_probs(prediction, top) if prediction.shares
             else _lines(about, text, prediction))
    print('\n'.join(lines))


def _rows(about, texts, predictions, with_shares=False, top=None):
    """Yield a dictionary for each prediction, or for 'tag' for each word.

    with_shares: if the task has classes or endings, add the probabilities of
    the `top` likeliest (None: of all).
    """
    for text_number, (text, prediction) in enumerate(
            zip(texts, predictions), 1):
        label = prediction.label
        if about.kind == 'tag':
            for word, tag in zip(text.split(), label):
                yield dict(text=text_number, word=word, tag=tag)
        elif about.kind == 'regress':
            yield dict(text=text, value=float(label))
        elif about.kind == 'span':
            yield dict(text=text, answer=label)
        else:
            row = dict(text=text, label=label, score=float(prediction.score))
            if with_shares and prediction.shares:
                row['shares'] = {name: float(prob) for name, prob
                                 in _likeliest(prediction, top)}
            yield row


def _likeliest(prediction, top):
    """[(label, probability)] of the `top` likeliest labels; None: of all."""
    return sorted(prediction.shares.items(), key=lambda item: -item[1])[:top]


def _labels_and_probs(prediction, top):
    """`_likeliest` as strings 'LABEL<tab>PROBABILITY'."""
    return [f'{name}\t{prob:.4f}' for name, prob in _likeliest(prediction,
                                                               top)]


def _lines_of_all(about, texts, predictions, top):
    # As in CoNLL files, an empty line ends each sentence
    sentence_end = [''] if about.kind == 'tag' else []
    lines = []
    for text, prediction in zip(texts, predictions):
        lines += _lines(about, text, prediction, top) + sentence_end
    return lines


def _lines(about, text, prediction, top=None):
    """The lines that show a text's `Prediction`.

    top: if the task has classes or endings, the number of labels to show, on
    one line; None: only the predicted label.
    """
    label = prediction.label
    if about.kind == 'tag':
        return [f'{word}\t{tag}' for word, tag in zip(text.split(), label)]
    if about.kind == 'regress':
        return [f'{label:.4f}']
    if about.kind == 'span':
        return [' '.join(label.split())]    # an answer may have line breaks
    if top is not None and prediction.shares:
        return ['\t'.join(_labels_and_probs(prediction, top))]
    return [f'{label}\t{prediction.score:.4f}']


def _read_file(file, folder, about, skip_empty, text_field):
    """Read the texts to predict: return them, and second texts or None."""
    if not is_csv(file) or about.kind not in ('classify', 'regress'):
        return _read_text_lines(file, about, skip_empty, text_field)
    if skip_empty or text_field is not None:
        raise UsageError('--skip-empty and --text-field are for texts on '
                         f'lines, and {file} is a table: leave them out')
    return _read_csv(file, Path(folder))


def _read_csv(file, folder):
    """`_read_file` for a table with the columns of the training data.

    Labels are not read, and may be missing.
    """
    # A released model has no columns
    columns = (dict(read_config(folder)['training']).get('columns')
               if is_run(folder) else None)
    if columns is None:
        raise ValueError(f'{file} is a table, and {folder} was not trained '
                         'on a table with --columns: give a file with a text '
                         'on each line')
    columns = Columns.parse(columns)._replace(label=None)
    with reading_failures('--file', file):
        examples = examples_of(file, indices_of_columns(
            file, first_rows(file), columns))
    return examples.texts_a, examples.texts_b


def _read_text_lines(file, about, skip_empty, text_field):
    """`_read_file` for a text, a pair, or a text and its endings on each line.

    Tabs separate the texts of a line. If the model takes both pairs and
    single texts, all lines are pairs if any line has a tab.
    """
    has_pairs = about.pair
    if has_pairs and text_field is not None:
        raise UsageError('--text-field is for one text, and this model takes '
                         'pairs: give lines with a tab between two texts')
    source = Lines(file, text_field, skip_empty)
    lines = list(source)
    if source.skipped:
        note(source.skipped_note())
    expected = 'two texts with one tab between them'
    if has_pairs is None:
        has_pairs = any('\t' in line.text for line in lines)
        expected += ' in each line, or no tab in any line'
    if not has_pairs:
        return [line.text for line in lines], None
    has_endings = about.kind == 'choice'
    for name, text in lines:
        num_tabs = text.count('\t')
        if has_endings and num_tabs < 2:
            raise ValueError(f'{name} has {num_tabs} tabs: expected a text '
                             'and two or more endings, with a tab before each '
                             'ending')
        if not has_endings and num_tabs != 1:
            raise ValueError(f'{name} has {num_tabs} tabs: expected '
                             f'{expected}')
    cells = [line.text.split('\t') for line in lines]
    if has_endings:
        return [a for a, *_ in cells], [endings for _, *endings in cells]
    return [a for a, _ in cells], [b for _, b in cells]


# Submissions for GLUE's leaderboard

def write_submission(folder, data, out, devices='auto', force=False,
                     precision=None):
    """Predict the test part of a run's task, and write a file for GLUE.

    If `data` is a folder, predict the extra tests of the task, too, if their
    files exist. Each submission file is a table with the columns `index` and
    `prediction`.

    folder: a run of a task of GLUE. data: the folder with the test files, or
    the file of the task's test part. out: a folder for the submission files,
    created if it is missing. Returns the paths of the files that were written.
    Raises ValueError for a run of another task, for a missing test part of the
    task, and for lines that are no examples. Raises FileExistsError for an
    existing file, unless `force`.
    """
    net, tokenizer = load_finetuned(folder, parse_devices(devices),
                                    trainable=False, precision=precision)
    main_task = TASKS.get(net.about.task)
    if main_task is None or not main_task.submission:
        names = ', '.join(name for name, glue_task in TASKS.items()
                          if glue_task.submission)
        raise UsageError(f'{folder} was not trained on a task of GLUE: --data '
                         f'is for test files of {names}; predict other texts '
                         'by --file')
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f'--out {out} is a file: with --data name a folder, '
                         'where the files of the submission go')
    tasks = ([main_task] if Path(data).is_file()
             else with_extra_tests(main_task))
    tasks_and_examples = []
    for task in tasks:
        path = (find_file(task, data, 'test') if task is main_task
                else find_file_nearby(task, data, 'test'))
        if path is None:
            note(f'{data} has no test part of {task.name}: '
                 f'{task.submission} is not written')
            continue
        if out.is_dir():
            check_out(out / task.submission, force, task.submission, [path])
        examples = read_task(task, path, 'test', labels=net.about.labels)
        if examples.skipped:
            raise ValueError(
                f'{path} has {examples.skipped:,} lines that are no examples, '
                'and a submission needs a prediction for each line: take the '
                'file as it is published')
        tasks_and_examples.append((task, examples))
    codec = CODECS[net.about.kind](net.about, tokenizer)
    # Predict all files first, so that an error leaves no part of a submission
    submissions = [(task, _submission_lines(net, codec, task, examples))
                   for task, examples in tasks_and_examples]
    with failures_of('--out', out, 'written'):
        out.mkdir(parents=True, exist_ok=True)
    for task, lines in submissions:
        with writing(out / task.submission, force) as partial_path:
            Path(partial_path).write_text('\n'.join(lines) + '\n',
                                          encoding='utf-8')
    return [out / task.submission for task, _ in submissions]


def _submission_lines(net, codec, task, examples):
    # Some test files have labels, which are not needed here
    inputs = codec.inputs(examples._replace(labels=None))
    with bar(len(inputs.tokens), f'predicting {task.name}', 'examples'
             ) as progress:
        outputs = outputs_of(net, inputs, net.output.weight.list_ctx(),
                             progress.update)
    labels = [_submitted_label(task, prediction.label)
              for prediction in codec.predictions(outputs, inputs, examples)]
    return ['index\tprediction',
            *(f'{k}\t{label}' for k, label in enumerate(labels))]


def _submitted_label(task, label):
    """A label as GLUE's training files write it (Wang et al. 2018)."""
    if task.kind == 'regress':      # STS-B's similarities are from 0 to 5
        return f'{min(max(label, 0.0), 5.0):.3f}'
    if task.file_labels is not None:
        return task.file_labels[task.labels.index(label)]
    return label
