"""`open_corpus` reads text files of any size once, and returns a `Corpus`.

`report` prints how much of a text is used, before a run trains on it.
"""
import hashlib
import json
import os
import random
import shutil
import unicodedata
import weakref
from pathlib import Path
from typing import Any, Iterable, NamedTuple, Optional, Union

import numpy as onp

from d2lbert.corpus import (
    splitters,
    stored_text,
    text_reader,
    text_store,
    word_types,
)
from d2lbert.corpus.cut_text import RARE_SHARE, SMALL_TEXT, describe_files
from d2lbert.corpus.text_reader import FileFacts
from d2lbert.machine.arguments import PathLike
from d2lbert.machine.terminal import note, warn
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.progress import bar
from d2lbert.text import RESERVED, UNK, Vocab, special_of
from d2lbert.texts import text_sources
from d2lbert.texts.numbered_text import (
    BLOCK_WORDS,
    MIN_FREQ,
    shuffled_paragraphs,
    types_by_frequency,
)

# The version of the examples, a part of each corpus' fingerprint. Increase it
# when a change of the code gives other examples for the same files
EXAMPLES_VERSION = 2


class Corpus(NamedTuple):
    """A training text, a held-out text and their vocabulary."""

    train: Any        # StoredText
    valid: Any        # StoredText, or None if nothing is held out
    vocab: Vocab      # numbers the words of both texts
    fingerprint: str  # a hash of the texts, of the vocabulary, and of the
                      # rules that find the words and the held-out text. It
                      # does not change with `seed` or with `numbered_by`

    def numbered_by(self, vocab):
        """Renumber both texts in place; return a corpus with the vocabulary.

        Do not use this corpus any more. The files stay as they are, since
        `StoredText.numbers` maps the numbers in the files to the vocabulary.
        """
        # The number in `vocab` for each number in self.vocab
        new_numbers = onp.array(vocab[self.vocab.idx_to_token], 'int32')
        for text in filter(None, (self.train, self.valid)):
            text.numbers, text.vocab = new_numbers[text.numbers], vocab
        return self._replace(vocab=vocab)


