"""This module has the code that all tokenizers share.

T: the number of tokens of a text, or of a pair of texts.
"""
import functools
import re
import unicodedata
from typing import List, NamedTuple, Optional, Tuple

from d2lbert.machine.terminal import warn_once
from d2lbert.text import CLS, MASK, PAD, SEP, UNK
from d2lbert.texts.examples import truncate_pair

#: The roles of special tokens, as in tokenizer_config.json.
ROLES = ('pad', 'unk', 'cls', 'sep', 'mask')

#: {role: possible tokens}. If no file names the token of a role, it is the
#: first of these tokens that the vocabulary has.
DEFAULT_TOKENS = dict(pad=('[PAD]', PAD), unk=('[UNK]', UNK),
                      cls=('[CLS]', CLS, '<s>'), sep=('[SEP]', SEP, '</s>'),
                      mask=('[MASK]', MASK))


def configured_token(config, role, default=None):
    """The special token that a folder's files name for a role, else `default`.

    config: as `tokenizer._read_config` returns it.
    """
    token = config.get(f'{role}_token')
    if isinstance(token, dict):     # an AddedToken of transformers
        token = token.get('content')
    return token if isinstance(token, str) else default


#: The Chinese characters in the code of the published BERT, for the brackets
#: of a regular expression.
IDEOGRAPHS = ('\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df'
              '\U0002a700-\U0002b73f\U0002b740-\U0002b81f'
              '\U0002b820-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f')
_IDEOGRAPH = re.compile(f'[{IDEOGRAPHS}]')


@functools.lru_cache(maxsize=1 << 12)
def is_word_alone(char):
    """True for punctuation, symbols and `IDEOGRAPHS`: each is a whole word."""
    return (unicodedata.category(char)[0] in 'PS'
            or _IDEOGRAPH.match(char) is not None)


class Details(NamedTuple):
    """The T tokens of an `Encoded`, and their places in the text.

    In a pair, offsets and words are counted within the text of the token.
    Special tokens have offsets (0, 0), word None and text index 0.
    """

    tokens: List[str]
    offsets: List[Tuple[int, int]]      # begin and end in characters of the
                                        # text (of the word in the result of
                                        # `encode_words`)
    words: List[Optional[int]]          # index of the word in its text
    text_indices: List[int]             # 1 in the second text of a pair, or 0


class Encoded:
    """The inputs of a model for a text or a pair, T tokens.

    ids: a list of T token ids. segments: a list of T numbers, 1 for the second
    text of a pair and the special token after it, else 0. But RoBERTa's
    tokenizer and some others give 0 in both texts. get_details: returns the
    `Details`. It is called at their first use: vectors do not need them.
    """

    __slots__ = 'ids', 'segments', '_get_details', '_details'

    def __init__(self, ids, segments, get_details):
        self.ids, self.segments = ids, segments
        self._get_details, self._details = get_details, None

    def __eq__(self, other):
        return isinstance(other, Encoded) and (
            self.ids, self.segments, self.details) == (
            other.ids, other.segments, other.details)

    def __repr__(self):
        return f'Encoded({self.ids}, {self.segments}, {self.details})'

    @property
    def details(self):
        if self._details is None:
            self._details = self._get_details()
        return self._details

    @property
    def tokens(self):
        return self.details.tokens

    @property
    def offsets(self):
        return self.details.offsets

    @property
    def words(self):
        return self.details.words

    @property
    def text_indices(self):
        return self.details.text_indices


class BaseTokenizer:
    """A subclass defines `encode_batch` and `num_special`."""

    #: The `pooling.Pooling` of the tokenizer's folder, or None
    pooling = None

    #: The `Vocab` of a `tokenizer.WholeWords`; None for other tokenizers
    vocab = None

    def _set_tokens(self, idx_to_token, special, max_len=None):
        """Set the tokens, a list by id.

        special: {role: token}; without 'mask', mask_id is None. max_len: the
        number of tokens that the model can read, or None; `encode` does not
        apply it.
        """
        self.idx_to_token, self.max_len = idx_to_token, max_len
        self.token_to_idx = {}
        for idx, token in enumerate(idx_to_token):
            self.token_to_idx.setdefault(token, idx)
        self.special = special
        (self.pad_id, self.unk_id, self.cls_id, self.sep_id,
         self.mask_id) = (self.token_to_idx.get(special.get(role))
                          for role in ROLES)

    def __len__(self):
        return len(self.idx_to_token)

    @property
    def special_ids(self):
        """The ids of all special tokens, sorted."""
        return sorted({self.token_to_idx[token]
                       for token in self.special.values()})

    def encode(self, text, pair=None, max_len=None):
        """Encode a text, or a pair of texts: an `Encoded`.

        max_len: the largest number of tokens, special tokens included, or
        None. Truncation removes the last tokens of the longer text first.
        """
        encoded, = self.encode_batch(
            [text], None if pair is None else [pair], max_len)
        return encoded


