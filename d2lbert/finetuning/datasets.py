"""Load the pretrained model and the labelled data of a fine-tuning run.

The model, the data or both may be in memory instead. Examples in memory are
written to the run folder, in formats that `read_task` (tasks/catalog.py)
reads, so that the run can be resumed and evaluated.
"""
import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as onp

from d2lbert import hub
from d2lbert.finetuning.tasks.catalog import TASKS, read_task, task_of
from d2lbert.finetuning.tasks.formats import DOCUMENT
from d2lbert.finetuning.tasks.tables import ROLES
from d2lbert.machine.arguments import check_model, items_of, short_repr
from d2lbert.machine.backend import mx
from d2lbert.machine.files import line_feeds, write_text
from d2lbert.natural_language_inference import (
    SIZES,
    load_pretrained_model,
)
from d2lbert.pretrained.families.nets import net_of
from d2lbert.pretrained.tokenizers.encoded import check_text
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords, as_tokenizer
from d2lbert.text import RESERVED, UNK
from d2lbert.texts.numbered_text import tree_words
from d2lbert.training.load import load
from d2lbert.training.run_folder import DATA

#: In SNLI's parse trees, spaces separate words from punctuation marks
SNLI_TREES = dict(text='sentence1_binary_parse', pair='sentence2_binary_parse',
                  label='gold_label')

TASKS_IN_MEMORY = 'classify', 'regress', 'tag'


def load_named_model(model, heads):
    """Load the net and the tokenizer that the setting `model` names.

    model: a folder as for `load_model`, but not a run of `finetune`; or the
    book's bert.small or bert.base, which is downloaded unless a file or folder
    has that name. heads: as for `load_pretrained`.
    """
    if model not in SIZES or Path(model).exists():
        loaded = load(model, heads=heads, precision='fp32', task_head=False)
        return loaded.net, loaded.tokenizer
    bert, vocab = load_pretrained_model(model)
    first_tokens = [UNK, *RESERVED]
    if vocab.idx_to_token[:len(first_tokens)] != first_tokens:
        raise ValueError(f'the vocabulary of {model} does not begin with '
                         f'{", ".join(first_tokens)}, so that a run folder '
                         "cannot keep it: fine-tune it as the book's page "
                         'does')
    return bert, WholeWords(vocab)


def data_folder_of(task, data):
    """Return the folder of a task's files: `data`, or the downloaded SNLI.

    Raises ValueError if `data` is a file, or is None and the task is not SNLI.
    """
    if data is None and task_of(task).name == 'snli':
        return hub.download_extract('SNLI')
    if data is None:
        raise ValueError('fine-tuning needs the folder with the files of the '
                         'task (--data DIR)')
    if Path(data).is_file():
        raise ValueError(f'{data} is a file, but training and evaluation need '
                         'two files: name the folder that holds both (--data)')
    return data


def moved_data(data, run_folder):
    """Return `data`, or where it is now if its run has been moved.

    data: the setting of a run. Examples in memory are in the run folder, or
    beside it if several seeds share them (`DataInMemory.write`).
    """
    if data is None or Path(data).name != DATA or Path(data).exists():
        return data
    run_folder = Path(run_folder).absolute()
    return next((str(folder / DATA)
                 for folder in (run_folder, run_folder.parent)
                 if (folder / DATA).is_dir()), data)


def read_part(task, data, part, columns, tokenizer, labels=None):
    """Read a part of a task's data; arguments and result as for `read_task`.

    data: the argument `folder` of `read_task`. For a whole-word tokenizer and
    without `columns`, SNLI is read from its trees, as on the book's page.
    """
    uses_trees = (task_of(task).name == 'snli' and columns is None
                  and isinstance(tokenizer, WholeWords))
    examples = read_task(task, data, part,
                         SNLI_TREES if uses_trees else columns, labels)
    if uses_trees:
        examples = examples._replace(
            texts_a=list(map(tree_words, examples.texts_a)),
            texts_b=list(map(tree_words, examples.texts_b)))
    return examples


