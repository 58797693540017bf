"""Word pieces with the library `tokenizers`: construct, train, read, encode.

`tokenizer.WordPiece` calls the library through this file. The calls for byte
pair encodings are in `bpe`.
"""
import collections
import contextlib
import itertools
import platform
import re
from pathlib import Path

import numpy as onp

from d2lbert.kernels import cut as compiled
from d2lbert.kernels import draw
from d2lbert.machine import files
from d2lbert.machine.terminal import without_panics
from d2lbert.machine.workers import in_order, interruptible
from d2lbert.pretrained.tokenizers.encoded import IDEOGRAPHS
from d2lbert.text import UNK
from d2lbert.texts import text_files
from d2lbert.texts.numbered_text import line_ends

# Most characters of a word; longer words are unknown, as in BERT
MAX_WORD = 100

# Most different characters in pieces; words with others become [UNK]
MAX_LETTERS = 1000

# Most different words in a count; above it, the rarer half is dropped
MAX_TYPES = 1 << 21

# Most words for training; larger counts are scaled down
MAX_WORDS = 1 << 23

# Bytes of words per task of a thread
PART = 1 << 19

MORE = '##'     # the prefix of pieces within a word

# Options of BERT's normalizer
NORMALIZER = ('clean_text', 'handle_chinese_chars', 'strip_accents',
              'lowercase')


class TokenizerError(ValueError):
    """A tokenizer cannot be used; the text is one sentence."""


def library():
    """The library `tokenizers`; ImportError if it is missing."""
    try:
        import tokenizers
    except ImportError:
        raise ImportError(
            'word pieces need the library tokenizers: pip install '
            "'.[pretrained]' brings it") from None
    # In Python 3.8 the first call of this function forks, and MXNet calls it.
    # The library warns of forks after its first use, so this comes before
    platform.uname()
    return tokenizers


# Construction

def bert(tokens, special, lowercase=True, strip_accents=None,
         handle_chinese_chars=True):
    """BERT's tokenizer for a list of tokens; special: {role: token}."""
    t = library()
    tokenizer = t.Tokenizer(t.models.WordPiece(
        {token: idx for idx, token in enumerate(tokens)},
        unk_token=special['unk'], max_input_chars_per_word=MAX_WORD))
    tokenizer.normalizer = t.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=handle_chinese_chars,
        strip_accents=strip_accents, lowercase=lowercase)
    tokenizer.pre_tokenizer = t.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = t.decoders.WordPiece(prefix=MORE)
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = template(tokenizer, special)
    return tokenizer


def whole_words(tokens, special, is_prose=False):
    """A tokenizer of lower-case words, separated by white space.

    is_prose: each punctuation mark is a word, too, see `is_word_alone`.
    """
    t = library()
    tokenizer = t.Tokenizer(t.models.WordLevel(
        {token: idx for idx, token in enumerate(tokens)},
        unk_token=special['unk']))
    tokenizer.normalizer = t.normalizers.Lowercase()
    tokenizer.pre_tokenizer = _word_splitter(is_prose)
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = template(tokenizer, special)
    return tokenizer


def is_whole_words(tokenizer):
    """True if a tokenizer is of the kind that `whole_words` constructs."""
    t = library()
    return (isinstance(tokenizer.model, t.models.WordLevel)
            and isinstance(tokenizer.normalizer, t.normalizers.Lowercase)
            and tokenizer.pre_tokenizer is not None
            and tokenizer.pre_tokenizer.__getstate__() in [
                _word_splitter(is_prose).__getstate__()
                for is_prose in (False, True)])


def _word_splitter(is_prose):
    """The pre-tokenizer that splits at white space; marks alone if is_prose.
    """
    t = library()
    spaces = t.pre_tokenizers.WhitespaceSplit()
    if not is_prose:
        return spaces
    alone = t.Regex(rf'[\p{{P}}\p{{S}}{IDEOGRAPHS}]')
    return t.pre_tokenizers.Sequence(
        [spaces, t.pre_tokenizers.Split(alone, 'isolated')])


def template(tokenizer, special):
    """The post-processor that adds special tokens to a text or a pair."""
    cls, sep = special['cls'], special['sep']
    return library().processors.TemplateProcessing(
        single=[f'{cls}:0', '$A:0', f'{sep}:0'],
        pair=[f'{cls}:0', '$A:0', f'{sep}:0', '$B:1', f'{sep}:1'],
        special_tokens=[(token, tokenizer.token_to_id(token))
                        for token in sorted({cls, sep})])


# Training