# Texts and their lengths

def as_list(items, noun):
    if isinstance(items, (str, bytes)):
        raise TypeError(f'expected a list of {noun}, not the string {items!r}')
    return list(items)


def check_text(text):
    if not isinstance(text, str):
        raise TypeError(f'a text must be a string, not {text!r}')
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        # Python decodes bytes to these with errors='surrogateescape'
        is_byte = '\udc80' <= text[error.start] <= '\udcff'
        raise ValueError(
            f'the text {text[:60]!r} is not Unicode: its character '
            f'{error.start + 1} ' + (
                'comes from a byte that was not UTF-8: read the text with '
                'its right encoding' if is_byte else
                'is one half of a surrogate pair: give both halves, or '
                'leave it out')) from None
    return text


def check_pairs(second_texts, first_texts):
    second_texts = as_list(second_texts, 'texts')
    if len(second_texts) != len(first_texts):
        raise ValueError(
            f'{len(second_texts)} second texts cannot be paired with '
            f'{len(first_texts)} first texts: give equal numbers')
    return second_texts


def max_text_len(tokenizer, max_len, is_pair):
    """Subtract the special tokens of a text or a pair from max_len.

    None, for no limit, remains None.
    """
    if max_len is None:
        return None
    num_special = tokenizer.num_special(is_pair)
    if max_len < num_special:
        raise ValueError(f'max_len={max_len} has no room for the '
                         f'{num_special} special tokens: raise it')
    return max_len - num_special


def truncated_lengths(first_len, second_len, max_tokens):
    """The lengths of two texts after truncation to max_tokens in all.

    second_len: None for a single text, whose new length is returned with 0.
    The result equals that of `longest_first` in transformers. If both texts
    lose tokens and max_tokens is odd, the text that was longer keeps one token
    more than the other. Of equally long texts, the second text does.
    """
    if second_len is None:
        return min(first_len, max_tokens), 0
    return tuple(map(int, truncate_pair(first_len, second_len, max_tokens,
                                        odd_to_first=first_len > second_len)))


MAX_LISTED_WORDS = 8


class UnknownWords:
    """Counts the tokens of texts, and lists unknown words for a message."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._unk_id = tokenizer.unk_id
        self._unk_token = (None if self._unk_id is None
                           else tokenizer.idx_to_token[self._unk_id])
        self._num_special = [tokenizer.num_special(is_pair)
                             for is_pair in (False, True)]
        self._num_tokens = self._num_unknown = 0    # without special tokens
        self._words = {}        # keys: the first unknown words, in order

    def readable_tokens(self, encoding):
        """The tokens of an `Encoding`, with unknown words as in its text."""
        encoded = encoding.encoded
        texts = encoding.text.text, encoding.text.pair
        # Special tokens end at 0, since they are not in the text
        return [texts[k][begin:end] if idx == self._unk_id and end > 0
                else token
                for idx, token, k, (begin, end) in zip(
                    encoded.ids, encoded.tokens, encoded.text_indices,
                    encoded.offsets)]

    def count(self, encoding):
        """Count the tokens of an `encoding.Encoding`, and unknown words."""
        ids, is_pair = encoding.encoded.ids, encoding.text.pair is not None
        self._num_tokens += len(ids) - self._num_special[is_pair]
        num_unknown = ids.count(self._unk_id)
        self._num_unknown += num_unknown
        # `note` needs one more word than it lists, to add "and others"
        if num_unknown and len(self._words) <= MAX_LISTED_WORDS:
            for token, idx in zip(self.readable_tokens(encoding), ids):
                if idx == self._unk_id:
                    self._words[token] = None

    def warn(self):
        if self._num_unknown:
            warn_once(self._tokenizer, 'unknown', self.note())

    def note(self, source=None):
        """A message that lists unknown words; None if none were counted.

        source: the name of the texts, such as 'the query', or None.
        """
        if not self._num_unknown:
            return None
        words = list(self._words)
        return (f'{self._num_unknown:,} of {self._num_tokens:,} tokens'
                + (f' of {source}' if source else '')
                + f' are unknown words, read as {self._unk_token}: '
                + ', '.join(words[:MAX_LISTED_WORDS])
                + (' and others' if len(words) > MAX_LISTED_WORDS else ''))
