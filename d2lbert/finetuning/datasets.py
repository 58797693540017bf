"""The pretrained model and the data of a fine-tuning run.

They come from folders and files, or a program has them in memory. Examples
in memory are written to the run folder, in the formats of `tasks`, so that the
run can be resumed and evaluated as any other.
"""
import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

from d2lbert import hub
from d2lbert.finetuning.tasks.catalog import TASKS, named, read_task
from d2lbert.finetuning.tasks.tables import ROLES
from d2lbert.machine.arguments import check_model, items_of, short
from d2lbert.machine.backend import mx
from d2lbert.machine.files import write_text
from d2lbert.natural_language_inference import (
    SIZES,
    load_pretrained_model,
)
from d2lbert.pretrained.families.nets import net_of
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords, as_tokenizer
from d2lbert.text import RESERVED, UNK
from d2lbert.texts.numbered_text import tree_words
from d2lbert.training.load import load
from d2lbert.training.run_folder import DATA

#: Columns of SNLI with tokenized sentences.
SNLI_TREES = dict(text='sentence1_binary_parse', pair='sentence2_binary_parse',
                  label='gold_label')

#: Tasks whose examples can be given in memory.
TASKS_IN_MEMORY = 'classify', 'regress', 'tag'

#: The setting `model` of a net in memory.
IN_MEMORY = 'a net in memory'


def pretrained_model(model, heads):
    """The net and tokenizer of the setting `model`.

    It is a folder or run, as for `load_model`, with `heads`; or the book's
    bert.small or bert.base, downloaded unless a folder has that name.
    """
    if model not in SIZES or Path(model).exists():
        found = load(model, heads=heads, precision='fp32', task_head=False)
        return found.net, found.tokenizer
    bert, vocab = load_pretrained_model(model)
    first = [UNK, *RESERVED]
    if vocab.idx_to_token[:len(first)] != first:
        raise ValueError(f'the vocabulary of {model} does not begin with '
                         f'{", ".join(first)}, so that a run folder cannot '
                         'keep it: fine-tune it as the page does')
    return bert, WholeWords(vocab)


def folder_of(task, data):
    """The folder of a task's data; without data=, SNLI is downloaded."""
    if data is None and named(task).name == 'snli':
        return hub.download_extract('SNLI')
    if data is None:
        raise ValueError('fine-tuning needs the folder with the files of the '
                         'task (--data DIR)')
    if Path(data).is_file():
        raise ValueError(f'{data} is a file, and what is learnt from and what '
                         'is compared with are two: name the folder that '
                         'holds both (--data)')
    return data


def read_part(task, data, part, columns, tokenizer, labels=None):
    """A part of a task's data, as `read_task` returns it.

    For a whole-word tokenizer, SNLI is read from its tokenized columns, as
    on the book's page.
    """
    trees = (named(task).name == 'snli' and columns is None
             and isinstance(tokenizer, WholeWords))
    found = read_task(task, data, part, SNLI_TREES if trees else columns,
                      labels)
    if trees:
        found = found._replace(texts_a=list(map(tree_words, found.texts_a)),
                               texts_b=list(map(tree_words, found.texts_b)))
    return found


class GivenModel(NamedTuple):
    """A pretrained net in memory and its tokenizer, to begin a run with."""

    net: Any
    tokenizer: Any
    name: str       # for config.json

    @classmethod
    def of(cls, model):
        """Take a net with a vocabulary, or a pair (net, tokenizer)."""
        net, tokenizer = model if isinstance(model, (tuple, list)) and (
            len(model) == 2) else (model, getattr(model, 'vocab', None))
        if tokenizer is None:
            raise TypeError('model must be a folder, a model of load_model '
                            'or a pair (net, tokenizer), not '
                            f'{short(model)}')
        tokenizer = as_tokenizer(tokenizer)
        check_model(net, tokenizer)
        if net.kind is not None:
            raise ValueError('this model is fine-tuned already: give the '
                             'pretrained model that it was made of')
        if net.encoder.quantized is not None:
            raise ValueError('a model of eight bits cannot be trained: load '
                             "it with precision='fp32'")
        return cls(net, tokenizer, IN_MEMORY if net.pretrained is None
                   else str(net.pretrained.folder))

    def copied(self):
        """A copy of the net, for a run to change, and the tokenizer."""
        copy = net_of({**self.net.config, 'precision': 'fp32'})
        params = copy._collect_params_with_prefix()
        for name, param in self.net._collect_params_with_prefix().items():
            values = param.data(param.list_ctx()[0]).as_in_ctx(mx.cpu())
            params[name]._load_init(values, mx.cpu())
        copy.pretrained = self.net.pretrained
        copy.random_heads = self.net.random_heads
        return copy, self.tokenizer


