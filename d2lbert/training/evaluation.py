"""Compute the held-out figures of a run of `pretrain`: `d2lbert evaluate`."""
from pathlib import Path

from d2lbert.corpus.corpus import check_known
from d2lbert.devices import parse_devices
from d2lbert.machine.terminal import is_quiet
from d2lbert.nn.precision import check_precision, set_precision
from d2lbert.objectives.text_objective import read_corpus
from d2lbert.progress import with_progress
from d2lbert.training.load import load_pretraining_run
from d2lbert.training.pretraining import OBJECTIVES
from d2lbert.training.saved_runs import (
    RunError,
    complete_saved,
    load_parts,
    read_config,
)
from d2lbert.training.settings import BOOK, complete


def evaluate_run(folder, corpus=None, devices='auto', text_field=None,
                 precision=None):
    """The figures of a run on a held-out text, a named tuple.

    folder: the folder of a finished run of `pretrain`. The objective of the
    run defines the figures. corpus: another text, as for `pretrain`. Of
    'wikitext-2', only the held-out file is used, if there is one. None: the
    held-out text of the run. devices: as for `parse_devices`. text_field: as
    for `pretrain`, but only for `corpus`. precision: as for `load_pretrained`.
    """
    check_precision(precision)
    contexts = parse_devices(devices)
    net, vocab = load_pretraining_run(folder, contexts, trainable=False)
    settings, fingerprint = _settings_of(Path(folder))
    if corpus is not None:
        checked_corpus = complete(dict(corpus=corpus))['corpus']
        # 'book' ends sentences only at ' . ', which this text may not have
        split = 'auto' if settings['split'] == 'book' else settings['split']
        # The setting `vocab` is not read as a path here. If it is not None,
        # `read_corpus` uses its argument `vocab`, and builds no vocabulary
        other_settings = dict(
            BOOK, corpus=checked_corpus, vocab='of the run',
            text_field=text_field, split=split,
            tokenizer=settings['tokenizer'])
        other_corpus = read_corpus(other_settings, vocab)
        # `valid` is None if no part is held out
        text = other_corpus.valid or other_corpus.train
        check_known(text, 'these are easily guessed, and only known_accuracy '
                    'leaves them out')
    elif fingerprint is None:
        raise RunError(f'{folder} was imported without a text: name files '
                       'with --corpus')
    else:
        own_corpus = read_corpus(settings, vocab)
        if own_corpus.fingerprint != fingerprint:
            raise RunError(
                f'the corpus of {folder} has changed since the training '
                '(possible causes: another file, fingerprint in config.json, '
                'or version of Unicode or NLTK), so its held-out part '
                'is not known: name files with --corpus')
        text = own_corpus.valid     # None if the run trained on all its text
    if text is None:
        raise RunError(f'the corpus of {folder} has no held-out text: name '
                       'files with --corpus')
    # Use the class: an object would need a text to train on
    objective_class = OBJECTIVES[settings['objective']]
    net = objective_class.net_to_train(set_precision(net, precision))
    load_parts(net, folder, contexts)

    def batches():
        return objective_class.held_out_batches(text, settings['batch_size'],
                                                settings['max_len'])
    # The progress bar needs the number of batches; counting takes little time
    total = None if is_quiet() else sum(1 for _ in batches())
    shown_batches = with_progress(batches(), 'evaluating', 'batches', total)
    figures = objective_class.figures(net, shown_batches, contexts)
    if figures.unknown_share == 1:
        raise ValueError(f'all masked words of {text.source} are unknown to '
                         'the vocabulary, so the figures mean nothing: name '
                         'a longer text, or one in the language and spelling '
                         'of the model')
    return figures


def _settings_of(folder):
    """The settings of a finished run, and the fingerprint of its corpus.

    The fingerprint is None for an imported run.
    """
    try:
        config = dict(read_config(folder))
        settings = dict(config['training'])
        settings.pop('devices', None)   # `config_of` adds them to the settings
        return complete_saved(settings), config['fingerprint']
    except RunError:        # a ValueError whose message is complete
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RunError(f'{folder / "config.json"} does not describe a run: '
                       f'{error}') from None
