"""Tokenizers: texts to ids and back.

`WordPiece` loads, trains and saves the tokenizers of released checkpoints,
with the library `tokenizers`. `WholeWords` has the same methods for the
`Vocab` of a run. Sources: Devlin et al. 2018, section 3; Wu et al. 2016,
section 4.1.
"""
import functools
import json
import re
import weakref
from pathlib import Path

from d2lbert.machine import files
from d2lbert.machine.workers import interruptible
from d2lbert.pretrained.tokenizers import bpe, word_pieces
from d2lbert.pretrained.tokenizers.encoded import (
    NAMES,
    ROLES,
    Details,
    Encoded,
    Tokens,
    check_pairs,
    check_text,
    cut_to_fit,
    is_word_alone,
    listed,
    room_of,
)
from d2lbert.pretrained.tokenizers.word_pieces import TokenizerError
from d2lbert.text import CLS, MASK, PAD, RESERVED, SEP, UNK, Vocab

TOKENIZER, CONFIG, VOCAB = (
    'tokenizer.json', 'tokenizer_config.json', 'vocab.txt')

#: All file names of tokenizers.
FILES = (TOKENIZER, CONFIG, VOCAB, bpe.VOCAB_JSON, bpe.MERGES, bpe.CODES)

#: Options of BERT's normalizer: the name in tokenizer_config.json, the name in
#: the library, and the default.
NORMALIZER = (('do_lower_case', 'lowercase', True),
              ('strip_accents', 'strip_accents', None),
              ('tokenize_chinese_chars', 'handle_chinese_chars', True))

#: From this number of texts on, a tokenizer encodes in C++. To construct its
#: tables takes as long as to encode some thousand texts with the library.
MANY = 512

#: Longer texts, in characters, are encoded in a thread, so that Ctrl-C works.
LONG = 1 << 20

#: From this model_max_length on, tokenizer_config.json means no limit.
NO_LIMIT = 1 << 30