def open_corpus(paths: Union[PathLike, Iterable[PathLike]], *,
                valid_paths: Union[PathLike, Iterable[PathLike], None] = None,
                valid_share: float = 0.0, split: str = 'auto',
                vocab: Any = None, min_freq: Optional[int] = MIN_FREQ,
                max_vocab: Optional[int] = None, pieces: Optional[int] = None,
                seed: Optional[int] = None, progress: bool = True,
                text_field: Optional[str] = None) -> Corpus:
    """Read text files once and return them as a `Corpus`.

    `load_data_wiki` holds a text in memory. Here the text is split into
    numbered words once, in files that are mapped into memory, and batches
    are drawn from these files.

    paths: one path or several. A path names a file, a pipe, or a folder with
    all its files except hidden ones; '-' is standard input. Files are UTF-8,
    compressed or not (see `texts.text_files`). Words are converted to lower
    case, except for a vocabulary of word pieces. text_field: the field of JSON
    lines that holds a text of one or more paragraphs.

    In a file with WikiText's titles ( = Title = between blank lines) each line
    is a paragraph and each title begins an article. In other files blank lines
    separate paragraphs, and the file is one article. A paragraph of more than
    2^18 words or 16 MiB is split, with a warning.

    split: the rule that finds words and sentences. 'book': white space
    separates words, and a sentence ends at ' . '. 'prose': sentences end as
    in `splitters.prose_sentences`; each punctuation mark, symbol and Chinese
    character is a word. A file in WikiText's format is split as by 'book' if
    most of the marks . ! ? in it are separate words. 'punkt': NLTK's Punkt,
    which learns from the text itself, finds the sentences; words are as for
    'prose'. 'auto': 'book' for files in which most of the marks . ! ? are
    separate words, and 'prose' for other files. Only the marks in the first
    MiB of a file are counted. 'book' leaves out paragraphs without ' . ', and
    the other rules leave out paragraphs of a single sentence.

    The files valid_paths are held out, or the share valid_share of the
    articles. For this share, the articles are divided in order into groups of
    about equal size, and one random article of each group is held out, always
    the same. A text of fewer than 1 / valid_share articles is divided into
    blocks of paragraphs in place of articles.

    vocab: a Vocab or the path of one. If it is None, the vocabulary has the
    words that occur at least min_freq times in the training text, but at
    most max_vocab tokens. min_freq=None: the book's minimum, or less for a
    small text, see `cut_text.usual_min_freq`. If there are more than 2^21
    different words, rare words become <unk>. Equally frequent words are
    sorted by their first occurrence in the text. seed: sort equally frequent
    words as on the book's page, by their first occurrence after the
    paragraphs are shuffled with this seed for the first epoch.

    pieces: learn this number of word pieces from the training text, in place
    of whole words. A `vocab` that is a `PieceVocab` or a `WordPiece` also has
    word pieces. With word pieces, the tokenizer gets words with their
    capitals, rare words are split, and WikiText's <unk> is the unknown token.

    The result is kept in the user's cache. A later call with the same texts
    and settings opens it, without reading files that are unchanged (see
    `text_reader.FileFacts`). Raises OSError or ValueError, and ImportError if
    split='punkt' cannot import NLTK. An error in a file names the file and, if
    it is in a line, the line.
    """
    if split not in splitters.SPLITS:
        raise ValueError(f'split={split!r} is unknown: expected '
                         f'{" or ".join(map(repr, splitters.SPLITS))}')
    if not 0 <= valid_share < 1:
        raise ValueError(f'valid_share={valid_share} is wrong: it must be at '
                         'least 0 and below 1')
    if valid_paths is not None and valid_share:
        raise ValueError('valid_paths and valid_share both choose the '
                         'held-out text: leave one of them out')
    if max_vocab is not None and max_vocab <= len(RESERVED) + 1:
        raise ValueError(f'max_vocab={max_vocab} leaves no room for a word '
                         f'beside {UNK} and {", ".join(RESERVED)}')
    if pieces is not None and vocab is not None:
        raise ValueError('pieces and vocab both choose the vocabulary: leave '
                         'one of them out')
    vocab = _load_vocab(vocab)
    uses_pieces = pieces is not None or isinstance(vocab, PieceVocab)
    if uses_pieces and max_vocab is not None:
        raise ValueError('max_vocab is for whole words: give the number of '
                         'word pieces as pieces')
    files = _find_sources(paths, 'the corpus', text_field)
    valid_files = [] if valid_paths is None else _find_sources(
        valid_paths, 'the held-out text', text_field)
    cutter_class = splitters.cutter_class(split, files + valid_files)
    states_before = _file_states(files + valid_files)
    digests = _digests(files + valid_files, progress)
    train_digests, valid_digests = digests[:len(files)], digests[len(files):]
    for valid_file, digest in zip(valid_files, valid_digests):
        if digest in train_digests:
            train_file = files[train_digests.index(digest)]
            raise ValueError(f'{valid_file} is a held-out file, but the '
                             f'training file {train_file} has the same '
                             'content: leave out one of the two')

    def key_with(vocab_key):
        """A hash of all that can change the stored words or the examples.

        vocab_key: what `_vocab_key` returns.
        """
        return _hash([
            text_store.VERSION, EXAMPLES_VERSION, unicodedata.unidata_version,
            cutter_class.version(), text_reader.MAX_WORDS,
            word_types.MAX_TYPES, word_types.MAX_LETTERS,
            splitters.PUNKT_CHARS, text_reader.BLOCK_BYTES,
            stored_text.CHUNK_TOKENS, stored_text.NUM_TRIES, valid_share,
            vocab_key, train_digests, valid_digests])

    def build(folder):
        text_store.build(folder, files, valid_files, valid_share, cutter_class,
                         vocab, min_freq, max_vocab, pieces, progress)
        states_after = _file_states(files + valid_files)
        for file, before, after in zip(files + valid_files, states_before,
                                       states_after):
            if before != after:
                raise ValueError(f'{file} was changed while it was read: '
                                 'try again')

    key = key_with(_vocab_key(vocab, min_freq, max_vocab, pieces))
    sources = {'train': files, 'valid': valid_files or files}
    vocab_class = PieceVocab if uses_pieces else Vocab
    (stored_vocab, train, valid, freqs), temporary = text_store.open_or_build(
        key, build, lambda folder: _open_store(folder, vocab_class, sources))
    if temporary:
        # The cache is not usable, and the store is in a temporary folder.
        # Remove this folder when the training text is no longer used. The
        # held-out text keeps its files open
        weakref.finalize(train, shutil.rmtree, temporary, ignore_errors=True)
    # Equal pieces give an equal fingerprint, whether they were learnt here or
    # given as `vocab`
    fingerprint = key_with(_vocab_key(stored_vocab)) if uses_pieces else key
    corpus = Corpus(train, valid, stored_vocab, fingerprint)
    # The seed only orders whole words that were counted here
    if seed is None or vocab is not None or uses_pieces:
        return corpus
    return corpus.numbered_by(_page_vocab(seed, train, freqs))