class ModelInMemory(NamedTuple):
    """A pretrained net in memory, with its tokenizer, to fine-tune."""

    net: Any
    tokenizer: Any
    name: str       # for the setting `model` in config.json

    @classmethod
    def of(cls, model):
        """Check and wrap a model; raises TypeError or ValueError.

        model: a pair (net, tokenizer), such as a `TextModel`, or a net that
        has a `vocab`.
        """
        is_pair = isinstance(model, (tuple, list)) and len(model) == 2
        net, tokenizer = (model if is_pair
                          else (model, getattr(model, 'vocab', None)))
        if tokenizer is None:
            raise TypeError('model must be a folder, a model of load_model '
                            'or a pair (net, tokenizer), not '
                            f'{short_repr(model)}')
        tokenizer = as_tokenizer(tokenizer)
        check_model(net, tokenizer)
        if net.kind is not None:
            raise ValueError('this model is fine-tuned already: give the '
                             'pretrained model that it was made from')
        if net.encoder.quantized is not None:
            raise ValueError('a model of eight bits cannot be trained: load '
                             "it with precision='fp32'")
        loaded_folder = net.pretrained
        return cls(net, tokenizer, 'a net in memory' if loaded_folder is None
                   else str(loaded_folder.folder))

    def copy_to_train(self):
        """Return a float32 copy of the net, and the tokenizer."""
        copy = net_of({**self.net.config, 'precision': 'fp32'})
        params = copy._collect_params_with_prefix()
        for name, param in self.net._collect_params_with_prefix().items():
            values = param.data(param.list_ctx()[0]).as_in_ctx(mx.cpu())
            params[name]._load_init(values, mx.cpu())
        copy.pretrained = self.net.pretrained
        copy.random_heads = self.net.random_heads
        return copy, self.tokenizer


#: {argument of `finetune`: name of its file, without the suffix}
FILE_STEMS = {'train': 'train', 'valid': 'dev'}


class DataInMemory(NamedTuple):
    """Training and development examples in memory, as contents of files."""

    task: str           # one of TASKS_IN_MEMORY
    columns: Any        # the setting `columns`; None for tags
    files: dict         # {file name: its text}

    @classmethod
    def of(cls, train, valid, task=None):
        """Check and convert the arguments `train` and `valid` of `finetune`.

        Each is (texts, labels), or (texts, second texts, labels). task: one
        of `TASKS_IN_MEMORY`; None: it depends on the type of the first label
        of `train`. Raises TypeError or ValueError.
        """
        if valid is None:
            raise ValueError('train needs valid=(texts, labels), too, to '
                             'choose the best epoch')
        parts = {'train': _checked_lists('train', train),
                 'valid': _checked_lists('valid', valid)}
        has_pairs = len(parts['train']) == 3
        if (len(parts['valid']) == 3) != has_pairs:
            raise ValueError('train and valid must both have second texts, '
                             'or none')
        if task is None:
            first_label = parts['train'][-1][0]
            task = ('tag' if isinstance(first_label, (list, tuple,
                                                      onp.ndarray)) else
                    'regress' if isinstance(first_label, (float, onp.floating))
                    else 'classify')
        if task not in TASKS_IN_MEMORY:
            raise ValueError(
                f'task {task!r} takes its examples from files: for train and '
                f'valid in memory choose {", ".join(TASKS_IN_MEMORY)}')
        if task == 'tag':
            return cls(task, None, {
                f'{FILE_STEMS[argument]}.txt': _conll_text(argument, lists)
                for argument, lists in parts.items()})
        # The columns of the CSV file are named by their roles
        header = [role for role in ROLES if role != 'pair' or has_pairs]
        return cls(task, ','.join(header), {
            f'{FILE_STEMS[argument]}.csv': _csv_text(argument, lists, header,
                                                     task)
            for argument, lists in parts.items()})

    def write(self, folder):
        """Write the files to `folder`/data; return this path as a str."""
        data_folder = Path(folder, DATA)
        data_folder.mkdir(exist_ok=True)
        for name, text in self.files.items():
            write_text(data_folder / name, text)
        return str(data_folder)