class WordPiece(Tokens):
    """BERT's word pieces, or any other `tokenizer.json`.

    `train` and `load` construct one. It is thread-safe.
    """

    def __init__(self, tokenizer, special, max_len=None, config=None,
                 tokens=None, files=None):
        """Wrap a tokenizer of the library; special: {role: token}.

        tokens: the tokens that have ids in the model, if the library's
        tokenizer has more; the others become the unknown token. files:
        {name: text}, saved in place of tokenizer.json.
        """
        self.tokenizer, self.config = tokenizer, dict(config or {})
        self.files = files
        self._may_panic = word_pieces.has_expressions(tokenizer)
        # A `TextCutter`, or False if there is none for this tokenizer
        self._cutter, self._num_encoded = None, 0
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if tokens is None:
            numbers = tokenizer.get_vocab(with_added_tokens=True)
            tokens = word_pieces.by_number(numbers, special=special.values())
        self._set_tokens(tokens, special, max_len)
        for token in special.values():
            if token not in self.token_to_idx:
                raise TokenizerError('the tokenizer is damaged: another token '
                                     f'has the number of {token}; fetch it '
                                     'again')

    def to_json(self):
        """The whole tokenizer as text, for `from_json`."""
        return json.dumps(dict(
            tokenizer=self.tokenizer.to_str(), special=self.special,
            max_len=self.max_len, config=self.config))

    @classmethod
    def from_json(cls, text):
        """The tokenizer that `to_json` wrote.

        Raises ValueError, TypeError or KeyError for other text.
        """
        found = files.parse_json(text)
        with word_pieces.library_errors('its own description'):
            tokenizer = word_pieces.library().Tokenizer.from_str(
                found['tokenizer'])
        return cls(tokenizer, found['special'], found['max_len'],
                   found['config'])

    def described(self):
        """Everything that its ids depend on, as JSON values."""
        return [self.idx_to_token, self.special,
                *word_pieces.described(self.tokenizer)]

    @property
    def has_pieces(self):
        """True if the model is WordPiece."""
        return word_pieces.has_pieces(self.tokenizer)

    @classmethod
    def train(cls, files, vocab_size, lowercase=True, strip_accents=None,
              min_frequency=2, max_len=512):
        """Train `vocab_size` word pieces on text files, deterministically.

        files: a path or several, plain or compressed, see
        `texts.text_files`; the word <unk> of WikiText is ignored.
        strip_accents: None follows `lowercase`, as published. Raises OSError
        and ValueError with file and line.
        """
        return cls.of_counts(word_pieces.count_words(files), vocab_size,
                             lowercase, strip_accents, min_frequency, max_len)

    @classmethod
    def of_counts(cls, counts, vocab_size, lowercase=True,
                  strip_accents=None, min_frequency=2, max_len=512):
        """Train on word counts, {word: count}, as `train`."""
        special = {role: NAMES[role][0] for role in ROLES}
        normalizer = dict(lowercase=lowercase, strip_accents=strip_accents)
        tokens = word_pieces.learn(counts, vocab_size, list(special.values()),
                              normalizer, min_frequency)
        return cls(word_pieces.bert(tokens, special, **normalizer), special,
                   max_len)

    @classmethod
    def load(cls, path):
        """Load a folder, or a tokenizer.json or vocab.txt.

        Options for lower case and accents come from tokenizer_config.json,
        else from tokenizer.json; the default is BERT's, lower case. Padding
        and truncation in tokenizer.json are ignored. Raises
        `TokenizerError`, a ValueError, if there is no valid tokenizer.
        """
        path = Path(path)
        folder = path if path.is_dir() else path.parent
        if path.is_dir():
            if not (folder / TOKENIZER).is_file() and bpe.has_files(folder):
                return cls._load_bpe(folder)
            found = [folder / name for name in (TOKENIZER, VOCAB)
                     if (folder / name).is_file()]
            if not found:
                raise TokenizerError(
                    f'{folder} holds no tokenizer: expected {TOKENIZER} or '
                    f'{VOCAB} in it')
            path = found[0]
        elif not path.is_file():
            raise FileNotFoundError(
                f'{path} is neither a folder nor a file: name a folder with '
                f'{TOKENIZER} or {VOCAB}, or one of these files')
        config = _config(folder)
        options = {ours: _choice(config[theirs], theirs, default, folder)
                   for theirs, ours, default in NORMALIZER
                   if theirs in config}
        tokens = None
        if path.suffix == '.json':
            tokenizer = word_pieces.read(path)
            word_pieces.change_normalizer(tokenizer, options)
            vocab = tokenizer.get_vocab()
            special = _special(vocab, config, path)
            tokens = word_pieces.by_number(vocab, path, special.values())
        else:
            lines = word_pieces.read_vocab(path)
            special = _special(set(lines), config, path)
            tokenizer = word_pieces.bert(lines, special, **{
                **{ours: default for _, ours, default in NORMALIZER},
                **options})
        if tokenizer.post_processor is None:
            tokenizer.post_processor = word_pieces.template(tokenizer, special)
        return cls(tokenizer, special, _limit(config), config, tokens)

    @classmethod
    def _load_bpe(cls, folder):
        config = _config(folder)
        tokenizer, special, tokens, texts = bpe.read(folder, config, _special)
        return cls(tokenizer, special, _limit(config), config, tokens, texts)

    def save(self, folder):
        """Write tokenizer.json, tokenizer_config.json and vocab.txt.

        transformers' AutoTokenizer loads them. vocab.txt is for word pieces
        only. PhoBERT's and FlauBERT's tokenizers are saved in the files that
        they were loaded from.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = dict(self.config)
        for name in ('name_or_path', 'tokenizer_file', 'vocab_file',
                     'special_tokens_map_file', 'auto_map'):
            config.pop(name, None)
        if word_pieces.is_bert(self.tokenizer):
            normalizer = self.tokenizer.normalizer
            config.update({theirs: getattr(normalizer, ours)
                           for theirs, ours, _ in NORMALIZER})
            config['tokenizer_class'] = 'BertTokenizer'
            files.write_text(folder / VOCAB, ''.join(
                f'{token}\n' for token in self.idx_to_token))
        for name, text in (self.files or {}).items():
            files.write_text(folder / name, text)
        if self.files is None:
            config.setdefault('tokenizer_class', 'PreTrainedTokenizerFast')
            config.update({f'{role}_token': token
                           for role, token in self.special.items()})
        if self.max_len is not None:
            config['model_max_length'] = self.max_len
        files.write_text(folder / CONFIG, json.dumps(
            config, indent=2, ensure_ascii=False) + '\n')
        if self.files is None:
            files.write_text(folder / TOKENIZER, self.tokenizer.to_str(
                pretty=True))

    def encode_batch(self, texts, pairs=None, max_len=None):
        """Encode N texts, or N pairs of texts: a list of N `Encoded`.

        pairs: the N second texts, or None. max_len: as for `encode`.
        """
        return self._encode(texts, pairs, max_len, False)

    def encode_words(self, words, pair=None, max_len=None):
        """Encode a text that is a list of words: an `Encoded`.

        Its `words` are indices into the list, its offsets are within a word.
        """
        return self._encode(
            [listed(words, 'words')],
            None if pair is None else [listed(pair, 'words')], max_len,
            True)[0]

    def decode(self, ids):
        """Decode a list of ids as text, without special tokens."""
        with word_pieces.library_errors('these tokens', self._may_panic):
            return self.tokenizer.decode(ids, skip_special_tokens=True)

    def _encode(self, texts, pairs, max_len, are_words):
        texts = listed(texts, 'texts')
        room = room_of(self, max_len, pairs is not None)
        if pairs is None and room is None:
            if not are_words:
                return self._encode_whole(texts)
            return [*map(self._encoded, self._encode_alone(texts, True,
                                                           special=True))]
        firsts = self._encode_alone(texts, are_words)
        if pairs is None:
            seconds = [None] * len(firsts)
        else:
            seconds = self._encode_alone(check_pairs(pairs, texts),
                                         are_words)
        with word_pieces.library_errors():
            return [self._encoded(self._joined(first, second, room))
                    for first, second in zip(firsts, seconds)]

    def _encode_whole(self, texts):
        """Encode texts with special tokens, in C++ where that is possible."""
        self._num_encoded += len(texts)
        if self._cutter is None and self._num_encoded >= MANY:
            self._cutter = word_pieces.TextCutter.of(self.tokenizer) or False
        all_ids = (self._cutter(list(map(check_text, texts)))
                   if self._cutter else [None] * len(texts))
        left = [text for text, ids in zip(texts, all_ids) if ids is None]
        others = iter(self._encode_alone(left, False, special=True))
        return [self._encoded(next(others)) if ids is None else Encoded(
            ids, [0] * len(ids), functools.partial(self._details, text))
            for text, ids in zip(texts, all_ids)]

    def _details(self, text):
        whole, = self._encode_alone([text], False, special=True)
        return self._encoded(whole).details

    def _encode_alone(self, texts, are_words, special=False):
        """Encode each text by itself with the library.

        are_words: texts are lists of words. special: add special tokens.
        """
        length = 0
        for text in texts:
            for part in text if are_words else [text]:
                length += len(check_text(part))

        options = dict(is_pretokenized=are_words, add_special_tokens=special)

        def encode(is_abandoned=None):
            return self.tokenizer.encode_batch(texts, **options)
        with word_pieces.library_errors(may_panic=self._may_panic):
            if length >= LONG:
                return interruptible(encode)
            # In the library's encode_batch, threads would mostly wait
            # for each other's memory on so few texts
            return [self.tokenizer.encode(text, **options) for text in texts]

    def _joined(self, first, second, room):
        """Truncate to the room, join, and add special tokens."""
        if room is not None:
            lengths = cut_to_fit(len(first.ids), None if second is None
                                 else len(second.ids), room)
            first.truncate(lengths[0])
            if second is not None:
                second.truncate(lengths[1])
        return self.tokenizer.post_process(first, second)

    def _encoded(self, whole):
        """The `Encoded` for the library's encoding of a text or a pair."""
        ids = whole.ids
        if self.files is not None:
            ids = [idx if idx < len(self) else self.unk_id for idx in ids]

        def details():
            tokens = whole.tokens if self.files is None else [
                self.idx_to_token[idx] for idx in ids]
            return Details(tokens, whole.offsets, whole.word_ids)
        return Encoded(ids, whole.type_ids, details)

    def num_special(self, is_pair=False):
        """The number of special tokens in a text, or in a pair."""
        return self.tokenizer.num_special_tokens_to_add(is_pair)