class GivenData(NamedTuple):
    """Examples of both parts, ready to be written."""

    task: str
    columns: Any        # the setting `columns`; None for tags
    parts: dict         # {file name: its text}

    @classmethod
    def of(cls, train, valid, task=None):
        """Check the parts of `finetune`; raises TypeError or ValueError.

        train, valid: (texts, labels), or (texts, second texts, labels).
        task: one of `TASKS_IN_MEMORY`; None: the type of the first label
        decides.
        """
        if valid is None:
            raise ValueError('train needs valid=(texts, labels), too, to '
                             'choose the best epoch')
        parts = {'train': _columns('train', train),
                 'dev': _columns('valid', valid)}
        widths = {len(columns) for columns in parts.values()}
        if len(widths) > 1:
            raise ValueError('train and valid must both have second texts, '
                             'or none')
        label = parts['train'][-1][0]
        if task is None:
            task = ('tag' if isinstance(label, (list, tuple)) else
                    'regress' if isinstance(label, float) else 'classify')
        if task not in TASKS_IN_MEMORY:
            raise ValueError(
                f'task {task!r} takes its examples from files: for train and '
                f'valid in memory choose {", ".join(TASKS_IN_MEMORY)}')
        if task == 'tag':
            return cls(task, None, {f'{part}.txt': _conll(
                part, *columns) for part, columns in parts.items()})
        names = [role for role in ROLES
                 if role != 'pair' or widths == {3}]
        return cls(task, ','.join(names), {f'{part}.csv': _csv(
            task, names, columns) for part, columns in parts.items()})

    def write(self, folder):
        """Write the files into a folder; returns the setting `data`."""
        folder = Path(folder, DATA)
        folder.mkdir(exist_ok=True)
        for name, text in self.parts.items():
            write_text(folder / name, text)
        return str(folder)


def is_task(name):
    """True if a string is a task's name, and not the folder of a model."""
    return isinstance(name, str) and name in TASKS


def _columns(name, part):
    """The columns of a part as lists, all of equal length."""
    if not isinstance(part, (tuple, list)) or len(part) not in (2, 3):
        raise TypeError(f'{name} must be a pair (texts, labels), or (texts, '
                        f'second texts, labels), not {short(part)}')
    names = [name for name in ('texts', 'second texts', 'labels')
             if name != 'second texts' or len(part) == 3]
    columns = [items_of(column, f'the {what} of {name}', what)
               for column, what in zip(part, names)]
    counts = list(map(len, columns))
    if len(set(counts)) > 1 or not counts[0]:
        found = ' and '.join(f'{count} {what}' for count, what
                             in zip(counts, names))
        raise ValueError(f'{name} has {found}: give as many of each, and at '
                         'least one')
    return columns


def _csv(task, names, columns):
    """The text of a table with a header."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(names)
    for k, row in enumerate(zip(*columns)):
        *texts, label = row
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise TypeError(f'text {k} is {short(text)}: expected a '
                                'string with at least a word')
        if task == 'regress' and (isinstance(label, (str, bool))
                                  or not hasattr(label, '__float__')):
            raise TypeError(f'label {k} is {short(label)}: expected a number')
        if label is None or label != label or not f'{label}'.strip():
            raise ValueError(f'label {k} is missing ({label!r}): leave this '
                             'example out')
        writer.writerow([*texts, repr(float(label)) if task == 'regress'
                         else f'{label}'.strip()])
    return file.getvalue()


def _conll(part, *columns):
    """The text of a file with a word and its tag on each line."""
    if len(columns) == 3:
        raise ValueError('task tag has one text each: give no second texts')
    lines = []
    for k, (words, tags) in enumerate(zip(*columns)):
        words = words.split() if isinstance(words, str) else items_of(
            words, f'text {k} of {part}', 'words')
        tags = tags.split() if isinstance(tags, str) else items_of(
            tags, f'labels {k} of {part}', 'tags')
        if len(words) != len(tags) or not words:
            raise ValueError(f'text {k} of {part} has {len(words)} words and '
                             f'{len(tags)} tags: give a tag for each word')
        for one in (*words, *tags):
            if not isinstance(one, str) or not one or any(
                    space in one for space in ' \t\r\n'):
                raise TypeError(f'text {k} of {part} has {one!r}: expected '
                                'words and tags without blanks')
        lines += [f'{word}\t{tag}\n' for word, tag in zip(words, tags)]
        lines.append('\n')
    return ''.join(lines)
