"""Word pieces by the library `tokenizers`: made, learnt, read.

What `wordpiece.WordPiece` stands on; nobody else calls the library.
"""
import collections
import contextlib
import itertools
import json
import re
from pathlib import Path

import numpy as onp

from d2lbert.kernels import cut as compiled
from d2lbert.kernels import draw
from d2lbert.machine import files
from d2lbert.machine.threads import in_order, interruptible
from d2lbert.text import UNK
from d2lbert.texts import text_files
from d2lbert.texts.words import line_ends

# Letters of a word; longer words are unknown, as in BERT
MAX_WORD = 100

# Letters that pieces are made of; words with others become [UNK]
MAX_LETTERS = 1000

# Words that are counted at a time; when there are more, the rarer half is
# forgotten
MAX_TYPES = 1 << 21

# Words that the library is given to count: of more, all counts are divided
MAX_WORDS = 1 << 23

# Bytes of words that are cut at a time
STRETCH = 1 << 19

MORE = '##'     # begins a piece that goes on with a word


class TokenizerError(ValueError):
    """Why a tokenizer cannot be read, in one sentence."""


def library():
    """The library; ImportError with a sentence where it is missing."""
    try:
        import tokenizers
    except ImportError:
        raise ImportError(
            'word pieces need the library tokenizers: pip install '
            "'.[pretrained]' brings it") from None
    return tokenizers


# Making one

def bert(tokens, special, lowercase=True, strip_accents=None,
         handle_chinese_chars=True):
    """BERT's tokenizer of a list of tokens; special: {role: token}."""
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


def whole_words(tokens, special):
    """One whose tokens are lower-case words, as blanks part them."""
    t = library()
    tokenizer = t.Tokenizer(t.models.WordLevel(
        {token: idx for idx, token in enumerate(tokens)},
        unk_token=special['unk']))
    tokenizer.normalizer = t.normalizers.Lowercase()
    tokenizer.pre_tokenizer = t.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = template(tokenizer, special)
    return tokenizer


def is_whole_words(tokenizer):
    """Whether a tokenizer is what `whole_words` makes."""
    t = library()
    return (isinstance(tokenizer.model, t.models.WordLevel)
            and isinstance(tokenizer.normalizer, t.normalizers.Lowercase)
            and isinstance(tokenizer.pre_tokenizer,
                           t.pre_tokenizers.WhitespaceSplit))


def template(tokenizer, special):
    """What puts the special tokens around a text, and around a pair."""
    cls, sep = special['cls'], special['sep']
    return library().processors.TemplateProcessing(
        single=[f'{cls}:0', '$A:0', f'{sep}:0'],
        pair=[f'{cls}:0', '$A:0', f'{sep}:0', '$B:1', f'{sep}:1'],
        special_tokens=[(token, tokenizer.token_to_id(token))
                        for token in sorted({cls, sep})])


# Learning one

def count_words(paths):
    """How often each word of text files occurs, as blanks part them."""
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
    """The tokens learnt from {word: how often}: a list, the same each time.

    special: tokens that come first. Then come the letters, all of them and
    those that go on with a word, and then the pieces in the order in which
    they were learnt.
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
    # The library numbers letters within words as its hash table has them,
    # and of pairs that are as frequent joins the one with lower numbers.
    # Tokens that it is given as special have their numbers before that
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
    """The same counts for what BERT makes of the words before it cuts them.

    Without words that are too long for it.
    """
    t = library()
    normalizer = t.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, **options)
    cut = t.pre_tokenizers.BertPreTokenizer()
    normalized, lower = collections.Counter(), normalizer.lowercase
    for word, count in counts.items():
        if word == UNK:     # WikiText's, for words that it leaves out
            continue
        if word.isascii() and word.isalnum():
            # Of these nothing is left out or set apart
            if len(word) <= MAX_WORD:
                normalized[word.lower() if lower else word] += count
            continue
        for part, _ in cut.pre_tokenize_str(normalizer.normalize_str(word)):
            if len(part) <= MAX_WORD:
                normalized[part] += count
    return normalized


def _repeated(counts):
    """Texts in which each word occurs as often as it was counted."""
    total = sum(counts.values())
    divisor = -(-total // MAX_WORDS)
    for word, count in counts.items():
        count = (count + divisor // 2) // divisor
        for begin in range(0, count, 1 << 14):
            yield ' '.join([word] * min(1 << 14, count - begin))


# Reading one

def read_json(path):
    """The object in a JSON file."""
    try:
        found = files.read_json(path)
        if not isinstance(found, dict):
            raise ValueError(f'it holds a {type(found).__name__}')
    except ValueError as error:
        raise TokenizerError(f'{path} is damaged, it is no JSON object '
                             f'({error}): fetch it again') from None
    return found


def read(path):
    """The library's tokenizer in a tokenizer.json."""
    found = read_json(path)
    if not isinstance(found.get('model'), dict):
        raise TokenizerError(f'{path} holds no tokenizer: expected a '
                             'tokenizer.json with a model in it')
    try:
        with asking():
            tokenizer = library().Tokenizer.from_str(json.dumps(found))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise TokenizerError(
            f'{path} holds no tokenizer that the library tokenizers can read '
            f'({error}): it is damaged, or of a later version') from None
    by_number(tokenizer.get_vocab(with_added_tokens=True), path)
    return tokenizer


def read_vocab(path):
    """The tokens of a vocab.txt, one a line."""
    data = Path(path).read_bytes()
    try:
        tokens = data.decode('utf-8').replace('\r\n', '\n').split('\n')
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f'{path}, line {1 + data.count(10, 0, error.start)}: not UTF-8: '
            'expected a vocabulary, a token a line') from None
    while tokens and not tokens[-1]:
        tokens.pop()
    if not tokens:
        raise TokenizerError(f'{path} is empty: expected a vocabulary, a '
                             'token a line')
    return tokens