class WholeWords(Tokens):
    """The words of a run's `Vocab`, in lower case.

    White space separates words. Each punctuation mark is a word by itself if
    it was one in the text of the vocabulary. Such a vocabulary has tokens
    that are single marks, and no token of a mark and other characters.
    """

    def __init__(self, vocab, max_len=None):
        self.vocab = vocab
        self._is_prose = _is_of_prose(vocab)
        self._set_tokens(vocab.idx_to_token, dict(
            pad=PAD, unk=UNK, cls=CLS, sep=SEP, mask=MASK), max_len)

    @classmethod
    def of(cls, tokenizer):
        """Convert a `WordPiece` loaded from the files of a `WholeWords`.

        Returns None for any other `WordPiece`.
        """
        tokens, reserved = tokenizer.idx_to_token, [UNK, *RESERVED]
        if (tokens[:len(reserved)] != reserved
                or not word_pieces.is_whole_words(tokenizer.tokenizer)):
            return None
        return cls(Vocab.from_freqs(
            [(token, 0) for token in tokens[len(reserved):]], 0, RESERVED))

    def save(self, folder):
        """Write vocab.txt and the files that AutoTokenizer loads."""
        WordPiece(word_pieces.whole_words(
            self.idx_to_token, self.special, self._is_prose),
            self.special, self.max_len).save(folder)
        self.vocab.save(Path(folder) / VOCAB)

    def encode_batch(self, texts, pairs=None, max_len=None):
        """As `WordPiece.encode_batch`."""
        texts = listed(texts, 'texts')
        firsts = [self._of_text(text) for text in texts]
        seconds = [None] * len(firsts) if pairs is None else [
            self._of_text(text) for text in check_pairs(pairs, texts)]
        return [self._joined(*both, max_len) for both in zip(firsts, seconds)]

    def encode_words(self, words, pair=None, max_len=None):
        """As `WordPiece.encode_words`; here each word is one token."""
        first, second = (None if some is None else [
            (word.lower(), (0, len(word)))
            for word in map(check_text, listed(some, 'words'))]
            for some in (words, pair))
        return self._joined(first, second, max_len)

    def decode(self, ids):
        """As `WordPiece.decode`."""
        special = set(self.special_ids)
        return ' '.join(self.vocab.to_tokens(
            [idx for idx in ids if idx not in special]))

    def _of_text(self, text):
        """The words of a text in lower case, each with its (begin, end)."""
        words = re.finditer(r'\S+', check_text(text))
        if self._is_prose:
            words = (part for word in words
                     for part in self._parts(text, *word.span()))
        else:
            words = (word.span() for word in words)
        return [(text[begin:end].lower(), (begin, end))
                for begin, end in words]

    def _parts(self, text, begin, end):
        """Yield the (begin, end) of words and marks in text[begin:end]."""
        while begin < end:
            special = next((token for token in self.special.values()
                            if text.startswith(token, begin)), None)
            part_end = begin + len(special or text[begin])
            if special is None and not is_word_alone(text[begin]):
                while part_end < end and not is_word_alone(text[part_end]):
                    part_end += 1
            yield begin, part_end
            begin = part_end

    def _joined(self, first, second, max_len):
        room = room_of(self, max_len, second is not None)
        if room is not None:
            lengths = cut_to_fit(len(first), None if second is None
                                 else len(second), room)
            first = first[:lengths[0]]
            second = second and second[:lengths[1]]
        rows = [(self.cls_id, 0, (0, 0), None)]
        for segment, some in enumerate((first, second)):
            if some is not None:
                rows += [(self.vocab[word], segment, span, k)
                         for k, (word, span) in enumerate(some)]
                rows.append((self.sep_id, segment, (0, 0), None))
        ids, segments, offsets, words = map(list, zip(*rows))
        return Encoded(ids, segments, lambda: Details(
            self.vocab.to_tokens(ids), offsets, words))

    @staticmethod
    def num_special(is_pair=False):
        """The number of special tokens in a text, or in a pair."""
        return 3 if is_pair else 2


