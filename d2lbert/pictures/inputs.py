"""Inputs of pictures: models, tokenizers, and labels made of tokens."""
from pathlib import Path

from d2lbert.finetuning.saved_runs import load_finetuned
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import Vocab
from d2lbert.training.load import load_model
from d2lbert.training.saved_runs import is_finetuned


def open_model(model, precision=None):
    """(net, tokenizer, folder) of a folder, or of a pair (net, tokenizer).

    precision: the precision in which the net of a folder computes. The
    folder of a pair is None.
    """
    if isinstance(model, (tuple, list)) and len(model) == 2:
        net, tokenizer = model
        return net, _as_tokenizer(tokenizer), None
    folder = Path(model)
    if is_finetuned(folder):
        return (*load_finetuned(folder, trainable=False,
                                precision=precision), folder)
    return (*load_model(folder, heads=(), trainable=False,
                        precision=precision), folder)


def tokenizer_of(net, tokenizer=None, vocab=None):
    """The given tokenizer, else a tokenizer for the net's vocabulary."""
    return _as_tokenizer(vocab_of(net, vocab) if tokenizer is None
                         else tokenizer)


def vocab_of(net, vocab=None):
    """The given vocabulary, else the vocabulary of a net of `load_run`."""
    vocab = getattr(net, 'vocab', None) if vocab is None else vocab
    if vocab is None:
        raise ValueError('this net has no vocabulary: load it with load_run, '
                         'or give tokenizer= or vocab=')
    return vocab


def _as_tokenizer(tokenizer):
    """A tokenizer; `load_run` returns a vocabulary in its place."""
    if isinstance(tokenizer, PieceVocab):
        return tokenizer.tokenizer
    return (WholeWords(tokenizer) if isinstance(tokenizer, Vocab)
            else tokenizer)


def short(name, letters=14):
    """A label for matplotlib, cut to a number of letters."""
    name = name if len(name) <= letters else name[:letters - 1] + '\u2026'
    # A dollar sign would begin a formula
    return name.replace('$', r'\$')
