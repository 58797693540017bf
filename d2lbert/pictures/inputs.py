"""What a picture is asked for: of which model, what it says, which file."""
from pathlib import Path

from d2lbert.finetuning.saved_runs import load_finetuned
from d2lbert.machine.arguments import UsageError, check_out, writing
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import Vocab
from d2lbert.training.load import load_model
from d2lbert.training.saved_runs import is_finetuned


def loaded(model, precision='fp32'):
    """(net, tokenizer, folder or None) of a folder, or of the first two.

    precision: that of a net from a folder.
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
    """The tokenizer that was given, else that of a net's vocabulary."""
    return _as_tokenizer(vocab_of(net, vocab) if tokenizer is None
                         else tokenizer)


def vocab_of(net, vocab=None):
    """The vocabulary that was given, else the net's own."""
    vocab = getattr(net, 'vocab', None) if vocab is None else vocab
    if vocab is None:
        raise ValueError('this net has no vocabulary: load it with load_run, '
                         'or give tokenizer= or vocab=')
    return vocab


def _as_tokenizer(given):
    """What encodes texts; `load_run` gives vocabularies for it."""
    if isinstance(given, PieceVocab):
        return given.tokenizer
    return WholeWords(given) if isinstance(given, Vocab) else given


def short(name, letters=14):
    """A name as matplotlib writes it, cut where it is longer than that."""
    name = name if len(name) <= letters else name[:letters - 1] + '\u2026'
    # A dollar sign would begin a formula
    return name.replace('$', r'\$')


def check_figure(out, force, reads=()):
    """As `check_out`, of a file that matplotlib is to write."""
    from matplotlib.backend_bases import FigureCanvasBase
    check_out(out, force, 'figure.png', reads)
    if _kind(out) not in FigureCanvasBase.get_supported_filetypes():
        raise UsageError(f'--out {out} does not say what picture it is: let '
                         'it end in .png, .svg or .pdf')


def save_figure(fig, out, force):
    """Write a matplotlib figure, whole or not at all."""
    with writing(out, force) as part:
        fig.savefig(part, format=_kind(out), dpi=150)


def _kind(out):
    return Path(out).suffix[1:].lower()
