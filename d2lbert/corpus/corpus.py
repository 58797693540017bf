"""Open text files of any size as a `Corpus`, and report how much is used."""
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

# A part of each fingerprint. Increase this when the code makes other examples
# of the same files
EXAMPLES_VERSION = 2


class Corpus(NamedTuple):
    """A training text, a held-out text and their vocabulary."""

    train: Any        # StoredText
    valid: Any        # StoredText, or None if nothing is held out
    vocab: Vocab      # numbers the words of both texts
    fingerprint: str  # a hash of the stored texts, their first vocabulary and
                      # the rules that make examples. Neither `seed` nor
                      # `numbered_by` changes it

    def numbered_by(self, vocab):
        """Number both texts by `vocab` in place; return the new `Corpus`.

        The old object is invalid afterwards. The files do not change:
        `StoredText.numbers` maps the numbers in them to the vocabulary.
        """
        old_to_new = onp.array(vocab[self.vocab.idx_to_token], 'int32')
        for text in filter(None, (self.train, self.valid)):
            text.numbers, text.vocab = old_to_new[text.numbers], vocab
        return self._replace(vocab=vocab)


def open_corpus(paths: Union[PathLike, Iterable[PathLike]], *,
                valid_paths: Union[PathLike, Iterable[PathLike], None] = None,
                valid_share: float = 0.0, split: str = 'auto',
                vocab: Any = None, min_freq: Optional[int] = MIN_FREQ,
                max_vocab: Optional[int] = None, pieces: Optional[int] = None,
                seed: Optional[int] = None, progress: bool = True,
                text_field: Optional[str] = None) -> Corpus:
    """Read text files and return them as a `Corpus`.

    The numbered words are in files that are mapped into memory, so the text
    may be larger than memory.

    paths: one path or several, of files, pipes, or folders with all their
    files except hidden ones; '-' is standard input. Files are UTF-8,
    compressed or not (see `texts.text_files`). text_field: the field of JSON
    lines that holds a text of one or more paragraphs.

    In a file with WikiText's titles ( = Title = between blank lines) each line
    is a paragraph and each title begins an article. In other files blank lines
    separate paragraphs, and the file is one article. A paragraph of more than
    2^18 words or 16 MiB is split, with a warning.

    split: the rule that finds words and sentences. Paragraphs of a single
    sentence are left out; for 'book', these are paragraphs without ' . '.

    - 'book': white space separates words, and ' . ' ends a sentence.
    - 'prose': each punctuation mark, symbol and Chinese character is a word,
      and sentences end as in `splitters.prose_sentences`. Files with spaced
      marks and WikiText's titles are split as by 'book'.
    - 'punkt': words as for 'prose', and sentences by NLTK's Punkt, which
      learns from the text itself.
    - 'auto': 'book' for all files with spaced marks, 'prose' for the others.

    A file has spaced marks if most of the marks . ! ? in its first MiB are
    separate words.

    valid_paths: held-out files. valid_share: the share of the articles to hold
    out. They are random articles from all parts of the text, always the same.
    In a text of fewer than 1 / valid_share articles, they are blocks of
    paragraphs.

    vocab: a Vocab or the path of one. If it is None, the vocabulary has the
    words that occur at least min_freq times in the training text, but at
    most max_vocab tokens. min_freq=None: the book's minimum, or less for a
    small text, see `cut_text.usual_min_freq`. In a text of more than 2^21
    different words, the vocabulary may lack rare words that occur min_freq
    times. Equally frequent words are sorted by their first occurrence in the
    training text or, with a seed, in its paragraphs as the book's page
    shuffles them with this seed. Whole words are converted to lower case.

    pieces: learn at most this number of word pieces from the training text, in
    place of whole words. A `vocab` that is a `PieceVocab` or a `WordPiece` has
    word pieces, too. Its tokenizer gets words with their capitals, and
    WikiText's <unk> is its unknown token.

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
    train_files = _find_sources(paths, 'the corpus', text_field)
    valid_files = [] if valid_paths is None else _find_sources(
        valid_paths, 'the held-out text', text_field)
    all_files = train_files + valid_files
    cutter_class = splitters.cutter_class(split, all_files)
    states_before = _file_states(all_files)
    digests = _digests(all_files, progress)
    train_digests = digests[:len(train_files)]
    valid_digests = digests[len(train_files):]
    for valid_file, digest in zip(valid_files, valid_digests):
        if digest in train_digests:
            train_file = train_files[train_digests.index(digest)]
            raise ValueError(f'{valid_file} is a held-out file, but the '
                             f'training file {train_file} has the same '
                             'content: leave out one of the two')

    def key_with(vocab_key):
        """A hash of all that can change the stored words or the examples."""
        return _hash([
            text_store.VERSION, EXAMPLES_VERSION, unicodedata.unidata_version,
            cutter_class.version(), text_reader.MAX_WORDS,
            word_types.MAX_TYPES, word_types.MAX_LETTERS,
            splitters.PUNKT_CHARS, text_reader.BLOCK_BYTES,
            stored_text.CHUNK_TOKENS, stored_text.NUM_TRIES, valid_share,
            vocab_key, train_digests, valid_digests])

    def build(folder):
        text_store.build(folder, train_files, valid_files, valid_share,
                         cutter_class, vocab, min_freq, max_vocab, pieces,
                         progress)
        for file, before, after in zip(all_files, states_before,
                                       _file_states(all_files)):
            if before != after:
                raise ValueError(f'{file} was changed while it was read: '
                                 'try again')

    key = key_with(_vocab_key(vocab, min_freq, max_vocab, pieces))
    # Without held-out files, a held-out text is a share of the training files
    sources = {'train': train_files, 'valid': valid_files or train_files}
    vocab_class = PieceVocab if uses_pieces else Vocab
    (stored_vocab, train, valid, freqs), temporary = text_store.open_or_build(
        key, build, lambda folder: _open_store(folder, vocab_class, sources))
    if temporary:
        # The cache is not usable. Remove the folder when Python deletes the
        # object `train`. `valid` may still be used: it keeps its files open
        weakref.finalize(train, shutil.rmtree, temporary, ignore_errors=True)
    # `key` depends on whether the pieces were learnt here or given as `vocab`.
    # The fingerprint depends only on the pieces
    fingerprint = key_with(_vocab_key(stored_vocab)) if uses_pieces else key
    corpus = Corpus(train, valid, stored_vocab, fingerprint)
    has_counted_words = vocab is None and not uses_pieces
    if seed is not None and has_counted_words:
        return corpus.numbered_by(_page_vocab(seed, train, freqs))
    return corpus


def _open_store(folder, vocab_class, sources):
    """Open a store: [vocabulary, training text, held-out text, frequencies].

    sources: {'train' or 'valid': its `Source`s}. The frequencies of the tokens
    are None if the vocabulary was given, or has word pieces.
    """
    # From the manifest: if another process has removed one of these files,
    # reading it raises FileNotFoundError, and the store is built again
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

    freqs (tokens,) int64: the frequencies in the training text, 0 for reserved
    tokens.
    """
    order = shuffled_paragraphs(text.num_paragraphs, random.Random(seed))
    types = types_by_frequency(text, freqs, order)
    text.release()      # free the memory of the mapped text
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
    """The argument `vocab` of `open_corpus`: a checked vocabulary, or None."""
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
        if path != text_sources.STDIN and not os.path.exists(
                os.path.expanduser(path)):
            raise FileNotFoundError(f'{path} is no file: name a text file')
    return text_sources.sources(paths, text_field)