def count_words(paths):
    """Count the words of text files, separated by white space: a Counter."""
    if isinstance(paths, (str, Path)):
        paths = [paths]
    counts = collections.Counter()
    for path in paths:
        if not Path(path).is_file():
            raise FileNotFoundError(f'{path} is no file: name a text file')
        for line in text_files.lines(path):
            counts.update(line.split())
            if len(counts) > MAX_TYPES:
                counts = collections.Counter(dict(
                    counts.most_common(MAX_TYPES // 2)))
    return counts


def learn(counts, vocab_size, special, normalizer, min_frequency=2):
    """Train word pieces on {word: count}: a list of tokens, deterministic.

    special: the first tokens of the list. Then come all letters, at the
    beginning of words and within words, and then longer pieces in the order
    of training.
    """
    t = library()
    counts = _normalized(counts, normalizer)
    letters = collections.Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    kept = sorted(letters, key=lambda letter: (-letters[letter], letter))
    kept = set(kept[:MAX_LETTERS])
    counts = {word: count for word, count in counts.items()
              if kept.issuperset(word)}
    more = sorted({MORE + letter for word in counts for letter in word[1:]})
    known = [*special, *sorted(kept), *more]
    if not counts:
        raise ValueError('the text has no word to learn pieces from')
    if vocab_size < len(known):
        raise ValueError(
            f'vocab_size={vocab_size} is too small: the special tokens and '
            f'the letters of this text, at the begin of words and within, '
            f'are {len(known)} pieces already')
    # Of equally frequent pairs the library merges the pair with lower ids
    # first, and it gives letters within words ids in the random order of a
    # hash table. Special tokens have fixed ids, so letters are among them
    trainer = t.trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency,
        show_progress=False, special_tokens=known,
        initial_alphabet=sorted(kept), limit_alphabet=len(kept))
    tokenizer = t.Tokenizer(t.models.WordPiece(unk_token=special[0]))
    tokenizer.pre_tokenizer = t.pre_tokenizers.WhitespaceSplit()
    interruptible(lambda is_abandoned: tokenizer.train_from_iterator(
        itertools.takewhile(lambda _: not is_abandoned(), _repeated(counts)),
        trainer))
    numbers = tokenizer.get_vocab()
    return sorted(numbers, key=numbers.get)


def _normalized(counts, options):
    """Counts of words after BERT's normalizer and splitting, a Counter.

    Words of more than `MAX_WORD` characters are left out.
    """
    t = library()
    normalizer = t.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, **options)
    cut = t.pre_tokenizers.BertPreTokenizer()
    normalized, lower = collections.Counter(), normalizer.lowercase
    for word, count in counts.items():
        if word == UNK:     # WikiText's mark for omitted words
            continue
        if word.isascii() and word.isalnum():
            # The normalizer only changes the case of such words
            if len(word) <= MAX_WORD:
                normalized[word.lower() if lower else word] += count
            continue
        for part, _ in cut.pre_tokenize_str(normalizer.normalize_str(word)):
            if len(part) <= MAX_WORD:
                normalized[part] += count
    return normalized


def _repeated(counts):
    """Yield texts that repeat each word as often as it was counted.

    If this is more than `MAX_WORDS` words, counts are scaled down.
    """
    total = sum(counts.values())
    divisor = -(-total // MAX_WORDS)
    for word, count in counts.items():
        count = (count + divisor // 2) // divisor
        for begin in range(0, count, 1 << 14):
            yield ' '.join([word] * min(1 << 14, count - begin))


# Reading

def read_json(path):
    """Read a JSON file with an object: a dict."""
    try:
        found = files.read_json(path)
        if not isinstance(found, dict):
            raise ValueError(f'it holds a {type(found).__name__}')
    except ValueError as error:
        raise TokenizerError(f'{path} is damaged, it is no JSON object '
                             f'({error}): fetch it again') from None
    return found


def read(path):
    """Read the library's tokenizer in a tokenizer.json."""
    found = read_json(path)
    if not isinstance(found.get('model'), dict):
        raise TokenizerError(f'{path} holds no tokenizer: expected a '
                             'tokenizer.json with a model in it')
    try:
        with library_errors():
            return library().Tokenizer.from_str(
                Path(path).read_text('utf-8'))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise TokenizerError(
            f'{path} holds no tokenizer that the library tokenizers can read '
            f'({error}): it is damaged, or of a later version') from None


def read_vocab(path):
    """Read the tokens of a vocab.txt, one in each line."""
    data = Path(path).read_bytes()
    try:
        tokens = data.decode('utf-8').replace('\r\n', '\n').split('\n')
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f'{path}, line {1 + data.count(10, 0, error.start)}: not UTF-8: '
            'expected a vocabulary, one token in each line') from None
    while tokens and not tokens[-1]:
        tokens.pop()
    if not tokens:
        raise TokenizerError(f'{path} is empty: expected a vocabulary, one '
                             'token in each line')
    return tokens


def by_number(vocab, name='the tokenizer', special=()):
    """The tokens of {token: id} as a list, with '' for unused ids.

    special: tokens whose ids must be unique. Raises `TokenizerError` if they
    are not, or if ids are much larger than the number of tokens.
    """
    count = 1 + max(vocab.values(), default=-1)
    if count > 2 * len(vocab) + 1000:
        raise TokenizerError(f'{name} is damaged: it numbers {len(vocab)} '
                             f'tokens up to {count - 1}; fetch it again')
    # The library's order of tokens is random, so either of two tokens with
    # one id could be in the list
    ids = list(vocab.values())
    for token in special:
        if ids.count(vocab.get(token)) > 1:
            raise TokenizerError(f'{name} is damaged: another token has the '
                                 f'number of {token}; fetch it again')
    tokens = [''] * count
    for token, idx in vocab.items():
        tokens[idx] = token
    return tokens


def has_pieces(tokenizer):
    """True if a tokenizer of the library is WordPiece."""
    model = tokenizer.model
    return (type(model).__name__ == 'WordPiece'
            and model.continuing_subword_prefix == MORE)


def described(tokenizer):
    """Everything that pieces depend on except the vocabulary, for JSON."""
    if not is_bert(tokenizer):
        return [tokenizer.to_str()]
    return [*(getattr(tokenizer.normalizer, name) for name in NORMALIZER),
            tokenizer.model.max_input_chars_per_word]


def is_bert(tokenizer):
    """True if a tokenizer is WordPiece with BERT's normalizer."""
    return (has_pieces(tokenizer)
            and type(tokenizer.normalizer).__name__ == 'BertNormalizer')


def change_normalizer(tokenizer, options):
    """Change options of BERT's normalizer; other normalizers stay."""
    found = tokenizer.normalizer
    if options and type(found).__name__ == 'BertNormalizer':
        tokenizer.normalizer = library().normalizers.BertNormalizer(
            **{**{name: getattr(found, name) for name in NORMALIZER},
               **options})


@contextlib.contextmanager
def library_errors(what='this text', may_panic=False):
    """Convert errors of the library to `TokenizerError`s.

    The library raises bare Exceptions. If the regular expression of a
    tokenizer takes too many steps it panics, which is no Exception.
    may_panic: the result of `has_expressions`; the text of a panic is then
    not printed.
    """
    with without_panics() if may_panic else contextlib.nullcontext():
        try:
            yield
        except BaseException as error:
            if type(error) is Exception or type(
                    error).__name__ == 'PanicException':
                raise TokenizerError(f'the tokenizer fails on {what} '
                                     f'({error}): choose another tokenizer'
                                     ) from None
            raise


def has_expressions(tokenizer):
    """True if a tokenizer.json has brought regular expressions of its own.

    How long they take depends on the text, so no check can exclude panics.
    """
    return any(b'"Regex"' in part.__getstate__() for part in (
        tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder)
        if part is not None)


class WordCutter:
    """Splits words into the pieces of a tokenizer, without special tokens.

    fixed: {word: its ids}, words with given ids. Other words that look like
    special tokens are split as any word.
    """

    def __init__(self, tokenizer, fixed):
        self._plain, self._fixed = _without_added_tokens(tokenizer), fixed
        self._fast = _compiled(self._plain)
        self._may_panic = has_expressions(self._plain)

    def __call__(self, lines):
        """Split words, one in each line of bytes.

        Returns ids (N,) int32 of all pieces and begins (words + 1,) int64;
        the ids of word k are ids[begins[k]:begins[k + 1]].
        """
        # For a single part threads would cost more than they save
        counts, ids = zip(*in_order(self._cut, _parts(lines),
                                    1 if len(lines) <= PART else None))
        return onp.concatenate(ids), onp.cumsum(
            onp.concatenate([[0], *counts]), dtype='int64')

    def _cut(self, lines):
        ends = line_ends(lines)
        begins = onp.append(0, ends[:-1] + 1)
        counts, ids = onp.full(len(ends), -1, 'int32'), onp.empty(0, 'int32')
        if self._fast is not None:
            counts, ids = self._fast.cut(lines)
        # A count of -1: the word is left to the library
        left = onp.flatnonzero(counts < 0)
        with library_errors(may_panic=self._may_panic):
            found = self._plain.encode_batch(
                [lines[begins[k]:ends[k]].decode() for k in left])
        counts, ids = _replaced_ids(counts, ids, left,
                                    [encoding.ids for encoding in found])
        for word, its_ids in self._fixed.items():
            if word.encode() in lines:
                line = rb'(?m)^%b$' % re.escape(word.encode())
                places = onp.searchsorted(ends, [
                    match.start() for match in re.finditer(line, lines)])
                counts, ids = _replaced_ids(counts, ids, places,
                                            [its_ids] * len(places))
        return counts, ids


class TextCutter:
    """Converts texts to the ids that a tokenizer gives them, in C++.

    It leaves texts to the library that are not printable ASCII, and texts
    with added tokens such as [MASK]. `of` constructs it.
    """

    def __init__(self, pieces, added_tokens, begin, end):
        """begin, end: the special ids before and after those of a text."""
        self._pieces, self._begin, self._end = pieces, begin, end
        # The library also finds some added tokens in other case
        self._has_added_token = re.compile(
            '|'.join(map(re.escape, added_tokens)), re.IGNORECASE).search

    @classmethod
    def of(cls, tokenizer):
        """The cutter of a tokenizer; None if C++ cannot do the same."""
        pieces = _compiled(_without_added_tokens(tokenizer))
        if pieces is None:
            return None
        added = [token.content for token
                 in tokenizer.get_added_tokens_decoder().values()]
        # The library normalizes some added tokens before it looks for them
        if not all(token.isascii() and token.isprintable() for token in added):
            return None
        alone = tokenizer.encode('a', add_special_tokens=False).ids
        whole = tokenizer.encode('a')
        first = whole.special_tokens_mask.index(0)
        last = first + len(alone)
        if not added or whole.ids[first:last] != alone or any(whole.type_ids):
            return None
        return cls(pieces, added, whole.ids[:first], whole.ids[last:])

    def __call__(self, texts):
        """The ids of each text, special ones included: N lists of ids.

        None takes the place of the ids of a text that the library must cut.
        """
        is_cut = [*map(self._can_cut, texts)]
        lines = ''.join(f'{text}\n' for text in itertools.compress(
            texts, is_cut))
        counts, ids = self._pieces.cut(lines.encode())
        ids, begin, counts = ids.tolist(), 0, iter(counts.tolist())
        all_ids = []
        for cut in is_cut:
            if not cut:
                all_ids.append(None)
                continue
            end = begin + next(counts)
            all_ids.append([*self._begin, *ids[begin:end], *self._end])
            begin = end
        return all_ids

    def _can_cut(self, text):
        return (text.isascii() and text.isprintable()
                and self._has_added_token(text) is None)


def _without_added_tokens(tokenizer):
    """A tokenizer that splits words that look like added tokens."""
    plain = library().Tokenizer(tokenizer.model)
    for part in ('normalizer', 'pre_tokenizer'):
        if getattr(tokenizer, part) is not None:
            setattr(plain, part, getattr(tokenizer, part))
    return plain


def _parts(lines):
    """Yield lines, bytes, in parts of about `PART` bytes; at least one."""
    begin = 0
    while len(lines) - begin > PART:
        end = lines.index(b'\n', begin + PART) + 1
        yield lines[begin:end]
        begin = end
    yield lines[begin:]


def _compiled(tokenizer):
    """The C++ equivalent of a tokenizer of the library, or None.

    It leaves words with characters outside ASCII to the library.
    """
    vocab, model = tokenizer.get_vocab(), tokenizer.model
    if (draw.library() is None or not is_bert(tokenizer)
            or type(tokenizer.pre_tokenizer).__name__ != 'BertPreTokenizer'
            or model.unk_token not in vocab):
        return None
    begin, more = {}, {}
    for token, idx in vocab.items():
        if continues(token):
            more[token[len(MORE):]] = idx
        else:
            begin[token] = idx
    return compiled.Pieces(
        begin, more, vocab[model.unk_token], model.max_input_chars_per_word,
        tokenizer.normalizer.lowercase)


def _replaced_ids(counts, ids, places, found):
    """Replace the ids of the words at `places` by the lists in `found`.

    counts: the number of ids of each word; -1 and no ids for words that have
    none yet. Returns counts and ids of all words.
    """
    if not len(places):
        return counts, ids
    word_stays = onp.ones(len(counts), bool)
    word_stays[places] = False
    old = ids[onp.repeat(word_stays, onp.maximum(counts, 0))]
    counts[places] = [*map(len, found)]
    id_stays = onp.repeat(word_stays, counts)
    ids = onp.empty(len(id_stays), 'int32')
    ids[id_stays] = old
    ids[~id_stays] = onp.fromiter(itertools.chain.from_iterable(found),
                                  'int32')
    return counts, ids


def continues(token):
    """True if a piece continues the word of the piece before it."""
    return len(token) > len(MORE) and token.startswith(MORE)