def by_number(vocab, name='the tokenizer', special=()):
    """The tokens of {token: number} as a list, '' where there is none.

    special: tokens that must have a number of their own. Raises
    `TokenizerError` if another token has it, and for numbers far beyond that
    of tokens.
    """
    count = 1 + max(vocab.values(), default=-1)
    if count > 2 * len(vocab) + 1000:
        raise TokenizerError(f'{name} is damaged: it numbers {len(vocab)} '
                             f'tokens up to {count - 1}; fetch it again')
    # The library gives tokens in another order each time, so which of two
    # would be in the list is chance
    uses = collections.Counter(vocab.values())
    for token in special:
        if uses[vocab.get(token)] > 1:
            raise TokenizerError(f'{name} is damaged: another token has the '
                                 f'number of {token}; fetch it again')
    tokens = [''] * count
    for token, idx in vocab.items():
        tokens[idx] = token
    return tokens


def has_pieces(tokenizer):
    """Whether a tokenizer of the library cuts words into pieces."""
    model = tokenizer.model
    return (type(model).__name__ == 'WordPiece'
            and model.continuing_subword_prefix == MORE)


def described(tokenizer):
    """What its pieces depend on beside the vocabulary, as JSON has it."""
    if not is_bert(tokenizer):
        return [tokenizer.to_str()]
    normalizer = tokenizer.normalizer
    return [normalizer.clean_text, normalizer.handle_chinese_chars,
            normalizer.strip_accents, normalizer.lowercase,
            tokenizer.model.max_input_chars_per_word]


def is_bert(tokenizer):
    """Whether it is BERT's kind of tokenizer."""
    return (has_pieces(tokenizer)
            and type(tokenizer.normalizer).__name__ == 'BertNormalizer')


def change_normalizer(tokenizer, options):
    """Let BERT's normalizer be as `options` say; others stay as they are."""
    found = json.loads(tokenizer.to_str()).get('normalizer') or {}
    if options and found.pop('type', '') == 'BertNormalizer':
        tokenizer.normalizer = library().normalizers.BertNormalizer(
            **{**found, **options})


@contextlib.contextmanager
def asking(what='this text'):
    """Turn an error of the library into a `TokenizerError`.

    It raises bare Exceptions, and panics, which are no Exceptions, where the
    regular expression of a tokenizer takes too many steps.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is Exception or type(
                error).__name__ == 'PanicException':
            raise TokenizerError(f'the tokenizer cannot serve {what} '
                                 f'({error}): choose another tokenizer'
                                 ) from None
        raise


class WordCutter:
    """Cuts words into the pieces of a tokenizer, without special tokens.

    given: {word: its ids} of words that are not to be cut. A word that looks
    like a special token is a word here.
    """

    def __init__(self, tokenizer, given):
        self._plain, self._given = library().Tokenizer(tokenizer.model), given
        for part in ('normalizer', 'pre_tokenizer'):
            if getattr(tokenizer, part) is not None:
                setattr(self._plain, part, getattr(tokenizer, part))
        self._fast = _compiled(self._plain)

    def __call__(self, lines):
        """The ids of words, bytes, a line each.

        Returns ids (all,) int32 and begins (words + 1,) int64: those of word
        k are ids[begins[k]:begins[k + 1]].
        """
        # For a single part threads would cost more than they save
        counts, ids = zip(*in_order(self._cut, _stretches(lines),
                                    1 if len(lines) <= STRETCH else None))
        return onp.concatenate(ids), onp.cumsum(
            onp.concatenate([[0], *counts]), dtype='int64')

    def _cut(self, lines):
        ends = line_ends(lines)
        begins = onp.append(0, ends[:-1] + 1)
        counts, ids = onp.full(len(ends), -1, 'int32'), onp.empty(0, 'int32')
        if self._fast is not None:
            counts, ids = self._fast.cut(lines)
        left = onp.flatnonzero(counts < 0)
        with asking():
            found = self._plain.encode_batch(
                [lines[begins[k]:ends[k]].decode() for k in left])
        counts, ids = _filled(counts, ids, left,
                              [encoding.ids for encoding in found])
        for word, its_ids in self._given.items():
            if word.encode() in lines:
                places = onp.searchsorted(ends, [found.start() for found in
                                                 re.finditer(
                    rb'(?m)^%b$' % re.escape(word.encode()), lines)])
                counts, ids = _filled(counts, ids, places,
                                      [its_ids] * len(places))
        return counts, ids


def _stretches(lines):
    """Lines, bytes, in parts of about so many bytes; at least one part."""
    begin = 0
    while len(lines) - begin > STRETCH:
        end = lines.index(b'\n', begin + STRETCH) + 1
        yield lines[begin:end]
        begin = end
    yield lines[begin:]


def _compiled(tokenizer):
    """What cuts as a tokenizer of the library does, in C++; None: nothing.

    It leaves words that have more than letters of ASCII to the library.
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


def _filled(counts, ids, places, found):
    """counts and ids of words, some of which get others: lists of ids."""
    if not len(places):
        return counts, ids
    stays = onp.ones(len(counts), bool)
    stays[places] = False
    old = ids[onp.repeat(stays, onp.maximum(counts, 0))]
    counts[places] = [*map(len, found)]
    stays = onp.repeat(stays, counts)
    ids = onp.empty(len(stays), 'int32')
    ids[stays] = old
    ids[~stays] = onp.fromiter(itertools.chain.from_iterable(found), 'int32')
    return counts, ids


def continues(token):
    """Whether a piece goes on with the word of the one before."""
    return len(token) > len(MORE) and token.startswith(MORE)