def _open_store(folder, vocab_class, sources):
    """Open a store of `text_store`.

    sources: {'train' or 'valid': its `Source`s}. Returns [vocabulary, training
    text, held-out text, frequencies of the tokens]. The held-out text is None
    if nothing is held out. The frequencies are None if the vocabulary was
    given, or has word pieces.
    """
    # The files of the store itself. If another process has removed one of
    # them, reading it below raises FileNotFoundError
    names = text_store.file_names(folder)
    vocab = vocab_class.load(folder / text_store.VOCAB)
    counts = text_store.read_counts(folder)     # {part: its `Counts`}
    texts = []
    for part, files in sources.items():
        if f'{part}/ids.npy' in names:
            texts.append(stored_text.StoredText(
                folder / part, onp.arange(len(vocab), dtype='int32'), vocab,
                describe_files(files), counts.get(part)))
        else:
            texts.append(None)
    freqs = (onp.load(folder / text_store.FREQS)
             if text_store.FREQS in names else None)
    return [vocab, *texts, freqs]


def _page_vocab(seed, text, freqs):
    """The vocabulary that the book's page would build with a seed.

    text: the training part, a `StoredText`. freqs (tokens,) int64: the
    frequency of each token in the text, 0 for reserved tokens.
    """
    order = shuffled_paragraphs(text.num_paragraphs, random.Random(seed))
    types = types_by_frequency(text, freqs, order)
    text.release()      # frees the memory of what the line above has read
    tokens = text.vocab.idx_to_token
    return Vocab.from_freqs(
        [(tokens[k], int(freqs[k])) for k in types.tolist() if freqs[k]],
        reserved_tokens=RESERVED)


def _vocab_key(vocab, min_freq=None, max_vocab=None, pieces=None):
    """The part of a store's key that describes its vocabulary.

    vocab: the vocabulary, or None if it is built with the other arguments.
    """
    if isinstance(vocab, PieceVocab):
        return vocab.tokenizer.description()
    if vocab is not None:
        return vocab.idx_to_token
    if pieces is not None:
        return ['pieces', pieces]
    if min_freq is None:    # `usual_min_freq` depends on these constants
        min_freq = [MIN_FREQ, SMALL_TEXT, RARE_SHARE]
    return [min_freq, max_vocab]


def _load_vocab(vocab):
    """Return the argument `vocab` of `open_corpus` as a vocabulary or None.

    Loads the vocabulary from a path. Raises FileNotFoundError if this is no
    file, and ValueError if the file is damaged or a `Vocab` does not begin
    with <unk> and the reserved tokens.
    """
    if isinstance(vocab, WordPiece):
        vocab = PieceVocab(vocab)
    if vocab is None or isinstance(vocab, PieceVocab):
        return vocab
    if not isinstance(vocab, Vocab):
        if not Path(vocab).is_file():
            raise FileNotFoundError(f'{vocab} is no file: name a vocabulary '
                                    'that d2lbert saved')
        return Vocab.load(vocab)
    for idx, token in enumerate([UNK, *RESERVED]):
        found = vocab.idx_to_token[idx:idx + 1]
        if found != [token]:
            name = repr(found[0]) if found else 'nothing'
            raise ValueError(f'token {idx} of the vocabulary must be the '
                             f'reserved {token!r}, not {name}: build it '
                             'with reserved_tokens=d2lbert.text.RESERVED')
    return vocab


def _find_sources(paths, text_name, text_field):
    """The `Source`s of one path or several; text_name: for messages."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    paths = list(paths)
    if not paths:
        raise ValueError(f'{text_name} has no file: name at least one')
    for path in paths:
        if path != text_sources.STDIN and not Path(path).expanduser().exists():
            raise FileNotFoundError(f'{path} is no file: name a text file')
    return text_sources.sources(paths, text_field)


def _file_states(files):
    """(size, time of the last change) of each `Source`."""
    return [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _hash(key_parts):
    """A hash of objects that JSON can represent, 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()[:32]


