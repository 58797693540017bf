"""This module has the tokenizers, which convert texts to ids and back.

`WordPiece` wraps the library `tokenizers`. `WholeWords` encodes with the
`Vocab` of a run, where each word is a token. Sources: Devlin et al. 2018,
section 3; Wu et al. 2016, section 4.1.
"""
import functools
import json
import re
import weakref
from pathlib import Path

from d2lbert.machine.files import parse_json, write_text
from d2lbert.machine.workers import interruptible
from d2lbert.pretrained.tokenizers import bpe, word_pieces
from d2lbert.pretrained.tokenizers.encoded import (
    DEFAULT_TOKENS,
    ROLES,
    BaseTokenizer,
    Details,
    Encoded,
    as_list,
    check_pairs,
    check_text,
    configured_token,
    is_word_alone,
    max_text_len,
    truncated_lengths,
)
from d2lbert.pretrained.tokenizers.word_pieces import TokenizerError
from d2lbert.text import CLS, MASK, PAD, RESERVED, SEP, UNK, Vocab

TOKENIZER, CONFIG, VOCAB = (
    'tokenizer.json', 'tokenizer_config.json', 'vocab.txt')

#: All files that `save` of a tokenizer can write.
FILES = (TOKENIZER, CONFIG, VOCAB, bpe.VOCAB_JSON, bpe.MERGES, bpe.CODES)

#: Options of BERT's normalizer: (name in tokenizer_config.json, name in the
#: library, default).
NORMALIZER_FIELDS = (
    ('do_lower_case', 'lowercase', True),
    ('strip_accents', 'strip_accents', None),
    ('tokenize_chinese_chars', 'handle_chinese_chars', True))

#: A tokenizer encodes in C++ once it has got this number of texts without pair
#: or max_len. Making the C++ tables takes as long as encoding some hundred
#: texts with the library.
MIN_CPP_TEXTS = 512

#: Texts with this number of characters in all are encoded by `interruptible`,
#: so that Ctrl-C works.
LONG_CHARS = 1 << 20

#: A model_max_length of this or more in tokenizer_config.json means no limit.
NO_LIMIT = 1 << 30


