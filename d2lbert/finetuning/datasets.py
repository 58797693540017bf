"""Load the pretrained model and the data of a fine-tuning run."""
from pathlib import Path

from d2lbert import hub
from d2lbert.finetuning.tasks.catalog import named, read_task
from d2lbert.natural_language_inference import (
    SIZES,
    load_pretrained_model,
)
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords
from d2lbert.text import RESERVED, UNK
from d2lbert.texts.numbered_text import tree_words
from d2lbert.training.load import load

#: Columns of SNLI with tokenized sentences.
SNLI_TREES = dict(text='sentence1_binary_parse', pair='sentence2_binary_parse',
                  label='gold_label')


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