def is_task(name):
    """True if `name` is the name of a task, not a model or a folder."""
    return isinstance(name, str) and name in TASKS


def _checked_lists(argument, value):
    """Texts, any second texts, and labels: lists of equal length > 0.

    argument: 'train' or 'valid', also in the functions below. Raises TypeError
    or ValueError.
    """
    if not isinstance(value, (tuple, list)) or len(value) not in (2, 3):
        raise TypeError(f'{argument} must be a pair (texts, labels), or '
                        '(texts, second texts, labels), not '
                        f'{short_repr(value)}')
    titles = (['texts', 'labels'] if len(value) == 2
              else ['texts', 'second texts', 'labels'])
    lists = [items_of(items, f'the {title} of {argument}', title)
             for items, title in zip(value, titles)]
    lens = list(map(len, lists))
    if len(set(lens)) > 1 or not lens[0]:
        found = ' and '.join(f'{length} {title}' for length, title
                             in zip(lens, titles))
        raise ValueError(f'{argument} has {found}: give equally many of each, '
                         'and at least one')
    return lists


def _csv_text(argument, lists, header, task):
    """Check and format texts and labels; raises TypeError or ValueError."""
    file = io.StringIO()
    writer = csv.writer(line_feeds(file))
    writer.writerow(header)
    for k, (*texts, label) in enumerate(zip(*lists)):
        for text in texts:
            if (not isinstance(text, str) or not text.strip()
                    or '\0' in text):
                raise TypeError(f'text {k} of {argument} is '
                                f'{short_repr(text)}: expected a string that '
                                'is not blank and has no zero character')
            check_text(text)
        is_number = (hasattr(label, '__float__')
                     and not isinstance(label, (str, bool, onp.bool_)))
        if task == 'regress' and not is_number:
            raise TypeError(f'label {k} of {argument} is {short_repr(label)}: '
                            'expected a number')
        if _is_missing(label):
            raise ValueError(f'label {k} of {argument} is missing '
                             f'({label!r}): leave this example out')
        writer.writerow([*texts, repr(float(label)) if task == 'regress'
                         else check_text(f'{label}').strip()])
    return file.getvalue()


def _is_missing(label):
    """True for None, NaN, NaT, pandas.NA and white space."""
    try:
        # NaN and NaT are not equal to themselves
        return label is None or bool(label != label) or not f'{label}'.strip()
    except TypeError:   # bool(pandas.NA) raises it
        return True


def _conll_text(argument, lists):
    """Check words and tags, and format a word and its tag on each line.

    A text and its tags are each a list, or a str to split at white space.
    Raises TypeError or ValueError.
    """
    if len(lists) == 3:
        raise ValueError("task 'tag' takes no second texts")
    lines = []
    for k, (words, tags) in enumerate(zip(*lists)):
        words = words.split() if isinstance(words, str) else items_of(
            words, f'text {k} of {argument}', 'words')
        tags = tags.split() if isinstance(tags, str) else items_of(
            tags, f'labels {k} of {argument}', 'tags')
        if len(words) != len(tags) or not words:
            raise ValueError(f'text {k} of {argument} has {len(words)} words '
                             f'and {len(tags)} tags: give a tag for each word')
        for entry in (*words, *tags):
            if not isinstance(entry, str) or not entry or any(
                    space in entry for space in ' \t\r\n\0'):
                raise TypeError(f'text {k} of {argument} has {entry!r}: '
                                'expected words and tags without blanks and '
                                'zero characters')
            check_text(entry)
        if DOCUMENT in words:
            raise ValueError(f'text {k} of {argument} has the word {DOCUMENT},'
                             ' which marks documents in files of tags: leave '
                             'it out')
        lines += [f'{word}\t{tag}\n' for word, tag in zip(words, tags)]
        lines.append('\n')
    return ''.join(lines)
