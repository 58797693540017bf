"""This module makes, trains and reads tokenizers of the library `tokenizers`.

bpe.py makes byte pair encodings. `WordCutter` and `TextCutter` compute the
library's ids in C++ if they can.
"""
import collections
import contextlib
import itertools
import platform
import re
from pathlib import Path

import numpy as onp

from d2lbert.kernels import cut, draw
from d2lbert.machine import files
from d2lbert.machine.terminal import without_panics
from d2lbert.machine.workers import in_order, interruptible
from d2lbert.pretrained.tokenizers.encoded import IDEOGRAPHS
from d2lbert.text import UNK
from d2lbert.texts import text_files
from d2lbert.texts.numbered_text import line_ends

# The largest number of characters in a word, as in the library transformers.
# Longer words become [UNK]
MAX_WORD_CHARS = 100

# Trained pieces have only this number of the most frequent characters. Words
# with other characters become [UNK]
MAX_ALPHABET = 1000

# If text files have more different words, the rarer half so far is dropped
MAX_DIFFERENT_WORDS = 1 << 21

# If the counts of all words add up to more, they are scaled down for training
MAX_TRAINING_WORDS = 1 << 23

# `WordCutter` gives a thread about this number of bytes at a time
TASK_BYTES = 1 << 19

CONTINUATION = '##'     # the prefix of pieces that continue a word

# The options of BERT's normalizer, by their names in the library
NORMALIZER_OPTIONS = ('clean_text', 'handle_chinese_chars', 'strip_accents',
                      'lowercase')


class TokenizerError(ValueError):
    """A tokenizer cannot be used. The message is one sentence."""


def library():
    """Import the library `tokenizers`; raise ImportError if it is missing."""
    try:
        import tokenizers
    except ImportError:
        raise ImportError(
            'word pieces need the library tokenizers: pip install '
            "'.[pretrained]' brings it") from None
    # The library warns of forks after its first use. In Python 3.8 the first
    # call of platform.uname forks, and MXNet calls it: so call it now
    platform.uname()
    return tokenizers


# Construction

def bert_tokenizer(tokens, special, lowercase=True, strip_accents=None,
                   handle_chinese_chars=True):
    """Make BERT's tokenizer; tokens: a list by id; special: {role: token}."""
    t = library()
    tokenizer = t.Tokenizer(t.models.WordPiece(
        {token: idx for idx, token in enumerate(tokens)},
        unk_token=special['unk'], max_input_chars_per_word=MAX_WORD_CHARS))
    tokenizer.normalizer = t.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=handle_chinese_chars,
        strip_accents=strip_accents, lowercase=lowercase)
    tokenizer.pre_tokenizer = t.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = t.decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = post_processor_of(tokenizer, special)
    return tokenizer


def whole_word_tokenizer(tokens, special, marks_are_words=False):
    """Make a tokenizer that lower-cases text and splits it at white space.

    marks_are_words: also make a word of each punctuation mark, symbol and
    Chinese character.
    """
    t = library()
    tokenizer = t.Tokenizer(t.models.WordLevel(
        {token: idx for idx, token in enumerate(tokens)},
        unk_token=special['unk']))
    tokenizer.normalizer = t.normalizers.Lowercase()
    tokenizer.pre_tokenizer = _word_splitter(marks_are_words)
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = post_processor_of(tokenizer, special)
    return tokenizer


def has_whole_words(tokenizer):
    """True if `whole_word_tokenizer` could have made this tokenizer."""
    t = library()
    # Pre-tokenizers with the same settings are not ==, but their states are
    return (isinstance(tokenizer.model, t.models.WordLevel)
            and isinstance(tokenizer.normalizer, t.normalizers.Lowercase)
            and tokenizer.pre_tokenizer is not None
            and tokenizer.pre_tokenizer.__getstate__() in [
                _word_splitter(marks_are_words).__getstate__()
                for marks_are_words in (False, True)])


def _word_splitter(marks_are_words):
    t = library()
    spaces = t.pre_tokenizers.WhitespaceSplit()
    if not marks_are_words:
        return spaces
    marks = t.Regex(rf'[\p{{P}}\p{{S}}{IDEOGRAPHS}]')
    return t.pre_tokenizers.Sequence(
        [spaces, t.pre_tokenizers.Split(marks, 'isolated')])


