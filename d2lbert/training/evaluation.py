"""Held-out figures of a run that was finished."""
from pathlib import Path

from d2lbert.corpus.report import check_known
from d2lbert.devices import parse_devices
from d2lbert.machine.terminal import is_quiet
from d2lbert.objectives.mlm_nsp import read_corpus
from d2lbert.objectives.pretraining import OBJECTIVES
from d2lbert.progress import watched
from d2lbert.training.earlier import complete_saved
from d2lbert.training.saved_runs import (
    RunError,
    load_parts,
    load_run,
    read_config,
)
from d2lbert.training.settings import BOOK, complete


def evaluate_run(folder, corpus=None, devices='auto', text_field=None):
    """The `Figures` of a run on its held-out text, or on another one.

    They are those of the objective that it was trained for.
    corpus, text_field: as for `pretrain`; of one with a held-out part, that
    part.
    """
    contexts = parse_devices(devices)
    net, vocab = load_run(folder, contexts, trainable=False)
    training, fingerprint = _settings_of(Path(folder))
    if corpus is not None:
        corpus = complete(dict(corpus=corpus))['corpus']
        # That a run's text has the book's form says nothing of another
        split = 'auto' if training['split'] == 'book' else training['split']
        text = read_corpus(dict(BOOK, corpus=corpus, vocab='of the run',
                                text_field=text_field, split=split,
                                tokenizer=training['tokenizer']), vocab)
        part = text.valid or text.train
        check_known(part.counts, part.source)
    elif fingerprint is None:
        raise RunError(f'{folder} was imported, so none of its text is here: '
                       'name files with --corpus')
    else:
        text = read_corpus(training, vocab)
        if text.fingerprint != fingerprint:
            raise RunError(
                f'the corpus of {folder} has changed since it was trained on '
                '(a file, what its config.json says of it, or the version of '
                'Unicode or NLTK that cuts it), so what was held out is not '
                'known: name files with --corpus')
        # Without --eval-every all of a text was trained on
        part = text.valid
    if part is None:
        raise RunError(f'the corpus of {folder} has no held-out text: name '
                       'files with --corpus')
    objective = OBJECTIVES[training['objective']]
    net = objective.trained(net)
    load_parts(net, folder, contexts)

    def batches():
        return objective.held_out_batches(part, training['batch_size'],
                                          training['max_len'])
    # To draw them takes a small part of the time that the net takes
    total = None if is_quiet() else sum(1 for _ in batches())
    figures = objective.figures(
        net, watched(batches(), 'evaluating', 'batches', total), contexts)
    if getattr(figures, 'unknown_share', 0) == 1:
        raise ValueError(f'all words of {part.source} that were hidden are '
                         'unknown to the vocabulary, so nothing is to be '
                         'learnt from the figures: name a longer text, or '
                         'one in the language and spelling of the model')
    return figures


def _settings_of(folder):
    """The settings of the finished run in `folder`, and its text's name."""
    try:
        config = dict(read_config(folder))
        training = dict(config['training'])
        training.pop('devices', None)
        return complete_saved(training), config['fingerprint']
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(f'{folder / "config.json"} does not describe a run: '
                       f'{error}') from None