class WordPiece(BaseTokenizer):
    """A tokenizer of the library `tokenizers`.

    `train` makes word pieces. `load` also reads byte pair encodings (BPE) and
    others. Threads may share a `WordPiece`.
    """

    def __init__(self, tokenizer, special, max_len=None, config=None,
                 tokens=None, files=None):
        """Wrap a tokenizer of the library; special: {role: token}.

        max_len: the number of tokens that the model can read, or None;
        `encode` does not apply it. config: the fields of
        tokenizer_config.json. tokens: the model's tokens by id; None for all
        tokens of the tokenizer. files: {name: text} to save in place of
        tokenizer.json, or None. With files, the tokenizer may have tokens that
        the model lacks. They become the unknown token.
        """
        self.tokenizer, self.config = tokenizer, dict(config or {})
        self.files = files
        # Encodes texts that `_join` truncates and joins
        self._text_tokenizer = word_pieces.without_post_processor(tokenizer)
        self._may_panic = word_pieces.has_regex(tokenizer)
        self._num_untruncated = 0       # texts that count for MIN_CPP_TEXTS
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if tokens is None:
            vocab = tokenizer.get_vocab(with_added_tokens=True)
            tokens = word_pieces.tokens_by_id(
                vocab, special_tokens=special.values())
        self._set_tokens(tokens, special, max_len)
        for token in special.values():
            if token not in self.token_to_idx:
                raise TokenizerError('the tokenizer is damaged: another token '
                                     f'has the id of {token}; fetch it again')

    def to_json(self):
        """JSON text for `from_json`, of a tokenizer without `files`."""
        return json.dumps(dict(
            tokenizer=self.tokenizer.to_str(), special=self.special,
            max_len=self.max_len, config=self.config))

    @classmethod
    def from_json(cls, text):
        """The tokenizer that `to_json` wrote.

        Raises ValueError, TypeError, KeyError or AttributeError for any other
        text.
        """
        fields = parse_json(text)
        with word_pieces.library_errors('its own description'):
            tokenizer = word_pieces.library().Tokenizer.from_str(
                fields['tokenizer'])
        return cls(tokenizer, fields['special'], fields['max_len'],
                   fields['config'])

    def description(self):
        """All that the ids of words depend on: a list of JSON values."""
        return [self.idx_to_token, self.special,
                *word_pieces.description(self.tokenizer)]

    @property
    def has_word_pieces(self):
        """True only for word pieces with the prefix ##, not for a BPE."""
        return word_pieces.has_word_pieces(self.tokenizer)

    @classmethod
    def train(cls, files, vocab_size, lowercase=True, strip_accents=None,
              min_frequency=2, max_len=512):
        """Train word pieces on text files, deterministically.

        files: paths of one or more text files, see `texts.text_files`; the
        word <unk> of WikiText is ignored. vocab_size: the largest number of
        tokens, special tokens included. strip_accents: None follows
        `lowercase`, as in the published BERT. min_frequency: the least count
        of a piece longer than one letter. Raises OSError, and ValueError for a
        damaged file, a text without words or a too small vocab_size.
        """
        return cls.of_counts(word_pieces.count_words(files), vocab_size,
                             lowercase, strip_accents, min_frequency, max_len)

    @classmethod
    def of_counts(cls, counts, vocab_size, lowercase=True,
                  strip_accents=None, min_frequency=2, max_len=512):
        """Train on {word: count} as `train` does on files."""
        special = {role: DEFAULT_TOKENS[role][0] for role in ROLES}
        options = dict(lowercase=lowercase, strip_accents=strip_accents)
        tokens = word_pieces.train_pieces(counts, vocab_size,
                                          list(special.values()), options,
                                          min_frequency)
        return cls(word_pieces.bert_tokenizer(tokens, special, **options),
                   special, max_len)

    @classmethod
    def load(cls, path):
        """Load a tokenizer; path: a folder, a tokenizer.json or a vocab.txt.

        tokenizer_config.json sets lower case, accents and Chinese characters.
        Options that it lacks are as in tokenizer.json or, with a vocab.txt, as
        in lower-case BERT. Padding and truncation in tokenizer.json are
        ignored. Raises FileNotFoundError if `path` does not exist, and
        `TokenizerError`, a ValueError, if there is no valid tokenizer.
        """
        return cls(*_load_arguments(Path(path)))

    def save(self, folder, **fields):
        """Write tokenizer.json, tokenizer_config.json and vocab.txt.

        AutoTokenizer of transformers loads these files. vocab.txt is written
        only for word pieces with BERT's normalizer. A tokenizer of PhoBERT or
        FlauBERT is written as tokenizer_config.json and its original files.
        fields: more fields of tokenizer_config.json.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = dict(self.config)
        # These fields name files or code that the new folder does not have
        for name in ('name_or_path', 'tokenizer_file', 'vocab_file',
                     'special_tokens_map_file', 'auto_map'):
            config.pop(name, None)
        if word_pieces.has_bert_normalizer(self.tokenizer):
            normalizer = self.tokenizer.normalizer
            config.update({field: getattr(normalizer, name)
                           for field, name, _ in NORMALIZER_FIELDS})
            config['tokenizer_class'] = 'BertTokenizer'
            write_text(folder / VOCAB, ''.join(
                f'{token}\n' for token in self.idx_to_token))
        for name, text in (self.files or {}).items():
            write_text(folder / name, text)
        if self.files is None:
            config.setdefault('tokenizer_class', 'PreTrainedTokenizerFast')
            config.update({f'{role}_token': token
                           for role, token in self.special.items()})
        if self.max_len is not None:
            config['model_max_length'] = self.max_len
        write_text(folder / CONFIG, json.dumps(
            {**config, **fields}, indent=2, ensure_ascii=False) + '\n')
        if self.files is None:
            write_text(folder / TOKENIZER, self.tokenizer.to_str(pretty=True))

    def encode_batch(self, texts, pairs=None, max_len=None):
        """Encode N texts, or N pairs of texts: a list of N `Encoded`.

        pairs: the N second texts, or None. max_len: as for `encode`.
        """
        return self._encode(texts, pairs, max_len, are_words=False)

    def encode_words(self, words, pair=None, max_len=None):
        """Encode a text that is a list of words: an `Encoded`.

        In the result, `words` are indices of the list, and `offsets` count
        from the beginning of a word. pair: the words of the second text, or
        None. max_len: as for `encode`.
        """
        encoded, = self._encode(
            [as_list(words, 'words')],
            None if pair is None else [as_list(pair, 'words')], max_len,
            are_words=True)
        return encoded

    def decode(self, ids):
        """Decode a list of ids as text, without special tokens."""
        with word_pieces.library_errors('these tokens', self._may_panic):
            return self.tokenizer.decode(ids, skip_special_tokens=True)

    def _encode(self, texts, pairs, max_len, are_words):
        """As `encode_batch`; are_words: each text is a list of words."""
        texts = as_list(texts, 'texts')
        max_text_tokens = max_text_len(self, max_len, pairs is not None)
        if pairs is None and max_text_tokens is None:
            if not are_words:
                return self._encode_untruncated(texts)
            return [*map(self._to_encoded, self._call_library(
                texts, are_words, add_special=True))]
        # `_join` truncates the texts and adds the special tokens
        firsts = self._call_library(texts, are_words)
        if pairs is None:
            seconds = [None] * len(firsts)
        else:
            seconds = self._call_library(check_pairs(pairs, texts), are_words)
        with word_pieces.library_errors():
            return [self._to_encoded(_join(self.tokenizer, first, second,
                                           max_text_tokens))
                    for first, second in zip(firsts, seconds)]

    def _encode_untruncated(self, texts):
        """Encode texts, and add special tokens; see `MIN_CPP_TEXTS`."""
        self._num_untruncated += len(texts)
        all_ids = [None] * len(texts)
        if (self._num_untruncated >= MIN_CPP_TEXTS
                and self._text_cutter is not None):
            all_ids = self._text_cutter(list(map(check_text, texts)))
        encodings = iter(self._call_library(
            [text for text, ids in zip(texts, all_ids) if ids is None],
            are_words=False, add_special=True))
        return [self._to_encoded(next(encodings)) if ids is None else Encoded(
            ids, [0] * len(ids), functools.partial(self._details, text))
            for text, ids in zip(texts, all_ids)]

    @functools.cached_property
    def _text_cutter(self):
        return word_pieces.TextCutter.of(self.tokenizer)

    def _details(self, text):
        """The `Details` of a text whose ids are from C++."""
        encoding, = self._call_library([text], are_words=False,
                                       add_special=True)
        return self._to_encoded(encoding).details

    def _call_library(self, texts, are_words, add_special=False):
        """Encode each text by itself: a list of the library's encodings."""
        num_chars = sum(len(check_text(part)) for text in texts
                        for part in (text if are_words else [text]))
        tokenizer = self.tokenizer if add_special else self._text_tokenizer
        options = dict(is_pretokenized=are_words)
        with word_pieces.library_errors(may_panic=self._may_panic):
            if num_chars >= LONG_CHARS:
                # The library cannot stop early, so is_abandoned is ignored
                return interruptible(
                    lambda _: tokenizer.encode_batch(texts, **options))
            # encode_batch starts threads of the library. With so little text,
            # they would mostly wait for each other to allocate memory
            return [tokenizer.encode(text, **options) for text in texts]

    def _to_encoded(self, encoding):
        """The `Encoded` for the library's encoding of a text or a pair."""
        ids = encoding.ids
        # With `files`, the tokenizer may have more tokens than the model
        if self.files is not None:
            ids = [idx if idx < len(self) else self.unk_id for idx in ids]

        def details():
            tokens = encoding.tokens if self.files is None else [
                self.idx_to_token[idx] for idx in ids]
            # Some post-processors give the first text None in sequence_ids
            return Details(tokens, encoding.offsets, encoding.word_ids,
                           [int(k == 1) for k in encoding.sequence_ids])
        return Encoded(ids, encoding.type_ids, details)

    def num_special(self, is_pair=False):
        """The number of special tokens in a text, or in a pair."""
        return self.tokenizer.num_special_tokens_to_add(is_pair)


