"""Compute the held-out figures of a run of `pretrain`: `d2lbert evaluate`."""
from pathlib import Path

from d2lbert.corpus.corpus import check_known
from d2lbert.devices import parse_devices
from d2lbert.machine.terminal import is_quiet, warn
from d2lbert.nn.precision import check_precision, set_precision
from d2lbert.objectives.text_objective import read_corpus
from d2lbert.pretrained.families.tensor_names import PARTS
from d2lbert.progress import with_progress
from d2lbert.training.load import load_pretraining_run
from d2lbert.training.pretraining import OBJECTIVES
from d2lbert.training.run_folder import with_own_texts
from d2lbert.training.saved_runs import (
    RunError,
    complete_saved,
    load_parts,
    read_config,
)
from d2lbert.training.settings import BOOK, complete


def evaluate_run(folder, corpus=None, devices='auto', text_field=None,
                 precision=None):
    """The figures of a run's objective on a held-out text, a named tuple.

    folder: a finished run of `pretrain`. corpus, text_field: as for
    `pretrain`, but of 'wikitext-2' only the held-out file is used, if there
    is one. corpus=None: the held-out text of the run. devices: as for
    `parse_devices`. precision: as for `load_pretrained`.
    """
    check_precision(precision)
    contexts = parse_devices(devices)
    net, vocab = load_pretraining_run(folder, contexts, trainable=False)
    if net.random_heads:    # of an imported run
        heads = ' and no '.join(PARTS[head] for head in net.random_heads)
        warn(f'{folder}: the folder that was imported had no {heads}, so '
             'these weights are random and their figures mean nothing')
    settings, fingerprint = _settings_of(Path(folder))
    if corpus is None:
        text = _held_out_text(folder, settings, fingerprint, vocab)
    else:
        text = _other_text(corpus, text_field, settings, vocab)
    # Use the class: an object would need a text to train on
    objective_class = OBJECTIVES[settings['objective']]
    net = objective_class.net_to_train(set_precision(net, precision))
    load_parts(net, folder, contexts)

    def batches():
        return objective_class.held_out_batches(text, settings['batch_size'],
                                                settings['max_len'])
    # For the progress bar; counting takes little time
    total = None if is_quiet() else sum(1 for _ in batches())
    shown_batches = with_progress(batches(), 'evaluating', 'batches', total)
    figures = objective_class.figures(net, shown_batches, contexts)
    if figures.unknown_share == 1:
        raise ValueError(f'all masked words of {text.source} are unknown to '
                         'the vocabulary, so the figures mean nothing: name '
                         'a longer text, or one in the language and spelling '
                         'of the model')
    return figures


def _other_text(corpus, text_field, settings, vocab):
    # 'book' ends sentences only at ' . ', which this text may not have
    split = 'auto' if settings['split'] == 'book' else settings['split']
    other_corpus = read_corpus(dict(
        BOOK, corpus=complete(dict(corpus=corpus))['corpus'],
        vocab='of the run',     # not None: build no vocabulary of this text
        text_field=text_field, split=split, tokenizer=settings['tokenizer']),
        vocab)
    text = other_corpus.valid or other_corpus.train
    check_known(text, 'these are easily guessed, and only known_accuracy '
                'leaves them out')
    return text


def _held_out_text(folder, settings, fingerprint, vocab):
    if fingerprint is None:
        raise RunError(f'{folder} was imported without a text: name files '
                       'with --corpus')
    own_corpus = read_corpus(settings, vocab)
    if own_corpus.fingerprint != fingerprint:
        raise RunError(
            f'the corpus of {folder} has changed since the training '
            '(a file, the fingerprint in config.json, or the version of '
            'Unicode or NLTK is different), so its held-out part is not '
            'known: name files with --corpus')
    if own_corpus.valid is None:
        raise RunError(f'the corpus of {folder} has no held-out text: name '
                       'files with --corpus')
    return own_corpus.valid


def _settings_of(folder):
    """Return (settings, fingerprint); fingerprint is None if imported."""
    config = read_config(folder)
    try:
        settings = dict(config['training'])
        settings.pop('devices', None)   # `config_of` adds them to the settings
        settings = with_own_texts(complete_saved(settings), folder)
        return settings, config['fingerprint']
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f'{folder / "config.json"} does not describe a run: '
                       f'{error}') from None
