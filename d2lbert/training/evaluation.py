"""Held-out figures of a finished run."""
from pathlib import Path

from d2lbert.corpus.corpus import check_known
from d2lbert.devices import parse_devices
from d2lbert.machine.terminal import is_quiet
from d2lbert.nn.precision import check_precision, set_precision
from d2lbert.objectives.text_objective import read_corpus
from d2lbert.progress import watched
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
    """The `Figures` of the objective of a run on a held-out text.

    corpus: another text, as for `pretrain`. Only its held-out part is used,
    if it has one. None: the held-out text of the run. text_field: as for
    `pretrain`. precision: as for `load_pretrained`.
    """
    check_precision(precision)
    contexts = parse_devices(devices)
    net, vocab = load_pretraining_run(folder, contexts, trainable=False)
    training, fingerprint = _settings_of(Path(folder))
    if corpus is not None:
        corpus = complete(dict(corpus=corpus))['corpus']
        # 'book' fits texts in the book's format; this may have another one
        split = 'auto' if training['split'] == 'book' else training['split']
        text = read_corpus(dict(BOOK, corpus=corpus, vocab='of the run',
                                text_field=text_field, split=split,
                                tokenizer=training['tokenizer']), vocab)
        part = text.valid or text.train
        check_known(part.counts, part.source)
    elif fingerprint is None:
        raise RunError(f'{folder} was imported without a text: name files '
                       'with --corpus')
    else:
        text = read_corpus(training, vocab)
        if text.fingerprint != fingerprint:
            raise RunError(
                f'the corpus of {folder} has changed since it was trained on '
                '(a file, its entry in config.json, or the version of '
                'Unicode or NLTK that cuts it), so its held-out part is not '
                'known: name files with --corpus')
        # None without --eval-every: the run trained on the whole text
        part = text.valid
    if part is None:
        raise RunError(f'the corpus of {folder} has no held-out text: name '
                       'files with --corpus')
    objective = OBJECTIVES[training['objective']]
    net = objective.net_to_train(set_precision(net, precision))
    load_parts(net, folder, contexts)

    def batches():
        return objective.held_out_batches(part, training['batch_size'],
                                          training['max_len'])
    # Making all batches once more, to count them, takes little time
    total = None if is_quiet() else sum(1 for _ in batches())
    figures = objective.figures(
        net, watched(batches(), 'evaluating', 'batches', total), contexts)
    if figures.unknown_share == 1:
        raise ValueError(f'all masked words of {part.source} are unknown to '
                         'the vocabulary, so the figures mean nothing: name '
                         'a longer text, or one in the language and spelling '
                         'of the model')
    return figures


def _settings_of(folder):
    """The settings of a finished run, and the fingerprint of its text."""
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