def _join(tokenizer, first, second, max_text_tokens):
    """Truncate and join the library's encodings; add special tokens.

    second: None for a single text. max_text_tokens: the limit without special
    tokens, or None.
    """
    if max_text_tokens is not None:
        lengths = truncated_lengths(
            len(first.ids), None if second is None else len(second.ids),
            max_text_tokens)
        first.truncate(lengths[0])
        if second is not None:
            second.truncate(lengths[1])
    return tokenizer.post_process(first, second)


class WholeWords(BaseTokenizer):
    """A tokenizer that looks up lower-cased words in the `Vocab` of a run.

    White space separates words, and a special token such as <mask> is a word.
    A mark is a character of punctuation, a symbol or a Chinese character. If
    some tokens of the vocabulary are one mark, and no longer token contains a
    mark, each mark of a text is a word by itself.
    """

    def __init__(self, vocab, max_len=None):
        self.vocab = vocab
        self._marks_are_words = _has_marks_as_words(vocab)
        self._set_tokens(vocab.idx_to_token, dict(
            pad=PAD, unk=UNK, cls=CLS, sep=SEP, mask=MASK), max_len)
        special = '|'.join(map(re.escape, self.special.values()))
        # A special token, or a part of a text without special tokens
        self._part = re.compile(rf'{special}|(?:[^\s<]+|(?!{special})<)+')

    @classmethod
    def of(cls, tokenizer):
        """Convert a `WordPiece` that was loaded from a saved `WholeWords`.

        Returns None for any other `WordPiece`.
        """
        tokens, first_tokens = tokenizer.idx_to_token, [UNK, *RESERVED]
        if (tokens[:len(first_tokens)] != first_tokens
                or not word_pieces.has_whole_words(tokenizer.tokenizer)):
            return None
        return cls(Vocab.from_freqs(
            [(token, 0) for token in tokens[len(first_tokens):]], 0, RESERVED),
            tokenizer.max_len)

    def save(self, folder, **fields):
        """Write vocab.txt and the files that AutoTokenizer loads."""
        WordPiece(word_pieces.whole_word_tokenizer(
            self.idx_to_token, self.special, self._marks_are_words),
            self.special, self.max_len).save(folder, **fields)
        self.vocab.save(Path(folder) / VOCAB)

    def encode_batch(self, texts, pairs=None, max_len=None):
        """As `WordPiece.encode_batch`."""
        texts = as_list(texts, 'texts')
        firsts = [self._words_of(text) for text in texts]
        seconds = [None] * len(firsts) if pairs is None else [
            self._words_of(text) for text in check_pairs(pairs, texts)]
        return [self._to_encoded(first, second, max_len)
                for first, second in zip(firsts, seconds)]

    def encode_words(self, words, pair=None, max_len=None):
        """As `WordPiece.encode_words`; here each word is one token."""
        def with_spans(text_words):
            return [(word.lower(), (0, len(word)))
                    for word in map(check_text, as_list(text_words, 'words'))]
        return self._to_encoded(
            with_spans(words), None if pair is None else with_spans(pair),
            max_len)

    def decode(self, ids):
        """As `WordPiece.decode`."""
        special_ids = set(self.special_ids)
        return ' '.join(self.vocab.to_tokens(
            [idx for idx in ids if idx not in special_ids]))

    def _words_of(self, text):
        """The words of a text: a list of (lower-case word, (begin, end))."""
        spans, special_tokens = [], self.special.values()
        for match in self._part.finditer(check_text(text)):
            if self._marks_are_words and match.group() not in special_tokens:
                spans += self._split_marks(text, *match.span())
            else:
                spans.append(match.span())
        return [(text[begin:end].lower(), (begin, end))
                for begin, end in spans]

    @staticmethod
    def _split_marks(text, begin, end):
        """Split text[begin:end], without special tokens: yield spans."""
        while begin < end:
            word_end = begin + 1
            if not is_word_alone(text[begin]):
                while word_end < end and not is_word_alone(text[word_end]):
                    word_end += 1
            yield begin, word_end
            begin = word_end

    def _to_encoded(self, first, second, max_len):
        """The `Encoded` of one or two results of `_words_of`."""
        max_text_tokens = max_text_len(self, max_len, second is not None)
        if max_text_tokens is not None:
            lengths = truncated_lengths(
                len(first), None if second is None else len(second),
                max_text_tokens)
            first = first[:lengths[0]]
            if second is not None:
                second = second[:lengths[1]]
        # For each token: id, segment, offsets, index of the word, text index
        rows = [(self.cls_id, 0, (0, 0), None, 0)]
        for segment, text_words in enumerate((first, second)):
            if text_words is not None:
                rows += [(self.vocab[word], segment, span, k, segment)
                         for k, (word, span) in enumerate(text_words)]
                rows.append((self.sep_id, segment, (0, 0), None, 0))
        ids, segments, *columns = map(list, zip(*rows))
        return Encoded(ids, segments, lambda: Details(
            self.vocab.to_tokens(ids), *columns))

    @staticmethod
    def num_special(is_pair=False):
        """The number of special tokens in a text, or in a pair."""
        return 3 if is_pair else 2