def post_processor_of(tokenizer, special):
    """Make the post-processor that adds BERT's special tokens."""
    cls, sep = special['cls'], special['sep']
    # $A and $B are the texts. The number after a colon is the segment
    return library().processors.TemplateProcessing(
        single=[f'{cls}:0', '$A:0', f'{sep}:0'],
        pair=[f'{cls}:0', '$A:0', f'{sep}:0', '$B:1', f'{sep}:1'],
        special_tokens=[(token, tokenizer.token_to_id(token))
                        for token in sorted({cls, sep})])


# Training

def count_words(paths):
    """Count the words between white space in one or more text files."""
    if isinstance(paths, (str, Path)):
        paths = [paths]
    counts = collections.Counter()
    for path in paths:
        if not Path(path).is_file():
            raise FileNotFoundError(f'{path} is no file: name a text file')
        for line in text_files.lines(path):
            counts.update(line.split())
            if len(counts) > MAX_DIFFERENT_WORDS:
                counts = collections.Counter(dict(
                    counts.most_common(MAX_DIFFERENT_WORDS // 2)))
    return counts


def train_pieces(counts, vocab_size, special_tokens, options,
                 min_frequency=2):
    """Train word pieces on {word: count}; return the list of tokens.

    These are special_tokens, letters, letters with ##, and longer pieces in
    the order of training. A letter is any of the `MAX_ALPHABET` most frequent
    characters. Equal arguments give equal lists. options: lowercase and
    strip_accents of BERT's normalizer. min_frequency: the least count of a
    longer piece, after counts are scaled down (see `MAX_TRAINING_WORDS`).
    """
    t = library()
    counts = _normalized(counts, options)
    char_counts = collections.Counter()
    for word, count in counts.items():
        for char in word:
            char_counts[char] += count
    chars = sorted(char_counts, key=lambda char: (-char_counts[char], char))
    alphabet = set(chars[:MAX_ALPHABET])
    counts = {word: count for word, count in counts.items()
              if alphabet.issuperset(word)}
    inner_letters = set(''.join(word[1:] for word in counts))
    continuations = sorted(CONTINUATION + letter for letter in inner_letters)
    first_tokens = [*special_tokens, *sorted(alphabet), *continuations]
    if not counts:
        raise ValueError('the text has no word to learn pieces from')
    if vocab_size < len(first_tokens):
        raise ValueError(
            f'vocab_size={vocab_size} is too small: the special tokens and '
            'the letters of this text, with and without ##, need '
            f'{len(first_tokens)} tokens')
    # The library reserves memory for vocab_size tokens. A merge adds a piece
    # and shortens a word: the letters of all words limit the number of pieces
    vocab_size = min(vocab_size,
                     len(first_tokens) + sum(len(word) for word in counts))
    # Of equally frequent pairs, the library merges the pair with lower ids
    # first. It would number the letters with ## in the random order of a hash
    # table. It numbers special tokens in their order, so letters are passed as
    # special tokens, too
    trainer = t.trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency,
        show_progress=False, special_tokens=first_tokens,
        initial_alphabet=sorted(alphabet), limit_alphabet=len(alphabet))
    # The trained pieces do not depend on unk_token
    tokenizer = t.Tokenizer(t.models.WordPiece(unk_token=special_tokens[0]))
    tokenizer.pre_tokenizer = t.pre_tokenizers.WhitespaceSplit()
    # After Ctrl-C, takewhile ends the texts
    interruptible(lambda is_abandoned: tokenizer.train_from_iterator(
        itertools.takewhile(lambda _: not is_abandoned(), _texts_of(counts)),
        trainer))
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=vocab.get)


def _normalized(counts, options):
    """Normalize and split counted words as BERT does: a Counter of the parts.

    Parts of more than `MAX_WORD_CHARS` characters are left out.
    """
    t = library()
    normalizer = t.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, **options)
    splitter = t.pre_tokenizers.BertPreTokenizer()
    normalized, to_lowercase = collections.Counter(), normalizer.lowercase
    for word, count in counts.items():
        if word == UNK:     # WikiText's token for omitted words
            continue
        if word.isascii() and word.isalnum():
            # BERT changes only the case of such words
            if len(word) <= MAX_WORD_CHARS:
                normalized[word.lower() if to_lowercase else word] += count
            continue
        word = normalizer.normalize_str(word)
        for part, _ in splitter.pre_tokenize_str(word):
            if len(part) <= MAX_WORD_CHARS:
                normalized[part] += count
    return normalized