def _digests(files, progress):
    """The SHA-256 digest of the text of each `Source`, cached or computed."""
    facts = FileFacts()
    num_bytes = sum(file.stat().st_size for file in files)
    with bar(num_bytes, 'looking', 'B', unit_scale=True,
             quiet=not progress) as progress_bar:
        digests = [facts.get(
            file.digest_key, file,
            lambda file: file.digest(progress_bar.update)) for file in files]
    facts.save()
    return digests


#: A warning is printed if more than this share of a text's words is unknown.
UNKNOWN_SHARE = 0.2

#: A warning is printed if more than this share of the words is in paragraphs
#: that are left out.
LEFT_OUT_SHARE = 0.5


def report(corpus, settings, is_named=False):
    """Print how much of a training text is used, and warn if it is little.

    corpus: a `Corpus`, or an object with the attributes `train` and `vocab`.
    settings: the settings of the run. is_named: True if the setting `corpus`
    is 'wikitext-2' or 'sample'; then no warning is printed. Raises ValueError
    if the vocabulary has no word, or if `check_known` raises it.
    """
    counts, vocab = corpus.train.counts, corpus.vocab
    source = settings['corpus'] if is_named else corpus.train.source
    num_special = len(special_of(vocab)) + 1        # and <unk>
    if len(vocab) <= num_special:
        if counts.min_freq is None:     # given, or word pieces
            raise ValueError(f'the vocabulary for {source} has only special '
                             'tokens: name a vocabulary with words')
        raise ValueError(f'no word of {source} occurs {counts.min_freq} '
                         'times, so the vocabulary has no word: name a '
                         'longer text, or a lower min_freq (--min-freq)')
    unit = 'tokens' if isinstance(vocab, PieceVocab) else 'words'
    note(f'{source}: {_describe_paragraphs(counts)}; {counts.words:,} {unit}; '
         f'{_describe_vocab(vocab, counts, settings)}; '
         f'{counts.unknown / counts.words:.1%} of the {unit} are <unk>')
    if is_named:
        return
    check_known(counts, source, 'fewer are unknown with word pieces '
                '(--tokenizer wordpiece), or with a larger vocabulary '
                '(--vocab-size, --min-freq)')
    left_out_words = counts.left_out_words
    total = left_out_words + _num_words(corpus.train)
    if left_out_words > LEFT_OUT_SHARE * total:
        about = 'about ' if isinstance(vocab, PieceVocab) else ''
        warn(f'{left_out_words:,} of {about}{total:,} words of {source} are '
             'left out, since their paragraphs have no two sentences: '
             'separate paragraphs by blank lines, or find sentences by '
             f'another rule (--split, here {settings["split"]})')


def _num_words(text):
    """The number of whole words in the used paragraphs of a `StoredText`.

    For word pieces, which `counts.words` then counts, this is an estimate from
    the first BLOCK_WORDS pieces.
    """
    begins_word = text.vocab.begins_word
    if begins_word is None:
        return text.counts.words
    pieces = text.numbers[text.read(0, min(BLOCK_WORDS, text.num_words))]
    return round(text.counts.words * begins_word[pieces].mean())


def _describe_paragraphs(counts):
    used = (f'{counts.paragraphs:,} '
            f'paragraph{"s" * (counts.paragraphs != 1)} used')
    if not counts.left_out:
        return used
    return f'{used}, {counts.left_out:,} left out without a second sentence'


def _describe_vocab(vocab, counts, settings):
    line = f'vocabulary of {len(vocab):,}'
    if counts.min_freq is None:
        return line
    line += (' with all words' if counts.min_freq == 1 else
             f' with words that occur {counts.min_freq} times')
    if settings['min_freq'] is None and counts.min_freq < MIN_FREQ:
        line += f' (instead of {MIN_FREQ} times, as the text is small)'
    return line


def check_known(counts, source, remark='these are easily guessed, and only '
                'known_accuracy leaves them out'):
    """Warn if many words of a text are unknown; raise ValueError if all are.

    counts: the `text_store.Counts` of the text; source: its name in messages.
    remark: the end of the warning; the default is for `d2lbert evaluate`.
    """
    if counts.unknown == counts.words:
        raise ValueError(f'all {counts.words:,} words of {source} are unknown '
                         'to the vocabulary: name a text, or a model, in the '
                         'same language and spelling')
    share = counts.unknown / counts.words
    if share > UNKNOWN_SHARE:
        warn(f'{share:.0%} of the words of {source} are unknown, and read as '
             f'<unk>: {remark}')