# {vocabulary: result of `_is_of_prose`}. A vocabulary gets a tokenizer for
# each call of `encode`, and looking through its words takes longer than a text
_of_prose = weakref.WeakKeyDictionary()


def _is_of_prose(vocab):
    """True if marks were words in a vocabulary's text, see `WholeWords`."""
    if vocab not in _of_prose:
        words = set(vocab.idx_to_token).difference((UNK, *RESERVED))
        marks = set(filter(is_word_alone, set(''.join(words))))
        _of_prose[vocab] = {len(word) for word in words
                            if not marks.isdisjoint(word)} == {1}
    return _of_prose[vocab]


def as_tokenizer(tokenizer):
    """Return a tokenizer as it is, and for a `Vocab` its tokenizer."""
    if not isinstance(tokenizer, Vocab):
        return tokenizer
    if tokenizer.tokenizer is not None:
        return tokenizer.tokenizer
    missing = [token for token in RESERVED
               if token not in tokenizer.token_to_idx]
    if missing:
        raise ValueError(f'the vocabulary has no token {", ".join(missing)}: '
                         'make it with these reserved_tokens')
    return WholeWords(tokenizer)


# Settings in a folder

def is_in(folder):
    """True if a folder has files of a tokenizer other than vocab.txt."""
    folder = Path(folder)
    return (folder / TOKENIZER).is_file() or bpe.has_files(folder)


