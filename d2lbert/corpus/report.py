"""How much of a text is used, said before anything is trained on it."""
from d2lbert.bert_dataset import MIN_FREQ
from d2lbert.machine.terminal import note, warn
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import special_of

#: Shares of a text above which it is warned of: its words that are unknown,
#: and those that are left out with their paragraphs.
UNKNOWN_SHARE, PASSED_SHARE = 0.2, 0.5


def report(text, settings, is_named=False):
    """Print what becomes of a `Text`, and warn where that is little.

    settings: those of the run; is_named: True for a text that comes with
    the book, of which nothing is warned. Raises ValueError for a vocabulary
    without a word.
    """
    counts = text.train.counts
    source = settings['corpus'] if is_named else text.train.source
    if len(text.vocab) <= len(special_of(text.vocab)) + 1:
        raise ValueError(f'no word of {source} occurs {counts.min_freq} '
                         'times, so the vocabulary has none: name a longer '
                         'text, or a lower min_freq (--min-freq)')
    unit = 'tokens' if isinstance(text.vocab, PieceVocab) else 'words'
    note(f'{source}: {_paragraphs(counts)}; {counts.words:,} {unit}; '
         f'{_vocabulary(text.vocab, counts, settings)}; '
         f'{counts.unknown / counts.words:.1%} of the {unit} are <unk>')
    if is_named:
        return
    check_known(counts, source, 'word pieces know more of them (--tokenizer '
                'wordpiece), or a larger vocabulary (--vocab-size, '
                '--min-freq)')
    passed, total = counts.passed_words, counts.passed_words + counts.words
    if passed > PASSED_SHARE * total:
        warn(f'{passed:,} of {total:,} words of {source} are left out, since '
             'their paragraphs have no two sentences: blank lines part '
             'paragraphs, and split (--split, here '
             f'{settings["split"]}) says how sentences are found')


def _paragraphs(counts):
    used = (f'{counts.paragraphs:,} '
            f'paragraph{"s" * (counts.paragraphs != 1)} used')
    if not counts.passed:
        return used
    return (f'{used}, {counts.passed:,} left out without a second sentence')


def _vocabulary(vocab, counts, settings):
    line = f'vocabulary of {len(vocab):,}'
    if counts.min_freq is None:
        return line
    line += (' with all words' if counts.min_freq == 1 else
             f' with words that occur {counts.min_freq} times')
    if settings['min_freq'] is None and counts.min_freq < MIN_FREQ:
        line += f' (instead of {MIN_FREQ} times, as the text is small)'
    return line


def check_known(counts, source, remedy='these are easily guessed, and only '
                'known_accuracy leaves them out'):
    """Warn of a text with many unknown words; refuse one without others.

    counts: `store.Counts`. Raises ValueError.
    """
    if counts.unknown == counts.words:
        raise ValueError(f'all {counts.words:,} words of {source} are unknown '
                         'to the vocabulary: name a text, or a model, in the '
                         'same language and spelling')
    share = counts.unknown / counts.words
    if share > UNKNOWN_SHARE:
        warn(f'{share:.0%} of the words of {source} are unknown, and read as '
             f'<unk>: {remedy}')