# {vocabulary: result of `_has_marks_as_words`}. Each `d2lbert.encode` with a
# `Vocab` needs it, and computing it takes longer than encoding a text
_has_marks_cache = weakref.WeakKeyDictionary()


def _has_marks_as_words(vocab):
    """True if some tokens are one mark, and no longer token contains one."""
    if vocab not in _has_marks_cache:
        words = set(vocab.idx_to_token).difference((UNK, *RESERVED))
        marks = set(filter(is_word_alone, set(''.join(words))))
        lengths = {len(word) for word in words if not marks.isdisjoint(word)}
        _has_marks_cache[vocab] = lengths == {1}
    return _has_marks_cache[vocab]


def as_tokenizer(vocab_or_tokenizer):
    """Return a tokenizer unchanged, or the tokenizer for a `Vocab`.

    For a `Vocab` without a `tokenizer`, make a `WholeWords`. Raises ValueError
    if the `Vocab` then lacks a token of `RESERVED`.
    """
    if not isinstance(vocab_or_tokenizer, Vocab):
        return vocab_or_tokenizer
    vocab = vocab_or_tokenizer
    if vocab.tokenizer is not None:
        return vocab.tokenizer
    missing = [token for token in RESERVED if token not in vocab.token_to_idx]
    if missing:
        raise ValueError(f'the vocabulary has no token {", ".join(missing)}: '
                         'make it with these reserved_tokens')
    return WholeWords(vocab)