def _texts_of(counts):
    """Yield texts with `count` copies of each word, or fewer in proportion."""
    max_copies = 1 << 14        # in a text, to save memory
    total = sum(counts.values())
    divisor = -(-total // MAX_TRAINING_WORDS)       # rounded up
    for word, count in counts.items():
        scaled = (count + divisor // 2) // divisor      # rounded
        for begin in range(0, scaled, max_copies):
            yield ' '.join([word] * min(max_copies, scaled - begin))


# Reading

def read_json(path):
    """Read a JSON object; raise `TokenizerError` if the file holds none."""
    try:
        content = files.read_json(path)
        if not isinstance(content, dict):
            raise ValueError(f'it holds a {type(content).__name__}')
    except ValueError as error:
        raise TokenizerError(f'{path} is damaged, it is no JSON object '
                             f'({error}): fetch it again') from None
    return content


def read_tokenizer(path):
    """Read a tokenizer of the library from a tokenizer.json."""
    if not isinstance(read_json(path).get('model'), dict):
        raise TokenizerError(f'{path} holds no tokenizer: expected a '
                             'tokenizer.json with a model in it')
    text, tokenizers = Path(path).read_text('utf-8'), library()
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:      # the library raises bare Exceptions
        raise TokenizerError(
            f'{path} holds no tokenizer that the library tokenizers can read '
            f'({error}): it is damaged, or of a later version') from None


def read_vocab(path):
    """Read the tokens of a vocab.txt, one in each line."""
    data = Path(path).read_bytes()
    try:
        tokens = data.decode('utf-8').replace('\r\n', '\n').split('\n')
    except UnicodeDecodeError as error:
        line_number = 1 + data.count(b'\n', 0, error.start)
        raise TokenizerError(
            f'{path}, line {line_number}: not UTF-8: '
            'expected a vocabulary, one token in each line') from None
    while tokens and not tokens[-1]:
        tokens.pop()
    if not tokens:
        raise TokenizerError(f'{path} is empty: expected a vocabulary, one '
                             'token in each line')
    return tokens


def tokens_by_id(vocab, name='the tokenizer', special_tokens=()):
    """The tokens of {token: id} as a list, with '' for unused ids.

    name: of the vocabulary, for errors. Raises `TokenizerError` if one of
    special_tokens shares its id with another token, or if the largest id is
    much larger than the number of tokens.
    """
    num_ids = 1 + max(vocab.values(), default=-1)
    # A damaged file with one huge id would need a huge list
    if num_ids > 2 * len(vocab) + 1000:
        raise TokenizerError(f'{name} is damaged: its {len(vocab)} tokens '
                             f'have ids up to {num_ids - 1}; fetch it again')
    # Of tokens with the same id, the result has only the last in `vocab`. The
    # library's order is random, so a special token could be missing
    ids = list(vocab.values())
    for token in special_tokens:
        if ids.count(vocab.get(token)) > 1:
            raise TokenizerError(f'{name} is damaged: another token has the '
                                 f'id of {token}; fetch it again')
    tokens = [''] * num_ids
    for token, idx in vocab.items():
        tokens[idx] = token
    return tokens


def has_word_pieces(tokenizer):
    """True if a tokenizer's model is WordPiece with the prefix ##."""
    model = tokenizer.model
    return (type(model).__name__ == 'WordPiece'
            and model.continuing_subword_prefix == CONTINUATION)


def description(tokenizer):
    """The settings that the ids of words depend on: a list for JSON.

    A tokenizer that does not split text as BERT's does is described by its
    whole JSON text. For others, the tokens are left out.
    """
    if not splits_as_bert(tokenizer):
        return [tokenizer.to_str()]
    return [*(getattr(tokenizer.normalizer, name)
              for name in NORMALIZER_OPTIONS),
            tokenizer.model.max_input_chars_per_word]


def has_bert_normalizer(tokenizer):
    """True if a tokenizer has word pieces and BERT's normalizer."""
    return (has_word_pieces(tokenizer)
            and type(tokenizer.normalizer).__name__ == 'BertNormalizer')


def splits_as_bert(tokenizer):
    """True for word pieces with BERT's normalizer and pre-tokenizer."""
    return (has_bert_normalizer(tokenizer)
            and type(tokenizer.pre_tokenizer).__name__ == 'BertPreTokenizer')


def change_normalizer(tokenizer, options):
    """Set {name in the library: value} if the normalizer is BERT's."""
    old = tokenizer.normalizer
    if options and type(old).__name__ == 'BertNormalizer':
        tokenizer.normalizer = library().normalizers.BertNormalizer(
            **{**{name: getattr(old, name) for name in NORMALIZER_OPTIONS},
               **options})


@contextlib.contextmanager
def library_errors(input_name='this text', may_panic=False):
    """Convert errors of the library to `TokenizerError`s.

    The library raises bare Exceptions. If a regular expression takes too many
    steps, the library panics: Rust prints a message, and Python gets a
    PanicException, a BaseException. may_panic: hide Rust's message, see
    `has_regex`.
    """
    with without_panics() if may_panic else contextlib.nullcontext():
        try:
            yield
        except BaseException as error:
            is_panic = type(error).__name__ == 'PanicException'
            if type(error) is not Exception and not is_panic:
                raise
            raise TokenizerError(
                f'the tokenizer fails on {input_name} ({error}): '
                'choose another tokenizer') from None


def has_regex(tokenizer):
    """True if a tokenizer has regular expressions; see `library_errors`.

    Whether one panics depends on the text, and cannot be checked in advance.
    """
    parts = tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder
    return any(part is not None and b'"Regex"' in part.__getstate__()
               for part in parts)


class WordCutter:
    """Cuts words into the pieces of a tokenizer, without special tokens.

    fixed_ids: {word: its list of ids}, for words that are not cut. Other
    words are cut, even if they are spelled like special tokens.
    """

    def __init__(self, tokenizer, fixed_ids):
        self._tokenizer = _without_added_tokens(tokenizer)
        self._fixed_ids = fixed_ids
        self._cpp_pieces = _cpp_pieces(self._tokenizer)
        self._may_panic = has_regex(self._tokenizer)

    def __call__(self, lines):
        """Cut words; lines: bytes with one word a line.

        Returns ids (pieces,) int32 and begins (words + 1,) int64. The ids of
        word k are ids[begins[k]:begins[k + 1]].
        """
        # Threads would slow down a single task. None: one for each core
        num_threads = 1 if len(lines) <= TASK_BYTES else None
        counts, ids = zip(*in_order(self._cut, _tasks(lines), num_threads))
        return onp.concatenate(ids), onp.cumsum(
            onp.concatenate([[0], *counts]), dtype='int64')

    def _cut(self, lines):
        """Cut words: the number of ids of each word, and all ids; int32."""
        word_ends = line_ends(lines)
        word_begins = onp.append(0, word_ends[:-1] + 1)
        if self._cpp_pieces is None:
            counts = onp.full(len(word_ends), -1, 'int32')
            ids = onp.empty(0, 'int32')
        else:
            counts, ids = self._cpp_pieces.cut(lines)
        uncut = onp.flatnonzero(counts < 0)
        with library_errors(may_panic=self._may_panic):
            encodings = self._tokenizer.encode_batch(
                [lines[word_begins[k]:word_ends[k]].decode() for k in uncut])
        ids = _replace_ids(counts, ids, uncut,
                           [encoding.ids for encoding in encodings])
        for word, word_ids in self._fixed_ids.items():
            if word.encode() in lines:
                whole_line = rb'(?m)^%b$' % re.escape(word.encode())
                starts = [match.start()
                          for match in re.finditer(whole_line, lines)]
                fixed = onp.searchsorted(word_ends, starts)
                ids = _replace_ids(counts, ids, fixed, [word_ids] * len(fixed))
        return counts, ids


class TextCutter:
    """Converts texts to the ids that a tokenizer gives them, in C++.

    A text is left to the library if it is not printable ASCII or has an added
    token: a token that the tokenizer never splits, such as [MASK].
    """

    def __init__(self, pieces, added_tokens, ids_before, ids_after):
        """ids_before, ids_after: of the special tokens around a text."""
        self._pieces = pieces
        self._ids_before, self._ids_after = ids_before, ids_after
        # The library finds some added tokens also in lower or upper case
        self._find_added_token = re.compile(
            '|'.join(map(re.escape, added_tokens)), re.IGNORECASE).search

    @classmethod
    def of(cls, tokenizer):
        """The cutter of a tokenizer; None if the library cuts all texts."""
        pieces = _cpp_pieces(_without_added_tokens(tokenizer))
        if pieces is None:
            return None
        added = [token.content for token
                 in tokenizer.get_added_tokens_decoder().values()]
        # Without added tokens, `_find_added_token` would match every text. If
        # the library removes the accents of an added token, it matches ASCII
        if not added or not all(
                token.isascii() and token.isprintable() for token in added):
            return None
        # Find the special tokens around a text, here the letter a
        text_ids = tokenizer.encode('a', add_special_tokens=False).ids
        sample = tokenizer.encode('a')
        begin = sample.special_tokens_mask.index(0)
        end = begin + len(text_ids)
        # A post-processor need not keep the ids of the text together. Texts
        # from C++ get only segment 0
        if sample.ids[begin:end] != text_ids or any(sample.type_ids):
            return None
        return cls(pieces, added, sample.ids[:begin], sample.ids[end:])

    def __call__(self, texts):
        """Convert texts: a list with the ids of each, special tokens included.

        The list has None for a text that is left to the library.
        """
        can_cut = [*map(self._can_cut, texts)]
        lines = ''.join(f'{text}\n' for text in itertools.compress(
            texts, can_cut))
        counts, ids = (a.tolist() for a in self._pieces.cut(lines.encode()))
        begin, counts = 0, iter(counts)
        all_ids = []
        for is_cut in can_cut:
            if is_cut:
                end = begin + next(counts)
                all_ids.append([*self._ids_before, *ids[begin:end],
                                *self._ids_after])
                begin = end
            else:
                all_ids.append(None)
        return all_ids

    def _can_cut(self, text):
        return (text.isascii() and text.isprintable()
                and self._find_added_token(text) is None)


def _without_added_tokens(tokenizer):
    """Copy a tokenizer without its added tokens and its post-processor.

    The copy splits an added token like any other text.
    """
    copy = library().Tokenizer(tokenizer.model)
    for part in ('normalizer', 'pre_tokenizer'):
        if getattr(tokenizer, part) is not None:
            setattr(copy, part, getattr(tokenizer, part))
    return copy


def without_post_processor(tokenizer):
    """Copy a tokenizer without its post-processor.

    The post-processor for bytes removes blanks from offsets. If it processed a
    text twice, alone and in a pair, it would also remove letters.
    """
    copy = _without_added_tokens(tokenizer)
    added_tokens = tokenizer.get_added_tokens_decoder()     # {id: token}
    copy.add_tokens([added_tokens[idx] for idx in sorted(added_tokens)])
    return copy


def _tasks(lines):
    """Yield one or more parts of `lines`, each of about `TASK_BYTES`."""
    begin = 0
    while len(lines) - begin > TASK_BYTES:
        end = lines.index(b'\n', begin + TASK_BYTES) + 1
        yield lines[begin:end]
        begin = end
    yield lines[begin:]


def _cpp_pieces(tokenizer):
    """A `cut.Pieces` that cuts printable ASCII like a tokenizer, or None."""
    vocab, model = tokenizer.get_vocab(), tokenizer.model
    if (draw.library() is None or not splits_as_bert(tokenizer)
            or model.unk_token not in vocab):
        return None
    initial, continuation = {}, {}
    for token, idx in vocab.items():
        if continues_word(token):
            continuation[token[len(CONTINUATION):]] = idx
        else:
            initial[token] = idx
    return cut.Pieces(
        initial, continuation, vocab[model.unk_token],
        model.max_input_chars_per_word, tokenizer.normalizer.lowercase)


def _replace_ids(counts, ids, indices, new_ids):
    """Replace the ids of the words at `indices` by the lists in `new_ids`.

    ids: of all words, one word after another. counts: the number of ids of
    each word, or -1 if it has none yet; changed in place. Returns the new ids
    of all words.
    """
    if not len(indices):
        return ids
    word_stays = onp.ones(len(counts), bool)
    word_stays[indices] = False
    old_ids = ids[onp.repeat(word_stays, onp.maximum(counts, 0))]
    counts[indices] = [*map(len, new_ids)]
    id_stays = onp.repeat(word_stays, counts)
    ids = onp.empty(len(id_stays), 'int32')
    ids[id_stays] = old_ids
    ids[~id_stays] = onp.fromiter(itertools.chain.from_iterable(new_ids),
                                  'int32')
    return ids


def continues_word(token):
    """True if a piece continues the word of the piece before it."""
    return len(token) > len(CONTINUATION) and token.startswith(CONTINUATION)