def _config(folder):
    """The fields of special_tokens_map.json and tokenizer_config.json."""
    config = {}
    for name in ('special_tokens_map.json', CONFIG):
        if (folder / name).is_file():
            config.update(word_pieces.read_json(folder / name))
    return config


def _special(vocab, config, path):
    """The special tokens of a folder, {role: token}."""
    special = {}
    for role in ROLES:
        name = config.get(f'{role}_token')
        if isinstance(name, dict):
            name = name.get('content')
        names = [name] if isinstance(name, str) else NAMES[role]
        token = next((name for name in names if name in vocab), None)
        if token is not None:
            special[role] = token
        elif role != 'mask':
            raise TokenizerError(
                f'{path} has no token {names[0]!r}, which should be the '
                f'{role} token: it is damaged, no tokenizer of a BERT, or '
                f'lacks its {CONFIG}')
    return special


def _choice(value, name, default, folder):
    """An option of the normalizer: True, False, or the default."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise TokenizerError(f'{name} in {folder / CONFIG} must be true or '
                             f'false, not {value!r}')
    return value


def _limit(config):
    """The maximum number of tokens in tokenizer_config.json, or None."""
    limit = config.get('model_max_length')
    if (isinstance(limit, (int, float)) and not isinstance(limit, bool)
            and 0 < limit < NO_LIMIT):
        return int(limit)
    return None