# Files in a folder

def has_tokenizer(folder):
    """True if a folder has a tokenizer.json, or a byte pair encoding.

    A vocab.txt alone does not count: in a run folder, it may be a `Vocab`.
    """
    folder = Path(folder)
    return (folder / TOKENIZER).is_file() or bpe.has_files(folder)


def _load_arguments(path):
    """Read the arguments of `WordPiece`; path: as for `WordPiece.load`."""
    if not path.is_dir():
        if not path.is_file():
            raise FileNotFoundError(
                f'{path} is neither a folder nor a file: name a folder with '
                f'{TOKENIZER} or {VOCAB}, or one of these files')
        return _load_file(path)
    if (path / TOKENIZER).is_file():
        return _load_file(path / TOKENIZER)
    if bpe.has_files(path):
        config = _read_config(path)
        loaded = bpe.load(path, config, _special_tokens)
        return (loaded.tokenizer, loaded.special, _read_max_len(config),
                config, loaded.tokens, loaded.files)
    if (path / VOCAB).is_file():
        return _load_file(path / VOCAB)
    raise TokenizerError(f'{path} holds no tokenizer: expected {TOKENIZER} or '
                         f'{VOCAB} in it')


def _load_file(path):
    """As `_load_arguments`, for a tokenizer.json or a vocab.txt."""
    config = _read_config(path.parent)
    options = {name: _check_option(config[field], field, default, path.parent)
               for field, name, default in NORMALIZER_FIELDS
               if field in config}
    tokens = None
    if path.suffix == '.json':
        tokenizer = word_pieces.read_tokenizer(path)
        word_pieces.change_normalizer(tokenizer, options)
        vocab = tokenizer.get_vocab()
        special = _special_tokens(vocab, config, path)
        tokens = word_pieces.tokens_by_id(vocab, path, special.values())
    else:
        lines = word_pieces.read_vocab(path)
        special = _special_tokens(set(lines), config, path)
        defaults = {name: default for _, name, default in NORMALIZER_FIELDS}
        tokenizer = word_pieces.bert_tokenizer(lines, special,
                                               **{**defaults, **options})
    if tokenizer.post_processor is None:
        tokenizer.post_processor = word_pieces.post_processor_of(
            tokenizer, special)
    return tokenizer, special, _read_max_len(config), config, tokens


def _read_config(folder):
    """The fields of special_tokens_map.json and tokenizer_config.json.

    If both have a field, the value in tokenizer_config.json is returned.
    """
    config = {}
    for name in ('special_tokens_map.json', CONFIG):
        if (folder / name).is_file():
            config.update(word_pieces.read_json(folder / name))
    return config


def _special_tokens(vocab, config, path):
    """The special tokens of a vocabulary: {role: token}.

    path: of the vocabulary, for errors. Only 'mask' may be missing.
    """
    special = {}
    for role in ROLES:
        configured = configured_token(config, role)
        candidates = (DEFAULT_TOKENS[role] if configured is None
                      else [configured])
        token = next((token for token in candidates if token in vocab), None)
        if token is not None:
            special[role] = token
        elif role != 'mask':
            raise TokenizerError(
                f'{path} has no token {candidates[0]!r}, which should be the '
                f'{role} token: the file is damaged or not from a BERT, or '
                f'its {CONFIG} is missing')
    return special


def _check_option(value, field, default, folder):
    """Return a boolean of tokenizer_config.json; `default` for null."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise TokenizerError(f'{field} in {folder / CONFIG} must be true or '
                             f'false, not {value!r}')
    return value


def _read_max_len(config):
    """The field model_max_length of `config`; None if it sets no limit."""
    limit = config.get('model_max_length')
    if (isinstance(limit, (int, float)) and not isinstance(limit, bool)
            and 0 < limit < NO_LIMIT):
        return int(limit)
    return None