def _file_states(files):
    """(size, time of the last change) of each `Source`."""
    return [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _hash(key_parts):
    return hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()[:32]


def _digests(files, progress):
    """The SHA-256 digest of the text of each `Source`, cached or computed."""
    facts = FileFacts()
    num_bytes = sum(file.stat().st_size for file in files)
    with bar(num_bytes, 'hashing files', 'B', unit_scale=True,
             quiet=not progress) as progress_bar:
        def digest(file):
            return file.digest(progress_bar.update)
        digests = [facts.get(file.digest_key, file, digest) for file in files]
    facts.save()
    return digests


# Warn if more than this share of a text's words is unknown
UNKNOWN_SHARE = 0.2

# Warn if more than this share of the words is in paragraphs that are left out
LEFT_OUT_SHARE = 0.5


def report(corpus, settings, is_named=False):
    """Print how much of a training text is used, and warn if it is little.

    settings: of the run. is_named: True if the setting `corpus` is
    'wikitext-2' or 'sample', which need no warning. Raises ValueError if the
    vocabulary has no word, or if all words of a text that is not named are
    unknown.
    """
    counts, vocab = corpus.train.counts, corpus.vocab
    source = settings['corpus'] if is_named else corpus.train.source
    num_special = len(special_of(vocab)) + 1        # and <unk>
    # Otherwise the vocabulary was given, or has word pieces
    has_counted_words = counts.min_freq is not None
    if len(vocab) <= num_special:
        if not has_counted_words:
            raise ValueError(f'the vocabulary for {source} has only special '
                             'tokens: name a vocabulary with words')
        raise ValueError(f'no word of {source} occurs at least '
                         f'{counts.min_freq} times, so the vocabulary has no '
                         'word: name a longer text, or a lower min_freq '
                         '(--min-freq)')
    unit = _unit(vocab)
    note(f'{source}: {_describe_paragraphs(counts)}; {counts.words:,} {unit}; '
         f'{_describe_vocab(vocab, counts, settings)}; '
         f'{counts.unknown / counts.words:.1%} of the {unit} are unknown')
    if is_named:
        return
    if has_counted_words:
        advice = ('fewer are unknown with word pieces (--tokenizer '
                  'wordpiece), or with a larger vocabulary (--vocab-size, '
                  '--min-freq)')
    elif settings.get('teacher') is not None:
        advice = 'choose a teacher of the same language (--teacher)'
    else:
        advice = 'name a vocabulary of the same language (--vocab)'
    check_known(corpus.train, advice)
    left_out_words = counts.left_out_words
    total = left_out_words + _num_whole_words(corpus.train)
    if left_out_words > LEFT_OUT_SHARE * total:
        about = 'about ' if isinstance(vocab, PieceVocab) else ''
        warn(f'{left_out_words:,} of {about}{total:,} words of {source} are '
             'left out, since their paragraphs have no two sentences: '
             'separate paragraphs by blank lines, or find sentences by '
             f'another rule (--split, here {settings["split"]})')


def _unit(vocab):
    return 'tokens' if isinstance(vocab, PieceVocab) else 'words'


def _num_whole_words(text):
    """The number of whole words in the used paragraphs of a `StoredText`.

    For word pieces, which `counts.words` counts, this is an estimate from the
    first BLOCK_WORDS pieces.
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
    if counts.min_freq is None or len(vocab) == settings.get('vocab_size'):
        return line
    line += (' with all words' if counts.min_freq == 1 else
             f' with words that occur at least {counts.min_freq} times')
    if settings['min_freq'] is None and counts.min_freq < MIN_FREQ:
        line += f' (min_freq lowered from {MIN_FREQ}, as the text is small)'
    return line


def check_known(text, remark):
    """Warn if many words of a `StoredText` are unknown.

    remark: the end of the warning. Raises ValueError if all are unknown.
    """
    counts, unit = text.counts, _unit(text.vocab)
    if counts.unknown == counts.words:
        raise ValueError(f'all {counts.words:,} {unit} of {text.source} are '
                         'unknown to the vocabulary: name a text, or a model, '
                         'in the same language and spelling')
    share = counts.unknown / counts.words
    if share > UNKNOWN_SHARE:
        warn(f'{share:.0%} of the {unit} of {text.source} are unknown: '
             f'{remark}')
